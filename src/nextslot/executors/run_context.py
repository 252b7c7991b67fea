"""The context of a run, for its handler, and the conversion of what a handler returns or raises into an outcome."""

import asyncio
import logging
import math
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from time import gmtime
from typing import Any, NoReturn
from uuid import UUID

import orjson

from nextslot.domain import FailureKind, Json, Outcome, signals
from nextslot.domain.bounds import MAX_RESULT_BYTES
from nextslot.domain.devices import NO_DEVICES, NO_VARIABLES, Devices
from nextslot.domain.request_checks import json_problems
from nextslot.errors import Invalid, Problem, Unavailable
from nextslot.system.instant import Instant

from .checkpoints import FILE_VARIABLE, KEPT, Kept, checked
from .inputs import Inputs, as_json
from .quota_times import seconds_of_headers, wall_time
from .run_files import RunFiles
from .run_log import RunLog

log = logging.getLogger(__name__)

MAX_ERROR = 10_000
NOTHING_KEPT = "this run stores no checkpoints: only jobs have attempts that could go on from one"


class LineFormatter(logging.Formatter):
    """Formats a line of a run's log: the time in UTC, since readers in other zones see the same log."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self.converter = gmtime


Listener = Callable[[str, Mapping[str, Any]], None]
_WITH_JSON_FORM = (date, time, timedelta, Enum, UUID, Decimal, Path)


class Skip(Exception):
    """Raised by a handler that had nothing to do, with the reason. The run ends SKIPPED."""


class Fail(Exception):
    """Raised by a handler whose work failed, with a failure kind."""

    def __init__(self, message: str, kind: FailureKind | str = FailureKind.ERROR) -> None:
        super().__init__(message)
        self.kind = FailureKind(kind)


class QuotaExceeded(Fail):
    """Raised by a handler if a provider has refused the work because a quota or a rate is used up.

    The run ends FAILED with the kind `quota`. It is retried when the quota is renewed, and no other job that needs the
    resource starts before. `until` is an instant or a datetime with a time zone, `retry_after` a number of seconds;
    without both, the scheduler tries again after growing pauses. `resource` names the used-up resource; by default, all
    resources of the job count as used up.
    """

    def __init__(
        self,
        message: str = "the quota is used up",
        *,
        until: Instant | datetime | None = None,
        retry_after: float | None = None,
        resource: str | None = None,
    ) -> None:
        super().__init__(message, FailureKind.QUOTA)
        self.until = Instant.of(until) if isinstance(until, datetime) else until
        if retry_after is not None and not math.isfinite(retry_after):
            raise ValueError(f"retry_after is {retry_after}; give a number of seconds")
        self.retry_after = retry_after
        self.resource = resource

    @classmethod
    def of_response(
        cls, headers: Mapping[str, str], message: str = "the quota is used up", *, resource: str | None = None
    ) -> "QuotaExceeded":
        """Makes the error from the headers of an answer with status 429, `retry-after` or `x-ratelimit-reset`."""
        return cls(message, retry_after=seconds_of_headers(headers, wall_time()), resource=resource)


class Parked(Exception):
    """Raised by `run.park`: ends the run; its chain continues after the signal."""

    def __init__(self, wait: Mapping[str, Json]) -> None:
        super().__init__(f"parked for the signal {wait['name']!r}")
        self.wait = wait


class Stopped(Exception):
    """Raised by `run.check()` once the run must stop."""


class RunContext:
    """One execution of a job, as its handler sees it. Safe to use from the handler's thread."""

    def __init__(
        self,
        run_id: str,
        job_id: str,
        office_id: str,
        job_type: str,
        params: Mapping[str, Any],
        attempt: int,
        files: RunFiles,
    ) -> None:
        self.run_id = run_id
        self.job_id = job_id
        self.office_id = office_id
        self.job_type = job_type
        self.params = params
        self.attempt = attempt
        # The inputs from the prerequisites of the job, by their keys or else their ids; None for a skipped job.
        self.inputs: Inputs = {}
        # By resource, the named devices that only this run uses, and the variables that name them to programs.
        self.devices: Devices = NO_DEVICES
        self.environment: Mapping[str, str] = NO_VARIABLES
        # The last checkpoint of an earlier attempt; None if there is none.
        self.last_checkpoint: Json = None
        # The answers to the signals for which the chain has waited, by name.
        self.signals: Mapping[str, Json] = {}
        self.title: str | None = None
        self.role: str | None = None
        self.task_id: str | None = None
        self.session_id: str | None = None
        # The session of the attempt before and the reason of its failure; and the function that stores this run's.
        self.earlier_session: tuple[str, FailureKind] | None = None
        self.set_session: Callable[[str], Coroutine[Any, Any, None]] | None = None
        self.fraction: float | None = None
        self.text = ""
        # How many tokens the run has used so far. A handler sets it; rates count it if the result does not say so.
        self.used_tokens = 0
        self.log_cap: int | None = None
        # The callback that receives progress and output; set only if needed.
        self.listen: Listener | None = None
        # The clock for stall detection, and the callback for the next activity of a silent run.
        self.now: Callable[[], float] | None = None
        self.last_active = 0.0
        # The wall clock, by which instants are counted.
        self.wall_time: Callable[[], Instant] = wall_time
        self.on_activity: Callable[[], None] | None = None
        # The function that stores a checkpoint, and its event loop, whose thread must not wait for it.
        self.keep: Callable[[str], asyncio.Future[None]] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.loop_thread = 0
        self._files = files
        self._is_stopped = False
        self._stop: threading.Event | None = None
        self._logger: logging.Logger | None = None
        self._log_file: RunLog | None = None
        self._is_log_broken = False
        self._artifacts: Path | None = None

    def progress(self, fraction: float, text: str = "") -> None:
        """Reports which part of the work is done, from 0 to 1, and what the handler is doing."""
        self.fraction = min(1.0, max(0.0, float(fraction)))
        self.text = text
        self.note("progress", {"fraction": self.fraction, "text": text})

    def checkpoint(self, value: Json) -> Awaitable[None]:
        """Stores JSON of at most 64 KiB for the chain; the next attempt finds it in `last_checkpoint`.

        In a plain function, the checkpoint is durable when this returns; in an async one, when the awaited call
        returns. Of several checkpoints that wait, only the last is stored. Raises Invalid for a value that cannot be
        stored, and Unavailable if the database does not answer.
        """
        text = checked(value)
        self._note_activity()
        if threading.get_ident() == self.loop_thread:
            return self.keep_soon(text)
        return self._keep_now(text)

    def keep_by(self, keep: Callable[[str], "asyncio.Future[None]"] | None) -> None:
        """Sets the function that stores checkpoints. Called on the event loop, whose thread must not wait."""
        self.keep, self.loop, self.loop_thread = keep, asyncio.get_running_loop(), threading.get_ident()

    def keep_soon(self, text: str) -> "asyncio.Future[None]":
        """Stores a checkpoint and returns at once. Called on the event loop."""
        if self.keep is None:
            raise Unavailable(NOTHING_KEPT)
        kept = self.keep(text)
        kept.add_done_callback(self._log_unkept)
        return kept

    def _log_unkept(self, kept: "asyncio.Future[None]") -> None:
        if not kept.cancelled() and (error := kept.exception()) is not None:
            log.warning("run %s: a checkpoint was not stored: %s", self.run_id, error)

    def _keep_now(self, text: str) -> Kept:
        if self.keep is None or self.loop is None:
            raise Unavailable(NOTHING_KEPT)
        asyncio.run_coroutine_threadsafe(self._kept(text), self.loop).result()
        return KEPT

    async def _kept(self, text: str) -> None:
        await self.keep_soon(text)

    def note(self, kind: str, data: Mapping[str, Any]) -> None:
        """Records activity: `progress`, or a piece of `output`."""
        self._note_activity()
        if self.listen is not None:
            self.listen(kind, data)

    def _note_activity(self) -> None:
        if self.now is not None:
            self.last_active = self.now()
        if (on_activity := self.on_activity) is not None:
            self.on_activity = None
            on_activity()

    @property
    def log(self) -> logging.Logger:
        """Returns a logger that writes to the run's own log file."""
        if self._logger is None:
            # A logger outside the hierarchy: the process's log configuration must not filter what is stored here.
            self._logger = logging.Logger(f"nextslot.run.{self.run_id}")
            self._logger.addHandler(self._open_log())
        return self._logger

    def write(self, data: bytes) -> None:
        """Appends raw bytes to the run's log."""
        if self.listen is not None:
            self.note("output", {"text": data.decode("utf-8", "replace")})
        else:
            self._note_activity()
        logger, file = self.log, self._log_file
        if file is None or self._is_log_broken:
            return
        try:
            file.write(data)
        except OSError as error:  # The disk is full or broken: the work goes on without a log.
            self._is_log_broken = True
            logger.handlers.clear()
            log.error("the rest of the output of run %s is lost, its log cannot be written: %s", self.run_id, error)

    def _open_log(self) -> logging.Handler:
        try:
            self._log_file = self._files.open_log(self.run_id, self.log_cap)
        except OSError as error:  # The work goes on without a log.
            log.error("run %s has no log, its file cannot be created: %s", self.run_id, error)
            return logging.NullHandler()
        handler = _LogHandler(self._log_file, self.note)
        handler.setFormatter(LineFormatter())
        return handler

    @property
    def artifacts(self) -> Path:
        """Returns a directory for the files that the run produces. The files that it contains at the end of the run are
        stored as artifacts."""
        if self._artifacts is None:
            self._artifacts = self._files.artifacts_directory(self.run_id)
        return self._artifacts

    @property
    def is_stopped(self) -> bool:
        """Returns whether the run should stop: it was cancelled, it timed out, or the scheduler is shutting down."""
        return self._is_stopped

    def check(self) -> None:
        """Raises Stopped if the run should stop. Call it between two steps of the work."""
        if self._is_stopped:
            raise Stopped

    def wait(self, seconds: float) -> bool:
        """Sleeps until the time is over or the run should stop. Returns whether the run should stop."""
        # Created on demand, since few handlers wait here. The flag is read afterwards, so that no stop is missed.
        self._stop = self._stop or threading.Event()
        return self._is_stopped or self._stop.wait(seconds)

    def skip(self, reason: str) -> NoReturn:
        raise Skip(reason)

    def fail(self, message: str, kind: FailureKind | str = FailureKind.ERROR) -> NoReturn:
        raise Fail(message, kind)

    def park(self, name: str, **wait: Json) -> NoReturn:
        """Ends the run without using up an attempt; the chain continues after the signal, or after its deadline.

        `wait` are the other parts of `await_signal`: `question`, `deadline_seconds`, `on_deadline`, `answered_by`. The
        next attempt finds the answer in `signals[name]`, and the last checkpoint.
        """
        given = {"name": name, **wait}
        if found := list(signals.problems("", given)):
            raise Invalid(found)
        raise Parked(signals.completed(given))

    @contextmanager
    def inputs_file(self) -> Iterator[Path | None]:
        """Writes the inputs to a file for a program, and removes the file at the end. Yields None without inputs."""
        with self.told_files() as told:
            yield Path(told["NEXTSLOT_INPUTS"]) if self.inputs else None

    @contextmanager
    def told_files(self) -> Iterator[Mapping[str, str]]:
        """Writes inputs, signals and the last checkpoint to files for a command, and removes the files at the end.

        Yields the paths of the files, by the variables that name them.
        """
        told, paths = self.told(), self._files.told_files(self.run_id)
        try:
            for name, content in told.items():
                paths[name].parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                paths[name].touch(mode=0o600)
                paths[name].write_bytes(content)
            yield {name: str(paths[name].absolute()) for name in told}
        finally:
            for name in told:
                paths[name].unlink(missing_ok=True)

    # Methods that only the executor calls.

    def told(self) -> dict[str, bytes]:
        """Returns the inputs, the last checkpoint and the signals as JSON, by the variables that name their files."""
        checkpoint = b"" if self.last_checkpoint is None else orjson.dumps(self.last_checkpoint)
        found = {FILE_VARIABLE: checkpoint, "NEXTSLOT_SIGNALS": orjson.dumps(self.signals) if self.signals else b""}
        found["NEXTSLOT_INPUTS"] = as_json(self.inputs) if self.inputs else b""
        return {name: content for name, content in found.items() if content}

    def request_stop(self) -> None:
        self._is_stopped = True
        if self._stop is not None:
            self._stop.set()

    @property
    def has_log(self) -> bool:
        return self._log_file is not None

    @property
    def has_artifacts(self) -> bool:
        return self._artifacts is not None

    @property
    def is_slow_to_close(self) -> bool:
        """Returns whether `close` has to join log pieces, which copies up to half of the log's cap."""
        return self._log_file is not None and self._log_file.is_in_pieces

    def close(self) -> None:
        """Closes the log. Pieces that cannot be joined now stay on disk, and the next start joins them."""
        if self._log_file is not None:
            try:
                self._log_file.close()
            except OSError as error:
                log.error("the log of run %s stays in pieces until the next start: %s", self.run_id, error)


class _LogHandler(logging.Handler):
    def __init__(self, file: RunLog, note: Listener) -> None:
        super().__init__()
        self._file = file
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + "\n"
            self._file.write(line.encode("utf-8", "replace"))
            self._note("output", {"text": line})
        except Exception:  # A log line must not make the handler's work fail.
            self.handleError(record)


def returned(run: RunContext, value: Json) -> Outcome:
    """Returns the outcome of a handler that returned. A value that cannot be stored as JSON is a failure."""
    if value is None:
        return Outcome.completed()
    if isinstance(value, Outcome):  # A command's handler returns an outcome, since it knows more than a result.
        return replace(value, error=_optional(value.error), reason=_optional(value.reason))
    problem = next(json_problems("result", {"": value}), None)
    if problem is not None:  # Pydantic knows the JSON form of a model, a dataclass or a datetime.
        value, problem = _as_json(value, problem)
    if problem is not None:
        return _invalid(run, f"the handler's return value cannot be stored as JSON: {problem.problem}")
    size = len(orjson.dumps(value))
    if size > MAX_RESULT_BYTES:
        return _invalid(
            run,
            f"the handler returned {size:,} bytes, more than the {MAX_RESULT_BYTES:,} of a result: write an artifact",
        )
    return Outcome.completed(value)


def _as_json(value: Any, problem: Problem) -> tuple[Json, Problem | None]:
    """Returns the JSON form of models, dataclasses, times and enumerations, also inside lists and dicts."""
    from pydantic_core import PydanticSerializationError

    try:
        made = _converted(value)
    except (PydanticSerializationError, ValueError, RecursionError):
        return None, problem
    return made, next(json_problems("result", {"": made}), None)


def _converted(value: Any) -> Any:
    from pydantic import BaseModel
    from pydantic_core import to_jsonable_python

    if isinstance(value, (list, tuple)):
        return [_converted(one) for one in value]
    if isinstance(value, dict):
        return {name: _converted(one) for name, one in value.items()}
    if isinstance(value, (*_WITH_JSON_FORM, BaseModel)) or is_dataclass(value):
        return to_jsonable_python(value)
    return value


def _invalid(run: RunContext, error: str) -> Outcome:
    run.log.error("%s", error)
    return Outcome.failed(FailureKind.INVALID, _clean(error))


def raised(run: RunContext, error: BaseException) -> Outcome:
    """Returns the outcome of a handler that raised: one sentence. The traceback goes to the run's log only."""
    if isinstance(error, Skip):
        return Outcome.skipped(_clean(_text(error)) or "no reason given")
    if isinstance(error, Parked):
        return Outcome.parked(error.wait)
    if isinstance(error, Stopped):
        return Outcome.failed(FailureKind.CANCELLED, "stopped")
    run.log.error("%s", "".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, QuotaExceeded):
        outcome = Outcome.failed(error.kind, _clean(_text(error)) or error.kind)
        until = error.until if error.retry_after is None else run.wall_time().after(error.retry_after)
        return replace(outcome, quota_until=until, quota_resource=error.resource)
    if isinstance(error, Fail):
        return Outcome.failed(error.kind, _clean(_text(error)) or error.kind)
    return Outcome.failed(FailureKind.ERROR, _clean(f"{type(error).__name__}: {_text(error)}".removesuffix(": ")))


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # The handler defined this exception class, whose __str__ may itself raise.
        return "(the exception's message cannot be read)"


def _optional(text: str | None) -> str | None:
    return None if text is None else _clean(text)


def _clean(text: str) -> str:
    """Returns text of bounded length that any database can store."""
    return text[:MAX_ERROR].encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
