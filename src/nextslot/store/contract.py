"""The contract of a store: transactions as functions. `engine` writes works; a store runs them.

    await store.write(lambda tx: queue.enqueue(tx, new_job, now))     # one transaction; durable when it returns
    await store.read(lambda tx: jobs.get(tx, job_id))                 # a consistent view of what is committed

A *work* is a plain function over a transaction. It may run more than once (the store rolls back a group of works that
fails and runs it again without the one that failed; it repeats a serialization failure), so a work starts nothing
outside the database and changes nothing in memory: it names what its commit causes with `tx.cause`, as values.
A work that raises leaves nothing behind, and its error reaches its caller only.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from .health import Health
from .membership import Membership

T = TypeVar("T")
Local = TypeVar("Local")

# What a commit causes, as a value that only the engine understands (`engine/effects.py`).
Effect = object

# A row is what the driver gives: its columns are named in the statement and typed by the function that reads it.
Row = tuple[Any, ...]


class Tx(Protocol):
    """An open transaction: named statements in, rows out."""

    def row(self, statement: str, /, **values: object) -> Row | None:
        """The first row, or None."""

    def rows(self, statement: str, /, **values: object) -> list[Row]: ...

    def execute(self, statement: str, /, **values: object) -> int:
        """Executes a statement and returns how many rows it changed: zero is an answer."""

    def execute_later(self, statement: str, /, **values: object) -> None:
        """Executes a statement about one row, whose answer nobody needs: now, or before the next question.

        What is put may be refused as late as that.
        """

    def execute_batch(self, statement: str, names: tuple[str, ...], rows: Iterable[Sequence[object]], /) -> None:
        """As `put`, for each row of values, in their order; `names` are its parameters, in the order it has them."""

    def select(self, sql: str, values: Mapping[str, object], /) -> list[Row]:
        """Runs SQL that a filter put together, or that an extension brings. Core code outside
        `store/tables/keyset_pagination.py` has named statements instead."""

    def cause(self, effect: Effect, /) -> None:
        """Adds what the commit of this transaction causes; a rollback causes nothing."""

    def announce(self, topic: str, /) -> None:
        """After the commit the other nodes, if there are any, look at this again (`membership.TOPICS`)."""

    def local(self, kind: Callable[["Tx"], Local], /) -> Local:
        """The transaction's own instance of `kind`, made on first use and dropped with the transaction."""


Work = Callable[[Tx], T]


class Read(NamedTuple):
    """A question, as a function of the store asks it."""

    statement: str
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class PrefetchedWork(Generic[T]):
    """A work of which it is known what it will ask: where a question costs a round trip, all are asked together."""

    work: Work[T]
    reads: Sequence[Read]

    def __call__(self, tx: Tx) -> T:
        return self.work(tx)


class Effects(Protocol):
    """Carries out what committed transactions cause."""

    def apply(self, effects: Sequence[Effect], /) -> None:
        """Changes what the engine keeps in memory. The thread that committed calls this before the next transaction
        of the store begins, so no work ever decides by memory that is older than the database."""

    def carry_out(self, effects: Sequence[Effect], /) -> None:
        """Launches, stops and wakes: on the event loop, in the order of the commits."""


class NoEffects:
    """For commands on a database that no scheduler has open: nothing is kept in memory, and nothing runs."""

    def apply(self, effects: Sequence[Effect], /) -> None: ...

    def carry_out(self, effects: Sequence[Effect], /) -> None: ...


class Store(Protocol):
    health: Health

    async def write(self, work: Work[T], /, *, rows: int = 1) -> T:
        """Runs `work` in a transaction, alone or with others. `rows` is its size, if it is large."""

    async def read(self, work: Work[T], /) -> T: ...

    @property
    def is_shared(self) -> bool:
        """Whether several nodes can have it: then each needs a lease."""

    def join(self, membership: Membership) -> None:
        """From now on it writes as this life of a node, and keeps its lease."""

    def follow(self, is_following: bool) -> None:
        """Whether somebody here wants to hear of the events of other nodes."""

    async def leave(self) -> None:
        """Gives the lease up; it can still be written to until it is closed."""

    async def close(self) -> None: ...

    def abandon(self) -> None:
        """Ends as a crash would: what waits is dropped."""


# Runs once at the end of every writing transaction, before its commit: this is where the next jobs are claimed.
Closing = Callable[[Tx], None]
