"""Machinery: the components of the engine, each wired to those it works with. Made by `Scheduler`, run by `Life`."""

import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from ..chance import Chance
from ..clock import Clock, SharedClock
from ..engine.audit import AuditLog
from ..engine.bulk import BulkActions
from ..engine.clock_steps import ClockSteps
from ..engine.cluster import Cluster, Duties, Local
from ..engine.deliveries import DeliveryWorker, Sender
from ..engine.dependencies import DependencyResolver
from ..engine.direct import DirectExecutionHandler
from ..engine.dispatcher import Dispatcher
from ..engine.durations import Durations
from ..engine.effects import (
    ChainEnded,
    ClockCounted,
    ClockStepped,
    Deliver,
    DeliverySettled,
    DirectEnded,
    DirectMoved,
    DirectStarted,
    DueBy,
    EventsAppended,
    Interpreter,
    LanesLearned,
    Launch,
    NodeJoined,
    RequestsLinked,
    RunEnded,
    SendersRenewed,
    SettingsChanged,
    SlotsChanged,
    Stop,
    SubscribersChanged,
    TurnTaken,
    WakeBy,
    WebhooksConfigured,
)
from ..engine.endings import Endings
from ..engine.events import EventLog
from ..engine.executor import Executor
from ..engine.groups import GroupProgress
from ..engine.intake import Intake
from ..engine.kit import Kit
from ..engine.lanes import Lanes
from ..engine.nodes import NodeRegistry
from ..engine.office_jobs import OfficeJobs
from ..engine.offices import OfficeSettings
from ..engine.outages import Outages
from ..engine.queue import QueueManager
from ..engine.recovery import Recovery
from ..engine.replay import Rules
from ..engine.retention import Retention
from ..engine.retry import RetryController
from ..engine.runner import Runner
from ..engine.schedule_settings import ScheduleSettings
from ..engine.schedules import ScheduleTrigger
from ..engine.templates import TemplateSettings
from ..engine.timeouts import TimeoutManager
from ..engine.timer import Timer
from ..engine.webhooks import WebhookService, WebhookSettings
from ..engine.workers import Workers
from ..faces.tuning import Tunable
from ..handlers.catalog import Catalog
from ..handlers.files import RunFiles
from ..handlers.threads import Threads
from ..meters import Meters
from ..policy.limits import ConcurrencyPolicy
from ..store.membership import LeaseTimes
from ..store.nodes import Card
from ..store.open import is_shared
from ..store.store import Tx
from ..tracing import Tracer
from ..watchdog import Watchdog


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the engine is given and does not take: time, chance and threads; who sends, measures and traces."""

    clock: Clock
    chance: Chance
    threads: Threads
    sender: Sender | None
    meters: Meters
    tracer: Tracer


class Machinery:
    def __init__(
        self,
        given: Given,
        workers: Workers,
        policy: ConcurrencyPolicy,
        webhooks: WebhookSettings,
        starvation_after_seconds: float,
        data: Path,
    ) -> None:
        self.watchdog = Watchdog(given.meters)
        self.clock, self.meters, self.tracer, self.threads = given.clock, given.meters, given.tracer, given.threads
        self.workers = workers
        self.job_types = Catalog(given.clock)
        self.files = RunFiles(data)
        self.events = EventLog(given.meters, given.clock)
        self.timer = Timer(given.clock)
        self.lanes = Lanes(policy)
        self.webhooks = WebhookService(given.chance, self.events, webhooks)
        kit = self.kit = Kit(
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
        self.queue = QueueManager(kit)
        self.outages = Outages(kit)
        self.offices = OfficeSettings(self.lanes)
        group_progress = GroupProgress(kit)
        resolver = DependencyResolver(kit)
        self.retries = RetryController(kit, self.queue, group_progress)
        self.endings = Endings(kit, self.retries, resolver, group_progress, self.outages)
        self.intake = Intake(kit, self.queue, resolver, self.endings)
        self.executor = Executor(given.clock, self.job_types, given.threads, self.files)
        self.direct = DirectExecutionHandler(kit, self.intake, self.outages, workers.node, self.executor.stop)
        self.dispatcher = Dispatcher(kit, self.direct, self.outages, starvation_after_seconds)
        self.trigger = ScheduleTrigger(kit, self.intake)
        self.recovery = Recovery(kit, self.endings, self.direct, self.outages, self.trigger)
        self.deliveries = DeliveryWorker(kit, lambda: given.sender or _http_sender(given, self.webhooks))
        self.timeouts = TimeoutManager(
            kit, self.endings, self.direct, self.outages, self.executor.stop, self.deliveries.look, self.trigger
        )
        self.clock_steps = ClockSteps(kit, workers.node, self.trigger, self.deliveries)
        self.retention = Retention(given.clock, self.files, given.threads)
        self.durations = Durations()
        self.audit = AuditLog(given.chance)
        self.schedule_settings = ScheduleSettings(kit, self.intake, self.trigger, self.audit)
        self.template_settings = TemplateSettings(kit, self.intake, self.schedule_settings, self.audit)
        self.bulk_actions = BulkActions(self.endings, self.retries, self.intake)
        self.office_jobs = OfficeJobs(kit, self.intake, self.queue, self.retries, self.endings)

    def new_cluster(
        self,
        times: LeaseTimes,
        forget_settings: Callable[[], None],
        look_at_waiters: Callable[[], Awaitable[None]],
    ) -> Cluster:
        """This node among the others; the callbacks are for what others have changed."""
        workers, host, release = self.workers, socket.gethostname(), version("nextslot")
        card = Card(workers.node, host, os.getpid(), release, workers.most, workers.resources, [])
        local = Local(
            self.dispatcher,
            self.executor,
            self.direct,
            self.events,
            forget_settings,
            look_at_waiters,
            self.job_types.renew,
            self.clock_steps,
            self.clock.adjust if isinstance(self.clock, SharedClock) else _ignore,
        )
        duties = Duties(self.timeouts, self.deliveries, self.retention, self.recovery)
        return Cluster(self.kit, NodeRegistry(self.kit, card), duties, local, times)

    def tunable(self) -> Tunable:
        """What a configuration sets while it runs."""
        return Tunable(self.offices, self.dispatcher, self.intake, self.direct, self.webhooks)

    def interpreter(
        self, runner: Runner, chain_ended: Callable[[str], None], note_life: Callable[[int], None]
    ) -> Interpreter:
        """Which component carries out which effect of a committed transaction."""
        return Interpreter(
            updates={
                SlotsChanged: self.workers.apply,
                LanesLearned: self.lanes.learn,
                TurnTaken: self.dispatcher.note_turn,
                SubscribersChanged: self.webhooks.listen,
                WebhooksConfigured: self.webhooks.use,
                SettingsChanged: self.tunable().use,
                ClockCounted: self.clock_steps.note,
                NodeJoined: note_life,
                RequestsLinked: self.tracer.link,
                WakeBy: self.timer.note_earlier,
                DueBy: self.timer.note_due,
            },
            actions={
                WakeBy: self.timer.wake_by,
                Launch: runner.launch,
                Stop: self.executor.stop,
                RunEnded: runner.ended,
                ChainEnded: chain_ended,
                EventsAppended: self.events.appended,
                Deliver: self.deliveries.wake,
                DeliverySettled: self.meters.settled,
                SendersRenewed: self.deliveries.renew,
                DirectStarted: self.direct.tell_started,
                DirectMoved: self.direct.tell_places,
                DirectEnded: self.direct.tell_ended,
                ClockStepped: self.clock_steps.stepped,
            },
        )

    def rules(self) -> Rules:
        """As they are now: they can be changed while it runs."""
        return Rules(self.lanes.policy, self.dispatcher.starvation_after_seconds)

    def open_transaction(self, tx: Tx) -> None:
        """The beginning of every writing transaction: what is stored from here on is counted by the clock as it is."""
        self.clock_steps.follow(tx)

    def close_transaction(self, tx: Tx) -> None:
        """The end of every writing transaction: the next jobs are claimed, the events get their numbers, and
        what tells of them is put into the outbox."""
        self.timeouts.expire_if_late(tx)
        self.dispatcher.claim(tx)
        self.events.append(tx)
        self.webhooks.store(tx)


def default_node(url: str) -> str:
    """What a node is called that was given no name."""
    return socket.gethostname() if is_shared(url) else "local"


def _ignore(server: int, sent: float, received: float) -> None:
    """A clock that was given is right."""


def _http_sender(given: Given, service: WebhookService) -> Sender:
    # Imported here because a scheduler without webhooks needs no HTTP client in its memory.
    from ..engine.endpoints import HttpSender

    return HttpSender(given.clock, given.threads, service)
