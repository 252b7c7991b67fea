"""Query parameters, and the filters of `domain/filters.py` as query parameters or in a body."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Annotated, Any, TypeVar

from fastapi import Query as InQuery
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from nextslot.domain.filters import Texts
from nextslot.services.arguments import instant

from .auth import Caller
from .schemas import When

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

Values = Annotated[str, Field(description="Several by comma", max_length=2_000)]
Limit = Annotated[int, Field(ge=1, le=500)]


ChosenIn = Annotated[
    str | None,
    InQuery(description="The office in which the id or name was chosen; default: the key's office, else `default`"),
]


class Query(BaseModel):
    """Query parameters. An unknown name is refused; otherwise a typo would list everything."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class PageQuery(Query):
    limit: Limit = 50
    cursor: str | None = Field(None, max_length=1000, description="`next_cursor` of the page before")


def _names_something(value: object) -> object:
    # A program may send an empty list by accident. Ignoring the parameter would then list everything.
    if isinstance(value, (str, list)) and not value:
        raise ValueError("this is empty, which would mean every one: leave the field out to get every one")
    return value


_QUERY_TYPES = {
    Texts: Values | None,
    bool | None: bool | None,
    str | None: Annotated[str, Field(max_length=1000)] | None,
}
_BODY_TYPES = {
    Texts: Annotated[str | list[str] | None, BeforeValidator(_names_something)],
    str | None: str | None,
    bool | None: bool | None,
}


def in_query(kind: type) -> Callable[[type[M]], type[M]]:
    """Completes query parameters with the fields of a filter; several values of a field are separated by commas."""
    return _completed_by(kind, _QUERY_TYPES)


def in_body(kind: type) -> Callable[[type[M]], type[M]]:
    """Completes a body with the fields of a filter; several values of a field are a list, or separated by commas."""
    return _completed_by(kind, _BODY_TYPES)


def _completed_by(kind: type, types: Mapping[Any, Any]) -> Callable[[type[M]], type[M]]:
    def complete(model: type[M]) -> type[M]:
        made: dict[str, Any] = {
            one.name: (types.get(one.type, When | None), None)
            for one in fields(kind)
            if one.name not in model.model_fields
        }
        found: type[M] = create_model(model.__name__, __base__=model, __module__=model.__module__, **made)
        found.__doc__ = model.__doc__
        return found

    return complete


def filter_of(kind: type[T], given: Mapping[str, Any], caller: Caller) -> T:
    """Makes a filter from those parameters that belong to it, narrowed to the caller's office."""
    known: Any = kind.__dataclass_fields__  # type: ignore[attr-defined]
    values = {name: _value(name, value) for name, value in given.items() if value is not None and name in known}
    if "office_id" in known:
        values["office_id"] = caller.narrowed(values.get("office_id", ()))
    return kind(**values)


def _value(name: str, value: object) -> Any:
    if isinstance(value, datetime):
        return instant(value, name)
    if isinstance(value, str) and name != "q":
        return split(value)
    return tuple(value) if isinstance(value, list) else value


def split(values: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (values or "").split(",") if part.strip())
