"""Statements on a connection to PostgreSQL without a wait for each: what is sent together is answered together.

`postgres.py` decides what can wait. What is sent goes out with the next `exchange`, in its order, as one pipeline: if
one of it fails, nothing after it is done, and the exchange raises why. This talks to libpq below the driver's cursors,
which would ask and wait for each statement; values are converted by the driver as ever.
"""

import itertools
import select
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import abc, errors
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGresult

from . import text
from .postgres_session import Connection
from .store import Row

# Statements that the server keeps for a connection; those of filters are without number.
MOST_PREPARED = 1000

_DONE = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class Reply:
    """What the server answers to one statement, once it has been exchanged."""

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
        """How many rows."""
        assert self.result is not None
        return self.result.command_tuples or 0

    @property
    def status(self) -> str:
        assert self.result is not None
        return (self.result.command_status or b"").decode()


class _Adapting:
    """How the driver converts values, without the connection: whatever holds that would keep it alive."""

    connection = None

    def __init__(self, connection: Connection) -> None:
        self.adapters = connection.adapters


class Wire:
    def __init__(self, connection: Connection) -> None:
        self._libpq = connection.pgconn
        self._transformer: abc.Transformer = Transformer(_Adapting(connection))
        self._prepared: dict[str, bytes] = {}
        self._names = itertools.count()
        self._waiting: list[tuple[Reply, str, Sequence[object]]] = []

    def send(self, statement: text.Placed, values: Mapping[str, object]) -> Reply:
        """With the next exchange."""
        reply = Reply(self._transformer)
        self._waiting.append((reply, statement.sql, [values[name] for name in statement.names]))
        return reply

    def say(self, sql: str, **values: object) -> Reply:
        """Several statements, told apart by `; `; the reply is to the last."""
        return [self.send(text.placed(one), values) for one in sql.split("; ")][-1]

    def forget(self) -> None:
        """What has not been exchanged is not sent any more."""
        self._waiting.clear()

    def exchange(self) -> None:
        """One round trip; raises what the server says to the first statement that it refuses."""
        waiting, self._waiting = self._waiting, []
        new: list[str] = []
        try:
            with self._pipeline():
                replies = [reply for one in waiting for reply in self._put(*one, new)]
                self._libpq.pipeline_sync()
                results = self._received()
            for reply, result in zip(replies, results, strict=True):
                if result.status not in _DONE:
                    raise errors.error_from_result(result)
                reply.result = result
        except BaseException:
            # The server may know them or not: they are told again, by other names.
            for sql in new:
                self._prepared.pop(sql, None)
            raise

    @contextmanager
    def _pipeline(self) -> Iterator[None]:
        self._libpq.enter_pipeline_mode()
        try:
            yield
            self._libpq.exit_pipeline_mode()
        except BaseException:
            # Answers may still be on their way that nobody would read.
            self._libpq.finish()
            raise

    def _put(self, reply: Reply, sql: str, values: Sequence[object], new: list[str]) -> Iterator[Reply]:
        """What will be answered: that it is prepared, if it is new, and what it says."""
        name = self._prepared.get(sql)
        if name is None:
            is_kept = len(self._prepared) < MOST_PREPARED
            name = f"nextslot_{next(self._names)}".encode() if is_kept else b""
            self._libpq.send_prepare(name, sql.encode())
            if is_kept:
                self._prepared[sql] = name
                new.append(sql)
            yield Reply(self._transformer)
        dumped = self._transformer.dump_sequence(values, [PyFormat.TEXT] * len(values)) if values else None
        self._libpq.send_query_prepared(name, dumped)
        yield reply

    def _received(self) -> list[PGresult]:
        """All results up to the end of the pipeline, while what is left to send is sent."""
        libpq = self._libpq
        results: list[PGresult] = []
        poll = select.poll()
        poll.register(libpq.socket, select.POLLIN)
        is_sent = libpq.flush() == 0
        while True:
            while libpq.is_busy():
                if not is_sent:
                    poll.modify(libpq.socket, select.POLLIN | select.POLLOUT)
                poll.poll()
                libpq.consume_input()
                if not is_sent and libpq.flush() == 0:
                    is_sent = True
                    poll.modify(libpq.socket, select.POLLIN)
            result = libpq.get_result()
            if result is None:
                if libpq.status != ConnStatus.OK:
                    raise psycopg.OperationalError("the connection is lost")
            elif result.status == ExecStatus.PIPELINE_SYNC:
                return results
            else:
                results.append(result)


_wires: weakref.WeakKeyDictionary[Connection, Wire] = weakref.WeakKeyDictionary()


def wire_of(connection: Connection) -> Wire:
    """There is one to a connection, since it knows what has been prepared there."""
    found = _wires.get(connection)
    if found is None:
        found = _wires[connection] = Wire(connection)
    return found
