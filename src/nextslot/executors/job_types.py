"""The job types: which handler a type has, what parameters it takes, what it needs."""

import functools
import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jsonschema_rs

from nextslot.domain import RetryPolicy
from nextslot.domain.request_checks import resource_problems
from nextslot.domain.request_checks import retry_policy as check_retry_policy
from nextslot.errors import Invalid, Problem, UnknownJobType

Handler = Callable[..., Any]
# What jobs of a type need besides, by their parameters.
InferResources = Callable[[Mapping[str, Any]], Mapping[str, int]]
# Raises unless jobs of this role can be run.
CheckRole = Callable[[str | None], None]
# What a schema cannot say: more problems with parameters that fit it.
Check = Callable[[Mapping[str, Any]], list[Problem]]
# What callers should know now about jobs with such parameters: a sentence, or nothing.
Note = Callable[[Mapping[str, Any]], Awaitable[str | None]]

_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object", list: "array",
               type(None): "null"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class JobType:
    """What a kind of job is: a handler, and what every job of it needs unless it says more."""

    name: str
    handler: Handler
    is_async: bool
    params_schema: Mapping[str, Any]
    resources: Mapping[str, int] = field(default_factory=dict)
    timeout_seconds: float | None = None
    stall_timeout_seconds: float | None = None
    retry_policy: Mapping[str, Any] | None = None
    infer_resources: InferResources | None = None
    validator: jsonschema_rs.Validator = field(repr=False, compare=False)
    check: Check | None = None
    check_role: CheckRole | None = None
    # Whether each run of it is a session with an id of its own.
    has_session: bool = False
    note: Note | None = None

    def needs(self, params: Mapping[str, Any]) -> dict[str, int]:
        """The resources of a job with these parameters: the type's own, and what follows from the parameters."""
        if self.infer_resources is None:
            return dict(self.resources)
        return {**self.resources, **resource_units(self.infer_resources(params))}

    def problems(self, params: Mapping[str, Any]) -> list[Problem]:
        """Everything about these parameters that does not fit."""
        if self.validator.is_valid(params):
            return self.check(params) if self.check else []
        return [
            Problem(".".join(["params", *map(str, error.instance_path)]), error.message)
            for error in self.validator.iter_errors(params)
        ]

    def problems_so_far(self, params: Mapping[str, Any]) -> list[Problem]:
        """The same for parameters that more will be added to: that some are missing yet is no problem."""
        errors = [error for error in self.validator.iter_errors(params) if not _is_missing(error)]
        if errors or not self.validator.is_valid(params):
            return [Problem(".".join(["params", *map(str, error.instance_path)]), error.message) for error in errors]
        return self.check(params) if self.check else []


def _is_missing(error: jsonschema_rs.ValidationError) -> bool:
    return isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Required) and not error.instance_path


class JobTypes:
    """The types this process can run, by name."""

    def __init__(self) -> None:
        # Never changed in place: others look while a configuration is read again.
        self._types: Mapping[str, JobType] = {}
        self._gone: Mapping[str, JobType] = {}
        # How long jobs of a role may take, whatever their type.
        self.role_timeouts: Mapping[str, float] = {}

    def register(
        self,
        name: str,
        handler: Handler,
        *,
        resources: Mapping[str, int] | Sequence[str] | None = None,
        timeout_seconds: float | None = None,
        stall_timeout_seconds: float | None = None,
        retry_policy: Mapping[str, Any] | None = None,
        params_schema: Mapping[str, Any] | None = None,
        infer_resources: InferResources | None = None,
        check: Check | None = None,
        check_role: CheckRole | None = None,
        has_session: bool = False,
        note: Note | None = None,
    ) -> JobType:
        if not name or len(name) > 200:
            raise Invalid("a job type needs a name of 1 to 200 characters", field="job_type")
        if name in self._types:
            raise Invalid(f"the job type {name!r} is registered already", field="job_type")
        check_retry_policy(retry_policy, RetryPolicy())
        schema = signature_schema(handler) if params_schema is None else params_schema
        try:
            validator = jsonschema_rs.validator_for(dict(schema))
        except (ValueError, jsonschema_rs.ValidationError) as error:
            raise Invalid(f"not a JSON Schema: {error}", field="params_schema") from error
        job_type = JobType(
            name=name,
            handler=handler,
            is_async=inspect.iscoroutinefunction(_function_of(handler)),
            params_schema=schema,
            resources=resource_units(resources),
            timeout_seconds=timeout_seconds,
            stall_timeout_seconds=stall_timeout_seconds,
            retry_policy=retry_policy,
            infer_resources=infer_resources,
            validator=validator,
            check=check,
            check_role=check_role,
            has_session=has_session,
            note=note,
        )
        self._types = {**self._types, name: job_type}
        return job_type

    def replace(self, old: Iterable[str], new: Mapping[str, JobType]) -> None:
        """Other types in the place of some, at once: whoever looks sees all of the old or all of the new."""
        kept = {name: one for name, one in self._types.items() if name not in old}
        self._gone = {**self._gone, **self._types}
        self._types = {**kept, **new}

    def of_claim(self, name: str) -> JobType:
        """The type of a job that was started: it was there then, and may have been taken away since."""
        return self._types.get(name) or self._gone[name]

    def runs_inside(self, name: str) -> bool:
        """Whether the handler of a type runs in the scheduler's own process: one that has a process of its own has a
        time of grace for it too."""
        job_type = self._types.get(name)
        return job_type is not None and not hasattr(job_type.handler, "grace_seconds")

    def has_session(self, name: str) -> bool:
        job_type = self._types.get(name)
        return job_type is not None and job_type.has_session

    async def note(self, name: str, params: Mapping[str, Any]) -> str | None:
        """Return what who submits such a job, or waits for one, should know."""
        job_type = self._types.get(name)
        return None if job_type is None or job_type.note is None else await job_type.note(params)

    def get(self, name: str) -> JobType:
        job_type = self._types.get(name)
        if job_type is None:
            raise UnknownJobType(name, self.names())
        return job_type

    def __contains__(self, name: str) -> bool:
        return name in self._types

    def names(self) -> list[str]:
        return sorted(self._types)


def resource_units(resources: Mapping[str, int] | Sequence[str] | None) -> dict[str, int]:
    """Name → units; a list of names means one unit each."""
    if resources is None:
        return {}
    problems = list(resource_problems(resources))
    if problems:
        raise Invalid(problems)
    return dict(resources) if isinstance(resources, Mapping) else dict.fromkeys(resources, 1)


def signature_schema(handler: Handler) -> dict[str, Any]:
    """The JSON Schema of a handler's own parameters: those after the first, by their names and annotations."""
    hints = typing.get_type_hints(_function_of(handler))
    parameters = list(inspect.signature(handler).parameters.values())
    by_name_only = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    if not parameters or parameters[0].kind in by_name_only:
        raise Invalid("a handler takes the run as its first argument: def handler(run, …)", field="handler")
    properties: dict[str, Any] = {}
    required: list[str] = []
    takes_any = False
    for parameter in parameters[1:]:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            takes_any = True
        elif parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            raise Invalid(f"a handler's parameters are given by name: {parameter.name!r} cannot be", field="handler")
        else:
            properties[parameter.name] = _schema_of(hints.get(parameter.name, Any))
            if parameter.default is inspect.Parameter.empty:
                required.append(parameter.name)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": takes_any}


def _function_of(handler: Handler) -> Any:
    """The function behind a handler that may be a partial one, or an object with `__call__`."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return handler if inspect.isroutine(handler) else type(handler).__call__


def _schema_of(hint: Any) -> dict[str, Any]:
    """What JSON can say of an annotation; nothing, where it cannot."""
    if hint in _JSON_TYPES:
        return {"type": _JSON_TYPES[hint]}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema_of(argument) for argument in arguments]}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin is list:
        return {"type": "array", "items": _schema_of(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema_of(arguments[1])}
    return {}
