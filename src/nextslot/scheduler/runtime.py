"""Creates the components of the engine and connects them. `startup_and_shutdown` starts and stops them."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from nextslot.domain import FailureKind
from nextslot.domain.group_failure import GroupFailurePolicy
from nextslot.domain.lease_times import LeaseTimes
from nextslot.domain.limits import ConcurrencyPolicy
from nextslot.engine import effects
from nextslot.engine.cluster.clock_steps import ClockSteps
from nextslot.engine.cluster.cluster import Cluster, NodeParts
from nextslot.engine.cluster.leader_duties import Leader
from nextslot.engine.cluster.node_registry import NodeRegistry
from nextslot.engine.cluster.recovery import Recovery
from nextslot.engine.direct.direct_requests import DirectExecutionHandler
from nextslot.engine.dispatch.dispatcher import Dispatcher
from nextslot.engine.dispatch.limits_and_slots import Lanes, Workers
from nextslot.engine.dispatch.resource_outages import Outages
from nextslot.engine.effects import WorkKind
from nextslot.engine.engine_context import EngineContext
from nextslot.engine.events.event_log import EventLog
from nextslot.engine.execution.executor import Executor
from nextslot.engine.execution.runner import Runner, WorkFinisher
from nextslot.engine.execution.shipping import Shipping
from nextslot.engine.execution.stall_alarm import StallAlarm
from nextslot.engine.execution.timeouts import TimeoutManager, Timer
from nextslot.engine.finish.bulk_actions import BulkActions
from nextslot.engine.finish.dependents import DependencyResolver
from nextslot.engine.finish.group_progress import GroupProgress
from nextslot.engine.finish.job_finisher import JobFinisher
from nextslot.engine.finish.retries import RetryController
from nextslot.engine.forecast.forecast_simulator import DispatchRules
from nextslot.engine.forecast.run_durations import Durations
from nextslot.engine.forecast.why import Explainer
from nextslot.engine.placement.placed_executor import PlacedExecutor
from nextslot.engine.placement.placed_runner import PlacedRunner
from nextslot.engine.retention import Retention
from nextslot.engine.schedules.schedule_settings import ScheduleSettings
from nextslot.engine.schedules.schedule_trigger import ScheduleTrigger
from nextslot.engine.schedules.template_settings import TemplateSettings
from nextslot.engine.settings.key_ring import KeyRing
from nextslot.engine.settings.office_settings import OfficeSettings
from nextslot.engine.settings.stored_bytes import StoredBytes
from nextslot.engine.signals.signals import Signals
from nextslot.engine.submit.inbox import Inbox
from nextslot.engine.submit.intake import Intake
from nextslot.engine.submit.past_work import PastWork
from nextslot.engine.submit.queue_order import QueueManager
from nextslot.engine.webhooks.delivery_worker import DeliveryWorker, Sender
from nextslot.engine.webhooks.webhook_outbox import WebhookService, WebhookSettings
from nextslot.executors.gpus import GpuWatch
from nextslot.executors.job_type_catalog import Catalog
from nextslot.executors.run_files import RunFiles
from nextslot.executors.shared_run_files import SharedRunFiles
from nextslot.executors.threads import Threads
from nextslot.services.files_of_nodes import FilesOfNodes
from nextslot.services.forecast import ForecastService
from nextslot.services.inbox import InboxService
from nextslot.services.runtime_settings import SettingsService
from nextslot.services.unit_of_work import UnitOfWork
from nextslot.store.contract import Tx
from nextslot.store.open_store import is_shared
from nextslot.store.tables.nodes import NodeInfo
from nextslot.system.clock import Clock
from nextslot.system.disk_space import DiskSpace
from nextslot.system.randomness import Chance
from nextslot.system.watchdog import Watchdog
from nextslot.telemetry.meters import Meters
from nextslot.telemetry.tracing import Tracer

from .readiness import Readiness
from .waiters import Waiters


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What the engine gets from outside: clock, randomness, threads, disk space, webhook sender, meters, tracer."""

    clock: Clock
    chance: Chance
    threads: Threads
    disk: DiskSpace
    sender: Sender | None
    meters: Meters
    tracer: Tracer


class Runtime:
    def __init__(
        self,
        given: Dependencies,
        access: UnitOfWork,
        workers: Workers,
        policy: ConcurrencyPolicy,
        group_failure: GroupFailurePolicy,
        webhooks: WebhookSettings,
        starvation_after_seconds: float,
        stall_alarm_seconds: float | None,
        data: Path,
        lease: LeaseTimes,
        shared: SharedRunFiles | None = None,
        address: str | None = None,
    ) -> None:
        self.watchdog = Watchdog(given.meters)
        self.clock, self.meters, self.tracer, self.threads = given.clock, given.meters, given.tracer, given.threads
        self.chance, self.disk, self.audit = given.chance, given.disk, access.audit
        self.workers = workers
        self.job_types = Catalog()
        self.files = RunFiles(data, shared=shared)
        self.files_of_nodes = FilesOfNodes(access, given.clock, workers.node)
        self.shipping = Shipping(given.clock, self.files, given.threads)
        self.job_types.guardians.private_directories = self.files.directories
        self.events = EventLog(given.meters, given.clock)
        self.timer = Timer()
        self.lanes = Lanes(policy)
        self.webhooks = WebhookService(given.chance, self.events, webhooks)
        engine = self.engine = EngineContext(
            given.clock,
            given.chance,
            self.job_types,
            self.lanes,
            workers,
            self.timer,
            self.events,
            self.webhooks,
            given.meters,
            given.tracer,
        )
        self.queue = QueueManager(engine)
        self.outages = Outages(engine)
        self.quotas = access.quotas
        access.stored = StoredBytes(given.clock, self.files, given.threads)
        self.offices = OfficeSettings(self.lanes, self.quotas, self.webhooks, self.timer)
        group_progress = GroupProgress(engine, group_failure)
        resolver = DependencyResolver(engine)
        self.retries = RetryController(engine, self.queue, group_progress)
        self.finisher = JobFinisher(engine, self.retries, resolver, group_progress, self.outages)
        self.signals = Signals(engine, self.finisher)
        self.intake = Intake(engine, self.queue, resolver, self.finisher)
        self.past = PastWork(engine)
        self.executor = Executor(given.clock, self.job_types, given.threads, self.files, stall_alarm_seconds)
        self.placed = PlacedExecutor(engine, self.outages, self.files, given.threads)
        self.direct = DirectExecutionHandler(engine, self.intake, self.outages, workers.node, self.quotas)
        self.dispatcher = Dispatcher(engine, self.direct, self.outages, starvation_after_seconds)
        self.trigger = ScheduleTrigger(engine, self.intake, self.quotas, access.stored)
        self.recovery = Recovery(engine, self.finisher, self.direct, self.outages, self.trigger, self.files)
        self.deliveries = DeliveryWorker(
            engine, lambda: given.sender or _http_sender(given, self.webhooks), self.quotas
        )
        self.timeouts = TimeoutManager(engine, self.finisher, self.direct, self.outages, self.trigger)
        self.clock_steps = ClockSteps(engine, workers.node, self.trigger, self.deliveries)
        self.retention = Retention(given.clock, self.files, given.threads)
        self.durations = Durations()
        self.keys = KeyRing(given.chance)
        self.schedule_settings = ScheduleSettings(engine, self.intake, self.trigger, self.audit)
        self.template_settings = TemplateSettings(engine, self.intake, self.schedule_settings, self.audit)
        self.bulk_actions = BulkActions(self.finisher, self.retries, self.intake)

        self.gpu_watch = GpuWatch(
            workers.devices.names,
            given.clock,
            given.threads,
            lambda: [claim.run_id for claim, _ in self.executor.active_runs],
        )

        self.settings = SettingsService(
            access, self.offices, self.dispatcher, self.intake, self.direct, self.webhooks, self.executor
        )
        self.waiters = Waiters(access, self.events)
        self.inbox = InboxService(access, Inbox(engine, self.intake, self.queue, self.past, self.finisher))
        self.cluster = self._new_cluster(lease, address)
        self.readiness = Readiness(access, given.disk, workers.node)
        self.forecasts = ForecastService(
            access,
            Explainer(engine, self.dispatcher, self.cluster.registry, self.progress),
            self.cluster.registry,
            self.rules,
            self.durations,
            self.progress,
            given.threads,
            self.job_types.note,
        )

    def _new_cluster(self, times: LeaseTimes, address: str | None) -> Cluster:
        workers, host, release = self.workers, socket.gethostname(), version("nextslot")
        card = NodeInfo(workers.node, host, os.getpid(), release, workers.most, workers.resources, [], address)
        local = NodeParts(
            self.dispatcher,
            self.executor,
            self.direct,
            self.events,
            self.keys,
            self.waiters,
            self.inbox,
            self.job_types,
            self.clock_steps,
            self.placed,
        )
        registry = NodeRegistry(self.engine, card)
        leader = Leader(registry, self.timeouts, self.deliveries, self.retention, self.recovery)
        return Cluster(self.engine, registry, leader, self.recovery, local, times)

    def new_runner(self) -> Runner:
        """Creates the runner for one start of the scheduler: tasks of earlier starts must not store anything now."""
        finishers: Mapping[WorkKind, WorkFinisher] = {WorkKind.JOB: self.finisher, WorkKind.DIRECT: self.direct}
        return Runner(
            self.clock,
            self.executor,
            finishers,
            self.direct.callers,
            self.durations,
            self.meters,
            self.tracer,
            StallAlarm(self.engine, self.executor),
            None if self.files.shared is None else self.shipping,
        )

    def new_placed_runner(self, runner: Runner) -> PlacedRunner:
        """Creates the runner of placed runs for one start of the scheduler."""
        return PlacedRunner(self.engine, self.placed, self.finisher, runner)

    def progress(self, run_id: str) -> tuple[float | None, str] | None:
        """Returns the progress of a run that this node runs, or follows on an engine."""
        return self.executor.progress(run_id) or self.placed.progress(run_id)

    def stop_run(self, run_id: str, kind: FailureKind) -> None:
        self.executor.stop(run_id, kind)
        self.placed.stop(run_id, kind)

    def _key_made(self) -> None:
        self.keys.note_made()
        self.webhooks.note_key()

    def interpreter(self, runner: Runner, placed: PlacedRunner) -> effects.Interpreter:
        """Returns the interpreter: its tables say which component carries out which effect of a commit."""
        return effects.Interpreter(
            updates={
                effects.SlotsChanged: self.workers.apply,
                effects.LanesLearned: self.lanes.learn,
                effects.LanesDeleted: self.lanes.forget,
                effects.MinuteBegun: self.engine.rollups.note_minute,
                effects.SubscribersChanged: self.webhooks.use_listeners,
                effects.WebhooksConfigured: self.webhooks.use,
                effects.SettingsChanged: self.settings.use,
                effects.ClockCounted: self.clock_steps.note,
                effects.KeysMade: self._key_made,
                effects.QuotasChanged: self.quotas.use,
                effects.NodeJoined: self.cluster.registry.note_life,
                effects.RequestsLinked: self.tracer.link,
                effects.WakeBy: self.timer.note_earlier,
                effects.DueBy: self.timer.note_due,
            },
            actions={
                effects.KeysEnded: self.keys.note_ended,
                effects.WakeBy: self.timer.wake_by,
                effects.Launch: runner.launch,
                effects.LookAgain: self.cluster.look_for_work,
                effects.Place: placed.place,
                effects.Stop: self.stop_run,
                effects.RunEnded: runner.ended,
                effects.ChainEnded: self.waiters.chain_ended,
                effects.EventsAppended: self.events.appended,
                effects.Deliver: self.deliveries.wake,
                effects.DeliveriesDue: self.deliveries.send_due,
                effects.DeliverySettled: self.meters.settled,
                effects.SendersRenewed: self.deliveries.renew,
                effects.DirectStarted: self.direct.callers.send_started,
                effects.DirectMoved: self.direct.callers.send_places,
                effects.DirectEnded: self.direct.callers.send_ended,
                effects.ClockStepped: self.clock_steps.stepped,
            },
        )

    def rules(self) -> DispatchRules:
        """Returns the current dispatch rules, which a reload of the configuration can change."""
        return DispatchRules(self.lanes.policy, self.dispatcher.starvation_after_seconds, self.job_types)

    def close_offline_transaction(self, tx: Tx) -> None:
        """Ends a transaction of an offline command: stores counters and events, claims no job, sends no message."""
        self._begin_minute(tx)
        self.lanes.counters(tx).save()
        self.engine.rollups.save(tx)
        self.events.append(tx)

    def close_transaction(self, tx: Tx) -> None:
        """Ends every writing transaction: claims the next jobs, numbers the events, stores their webhook messages."""
        self.timeouts.expire_if_late(tx)
        self._begin_minute(tx)
        self.dispatcher.claim(tx)
        self.engine.rollups.save(tx)
        self.events.append(tx)
        self.webhooks.store(tx)

    def _begin_minute(self, tx: Tx) -> None:
        if self.lanes.counters(tx).has_changes:
            self.engine.rollups.begin_minute(tx, self.clock.now())


def default_node(url: str) -> str:
    """Returns the name of a node that has no configured name."""
    return socket.gethostname() if is_shared(url) else "local"


def _http_sender(given: Dependencies, service: WebhookService) -> Sender:
    # Imported here because a scheduler without webhooks needs no HTTP client in its memory.
    from nextslot.engine.webhooks.http_sender import HttpSender

    return HttpSender(given.clock, given.threads, service)
