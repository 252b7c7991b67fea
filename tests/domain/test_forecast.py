"""How long work takes, from past runs: few, odd, or outlived; and how sure that is."""

import math
import random
from itertools import pairwise
from statistics import NormalDist, fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextslot.domain import Confidence
from nextslot.domain.run_estimates import (
    GUESS_SECONDS,
    Certainty,
    Estimate,
    estimate,
    guess,
    linked,
    weakest,
)

SECONDS = st.floats(0.001, 1e6)


def test_nothing_is_known_of_a_type_that_never_ran() -> None:
    assert estimate([]) is None


@pytest.mark.parametrize("runs", [1, 2, 3, 50])
def test_work_that_always_takes_the_same_time_takes_it_again(runs: int) -> None:
    known = made([12.5] * runs)

    assert (known.seconds, known.deviation, known.runs) == (12.5, 0.0, runs)
    assert known.remaining(2.5) == 10.0


def test_one_stray_run_among_ten_does_not_spoil_the_estimate() -> None:
    usual = [9.0, 9.5, 10.0, 10.0, 10.0, 10.5, 10.5, 11.0, 11.0]

    with_stray = made([*usual, 36_000.0])

    assert with_stray.seconds == pytest.approx(fmean(usual), rel=0.1)


@pytest.mark.parametrize(
    ("logs", "edge"),
    [
        # Three robust standard deviations, by the median of the distances: 3 * 1.4826.
        ((-1.0, -1.0, -1.0, -1.0, 0.0, 1.0, 1.0, 1.0, 1.0), 4.4478),
        # Where most are the same, by the tenth and the ninetieth percentile: 3 * 2 / 2.563.
        ((-1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0), 2.3410),
        # And where these lie between two samples: x = 3 * (1.8 + 0.2 x) / 2.563.
        ((-1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0), 2.7511),
    ],
)
def test_a_stray_is_further_from_the_median_than_three_robust_deviations_and_is_taken_for_the_last_that_is_not(
    logs: tuple[float, ...], edge: float
) -> None:
    def ends(distance: float) -> tuple[float, float]:
        samples = made([math.exp(2 + log) for log in (-distance, *logs, distance)]).samples
        return math.log(samples[0]) - 2, math.log(samples[-1]) - 2

    assert ends(0.999 * edge) == pytest.approx((-0.999 * edge, 0.999 * edge))
    assert ends(1.001 * edge) == pytest.approx((-1, 1))


def test_of_two_runs_none_is_a_stray_and_of_three_one_may_be() -> None:
    assert made([1.0, 36_000.0]).samples == (1.0, 36_000.0)
    assert made([10.0, 10.5, 36_000.0]).samples == (10.0, 10.5, 10.5)


def test_work_of_two_kinds_keeps_both() -> None:
    """Slow runs that are not rare are no strays."""
    known = made([1.0] * 6 + [10.0] * 4)

    assert known.seconds == pytest.approx(4.6)


def test_the_estimate_of_a_skewed_type_is_its_mean_because_waits_are_sums() -> None:
    chance = random.Random(1)
    samples = [chance.lognormvariate(math.log(60), 0.5) for _ in range(50)]

    assert made(samples).seconds == pytest.approx(60 * math.exp(0.125), rel=0.2)


def test_what_is_left_depends_on_how_long_it_has_taken() -> None:
    known = made([10.0, 20.0, 30.0, 100.0, 110.0, 120.0])

    assert known.remaining(0) == pytest.approx(known.seconds)
    assert known.remaining(50) == pytest.approx(60)


def test_only_runs_that_lasted_longer_say_what_is_left() -> None:
    assert made([10.0, 20.0, 30.0, 40.0, 50.0, 60.0]).remaining(20) == pytest.approx(25)
    assert made([10.0, 40.0]).remaining(0) == pytest.approx(25)


def test_work_that_has_outlived_all_others_is_given_more_the_older_it_is() -> None:
    known = made([8.0, 9.0, 10.0, 11.0, 12.0])

    assert 0 < known.remaining(20) < known.remaining(200)


@pytest.mark.parametrize(
    ("samples", "elapsed"),
    [([10.0, 20.0], 12.0), ([10.0, 20.0, 30.0, 40.0], 35.0), ([8.0, 9.0, 10.0, 11.0, 12.0], 13.0), ([1.0, 100.0], 5.0)],
)
def test_what_few_or_none_have_outlived_is_left_what_a_log_normal_distribution_leaves_it(
    samples: list[float], elapsed: float
) -> None:
    logs = [math.log(sample) for sample in samples]
    lasting = NormalDist(fmean(logs), pstdev(logs))
    reached, steps = lasting.cdf(math.log(elapsed)), 100_000
    lengths = (math.exp(lasting.inv_cdf(reached + (1 - reached) * (n + 0.5) / steps)) for n in range(steps))

    assert made(samples).remaining(elapsed) == pytest.approx(fmean(lengths) - elapsed, rel=0.01)


def test_what_is_left_does_not_jump_where_so_long_a_run_is_next_to_impossible() -> None:
    """There the exact formula divides by nearly nothing, and another takes its place."""
    known = made([8.0, 9.0, 10.0, 11.0, 12.0])
    around = [known.remaining(elapsed) for elapsed in (23.0, 23.4, 23.8, 24.2, 24.6)]

    assert all(later == pytest.approx(before, rel=0.06) for before, later in pairwise(around))
    assert known.remaining(1000) < known.remaining(2000) < 1000


def test_runs_whose_lengths_hardly_differ_are_of_one_length() -> None:
    known = made([10.0, 10.0 + 1e-12])

    assert known.remaining(4) == pytest.approx(6)
    assert known.remaining(20) == pytest.approx(2)


@given(st.floats(1e-3, 1e3), st.none() | st.floats(0.02, 1))
def test_an_estimate_does_not_depend_on_the_unit_of_time(unit: float, fraction: float | None) -> None:
    for samples in ([7.0], [3.0, 9.0], [1.0, 2.0, 3.0, 9.0], [5.0] * 10):
        seconds, scaled = made(samples), made([unit * sample for sample in samples])
        for elapsed in (0.0, 2.0, 5.0, 8.0, 40.0):
            expected = unit * seconds.remaining(elapsed, fraction)

            assert scaled.remaining(unit * elapsed, fraction) == pytest.approx(expected, rel=1e-6)


def test_work_of_constant_length_that_is_late_is_given_a_tenth_of_its_age() -> None:
    assert made([10.0, 10.0]).remaining(20) == pytest.approx(2)


def test_a_draw_is_one_of_the_past_runs_that_lasted_longer() -> None:
    known = made([10.0, 20.0, 30.0, 40.0])

    assert [known.drawn(share) for share in (0, 0.3, 0.5, 0.99)] == [10, 20, 30, 40]
    assert [known.drawn(share, elapsed=25) for share in (0, 0.99)] == [5, 15]
    assert known.drawn(0, elapsed=20) == 10
    assert known.drawn(0.5, elapsed=100) == known.remaining(100)
    assert guess([]).drawn(0.5) == GUESS_SECONDS


def test_reported_progress_counts_the_more_the_further_it_is() -> None:
    known = made([100.0] * 10)

    assert known.remaining(50, 0.0199) == pytest.approx(50)
    assert known.remaining(50, 0.02) == pytest.approx(0.02 * 2450 + 0.98 * 50)
    assert known.remaining(50, 0.25) == pytest.approx(0.25 * 150 + 0.75 * 50)
    assert known.remaining(50, 1.0) == pytest.approx(0)


def test_progress_that_took_no_time_says_nothing() -> None:
    assert made([100.0] * 10).remaining(0, 0.5) == pytest.approx(100)


def test_of_an_unknown_type_its_own_progress_is_all_there_is() -> None:
    assert guess([]).remaining(30, 0.5) == pytest.approx(30)


def test_a_type_that_never_ran_is_taken_for_what_is_usual_here() -> None:
    assert guess([]).seconds == GUESS_SECONDS
    assert guess([made([10.0]), made([20.0]), made([3000.0])]).seconds == 20
    assert guess([made([10.0])]).runs == 0
    assert guess([made([10.0])]).deviation == 10


def test_work_of_an_unknown_type_that_has_outlived_the_guess_is_given_a_tenth_of_its_age() -> None:
    assert guess([]).remaining(GUESS_SECONDS - 1) == pytest.approx(1)
    assert guess([]).remaining(GUESS_SECONDS) == pytest.approx(GUESS_SECONDS / 10)
    assert guess([]).remaining(2 * GUESS_SECONDS) == pytest.approx(GUESS_SECONDS / 5)


@given(st.lists(SECONDS, min_size=1, max_size=60), st.floats(0, 1e7), st.none() | st.floats(0, 1))
def test_no_estimate_is_negative_or_beyond_its_samples(
    samples: list[float], elapsed: float, fraction: float | None
) -> None:
    known = made(samples)

    assert min(samples) * 0.999 <= known.seconds <= max(samples) * 1.001
    assert 0 <= known.remaining(elapsed, fraction) < math.inf


@pytest.mark.parametrize(
    ("runs", "deviation", "wait", "confidence"),
    [
        (10, 25, 100, Confidence.HIGH),
        (10, 26, 100, Confidence.MEDIUM),
        (9, 0, 100, Confidence.MEDIUM),
        (3, 75, 100, Confidence.MEDIUM),
        (3, 76, 100, Confidence.LOW),
        (2, 0, 100, Confidence.LOW),
        (0, 0, 100, Confidence.LOW),
    ],
)
def test_confidence_follows_from_past_runs_and_the_spread_along_the_way(
    runs: int, deviation: float, wait: float, confidence: Confidence
) -> None:
    work = Estimate((1.0,) * runs, 1.0, deviation)

    assert Certainty().then(work).confidence(wait) is confidence


def test_what_rests_on_nothing_is_sure() -> None:
    assert Certainty().confidence(0) is Confidence.HIGH


def test_a_way_is_as_well_known_as_its_least_known_step_and_its_spreads_add_up() -> None:
    way = Certainty().then(made([3.0] * 12)).then(Estimate((1.0,) * 4, 1.0, 3.0)).then(Estimate((1.0,) * 20, 1.0, 4.0))

    assert way == Certainty(4, 25.0)
    assert way.then(Estimate((1.0,) * 4, 1.0, 4.0), share=0.5) == Certainty(4, 29.0)
    assert weakest([way, Certainty(2, 1.0)]) == Certainty(2, 25.0)
    assert weakest([]) == Certainty()


def test_offices_are_linked_through_the_limits_that_they_share_and_no_others() -> None:
    shared = {"a": {"gpu"}, "b": {"gpu", "disk"}, "c": {"disk"}, "d": {"tape"}, "e": set[str]()}

    assert linked("a", shared) == {"a", "b", "c"}
    assert linked("d", shared) == {"d"}
    assert linked("e", shared) == {"e"}
    assert linked("new", shared) == {"new"}


def made(samples: list[float]) -> Estimate:
    found = estimate(samples)
    assert found is not None
    return found
