"""Dispatcher: claims, at the end of a transaction, the jobs that may start. The runner runs them after the commit.

The dispatcher serves direct callers first, then starving jobs (`starvation`), then all other jobs (`fairness`). It
changes jobs only by starting them; `JobFinisher` decides how a job ends.
"""

from collections.abc import Iterator

from nextslot.domain import Lane
from nextslot.domain.limits import is_key
from nextslot.engine.direct.direct_requests import DirectExecutionHandler
from nextslot.engine.effects import LookAgain, WorkKind
from nextslot.engine.engine_context import EngineContext
from nextslot.store.contract import Tx
from nextslot.store.tables import direct

from .affinity import callers_in_order, note_passed_callers
from .dispatch_round import DispatchRound, Started
from .fairness import start_next
from .resource_outages import Outages
from .starvation import STARVATION_AFTER_SECONDS, note_passed_over_by_caller, serve_starving, starving

MOST_STARTS = 200  # In one transaction: about 50 ms of processor time. Others write before the next jobs start.


class Dispatcher:
    def __init__(
        self,
        engine: EngineContext,
        direct_: DirectExecutionHandler,
        outages: Outages,
        starvation_after_seconds: float = STARVATION_AFTER_SECONDS,
    ) -> None:
        self._engine = engine
        self._direct = direct_
        self._outages = outages
        self.starvation_after_seconds = starvation_after_seconds
        self._is_started = False
        # Whether this node is being drained: a drained node starts nothing more, while other nodes may.
        self.is_held = False
        # Whether this node holds its lease. Once the lease is over, other nodes may treat its runs as lost.
        self.has_lease = True

    def start(self) -> None:
        """Lets each transaction from now on claim at its end what may run."""
        self._is_started = True

    def stop(self) -> None:
        self._is_started = False

    @property
    def is_dispatching(self) -> bool:
        return self._is_started and self.has_lease and not self.is_held

    def claim(self, tx: Tx) -> None:
        """Starts every job that order and limits allow now, at the end of each transaction that touched the queue."""
        counters, buckets = self._engine.lanes.counters(tx), self._engine.lanes.buckets(tx)
        if buckets is not None:
            buckets.now = self._engine.clock.now()
        if counters.is_touched and not self.is_dispatching:
            tx.announce("work")
        elif counters.is_touched:
            round_ = DispatchRound(self._engine, self._outages, tx)
            if round_.hints.passed_over_since is not None and starving(round_, self.starvation_after_seconds):
                # The round may hold fewer units for starving jobs than before, which lets other jobs start.
                counters.is_freed = True
            while round_.hints.callers and self._start_caller(round_):
                pass
            is_open = not round_.is_scheduler_paused
            if is_open and round_.hints.passed_over_since is not None:
                serve_starving(round_, self.starvation_after_seconds)
            is_cut = is_open and all(start_next(round_) for _ in range(MOST_STARTS))
            round_.write_starts()
            is_busy = any(round_.may_start(lane, lane.shared) for lane in round_.busy)
            if is_cut or is_busy or self._engine.workers.makes_room(tx):
                tx.cause(LookAgain())
        counters.save()
        if buckets is not None:
            self._engine.timer.note(tx, buckets.save())

    def look(self, tx: Tx) -> DispatchRound:
        """Returns a round with the pauses, outages and capacity holds that a claim would find now. Starts nothing."""
        round_ = DispatchRound(self._engine, self._outages, tx)
        for caller, lane in self._callers(round_):
            if caller.reserved_at is not None and not any(map(is_key, round_.full_limits(lane))):
                round_.hold(WorkKind.DIRECT, caller.run_id, lane)
        if not round_.is_scheduler_paused:
            for lane, head in starving(round_, self.starvation_after_seconds):
                if round_.could_ever_fit(lane):
                    round_.hold(WorkKind.JOB, head.job_id, lane)
        return round_

    def look_at(self, tx: Tx, office_id: str) -> Started:
        """Includes an office in the dispatch round that ends this transaction; the result gets the round's claims."""
        self._engine.lanes.counters(tx).office(office_id)
        return tx.local(Started)

    # Direct callers.

    def _start_caller(self, round_: DispatchRound) -> bool:
        """Starts the first direct caller who fits and has no earlier caller of the same office before them on a full
        limit. Holds the units that the first caller of each office needs. Returns False if no caller could start.

        Pauses do not apply to callers, and the order of the queue stays as it is. A job of another office goes before
        the caller if the job has starved for longer than the caller's reservation has existed (spec 4.12).
        """
        held = {hold.id for hold in round_.holds}
        # By office, the limits that its earlier callers wait for.
        waited_for: dict[str, set[str]] = {}
        waiting = list(self._callers(round_))
        for caller, lane in callers_in_order(round_, waiting) if round_.loaded else waiting:
            earlier = waited_for.setdefault(caller.office_id, set())
            if not round_.is_scheduler_paused:
                serve_starving(round_, self.starvation_after_seconds, before=caller)
            is_here = self._direct.is_here(caller)
            is_next = earlier.isdisjoint(lane.needs)
            if is_here and is_next and round_.fits(lane):
                self._direct.start(round_.tx, caller, round_.now)
                round_.note_probe(lane)
                note_passed_callers(round_, lane, [other for _, other in waiting])
                round_.note_loaded(lane)
                note_passed_over_by_caller(round_, lane)
                return True
            earlier |= round_.full_limits(lane)
            if not is_here:
                round_.tell_others()
            # While a key of the caller is full, the units kept free for the caller would lie idle.
            is_kept = (caller.reserved_at is not None or not is_here) and not any(map(is_key, round_.full_limits(lane)))
            if is_kept and caller.run_id not in held:
                round_.hold(WorkKind.DIRECT, caller.run_id, lane)
        return False

    def _callers(self, round_: DispatchRound) -> Iterator[tuple[direct.WaitingCaller, Lane]]:
        """Yields the first caller of each lane whose resources answer, by age of reservation, then by arrival."""
        for caller in direct.first_waiting(round_.tx) if round_.hints.callers else ():
            lane = self._engine.lanes.lane(round_.tx, caller.lane_id)
            if round_.is_answering(lane):
                yield caller, lane
