"""The engine `local`: runs the wrapper as a process of this machine that outlives the scheduler and can be adopted."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nextslot.errors import Problem, Unavailable
from nextslot.executors.process_tree.kill_tree import ENDED, start_time, state
from nextslot.executors.process_tree.survivors import end_survivors

from .contract import EngineKind, Key, Refused, Seen, Sight, Submission, Unreachable

START_SECONDS = 30.0


class LocalEngine:
    """Starts processes of this machine. A handle is `PID@START_TIME`, which identifies a process until a reboot."""

    def submit(self, submission: Submission) -> str:
        program, *arguments = submission.argv
        # `-I WRAPPER DIRECTORY` becomes `-I WRAPPER --detach DIRECTORY`.
        argv = [program, *arguments[:-1], "--detach", arguments[-1]]
        try:
            done = subprocess.run(
                argv, cwd=submission.directory, stdin=subprocess.DEVNULL, capture_output=True, timeout=START_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise Unreachable(f"the wrapper did not start within {START_SECONDS:g} seconds") from error
        except OSError as error:
            raise Refused(f"{program!r} cannot be started: {error.strerror}") from error
        if done.returncode:
            raise Refused(done.stderr.decode("utf-8", "replace").strip()[-1000:])
        pid, start = done.stdout.split()
        return f"{int(pid)}@{int(start)}"

    def find(self, run_id: str) -> list[str]:
        mark = b"/" + run_id.encode()
        found = []
        for path in Path("/proc").iterdir():
            if not path.name.isdigit():
                continue
            with suppress(OSError):
                words = (path / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                pid = int(path.name)
                # Matches the wrapper only: the guardian that it forks has the same arguments.
                if words[-1].endswith(mark) and b"--detach" in words and not _is_guardian(pid):
                    found.append(f"{pid}@{start_time(pid)}")
        return found

    def observe(self, keys: Sequence[Key]) -> Mapping[str, Seen]:
        return {key.run_id: Seen(Sight.RUNNING if _is_alive(key.handle) else Sight.ABSENT) for key in keys}

    def logs(self, key: Key, offset: int) -> bytes:
        return b""

    def stop(self, key: Key, grace_seconds: float) -> None:
        """Requests the wrapper to end its tree; without a wrapper, ends the rest of the tree here."""
        if _is_alive(key.handle):
            with suppress(OSError):
                os.kill(int(key.handle.partition("@")[0]), signal.SIGTERM)
            return
        try:
            end_survivors([key.run_id])
        except Unavailable as error:
            raise Unreachable(str(error)) from error

    def forget(self, key: Key) -> None:
        """Does nothing: this engine stores nothing about a process that has ended."""


def _is_alive(handle: str) -> bool:
    pid, _, start = handle.partition("@")
    return start_time(int(pid)) == int(start) and state(int(pid)) not in ENDED


def _is_guardian(pid: int) -> bool:
    """Returns whether a process was forked by a process with the same arguments."""
    with suppress(OSError, ValueError, IndexError):
        parent = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        return Path(f"/proc/{parent}/cmdline").read_bytes() == Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _check(options: Mapping[str, Any]) -> Iterator[Problem]:
    for name in sorted(options):
        yield Problem(name, "is not an option of a local engine, which has none; remove it")


KIND = EngineKind(make=lambda name, options: LocalEngine(), check=_check, poll_seconds=0.5)
