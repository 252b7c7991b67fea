"""Lets several simulated nodes share one SQLite file, behind the interface of a database server.

The lease, its thread and the check of each transaction are the code of `store/postgres`; only the connection differs.
`SharedDatabase` is the server: its clock, its sessions, the leader's lock and the notices between nodes, which it
loses, delays and doubles by chance.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar
from unittest import mock

from nextslot.errors import CommitUnknown, Unavailable
from nextslot.store.contract import Closing, Effect, Effects, Membership, Row, Tx, Work
from nextslot.store.group_commit import GroupFailed, WorkResult
from nextslot.store.postgres import lease_and_leader
from nextslot.store.postgres.lease_and_leader import Lease
from nextslot.store.postgres.postgres_store import PostgresStore
from nextslot.store.postgres.sessions import Address, Keys, Session
from nextslot.store.sqlite import sqlite_store
from nextslot.store.sqlite.sqlite_store import SqliteStore, SqliteTx
from nextslot.system import sidecar_main
from nextslot.system.clock import Alarm, LoopAlarm, SharedClock
from nextslot.system.instant import Instant
from nextslot.testing.virtual_time import BEGINNING

from .machines import Machine, Machines

T = TypeVar("T")

# The statements that use the server's clock.
BY_SERVER_CLOCK = frozenset({"nodes.register", "nodes.lose", "nodes.lapsed", "nodes.time", "nodes.patience"})
SERVER_CLOCK = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
# How long a node waits for a server that does not answer.
AWAY_SECONDS = 4.0
NOWHERE = "postgresql://nobody@127.0.0.1:1/nowhere"


class Observed(NamedTuple):
    """A step of the lease protocol by `node`, in microseconds of true time."""

    at: int
    name: str
    node: str
    what: str = ""


class SharedDatabase:
    """Simulates the server: its clock, its sessions and its notices. The rows are in the file."""

    def __init__(self, path: Path, machines: Machines, chance: Random) -> None:
        self.path = path
        self._machines = machines
        self._chance = chance
        self.sessions: dict[str, LeaseConnection] = {}
        self.leader: LeaseConnection | None = None
        # Nodes that cannot reach the server, each with the end of that; and until when all notices are lost.
        self._cut: dict[str, float] = {}
        self.deaf_until = 0.0
        self.observed: list[Observed] = []

    def now(self) -> int:
        return BEGINNING + round(self._machines.seconds * 1_000_000)

    @property
    def seconds(self) -> float:
        return self._machines.seconds

    def cut_off(self, node: str, seconds: float) -> None:
        self._cut[node] = self.seconds + seconds

    def is_cut_off(self, node: str) -> bool:
        return self.seconds < self._cut.get(node, 0.0)

    def heal(self) -> None:
        self._cut.clear()
        self.deaf_until = 0.0

    def observe(self, name: str, node: str, what: str = "") -> None:
        self.observed.append(Observed(self.now(), name, node, what))

    def notify(self, sender: str, topics: Sequence[str]) -> None:
        """Sends a notice to each session that listens. Some arrive late or twice; all of a deaf period are lost."""
        if self.seconds < self.deaf_until:
            return
        for session in list(self.sessions.values()):
            for topic in topics:
                if topic in session.topics:
                    for delay in self._chance.choice(((0.0,), (0.0,), (0.3,), (2.0,), (0.0, 4.0))):
                        session.send_later(delay, topic, sender)

    def is_leader(self, session: "LeaseConnection") -> bool:
        """Tries to give a session the leader's lock. The server has ended sessions of silent nodes."""
        if self.leader is not None and self.leader is not session and self.leader.is_silent:
            self.leader.end()
        if self.leader is None:
            self.leader = session
        return self.leader is session

    def forget(self, node: str) -> None:
        """Ends the session of a node whose process was killed."""
        session = self.sessions.get(node)
        if session is not None:
            session.end()


class Notice(NamedTuple):
    channel: str
    payload: str


class LeaseConnection:
    """The connection of a lease, as `Lease` uses it."""

    def __init__(self, database: SharedDatabase, node: str, machine: Machine, file: Any) -> None:
        self._database = database
        self._node = node
        self._machine = machine
        self._file = file
        self._notices: asyncio.Queue[Notice] = asyncio.Queue()
        self._spoke_at = database.seconds
        self._silence_seconds = float("inf")
        self.is_ended = False
        self.topics: set[str] = set()
        database.sessions[node] = self

    @property
    def is_silent(self) -> bool:
        return self._database.seconds - self._spoke_at > self._silence_seconds

    def end(self) -> None:
        self.is_ended = True
        if self._database.leader is self:
            self._database.leader = None
        if self._database.sessions.get(self._node) is self:
            del self._database.sessions[self._node]

    def send_later(self, delay: float, topic: str, sender: str) -> None:
        if not self._machine.is_dead:
            notice = Notice(f"{KEYS.channel}_{topic}", sender)
            self._machine.call_later(delay, self._notices.put_nowait, notice)

    async def execute(self, query: Any, values: tuple[Any, ...] = ()) -> "Answer":
        text = query if isinstance(query, str) else query.as_string(None)
        is_renewal = text == sidecar_main.RENEW
        if is_renewal:
            self._database.observe("request", self._node)
        await self._on_the_way()
        self._spoke_at = self._database.seconds
        found = self._carried_out(text, values)
        await self._on_the_way()
        if is_renewal:
            self._database.observe("renewed" if found else "fenced", self._node)
        return Answer(found)

    def _carried_out(self, text: str, values: tuple[Any, ...]) -> Row | None:
        if text == sidecar_main.RENEW:
            sql = text.replace(SERVER_CLOCK, str(self._database.now())).replace("%s", "?")
            found: list[Row] = self._file.execute(sql, values).fetchall()
            self._database.observe("renew", self._node)
            return found[0] if found else None
        if text == KEYS.lead_sql:
            return (self._database.is_leader(self),)
        if setting := re.fullmatch(r"set idle_session_timeout = (\d+)", text):
            self._silence_seconds = int(setting[1]) / 1000
        elif listening := re.fullmatch(rf'(un)?listen "{KEYS.channel}_(\w+)"', text):
            (self.topics.discard if listening[1] else self.topics.add)(listening[2])
        elif "set_config" not in text:
            raise AssertionError(f"the server does not know {text!r}")
        return None

    async def _on_the_way(self) -> None:
        await asyncio.sleep(self._machine.lag())
        if self._database.is_cut_off(self._node):
            await asyncio.sleep(1e9)  # Longer than any caller waits.
        if self.is_silent:
            self.end()
        if self.is_ended:
            raise OSError("the server closed the connection")

    async def notifies(self, timeout: float, stop_after: int) -> AsyncIterator[Notice]:
        try:
            yield await asyncio.wait_for(self._notices.get(), timeout)
        except TimeoutError:
            return
        while not self._notices.empty():
            yield self._notices.get_nowait()

    async def close(self) -> None:
        self.end()


class Answer:
    def __init__(self, row: Row | None) -> None:
        self._row = row

    async def fetchone(self) -> Row | None:
        return self._row


class _LeaseTask:
    """Replaces the thread of a lease on a simulated machine."""

    def __init__(self, target: Callable[[], None], name: str, daemon: bool) -> None:
        self._lease: Any = getattr(target, "__self__")  # noqa: B009 - a bound method has it, a callable need not

    def start(self) -> None:
        asyncio.get_running_loop().create_task(self._lease._keep())

    def join(self, timeout: float | None = None) -> None: ...


class NodeLease(Lease):
    def __init__(self, store: "NodeStore", membership: Membership) -> None:
        self._store = store
        super().__init__(Address.of(NOWHERE), "simulated", KEYS, membership)

    async def _connect(self) -> Any:
        if self._store.database.is_cut_off(self._store.node):
            await asyncio.sleep(1e9)
        return LeaseConnection(self._store.database, self._store.node, self._store.machine, self._store.file)


KEYS = Keys.of(1, "simulated")


class _NodeSession(Session):
    """The part of a session that begins a transaction."""

    def __init__(self, node: str) -> None:
        self._node = node
        self.node_check = ""


class NodeTx(SqliteTx):
    """A transaction whose leases use the server's clock."""

    server: SharedDatabase

    def row(self, statement: str, /, **values: object) -> Row | None:
        return super().row(statement, **self._by_server(statement, values))

    def rows(self, statement: str, /, **values: object) -> list[Row]:
        return super().rows(statement, **self._by_server(statement, values))

    def execute(self, statement: str, /, **values: object) -> int:
        return super().execute(statement, **self._by_server(statement, values))

    def _by_server(self, statement: str, values: dict[str, object]) -> dict[str, object]:
        return {**values, "now": self.server.now()} if statement in BY_SERVER_CLOCK else values

    def await_opening(self) -> None:
        """Does nothing: a file answers at once."""


class _Reply(NamedTuple):
    found: list[Row]

    def rows(self) -> list[Row]:
        return self.found


class NodeStore(SqliteStore):
    """The store of one node. Requests and answers take time on the network, and a node can be cut off from the
    server.
    """

    def __init__(
        self,
        database: SharedDatabase,
        node: str,
        machine: Machine,
        closing: Closing,
        effects: Effects,
        opening: Work[None],
        refresh: Work[None],
        committed: Callable[["NodeStore", Tx], None],
    ) -> None:
        self.database = database
        self.node = node
        self.machine = machine
        self._refresh = refresh
        self._end_normally = closing
        self._begin_normally = opening
        self._committed = committed
        self._membership: Membership | None = None
        self._settings: int | None = None
        self._has_other_nodes = True
        self._session = _NodeSession(node)
        self._lease: Lease | None = None
        self._topics: frozenset[str] = frozenset()
        # Whether the answer of the next commit gets lost; and a commit whose answer was lost.
        self.loses_next_answer = False
        self._unsettled: list[Effect] | None = None
        self._resolving: asyncio.Task[None] | None = None
        super().__init__(
            database.path, self._end, effects=effects, opening=self._begin, threaded=False, now=database.now
        )

    @property
    def file(self) -> Any:
        return self._writer

    @property
    def is_shared(self) -> bool:
        return True

    def is_inline(self, rows: int) -> bool:
        return False

    async def read(self, work: Work[T], /, *, is_small: bool = False) -> T:
        self._commits.refuse_if_closed()
        found: T = await asyncio.get_running_loop().run_in_executor(None, self._read_over_the_network, work)
        return found

    def _read_over_the_network(self, work: Work[T]) -> T:
        if self.database.is_cut_off(self.node):
            raise Unavailable("the database does not answer")
        return self._read(work)

    async def write(self, work: Work[T], /, *, rows: int = 1) -> T:
        if self.database.is_cut_off(self.node):
            await asyncio.sleep(AWAY_SECONDS)
        return await PostgresStore.write(self, work, rows=rows)  # type: ignore[arg-type]  # It has the parts for it.

    def _resolve_later(self) -> None:
        PostgresStore._resolve_later(self)  # type: ignore[arg-type]

    async def _resolve_until_known(self) -> None:
        await PostgresStore._resolve_until_known(self)  # type: ignore[arg-type]

    def settle(self) -> list[Effect]:
        if self.database.is_cut_off(self.node):
            raise GroupFailed(Unavailable("the database does not answer"))
        found, self._unsettled = self._unsettled, None
        return found or []

    def transaction(self, works: list[Work[Any]]) -> tuple[list[WorkResult], list[Effect]]:
        answers, effects = super().transaction(works)
        if self.loses_next_answer and works:
            self.loses_next_answer, self._unsettled = False, effects
            raise GroupFailed(CommitUnknown("the connection broke during the commit"))
        return answers, effects

    def _begin(self, tx: Tx) -> None:
        if self._session.node_check:
            found = tx.select(self._session.node_check.removeprefix("; "), {})
            PostgresStore._check_node(self, _Reply(found), tx)  # type: ignore[arg-type]
        self._begin_normally(tx)

    def _end(self, tx: Tx) -> None:
        self._end_normally(tx)
        self._topics = frozenset(getattr(tx, "topics", ()))

    def _commit(self, connection: Any) -> None:
        connection.execute("commit")
        self.health.stored()
        self._committed(self, NodeTx(connection))
        self.database.notify(self.node, sorted(self._topics) if self._has_other_nodes else ())

    def join(self, membership: Membership) -> None:
        self._session.check_node(membership.life)
        self._membership = membership
        self.database.observe("join", self.node)
        self._end_lease()
        self._lease = NodeLease(self, membership)

    def follow(self, is_following: bool) -> None:
        if self._lease is not None:
            self._lease.follow(is_following)

    async def leave(self) -> None:
        self.database.observe("quit", self.node)
        self._membership, self._session.node_check = None, ""
        self._end_lease()

    def _end_lease(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.close()

    def inspection(self) -> Tx:
        """Reads the stored data for a checker."""
        return NodeTx(self._writer)

    def kill(self) -> None:
        """Closes the connections of a killed process."""
        for connection in [*self._open_readers, self._writer]:
            connection.close()
        self._thread.shutdown()
        self._readers.close()


class NodeClock(SharedClock):
    """The clock of a simulated machine. It is wrong by some seconds until the node has read the server's clock."""

    def __init__(self, machines: Machines, skew_seconds: float) -> None:
        self._machines = machines
        self._skew = skew_seconds
        super().__init__()

    def monotonic(self) -> float:
        return self._machines.seconds

    def alarm(self, ring: Any) -> Alarm:
        return LoopAlarm(self, ring)

    def wall(self) -> Instant:
        return BEGINNING.after(self._machines.seconds)

    def _wall(self) -> int:
        return BEGINNING.after(self._machines.seconds + self._skew) if self._server is None else super()._wall()


class _NoLock:
    def __init__(self, path: Path) -> None: ...

    def release(self) -> None: ...


class _NoRecord:
    def __init__(self, path: Path, connection: object, synchronous: str) -> None: ...

    def begin(self) -> None: ...

    def close(self) -> None: ...


@contextmanager
def shared(database: SharedDatabase) -> Iterator[None]:
    """Lets several stores use one file, and leases use virtual time, inside this context."""
    clock = SimpleNamespace(monotonic=lambda: database.seconds)
    with ExitStack() as stack:
        for module, name, value in (
            (sqlite_store, "FileLock", _NoLock),
            (sqlite_store, "AcknowledgedCommits", _NoRecord),
            (sqlite_store, "SqliteTx", type("Tx", (NodeTx,), {"server": database})),
            (lease_and_leader, "time", clock),
            (lease_and_leader, "boottime", clock.monotonic),
            (lease_and_leader, "threading", SimpleNamespace(Thread=_LeaseTask)),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        yield
