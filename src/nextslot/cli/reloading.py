"""`nextslot serve --reload`: runs a server in a process of its own, and restarts it after each change of the code.

The stop signal is sent to the server twice, so that the server interrupts running work, which the next server retries.
"""

import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from . import output

SUFFIXES = (".py", ".toml")
# The parts of the data directory that contain run files and no code.
_OF_RUNS = ("logs", "artifacts", "inputs")
# How long interrupted work may take to end. After that, the recovery of the next start handles it.
STOP_SECONDS = 20.0


def serve(options: Mapping[str, object], is_json: bool) -> int:
    """Serves until Ctrl-C or SIGTERM. Returns the exit code of the last server."""
    from watchfiles import watch

    given = [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "nextslot.cli.main", "serve", *given, *(["--json"] if is_json else [])]
    data, end = Path(str(options["data"])).absolute(), threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: end.set())
    places = {Path.cwd(), data}
    server = _started(command)
    try:
        for changes in watch(
            *places,
            watch_filter=lambda _, path: is_code(Path(path), data),
            stop_event=end,
            ignore_permission_denied=True,
        ):
            changed = ", ".join(sorted({Path(path).name for _, path in changes}))
            output.remark(f"nextslot: {changed} changed; starting again")
            _stop(server)
            server = _started(command)
    finally:
        code = _stop(server, is_twice=False)
    return code


def is_code(path: Path, data: Path) -> bool:
    if path.suffix not in SUFFIXES or any(part.startswith(".") or part == "__pycache__" for part in path.parts):
        return False
    return not any(path.is_relative_to(data / name) for name in _OF_RUNS)


def _started(command: list[str]) -> "subprocess.Popen[bytes]":
    # The server has a session of its own: only this process gets Ctrl-C, and passes it on once.
    return subprocess.Popen(command, start_new_session=True)


def _stop(server: "subprocess.Popen[bytes]", is_twice: bool = True) -> int:
    """Ends a server: in order, or at once."""
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
        if not is_twice:
            return server.wait()
        try:
            server.wait(0.5)
        except subprocess.TimeoutExpired:
            server.send_signal(signal.SIGTERM)
    try:
        return server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        return server.wait()
