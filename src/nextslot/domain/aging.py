"""Decides how a job that has been ready for long moves forward: one step for each period of its office (spec 3.13)."""

from typing import NamedTuple

from nextslot.system.instant import Instant

from .bounds import MAX_PRIORITY, URGENT


class Aged(NamedTuple):
    """The steps that a job has, and when it gets the next one; None: it gets no further steps."""

    steps: int
    next_at: Instant | None


def aged(priority: int, steps: int, due_at: Instant, period: float | None, is_ready: bool, now: Instant) -> Aged:
    """Counts the steps that are due: several, if no scheduler ran for some periods.

    A job that waits again, or whose office has no period any more, keeps its steps and gets no further ones.
    """
    if period is None or not is_ready or priority == URGENT:
        return Aged(steps, None)
    period_us = round(period * 1_000_000)
    due = 1 + (now - due_at) // period_us
    most = MAX_PRIORITY - priority
    if steps + due >= most:
        return Aged(most, None)
    return Aged(steps + due, next_step(Instant(due_at + (due - 1) * period_us), period))


def next_step(since: Instant, period: float) -> Instant:
    """Returns when a job that counts from `since` gets its next step: after a period, or shortly before.

    Steps share times that are a tenth of the period apart, but at least a second, so that jobs that became ready one
    by one get their steps in few transactions. None comes late, so the bound of spec 3.13 holds.
    """
    period_us = round(period * 1_000_000)
    parts = max(1, min(10, period_us // 1_000_000))
    nth = (since + period_us) * parts // period_us
    return Instant(-(-nth * period_us // parts))
