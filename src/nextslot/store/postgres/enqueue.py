"""The connection of a program that only stores requests: it calls `nextslot_enqueue`, and needs no other right.

`nextslot.submitter` uses it.
"""

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import psycopg

from .sessions import Address, translated

CALL = "select nextslot_enqueue(%s, %s::jsonb, %s::jsonb)"
# The name of a job type, and the texts of its parameters and options.
Wanted = tuple[str, str, str]


class EnqueueConnection:
    """A connection that is opened when it is needed, again after it was lost, and by each process that was forked: the
    connection of a parent is the parent's.
    """

    def __init__(self, url: str) -> None:
        self._address = Address.of(url)
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[Any] | None = None
        self._process = 0

    def enqueue(self, wanted: Iterable[Wanted]) -> list[str]:
        """Stores requests in one transaction, all or none, and returns the ids of their jobs."""
        with self._lock:
            try:
                connection = self._opened()
                with connection.transaction():
                    return enqueued(connection.execute, wanted)
            except psycopg.Error as error:
                raise translated(error, self._address) from error

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    def _opened(self) -> "psycopg.Connection[Any]":
        kept = self._connection
        if kept is not None and self._process == os.getpid() and not kept.closed:
            try:
                kept.execute("select 1")  # The server may have ended an idle session: the next statement would show it.
            except psycopg.OperationalError:
                kept.close()
            else:
                return kept
        parameters = {"application_name": "nextslot submitter", **self._address.parameters}
        self._connection, self._process = psycopg.Connection.connect(**parameters, autocommit=True), os.getpid()
        return self._connection


def enqueued(execute: Callable[[str, Wanted], Any], wanted: Iterable[Wanted]) -> list[str]:
    """Stores requests by the function of a connection that executes a statement."""
    return [str(execute(CALL, one).fetchone()[0]) for one in wanted]
