"""Forecast simulator: runs the real engine on an in-memory copy and a virtual clock, so that the real rules apply.

All deciding components (Dispatcher, JobFinisher, TimeoutManager, …) are the real ones; only time is virtual, and the
durations come from past runs. The simulator predicts no failures and no retries. Of the jobs that are not submitted
yet, it predicts only those that schedules will make. `expected_starts` calls it.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nextslot.domain import Direct, Expected, FailureKind, Json, Outcome, Schedule
from nextslot.domain.limits import ConcurrencyPolicy
from nextslot.domain.run_estimates import Certainty, Estimate, weakest
from nextslot.domain.run_sizes import SizeModel, sizes_of
from nextslot.engine.direct.direct_requests import DirectExecutionHandler
from nextslot.engine.dispatch import aging_steps
from nextslot.engine.dispatch.dispatcher import Dispatcher
from nextslot.engine.dispatch.limits_and_slots import Lanes
from nextslot.engine.dispatch.resource_outages import Outages
from nextslot.engine.effects import (
    Claim,
    DirectEnded,
    DueBy,
    Interpreter,
    LanesLearned,
    Launch,
    SlotsChanged,
    WakeBy,
    WorkKind,
)
from nextslot.engine.engine_context import EngineContext
from nextslot.engine.events.event_log import EventLog
from nextslot.engine.execution.runner import WorkFinisher
from nextslot.engine.execution.timeouts import Due, TimeoutManager, Timer
from nextslot.engine.finish.dependents import DependencyResolver
from nextslot.engine.finish.group_progress import GroupProgress
from nextslot.engine.finish.job_finisher import JobFinisher
from nextslot.engine.finish.retries import RetryController
from nextslot.engine.schedules.schedule_trigger import BATCH, Batch, ScheduleTrigger
from nextslot.engine.settings.office_quotas import OfficeQuotas
from nextslot.engine.submit.intake import Intake
from nextslot.engine.submit.queue_order import QueueManager
from nextslot.engine.webhooks.webhook_outbox import SilentWebhooks
from nextslot.executors.job_types import JobType, JobTypes
from nextslot.store.contract import Tx
from nextslot.store.sqlite.in_memory_copy import InMemoryCopy
from nextslot.store.tables.direct import WaitingCaller
from nextslot.system.clock import Alarm
from nextslot.system.instant import Instant

from .cluster_capacity import ClusterCapacity
from .queue_snapshot import Snapshot, Working

# The longest time that work may take to end after a stop, as its guardian allows.
STOP_SECONDS = 10.0
# The simulator predicts nothing later than this. Longer work ends just behind it, because an instant has its limits.
HORIZON_SECONDS = 400 * 24 * 3600.0
BEYOND_SECONDS = HORIZON_SECONDS + 1
MOST_STEPS = 20_000
# The simulator lets schedules make at most so many jobs.
MOST_OF_SCHEDULES = 500
# The prefix of the ids of jobs that the simulator makes.
MADE = "simulator-"
# The roots of the first primes, one for each draw: their multiples are evenly spread, each independently of the others.
ROOTS = tuple(math.sqrt(prime) for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23))


@dataclass(frozen=True, slots=True)
class DispatchRules:
    """The rules of dispatch that the database does not contain."""

    policy: ConcurrencyPolicy
    starvation_after_seconds: float
    # The defaults that the jobs of schedules get from their job types.
    job_types: JobTypes


@dataclass(frozen=True, slots=True)
class PastRuns:
    """What past runs say: estimates by type, a guess for other types, and the progress of each running run (0 to 1)."""

    estimates: Mapping[str, Estimate]
    guess: Estimate
    progress: Mapping[str, float]
    # By type, how its parameters determine the duration.
    models: Mapping[str, SizeModel] = field(default_factory=dict)

    @property
    def varies(self) -> bool:
        return any(one.deviation > 0 for one in self.estimates.values())

    def of(self, job_type: str, params: Mapping[str, Json]) -> Estimate:
        model = self.models.get(job_type)
        sized = None if model is None else model.of(sizes_of(params))
        return self.estimates.get(job_type, self.guess) if sized is None else sized


class ForecastSimulator:
    def __init__(self, snapshot: Snapshot, rules: DispatchRules, past: PastRuns, draw: int = 0, draws: int = 0) -> None:
        self._snapshot = snapshot
        self._past = past
        self._draw = draw
        self._draws = draws
        self._drawn = 0
        self._clock = _Clock(snapshot.now)
        self._ends: list[tuple[Instant, int, _End]] = []
        self._numbers = itertools.count()
        self._open = {*snapshot.queue, *snapshot.waiting}
        # The direct callers of the office whose wait ends before their work starts.
        self.leaving: set[str] = set()
        # How certain the estimates are on which the current instant of the simulation depends.
        self._certainty = Certainty()
        self.expected: dict[str, Expected] = {}
        # The variance of each start, as far as the work before it causes the variance.
        self.spreads: dict[str, float] = {}
        # By type, the seconds of its work that starts, and how uncertain these seconds are.
        self.shares: dict[str, list[float]] = {}
        self._wire(rules)
        self._copy = InMemoryCopy(self._close_transaction, self._effects())
        self._copy.fill(snapshot.copies)

    def _wire(self, rules: DispatchRules) -> None:
        self._lanes = Lanes(rules.policy)
        self._timer = Timer()
        chance, events = _Numbered(), EventLog()
        self._capacity = ClusterCapacity(self._snapshot.nodes)
        engine = EngineContext(
            self._clock,
            chance,
            _OnAnyNode(self._capacity, rules.job_types),
            self._lanes,
            self._capacity,
            self._timer,
            events,
            SilentWebhooks(chance, events),
        )
        queue, outages, groups, resolver = (
            QueueManager(engine),
            Outages(engine),
            GroupProgress(engine),
            DependencyResolver(engine),
        )
        retries = RetryController(engine, queue, groups)
        finisher = JobFinisher(engine, retries, resolver, groups, outages)
        intake = Intake(engine, queue, resolver, finisher)
        direct = _ConnectedCallers(engine, intake, outages, "(simulator)")
        self._finishers: Mapping[WorkKind, WorkFinisher] = {WorkKind.JOB: finisher, WorkKind.DIRECT: direct}
        self._dispatcher = Dispatcher(engine, direct, outages, rules.starvation_after_seconds)
        trigger = _SomeOccurrences(engine, intake, OfficeQuotas()) if self._snapshot.has_schedules else None
        self._timeouts = TimeoutManager(engine, finisher, direct, outages, trigger, wakes_for_steps=False)

    def _effects(self) -> Interpreter:
        """Returns the interpreter of a simulation, which carries out only effects on later starts, as nothing really
        runs."""
        return Interpreter(
            {
                SlotsChanged: self._capacity.apply,
                LanesLearned: self._lanes.learn,
                WakeBy: self._timer.note_earlier,
                DueBy: self._timer.note_due,
            },
            {Launch: self._launch, DirectEnded: self._note_ended, WakeBy: self._timer.wake_by},
        )

    def run(self) -> None:
        """Simulates until every job of the office's queue and every caller has started, or nothing more happens."""
        for working in self._snapshot.working:
            self._continue(working)
        self._dispatcher.start()
        self._timer.start(self._clock)
        self._copy.write(self._count)
        self._tick()
        horizon = self._snapshot.now.after(HORIZON_SECONDS)
        for _ in range(MOST_STEPS):
            if not self._open or not self._step(horizon):
                break

    def close(self) -> None:
        self._copy.close()

    def _step(self, horizon: Instant) -> bool:
        """Advances to the next end of work or the next alarm. Returns False if there is none."""
        end, alarm = self._ends[0][0] if self._ends else None, self._clock.alarm_at
        upcoming = min((at for at in (end, alarm) if at is not None), default=None)
        if upcoming is None or upcoming > horizon:
            return False
        self._clock.time = max(self._clock.time, upcoming)
        if upcoming == end:
            self._finish(upcoming)
        else:
            self._certainty = Certainty()
            self._clock.set(None)
            self._timer.rung()
            self._tick()
        return True

    def _tick(self) -> None:
        due = Due(is_all=False, to_probe=[], upcoming=None)
        while not due.is_all:
            due = self._copy.write(self._timeouts.do_due)
        if due.upcoming is not None:
            self._timer.wake_by(due.upcoming)

    def _finish(self, at: Instant) -> None:
        """Ends all work that ends at one instant in one transaction, as the real engine does."""
        ended = []
        while self._ends and self._ends[0][0] == at:
            ended.append(heapq.heappop(self._ends)[2])
        self._certainty = weakest(one.certainty for one in ended)
        self._copy.write(lambda tx: self._end(tx, ended))

    def _end(self, tx: Tx, ended: Iterable["_End"]) -> None:
        while self._snapshot.has_aging and not aging_steps.do_due(tx, self._lanes, self._clock.now()):
            pass
        for end in ended:
            self._finishers[end.kind].finish(tx, end.run_id, end.job_id, end.outcome, self._clock.now())

    # Running work, and new starts.

    def _continue(self, working: Working) -> None:
        now, work = self._snapshot.now, self._past.of(working.job_type, working.params)
        elapsed = 0.0 if working.began_at is None else max(now - working.began_at, 0) / 1_000_000
        fraction = self._past.progress.get(working.run_id)
        left = work.remaining(elapsed, fraction)
        if self._draw and fraction is None:
            left = work.drawn(self._share(), elapsed)
        if working.timeout_at is not None:
            left = min(left, max(working.timeout_at - now, 0) / 1_000_000)
        if working.is_stopping:
            left = min(left, STOP_SECONDS)
        certainty = Certainty().then(work, share=min(left / work.seconds, 1.0))
        is_known = (work.runs > 0 or fraction is not None) and left <= HORIZON_SECONDS
        at = now.after(min(left, BEYOND_SECONDS))
        self.expected[working.id] = Expected(
            expected_start=working.started_at,
            expected_end=at if is_known else None,
            confidence=certainty.confidence(left),
        )
        self._push(at, _End(working.kind, working.run_id, working.id, working.is_stopping, certainty))

    def _launch(self, claim: Claim) -> None:
        now, work = self._clock.now(), self._past.of(claim.job_type, claim.params)
        self.spreads[claim.job_id] = self._certainty.variance
        share = self.shares.setdefault(claim.job_type, [0.0, work.uncertainty])
        share[0] += work.seconds
        seconds = work.drawn(self._share()) if self._draw else work.seconds
        seconds = min(seconds, claim.timeout_seconds or math.inf)
        at = now.after(min(seconds, BEYOND_SECONDS))
        self.expected[claim.job_id] = Expected(
            expected_start=now,
            expected_end=at if work.runs > 0 and seconds <= HORIZON_SECONDS else None,
            confidence=self._certainty.confidence((now - self._snapshot.now) / 1_000_000),
        )
        self._open.discard(claim.job_id)
        self._push(at, _End(claim.kind, claim.run_id, claim.job_id, False, self._certainty.then(work)))

    def _share(self) -> float:
        """Returns a number from 0 to 1. Those of all draws for the same start are evenly spread, because the first of
        several starts may be all that counts. They are repeatable."""
        self._drawn += 1
        points = [self._drawn * root % 1.0 for root in ROOTS[: self._draws]]
        own = points[self._draw - 1]
        return (sum(point < own for point in points) + 0.5) / self._draws

    def _note_ended(self, ended: Direct, _ahead: int) -> None:
        if ended.run_id in self._open:
            self._open.discard(ended.run_id)
            self.leaving.add(ended.run_id)

    def _push(self, at: Instant, end: "_End") -> None:
        heapq.heappush(self._ends, (at, next(self._numbers), end))

    # Wiring of the components.

    def _close_transaction(self, tx: Tx) -> None:
        self._timeouts.expire_if_late(tx)
        self._dispatcher.claim(tx)

    def _count(self, tx: Tx) -> None:
        """Counts the copied work in nodes and lanes, so that the next dispatch round includes all lanes."""
        for one in self._snapshot.working:
            self._capacity.hold(tx, one.worker_id, self._lanes.lane(tx, one.lane_id))
        counters = self._lanes.counters(tx)
        for lane_id, (jobs, first) in self._snapshot.ready.items():
            counters.add_ready(lane_id, first, jobs)
        counters.is_freed = True


@dataclass(frozen=True, slots=True)
class _End:
    kind: WorkKind
    run_id: str
    job_id: str
    is_stopping: bool
    certainty: Certainty

    @property
    def outcome(self) -> Outcome:
        return Outcome.failed(FailureKind.CANCELLED, "cancelled") if self.is_stopping else Outcome.completed()


class _SomeOccurrences(ScheduleTrigger):
    """Fires schedules until they have made so many jobs that more would make the forecast too slow."""

    _made = 0

    def do_due(self, tx: Tx, now: Instant, limit: int = BATCH) -> tuple[bool, Instant | None]:
        if self._made >= MOST_OF_SCHEDULES:
            return True, None
        return super().do_due(tx, now, limit)

    def _fire(self, tx: Tx, due: Sequence[Schedule], now: Instant) -> Batch:
        done = super()._fire(tx, due, now)
        self._made += done.jobs
        return done


class _OnAnyNode(JobTypes):
    """The job types of a forecast. A forecast runs nothing, so a handler on any live node suffices."""

    def __init__(self, machines: ClusterCapacity, known: JobTypes) -> None:
        super().__init__()
        self._capacity = machines
        self._known = known
        self.role_timeouts = known.role_timeouts

    def get(self, name: str) -> JobType:
        return self._known.get(name)

    def is_placed(self, name: str) -> bool:
        return self._known.is_placed(name)

    def __contains__(self, name: str) -> bool:
        return self._capacity.runs_elsewhere(name)


class _ConnectedCallers(DirectExecutionHandler):
    """The direct callers of the real scheduler, who stay connected until their own wait timeout."""

    @property
    def _here(self) -> str | None:
        return None

    def is_here(self, caller: WaitingCaller) -> bool:
        return True

    def is_connected(self, run_id: str) -> bool:
        return True


class _Clock:
    """The time that the simulator sets, with the one alarm of its timer."""

    def __init__(self, now: Instant) -> None:
        self.time = now
        self.alarm_at: Instant | None = None

    def now(self) -> Instant:
        return self.time

    def monotonic(self) -> float:
        return self.time / 1_000_000

    @property
    def offset(self) -> int:
        return 0

    def adjust(self, server: int, sent: float, received: float) -> None: ...

    def follow(self) -> None:
        """Does nothing: only the simulator sets this clock."""

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("a simulation never sleeps")

    def alarm(self, ring: Callable[[], None]) -> Alarm:
        return self

    def set(self, at: Instant | None) -> None:
        self.alarm_at = at


class _Numbered:
    """Numbered ids, which only have to differ. Contains no randomness."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def new_id(self) -> str:
        return f"{MADE}{next(self._numbers)}"

    def fraction(self) -> float:
        return 0.5

    def secret(self) -> str:
        raise AssertionError("a simulation needs no secrets")
