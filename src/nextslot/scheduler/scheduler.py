"""`Scheduler`: the Python API. It makes the machinery, stands on the faces, and hands works to the store."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from nextslot.domain import (
    Direct,
    Event,
    Group,
    GroupMode,
    Job,
    Json,
    NewJob,
    OnFailure,
    Run,
)
from nextslot.domain.limits import ConcurrencyPolicy, Limits
from nextslot.engine.cluster.recovery import Recovered
from nextslot.engine.direct.direct_requests import Update
from nextslot.engine.dispatch.dispatcher import STARVATION_AFTER_SECONDS
from nextslot.engine.dispatch.resource_outages import Probe
from nextslot.engine.dispatch.slots import Workers
from nextslot.engine.events.event_feed import EventPage
from nextslot.engine.finish.job_finisher import Cancelled
from nextslot.engine.finish.retries import Retried
from nextslot.engine.forecast.why import Explainer
from nextslot.engine.settings.key_ring import KeyRing
from nextslot.engine.submit.intake import Accepted
from nextslot.engine.webhooks.delivery_worker import Sender
from nextslot.engine.webhooks.webhook_outbox import WebhookSettings
from nextslot.errors import Draining, NotFound
from nextslot.executors.threads import DaemonThreads, Threads
from nextslot.extension import Attached, Extension, find
from nextslot.extension.host import Host
from nextslot.services import arguments
from nextslot.services.bulk import BulkService
from nextslot.services.forecast import ForecastService
from nextslot.services.keys import KeyService
from nextslot.services.lists import ListService
from nextslot.services.nodes import NodeService
from nextslot.services.offices import OfficeService
from nextslot.services.retention import RetentionService
from nextslot.services.run_files import RunFileService
from nextslot.services.schedules import ScheduleService
from nextslot.services.settings_reload import SettingsReload
from nextslot.services.templates import TemplateService
from nextslot.services.unit_of_work import UnitOfWork
from nextslot.services.webhooks import WebhookSubscriptions
from nextslot.store.membership import LeaseTimes
from nextslot.store.open_store import (
    data_directory,
    directories,
    is_shared,
    open_store,
)
from nextslot.store.tables import (
    direct,
    groups,
    jobs,
    runs,
)
from nextslot.store.tables.jobs import Place
from nextslot.system.clock import Clock, SharedClock, SystemClock
from nextslot.system.disk_space import DiskLimits, DiskSpace
from nextslot.system.randomness import Chance, SystemChance
from nextslot.telemetry.meters import Meters, Unmeasured
from nextslot.telemetry.tracing import Tracer, Untraced

from .job_changes import JobChanges, checked
from .readiness import Readiness
from .runtime import Dependencies, Runtime, default_node
from .startup_and_shutdown import Lifespan
from .waiters import Ended, Waiters

F = TypeVar("F", bound=Callable[..., Any])
A = TypeVar("A", bound=Attached)


class Scheduler:
    """A durable job scheduler in this process, on one database.

    `async with scheduler:` recovers what the last life left, then runs; leaving it stops gracefully.
    """

    def __init__(
        self,
        url: str = "sqlite:///nextslot.db",
        *,
        data: Path | str | None = None,
        extensions: Sequence[str | Extension] = (),
        limits: ConcurrencyPolicy | None = None,
        node: str | None = None,
        node_running: int = 0,
        node_resources: Mapping[str, int] | None = None,
        lease: LeaseTimes | None = None,
        starvation_after_seconds: float = STARVATION_AFTER_SECONDS,
        shutdown_grace_seconds: float | None = None,
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
        self.node = node or default_node(url)
        self.shutdown_grace_seconds = shutdown_grace_seconds
        self.meters: Meters = meters or Unmeasured()
        self.tracer: Tracer = tracer or Untraced()
        self._clock = clock or (SharedClock() if is_shared(url) else SystemClock())
        given = Dependencies(
            clock=self._clock,
            chance=chance or SystemChance(),
            threads=threads or DaemonThreads(),
            sender=sender,
            meters=self.meters,
            tracer=self.tracer,
        )
        runtime = self._runtime = Runtime(
            given,
            Workers(self.node, node_running, node_resources),
            limits or Limits(),
            webhooks or WebhookSettings(),
            starvation_after_seconds,
            place := Path(data) if data is not None else data_directory(url),
        )
        self.disk = DiskSpace(disk or DiskLimits(), directories(url, place), self._clock.now)
        audit = runtime.audit
        access = UnitOfWork(self._clock, audit, self.tracer, self.disk.refuse_if_low)
        # The faces: verbs by subject.
        self.job_types = runtime.job_types
        self.files = RunFileService(runtime.files, self.node)
        self.retention = RetentionService(access, runtime.retention)
        self.templates = TemplateService(access, runtime.template_settings)
        self.schedules = ScheduleService(access, runtime.schedule_settings, runtime.trigger)
        self.keys = KeyService(access, KeyRing(given.chance), audit)
        self.lists = ListService(access)
        self.webhooks = WebhookSubscriptions(access, runtime.webhooks, audit)
        self.bulk = BulkService(access, runtime.bulk_actions)
        self.offices = OfficeService(access, given.chance, runtime.offices, runtime.queue, audit)
        self.tuning = SettingsReload(access, audit, runtime.reloadable())
        # Its life, alone or among other nodes.
        self._waiters = Waiters(access, runtime.events)
        cluster = runtime.new_cluster(lease or LeaseTimes(), self.keys.forget, self._waiters.look)
        opening = partial(
            open_store,
            url,
            node=self.node,
            threaded=is_threaded,
            synchronous=synchronous,
            meters=self.meters,
            vitals=runtime.watchdog,
            now=self._clock.now,
        )
        self.watchdog = runtime.watchdog
        self.extensions = [find(one) if isinstance(one, str) else one for one in extensions]
        host = self._host(access)
        self.attached = {one.name: one.attach(host) for one in self.extensions}
        self._life = Lifespan(opening, runtime, access, cluster, self._waiters, list(self.attached.values()))
        self._readiness = Readiness(access, self.disk, self.node)
        self.nodes = NodeService(access, cluster, audit)
        self.forecast = ForecastService(
            access,
            Explainer(runtime.engine, runtime.dispatcher, cluster.registry),
            cluster.registry,
            runtime.rules,
            runtime.durations,
            runtime.executor.progress,
            given.threads,
            runtime.job_types.note,
        )
        # What its own verbs work with.
        self._access = access
        self._intake = runtime.intake
        self._queue = runtime.queue
        self._changes = JobChanges(runtime.queue, runtime.intake)
        self._retries = runtime.retries
        self._finisher = runtime.finisher
        self._direct = runtime.direct
        self._dispatcher = runtime.dispatcher
        self._executor = runtime.executor
        self._events = runtime.events

    # Job types.

    def job_type(self, name: str, **options: Any) -> Callable[[F], F]:
        """Registers a function, sync or async, as the handler of a job type; see `job_types.add` for the options."""

        def register(handler: F) -> F:
            self.job_types.add(name, handler, **options)
            return handler

        return register

    # Extensions.

    def extension(self, kind: type[A]) -> A:
        """Return the part of an extension that this scheduler has, by its class."""
        for one in self.attached.values():
            if isinstance(one, kind):
                return one
        there = ", ".join(self.attached) or "none"
        raise NotFound("extension", f"{kind.__name__} (this scheduler has: {there}); use Scheduler(extensions=[…])")

    def _host(self, access: UnitOfWork) -> Host:
        runtime = self._runtime
        return Host(
            clock=self._clock,
            work=access,
            job_types=runtime.job_types,
            probe=self.probe,
            find=lambda name: self.attached.get(name),
            intake=runtime.intake,
            queue=runtime.queue,
            dispatcher=runtime.dispatcher,
            retries=runtime.retries,
            finisher=runtime.finisher,
            webhooks=runtime.webhooks,
            offices=self.offices,
            bulk=self.bulk,
        )

    # Life.

    async def start(self) -> Recovered:
        """Opens the store, repairs what the last life left (section 15), and begins to dispatch."""
        return await self._life.start()

    def wait_for(self, obstacle: str) -> None:
        """Says to callers, until the scheduler has started, what the start waits for."""
        self._life.wait_for(obstacle)

    @property
    def recovered(self) -> Recovered:
        return self._life.recovered

    async def process(self) -> None:
        """Looks at every office's queue and starts what may start: what happens by itself, asked for by hand.

        Only needed after a job type was registered while the scheduler was running.
        """
        await self._life.process()

    async def stop(self, grace_seconds: float | None = None) -> bool:
        """Dispatches nothing more and waits for what runs; after the grace time, or when called again, interrupts it.

        Returns whether everything that ran has been stored.
        """
        return await self._life.stop(self.shutdown_grace_seconds if grace_seconds is None else grace_seconds)

    def hurry(self) -> None:
        """A scheduler that is stopping waits no longer: what still runs is interrupted."""
        self._life.hurry()

    @property
    def is_draining(self) -> bool:
        return self._access.is_draining

    async def readiness(self) -> str | None:
        """Why it does not take and run jobs now; None if it does."""
        return await self._readiness.problem()

    def run(self) -> None:
        """Runs until SIGTERM or SIGINT, and then stops gracefully; a second signal interrupts what still runs.

        The process ends with 0 if everything that ran was stored, else with 1.
        """
        if not asyncio.run(self._run_until_signalled()):
            raise SystemExit(1)

    async def _run_until_signalled(self) -> bool:
        signalled = self._life.listen_for_signals()
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

    async def _crash(self) -> None:
        """For `testing.crash`."""
        await self._life.crash()

    # Jobs in.

    async def submit(
        self, job_type: str | None = None, params: Mapping[str, Json] | None = None, **options: Any
    ) -> Job:
        """Puts a job into the queue; durable when it returns. Options are the fields of `NewJob`."""
        key = options.pop("idempotency_key", None)
        new = arguments.new_job(job_type=job_type, params={} if params is None else params, **options)
        return (await self.accept([new], key))[0].job

    async def accept(
        self, wanted: Sequence[NewJob], idempotency_key: str | None = None, route: str = "jobs"
    ) -> list[Accepted]:
        """As `submit` and `submit_many`, but says of each job whether it is new or was there already."""
        return await self._access.create(
            lambda tx: self._intake.accept(tx, wanted, self._clock.now(), idempotency_key, route), rows=len(wanted)
        )

    async def submit_many(self, wanted: Sequence[NewJob], idempotency_key: str | None = None) -> list[Job]:
        """Many jobs in one transaction, all or none; they may depend on each other by `key`."""
        wanted = arguments.with_instants(wanted)
        return [one.job for one in await self.accept(wanted, idempotency_key, "batch")]

    async def submit_group(
        self,
        wanted: Sequence[NewJob],
        mode: GroupMode | str = GroupMode.SEQUENTIAL,
        on_failure: OnFailure | str = OnFailure.STOP,
        name: str | None = None,
        idempotency_key: str | None = None,
    ) -> tuple[Group, list[Job]]:
        """Jobs that belong together, one after the other or side by side."""
        group, accepted = await self.accept_group(wanted, mode, on_failure, name, idempotency_key)
        return group, [one.job for one in accepted]

    async def accept_group(
        self,
        wanted: Sequence[NewJob],
        mode: GroupMode | str = GroupMode.SEQUENTIAL,
        on_failure: OnFailure | str = OnFailure.STOP,
        name: str | None = None,
        idempotency_key: str | None = None,
    ) -> tuple[Group, list[Accepted]]:
        """As `submit_group`, but says of each job whether it is new or was there already."""
        checked_mode, checked_failure = (
            arguments.choice(GroupMode, mode, "mode"),
            arguments.choice(OnFailure, on_failure, "on_failure"),
        )
        wanted = arguments.with_instants(wanted)
        return await self._access.create(
            lambda tx: self._intake.accept_group(
                tx, wanted, checked_mode, checked_failure, name, self._clock.now(), idempotency_key
            ),
            rows=len(wanted),
        )

    async def retry(self, run_id: str, priority: int | None = None) -> Retried:
        """Retries a FAILED run by hand: a new job, or its waiting retry brought forward."""
        return await self._access.create(
            lambda tx: self._retries.retry_by_hand(tx, run_id, priority, self._clock.now())
        )

    # Jobs changed.

    async def cancel(self, job_id: str, reason: str | None = None, interrupt: bool | None = None) -> Cancelled:
        return await self._access.write(
            lambda tx: self._finisher.cancel(tx, job_id, reason, interrupt, self._clock.now())
        )

    async def cancel_group(
        self, group_id: str, reason: str | None = None, interrupt: bool | None = None
    ) -> list[Cancelled]:
        return await self._access.write(
            lambda tx: self._finisher.cancel_group(tx, group_id, reason, interrupt, self._clock.now())
        )

    async def move(
        self,
        job_id: str,
        *,
        to: str | None = None,
        before: str | None = None,
        after: str | None = None,
        place: int | None = None,
    ) -> Job:
        return await self._access.write(
            lambda tx: self._queue.move(tx, job_id, self._clock.now(), to=to, before=before, after=after, place=place)
        )

    async def reorder(self, job_ids: Sequence[str]) -> list[Job]:
        return await self._access.write(
            lambda tx: self._queue.reorder(tx, job_ids, self._clock.now()), rows=len(job_ids)
        )

    async def change(self, job_id: str, **changes: Any) -> Job:
        """`params`, `priority`, `urgent`, `scheduled_for` or `title` of a job that is still queued (INV-001)."""
        wanted = checked(changes)
        return await self._access.write(lambda tx: self._changes.apply(tx, job_id, wanted, self._clock.now()))

    async def pause(
        self, *, office_id: str | None = None, job_type: str | None = None, resource: str | None = None
    ) -> None:
        """An office, a job type, a resource, or (with nothing said) the whole scheduler; running work goes on."""
        scope, name = arguments.scope(office_id, job_type, resource)
        await self._access.write(lambda tx: self._queue.pause(tx, scope, name, self._clock.now()))

    async def resume(
        self, *, office_id: str | None = None, job_type: str | None = None, resource: str | None = None
    ) -> None:
        scope, name = arguments.scope(office_id, job_type, resource)
        await self._access.write(lambda tx: self._queue.resume(tx, scope, name, self._clock.now()))

    # Direct requests.

    async def run_direct(self, job_type: str, params: Mapping[str, Json] | None = None, **options: Any) -> Direct:
        """Waits for the next slot, runs, and returns how it went. Options are the fields of `NewDirect`.

        Cancelled while it waits, it gives its place up; while its work runs, the work is cancelled unless `detach`.
        """
        wanted = arguments.new_direct(job_type=job_type, params={} if params is None else params, **options)
        self._refuse_unless_taking()
        return await self._direct.execute(self._access.store, wanted)

    async def stream_direct(
        self, job_type: str, params: Mapping[str, Json] | None = None, **options: Any
    ) -> AsyncGenerator[Update, None]:
        """As `run_direct`, but hears its place, progress and output as they come, and the result at the end."""
        wanted = arguments.new_direct(job_type=job_type, params={} if params is None else params, **options)
        self._refuse_unless_taking()
        # Closed at once when the caller leaves, so that it hangs up then and not when the memory is cleaned.
        async with aclosing(self._direct.stream(self._access.store, wanted)) as updates:
            async for update in updates:
                yield update

    def _refuse_unless_taking(self) -> None:
        if self._access.is_draining:
            raise Draining("the scheduler is stopping and takes no direct requests")
        if self._dispatcher.is_held:
            raise Draining(f"node {self.node} is being drained and takes no direct requests: ask another node")
        self._access.refuse_new_work()

    async def direct(self, direct_id: str) -> Direct:
        return arguments.found(
            await self._access.read(lambda tx: direct.get(tx, direct_id)), "direct execution", direct_id
        )

    async def cancel_direct(self, direct_id: str) -> Direct:
        return await self._access.write(lambda tx: self._direct.cancel(tx, direct_id, self._clock.now()))

    # Resources.

    def probe(self, resource: str, probe: Probe) -> None:
        """How to ask whether a resource that was held because it did not answer does so again."""
        self._runtime.outages.set_probe(resource, probe)

    # Reads.

    async def job(self, job_id: str) -> Job:
        return arguments.found(await self._access.read(lambda tx: jobs.get(tx, job_id)), "job", job_id)

    async def run_of(self, job_id: str) -> Run | None:
        """The run of a job, if it was dispatched."""
        return await self._access.read(lambda tx: runs.of_job(tx, job_id))

    async def run_by_id(self, run_id: str) -> Run:
        return arguments.found(await self._access.read(lambda tx: runs.get(tx, run_id)), "run", run_id)

    async def chain(self, job_id: str) -> list[Job]:
        """A job with all its retries, from the first on."""
        job = await self.job(job_id)
        return await self._access.read(lambda tx: jobs.chain(tx, job.chain_id))

    async def group(self, group_id: str) -> Group:
        return arguments.found(await self._access.read(lambda tx: groups.get(tx, group_id)), "group", group_id)

    async def members(self, group_id: str) -> list[Job]:
        """Every job of a group, by place; retries follow what they retry."""
        await self.group(group_id)
        return await self._access.read(lambda tx: jobs.members(tx, group_id))

    async def queue(self, office_id: str = "default", after: Place | None = None, limit: int = 500) -> list[Job]:
        """The office's queue in its order, waiting jobs too; from a place on."""
        await self.offices.get(office_id)
        return await self._access.read(lambda tx: jobs.queue(tx, office_id, after, limit))

    async def running(self, office_id: str = "default") -> list[Job]:
        await self.offices.get(office_id)
        return await self._access.read(lambda tx: jobs.running_of(tx, office_id))

    def progress(self, run_id: str) -> tuple[float | None, str] | None:
        """How far a run is (0 to 1, and a text), while it runs."""
        return self._executor.progress(run_id)

    def events(self, after: int = 0) -> AsyncIterator[Event]:
        """Every event from a number on, oldest first, and then each new one as it comes."""
        return self._events.follow(self._access.store, after)

    def event_pages(self, after: int = 0) -> AsyncGenerator[EventPage, None]:
        """The same, as many at a time as are there: for who passes them on."""
        return self._events.follow_pages(self._access.store, after)

    async def wait(self, job_id: str) -> Ended:
        """Waits until the chain of a job has ended, retries included."""
        job = await self.job(job_id)
        return await self._waiters.wait(job.chain_id)
