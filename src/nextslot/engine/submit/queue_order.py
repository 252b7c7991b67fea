"""QueueManager: puts jobs into the queue, and changes their order, times and pauses while they are queued.

The order is that of INV-004 and DEC-005. It runs nothing, creates no runs and decides no retries.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from nextslot.domain import MAX_PRIORITY, URGENT, Job, Stage, bounds, request_checks
from nextslot.engine.effects import RequestsLinked
from nextslot.engine.engine_context import EngineContext
from nextslot.errors import AlreadyDispatched, AlreadyFinished, Invalid, NotFound, Problem
from nextslot.store.contract import Tx
from nextslot.store.tables import jobs, lanes, offices, search
from nextslot.store.tables.jobs import Place
from nextslot.system.instant import Instant

# The distance between two positions: 20 moves to the same place fit in before other jobs must move.
GAP = 1 << 20
# Larger than any queue is long.
MAX_PLACE = 1 << 31
# Used in place of a priority for the positions of all priorities together.
EVERY = URGENT + 1


class Created(NamedTuple):
    """New jobs, or a direct request, of one type in one office."""

    office_id: str
    job_type: str
    number: int


class NewWork:
    """What the works of a transaction have created, so that keys and quotas can be checked before the commit."""

    def __init__(self, tx: Tx) -> None:
        self.created: list[Created] = []
        # For each office, the problems of requests of the last work that name undeclared resources.
        self.own_resources: list[tuple[str, Problem]] = []


class QueueManager:
    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine
        self._lanes = engine.lanes
        self._timer = engine.timer
        self._events = engine.events
        self._tracer = engine.tracer

    # Adding to the queue.

    def back(self, tx: Tx, office_id: str, priority: int) -> int:
        """Returns a position behind all queued jobs of a priority, and behind those that this transaction has added.

        In an office that ages its jobs, the position is behind the jobs of every priority. So a job that reaches the
        level of later jobs goes before them.
        """
        backs = tx.local(_Backs)
        queue = (office_id, EVERY if (office_id, EVERY) in backs.positions else priority)
        last = backs.positions.get(queue)
        if last is None:
            last, largest = jobs.last_position(tx, office_id, priority)
            if largest is not None:
                queue, last = (office_id, EVERY), max(last, largest)
        backs.positions[queue] = last + GAP
        return last + GAP

    def enqueue(self, tx: Tx, new: Sequence[Job], now: Instant) -> None:
        """Stores new jobs at the positions that `back` has returned."""
        jobs.insert(tx, new)
        if any(job.title for job in new):
            search.add(tx, new)
        self._store_largest_positions(tx)
        made = Counter([(job.office_id, job.job_type) for job in new])
        tx.local(NewWork).created += [Created(*of, count) for of, count in made.items()]
        links = self._tracer.links_of(new)
        if links:
            tx.cause(RequestsLinked(links))
        self._events.note_jobs(tx, "job_queued", now, new)
        counters = self._lanes.counters(tx)
        for lane_id, chains in Counter([job.lane_id for job in new if job.retry_of is None]).items():
            counters.tally(lane_id).chains += chains
        ready: dict[int, list[Job]] = {}
        for job in new:
            if job.is_ready:
                ready.setdefault(job.lane_id, []).append(job)
        for lane_id, of_lane in ready.items():
            counters.add_ready(lane_id, min(map(jobs.place_of, of_lane)).bound, len(of_lane))
        for office_id in {job.office_id for job in new if job.is_ready}:
            if counters.office(office_id).aging_seconds is not None:
                ready_jobs = [job.job_id for job in new if job.is_ready and job.office_id == office_id]
                self._engine.begin_aging(tx, office_id, ready_jobs, now)
        for job in new:
            if job.is_asking:
                self._engine.ask(tx, job.job_id, now)
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
        """Moves a job to the front or back, before or after another, or to the n-th place of its office's queue.

        The job gets the effective priority of its new neighbour, so the others keep their order. Its age starts again.
        """
        given = [choice for choice in (to, before, after, place) if choice is not None]
        if len(given) != 1:
            raise Invalid(f"{len(given)} places are given; give exactly one of to, before, after, place")
        if to not in (None, "front", "back"):
            raise Invalid(f"is {to!r}; give 'front' or 'back'", "to")
        if place is not None and (type(place) is not int or not 1 <= place <= MAX_PLACE):
            raise Invalid("is not a place; give a whole number from 1 on", "place")
        job = self.queued(tx, job_id)
        if before is not None or after is not None:
            other = self._place_of_other(tx, job, before or after or "")
            priority, position = self._beside(tx, job, other, now, is_before=before is not None)
        elif to == "back":
            priority, position = self._at_the_back(tx, job)
        else:
            at = jobs.nth(tx, job.office_id, 0 if place is None else place - 1, but=job_id)
            priority, position = self._beside(tx, job, at, now, is_before=True) if at else self._at_the_back(tx, job)
        return self._put(tx, job, priority, position, now)

    def reorder(self, tx: Tx, job_ids: Sequence[str], now: Instant, office_id: str | None = None) -> list[Job]:
        """Puts the jobs in the given order into the places that they occupy now, all or none.

        A caller of one office, `office_id`, can name only jobs of this office.
        """
        found = {
            job_id: job for job_id, job in jobs.get_many(tx, job_ids).items() if office_id in (None, job.office_id)
        }
        self._check_reorder(job_ids, found)
        by_id, places = self._distinct_places(tx, found, now)
        return [
            self._put(tx, by_id[job_id], place.priority, place.position, now)
            for job_id, place in zip(job_ids, places, strict=True)
        ]

    def change_priority(self, tx: Tx, job_id: str, priority: int, now: Instant) -> Job:
        """Moves a job to the back of another priority, and restarts its age. URGENT comes before all others."""
        refuse_priority(priority)
        job = self.queued(tx, job_id)
        if priority == job.priority and job.aged_steps == 0:
            return job
        return self._put(tx, job, priority, self.back(tx, job.office_id, priority), now)

    def reschedule(self, tx: Tx, job_id: str, scheduled_for: Instant | None, now: Instant) -> Job:
        """Changes the time before which a job does not start; None: at once."""
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
        """Stores parameters that `Intake` has checked, and the lane that follows from them (INV-001)."""
        jobs.set_params(tx, changed)
        self._count_change(tx, job, changed, now)
        return changed

    def rename(self, tx: Tx, job_id: str, title: str | None) -> Job:
        job = self.queued(tx, job_id)
        problem = None if title is None else bounds.TITLE.problem(title)
        if problem is not None:
            raise Invalid(problem, field="title")
        jobs.set_title(tx, job_id, title)
        search.set_title(tx, job_id, title)
        return job._replace(title=title)

    def _count_change(self, tx: Tx, before: Job, after: Job, now: Instant) -> None:
        """Updates the counters of a queued job that became ready, is no longer ready, or is ready in another lane."""
        counters = self._lanes.counters(tx)
        if before.passed_over_since is not None:
            counters.is_freed = True  # The units that were kept free for it may be more than it needs now.
        if before.is_ready:
            counters.remove_ready(before.lane_id)
        if after.is_asking:
            self._engine.ask(tx, after.job_id, now)
        if after.is_ready:
            counters.add_ready(after.lane_id, jobs.place_of(after).bound)
            if not before.is_ready:
                self._events.note(tx, "job_ready", now, after.office_id, after.job_id)
                self._engine.begin_aging(tx, after.office_id, [after.job_id], now)

    def queued(self, tx: Tx, job_id: str) -> Job:
        """Returns the job if it can still be changed; raises if it was dispatched (INV-001)."""
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
            # No units are kept free for a paused job.
            self._lanes.counters(tx).is_freed = True
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

    def _place_of_other(self, tx: Tx, job: Job, other_id: str) -> Place:
        found = jobs.get(tx, other_id)
        if found is None or found.office_id != job.office_id:
            raise NotFound("job", other_id, f"this is the queue of the office {job.office_id!r}")
        if other_id == job.job_id:
            raise Invalid(f"job {other_id} cannot be moved beside itself; name another job")
        return jobs.place_of(self.queued(tx, other_id))

    def _at_the_back(self, tx: Tx, job: Job) -> tuple[int, int]:
        last = jobs.last(tx, job.office_id, but=job.job_id)
        return (last.priority, self.back(tx, job.office_id, last.priority)) if last else (job.priority, job.position)

    def _distinct_places(self, tx: Tx, found: dict[str, Job], now: Instant) -> tuple[dict[str, Job], list[Place]]:
        """Returns jobs with their places in order, after giving separate positions to jobs that came to share one by
        aging.
        """
        while True:
            places = sorted(jobs.place_of(job) for job in found.values())
            shared = next((two for one, two in pairwise(places) if one[:2] == two[:2]), None)
            if shared is None:
                return found, places
            self._free_position(tx, found[shared.job_id].office_id, shared.position, shared, now)
            found = jobs.get_many(tx, found)

    def _beside(self, tx: Tx, job: Job, other: Place, now: Instant, *, is_before: bool) -> tuple[int, int]:
        """Returns the effective priority of another job, and a position just before or after it."""
        if is_before:
            below = jobs.position_before(tx, job.office_id, other, but=job.job_id)
            return other.priority, self._free_position(tx, job.office_id, below, other, now, but=job.job_id)
        after = other.job_id
        position = self._free_position(tx, job.office_id, other.position, other, now, but=job.job_id, after=after)
        return other.priority, position

    def _free_position(
        self, tx: Tx, office_id: str, below: int | None, above: Place, now: Instant, *, but: str = "", after: str = ""
    ) -> int:
        """Returns a free position after `below` and before the jobs from `above` on. Moves those jobs if no position is
        free, except `but` and `after`.

        The more jobs must move, the further apart they are placed (Dietz and Sleator's n²), so that each of thousands
        of moves to the same place moves only a few other jobs.
        """
        if below is None:
            return above.position - GAP
        limit = 64
        while True:
            following = jobs.from_position(tx, office_id, above, but=but, after=after, limit=limit)
            for count, (_, position, _, _) in enumerate(following):
                if position - below > (count + 1) ** 2:
                    return self._respace(tx, office_id, above.priority, below, position, following[:count], now)
            if len(following) < limit:
                end = below + (len(following) + 2) * GAP
                self._note_last(tx, office_id, above.priority, end)
                return self._respace(tx, office_id, above.priority, below, end, following, now)
            limit *= 8

    def _note_last(self, tx: Tx, office_id: str, priority: int, end: int) -> None:
        """Notes that the last position of a level changes, because the position that this transaction remembers is
        outdated.
        """
        backs = tx.local(_Backs)
        backs.positions.pop((office_id, priority), None)
        largest = backs.positions.get((office_id, EVERY)) or jobs.last_position(tx, office_id, priority)[1]
        if largest is not None:
            backs.positions[office_id, EVERY] = max(largest, end)

    def _respace(
        self,
        tx: Tx,
        office_id: str,
        level: int,
        below: int,
        above: int,
        between: Sequence[tuple[str, int, int, bool]],
        now: Instant,
    ) -> int:
        """Spreads the jobs evenly in their order. Returns the first of the new positions, which stays free."""
        step = (above - below) // (len(between) + 2) or 1
        # A waiting job may have a next step too; it is dropped when it is due.
        ages_at = self._engine.next_step(tx, office_id, now) if between else None
        for number, (job_id, _, lane_id, is_ready) in enumerate(between, start=2):
            jobs.set_position(tx, job_id, below + number * step, ages_at)
            if is_ready:
                self._lanes.counters(tx).lower(lane_id, (-level, below + number * step))
        return below + step

    def _put(self, tx: Tx, job: Job, priority: int, position: int, now: Instant) -> Job:
        if (priority, position) == (job.order_priority, job.position):
            return job
        ages_at = self._engine.next_step(tx, job.office_id, now) if job.is_ready and priority != URGENT else None
        jobs.set_place(tx, job.job_id, priority, position, ages_at)
        self._timer.note(tx, ages_at)
        self._store_largest_positions(tx)
        self._events.note(
            tx, "job_moved", now, job.office_id, job.job_id, details={"priority": priority, "position": position}
        )
        moved = job._replace(priority=priority, position=position, aged_steps=0, ages_at=ages_at)
        # Dispatches the office again, because another job may be first now.
        self._lanes.counters(tx).office(job.office_id)
        if moved.is_ready:
            self._lanes.counters(tx).lower(moved.lane_id, jobs.place_of(moved).bound)
        return moved

    def _store_largest_positions(self, tx: Tx) -> None:
        """Stores the largest position of each office that ages its jobs, once for each office whose position has
        grown.
        """
        backs = tx.local(_Backs)
        for (office_id, priority), position in backs.positions.items():
            if priority == EVERY and backs.stored.get(office_id) != position:
                backs.stored[office_id] = position
                offices.set_last_position(tx, office_id, position)

    def _check_reorder(self, job_ids: Sequence[str], found: dict[str, Job]) -> None:
        if not job_ids:
            raise Invalid("is empty; name at least one job", field="job_ids")
        if len(set(job_ids)) != len(job_ids):
            raise Invalid("names a job twice; name each job once", field="job_ids")
        missing = [job_id for job_id in job_ids if job_id not in found]
        if missing:
            raise NotFound("job", missing[0])
        if len({job.office_id for job in found.values()}) > 1:
            raise Invalid(
                "names jobs of several offices; each office has its own order, so reorder one at a time",
                field="job_ids",
            )
        gone = [job_id for job_id in job_ids if found[job_id].stage is not Stage.QUEUED]
        if gone:
            raise AlreadyDispatched(f"these jobs are no longer queued, so nothing was moved: {', '.join(gone)}")


class _Backs:
    """The last positions in the queues to which this transaction has added jobs, by office and priority."""

    def __init__(self, tx: Tx) -> None:
        self.positions: dict[tuple[str, int], int] = {}
        # The stored largest position of each office.
        self.stored: dict[str, int] = {}


def refuse_priority(priority: int) -> None:
    """Raises Invalid if no job can have this priority."""
    if type(priority) is not int or not (-MAX_PRIORITY <= priority <= MAX_PRIORITY or priority == URGENT):
        raise Invalid(
            f"is {priority!r}; it must be a whole number from -{MAX_PRIORITY:,} to {MAX_PRIORITY:,}", field="priority"
        )
