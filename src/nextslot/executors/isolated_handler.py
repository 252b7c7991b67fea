"""Runs Python handlers with `isolate=True` in a separate process, which can be killed and cannot harm the scheduler.

This is the scheduler's side: it starts `isolated_handler_main` under a guardian, like any command. That program
imports the handler, runs it and writes its outcome to a file. Its output goes to the run's log.
"""

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from nextslot.domain import FailureKind, Outcome, RunStatus
from nextslot.errors import Invalid
from nextslot.system.instant import Instant

from .checkpoints import CheckpointLines
from .command import GRACE_SECONDS, broken, until_ended
from .command_output import Output
from .inputs import as_json
from .process_tree.fork_server import Guardians
from .process_tree.process import End, Start
from .process_tree.run_marks import RUN_ID
from .run_context import RunContext

OUTCOME_FILE = ".nextslot-outcome"


class IsolatedHandler:
    """Runs a function in a separate process, which finds it by its module and name."""

    def __init__(self, handler: Callable[..., Any], guardians: Guardians, grace_seconds: float = GRACE_SECONDS) -> None:
        self._location = _location(handler)
        self._guardians = guardians
        self.grace_seconds = grace_seconds

    async def __call__(self, run: RunContext, /, **params: Any) -> Outcome:
        output = Output(run)
        lines = CheckpointLines(run.keep_soon)
        process = await self._guardians.start(self._start(run, params), output.write, lines)
        end = await until_ended(process, run, self.grace_seconds)
        left = run.artifacts / OUTCOME_FILE
        outcome = broken(end) or _read(left) or _no_outcome(end)
        left.unlink(missing_ok=True)
        with suppress(OSError):
            run.artifacts.rmdir()  # The handler left no artifact.
        return replace(outcome, exit_code=None if end.lost or end.broken else end.exit_code)

    def _start(self, run: RunContext, params: Mapping[str, Any]) -> Start:
        what = {
            "location": self._location,
            "path": sys.path,
            "params": params,
            "run": [run.run_id, run.job_id, run.office_id, run.job_type, run.attempt],
            "artifacts": str(run.artifacts.absolute()),
            "inputs": orjson.loads(as_json(run.inputs)),
            "devices": run.devices,
            "checkpoint": run.last_checkpoint,
            "signals": run.signals,
        }
        return Start(
            argv=(sys.executable, "-m", f"{__package__}.isolated_handler_main"),
            env={**os.environ, RUN_ID: run.run_id, "PYTHONUNBUFFERED": "1", **run.environment},
            stdin=orjson.dumps(what),
        )


def is_importable(handler: Callable[..., Any]) -> bool:
    """Returns whether another process can import the function without running a script again."""
    return _has_name(handler) and handler.__module__ != "__main__"


def _location(handler: Callable[..., Any]) -> dict[str, str | None]:
    """Returns the module, file and name by which another process finds the function."""
    if not _has_name(handler):
        raise Invalid(
            "another process cannot import this handler; isolate a function at the top of a module",
            field="isolate",
        )
    # Import a script under another name, so that its `if __name__ == "__main__":` block does not run again.
    file = getattr(sys.modules.get("__main__"), "__file__", None) if handler.__module__ == "__main__" else None
    return {"module": handler.__module__, "file": file, "name": handler.__qualname__}


def _has_name(handler: Callable[..., Any]) -> bool:
    return inspect.isfunction(handler) and "<" not in handler.__qualname__


def _no_outcome(end: End) -> Outcome:
    how = f"was ended by {end.signal}" if end.signal else f"ended with exit code {end.exit_code}"
    return Outcome.failed(FailureKind.ERROR, f"the handler's process {how} without reporting an outcome")


def _read(path: Path) -> Outcome | None:
    try:
        stored = orjson.loads(path.read_bytes())
        kind = stored.pop("failure_kind")
        status, failure_kind = RunStatus(stored.pop("status")), None if kind is None else FailureKind(kind)
        until = stored.pop("quota_until", None)
        known = {
            "status": status,
            "failure_kind": failure_kind,
            "quota_until": None if until is None else Instant(until),
        }
        return Outcome(**{**stored, **known, "artifacts": ()})
    except (OSError, ValueError, KeyError, TypeError):
        return None
