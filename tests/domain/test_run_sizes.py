"""Which parameter says how long runs take, learned from past runs."""

import math
import random
from collections.abc import Callable

import pytest

from nextslot.domain.run_sizes import Sized, learn, sizes_of

NOISE = 0.1


def drawn(chance: random.Random, seconds: float) -> float:
    return seconds * chance.lognormvariate(0, NOISE)


@pytest.mark.parametrize(
    "seconds",
    [lambda size: size / 10, lambda size: 30 + size / 10, lambda size: 0.01 * size**1.5],
    ids=["proportional", "with a constant", "faster than the size"],
)
def test_a_number_on_which_durations_depend_is_found_among_others(seconds: Callable[[float], float]) -> None:
    chance = random.Random(1)
    sizes = [round(10 * 100 ** chance.random()) for _ in range(30)]
    past = [
        Sized(
            drawn(chance, seconds(size)), {"frames": float(size), "seed": chance.random(), "name": chance.choice("ab")}
        )
        for size in sizes
    ]

    model = learn(past)

    assert model is not None
    assert model.name == "frames"
    for size in (20.0, 200.0, 900.0):
        told = model.of({"frames": size})
        assert told is not None
        assert told.seconds == pytest.approx(seconds(size), rel=0.25)
        assert told.runs == 30


@pytest.mark.parametrize("power", [1, 2])
def test_of_a_size_far_from_all_past_ones_a_time_that_can_be_is_predicted(power: int) -> None:
    model = learn([Sized(size**power / 10, {"frames": float(size)}) for size in range(10, 200, 10)])

    assert model is not None
    for size in (-1e308, -1.0, 0.0, 5e-324, 1e12, 1e200, 1e308):
        told = model.of({"frames": size})
        assert told is None or 0 < told.seconds <= 401 * 24 * 3600


def test_sizes_whose_differences_are_no_numbers_teach_nothing() -> None:
    sizes = (-1e308, 1e308, 0.0, 5e-324, 1e-323, 1.0) * 3

    model = learn([Sized(10.0 + number, {"frames": size}) for number, size in enumerate(sizes)])

    assert model is None or math.isfinite(model.ratio.seconds)


def test_words_with_durations_of_their_own_are_found() -> None:
    chance = random.Random(2)
    past = [
        Sized(drawn(chance, {"draft": 10.0, "thorough": 100.0}[mode]), {"mode": mode, "size": 3.0})
        for mode in ("draft", "draft", "thorough") * 6
    ]

    model = learn(past)

    assert model is not None
    assert model.name == "mode"
    assert [round(math.log10(model.of({"mode": mode}).seconds)) for mode in ("draft", "thorough")] == [1, 2]  # type: ignore[union-attr]
    assert model.of({"mode": "another"}) is None
    assert model.of({"size": 3.0}) is None


def test_words_are_found_although_one_of_them_is_new() -> None:
    chance = random.Random(2)
    seconds = {"small": 1.0, "large": 30.0, "new": 5.0}
    past = [Sized(drawn(chance, seconds[name]), {"model": name}) for name in [*("small", "large") * 10, "new"]]

    model = learn(past)

    assert model is not None
    told = {name: model.of({"model": name}) for name in seconds}
    assert {name: round(one.seconds) for name, one in told.items() if one is not None} == pytest.approx(
        seconds, rel=0.2
    )


def test_parameters_that_say_nothing_are_not_used() -> None:
    chance = random.Random(3)

    for _ in range(20):
        past = [
            Sized(drawn(chance, 60), {f"n{number}": chance.random() + 0.1 for number in range(12)}) for _ in range(50)
        ]

        assert learn(past) is None


def test_few_runs_say_nothing() -> None:
    assert learn([Sized(float(size), {"size": float(size)}) for size in range(1, 8)]) is None


def test_a_stray_run_does_not_move_what_a_size_means() -> None:
    past = [Sized(float(size), {"size": float(size)}) for size in range(10, 30)]
    past[5] = past[5]._replace(seconds=36_000.0)

    model = learn(past)

    assert model is not None
    assert model.of({"size": 100.0}).seconds == pytest.approx(100, rel=0.3)  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [0.0, -5.0, "many", 1e9])
def test_any_size_has_an_estimate_above_zero_or_none(size: float | str) -> None:
    model = learn([Sized(float(n), {"size": float(n)}) for n in range(10, 30)])

    assert model is not None
    told = model.of({"size": size})
    assert told is None or told.seconds > 0


def test_what_parameters_say_about_size() -> None:
    params = {
        "frames": 300, "ratio": 0.5, "fast": True, "mode": "draft", "prompt": "x" * 500, "files": ["a", "b"],
        "more": {"frames": 7}, "none": None,
    }  # fmt: skip

    assert sizes_of(params) == {
        "frames": 300.0, "ratio": 0.5, "fast": "True", "mode": "draft", "prompt": 500.0, "files": 2.0,
    }  # fmt: skip
    assert len(sizes_of({f"n{number}": number for number in range(100)})) == 12
