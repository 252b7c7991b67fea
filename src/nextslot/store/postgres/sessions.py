"""Connections to PostgreSQL: addresses, settings, the schema, the lock of the one scheduler, errors as ours.

`postgres.py` runs transactions on what is opened here.
"""

import hashlib
import os
import re
import secrets
import socket
import time
import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import errors, pq
from psycopg.adapt import Buffer, Dumper, Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.numeric import Int8Dumper

from nextslot.errors import (
    AlreadyOpen,
    Away,
    Refused,
    SchemaTooNew,
    StoreError,
    Unavailable,
)
from nextslot.store import dialects

Connection = psycopg.Connection[tuple[Any, ...]]

OLDEST = 150000
# How long one attempt to connect may take, in whole seconds as the driver wants them.
CONNECT_SECONDS = 5
# How long a lock that somebody has is waited for: a process that has just died is still being buried by its server.
LOCK_SECONDS = 1.0
# A server that is gone without a word is noticed within about half a minute, on any network.
_NETWORK = {"connect_timeout": CONNECT_SECONDS, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
            "tcp_user_timeout": 20_000}  # fmt: skip
# Every statement has an index: a plan that was made while a table was empty must not be a scan of it for ever after.
_SETTINGS = """
select set_config('enable_seqscan', 'off', false), set_config('jit', 'off', false),
    set_config('plan_cache_mode', 'force_generic_plan', false), set_config('client_min_messages', 'warning', false)
"""
# Whose mark it is that an offline command leaves: no node can have this name.
OFFLINE = "-"
_MARKS = "create table if not exists commit_marks (node text not null primary key, mark bigint not null)"
# A node that the network has swallowed, or that stands still in the middle of a transaction, must not keep its locks:
# the server notices well before the lease is over, and gives them to others.
VIGILANCE = """
select set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '2', false),
    set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '10000', false),
    set_config('idle_in_transaction_session_timeout', '30s', false)
"""
_MIGRATIONS = "create table if not exists schema_migrations (version bigint primary key, name text)"

_UNAVAILABLE = (
    psycopg.OperationalError,  # Lost, refused, out of memory or disk, shut down, cancelled.
    errors.ReadOnlySqlTransaction,  # A standby, or a server that was made read-only.
)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a database is. Its password is never shown."""

    parameters: Mapping[str, Any] = field(repr=False)
    place: str

    @classmethod
    def of(cls, url: str) -> "Address":
        parameters = _parsed(url)
        if parameters is None:
            raise StoreError(
                "this is not an address of a PostgreSQL database; use postgresql://user:password@host:5432/database, "
                "with special characters of the password written as %40 and the like"
            )
        return cls(parameters, _place(parameters))

    def hide(self, message: str) -> str:
        password = self.parameters.get("password")
        return message.replace(str(password), "***") if password else message


def _parsed(url: str) -> dict[str, Any] | None:
    """None if it is no address; why is not said, since the driver's own message quotes all of it, password and all."""
    try:
        return dict(conninfo_to_dict(url))
    except psycopg.ProgrammingError:
        return None


def _place(parameters: Mapping[str, Any]) -> str:
    name = parameters.get("dbname") or parameters.get("user") or "of this user"
    return f"the database {name} on {parameters.get('host') or 'this machine'}"


class _Flag(Dumper):
    """A truth is 1 or 0, as the columns have it."""

    oid = psycopg.adapters.types["int8"].oid

    def dump(self, obj: Any) -> bytes:
        return b"1" if obj else b"0"


class _Truth(Loader):
    def load(self, data: Buffer) -> int:
        return int(bytes(data) == b"t")


class _Number(Loader):
    """A sum is of a type of its own there; here it is a number as any other."""

    def load(self, data: Buffer) -> int | float:
        digits = bytes(data).decode()
        return float(digits) if "." in digits else int(digits)


_living: weakref.WeakSet[Connection] = weakref.WeakSet()


def reach(address: Address) -> None:
    """Raises Away unless the server takes connections; whether it takes ours (user, password, database) is not asked.

    By the protocol itself: what a refused connection says is in the server's language.
    """
    conninfo = make_conninfo(**{**_NETWORK, **address.parameters})
    answer = pq.Ping(pq.PGconn.ping(conninfo.encode()))
    if answer is pq.Ping.REJECT:
        raise Away(f"the server of {address.place} takes no connections now: it starts, stops or recovers")
    if answer is pq.Ping.NO_RESPONSE:
        raise Away(f"the server of {address.place} does not answer: check that it runs and can be reached from here")


def connect(address: Address, name: str, synchronous: str = "FULL") -> Connection:
    connection: Connection = psycopg.connect(
        **{**_NETWORK, **address.parameters, "application_name": name, "client_encoding": "utf8"},
        autocommit=True,
        # What is prepared is `postgres_wire`'s business: the driver would forget all of it with a rollback.
        prepare_threshold=None,
    )
    _living.add(connection)
    try:
        # One type for all numbers: else each size of number would be another prepared statement.
        connection.adapters.register_dumper(int, Int8Dumper)
        connection.adapters.register_dumper(bool, _Flag)
        connection.adapters.register_loader("bool", _Truth)
        connection.adapters.register_loader("numeric", _Number)
        _refuse_unfit(connection, address)
        connection.execute(_SETTINGS, prepare=False)
        connection.execute(VIGILANCE, prepare=False)
        _promise(connection, synchronous)
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_unfit(connection: Connection, address: Address) -> None:
    version = connection.info.server_version
    if version < OLDEST:
        raise StoreError(f"{address.place} is PostgreSQL {version // 10000}; nextslot needs {OLDEST // 10000} or newer")
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreError(f"{address.place} stores text as {encoding}; create it with encoding UTF8")


def _promise(connection: Connection, synchronous: str) -> None:
    """FULL is whatever the server calls durable; only a server that calls nothing so is told."""
    wanted = "off" if synchronous == "NORMAL" else "on"
    connection.execute(
        f"select set_config('synchronous_commit', '{wanted}', false) "
        f"where '{wanted}' = 'off' or current_setting('synchronous_commit') = 'off'",
        prepare=False,
    )


@dataclass(frozen=True, slots=True)
class Keys:
    """The numbers and names that schedulers of one schema know each other by: such locks are of the whole database."""

    channel: str
    # Held by every node together, or by an offline command alone.
    everybody: int
    # Held by whoever writes, to the end of its transaction.
    writing: int
    # Held by the leader.
    leading: int
    # Held by the one process that is this node.
    node: int
    # Where an import is put together.
    staging: str

    @classmethod
    def of(cls, schema: int, node: str) -> "Keys":
        key = (0x6E73 << 40) | (schema << 8)
        named = int.from_bytes(hashlib.sha256(f"{schema} {node}".encode()).digest()[:6])
        staging = f"nextslot_import_{schema}"
        return cls(f"nextslot_{schema}", key | 1, key | 2, key | 3, (0x6E74 << 48) | named, staging)

    @property
    def lead_sql(self) -> str:
        return f"select pg_try_advisory_lock({self.leading})"


class Session:
    """The writing connection. Whoever has it is the one process of its node: it holds the lock that says so. Without
    a node it is an offline command, which has the database for itself.

    A lost connection loses the lock with it. The next one waits for the server to have ended the last: so what that
    one left is either committed or gone. Each transaction leaves its mark, so `stored_mark` tells which; and whether
    somebody else was this node in between.
    """

    def __init__(self, address: Address, synchronous: str, node: str | None = None) -> None:
        self._address = address
        self._synchronous = synchronous
        self._node = node
        self.name = _own_name()
        # What else begins a transaction: a question about the place of its node.
        self.question = ""
        self.connection = self._open()

    def _open(self) -> Connection:
        connection = connect(self._address, self.name, self._synchronous)
        try:
            self.keys = Keys.of(_schema_number(connection), self._node or "")
            self._take_possession(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def reopen(self) -> None:
        """Once; raises what the driver raises, or AlreadyOpen if another scheduler was quicker."""
        self.connection.close()
        self.connection = self._open()

    @property
    def opening(self) -> str:
        """What begins a writing transaction: one at a time in the whole database, so that counters and the numbers
        of events are exact, whoever else writes."""
        return f"begin; select pg_advisory_xact_lock({self.keys.writing}){self.question}"

    def closing(self, mark: int | str, topics: Collection[str] = ()) -> str:
        told = "".join(f"select pg_notify('{self.keys.channel}_{topic}', {self._name_of_node}); " for topic in topics)
        return f"update commit_marks set mark = {mark} where node = {self._name_of_node}; {told}commit"

    def ask_for(self, life: int) -> None:
        """From now on every transaction begins by asking what became of this life of its node, and of the settings."""
        self.question = (
            f"; select life = {life} and status = 'live', settings, "
            "(select count(*) from nodes where status = 'live') > 1 "
            f"from nodes, cluster where node_id = {self._name_of_node}"
        )

    @property
    def _name_of_node(self) -> str:
        return "'" + (self._node or OFFLINE).replace("'", "''") + "'"

    def stored_mark(self) -> int:
        """The mark of the last transaction that is committed."""
        mark: int = _asked(self.connection, f"select mark from commit_marks where node = {self._name_of_node}")
        return mark

    def migrate(self, mark: int) -> None:
        """Brings the schema up to date, all or nothing; refuses one from the future."""
        self.connection.execute(self.opening, prepare=False)
        try:
            migrate_tables(self.connection)
            self.connection.execute(
                f"insert into commit_marks (node, mark) values ({self._name_of_node}, 0) on conflict (node) do nothing",
                prepare=False,
            )
            self.connection.execute(self.closing(mark), prepare=False)
        except BaseException:
            if not self.connection.closed:
                self.connection.execute("rollback", prepare=False)
            raise

    def close(self) -> None:
        """The lock is given back before the server notices that we are gone, so that the next one need not wait."""
        try:
            if not self.connection.closed:
                self.connection.execute("rollback; select pg_advisory_unlock_all()", prepare=False)
        except psycopg.Error:
            pass  # It is gone then, and the lock with it.
        self.connection.close()

    def _take_possession(self, connection: Connection) -> None:
        everybody, own = self.keys.everybody, self.keys.node
        if self._node is None:
            self._lock(connection, "pg_try_advisory_lock", everybody, "stop it first, or use another database")
        else:
            advice = "it has it for itself; try again when it is done"
            self._lock(connection, "pg_try_advisory_lock_shared", everybody, advice)
            advice = f"it is node {self._node!r}; stop it, or give this node another name ([node] name, or --node)"
            self._lock(connection, "pg_try_advisory_lock", own, advice)

    def _lock(self, connection: Connection, how: str, key: int, advice: str) -> None:
        end = time.monotonic() + LOCK_SECONDS
        while not _asked(connection, f"select {how}({key})"):
            holder = _holder(connection, key)
            if holder is not None and holder[1] == self.name:
                # What is left of our own last connection, whose end the server has not noticed.
                connection.execute(f"select pg_terminate_backend({holder[0]})", prepare=False)
            elif time.monotonic() > end:
                who = _spoken(holder[1] if holder else "")
                raise AlreadyOpen(f"{self._address.place} is in use by {who}: {advice}")
            time.sleep(0.01)


def _own_name() -> str:
    return f"nextslot {secrets.token_hex(4)} process {os.getpid()} on {socket.gethostname()}"[:63]


def _spoken(application_name: str) -> str:
    found = re.fullmatch(r"nextslot [0-9a-f]+ (process .+)", application_name)
    return found[1] if found else "another scheduler"


def _schema_number(connection: Connection) -> int:
    schema = _asked(connection, "select current_schema()::regnamespace::oid::bigint")
    if schema is None:
        raise StoreError("there is no schema to create tables in: the search_path of this user names none that exists")
    return int(schema)


def _holder(connection: Connection, key: int) -> tuple[int, str] | None:
    found = connection.execute(
        "select pid, coalesce(application_name, '') from pg_locks join pg_stat_activity using (pid) "
        "where locktype = 'advisory' and objsubid = 1 and granted and pg_locks.database = "
        "(select oid from pg_database where datname = current_database()) "
        f"and (classid::bigint << 32 | objid::bigint) = {key}",
        prepare=False,
    ).fetchone()
    return None if found is None else (found[0], found[1])


def _asked(connection: Connection, sql: str) -> Any:
    row = connection.execute(sql, prepare=False).fetchone()
    return row[0] if row else None


def migrate_tables(connection: Connection, last: int | None = None) -> None:
    """In a transaction: up to date, or up to `last`."""
    for table in (_MIGRATIONS, _MARKS):
        connection.execute(table, prepare=False)
    done: int = _asked(connection, "select coalesce(max(version), 0) from schema_migrations")
    steps = dialects.migrations()
    if done > steps[-1][0]:
        raise SchemaTooNew(
            f"this database has schema {done}, this release of nextslot knows up to {steps[-1][0]}: use a newer release"
        )
    for number, name, schema in steps:
        if done < number <= (last or number):
            for statement in dialects.for_postgres(schema):
                connection.execute(statement, prepare=False)
            connection.execute("insert into schema_migrations values (%s, %s)", (number, name))
    connection.execute(
        f"insert into commit_marks (node, mark) values ('{OFFLINE}', 0) on conflict (node) do nothing", prepare=False
    )


def is_lost(connection: Connection, error: BaseException) -> bool:
    """Whether the connection is no more, and so what was not committed is undone."""
    return isinstance(error, psycopg.OperationalError) and (connection.closed or connection.broken)


def may_be_repeated(error: BaseException) -> bool:
    """The server gave this transaction up because of another: 40001, 40P01 and their kin."""
    return isinstance(error, (errors.SerializationFailure, errors.DeadlockDetected, errors.TransactionRollback))


def translated(error: BaseException, address: Address) -> BaseException:
    """The one place where the driver's errors become ours; the driver's own is kept as the cause."""
    ours: Exception
    if isinstance(error, psycopg.Error):
        said = address.hide(error.diag.message_primary or str(error).strip() or type(error).__name__)
        if isinstance(error, psycopg.IntegrityError):
            ours = Refused(said)
        elif isinstance(error, _UNAVAILABLE) or may_be_repeated(error):
            ours = Unavailable(f"the database did not take it: {said}")
        else:
            ours = StoreError(f"the database failed: {said}")
    elif isinstance(error, StopIteration):
        ours = RuntimeError("a work raised StopIteration")  # A future cannot carry the original.
    else:
        return error
    ours.__cause__ = error
    return ours


def _leave_to_the_parent() -> None:
    """A forked child must not say goodbye on its parent's connections, nor keep them open after its parent's end."""
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for connection in list(_living):
        if not connection.closed:
            os.dup2(nowhere, connection.fileno(), inheritable=False)
    os.close(nowhere)


os.register_at_fork(after_in_child=_leave_to_the_parent)
