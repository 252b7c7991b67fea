"""Decides what an outcome, a crash or a cancellation makes of a job, and what that does to jobs that wait for it.

`engine/finish` stores it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from . import (
    CancelMode,
    ChainEnd,
    Decision,
    FailureKind,
    Job,
    OnDependencyFailure,
    Outcome,
    RetryPolicy,
    RunStatus,
    Stage,
)
from . import retry as retry_policy
from .retry import Retry

CRASH_ERROR = "Scheduler crash recovery"
CRASHES_ERROR = (
    "the scheduler died twice while only this ran in its process, so it is not retried: "
    "run it isolated (isolate = true) or mend it, then retry it by hand"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What one transaction stores after a run has ended."""

    outcome: Outcome
    stage: Stage
    decision: Decision | None
    retry: Retry | None
    chain_end: ChainEnd | None

    @property
    def event_type(self) -> str:
        if self.stage is Stage.CANCELLED:
            return "job_cancelled"
        return event_of(self.outcome.status, self.outcome.failure_kind)


def event_of(status: RunStatus, kind: FailureKind | None) -> str:
    """Returns the type of the event of a run's end."""
    if kind is FailureKind.PARKED:
        return "job_parked"
    return "job_timeout" if kind is FailureKind.TIMEOUT else f"job_{status.value.lower()}"


def settle(
    policy: RetryPolicy,
    cancel_mode: CancelMode | None,
    outcome: Outcome,
    earlier_failures: Sequence[FailureKind],
    chance: float,
    lone_crashes: int = 0,
    quota_seconds: float | None = None,
) -> Settlement:
    """Decides what follows the end of a run: a retry, a permanent failure, or the end of its chain.

    `earlier_failures` are the kinds of the chain's failed runs before this one, oldest first. `lone_crashes` counts how
    often in a row, this time included, the scheduler died while only this chain ran inside its process. `quota_seconds`
    is the time until a used-up quota is renewed, if it is known.
    """
    if outcome.status is not RunStatus.FAILED:
        return _ends(outcome, Stage.RUNNING, None, ChainEnd.SUCCEEDED)
    kind = outcome.failure_kind or FailureKind.ERROR
    outcome = replace(outcome, failure_kind=kind)
    if kind is FailureKind.CANCELLED and cancel_mode is CancelMode.INTERRUPT:
        return _ends(outcome, Stage.CANCELLED, Decision.CANCELLED, ChainEnd.CANCELLED)
    if cancel_mode is not None:
        return _ends(outcome, Stage.RUNNING, Decision.CANCELLED, ChainEnd.FAILED)
    if kind is FailureKind.CRASH and lone_crashes >= retry_policy.MOST_LONE_CRASHES:
        outcome = replace(outcome, error=CRASHES_ERROR)
        return _ends(outcome, Stage.RUNNING, Decision.PERMANENT, ChainEnd.FAILED)
    if kind is FailureKind.PARKED:
        return Settlement(
            outcome=outcome, stage=Stage.RUNNING, decision=Decision.RETRY, retry=Retry(0, 0.0), chain_end=None
        )
    retry = retry_policy.decide(policy, [*earlier_failures, kind], chance, quota_seconds)
    if retry is None:
        return _ends(outcome, Stage.RUNNING, Decision.PERMANENT, ChainEnd.FAILED)
    return Settlement(outcome=outcome, stage=Stage.RUNNING, decision=Decision.RETRY, retry=retry, chain_end=None)


def _ends(outcome: Outcome, stage: Stage, decision: Decision | None, end: ChainEnd) -> Settlement:
    return Settlement(outcome=outcome, stage=stage, decision=decision, retry=None, chain_end=end)


def lose(cancel_mode: CancelMode | None) -> Outcome:
    """Returns the outcome of a run whose scheduler died (spec 15.2): a crash, or the cancel that was to stop it."""
    kind = FailureKind.CANCELLED if cancel_mode is CancelMode.INTERRUPT else FailureKind.CRASH
    return Outcome.failed(kind, CRASH_ERROR)


class Cancellation(StrEnum):
    """What a cancel request does to a job, depending on its stage."""

    CANCELLED = "cancelled"
    STOPPING = "stopping"
    FINISHING = "finishing"
    REFUSED = "refused"


def cancel(job: Job, interrupt: bool | None, office_mode: CancelMode) -> Cancellation:
    """Decides what a cancel request does (spec 7.3): a second one may turn finish into interrupt, never back."""
    if job.has_ended:
        return Cancellation.REFUSED
    if job.stage is Stage.QUEUED:
        return Cancellation.CANCELLED
    wanted = office_mode if interrupt is None else CancelMode.INTERRUPT if interrupt else CancelMode.FINISH
    if CancelMode.INTERRUPT in (wanted, job.cancel_mode):
        return Cancellation.STOPPING
    return Cancellation.FINISHING


class Dependents(StrEnum):
    """What the end of a chain does to a job that waits for it."""

    RELEASE = "release"
    CANCEL = "cancel"
    WAIT = "wait"


def dependent_after(end: ChainEnd, on_dependency_failure: OnDependencyFailure) -> Dependents:
    if end is ChainEnd.SUCCEEDED:
        return Dependents.RELEASE
    return Dependents.CANCEL if on_dependency_failure is OnDependencyFailure.CANCEL else Dependents.WAIT
