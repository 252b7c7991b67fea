"""Decides whether and when a failed job is retried (DEC-007); `job_lifecycle.settle` calls it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from . import RETRYABLE, Backoff, FailureKind, RetryPolicy

# Interruptions in a row that do not count against the limit: a shutdown is not the job's fault, but must not repeat it
# without end.
FREE_INTERRUPTIONS = 4
FIRST_QUOTA_PAUSE, SHORTEST_QUOTA_PAUSE, LONGEST_QUOTA_PAUSE = 10.0, 1.0, 600.0
# Providers renew their quotas at least once a month: a later time is a mistake.
LONGEST_QUOTA = 31 * 24 * 3600.0
AT_ONCE = frozenset({FailureKind.CRASH, FailureKind.INTERRUPTED})
# One crash may have any cause, such as an operator's kill. Two crashes with only this job inside are hardly chance, and
# each further attempt would interrupt all other work again.
MOST_LONE_CRASHES = 2
# If other runs were inside too, nobody knows which one caused the crash. After this many crashes in a row each of them
# gets a process of its own.
MOST_CRASHES_INSIDE = 2


class ChainRun(NamedTuple):
    """A run of a chain: its failure kind and, if it was in a scheduler process that died, how many other runs were in
    there."""

    kind: FailureKind | None
    beside: int | None


@dataclass(frozen=True, slots=True)
class Retry:
    """The n-th counted retry of a chain, and its delay."""

    number: int
    delay_seconds: float


def decide(
    policy: RetryPolicy, kinds: Sequence[FailureKind], chance: float, quota_seconds: float | None = None
) -> Retry | None:
    """Returns the retry after a failure, or None. `kinds` are the failures of the chain so far, the newest last.

    `quota_seconds` is the time until a used-up quota is renewed, if it is known.
    """
    kind = kinds[-1]
    if policy.max_attempts == 0 or not is_retryable(policy, kind):
        return None
    counted = sum(_link_counts(kinds[: link + 1]) for link in range(len(kinds)))
    if counted > policy.max_attempts:
        return None
    if kind is FailureKind.QUOTA:
        return Retry(counted, quota_pause(_streak(kinds, kind)) if quota_seconds is None else quota_seconds)
    return Retry(counted, delay_seconds(policy, counted, kind, chance))


def is_retryable(policy: RetryPolicy, kind: FailureKind) -> bool:
    """Returns whether the policy retries such a failure. A used-up quota says nothing about the job: `retry_on` does
    not exclude it."""
    if kind is FailureKind.QUOTA:
        return True
    return kind in RETRYABLE and (policy.retry_on is None or kind in policy.retry_on)


def quota_pause(answers: int, until_known: float | None = None) -> float:
    """Returns how long a resource rests after its provider has answered this many times in a row that the quota is used
    up.

    If the provider names no time, the pauses are 10, 20, 40 s and so on. If the named time has passed and the quota is
    used up again at once, they are 1, 2, 4 s and so on.
    """
    first = FIRST_QUOTA_PAUSE if until_known is None else SHORTEST_QUOTA_PAUSE
    pause = min(first * 2.0 ** min(answers - 1, 60), LONGEST_QUOTA_PAUSE)
    return pause if until_known is None else min(max(pause, until_known), LONGEST_QUOTA)


def delay_seconds(policy: RetryPolicy, number: int, kind: FailureKind, chance: float) -> float:
    """Returns the delay before retry n: exponential base·2ⁿ⁻¹, linear base·n; capped, then ±jitter.

    A run that a crash or a shutdown ended is retried at once.
    """
    if kind in AT_ONCE:
        return 0.0
    # The bound keeps the power from an overflow.
    factor = 2.0 ** min(number - 1, 60) if policy.backoff is Backoff.EXPONENTIAL else float(number)
    delay = policy.base_delay_seconds * factor
    if policy.max_delay_seconds is not None:
        delay = min(delay, policy.max_delay_seconds)
    return delay * (1 + policy.jitter * (2 * chance - 1))


def lone_crashes(attempts: Sequence[ChainRun]) -> int:
    """Counts the crashes at the end of a chain in which its run was alone inside the scheduler's process.

    The oldest attempt comes first. A crash with other runs inside neither counts nor ends the row, because its cause is
    unknown.
    """
    count = 0
    for kind, beside in reversed(attempts):
        if kind is not FailureKind.CRASH:
            break
        count += beside == 0
    return count


def must_be_isolated(attempts: Sequence[ChainRun]) -> bool:
    """Returns whether the next run of a chain belongs in a separate process, because the scheduler died several times
    in a row while the chain ran inside it.

    An attempt that was interrupted, or whose scheduler died while it ran outside, neither counts nor ends the row.
    Later attempts stay isolated, however the isolated ones end.
    """
    row = 0
    for kind, beside in attempts:
        if kind is FailureKind.CRASH and beside is not None:
            row += 1
        elif kind not in AT_ONCE:
            row = 0
        if row == MOST_CRASHES_INSIDE:
            return True
    return False


def _link_counts(kinds: Sequence[FailureKind]) -> bool:
    """Returns whether the link after the last of these failures counts against the retry limit."""
    if kinds[-1] in (FailureKind.QUOTA, FailureKind.PARKED):
        return False
    streak = _streak(kinds, FailureKind.INTERRUPTED)
    return streak == 0 or streak > FREE_INTERRUPTIONS


def _streak(kinds: Sequence[FailureKind], kind: FailureKind) -> int:
    """Counts the failures of a kind at the end of a chain."""
    return next((n for n, one in enumerate(reversed(kinds)) if one is not kind), len(kinds))
