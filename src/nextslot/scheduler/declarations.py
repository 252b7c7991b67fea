"""Declarations in code: job types as handles with typed verbs, and templates and schedules that each start stores.

Each start creates the declared templates and schedules, or changes the stored ones to what the declarations say. If an
earlier start declared something that this one does not, the start logs it and leaves it stored. A start never enables a
schedule that somebody has disabled. A reload does the same for the declarations of the configuration.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from nextslot.client.keyword_arguments import DirectOptions, JobOptions, SchedulePutOptions, TemplatePutOptions
from nextslot.domain import DEFAULT_OFFICE, Job, NewJob, RunStatus, Schedule, Template, cron
from nextslot.errors import Invalid, RunFailed
from nextslot.executors.run_context import RunContext
from nextslot.executors.signatures import Signature, read_result, signature_of
from nextslot.services import arguments
from nextslot.store.contract import Tx

if TYPE_CHECKING:
    from nextslot.client import AsyncClient, Client, keyword_arguments, values

    from .services import Services

log = logging.getLogger(__name__)

Later = Awaitable

P = ParamSpec("P")
R = TypeVar("R")
# What a submission of one job returns, of several, and a direct request.
One = TypeVar("One", covariant=True)
Many = TypeVar("Many", covariant=True)
Done = TypeVar("Done")

# The end of a declared template's description, by which a later start knows that an application declared it.
BY_CODE = "declared by the application"
BY_CONFIGURATION = "declared in the configuration"


class HandleOptions(JobOptions, total=False):
    """The options of `handle.with_options`: those of jobs, of one submission, and of `run_direct`."""

    idempotency_key: str | None
    wait_timeout_seconds: float
    detach: bool
    direct_id: str | None


class ScheduleDeclaration(TypedDict, total=False):
    """The options of `scheduler.cron`, besides the expression."""

    name: str
    timezone: str
    params: Mapping[str, Any]
    catch_up: str
    catch_up_window_seconds: float
    overlap: str
    priority: int | None


class Way(Protocol[One, Many]):
    """A way for jobs to a server, such as a `Submitter` or an `AsyncSubmitter`."""

    def submit(self, job_type: str, params: Mapping[str, Any] | None = None, **options: Unpack[JobOptions]) -> One: ...

    def submit_many(self, jobs: "Sequence[keyword_arguments.NewJob | NewJob]") -> Many: ...


class JobHandle(Generic[P, R]):
    """A job type whose parameters type checkers know. Calling it calls the function itself, without a scheduler."""

    def __init__(
        self,
        scheduler: "Services",
        name: str,
        function: Callable[..., Any],
        job_options: JobOptions,
        options: HandleOptions | None = None,
    ) -> None:
        self.name = name
        self.function = function
        # The options of every job of the type.
        self.job_options = job_options
        self._scheduler = scheduler
        self._given = options or {}
        self._options: HandleOptions = {**job_options, **self._given}
        self._signature: Signature = signature_of(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def with_options(self, **options: Unpack[HandleOptions]) -> "JobHandle[P, R]":
        """Returns a handle whose jobs get these options, such as `priority` or `depends_on`."""
        return JobHandle(self._scheduler, self.name, self.function, self.job_options, {**self._given, **options})

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Returns a request for a job, for `submit_many` and `submit_group`."""
        return self._new(self._params(args, kwargs), self._options)

    def _new(self, params: Mapping[str, Any], options: Mapping[str, Any]) -> NewJob:
        return arguments.new_job(job_type=self.name, params=params, **options)

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Puts a job into the queue; the job is durable when this returns."""
        options: Any = self._options  # An option of direct requests is refused like every unknown one.
        return await self._scheduler.submit(self.name, self._params(args, kwargs), **options)

    async def submit_many(self, params: Iterable[Mapping[str, Any]]) -> list[Job]:
        """Puts a job for each of these parameters into the queue, all or none."""
        options: dict[str, Any] = {**self._options}
        idempotency_key = options.pop("idempotency_key", None)
        wanted = [self._new(self._params((), one), options) for one in arguments.mappings(params, "params")]
        return await self._scheduler.submit_many(wanted, idempotency_key)

    async def run_direct(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function in the next slot, and returns the function's result; raises RunFailed if the run failed."""
        return self._returned(
            await self._scheduler.run_direct(self.name, self._params(args, kwargs), **self._direct_options())
        )

    def _returned(self, done: Any) -> R:
        if done.status != RunStatus.COMPLETED.value:
            raise RunFailed(self.name, done.status, done.error or done.reason)
        result: R = read_result(self.function, done.result)
        return result

    @overload
    def via(self, way: "Client") -> "Caller[P, values.Job, list[values.Job], R]": ...
    @overload
    def via(self, way: "AsyncClient") -> "Caller[P, Later[values.Job], Later[list[values.Job]], Later[R]]": ...
    @overload
    def via(self, way: "Way[One, Many]") -> "Sender[P, One, Many]": ...
    def via(self, way: Any) -> Any:
        """Returns a handle that submits to the server of a client or submitter, where this process runs no scheduler.

        The server must have a job type of this name, such as by `nextslot serve --app`."""
        return Caller(self, way) if hasattr(way, "run_direct") else Sender(self, way)

    def wanted(self, params: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a request for a job as a dict."""
        return {"job_type": self.name, "params": self._params((), params), **options}

    def _direct_options(self) -> DirectOptions:
        """Returns the options for a direct request. Refuses those that only a job can have, unless all jobs of the type
        have them."""
        if wrong := sorted(self._given.keys() - DirectOptions.__annotations__.keys()):
            raise Invalid("is an option of jobs; run_direct takes the next slot without it", field=wrong[0])
        made: Any = {name: one for name, one in self._options.items() if name in DirectOptions.__annotations__}
        direct: DirectOptions = made
        return direct

    def template_options(self) -> TemplatePutOptions:
        """Returns the options of a template that makes jobs of this type, except its office."""
        options: Any = {name: one for name, one in self._options.items() if name != "office_id"}
        if wrong := sorted(options.keys() - TemplatePutOptions.__annotations__.keys()):
            raise Invalid("is an option that jobs of schedules cannot have; remove it from job_options", field=wrong[0])
        template: TemplatePutOptions = options
        return template

    @property
    def office_id(self) -> str:
        return self._options.get("office_id", DEFAULT_OFFICE)

    def _params(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments as JSON parameters. Leaves wrong arguments to the check of the submission."""
        if args:
            names = list(inspect.signature(self.function).parameters)[self._signature.takes_run :]
            if len(args) > len(names):
                raise Invalid(f"{len(args)} arguments are given, but {self.name!r} takes {len(names)}", field="params")
            kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
        return self._signature.to_json(kwargs)


class Sender(Generic[P, One, Many]):
    """A handle that submits through a client or a submitter."""

    def __init__(self, handle: JobHandle[P, Any], way: Any) -> None:
        self._handle = handle
        self._way = way

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> One:
        """Does what `handle.submit` does, and returns what the client or submitter returns."""
        handle = self._handle
        made: One = self._way.submit(handle.name, handle._params(args, kwargs), **handle._options)
        return made

    def submit_many(self, params: Iterable[Mapping[str, Any]]) -> Many:
        """Does what `handle.submit_many` does, and returns what the client or submitter returns."""
        options = dict(self._handle._options)
        key = {name: options.pop(name) for name in ("idempotency_key",) if name in options}
        wanted = [self._handle.wanted(one, options) for one in arguments.mappings(params, "params")]
        made: Many = self._way.submit_many(wanted, **key)
        return made


class Caller(Sender[P, One, Many], Generic[P, One, Many, Done]):
    """A handle that submits through a client, and makes direct requests."""

    def run_direct(self, *args: P.args, **kwargs: P.kwargs) -> Done:
        """Does what `handle.run_direct` does, on the server."""
        handle = self._handle
        ended = self._way.run_direct(handle.name, handle._params(args, kwargs), **handle._direct_options())

        async def later() -> Any:
            return handle._returned(await ended)

        done: Any = later() if inspect.isawaitable(ended) else handle._returned(ended)
        result: Done = done
        return result


class Decorator:
    """Makes a handle from a function, or extends the handle that a decorator below has made."""

    def __init__(self, make: "Callable[[Any], JobHandle[Any, Any]]") -> None:
        self._make = make

    @overload
    def __call__(self, made: JobHandle[P, R], /) -> JobHandle[P, R]: ...
    @overload
    def __call__(self, made: Callable[Concatenate[RunContext, P], Awaitable[R]], /) -> JobHandle[P, R]: ...
    @overload
    def __call__(self, made: Callable[P, Awaitable[R]], /) -> JobHandle[P, R]: ...
    @overload
    def __call__(self, made: Callable[Concatenate[RunContext, P], R], /) -> JobHandle[P, R]: ...
    @overload
    def __call__(self, made: Callable[P, R], /) -> JobHandle[P, R]: ...
    def __call__(self, made: Any, /) -> Any:
        return self._make(made)


@dataclass(frozen=True, slots=True)
class _Template:
    job_type: str | None
    office_id: str
    options: TemplatePutOptions


@dataclass(frozen=True, slots=True)
class _Schedule:
    template: str
    cron_expression: str
    office_id: str
    options: SchedulePutOptions


@dataclass(slots=True)
class Declarations:
    """The templates and schedules that a start stores, by name."""

    by: str = BY_CODE
    templates: dict[str, _Template] = field(default_factory=dict)
    schedules: dict[str, _Schedule] = field(default_factory=dict)

    def template(
        self,
        name: str,
        job_type: str | None = None,
        *,
        office_id: str = DEFAULT_OFFICE,
        **options: Unpack[TemplatePutOptions],
    ) -> None:
        """Declares a template."""
        if name in self.templates:
            raise Invalid(f"a template {name!r} is declared already; choose another name", field="name")
        self.templates[name] = _Template(job_type, office_id, options)

    def schedule(
        self,
        name: str,
        template: str,
        cron_expression: str,
        *,
        office_id: str = DEFAULT_OFFICE,
        **options: Unpack[SchedulePutOptions],
    ) -> None:
        """Declares a schedule of a declared template."""
        if name in self.schedules:
            raise Invalid(f"a schedule {name!r} is declared already; give it another `name`", field="name")
        cron.parse(cron_expression, options.get("timezone", "UTC"))
        self.schedules[name] = _Schedule(template, cron_expression, office_id, options)

    def store(self, tx: Tx, services: "Services") -> None:
        """Creates or changes the stored templates and schedules as declared."""
        ids: dict[str, str] = {}
        for name, one in self.templates.items():
            given = {} if one.job_type is None else {"job_type": one.job_type}
            fields = {**given, **one.options, "description": self._marked(one.options.get("description"))}
            ids[name] = services.templates.store(tx, one.office_id, name, fields)[0].template_id
        for name, plan in self.schedules.items():
            if plan.template not in ids:
                known = ", ".join(ids) or "none"
                raise Invalid(
                    f"there is no declared template {plan.template!r} (declared: {known})", f"schedules.{name}.template"
                )
            timing = {"template_id": ids[plan.template], "cron_expression": plan.cron_expression}
            services.schedules.store(tx, plan.office_id, name, {**timing, **plan.options})

    def has_made(self, template: Template) -> bool:
        return (template.description or "").endswith((self.by, f"({self.by})"))

    def names(self, schedule: Schedule) -> bool:
        """Returns whether this schedule is declared."""
        plan = self.schedules.get(schedule.name)
        return plan is not None and plan.office_id == schedule.office_id

    def _marked(self, description: str | None) -> str:
        return self.by if description is None else f"{description} ({self.by})"


async def report_left(services: "Services", *declared: Declarations) -> None:
    """Logs each enabled schedule of a declared template if no declaration names the schedule any more."""
    async for template in services.templates.list():
        for one in declared:
            if one.has_made(template):
                await _report_schedules(services, template.template_id, one)


async def _report_schedules(services: "Services", template_id: str, declared: Declarations) -> None:
    async for one in services.schedules.list(template_id=template_id):
        if one.enabled and not declared.names(one):
            log.warning(
                "the schedule %r (%s) is not declared any more and goes on; delete it with `nextslot schedule rm` "
                "or scheduler.schedules.delete(%r)",
                one.name,
                one.cron_expression,
                one.schedule_id,
            )


def expression_of(expression: str | None, every: timedelta | None) -> str:
    """Returns the given cron expression, or the one that `every` stands for."""
    if (expression is None) == (every is None):
        said = "is missing" if every is None else "stands beside `every`"
        raise Invalid(f'{said}; give either a cron expression, such as "0 7 * * *", or every=timedelta(…)', "cron")
    return expression if expression is not None else cron.every(every or timedelta())
