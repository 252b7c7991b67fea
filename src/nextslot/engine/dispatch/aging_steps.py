"""Aging: gives jobs that have been ready for an aging period of their office a step forward, for `TimeoutManager`."""

from nextslot.domain import aging
from nextslot.domain.jobs import order_priority
from nextslot.store.contract import Tx
from nextslot.store.tables import jobs, offices
from nextslot.system.instant import Instant

from .limits_and_slots import Lanes

# A transaction changes at most so many jobs; a tick follows at once and changes the rest.
BATCH = 1_000


def do_due(tx: Tx, lanes: Lanes, now: Instant) -> bool:
    """Stores the aging steps that are due, and applies changed periods. Returns whether nothing is left to do."""
    left = BATCH - _take_steps(tx, lanes, now)
    return left > 0 and _apply_new_period(tx, now, left)


def _take_steps(tx: Tx, lanes: Lanes, now: Instant) -> int:
    """Stores the steps that are due and the new places of the jobs' lanes. Returns how many jobs were due."""
    found = jobs.to_age(tx, now, BATCH)
    if found:
        aged = [
            (aging.aged(one.priority, one.aged_steps, one.ages_at, one.period, one.is_ready, now), one) for one in found
        ]
        jobs.age(tx, ((steps, next_at, one.job_id) for (steps, next_at), one in aged))
        for (steps, _), one in aged:
            if one.is_ready and steps > one.aged_steps:
                lanes.counters(tx).lower(one.lane_id, (-order_priority(one.priority, steps), one.position))
    return len(found)


def _apply_new_period(tx: Tx, now: Instant, limit: int) -> bool:
    """Gives the ready jobs of one office their next step no later than a new period from now. Returns whether no office
    is left.

    The function goes through the queue from the front, a page in each transaction, and stores the place that it has
    reached. A job that moves meanwhile gets its next step from its move, so no job is left out.
    """
    office = offices.aging(tx)
    if office is None:
        return True
    office_id, period, after = office
    page = [] if period is None else jobs.queue_places(tx, office_id, after, limit)
    if page and period is not None:
        ready = [place.job_id for place, is_ready in page if is_ready]
        jobs.age_at_latest(tx, ready, aging.next_step(now, period))
    offices.age_from(tx, office_id, page[-1][0] if len(page) == limit else None)
    return False
