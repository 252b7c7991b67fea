"""Spec 10: templates."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nextslot import (
    Fail,
    NewJob,
    Scheduler,
    testing,
)
from nextslot.domain import Template
from nextslot.errors import (
    Conflict,
    Invalid,
    NotFound,
    UnknownJobType,
)
from tests.support import running_scheduler


async def new_template(scheduler: Scheduler, **fields: Any) -> Template:
    return await scheduler.templates.create(**{"name": "nightly", "job_type": "work", **fields})


def register_copy(scheduler: Scheduler) -> None:
    @scheduler.job_type("copy")
    async def copy(run: Any, source: str, target: str, size: int = 1) -> None:
        """Takes two paths that it cannot do without."""


# Making them.


async def test_a_template_keeps_what_it_was_given(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        given: Any = {
            "name": "nightly",
            "job_type": "work",
            "params": {"seconds": 2},
            "priority": 7,
            "timeout_seconds": 60,
            "retry_policy": {"max_attempts": 1},
            "resources": {"gpu": 1},
            "webhook": {"url": "http://127.0.0.1:9/hook"},
            "description": "every night",
        }

        made = await scheduler.templates.create(**given)

        stored = await scheduler.templates.get(made.template_id)
        assert stored == made
        assert {name: getattr(stored, name) for name in given} == given


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", 7),
        ("name", "a\0b"),
        ("job_type", ["work"]),
        ("params", [1]),
        ("params", {"x": float("nan")}),
        ("priority", 1_000_001),
        ("priority", "high"),
        ("timeout_seconds", 0),
        ("retry_policy", {"max_attempts": -1}),
        ("resources", {"gpu": 0}),
        ("webhook", 7),
        ("description", ""),
        ("color", "red"),
    ],
)
async def test_a_wrong_field_is_named_and_nothing_is_stored(tmp_path: Path, field: str, value: Any) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(Invalid) as refused:
            await new_template(scheduler, **{field: value})

        assert {problem.field.partition(".")[0] for problem in refused.value.problems} == {field}
        assert (await scheduler.templates.page()).items == ()


async def test_what_is_missing_is_named(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(Invalid) as refused:
            await scheduler.templates.create("nothing else")

        assert [problem.field for problem in refused.value.problems] == ["job_type"]


async def test_a_template_of_an_unknown_type_is_refused(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(UnknownJobType, match="there is no job type 'nothing'"):
            await new_template(scheduler, job_type="nothing")


async def test_its_params_may_be_incomplete_but_not_wrong(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        register_copy(scheduler)

        await new_template(scheduler, job_type="copy", params={"source": "a"})
        with pytest.raises(Invalid) as refused:
            await new_template(scheduler, name="other", job_type="copy", params={"source": 1, "sorce": "a"})

        assert sorted(problem.field for problem in refused.value.problems) == ["params", "params.source"]


async def test_a_name_is_given_once_among_those_that_live(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        first, other = await new_template(scheduler), await new_template(scheduler, name="other")

        with pytest.raises(Conflict, match="is named 'nightly'"):
            await new_template(scheduler)
        with pytest.raises(Conflict, match="is named 'nightly'"):
            await scheduler.templates.change(other.template_id, name="nightly")

        await scheduler.templates.archive(first.template_id)
        assert (await new_template(scheduler)).template_id != first.template_id


async def test_a_template_that_is_put_by_its_name_is_created_then_made_what_the_fields_say(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        made, is_new = await scheduler.templates.put("nightly", job_type="work", params={"seconds": 1}, priority=5)
        again, is_new_again = await scheduler.templates.put("nightly", job_type="work", timeout_seconds=60)

        assert (is_new, is_new_again) == (True, False)
        assert again == replace(made, params={}, priority=0, timeout_seconds=60)
        with pytest.raises(Invalid, match="job_type"):
            await scheduler.templates.put("nightly")
        await scheduler.templates.archive(made.template_id)
        assert (await scheduler.templates.put("nightly", job_type="work"))[1] is True


async def test_two_offices_may_have_templates_of_one_name(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("web")

        ours, _ = await scheduler.templates.put("nightly", job_type="work")
        theirs, is_new = await scheduler.templates.put("nightly", "work", office_id="web")

        assert is_new
        assert (ours.office_id, theirs.office_id) == ("default", "web")


async def test_templates_are_listed_by_pages_the_newest_first(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        made = [await new_template(scheduler, name=f"number {number}") for number in range(5)]
        await scheduler.templates.archive(made[3].template_id)

        first = await scheduler.templates.page(limit=2)
        rest = await scheduler.templates.page(cursor=first.next_cursor, limit=2)

        assert [one.name for one in (*first.items, *rest.items)] == ["number 4", "number 2", "number 1", "number 0"]
        assert rest.next_cursor is None
        with pytest.raises(Invalid, match="limit"):
            await scheduler.templates.page(limit=0)


# Jobs from them.


async def test_a_job_takes_everything_from_its_template(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        template = await new_template(
            scheduler,
            params={"seconds": 2, "a": 1},
            priority=7,
            timeout_seconds=60,
            retry_policy={"max_attempts": 1},
            resources={"gpu": 1},
            webhook={"url": "http://127.0.0.1:9/hook"},
        )

        [job] = await scheduler.submit_many([NewJob(template_id=template.template_id)])

        assert (job.job_type, job.params, job.priority) == ("work", {"seconds": 2, "a": 1}, 7)
        assert (job.timeout_seconds, job.retry_policy.max_attempts) == (60, 1)
        assert (job.resources, job.webhook) == ({"gpu": 1}, {"url": "http://127.0.0.1:9/hook"})
        assert job.template_id == template.template_id


async def test_what_a_request_says_goes_over_its_template(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        template = await new_template(
            scheduler,
            params={"seconds": 2, "a": {"x": 1, "y": 2}},
            priority=7,
            timeout_seconds=60,
            retry_policy={"max_attempts": 1, "jitter": 0.5},
            resources={"gpu": 1},
        )

        [job] = await scheduler.submit_many(
            [
                NewJob(
                    template_id=template.template_id,
                    params={"a": {"x": 5}, "b": 1},
                    priority=0,
                    timeout_seconds=5,
                    retry_policy={"max_attempts": 2},
                    resources=["disk"],
                )
            ]
        )

        # Key by key, one level deep: what is inside of `a` is replaced as a whole.
        assert job.params == {"seconds": 2, "a": {"x": 5}, "b": 1}
        assert (job.priority, job.timeout_seconds, job.resources) == (0, 5, {"disk": 1})
        assert (job.retry_policy.max_attempts, job.retry_policy.jitter) == (2, 0.5)


async def test_an_urgent_job_of_a_template_with_a_priority_is_urgent(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        template = await new_template(scheduler, priority=7)

        [job] = await scheduler.submit_many([NewJob(template_id=template.template_id, urgent=True)])

        assert job.priority == 1_000_000


async def test_the_whole_of_the_params_is_checked_when_a_job_is_made(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        register_copy(scheduler)
        template = await new_template(scheduler, job_type="copy", params={"source": "a"})

        with pytest.raises(Invalid, match='"target" is missing'):
            await scheduler.submit_many([NewJob(template_id=template.template_id)])
        [job] = await scheduler.submit_many([NewJob(template_id=template.template_id, params={"target": "b"})])

        assert job.params == {"source": "a", "target": "b"}


async def test_a_template_that_is_unknown_archived_or_of_another_type_is_refused(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        gone, there = await new_template(scheduler), await new_template(scheduler, name="there")
        await scheduler.templates.archive(gone.template_id)

        async def refusal(**fields: Any) -> tuple[str, str]:
            with pytest.raises(Invalid) as refused:
                await scheduler.submit_many([NewJob(**fields)])
            return refused.value.problems[0].field, refused.value.problems[0].problem

        assert await refusal(template_id="nobody") == (
            "template_id",
            "there is no template 'nobody' in the office 'default'; create it, or give another",
        )
        assert (await refusal(template_id=gone.template_id))[1].startswith("the template 'nightly' was archived on")
        assert (await refusal(template_id=there.template_id, job_type="fail"))[0] == "job_type"
        assert (await refusal(template_id=["x"]))[0] == "template_id"
        assert (await refusal(schedule_id="mine"))[0] == "schedule_id"
        assert (await refusal())[0] == "job_type"


async def test_of_many_requests_the_one_with_the_wrong_template_is_named(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        template = await new_template(scheduler)

        with pytest.raises(Invalid) as refused:
            await scheduler.submit_many([NewJob(template_id=template.template_id), NewJob(template_id="nobody")])

        assert [problem.field for problem in refused.value.problems] == ["jobs.1.template_id"]
        assert await scheduler.queue() == []
        assert await scheduler.running() == []


# Changing and archiving.


async def test_INV_005_a_change_is_for_future_jobs_only(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        template = await new_template(scheduler, params={"a": 1}, priority=1)
        [before] = await scheduler.submit_many([NewJob(template_id=template.template_id)])

        await scheduler.templates.change(template.template_id, params={"b": 2}, priority=2)
        [after] = await scheduler.submit_many([NewJob(template_id=template.template_id)])

        assert await scheduler.job(before.job_id) == before
        assert (before.params, before.priority) == ({"a": 1}, 1)
        assert (after.params, after.priority) == ({"b": 2}, 2)


async def test_INV_005_a_retry_is_like_its_job_whatever_became_of_the_template(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("flaky")
        async def flaky(run: Any, a: int) -> int:
            if run.attempt == 1:
                raise Fail("the first time it fails")
            return a

        template = await new_template(scheduler, job_type="flaky", params={"a": 1})
        [job] = await scheduler.submit_many([NewJob(template_id=template.template_id)])
        await testing.settled()

        await scheduler.templates.change(template.template_id, params={"a": 2})
        await scheduler.templates.archive(template.template_id)
        ended = await scheduler.wait(job.job_id)

        assert (ended.status, ended.result, ended.job.template_id) == ("COMPLETED", 1, template.template_id)


async def test_null_takes_a_field_back_to_its_default(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        template = await new_template(scheduler, params={"a": 1}, priority=3, timeout_seconds=5, resources=["gpu"])

        nothing: Any = dict.fromkeys(("params", "priority", "timeout_seconds", "resources"))
        changed = await scheduler.templates.change(template.template_id, **nothing)

        assert (changed.params, changed.priority, changed.timeout_seconds, changed.resources) == ({}, 0, None, None)


async def test_a_change_is_checked_as_a_whole(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        register_copy(scheduler)
        template = await new_template(scheduler, params={"anything": 1})

        with pytest.raises(Invalid, match="anything"):
            await scheduler.templates.change(template.template_id, job_type="copy")

        assert await scheduler.templates.get(template.template_id) == template


async def test_an_archived_template_stays_readable_and_is_changed_no_more(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        template = await new_template(scheduler)
        archived = await scheduler.templates.archive(template.template_id)

        assert await scheduler.templates.get(template.template_id) == archived
        with pytest.raises(Conflict, match="archived"):
            await scheduler.templates.change(template.template_id, priority=1)
        with pytest.raises(Conflict, match="archived"):
            await scheduler.templates.archive(template.template_id)
        with pytest.raises(NotFound):
            await scheduler.templates.change("nobody", priority=1)
