"""Makes answers and bodies whose fields follow from the declaration of a value.

@shows(domain.Job, …)                    an answer has the public fields of the value, and those of the class
class Job(ResponseModel): ...

@asks(NewJob, …, without=("key",))       a body has the fields of a request, with the bounds that Python has too
class JobBody(Body): ...
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel, Field, create_model

from nextslot.domain.declared_values import Declared, Value, declared, is_mapping, is_time, is_words, item_of

M = TypeVar("M", bound=BaseModel)

# The types of fields in answers or bodies, by the field's name or by its type in the declaration; "time" stands for all
# times.
Types = Mapping[Any, Any]


def shows(kind: type[Value], types: Types) -> Callable[[type[M]], type[M]]:
    """Completes an answer with the public fields of a value; every field is always present."""

    def complete(answer: type[M]) -> type[M]:
        own = answer.model_fields
        shown = [one for one in declared(kind) if not one.marked.is_internal and one.name not in own]
        made: dict[str, Any] = {one.name: (_shown(one, types), _described(one, ...)) for one in shown}
        for name in kind.WORKED_OUT:
            if name not in own:
                made[name] = (get_type_hints(getattr(kind, name).fget)["return"], ...)
        return _completed(answer, made)

    return complete


def asks(
    kind: Any, types: Types, defaults: Mapping[str, Any], without: Iterable[str] = ()
) -> Callable[[type[M]], type[M]]:
    """Completes a body with the fields of a request."""

    def complete(body: type[M]) -> type[M]:
        left_out = {*without, *body.model_fields}
        own = {one.name: one.default for one in fields(kind)}
        made: dict[str, Any] = {}
        for one in declared(kind):
            if one.name not in left_out:
                default = defaults.get(one.name, None if own[one.name] is MISSING else own[one.name])
                made[one.name] = (_asked(one, types, default is None), _described(one, default, one.says.asked))
        return _completed(body, made)

    return complete


def _completed(model: type[M], made: dict[str, Any]) -> type[M]:
    found: type[M] = create_model(model.__name__, __base__=model, __module__=model.__module__, **made)
    found.__doc__ = model.__doc__
    return found


def _described(field: Declared, default: Any, asked: str | None = None) -> Any:
    says = field.says
    said: dict[str, Any] = {"description": asked or says.description, "examples": list(says.examples)}
    said = {name: value for name, value in said.items() if value}
    if isinstance(default, (dict, list, tuple)):
        # A factory, because pydantic would deep-copy a mutable default for every job of a batch.
        empty: Any = [] if isinstance(default, (list, tuple)) else {}
        return Field(default_factory=type(empty), json_schema_extra={"default": empty}, **said)
    return Field(default, **said)


def _shown(field: Declared, types: Types) -> Any:
    found = _answered(field.type, types)
    return found | None if field.is_optional else found


def _answered(kind: Any, types: Types) -> Any:
    if is_time(kind):
        return types["time"]
    if kind in types:
        return types[kind]
    if (item := item_of(kind)) is not None:
        return list[_answered(item, types)]  # type: ignore[misc]  # Made while it runs.
    if is_mapping(kind):
        return dict[get_args(kind)]  # type: ignore[misc]  # As above.
    return kind


def _asked(field: Declared, types: Types, is_optional: bool) -> Any:
    found = _taken(field, types)
    return found | None if is_optional else found


def _taken(field: Declared, types: Types) -> Any:
    if field.name in types:
        return types[field.name]
    if field.bound is not None:
        return Annotated[field.type, field.bound]
    if is_time(field.type):
        return types["time"]
    if is_words(field.type):
        return Literal[tuple(field.type)]
    return dict[str, Any] if get_origin(field.type) is Mapping or is_mapping(field.type) else field.type
