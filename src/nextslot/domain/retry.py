"""Whether and when a failed job is tried again (DEC-007); asked by `lifecycle.settle`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from . import (
    RETRYABLE,
    Backoff,
    FailureKind,
    RetryPolicy,
)

# Our own shutdowns are not the job's fault; but a job that never survives one must not loop for ever.
FREE_INTERRUPTIONS = 4
AT_ONCE = frozenset({FailureKind.CRASH, FailureKind.INTERRUPTED})
# One crash may be anybody's: an operator's kill, the machine's. Twice with nobody else there is hardly chance, and
# each further attempt would cost all work of the scheduler again.
MOST_LONE_CRASHES = 2
# After these a run has not come to its own end: it has neither survived nor crashed. None: it never ran.
CUT_SHORT = frozenset({None, FailureKind.INTERRUPTED, FailureKind.CANCELLED})


class Failure(NamedTuple):
    """How a job of a chain failed.

    `beside` is how many others were inside the scheduler's process that died with the run; None if none died with it.
    """

    kind: FailureKind | None
    beside: int | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """The n-th counted retry of a chain, after a delay; alone inside its process if its chain is under suspicion."""

    number: int
    delay_seconds: float
    runs_alone: bool = False


def decide(policy: RetryPolicy, failures: Sequence[Failure], chance: float) -> Retry | None:
    """Decides the retry that follows a failure, or None: `failures` are those of the chain so far, this one last."""
    kind = failures[-1].kind or FailureKind.ERROR
    if policy.max_attempts == 0 or not is_retryable(policy, kind):
        return None
    counted = _counted(failures)
    if counted > policy.max_attempts:
        return None
    return Retry(counted, delay_seconds(policy, counted, kind, chance), runs_alone(failures))


def is_retryable(policy: RetryPolicy, kind: FailureKind) -> bool:
    return kind in RETRYABLE and (policy.retry_on is None or kind in policy.retry_on)


def delay_seconds(policy: RetryPolicy, number: int, kind: FailureKind, chance: float) -> float:
    """Before retry n: exponential base·2ⁿ⁻¹, linear base·n; capped, then moved by ±jitter; none after a crash."""
    if kind in AT_ONCE:
        return 0.0
    # The exponent is bounded so that no policy overflows; 2**60 base delays is never anyway.
    factor = 2.0 ** min(number - 1, 60) if policy.backoff is Backoff.EXPONENTIAL else float(number)
    delay = policy.base_delay_seconds * factor
    if policy.max_delay_seconds is not None:
        delay = min(delay, policy.max_delay_seconds)
    return delay * (1 + policy.jitter * (2 * chance - 1))


def lone_crashes(failures: Sequence[Failure]) -> int:
    """Counts the crashes at the end of a chain in which its run was alone inside the scheduler's process.

    A crash with company neither counts nor ends the row: nobody knows who was to blame.
    """
    count = 0
    for kind, beside in reversed(failures):
        if kind is not FailureKind.CRASH:
            break
        count += beside == 0
    return count


def runs_alone(failures: Sequence[Failure]) -> bool:
    """Says whether a chain is under suspicion: its process died with it, and no run of it has survived since."""
    for kind, beside in reversed(failures):
        if beside is not None:
            return True
        if kind not in CUT_SHORT:
            break
    return False


def _counted(failures: Sequence[Failure]) -> int:
    """Counts the links against the limit: all but those after a few interruptions in a row, and after a crash with
    company.

    After a crash with company the next run is alone, so a second one cannot follow at once: should it all the same,
    it counts, or nothing would bound their number.
    """
    counted = interruptions = 0
    was_free = False
    for kind, beside in failures:
        interruptions = interruptions + 1 if kind is FailureKind.INTERRUPTED else 0
        if 1 <= interruptions <= FREE_INTERRUPTIONS:
            continue
        was_free = kind is FailureKind.CRASH and bool(beside) and not was_free
        counted += not was_free
    return counted
