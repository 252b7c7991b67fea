"""Connections to PostgreSQL: addresses, settings, the schema, the locks of schedulers, and the translation of errors.

`postgres_store.py` runs transactions on these connections.
"""

import hashlib
import os
import re
import secrets
import socket
import time
import weakref
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
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
    StoreError,
    Unavailable,
)
from nextslot.store import dialects
from nextslot.store.contract import not_a_name

Connection = psycopg.Connection[tuple[Any, ...]]

OLDEST = 150000
# How long one attempt to connect may take, in whole seconds, as the driver requires.
CONNECT_SECONDS = 5
# How long to wait for a lock: the server may not yet have released a dead session's lock.
LOCK_SECONDS = 1.0
# Detects a server that vanished silently within about half a minute, on any network.
_NETWORK = {"connect_timeout": CONNECT_SECONDS, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
            "tcp_user_timeout": 20_000}  # fmt: skip
# Every statement has an index: a plan made while a table was empty must not remain a sequential scan for ever.
_SETTINGS = """
select set_config('enable_seqscan', 'off', false), set_config('jit', 'off', false),
    set_config('plan_cache_mode', 'force_generic_plan', false), set_config('client_min_messages', 'warning', false)
"""
# The node name under which offline commands leave their marks; no node can have it.
OFFLINE = "-"
_MARKS = "create table if not exists commit_marks (node text not null primary key, mark bigint not null)"
# A node that is cut off from the network, or that freezes within a transaction, must not keep its locks: the server
# notices well before the lease expires, and releases them.
SERVER_TIMEOUTS = """
select set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '2', false),
    set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '10000', false),
    set_config('idle_in_transaction_session_timeout', '30s', false)
"""
_MIGRATIONS = "create table if not exists schema_migrations (version bigint primary key, name text)"

# An error of the driver about a value that it cannot send.
_NOT_ADAPTED = re.compile(r"cannot adapt type '(\w+)'")
_UNAVAILABLE = (
    psycopg.OperationalError,  # Connection lost or refused, out of memory or disk, shut down, cancelled.
    errors.ReadOnlySqlTransaction,  # A standby, or a server in read-only mode.
)


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a database. It never shows its password."""

    parameters: Mapping[str, Any] = field(repr=False)
    place: str

    @classmethod
    def of(cls, url: str) -> "Address":
        parameters = _parsed(url)
        if parameters is None:
            raise StoreError(
                "this is not the address of a PostgreSQL database; use postgresql://user:password@host:5432/database, "
                "with special characters of the password written as %40 and the like"
            )
        return cls(parameters, _place(parameters))

    def hide(self, message: str) -> str:
        password = self.parameters.get("password")
        return message.replace(str(password), "***") if password else message


def _parsed(url: str) -> dict[str, Any] | None:
    """Returns the connection parameters, or None if this is no address. Hides the driver's error, which quotes the
    password.
    """
    try:
        return dict(conninfo_to_dict(url))
    except psycopg.ProgrammingError:
        return None


def _place(parameters: Mapping[str, Any]) -> str:
    name = parameters.get("dbname") or parameters.get("user") or "of this user"
    return f"the database {name} on {parameters.get('host') or 'this machine'}"


class _Flag(Dumper):
    """Sends a boolean as 1 or 0, as the columns store it."""

    oid = psycopg.adapters.types["int8"].oid

    def dump(self, obj: Any) -> bytes:
        return b"1" if obj else b"0"


class _Truth(Loader):
    def load(self, data: Buffer) -> int:
        return int(bytes(data) == b"t")


class _Number(Loader):
    """Loads PostgreSQL's `numeric`, the type of sums, as a plain number."""

    def load(self, data: Buffer) -> int | float:
        digits = bytes(data).decode()
        return float(digits) if "." in digits else int(digits)


_open_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def reach(address: Address) -> None:
    """Raises Away unless the server accepts connections. Does not check our user, password or database.

    Uses the protocol's own ping, because the error text of a refused connection is in the server's language.
    """
    conninfo = make_conninfo(**{**_NETWORK, **address.parameters})
    answer = pq.Ping(pq.PGconn.ping(conninfo.encode()))
    if answer is pq.Ping.REJECT:
        raise Away(f"the server of {address.place} accepts no connections now: wait until it has started or recovered")
    if answer is pq.Ping.NO_RESPONSE:
        raise Away(f"the server of {address.place} does not answer: check that it runs and can be reached from here")


def connect(address: Address, name: str, synchronous: str = "FULL") -> Connection:
    connection: Connection = psycopg.connect(
        **{**_NETWORK, **address.parameters, "application_name": name, "client_encoding": "utf8"},
        autocommit=True,
        # `pipeline` prepares statements: the driver would forget them all at a rollback.
        prepare_threshold=None,
    )
    _open_connections.add(connection)
    try:
        # Use one type for all integers: otherwise each size of number would be another prepared statement.
        connection.adapters.register_dumper(int, Int8Dumper)
        connection.adapters.register_dumper(bool, _Flag)
        connection.adapters.register_loader("bool", _Truth)
        connection.adapters.register_loader("numeric", _Number)
        _refuse_unfit(connection, address)
        connection.execute(_SETTINGS, prepare=False)
        connection.execute(SERVER_TIMEOUTS, prepare=False)
        _set_durability(connection, synchronous)
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_unfit(connection: Connection, address: Address) -> None:
    version = connection.info.server_version
    if version < OLDEST:
        raise StoreError(
            f"{address.place} is PostgreSQL {version // 10000}, which is too old; use {OLDEST // 10000} or newer"
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreError(f"{address.place} stores text as {encoding}; create it with encoding UTF8")


def _set_durability(connection: Connection, synchronous: str) -> None:
    """Sets `synchronous_commit`. FULL keeps the server's own setting, unless that is off."""
    wanted = "off" if synchronous == "NORMAL" else "on"
    connection.execute(
        f"select set_config('synchronous_commit', '{wanted}', false) "
        f"where '{wanted}' = 'off' or current_setting('synchronous_commit') = 'off'",
        prepare=False,
    )


@dataclass(frozen=True, slots=True)
class Keys:
    """The lock numbers and names that the schedulers of one schema share. Advisory locks are valid in the whole
    database.
    """

    channel: str
    # Every node holds this lock shared; an offline command holds it exclusively.
    everybody: int
    # A transaction that writes alone holds this lock exclusively until its end; others hold it shared.
    writing: int
    # The leader holds this lock.
    leading: int
    # The one process of this node holds this lock.
    node: int
    # The schema in which an import is prepared.
    staging: str
    schema: int = 0

    @property
    def numbering(self) -> int:
        """Returns the lock that orders event numbers: a transaction beside others takes it to number its events and
        holds it until its end.
        """
        return self.writing + 2

    @classmethod
    def of(cls, schema: int, node: str) -> "Keys":
        key = (0x6E73 << 40) | (schema << 8)
        staging = f"nextslot_import_{schema}"
        own = (0x6E74 << 48) | _hashed(schema, node)
        return cls(f"nextslot_{schema}", key | 1, key | 2, key | 3, own, staging, schema)

    def of_group(self, name: str) -> int:
        """Returns the lock of a group of offices. If two groups get the same number, they only wait for each other."""
        return (0x6E75 << 48) | _hashed(self.schema, name)

    @property
    def lead_sql(self) -> str:
        return f"select pg_try_advisory_lock({self.leading})"


@lru_cache(maxsize=4096)
def _hashed(schema: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{schema} {name}".encode()).digest()[:6])


class Session:
    """The writing connection. It holds the lock that makes this the only process of its node. Without a node it belongs
    to an offline command, which needs the database for itself.

    A lost connection loses the lock. The next connection waits until the server has ended the lost one, so the last
    transaction is then either committed or rolled back. Each transaction stores a mark, so `stored_mark` shows which of
    the two happened, and whether another process was this node in the meantime.
    """

    def __init__(self, address: Address, synchronous: str, node: str | None = None) -> None:
        self._address = address
        self._synchronous = synchronous
        self._node = node
        self.name = _own_name()
        # The SQL after the opening of each transaction that reads the state of its node.
        self.node_check = ""
        self.connection = self._open()

    def _open(self) -> Connection:
        connection = connect(self._address, self.name, self._synchronous)
        try:
            self.keys = Keys.of(_schema_number(connection), self._node or "")
            self._acquire_locks(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def reopen(self) -> None:
        """Reconnects with a single attempt. Raises the driver's error, or AlreadyOpen if another scheduler was
        faster.
        """
        self.connection.close()
        self.connection = self._open()

    @property
    def opening(self) -> str:
        """Returns the SQL that begins a transaction that writes alone."""
        return f"begin; select pg_advisory_xact_lock({self.keys.writing}){self.node_check}"

    def opening_beside(self, groups: Iterable[str]) -> tuple[str, dict[str, int]]:
        """Returns the SQL, with its values, that begins a transaction beside others, which may write about other groups
        of offices.

        It takes the locks in the order of their numbers, so that no two transactions wait for each other.
        """
        locks = {f"lock_{place}": lock for place, lock in enumerate(sorted(map(self.keys.of_group, groups)))}
        each = "".join(f"; select pg_advisory_xact_lock(:{name})" for name in locks)
        return f"begin; select pg_advisory_xact_lock_shared({self.keys.writing}){each}{self.node_check}", locks

    def closing(self, mark: int | str, topics: Collection[str] = ()) -> str:
        notifications = "".join(
            f"select pg_notify('{self.keys.channel}_{topic}', {self._name_of_node}); " for topic in topics
        )
        return f"update commit_marks set mark = {mark} where node = {self._name_of_node}; {notifications}commit"

    def check_node(self, life: int) -> None:
        """Lets every transaction begin by reading whether this incarnation of its node is still live, and the version
        of the settings.
        """
        self.node_check = (
            f"; select life = {life} and status = 'live', settings, "
            "(select count(*) from nodes where status = 'live') > 1 "
            f"from nodes, cluster where node_id = {self._name_of_node}"
        )

    @property
    def _name_of_node(self) -> str:
        return "'" + (self._node or OFFLINE).replace("'", "''") + "'"

    def stored_mark(self) -> int:
        """Returns the mark of the last committed transaction."""
        mark: int = _fetch_value(self.connection, f"select mark from commit_marks where node = {self._name_of_node}")
        return mark

    def migrate(self, mark: int) -> None:
        """Migrates the schema, all or nothing. Refuses a newer schema."""
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
        """Closes the connection. Releases the locks first, so that the next process need not wait for the server."""
        try:
            if not self.connection.closed:
                self.connection.execute("rollback; select pg_advisory_unlock_all()", prepare=False)
        except psycopg.Error:
            pass  # The connection is gone, and its locks with it.
        self.connection.close()

    def _acquire_locks(self, connection: Connection) -> None:
        everybody, own = self.keys.everybody, self.keys.node
        if self._node is None:
            self._lock(connection, "pg_try_advisory_lock", everybody, "stop it first, or use another database")
        else:
            advice = "that command needs the database for itself; try again when it has ended"
            self._lock(connection, "pg_try_advisory_lock_shared", everybody, advice)
            advice = f"it is node {self._node!r}; stop it, or give this node another name ([node] name, or --node)"
            self._lock(connection, "pg_try_advisory_lock", own, advice)

    def _lock(self, connection: Connection, how: str, key: int, advice: str) -> None:
        end = time.monotonic() + LOCK_SECONDS
        while not _fetch_value(connection, f"select {how}({key})"):
            holder = _holder(connection, key)
            if holder is not None and holder[1] == self.name:
                # This is our own last connection, whose end the server has not noticed yet.
                connection.execute(f"select pg_terminate_backend({holder[0]})", prepare=False)
            elif time.monotonic() > end:
                who = _readable(holder[1] if holder else "")
                raise AlreadyOpen(f"{self._address.place} is in use by {who}: {advice}")
            time.sleep(0.01)


def _own_name() -> str:
    return f"nextslot {secrets.token_hex(4)} process {os.getpid()} on {socket.gethostname()}"[:63]


def _readable(application_name: str) -> str:
    found = re.fullmatch(r"nextslot [0-9a-f]+ (process .+)", application_name)
    return found[1] if found else "another scheduler"


def _schema_number(connection: Connection) -> int:
    schema = _fetch_value(connection, "select current_schema()::regnamespace::oid::bigint")
    if schema is None:
        raise StoreError("there is no schema to create tables in: create one of the search_path of this user")
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


def _fetch_value(connection: Connection, sql: str) -> Any:
    row = connection.execute(sql, prepare=False).fetchone()
    return row[0] if row else None


def migrate_tables(connection: Connection, last: int | None = None) -> None:
    """Migrates the schema to the newest version, or to `last`. Call it inside a transaction."""
    for table in (_MIGRATIONS, _MARKS):
        connection.execute(table, prepare=False)
    done: int = _fetch_value(connection, "select coalesce(max(version), 0) from schema_migrations")
    for number, name, schema in dialects.steps_after(done, last):
        for statement in dialects.for_postgres(schema):
            connection.execute(statement, prepare=False)
        connection.execute("insert into schema_migrations values (%s, %s)", (number, name))
    connection.execute(
        f"insert into commit_marks (node, mark) values ('{OFFLINE}', 0) on conflict (node) do nothing", prepare=False
    )


def is_lost(connection: Connection, error: BaseException) -> bool:
    """Returns whether the connection is gone, so that uncommitted changes are rolled back."""
    return isinstance(error, psycopg.OperationalError) and (connection.closed or connection.broken)


def may_be_repeated(error: BaseException) -> bool:
    """Returns whether the server aborted the transaction because of another one: 40001, 40P01 and related codes."""
    return isinstance(error, (errors.SerializationFailure, errors.DeadlockDetected, errors.TransactionRollback))


def translated(error: BaseException, address: Address) -> BaseException:
    """Translates a driver's error into ours, with the original as its cause. No other place translates PostgreSQL
    errors.
    """
    ours: Exception
    if isinstance(error, psycopg.Error):
        message = address.hide(error.diag.message_primary or str(error).strip() or type(error).__name__)
        if isinstance(error, psycopg.IntegrityError):
            ours = Refused(message)
        elif (found := _NOT_ADAPTED.match(message)) is not None:
            ours = not_a_name(found[1])
        elif isinstance(error, _UNAVAILABLE) or may_be_repeated(error):
            ours = Unavailable(f"the database did not store the change: {message}")
        else:
            ours = StoreError(f"the database failed: {message}")
    elif isinstance(error, StopIteration):
        ours = RuntimeError("a work raised StopIteration")  # A future cannot carry StopIteration.
    else:
        return error
    ours.__cause__ = error
    return ours


def _detach_after_fork() -> None:
    """Disconnects a forked child from its parent's connections: it must neither end them nor keep them open."""
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for connection in list(_open_connections):
        if not connection.closed:
            os.dup2(nowhere, connection.fileno(), inheritable=False)
    os.close(nowhere)


os.register_at_fork(after_in_child=_detach_after_fork)
