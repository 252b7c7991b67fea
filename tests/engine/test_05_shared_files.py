"""Files of runs in a shared store: they are there before the outcome, and an outage of the store loses nothing."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from nextslot import Scheduler, testing
from nextslot.engine.retention import Keep
from nextslot.executors import run_log
from nextslot.executors.object_store import ObjectStore
from nextslot.executors.run_context import RunContext
from nextslot.executors.shared_run_files import SharedRunFiles
from tests.support import new_scheduler


def new_node(directory: Path, **options: Any) -> Scheduler:
    scheduler = new_scheduler(directory, files=f"file://{directory}/store", **options)

    @scheduler.job_type("make")
    async def make(run: RunContext, seconds: float = 0) -> None:
        run.log.info("begun")
        await asyncio.sleep(seconds)
        (run.artifacts / "film.txt").write_text("a film")

    return scheduler


def store_of(directory: Path) -> SharedRunFiles:
    return SharedRunFiles(ObjectStore(f"file://{directory}/store"))


def stored(directory: Path) -> list[str]:
    return sorted(one.path.rpartition("/")[2] for one in ObjectStore(f"file://{directory}/store").list("runs"))


def break_store(directory: Path) -> None:
    shutil.rmtree(directory / "store")
    (directory / "store").write_text("no directory")


def mend_store(directory: Path) -> None:
    (directory / "store").unlink()
    (directory / "store").mkdir(mode=0o700)


async def test_the_files_of_a_run_are_stored_before_its_outcome(tmp_path: Path) -> None:
    async with new_node(tmp_path) as scheduler:
        job = await scheduler.submit("make", {"seconds": 3})
        await asyncio.sleep(2)
        growing = stored(tmp_path)
        ended = await scheduler.wait(job.job_id)

        assert len(growing) == 1, "the log can be read while it grows"
        assert ended.run is not None
        assert "film.txt" in stored(tmp_path)
        log = run_log.read(store_of(tmp_path).log(ended.run.run_id), 0, 1000)
        assert log.text.endswith(b"begun\n")
        assert ended.run.log_path is not None


async def test_an_outcome_waits_while_the_store_takes_no_files_and_its_time_is_that_of_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with new_node(tmp_path) as scheduler:
        break_store(tmp_path)
        job = await scheduler.submit("make", {"seconds": 1})
        await asyncio.sleep(100)
        waiting = await scheduler.job(job.job_id)
        mend_store(tmp_path)
        ended = await scheduler.wait(job.job_id)

        assert waiting.is_running
        assert ended.status == "COMPLETED"
        run = await scheduler.run_of(job)
        assert run is not None
        assert run.finished_at is not None
        assert run.finished_at - run.started_at < 2_000_000
        assert stored(tmp_path).count("film.txt") == 1
        assert "ended, but its files cannot be stored yet: the store of files" in caplog.text


async def test_an_outcome_does_not_wait_for_ever_and_the_files_are_stored_later(tmp_path: Path) -> None:
    async with new_node(tmp_path, files_wait_seconds=10) as scheduler:
        break_store(tmp_path)
        job = await scheduler.submit("make")
        ended = await scheduler.wait(job.job_id)
        assert ended.run is not None
        readable = run_log.read(scheduler._runtime.files.log_paths(ended.run.run_id), 0, 1000)
        mend_store(tmp_path)
        await asyncio.sleep(120)

        assert ended.status == "COMPLETED"
        assert readable.text.endswith(b"begun\n"), "it is on the disk of this node"
        assert "film.txt" in stored(tmp_path)
        assert not list((tmp_path / "unshipped").iterdir())


async def test_a_scheduler_that_stops_keeps_the_outcome_and_the_next_start_stores_the_files(tmp_path: Path) -> None:
    async with new_node(tmp_path) as scheduler:
        break_store(tmp_path)
        job = await scheduler.submit("make")
        await asyncio.sleep(5)
        assert await scheduler.stop(grace_seconds=2)
    mend_store(tmp_path)

    async with new_node(tmp_path) as again:
        await asyncio.sleep(1)

        assert (await again.job(job.job_id)).status == "COMPLETED"
        assert "film.txt" in stored(tmp_path)


async def test_what_a_crash_left_unshipped_is_stored_by_the_next_start(tmp_path: Path) -> None:
    scheduler = new_node(tmp_path)
    await scheduler.start()
    job = await scheduler.submit("make", {"seconds": 100}, retry_policy={"max_attempts": 0})
    await asyncio.sleep(0.5)
    assert stored(tmp_path) == []
    await testing.crash(scheduler)

    async with new_node(tmp_path) as again:
        await asyncio.sleep(1)
        run = await again.run_of(job)

        assert run is not None
        assert run.failure_kind == "crash"
        assert run_log.read(store_of(tmp_path).log(run.run_id), 0, 1000).text.endswith(b"begun\n")


async def test_spec_19_the_objects_of_a_run_go_with_its_files_also_those_that_a_crash_left(tmp_path: Path) -> None:
    async with new_node(tmp_path) as scheduler:
        job = await scheduler.submit("make")
        await scheduler.wait(job.job_id)
        store_of(tmp_path).objects.put("runs/zz/01a1f06a-zz/log/0000000000000000-0000000000000002", b"ab")
        scheduler.retention.keep = Keep(jobs_days=1)
        before = stored(tmp_path)
        scheduler._runtime.files.remove_all(["01a1f06a-zz"])
        left = stored(tmp_path)
        await asyncio.sleep(3 * 86_400)
        await scheduler.retention.purge()

        assert (len(before), len(left)) == (3, 2)
        assert stored(tmp_path) == []


async def test_inputs_that_another_node_made_are_fetched_before_the_work_begins(tmp_path: Path) -> None:
    async with new_node(tmp_path) as scheduler:

        @scheduler.job_type("read")
        async def read(run: RunContext) -> str:
            made = next(iter(run.inputs.values()))
            assert made is not None
            return made.file("film.txt").read_text()

        made = await scheduler.submit("make")
        first = (await scheduler.wait(made.job_id)).run
        assert first is not None
        shutil.rmtree(tmp_path / "artifacts")
        job = await scheduler.submit("read", depends_on=[made.job_id])
        ended = await scheduler.wait(job.job_id)
        shutil.rmtree(tmp_path / "artifacts")
        break_store(tmp_path)
        late = await scheduler.submit("read", depends_on=[made.job_id])
        await asyncio.sleep(400)
        failed = await scheduler.run_of(late)

        assert ended.result == "a film"
        assert failed is not None
        assert failed.failure_kind == "unavailable"
        assert "could not be fetched" in str(failed.error)
