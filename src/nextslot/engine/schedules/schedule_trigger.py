"""ScheduleTrigger: creates the jobs of due occurrences, and stores the outcome of every occurrence.

The scheduler's one timer (`timeouts.py`) and its recovery call it. `next_trigger_at` in the store decides. A batch of
schedules is one transaction: their jobs, the occurrences, the events, and the next time of each. So a crash comes
before or after all of it, and an occurrence is neither lost nor fired twice. It runs no jobs and never reads the queue.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nextslot.domain import (
    Group,
    Job,
    Json,
    NewGroup,
    NewJob,
    Occurrence,
    Overlap,
    Schedule,
    SkipReason,
    Template,
    catch_up,
    json_form,
    request_checks,
)
from nextslot.domain.catch_up import Skipped
from nextslot.domain.cron import Cron, parse
from nextslot.domain.template_defaults import of_schedule, types_of
from nextslot.engine.engine_context import EngineContext
from nextslot.engine.settings.office_quotas import OfficeQuotas, OfficeRoom
from nextslot.engine.settings.stored_bytes import StoredBytes
from nextslot.engine.submit.intake import Intake
from nextslot.errors import Conflict, Invalid, NotFound
from nextslot.store.contract import Store, Tx
from nextslot.store.tables import occurrences, schedules, templates
from nextslot.store.tables.schedules import Progress
from nextslot.system.instant import Instant

log = logging.getLogger(__name__)

BATCH = 500
# A batch that creates this many jobs, by catching up, ends early, so that a transaction stays small.
MOST_JOBS = 1000


class _Wanted(NamedTuple):
    """What one occurrence should create."""

    schedule: Schedule
    instant: Instant
    new: NewJob | NewGroup


class _Made(NamedTuple):
    """What one occurrence has created: a job, or a group with its first job."""

    job: Job
    group: Group | None = None


@dataclass
class Batch:
    """The changes of one transaction for the schedules that are due."""

    # The handled schedules with their next times; and their stored progress.
    planned: list[tuple[Schedule, Instant | None]] = field(default_factory=list)
    advanced: list[Progress] = field(default_factory=list)
    wanted: list[_Wanted] = field(default_factory=list)
    # How many jobs the batch has created: a group counts by its jobs.
    jobs: int = 0
    # How many more jobs each office may get.
    room: dict[str, OfficeRoom] = field(default_factory=dict)
    skipped: list[tuple[Schedule, Skipped]] = field(default_factory=list)
    unreadable: list[Schedule] = field(default_factory=list)
    count: int = 0


class ScheduleTrigger:
    def __init__(
        self, engine: EngineContext, intake: Intake, quotas: OfficeQuotas, stored: StoredBytes | None = None
    ) -> None:
        self._clock = engine.clock
        self._timer = engine.timer
        self._events = engine.events
        self._intake = intake
        self._webhooks = engine.webhooks
        self._quotas = quotas
        self._stored = stored

    async def measure(self, store: Store) -> None:
        """Measures the stored files of offices with a quota, before occurrences are due."""
        if self._stored is not None and self._quotas.are_bytes_granted:
            await self._stored.refresh(store)
            self._quotas.stored_bytes = self._stored.of_offices

    # What is due.

    def do_due(self, tx: Tx, now: Instant, limit: int = BATCH) -> tuple[bool, Instant | None]:
        """Fires due occurrences. Returns whether these were all of them, and when the next one is due."""
        due = schedules.due(tx, now, limit)
        done = self._fire(tx, due, now) if due else Batch()
        handled = len(done.advanced) + len(done.unreadable)
        return handled == len(due) < limit, schedules.next_instant(tx)

    def settle(self, tx: Tx, schedule: Schedule, now: Instant) -> Schedule:
        """Stores the outcome of all occurrences up to now by the current settings, so that a change applies from the
        next one on (DEC-010).
        """
        if schedule.enabled:
            done = self._fire(tx, [schedule], now)
            if not done.advanced:
                return replace(schedule, enabled=False, next_trigger_at=None)
            return replace(schedule, **done.advanced[0]._asdict())
        cron = _readable(schedule)
        left_out = catch_up.disabled(schedule, cron, now) if cron is not None else None
        if left_out is not None:
            self._account_skipped(tx, [(schedule, left_out)], now)
        return replace(schedule, accounted_until=max(schedule.accounted_until, now))

    def trigger(
        self,
        tx: Tx,
        schedule_id: str,
        params: Mapping[str, Json] | None,
        priority: int | None,
        created_by: str | None,
        now: Instant,
    ) -> Job | Group:
        """Creates a job or group of this schedule by hand, now. It is not an occurrence, and ignores `enabled` and
        `overlap`.
        """
        schedule = schedules.get(tx, schedule_id)
        if schedule is None or schedule.deleted_at is not None:
            raise NotFound("schedule", schedule_id)
        template = templates.get(tx, schedule.template_id)
        assert template is not None
        if template.archived_at is not None:
            raise Conflict(
                f"its template {template.name!r} was archived on {template.archived_at}: give the schedule another"
            )
        problems = list(request_checks.json_problems("params", params)) if params is not None else []
        if problems:
            raise Invalid(problems)
        [made] = self._make(tx, [of_schedule(schedule, template, None, params, priority, created_by)], now)
        if isinstance(made, Invalid):
            raise made
        progress = Progress(schedule_id, now, schedule.accounted_until, schedule.next_trigger_at)
        schedules.advance(tx, [progress])
        return made.group or made.job

    # Recovery.

    async def recover(self, store: Store) -> int:
        """Fires missed occurrences by each schedule's policy. Returns how many. Safe to repeat.

        First computes every next time again: a time zone may have new rules, and the clock may have been set.
        """
        after = ""
        while last := await store.write(lambda tx, after=after: self._replan(tx, after), rows=BATCH):  # type: ignore[misc]
            after = last
        total = 0
        while count := await store.write(self._recover_batch, rows=BATCH):
            total += count
        return total

    def _recover_batch(self, tx: Tx) -> int:
        now = self._clock.now()
        return self._fire(tx, schedules.due(tx, now, BATCH), now).count

    def plan_again(self, tx: Tx) -> None:
        """Computes the next time of every schedule after the clock was set back, so that no occurrence fires twice."""
        after: str | None = ""
        while after is not None:
            after = self._replan(tx, after)

    def _replan(self, tx: Tx, after: str) -> str | None:
        """Computes the next times of a page of schedules by the current rules and clock. Returns the last id of the
        page.
        """
        now = self._clock.now()
        page = schedules.enabled(tx, after, BATCH)
        changed = []
        for schedule in page:
            # Stored occurrences are done, whatever the clock shows. Others can still come.
            accounted = schedule.accounted_until
            if accounted > now:
                accounted = max(now, occurrences.last(tx, schedule.schedule_id) or now)
            cron = _readable(schedule)
            upcoming = schedule.next_trigger_at if cron is None else cron.after(accounted)
            if (upcoming, accounted) != (schedule.next_trigger_at, schedule.accounted_until):
                changed.append(Progress(schedule.schedule_id, schedule.last_triggered_at, accounted, upcoming))
        schedules.advance(tx, changed)
        return page[-1].schedule_id if page else None

    # Firing.

    def _fire(self, tx: Tx, due: Sequence[Schedule], now: Instant) -> Batch:
        made_from = templates.get_many(tx, {schedule.template_id for schedule in due})
        skipping = [schedule.schedule_id for schedule in due if schedule.overlap is Overlap.SKIP]
        at_work = schedules.at_work(tx, skipping) if skipping else set()
        batch = Batch()
        for schedule in due:
            if batch.jobs >= MOST_JOBS:
                break
            cron = _readable(schedule)
            if cron is None:
                batch.unreadable.append(schedule)
            else:
                self._plan(tx, batch, schedule, cron, made_from[schedule.template_id], at_work, now)
        self._store(tx, batch, now)
        return batch

    def _plan(
        self,
        tx: Tx,
        batch: Batch,
        schedule: Schedule,
        cron: Cron,
        template: Template,
        at_work: set[str],
        now: Instant,
    ) -> None:
        account = catch_up.account(schedule, cron, now)
        batch.skipped += [(schedule, skipped) for skipped in account.skipped]
        batch.count += sum(skipped.span.count for skipped in account.skipped) + len(account.to_fire)
        # An admin may have changed the office's quotas since the schedule was created.
        denied = self._quotas.type_problem(schedule.office_id, types_of(template))
        for instant in account.to_fire:
            if denied is not None:
                batch.skipped.append((schedule, catch_up.one(instant, SkipReason.REFUSED, denied)))
                continue
            if schedule.overlap is Overlap.SKIP and schedule.schedule_id in at_work:
                batch.skipped.append((schedule, catch_up.one(instant, SkipReason.OVERLAP)))
                continue
            new = of_schedule(schedule, template, instant)
            if (problem := self._over_quota(tx, batch, schedule.office_id, new, now)) is not None:
                batch.skipped.append((schedule, catch_up.one(instant, SkipReason.REFUSED, problem)))
                continue
            batch.wanted.append(_Wanted(schedule, instant, new))
            batch.jobs += len(template.jobs or "1")
            at_work.add(schedule.schedule_id)
        batch.planned.append((schedule, account.upcoming))

    def _over_quota(self, tx: Tx, batch: Batch, office_id: str, new: NewJob | NewGroup, now: Instant) -> str | None:
        """Returns why the quotas of an office do not allow these jobs now. They are then skipped; other schedules still
        fire.
        """
        room = batch.room.get(office_id)
        if room is None:
            room = batch.room[office_id] = OfficeRoom(self._quotas, tx, office_id)
        wanted = [new] if isinstance(new, NewJob) else new.jobs
        return room.take(len(wanted), lambda: self._intake.combinations(tx, wanted, now))

    def _store(self, tx: Tx, batch: Batch, now: Instant) -> None:
        made = self._make(tx, [one.new for one in batch.wanted], now)
        fired = []
        refused: dict[str, str] = {}
        for (schedule, instant, _), one in zip(batch.wanted, made, strict=True):
            if isinstance(one, _Made):
                fired.append(_fired(schedule, instant, one))
                details = {"schedule_id": schedule.schedule_id, "instant": str(instant)}
                if one.group is not None:
                    details["group_id"] = one.group.group_id
                self._events.note(tx, "schedule_fired", now, schedule.office_id, one.job.job_id, details=details)
            else:
                refused[schedule.schedule_id] = str(one)
                batch.skipped.append((schedule, catch_up.one(instant, SkipReason.REFUSED)))
        occurrences.insert(tx, fired)
        self._account_skipped(tx, [_or_refused(one, refused) for one in batch.skipped], now)
        self._advance(tx, batch, {occurrence.schedule_id for occurrence in fired}, now)

    def _make(self, tx: Tx, wanted: Sequence[NewJob | NewGroup], now: Instant) -> list[_Made | Invalid]:
        """Creates jobs and groups. Returns for each occurrence what was created, or why nothing was."""
        single = [new for new in wanted if isinstance(new, NewJob)]
        made = iter(self._intake.accept_each(tx, single, now) if single else ())
        return [self._made_group(tx, new, now) if isinstance(new, NewGroup) else _made(next(made)) for new in wanted]

    def _made_group(self, tx: Tx, new: NewGroup, now: Instant) -> _Made | Invalid:
        try:
            group, (first, *_) = self._intake.accept_group(tx, new, now)
        except Invalid as error:
            return error
        return _Made(first.job, group)

    def _advance(self, tx: Tx, batch: Batch, triggered: set[str], now: Instant) -> None:
        batch.advanced += [
            Progress(
                schedule.schedule_id,
                now if schedule.schedule_id in triggered else schedule.last_triggered_at,
                max(schedule.accounted_until, now),
                upcoming,
            )
            for schedule, upcoming in batch.planned
        ]
        schedules.advance(tx, batch.advanced)
        for schedule in batch.unreadable:
            # Its time zone no longer exists, so the schedule cannot be planned; it must not delay others.
            log.error(
                "schedule %r was disabled: %s", schedule.name, f"its time zone {schedule.timezone!r} no longer exists"
            )
            schedules.update(tx, replace(schedule, enabled=False, next_trigger_at=None))

    def _account_skipped(self, tx: Tx, skipped: Sequence[tuple[Schedule, Skipped]], now: Instant) -> None:
        """Stores skipped occurrences, singly or as spans, with one event (and webhook) for each schedule and reason."""
        occurrences.insert(tx, [_skipped_occurrence(schedule, one) for schedule, one in skipped])
        for schedule, occurrence in _by_reason(skipped):
            details = {
                "schedule_id": schedule.schedule_id,
                "reason": occurrence.reason,
                "instant": str(occurrence.instant),
                "until": str(occurrence.until) if occurrence.until else None,
                "count": occurrence.count,
                "detail": occurrence.detail,
            }
            self._events.note(tx, "schedule_skipped", now, schedule.office_id, details=details)
            shown = json_form.schedule(schedule), occurrence.to_dict()
            self._webhooks.schedule_skipped(tx, schedule.office_id, *shown, now)


def open_span(schedule: Schedule, now: Instant) -> Occurrence | None:
    """Returns the span, up to now, that a disabled schedule will store when it is enabled again."""
    if schedule.enabled or schedule.deleted_at is not None or (cron := _readable(schedule)) is None:
        return None
    left_out = catch_up.disabled(schedule, cron, now)
    return None if left_out is None else _skipped_occurrence(schedule, left_out)


def _readable(schedule: Schedule) -> Cron | None:
    """Returns the cron expression; None if its time zone, which was valid at creation, has been removed since."""
    try:
        return parse(schedule.cron_expression, schedule.timezone)
    except Invalid:
        return None


def _made(job: Job | Invalid) -> _Made | Invalid:
    return _Made(job) if isinstance(job, Job) else job


def _fired(schedule: Schedule, instant: Instant, made: _Made) -> Occurrence:
    return Occurrence(
        schedule_id=schedule.schedule_id,
        instant=instant,
        outcome="fired",
        job_id=made.job.job_id,
        group_id=None if made.group is None else made.group.group_id,
    )


def _or_refused(skipped: tuple[Schedule, Skipped], refused: Mapping[str, str]) -> tuple[Schedule, Skipped]:
    """Also marks a skipped occurrence as refused, if it was skipped in favour of a job that was then refused."""
    schedule, one = skipped
    detail = refused.get(schedule.schedule_id)
    if detail is None or one.reason not in (SkipReason.REFUSED, SkipReason.OVERLAP):
        return skipped
    return schedule, Skipped(one.span, SkipReason.REFUSED, detail)


def _skipped_occurrence(schedule: Schedule, skipped: Skipped) -> Occurrence:
    span = skipped.span
    return Occurrence(
        schedule_id=schedule.schedule_id,
        instant=span.first,
        until=span.last if span.count > 1 else None,
        count=span.count,
        outcome="skipped",
        reason=skipped.reason,
        detail=skipped.detail,
    )


def _by_reason(skipped: Sequence[tuple[Schedule, Skipped]]) -> Iterator[tuple[Schedule, Occurrence]]:
    together: dict[tuple[str, SkipReason], tuple[Schedule, Skipped]] = {}
    for schedule, one in skipped:
        key = (schedule.schedule_id, one.reason)
        known = together.get(key)
        together[key] = (schedule, one if known is None else known[1].with_more(one))
    for schedule, one in together.values():
        yield schedule, _skipped_occurrence(schedule, one)
