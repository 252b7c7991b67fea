"""QueueManager: jobs enter the queue at a place, and change it while they are queued (INV-004, DEC-005).

It runs nothing, creates no runs and decides no retries.
"""

from collections import Counter
from collections.abc import Sequence

from nextslot.domain import (
    MAX_PRIORITY,
    URGENT,
    Job,
    Stage,
    request_checks,
)
from nextslot.engine.effects import RequestsLinked
from nextslot.engine.engine_context import EngineContext
from nextslot.errors import (
    AlreadyDispatched,
    AlreadyFinished,
    Conflict,
    Invalid,
    NotFound,
)
from nextslot.store.contract import Tx
from nextslot.store.tables import jobs, lanes, offices
from nextslot.store.tables.jobs import Place
from nextslot.system.instant import Instant

# Twenty moves into the same place before its neighbours have to make room.
GAP = 1 << 20
# Further back than any queue is long.
MAX_PLACE = 1 << 31


class QueueManager:
    def __init__(self, engine: EngineContext) -> None:
        self._lanes = engine.lanes
        self._timer = engine.timer
        self._events = engine.events
        self._tracer = engine.tracer

    # Entering.

    def back(self, tx: Tx, office_id: str, priority: int) -> int:
        """A position behind every queued job of a priority; asked again in a transaction, behind that one."""
        backs = tx.local(_Backs).positions
        queue = (office_id, priority)
        last = backs[queue] if queue in backs else jobs.last_position(tx, office_id, priority) or 0
        backs[queue] = last + GAP
        return last + GAP

    def enqueue(self, tx: Tx, new: Sequence[Job], now: Instant) -> None:
        """New jobs, each at the place it was given by `back`."""
        jobs.insert(tx, new)
        links = self._tracer.links_of(new)
        if links:
            tx.cause(RequestsLinked(links))
        self._events.note_jobs(tx, "job_queued", now, new)
        counters = self._lanes.counters(tx)
        for lane_id, chains in Counter(job.lane_id for job in new if job.retry_of is None).items():
            counters.tally(lane_id).chains += chains
        for lane_id, ready in Counter(job.lane_id for job in new if job.is_ready).items():
            counters.add_ready(lane_id, ready)
        for at in {job.expires_at for job in new} | {job.scheduled_for for job in new if not job.is_due}:
            self._timer.note(tx, at)

    # Changing the order.

    def move(
        self,
        tx: Tx,
        job_id: str,
        now: Instant,
        *,
        to: str | None = None,
        before: str | None = None,
        after: str | None = None,
        place: int | None = None,
    ) -> Job:
        """To the front or back, before or after a job, or to the n-th place (from 1) of its office's queue."""
        if sum(choice is not None for choice in (to, before, after, place)) != 1:
            raise Invalid("say exactly one of to, before, after, place")
        if to not in (None, "front", "back"):
            raise Invalid("to is 'front' or 'back'", "to")
        if place is not None and (type(place) is not int or not 1 <= place <= MAX_PLACE):
            raise Invalid("places are whole numbers that count from 1", "place")
        job = self.queued(tx, job_id)
        if before is not None or after is not None:
            neighbour = self._neighbour(tx, job, before or after or "")
            priority, position = self._beside(tx, job, neighbour, is_before=before is not None)
        elif to == "back":
            priority, position = self._at_the_back(tx, job)
        else:
            at = jobs.nth(tx, job.office_id, 0 if place is None else place - 1, but=job_id)
            priority, position = self._beside(tx, job, at, is_before=True) if at else self._at_the_back(tx, job)
        return self._put(tx, job, priority, position, now)

    def reorder(self, tx: Tx, job_ids: Sequence[str], now: Instant) -> list[Job]:
        """The given jobs take, in the order given, the places that they hold now; all or none."""
        found = jobs.get_many(tx, job_ids)
        self._check_reorder(job_ids, found)
        places = sorted(jobs.place_of(job) for job in found.values())
        return [
            self._put(tx, found[job_id], place.priority, place.position, now)
            for job_id, place in zip(job_ids, places, strict=True)
        ]

    def change_priority(self, tx: Tx, job_id: str, priority: int, now: Instant) -> Job:
        """To the back of another priority; URGENT goes before everything in its office."""
        refuse_priority(priority)
        job = self.queued(tx, job_id)
        if priority == job.priority:
            return job
        return self._put(tx, job, priority, self.back(tx, job.office_id, priority), now)

    def reschedule(self, tx: Tx, job_id: str, scheduled_for: Instant | None, now: Instant) -> Job:
        """Not before another time, or at once."""
        job = self.queued(tx, job_id)
        if scheduled_for is not None and not request_checks.is_instant(scheduled_for):
            raise Invalid(request_checks.AN_INSTANT, field="scheduled_for")
        problems = list(request_checks.expiry_problems(job.expires_at, scheduled_for or now))
        if problems:
            raise Invalid(problems)
        changed = job._replace(scheduled_for=scheduled_for, is_due=scheduled_for is None or scheduled_for <= now)
        jobs.reschedule(tx, job_id, scheduled_for, changed.is_due)
        self._count_change(tx, job, changed, now)
        if not changed.is_due:
            self._timer.note(tx, scheduled_for)
        return changed

    def change_params(self, tx: Tx, job: Job, changed: Job, now: Instant) -> Job:
        """Other parameters, checked by the caller, and the lane that follows from them (INV-001)."""
        jobs.set_params(tx, changed)
        self._count_change(tx, job, changed, now)
        return changed

    def rename(self, tx: Tx, job_id: str, title: str | None) -> Job:
        job = self.queued(tx, job_id)
        problems = [] if title is None else list(request_checks.text_problems("title", title))
        if problems:
            raise Invalid(problems)
        jobs.set_title(tx, job_id, title)
        return job._replace(title=title)

    def _count_change(self, tx: Tx, before: Job, after: Job, now: Instant) -> None:
        """A queued job that is ready now, is no longer, or is so in another lane."""
        counters = self._lanes.counters(tx)
        if before.is_ready:
            counters.add_ready(before.lane_id, -1)
        if after.is_ready:
            counters.add_ready(after.lane_id)
            if not before.is_ready:
                self._events.note(tx, "job_ready", now, after.office_id, after.job_id)

    def queued(self, tx: Tx, job_id: str) -> Job:
        """The job, if it may still be changed (INV-001)."""
        job = jobs.get(tx, job_id)
        if job is None:
            raise NotFound("job", job_id)
        if job.has_ended:
            raise AlreadyFinished(f"job {job_id} is {job.status}: it cannot be changed any more")
        if job.stage is not Stage.QUEUED:
            raise AlreadyDispatched(f"job {job_id} was dispatched at {job.started_at}: it cannot be changed any more")
        return job

    # Pausing.

    def pause(self, tx: Tx, scope: str, name: str, now: Instant) -> None:
        if scope == "office":
            changed = self._pause_office(tx, name, True)
        else:
            changed = lanes.pause(tx, scope, name, now)
        if changed:
            self._events.note(tx, "queue_paused", now, name if scope == "office" else None, details={scope: name})

    def resume(self, tx: Tx, scope: str, name: str, now: Instant) -> None:
        changed = self._pause_office(tx, name, False) if scope == "office" else lanes.resume(tx, scope, name)
        if changed:
            self._lanes.counters(tx).is_freed = True
            self._events.note(tx, "queue_resumed", now, name if scope == "office" else None, details={scope: name})

    def _pause_office(self, tx: Tx, office_id: str, is_paused: bool) -> bool:
        if offices.get(tx, office_id) is None:
            raise NotFound("office", office_id)
        changed = offices.pause(tx, office_id, is_paused)
        self._lanes.counters(tx).office(office_id).is_paused = is_paused
        return changed

    # Places.

    def _neighbour(self, tx: Tx, job: Job, other_id: str) -> Place:
        other = self.queued(tx, other_id)
        if other.job_id == job.job_id:
            raise Invalid("a job cannot be moved beside itself")
        if other.office_id != job.office_id:
            raise Conflict(f"job {other_id} is in the office {other.office_id!r}, not in {job.office_id!r}")
        return jobs.place_of(other)

    def _at_the_back(self, tx: Tx, job: Job) -> tuple[int, int]:
        last = jobs.last(tx, job.office_id, but=job.job_id)
        return (last.priority, self.back(tx, job.office_id, last.priority)) if last else (job.priority, job.position)

    def _beside(self, tx: Tx, job: Job, neighbour: Place, *, is_before: bool) -> tuple[int, int]:
        """A position just before or after a neighbour, in its priority."""
        if is_before:
            below = jobs.position_before(tx, job.office_id, neighbour, but=job.job_id)
            above = neighbour
        else:
            below = neighbour.position
            above = neighbour._replace(position=neighbour.position + 1)
        return neighbour.priority, self._free_position(tx, job, below, above)

    def _free_position(self, tx: Tx, job: Job, below: int | None, above: Place) -> int:
        """A free integer after `below` and before the jobs from `above` on; they make room if there is none.

        The more of them have to move, the more room they are given (Dietz and Sleator's n²), so that thousands of
        moves into the same place cost each a few neighbours, and never again and again all that have gathered there.
        """
        if below is None:
            return above.position - GAP
        limit = 64
        while True:
            following = jobs.from_position(tx, job.office_id, above, but=job.job_id, limit=limit)
            for count, (_, position) in enumerate(following):
                if position - below > (count + 1) ** 2:
                    return self._respace(tx, above.priority, below, position, following[:count])
            if len(following) < limit:
                # The queue ends further back than this transaction knew.
                tx.local(_Backs).positions.pop((job.office_id, above.priority), None)
                return self._respace(tx, above.priority, below, below + (len(following) + 2) * GAP, following)
            limit *= 8

    def _respace(self, tx: Tx, priority: int, below: int, above: int, between: Sequence[tuple[str, int]]) -> int:
        """Spreads the neighbours evenly, keeps their order, and leaves the first of the new positions free."""
        step = (above - below) // (len(between) + 2) or 1
        for number, (job_id, _) in enumerate(between, start=2):
            jobs.set_place(tx, job_id, priority, below + number * step)
        return below + step

    def _put(self, tx: Tx, job: Job, priority: int, position: int, now: Instant) -> Job:
        if (priority, position) == (job.priority, job.position):
            return job
        jobs.set_place(tx, job.job_id, priority, position)
        self._events.note(
            tx, "job_moved", now, job.office_id, job.job_id, details={"priority": priority, "position": position}
        )
        # A job that moves may overtake or be overtaken without a limit being to blame; its office looks again.
        self._lanes.counters(tx).office(job.office_id)
        return job._replace(priority=priority, position=position)

    def _check_reorder(self, job_ids: Sequence[str], found: dict[str, Job]) -> None:
        if not job_ids:
            raise Invalid("name at least one job", field="job_ids")
        if len(set(job_ids)) != len(job_ids):
            raise Invalid("a job is named twice", field="job_ids")
        missing = [job_id for job_id in job_ids if job_id not in found]
        if missing:
            raise NotFound("job", missing[0])
        if len({job.office_id for job in found.values()}) > 1:
            raise Invalid("the jobs are of several offices; each office has its own order", field="job_ids")
        gone = [job_id for job_id in job_ids if found[job_id].stage is not Stage.QUEUED]
        if gone:
            raise AlreadyDispatched(f"no longer queued, so nothing was moved: {', '.join(gone)}")


class _Backs:
    """Where the queues end, as far as this transaction has added to them."""

    def __init__(self, tx: Tx) -> None:
        self.positions: dict[tuple[str, int], int] = {}


def refuse_priority(priority: int) -> None:
    """Raises if no job can have it."""
    if type(priority) is not int or not (-MAX_PRIORITY <= priority <= MAX_PRIORITY or priority == URGENT):
        raise Invalid(f"a priority is a whole number from -{MAX_PRIORITY:,} to {MAX_PRIORITY:,}", field="priority")
