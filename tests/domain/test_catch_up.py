"""Spec 10, what becomes of occurrences that have come: against a plain account of every minute."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from nextslot.domain import CatchUp, Schedule, SkipReason
from nextslot.domain.catch_up import (
    GRACE_SECONDS,
    MOST_CAUGHT_UP,
    MOST_ROWS,
    Skipped,
    account,
    disabled,
    one,
)
from nextslot.domain.cron import Span, parse
from nextslot.system.instant import Instant

EACH_MINUTE = parse("* * * * *", "UTC")
ONCE_A_YEAR = parse("0 0 1 1 *", "UTC")
SECOND = 1_000_000
MINUTE = 60 * SECOND
# The beginning of a minute.
BEGIN = Instant(1_800_000_000 * SECOND // MINUTE * MINUTE)

# Around the beginnings of minutes, and anywhere between.
moments = st.one_of(st.sampled_from([-1, 0, 1, 30 * SECOND]), st.integers(0, MINUTE - 1))
windows = st.sampled_from([0.0, 30.0, GRACE_SECONDS, 90.0, 120.0, 3600.0, 86400.0])


def schedule(since: int, catch_up: CatchUp = CatchUp.LATEST, window: float = 86400.0) -> Schedule:
    return Schedule(
        schedule_id="s",
        template_id="t",
        name="each minute",
        cron_expression="* * * * *",
        catch_up=catch_up,
        catch_up_window_seconds=window,
        next_trigger_at=EACH_MINUTE.after(Instant(since)),
        accounted_until=Instant(since),
        created_at=Instant(since),
    )


def minutes(since: int, until: int) -> list[int]:
    """Returns the minutes after the first time, up to the second."""
    return [at for at in range(since // MINUTE * MINUTE, until + 1, MINUTE) if at > since]


def spelled_out(skipped: Sequence[Skipped]) -> list[tuple[int, SkipReason]]:
    found = []
    for part in skipped:
        each = minutes(part.span.first - 1, part.span.last)
        assert len(each) == part.span.count
        found += [(at, part.reason) for at in each]
    return found


@given(moments, st.integers(0, 250), moments, st.sampled_from(CatchUp), windows)
@example(0, 1, 0, CatchUp.LATEST, 86400.0)
@example(0, 2, 0, CatchUp.LATEST, 86400.0)
@example(0, 2, 0, CatchUp.NONE, 0.0)
@example(-1, 2, 0, CatchUp.NONE, 86400.0)
@example(0, 2, 1, CatchUp.LATEST, 0.0)
@example(0, 103, 1, CatchUp.ALL, 86400.0)
@example(0, 9, 0, CatchUp.ALL, 120.0)
@example(0, 9, 1, CatchUp.ALL, 120.0)
@example(0, 60, 0, CatchUp.ALL, 3600.0)
@example(-1, 60, 1, CatchUp.ALL, 3600.0)
def test_every_occurrence_is_fired_or_skipped_once_for_the_right_reason(
    before: int, later: int, after: int, catch_up: CatchUp, window: float
) -> None:
    since, now = BEGIN + before, Instant(BEGIN + later * MINUTE + after)
    on_time = now - GRACE_SECONDS * SECOND
    oldest = min(now - window * SECOND, on_time)
    due = minutes(since, now)
    inside = [at for at in due if at >= oldest]
    late = [at for at in inside if at < on_time]
    if not late:
        left_out, reason = [], SkipReason.MISSED
    elif catch_up is CatchUp.NONE:
        left_out, reason = late, SkipReason.MISSED
    else:
        left_out = inside[: -1 if catch_up is CatchUp.LATEST else -MOST_CAUGHT_UP]
        reason = SkipReason.COALESCED

    found = account(schedule(since, catch_up, window), EACH_MINUTE, now)

    assert list(found.to_fire) == [at for at in inside if at not in left_out]
    assert spelled_out(found.skipped) == [
        *((at, SkipReason.OUTSIDE_WINDOW) for at in due if at < oldest),
        *((at, reason) for at in left_out),
    ]
    assert found.upcoming == EACH_MINUTE.after(Instant(max(now, since)))


def test_two_that_have_come_on_time_are_both_fired_at_once() -> None:
    found = account(schedule(BEGIN), EACH_MINUTE, Instant(BEGIN + 2 * MINUTE))

    assert found.to_fire == [BEGIN + MINUTE, BEGIN + 2 * MINUTE]
    assert found.upcoming == BEGIN + 3 * MINUTE


def test_it_does_not_depend_on_the_next_instant_that_was_stored() -> None:
    found = account(replace(schedule(BEGIN), next_trigger_at=None), EACH_MINUTE, Instant(BEGIN + MINUTE))

    assert (list(found.to_fire), list(found.skipped)) == ([BEGIN + MINUTE], [])


def test_a_clock_that_was_set_back_fires_nothing_again() -> None:
    found = account(schedule(BEGIN), EACH_MINUTE, Instant(BEGIN - 10 * MINUTE))

    assert (list(found.to_fire), list(found.skipped), found.upcoming) == ([], [], BEGIN + MINUTE)


def test_of_a_long_row_the_newest_have_a_row_each_and_those_before_share_one() -> None:
    count = MOST_ROWS + MOST_CAUGHT_UP + 50

    found = account(schedule(BEGIN, CatchUp.ALL), EACH_MINUTE, Instant(BEGIN + count * MINUTE))

    together, *own = found.skipped
    assert together == Skipped(Span(Instant(BEGIN + MINUTE), Instant(BEGIN + 50 * MINUTE), 50), SkipReason.COALESCED)
    assert [part.span.count for part in own] == [1] * MOST_ROWS
    assert len(found.to_fire) == MOST_CAUGHT_UP


def test_a_row_that_is_just_short_enough_shares_nothing() -> None:
    count = MOST_ROWS + MOST_CAUGHT_UP

    found = account(schedule(BEGIN, CatchUp.ALL), EACH_MINUTE, Instant(BEGIN + count * MINUTE))

    assert len(found.skipped) == MOST_ROWS


def test_a_span_that_goes_on_keeps_the_newest_detail() -> None:
    first, second = (Instant(BEGIN + number * MINUTE) for number in (1, 2))
    told, silent = one(first, SkipReason.OVERLAP, "the first"), one(second, SkipReason.OVERLAP)

    assert told.with_more(silent) == Skipped(Span(first, second, 2), SkipReason.OVERLAP, "the first")
    assert told.with_more(one(second, SkipReason.OVERLAP, "the second")).detail == "the second"


def test_the_times_of_a_disabled_schedule_are_one_span_or_none() -> None:
    now = Instant(BEGIN + 5 * MINUTE)

    assert disabled(schedule(BEGIN), EACH_MINUTE, now) == Skipped(
        Span(Instant(BEGIN + MINUTE), now, 5), SkipReason.DISABLED
    )
    assert disabled(schedule(BEGIN), ONCE_A_YEAR, now) is None
