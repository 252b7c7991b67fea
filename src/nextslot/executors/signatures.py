"""Signatures of handlers: whether a handler takes the run, and which parameters with which types.

Annotations for which JSON has a type (text, numbers, lists, …) need no conversion, and cost a run nothing. Pydantic
checks and converts all others, such as a Pydantic model, a dataclass, a datetime or `Annotated[int, Field(gt=0)]`.
"""

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from nextslot.domain.bounds import must_be
from nextslot.errors import Invalid, Problem

from .run_context import Fail, RunContext

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Handler = Callable[..., Any]

_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object", list: "array",
               type(None): "null"}  # fmt: skip
# Annotations that allow everything.
_ANYTHING = (Any, object, inspect.Parameter.empty)
NOT_BY_NAME = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of a handler: their JSON Schema, and their conversion into arguments."""

    schema: Mapping[str, Any]
    takes_run: bool
    # Converts the parameters; None if JSON values need no conversion.
    adapter: "TypeAdapter[Any] | None" = None
    # By parameter that was left out, what returns its default: only those that are written as `= Field(…)`.
    defaults: Mapping[str, Callable[[], Any]] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """Returns whether the handler is called as `handler(run, **params)`."""
        return self.takes_run and self.adapter is None

    def problems(self, params: Mapping[str, Any], is_complete: bool = True) -> list[Problem]:
        """Returns the problems with parameters; unless `is_complete`, a missing parameter is no problem."""
        if self.adapter is None:
            return []
        from pydantic import ValidationError

        try:
            self.adapter.validate_json(orjson.dumps(params), strict=True)
        except ValidationError as error:
            known = ", ".join(self.schema["properties"]) or "none"
            found = error.errors(include_url=False, include_context=False)
            return [_problem(one, known) for one in found if is_complete or not _is_missing(one)]
        return []

    def converted(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the arguments for JSON parameters. Raises Fail (`invalid`) if they do not fit, such as after a change
        of the annotations."""
        if self.adapter is None:
            return params
        if found := self.problems(params):
            raise Fail("; ".join(map(str, found)), "invalid")
        arguments: Mapping[str, Any] = self.adapter.validate_json(orjson.dumps(params), strict=True)
        return {**{name: make() for name, make in self.defaults.items() if name not in arguments}, **arguments}

    def to_json(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Returns Python arguments as JSON parameters."""
        if self.adapter is None:
            return dict(arguments)
        from pydantic_core import to_jsonable_python

        made: dict[str, Any] = to_jsonable_python(dict(arguments))
        return made

    def call(self, handler: Handler, run: RunContext) -> Any:
        arguments = self.converted(run.params)
        return handler(run, **arguments) if self.takes_run else handler(**arguments)


def signature_of(handler: Handler) -> Signature:
    """Reads the signature of a handler. The first parameter gets the run if its name is `run` (or `_`, `_run`), if it
    is positional only, or if its annotation is `RunContext`. A default `Field(gt=0)` of Pydantic is a constraint, as in
    `Annotated`, and only what it contains is a default."""
    hints = _hints(handler)
    parameters = list(inspect.signature(handler).parameters.values())
    takes_run = bool(parameters) and _is_run(parameters[0], hints.get(parameters[0].name))
    wanted: dict[str, Any] = {}
    required: list[str] = []
    defaults: dict[str, Callable[[], Any]] = {}
    takes_any = False
    for parameter in parameters[1:] if takes_run else parameters:
        if parameter.kind in NOT_BY_NAME:
            raise Invalid(f"{parameter.name!r} cannot be passed by name; make it a keyword parameter", field="handler")
        if parameter.name == "run":
            raise Invalid("the handler takes the run by name; write def handler(run, …)", field="handler")
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            takes_any = True
        else:
            wanted[parameter.name] = hints.get(parameter.name, Any)
            if _is_field(parameter.default):
                wanted[parameter.name] = typing.Annotated[wanted[parameter.name], parameter.default]
            if _is_field(parameter.default) and not parameter.default.is_required():
                defaults[parameter.name] = functools.partial(parameter.default.get_default, call_default_factory=True)
            elif _is_field(parameter.default) or parameter.default is inspect.Parameter.empty:
                required.append(parameter.name)
    properties = {name: _schema_of(hint) for name, hint in wanted.items()}
    if all(one is not None for one in properties.values()):
        schema = {"properties": properties, "required": required, "additionalProperties": takes_any}
        return Signature({"type": "object", **schema}, takes_run)
    adapter = _adapter(wanted, required, takes_any)
    return Signature(_schema_from(adapter, required, takes_any), takes_run, adapter, defaults)


def read_result(handler: Handler, result: Any) -> Any:
    """Returns a stored result as an object of the type that the handler's annotation names."""
    hint = _hints(handler).get("return", Any)
    if result is None or _schema_of(hint) is not None:
        return result
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(hint).validate_json(orjson.dumps(result))
    except ValidationError as error:
        found = "; ".join(str(_problem(one, "", "result")) for one in error.errors())
        raise Invalid(f"{found}; correct what the handler returns, or its annotation") from error


def function_of(handler: Handler) -> Any:
    """Returns the function behind a handler, which may be a `functools.partial` or an object with `__call__`."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return handler if inspect.isroutine(handler) else type(handler).__call__


def _hints(handler: Handler) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function_of(handler), include_extras=True)
    except NameError as error:
        raise Invalid(
            f"an annotation of the handler cannot be read: {error}; import the name where the module can see it, or "
            "define it at the top of the module",
            field="handler",
        ) from error


def _is_run(first: inspect.Parameter, hint: Any) -> bool:
    if first.kind in NOT_BY_NAME or (isinstance(hint, type) and issubclass(hint, RunContext)):
        return True
    is_positional = first.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    return is_positional and first.name in ("run", "_", "_run")


def _is_field(default: Any) -> bool:
    """Returns whether a default is a `Field(…)` of Pydantic, which a handler that has one has imported."""
    pydantic_fields = sys.modules.get("pydantic.fields")
    return pydantic_fields is not None and isinstance(default, pydantic_fields.FieldInfo)


def _schema_of(hint: Any) -> dict[str, Any] | None:
    """Returns the JSON Schema of an annotation that needs no conversion; None for all others."""
    if hint in _ANYTHING:
        return {}
    if isinstance(hint, type) and hint in _JSON_TYPES:
        return {"type": _JSON_TYPES[hint]}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        choices = [_schema_of(argument) for argument in arguments]
        return None if None in choices else {"anyOf": choices}
    if origin is typing.Literal and all(type(one) in (str, int, bool, type(None)) for one in arguments):
        return {"enum": list(arguments)}
    if origin is list:
        items = _schema_of(arguments[0])
        return None if items is None else {"type": "array", "items": items}
    if origin is dict and arguments[0] is str:
        values = _schema_of(arguments[1])
        return None if values is None else {"type": "object", "additionalProperties": values}
    return None


def _adapter(wanted: Mapping[str, Any], required: list[str], takes_any: bool) -> "TypeAdapter[Any]":
    import typing_extensions
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter
    from pydantic.errors import PydanticSchemaGenerationError

    # A TypedDict instead of a model: parameters may have any name, and the handler keeps its own defaults.
    for name, hint in wanted.items():
        try:
            TypeAdapter(hint)
        except (PydanticSchemaGenerationError, PydanticUserError, TypeError) as error:
            raise Invalid(
                f"the annotation {_name(hint)} of {name!r} cannot be made from JSON; {_remedy(error)}", field="handler"
            ) from error
    fields = {name: hint if name in required else typing.NotRequired[hint] for name, hint in wanted.items()}
    make: Any = typing_extensions.TypedDict  # Type checkers know only a TypedDict that is written out.
    kind = make("Params", fields)
    kind.__pydantic_config__ = ConfigDict(extra="allow" if takes_any else "forbid", arbitrary_types_allowed=False)
    return TypeAdapter(kind)


def _remedy(error: Exception) -> str:
    if getattr(error, "code", "") == "typed-dict-version":  # Of the standard library, on Python 3.11.
        return "take TypedDict from typing_extensions, or use Python 3.12"
    return "use a Pydantic model, a dataclass, a datetime, an Enum or a type of JSON, or Any"


def _name(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) else str(hint)


def _schema_from(adapter: "TypeAdapter[Any]", required: list[str], takes_any: bool) -> dict[str, Any]:
    made: dict[str, Any] = _untitled(adapter.json_schema(mode="validation"))
    made.update(required=required, additionalProperties=takes_any)
    return made


def _untitled(schema: Any) -> Any:
    """Returns a schema without the titles that Pydantic derives from names."""
    if isinstance(schema, list):
        return [_untitled(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: {key: _untitled(one) for key, one in inner.items()} if name in _NAMED else _untitled(inner)
        for name, inner in schema.items()
        if name != "title" or not isinstance(inner, str)
    }


# The values under these keys have names of their own as keys.
_NAMED = ("properties", "$defs")


def _is_missing(error: Any) -> bool:
    return error["type"] == "missing" and len(error["loc"]) == 1


def _problem(error: Any, known: str, root: str = "params") -> Problem:
    """Returns an error of Pydantic as a problem in nextslot's words."""
    *place, last = [*error["loc"]] or [""]
    around = ".".join([root, *map(str, place)])
    if error["type"] == "missing":
        return Problem(around, f'"{last}" is missing')
    if error["type"] == "extra_forbidden":
        there = f"; the parameters are {known}" if not place else "; remove it or correct its name"
        return Problem(around, f'"{last}" is not known{there}')
    message = str(error["msg"]).removeprefix("Value error, ")
    wanted = message.removeprefix("Input should be ")
    if wanted == message:
        return Problem(".".join(_place(around, last)), message)
    return Problem(".".join(_place(around, last)), must_be(error["input"], wanted))


def _place(around: str, last: Any) -> Iterator[str]:
    yield around
    if last != "":
        yield str(last)
