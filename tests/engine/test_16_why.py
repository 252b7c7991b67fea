"""Spec 16: why a job is not running: every reason that applies, in words and in data."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from nextslot import (
    Job,
    Limits,
    NewJob,
    Scheduler,
    errors,
    testing,
)
from nextslot.domain import Reason, Why, json_form
from tests import databases
from tests.support import Steps, database, new_scheduler, running_scheduler

NOW = testing.BEGINNING


# Paused.


@pytest.mark.parametrize(
    ("paused", "data", "words"),
    [
        ({}, {"scope": "scheduler"}, "whole scheduler is paused"),
        ({"office_id": "default"}, {"scope": "office", "name": "default"}, "office 'default' is paused"),
        ({"job_type": "work"}, {"scope": "type", "name": "work"}, "job type 'work' is paused"),
        ({"resource": "gpu"}, {"scope": "resource", "name": "gpu"}, "resource 'gpu' is paused"),
    ],
)
async def test_a_paused_job_says_what_is_paused(tmp_path: Path, paused: Any, data: Any, words: str) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.pause(**paused)
        job = await scheduler.submit("work", resources=["gpu"])

        why = await scheduler.forecast.why(job.job_id)

        assert codes(why) == ["paused"]
        assert why.reasons[0].data == data
        assert words in why.reasons[0].text
        assert (why.expected.expected_start, why.expected.confidence) == (None, "none")


async def test_all_pauses_that_apply_are_named(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        for scope in ({}, {"office_id": "default"}, {"job_type": "work"}, {"resource": "gpu"}, {"resource": "other"}):
            await scheduler.pause(**scope)
        job = await scheduler.submit("work", resources=["gpu"])

        why = await scheduler.forecast.why(job.job_id)

        assert [reason.data["scope"] for reason in why.reasons] == ["scheduler", "office", "type", "resource"]


# Waiting.


async def test_a_dependent_says_what_became_of_each_prerequisite_US_JS01(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=2)
        made = {
            "retrying": await scheduler.submit("fail", {"kind": "session_error"}, office_id="o"),
            "failed": await scheduler.submit("fail", {"kind": "invalid"}, office_id="o"),
        }
        await asyncio.sleep(1)
        made["running"] = await scheduler.submit("work", {"seconds": 100}, office_id="o", title="the long one")
        await scheduler.submit("work", {"seconds": 100}, office_id="o")
        made["queued"] = await scheduler.submit("work", office_id="o", scheduled_for=NOW)
        made["waiting"] = await scheduler.submit("work", office_id="o", scheduled_for=NOW.after(1000))
        made["cancelled"] = await scheduler.submit("work", office_id="o")
        await scheduler.cancel(made["cancelled"].job_id)
        job = await scheduler.submit("work", office_id="o", depends_on=[one.job_id for one in made.values()])

        reason = first(await scheduler.forecast.why(job.job_id), "dependencies")

        assert {one["job_id"]: one["became"] for one in reason.data["jobs"]} == {
            prerequisite.job_id: became for became, prerequisite in made.items()
        }
        assert (reason.data["count"], reason.data["is_lost"]) == (6, True)
        for words in (
            "(the long one) has been running since",
            "has failed permanently",
            "was cancelled at",
            "is tried again at",
        ):
            assert words in reason.text
        shown = {one["became"]: one for one in reason.data["jobs"]}
        assert shown["waiting"]["scheduled_for"] == str(NOW.after(1000))
        assert {one["scheduled_for"] for name, one in shown.items() if name not in ("waiting", "retrying")} == {None}
        assert {name: one["status"] for name, one in shown.items()} == {
            "retrying": "WAITING", "failed": "FAILED", "running": "RUNNING", "queued": "QUEUED", "waiting": "WAITING",
            "cancelled": "CANCELLED",
        }  # fmt: skip


async def test_a_prerequisite_about_whose_failure_nothing_is_decided_yet_is_not_lost(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        failed = await scheduler.submit("work", {"seconds": 100})
        job = await scheduler.submit("work", depends_on=[failed.job_id])
        connection = database(tmp_path)
        with connection:
            connection.execute("insert into maintenance values ('a test', 1)")
            connection.execute("update runs set status = 'FAILED', failure_kind = 'error', finished_at = started_at")
            connection.execute(
                "update jobs set outcome = 'FAILED', decision = 'undecided', finished_at = started_at "
                "where stage = 'RUNNING'"
            )
            connection.execute("delete from maintenance")
        connection.close()

        reason = first(await scheduler.forecast.why(job.job_id), "dependencies")

        assert reason.data["jobs"][0]["became"] == "retrying"
        assert "failed and is about to be retried" in reason.text
        assert not reason.data["is_lost"]


async def test_a_dependent_of_a_lost_job_has_no_expected_start_and_says_what_to_do(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        failed = await scheduler.submit("fail", {"kind": "invalid"})
        await scheduler.wait(failed.job_id)
        job = await scheduler.submit("work", depends_on=[failed.job_id])

        why = await scheduler.forecast.why(job.job_id)

        assert why.status == "WAITING"
        assert codes(why) == ["dependencies"]
        assert "retry that job" in why.reasons[0].text
        assert why.expected.expected_start is None


async def test_of_many_prerequisites_the_first_are_named_and_all_are_counted(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        many = [NewJob(job_type="work", key=f"k{number}") for number in range(50)]
        last = NewJob(job_type="work", depends_on=[f"k{number}" for number in range(50)])
        *_, job = await scheduler.submit_many([*many, last])

        reason = first(await scheduler.forecast.why(job.job_id), "dependencies")

        assert (reason.data["count"], len(reason.data["jobs"])) == (50, 20)
        assert "50 jobs" in reason.text
        assert "and 30 more" in reason.text


async def test_a_member_of_a_sequential_group_says_whose_turn_it_is(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        wanted = [NewJob(job_type="work", params={"seconds": 100}) for _ in range(3)]
        group, members = await scheduler.submit_group(wanted, name="chapters")

        why = await scheduler.forecast.why(members[2].job_id)

        reason = first(why, "group_turn")
        turn_of = {"job_id": members[0].job_id, "sequence": 0, "status": "RUNNING"}
        assert reason.data == {"group_id": group.group_id, "sequence": 2, "turn_of": turn_of}
        assert "number 3 of the group 'chapters'" in reason.text
        assert why.expected.expected_start is not None


async def test_a_job_for_later_says_not_before_when(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", scheduled_for=NOW.after(3600))

        why = await scheduler.forecast.why(job.job_id)

        assert codes(why) == ["not_before"]
        assert why.reasons[0].data == {"scheduled_for": str(NOW.after(3600)), "is_retry": False}
        assert why.expected.expected_start == NOW.after(3600)


async def test_a_retry_says_until_when_it_waits(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        failed = await scheduler.submit("fail")
        await testing.settled()
        retry = (await scheduler.chain(failed.job_id))[-1]

        reason = first(await scheduler.forecast.why(retry.job_id), "not_before")

        assert reason.data["is_retry"]
        assert str(retry.scheduled_for) in reason.text


# Limits.


async def test_every_full_limit_is_named_with_who_holds_it(tmp_path: Path) -> None:
    limits = Limits(running=1, job_types={"work": 1}, resources={"gpu": 2})
    async with running_scheduler(tmp_path, limits=limits) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=1, role_limits={"FE": 1})
        options: dict[str, Any] = {"office_id": "o", "role": "FE", "resources": {"gpu": 2}}
        holder = await scheduler.submit("work", {"seconds": 100}, title="render", **options)
        job = await scheduler.submit("work", **options)

        why = await scheduler.forecast.why(job.job_id)

        full = {reason.data["limit"]: reason for reason in why.reasons}
        assert full.keys() == {"scheduler", "office:o", "role:o/FE", "type:work", "resource:gpu"}
        held_by = {"kind": "job", "id": holder.job_id, "title": "render", "job_type": "work", "since": str(NOW)}
        assert all(reason.data["held_by"] == [held_by] for reason in why.reasons)
        assert (full["resource:gpu"].data["used"], full["resource:gpu"].data["needs"]) == (2, 2)
        assert "(render) since" in full["role:o/FE"].text
        assert "is full (2 of 2, and it needs 2)" in full["resource:gpu"].text
        assert "is full (1 of 1)" in full["office:o"].text
        assert full["scheduler"].text.startswith("The limit of the whole scheduler is full")


async def test_a_direct_execution_that_holds_a_limit_is_named_too(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        caller = asyncio.create_task(scheduler.run_direct("work", {"seconds": 100}, direct_id="d1"))
        await asyncio.sleep(10)
        job = await scheduler.submit("work")

        reason = first(await scheduler.forecast.why(job.job_id), "limit_full")

        assert [(one["kind"], one["id"]) for one in reason.data["held_by"]] == [("direct", (await caller).run_id)]
        assert f"direct execution {(await caller).run_id}" in reason.text


async def test_a_holder_of_another_limit_is_not_named(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=5)
        await scheduler.submit("work", {"seconds": 100}, office_id="o")
        holder = await scheduler.submit("work", {"seconds": 100}, office_id="o", resources=["gpu"])
        job = await scheduler.submit("work", office_id="o", resources=["gpu"])

        why = await scheduler.forecast.why(job.job_id)

        assert codes(why) == ["limit_full"]
        assert [one["id"] for one in why.reasons[0].data["held_by"]] == [holder.job_id]


async def test_a_job_that_can_never_fit_says_so(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, limits=Limits(resources={"gpu": 4})) as scheduler:
        await scheduler.pause()
        job = await scheduler.submit("work", resources={"gpu": 4})
        await testing.crash(scheduler)

        async with new_scheduler(tmp_path, seed=1, limits=ShrunkPolicy(resources={"gpu": 4})) as second:
            await second.resume()
            reason = first(await second.forecast.why(job.job_id), "never_fits")

            assert (reason.data["limit"], reason.data["needs"]) == ("resource:gpu", 4)
            assert (await second.forecast.why(job.job_id)).expected.expected_start is None


class ShrunkPolicy(Limits):
    """A policy of somebody's own: of the resource only two are usable."""

    def room(self, limit_key: str, capacity: int, used: int) -> int:
        return super().room(limit_key, 2 if limit_key == "resource:gpu" else capacity, used)


# Somebody else keeps the slot.


async def test_a_direct_caller_of_its_office_goes_first_DEC_004(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work", {"seconds": 100})
        job = await scheduler.submit("work")
        caller = asyncio.create_task(scheduler.run_direct("work", direct_id="d1"))
        await testing.settled()

        why = await scheduler.forecast.why(job.job_id)

        assert codes(why) == ["limit_full", "direct_waiting"]
        assert why.reasons[1].data == {"direct_ids": ["d1"], "count": 1}
        await caller


async def test_units_kept_back_for_a_caller_of_another_office_are_a_reason(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, limits=Limits(resources={"gpu": 2})) as scheduler:
        scheduler.job_types.add("render", takes(1), resources={"gpu": 2})
        await scheduler.offices.create("o")
        await scheduler.submit("work", {"seconds": 100}, office_id="o", resources=["gpu"])
        caller = asyncio.create_task(scheduler.run_direct("render", direct_id="d1"))
        await testing.settled()
        job = await scheduler.submit("work", office_id="o", resources=["gpu"])

        why = await scheduler.forecast.why(job.job_id)

        assert codes(why) == ["reserved"]
        run_id = (await scheduler.direct("d1")).run_id
        assert why.reasons[0].data == {"id": run_id, "limits": ["resource:gpu"], "office_id": "default"}
        await caller


async def test_units_kept_back_for_a_starving_job_are_a_reason(tmp_path: Path) -> None:
    async with running_scheduler(
        tmp_path, limits=Limits(resources={"gpu": 2}), starvation_after_seconds=100
    ) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=5)
        options: dict[str, Any] = {"office_id": "o"}
        await scheduler.submit("work", {"seconds": 500}, resources=["gpu"], **options)
        starving = await scheduler.submit("work", resources={"gpu": 2}, **options)
        await scheduler.submit("work", {"seconds": 150}, resources=["gpu"], **options)
        await asyncio.sleep(200)
        job = await scheduler.submit("work", resources=["gpu"], **options)

        why = await scheduler.forecast.why(job.job_id)

        assert codes(why) == ["starving", "ahead"]
        assert why.reasons[0].data == {"id": starving.job_id, "limits": ["resource:gpu"], "since": str(NOW)}
        assert codes(await scheduler.forecast.why(starving.job_id)) == ["limit_full"]
        await scheduler.pause()
        assert codes(await scheduler.forecast.why(job.job_id)) == ["paused", "ahead"], "nothing is kept back for it now"


# Nothing can run it.


async def test_a_resource_that_does_not_answer_is_named_with_its_next_probe(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        policy = {"max_attempts": 0}
        for _ in range(5):
            failed = await scheduler.submit("fail", {"kind": "unavailable"}, resources=["gpu"], retry_policy=policy)
            await scheduler.wait(failed.job_id)
        job = await scheduler.submit("work", resources=["gpu"])

        why = await scheduler.forecast.why(job.job_id)

        reason = first(why, "resource_held")
        since = NOW
        assert reason.data == {
            "resource": "gpu", "since": str(since), "failures": 5, "next_probe": str(since.after(10))
        }  # fmt: skip
        assert why.expected.expected_start is None


async def test_a_job_whose_type_has_no_handler_any_more_says_so(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        job = await scheduler.submit("work")
        await testing.crash(scheduler)

        async with testing.scheduler(tmp_path, seed=1, url=databases.url(tmp_path)) as second:
            await second.resume()
            why = await second.forecast.why(job.job_id)

            assert codes(why) == ["no_handler"]
            assert why.reasons[0].data == {"job_type": "work"}
            assert why.expected.expected_start is None


async def test_a_scheduler_that_is_stopping_says_so(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work", {"seconds": 100})
        job = await scheduler.submit("work")
        stopping = asyncio.create_task(scheduler.stop())
        await testing.settled()

        why = await scheduler.forecast.why(job.job_id)

        assert codes(why)[0] == "stopping"
        assert why.expected.expected_start is None
        await stopping


# The queue.


async def test_the_jobs_ahead_are_counted_in_the_order_of_the_queue_INV_004(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work", {"seconds": 100})
        low, normal, later, high, urgent = [
            await scheduler.submit("work", **options)
            for options in ({"priority": -1}, {}, {}, {"priority": 5}, {"urgent": True})
        ]

        ahead = {job.job_id: (await scheduler.forecast.why(job.job_id)).ahead for job in (low, normal, later, high)}

        assert list(ahead.values()) == [4, 2, 3, 1]
        assert codes(await scheduler.forecast.why(urgent.job_id)) == ["limit_full"]
        text = first(await scheduler.forecast.why(high.job_id), "ahead").text
        assert text == "1 job is ahead of it in its office's queue."


@pytest.mark.sqlite_only("counts the steps of its machine")
async def test_counting_those_ahead_stops_at_ten_thousand_and_its_cost_with_it(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        few = await cost(tmp_path, scheduler, await submitted(scheduler, 12_000))

        many = await cost(tmp_path, scheduler, await submitted(scheduler, 24_000))

        assert many < few * 1.2


async def submitted(scheduler: Scheduler, jobs: int) -> Job:
    return (await scheduler.submit_many([NewJob(job_type="work")] * jobs))[-1]


async def cost(directory: Path, scheduler: Scheduler, job: Job) -> int:
    """Returns the database steps that explaining this job takes."""
    steps = Steps()

    def explain(tx: Any) -> Any:
        steps.watch(tx._connection)
        return scheduler.forecast._explainer.explain(tx, job.job_id)

    explained = await scheduler._access.read(explain)
    assert explained.ahead == 10_001
    assert explained.reasons[-1].text == "More than 10,000 jobs are ahead of it in its office's queue."
    assert explained.reasons[-1].data == {"ahead": 10_000, "is_more": True}
    return steps.taken


# What has begun, or is no more.


async def test_a_running_job_says_since_when_it_runs(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await known(scheduler, 100)
        job = await scheduler.submit("work", {"seconds": 100})
        began = NOW.after(100)
        await asyncio.sleep(30)

        why = await scheduler.forecast.why(job.job_id)

        assert (why.status, codes(why), why.ahead) == ("RUNNING", ["running"], 0)
        assert why.reasons[0].text == f"It has been running since {began}."
        assert (why.expected.expected_start, why.expected.expected_end) == (began, began.after(100))


@pytest.mark.parametrize(
    ("job_type", "params", "status", "words"),
    [
        ("work", {}, "COMPLETED", "It ended COMPLETED at"),
        ("skip", {}, "SKIPPED", "nothing to do"),
        ("fail", {"kind": "invalid"}, "FAILED", "failed as asked"),
    ],
)
async def test_an_ended_job_says_how_it_ended(
    tmp_path: Path, job_type: str, params: Any, status: str, words: str
) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit(job_type, params)
        await scheduler.wait(job.job_id)

        why = await scheduler.forecast.why(job.job_id)

        assert (why.status, codes(why)) == (status, ["ended"])
        assert words in why.reasons[0].text
        assert why.expected.expected_start == NOW


async def test_a_failed_job_names_its_retry_and_a_cancelled_one_has_no_start(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        failed = await scheduler.submit("fail")
        await testing.settled()
        retry = (await scheduler.chain(failed.job_id))[-1]
        await scheduler.cancel(retry.job_id, "not wanted")

        why_failed, why_cancelled = [await scheduler.forecast.why(job.job_id) for job in (failed, retry)]

        assert f"It is retried as job {retry.job_id}." in why_failed.reasons[0].text
        assert "not wanted" in why_cancelled.reasons[0].text
        assert why_cancelled.expected.expected_start is None


async def test_a_job_that_does_not_exist_is_not_found(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(errors.NotFound):
            await scheduler.forecast.why("no such job")
        with pytest.raises(errors.NotFound):
            await scheduler.forecast.queue("no such office")


async def test_reasons_come_in_the_order_of_their_importance(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work", {"seconds": 100})
        before = await scheduler.submit("work")
        job = await scheduler.submit("work", depends_on=[before.job_id], scheduled_for=NOW.after(500))
        await scheduler.pause()

        why = await scheduler.forecast.why(job.job_id)

        assert codes(why) == ["paused", "dependencies", "not_before", "ahead"]


async def test_why_is_plain_json_to_the_outside(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work", {"seconds": 100})
        job = await scheduler.submit("work", scheduled_for=NOW.after(500))

        shown = json_form.why(await scheduler.forecast.why(job.job_id))

        assert shown == {
            "job_id": job.job_id,
            "status": "WAITING",
            "reasons": [
                {
                    "code": "not_before",
                    "text": f"It may not start before {NOW.after(500)}.",
                    "data": {"scheduled_for": str(NOW.after(500)), "is_retry": False},
                }
            ],
            "ahead": 0,
            "expected_start": str(NOW.after(500)),
            "expected_end": None,
            "earliest_start": shown["earliest_start"],
            "latest_start": shown["latest_start"],
            "confidence": "high",
            "forecast_at": str(NOW),
        }
        assert str(NOW) < shown["earliest_start"] < shown["expected_start"] < shown["latest_start"]


# Arrangement.


def codes(why: Why) -> list[str]:
    return [reason.code for reason in why.reasons]


def first(why: Why, code: str) -> Reason:
    return next(reason for reason in why.reasons if reason.code == code)


def takes(seconds: float) -> Callable[..., Awaitable[None]]:
    async def handler(run: Any) -> None:
        await asyncio.sleep(seconds)

    return handler


async def known(scheduler: Scheduler, seconds: float) -> None:
    """Makes one past run of the type known."""
    await scheduler.wait((await scheduler.submit("work", {"seconds": seconds})).job_id)
