"""Declarations in code: job types as handles with typed verbs, and templates and schedules that each start stores.

Each start creates the declared templates and schedules, or changes the stored ones to what the declarations say. If an
earlier start declared something that this one does not, the start logs it and leaves it stored. A start never enables a
schedule that somebody has disabled.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypedDict, TypeVar, Unpack, overload

from nextslot.client.keyword_arguments import JobOptions, SchedulePutOptions, TemplatePutOptions
from nextslot.domain import DEFAULT_OFFICE, Job, NewJob, RunStatus, cron
from nextslot.errors import Invalid, RunFailed
from nextslot.executors.run_context import RunContext
from nextslot.executors.signatures import Signature, read_result, signature_of
from nextslot.services import arguments

if TYPE_CHECKING:
    from .services import Services

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

# The description of a declared template, by which a later start knows that an application declared it.
BY_CODE = "declared by the application"
BY_CONFIGURATION = "declared in the configuration"


class ScheduleDeclaration(TypedDict, total=False):
    """The options of `scheduler.cron`, besides the expression."""

    name: str
    timezone: str
    params: Mapping[str, Any]
    catch_up: str
    catch_up_window_seconds: float
    overlap: str
    priority: int | None


class JobHandle(Generic[P, R]):
    """A job type whose parameters type checkers know. Calling it calls the function itself, without a scheduler."""

    def __init__(self, scheduler: "Services", name: str, function: Callable[..., Any], options: JobOptions) -> None:
        self.name = name
        self.function = function
        self._scheduler = scheduler
        self._options = options
        self._signature: Signature = signature_of(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def with_options(self, **options: Unpack[JobOptions]) -> "JobHandle[P, R]":
        """Returns a handle whose jobs get these options, such as `priority` or `depends_on`."""
        return JobHandle(self._scheduler, self.name, self.function, {**self._options, **options})

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Returns a request for a job, for `submit_many` and `submit_group`."""
        return arguments.new_job(job_type=self.name, params=self._params(args, kwargs), **self._options)

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Puts a job into the queue; the job is durable when this returns."""
        return await self._scheduler.submit(self.name, self._params(args, kwargs), **self._options)

    async def submit_many(self, params: Iterable[Mapping[str, Any]]) -> list[Job]:
        """Puts a job for each of these parameters into the queue, all or none."""
        return await self._scheduler.submit_many(
            [
                arguments.new_job(job_type=self.name, params=self._params((), one), **self._options)
                for one in arguments.mappings(params, "params")
            ]
        )

    async def run_direct(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function in the next slot, and returns the function's result; raises RunFailed if the run failed."""
        office_id = self._options.get("office_id", DEFAULT_OFFICE)
        done = await self._scheduler.run_direct(self.name, self._params(args, kwargs), office_id=office_id)
        if done.status != RunStatus.COMPLETED.value:
            raise RunFailed(self.name, done.status, done.error or done.reason)
        result: R = read_result(self.function, done.result)
        return result

    def _params(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments as JSON parameters. Leaves wrong arguments to the check of the submission."""
        if args:
            names = list(inspect.signature(self.function).parameters)[self._signature.takes_run :]
            if len(args) > len(names):
                raise Invalid(f"{len(args)} arguments are given, but {self.name!r} takes {len(names)}", field="params")
            kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
        return self._signature.to_json(kwargs)


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

    async def put(self, services: "Services") -> None:
        """Creates or changes the stored templates and schedules as declared, each in a transaction of its own. If a
        start dies in between, the next start does the rest."""
        ids: dict[str, str] = {}
        for name, one in self.templates.items():
            options: TemplatePutOptions = {"description": self.by, **one.options}
            made, _ = await services.templates.put(name, one.job_type, office_id=one.office_id, **options)
            ids[name] = made.template_id
        for name, plan in self.schedules.items():
            if plan.template not in ids:
                known = ", ".join(ids) or "none"
                raise Invalid(
                    f"there is no declared template {plan.template!r} (declared: {known})", f"schedules.{name}.template"
                )
            await services.schedules.put(
                name, ids[plan.template], plan.cron_expression, office_id=plan.office_id, **plan.options
            )


async def report_left(services: "Services", *declared: Declarations) -> None:
    """Logs each enabled schedule of a declared template if no declaration names the schedule any more."""
    names = {one.by: one.schedules for one in declared}
    cursor: str | None = None
    while True:
        page = await services.templates.list(cursor, 500)
        for template in page.items:
            if template.description in names:
                await _report_schedules(services, template.template_id, names[template.description])
        cursor = page.next_cursor
        if cursor is None:
            return


async def _report_schedules(services: "Services", template_id: str, declared: Mapping[str, object]) -> None:
    for one in (await services.schedules.list(limit=500, template_id=template_id)).items:
        if one.name not in declared and one.enabled:
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
        raise Invalid('give either a cron expression, such as "0 7 * * *", or every=timedelta(…)', field="cron")
    return expression if expression is not None else cron.every(every or timedelta())
