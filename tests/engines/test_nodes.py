"""Several nodes on one PostgreSQL: a node's death ends no placed run, and another node goes on with it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nextslot import Limits, Scheduler, testing
from nextslot.domain import FailureKind, JobStatus, RunStatus
from nextslot.domain.lease_times import LeaseTimes
from nextslot.executors.engines.local_engine import LocalEngine
from tests import postgres
from tests.engines.evidence import GO
from tests.engines.rig import EVIDENCE, Rig, until, until_running

QUICK = LeaseTimes(renew_seconds=0.2, work_seconds=1.0, lease_seconds=2.0)


@pytest.fixture
def database() -> Iterator[str]:
    name = postgres.borrow()
    yield postgres.address(name)
    postgres.give_back(name)


def node(database: str, name: str, rig: Rig) -> Scheduler:
    made = Scheduler(database, node=name, data=rig.place / name, lease=QUICK, limits=Limits(resources={"box": 4}))
    made.job_types.engines.add(rig.settings, rig.engine)
    rig.add(made, "work", [sys.executable, EVIDENCE, "{key}", "{seconds}"])
    return made


async def test_a_node_adopts_the_runs_of_one_that_died_and_can_cancel_them(database: str, tmp_path: Path) -> None:
    rig = Rig(tmp_path, LocalEngine())
    first, second = node(database, "a", rig), node(database, "b", rig)
    await first.start()
    await first.offices.change("default", max_concurrent_jobs=0)
    jobs = [await first.submit("work", {"key": key, "seconds": seconds}) for key, seconds in (("a", "6"), ("b", "60"))]
    run_ids = [await until_running(first, job) for job in jobs]
    await second.start()
    try:
        await testing.crash(first)

        async def are_adopted() -> bool:
            found = [await second.job(job) for job in jobs]
            return all(str(job.worker_id).startswith("b/") for job in found)

        await until(are_adopted)
        await second.cancel(jobs[1], interrupt=True)
        ended = [await second.wait(job, 60) for job in jobs]
        log = (rig.place / "b" / str(ended[0].run.log_path if ended[0].run else "")).read_text()
    finally:
        await second.stop()

    assert [one.run.run_id for one in ended if one.run] == run_ids
    assert [one.job.status for one in ended] == [JobStatus.COMPLETED, JobStatus.CANCELLED]
    assert log == "working for a\n"
    assert len(rig.lines("begin")) == 2
    assert rig.processes(run_ids[1]) == []


async def test_a_node_that_comes_back_goes_on_with_its_own_runs(database: str, tmp_path: Path) -> None:
    rig = Rig(tmp_path, LocalEngine())
    first = node(database, "a", rig)
    await first.start()
    job = await first.submit("work", {"key": "a", "seconds": GO})
    run_id = await until_running(first, job)
    await testing.crash(first)

    async with node(database, "a", rig) as again:
        held = await again.job(job)
        rig.let_end()
        ended = await again.wait(job, 60)

    assert held.worker_id == "a/slot-placed-1"
    assert ended.run is not None
    assert (ended.run.run_id, ended.run.status) == (run_id, RunStatus.COMPLETED)
    assert len(rig.lines("begin")) == 1


async def test_a_run_is_given_up_through_another_node_than_the_one_that_follows_it(
    database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tmp_path, LocalEngine())
    async with node(database, "a", rig) as first:
        job = await first.submit("work", {"key": "a", "seconds": GO})
        run_id = await until_running(first, job)
        async with node(database, "b", rig) as second:
            await second.engines.lose(job.job_id)
            rig.let_end()
            ended = await second.wait(job, 60)
        before = await first.run_by_id(run_id)

    assert (before.failure_kind, before.error) == (FailureKind.CRASH, "an operator has said that it is lost")
    assert ended.run is not None
    assert ended.run.status == RunStatus.COMPLETED
    assert "following it failed" not in caplog.text
