"""The contract of an engine: the methods that nextslot needs of Slurm, Ray or any system that starts programs.

An engine starts the wrapper (`wrapper_main`), reports the state of each run, and ends a run on request. nextslot does
not rely on these reports: an engine may use an id again, report an older state after a newer one, forget a stop, or
start one submission twice. Only the wrapper's records say what a run did. So each method may be called again, also by
several nodes at the same time.

All methods block and run in threads; each limits its own time. An extension offers kinds of engines with
`Extension.engine_kinds`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from nextslot.errors import Problem


class Sight(StrEnum):
    """The state of a run that an engine reports."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"
    # The engine answers, and does not know the run (yet, or any more).
    ABSENT = "absent"


class Cause(StrEnum):
    """Why an engine has ended a run that nextslot did not want to end."""

    TIME_LIMIT = "time_limit"
    # Somebody cancelled it on the engine.
    CANCELLED = "cancelled"
    # It had to make room, or its machine failed.
    PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True)
class Seen:
    sight: Sight
    # A text of the engine for people, such as why it has not started the run.
    words: str = ""
    cause: Cause | None = None


class Unreachable(Exception):
    """The engine did not answer: nothing is known, and no request may be taken as done."""


class Refused(Exception):
    """The engine rejects this run for good, such as because of a partition that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The program that an engine must start: `argv`, in the run's directory, which the machines of the engine share."""

    run_id: str
    directory: Path
    argv: Sequence[str]
    # The options of the engine together with those of the job type, which `check` has accepted.
    options: Mapping[str, Any] = field(default_factory=dict)
    # How long the wrapper needs after TERM: an engine that can wait as long before KILL does so.
    grace_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Key:
    """A run with the handle that `submit` returned: an engine may give the same handle to another run later."""

    run_id: str
    handle: str


class Engine(Protocol):
    """One engine. Each method raises `Unreachable` if the engine does not answer."""

    def submit(self, submission: Submission) -> str:
        """Lets the engine start the wrapper, and returns the engine's own handle of the submission. Raises Refused."""

    def find(self, run_id: str) -> list[str]:
        """Returns the handles of all submissions of a run that have not ended, oldest first."""

    def observe(self, keys: Sequence[Key]) -> Mapping[str, Seen]:
        """Returns the state of each run, by run id, in one request. Without keys, only checks that it answers."""

    def logs(self, key: Key, offset: int) -> bytes:
        """Returns the engine's own log of a run from this byte on, such as why the run could not be started."""

    def stop(self, key: Key, grace_seconds: float) -> None:
        """Requests the engine to end a run, or to remove it from its queue. Returns before that has happened."""

    def forget(self, key: Key) -> None:
        """Lets the engine delete what it stores about a run that has ended."""


@dataclass(frozen=True, slots=True)
class EngineKind:
    """A kind of engine, such as `slurm`."""

    # Makes an engine from the name of a table `[engines.NAME]` and its checked `options`.
    make: Callable[[str, Mapping[str, Any]], Engine]
    # Yields problems of the `options` of such a table, or of the `engine_options` of a job type.
    check: Callable[[Mapping[str, Any]], Iterator[Problem]]
    # The options that only the engine itself has, and no job type.
    engine_only: Sequence[str] = ()
    # The prefixes of the variables that the engine sets for a run and that the command gets.
    variables: Sequence[str] = ()
    # How often nextslot reads the states from the engine, unless the table says otherwise.
    poll_seconds: float = 2.0
