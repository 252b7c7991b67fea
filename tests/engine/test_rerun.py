"""Spec 7: *run again*: a new job like an ended one, and a chain of its own."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nextslot import (
    Job,
    NewJob,
    Scheduler,
    testing,
)
from nextslot.domain import URGENT
from nextslot.errors import (
    IllegalTransition,
    Invalid,
    NotFound,
    UnknownJobType,
)
from tests.support import counted_scheduler, new_scheduler

INTENT = (
    "office_id", "lane_id", "job_type", "params", "priority", "retry_policy", "on_dependency_failure", "resources",
    "template_id", "role", "task_id", "title", "timeout_seconds", "stall_timeout_seconds", "webhook",
)  # fmt: skip


async def test_a_job_that_is_run_again_is_the_same_in_everything_that_was_asked_for(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        first = await scheduler.submit("work", {"seconds": 2, "x": [1]}, **everything())
        await scheduler.wait(first.job_id)

        again = await scheduler.bulk.rerun(first.job_id)

        assert {name: getattr(again, name) for name in INTENT} == {name: getattr(first, name) for name in INTENT}
        assert (await scheduler.wait(again.job_id)).result == {"x": [1]}


async def test_the_new_job_has_no_part_in_the_group_the_graph_the_times_or_the_keys_of_the_old_one(
    tmp_path: Path,
) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        before = await scheduler.submit("work")
        now = scheduler._clock.now()
        member = NewJob(
            job_type="work", depends_on=[before.job_id], scheduled_for=now.after(1), expires_at=now.after(90)
        )
        group, (old,) = await scheduler.submit_group([member])
        keyed = await scheduler.submit("work", unique_key="k", idempotency_key="i", created_by="me")
        await scheduler.wait(old.job_id)
        await scheduler.wait(keyed.job_id)

        for job in (await scheduler.bulk.rerun(old.job_id), await scheduler.bulk.rerun(keyed.job_id)):
            given = dict(vars(job))
            nothing = ("group_id", "sequence", "schedule_id", "unique_key", "scheduled_for", "expires_at", "retry_of")
            assert [given[name] for name in (*nothing, "created_by")] == [None] * 8
            assert (job.depends_on, job.chain_id) == ((), job.job_id)

        assert (await scheduler.group(group.group_id)).status == "COMPLETED"
        assert len(await scheduler.chain(old.job_id)) == 1


async def test_parameters_that_are_given_replace_its_own_key_by_key(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first = await ended(scheduler, {"seconds": 1, "a": {"x": 1}, "b": 2})

        again = await scheduler.bulk.rerun(first.job_id, params={"a": {"y": 2}, "c": 3})

        assert again.params == {"seconds": 1, "a": {"y": 2}, "b": 2, "c": 3}
        assert (await scheduler.job(first.job_id)).params == {"seconds": 1, "a": {"x": 1}, "b": 2}


@pytest.mark.parametrize(("before", "given", "after"), [(5, None, 5), (5, 0, 0), (5, -7, -7), (URGENT, None, URGENT)])
async def test_its_priority_is_kept_unless_another_is_given(
    tmp_path: Path, before: int, given: int | None, after: int
) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        wanted: dict[str, Any] = {"urgent": True} if before == URGENT else {"priority": before}
        first = await scheduler.submit("work", **wanted)
        await scheduler.wait(first.job_id)

        assert (await scheduler.bulk.rerun(first.job_id, priority=given)).priority == after


@pytest.mark.parametrize("how", ["FAILED", "SKIPPED", "CANCELLED", "COMPLETED"])
async def test_a_job_can_be_run_again_however_it_ended(tmp_path: Path, how: str) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        kind = {"FAILED": "fail", "SKIPPED": "skip"}.get(how, "work")
        later = scheduler._clock.now().after(9) if how == "CANCELLED" else None
        first = await scheduler.submit(kind, scheduled_for=later, retry_policy={"max_attempts": 0})
        if later is not None:
            await scheduler.cancel(first.job_id)
        assert (await scheduler.wait(first.job_id)).status == how

        again = await scheduler.bulk.rerun(first.job_id)

        assert (again.job_type, again.status) == (kind, "RUNNING" if again.started_at else "QUEUED")
        assert (await scheduler.job(first.job_id)).status == how


async def test_a_job_that_has_not_ended_cannot_be_run_again(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        running = await scheduler.submit("work", {"seconds": 9})
        queued = await scheduler.submit("work")

        for job in (running, queued):
            with pytest.raises(IllegalTransition):
                await scheduler.bulk.rerun(job.job_id)
        with pytest.raises(NotFound):
            await scheduler.bulk.rerun("nothing")

        assert len((await scheduler.lists.jobs()).items) == 2


@pytest.mark.parametrize(
    ("given", "field"),
    [({"params": {"kind": 7}}, "params.kind"), ({"params": [1]}, "params"), ({"priority": 10**7}, "priority"),
     ({"params": {"surprise": 1}}, "params"), ({"priority": "high"}, "priority")],
)  # fmt: skip
async def test_what_is_given_is_checked_and_a_refusal_leaves_nothing(
    tmp_path: Path, given: dict[str, Any], field: str
) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first = await scheduler.submit("fail", {"kind": "invalid"})
        await scheduler.wait(first.job_id)

        with pytest.raises(Invalid) as refused:
            await scheduler.bulk.rerun(first.job_id, **given)

        assert refused.value.problems[0].field.startswith(field)
        assert len((await scheduler.lists.jobs()).items) == 1


async def test_a_job_whose_type_is_gone_cannot_be_run_again_and_the_answer_says_so(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        scheduler.job_type("old")(lambda run: None)
        first = await scheduler.submit("old")
        await scheduler.wait(first.job_id)
        await testing.crash(scheduler)

        async with new_scheduler(tmp_path, seed=1) as second:
            with pytest.raises(UnknownJobType):
                await second.bulk.rerun(first.job_id)


async def test_what_a_template_gave_it_stays_when_the_template_has_changed_or_is_archived(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        template = await scheduler.templates.create(
            name="t", job_type="work", params={"seconds": 1, "x": 1}, priority=4
        )
        (accepted,) = await scheduler.accept([NewJob(template_id=template.template_id)])
        await scheduler.wait(accepted.job.job_id)
        await scheduler.templates.change(template.template_id, params={"seconds": 1, "new": 2}, priority=9)

        changed = await scheduler.bulk.rerun(accepted.job.job_id)
        await scheduler.templates.archive(template.template_id)
        archived = await scheduler.bulk.rerun(accepted.job.job_id)

        for job in (changed, archived):
            assert (job.params, job.priority) == ({"seconds": 1, "x": 1}, 4)
            assert job.template_id == template.template_id


async def ended(scheduler: Scheduler, params: dict[str, Any]) -> Job:
    job = await scheduler.submit("work", params)
    await scheduler.wait(job.job_id)
    await asyncio.sleep(1)
    return job


def everything() -> dict[str, Any]:
    return {
        "office_id": "o", "priority": 7, "role": "QA", "task_id": "t", "title": "A title", "resources": {"gpu": 1},
        "timeout_seconds": 77, "stall_timeout_seconds": 33, "on_dependency_failure": "cancel",
        "retry_policy": {"max_attempts": 1, "jitter": 0.5, "retry_on": ["timeout"]},
        "webhook": {"url": "http://127.0.0.1:9/hook"},
    }  # fmt: skip
