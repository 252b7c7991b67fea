"""Pipelined statements on a PostgreSQL connection: sends several statements, then waits once for all results.

`postgres_store.py` decides which statements can wait. The next `exchange` sends the waiting statements in order as one
pipeline; if one fails, the server skips the rest, and the exchange raises the error. This module uses libpq below the
driver's cursors, which would wait for each statement; the driver still converts the values.
"""

import contextlib
import itertools
import select
import weakref
from collections.abc import Mapping, Sequence

import psycopg
from psycopg import abc, errors
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ConnStatus, ExecStatus, PipelineStatus
from psycopg.pq.abc import PGresult

from nextslot.store import dialects
from nextslot.store.contract import Row

from .sessions import Connection

# How many prepared statements a connection keeps. The statements of filters are unlimited in number.
MOST_PREPARED = 1000

_DONE = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class Reply:
    """The server's reply to one statement, available after the exchange."""

    __slots__ = ("_transformer", "result")

    def __init__(self, transformer: abc.Transformer) -> None:
        self._transformer = transformer
        self.result: PGresult | None = None

    def rows(self) -> list[Row]:
        assert self.result is not None
        if not self.result.ntuples:
            return []
        self._transformer.set_pgresult(self.result)
        return self._transformer.load_rows(0, self.result.ntuples, tuple)

    @property
    def changed(self) -> int:
        """Returns how many rows the statement changed."""
        assert self.result is not None
        return self.result.command_tuples or 0

    @property
    def status(self) -> str:
        assert self.result is not None
        return (self.result.command_status or b"").decode()


class _Adapting:
    """Gives the driver's converters to a Transformer without the connection, which a reference would keep alive."""

    connection = None

    def __init__(self, connection: Connection) -> None:
        self.adapters = connection.adapters


class Wire:
    def __init__(self, connection: Connection) -> None:
        self._libpq = connection.pgconn
        self._transformer: abc.Transformer = Transformer(_Adapting(connection))
        self._prepared: dict[str, bytes] = {}
        self._names = itertools.count()
        self._waiting: list[tuple[Reply, str, Sequence[abc.Buffer | None]]] = []
        # The replies that the sent statements still expect, in order; and the statements newly prepared among them.
        self._expected: list[Reply] = []
        self._new: list[str] = []
        self._readable, self._usable = select.poll(), select.poll()
        self._readable.register(self._libpq.socket, select.POLLIN)
        self._usable.register(self._libpq.socket, select.POLLIN | select.POLLOUT)

    def send(self, statement: dialects.Placed, values: Mapping[str, object]) -> Reply:
        """Queues a statement for the next exchange."""
        reply = Reply(self._transformer)
        names = statement.names
        dumped = self._transformer.dump_sequence([values[name] for name in names], [PyFormat.TEXT] * len(names))
        self._waiting.append((reply, statement.sql, dumped))
        return reply

    def send_all(self, sql: str, **values: object) -> Reply:
        """Queues several statements that are separated by `; `, and returns the reply to the last one."""
        return [self.send(dialects.placed(one), values) for one in sql.split("; ")][-1]

    def push(self) -> None:
        """Sends the queued statements, so that the server can begin; the next exchange receives the results."""
        libpq, waiting = self._libpq, self._waiting
        self._waiting = []
        if libpq.pipeline_status == PipelineStatus.OFF:
            libpq.enter_pipeline_mode()
        for reply, sql, values in waiting:
            name = self._prepared.get(sql)
            if name is None:
                name = self._prepare(sql)
                self._expected.append(Reply(self._transformer))
            libpq.send_query_prepared(name, values)
            self._expected.append(reply)
        libpq.flush()

    def exchange(self) -> None:
        """Makes one round trip. Raises the error of the first statement that the server refuses."""
        try:
            self.push()
            for reply, result in zip(self._expected, self._received(), strict=True):
                if result.status not in _DONE:
                    raise errors.error_from_result(result)
                reply.result = result
        except BaseException:
            # The server may or may not know these statements: prepare them again under other names.
            for sql in self._new:
                del self._prepared[sql]
            if self._libpq.pipeline_status != PipelineStatus.OFF:
                self._libpq.finish()  # Results may still arrive, which nobody would read.
            raise
        finally:
            self._expected, self._new = [], []

    def forget(self) -> None:
        """Drops statements that were not sent; lets those that were sent finish, and drops their results."""
        self._waiting = []
        if self._libpq.pipeline_status != PipelineStatus.OFF:
            with contextlib.suppress(psycopg.Error):
                self.exchange()

    def _prepare(self, sql: str) -> bytes:
        is_kept = len(self._prepared) < MOST_PREPARED
        name = f"nextslot_{next(self._names)}".encode() if is_kept else b""
        self._libpq.send_prepare(name, sql.encode())
        if is_kept:
            self._prepared[sql] = name
            self._new.append(sql)
        return name

    def _received(self) -> list[PGresult]:
        """Returns all results up to the end of the pipeline, while sending the rest."""
        libpq = self._libpq
        results: list[PGresult] = []
        libpq.pipeline_sync()
        is_sent = libpq.flush() == 0
        while True:
            while libpq.is_busy():
                self._readable.poll() if is_sent else self._usable.poll()
                libpq.consume_input()
                is_sent = is_sent or libpq.flush() == 0
            result = libpq.get_result()
            if result is None:
                if libpq.status != ConnStatus.OK:
                    raise psycopg.OperationalError("the connection to the database is lost")
            elif result.status == ExecStatus.PIPELINE_SYNC:
                libpq.exit_pipeline_mode()
                return results
            else:
                results.append(result)


_wires: weakref.WeakKeyDictionary[Connection, Wire] = weakref.WeakKeyDictionary()


def wire_of(connection: Connection) -> Wire:
    """Returns the Wire of a connection. Each connection has one, since it knows the prepared statements."""
    found = _wires.get(connection)
    if found is None:
        found = _wires[connection] = Wire(connection)
    return found
