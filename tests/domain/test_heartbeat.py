"""When a guardian that does not answer is continued, and when it is killed."""

import pytest

from nextslot.executors.process_tree.guardian_heartbeat import (
    HURRIED_SECONDS,
    SILENCE_SECONDS,
    Heartbeat,
    Verdict,
    Watched,
)

BEAT = 5.0


def test_a_guardian_that_answers_owes_nothing() -> None:
    heart = Heartbeat(0.0, BEAT)

    owed = []
    for beat in range(1, 100):
        owed.append(heart.beat(beat * BEAT))
        heart.answered()

    assert not any(owed)


def test_a_stopped_guardian_is_continued_once_and_then_killed() -> None:
    assert verdicts(Heartbeat(0.0, BEAT), "TT") == [Verdict.CONTINUE, Verdict.KILL]


def test_a_guardian_that_is_stopped_again_is_killed_also_if_it_answered_in_between() -> None:
    heart = Heartbeat(0.0, BEAT)
    assert verdicts(heart, "T") == [Verdict.CONTINUE]
    heart.answered()
    assert not heart.beat(heart.last + BEAT)

    assert verdicts(heart, "t") == [Verdict.KILL]


def test_a_silent_guardian_that_only_sleeps_is_killed_after_its_time_and_not_before() -> None:
    beats = int(SILENCE_SECONDS / BEAT)

    found = verdicts(Heartbeat(0.0, BEAT), "S" * beats)

    assert found == [Verdict.WAIT] * (beats - 1) + [Verdict.KILL]


def test_an_answer_ends_a_silence() -> None:
    heart = Heartbeat(0.0, BEAT)
    verdicts(heart, "SSSS")
    heart.answered()
    heart.beat(heart.last + BEAT)

    assert verdicts(heart, "SSSSS") == [Verdict.WAIT] * 5


@pytest.mark.parametrize("state", ["R", "D"])
def test_on_an_overloaded_machine_no_guardian_that_wants_to_run_is_killed(state: str) -> None:
    assert set(verdicts(Heartbeat(0.0, BEAT), state * 1000)) == {Verdict.WAIT}


def test_a_fork_server_may_be_silent_but_not_stopped() -> None:
    heart = Heartbeat(0.0, BEAT)

    assert set(verdicts(heart, "S" * 100, is_server=True)) == {Verdict.WAIT}
    assert verdicts(heart, "TT", is_server=True) == [Verdict.CONTINUE, Verdict.KILL]


def test_the_fork_server_has_a_chance_of_its_own() -> None:
    heart = Heartbeat(0.0, BEAT)

    assert verdicts(heart, "TT") == [Verdict.CONTINUE, Verdict.KILL]
    assert heart.judge(Watched(2, 2, "T", is_server=True)) is Verdict.CONTINUE


@pytest.mark.parametrize("seconds", [60.0, 3600.0, 2 * BEAT + 0.1, BEAT / 2 - 0.1, 0.0])
def test_a_beat_that_our_own_loop_did_not_keep_says_nothing_of_the_guardian(seconds: float) -> None:
    heart = Heartbeat(0.0, BEAT)
    heart.beat(BEAT)

    assert not heart.beat(heart.last + seconds)
    assert heart.beat(heart.last + BEAT)


def test_a_stop_makes_the_beats_short_once() -> None:
    heart = Heartbeat(0.0, BEAT)

    assert (heart.hurry(3.0), heart.hurry(3.1)) == (True, False)

    assert (heart.interval, heart.beat(3.0 + HURRIED_SECONDS)) == (HURRIED_SECONDS, True)


def verdicts(heart: Heartbeat, states: str, is_server: bool = False) -> list[Verdict]:
    """Returns the guardian's decision in each of these states, with one unanswered beat each."""
    found = []
    for state in states:
        if not heart.beat(heart.last + heart.interval):  # The first of all has nothing before it that was asked.
            assert heart.beat(heart.last + heart.interval)
        found.append(heart.judge(Watched(1, 1, state, is_server)))
    return found
