"""The store on PostgreSQL: one writing connection with group commit, and a few reading ones beside it.

Works that wait together are committed together, in a thread, so that the event loop never waits for the network. A
transaction that the server gave up, or that went with its connection, is run again; of one whose connection broke in
the middle of the commit it is found out whether it was committed, as soon as the server answers again.
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
    NoEffects,
    PrefetchedWork,
    Read,
    Row,
    Work,
)
from nextslot.store.group_commit import (
    GroupCommit,
    GroupFailed,
    TxMemory,
    WorkFailed,
    WorkResult,
    attempt_all,
)
from nextslot.store.health import Health, wall_clock
from nextslot.store.membership import Membership
from nextslot.store.sqlite.readers import Readers
from nextslot.system.sidecar import NodeVitals
from nextslot.telemetry.meters import Meters, Unmeasured

from .lease import Lease
from .pipeline import Reply, wire_of
from .sessions import (
    Address,
    Connection,
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
# How long a server that does not answer is waited for before the callers are told; then each group asks it once.
PATIENCE_SECONDS = 5.0
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
# How often a transaction is run again that the server gave up.
TRIES = 5
# How often it is asked what became of a commit, while nobody else asks the server for anything.
ASK_AGAIN_SECONDS = 1.0

# Rows that one statement takes: beyond this nothing is gained.
ROWS_AT_ONCE = 100
# Rows that are put before they are sent.
MOST_PUT = 2000
# Questions that are asked ahead because the last transactions asked them.
MOST_PREFETCHED = 16

_READ = "begin isolation level repeatable read read only"
# The end of what runs changes nothing of what waits, and nothing of what else runs. An answer is given once: who asks
# again about the same one gets another.
_ENDS = frozenset({"runs.finish", "jobs.succeed", "jobs.fail", "jobs.stop"})
_UNTOUCHED = frozenset({"jobs.ending_facts", "jobs.heads", "lanes.outlook"})


# A question and its answer, if it was asked ahead.
_Key = tuple[str, tuple[object, ...]]


class PostgresTx(TxMemory):
    """A transaction on a connection: statements by name, and what its commit causes.

    It waits for the server as seldom as it can. What is `put` goes with the next question, and what is put of the same
    kind as one statement. Questions that are foreseen are asked with the first, and their answers kept until somebody
    asks, or until a statement changes a table that they are about.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._wire = wire_of(connection)
        self._statements = dialects.postgres_statements()
        self._opened: Reply | None = None
        self._changes = 0
        self._put: list[tuple[str, list[Mapping[str, object]]]] = []
        self._ahead: dict[_Key, Reply] = {}
        # The tables that have been changed; and those that were by more than the end of something that ran.
        self._changed: set[str] = set()
        self._changed_more: set[str] = set()
        # The questions that could have been asked ahead: nothing before them had changed what they are about.
        self.asked: list[Read] = []

    def begin(self, opening: str, prefetched: Iterable[Read]) -> Reply:
        """Sends what opens it, and what is asked ahead, and waits for nothing. The reply is to the opening's last."""
        self._opened = reply = self._wire.say(opening)
        for statement, values in prefetched:
            key = statement, tuple(values.values())
            if key not in self._ahead:
                self._ahead[key] = self._wire.send(dialects.placed(self._statements[statement]), values)
        self._wire.push()
        return reply

    def row(self, statement: str, /, **values: object) -> Row | None:
        rows = self.rows(statement, **values)
        return rows[0] if rows else None

    def rows(self, statement: str, /, **values: object) -> list[Row]:
        if self._ahead:
            known = self._ahead.pop((statement, tuple(values.values())), None)
            if known is not None:
                self.asked.append(Read(statement, values))
                return self._answered(known).rows()
        tables = dialects.tables(statement)
        if not tables.changed:
            changed = self._changed_more if statement in _UNTOUCHED else self._changed
            if tables.read.isdisjoint(changed):
                self.asked.append(Read(statement, values))
            return self._asked(statement, values).rows()
        rows = self._asked(statement, values).rows()
        self._changes += len(rows)
        return rows

    def execute(self, statement: str, /, **values: object) -> int:
        changed = self._asked(statement, values).changed
        self._changes += changed
        return changed

    def execute_later(self, statement: str, /, **values: object) -> None:
        self._put_all(statement, [values])

    def execute_batch(self, statement: str, names: tuple[str, ...], rows: Iterable[Sequence[object]], /) -> None:
        self._put_all(statement, (dict(zip(names, row, strict=True)) for row in rows))

    def _put_all(self, statement: str, values: Iterable[Mapping[str, object]]) -> None:
        self._changes += 1
        self._note_change(statement)
        put = self._group(statement)
        for one in values:
            put.append(one)
            if len(put) == MOST_PUT:
                self.settle()
                put = self._group(statement)

    def select(self, sql: str, values: Mapping[str, object], /) -> list[Row]:
        self._send_put()
        return self._answered(self._wire.send(dialects.placed(sql), values)).rows()

    def footprint(self) -> object:
        return self._changes, self.touches

    def hand_in(self) -> None:
        """What was put is sent now: the server works on it while it is decided what comes next."""
        if self._put:
            self._send_put()
            self._wire.push()

    def be_open(self) -> None:
        """That the connection lives is known before anything is committed on it."""
        if self._opened is not None:
            self._answered(self._opened)

    def settle(self) -> None:
        """What was put is done."""
        if self._put:
            self._send_put()
            self._wire.exchange()

    def end(self, closing: str, mark: int) -> Reply:
        """Sends all that is left, and what closes it, and waits for the answer."""
        self._send_put()
        return self._answered(self._wire.say(closing, mark=mark))

    def _asked(self, statement: str, values: Mapping[str, object]) -> Reply:
        self._note_change(statement)
        self._send_put()
        return self._answered(self._wire.send(dialects.placed(self._statements[statement]), values))

    def _answered(self, reply: Reply) -> Reply:
        if reply.result is None:
            self._wire.exchange()
        return reply

    def _note_change(self, statement: str) -> None:
        """What this may change must be asked again."""
        changed = dialects.tables(statement).changed
        if not changed:
            return
        is_end = statement in _ENDS
        self._changed |= changed
        if not is_end:
            self._changed_more |= changed
        for known in list(self._ahead):
            if not (is_end and known[0] in _UNTOUCHED) and not dialects.tables(known[0]).read.isdisjoint(changed):
                del self._ahead[known]

    def _group(self, statement: str) -> list[Mapping[str, object]]:
        """What has been put of the same kind just before; the ends of several runs do not mind each other's order."""
        for known, values in reversed(self._put):
            if known == statement:
                return values
            if known not in _ENDS or statement not in _ENDS:
                break
        self._put.append((statement, []))
        return self._put[-1][1]

    def _send_put(self) -> None:
        put, self._put = self._put, []
        for statement, values in put:
            self._send_many(statement, values)

    def _send_many(self, statement: str, values: Sequence[Mapping[str, object]]) -> None:
        """As few statements as it can be said in."""
        for first in range(0, len(values), ROWS_AT_ONCE):
            chunk, sql = values[first : first + ROWS_AT_ONCE], self._statements[statement]
            together = _together(sql, chunk) if len(chunk) > 1 else None
            if together is not None:
                self._wire.send(dialects.placed(together[0]), together[1])
            else:
                for one in chunk:
                    self._wire.send(dialects.placed(sql), one)


def _together(sql: str, rows: Sequence[Mapping[str, object]]) -> tuple[str, dict[str, object]] | None:
    """One statement for many rows, and its values: lists of what differs from row to row. None if there is none."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    differing = {name: values for name, values in columns.items() if values.count(values[0]) < len(values)}
    types = tuple((name, _type(values)) for name, values in differing.items())
    together = dialects.set_based(sql, types) if types else None
    if together is None:
        return None
    key = dialects.key_of(sql)
    if key is not None and len(set(differing[key])) < len(rows):
        return None  # Two changes of one row are two statements.
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
    """A commit whose answer did not come."""

    mark: int
    answers: list[WorkResult]
    effects: list[Effect]


_NOTHING = _Unsettled(0, [], [])


class PostgresStore:
    """One node's way to the database, which others may share; without a node nobody does.

    `threaded=False` keeps all on the caller's thread, for simulation.
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
        """`refresh` reads again what the scheduler keeps in memory, when another node has changed it."""
        self._address = Address.of(url)
        self.health = Health(now)
        self._opening = opening
        self._closing = closing
        self._refresh = refresh
        # How often the settings had been changed when they were last read, and whether there were other nodes then.
        self._settings: int | None = None
        self._has_company = True
        self._membership: Membership | None = None
        self._lease: Lease | None = None
        self._vitals = vitals
        self._threaded = threaded
        # Of the last transaction that is known to be committed.
        self._mark = random.getrandbits(62)
        self._session = self._opened(synchronous, node)
        self._unsettled: _Unsettled | None = None
        self._last_asked: list[Read] = []
        self._prefetched_reads: list[Read] = []
        self._asking: asyncio.Task[None] | None = None
        self._is_away = False
        self._is_dispossessed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nextslot-writer")
        self._meters = meters or Unmeasured()
        self._commits = GroupCommit(self, self._thread, effects or NoEffects(), self._meters)
        self._readers = Readers(self._read, READERS, threaded, self._meters)
        self._reader = threading.local()
        self._open_readers: list[Connection] = []

    def _opened(self, synchronous: str, node: str | None) -> Session:
        """Connects and brings the schema up to date. Raises Away if the server does not answer, and what the server
        says if it does: a second time, since it may have come back just now."""
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
                    raise Away(f"{self._address.place} cannot be opened: {self._said(error)}") from away
                if is_last:
                    raise self._not_opened(error) from error
            except psycopg.Error as error:
                raise self._not_opened(error) from error
            else:
                return session
        raise AssertionError("not reached")

    def _said(self, error: psycopg.Error) -> str:
        return self._address.hide(str(error).strip())

    def _not_opened(self, error: psycopg.Error) -> BaseException:
        ours = self.translated(error)
        return StoreError(f"{self._address.place} cannot be opened: {ours}") if isinstance(ours, Unavailable) else ours

    async def write(self, work: Work[T], /, *, rows: int = 1) -> T:
        try:
            return await self._commits.write(work, rows)
        except CommitUnknown:
            self._ask_again()
            raise
        except Fenced:
            if self._membership is not None:
                self._membership.member.fenced()
            raise

    async def read(self, work: Work[T], /) -> T:
        self._commits.refuse_if_closed()
        return await self._readers.read(work)

    @property
    def is_shared(self) -> bool:
        """On one thread, in a simulation, there is nobody to renew a lease."""
        return self._threaded

    def join(self, membership: Membership) -> None:
        self._session.ask_for(membership.life)
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
        self._membership, self._session.question = None, ""
        if self._lease is not None:  # Its thread has to end; where there is none, virtual time has nothing to wait for.
            await asyncio.get_running_loop().run_in_executor(None, self._end_lease)

    def _end_lease(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.close()

    async def close(self) -> None:
        """Everything that was handed in before is stored first."""
        await self._commits.close()
        self._let_go()

    def abandon(self) -> None:
        """For tests: what waits is dropped, as in a crash."""
        self._commits.abandon()
        self._let_go()

    def _let_go(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
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
        return self._be_connected().effects

    def transaction(self, works: list[Work[Any]]) -> tuple[list[WorkResult], list[Effect]]:
        for tries in range(1, TRIES + 1):
            self._be_connected()
            try:
                return self._transaction(works)
            except (psycopg.Error, WorkFailed) as failure:
                error = failure.__cause__ if isinstance(failure, WorkFailed) else failure
                if not isinstance(error, psycopg.Error):
                    raise
                if self._unsettled is not None:
                    found = self._found_out(error)
                    if found is not _NOTHING:
                        return found.answers, found.effects
                    # It was not committed, so it is run again.
                elif tries == TRIES or not (may_be_repeated(error) or is_lost(self._session.connection, error)):
                    raise
        raise GroupFailed(Unavailable("the connection to the database broke again and again"))

    def _transaction(self, works: list[Work[Any]]) -> tuple[list[WorkResult], list[Effect]]:
        connection = self._session.connection
        try:
            tx = PostgresTx(connection)
            place = tx.begin(self._session.opening, self._prefetched(works))
            self._look_at(place, tx)
            self._opening(tx)
            answers = attempt_all(tx, works)
            tx.hand_in()
            self._closing(tx)
            tx.be_open()
        except BaseException:
            self._roll_back()
            raise
        self._commit(tx, _Unsettled(self._mark + 1, answers, tx.effects))
        self._learn(tx.asked)
        return answers, tx.effects

    def _look_at(self, place: Reply, tx: PostgresTx) -> None:
        """Once it has joined, a transaction begins with what became of its node, and of the settings."""
        if self._membership is None:
            return
        tx.be_open()
        is_ours, settings, self._has_company = (*place.rows(), (0, 0, 0))[0]
        if not is_ours:
            raise GroupFailed(
                Fenced(
                    f"node {self._membership.node_id} was taken for lost: what it ran is lost, and it has to join anew"
                )
            )
        if settings != self._settings:
            self._refresh(tx)
            self._settings = settings

    def _prefetched(self, works: list[Work[Any]]) -> list[Read]:
        """What these works are known to ask, and what the last two transactions both asked."""
        return [
            read for work in works if isinstance(work, PrefetchedWork) for read in work.reads
        ] + self._prefetched_reads

    def _learn(self, asked: list[Read]) -> None:
        last, self._last_asked = self._last_asked, asked
        self._prefetched_reads = [read for read in asked if read in last][:MOST_PREFETCHED]

    def _commit(self, tx: PostgresTx, transaction: _Unsettled) -> None:
        """One round trip; from here until the answer nobody knows."""
        connection = self._session.connection
        self._unsettled = transaction
        try:
            topics = sorted(tx.topics) if self._has_company else ()
            if tx.end(self._session.closing(":mark", topics), transaction.mark).status != "COMMIT":
                raise StoreError("the database undid a transaction instead of committing it")
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
        with contextlib.suppress(psycopg.Error):  # Then the connection is gone, and so is the transaction.
            if not self._session.connection.closed:
                self._session.connection.execute("rollback", prepare=False)

    # When the server does not answer.

    def _be_connected(self) -> _Unsettled:
        """Returns with a connection, and with a commit that was unsettled if it turned out to be one.

        Raises GroupFailed after a while.
        """
        if not self._session.connection.closed and self._unsettled is None:
            return _NOTHING
        end, pause = time.monotonic() + (0.0 if self._is_away else PATIENCE_SECONDS), FIRST_PAUSE
        while not self._is_dispossessed:
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
                f"{self._address.place} was used by another process of the same node, or went back in time, while this "
                "one was cut off from it: what is in memory here no longer holds, so start this one again"
            )
        )

    def _settled(self, stored_mark: int) -> _Unsettled:
        """Connected again: what became of the last commit, and whether it was the last."""
        unsettled = self._unsettled or _NOTHING
        self._unsettled, self._is_away = None, False
        if stored_mark not in (self._mark, unsettled.mark):
            self._is_dispossessed = True
            self._session.close()  # Whose it is now must be able to have it.
            return self._be_connected()
        log.info("connected again to %s", self._address.place)
        was_committed = stored_mark == unsettled.mark
        self._mark = stored_mark
        return unsettled if was_committed else _NOTHING

    def _found_out(self, error: psycopg.Error) -> _Unsettled:
        """The connection broke during the commit: it is what was committed, or nothing."""
        try:
            return self._be_connected()
        except GroupFailed:
            raise GroupFailed(
                CommitUnknown(
                    "the connection to the database broke while this was being committed: it may or may not be stored"
                )
            ) from error

    def _ask_again(self) -> None:
        """What was committed must be followed up, also if nobody writes for hours."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask_until_known(), name="nextslot-commit-fate")

    async def _ask_until_known(self) -> None:
        while self._unsettled is not None:
            await asyncio.sleep(ASK_AGAIN_SECONDS)
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
        """Of this thread; a new one in place of one that broke."""
        found: Connection | None = getattr(self._reader, "connection", None)
        if found is None or found.closed:
            if found is not None:
                self._open_readers.remove(found)
                self._reader.connection = None
            found = self._reader.connection = connect(self._address, f"{self._session.name} reads"[:63])
            self._open_readers.append(found)
        return found
