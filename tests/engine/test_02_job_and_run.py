"""Spec 2: a job, its run, and what may change of them."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nextslot import Job, Scheduler, testing
from nextslot.domain import (
    TRANSITIONS,
    URGENT,
    JobStatus,
    NewJob,
    Stage,
)
from nextslot.domain.limits import Limits
from nextslot.errors import (
    AlreadyDispatched,
    AlreadyFinished,
    Invalid,
    NotFound,
    UnknownJobType,
)
from tests import databases
from tests.support import (
    assert_counters,
    counted_scheduler,
    database,
    history,
    new_scheduler,
    queued_ids,
    running_scheduler,
    states,
)

# What is copied.


async def test_a_job_is_stored_as_it_was_answered(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first = await scheduler.submit("work")
        job = await scheduler.submit(
            "work",
            {"seconds": 5, "text": "한국어 🎉 \0", "list": [1, 2.5, None, True]},
            priority=7,
            scheduled_for=datetime(2027, 1, 1, tzinfo=UTC),
            expires_at=datetime(2027, 2, 1, tzinfo=UTC),
            depends_on=[first.job_id],
            on_dependency_failure="cancel",
            role="FE",
            task_id="T-1",
            title="a title",
            resources={"gpu": 1},
            timeout_seconds=12.5,
            stall_timeout_seconds=3,
            retry_policy={"max_attempts": 1, "retry_on": ["timeout"]},
            webhook={"url": "http://127.0.0.1/hook"},
            unique_key="unique",
            created_by="somebody",
        )

        assert await scheduler.job(job.job_id) == job
        assert await scheduler.job(first.job_id) == first._replace(
            stage=Stage.RUNNING, started_at=first.created_at, worker_id="local/slot-1"
        )


async def test_INV_005_a_job_does_not_follow_later_changes_of_its_office_or_its_type(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        scheduler.job_type("typed", resources=["gpu"], timeout_seconds=50, retry_policy={"max_attempts": 1})(one)
        await scheduler.pause()
        await scheduler.offices.create("o", on_dependency_failure="cancel", webhook={"url": "http://127.0.0.1/"})
        job = await scheduler.submit("typed", office_id="o")
        plain = await scheduler.submit("work", office_id="o")
        changes: dict[str, Any] = {"timeout_seconds": 1, "retry_policy": {"max_attempts": 9}}
        await scheduler.offices.change("o", on_dependency_failure="wait", webhook=None, **changes)
        await scheduler.stop()

        async with new_scheduler(tmp_path, seed=1) as second:
            second.job_type("typed", resources=["other"], timeout_seconds=1)(one)

            assert await second.job(job.job_id) == job
            assert await second.job(plain.job_id) == plain
        assert (job.timeout_seconds, job.retry_policy.max_attempts, dict(job.resources)) == (50, 1, {"gpu": 1})
        assert (plain.timeout_seconds, plain.retry_policy.max_attempts) == (1800, 2)
        assert (job.on_dependency_failure, plain.on_dependency_failure) == ("cancel", "cancel")


async def test_what_a_request_says_comes_before_its_type_and_that_before_its_office(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        policy = {"max_attempts": 5, "base_delay_seconds": 1}
        scheduler.job_type("typed", timeout_seconds=50, stall_timeout_seconds=7, retry_policy=policy)(one)
        await scheduler.offices.create("o")

        said = await scheduler.submit("typed", office_id="o", timeout_seconds=3, retry_policy={"max_attempts": 0})
        of_type = await scheduler.submit("typed", office_id="o")
        of_office = await scheduler.submit("work", office_id="o")

        assert (said.timeout_seconds, said.stall_timeout_seconds) == (3, 7)
        assert (said.retry_policy.max_attempts, said.retry_policy.base_delay_seconds) == (0, 1)
        assert (of_type.timeout_seconds, of_type.retry_policy.max_attempts) == (50, 5)
        assert (of_office.timeout_seconds, of_office.retry_policy.base_delay_seconds) == (1800, 60)


async def test_what_a_caller_does_with_its_parameters_afterwards_does_not_reach_the_job(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        params: dict[str, Any] = {"list": [1]}
        job = await scheduler.submit("work", params)
        params["list"].append(2)

        ended = await scheduler.wait(job.job_id)

        assert ended.result == {"list": [1]}


# Statuses.


async def test_every_status_is_a_function_of_what_is_stored(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        jobs = await one_job_in_each_status(scheduler)

        assert {status: (await scheduler.job(job.job_id)).status for status, job in jobs.items()} == {
            s: s for s in JobStatus
        }
        await testing.crash(scheduler)
        stored = {status: row(tmp_path, job) for status, job in jobs.items()}
        assert {status: (stage, outcome) for status, (stage, outcome, _, _) in stored.items()} == {
            "WAITING": ("QUEUED", None),
            "QUEUED": ("QUEUED", None),
            "RUNNING": ("RUNNING", None),
            "COMPLETED": ("RUNNING", "COMPLETED"),
            "FAILED": ("RUNNING", "FAILED"),
            "SKIPPED": ("RUNNING", "SKIPPED"),
            "CANCELLED": ("CANCELLED", None),
        }
        ended = {"COMPLETED", "FAILED", "SKIPPED", "CANCELLED"}
        assert {status for status, (_, _, finished_at, _) in stored.items() if finished_at is not None} == ended
        assert {status: run for status, (_, _, _, run) in stored.items()} == {
            **dict.fromkeys(("WAITING", "QUEUED", "CANCELLED"), "no run"),
            **dict.fromkeys(("RUNNING",), None),
            **{status: status for status in ("COMPLETED", "FAILED", "SKIPPED")},
        }


async def test_a_job_becomes_QUEUED_in_the_transaction_that_writes_so_and_not_by_the_clock(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        later = testing.BEGINNING.after(60)
        job = await scheduler.submit("work", scheduled_for=later)
        await testing.crash(scheduler)
        await asyncio.sleep(3600)

        assert database(tmp_path).execute("select is_due from jobs").get == 0
        async with new_scheduler(tmp_path, seed=1) as second:
            ended = await second.wait(job.job_id)
            assert [event.type for event in await history(second) if event.job_id == job.job_id] == [
                "job_queued",
                "job_ready",
                "job_started",
                "job_completed",
            ]
        assert (ended.job.started_at or 0) >= later.after(3500)


# The life of a job and its run.


async def test_TRANSITIONS_is_what_the_database_allows(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await one_job_in_each_stage(scheduler)
    connection = database(tmp_path)
    connection.pragma("foreign_keys", True)

    allowed = {(old, new) for old in Stage for new in Stage if old is not new and is_allowed(connection, old, new)}

    assert allowed == {(old, new) for old, news in TRANSITIONS.items() for new in news}


async def test_spec_2_10_RUNNING_and_its_run_appear_together_and_end_together(tmp_path: Path) -> None:
    seen: set[tuple[str, str | None]] = set()

    async with counted_scheduler(tmp_path) as scheduler:
        watch_commits(scheduler, tmp_path, seen)
        await scheduler.offices.create("o")
        jobs = [await scheduler.submit(kind, office_id="o") for kind in ("work", "skip", "stubborn")]
        jobs.append(await scheduler.submit("fail", {"kind": "session_error"}, office_id="o"))
        await scheduler.cancel(jobs[2].job_id)
        for job in jobs:
            await scheduler.wait(job.job_id)
    assert {("QUEUED", "no run"), ("RUNNING", None), ("RUNNING, ended", "COMPLETED")} <= seen
    assert seen <= {
        ("QUEUED", "no run"),
        ("RUNNING", None),
        ("RUNNING, ended", "COMPLETED"),
        ("RUNNING, ended", "FAILED"),
        ("RUNNING, ended", "SKIPPED"),
        ("CANCELLED, ended", "no run"),
        ("CANCELLED, ended", "FAILED"),
    }


async def test_DEC_001_a_dispatched_job_has_one_run_that_says_what_happened(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", {"seconds": 3, "x": 1}, timeout_seconds=60)
        queued_run = await scheduler.run_of((await scheduler.submit("work")).job_id)
        ended = await scheduler.wait(job.job_id)
        run = await scheduler.run_of(job.job_id)

        assert queued_run is None
        assert run == ended.run
        assert run is not None
        assert (run.job_id, run.params_snapshot, run.result) == (job.job_id, {"seconds": 3, "x": 1}, {"x": 1})
        assert (run.started_at, run.finished_at) == (ended.job.started_at, ended.job.finished_at)
        assert run.started_at.after(3) == run.finished_at
        assert run.timeout_at == run.started_at.after(60)
        assert (ended.job.stage, ended.job.outcome, run.status) == ("RUNNING", "COMPLETED", "COMPLETED")


async def test_ids_are_UUIDv7_and_sort_by_age(tmp_path: Path) -> None:
    import uuid

    from nextslot.system.randomness import SystemChance

    async with running_scheduler(tmp_path, chance=SystemChance()) as scheduler:
        jobs = [await scheduler.submit("work") for _ in range(20)]

        assert {uuid.UUID(job.job_id).version for job in jobs} == {7}
        assert sorted(job.job_id for job in jobs) == [job.job_id for job in jobs]

        run = (await scheduler.wait(jobs[0].job_id)).run
        template = await scheduler.templates.create(name="t", job_type="work")
        schedule = await scheduler.schedules.create(
            name="s", template_id=template.template_id, cron_expression="0 0 * * *"
        )
        await scheduler.run_direct("work")
        reserved = [
            event.details["reservation_id"] for event in await history(scheduler) if "reservation" in event.type
        ]
        assert run is not None
        assert {uuid.UUID(one).version for one in (run.run_id, schedule.schedule_id, *reserved)} == {7}
        assert reserved


async def test_a_run_has_the_template_of_its_job_and_a_retry_by_hand_template_and_parameters(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        template = await scheduler.templates.create(name="t", job_type="fail", params={"kind": "invalid_params"})
        job = await scheduler.submit(template_id=template.template_id)
        failed = await scheduler.wait(job.job_id)
        assert failed.run is not None

        retried = await scheduler.retry(failed.run.run_id)

        assert failed.run.template_id == template.template_id
        assert (retried.template_id, retried.job_type, retried.params) == (job.template_id, job.job_type, job.params)


async def test_a_job_that_completed_stays_so_when_its_timeout_passes(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", {"seconds": 1}, timeout_seconds=10)
        ended = await scheduler.wait(job.job_id)
        await asyncio.sleep(100)

        assert (await scheduler.run_of(job.job_id)) == ended.run
        assert (await scheduler.job(job.job_id)).status == "COMPLETED"


async def test_a_type_without_a_handler_waits_and_runs_once_there_is_one(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        scheduler.job_type("rare", resources=["gpu"])(one)
        await scheduler.pause()
        rare = await scheduler.submit("rare")
        other = await scheduler.submit("work")
        await testing.crash(scheduler)
        async with new_scheduler(tmp_path, seed=1) as second:
            await second.resume()
            await second.wait(other.job_id)
            assert await states(second, rare, other) == ["QUEUED", "COMPLETED"]

        third = new_scheduler(tmp_path, seed=2)
        third.job_type("rare")(one)
        async with third:
            assert (await third.wait(rare.job_id)).status == "COMPLETED"


# What may change, and until when.


@pytest.mark.parametrize(
    "changes",
    [
        {"params": {"seconds": 2}},
        {"priority": 5},
        {"urgent": True},
        {"title": "other"},
        {"scheduled_for": testing.BEGINNING.after(500)},
    ],
)
async def test_INV_001_nothing_of_a_job_can_change_after_its_dispatch(tmp_path: Path, changes: dict[str, Any]) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", {"seconds": 1})
        running = await scheduler.job(job.job_id)

        with pytest.raises(AlreadyDispatched, match=f"{job.job_id} was dispatched at 2026-11-15T07:00"):
            await scheduler.change(job.job_id, **changes)
        with pytest.raises(AlreadyDispatched):
            await scheduler.move(job.job_id, to="front")
        assert await scheduler.job(job.job_id) == running

        await scheduler.wait(job.job_id)
        with pytest.raises(AlreadyFinished, match="COMPLETED"):
            await scheduler.change(job.job_id, **changes)


async def test_INV_001_the_database_itself_refuses_other_params_for_a_dispatched_job(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work")
        await testing.crash(scheduler)

    for change in ("params = '{\"seconds\":9}'", "priority = 1", "position = 1"):
        with pytest.raises(databases.REFUSALS, match="INV-001"):
            database(tmp_path).execute(f"update jobs set {change}")


async def test_params_of_a_queued_job_are_checked_again_and_used(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work", {"seconds": 10})
        job = await scheduler.submit("work", {"seconds": 1, "x": 1})

        several: Any = ({"seconds": "soon"}, {"x": float("nan")}, [1], {"x": "y" * 300_000})
        for wrong in several:
            with pytest.raises(Invalid) as refused:
                await scheduler.change(job.job_id, params=wrong)
            assert refused.value.problems[0].field.startswith("params")
        assert await scheduler.job(job.job_id) == job
        changed = await scheduler.change(job.job_id, params={"seconds": 2, "x": 2})
        ended = await scheduler.wait(job.job_id)

        assert changed == job._replace(params={"seconds": 2, "x": 2})
        assert ended.run is not None
        assert (ended.run.params_snapshot, ended.result) == ({"seconds": 2, "x": 2}, {"x": 2})


async def test_other_params_work_resources_and_limits_out_again(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path, limits=Limits(resources={"disk": 4})) as scheduler:
        scheduler.job_type("typed", resources={"gpu": 1, "disk": 2})(one)
        await scheduler.pause()
        job = await scheduler.submit("typed", resources={"disk": 3, "own": 1})
        await scheduler.stop()

        second = new_scheduler(tmp_path, seed=1, limits=Limits(resources={"disk": 4, "gpu": 2}))
        second.job_type("typed", resources={"gpu": 2, "ollama": 1, "disk": 1})(one)
        async with second:
            changed = await second.change(job.job_id, params={"seconds": 5})
            assert changed.resources == {"gpu": 2, "disk": 3, "ollama": 1, "own": 1}
            assert await second.job(job.job_id) == changed
            assert changed.lane_id != job.lane_id
            await second.resume()
            await testing.settled()
            assert_counters(tmp_path)
            used = dict(database(tmp_path).execute("select limit_key, used from limits where used > 0"))
            assert used["resource:gpu"] == 2
            assert used["resource:ollama"] == 1


async def test_title_time_and_priority_of_a_queued_job_can_be_changed(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work", {"seconds": 1000})
        job = await scheduler.submit("work", title="old")
        later = testing.BEGINNING.after(500)

        changed = await scheduler.change(job.job_id, title="new", scheduled_for=later, priority=3)
        assert (changed.title, changed.scheduled_for, changed.priority) == ("new", later, 3)
        assert changed.status == "WAITING"
        assert await scheduler.job(job.job_id) == changed

        urgent = await scheduler.change(job.job_id, scheduled_for=None, title=None, urgent=True)
        assert (urgent.title, urgent.scheduled_for, urgent.priority) == (None, None, URGENT)
        assert urgent.status == "QUEUED"
        assert await scheduler.job(job.job_id) == urgent


async def test_a_job_whose_time_is_changed_starts_then(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        sooner = await scheduler.submit("work", scheduled_for=testing.BEGINNING.after(5000))
        later = await scheduler.submit("work", scheduled_for=testing.BEGINNING.after(50))
        await scheduler.change(sooner.job_id, scheduled_for=testing.BEGINNING.after(100))
        await scheduler.change(later.job_id, scheduled_for=testing.BEGINNING.after(200))

        started = [(await scheduler.wait(job.job_id)).job.started_at for job in (sooner, later)]

        assert started == [testing.BEGINNING.after(100), testing.BEGINNING.after(200)]


async def test_a_job_that_is_made_due_by_hand_is_told_of(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        job = await scheduler.submit("work", scheduled_for=testing.BEGINNING.after(5000))

        await scheduler.change(job.job_id, scheduled_for=testing.BEGINNING)

        told = [event.type for event in await history(scheduler) if event.job_id == job.job_id]
        assert told == ["job_queued", "job_ready"]


async def test_a_job_that_could_start_and_is_put_off_starts_at_its_new_time_though_nothing_else_is_due(
    tmp_path: Path,
) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work", {"seconds": 10})
        queued = await scheduler.submit("work")
        await scheduler.change(queued.job_id, scheduled_for=testing.BEGINNING.after(100))
        await asyncio.sleep(1000)

        assert (await scheduler.job(queued.job_id)).started_at == pytest.approx(testing.BEGINNING.after(100), abs=1000)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"status": "CANCELLED"},
        {"job_type": "other"},
        {"position": 5},
        {"title": ""},
        {"title": "nul\0"},
        {"title": "\ud800"},
        {"title": 5},
        {"priority": 1_000_001},
        {"priority": "high"},
        {"priority": None},
        {"scheduled_for": "tomorrow"},
        {"scheduled_for": datetime(2027, 1, 1)},  # noqa: DTZ001
        {"scheduled_for": testing.BEGINNING.after(2000)},
        {"params": None},
        {"title": "fine", "params": {"seconds": 1}, "priority": 10**9},
    ],
)
async def test_a_change_that_makes_no_sense_is_refused_and_nothing_of_it_is_stored(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work", {"seconds": 10})
        job = await scheduler.submit("work", expires_at=testing.BEGINNING.after(1000))

        with pytest.raises(Invalid):
            await scheduler.change(job.job_id, **changes)

        assert await scheduler.job(job.job_id) == job


async def test_what_is_not_there_cannot_be_changed(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(NotFound, match="nothing"):
            await scheduler.change("nothing", title="new")
        with pytest.raises(NotFound):
            await scheduler.job("nothing")


# Parameters.


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"x": "y" * (256 * 1024)}, "params"),
        ({"x": "é" * (128 * 1024)}, "params"),
        ({"x": float("nan")}, "params.x"),
        ({"x": [1, 2**70]}, "params.x.1"),
        ({"x": "\ud800"}, "params.x"),
        ({"x": {1: 2}}, "params.x"),
        ({"x": b"bytes"}, "params.x"),
        ([], "params"),
        ("text", "params"),
        (0, "params"),
        ({"seconds": "soon"}, "params.seconds"),
    ],
)
async def test_bad_parameters_are_refused_where_they_stand_and_nothing_is_stored(
    tmp_path: Path, params: Any, field: str
) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        for key in (None, "a key"):
            with pytest.raises(Invalid) as refused:
                await scheduler.submit("work", params, idempotency_key=key)
            assert [problem.field for problem in refused.value.problems] == [field]

        assert await queued_ids(scheduler) == []
        assert await scheduler.running() == []
        assert await history(scheduler) == []


async def test_parameters_of_exactly_the_allowed_size_are_taken(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        largest = {"x": "y" * (256 * 1024 - len('{"x":""}'))}

        job = await scheduler.submit("work", largest)

        assert (await scheduler.job(job.job_id)).params == largest


async def test_deep_parameters_are_refused_with_an_idempotency_key_too(tmp_path: Path) -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]

    async with running_scheduler(tmp_path) as scheduler:
        for key in (None, "a key"):
            with pytest.raises(Invalid, match="levels deep"):
                await scheduler.submit("work", {"deep": deep}, idempotency_key=key)
        assert await queued_ids(scheduler) == []


async def test_every_problem_of_a_request_is_named(tmp_path: Path) -> None:
    schema = {"type": "object", "required": ["path"], "properties": {"size": {"type": "integer", "minimum": 1}}}

    async with running_scheduler(tmp_path) as scheduler:
        scheduler.job_type("checked", params_schema=schema)(one)

        with pytest.raises(Invalid) as refused:
            await scheduler.submit("checked", {"size": 0}, priority=10**7, title="", resources={"gpu": 0})

        assert sorted(problem.field for problem in refused.value.problems) == [
            "params",
            "params.size",
            "priority",
            "resources.gpu",
            "title",
        ]
        assert await history(scheduler) == []


async def test_every_problem_of_every_job_of_a_batch_is_named_with_its_place(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        wanted = [
            NewJob(job_type="work"),
            NewJob(job_type="work", params={"seconds": "soon"}, priority=10**7),
            NewJob(job_type="nonsense"),
        ]

        for submit in (scheduler.submit_many, scheduler.submit_group):
            with pytest.raises(Invalid) as refused:
                await submit(wanted)
            fields = sorted(problem.field for problem in refused.value.problems)
            assert fields == ["jobs.1.params.seconds", "jobs.1.priority", "jobs.2.job_type"]

        assert await queued_ids(scheduler) == []
        assert await history(scheduler) == []


async def test_parameters_fit_the_handlers_signature_or_are_refused(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("signed")
        async def signed(run: Any, path: str, size: int = 1) -> dict[str, Any]:
            return {"path": path, "size": size}

        for params, words in (({}, '"path" is missing'), ({"path": "a", "colour": 1}, "colour")):
            with pytest.raises(Invalid, match=words):
                await scheduler.submit("signed", params)
        job = await scheduler.submit("signed", {"path": "a"})

        assert (await scheduler.wait(job.job_id)).result == {"path": "a", "size": 1}


async def test_an_unknown_type_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(UnknownJobType, match=r"'nonsense'.*fail, skip, stubborn, work") as refused:
            await scheduler.submit("nonsense")

        assert refused.value.code == "unknown_job_type"


@pytest.mark.parametrize(
    "options",
    [
        {"colour": "red"},
        {"status": "RUNNING"},
        {"depends_on": 5},
        {"depends_on": ["nothing"]},
        {"unique_key": ["list"]},
        {"office_id": ["list"]},
        {"key": {}},
        {"scheduled_for": 5},
        {"scheduled_for": datetime(2027, 1, 1)},  # noqa: DTZ001
        {"webhook": {"url": Ellipsis}},
        {"retry_policy": {"backoff": "never"}},
        {"resources": {"\ud800": 1}},
        {"role": "\ud800"},
    ],
)
async def test_options_that_make_no_sense_are_refused_and_nothing_is_stored(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        with pytest.raises(Invalid):
            await scheduler.submit("work", **options)

        assert await history(scheduler) == []


async def test_an_office_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(NotFound, match="'nowhere'"):
            await scheduler.submit("work", office_id="nowhere")


# Arrangement.


async def one(run: Any, seconds: float = 1) -> None:
    await asyncio.sleep(seconds)


async def one_job_in_each_status(scheduler: Scheduler) -> dict[JobStatus, Job]:
    await scheduler.offices.change("default", retry_policy={"max_attempts": 0})
    jobs = {
        JobStatus.COMPLETED: await scheduler.submit("work"),
        JobStatus.FAILED: await scheduler.submit("fail"),
        JobStatus.SKIPPED: await scheduler.submit("skip"),
    }
    for job in jobs.values():
        await scheduler.wait(job.job_id)
    jobs[JobStatus.RUNNING] = await scheduler.submit("work", {"seconds": 1000})
    jobs[JobStatus.QUEUED] = await scheduler.submit("work")
    jobs[JobStatus.WAITING] = await scheduler.submit("work", depends_on=[jobs[JobStatus.QUEUED].job_id])
    jobs[JobStatus.CANCELLED] = await scheduler.submit("work")
    await scheduler.cancel(jobs[JobStatus.CANCELLED].job_id)
    return jobs


def row(directory: Path, job: Job) -> tuple[Any, ...]:
    """Returns (stage, outcome, finished_at, status of the run)."""
    found: tuple[Any, ...] = (
        database(directory)
        .execute(
            """select jobs.stage, outcome, jobs.finished_at,
                case when run_id is null then 'no run' else runs.status end
            from jobs left join runs using (job_id) where job_id = ?""",
            (job.job_id,),
        )
        .get
    )
    return found


async def one_job_in_each_stage(scheduler: Scheduler) -> None:
    await scheduler.submit("work")
    await scheduler.submit("work")
    await scheduler.cancel((await scheduler.submit("work")).job_id)
    await testing.crash(scheduler)


def is_allowed(connection: Any, old: Stage, new: Stage) -> bool:
    """Returns whether plain SQL may make this transition, with all changes that belong to it. Keeps nothing."""
    job_id = connection.execute("select job_id from jobs where stage = ?", (old,)).get
    at = {
        "QUEUED": "started_at = null, finished_at = null, worker_id = null, cancelled_at = null",
        "RUNNING": "started_at = coalesce(started_at, 1), finished_at = null, cancelled_at = null",
        "CANCELLED": "finished_at = 2, cancelled_at = 2",
    }[new]
    connection.execute("begin")
    try:
        if new is Stage.RUNNING and old is Stage.QUEUED:
            connection.execute(
                "insert into runs (run_id, job_id, params_snapshot, started_at) values ('r', ?, '{}', 1)", (job_id,)
            )
        if new is Stage.CANCELLED and old is Stage.RUNNING:
            end = "update runs set status = 'FAILED', failure_kind = 'cancelled', finished_at = 2 where job_id = ?"
            connection.execute(end, (job_id,))
            at += ", outcome = 'FAILED', decision = 'cancelled', cancel_requested_at = 2, cancel_mode = 'interrupt'"
        connection.execute(f"update jobs set stage = ?, {at} where job_id = ?", (new, job_id))
    except databases.REFUSALS:
        return False
    else:
        return True
    finally:
        if connection.in_transaction:  # What is refused has ended it.
            connection.execute("rollback")


def watch_commits(scheduler: Scheduler, directory: Path, seen: set[tuple[str, str | None]]) -> None:
    """Checks every job and its run after each commit, as any other reader of the file could."""
    connection = database(directory)

    def look() -> None:
        seen.update(
            connection.execute(
                """select jobs.stage || case when jobs.finished_at is null then '' else ', ended' end,
                    case when run_id is null then 'no run' else runs.status end
                from jobs left join runs using (job_id)"""
            )
        )

    databases.watched(scheduler._access.store, look)
