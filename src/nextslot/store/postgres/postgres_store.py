"""The store on PostgreSQL: one writing connection with group commit, and a few reading connections beside it.

Works that wait at the same time are committed together, in a thread, so that the event loop never waits for the
network. A transaction that the server aborted, or that was lost with its connection, is repeated. If the connection
breaks during a commit, the store finds out whether it was committed as soon as the server answers again.
"""

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg

from nextslot.errors import (
    Away,
    CommitUnknown,
    Fenced,
    StoreError,
    Unavailable,
)
from nextslot.store import dialects
from nextslot.store.contract import (
    Closing,
    Effect,
    Effects,
    Health,
    Membership,
    NoEffects,
    PrefetchedWork,
    Read,
    Row,
    Work,
    wall_clock,
)
from nextslot.store.group_commit import (
    GroupCommit,
    GroupFailed,
    TxMemory,
    WorkFailed,
    WorkResult,
    attempt_all,
)
from nextslot.store.sqlite.readers import Readers
from nextslot.system.sidecar import NodeVitals
from nextslot.telemetry.meters import Meters

from .lease_and_leader import Lease
from .office_locks import CONFINED, NotConfined, OfficeGroups, SharingChanges
from .pipeline import Reply, wire_of
from .sessions import (
    Address,
    Connection,
    Keys,
    Session,
    connect,
    is_lost,
    may_be_repeated,
    reach,
    translated,
)

T = TypeVar("T")
log = logging.getLogger(__name__)

READERS = 4
# How long the store tries to reconnect before callers get an error; after that each group tries once.
RECONNECT_SECONDS = 5.0
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
# How often a transaction that the server aborted is tried in total.
TRIES = 5
# The interval between checks whether a commit was stored, while nothing else uses the server.
RESOLVE_AGAIN_SECONDS = 1.0

# How many rows one statement takes; more bring no gain.
ROWS_AT_ONCE = 100
# How many deferred rows are collected before they are sent.
MAX_DEFERRED = 2000
# How many reads are sent in advance because the last transactions made them.
MAX_PREFETCHED = 16

_LOCK = "select pg_advisory_xact_lock(:lock)"
_TRY_LOCK = "select pg_try_advisory_xact_lock(:lock)"
_READ = "begin isolation level repeatable read read only"
# Statements that end a run change nothing about waiting jobs or other runs, so prefetched results of `_UNTOUCHED` stay
# valid after them. Each prefetched result is used once; a second read of the same rows is sent again.
_ENDS = frozenset({"runs.finish", "jobs.succeed", "jobs.fail", "jobs.stop"})
_UNTOUCHED = frozenset({"jobs.ending_facts", "jobs.heads", "lanes.outlook"})


# A read: its statement and its values.
_Key = tuple[str, tuple[object, ...]]


class PostgresTx(TxMemory):
    """A transaction on a connection: executes statements by name, and collects the effects of its commit.

    It waits for the server as rarely as possible. Deferred statements go with the next read, those of the same kind as
    one statement. Prefetched reads are sent with the first statement; a result is kept until a work reads it, or until
    a statement changes a table that it depends on.

    After `confine` it may use only the statements of `CONFINED`, and decide only about offices that it has entered.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.connection = connection
        self._wire = wire_of(connection)
        # The groups of offices whose locks it holds; None if it writes alone.
        self._beside: _Beside | None = None
        self.sharing = SharingChanges()
        self._statements = dialects.postgres_statements()
        self._opened: Reply | None = None
        self._changes = 0
        self._deferred: list[tuple[str, list[Mapping[str, object]]]] = []
        self._prefetched: dict[_Key, Reply] = {}
        # The changed tables; and those that other statements than the end of a run have changed.
        self._changed: set[str] = set()
        self._changed_more: set[str] = set()
        # The reads that could have been prefetched, because no earlier statement of the transaction had changed their
        # tables.
        self.reads_made: list[Read] = []

    def begin(self, opening: str, prefetched: Iterable[Read], locks: Mapping[str, int] | None = None) -> Reply:
        """Sends the opening statements and the prefetched reads without waiting. Returns the reply to the last opening
        one.
        """
        self._opened = reply = self._wire.send_all(opening, **(locks or {}))
        self.prefetch(prefetched)
        return reply

    def prefetch(self, reads: Iterable[Read]) -> None:
        """Sends reads without waiting."""
        for statement, values in reads:
            key = statement, tuple(values.values())
            if key not in self._prefetched:
                self._prefetched[key] = self._wire.send(dialects.placed(self._statements[statement]), values)
        self._wire.push()

    def confine(self, keys: Keys, groups: OfficeGroups, held: set[str]) -> None:
        """Allows other transactions to write at the same time. This one holds the locks of these groups."""
        self._beside = _Beside(keys, groups, held)
        self.is_alone = False

    def enter(self, office_id: str | None, /) -> None:
        if self._beside is not None and (office_id is None or not self.has_entered(office_id)):
            raise NotConfined(f"office {office_id}")

    def has_entered(self, office_id: str, /) -> bool:
        return self._beside is None or self._beside.groups.of(office_id) in self._beside.held

    def try_enter(self, office_id: str, /) -> bool:
        if self._beside is None or self.has_entered(office_id):
            return True
        group = self._beside.groups.of(office_id)
        lock = {"lock": self._beside.keys.of_group(group)}
        [(is_held,)] = self._received(self._wire.send(dialects.placed(_TRY_LOCK), lock)).rows()
        if is_held:
            self._beside.held.add(group)
            # What was read of this office before it was locked may have changed since.
            self._prefetched.clear()
        return bool(is_held)

    def row(self, statement: str, /, **values: object) -> Row | None:
        rows = self.rows(statement, **values)
        return rows[0] if rows else None

    def rows(self, statement: str, /, **values: object) -> list[Row]:
        self._refuse_unconfined(statement)
        if self._prefetched:
            known = self._prefetched.pop((statement, tuple(values.values())), None)
            if known is not None:
                self.reads_made.append(Read(statement, values))
                return self._received(known).rows()
        tables = dialects.tables(statement)
        if not tables.changed:
            changed = self._changed_more if statement in _UNTOUCHED else self._changed
            if tables.read.isdisjoint(changed):
                self.reads_made.append(Read(statement, values))
            return self._execute(statement, values).rows()
        rows = self._execute(statement, values).rows()
        if rows:
            self.sharing.note(statement, values)
        self._changes += len(rows)
        return rows

    def execute(self, statement: str, /, **values: object) -> int:
        self._refuse_unconfined(statement)
        changed = self._execute(statement, values).changed
        if changed:
            self.sharing.note(statement, values)
        self._changes += changed
        return changed

    def execute_later(self, statement: str, /, **values: object) -> None:
        self._defer(statement, [values])

    def execute_batch(self, statement: str, names: tuple[str, ...], rows: Iterable[Sequence[object]], /) -> None:
        self._defer(statement, (dict(zip(names, row, strict=True)) for row in rows))

    def _refuse_unconfined(self, statement: str) -> None:
        if self._beside is not None and statement not in CONFINED:
            raise NotConfined(statement)

    def _defer(self, statement: str, values: Iterable[Mapping[str, object]]) -> None:
        self._refuse_unconfined(statement)
        self._changes += 1
        self._note_change(statement)
        deferred = self._group(statement)
        for one in values:
            deferred.append(one)
            if len(deferred) == MAX_DEFERRED:
                self.settle()
                deferred = self._group(statement)

    def select(self, sql: str, values: Mapping[str, object], /) -> list[Row]:
        if self._beside is not None:
            raise NotConfined("a query")
        self._send_deferred()
        return self._received(self._wire.send(dialects.placed(sql), values)).rows()

    def footprint(self) -> object:
        return self._changes, self.touches

    def send_deferred(self) -> None:
        """Sends the deferred statements now, so that the server executes them while the engine decides on."""
        if self._deferred:
            self._send_deferred()
            self._wire.push()

    def await_opening(self) -> None:
        """Waits until the opening statements have succeeded, so that nothing is committed on a broken connection."""
        if self._opened is not None:
            self._received(self._opened)

    def settle(self) -> None:
        """Sends the deferred statements and waits for their results."""
        if self._deferred:
            self._send_deferred()
            self._wire.exchange()

    def end(self, closing: str, mark: int) -> Reply:
        """Sends all remaining statements and the closing ones, and waits for the result."""
        self._send_deferred()
        return self._received(self._wire.send_all(closing, mark=mark))

    def _execute(self, statement: str, values: Mapping[str, object]) -> Reply:
        self._note_change(statement)
        self._send_deferred()
        return self._received(self._wire.send(dialects.placed(self._statements[statement]), values))

    def _received(self, reply: Reply) -> Reply:
        if reply.result is None:
            self._wire.exchange()
        return reply

    def _note_change(self, statement: str) -> None:
        """Records the tables that a statement changes, and drops prefetched results that depend on them."""
        changed = dialects.tables(statement).changed
        if not changed:
            return
        is_end = statement in _ENDS
        self._changed |= changed
        if not is_end:
            self._changed_more |= changed
        for known in list(self._prefetched):
            if not (is_end and known[0] in _UNTOUCHED) and not dialects.tables(known[0]).read.isdisjoint(changed):
                del self._prefetched[known]

    def _group(self, statement: str) -> list[Mapping[str, object]]:
        """Returns the list of deferred rows to which a row of this statement belongs. Only ends of runs may change
        places.
        """
        for known, values in reversed(self._deferred):
            if known == statement:
                return values
            if known not in _ENDS or statement not in _ENDS:
                break
        self._deferred.append((statement, []))
        return self._deferred[-1][1]

    def _send_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for statement, values in deferred:
            self._send_many(statement, values)

    def _send_many(self, statement: str, values: Sequence[Mapping[str, object]]) -> None:
        """Sends the rows in as few statements as possible."""
        if self._beside is not None and statement == "events.append":
            # Numbers follow the order of commits and have no gaps: from here to the commit, one transaction at a time.
            self._wire.send(dialects.placed(_LOCK), {"lock": self._beside.keys.numbering})
        for first in range(0, len(values), ROWS_AT_ONCE):
            chunk, sql = values[first : first + ROWS_AT_ONCE], self._statements[statement]
            together = _together(sql, chunk) if len(chunk) > 1 else None
            if together is not None:
                self._wire.send(dialects.placed(together[0]), together[1])
            else:
                for one in chunk:
                    self._wire.send(dialects.placed(sql), one)


@dataclass(frozen=True, slots=True)
class _Beside:
    """What a transaction knows if others write at the same time."""

    keys: Keys
    groups: OfficeGroups
    held: set[str]


def _together(sql: str, rows: Sequence[Mapping[str, object]]) -> tuple[str, dict[str, object]] | None:
    """Returns one statement for many rows, with the differing values as lists; None if that is impossible."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    differing = {name: values for name, values in columns.items() if values.count(values[0]) < len(values)}
    types = tuple((name, _type(values)) for name, values in differing.items())
    together = dialects.set_based(sql, types) if types else None
    if together is None:
        return None
    key = dialects.key_of(sql)
    if key is not None and len(set(differing[key])) < len(rows):
        return None  # Two changes of one row need two statements.
    return together, {**rows[0], **{name: _list(values) for name, values in differing.items()}}


def _type(values: Iterable[object]) -> str:
    kinds = {type(value) for value in values if value is not None}
    if any(issubclass(kind, str) for kind in kinds):
        return "text"
    return "double precision" if float in kinds else "bigint"


def _list(values: Iterable[object]) -> str:
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(int(value)) if isinstance(value, int) else str(value)


@dataclass(frozen=True, slots=True)
class _Unsettled:
    """A commit whose result did not arrive."""

    mark: int
    answers: list[WorkResult]
    effects: list[Effect]


_NOTHING = _Unsettled(0, [], [])


@dataclass(frozen=True, slots=True)
class _Begun:
    """A transaction that has begun with the first works of a group, and how many these are."""

    tx: PostgresTx
    place: Reply
    works: int
    # The groups of offices whose locks it takes; None if it writes alone.
    held: set[str] | None


def _declared(work: Work[Any]) -> Sequence[Read]:
    return work.reads if isinstance(work, PrefetchedWork) else ()


class PostgresStore:
    """One node's connection to a database that other nodes may share. Without a node, no other process may use it.

    `threaded=False` keeps everything on the caller's thread, for simulation.
    """

    def __init__(
        self,
        url: str,
        closing: Closing,
        *,
        effects: Effects | None = None,
        node: str | None = None,
        opening: Work[None] = lambda tx: None,
        refresh: Work[None] = lambda tx: None,
        threaded: bool = True,
        synchronous: str = "FULL",
        meters: Meters | None = None,
        vitals: NodeVitals | None = None,
        now: Callable[[], int] = wall_clock,
    ) -> None:
        """Connects. `refresh` reads the data that the scheduler keeps in memory, after another node has changed it."""
        self._address = Address.of(url)
        self.health = Health(now)
        self._opening = opening
        self._closing = closing
        self._refresh = refresh
        # The version of the settings when they were last read, and whether there were other nodes then.
        self._settings: int | None = None
        self._has_other_nodes = True
        self._membership: Membership | None = None
        self._lease: Lease | None = None
        self._vitals = vitals
        self._threaded = threaded
        # The mark of the last transaction that is known to be committed.
        self._mark = random.getrandbits(62)
        self._session = self._opened(synchronous, node)
        self._unsettled: _Unsettled | None = None
        self._last_reads: list[Read] = []
        self._prefetched_reads: list[Read] = []
        # The groups of offices, and the version of the settings when they were read.
        self._groups: OfficeGroups | None = None
        self._groups_settings: int | None = None
        # How many of the next transactions must write alone.
        self._alone = 0
        # A transaction that has its locks already, for the next group of works.
        self._begun: _Begun | None = None
        self._resolving: asyncio.Task[None] | None = None
        self._is_away = False
        self._is_replaced = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nextslot-writer")
        self._meters = meters or Meters()
        self._commits = GroupCommit(self, self._thread, effects or NoEffects(), self._meters)
        self._readers = Readers(self._read, READERS, threaded, self._meters)
        self._reader = threading.local()
        self._open_readers: list[Connection] = []

    def _opened(self, synchronous: str, node: str | None) -> Session:
        """Connects and migrates the schema. Raises Away if the server does not answer. If it answers with an error,
        tries once more, because the server may have come back just now.
        """
        for is_last in (False, True):
            try:
                session = Session(self._address, synchronous, node)
                try:
                    session.migrate(self._mark)
                except BaseException:
                    session.close()
                    raise
            except psycopg.OperationalError as error:
                try:
                    reach(self._address)
                except Away as away:
                    raise Away(f"{self._address.place} cannot be opened: {self._message(error)}") from away
                if is_last:
                    raise self._not_opened(error) from error
            except psycopg.Error as error:
                raise self._not_opened(error) from error
            else:
                return session
        raise AssertionError("not reached")

    def _message(self, error: psycopg.Error) -> str:
        return self._address.hide(str(error).strip())

    def _not_opened(self, error: psycopg.Error) -> BaseException:
        ours = self.translated(error)
        return StoreError(f"{self._address.place} cannot be opened: {ours}") if isinstance(ours, Unavailable) else ours

    async def write(self, work: Work[T], /, *, rows: int = 1) -> T:
        try:
            return await self._commits.write(work, rows)
        except CommitUnknown:
            self._resolve_later()
            raise
        except Fenced:
            if self._membership is not None:
                self._membership.member.fenced()
            raise

    async def read(self, work: Work[T], /, *, is_small: bool = False) -> T:
        self._commits.refuse_if_closed()
        return await self._readers.read(work)

    @property
    def is_shared(self) -> bool:
        """Returns False in a simulation, which has no thread to renew a lease."""
        return self._threaded

    def join(self, membership: Membership) -> None:
        self._session.check_node(membership.life)
        self._membership = membership
        if self._threaded:
            self._end_lease()
            self._lease = Lease(self._address, self._session.name, self._session.keys, membership, self._vitals)
        else:
            membership.member.leads(True)

    def follow(self, is_following: bool) -> None:
        if self._lease is not None:
            self._lease.follow(is_following)

    async def leave(self) -> None:
        self._membership, self._session.node_check = None, ""
        # The lease's thread has to end. Without a lease there is no thread, and virtual time must not wait for one.
        if self._lease is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._end_lease)

    def _end_lease(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.close()

    async def close(self) -> None:
        """Stores all works that were submitted before, then closes the store."""
        await self._commits.close()
        self._close_connections()

    def abandon(self) -> None:
        """Drops the waiting works, as a crash would; for tests."""
        self._commits.abandon()
        self._close_connections()

    def _close_connections(self) -> None:
        if self._resolving is not None:
            self._resolving.cancel()
        self._end_lease()
        self._thread.shutdown()
        self._readers.close()
        for connection in self._open_readers:
            connection.close()
        self._session.close()

    # How a group is committed.

    def is_inline(self, rows: int) -> bool:
        return not self._threaded

    def translated(self, error: BaseException) -> BaseException:
        return translated(error, self._address)

    def settle(self) -> list[Effect]:
        return self._ensure_connected().effects

    def wait_for_turn(self, works: list[Work[Any]]) -> Callable[[Work[Any]], bool]:
        if not self._may_be_contended:
            return lambda work: False
        try:
            begun = self._begin(works)
            begun.tx.await_opening()
        except psycopg.Error:  # `transaction` gets the same error, and repeats what can be repeated.
            self._roll_back()
            return lambda work: False
        self._begun = begun
        return lambda work: begun.held is None or (self._groups_of([work]) or {""}) <= begun.held

    @property
    def _may_be_contended(self) -> bool:
        is_connected = not self._session.connection.closed and self._unsettled is None
        return is_connected and self._has_other_nodes and self._membership is not None

    def transaction(self, works: list[Work[Any]]) -> tuple[list[WorkResult], list[Effect]]:
        for tries in range(1, TRIES + 1):
            self._ensure_connected()
            try:
                return self._transaction(works)
            except (psycopg.Error, WorkFailed, NotConfined) as failure:
                error = failure.__cause__ if isinstance(failure, WorkFailed) else failure
                if isinstance(error, NotConfined):
                    self._alone = self._alone or error.alone
                    continue
                if not isinstance(error, psycopg.Error):
                    raise
                if self._unsettled is not None:
                    found = self._resolve_commit(error)
                    if found is not _NOTHING:
                        return found.answers, found.effects
                    # It was not committed: run it again.
                elif tries == TRIES or not (may_be_repeated(error) or is_lost(self._session.connection, error)):
                    raise
        raise GroupFailed(Unavailable("the connection to the database broke repeatedly; try again later"))

    def _transaction(self, works: list[Work[Any]]) -> tuple[list[WorkResult], list[Effect]]:
        try:
            begun = self._taken_over() or self._begin(works)
            tx = begun.tx
            tx.prefetch(read for work in works[begun.works :] for read in _declared(work))
            self._check_node(begun.place, tx)
            self._check_groups(begun)
            self._opening(tx)
            answers = attempt_all(tx, works)
            tx.send_deferred()
            self._closing(tx)
            tx.sharing.store(tx, self._groups)
            tx.await_opening()
        except BaseException:
            self._roll_back()
            raise
        self._commit(tx, _Unsettled(self._mark + 1, answers, tx.effects))
        self._learn(tx.reads_made)
        return answers, tx.effects

    def _taken_over(self) -> "_Begun | None":
        """Returns the transaction that `wait_for_turn` has begun, unless its connection is gone."""
        begun, self._begun = self._begun, None
        return begun if begun is not None and begun.tx.connection is self._session.connection else None

    def _begin(self, works: list[Work[Any]]) -> "_Begun":
        """Begins a transaction: beside others if all works concern offices that are known in advance, otherwise
        alone.
        """
        tx = PostgresTx(self._session.connection)
        held = self._groups_of(works) if self._has_other_nodes and not self._alone else None
        self._alone -= self._alone > 0
        if held is None:
            place = tx.begin(self._session.opening, self._prefetched(works))
        else:
            opening, locks = self._session.opening_beside(held)
            place = tx.begin(opening, self._prefetched(works), locks)
        return _Begun(tx, place, len(works), held)

    def _groups_of(self, works: list[Work[Any]]) -> set[str] | None:
        """Returns the groups of offices that works are about; None if that is not known."""
        if self._groups is None or self._membership is None:
            return None
        offices = [work.office_id if isinstance(work, PrefetchedWork) else None for work in works]
        return None if None in offices else {self._groups.of(office_id) for office_id in offices if office_id}

    def _check_groups(self, begun: "_Begun") -> None:
        """Checks, after `_check_node`, that a transaction beside others holds the locks of the current groups."""
        if self._membership is None:
            return
        before = self._groups
        if before is None or self._groups_settings != self._settings:
            self._groups, self._groups_settings = OfficeGroups.read(begun.tx), self._settings
        if begun.held is not None:
            if before is None or self._groups is not before:
                raise NotConfined("the groups of offices have changed", alone=1)
            begun.tx.confine(self._session.keys, before, begun.held)

    def _check_node(self, place: Reply, tx: PostgresTx) -> None:
        """Checks first in each transaction whether other nodes declared this one lost, and whether settings have
        changed.
        """
        if self._membership is None:
            return
        tx.await_opening()
        is_ours, settings, self._has_other_nodes = (*place.rows(), (0, 0, 0))[0]
        if not is_ours:
            raise GroupFailed(
                Fenced(
                    f"node {self._membership.node_id} was declared lost when its lease expired: "
                    "its runs are lost, and it joins again"
                )
            )
        if settings != self._settings:
            self._refresh(tx)
            self._settings = settings

    def _prefetched(self, works: list[Work[Any]]) -> list[Read]:
        """Returns the reads that these works declare, and those that both of the last two transactions made."""
        return [read for work in works for read in _declared(work)] + self._prefetched_reads

    def _learn(self, reads_made: list[Read]) -> None:
        last, self._last_reads = self._last_reads, reads_made
        self._prefetched_reads = [read for read in reads_made if read in last][:MAX_PREFETCHED]

    def _commit(self, tx: PostgresTx, transaction: _Unsettled) -> None:
        """Commits in one round trip. Until its result arrives, it is unknown whether the commit was stored."""
        connection = self._session.connection
        self._unsettled = transaction
        try:
            topics = sorted(tx.topics) if self._has_other_nodes else ()
            if tx.end(self._session.closing(":mark", topics), transaction.mark).status != "COMMIT":
                raise StoreError("the database rolled a transaction back instead of committing it")
            self._unsettled = None
            self._mark = transaction.mark
            self.health.stored()
        except BaseException as error:
            if not is_lost(connection, error):
                self._unsettled = None
                self._roll_back()
            raise

    def _roll_back(self) -> None:
        wire_of(self._session.connection).forget()
        with contextlib.suppress(psycopg.Error):  # In that case the connection is lost, and the transaction with it.
            if not self._session.connection.closed:
                self._session.connection.execute("rollback", prepare=False)

    # Handling a server that does not answer.

    def _ensure_connected(self) -> _Unsettled:
        """Reconnects if necessary. Returns the commit of unknown outcome if it turns out to be stored.

        Raises GroupFailed after a while.
        """
        if not self._session.connection.closed and self._unsettled is None:
            return _NOTHING
        end, pause = time.monotonic() + (0.0 if self._is_away else RECONNECT_SECONDS), FIRST_PAUSE
        while not self._is_replaced:
            try:
                self._session.reopen()
                return self._settled(self._session.stored_mark())
            except (psycopg.Error, StoreError) as error:
                if time.monotonic() + pause > end:
                    self._is_away = True
                    raise GroupFailed(Unavailable(f"the database does not answer: {self.translated(error)}")) from error
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        raise GroupFailed(
            Unavailable(
                f"{self._address.place} was used by another process of the same node, or restored, while this "
                "process was disconnected: its memory is outdated, so restart this process"
            )
        )

    def _settled(self, stored_mark: int) -> _Unsettled:
        """Compares marks after a reconnection: was the last commit stored, and has any other process written since?"""
        unsettled = self._unsettled or _NOTHING
        self._unsettled, self._is_away = None, False
        if stored_mark not in (self._mark, unsettled.mark):
            self._is_replaced = True
            self._session.close()  # Another process owns the node now and needs the lock.
            return self._ensure_connected()
        log.info("reconnected to %s", self._address.place)
        was_committed = stored_mark == unsettled.mark
        self._mark = stored_mark
        return unsettled if was_committed else _NOTHING

    def _resolve_commit(self, error: psycopg.Error) -> _Unsettled:
        """Finds out whether a commit was stored during which the connection broke. Returns the commit if it was, else
        nothing.
        """
        try:
            return self._ensure_connected()
        except GroupFailed:
            raise GroupFailed(
                CommitUnknown(
                    "the connection broke during the commit, so the change may or may not be stored: read it again"
                )
            ) from error

    def _resolve_later(self) -> None:
        """Starts a task that finds out whether the commit was stored, since its effects must follow even if nobody
        writes for hours.
        """
        if self._resolving is None or self._resolving.done():
            self._resolving = asyncio.get_running_loop().create_task(
                self._resolve_until_known(), name="nextslot-commit-fate"
            )

    async def _resolve_until_known(self) -> None:
        while self._unsettled is not None:
            await asyncio.sleep(RESOLVE_AGAIN_SECONDS)
            with contextlib.suppress(Unavailable):
                await self._commits.write(lambda tx: None, 1)

    # Reading.

    def _read(self, work: Work[T]) -> T:
        try:
            connection = self._reading_connection()
            try:
                return self._read_on(connection, work)
            except psycopg.OperationalError as error:
                if not is_lost(connection, error):
                    raise
            return self._read_on(self._reading_connection(), work)
        except psycopg.Error as error:
            raise self.translated(error) from error

    def _read_on(self, connection: Connection, work: Work[T]) -> T:
        tx = PostgresTx(connection)
        tx.begin(_READ, ())
        try:
            answer = work(tx)
            tx.settle()
            return answer
        finally:
            wire_of(connection).forget()
            with contextlib.suppress(psycopg.Error):
                connection.execute("rollback", prepare=False)

    def _reading_connection(self) -> Connection:
        """Returns this thread's connection, or a new one if that broke."""
        found: Connection | None = getattr(self._reader, "connection", None)
        if found is None or found.closed:
            if found is not None:
                self._open_readers.remove(found)
                self._reader.connection = None
            found = self._reader.connection = connect(self._address, f"{self._session.name} reads"[:63])
            self._open_readers.append(found)
        return found
