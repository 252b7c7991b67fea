"""Reads the arguments that an endpoint declares from a request: path, query, body.

`Route` calls it instead of the framework's own way, which solves a tree of dependencies for every request: none of our
endpoints has one.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Annotated, Any, get_args, get_origin
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, TypeAdapter, ValidationError

from nextslot.errors import MOST_PROBLEMS, Invalid

from .request_body import NO_BODY

Problems = list[dict[str, Any]]
# Validates a value, or raises ValidationError.
Validate = Callable[[Any], Any]


class EndpointArguments:
    """The declared arguments of an endpoint: texts of its path, one model or some values of the query, one body, the
    request."""

    def __init__(self, dependant: Dependant) -> None:
        _refuse_other_arguments(dependant)
        self._request_name = dependant.request_param_name
        self._path = [_Value("path", one) for one in dependant.path_params]
        self._query = [_Value("query", one) for one in dependant.query_params]
        self._query_model = self._query[0] if len(self._query) == 1 and self._query[0].is_model else None
        self._body = next((_Value("body", one) for one in dependant.body_params), None)

    def of(self, request: Request, body: Any) -> dict[str, Any]:
        """Returns the arguments. Raises Invalid if the query has a name twice, and RequestValidationError for other
        problems."""
        found: dict[str, Any] = {} if self._request_name is None else {self._request_name: request}
        problems: Problems = []
        for one in self._path:
            found[one.name] = one.validated(request.path_params[one.name], (one.place, one.name), problems)
        if self._query:
            self._add_query(found, _query(request), problems)
        if self._body is not None:
            found[self._body.name] = (
                self._body.absent(("body",), problems)
                if body is NO_BODY
                else self._body.validated(body, ("body",), problems)
            )
        if problems:
            raise RequestValidationError(problems)
        return found

    def _add_query(self, found: dict[str, Any], given: dict[str, str], problems: Problems) -> None:
        if self._query_model is not None:
            found[self._query_model.name] = self._query_model.validated(given, ("query",), problems)
            return
        for one in self._query:
            place = ("query", one.name)
            text = given.get(one.name)
            found[one.name] = one.absent(place, problems) if text is None else one.validated(text, place, problems)


class _Value:
    """One argument: its name, and the validation of its value."""

    def __init__(self, place: str, field: Any) -> None:
        self.place = place
        self.name: str = field.name
        kind = field.field_info.annotation
        self.is_model = isinstance(kind, type) and issubclass(kind, BaseModel)
        self._field = field

    @cached_property
    def _validate(self) -> Validate:
        """Compiles the declared type, which is also in the OpenAPI document, when the first request needs it."""
        kind, bounds = self._field.field_info.annotation, self._field.field_info.metadata
        found: TypeAdapter[Any] = TypeAdapter(Annotated[(kind, *bounds)] if bounds else kind)
        return found.validator.validate_python

    def validated(self, value: Any, place: tuple[str, ...], problems: Problems) -> Any:
        """Returns the value, or adds its problems to the list."""
        try:
            return self._validate(value)
        except ValidationError as error:
            problems += _problems_of(error, place)

    def absent(self, place: tuple[str, ...], problems: Problems) -> Any:
        """Returns the default. If there is none, adds a problem to the list."""
        if self._field.field_info.is_required():
            problems.append({"type": "missing", "loc": place, "msg": "Field required", "input": None})
            return None
        return self._field.get_default()


def _problems_of(error: ValidationError, place: tuple[str, ...]) -> Problems:
    """Lists the problems, or sums them up if there are many: 100,000 of them would take half a second to list."""
    if error.error_count() > MOST_PROBLEMS:
        sentence = f"there are {error.error_count():,} problems, too many to list; correct the fields and send it again"
        return [{"type": "too_many", "loc": place, "msg": sentence, "input": None}]
    return [{**one, "loc": (*place, *one["loc"])} for one in error.errors(include_url=False)]


def _query(request: Request) -> dict[str, str]:
    """Returns the query. Refuses a name that occurs twice, because it is unclear which value is meant."""
    text = request.scope["query_string"].decode("latin-1")
    if not text:
        return {}
    pairs = parse_qsl(text, keep_blank_values=True)
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise Invalid(f"is given more than once; separate several values by commas, as in {name}=A,B", name)
    return found


def _refuse_other_arguments(dependant: Dependant) -> None:
    """Raises TypeError when an endpoint is declared with an argument that this module cannot read."""
    other = [*dependant.header_params, *dependant.cookie_params, *dependant.dependencies]
    if other or dependant.response_param_name or dependant.background_tasks_param_name:
        raise TypeError(f"{dependant.call} has other arguments than path, query, one body and the request")
    if len(dependant.body_params) > 1:
        raise TypeError(f"{dependant.call} has several bodies; declare one model")
    for one in dependant.query_params:
        kinds = [one.field_info.annotation, *get_args(one.field_info.annotation)]
        if any((get_origin(kind) or kind) in (list, tuple, set) for kind in kinds):
            raise TypeError(f"{dependant.call} has a list in its query; separate several values by commas")
