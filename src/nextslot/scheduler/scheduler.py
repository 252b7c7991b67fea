"""`Scheduler`: the Python API. It makes the engine and the services, and starts and stops them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

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
from nextslot.executors.threads import DaemonThreads, Threads
from nextslot.extension_api import Extension, find
from nextslot.services.unit_of_work import UnitOfWork
from nextslot.store.open_store import data_directory, database_files, directories, is_shared, open_store
from nextslot.system.clock import Clock, SharedClock, SystemClock
from nextslot.system.disk_space import DiskLimits, DiskSpace
from nextslot.system.randomness import Chance, SystemChance
from nextslot.telemetry.meters import Meters
from nextslot.telemetry.tracing import Tracer

from .runtime import Dependencies, Runtime, default_node
from .startup_and_shutdown import Lifespan

F = TypeVar("F", bound=Callable[..., Any])


class Scheduler(Lifespan):
    """A durable job scheduler in this process, on one database.

    `async with scheduler:` repairs what the last process left, then runs jobs; its end stops the scheduler gracefully.
    """

    def __init__(
        self,
        url: str = "sqlite:///nextslot.db",
        *,
        data: Path | str | None = None,
        extensions: Sequence[str | Extension] = (),
        limits: ConcurrencyPolicy | None = None,
        group_failure: GroupFailurePolicy | None = None,
        node: str | None = None,
        node_running: int = 0,
        node_resources: Mapping[str, Units] | None = None,
        device_variables: Mapping[str, str] | None = None,
        lease: LeaseTimes | None = None,
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
        )
        runtime.job_types.guardians.private_files = database_files(url)
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
        super().__init__(opening, runtime, access, shutdown_grace_seconds)
        self.watchdog = runtime.watchdog
        self.extensions = [find(one) if isinstance(one, str) else one for one in extensions]
        self.attached.update({one.name: one.attach(self._host) for one in self.extensions})

    def job_type(self, name: str, **options: Any) -> Callable[[F], F]:
        """Registers a function, sync or async, as the handler of a job type; see `job_types.add` for the options."""

        def register(handler: F) -> F:
            self.job_types.add(name, handler, **options)
            return handler

        return register

    def run(self) -> None:
        """Runs until SIGTERM or SIGINT, and then stops gracefully; a second signal interrupts what still runs.

        The process ends with 0 if the outcome of everything that ran was stored, else with 1.
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
        """Sets the function that finds out whether a resource that was held answers again."""
        self._runtime.outages.set_probe(resource, probe)
