"""The base of all values, and the reader of their declarations.

A value declares its fields once, as a data class does. From their names and types follow the JSON form (`to_dict`),
the schemas of HTTP answers and bodies (`server/derived_schemas.py`), the columns of its row and both ways between row
and value (`store/tables/rows.py`), and what the client reads (`client/values.py`).
"""

import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from enum import Enum
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn, Self, TypeVar, dataclass_transform

from nextslot.system.instant import Instant

from .bounds import Bound, Json, one_of

T = TypeVar("T")
# A point in time: an `Instant` in the scheduler, a `datetime` in the client.
if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault  # To import it takes long, and only mypy needs it.

    At = TypeVarWithDefault("At", default=Instant)
else:
    At = TypeVar("At")


@dataclass(frozen=True, eq=False)
class Marked:
    """Marks of a field, which its declaration carries."""

    # Whether answers leave the field out.
    is_internal: bool = False
    # Whether the field has no column of its own.
    is_apart: bool = False
    # Whether the column stays empty until something has happened to the row.
    is_later: bool = False


Internal = Annotated[T, Marked(is_internal=True)]
InternalLater = Annotated[T, Marked(is_internal=True, is_later=True)]
Later = Annotated[T, Marked(is_later=True)]
Apart = Annotated[T, Marked(is_apart=True)]


@dataclass(frozen=True, eq=False)
class ShownAs:
    """Shows readers another value than the stored one."""

    show: Callable[[Any], Json]


@dataclass(frozen=True, eq=False)
class Says:
    """The description of a field in the OpenAPI document."""

    description: str | None = None
    examples: tuple[Json, ...] = ()
    # The description in request bodies.
    asked: str | None = None


Id = Annotated[str, Says(examples=("0193f6a2-7b1c-7c3e-8d52-6f0a9e1b2c3d",))]


@dataclass(frozen=True)
class Declared:
    """A field as the class declares it."""

    name: str
    # The type without `None` and without annotations.
    type: Any
    is_optional: bool
    # The default, or MISSING.
    default: Any
    marked: Marked
    says: Says
    bound: Bound | None
    show: Callable[[Any], Json] | None


def declared(kind: Any) -> tuple[Declared, ...]:
    """Returns the fields of a value, in the order of its columns and its JSON form."""
    return _declared_once(kind)  # mypy does not take a class for a key of the cache, but takes Any.


@cache
def _declared_once(kind: Any) -> tuple[Declared, ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    found = {one.name: _declared(one, hints[one.name]) for one in fields(kind)}
    return tuple(found[name] for name in in_order(kind, found))


def in_order(kind: type["Value"], names: Iterable[str]) -> list[str]:
    """Sorts names in the order that readers see: first those of `FIRST`, then the others in their own order."""
    given = list(names)
    return [*(name for name in kind.FIRST if name in given), *(name for name in given if name not in kind.FIRST)]


def _declared(field: "Field[Any]", hint: Any) -> Declared:
    """Reads the declaration of a field. An annotation on the field and one inside `| None` count alike."""
    kind, notes = _unwrapped(hint)
    is_optional = types.NoneType in typing.get_args(kind)
    if is_optional:
        inner = [one for one in typing.get_args(kind) if one is not types.NoneType]
        kind, more = _unwrapped(typing.Union[tuple(inner)])  # noqa: UP007  # Of any number of them.
        notes += more
    return Declared(
        name=field.name,
        type=kind,
        is_optional=is_optional,
        default=field.default,
        marked=_note(notes, Marked) or Marked(),
        says=_note(notes, Says) or Says(),
        bound=_note(notes, Bound) or (one_of(kind, read=kind) if is_words(kind) else None),
        show=shown_as.show if (shown_as := _note(notes, ShownAs)) is not None else None,
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
    """Returns the type of the items of a tuple or another sequence; None for any other type."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) in (tuple, Sequence) else None


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Value:
    """The base of values: each subclass is a frozen data class with keyword arguments.

    The methods that `dataclass` would generate for each class are written here once: generating them for all values
    takes longer than all other imports of the client.
    """

    # The names that come first in the JSON form and in the row.
    FIRST: ClassVar[tuple[str, ...]] = ()
    # Properties that the JSON form contains beside the fields.
    WORKED_OUT: ClassVar[tuple[str, ...]] = ()

    _defaults: ClassVar[Mapping[str, Any]]
    _factories: ClassVar[Mapping[str, Callable[[], Any]]]
    _names: ClassVar[frozenset[str]]
    _compared: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        declared_in: Any = dataclass(init=False, repr=False, eq=False, kw_only=True)(cls)
        found = fields(declared_in)
        cls._defaults = {one.name: one.default for one in found if one.default is not MISSING}
        cls._factories = {one.name: one.default_factory for one in found if one.default_factory is not MISSING}
        cls._names = frozenset(one.name for one in found)
        cls._compared = tuple(one.name for one in found if one.compare)

    def __init__(self, **given: Any) -> None:
        made = self.__dict__
        made.update(self._defaults)
        made.update(given)
        for name, make in self._factories.items():
            if name not in made:
                made[name] = make()
        if made.keys() != self._names:
            wrong = [f"unexpected {name!r}" for name in sorted(made.keys() - self._names)]
            wrong += [f"missing {name!r}" for name in sorted(self._names - made.keys())]
            raise TypeError(f"{type(self).__name__}() has wrong keyword arguments: {', '.join(wrong)}")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def __repr__(self) -> str:
        kind: Any = type(self)
        shown = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in fields(kind) if one.repr)
        return f"{type(self).__qualname__}({shown})"

    def _parts(self) -> tuple[Any, ...]:
        return tuple(map(self.__dict__.__getitem__, self._compared))

    def _replace(self, **changes: Any) -> Self:
        """Returns a copy with other values in some fields; quicker than `dataclasses.replace`, which checks names."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.__dict__.update(changes)
        return made

    def to_dict(self) -> dict[str, Json]:
        """Returns the JSON form: what the API answers, webhooks carry and the client reads."""
        kind: Any = type(self)
        names, converted = json_names(kind), _converted(kind)
        # Properties get None here, which keeps their places.
        found: dict[str, Json] = dict(zip(names, map(self.__dict__.get, names), strict=True))
        for name in self.WORKED_OUT:
            found[name] = getattr(self, name)
        for name, convert in converted:
            if found[name] is not None:
                found[name] = convert(found[name])
        return found


@cache
def json_names(kind: Any) -> tuple[str, ...]:
    """Returns the names in the JSON form of a value, in their order."""
    shown = [one.name for one in declared(kind) if not one.marked.is_internal]
    return tuple(in_order(kind, [*shown, *kind.WORKED_OUT]))


@cache
def _converted(kind: Any) -> tuple[tuple[str, Callable[[Any], Json]], ...]:
    """Returns the functions that convert values to JSON where needed."""
    shown = [(one.name, one.show or _writer(one.type)) for one in declared(kind) if not one.marked.is_internal]
    return tuple((name, convert) for name, convert in shown if convert is not None)


def _writer(kind: Any) -> Callable[[Any], Json] | None:
    if is_time(kind):
        return written
    if (item := item_of(kind)) is not None:
        write = _writer(item)
        return list if write is None else lambda values: [write(one) for one in values]
    if isinstance(kind := typing.get_origin(kind) or kind, type) and issubclass(kind, Value):
        return lambda value: value.to_dict()
    return None


@lru_cache(maxsize=1024)
def written(value: Instant) -> str:
    """Returns a time as JSON has it. Jobs that come together share their times, so the last ones are cached."""
    return str(value)
