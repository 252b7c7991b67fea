"""Python handlers in a process of their own (`isolate=True`): they can be ended from outside, and take nothing with them.

The scheduler's side starts this file as a program, under a guardian as any command; the program imports the handler,
runs it and leaves its outcome in a file. What it prints goes to the run's log.
"""

import asyncio
import importlib
import importlib.util
import inspect
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from ..errors import Invalid
from ..model import FailureKind, Outcome, RunStatus
from .command import GRACE_SECONDS, ends_with
from .files import RunFiles
from .output import Output
from .process import Guardians, Start
from .run import RunContext
from .survivors import RUN_ID

OUTCOME_FILE = ".nextslot-outcome"


class IsolatedHandler:
    """Runs a function, found again by its module and name, in a process of its own."""

    def __init__(self, handler: Callable[..., Any], guardians: Guardians, grace_seconds: float = GRACE_SECONDS) -> None:
        self._where = _where(handler)
        self._guardians = guardians
        self._grace_seconds = grace_seconds

    async def __call__(self, run: RunContext, /, **params: Any) -> Outcome:
        output = Output(run)
        process = await self._guardians.start(self._start(run, params), output.write)
        end, outcome = await ends_with(process, run, self._grace_seconds)
        left = run.artifacts / OUTCOME_FILE
        if outcome is None:
            outcome = _read(left) or Outcome.failed(
                FailureKind.ERROR, f"its process ended without a word ({end.signal or f'exit code {end.exit_code}'})"
            )
        left.unlink(missing_ok=True)
        return outcome

    def _start(self, run: RunContext, params: Mapping[str, Any]) -> Start:
        what = {
            "where": self._where,
            "path": sys.path,
            "params": params,
            "run": [run.run_id, run.job_id, run.office_id, run.job_type, run.attempt],
            "artifacts": str(run.artifacts.absolute()),
        }
        return Start(
            argv=(sys.executable, "-m", __name__),
            env={**os.environ, RUN_ID: run.run_id, "PYTHONUNBUFFERED": "1"},
            stdin=orjson.dumps(what),
        )


def _where(handler: Callable[..., Any]) -> dict[str, str | None]:
    """Module, file and name by which another process finds the function."""
    if not inspect.isfunction(handler) or "<" in handler.__qualname__:
        raise Invalid("a handler that is isolated is a function at the top of a module", field="isolate")
    # A script is imported under another name, so that its `if __name__ == "__main__":` is not run again.
    file = getattr(sys.modules.get("__main__"), "__file__", None) if handler.__module__ == "__main__" else None
    return {"module": handler.__module__, "file": file, "name": handler.__qualname__}


def _read(path: Path) -> Outcome | None:
    try:
        told = orjson.loads(path.read_bytes())
        kind = told["failure_kind"]
        return Outcome(
            status=RunStatus(told["status"]),
            result=told["result"],
            error=told["error"],
            failure_kind=None if kind is None else FailureKind(kind),
            reason=told["reason"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


# In the process of its own.


class _IsolatedRun(RunContext):
    """The run as the handler sees it there: its log and progress are lines of output."""

    def __init__(self, what: Mapping[str, Any]) -> None:
        run_id, job_id, office_id, job_type, attempt = what["run"]
        super().__init__(run_id, job_id, office_id, job_type, what["params"], attempt, RunFiles(Path.cwd()))
        self._artifacts = Path(what["artifacts"])

    def progress(self, fraction: float, text: str = "") -> None:
        super().progress(fraction, text)
        sys.stdout.write(f"\n::progress {self.fraction} {' '.join(text.split())}\n")

    @property
    def log(self) -> logging.Logger:
        if self._logger is None:
            handler = logging.StreamHandler(sys.stdout)
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            self._logger = logging.Logger(f"nextslot.run.{self.run_id}")
            self._logger.addHandler(handler)
        return self._logger


def _main() -> None:
    from ..engine.executor import outcome_of

    what = orjson.loads(sys.stdin.buffer.read())
    sys.path[:] = what["path"]
    run = _IsolatedRun(what)
    signal.signal(signal.SIGTERM, lambda *_: run.tell_to_stop())
    outcome = asyncio.run(outcome_of(_found(what["where"]), run))
    left = run.artifacts / OUTCOME_FILE
    left.with_suffix(".new").write_bytes(
        orjson.dumps(
            {
                "status": outcome.status,
                "result": outcome.result,
                "error": outcome.error,
                "failure_kind": outcome.failure_kind,
                "reason": outcome.reason,
            }
        )
    )
    left.with_suffix(".new").rename(left)


def _found(where: Mapping[str, str | None]) -> Callable[..., Any]:
    if where["file"] is not None:
        spec = importlib.util.spec_from_file_location("__nextslot_main__", where["file"])
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["__nextslot_main__"] = sys.modules["__main__"] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(where["module"] or "")
    found: Any = module
    for part in (where["name"] or "").split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


if __name__ == "__main__":
    _main()
