"""The program that `isolated_handler` starts: runs one isolated handler and exits."""

import asyncio
import importlib
import importlib.util
import inspect
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from nextslot.domain import Json, Outcome
from nextslot.errors import Unavailable

from .checkpoints import CHANNEL_FD, KEPT, Kept, checked
from .inputs import of_json
from .isolated_handler import OUTCOME_FILE
from .run_context import LineFormatter, RunContext, raised, returned
from .run_files import RunFiles
from .signatures import signature_of


class _IsolatedRun(RunContext):
    """The run as the isolated handler sees it: log lines and progress are written to standard output."""

    def __init__(self, what: Mapping[str, Any]) -> None:
        run_id, job_id, office_id, job_type, attempt = what["run"]
        super().__init__(run_id, job_id, office_id, job_type, what["params"], attempt, RunFiles(Path.cwd()))
        self._artifacts = Path(what["artifacts"])
        self.inputs = of_json(what["inputs"])
        self.devices = {resource: tuple(names) for resource, names in what["devices"].items()}
        self.last_checkpoint = what["checkpoint"]
        self.signals = what["signals"]
        # The channel needs a lock: the handler may use any thread, and several may store checkpoints.
        self._channel = socket.socket(fileno=CHANNEL_FD)
        self._answers = self._channel.makefile("rb")
        self._lock = threading.Lock()

    def checkpoint(self, value: Json) -> Kept:
        text = checked(value)
        with self._lock:
            self._channel.sendall(text.encode() + b"\n")
            answer = self._answers.readline().decode("utf-8", "replace").strip()
        if answer != "ok":
            raise Unavailable(answer.removeprefix("error ") or "the scheduler is gone")
        return KEPT

    def progress(self, fraction: float, text: str = "") -> None:
        super().progress(fraction, text)
        sys.stdout.write(f"\n::progress {self.fraction} {' '.join(text.split())}\n")

    @property
    def log(self) -> logging.Logger:
        if self._logger is None:
            handler = logging.StreamHandler(sys.stdout)
            handler.setFormatter(LineFormatter())
            self._logger = logging.Logger(f"nextslot.run.{self.run_id}")
            self._logger.addHandler(handler)
        return self._logger


def _main() -> None:
    what = orjson.loads(sys.stdin.buffer.read())
    sys.path[:] = what["path"]
    run = _IsolatedRun(what)
    outcome = asyncio.run(_outcome(_imported(what["location"]), run))
    left = run.artifacts / OUTCOME_FILE
    left.with_suffix(".new").write_bytes(orjson.dumps(outcome))
    left.with_suffix(".new").rename(left)


async def _outcome(handler: Callable[..., Any], run: RunContext) -> Outcome:
    """Runs the handler. On SIGTERM, a blocking handler sees a flag, and the task of an async handler is cancelled."""
    task = asyncio.current_task()
    assert task is not None
    is_async = inspect.iscoroutinefunction(handler)

    def on_term() -> None:
        run.request_stop()
        if is_async:
            task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, on_term)
    try:
        if is_async:
            return returned(run, await signature_of(handler).call(handler, run))
        return returned(run, await asyncio.to_thread(signature_of(handler).call, handler, run))
    except BaseException as error:  # Any error ends the handler and this process; report it as the outcome.
        return raised(run, error)


def _imported(location: Mapping[str, str | None]) -> Callable[..., Any]:
    if location["file"] is not None:
        spec = importlib.util.spec_from_file_location("__nextslot_main__", location["file"])
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["__nextslot_main__"] = sys.modules["__main__"] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(location["module"] or "")
    found: Any = module
    for part in (location["name"] or "").split("."):
        found = getattr(found, part)
    # A handle of a job type has the attribute `function`.
    return getattr(found, "function", found)  # type: ignore[no-any-return]


if __name__ == "__main__":
    _main()
