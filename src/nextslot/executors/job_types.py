"""Job types: the handler of each type, its parameters, and the resources that it needs."""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

import jsonschema_rs

from nextslot.domain import Office, RetryPolicy
from nextslot.domain.request_checks import resource_problems
from nextslot.domain.request_checks import retry_policy as check_retry_policy
from nextslot.errors import Invalid, Problem, UnknownJobType

from .engines.engines import Engines, Placing
from .run_context import RunContext
from .signatures import Handler, Signature, function_of, signature_of

# Returns the resources that a job needs, in addition to those of its type, because of its parameters.
InferResources = Callable[[Mapping[str, Any]], Mapping[str, int]]
# Returns what the resources of a job should have loaded, such as a model; None if that does not matter.
InferAffinity = Callable[[Mapping[str, Any]], str | None]
# Raises if no job of this role can run in this office; None if the office is not known yet.
CheckRole = Callable[[str | None, Office | None], None]
# Returns problems with parameters that fit the JSON Schema, for rules that a schema cannot express.
Check = Callable[[Mapping[str, Any]], list[Problem]]
# Returns a sentence for callers about jobs with such parameters, or None.
Note = Callable[[Mapping[str, Any]], Awaitable[str | None]]


class JobTypeOptions(TypedDict, total=False):
    """The options of a job type, named as in `JobType`; type checkers read them through `Unpack`."""

    timeout_seconds: float | None
    stall_timeout_seconds: float | None
    retry_policy: Mapping[str, Any] | None
    infer_resources: InferResources | None
    infer_affinity: InferAffinity | None
    check: Check | None
    check_role: CheckRole | None
    has_session: bool
    note: Note | None
    placing: Placing | None


class NewJobTypeOptions(JobTypeOptions, total=False):
    """All options of a new job type."""

    # A list of names means one unit each.
    resources: Mapping[str, int] | Sequence[str] | None
    # The JSON Schema of the parameters; None takes it from the handler's signature.
    params_schema: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobType:
    """A job type: its handler, and the defaults of its jobs."""

    name: str
    handler: Handler
    is_async: bool
    params_schema: Mapping[str, Any]
    resources: Mapping[str, int] = field(default_factory=dict)
    timeout_seconds: float | None = None
    stall_timeout_seconds: float | None = None
    retry_policy: Mapping[str, Any] | None = None
    infer_resources: InferResources | None = None
    infer_affinity: InferAffinity | None = None
    validator: jsonschema_rs.Validator = field(repr=False, compare=False)
    # What the handler's annotations require beyond the schema; None if nothing.
    signature: Signature | None = field(default=None, repr=False, compare=False)
    # How the handler is called; None if it takes the run and the parameters as they are.
    called_as: Signature | None = field(default=None, repr=False, compare=False)
    check: Check | None = None
    check_role: CheckRole | None = None
    # Whether each run of the type is a session with an id of its own.
    has_session: bool = False
    note: Note | None = None
    # How an engine runs jobs of the type; None if nodes run them.
    placing: Placing | None = None

    def needs(self, params: Mapping[str, Any]) -> dict[str, int]:
        """Returns the resources of a job with these parameters: those of the type, and those that the parameters
        require."""
        if self.infer_resources is None:
            return dict(self.resources)
        return {**self.resources, **resource_units(self.infer_resources(params))}

    def affinity(self, params: Mapping[str, Any]) -> str | None:
        """Returns the affinity of a job with these parameters that gives none."""
        return None if self.infer_affinity is None else self.infer_affinity(params)

    def call(self, run: RunContext) -> Any:
        """Calls the handler. The result of an async handler must be awaited."""
        if self.called_as is None:
            return self.handler(run, **run.params)
        return self.called_as.call(self.handler, run)

    def problems(self, params: Mapping[str, Any]) -> list[Problem]:
        """Returns every problem with these parameters."""
        if self.signature is not None and (found := self.signature.problems(params)):
            return found
        if self.validator.is_valid(params):
            return self.check(params) if self.check else []
        return list(map(_problem, self.validator.iter_errors(params)))

    def problems_so_far(self, params: Mapping[str, Any]) -> list[Problem]:
        """Returns the problems with incomplete parameters, such as those of a template: none for a missing one."""
        if self.signature is not None and (found := self.signature.problems(params, is_complete=False)):
            return found
        errors = [error for error in self.validator.iter_errors(params) if not _is_missing(error)]
        if errors or not self.validator.is_valid(params):
            return list(map(_problem, errors))
        return self.check(params) if self.check else []


def _problem(error: jsonschema_rs.ValidationError) -> Problem:
    message = error.message.replace(" is a required property", " is missing")
    return Problem(".".join(["params", *map(str, error.instance_path)]), message)


def _is_missing(error: jsonschema_rs.ValidationError) -> bool:
    return isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Required) and not error.instance_path


class JobTypes:
    """The job types that this process can run, by name."""

    def __init__(self) -> None:
        # Replaced as a whole and never changed in place: other threads read it during a configuration reload.
        self._types: Mapping[str, JobType] = {}
        self._gone: Mapping[str, JobType] = {}
        # The timeout of jobs by their role, for every job type.
        self.role_timeouts: Mapping[str, float] = {}
        # The engines that job types can name.
        self.engines = Engines()

    def register(
        self,
        name: str,
        handler: Handler,
        *,
        resources: Mapping[str, int] | Sequence[str] | None = None,
        params_schema: Mapping[str, Any] | None = None,
        signature: Signature | None = None,
        **options: Unpack[JobTypeOptions],
    ) -> JobType:
        """Adds a type."""
        if not name or len(name) > 200:
            raise Invalid("the name of this job type is empty or too long; use 1 to 200 characters", field="job_type")
        if name in self._types:
            raise Invalid(f"the job type {name!r} is registered already; choose another name", field="job_type")
        check_retry_policy(options.get("retry_policy"), RetryPolicy())
        own = signature_of(handler)
        signature = signature or own
        schema = signature.schema if params_schema is None else params_schema
        try:
            validator = jsonschema_rs.validator_for(dict(schema))
        except (ValueError, jsonschema_rs.ValidationError) as error:
            raise Invalid(f"this is not a valid JSON Schema: {error}", field="params_schema") from error
        job_type = JobType(
            name=name,
            handler=handler,
            is_async=inspect.iscoroutinefunction(function_of(handler)),
            params_schema=schema,
            resources=resource_units(resources),
            validator=validator,
            signature=None if signature.adapter is None else signature,
            called_as=None if own.is_plain else own,
            **options,
        )
        self._types = {**self._types, name: job_type}
        return job_type

    def replace(self, old: Iterable[str], new: Mapping[str, JobType]) -> None:
        """Replaces some types by others in one step: a concurrent reader sees either all old or all new types."""
        kept = {name: one for name, one in self._types.items() if name not in old}
        self._gone = {**self._gone, **self._types}
        self._types = {**kept, **new}

    def of_claim(self, name: str) -> JobType:
        """Returns the type of a job that was started, even if a configuration reload has removed the type since."""
        return self._types.get(name) or self._gone[name]

    def runs_inside(self, name: str) -> bool:
        """Returns whether the handlers of a type run inside the scheduler's process. A type whose handlers run in a
        process of their own has `grace_seconds`."""
        job_type = self._types.get(name)
        return job_type is not None and not hasattr(job_type.handler, "grace_seconds")

    def isolated(self, name: str) -> Handler | None:
        """Returns a handler that runs the function of a type in a separate process; None if that is not possible."""
        return None

    def placing(self, name: str) -> Placing | None:
        """Returns how an engine runs jobs of a type; None if nodes run them."""
        job_type = self._types.get(name)
        return None if job_type is None else job_type.placing

    def is_placed(self, name: str) -> bool:
        """Returns whether an engine runs jobs of a type."""
        return self.placing(name) is not None

    def has_session(self, name: str) -> bool:
        job_type = self._types.get(name)
        return job_type is not None and job_type.has_session

    async def note(self, name: str, params: Mapping[str, Any]) -> str | None:
        """Returns a sentence for callers who submit such a job or wait for one; None if there is nothing to say."""
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
    """Returns a mapping of names to units. A list of names means one unit each."""
    if resources is None:
        return {}
    problems = list(resource_problems(resources))
    if problems:
        raise Invalid(problems)
    return dict(resources) if isinstance(resources, Mapping) else dict.fromkeys(resources, 1)
