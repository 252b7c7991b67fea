"""DirectExecutionHandler: gives the next slot to a caller who waits for a result, and interrupts no job (DEC-004).

Each caller is a row. The first waiting caller of an office has the reservation until the caller's work starts. While a
caller waits, the dispatcher starts no job of this office that falls under one of the caller's limits, and in all
offices it holds the units that the first caller needs. The handler creates no job and leaves the order of the queue as
it is. The functions over a transaction come first, then the functions for connected callers.
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from nextslot.domain import Direct, DirectStatus, FailureKind, Json, NewJob, Outcome, request_checks
from nextslot.domain.bounds import must_be
from nextslot.domain.job_lifecycle import CRASH_ERROR
from nextslot.domain.rollups import DIRECT, RollupKey
from nextslot.domain.webhook_delivery import DIRECT_EVENTS
from nextslot.engine.dispatch.resource_outages import Outages
from nextslot.engine.effects import Claim, DirectEnded, DirectMoved, DirectStarted, Launch, Stop, WorkKind
from nextslot.engine.engine_context import EngineContext
from nextslot.engine.settings.office_quotas import OfficeQuotas
from nextslot.engine.submit.intake import Intake
from nextslot.engine.submit.queue_order import Created, NewWork
from nextslot.errors import Conflict, Draining, Invalid, NotFound, OverQuota, SlotBusy, Unavailable
from nextslot.store.contract import ALL, Store, Tx, Work
from nextslot.store.tables import column_codec, direct
from nextslot.system.instant import Instant

from .connected_callers import ConnectedCaller, ConnectedCallers, Update

log = logging.getLogger(__name__)

MOST_WAITING = 100
WAIT_SECONDS = 300.0
TIMEOUT_SECONDS = 3600.0
RESERVATION_SECONDS = 600.0
RENEWED_BEFORE_SECONDS = 300.0

HUNG_UP = "the caller hung up"
WAITED_TOO_LONG = "the wait ran out"
DRAINING = "the scheduler is stopping"
DRAINED = "this node is being drained"
CANCELLED = "cancelled"
OWNER_GONE = "its owner is gone"

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
# The form of the ids that nextslot generates: a chosen id must not have this form, so that the two never collide.
_OURS = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDirect:
    """A direct request, as its caller sends it."""

    job_type: str
    params: Mapping[str, Json] = field(default_factory=dict)
    office_id: str = "default"
    wait_timeout_seconds: float = WAIT_SECONDS
    timeout_seconds: float | None = None
    detach: bool = False
    direct_id: str | None = None
    webhook: Mapping[str, Json] | None = None
    created_by: str | None = None
    affinity: str | None = None
    limit_keys: Sequence[str] | None = None


class CallersStore(Protocol):
    """The store as one caller uses it: rows that the caller creates are stored with the caller's name."""

    @property
    def store(self) -> Store: ...

    async def create(self, work: Work[Direct], /) -> Direct: ...


class DirectExecutionHandler:
    def __init__(
        self, engine: EngineContext, intake: Intake, outages: Outages, node: str, quotas: OfficeQuotas | None = None
    ) -> None:
        self._clock = engine.clock
        self._chance = engine.chance
        self._job_types = engine.job_types
        self._intake = intake
        self._lanes = engine.lanes
        self._rollups = engine.rollups
        self._workers = engine.workers
        self._timer = engine.timer
        self._outages = outages
        self._events = engine.events
        self._webhooks = engine.webhooks
        self._tracer = engine.tracer
        self._node = node
        self._quotas = quotas or OfficeQuotas()
        self.most_waiting = MOST_WAITING
        self.callers = ConnectedCallers()
        self._goodbyes: set[asyncio.Task[None]] = set()

    # Functions over a transaction.

    def request(self, tx: Tx, wanted: NewDirect, run_id: str, now: Instant) -> Direct:
        """Stores a new caller, unless too many wait already."""
        self._intake.office(tx, wanted.office_id)  # Refuses an unknown one before anything is counted.
        direct_id = wanted.direct_id or run_id
        if direct.find(tx, direct_id, wanted.office_id) is not None:
            raise Conflict(f"there is a direct execution {direct_id!r} already: choose another id")
        counters = self._lanes.counters(tx).office(wanted.office_id)
        granted = self._quotas.of(wanted.office_id).direct_callers
        ahead = counters.callers.total()
        if granted and ahead >= granted:
            raise OverQuota("direct_callers", f"{granted:,} direct requests of this office may wait")
        if ahead >= self.most_waiting:
            raise SlotBusy(ahead, f"{ahead} callers are waiting already; try again later")
        return self.add(tx, wanted, run_id, now)

    def add(self, tx: Tx, wanted: NewDirect, run_id: str, now: Instant) -> Direct:
        """Stores the caller behind the waiting ones. The first caller of an office gets the reservation."""
        office = self._intake.office(tx, wanted.office_id)
        counters = self._lanes.counters(tx).office(wanted.office_id)
        job_type = self._job_types.get(wanted.job_type)
        resources, affinity = job_type.needs(wanted.params), wanted.affinity or job_type.affinity(wanted.params)
        keys = None if wanted.limit_keys is None else tuple(dict.fromkeys(wanted.limit_keys))
        caller = Direct(
            run_id=run_id,
            direct_id=wanted.direct_id or run_id,
            node_id=self._node,
            office_id=wanted.office_id,
            lane_id=self._lanes.lane_for(tx, office, None, wanted.job_type, resources, affinity, keys),
            job_type=wanted.job_type,
            params=wanted.params,
            status=DirectStatus.WAITING,
            is_detached=wanted.detach,
            timeout_seconds=wanted.timeout_seconds or job_type.timeout_seconds or TIMEOUT_SECONDS,
            stall_timeout_seconds=job_type.stall_timeout_seconds,
            created_by=wanted.created_by,
            created_at=now,
            wait_until=now.after(wanted.wait_timeout_seconds),
        )
        direct.insert(tx, caller, wanted.webhook)
        tx.local(NewWork).created.append(Created(caller.office_id, caller.job_type, 1))
        counters.callers[caller.lane_id] += 1
        if not direct.is_reserved(tx, wanted.office_id):
            self._reserve(tx, wanted.office_id, run_id, now)
        self._timer.note_here(tx, caller.wait_until)
        return caller

    def start(self, tx: Tx, caller: direct.WaitingCaller, now: Instant) -> None:
        """Claims the work of a caller, counts it in its limits, and gives the next caller the reservation."""
        lane = self._lanes.lane(tx, caller.lane_id)
        worker_id = self._workers.take(tx, lane)
        self._pass_on(tx, caller.run_id, caller.office_id, "RELEASED", now)
        devices = self._workers.assign(tx, worker_id, lane)
        started = direct.start(tx, caller.run_id, worker_id, devices, now)
        assert started is not None
        counters = self._lanes.counters(tx)
        counters.start(lane)
        counters.caller_leaves(caller.office_id, caller.lane_id)
        self._timer.note_here(tx, now.after(started.timeout_seconds))
        tx.cause(DirectStarted(caller.run_id))
        claim = Claim(
            kind=WorkKind.DIRECT,
            run_id=caller.run_id,
            job_id=started.direct_id or caller.run_id,
            office_id=caller.office_id,
            lane_id=caller.lane_id,
            job_type=lane.job_type,
            params=column_codec.loads(started.params),
            attempt=1,
            worker_id=worker_id,
            timeout_seconds=started.timeout_seconds,
            stall_timeout_seconds=started.stall_timeout_seconds,
            devices=devices,
            environment=self._workers.devices.environment(devices),
        )
        tx.cause(Launch(claim))

    def finish(
        self,
        tx: Tx,
        run_id: str,
        _job_id: str,
        outcome: Outcome,
        now: Instant,
        waited_us: int = 0,
    ) -> Direct | None:
        """Stores an outcome that was known `waited_us` ago. Returns None if the execution had ended already.

        A direct execution has no job, so `_job_id` is the id that the caller chose.
        """
        ended = direct.finish(tx, run_id, outcome, Instant(now - waited_us))
        if ended is None:
            return None
        lane = self._lanes.lane(tx, ended.lane_id)
        self._workers.free(tx, ended.worker_id, lane)
        self._lanes.counters(tx).give_back(lane)
        self._lanes.counters(tx).use_tokens(lane, outcome)
        self._outages.after_run(tx, lane, outcome, now)
        return self._answer(tx, run_id, now)

    def give_up(
        self,
        tx: Tx,
        run_id: str,
        reason: str,
        now: Instant,
        kind: FailureKind | None = None,
        ahead: int = 0,
        lost: Set[str] = frozenset(),
    ) -> Direct | None:
        """Ends the wait of a caller who had `ahead` callers before them. Returns None if the caller does not wait.

        `lost` are the callers whose node has crashed; none of these gets the reservation.
        """
        found = direct.get(tx, run_id)
        if found is None or found.status is not DirectStatus.WAITING:
            return None
        self._pass_on(tx, run_id, found.office_id, "RELEASED" if kind is None else "EXPIRED", now, lost)
        status = DirectStatus.CANCELLED if kind is None else DirectStatus.FAILED
        direct.give_up(tx, run_id, status, reason, kind, now)
        counters = self._lanes.counters(tx)
        counters.caller_leaves(found.office_id, found.lane_id)
        counters.is_freed = True
        return self._answer(tx, run_id, now, ahead)

    def do_due(self, tx: Tx, now: Instant, limit: int) -> tuple[bool, Instant | None]:
        """Ends waits that timed out, stops work that timed out, and renews reservations, for the callers of this node.

        Returns whether everything due was done, and when something is due next.
        """
        here = self._here
        self._expire_orphaned(tx, now, frozenset())
        over = direct.over(tx, here, now, limit)
        for run_id in over:
            self._end_wait(tx, run_id, now)
        # Reads all overdue work: work that ignores its stop stays overdue, and must not hide other overdue work.
        overdue = direct.overdue(tx, here, now, ALL)
        for run_id, expires_at in direct.expiring(tx, here, now.after(RENEWED_BEFORE_SECONDS)):
            if self.is_connected(run_id):
                direct.renew(tx, run_id, now.after(RESERVATION_SECONDS))
            elif expires_at <= now:
                self.give_up(tx, run_id, OWNER_GONE, now, FailureKind.CRASH)
        for run_id in overdue:
            tx.cause(Stop(run_id, FailureKind.TIMEOUT))
        wait, timeout, expiry = direct.next_instants(tx, here, now)
        renewal = None if expiry is None else max(expiry.after(-RENEWED_BEFORE_SECONDS), now.after(1))
        upcoming = [at for at in (wait, timeout, renewal) if at is not None]
        return len(over) < limit, min(upcoming, default=None)

    @property
    def _here(self) -> str | None:
        """Returns the node whose callers this handler serves; None for the callers of all nodes."""
        return self._node

    def is_here(self, caller: direct.WaitingCaller) -> bool:
        """Returns whether the caller is connected to this node, which then runs the caller's work."""
        return caller.node_id == self._node

    def is_connected(self, run_id: str) -> bool:
        return run_id in self.callers

    def recover(self, tx: Tx, node_id: str | None = None) -> int:
        """Ends what a crash of one node, or of all, has left: executions become FAILED, reservations EXPIRED (spec
        11.10).

        The next caller of another node gets the reservation. Reservations without an execution, which only a damaged
        database contains, become EXPIRED too. Returns how many executions and reservations this ended. Safe to repeat.
        """
        now = self._clock.now()
        unfinished = direct.unfinished(tx, node_id)
        lost = {one.run_id for one in unfinished}
        for caller in unfinished:
            if caller.status is DirectStatus.RUNNING:
                self.finish(tx, caller.run_id, caller.run_id, Outcome.failed(FailureKind.CRASH, CRASH_ERROR), now)
            else:
                self.give_up(tx, caller.run_id, CRASH_ERROR, now, FailureKind.CRASH, lost=lost)
        return len(unfinished) + self._expire_orphaned(tx, now, lost)

    def _expire_orphaned(self, tx: Tx, now: Instant, lost: Set[str]) -> int:
        orphaned = direct.expire_orphaned(tx)
        for reservation_id, run_id, office_id in orphaned:
            self._note_end(tx, reservation_id, run_id, office_id, "EXPIRED", now)
            self._reserve_next(tx, office_id, direct.waiting_ids(tx, office_id), now, lost)
            self._lanes.counters(tx).is_freed = True
            tx.announce("callers")
        return len(orphaned)

    def _end_wait(self, tx: Tx, run_id: str, now: Instant) -> None:
        """Ends a wait that timed out, and stores how many callers were ahead, for the answer."""
        found = direct.get(tx, run_id)
        assert found is not None
        ahead = direct.waiting_ids(tx, found.office_id).index(run_id)
        self.give_up(tx, run_id, WAITED_TOO_LONG, now, ahead=ahead)

    def _reserve(self, tx: Tx, office_id: str, run_id: str, now: Instant) -> None:
        reservation_id = self._chance.new_id()
        expires_at = now.after(RESERVATION_SECONDS)
        direct.reserve(tx, reservation_id, run_id, expires_at, now)
        self._timer.note_here(tx, now.after(RESERVATION_SECONDS - RENEWED_BEFORE_SECONDS))
        tx.announce("callers")
        details = {"reservation_id": reservation_id, "run_id": run_id}
        self._events.note(tx, "reservation_made", now, office_id, details=details)

    def _pass_on(
        self, tx: Tx, run_id: str, office_id: str, status: str, now: Instant, lost: Set[str] = frozenset()
    ) -> None:
        """Passes the reservation of a caller who stops waiting, if the caller has it, to the next caller."""
        waiting = [one for one in direct.waiting_ids(tx, office_id) if one != run_id]
        reservation_id = direct.release(tx, run_id, status)
        if reservation_id is not None:
            self._note_end(tx, reservation_id, run_id, office_id, status, now)
            self._reserve_next(tx, office_id, waiting, now, lost)
        tx.announce("callers")
        tx.cause(DirectMoved(waiting))

    def _reserve_next(self, tx: Tx, office_id: str, waiting: Sequence[str], now: Instant, lost: Set[str]) -> None:
        following = next((one for one in waiting if one not in lost), None)
        if following is not None:
            self._reserve(tx, office_id, following, now)

    def _note_end(
        self, tx: Tx, reservation_id: str, run_id: str | None, office_id: str, status: str, now: Instant
    ) -> None:
        details = {"reservation_id": reservation_id, "run_id": run_id}
        self._events.note(tx, f"reservation_{status.lower()}", now, office_id, details=details)

    def _answer(self, tx: Tx, run_id: str, now: Instant, ahead: int = 0) -> Direct:
        ended = direct.get(tx, run_id)
        assert ended is not None
        assert ended.finished_at is not None
        key = RollupKey(ended.office_id, ended.job_type, DIRECT, ended.status.value)
        self._rollups.note(tx, key, ended.created_at, ended.started_at, ended.finished_at)
        self._webhooks.direct_ended(tx, ended, now)
        tx.cause(DirectEnded(ended, ahead))
        return ended

    # Connected callers.

    async def execute(self, access: CallersStore, wanted: NewDirect) -> Direct:
        """Waits for the slot and for the work. Returns how the execution ended. Gives up the place if cancelled."""
        # The store is read now, because a caller may disconnect after the scheduler has closed its store.
        store = access.store
        run_id, caller = self._connect(wanted)
        try:
            await access.create(lambda tx: self.request(tx, wanted, run_id, self._clock.now()))
            return answered(await caller.ended, caller.ahead)
        except asyncio.CancelledError:
            self._disconnect(store, run_id, wanted.detach)
            raise
        except BaseException:
            self.callers.pop(run_id, None)
            raise

    async def stream(self, access: CallersStore, wanted: NewDirect) -> AsyncGenerator[Update, None]:
        """Does the same as `execute`, but yields places, progress and output as they come, and the result last."""
        store = access.store
        run_id, caller = self._connect(wanted)
        caller.updates = asyncio.Queue()
        is_over = False
        try:
            await access.create(lambda tx: self.request(tx, wanted, run_id, self._clock.now()))
            await self.callers.read_places(store, wanted.office_id)
            while not is_over:
                update = await caller.updates.get()
                if isinstance(update, Unavailable):
                    is_over = True
                    raise update
                is_over = update.kind == "result"
                yield update
        finally:
            if is_over:
                self.callers.pop(run_id, None)
            else:
                self._disconnect(store, run_id, wanted.detach)

    async def drain(self, store: Store) -> None:
        """Ends the waits of all callers because the scheduler stops. Work that has started goes on."""
        try:
            await self.end_waits(store, DRAINING)
        except Unavailable as error:
            log.error(
                "direct requests that wait are ended by the next start, since that cannot be stored now: %s", error
            )
            self.callers.send_away(Draining(_try_later(DRAINING)), is_waiting=True)

    async def end_waits(self, store: Store, reason: str) -> None:
        for run_id in [run_id for run_id, caller in self.callers.items() if not caller.has_started]:
            await store.write(lambda tx, d=run_id: self.give_up(tx, d, reason, self._clock.now()))  # type: ignore[misc]

    async def close(self) -> None:
        """Answers the remaining callers with an error, because the end of their work could not be stored."""
        self.callers.send_away(Draining("the scheduler has stopped, and could not store the result"), is_waiting=False)
        if self._goodbyes:
            await asyncio.wait(self._goodbyes)

    def cancel(self, tx: Tx, direct_id: str, office_id: str, now: Instant) -> Direct:
        """Ends a direct execution that waits, or requests the stop of one that runs."""
        found = direct.find(tx, direct_id, office_id)
        if found is None:
            raise NotFound("direct execution", direct_id)
        if found.finished_at is not None:
            raise Conflict(
                f"direct execution {direct_id} is {found.status} since {found.finished_at}: there is nothing to cancel"
            )
        ended = self.give_up(tx, found.run_id, CANCELLED, now)
        if ended is None:
            direct.request_cancel(tx, found.run_id, now)
            tx.announce("stop")
            tx.cause(Stop(found.run_id, FailureKind.CANCELLED))
        return ended or found

    async def look(self, store: Store) -> None:
        """Reads changes that another node may have made, and sends them to the callers of this node."""
        waited_in: dict[str, None] = {}
        for run_id, caller in list(self.callers.items()):
            found = await store.read(lambda tx, d=run_id: direct.get(tx, d))  # type: ignore[misc]
            if found is not None and found.finished_at is not None:
                self.callers.send_ended(found)
            elif found is not None and found.status is DirectStatus.WAITING and caller.updates is not None:
                waited_in[found.office_id] = None
        for office_id in waited_in:
            await self.callers.read_places(store, office_id)

    def check(self, wanted: NewDirect) -> None:
        """Raises Invalid for a request that could not be carried out."""
        as_job = NewJob(
            job_type=wanted.job_type,
            params=wanted.params,
            office_id=wanted.office_id,
            timeout_seconds=wanted.timeout_seconds,
            created_by=wanted.created_by,
            affinity=wanted.affinity,
            limit_keys=wanted.limit_keys,
        )
        self._intake.check([as_job], self._clock.now())
        placing = self._job_types.placing(wanted.job_type)
        if placing is not None:
            raise Invalid(
                f"runs on the engine {placing.engine!r}, where it waits for another queue; create a job instead",
                field="job_type",
            )
        if wanted.webhook is not None:
            self._webhooks.refuse_wrong("webhook", wanted.webhook, DIRECT_EVENTS)
        if not request_checks.is_number(wanted.wait_timeout_seconds, above=-1e-9):
            given = must_be(wanted.wait_timeout_seconds, "a number of seconds from 0 on, for example 30")
            raise Invalid(given, field="wait_timeout_seconds")
        if not isinstance(wanted.detach, bool):
            raise Invalid("is neither true nor false; give one of them", field="detach")
        if wanted.direct_id is not None:
            _refuse_wrong_id(wanted.direct_id)

    def _connect(self, wanted: NewDirect) -> tuple[str, ConnectedCaller]:
        self.check(wanted)
        run_id = self._chance.new_id()
        self._tracer.called(run_id)
        caller = self.callers[run_id] = ConnectedCaller(wanted.direct_id or run_id, run_id)
        return run_id, caller

    def _disconnect(self, store: Store, run_id: str, detach: bool) -> None:
        """Ends the wait or the work in a new task, because the task of the caller is being cancelled."""
        task = asyncio.get_running_loop().create_task(self._leave(store, run_id, detach), name="nextslot-disconnect")
        self._goodbyes.add(task)
        task.add_done_callback(self._goodbyes.discard)

    async def _leave(self, store: Store, run_id: str, detach: bool) -> None:
        """Gives up the caller's place; if the work has started and is not detached, stops the work."""

        def leave(tx: Tx) -> None:
            if self.give_up(tx, run_id, HUNG_UP, self._clock.now()) is None and not detach:
                tx.cause(Stop(run_id, FailureKind.CANCELLED))

        with suppress(Unavailable):
            await store.write(leave)
        self.callers.pop(run_id, None)


def _refuse_wrong_id(direct_id: object) -> None:
    """Raises Invalid for an id that a caller may not choose."""
    if not isinstance(direct_id, str) or _ID.fullmatch(direct_id) is None:
        raise Invalid("is not an id; use up to 100 letters, digits, '_' and '-'", field="direct_id")
    if _OURS.fullmatch(direct_id) is not None:
        raise Invalid("has the form of an id that the scheduler gives; choose one of another form", field="direct_id")


def _try_later(reason: str) -> str:
    return f"{reason}; try again later" if reason == DRAINING else f"{reason}; ask another one"


def answered(ended: Direct, ahead: int) -> Direct:
    """Returns the execution that has ended; raises if its work never started."""
    if ended.status is DirectStatus.CANCELLED and ended.reason == WAITED_TOO_LONG:
        waited = ended.waited_seconds or 0
        raise SlotBusy(ahead, f"the slot did not come free within {waited:g} seconds; callers ahead: {ahead}")
    if ended.status is DirectStatus.CANCELLED and ended.reason in (DRAINING, DRAINED):
        raise Draining(_try_later(ended.reason))
    return ended
