"""The JSON form of a job that is made from its row is the one that its value has."""

from pathlib import Path
from typing import Any

import orjson

from nextslot import NewJob, Scheduler
from nextslot.domain import Job, json_form
from nextslot.domain.filters import JobFilter
from nextslot.store.contract import Tx
from nextslot.store.tables import filter_sql, jobs
from tests.support import running_scheduler


async def test_a_row_and_its_value_have_the_same_json_form_in_every_status(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await _one_of_each(scheduler)

        def both(tx: Tx) -> tuple[list[Any], list[Job]]:
            rows = filter_sql.job_rows(tx, JobFilter(), None, 100).rows
            return [orjson.loads(orjson.dumps(jobs.shown(row))) for row in rows], jobs.of_rows(rows)

        shown, values = await scheduler._access.read(both)

    every = {"COMPLETED", "FAILED", "SKIPPED", "CANCELLED", "RUNNING", "QUEUED", "WAITING"}
    assert {one["status"] for one in shown} == every
    assert shown == [orjson.loads(orjson.dumps(one.to_dict())) for one in values]
    assert [list(one) for one in shown] == [list(one.to_dict()) for one in values]


async def test_a_list_for_the_api_is_the_list_for_python(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await _one_of_each(scheduler)

        shown = await scheduler.lists.jobs_shown(JobFilter(), limit=3)
        listed = await scheduler.lists.jobs(JobFilter(), limit=3)
        every = await scheduler.lists.jobs_shown(JobFilter())

    forms = [json_form.job(one.job, one.attempt) for one in listed.items]
    assert orjson.loads(orjson.dumps(shown.items)) == orjson.loads(orjson.dumps(forms))
    assert shown.next_cursor == listed.next_cursor is not None
    assert {one["attempt"] for one in every.items} == {1, 2, 3}  # Two retries.


async def _one_of_each(scheduler: Scheduler) -> None:
    """Makes a job in each status, one of them with everything that a request can say."""
    once = {"max_attempts": 2, "base_delay_seconds": 0}
    failed = await scheduler.submit("fail", retry_policy=once)
    for job in (await scheduler.submit("work", {"seconds": 0}), await scheduler.submit("skip"), failed):
        await scheduler.wait(job.job_id)
    await scheduler.submit("work", {"seconds": 10_000})
    await scheduler.pause()
    first, _ = await scheduler.submit_many(
        [
            NewJob(job_type="work", params={"text": 'ä "', "list": [1, {"a": None}]}, key="a", resources={"gpu": 1}),
            NewJob(job_type="work", title="B", depends_on=["a"], webhook={"url": "https://example.org/hook"}),
        ]
    )
    await scheduler.cancel((await scheduler.submit("work", role="FE", task_id="t")).job_id, "no need")
    assert first.resources
