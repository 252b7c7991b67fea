"""Handles a command's output: writes it to the run's log, reads progress lines, remembers the last line."""

import re
from contextlib import suppress

from .run_context import RunContext

# How much of an unfinished line is kept, and how much of the last line is shown.
LONGEST_LINE = 4096
LONGEST_SHOWN = 1000
# How many bytes at the end of the output are searched for the reason of a failure.
LONGEST_TAIL = 16 * 1024

_PROGRESS = re.compile(rb"^::progress[ \t]+([0-9.eE+-]{1,32})(?:[ \t]+([^\r\n]{0,1000}))?[^\n]*$", re.MULTILINE)
_MARK = b"::progress"


class Output:
    """Receives the output of one command. Memory use is bounded even if the output is huge or has no newline."""

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._unfinished = b""
        self._last = b""
        self._tail = b""

    def write(self, data: bytes) -> None:
        self._run.write(data)
        self._tail = (self._tail + data)[-LONGEST_TAIL:]
        lines, newline, rest = (self._unfinished + data).rpartition(b"\n")
        self._unfinished = rest[:LONGEST_LINE]
        if newline:
            self._read(lines)

    @property
    def last_line(self) -> str:
        """Returns the last non-empty line that is not a progress line. The line may lack its newline."""
        self._read(self._unfinished)
        return self._last.decode("utf-8", "replace")

    @property
    def tail(self) -> str:
        """Returns the end of the output, which is searched for the reason of a failure."""
        return self._tail.decode("utf-8", "replace")

    def _read(self, lines: bytes) -> None:
        if _MARK in lines:
            self._note_progress(lines)
        end = len(lines)
        while end > 0:
            begin = lines.rfind(b"\n", 0, end) + 1
            line = lines[begin : min(end, begin + LONGEST_LINE)].strip()
            if line and not line.startswith(_MARK):
                # A progress bar overwrites its line with carriage returns: keep only the last version.
                self._last = line.rpartition(b"\r")[2][:LONGEST_SHOWN]
                return
            end = begin - 1

    def _note_progress(self, lines: bytes) -> None:
        """Reports only the newest progress line; older ones in the same chunk are outdated."""
        end = len(lines)
        while end > 0:
            begin = lines.rfind(_MARK, 0, end)
            if begin < 0:
                return
            found = _PROGRESS.match(lines, begin) if lines[begin - 1 : begin] in (b"", b"\n") else None
            if found:
                with suppress(ValueError):  # Not a number: treat it as an ordinary line.
                    self._run.progress(float(found[1]), (found[2] or b"").decode("utf-8", "replace").strip())
                    return
            end = begin
