"""`Scheduler`: the Python API. It creates the engine and the services, and starts and stops them."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from nextslot.client.keyword_arguments import JobOptions
from nextslot.domain import DEFAULT_OFFICE
from nextslot.domain.bounds import must_be
from nextslot.domain.devices import VARIABLES, NodeDevices, Units, counted, named
from nextslot.domain.group_failure import ByOnFailure, GroupFailurePolicy
from nextslot.domain.lease_times import LeaseTimes
from nextslot.domain.limits import ConcurrencyPolicy, Limits
from nextslot.engine.dispatch.limits_and_slots import Workers
from nextslot.engine.dispatch.resource_outages import Probe
from nextslot.engine.dispatch.starvation import STARVATION_AFTER_SECONDS
from nextslot.engine.execution.executor import STALL_ALARM_SECONDS
from nextslot.engine.settings.audit_log import AuditLog
from nextslot.engine.webhooks.delivery_worker import Sender
from nextslot.engine.webhooks.webhook_outbox import WebhookSettings
from nextslot.errors import Invalid
from nextslot.executors.engines.engines import Engines
from nextslot.executors.job_types import NewJobTypeOptions
from nextslot.executors.object_store import ObjectStore
from nextslot.executors.shared_run_files import WAIT_SECONDS, SharedRunFiles
from nextslot.executors.threads import DaemonThreads, Threads
from nextslot.extension_api import Extension, find
from nextslot.services.unit_of_work import UnitOfWork
from nextslot.store.contract import Tx
from nextslot.store.open_store import data_directory, database_files, directories, is_shared, open_store
from nextslot.system.clock import Clock, SharedClock, SystemClock
from nextslot.system.disk_space import DiskLimits, DiskSpace
from nextslot.system.randomness import Chance, SystemChance
from nextslot.telemetry.meters import Meters
from nextslot.telemetry.tracing import Tracer

from .declarations import (
    BY_CONFIGURATION,
    Declarations,
    Decorator,
    JobHandle,
    ScheduleDeclaration,
    expression_of,
    report_left,
)
from .runtime import Dependencies, Runtime, default_node
from .startup_and_shutdown import Lifespan

log = logging.getLogger(__name__)

# By whether the limit comes from the configuration.
FEWER = {
    False: "Limits(running=%d) is the most of all offices together, but the office `default` runs %d at once: give "
    "Scheduler(concurrency=%d)",
    True: "[limits] running = %d is the most of all offices together, but together the offices run only %d at once: "
    "set max_concurrent_jobs = %d of the office `default`, or of others",
}


class Scheduler(Lifespan):
    """A durable job scheduler in this process, on one database.

    `async with scheduler:` recovers what the last process left unfinished, then runs jobs. At the end of the block, the
    scheduler stops gracefully.
    """

    def __init__(
        self,
        url: str = "sqlite:///nextslot.db",
        *,
        data: Path | str | None = None,
        extensions: Sequence[str | Extension] = (),
        concurrency: int | None = None,
        limits: ConcurrencyPolicy | None = None,
        engines: Mapping[str, Mapping[str, Any]] | None = None,
        group_failure: GroupFailurePolicy | None = None,
        node: str | None = None,
        node_address: str | None = None,
        node_running: int = 0,
        node_resources: Mapping[str, Units] | None = None,
        device_variables: Mapping[str, str] | None = None,
        lease: LeaseTimes | None = None,
        files: str | None = None,
        files_wait_seconds: float = WAIT_SECONDS,
        starvation_after_seconds: float = STARVATION_AFTER_SECONDS,
        stall_alarm_seconds: float | None = STALL_ALARM_SECONDS,
        shutdown_grace_seconds: float | None = 3600.0,
        synchronous: str = "FULL",
        disk: DiskLimits | None = None,
        webhooks: WebhookSettings | None = None,
        clock: Clock | None = None,
        chance: Chance | None = None,
        threads: Threads | None = None,
        sender: Sender | None = None,
        is_threaded: bool = True,
        meters: Meters | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        name, units = node or default_node(url), node_resources or {}
        place = Path(data) if data is not None else data_directory(url)
        is_in_real_time = clock is None
        added, limits = _with_engines(engines or {}, limits, place)
        clock = clock or (SharedClock() if is_shared(url) else SystemClock())
        self.meters: Meters = meters or Meters()
        self.tracer: Tracer = tracer or Tracer()
        given = Dependencies(
            clock=clock,
            chance=chance or SystemChance(),
            threads=threads or DaemonThreads(),
            disk=DiskSpace(disk or DiskLimits(), directories(url, place), clock.now),
            sender=sender,
            meters=self.meters,
            tracer=self.tracer,
        )
        access = UnitOfWork(clock, AuditLog(given.chance), self.tracer, given.disk)
        runtime = Runtime(
            given,
            access,
            Workers(
                name, node_running, counted(units), NodeDevices(named(units), {**VARIABLES, **(device_variables or {})})
            ),
            limits or Limits(),
            group_failure or ByOnFailure(),
            webhooks or WebhookSettings(),
            starvation_after_seconds,
            stall_alarm_seconds,
            place,
            lease or LeaseTimes(),
            None if files is None else SharedRunFiles(ObjectStore(files)),
            node_address,
        )
        runtime.job_types.engines = added
        runtime.shipping.wait_seconds = files_wait_seconds
        runtime.job_types.guardians.private_files = tuple(database_files(url))
        opening = partial(
            open_store,
            url,
            node=name,
            threaded=is_threaded,
            synchronous=synchronous,
            meters=self.meters,
            vitals=runtime.watchdog,
            now=clock.now,
        )
        super().__init__(opening, runtime, access, shutdown_grace_seconds, is_in_real_time)
        # How many jobs of the office `default` may run at once; None keeps the stored number, which is 1 at first.
        self._concurrency, self._limits = _checked(concurrency), limits
        # The templates and schedules that each start stores.
        self.declare = Declarations()
        self.declared_in_configuration = Declarations(BY_CONFIGURATION)
        self.watchdog = runtime.watchdog
        self.extensions = [find(one) if isinstance(one, str) else one for one in extensions]
        self.attached.update({one.name: one.attach(self._host) for one in self.extensions})

    def job_type(
        self,
        name: str | None = None,
        *,
        isolate: bool = False,
        job_options: JobOptions | None = None,
        **options: Unpack[NewJobTypeOptions],
    ) -> Decorator:
        """Registers a function, sync or async, as a job type, and makes a handle of it: `await
        thumbnail.submit(path="a.png")`. The job type has the function's name unless `name` is given. `job_options`,
        such as `priority`, apply to its jobs."""
        if callable(name):
            raise Invalid("is the function itself; write @scheduler.job_type() with parentheses", "job_type")

        def register(function: Any) -> JobHandle[Any, Any]:
            if isinstance(function, JobHandle):
                raise Invalid(
                    f"{function.name!r} is a job type already; write @scheduler.job_type() once", field="job_type"
                )
            known = name or function.__name__
            self.job_types.add(known, function, isolate=isolate, **options)
            return JobHandle(self, known, function, job_options or {})

        return Decorator(register)

    def cron(
        self,
        expression: str | None = None,
        *,
        every: timedelta | None = None,
        **options: Unpack[ScheduleDeclaration],
    ) -> Decorator:
        """Declares a schedule of a job: `@scheduler.cron("0 7 * * *", timezone="Europe/Berlin")` above
        `@scheduler.job_type()`, or above a plain function. Each start creates the schedule, or changes it to the
        declaration."""
        cron_expression = expression_of(expression, every)

        def declare(function: Any) -> JobHandle[Any, Any]:
            handle = function if isinstance(function, JobHandle) else self.job_type()(function)
            given: dict[str, Any] = {**options}
            name, params = given.pop("name", handle.name), given.pop("params", None)
            office_id = handle.office_id
            if handle.name not in self.declare.templates:
                self.declare.template(handle.name, handle.name, office_id=office_id, **handle.template_options())
            self.declare.schedule(
                name, handle.name, cron_expression, office_id=office_id, param_overrides=params, **given
            )
            return handle

        return Decorator(declare)

    async def _prepare(self) -> None:
        if self._concurrency is not None:
            await self.offices.change(DEFAULT_OFFICE, max_concurrent_jobs=self._concurrency)
        if any(one.templates or one.schedules for one in (self.declare, self.declared_in_configuration)):
            await self._access.write(self._store_declared)
        await report_surprises(self)

    def _store_declared(self, tx: Tx) -> None:
        for one in (self.declare, self.declared_in_configuration):
            one.store(tx, self)

    async def _report_limit(self) -> None:
        limits = self._runtime.lanes.policy
        if self._concurrency is not None or not isinstance(limits, Limits) or limits.running <= 1:
            return
        running = 0
        async for office in self.offices.list():
            running += office.max_concurrent_jobs if office.status == "active" else 0
        if running < limits.running:
            log.warning(FEWER[self._limits is None], limits.running, running, limits.running)

    def run(self) -> None:
        """Runs until SIGTERM or SIGINT, and then stops gracefully; a second signal interrupts the runs that are left.

        The process exits with 0 if the outcomes of all runs were stored, otherwise with 1.
        """
        if not asyncio.run(self._run_until_signalled()):
            raise SystemExit(1)

    async def _run_until_signalled(self) -> bool:
        signalled = self._listen_for_signals()
        await self.start()
        await signalled.wait()
        return await self.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def probe(self, resource: str, probe: Probe) -> None:
        """Sets the function that checks whether a held resource answers again."""
        self._runtime.outages.set_probe(resource, probe)


def _with_engines(
    given: Mapping[str, Mapping[str, Any]], limits: ConcurrencyPolicy | None, data: Path
) -> tuple[Engines, ConcurrencyPolicy | None]:
    """Makes the engines of a program, and counts each as a resource with as many units as it has slots."""
    engines = Engines()
    if given:
        from nextslot.config import (
            engine_tables,  # A program without engines does without the types of a configuration.
        )

        slots = engine_tables.add_checked(engines, given, data)
        if limits is None or isinstance(limits, Limits):
            before = limits or Limits()
            limits = replace(before, resources={**before.resources, **slots})
    return engines, limits


async def report_surprises(scheduler: Scheduler) -> None:
    """Logs a limit that no office can reach, and each schedule that is not declared any more."""
    await scheduler._report_limit()
    await report_left(scheduler, scheduler.declare, scheduler.declared_in_configuration)


def _checked(concurrency: int | None) -> int | None:
    if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
        raise Invalid(must_be(concurrency, "a whole number from 1 on"), field="concurrency")
    return concurrency
