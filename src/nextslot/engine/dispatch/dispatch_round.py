"""DispatchRound: one round of dispatch at the end of a transaction. It finds the jobs that may start, and starts them.

`Dispatcher` creates the round. `fairness` chooses the next job; `starvation` protects jobs that were passed over.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nextslot.domain import Lane
from nextslot.domain.devices import NO_VARIABLES, Devices
from nextslot.domain.retry import ChainRun, must_be_isolated
from nextslot.engine.effects import Claim, Launch, WorkKind
from nextslot.engine.engine_context import EngineContext
from nextslot.engine.placement.start_placed import start_placed
from nextslot.store.contract import Tx
from nextslot.store.tables import (
    column_codec,
    groups,
    jobs,
    lanes,
    runs,
)
from nextslot.store.tables.jobs import ExecutionSpec, FirstInLane
from nextslot.system.instant import Instant

from .resource_outages import Outages

# A round reads at most so many jobs of a lane at once, where limits have room for several.
MOST_HEADS = 10


class Started:
    """The jobs that a transaction has started. A unit of work that keeps this object can read them after the commit."""

    def __init__(self, tx: Tx) -> None:
        self.claims: list[Claim] = []


class CapacityHold(NamedTuple):
    """Units of limits that the round keeps free for a direct caller with a reservation, or for a starving job."""

    kind: WorkKind
    id: str
    needs: Mapping[str, int]


class _Starting(NamedTuple):
    """A chosen job whose start the round has not written yet."""

    run_id: str
    job_id: str
    spec: ExecutionSpec
    lane: Lane
    worker_id: str
    session_id: str | None
    devices: Devices


class DispatchRound:
    def __init__(self, engine: EngineContext, outages: Outages, tx: Tx) -> None:
        self.engine = engine
        self.tx = tx
        self._outages = outages
        self.counters = engine.lanes.counters(tx)
        self.now = engine.clock.now()
        self.buckets = engine.lanes.buckets(tx)
        if self.buckets is not None:
            self.buckets.now = self.now
        self.hints = lanes.hints(tx)
        self.paused = lanes.pauses(tx) if self.hints.pauses else set()
        # The held resources, which do not answer; True for a resource that one job may probe by starting.
        self.unavailable = outages.held(tx, self.now) if self.hints.outages else {}
        self.holds: list[CapacityHold] = []
        # The units of all capacity holds, by limit.
        self._held: dict[str, int] = {}
        # The largest turn of all offices. Each start gives its office a larger one, so the smallest was served longest
        # ago.
        self.turn = self.hints.last_turn
        # Open lanes of offices that this transaction has not touched, with the offices' turns; None until read.
        self.others: list[tuple[int, Lane]] | None = None
        # Open lanes of offices about which another node decides at the same time.
        self.busy: list[Lane] = []
        # The first jobs of each lane in reverse order, so that the first is the last element.
        self._heads: dict[int, list[FirstInLane]] = {}
        self._starting: list[_Starting] = []
        # What each resource with affinity has loaded, and since when jobs with another affinity are passed over.
        self.loaded = lanes.loaded(tx) if engine.lanes.affinity_waits else {}

    # Which jobs may start.

    @property
    def is_scheduler_paused(self) -> bool:
        return ("scheduler", "") in self.paused

    def is_allowed(self, lane: Lane) -> bool:
        """Returns whether no pause, outage, rate or missing handler holds the lane back. A job that one of these holds
        back waits, but does not count as passed over."""
        if not self.is_answering(lane):
            return False
        if lane.job_type not in self.engine.job_types and not self.engine.workers.runs_elsewhere(lane.job_type):
            return False
        return not self.paused or not (
            ("type", lane.job_type) in self.paused
            or any(("resource", resource) in self.paused for resource in lane.resources)
        )

    def is_answering(self, lane: Lane) -> bool:
        """Returns whether every resource of the lane answers, or may be probed by a job of the lane, and no rate of the
        lane is used up."""
        if self.unavailable and not all(self.unavailable.get(resource, True) for resource in lane.resources):
            return False
        return self.buckets is None or self.buckets.are_open(lane.needs)

    def fits(self, lane: Lane) -> bool:
        return self.counters.has_room(lane.needs, self._held) and self._fits_this_node(lane)

    def may_start(self, lane: Lane, needs: Mapping[str, int]) -> bool:
        """Returns whether the lane is allowed and these needs fit. Checks needs first: they refuse most often."""
        return self.counters.has_room(needs, self._held) and self.is_allowed(lane) and self._fits_this_node(lane)

    def full_limits(self, lane: Lane) -> set[str]:
        """Returns the limits that have no room for a job of the lane."""
        return {key for key, units in lane.needs.items() if self.counters.room({key: units}, self._held) <= 0}

    def fits_elsewhere(self, lane: Lane) -> bool:
        """Returns whether a job of an open lane of another office fits. Checks shared limits only: `open` means that
        the office's own limits have room."""
        return self.counters.has_room(lane.shared, self._held) and self._fits_this_node(lane)

    def could_ever_fit(self, lane: Lane) -> bool:
        """Returns whether a job of the lane could start if nothing else ran. If not, no units are held for the job."""
        return self.counters.could_ever_fit(lane.needs) and self.engine.workers.could_ever_fit(lane)

    def _fits_this_node(self, lane: Lane) -> bool:
        """Returns whether this node can run a job of the lane. If this node cannot, notifies the other nodes."""
        if lane.job_type in self.engine.job_types and self._has_slot(lane):
            return True
        self.tell_others()
        return False

    def _has_slot(self, lane: Lane) -> bool:
        return self.engine.workers.has_room(self.tx, lane, self.engine.job_types.is_placed(lane.job_type))

    def tell_others(self) -> None:
        """Notifies the other nodes of work that this node cannot do, unless they know or nothing is new."""
        if not self.counters.is_announced and self.counters.has_news():
            self.tx.announce("work")

    def enter(self, lane: Lane) -> bool:
        """Returns whether this transaction may decide about the office of an open lane. If another node decides about
        that office now, adds the lane to `busy` and leaves the lanes of the office out."""
        if self.tx.has_entered(lane.office_id):
            return True
        if self.tx.try_enter(lane.office_id):
            self.counters.forget_limits()
            return True
        self.busy += [one for _, one in self.others or () if one.office_id == lane.office_id]
        self.others = [(turn, one) for turn, one in self.others or () if one.office_id != lane.office_id]
        return False

    def hold(self, kind: WorkKind, id: str, lane: Lane) -> None:
        """Keeps the units that the lane needs free for one caller or job until the round ends."""
        self.holds.append(CapacityHold(kind, id, lane.needs))
        for key, units in lane.needs.items():
            self._held[key] = self._held.get(key, 0) + units

    # Starts.

    def head(self, lane: Lane) -> FirstInLane:
        """Returns the first job of a lane that has ready jobs."""
        heads = self._heads.get(lane.lane_id)
        if not heads:
            self.write_starts()  # Otherwise the query would return a chosen job as a ready one again.
            limit = min(max(self.counters.room(lane.needs), 1), MOST_HEADS)
            heads = self._heads[lane.lane_id] = jobs.heads(self.tx, lane.lane_id, limit)[::-1]
        return heads[-1]

    def read_heads(self, lanes_: Sequence[Lane]) -> None:
        """Reads the first jobs of all these lanes in one query, if several of them have ready jobs."""
        missing = [lane.lane_id for lane in lanes_ if not self._heads.get(lane.lane_id)]
        if len(missing) > 1:
            self.write_starts()
            self._heads.update((lane_id, [head]) for lane_id, head in jobs.firsts(self.tx, missing).items())

    def replace_head(self, lane: Lane, head: FirstInLane) -> None:
        self._heads[lane.lane_id][-1] = head

    def start(self, lane: Lane, head: FirstInLane) -> None:
        """Chooses a job; `write_starts` stores its start."""
        engine, counters = self.engine, self.counters
        is_placed = engine.job_types.is_placed(lane.job_type)
        run_id, worker_id = engine.chance.new_id(), engine.workers.take(self.tx, lane, is_placed)
        devices = engine.workers.assign(self.tx, worker_id, lane)
        session_id = engine.chance.new_id() if engine.job_types.has_session(lane.job_type) else None
        self._starting.append(_Starting(run_id, head.job_id, head.spec, lane, worker_id, session_id, devices))
        heads = self._heads.get(lane.lane_id)
        if heads:
            heads.pop()
        office = counters.office(lane.office_id)
        # The new turn is larger than all turns so far, so of two offices that one round serves, the one served first is
        # also served first in the next round. An office that was served last keeps its turn.
        if office.turn < self.turn or not office.turn:
            self.turn = office.turn = max(self.turn + 1, self.now)
        counters.start(lane)
        counters.remove_ready(lane.lane_id)
        counters.tally(lane.lane_id).running += 1
        self.note_probe(lane)
        self.note_loaded(lane)

    def note_loaded(self, lane: Lane) -> None:
        """Stores what the resources of a lane have loaded when a job of the lane starts."""
        if lane.affinity is None:
            return
        for resource in lane.resources.keys() & self.engine.lanes.affinity_waits.keys():
            if resource not in self.loaded or self.loaded[resource][0] != lane.affinity:
                self._load(resource, lane.affinity, None)

    def note_passed_for_affinity(self, resource: str) -> None:
        """Stores since when the next job in order is passed over for jobs that need what the resource has loaded."""
        affinity, since = self.loaded[resource]
        if since is None:
            self._load(resource, affinity, self.now)

    def _load(self, resource: str, affinity: str, passed_since: Instant | None) -> None:
        self.loaded[resource] = affinity, passed_since
        lanes.load(self.tx, resource, affinity, passed_since)

    def note_probe(self, lane: Lane) -> None:
        """Keeps further jobs from starting on a held resource until the outcome of its probe is known."""
        tried = [resource for resource in lane.resources if self.unavailable.get(resource)]
        if tried:
            self._outages.let_through(self.tx, tried)
            self.unavailable.update(dict.fromkeys(tried, False))

    def write_starts(self) -> None:
        """Stores the starts of all chosen jobs together: their runs first, then the jobs."""
        starting, self._starting = self._starting, []
        if not starting:
            return
        attempts = [self._attempts(one) for one in starting]
        isolated = [self._is_isolated(one, earlier) for one, earlier in zip(starting, attempts, strict=True)]
        for one, is_isolated in zip(starting, isolated, strict=True):
            is_inside = self.engine.job_types.runs_inside(one.lane.job_type) and not is_isolated
            # A retry may continue the session of an earlier attempt; the session is stored when the retry begins it.
            session_id = one.session_id if one.spec.retry_of is None else None
            runs.begin(self.tx, one.run_id, one.job_id, self.now, session_id, is_inside, one.devices)
        for one in starting:
            jobs.start(self.tx, one.job_id, one.worker_id, self.now)
        for one, earlier, is_isolated in zip(starting, attempts, isolated, strict=True):
            self._launch(one, 1 + len(earlier), is_isolated)

    def _attempts(self, one: _Starting) -> list[ChainRun]:
        """Reads the earlier attempts of the job's chain."""
        return [] if one.spec.retry_of is None else jobs.attempts(self.tx, one.spec.chain_id, one.job_id)[:-1]

    def _is_isolated(self, one: _Starting, earlier: list[ChainRun]) -> bool:
        return (
            bool(earlier)
            and must_be_isolated(earlier)
            and self.engine.job_types.isolated(one.lane.job_type) is not None
        )

    def _launch(self, one: _Starting, attempt: int, is_isolated: bool) -> None:
        tx, now, lane, spec = self.tx, self.now, one.lane, one.spec
        if spec.group_id is not None:
            groups.begin(tx, spec.group_id, now)
        details = {"worker_id": one.worker_id}
        self.engine.events.note(tx, "job_started", now, lane.office_id, one.job_id, one.run_id, details)
        claim = Claim(
            kind=WorkKind.JOB,
            run_id=one.run_id,
            job_id=one.job_id,
            office_id=lane.office_id,
            lane_id=lane.lane_id,
            job_type=lane.job_type,
            params=column_codec.loads(spec.params),
            attempt=attempt,
            worker_id=one.worker_id,
            timeout_seconds=spec.timeout_seconds,
            stall_timeout_seconds=spec.stall_timeout_seconds,
            reads_at_end=(jobs.asks_at_the_end(one.run_id, one.job_id),),
            title=spec.title,
            role=spec.role,
            task_id=spec.task_id,
            session_id=one.session_id,
            is_isolated=is_isolated,
            waited=None if spec.depends_on is None else spec.chain_id,
            devices=one.devices,
            environment=self.engine.workers.devices.environment(one.devices) if one.devices else NO_VARIABLES,
            continues=None if spec.retry_of is None and spec.await_signal is None else spec.chain_id,
        )
        tx.local(Started).claims.append(claim)
        placing = self.engine.job_types.placing(lane.job_type)
        if placing is not None:
            start_placed(tx, self.engine, claim, placing, now)
            return
        if spec.timeout_seconds is not None:
            self.engine.timer.note_here(tx, now.after(spec.timeout_seconds))
        tx.cause(Launch(claim))
