"""Converts rows to values and back by the declaration of the value; the module of each table calls it.

    tx.rows("jobs.get_many", …)        -> JOBS.value(row)         columns in the order of {jobs.columns}
    tx.run_many("jobs.insert", …)      <- JOBS.new(job)           columns in the order of {jobs.new_columns}

It makes a value by filling its `__dict__`, because a constructor with so many fields takes four times as long.
"""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any, Generic, TypeVar

import orjson

from nextslot.domain import (
    Attempt,
    AuditEntry,
    Checkpoint,
    Direct,
    Event,
    Group,
    Job,
    Key,
    Occurrence,
    Office,
    Reservation,
    RetryPolicy,
    Run,
    Schedule,
    Signal,
    Template,
    Webhook,
)
from nextslot.domain.bounds import Json
from nextslot.domain.declared_values import (
    Declared,
    Value,
    declared,
    is_mapping,
    is_time,
    is_words,
    item_of,
    json_names,
)
from nextslot.domain.fingerprints import Failure
from nextslot.store.contract import Row
from nextslot.system.instant import Instant

from . import column_codec

V = TypeVar("V")
Convert = Callable[[Any], Any]


class Rows(Generic[V]):
    """The columns of one type of values, and the functions that read and write them."""

    def __init__(self, kind: type[V], **columns: str) -> None:
        """`columns` names those columns whose names differ from their fields'."""
        self._kind = kind
        stored = [one for one in declared(kind) if not one.marked.is_apart]
        new = [one for one in stored if not one.marked.is_later]
        self._names = tuple(one.name for one in stored)
        self.columns = tuple(columns.get(one.name, one.name) for one in stored)
        self.new_columns = tuple(columns.get(one.name, one.name) for one in new)
        # The first column identifies the row, and the creation time never changes: updates leave out both.
        self.changed_columns = tuple(name for name in self.new_columns[1:] if name != "created_at")
        self._apart = _defaults(kind, [one for one in declared(kind) if one.marked.is_apart])
        self._readers = [(at, read) for at, one in enumerate(stored) if (read := _reader(one)) is not None]
        self._writers = [(at, write) for at, one in enumerate(new) if (write := _writer(one)) is not None]
        self._fields = itemgetter(*(one.name for one in new))
        # A tuple whose default is empty is stored as NULL when it is empty.
        lists = {one.name for one in fields(kind) if one.default == ()}  # type: ignore[arg-type]
        self._lists = [at for at, name in enumerate(self._names) if name in lists]
        public = [one for one in stored if not one.marked.is_internal]
        of_value: Any = kind
        self._worked_out: tuple[str, ...] = of_value.WORKED_OUT
        self._shown_names = json_names(of_value)
        # A property has no column, so any column holds its place.
        self._shown = itemgetter(*(self._names.index(n) if n in self._names else 0 for n in self._shown_names))
        self._shows = [(one.name, show) for one in public if (show := _shower(one)) is not None]
        self._shown_lists = [one.name for one in public if one.name in lists]
        self._new_lists = [at for at, one in enumerate(new) if one.name in lists]

    def value(self, row: Sequence[Any], **apart: object) -> V:
        """Makes the value of a row. `apart` contains the fields that have no column."""
        values = list(row)
        for at, read in self._readers:
            if (found := values[at]) is not None:
                values[at] = read(found)
        for at in self._lists:
            values[at] = values[at] or ()
        made = object.__new__(self._kind)
        made.__dict__.update(zip(self._names, values, strict=True), **(self._apart | apart))
        return made

    def shown(self, row: Sequence[Any]) -> dict[str, Any]:
        """Makes the JSON form of a row for `orjson`, without making its value. Columns that contain JSON stay text.

        Properties in the form are None; the module of the table computes them.
        """
        found = dict(zip(self._shown_names, self._shown(row), strict=True))
        for name, show in self._shows:
            if found[name] is not None:
                found[name] = show(found[name])
        for name in self._shown_lists:
            found[name] = found[name] or []
        for name in self._worked_out:
            found[name] = None
        return found

    def new(self, value: V) -> Row:
        """Returns the columns of a new row for a value."""
        values = list(self._fields(value.__dict__))
        for at in self._new_lists:
            values[at] = values[at] or None
        for at, write in self._writers:
            if (found := values[at]) is not None:
                values[at] = write(found)
        return tuple(values)

    def named(self, value: V) -> dict[str, object]:
        """Returns the columns of a new row for a value, by name."""
        return dict(zip(self.new_columns, self.new(value), strict=True))

    def changed(self, value: V) -> dict[str, object]:
        """Returns the parameters of an update of the whole row."""
        return {name: stored for name, stored in self.named(value).items() if name != "created_at"}


def fragments() -> dict[str, str]:
    """Returns the parts that statements include: all columns of a table, the columns of a new row, their parameters,
    and the assignments of an update of the whole row.
    """
    found = {}
    for table, rows in _TABLES.items():
        found[f"{table}.columns"] = ", ".join(rows.columns)
        found[f"{table}.new_columns"] = ", ".join(rows.new_columns)
        found[f"{table}.new_values"] = ", ".join(f":{name}" for name in rows.new_columns)
        found[f"{table}.changes"] = ", ".join(f"{name} = :{name}" for name in rows.changed_columns)
    return found


def _defaults(kind: Any, apart: Sequence[Declared]) -> dict[str, object]:
    names = {one.name for one in apart}
    return {one.name: one.default for one in fields(kind) if one.name in names and one.default is not MISSING}


def _reader(field: Declared) -> Convert | None:
    kind = field.type
    if is_time(kind):
        return Instant
    if is_words(kind):
        return {word.value: word for word in kind}.__getitem__
    if kind is RetryPolicy:
        return column_codec.policy
    if kind is bool:
        return bool
    if (item := item_of(kind)) is not None:
        return partial(_values, item) if isinstance(item, type) and issubclass(item, Value) else _tuple
    return column_codec.loads if is_mapping(kind) or kind is Json else None


def _shower(field: Declared) -> Convert | None:
    kind = field.type
    if field.show is not None:
        return _Shown(field.show)
    if is_time(kind):
        return _time
    if kind is bool:
        return bool
    is_json = kind is RetryPolicy or is_mapping(kind) or kind is Json or item_of(kind) is not None
    return orjson.Fragment if is_json else None


class _Shown:
    """Shows a column that contains JSON."""

    def __init__(self, show: Convert) -> None:
        self._show = show

    def __call__(self, text: str) -> Any:
        return self._show(column_codec.loads(text))


@lru_cache(maxsize=1024)
def _time(microseconds: int) -> str:
    return str(Instant(microseconds))


def _writer(field: Declared) -> Convert | None:
    kind = field.type
    if kind is RetryPolicy:
        return _Policies()
    if kind is bool:
        return int
    if kind is float:
        return float
    return column_codec.dumps if is_mapping(kind) or item_of(kind) is not None or kind is Json else None


def _values(kind: type[Value], text: str) -> tuple[Value, ...]:
    """Reads values that are stored inside a row: each is a list of its fields in order."""
    names = [one.name for one in declared(kind)]
    return tuple(kind(**dict(zip(names, one, strict=True))) for one in column_codec.loads(text))


def _tuple(text: str) -> tuple[Any, ...]:
    return tuple(column_codec.loads(text))


class _Policies:
    """Writes retry policies as text. Jobs of one request share a policy, which is then written only once."""

    def __init__(self) -> None:
        self._last: tuple[RetryPolicy | None, str] = (None, "")

    def __call__(self, policy: RetryPolicy) -> str:
        last, text = self._last
        if policy is not last:
            text = column_codec.policy_text(policy)
            self._last = (policy, text)
        return text


JOBS = Rows(Job)
RUNS = Rows(Run)
GROUPS = Rows(Group)
TEMPLATES = Rows(Template)
SCHEDULES = Rows(Schedule)
OCCURRENCES = Rows(Occurrence)
DIRECT = Rows(Direct)
RESERVATIONS = Rows(Reservation)
EVENTS = Rows(Event)
AUDIT = Rows(AuditEntry)
KEYS = Rows(Key)
ATTEMPTS = Rows(Attempt)
CHECKPOINTS = Rows(Checkpoint)
SIGNALS = Rows(Signal)
OFFICES = Rows(Office)
WEBHOOKS = Rows(Webhook, enabled="is_enabled")
FAILURES = Rows(Failure, muted="is_muted")
# By the name under which statements include their columns.
_TABLES: dict[str, Rows[Any]] = {
    "jobs": JOBS, "runs": RUNS, "groups": GROUPS, "templates": TEMPLATES, "schedules": SCHEDULES,
    "occurrences": OCCURRENCES, "direct": DIRECT, "reservations": RESERVATIONS, "events": EVENTS, "audit": AUDIT,
    "keys": KEYS, "attempts": ATTEMPTS, "offices": OFFICES, "webhooks": WEBHOOKS,
    "checkpoints": CHECKPOINTS, "signals": SIGNALS, "failures": FAILURES,
}  # fmt: skip
