"""Decides which due occurrences of a schedule create a job, and why the others do not.

`engine/schedules/schedule_trigger.py` calls it, and decides `overlap` itself, which depends on running jobs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nextslot.system.instant import Instant

from . import CatchUp, Schedule, SkipReason
from .cron import Cron, Span

# An occurrence that is later than this counts as missed: the machine slept, its clock was set, or no scheduler ran.
GRACE_SECONDS = 60.0
# With `catch_up: all`, at most this many missed occurrences create a job: the newest ones.
MOST_CAUGHT_UP = 100
# The newest skipped occurrences that get a row each; older ones share a row.
MOST_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Skipped:
    span: Span
    reason: SkipReason
    detail: str | None = None

    def with_more(self, later: "Skipped") -> "Skipped":
        """Returns one span that covers this one and a later one."""
        count = self.span.count + later.span.count
        return Skipped(Span(self.span.first, later.span.last, count), self.reason, later.detail or self.detail)


@dataclass(frozen=True, slots=True)
class Account:
    """The outcome of every occurrence after `accounted_until` up to now: those that fire (oldest first) and those that
    are skipped; and the next occurrence."""

    to_fire: Sequence[Instant]
    skipped: Sequence[Skipped]
    upcoming: Instant | None


def account(schedule: Schedule, cron: Cron, now: Instant) -> Account:
    on_time = now.after(-GRACE_SECONDS)
    due = schedule.next_trigger_at
    if due is not None and on_time <= due <= now:
        upcoming = cron.after(due)
        if upcoming is None or upcoming > now:
            return Account([due], (), upcoming)  # The usual case: one occurrence, on time.
    return _account(schedule, cron, on_time, now)


def _account(schedule: Schedule, cron: Cron, on_time: Instant, now: Instant) -> Account:
    # The window applies to missed occurrences only: one that is on time is always inside it.
    window = min(now.after(-schedule.catch_up_window_seconds), on_time)
    skipped: list[Skipped] = []
    since = schedule.accounted_until
    if since < window - 1:
        too_old = cron.span(since, Instant(window - 1))
        if too_old is not None:
            skipped.append(Skipped(too_old, SkipReason.OUTSIDE_WINDOW))
        since = Instant(window - 1)
    due = cron.between(since, now)
    upcoming = cron.after(max(now, schedule.accounted_until))
    if not due or due[0] >= on_time:
        return Account(due, skipped, upcoming)
    if schedule.catch_up is CatchUp.NONE:
        left_out, reason = sum(at < on_time for at in due), SkipReason.MISSED
    else:
        most = 1 if schedule.catch_up is CatchUp.LATEST else MOST_CAUGHT_UP
        left_out, reason = max(0, len(due) - most), SkipReason.COALESCED
    return Account(due[left_out:], [*skipped, *_rows(due[:left_out], reason)], upcoming)


def _rows(instants: Sequence[Instant], reason: SkipReason) -> list[Skipped]:
    shared, own = instants[:-MOST_ROWS], instants[-MOST_ROWS:]
    together = [Skipped(Span(shared[0], shared[-1], len(shared)), reason)] if shared else []
    return [*together, *(one(at, reason) for at in own)]


def one(instant: Instant, reason: SkipReason, detail: str | None = None) -> Skipped:
    return Skipped(Span(instant, instant, 1), reason, detail)


def disabled(schedule: Schedule, cron: Cron, now: Instant) -> Skipped | None:
    """Returns the occurrences during which a schedule was disabled, as one span."""
    span = cron.span(schedule.accounted_until, now)
    return None if span is None else Skipped(span, SkipReason.DISABLED)
