"""What the jobs of the engines' tests do: leave evidence outside of nextslot that no run overlaps another of its job.

    evidence.py KEY SECONDS [--leave] [--fail-first]

Run by an engine, with the directory of the evidence as its working directory. A lock file of the key is made
exclusively and removed at the end; a killed run leaves it, with the pids that must be gone when the next one begins.
With `go` instead of SECONDS it works until the test has made a file of that name (`Rig.let_end`), however slow the
machine is.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

GO = "go"
SLEEPER = "import os, sys, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); time.sleep(600)"


def main() -> None:
    key, seconds, *options = sys.argv[1:]
    run_id = os.environ["NEXTSLOT_RUN_ID"]
    lock = Path(f"{key}.lock")
    note(f"begin {key} {run_id}")
    try:
        own = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        left = lock.read_text().split()
        alive = [pid for pid in left if is_alive(pid)]
        note(f"overlap {key} {run_id} {alive}" if alive else f"after {key} {run_id}")
        own = os.open(lock, os.O_WRONLY | os.O_TRUNC)
    if "--leave" in options:
        subprocess.run([sys.executable, "-c", SLEEPER, key], check=True)
    os.write(own, f"{name_of(os.getpid())} ".encode())
    os.write(1, f"working for {key}\n".encode())
    if seconds == GO:
        while not Path(GO).exists():
            time.sleep(0.02)
    else:
        time.sleep(float(seconds))
    Path(os.environ["NEXTSLOT_ARTIFACTS"], "made.txt").write_text(key)
    lock.unlink()
    note(f"end {key} {run_id}")


def note(words: str) -> None:
    fd = os.open("evidence.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, f"{words}\n".encode())
    os.close(fd)


def name_of(pid: int) -> str:
    """Returns the number and the start of a process; of one that is dead and not reaped yet, no valid name."""
    state, *_, start = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:20]
    return "dead" if state in (b"Z", b"X") else f"{pid}@{start.decode()}"


def is_alive(name: str) -> bool:
    try:
        return name_of(int(name.partition("@")[0])) == name
    except (OSError, IndexError):
        return False


if __name__ == "__main__":
    main()
