"""The words of the old `/jobs` endpoints, one form after the other (CON-004)."""

from typing import Any

import pytest

from nextslot.domain import (
    Artifact,
    Group,
    GroupMode,
    GroupStatus,
    Job,
    OnFailure,
    Run,
    RunStatus,
    Stage,
)
from nextslot.errors import Invalid, Problem
from nextslot.extensions.legacy import old_words
from nextslot.extensions.legacy.old_words import DedupCheck, OldBatch, OldJob
from nextslot.system.instant import Instant
from tests.domain.values import a_job

NOW = Instant(1_800_000_000_000_000)
ARTIFACT = Artifact(name="a", path="k/a.md", size=5)
URL = "http://example.com/old"
WEBHOOK = {"url": URL, "events": ["failed"], "format": "legacy"}
ENDED = {
    "succeeded": RunStatus.COMPLETED,
    "failed": RunStatus.FAILED,
    "skipped": RunStatus.SKIPPED,
}


def a_story(**fields: Any) -> Job:
    return a_job(NOW, **({"job_type": "story", "params": {"topic": "the sea"}} | fields))


def a_run(**fields: Any) -> Run:
    return Run(run_id="r", job_id="j", params_snapshot={}, started_at=NOW, **fields)


def an_old(status: str = "queued", run: Run | None = None, **fields: Any) -> OldJob:
    """Makes a chain of one job."""
    if status == "cancelled":
        fields |= {"stage": Stage.CANCELLED, "finished_at": NOW}
    elif status == "running":
        fields |= {"stage": Stage.RUNNING, "started_at": NOW}
    elif status in ENDED:
        fields |= {"stage": Stage.RUNNING, "outcome": ENDED[status], "finished_at": NOW}
    job = a_story(**fields)
    return OldJob(job, job, run)


def a_batch(*statuses: str, webhook: Any = None, is_over: bool = True, **fields: Any) -> OldBatch:
    known: dict[str, Any] = {
        "group_id": "g",
        "office_id": "default",
        "mode": GroupMode.PARALLEL,
        "on_failure": OnFailure.CONTINUE,
        "status": GroupStatus.PARTIAL,
        "created_at": NOW,
        "finished_at": NOW.after(9) if is_over else None,
    }
    return OldBatch(Group(**(known | fields)), [an_old(status, job_id=status) for status in statuses], webhook)


# Jobs.


@pytest.mark.parametrize(
    ("fields", "is_old"),
    [
        ({}, True),
        ({"job_type": "research"}, True),
        ({"job_type": "work"}, False),
        ({"office_id": "o"}, False),
    ],
)
def test_only_stories_and_research_of_the_office_default_are_known_there(fields: dict[str, Any], is_old: bool) -> None:
    assert old_words.is_old(a_story(**fields)) == is_old


def test_a_job_is_told_by_its_first_job_and_its_last_run() -> None:
    root = a_story(webhook=WEBHOOK, started_at=NOW.after(1), stage=Stage.RUNNING, outcome=RunStatus.FAILED)
    last = a_story(
        job_id="k",
        webhook=WEBHOOK,
        webhook_status="delivered",
        stage=Stage.RUNNING,
        outcome=RunStatus.FAILED,
        finished_at=NOW.after(7),
    )
    run = a_run(error="no model", exit_code=3, log_path="logs/k.log", artifacts=(ARTIFACT,))

    assert old_words.job(OldJob(root, last, run, "refused")) == {
        "job_id": "j",
        "type": "story_generation",
        "status": "failed",
        "params": {"topic": "the sea", "webhook_url": URL, "webhook_events": ["failed"]},
        "pid": None,
        "log_path": "logs/k.log",
        "artifacts": ["k/a.md"],
        "created_at": str(NOW),
        "started_at": str(NOW.after(1)),
        "finished_at": str(NOW.after(7)),
        "exit_code": 3,
        "error": "no model",
        "webhook_url": URL,
        "webhook_events": ["failed"],
        "webhook_sent": True,
        "webhook_error": "refused",
    }


def test_a_job_that_says_nothing_of_a_webhook_and_has_not_run_has_the_old_defaults() -> None:
    told = old_words.job(an_old())

    assert (told["webhook_url"], told["webhook_events"]) == (None, ["succeeded", "failed", "skipped"])
    assert (told["log_path"], told["artifacts"], told["exit_code"], told["error"]) == (None, [], None, None)
    assert (told["started_at"], told["finished_at"], told["webhook_sent"]) == (None, None, False)


def test_what_was_cancelled_before_it_ran_has_the_reason_for_an_error() -> None:
    assert an_old("cancelled", cancel_reason="not needed").error == "not needed"
    assert an_old("cancelled", a_run(error="stopped"), cancel_reason="not needed").error == "stopped"


@pytest.mark.parametrize(
    ("status", "message"), [("queued", "The job is in the queue"), ("failed", "The job is failed")]
)
def test_a_trigger_is_answered_with_where_the_job_is_and_with_notes(status: str, message: str) -> None:
    assert old_words.trigger(an_old(status), []) == {
        "job_id": "j",
        "type": "story_generation",
        "status": status,
        "message": message,
    }
    note = old_words.ignored(["a", "b"], "as ever")
    assert old_words.trigger(an_old(status), [note])["message"] == f"{message}. Ignored, as ever: a, b"


@pytest.mark.parametrize(
    ("webhook_status", "is_processed"), [("delivered", True), ("failed", True), ("pending", False), ("none", False)]
)
def test_a_monitor_says_whether_the_webhook_has_had_its_end(webhook_status: str, is_processed: bool) -> None:
    run = a_run(reason="a duplicate", error="x", artifacts=(ARTIFACT,))

    assert old_words.monitored(an_old("skipped", run, webhook_status=webhook_status)) == {
        "job_id": "j",
        "status": "skipped",
        "pid": None,
        "artifacts": ["k/a.md"],
        "error": "x",
        "message": "The job is skipped",
        "reason": "a duplicate",
        "webhook_processed": is_processed,
    }
    assert old_words.monitored(an_old())["reason"] is None


def test_a_webhook_that_hears_of_nothing_is_none() -> None:
    assert old_words.webhook(URL, ("failed",)) == WEBHOOK
    assert old_words.webhook(URL, ()) is None
    assert old_words.webhook(None, ("failed",)) is None


# Batches.


def test_a_batch_counts_its_jobs_and_takes_cancelled_ones_for_failed() -> None:
    statuses = ["queued", "running", "running", "succeeded", "skipped", "failed", "cancelled", "cancelled"]

    told = old_words.batch(a_batch(*statuses, webhook=WEBHOOK, ended=5))

    members = told.pop("jobs")
    assert told == {
        "batch_id": "g",
        "status": "partial",
        "total_jobs": 8,
        "completed_jobs": 5,
        "succeeded_jobs": 1,
        "failed_jobs": 3,
        "running_jobs": 2,
        "queued_jobs": 1,
        "created_at": str(NOW),
        "finished_at": str(NOW.after(9)),
        "webhook_url": URL,
        "webhook_sent": False,
        "message": "5 of 8 jobs have ended",
    }
    assert members == [
        {"job_id": status, "type": "story_generation", "status": status, "error": None} for status in statuses
    ]
    assert old_words.batch(a_batch("queued"))["webhook_url"] is None


def test_a_member_of_another_type_has_its_own_name() -> None:
    group = a_batch()

    told = old_words.batch(OldBatch(group.group, [an_old(job_type="work")], None))

    assert told["jobs"] == [{"job_id": "j", "type": "work", "status": "queued", "error": None}]


def test_a_batch_trigger_is_answered_with_its_jobs() -> None:
    assert old_words.batch_trigger(a_batch("queued", "running", is_over=False), ["A note"]) == {
        "batch_id": "g",
        "job_ids": ["queued", "running"],
        "job_count": 2,
        "status": "running",
        "message": "2 jobs are in the queue. A note",
    }


@pytest.mark.parametrize(
    ("statuses", "fields", "word"),
    [
        (["queued"], {"status": GroupStatus.QUEUED}, "queued"),
        (["succeeded", "running"], {"is_over": False}, "running"),
        (["succeeded", "skipped"], {}, "succeeded"),
        (["skipped"], {}, "succeeded"),
        (["succeeded", "failed"], {}, "partial"),
        (["succeeded", "cancelled"], {}, "partial"),
        (["skipped", "failed"], {}, "failed"),
        (["cancelled"], {}, "failed"),
    ],
)
def test_the_word_for_a_batch(statuses: list[str], fields: dict[str, Any], word: str) -> None:
    assert old_words.batch_status(a_batch(*statuses, **fields)) == word


@pytest.mark.parametrize(
    ("events", "heard"),
    [
        (["succeeded"], {"succeeded", "partial"}),
        (["failed"], {"failed", "partial"}),
        (["skipped"], set()),
        (None, {"succeeded", "failed", "partial"}),
    ],
)
def test_who_hears_of_a_batch(events: list[str] | None, heard: set[str]) -> None:
    words = ("succeeded", "failed", "partial")

    assert {word for word in words if old_words.hears_of_batch({"events": events}, word)} == heard


# Cards.


@pytest.mark.parametrize(
    ("score", "signal"), [(1, "HIGH"), (0.8, "HIGH"), (0.79, "MEDIUM"), (0.4, "MEDIUM"), (0.39, "LOW"), (0, "LOW")]
)
def test_how_alike_two_cards_are_is_a_signal(score: float, signal: str) -> None:
    told = old_words.dedup_check(DedupCheck(an_old("succeeded", job_type="research"), "k/card.json", score, "other"))

    assert told == {
        "job_id": "j",
        "has_artifact": True,
        "artifact_path": "k/card.json",
        "signal": signal,
        "similarity_score": score,
        "message": "The most similar earlier card is other",
    }


@pytest.mark.parametrize(
    ("job_type", "path", "message"),
    [
        ("research", None, "The job is queued: it has no research card"),
        ("story", None, "Only research jobs are compared: it has no research card"),
        ("research", "k/card.json", "There is no earlier research card to compare it with"),
    ],
)
def test_without_another_card_there_is_no_signal_but_a_reason(job_type: str, path: str | None, message: str) -> None:
    told = old_words.dedup_check(DedupCheck(an_old(job_type=job_type), path))

    assert (told["has_artifact"], told["signal"], told["similarity_score"]) == (path is not None, None, None)
    assert told["message"] == message


# Refusals and paths.


@pytest.mark.parametrize(
    ("ours", "old"),
    [
        ("params.topic", "topic"),
        ("jobs.0.params.topic", "jobs.0.topic"),
        ("params", ""),
        ("webhook.url", "webhook_url"),
        ("jobs.1.webhook.events", "jobs.1.webhook_events"),
        ("idempotency_key", "idempotency_key"),
    ],
)
def test_a_refusal_names_the_field_of_the_old_request(ours: str, old: str) -> None:
    error = old_words.refusal(Invalid([Problem(ours, "is wrong")]))

    assert error.problems == [Problem(old, "is wrong")]
    assert str(error) == str(Problem(old, "is wrong"))


@pytest.mark.parametrize(
    ("path", "successor"),
    [
        ("/jobs", "/api/jobs"),
        ("/jobs/batch/trigger", "/api/job-groups"),
        ("/jobs/batch/a%2Fb", "/api/job-groups/a%252Fb"),
        ("/jobs/story/trigger", "/api/jobs"),
        ("/jobs/monitor", "/api/jobs"),
        ("/jobs/a b/cancel", "/api/jobs/a%20b/cancel"),
        ("/jobs/a b", "/api/jobs/a%20b"),
        ("/jobs/j/dedup_check", "/api/jobs/j"),
    ],
)
def test_every_old_path_has_a_new_one(path: str, successor: str) -> None:
    assert old_words.successor(path) == successor


def test_an_answer_says_since_when_and_until_when_it_is_old() -> None:
    assert old_words.headers("/jobs/j", "/below") == {
        "Deprecation": "@1794700800",
        "Sunset": "Mon, 15 Nov 2027 00:00:00 GMT",
        "Link": '</below/api/jobs/j>; rel="successor-version"',
    }
