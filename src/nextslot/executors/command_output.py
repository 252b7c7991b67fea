"""What a command writes: into the run's log as it comes; its progress lines are read, its last line is remembered."""

import re
from contextlib import suppress

from .run_context import RunContext

# Of an unfinished line only so much is kept; of the last line so much is shown.
LONGEST_LINE = 4096
LONGEST_SHOWN = 1000

_PROGRESS = re.compile(rb"^::progress[ \t]+([0-9.eE+-]{1,32})(?:[ \t]+([^\r\n]{0,1000}))?[^\n]*$", re.MULTILINE)
_MARK = b"::progress"


class Output:
    """Memory is bounded, whatever comes: a gigabyte, no newline, no text at all."""

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._unfinished = b""
        self._last = b""

    def write(self, data: bytes) -> None:
        self._run.write(data)
        lines, newline, rest = (self._unfinished + data).rpartition(b"\n")
        self._unfinished = rest[:LONGEST_LINE]
        if newline:
            self._read(lines)

    @property
    def last_line(self) -> str:
        """The last line with something on it, apart from progress; also one without a newline."""
        self._read(self._unfinished)
        return self._last.decode("utf-8", "replace")

    def _read(self, lines: bytes) -> None:
        if _MARK in lines:
            self._note_progress(lines)
        end = len(lines)
        while end > 0:
            begin = lines.rfind(b"\n", 0, end) + 1
            line = lines[begin : min(end, begin + LONGEST_LINE)].strip()
            if line and not line.startswith(_MARK):
                # A line drawn over again and again: what is to be seen is what was drawn last.
                self._last = line.rpartition(b"\r")[2][:LONGEST_SHOWN]
                return
            end = begin - 1

    def _note_progress(self, lines: bytes) -> None:
        """The newest of many: nobody sees the ones between."""
        end = len(lines)
        while end > 0:
            begin = lines.rfind(_MARK, 0, end)
            if begin < 0:
                return
            found = _PROGRESS.match(lines, begin) if lines[begin - 1 : begin] in (b"", b"\n") else None
            if found:
                with suppress(ValueError):  # Not a number: a line like any other.
                    self._run.progress(float(found[1]), (found[2] or b"").decode("utf-8", "replace").strip())
                    return
            end = begin
