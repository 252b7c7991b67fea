"""Statements on a connection to PostgreSQL without a wait for each: what is sent together is answered together.

`postgres.py` decides what can wait. What is sent goes out with the next `exchange`, in its order, as one pipeline: if
one of it fails, nothing after it is done, and the exchange raises why. This talks to libpq below the driver's cursors,
which would ask and wait for each statement; values are converted by the driver as ever.
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
        self._waiting: list[tuple[Reply, str, Sequence[abc.Buffer | None]]] = []
        # Whoever is to be answered by what has been sent, in order; and the statements that are new in it.
        self._under_way: list[Reply] = []
        self._new: list[str] = []
        self._readable, self._usable = select.poll(), select.poll()
        self._readable.register(self._libpq.socket, select.POLLIN)
        self._usable.register(self._libpq.socket, select.POLLIN | select.POLLOUT)

    def send(self, statement: dialects.Placed, values: Mapping[str, object]) -> Reply:
        """With the next exchange."""
        reply = Reply(self._transformer)
        names = statement.names
        dumped = self._transformer.dump_sequence([values[name] for name in names], [PyFormat.TEXT] * len(names))
        self._waiting.append((reply, statement.sql, dumped))
        return reply

    def say(self, sql: str, **values: object) -> Reply:
        """Several statements, told apart by `; `; the reply is to the last."""
        return [self.send(dialects.placed(one), values) for one in sql.split("; ")][-1]

    def push(self) -> None:
        """Sends what waits, so that the server can begin with it; it is answered with the next exchange."""
        libpq, waiting = self._libpq, self._waiting
        self._waiting = []
        if libpq.pipeline_status == PipelineStatus.OFF:
            libpq.enter_pipeline_mode()
        for reply, sql, values in waiting:
            name = self._prepared.get(sql)
            if name is None:
                name = self._prepare(sql)
                self._under_way.append(Reply(self._transformer))
            libpq.send_query_prepared(name, values)
            self._under_way.append(reply)
        libpq.flush()

    def exchange(self) -> None:
        """One round trip; raises what the server says to the first statement that it refuses."""
        try:
            self.push()
            for reply, result in zip(self._under_way, self._received(), strict=True):
                if result.status not in _DONE:
                    raise errors.error_from_result(result)
                reply.result = result
        except BaseException:
            # The server may know them or not: they are told again, by other names.
            for sql in self._new:
                del self._prepared[sql]
            if self._libpq.pipeline_status != PipelineStatus.OFF:
                self._libpq.finish()  # Answers may still come that nobody would read.
            raise
        finally:
            self._under_way, self._new = [], []

    def forget(self) -> None:
        """What has not been sent is not sent any more; what has been is done, and whatever is answered is dropped."""
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
        """All results up to the end of the pipeline, while what is left to send is sent."""
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
                    raise psycopg.OperationalError("the connection is lost")
            elif result.status == ExecStatus.PIPELINE_SYNC:
                libpq.exit_pipeline_mode()
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
