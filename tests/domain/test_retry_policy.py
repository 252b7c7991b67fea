"""DEC-007: whether and when a failed job is tried again."""

import pytest

from nextslot.domain import (
    Backoff,
    FailureKind,
    RetryPolicy,
    default_office,
)
from nextslot.domain import Office as AnyOffice
from nextslot.domain.retry import (
    ChainRun,
    Retry,
    decide,
    delay_seconds,
    is_retryable,
    lone_crashes,
    must_be_isolated,
)
from nextslot.testing import BEGINNING

K = FailureKind


def test_DEC_007_by_default_three_retries_after_10_20_and_40_seconds() -> None:
    assert delays(default_office(BEGINNING).retry_policy) == [10, 20, 40]


def test_other_offices_retry_twice_after_60_and_120_seconds() -> None:
    policy = AnyOffice(office_id="a", name="a", created_at=BEGINNING).retry_policy

    assert delays(policy, K.TIMEOUT) == [60, 120]
    assert delays(policy, K.ERROR) == []


def test_three_retries_of_an_office_would_wait_60_120_and_240_seconds() -> None:
    assert delays(RetryPolicy(base_delay_seconds=60)) == [60, 120, 240]


def test_linear_backoff_grows_by_its_base() -> None:
    assert delays(RetryPolicy(max_attempts=4, backoff=Backoff.LINEAR, base_delay_seconds=7)) == [7, 14, 21, 28]


def test_a_cap_bounds_the_delay() -> None:
    assert delays(RetryPolicy(max_attempts=4, max_delay_seconds=25)) == [10, 20, 25, 25]


def test_a_delay_may_be_a_fraction_or_nothing() -> None:
    assert delays(RetryPolicy(base_delay_seconds=0.25)) == [0.25, 0.5, 1]
    assert delays(RetryPolicy(base_delay_seconds=0)) == [0, 0, 0]


@pytest.mark.parametrize(("chance", "delay"), [(0.0, 7.0), (0.5, 10.0), (0.999999, 13.0), (0.25, 8.5)])
def test_jitter_moves_the_delay_up_and_down_by_no_more_than_its_share(chance: float, delay: float) -> None:
    assert delay_seconds(RetryPolicy(jitter=0.3), 1, K.ERROR, chance) == pytest.approx(delay, abs=1e-4)


def test_no_policy_makes_a_delay_that_cannot_be_stored() -> None:
    assert 0 < delay_seconds(RetryPolicy(max_attempts=1000, max_delay_seconds=3600), 1000, K.ERROR, 0.5) <= 3600


@pytest.mark.parametrize("kind", [K.CRASH, K.INTERRUPTED])
def test_after_a_crash_or_our_own_shutdown_there_is_no_delay(kind: FailureKind) -> None:
    assert delay_seconds(RetryPolicy(jitter=1), 3, kind, 0.9) == 0


@pytest.mark.parametrize("kind", list(K))
def test_which_kinds_are_retried_by_default(kind: FailureKind) -> None:
    retried = {"error", "timeout", "session_error", "unavailable", "quota", "crash", "interrupted"}

    assert is_retryable(RetryPolicy(), kind) == (kind in retried)


def test_the_policy_may_name_fewer_kinds_but_a_used_up_quota_is_always_retried() -> None:
    policy = RetryPolicy(retry_on=(K.TIMEOUT,))

    assert [kind for kind in K if is_retryable(policy, kind)] == [K.TIMEOUT, K.QUOTA]


def test_four_interruptions_in_a_row_are_free_and_the_fifth_counts() -> None:
    numbers = [number(RetryPolicy(max_attempts=2), [K.INTERRUPTED] * n) for n in range(1, 8)]

    assert numbers == [0, 0, 0, 0, 1, 2, None]


def test_any_other_failure_ends_the_row_of_interruptions() -> None:
    assert number(RetryPolicy(), [*[K.INTERRUPTED] * 4, K.ERROR, *[K.INTERRUPTED] * 4]) == 1


def test_an_interruption_is_retried_also_when_the_retries_are_spent() -> None:
    spent = [K.ERROR] * 3

    assert number(RetryPolicy(), [*spent, K.INTERRUPTED]) == 3
    assert number(RetryPolicy(), [*spent, K.INTERRUPTED, K.ERROR]) is None


def test_links_after_a_crash_count() -> None:
    assert [number(RetryPolicy(), [K.CRASH] * n) for n in range(1, 5)] == [1, 2, 3, None]


def test_no_attempts_means_no_retry_at_all() -> None:
    """Also after our own shutdown: who says 0 says that the work must not be done twice."""
    assert {number(RetryPolicy(max_attempts=0), [kind]) for kind in K} == {None}


@pytest.mark.parametrize(
    ("attempts", "count"),
    [
        ([], 0),
        ([(K.CRASH, 0)], 1),
        ([(K.CRASH, 0), (K.CRASH, 0)], 2),
        ([(K.CRASH, 0), (K.CRASH, 3), (K.CRASH, 0)], 2),  # With company nobody knows who it was.
        ([(K.CRASH, 1), (K.CRASH, 1)], 0),
        ([(K.CRASH, None), (K.CRASH, None)], 0),  # In a process of its own, or called a crash by its handler.
        ([(K.CRASH, 0), (K.ERROR, None), (K.CRASH, 0)], 1),
        ([(K.CRASH, 0), (None, None), (K.CRASH, 0)], 1),
        ([(K.CRASH, 0), (K.CRASH, 0), (K.INTERRUPTED, None)], 0),
    ],
)
def test_only_crashes_alone_and_in_a_row_are_held_against_a_chain(
    attempts: list[tuple[FailureKind | None, int | None]], count: int
) -> None:
    assert lone_crashes([ChainRun(*one) for one in attempts]) == count


@pytest.mark.parametrize(
    ("attempts", "is_isolated"),
    [
        ([], False),
        ([(K.CRASH, 1)], False),
        ([(K.CRASH, 1), (K.CRASH, 3)], True),
        ([(K.CRASH, 0), (K.CRASH, 1)], True),
        ([(K.CRASH, 1), (K.ERROR, None), (K.CRASH, 1)], False),
        ([(K.CRASH, 1), (K.INTERRUPTED, None), (K.CRASH, 1)], True),
        ([(K.CRASH, None), (K.CRASH, None), (K.CRASH, 1)], False),
        ([(K.CRASH, 1), (K.CRASH, None), (K.CRASH, 1)], True),
        ([(K.CRASH, 1), (K.CRASH, 1), (K.ERROR, None), (K.ERROR, None)], True),
    ],
)
def test_a_chain_that_was_inside_two_schedulers_that_died_in_a_row_is_isolated_from_then_on(
    attempts: list[tuple[FailureKind | None, int | None]], is_isolated: bool
) -> None:
    assert must_be_isolated([ChainRun(*one) for one in attempts]) == is_isolated


def delays(policy: RetryPolicy, kind: FailureKind = K.ERROR) -> list[float]:
    """Returns the delays before each retry of a job that always fails in the same way."""
    found: list[float] = []
    while (retry := decide(policy, [kind] * (len(found) + 1), 0.5)) is not None:
        assert retry == Retry(len(found) + 1, retry.delay_seconds)
        found.append(retry.delay_seconds)
    return found


def number(policy: RetryPolicy, kinds: list[FailureKind]) -> int | None:
    retry = decide(policy, kinds, 0.5)
    return None if retry is None else retry.number
