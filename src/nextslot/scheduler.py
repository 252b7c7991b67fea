"""The composition: wires the engine to a store and gives it a face. `Scheduler` is the Python API."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from . import arguments
from .chance import Chance, SystemChance
from .clock import Clock, Instant, SharedClock, SystemClock
from .engine.audit import AuditLog
from .engine.bulk import BulkActions
from .engine.cluster import Cluster, Duties, Local
from .engine.deliveries import DeliveryWorker, Sender
from .engine.dependencies import DependencyResolver
from .engine.direct import DirectExecutionHandler, Update
from .engine.dispatcher import STARVATION_AFTER_SECONDS, Dispatcher
from .engine.durations import Durations
from .engine.endings import Cancelled, Endings
from .engine.events import EventLog
from .engine.executor import Executor
from .engine.groups import GroupProgress
from .engine.intake import Accepted, Intake
from .engine.keys import KeyRing
from .engine.kit import Kit
from .engine.lanes import Lanes
from .engine.nodes import NodeRegistry
from .engine.office_jobs import OfficeJobs
from .engine.offices import OfficeSettings
from .engine.outages import Outages, Probe
from .engine.queue import QueueManager
from .engine.recovery import Recovered, Recovery
from .engine.replay import Rules
from .engine.retention import Retention
from .engine.retry import Retried, RetryController
from .engine.runner import Runner
from .engine.schedule_settings import ScheduleSettings
from .engine.schedules import ScheduleTrigger
from .engine.templates import TemplateSettings
from .engine.timeouts import TimeoutManager
from .engine.timer import Timer
from .engine.webhooks import WebhookService, WebhookSettings
from .engine.why import Explainer
from .engine.workers import Workers
from .errors import Draining, Invalid, NextslotError, Unavailable
from .faces.access import Access
from .faces.bulk import Bulk
from .faces.files import Files
from .faces.forecast import Forecasts
from .faces.keys import Keys
from .faces.legacy import Legacy
from .faces.lists import Lists
from .faces.nodes import Nodes
from .faces.offices import Offices
from .faces.retention import Purges
from .faces.schedules import Schedules
from .faces.templates import Templates
from .faces.tuning import Tunable, Tuning
from .faces.webhooks import Webhooks
from .handlers.catalog import Catalog
from .handlers.files import RunFiles
from .handlers.similarity import Known
from .handlers.threads import DaemonThreads, Threads
from .meters import Meters, Unmeasured
from .model import (
    URGENT,
    Decision,
    Direct,
    Event,
    FailureKind,
    Group,
    GroupMode,
    Job,
    Json,
    NewJob,
    OnFailure,
    Run,
    RunStatus,
    State,
    default_office,
)
from .policy.limits import ConcurrencyPolicy, Limits
from .store import direct, groups, jobs, lanes, runs
from .store.jobs import Place
from .store.membership import LeaseTimes
from .store.nodes import Card
from .store.open import abandon_store, data_directory, is_shared, open_store
from .store.store import Store, Tx
from .tracing import Tracer, Untraced

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from .handlers.llm import LanguageModels

F = TypeVar("F", bound=Callable[..., Any])

# Of more stories than this a new one is compared with the newest.
MOST_STORIES = 10_000
# How long work that was told to stop at shutdown has, before it is left behind.
STOP_GRACE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a chain ended: its last job, and that job's run if it had one."""

    job: Job
    run: Run | None

    @property
    def state(self) -> State:
        return self.job.state

    @property
    def result(self) -> Json:
        return self.run.result if self.run else None

    @property
    def error(self) -> str | None:
        return self.run.error if self.run else self.job.cancel_reason


class Scheduler:
    """A durable job scheduler in this process, on one database.

    `async with scheduler:` recovers what the last life left, then runs; leaving it stops gracefully.
    """

    def __init__(
        self,
        url: str = "sqlite:///nextslot.db",
        *,
        data: Path | str | None = None,
        limits: ConcurrencyPolicy | None = None,
        node: str | None = None,
        node_running: int = 0,
        node_resources: Mapping[str, int] | None = None,
        lease: LeaseTimes | None = None,
        starvation_after_seconds: float = STARVATION_AFTER_SECONDS,
        shutdown_grace_seconds: float | None = None,
        synchronous: str = "FULL",
        webhooks: WebhookSettings | None = None,
        clock: Clock | None = None,
        chance: Chance | None = None,
        threads: Threads | None = None,
        sender: Sender | None = None,
        is_threaded: bool = True,
        meters: Meters | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._url = url
        self.node = node or default_node(url)
        self._synchronous = synchronous
        self._is_threaded = is_threaded
        self.shutdown_grace_seconds = shutdown_grace_seconds
        self._clock = clock or (SharedClock() if is_shared(url) else SystemClock())
        self.meters: Meters = meters or Unmeasured()
        self.tracer: Tracer = tracer or Untraced()
        policy = limits or Limits()
        self.job_types = Catalog(self._clock)
        self._files = RunFiles(Path(data) if data is not None else data_directory(url))
        self._events = EventLog(self.meters)
        self._timer = Timer(self._clock)
        self._lanes = Lanes(policy)
        chance = chance or SystemChance()
        kit = Kit(
            self._clock,
            chance,
            self.job_types,
            self._lanes,
            Workers(self.node, node_running, node_resources),
            self._timer,
            self._events,
            WebhookService(chance, self._events, webhooks or WebhookSettings()),
            self.meters,
            self.tracer,
        )
        self._workers = kit.workers
        self._queue = QueueManager(kit)
        self._outages = Outages(kit)
        self._offices = OfficeSettings(self._lanes)
        group_progress = GroupProgress(kit)
        resolver = DependencyResolver(kit)
        self._retries = RetryController(kit, self._queue, group_progress)
        self._endings = Endings(kit, self._retries, resolver, group_progress, self._outages)
        self._intake = Intake(kit, self._queue, resolver, self._endings)
        threads = threads or DaemonThreads()
        self._executor = Executor(self._clock, self.job_types, threads, self._files)
        self._direct = DirectExecutionHandler(kit, self._intake, self._outages, self.node, self._executor.stop)
        self._dispatcher = Dispatcher(kit, self._direct, self._outages, starvation_after_seconds)
        self._trigger = ScheduleTrigger(kit, self._intake)
        self._recovery = Recovery(kit, self._endings, self._direct, self._outages, self._trigger)
        self._webhooks = kit.webhooks
        self._deliveries = DeliveryWorker(kit, lambda: sender or _http_sender(threads, kit.webhooks))
        self._webhooks.connect(self._deliveries.wake)
        self._timeouts = TimeoutManager(
            kit, self._endings, self._direct, self._outages, self._executor.stop, self._deliveries.look, self._trigger
        )
        self._endings.connect(stop=self._executor.stop, chain_ended=self._chain_ended)
        self._audit = AuditLog(kit.chance)
        self._access = Access(self._clock, self._audit, self.tracer)
        self.files = Files(self._files, self.node)
        self._retention = Retention(self._clock, self._files, threads)
        self.retention = Purges(self._access, self._retention)
        schedule_settings = ScheduleSettings(kit, self._intake, self._trigger, self._audit)
        template_settings = TemplateSettings(kit, self._intake, schedule_settings, self._audit)
        self.templates = Templates(self._access, template_settings)
        self.schedules = Schedules(self._access, schedule_settings, self._trigger)
        self.keys = Keys(self._access, KeyRing(kit.chance), self._audit)
        self.lists = Lists(self._access)
        self.webhooks = Webhooks(self._access, self._webhooks, self._audit)
        self.bulk = Bulk(self._access, BulkActions(self._endings, self._retries, self._intake))
        office_jobs = OfficeJobs(kit, self._intake, self._queue, self._retries, self._endings)
        self.legacy = Legacy(self._access, self.job_types, self._intake, self._endings)
        self.offices = Offices(
            self._access, kit.chance, self._offices, office_jobs, self._queue, self.bulk, self._audit
        )
        tunable = Tunable(self._offices, self._dispatcher, self._intake, self._direct, self._webhooks, self._deliveries)
        self.tuning = Tuning(self._access, self._audit, tunable)
        self._cluster = self._new_cluster(kit, lease or LeaseTimes())
        self.nodes = Nodes(self._access, self._cluster, self._audit)
        self._store: Store | None = None
        self._durations = Durations()
        self.forecast = Forecasts(
            self._access,
            Explainer(kit, self._dispatcher, self._cluster.registry),
            self._rules,
            self._durations,
            self._executor.progress,
            threads,
        )
        self._runner: Runner | None = None
        self._hurry, self._stopped = asyncio.Event(), asyncio.Event()
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self.recovered = Recovered()

    def _new_cluster(self, kit: Kit, times: LeaseTimes) -> Cluster:
        workers, host, release = kit.workers, socket.gethostname(), version("nextslot")
        card = Card(self.node, host, os.getpid(), release, workers.most, workers.resources, [])
        local = Local(
            self._dispatcher,
            self._executor,
            self._direct,
            self._events,
            self.keys.forget,
            self._look_at_waiters,
            self.job_types.renew,
            self._clock.adjust if isinstance(self._clock, SharedClock) else _ignore,
        )
        duties = Duties(self._timeouts, self._deliveries, self._retention, self._recovery)
        return Cluster(kit, NodeRegistry(kit, card), duties, local, times)

    # Job types.

    def job_type(self, name: str, **options: Any) -> Callable[[F], F]:
        """Registers a function, sync or async, as the handler of a job type; see `job_types.add` for the options."""

        def register(handler: F) -> F:
            self.job_types.add(name, handler, **options)
            return handler

        return register

    def use_language_models(self, models: "LanguageModels | None" = None) -> None:
        """Adds `story` and `research`, and asks Ollama itself when it was held because it did not answer."""
        # Imported here because a scheduler without language models needs no HTTP client in its memory.
        from .handlers import llm

        models = models or llm.LanguageModels()
        self.job_types.add_language_models(models, self._earlier_stories)
        self.probe("ollama", models.answers)

    async def _earlier_stories(self) -> list[Known]:
        found = await self._access.read(lambda tx: runs.story_results(tx, MOST_STORIES))
        return [
            Known(story["fingerprint"], story["sketch"], story["story_id"])
            for result in found
            for story in result.get("stories", ())
        ]

    # Life.

    async def start(self) -> Recovered:
        """Opens the store, repairs what the last life left (section 15), and begins to dispatch."""
        if self._store is not None:
            raise NextslotError("this scheduler has been started already")
        store = self._store = self._open_store()
        self._access.is_draining = False
        self._events.open()
        self._hurry, self._stopped = asyncio.Event(), asyncio.Event()
        self._runner = Runner(
            self._clock,
            store,
            self._executor,
            self._endings,
            self._direct,
            self._durations.note,
            self.meters,
            self.tracer,
        )
        try:
            await store.write(lambda tx: self._offices.install(tx, default_office(self._clock.now())))
            await store.write(self._webhooks.load)
            self.recovered = await self._cluster.start(store, self._runner)
            self._dispatcher.start(self._runner.launch, await store.read(lanes.last_turn))
            # Callers from here on: until now they hear that it is starting.
            self._access.open(store)
            await self.process()
        except BaseException:
            # Else the database would stay locked, with nobody to stop.
            if self._store is store:
                await self.stop(grace_seconds=0)
            raise
        return self.recovered

    def _open_store(self) -> Store:
        return open_store(
            self._url,
            self._close_transaction,
            node=self.node,
            refresh=self._refresh,
            threaded=self._is_threaded,
            synchronous=self._synchronous,
            meters=self.meters,
        )

    async def process(self) -> None:
        """Looks at every office's queue and starts what may start: what happens by itself, asked for by hand.

        Only needed after a job type was registered while the scheduler was running.
        """
        await self._access.write(lambda tx: self._lanes.slate(tx).look_everywhere())

    async def stop(self, grace_seconds: float | None = None) -> bool:
        """Dispatches nothing more and waits for what runs; after the grace time, or when called again, interrupts it.

        Returns whether everything that ran has been stored.
        """
        if self._access.is_draining:
            self._hurry.set()
        store, runner = self._store, self._runner
        if store is None or runner is None:
            return True
        if self._access.is_draining:
            await self._stopped.wait()
            return runner.has_stored_all
        self._access.is_draining = True
        self._dispatcher.stop()
        await self._direct.drain(store)
        log.info("stopping: %d jobs are running", len(runner.running))
        grace = self.shutdown_grace_seconds if grace_seconds is None else grace_seconds
        await self._wait_for_the_end(runner, grace)
        await self._cluster.leave(runner.has_stored_all)
        await self._direct.close()
        await self.job_types.close()
        self._events.close()
        await store.close()
        self._access.close()
        self._store = self._runner = None
        self._release_waiters()
        self._stopped.set()
        return runner.has_stored_all

    def hurry(self) -> None:
        """A scheduler that is stopping waits no longer: what still runs is interrupted."""
        self._hurry.set()

    @property
    def is_draining(self) -> bool:
        return self._access.is_draining

    async def readiness(self) -> str | None:
        """Why it does not take and run jobs now; None if it does."""
        if self.is_draining:
            return "the scheduler is stopping: running work finishes, and no new jobs are taken"
        if not self._access.is_open:
            return "the scheduler is starting: it repairs what the last life left"
        try:
            await self._access.read(lambda tx: None)
        except NextslotError as error:
            return f"the store does not answer: {error}"
        return None

    async def _wait_for_the_end(self, runner: Runner, grace_seconds: float | None) -> None:
        """Running work finishes; once it is told to stop, it has a while; then it is left to the next recovery."""
        if not await self._within(grace_seconds, runner.idle(), self._hurry.wait()) or runner.running:
            self._executor.stop_all(FailureKind.INTERRUPTED)
            patience = STOP_GRACE_SECONDS + self._executor.longest_grace()
            if not await self._within(patience, runner.idle()):
                left = ", ".join(claim.job_id for claim in runner.running)
                log.error("these jobs ignore the signal to stop and are left to the next start: %s", left)
                await runner.abandon()

    async def _within(self, seconds: float | None, *ends: Any) -> bool:
        """Whether one of these came within that time."""
        tasks = [asyncio.ensure_future(end) for end in ends]
        clock = asyncio.ensure_future(self._clock.sleep(seconds)) if seconds is not None else None
        await asyncio.wait([*tasks, clock] if clock else tasks, return_when=asyncio.FIRST_COMPLETED)
        came = any(task.done() for task in tasks)
        for task in [*tasks, clock] if clock else tasks:
            task.cancel()
        return came

    def run(self) -> None:
        """Runs until SIGTERM or SIGINT, and then stops gracefully; a second signal interrupts what still runs.

        The process ends with 0 if everything that ran was stored, else with 1.
        """
        if not asyncio.run(self._run_until_signalled()):
            raise SystemExit(1)

    async def _run_until_signalled(self) -> bool:
        loop, signalled = asyncio.get_running_loop(), asyncio.Event()

        def told() -> None:
            if signalled.is_set():
                self._hurry.set()
            signalled.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, told)
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
        now = self._clock.now()
        return await self._access.create(
            lambda tx: self._intake.accept(tx, wanted, now, idempotency_key, route), rows=len(wanted)
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
        now = self._clock.now()
        return await self._access.create(
            lambda tx: self._intake.accept_group(tx, wanted, checked_mode, checked_failure, name, now, idempotency_key),
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
            lambda tx: self._endings.cancel(tx, job_id, reason, interrupt, self._clock.now())
        )

    async def cancel_group(
        self, group_id: str, reason: str | None = None, interrupt: bool | None = None
    ) -> list[Cancelled]:
        return await self._access.write(
            lambda tx: self._endings.cancel_group(tx, group_id, reason, interrupt, self._clock.now())
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
        unknown = sorted(changes.keys() - {"params", "priority", "urgent", "scheduled_for", "title"})
        if unknown or not changes:
            raise Invalid("params, priority, urgent, scheduled_for and title can be changed", *unknown[:1])
        return await self._access.write(lambda tx: self._change(tx, job_id, changes, self._clock.now()))

    def _change(self, tx: Tx, job_id: str, changes: Mapping[str, Any], now: Instant) -> Job:
        job = self._queue.queued(tx, job_id)
        if "params" in changes:
            job = self._intake.change_params(tx, job_id, changes["params"], now)
        if "scheduled_for" in changes:
            job = self._queue.reschedule(tx, job_id, arguments.instant(changes["scheduled_for"], "scheduled_for"), now)
        if "title" in changes:
            job = self._queue.rename(tx, job_id, changes["title"])
        if "urgent" in changes:
            usual = 0 if job.priority == URGENT else job.priority
            wanted = URGENT if changes["urgent"] else changes.get("priority", usual)
            job = self._queue.change_priority(tx, job_id, wanted, now)
        elif "priority" in changes:
            job = self._queue.change_priority(tx, job_id, changes["priority"], now)
        return job

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
        self._refuse_while_draining()
        return await self._direct.execute(self._access.store, wanted)

    async def stream_direct(
        self, job_type: str, params: Mapping[str, Json] | None = None, **options: Any
    ) -> AsyncGenerator[Update, None]:
        """As `run_direct`, but hears its place, progress and output as they come, and the result at the end."""
        wanted = arguments.new_direct(job_type=job_type, params={} if params is None else params, **options)
        self._refuse_while_draining()
        # Closed at once when the caller leaves, so that it hangs up then and not when the memory is cleaned.
        async with aclosing(self._direct.stream(self._access.store, wanted)) as updates:
            async for update in updates:
                yield update

    def _refuse_while_draining(self) -> None:
        if self._access.is_draining:
            raise Draining("the scheduler is stopping and takes no direct requests")
        if self._dispatcher.is_held:
            raise Draining(f"node {self.node} is being drained and takes no direct requests: ask another node")

    async def direct(self, direct_id: str) -> Direct:
        return arguments.found(
            await self._access.read(lambda tx: direct.get(tx, direct_id)), "direct execution", direct_id
        )

    async def cancel_direct(self, direct_id: str) -> Direct:
        return await self._access.write(lambda tx: self._direct.cancel(tx, direct_id, self._clock.now()))

    # Resources.

    def probe(self, resource: str, probe: Probe) -> None:
        """How to ask whether a resource that was held because it did not answer does so again."""
        self._outages.set_probe(resource, probe)

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

    def event_pages(self, after: int = 0) -> AsyncIterator[list[Event]]:
        """The same, as many at a time as are there: for who passes them on."""
        return self._events.follow_pages(self._access.store, after)

    async def wait(self, job_id: str) -> Ended:
        """Waits until the chain of a job has ended, retries included."""
        job = await self.job(job_id)
        with self._events.listening():
            while True:
                ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                waiters = self._waiters.setdefault(job.chain_id, [])
                waiters.append(ended)
                try:
                    found = await self._access.read(lambda tx: _end_of_chain(tx, job.chain_id))
                    if found is not None:
                        return found
                    await ended
                finally:
                    waiters.remove(ended)
                    if not waiters:
                        self._waiters.pop(job.chain_id, None)

    # The machinery.

    def _rules(self) -> Rules:
        """As they are now: they can be changed while it runs."""
        runs_elsewhere, patience = self._workers.runs_elsewhere, self._dispatcher.starvation_after_seconds
        return Rules(self._lanes.policy, self.job_types, runs_elsewhere, patience)

    def _refresh(self, tx: Tx) -> None:
        """The beginning of a transaction that finds that another node has changed what is kept in memory here."""
        self._webhooks.load(tx)
        self._cluster.refresh(tx)

    def _close_transaction(self, tx: Tx) -> None:
        """The end of every writing transaction: the next jobs are claimed, the events get their numbers, and
        what tells of them is put into the outbox."""
        self._timeouts.expire_if_late(tx)
        self._dispatcher.claim(tx)
        self._events.append(tx)
        self._webhooks.store(tx)

    async def _crash(self) -> None:
        """For `testing.crash`: what is in memory is gone, and the file is free for another scheduler."""
        self._dispatcher.stop()
        self._timer.stop()
        if self._store is not None and self._runner is not None:
            abandon_store(self._store)
            await self._runner.abandon()
            await self._cluster.abandon()
        self._access.close()
        self._store = self._runner = None

    def _chain_ended(self, chain_id: str) -> None:
        for waiter in self._waiters.get(chain_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def _look_at_waiters(self) -> None:
        """Chains may have ended on another node."""
        if self._waiters and self._access.is_open:
            chains = list(self._waiters)
            for chain_id in await self._access.read(lambda tx: [one for one in chains if _end_of_chain(tx, one)]):
                self._chain_ended(chain_id)

    def _release_waiters(self) -> None:
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(Unavailable("the scheduler was stopped before this job ended"))


def default_node(url: str) -> str:
    """What a node is called that was given no name."""
    return socket.gethostname() if is_shared(url) else "local"


def _ignore(ahead: int) -> None:
    """A clock that was given is right."""


def _http_sender(threads: Threads, service: WebhookService) -> Sender:
    # Imported here because a scheduler without webhooks needs no HTTP client in its memory.
    from .engine.endpoints import HttpSender

    return HttpSender(threads, service)


def _end_of_chain(tx: Tx, chain_id: str) -> Ended | None:
    last = jobs.chain(tx, chain_id)[-1]
    is_undecided = last.outcome is RunStatus.FAILED and last.decision in (None, Decision.UNDECIDED)
    return Ended(last, runs.of_job(tx, last.job_id)) if last.has_ended and not is_undecided else None
