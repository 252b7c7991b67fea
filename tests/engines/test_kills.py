"""Kill -9 of the scheduler and of Slurm's daemons: each accepted job ends, and no run overlaps another."""

import asyncio
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nextslot import testing
from nextslot.domain import FailureKind, JobStatus, RunStatus
from nextslot.executors.engines.contract import Engine, Key, Sight, Submission
from nextslot.executors.engines.local_engine import LocalEngine
from nextslot.extensions.slurm.slurm_engine import SlurmEngine
from tests.engines.rig import Rig, until, until_ended, until_running
from tests.engines.slurm_cluster import SlurmCluster

ROOT = Path(__file__).parents[2]


def a_life(place: Path, config: str, keys: list[str], seconds: float) -> list[str]:
    """Starts a scheduler that gets jobs with these keys, and kills it. Returns the jobs that it has acknowledged."""
    with (place / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.engines.placed_server", str(place), config],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("".join(f"{key} 0.4\n" for key in keys))
    process.stdin.close()
    said = []
    for line in process.stdout:
        if line.strip() == "submitted":
            break
        said.append(line.strip())
    time.sleep(seconds)
    process.kill()
    process.wait()
    process.stdout.close()
    return said


async def end_all(rig: Rig, accepted: list[str], seconds: float = 120) -> None:
    async with rig.scheduler() as scheduler:
        for job_id in accepted:
            ended = await scheduler.wait(job_id, seconds)
            assert ended.run is not None
            assert ended.run.status == RunStatus.COMPLETED, ended.run
        run_ids = [line[2] for line in rig.lines("begin")]
        left = [pid for run_id in run_ids for pid in rig.processes(run_id)]
        there = (await scheduler.engines.list())[0]

    assert left == []
    assert there.submitting + there.queued + there.running + there.unknown == 0
    assert rig.lines("overlap") == []


def kills_in_a_loop(tmp_path: Path, engine: Engine, config: str, lives: int, longest: float) -> None:
    chance, accepted = random.Random(20), []
    rig = Rig(tmp_path, engine)

    for life in range(lives):
        keys = [f"{life}-{n}" for n in range(3)]
        accepted += a_life(tmp_path, config, keys, chance.uniform(0, longest))
    asyncio.run(end_all(rig, accepted))

    assert len(accepted) == 3 * lives
    # The scheduler's death ended no run: each job ran exactly once.
    assert sorted(line[1] for line in rig.lines("begin")) == sorted(line[1] for line in rig.lines("end"))
    assert len(rig.lines("begin")) == len(accepted)


def test_jobs_on_the_local_engine_outlive_a_scheduler_that_is_killed_in_a_loop(tmp_path: Path) -> None:
    kills_in_a_loop(tmp_path, LocalEngine(), "-", lives=8, longest=0.8)


def test_jobs_on_slurm_outlive_a_scheduler_that_is_killed_in_a_loop(tmp_path: Path, slurm: SlurmCluster) -> None:
    config = str(slurm.config)
    kills_in_a_loop(tmp_path, SlurmEngine({"config_file": config}), config, lives=4, longest=2.5)


async def test_a_controller_that_is_killed_and_forgets_a_job_neither_ends_nor_doubles_it(
    tmp_path: Path, slurm: SlurmCluster
) -> None:
    rig = Rig(tmp_path, SlurmEngine({"config_file": str(slurm.config)}))
    async with rig.scheduler() as scheduler:
        first = await scheduler.submit("work", {"key": "a", "seconds": "6"})
        await until_running(scheduler, first)
        slurm.kill("slurmctld")
        second = await scheduler.submit("work", {"key": "b", "seconds": "0.1"})

        async def is_noticed() -> bool:
            return (await scheduler.engines.list())[0].problem is not None

        await until(is_noticed)
        slurm.start_controller()
        operator = asyncio.create_task(resume_often(slurm))
        ended = [await scheduler.wait(job, 90) for job in (first, second)]
        operator.cancel()

    assert [one.run.status for one in ended if one.run] == [RunStatus.COMPLETED] * 2
    assert len(rig.lines("begin", "a")) == len(rig.lines("begin", "b")) == 1


async def resume_often(slurm: SlurmCluster) -> None:
    while True:
        await asyncio.to_thread(slurm.resume)
        await asyncio.sleep(1)


async def test_a_node_daemon_that_is_killed_does_not_end_a_run(tmp_path: Path, slurm: SlurmCluster) -> None:
    rig = Rig(tmp_path, SlurmEngine({"config_file": str(slurm.config)}))
    async with rig.scheduler() as scheduler:
        job = await scheduler.submit("work", {"key": "a", "seconds": "3"})
        await until_running(scheduler, job)
        slurm.kill("slurmd")
        ended = await scheduler.wait(job, 60)
    slurm.start_node()

    assert ended.run is not None
    assert ended.run.status == RunStatus.COMPLETED
    assert len(rig.lines("begin")) == 1


def test_thousands_of_runs_that_wait_on_slurm_are_observed(tmp_path: Path, slurm: SlurmCluster) -> None:
    engine = SlurmEngine({"config_file": str(slurm.config)})
    keys = [Key(f"01a00000-0000-7000-8000-{n:012}", "1") for n in range(5000)]
    last = Submission(run_id=keys[-1].run_id, directory=tmp_path, argv=("true",), options={"partition": "shut"})
    handle = engine.submit(last)

    seen = engine.observe(keys)
    engine.stop(Key(last.run_id, handle), 0)

    assert len(seen) == 5000
    assert [run_id for run_id, one in seen.items() if one.sight is Sight.QUEUED] == [last.run_id]


async def test_a_job_that_slurm_refuses_fails_for_good_with_its_words(tmp_path: Path, slurm: SlurmCluster) -> None:
    rig = Rig(tmp_path, SlurmEngine({"config_file": str(slurm.config)}), options={"partition": "not-there"})
    async with rig.scheduler() as scheduler:
        job = await scheduler.submit("work", {"key": "a", "seconds": "1"})
        ended = await scheduler.wait(job, 60)

    assert ended.run is not None
    assert ended.run.failure_kind == "invalid"
    assert "nvalid partition" in str(ended.run.error)
    assert ended.job.job_id == job.job_id


async def test_a_job_that_slurm_does_not_start_is_cancelled_without_ever_running(
    tmp_path: Path, slurm: SlurmCluster
) -> None:
    rig = Rig(tmp_path, SlurmEngine({"config_file": str(slurm.config)}), options={"partition": "shut"})
    async with rig.scheduler() as scheduler:
        job = await scheduler.submit("work", {"key": "a", "seconds": "1"})

        async def is_queued() -> bool:
            run = await scheduler.run_of(job)
            return run is not None and run.placement is not None and run.placement["state"] == "queued"

        async def is_explained() -> bool:
            [reason] = (await scheduler.forecast.why(job.job_id)).reasons
            return "queued there" in reason.text and "Slurm: PENDING, PartitionDown." in reason.text

        await until(is_queued)
        await until(is_explained)
        run = await scheduler.run_of(job)
        await scheduler.cancel(job, interrupt=True)
        await scheduler.wait(job, 60)
        ended = await scheduler.job(job)

    assert ended.status is JobStatus.CANCELLED
    assert run is not None
    assert SlurmEngine({"config_file": str(slurm.config)}).find(run.run_id) == []
    assert rig.lines("begin") == []


async def test_a_time_limit_of_slurm_is_a_timeout_and_counts(tmp_path: Path, slurm: SlurmCluster) -> None:
    rig = Rig(tmp_path, SlurmEngine({"config_file": str(slurm.config)}))
    async with rig.scheduler() as scheduler:
        job = await scheduler.submit("work", {"key": "a", "seconds": "300"}, retry_policy={"max_attempts": 0})
        run_id = await until_running(scheduler, job)
        # Slurm counts limits in minutes, and reads them again: so this one is over at once.
        slurm.ask("scontrol", "update", f"jobname={run_id}", "timelimit=0:01")
        ended = await scheduler.wait(job, 120)

    assert ended.run is not None
    assert (ended.run.failure_kind, ended.run.error) == (
        FailureKind.TIMEOUT, "the engine 'box' has ended it at its own time limit"
    )  # fmt: skip
    assert rig.processes(run_id) == []


async def test_a_job_that_somebody_cancels_on_slurm_counts_as_a_failure(tmp_path: Path, slurm: SlurmCluster) -> None:
    rig = Rig(tmp_path, SlurmEngine({"config_file": str(slurm.config)}))
    policy = {"max_attempts": 1, "base_delay_seconds": 0.1}
    async with rig.scheduler() as scheduler:
        job = await scheduler.submit("leave", {"key": "a", "seconds": "300"}, retry_policy=policy)
        run_ids = []
        for attempt in range(2):
            run_ids.append(await until_running(scheduler, (await scheduler.chain(job))[attempt]))
            slurm.ask("scancel", f"--name={run_ids[-1]}")
            await until_ended(scheduler, run_ids[-1])
        ended = await scheduler.wait(job, 60)
        chain = await scheduler.chain(job)
        first = await scheduler.run_by_id(run_ids[0])

    assert len(chain) == 2
    assert (first.failure_kind, first.error) == (
        FailureKind.ERROR,
        "it was cancelled on the engine 'box', and not here",
    )
    assert ended.run is not None
    assert ended.run.failure_kind is FailureKind.ERROR
    assert rig.lines("overlap") == []
    assert [pid for run_id in run_ids for pid in rig.processes(run_id)] == []


@pytest.mark.parametrize("times", [3])
async def test_a_crash_of_the_scheduler_at_any_moment_of_a_submission_makes_no_second_run(
    tmp_path: Path, times: int
) -> None:
    rig = Rig(tmp_path, LocalEngine())
    chance = random.Random(5)
    scheduler = rig.scheduler()
    await scheduler.start()
    jobs = [await scheduler.submit("work", {"key": str(n), "seconds": "0.5"}) for n in range(4)]
    for _ in range(times):
        await asyncio.sleep(chance.uniform(0, 0.15))
        await testing.crash(scheduler)
        scheduler = rig.scheduler()
        await scheduler.start()
    try:
        ended = [await scheduler.wait(job, 60) for job in jobs]
    finally:
        await scheduler.stop()

    assert [one.run.status for one in ended if one.run] == [RunStatus.COMPLETED] * 4
    assert len(rig.lines("begin")) == 4
