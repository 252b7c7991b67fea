"""The contract of a store: transactions as functions. `engine` writes works; a store runs them.

    await store.write(lambda tx: queue.enqueue(tx, new_job, now))     # one transaction; durable when it returns
    await store.read(lambda tx: jobs.get(tx, job_id))                 # a consistent view of the committed data

A *work* is a plain function over a transaction. It may run more than once: the store rolls back a group of works in
which one fails and runs the group again without that one, and it repeats a transaction after a serialization failure.
So a work starts nothing outside the database and changes nothing in memory: it names the effects of its commit with
`tx.cause`, as values. A work that raises leaves nothing behind, and its error reaches its caller only.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from nextslot.domain.lease_times import LeaseTimes
from nextslot.errors import Invalid

T = TypeVar("T")
Local = TypeVar("Local")

# An effect of a commit, as a value that only the engine understands (`engine/effects.py`).
Effect = object

# A row as the driver returns it. The statement names the columns, and the function that reads the row types them.
Row = tuple[Any, ...]

# A limit that no query reaches.
ALL = 1_000_000_000
# A topic that only the lease sends: look for nodes whose lease has expired.
LOST = "lost"
# The topics by which nodes notify each other after a commit.
TOPICS = ("work", "stop", "timer", "deliveries", "callers", "settings", "nodes", "events", "inbox")
# How long a stored write shows that the next one will succeed, and how long a failed write shows the opposite.
STORED_HOLDS_US = 30_000_000
FAILED_HOLDS_US = 5_000_000


def not_a_name(kind: str) -> Invalid:
    """Returns the error for a value of a type that no database stores, which a caller gave in place of an id."""
    return Invalid(f"a value of the type {kind} is neither an id nor a name; give one that a list shows")


class Tx(Protocol):
    """An open transaction: executes named statements and returns rows."""

    def row(self, statement: str, /, **values: object) -> Row | None:
        """Returns the first row, or None."""

    def rows(self, statement: str, /, **values: object) -> list[Row]: ...

    def execute(self, statement: str, /, **values: object) -> int:
        """Executes a statement and returns how many rows it changed. Zero is a valid result."""

    def execute_later(self, statement: str, /, **values: object) -> None:
        """Executes a statement about one row whose result is not needed, at the latest before the next read.

        The database may refuse the statement as late as that.
        """

    def execute_batch(self, statement: str, names: tuple[str, ...], rows: Iterable[Sequence[object]], /) -> None:
        """Executes a statement like `execute_later`, once for each row of values; `names` are its parameters in their
        order.
        """

    def select(self, sql: str, values: Mapping[str, object], /) -> list[Row]:
        """Runs SQL that a filter has built or that an extension brings; other core code uses named statements."""

    def cause(self, effect: Effect, /) -> None:
        """Adds an effect of this transaction's commit. A rollback drops it."""

    def announce(self, topic: str, /) -> None:
        """Notifies the other nodes after the commit that this topic has changed (`TOPICS`)."""

    @property
    def is_alone(self) -> bool:
        """Returns whether no other transaction writes before this one has ended. Where several nodes share a database,
        transactions that decide about different offices may write side by side.
        """

    def enter(self, office_id: str | None, /) -> None:
        """Makes sure that no other transaction decides about this office or, for None, about any office. If another one
        may, the store repeats this transaction alone.
        """

    def has_entered(self, office_id: str, /) -> bool:
        """Returns whether no other transaction decides about this office."""

    def try_enter(self, office_id: str, /) -> bool:
        """Enters another office if that needs no wait. Returns False if another transaction decides about it now."""

    def local(self, kind: Callable[["Tx"], Local], /) -> Local:
        """Returns the transaction's own instance of `kind`, which is created on first use and dropped with the
        transaction.
        """


Work = Callable[[Tx], T]


class Read(NamedTuple):
    """A named read with its values, which can be sent before a work needs it."""

    statement: str
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class PrefetchedWork(Generic[T]):
    """A work that declares its reads in advance. Where each read costs a round trip, the store sends them together.

    `office_id` means: as far as is known in advance, the work decides about this office only.
    """

    work: Work[T]
    reads: Sequence[Read]
    office_id: str | None = None

    def __call__(self, tx: Tx) -> T:
        return self.work(tx)


class Effects(Protocol):
    """Carries out the effects of committed transactions."""

    def apply(self, effects: Sequence[Effect], /) -> None:
        """Updates the engine's memory. The committing thread calls this before the store's next transaction begins, so
        no work decides by memory that is older than the database.
        """

    def carry_out(self, effects: Sequence[Effect], /) -> None:
        """Launches, stops and wakes things on the event loop, in the order of the commits."""


class NoEffects:
    """Ignores all effects, for commands on a database that no scheduler has open."""

    def apply(self, effects: Sequence[Effect], /) -> None: ...

    def carry_out(self, effects: Sequence[Effect], /) -> None: ...


def wall_clock() -> int:
    return time.time_ns() // 1000


class Health:
    """Whether the last write was stored, and whether the file was found to be damaged.

    A store records it from any thread; `scheduler/readiness.py` reads it.
    """

    def __init__(self, now: Callable[[], int] = wall_clock) -> None:
        self._now = now
        # The last write that changed something: its time, and the error if it was not stored. Replaced as one value,
        # because the event loop reads it while the writer's thread may replace it.
        self._last: tuple[int, str | None] | None = None
        # How many writes of this process were stored. Data that was read before the last of them may be outdated.
        self.writes = 0
        # The damage that was found in the file; it stays set until the store is opened again.
        self.damage: str | None = None

    def stored(self) -> None:
        """Records that a write is durable."""
        self._last = (self._now(), None)
        self.writes += 1

    def failed(self, why: str) -> None:
        """Records that a write was not stored; earlier successes no longer count."""
        self._last = (self._now(), why)

    def found_damage(self, sentence: str) -> None:
        self.damage = self.damage or sentence

    def has_stored(self) -> bool:
        """Returns whether the last write was stored, and recently."""
        return self._last is not None and self._last[1] is None and self._is_within(self._last[0], STORED_HOLDS_US)

    def failure(self) -> str | None:
        """Returns why the last write was not stored, if it failed recently."""
        return self._last[1] if self._last is not None and self._is_within(self._last[0], FAILED_HOLDS_US) else None

    def _is_within(self, at: int, microseconds: int) -> bool:
        """Returns whether a time is recent. After the clock was set back, the answer is False at once."""
        return 0 <= self._now() - at < microseconds


class Member(Protocol):
    """The holder of a lease: `engine.cluster`. All methods but `renewed` are called on the event loop."""

    def renewed(self, until: float) -> None:
        """Allows work until this instant of CLOCK_BOOTTIME. Called on the lease's own thread."""

    def notified(self, topics: frozenset[str]) -> None:
        """Handles notifications: another node has changed these topics, or it is time to check whether one has."""

    def leads(self, is_leader: bool) -> None:
        """Makes this node the leader, which does the work that only one node may do, or ends its leadership."""

    def lapsed(self, has_lapsed: bool) -> None:
        """Stops all runs because the lease could not be renewed, before other nodes treat them as lost.

        The lease calls it repeatedly with True, because a run may have begun meanwhile, and once with False when it is
        renewed.
        """

    def fenced(self) -> None:
        """Joins again as a new node, because the others have treated this node, with its runs, as lost."""


@dataclass(frozen=True, slots=True)
class Membership:
    """A node's membership: its id, its incarnation (`life`), and the member that receives notifications."""

    node_id: str
    life: int
    member: Member
    times: LeaseTimes
    # Seconds since before the node was registered: the time that its first lease allows for work counts from there.
    age: float
    # Receives the database's clock in microseconds, and the monotonic times before and after it was read.
    adjust: Callable[[int, float, float], None]


class Store(Protocol):
    health: Health

    async def write(self, work: Work[T], /, *, rows: int = 1) -> T:
        """Runs `work` in a transaction, alone or with others. `rows` is its size, if it is large."""

    async def read(self, work: Work[T], /, *, is_small: bool = False) -> T:
        """Runs `work` on the last commit. `is_small`: it reads a few rows by their keys, so that a store whose commits
        are quick may run it on the event loop; a thread costs more than such a read.
        """

    @property
    def is_shared(self) -> bool:
        """Returns whether several nodes can use this database, so that each needs a lease."""

    def join(self, membership: Membership) -> None:
        """Writes in the name of this node from now on, and keeps its lease."""

    def follow(self, is_following: bool) -> None:
        """Switches on or off that this node receives the events of other nodes."""

    async def leave(self) -> None:
        """Gives up the lease. The store can still be written to until it is closed."""

    async def close(self) -> None: ...

    def abandon(self) -> None:
        """Ends the store as a crash would: waiting works are dropped."""


# Runs at the end of every writing transaction, before its commit: here the engine claims the next jobs.
Closing = Callable[[Tx], None]
