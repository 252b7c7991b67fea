"""Dispatcher: at the end of a transaction, claims what may start; after its commit, hands it to the Executor.

It decides nothing about a job's end (JobFinisher does) and changes no job but by starting it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from nextslot.domain import Lane
from nextslot.engine.direct.direct_requests import DirectExecutionHandler
from nextslot.engine.effects import Claim, Launch, TurnTaken, WorkKind
from nextslot.engine.engine_context import EngineContext
from nextslot.store.contract import Tx
from nextslot.store.tables import (
    column_codec,
    direct,
    groups,
    jobs,
    lanes,
    runs,
)
from nextslot.store.tables.jobs import ExecutionSpec, FirstInLane
from nextslot.store.tables.lanes import DispatchHints
from nextslot.system.instant import Instant

from .limit_counters import OfficeCounters, TransactionCounters
from .resource_outages import Outages

STARVATION_AFTER_SECONDS = 600
# How many jobs of a lane are read ahead, where there is room for several.
MOST_HEADS = 10
# Of more starving jobs than this the oldest come first anyway.
MOST_STARVING = 100


class Started:
    """The jobs that a transaction has started: who kept it while it worked finds them there after its commit."""

    def __init__(self, tx: Tx) -> None:
        self.claims: list[Claim] = []


class CapacityHold(NamedTuple):
    """Who has units kept back: a direct caller with a reservation, or a job that was passed over for too long."""

    kind: WorkKind
    id: str
    needs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class DispatchView:
    """What a look at the queue goes by, for who wants to explain it and not to start anything."""

    counters: TransactionCounters
    paused: Set[tuple[str, str]]
    unavailable: Mapping[str, bool]
    holds: Sequence[CapacityHold]


@dataclass(slots=True)
class _DispatchRound:
    """One look at the queue: what is read once for it, and what is kept back for whom."""

    counters: TransactionCounters
    now: Instant
    hints: DispatchHints
    paused: set[tuple[str, str]]
    # Resources that do not answer; True where one job may go and see.
    unavailable: dict[str, bool]
    held: dict[str, int] = field(default_factory=dict)
    # The largest turn that an office has been given so far.
    turn: int = 0
    heads: dict[int, list[FirstInLane]] = field(default_factory=dict)
    others: list[tuple[int, Lane]] | None = None
    # What is to start, and has not been written yet.
    starting: list["_Starting"] = field(default_factory=list)

    def keep_back(self, needs: Mapping[str, int]) -> None:
        for key, units in needs.items():
            self.held[key] = self.held.get(key, 0) + units


class _Starting(NamedTuple):
    """A job that was chosen, and all that its start needs."""

    run_id: str
    job_id: str
    spec: ExecutionSpec
    lane: Lane
    worker_id: str
    session_id: str | None


class Dispatcher:
    def __init__(
        self,
        engine: EngineContext,
        direct_: DirectExecutionHandler,
        outages: Outages,
        starvation_after_seconds: float = STARVATION_AFTER_SECONDS,
    ) -> None:
        self._clock = engine.clock
        self._chance = engine.chance
        self._job_types = engine.job_types
        self._lanes = engine.lanes
        self._workers = engine.workers
        self._timer = engine.timer
        self._direct = direct_
        self._outages = outages
        self._events = engine.events
        self.starvation_after_seconds = starvation_after_seconds
        self._is_started = False
        # This node is being drained: it takes nothing more, and others may.
        self.is_held = False
        # A cache of the largest turn that is stored.
        self._turn = 0

    def start(self, last_turn: int = 0) -> None:
        """Claims what may run, from now on, at the end of each transaction."""
        self._is_started = True
        # Turns go on from the last life's, also when the clock was set back in between.
        self.note_turn(last_turn)

    def stop(self) -> None:
        self._is_started = False

    def note_turn(self, turn: int) -> None:
        """Follows a commit."""
        self._turn = max(self._turn, turn)

    def claim(self, tx: Tx) -> None:
        """Starts every job that order and limits allow now. Runs at the end of each transaction that touched them."""
        counters = self._lanes.counters(tx)
        if counters.is_touched and not self.is_dispatching:
            tx.announce("work")
        elif counters.is_touched:
            pass_ = self._new_pass(tx, counters)
            self._serve_callers(tx, pass_)
            if ("scheduler", "") not in pass_.paused:
                self._serve_starving(tx, pass_)
                while self._start_next(tx, pass_):
                    pass
            self._write_starts(tx, pass_)
            if pass_.turn > self._turn:
                tx.cause(TurnTaken(pass_.turn))
        counters.save()

    @property
    def is_dispatching(self) -> bool:
        return self._is_started and not self.is_held

    def look(self, tx: Tx) -> DispatchView:
        """What a claim would find now; starts nothing."""
        pass_ = self._new_pass(tx, self._lanes.counters(tx))
        holds = [
            CapacityHold(WorkKind.DIRECT, holder.direct_id, lane.needs) for holder, lane in self._callers(tx, pass_)
        ]
        if ("scheduler", "") not in pass_.paused:
            for lane, head in self._starving(tx, pass_):
                if self._could_ever_fit(pass_, lane):
                    holds.append(CapacityHold(WorkKind.JOB, head.job_id, lane.needs))
        return DispatchView(pass_.counters, pass_.paused, pass_.unavailable, holds)

    def _new_pass(self, tx: Tx, counters: TransactionCounters) -> _DispatchRound:
        now, hints = self._clock.now(), lanes.hints(tx)
        return _DispatchRound(
            counters,
            now,
            hints,
            lanes.pauses(tx) if hints.pauses else set(),
            self._outages.held(tx, now) if hints.outages else {},
            turn=self._turn,
        )

    # Who is next.

    def _start_next(self, tx: Tx, pass_: _DispatchRound) -> bool:
        """Starts one job of the office that was served longest ago and has one that fits; False if there is none."""
        best: tuple[int, str] | None = None
        fitting: list[Lane] = []
        for office in pass_.counters.offices:
            if (best is None or (office.turn, office.office_id) < best) and (
                open_ := self._open_lanes(tx, pass_, office)
            ):
                best, fitting = (office.turn, office.office_id), open_
        for turn, lane in self._open_elsewhere(tx, pass_):
            if best is None or (turn, lane.office_id) < best:
                best, fitting = (turn, lane.office_id), []
        if best is None:
            return False
        office = pass_.counters.office(best[1])
        if not fitting:
            self._look_past(tx, pass_, office)
            fitting = self._open_lanes(tx, pass_, office)
        if fitting:  # Else a policy has changed its mind since the lane was stored as open: look again without it.
            self._start_first(tx, pass_, office, fitting)
        return True

    def _open_lanes(self, tx: Tx, pass_: _DispatchRound, office: OfficeCounters) -> list[Lane]:
        if office.is_closed:
            return []
        found = [self._lanes.lane(tx, lane_id) for lane_id in office.waiting]
        return [lane for lane in found if self._is_allowed(pass_, lane) and self._fits(tx, pass_, lane)]

    def _open_elsewhere(self, tx: Tx, pass_: _DispatchRound) -> list[tuple[int, Lane]]:
        """Lanes of offices that this transaction has not touched, with their turns: one for each class that fits."""
        if not pass_.counters.is_freed or not pass_.hints.has_open_lanes:
            return []
        if pass_.others is None:
            found = lanes.first_open(tx, but=[office.office_id for office in pass_.counters.offices])
            pass_.others = [(turn, self._lanes.lane(tx, lane_id)) for lane_id, turn in found]
        return [
            (turn, lane)
            for turn, lane in pass_.others
            if self._is_allowed(pass_, lane) and self._fits_elsewhere(tx, pass_, lane)
        ]

    def _look_past(self, tx: Tx, pass_: _DispatchRound, office: OfficeCounters) -> None:
        """An office is one of ours now: for each class that it was the first of, the next is looked for."""
        ours = [one.office_id for one in pass_.counters.offices]
        passed = [lane for _, lane in pass_.others or () if lane.office_id == office.office_id]
        following = [lanes.next_open(tx, lane.class_key, but=ours) for lane in passed]
        pass_.others = [(turn, lane) for turn, lane in pass_.others or () if lane.office_id != office.office_id]
        pass_.others += [(found[1], self._lanes.lane(tx, found[0])) for found in following if found is not None]

    def _is_allowed(self, pass_: _DispatchRound, lane: Lane) -> bool:
        """Not held back by a pause, an outage or for want of a handler: such a job is not passed over, it waits."""
        if not self._answers(pass_, lane):
            return False
        if lane.job_type not in self._job_types and not self._workers.runs_elsewhere(lane.job_type):
            return False
        return not pass_.paused or not (
            ("type", lane.job_type) in pass_.paused
            or any(("resource", resource) in pass_.paused for resource in lane.resources)
        )

    def _answers(self, pass_: _DispatchRound, lane: Lane) -> bool:
        """Whether no resource it needs is held because of an outage, or it may be the one that tries."""
        return not pass_.unavailable or all(pass_.unavailable.get(resource, True) for resource in lane.resources)

    def _fits(self, tx: Tx, pass_: _DispatchRound, lane: Lane) -> bool:
        return pass_.counters.room(lane.needs, pass_.held) > 0 and self._is_for_us(tx, lane)

    def _fits_elsewhere(self, tx: Tx, pass_: _DispatchRound, lane: Lane) -> bool:
        """An open lane's office has room: that is what open means."""
        return pass_.counters.room(lane.shared, pass_.held) > 0 and self._is_for_us(tx, lane)

    def _could_ever_fit(self, pass_: _DispatchRound, lane: Lane) -> bool:
        """Whether such a job could start if nothing else ran: else nothing is kept back for it."""
        return pass_.counters.could_ever_fit(lane.needs) and self._workers.could_ever_fit(lane)

    def _is_for_us(self, tx: Tx, lane: Lane) -> bool:
        """Whether this node can run what the limits allow; if not, another may, and is told."""
        if lane.job_type in self._job_types and self._workers.has_room(tx, lane):
            return True
        tx.announce("work")
        return False

    # Starting one.

    def _start_first(self, tx: Tx, pass_: _DispatchRound, office: OfficeCounters, fitting: list[Lane]) -> None:
        """The first in order (INV-004) among the heads of the lanes that fit; those before it were passed over."""
        first = min(fitting, key=lambda lane: self._head(tx, pass_, lane).place)
        head = self._head(tx, pass_, first)
        self._note_passed_over(tx, pass_, office, fitting, head)
        self._start(tx, pass_, first, head)

    def _head(self, tx: Tx, pass_: _DispatchRound, lane: Lane) -> FirstInLane:
        heads = pass_.heads.get(lane.lane_id)
        if not heads:
            self._write_starts(tx, pass_)  # Else what was chosen would still be found among what waits.
            limit = min(max(pass_.counters.room(lane.needs), 1), MOST_HEADS)
            heads = pass_.heads[lane.lane_id] = jobs.heads(tx, lane.lane_id, limit)[::-1]
        return heads[-1]

    def _start(self, tx: Tx, pass_: _DispatchRound, lane: Lane, head: FirstInLane) -> None:
        run_id, worker_id, now = self._chance.new_id(), self._workers.take(tx, lane), pass_.now
        session_id = self._chance.new_id() if self._job_types.has_session(lane.job_type) else None
        pass_.starting.append(_Starting(run_id, head.job_id, head.spec, lane, worker_id, session_id))
        heads = pass_.heads.get(lane.lane_id)
        if heads:
            heads.pop()
        office = pass_.counters.office(lane.office_id)
        # Above all turns so far: of two offices that one pass serves, the first is served again first.
        pass_.turn = office.turn = max(pass_.turn + 1, office.turn + 1, now)
        office.served = lane.lane_id
        pass_.counters.take(lane)
        pass_.counters.add_ready(lane.lane_id, -1)
        pass_.counters.tally(lane.lane_id).running += 1
        self._note_probe(tx, pass_, lane)

    def _write_starts(self, tx: Tx, pass_: _DispatchRound) -> None:
        """Those that were chosen start together: their runs, then themselves."""
        starting, pass_.starting = pass_.starting, []
        if not starting:
            return
        for one in starting:
            is_inside = self._job_types.runs_inside(one.lane.job_type)
            runs.begin(tx, one.run_id, one.job_id, pass_.now, one.session_id, is_inside)
        for one in starting:
            jobs.start(tx, one.job_id, one.worker_id, pass_.now)
        for one in starting:
            self._launch_started(tx, one, pass_.now)

    def _launch_started(self, tx: Tx, one: _Starting, now: Instant) -> None:
        lane, spec = one.lane, one.spec
        if spec.group_id is not None:
            groups.begin(tx, spec.group_id, now)
        self._events.note(tx, "job_started", now, lane.office_id, one.job_id, one.run_id, {"worker_id": one.worker_id})
        is_retry = spec.retry_of is not None
        claim = Claim(
            kind=WorkKind.JOB,
            run_id=one.run_id,
            job_id=one.job_id,
            office_id=lane.office_id,
            lane_id=lane.lane_id,
            job_type=lane.job_type,
            params=column_codec.loads(spec.params),
            attempt=1 + len(jobs.failures_before(tx, spec.chain_id, one.job_id)) if is_retry else 1,
            worker_id=one.worker_id,
            timeout_seconds=spec.timeout_seconds,
            stall_timeout_seconds=spec.stall_timeout_seconds,
            reads_at_end=(jobs.asks_at_the_end(one.run_id, one.job_id),),
            title=spec.title,
            role=spec.role,
            task_id=spec.task_id,
            session_id=one.session_id,
        )
        tx.local(Started).claims.append(claim)
        if spec.timeout_seconds is not None:
            self._timer.note_here(tx, now.after(spec.timeout_seconds))
        tx.cause(Launch(claim))

    def _note_probe(self, tx: Tx, pass_: _DispatchRound, lane: Lane) -> None:
        """The job that is let through to a held resource is the only one until it is known how it went."""
        tried = [resource for resource in lane.resources if pass_.unavailable.get(resource)]
        if tried:
            self._outages.let_through(tx, tried)
            pass_.unavailable.update(dict.fromkeys(tried, False))

    def look_at(self, tx: Tx, office_id: str) -> Started:
        """Includes an office in the dispatch round that ends this transaction; the result gets the round's claims."""
        self._lanes.counters(tx).office(office_id)
        return tx.local(Started)

    # Callers on the line.

    def _serve_callers(self, tx: Tx, pass_: _DispatchRound) -> None:
        """Who holds a reservation starts as soon as it fits, the oldest first; until then its units are kept back.

        A pause does not hold it back, and the queue's order is not touched.
        """
        for holder, lane in self._callers(tx, pass_):
            if not self._direct.is_here(holder):
                tx.announce("work")
                pass_.keep_back(lane.needs)
            elif self._fits(tx, pass_, lane):
                self._start_direct(tx, pass_, lane, holder)
            else:
                pass_.keep_back(lane.needs)

    def _callers(self, tx: Tx, pass_: _DispatchRound) -> Iterator[tuple[direct.Holder, Lane]]:
        """Who holds a reservation and may go, the oldest first."""
        for holder in direct.holders(tx) if pass_.hints.callers else ():
            lane = self._lanes.lane(tx, holder.lane_id)
            if self._answers(pass_, lane):
                yield holder, lane

    def _start_direct(self, tx: Tx, pass_: _DispatchRound, lane: Lane, holder: direct.Holder) -> None:
        worker_id, started = self._direct.start(tx, holder, pass_.now)
        self._note_probe(tx, pass_, lane)
        claim = Claim(
            kind=WorkKind.DIRECT,
            run_id=holder.direct_id,
            job_id=holder.direct_id,
            office_id=holder.office_id,
            lane_id=holder.lane_id,
            job_type=lane.job_type,
            params=column_codec.loads(started.params),
            attempt=1,
            worker_id=worker_id,
            timeout_seconds=started.timeout_seconds,
            stall_timeout_seconds=started.stall_timeout_seconds,
        )
        tx.cause(Launch(claim))

    # No starving.

    def _serve_starving(self, tx: Tx, pass_: _DispatchRound) -> None:
        """A job passed over for too long starts as soon as it fits; until then what it needs is kept back for it."""
        for lane, head in self._starving(tx, pass_):
            if self._fits(tx, pass_, lane):
                self._start(tx, pass_, lane, head)
            elif self._could_ever_fit(pass_, lane):
                pass_.keep_back(lane.needs)

    def _starving(self, tx: Tx, pass_: _DispatchRound) -> list[tuple[Lane, FirstInLane]]:
        since = pass_.now.after(-self.starvation_after_seconds)
        if pass_.hints.passed_over_since is None or pass_.hints.passed_over_since > since:
            return []
        return self._first_by_office(tx, pass_, jobs.starving(tx, since, MOST_STARVING))

    def _first_by_office(
        self, tx: Tx, pass_: _DispatchRound, starving: Iterable[tuple[str, int, FirstInLane]]
    ) -> list[tuple[Lane, FirstInLane]]:
        """One for each office: the first in its order that may go; the office that waited longest first."""
        first: dict[str, tuple[Lane, FirstInLane]] = {}
        for office_id, lane_id, head in starving:
            lane = self._lanes.lane(tx, lane_id)
            if not self._is_allowed(pass_, lane) or pass_.counters.office(office_id).is_closed:
                continue
            if office_id not in first or head.place < first[office_id][1].place:
                first[office_id] = (lane, head)
        return list(first.values())

    def _note_passed_over(
        self, tx: Tx, pass_: _DispatchRound, office: OfficeCounters, fitting: list[Lane], started: FirstInLane
    ) -> None:
        """Heads that a limit holds back while this one goes: earlier ones here, and offices whose turn was earlier."""
        held_back = office.waiting if len(fitting) < len(office.waiting) else []
        for lane_id in held_back:
            lane = self._lanes.lane(tx, lane_id)
            if lane not in fitting and lane.job_type in self._job_types and self._is_allowed(pass_, lane):
                head = self._head(tx, pass_, lane)
                if head.place < started.place and head.passed_over_since is None:
                    self._pass_over(tx, pass_, lane, head)
        for turn, lane in pass_.others or ():
            if turn < office.turn and self._is_allowed(pass_, lane) and not self._fits_elsewhere(tx, pass_, lane):
                head = self._head(tx, pass_, lane)
                if head.passed_over_since is None:
                    self._pass_over(tx, pass_, lane, head)

    def _pass_over(self, tx: Tx, pass_: _DispatchRound, lane: Lane, head: FirstInLane) -> None:
        jobs.pass_over(tx, head.job_id, pass_.now)
        pass_.heads[lane.lane_id][-1] = head._replace(passed_over_since=pass_.now)
