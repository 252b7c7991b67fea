"""The contract of a store: transactions as functions. `engine` writes works; a store runs them.

    await store.write(lambda tx: queue.enqueue(tx, new_job, now))     # one transaction; durable when it returns
    await store.read(lambda tx: jobs.get(tx, job_id))                 # a consistent view of the committed data

A *work* is a plain function over a transaction. It may run more than once: the store rolls back a group of works in
which one fails and runs the group again without that one, and it repeats a transaction after a serialization failure.
So a work starts nothing outside the database and changes nothing in memory: it names the effects of its commit with
`tx.cause`, as values. A work that raises leaves nothing behind, and its error reaches its caller only.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from .health import Health
from .membership import Membership

T = TypeVar("T")
Local = TypeVar("Local")

# An effect of a commit, as a value that only the engine understands (`engine/effects.py`).
Effect = object

# A row as the driver returns it. The statement names the columns, and the function that reads the row types them.
Row = tuple[Any, ...]


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
        """Notifies the other nodes after the commit that this topic has changed (`membership.TOPICS`)."""

    def local(self, kind: Callable[["Tx"], Local], /) -> Local:
        """Returns the transaction's own instance of `kind`, created on first use and dropped with the transaction."""


Work = Callable[[Tx], T]


class Read(NamedTuple):
    """A named read with its values, which can be sent before a work needs it."""

    statement: str
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class PrefetchedWork(Generic[T]):
    """A work whose reads are known in advance: where each read costs a round trip, the store sends them together."""

    work: Work[T]
    reads: Sequence[Read]

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


class Store(Protocol):
    health: Health

    async def write(self, work: Work[T], /, *, rows: int = 1) -> T:
        """Runs `work` in a transaction, alone or with others. `rows` is its size, if it is large."""

    async def read(self, work: Work[T], /) -> T: ...

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
