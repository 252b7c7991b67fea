"""The values of the domain: a job's state is a function of what is stored, and of nothing else."""

import itertools
from typing import Any

import pytest

from nextslot.domain import (
    RETRYABLE,
    TRANSITIONS,
    CancelMode,
    Decision,
    FailureKind,
    JobStatus,
    Lane,
    OnDependencyFailure,
    RunStatus,
    State,
    default_office,
)
from nextslot.system.clock import Instant
from tests.domain.values import a_job

LONG_AGO = Instant(1)


def test_DEC_006_a_job_has_three_statuses_and_a_run_three() -> None:
    assert set(JobStatus) == {"QUEUED", "RUNNING", "CANCELLED"}
    assert set(RunStatus) == {"COMPLETED", "FAILED", "SKIPPED"}


def test_spec_2_9_nothing_goes_back_to_QUEUED() -> None:
    assert {(old, new) for old, news in TRANSITIONS.items() for new in news} == {
        ("QUEUED", "RUNNING"),
        ("QUEUED", "CANCELLED"),
        ("RUNNING", "CANCELLED"),
    }
    assert set(TRANSITIONS) == set(JobStatus)


@pytest.mark.parametrize(
    ("stored", "state"),
    [
        ({}, State.QUEUED),
        ({"unmet": 1}, State.WAITING),
        ({"is_turn": False}, State.WAITING),
        ({"is_due": False}, State.WAITING),
        ({"status": JobStatus.RUNNING, "started_at": LONG_AGO}, State.RUNNING),
        ({"status": JobStatus.RUNNING, "finished_at": LONG_AGO, "outcome": RunStatus.COMPLETED}, State.COMPLETED),
        ({"status": JobStatus.RUNNING, "finished_at": LONG_AGO, "outcome": RunStatus.FAILED}, State.FAILED),
        ({"status": JobStatus.RUNNING, "finished_at": LONG_AGO, "outcome": RunStatus.SKIPPED}, State.SKIPPED),
        ({"status": JobStatus.CANCELLED, "finished_at": LONG_AGO}, State.CANCELLED),
        ({"status": JobStatus.CANCELLED, "finished_at": LONG_AGO, "outcome": RunStatus.FAILED}, State.CANCELLED),
    ],
)
def test_the_state_follows_from_the_stored_columns(stored: dict[str, Any], state: State) -> None:
    assert a_job(LONG_AGO, **stored).state is state


def test_the_state_never_follows_from_the_clock() -> None:
    # Its time has come long ago, but nobody has written that it is due.
    assert a_job(LONG_AGO, is_due=False, scheduled_for=LONG_AGO).state is State.WAITING
    assert a_job(LONG_AGO, is_due=True, scheduled_for=Instant(2**60)).state is State.QUEUED
    assert a_job(LONG_AGO, expires_at=LONG_AGO).state is State.QUEUED


def test_every_combination_of_what_holds_a_job_back_is_WAITING_and_only_those() -> None:
    for unmet, is_due, is_turn in itertools.product((0, 1, 7), (True, False), (True, False)):
        job = a_job(LONG_AGO, unmet=unmet, is_due=is_due, is_turn=is_turn)

        assert (job.state is State.QUEUED) == job.is_ready == (unmet == 0 and is_due and is_turn)
        assert not job.is_running
        assert not job.has_ended


def test_running_means_status_RUNNING_and_not_finished() -> None:
    assert a_job(LONG_AGO, status=JobStatus.RUNNING).is_running
    assert not a_job(LONG_AGO, status=JobStatus.RUNNING, finished_at=LONG_AGO, outcome=RunStatus.COMPLETED).is_running
    assert not a_job(LONG_AGO, status=JobStatus.CANCELLED, finished_at=LONG_AGO).is_running


def test_a_job_that_is_cancelled_or_running_is_never_ready() -> None:
    assert not a_job(LONG_AGO, status=JobStatus.CANCELLED).is_ready
    assert not a_job(LONG_AGO, status=JobStatus.RUNNING).is_ready


def test_permanently_failed_is_a_stored_decision() -> None:
    assert a_job(LONG_AGO, decision=Decision.PERMANENT).permanently_failed
    assert not a_job(LONG_AGO, decision=Decision.CANCELLED).permanently_failed
    assert not a_job(LONG_AGO, decision=Decision.RETRY).permanently_failed


def test_the_failure_kinds_that_are_retried_by_default() -> None:
    assert {"error", "timeout", "session_error", "unavailable", "crash", "interrupted"} == RETRYABLE
    assert set(FailureKind) - RETRYABLE == {"cancelled", "git_conflict", "permission", "dependency", "invalid"}


def test_DEC_011_the_default_office_runs_one_job_at_a_time_and_interrupts_nothing() -> None:
    office = default_office(LONG_AGO)

    assert (office.office_id, office.max_concurrent_jobs, dict(office.role_limits)) == ("default", 1, {})
    assert (office.timeout_seconds, office.cancel_mode) == (None, CancelMode.FINISH)
    assert office.on_dependency_failure is OnDependencyFailure.WAIT
    assert (office.retry_policy.max_attempts, office.retry_policy.base_delay_seconds) == (3, 10)


def test_a_lane_needs_its_local_and_its_shared_limits() -> None:
    lane = Lane(
        lane_id=1, office_id="o", job_type="t", resources={}, local={"office:o": 1}, shared={"type:t": 2}, class_key=""
    )

    assert lane.needs == {"office:o": 1, "type:t": 2}
