"""How long work takes, from past runs: few, odd, or outlived; and how sure that is."""

import math
import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextslot.model import Confidence
from nextslot.policy.forecast import GUESS_SECONDS, Basis, Estimate, estimate, guess, linked, weakest

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


def test_work_that_has_outlived_all_others_is_given_more_the_older_it_is() -> None:
    known = made([8.0, 9.0, 10.0, 11.0, 12.0])

    assert 0 < known.remaining(20) < known.remaining(200)


def test_work_of_constant_length_that_is_late_is_given_a_tenth_of_its_age() -> None:
    assert made([10.0, 10.0]).remaining(20) == pytest.approx(2)


def test_a_draw_is_one_of_the_past_runs_that_lasted_longer() -> None:
    known = made([10.0, 20.0, 30.0, 40.0])

    assert [known.drawn(share) for share in (0, 0.3, 0.5, 0.99)] == [10, 20, 30, 40]
    assert [known.drawn(share, elapsed=25) for share in (0, 0.99)] == [5, 15]
    assert known.drawn(0.5, elapsed=100) == known.remaining(100)
    assert guess([]).drawn(0.5) == GUESS_SECONDS


def test_reported_progress_counts_the_more_the_further_it_is() -> None:
    known = made([100.0] * 10)

    assert known.remaining(50, 0.01) == pytest.approx(50)
    assert known.remaining(50, 0.25) == pytest.approx(0.25 * 150 + 0.75 * 50)
    assert known.remaining(50, 1.0) == pytest.approx(0)


def test_of_an_unknown_type_its_own_progress_is_all_there_is() -> None:
    assert guess([]).remaining(30, 0.5) == pytest.approx(30)


def test_a_type_that_never_ran_is_taken_for_what_is_usual_here() -> None:
    assert guess([]).seconds == GUESS_SECONDS
    assert guess([made([10.0]), made([20.0]), made([3000.0])]).seconds == 20
    assert guess([made([10.0])]).runs == 0


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

    assert Basis().then(work).confidence(wait) is confidence


def test_what_rests_on_nothing_is_sure() -> None:
    assert Basis().confidence(0) is Confidence.HIGH


def test_a_way_is_as_well_known_as_its_least_known_step_and_its_spreads_add_up() -> None:
    way = Basis().then(made([3.0] * 12)).then(Estimate((1.0,) * 4, 1.0, 3.0)).then(Estimate((1.0,) * 20, 1.0, 4.0))

    assert way == Basis(4, 25.0)
    assert weakest([way, Basis(2, 1.0)]) == Basis(2, 25.0)
    assert weakest([]) == Basis()


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
