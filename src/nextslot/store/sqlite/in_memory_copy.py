"""Scratch: a throw-away database in memory, in which `engine.replay` plays the future through with the real engine.

It has the tables of the real one, so that the same statements do the same things, and none of its rules: what is
copied into it is in the middle of its life.
"""

from collections.abc import Iterable
from functools import cache
from typing import TypeVar

import apsw

from nextslot.store import dialects
from nextslot.store.contract import Closing, Effects, Work
from nextslot.store.tables.forecast_reads import Rows

from .sqlite_store import SqliteTx

T = TypeVar("T")

# What dispatch looks things up by. The others are for lists, which nobody asks a scratch for.
_INDEXES = (
    "jobs_queue", "jobs_ready", "jobs_worker", "jobs_chain", "jobs_group ", "jobs_unstarted", "jobs_due", "jobs_expiry",
    "jobs_starving", "jobs_retry", "lanes_", "runs_timeout", "dependencies_", "direct_wait", "direct_running",
    "reservations_active", "reservations_expiry",
)  # fmt: skip
# For columns that must have a value, and that a replay never looks at.
_UNUSED = {"text": "{}", "integer": 0, "real": 0.0}
_UNUSED_BY_NAME = {"webhook_status": "none"}


class InMemoryCopy:
    def __init__(self, closing: Closing, effects: Effects) -> None:
        self._closing = closing
        self._effects = effects
        self._connection = apsw.Connection(":memory:", statementcachesize=512)
        self._connection.deserialize("main", _empty())
        self._connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        self._connection.execute("begin")

    def fill(self, copies: Iterable[Rows]) -> None:
        for copy in copies:
            unused = {name: value for name, value in _wanted(copy.table).items() if name not in copy.columns}
            rest = tuple(unused.values())
            columns = [*copy.columns, *unused]
            self._connection.executemany(
                f"insert into {copy.table} ({', '.join(columns)}) values ({', '.join('?' * len(columns))})",
                [(*row, *rest) for row in copy.rows],
            )

    def write(self, work: Work[T]) -> T:
        """As a store's: the work, the claims it makes possible, and what the commit causes."""
        tx = SqliteTx(self._connection)
        answer = work(tx)
        self._closing(tx)
        self._effects.apply(tx.effects)
        self._effects.carry_out(tx.effects)
        return answer

    def close(self) -> None:
        self._connection.close()


@cache
def _empty() -> bytes:
    """An empty database with the schema: made once, since copying it is a hundred times quicker."""
    connection = apsw.Connection(":memory:")
    for _, _, schema in dialects.migrations():
        for statement in dialects.for_sqlite(schema):
            if not statement.startswith(("create trigger ", "drop trigger ")) and not _is_for_lists(statement):
                connection.execute(statement)
    image = connection.serialize("main")
    connection.close()
    return image


def _is_for_lists(statement: str) -> bool:
    return statement.startswith(("create index ", "create unique index ")) and not any(
        f" index {name}" in statement for name in _INDEXES
    )


@cache
def _wanted(table: str) -> dict[str, object]:
    """The columns of a table that must have a value, each with one that does no harm."""
    connection = apsw.Connection(":memory:")
    connection.deserialize("main", _empty())
    columns = connection.execute('select name, type from pragma_table_info(?) where "notnull" = 1', (table,)).fetchall()
    connection.close()
    return {str(name): _UNUSED_BY_NAME.get(str(name), _UNUSED[str(type_).lower()]) for name, type_ in columns}
