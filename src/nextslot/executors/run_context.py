"""What a handler is given: its run. And what it may answer besides returning: skip, or fail."""

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from nextslot.domain import FailureKind

from .run_files import RunFiles
from .run_log import RunLog

log = logging.getLogger(__name__)


Listener = Callable[[str, Mapping[str, Any]], None]


class Skip(Exception):
    """Raised by a handler: there was nothing to do, and why. The run ends SKIPPED."""


class Fail(Exception):
    """Raised by a handler: the work failed, in a way that has a name."""

    def __init__(self, message: str, kind: FailureKind | str = FailureKind.ERROR) -> None:
        super().__init__(message)
        self.kind = FailureKind(kind)


class Stopped(Exception):
    """Raised by `run.check()` once the run has been told to stop."""


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
        self.title: str | None = None
        self.role: str | None = None
        self.task_id: str | None = None
        self.session_id: str | None = None
        self.fraction: float | None = None
        self.text = ""
        self.log_cap: int | None = None
        # Who hears what this run does as it does it, and when it last did something; set where that matters.
        self.listen: Listener | None = None
        self.now: Callable[[], float] | None = None
        self.last_active = 0.0
        self._files = files
        self._is_stopped = False
        self._stop: threading.Event | None = None
        self._logger: logging.Logger | None = None
        self._log_file: RunLog | None = None
        self._is_log_broken = False
        self._artifacts: Path | None = None

    def progress(self, fraction: float, text: str = "") -> None:
        """How far the work is, from 0 to 1, and what it is doing."""
        self.fraction = min(1.0, max(0.0, float(fraction)))
        self.text = text
        self.note("progress", {"fraction": self.fraction, "text": text})

    def note(self, kind: str, data: Mapping[str, Any]) -> None:
        """The run has shown life: `progress`, or a piece of `output`."""
        if self.now is not None:
            self.last_active = self.now()
        if self.listen is not None:
            self.listen(kind, data)

    @property
    def log(self) -> logging.Logger:
        """A logger whose lines go to the run's own log file."""
        if self._logger is None:
            # A logger of its own, outside the tree: the process's log configuration has no say in what is kept here.
            self._logger = logging.Logger(f"nextslot.run.{self.run_id}")
            self._logger.addHandler(self._open_log())
        return self._logger

    def write(self, data: bytes) -> None:
        """Puts output into the run's log as it is, byte by byte."""
        if self.now is not None or self.listen is not None:
            self.note("output", {"text": data.decode("utf-8", "replace")})
        logger, file = self.log, self._log_file
        if file is None or self._is_log_broken:
            return
        try:
            file.write(data)
        except OSError as error:  # A full disk: the work goes on.
            self._is_log_broken = True
            logger.handlers.clear()
            log.error("the rest of the output of run %s is not kept: %s", self.run_id, error)

    def _open_log(self) -> logging.Handler:
        try:
            self._log_file = self._files.open_log(self.run_id, self.log_cap)
        except OSError as error:  # As for a line that cannot be written: the work goes on.
            log.error("run %s has no log: %s", self.run_id, error)
            return logging.NullHandler()
        handler = _LogHandler(self._log_file, self.note)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        return handler

    @property
    def artifacts(self) -> Path:
        """A directory for the files that the run produces; what is in it when the run ends is kept and listed."""
        if self._artifacts is None:
            self._artifacts = self._files.artifacts_directory(self.run_id)
        return self._artifacts

    @property
    def is_stopped(self) -> bool:
        """Whether the run has been told to stop: by a cancel, its timeout, or the scheduler's own end."""
        return self._is_stopped

    def check(self) -> None:
        """Raises if the run has been told to stop: a good thing to call between two steps."""
        if self._is_stopped:
            raise Stopped

    def wait(self, seconds: float) -> bool:
        """Sleeps, unless the run is told to stop in the meantime; whether it has been."""
        # Made when it is needed, since few handlers wait here; the flag is looked at after it is there to be set.
        self._stop = self._stop or threading.Event()
        return self._is_stopped or self._stop.wait(seconds)

    def skip(self, reason: str) -> NoReturn:
        raise Skip(reason)

    def fail(self, message: str, kind: FailureKind | str = FailureKind.ERROR) -> NoReturn:
        raise Fail(message, kind)

    # The executor's side.

    def tell_to_stop(self) -> None:
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
        """Whether `close` has pieces of a log to join: up to half of the log's cap is copied."""
        return self._log_file is not None and self._log_file.is_in_pieces

    def close(self) -> None:
        """Closes the log. What cannot be joined now is on disk all the same, and is joined at the next start."""
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
        except Exception:  # A handler's work must not fail because of a line that it logged.
            self.handleError(record)
