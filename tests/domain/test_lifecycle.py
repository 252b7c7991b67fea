"""The decisions of a job's life, as tables: every combination, against a second opinion written for the test."""

from collections.abc import Iterator
from itertools import product

import pytest

from nextslot.domain import (
    TRANSITIONS,
    Backoff,
    CancelMode,
    ChainEnd,
    Decision,
    FailureKind,
    Job,
    JobStatus,
    OnDependencyFailure,
    Outcome,
    RetryPolicy,
    RunStatus,
    Stage,
)
from nextslot.domain.job_lifecycle import (
    CRASH_ERROR,
    Cancellation,
    Dependents,
    Settlement,
    cancel,
    dependent_after,
    lose,
    settle,
)
from nextslot.system.instant import Instant

K = FailureKind
MODES = [None, CancelMode.FINISH, CancelMode.INTERRUPT]
RETRY_ON: list[tuple[FailureKind, ...] | None] = [None, (), (K.ERROR,), (K.TIMEOUT, K.CRASH, K.INTERRUPTED), tuple(K)]
NEVER = {"cancelled", "git_conflict", "permission", "dependency", "invalid"}


def test_DEC_007_every_failure_is_settled_as_the_specification_says() -> None:
    wrong = [
        (policy, mode, kind, history)
        for policy, mode, kind, history in product(policies(), MODES, [None, *K], histories())
        if facts(settle(policy, mode, failed(kind), history, 0.5)) != expected(policy, mode, kind or K.ERROR, history)
    ]

    assert wrong == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("outcome", [Outcome.completed({"a": 1}), Outcome.skipped("no need")])
def test_success_ends_the_chain_whatever_went_before(outcome: Outcome, mode: CancelMode | None) -> None:
    for policy, history in product(policies(), histories()):
        settlement = settle(policy, mode, outcome, history, 0.5)

        assert facts(settlement) == (Stage.RUNNING, None, None, ChainEnd.SUCCEEDED)
        assert settlement.outcome is outcome


def test_the_second_lone_crash_ends_a_chain_with_a_sentence_that_helps() -> None:
    patient = RetryPolicy(max_attempts=9)

    once, twice = (settle(patient, None, lose(None), [K.CRASH], 0.5, lone_crashes=count) for count in (1, 2))
    cancelled = settle(patient, CancelMode.INTERRUPT, lose(CancelMode.INTERRUPT), [K.CRASH], 0.5, lone_crashes=2)
    finishing = settle(patient, CancelMode.FINISH, lose(CancelMode.FINISH), [K.CRASH], 0.5, lone_crashes=2)
    of_something_else = settle(patient, None, failed(K.ERROR), [K.CRASH, K.CRASH], 0.5, lone_crashes=2)

    assert (once.decision, once.outcome.error) == (Decision.RETRY, CRASH_ERROR)
    assert (twice.decision, twice.chain_end, twice.outcome.failure_kind) == (
        Decision.PERMANENT,
        ChainEnd.FAILED,
        K.CRASH,
    )
    assert "isolate = true" in (twice.outcome.error or "")
    assert (cancelled.decision, finishing.decision) == (Decision.CANCELLED, Decision.CANCELLED)
    assert of_something_else.decision is Decision.RETRY


def test_a_retry_and_an_end_exclude_each_other() -> None:
    for policy, mode, kind, history in product(policies(), MODES, K, histories()):
        settlement = settle(policy, mode, failed(kind), history, 0.5)

        assert (settlement.retry is None) == (settlement.chain_end is not None)
        assert (settlement.decision is Decision.RETRY) == (settlement.retry is not None)


@pytest.mark.parametrize("kind", sorted(NEVER))
def test_some_kinds_are_never_retried_even_if_the_policy_names_them(kind: str) -> None:
    policy = RetryPolicy(retry_on=tuple(K))

    assert settle(policy, None, failed(K(kind)), (), 0.5).decision is Decision.PERMANENT


@pytest.mark.parametrize("mode", [None, CancelMode.FINISH])
def test_only_an_interrupting_cancel_makes_a_dispatched_job_cancelled(mode: CancelMode | None) -> None:
    """A handler may call its failure `cancelled`; without a request its job has failed."""
    settlement = settle(RetryPolicy(), mode, failed(K.CANCELLED), (), 0.5)

    assert settlement.stage is Stage.RUNNING
    assert settlement.chain_end is ChainEnd.FAILED


@pytest.mark.parametrize(
    ("outcome", "mode", "event"),
    [
        (Outcome.completed(), None, "job_completed"),
        (Outcome.skipped("no need"), None, "job_skipped"),
        (Outcome.failed(K.ERROR, "x"), None, "job_failed"),
        (Outcome.failed(K.CRASH, "x"), None, "job_failed"),
        (Outcome.failed(K.TIMEOUT, "x"), None, "job_timeout"),
        (Outcome.failed(K.TIMEOUT, "x"), CancelMode.FINISH, "job_timeout"),
        (Outcome.failed(K.CANCELLED, "x"), CancelMode.INTERRUPT, "job_cancelled"),
        (Outcome.completed(), CancelMode.INTERRUPT, "job_completed"),
    ],
)
def test_each_ending_has_its_event(outcome: Outcome, mode: CancelMode | None, event: str) -> None:
    assert settle(RetryPolicy(), mode, outcome, (), 0.5).event_type == event


@pytest.mark.parametrize(
    ("mode", "kind"), [(None, K.CRASH), (CancelMode.FINISH, K.CRASH), (CancelMode.INTERRUPT, K.CANCELLED)]
)
def test_spec_15_2_a_run_whose_scheduler_died_is_lost_and_an_interrupt_is_carried_out(
    mode: CancelMode | None, kind: FailureKind
) -> None:
    assert lose(mode) == Outcome.failed(kind, "Scheduler crash recovery")
    assert CRASH_ERROR == "Scheduler crash recovery"


def test_cancel_depends_on_what_the_job_does_and_on_who_asks_how() -> None:
    for before, interrupt, office in product(MODES, [None, False, True], CancelMode):
        wanted = office if interrupt is None else CancelMode.INTERRUPT if interrupt else CancelMode.FINISH
        stops = CancelMode.INTERRUPT in (wanted, before)

        told = cancel(a_job(Stage.RUNNING, cancel_mode=before), interrupt, office)

        assert told is (Cancellation.STOPPING if stops else Cancellation.FINISHING), (before, interrupt, office)


@pytest.mark.parametrize("interrupt", [None, False, True])
@pytest.mark.parametrize("office", list(CancelMode))
def test_cancel_ends_a_queued_job_at_once_and_refuses_one_that_has_ended(
    interrupt: bool | None, office: CancelMode
) -> None:
    ended = [
        a_job(Stage.CANCELLED, finished_at=Instant(9)),
        a_job(Stage.RUNNING, finished_at=Instant(9), outcome=RunStatus.COMPLETED),
        a_job(Stage.RUNNING, finished_at=Instant(9), outcome=RunStatus.FAILED, cancel_mode=CancelMode.FINISH),
    ]

    assert cancel(a_job(Stage.QUEUED), interrupt, office) is Cancellation.CANCELLED
    assert cancel(a_job(Stage.QUEUED, unmet=2), interrupt, office) is Cancellation.CANCELLED
    assert {cancel(job, interrupt, office) for job in ended} == {Cancellation.REFUSED}


@pytest.mark.parametrize(
    ("end", "policy", "then"),
    [
        (ChainEnd.SUCCEEDED, OnDependencyFailure.WAIT, Dependents.RELEASE),
        (ChainEnd.SUCCEEDED, OnDependencyFailure.CANCEL, Dependents.RELEASE),
        (ChainEnd.FAILED, OnDependencyFailure.WAIT, Dependents.WAIT),
        (ChainEnd.FAILED, OnDependencyFailure.CANCEL, Dependents.CANCEL),
        (ChainEnd.CANCELLED, OnDependencyFailure.WAIT, Dependents.WAIT),
        (ChainEnd.CANCELLED, OnDependencyFailure.CANCEL, Dependents.CANCEL),
    ],
)
def test_US_JS01_what_the_end_of_a_chain_does_to_who_waits(
    end: ChainEnd, policy: OnDependencyFailure, then: Dependents
) -> None:
    assert dependent_after(end, policy) is then


def test_spec_2_9_nothing_goes_back_to_queued() -> None:
    assert dict(TRANSITIONS) == {
        Stage.QUEUED: {Stage.RUNNING, Stage.CANCELLED},
        Stage.RUNNING: {Stage.CANCELLED},
        Stage.CANCELLED: set(),
    }


def test_DEC_006_state_is_a_function_of_stored_columns() -> None:
    for unmet, is_due, is_turn in product([0, 1], [True, False], [True, False]):
        is_free = unmet == 0 and is_due and is_turn
        job = a_job(Stage.QUEUED, unmet=unmet, is_due=is_due, is_turn=is_turn)
        assert job.status is (JobStatus.QUEUED if is_free else JobStatus.WAITING)
        assert job.is_ready == is_free
    assert a_job(Stage.RUNNING).status is JobStatus.RUNNING
    for outcome in RunStatus:
        assert a_job(Stage.RUNNING, finished_at=Instant(9), outcome=outcome).status == outcome.value
        assert a_job(Stage.CANCELLED, finished_at=Instant(9), outcome=outcome).status is JobStatus.CANCELLED


# The table's rows, and the second opinion.


def policies() -> Iterator[RetryPolicy]:
    for most, backoff, retry_on in product(range(4), Backoff, RETRY_ON):
        yield RetryPolicy(max_attempts=most, backoff=backoff, retry_on=retry_on)


def histories() -> Iterator[tuple[FailureKind, ...]]:
    """Draws possible histories of a chain: up to three failures of any kind, and long rows of interruptions."""
    for length in range(4):
        yield from product([K.ERROR, K.CRASH, K.INTERRUPTED], repeat=length)
    for length in range(4, 8):
        yield (K.INTERRUPTED,) * length
        yield (K.ERROR, *(K.INTERRUPTED,) * length)
        yield (*(K.INTERRUPTED,) * length, K.ERROR)


Facts = tuple[Stage, Decision | None, tuple[int, float] | None, ChainEnd | None]


def expected(
    policy: RetryPolicy, mode: CancelMode | None, kind: FailureKind, history: tuple[FailureKind, ...]
) -> Facts:
    if kind == "cancelled" and mode == "interrupt":
        return Stage.CANCELLED, Decision.CANCELLED, None, ChainEnd.CANCELLED
    if mode is not None:
        return Stage.RUNNING, Decision.CANCELLED, None, ChainEnd.FAILED
    if kind == "parked":  # Its next job waits for the signal; it is no attempt.
        return Stage.RUNNING, Decision.RETRY, (0, 0), None
    number = links_that_count((*history, kind))
    allowed = kind not in NEVER and (kind == "quota" or policy.retry_on is None or kind in policy.retry_on)
    if policy.max_attempts == 0 or not allowed or number > policy.max_attempts:
        return Stage.RUNNING, Decision.PERMANENT, None, ChainEnd.FAILED
    if kind == "quota":
        delay = 10  # No time is known, and it is the first one of its chain.
    elif kind in ("crash", "interrupted"):
        delay = 0
    elif policy.backoff == "linear":
        delay = [10, 20, 30][number - 1]
    else:
        delay = [10, 20, 40][number - 1]
    return Stage.RUNNING, Decision.RETRY, (number, delay), None


def links_that_count(kinds: tuple[FailureKind, ...]) -> int:
    """Counts links: links after an interruption are free, except from the fifth one in a row on; so are those after a
    used-up quota, and after a run that parked.
    """
    counted = in_a_row = 0
    for kind in kinds:
        in_a_row = in_a_row + 1 if kind == "interrupted" else 0
        if kind not in ("quota", "parked") and (in_a_row == 0 or in_a_row >= 5):
            counted += 1
    return counted


def facts(settlement: Settlement) -> Facts:
    retry = settlement.retry
    when = None if retry is None else (retry.number, retry.delay_seconds)
    return settlement.stage, settlement.decision, when, settlement.chain_end


def failed(kind: FailureKind | None) -> Outcome:
    return Outcome(status=RunStatus.FAILED, failure_kind=kind, error="x")


def a_job(stage: Stage, **fields: object) -> Job:
    known = {
        "job_id": "j", "office_id": "default", "lane_id": 1, "job_type": "work", "params": {}, "stage": stage,
        "priority": 0, "position": 1, "created_at": Instant(1), "queued_at": Instant(1), "chain_id": "j",
        "retry_policy": RetryPolicy(), "on_dependency_failure": OnDependencyFailure.WAIT, "resources": {},
    }  # fmt: skip
    return Job(**{**known, **fields})  # type: ignore[arg-type]
