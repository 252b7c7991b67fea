"""The contract of an engine: what nextslot asks of Slurm, Ray or anything else that starts programs somewhere.

An engine starts the wrapper (`wrapper_main`), says what it sees of it, and ends it on request. Nothing that it says is
the truth: ids may be given again, states may go back, a stop may be forgotten, one submission may start twice. What a
run did is in the wrapper's records. So each method may be called again, and by several nodes at once.

All methods block and run in threads; each bounds its own time. An extension offers kinds of engines with
`Extension.engine_kinds`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from nextslot.errors import Problem


class Sight(StrEnum):
    """What an engine says of a run."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"
    # The engine answers and does not know the run (any more, or yet).
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Seen:
    sight: Sight
    # What the engine adds in its own words, such as why it has not started the run: people read it.
    words: str = ""


class Unreachable(Exception):
    """The engine did not answer: nothing is known, and nothing that was asked of it may be taken for done."""


class Refused(Exception):
    """The engine will not take this run, however often it is asked, such as for a partition that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What an engine has to start: `argv`, in the run's directory, which the machines of the engine share."""

    run_id: str
    directory: Path
    argv: Sequence[str]
    # Those of the engine with those of the job type, as `check` has seen them.
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Key:
    """A run with the handle that `submit` returned for it: an engine may give that handle to another run later."""

    run_id: str
    handle: str


class Engine(Protocol):
    """One engine. Each method raises `Unreachable` if it does not answer."""

    def submit(self, submission: Submission) -> str:
        """Lets the engine start the wrapper, and returns the engine's own id of it. Raises Refused."""

    def find(self, run_id: str) -> list[str]:
        """Returns the handles of all that was submitted for a run and has not ended, oldest first."""

    def observe(self, keys: Sequence[Key]) -> Mapping[str, Seen]:
        """Returns what the engine sees of each run, by run id, in one request. With no keys it says that it answers."""

    def logs(self, key: Key, offset: int) -> bytes:
        """Returns what the engine itself has written about a run, from this byte on: why it could not be started."""

    def stop(self, key: Key, grace_seconds: float) -> None:
        """Asks the engine to end a run, or to take it out of its queue. Returns before that has happened."""

    def forget(self, key: Key) -> None:
        """Lets the engine delete what it keeps of a run that has ended."""


@dataclass(frozen=True, slots=True)
class EngineKind:
    """A kind of engine, such as `slurm`."""

    # Makes the engine of a table `[engines.NAME]` from its name and its checked `options`.
    make: Callable[[str, Mapping[str, Any]], Engine]
    # Finds problems of the `options` of such a table, or of the `engine_options` of a job type.
    check: Callable[[Mapping[str, Any]], Iterator[Problem]]
    # The beginnings of the variables that the engine sets for a run, which the command gets.
    variables: Sequence[str] = ()
    # How often it is asked what it sees, unless the table says otherwise.
    poll_seconds: float = 2.0
