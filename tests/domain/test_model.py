"""The values of the domain: a job's status is a function of what is stored, and of nothing else."""

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
    Stage,
    default_office,
)
from nextslot.system.instant import Instant
from tests.domain.values import a_job

LONG_AGO = Instant(1)


def test_DEC_006_a_job_has_three_statuses_and_a_run_three() -> None:
    assert set(Stage) == {"QUEUED", "RUNNING", "CANCELLED"}
    assert set(RunStatus) == {"COMPLETED", "FAILED", "SKIPPED"}


def test_spec_2_9_nothing_goes_back_to_QUEUED() -> None:
    assert {(old, new) for old, news in TRANSITIONS.items() for new in news} == {
        ("QUEUED", "RUNNING"),
        ("QUEUED", "CANCELLED"),
        ("RUNNING", "CANCELLED"),
    }
    assert set(TRANSITIONS) == set(Stage)


@pytest.mark.parametrize(
    ("stored", "status"),
    [
        ({}, JobStatus.QUEUED),
        ({"unmet": 1}, JobStatus.WAITING),
        ({"is_turn": False}, JobStatus.WAITING),
        ({"is_due": False}, JobStatus.WAITING),
        ({"stage": Stage.RUNNING, "started_at": LONG_AGO}, JobStatus.RUNNING),
        ({"stage": Stage.RUNNING, "finished_at": LONG_AGO, "outcome": RunStatus.COMPLETED}, JobStatus.COMPLETED),
        ({"stage": Stage.RUNNING, "finished_at": LONG_AGO, "outcome": RunStatus.FAILED}, JobStatus.FAILED),
        ({"stage": Stage.RUNNING, "finished_at": LONG_AGO, "outcome": RunStatus.SKIPPED}, JobStatus.SKIPPED),
        ({"stage": Stage.CANCELLED, "finished_at": LONG_AGO}, JobStatus.CANCELLED),
        ({"stage": Stage.CANCELLED, "finished_at": LONG_AGO, "outcome": RunStatus.FAILED}, JobStatus.CANCELLED),
    ],
)
def test_the_state_follows_from_the_stored_columns(stored: dict[str, Any], status: JobStatus) -> None:
    assert a_job(LONG_AGO, **stored).status is status


def test_the_state_never_follows_from_the_clock() -> None:
    # Its time has come long ago, but nobody has written that it is due.
    assert a_job(LONG_AGO, is_due=False, scheduled_for=LONG_AGO).status is JobStatus.WAITING
    assert a_job(LONG_AGO, is_due=True, scheduled_for=Instant(2**60)).status is JobStatus.QUEUED
    assert a_job(LONG_AGO, expires_at=LONG_AGO).status is JobStatus.QUEUED


def test_every_combination_of_what_holds_a_job_back_is_WAITING_and_only_those() -> None:
    for unmet, is_due, is_turn in itertools.product((0, 1, 7), (True, False), (True, False)):
        job = a_job(LONG_AGO, unmet=unmet, is_due=is_due, is_turn=is_turn)

        assert (job.status is JobStatus.QUEUED) == job.is_ready == (unmet == 0 and is_due and is_turn)
        assert not job.is_running
        assert not job.has_ended


def test_running_means_status_RUNNING_and_not_finished() -> None:
    assert a_job(LONG_AGO, stage=Stage.RUNNING).is_running
    assert not a_job(LONG_AGO, stage=Stage.RUNNING, finished_at=LONG_AGO, outcome=RunStatus.COMPLETED).is_running
    assert not a_job(LONG_AGO, stage=Stage.CANCELLED, finished_at=LONG_AGO).is_running


def test_a_job_that_is_cancelled_or_running_is_never_ready() -> None:
    assert not a_job(LONG_AGO, stage=Stage.CANCELLED).is_ready
    assert not a_job(LONG_AGO, stage=Stage.RUNNING).is_ready


def test_permanently_failed_is_a_stored_decision() -> None:
    assert a_job(LONG_AGO, decision=Decision.PERMANENT).permanently_failed
    assert not a_job(LONG_AGO, decision=Decision.CANCELLED).permanently_failed
    assert not a_job(LONG_AGO, decision=Decision.RETRY).permanently_failed


def test_the_failure_kinds_that_are_retried_by_default() -> None:
    assert {"error", "timeout", "session_error", "unavailable", "quota", "crash", "interrupted"} == RETRYABLE
    assert set(FailureKind) - RETRYABLE == {
        "cancelled",
        "git_conflict",
        "permission",
        "dependency",
        "invalid",
        "parked",
    }


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
