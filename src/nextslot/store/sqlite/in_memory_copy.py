"""In-memory copy: a temporary database in which `engine.forecast` simulates the future with the real engine.

It has the tables of the real database, so the same statements have the same effect, but not its rules, which would
refuse copied rows that are not in an initial state.
"""

from collections.abc import Sequence
from functools import cache
from typing import TypeVar

import apsw

from nextslot.store import dialects
from nextslot.store.contract import Closing, Effects, Work
from nextslot.store.tables.forecast_reads import Rows

from .simulated_tx import DispatchMemory, SimulatedTx

T = TypeVar("T")

# The indexes that dispatch needs. The others serve lists, which a forecast never reads.
_INDEXES = (
    "jobs_queue", "jobs_ready", "jobs_worker", "jobs_chain", "jobs_group ", "jobs_unstarted", "jobs_due", "jobs_expiry",
    "jobs_starving", "jobs_aging", "jobs_retry", "lanes_", "offices_aging", "runs_timeout", "dependencies_",
    "direct_wait", "direct_running", "reservations_active", "reservations_expiry",
)  # fmt: skip
# Values for columns that must not be null but that a forecast never reads.
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
        self._memory = DispatchMemory(self._connection)

    def fill(self, copies: Sequence[Rows]) -> None:
        self._memory.take(copies)
        for copy in copies:
            unused = {name: value for name, value in _wanted(copy.table).items() if name not in copy.columns}
            rest = tuple(unused.values())
            columns = [*copy.columns, *unused]
            self._connection.executemany(
                f"insert into {copy.table} ({', '.join(columns)}) values ({', '.join('?' * len(columns))})",
                [(*row, *rest) for row in copy.rows],
            )

    def write(self, work: Work[T]) -> T:
        """Runs a work as a store does: the work, then the claims at the end of the transaction, then the effects."""
        tx = SimulatedTx(self._connection, self._memory)
        answer = work(tx)
        self._closing(tx)
        self._effects.apply(tx.effects)
        self._effects.carry_out(tx.effects)
        return answer

    def close(self) -> None:
        self._connection.close()


@cache
def _empty() -> bytes:
    """Returns an empty database with the schema. Cached, since copying it is a hundred times faster than creating
    it."""
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
    """Returns the columns of a table that must not be null, each with a harmless value."""
    connection = apsw.Connection(":memory:")
    connection.deserialize("main", _empty())
    columns = connection.execute('select name, type from pragma_table_info(?) where "notnull" = 1', (table,)).fetchall()
    connection.close()
    return {str(name): _UNUSED_BY_NAME.get(str(name), _UNUSED[str(type_).lower()]) for name, type_ in columns}
