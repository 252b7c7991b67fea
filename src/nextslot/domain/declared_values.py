"""What follows from the declaration of a value: its JSON form, and which of its fields others have in common with it.

A value is a data class, and its fields are written nowhere else. From their names and types follow the JSON form
(`to_dict`, here), the schema that HTTP answers and bodies have (`server/derived_schemas.py`), the columns of its row
and both ways between row and value (`store/tables/rows.py`), and what the client reads (`client/values.py`).
"""

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache, lru_cache
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from nextslot.system.instant import Instant

from .bounds import Bound
from .json_types import Json

T = TypeVar("T")
# A point in time: an `Instant` in the scheduler, a `datetime` in the client.
At = TypeVar("At")


@dataclass(frozen=True, eq=False)
class Marked:
    """What is to be known of a field besides its name and its type."""

    # Whether answers leave it out.
    is_internal: bool = False
    # Whether it has no column of its own.
    is_apart: bool = False
    # Whether its column has a value only when something has happened to the row.
    is_later: bool = False


Internal = Annotated[T, Marked(is_internal=True)]
InternalLater = Annotated[T, Marked(is_internal=True, is_later=True)]
Later = Annotated[T, Marked(is_later=True)]
Apart = Annotated[T, Marked(is_apart=True)]


@dataclass(frozen=True, eq=False)
class Says:
    """What the API's description says of a field."""

    description: str | None = None
    examples: tuple[Json, ...] = ()
    # Said of it where it is asked for, and not where it is shown.
    asked: str | None = None


Id = Annotated[str, Says(examples=("0193f6a2-7b1c-7c3e-8d52-6f0a9e1b2c3d",))]


@dataclass(frozen=True)
class Declared:
    """A field as it was declared."""

    name: str
    # Without None, and without what it was annotated with.
    type: Any
    is_optional: bool
    marked: Marked
    says: Says
    bound: Bound | None


def declared(kind: Any) -> tuple[Declared, ...]:
    """Returns the fields of a value, in their order."""
    return _all_declared(kind)


@cache
def _all_declared(kind: Any) -> tuple[Declared, ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple(_declared(one.name, hints[one.name]) for one in fields(kind))


def _declared(name: str, hint: Any) -> Declared:
    """A note on the field or on the type inside of its `| None` counts alike."""
    kind, notes = _unwrapped(hint)
    is_optional = types.NoneType in typing.get_args(kind)
    if is_optional:
        inner = [one for one in typing.get_args(kind) if one is not types.NoneType]
        kind, more = _unwrapped(typing.Union[tuple(inner)])  # noqa: UP007  # Of any number of them.
        notes += more
    return Declared(
        name, kind, is_optional, _note(notes, Marked) or Marked(), _note(notes, Says) or Says(), _note(notes, Bound)
    )


def _unwrapped(hint: Any) -> tuple[Any, list[Any]]:
    notes: list[Any] = []
    while typing.get_origin(hint) is Annotated:
        hint, *more = typing.get_args(hint)
        notes += more
    return hint, notes


def _note(notes: list[Any], kind: type[T]) -> T | None:
    return next((one for one in notes if isinstance(one, kind)), None)


def is_time(kind: Any) -> bool:
    return kind is At or kind is Instant


def is_mapping(kind: Any) -> bool:
    return typing.get_origin(kind) in (Mapping, dict)


def is_words(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def item_of(kind: Any) -> Any:
    """Returns the type of the items of a tuple; None if it is none."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else None


def is_literal(kind: Any) -> bool:
    return typing.get_origin(kind) is Literal


class Value:
    """A plain object, made of the fields that its class declares."""

    # Properties that belong to its JSON form, like fields.
    WORKED_OUT: ClassVar[tuple[str, ...]] = ()

    def _replace(self, **changes: Any) -> Self:
        """Returns a copy with other values in some fields: quicker than `dataclasses.replace`, which makes it anew."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.__dict__.update(changes)
        return made

    def to_dict(self) -> dict[str, Json]:
        """Returns the JSON form: what the API answers, webhooks carry and the client reads."""
        kind: Any = type(self)
        names, converted = _form(kind)
        found = {name: getattr(self, name) for name in names}
        for name, convert in converted:
            if found[name] is not None:
                found[name] = convert(found[name])
        return found


@cache
def _form(kind: Any) -> tuple[tuple[str, ...], tuple[tuple[str, Callable[[Any], Json]], ...]]:
    """Returns the names in the JSON form, and how those are written that are no JSON as they are."""
    shown = [one for one in declared(kind) if not one.marked.is_internal]
    converted = [(one.name, _writer(one.type)) for one in shown]
    names = (*(one.name for one in shown), *kind.WORKED_OUT)
    return names, tuple((name, convert) for name, convert in converted if convert is not None)


def _writer(kind: Any) -> Callable[[Any], Json] | None:
    if is_time(kind):
        return written
    if (item := item_of(kind)) is not None:
        write = _writer(item)
        return list if write is None else lambda values: [write(one) for one in values]
    if isinstance(kind, type) and issubclass(kind, Value):
        return lambda value: value.to_dict()
    return None


@lru_cache(maxsize=1024)
def written(value: Instant) -> str:
    """Returns a time as JSON has it. Things that come together have their times in common, so some are kept."""
    return str(value)
