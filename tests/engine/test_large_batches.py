"""Many jobs at once: what is worked out or stored for several together is what each of them would get alone."""

from pathlib import Path

import pytest

from nextslot import NewJob
from nextslot.domain import Job
from nextslot.domain.limits import Limits
from nextslot.errors import Refused
from nextslot.store.tables import jobs
from tests.support import history, running_scheduler

# More than one statement's rows, and some that are left over.
MANY = 123

WANTED = [
    NewJob(job_type="work"),
    NewJob(job_type="fail"),
    NewJob(job_type="work", role="BE"),
    NewJob(job_type="work", office_id="other"),
    NewJob(job_type="work", office_id="other", role="BE"),
    NewJob(job_type="work", resources=["gpu"]),
    NewJob(job_type="work", resources={"disk": 2}),
    NewJob(job_type="work", resources={"gpu": 1, "disk": 2}),
    NewJob(job_type="work", retry_policy={"max_attempts": 9}),
    NewJob(job_type="work", timeout_seconds=5, stall_timeout_seconds=3),
    NewJob(job_type="work", on_dependency_failure="cancel"),  # type: ignore[arg-type]
    NewJob(job_type="work", priority=7, title="A title", task_id="T-1"),
    NewJob(job_type="work", urgent=True),
]


async def test_a_batch_makes_what_each_of_its_jobs_would_be_alone(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, limits=Limits(resources={"gpu": 1, "disk": 4})) as scheduler:
        await scheduler.pause()
        await scheduler.offices.create("other", timeout_seconds=77, retry_policy={"max_attempts": 1})
        alone = [(await scheduler.submit_many([new]))[0] for new in WANTED]

        together = await scheduler.submit_many([*WANTED, *WANTED])

        stored = [await scheduler.job(job.job_id) for job in together]
        assert stored == together
        expected = [_kind(job) for job in alone]
        assert [_kind(job) for job in stored] == [*expected, *expected]
        assert len({job.lane_id for job in alone}) == 8


async def test_INV_004_a_batch_is_stored_whole_and_its_events_are_in_its_order(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.pause()

        made = await scheduler.submit_many([NewJob(job_type="work", params={"n": n}) for n in range(MANY)])

        queue = [await scheduler.job(job.job_id) for job in made]
        assert [job.params["n"] for job in queue] == list(range(MANY))
        assert sorted(queue, key=jobs.place_of) == queue
        told = [event.job_id for event in await history(scheduler) if event.type == "job_queued"]
        assert told == [job.job_id for job in made]


async def test_a_row_that_the_database_refuses_takes_those_before_it_along(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        (made,) = await scheduler.submit_many([NewJob(job_type="work")])
        copies = [made._replace(job_id=f"copy {n}", chain_id=f"copy {n}") for n in range(MANY)]

        with pytest.raises(Refused, match="exists"):
            await scheduler._access.write(lambda tx: jobs.insert(tx, [*copies[:60], made, *copies[60:]]))

        stored = (await scheduler.lists.jobs()).items
        assert [one.job.job_id for one in stored] == [made.job_id]


def _kind(job: Job) -> Job:
    """Returns a job without the fields that identify it."""
    return job._replace(job_id="", chain_id="", position=0)
