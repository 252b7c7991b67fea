"""What a list may be asked for: what makes no sense is refused with its place, and what matches is said once."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from nextslot.domain import (
    Event,
    Job,
    JobStatus,
    OnDependencyFailure,
    RetryPolicy,
    RunStatus,
    Stage,
)
from nextslot.domain.filters import (
    DirectFilter,
    EventFilter,
    GroupFilter,
    JobFilter,
    RunFilter,
    folded,
)
from nextslot.errors import Invalid
from nextslot.system.instant import Instant

JOB_ID = "0199a2b4-c6d8-7e0f-8a1b-2c3d4e5f6071"


# What may be said.


@pytest.mark.parametrize("given", ["COMPLETED", ["COMPLETED"], ("COMPLETED",), {"COMPLETED"}, ["COMPLETED"] * 2])
def test_one_value_or_several_are_the_same_and_each_counts_once(given: Any) -> None:
    for made in (
        JobFilter(status=given),
        RunFilter(status=given),
        GroupFilter(status=given),
        DirectFilter(status=given),
    ):
        assert list(made.status) == ["COMPLETED"]


def test_nothing_said_is_no_filter() -> None:
    assert JobFilter().is_empty
    assert JobFilter(status=None, office_id=[]).is_empty  # type: ignore[arg-type]
    for said in (
        {"status": "FAILED"},
        {"role": "FE"},
        {"q": "x"},
        {"created_after": Instant(1)},
        {"awaiting_signal": False},
    ):
        assert not JobFilter(**said).is_empty


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        *((JobFilter, name) for name in ("status", *JobFilter.LABELS)),
        *((RunFilter, name) for name in ("status", "job_type", "office_id", "job_id", "failure_kind")),
        *((GroupFilter, name) for name in ("status", "office_id")),
        *((DirectFilter, name) for name in ("status", "office_id", "job_type")),
        *((EventFilter, name) for name in ("type", "office_id", "job_id")),
    ],
)
def test_every_field_is_text_and_the_one_that_is_not_is_named(kind: Any, field: str) -> None:
    for wrong in (7, [7], "", "x\0", ["x" * 1001]):
        with pytest.raises(Invalid) as refused:
            kind(**{field: wrong})

        assert [problem.field for problem in refused.value.problems] == [field], wrong


def test_every_wrong_field_is_named_at_once() -> None:
    with pytest.raises(Invalid) as refused:
        JobFilter(status="DONE", role="", created_after=7, created_before="soon")  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="awaiting_signal is text; it must be true or false"):
        JobFilter(awaiting_signal="yes")  # type: ignore[arg-type]

    assert {one.field for one in refused.value.problems} == {"status", "role", "created_after", "created_before"}


def test_a_value_that_is_none_of_those_there_are_is_refused_with_those_there_are() -> None:
    with pytest.raises(Invalid, match="status is 'DONE'; it must be one of WAITING, QUEUED, RUNNING"):
        JobFilter(status=["FAILED", "DONE"])


def test_of_one_field_at_most_a_hundred_values_are_looked_up() -> None:
    hundred = [f"t{number}" for number in range(100)]

    assert JobFilter(task_id=hundred).task_id == tuple(hundred)
    with pytest.raises(Invalid, match="at most 100 values"):
        JobFilter(task_id=[*hundred, "one more"])


def test_a_search_has_1_to_1000_characters() -> None:
    assert JobFilter(q="x" * 1000).q == "x" * 1000
    for wrong in ("", "x" * 1001, "x" * 1001, "\0"):
        with pytest.raises(Invalid) as refused:
            JobFilter(q=wrong)

        assert [problem.field for problem in refused.value.problems] == ["q"]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [(JobFilter, JobFilter.TIMES), (RunFilter, ("started_after", "started_before"))],
)
def test_an_instant_may_be_a_date_with_its_zone_and_without_one_it_is_refused(
    kind: Any, fields: tuple[str, ...]
) -> None:
    local = datetime(2026, 11, 15, 8, tzinfo=timezone(timedelta(hours=1)))
    for field in fields:
        made = kind(**{field: local})

        assert getattr(made, field) == Instant.of(datetime(2026, 11, 15, 7, tzinfo=UTC))
        assert type(getattr(made, field)) is Instant
        with pytest.raises(Invalid):
            kind(**{field: datetime(2026, 11, 15, 7)})  # noqa: DTZ001


# What matches.


@pytest.mark.parametrize(
    ("status", "allowed"),
    [
        ((), set(JobStatus)),
        (("FAILED", "QUEUED"), {"FAILED", "QUEUED"}),
        ("RUNNING", {"RUNNING"}),
    ],
)
def test_RUNNING_finds_only_what_executes_now_and_no_status_finds_all(status: Any, allowed: set[str]) -> None:
    assert JobFilter(status=status).statuses == allowed


def test_every_field_that_is_given_must_hold_and_those_that_are_not_do_not_matter() -> None:
    own = {name: f"a {name}" for name in JobFilter.LABELS}
    job = a_job(**own)

    assert JobFilter().matches(job)
    assert JobFilter(**own, status="QUEUED", q="title").matches(job)  # type: ignore[arg-type]
    for name in (*own, "status", "q"):
        other = {**own, "status": "QUEUED", "q": "title", name: "FAILED"}
        assert not JobFilter(**other).matches(job), name  # type: ignore[arg-type]


def test_the_instants_themselves_are_left_out() -> None:
    job = a_job(created_at=Instant(5))

    assert [JobFilter(created_after=Instant(at)).matches(job) for at in (4, 5, 6)] == [True, False, False]
    assert [JobFilter(created_before=Instant(at)).matches(job) for at in (4, 5, 6)] == [False, False, True]


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("a title", True), ("TIT", True), ("titles", False), ("ü", False), ("Ü", True), ("c6d8-7e0f", True),
        ("C6D8-7E0F", True), (JOB_ID, True), (JOB_ID.upper(), True), (JOB_ID[:-1] + "2", False),
    ],
)  # fmt: skip
def test_a_search_finds_text_in_the_title_or_the_id_in_capitals_or_not(text: str, is_found: bool) -> None:
    assert JobFilter(q=text).matches(a_job(title="A Title Ü")) is is_found


def test_a_whole_id_finds_that_job_only_though_another_has_it_in_its_title() -> None:
    other = a_job(job_id="another", title=f"again: {JOB_ID}")

    assert JobFilter(q=JOB_ID).whole_id == JobFilter(q=JOB_ID.upper()).whole_id == JOB_ID
    assert not JobFilter(q=JOB_ID).matches(other)
    assert JobFilter(q=JOB_ID[:-1]).matches(other)
    assert (JobFilter(q=JOB_ID[:-1]).whole_id, JobFilter().whole_id) == (None, None)


def test_a_job_without_a_title_is_found_by_its_id_and_by_nothing_else() -> None:
    assert JobFilter(q=JOB_ID[3:9]).matches(a_job(title=None))
    assert not JobFilter(q="none").matches(a_job(title=None))


def test_only_the_letters_a_to_z_are_folded() -> None:
    assert folded("AZ az Ü İ ß") == "az az Ü İ ß"


def test_an_event_is_taken_if_all_that_is_asked_for_holds() -> None:
    event = Event(seq=1, type="job_queued", office_id="o", job_id="j", run_id=None, details={}, timestamp=Instant(1))

    for said in ({}, {"type": "job_queued"}, {"office_id": ["p", "o"]}, {"job_id": "j", "type": "job_queued"}):
        assert EventFilter(**said).takes(event), said
    for said in ({"type": "job_ready"}, {"office_id": "p"}, {"job_id": "k"}, {"job_id": "j", "type": "job_ready"}):
        assert not EventFilter(**said).takes(event), said


def test_an_ended_job_is_found_by_how_it_ended() -> None:
    failed = a_job(stage=Stage.RUNNING, finished_at=Instant(9), outcome=RunStatus.FAILED)

    assert [JobFilter(status=status).matches(failed) for status in ("FAILED", "RUNNING", "COMPLETED")] == [
        True, False, False,
    ]  # fmt: skip


def a_job(**fields: Any) -> Job:
    return Job(**{
        "job_id": JOB_ID, "office_id": "default", "lane_id": 1, "job_type": "work", "params": {}, "title": "a title",
        "stage": Stage.QUEUED, "priority": 0, "position": 1, "created_at": Instant(1), "queued_at": Instant(1),
        "chain_id": JOB_ID, "retry_policy": RetryPolicy(), "on_dependency_failure": OnDependencyFailure.WAIT,
        "resources": {}, **fields,
    })  # fmt: skip
