"""Spec 19: buckets of times, quantiles within a stated error, and which span of time an end is stored in."""

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nextslot.domain.rollups import (
    DAY,
    HOUR,
    KEPT_SECONDS,
    MAX_ERROR,
    MINUTE,
    NOT_STARTED,
    SECOND,
    RollupKey,
    Totals,
    bucket,
    ended,
    floor,
    middle,
    quantile_seconds,
    stored_step,
)

NOW = 1_794_726_000 * SECOND
KEY = RollupKey("default", "work", "job", "COMPLETED")
times = st.integers(0, 20 * 365 * DAY * SECOND)


@given(times)
def test_the_middle_of_a_bucket_is_at_most_a_sixteenth_away_from_any_time_in_it(microseconds: int) -> None:
    assert MAX_ERROR == 0.0625
    assert abs(middle(bucket(microseconds)) - microseconds) <= microseconds * MAX_ERROR


@given(times, times)
def test_a_longer_time_is_never_in_an_earlier_bucket(one: int, other: int) -> None:
    assert (one <= other) <= (bucket(one) <= bucket(other))


def test_buckets_have_no_gap_and_a_time_of_a_year_is_in_one_of_four_hundred() -> None:
    found = [bucket(microseconds) for microseconds in range(5_000)]

    assert all(after - before in (0, 1) for before, after in pairwise(found))
    assert bucket(365 * DAY * SECOND) < 400


@given(st.lists(times, min_size=1, max_size=60), st.sampled_from([0.5, 0.95]))
def test_a_quantile_is_the_time_at_its_rank_within_the_error(some: list[int], fraction: float) -> None:
    exact = sorted(some)[max(1, -(-len(some) * round(fraction * 100) // 100)) - 1]

    found = quantile_seconds(Counter(map(bucket, some)), fraction)

    assert found is not None
    assert abs(found - exact / SECOND) <= exact / SECOND * MAX_ERROR + 1e-6


def test_there_is_no_quantile_of_nothing() -> None:
    assert quantile_seconds(Counter(), 0.5) is None


def test_a_clock_that_was_set_back_makes_times_of_nothing_and_not_negative_ones() -> None:
    end = ended(KEY, free_at=NOW, started_at=NOW - HOUR * SECOND, finished_at=NOW - 2 * HOUR * SECOND)

    assert (end.wait, end.duration, end.minute) == (0, 0, floor(NOW - 2 * HOUR * SECOND, MINUTE))


def test_a_job_that_never_started_counts_and_is_in_no_histogram() -> None:
    totals = Totals()

    totals.count(ended(KEY, NOW, None, NOW), 3)

    assert (totals.jobs, totals.waits, totals.durations) == (3, Counter(), Counter())
    assert ended(KEY, NOW, None, NOW).wait == NOT_STARTED


@given(st.integers(0, 200 * DAY * SECOND))
def test_what_ended_within_two_days_is_stored_by_minute_and_within_92_by_hour(age: int) -> None:
    step = stored_step(NOW - age, NOW)

    if age <= KEPT_SECONDS[MINUTE] * SECOND:
        assert step == MINUTE
    elif age <= KEPT_SECONDS[HOUR] * SECOND:
        assert step in (MINUTE, HOUR)
    if age > (KEPT_SECONDS[HOUR] + DAY) * SECOND:
        assert step == DAY
