"""Spec 15: stopping (CON-003)."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nextslot import (
    Job,
    NewJob,
    Scheduler,
    testing,
)
from nextslot.engine.retention import Keep
from nextslot.errors import Draining, NextslotError, Unavailable
from nextslot.scheduler.startup_and_shutdown import STOP_GRACE_SECONDS
from tests import databases
from tests.support import assert_counters, database, new_scheduler, register_handlers, states

HOUR = 3600


# Graceful.


async def test_CON_003_stop_waits_for_what_runs_however_long_and_starts_nothing_more(tmp_path: Path) -> None:
    first = await started(tmp_path, shutdown_grace_seconds=None)
    running = await first.submit("work", {"seconds": 10 * HOUR})
    queued = await first.submit("work")

    is_stored = await first.stop()

    assert is_stored
    assert asyncio.get_running_loop().time() == pytest.approx(10 * HOUR, abs=1)
    assert stored_states(tmp_path) == {running.job_id: "COMPLETED", queued.job_id: "QUEUED"}
    async with new_scheduler(tmp_path, seed=1) as second:
        assert (await second.wait(queued.job_id)).status == "COMPLETED"
    assert_counters(tmp_path)


async def test_while_it_drains_new_jobs_are_refused_and_the_rest_goes_on(tmp_path: Path) -> None:
    scheduler = await started(tmp_path)
    failed = await scheduler.submit("fail", retry_policy={"max_attempts": 0})
    run = (await scheduler.wait(failed.job_id)).run
    assert run is not None
    running = await scheduler.submit("work", {"seconds": 100})
    queued = await scheduler.submit("work")
    stopping = asyncio.ensure_future(scheduler.stop())
    await testing.settled()

    for refused in (
        scheduler.submit("work"),
        scheduler.submit_many([NewJob(job_type="work")]),
        scheduler.submit_group([NewJob(job_type="work")]),
        scheduler.retry(run.run_id),
    ):
        with pytest.raises(Draining, match="stopping"):
            await refused
    await scheduler.cancel(queued.job_id)
    assert await states(scheduler, running, queued) == ["RUNNING", "CANCELLED"]
    assert await stopping


async def test_timers_still_work_while_it_drains(tmp_path: Path) -> None:
    scheduler = await started(tmp_path)
    job = await scheduler.submit("work", {"seconds": 10 * HOUR}, timeout_seconds=60)

    assert await scheduler.stop()

    assert stored_states(tmp_path)[job.job_id] == "FAILED"
    assert asyncio.get_running_loop().time() == pytest.approx(60, abs=1)


async def test_a_retry_made_while_it_drains_waits_for_the_next_life(tmp_path: Path) -> None:
    first = await started(tmp_path)

    @first.job_type("slow_fail")
    async def slow_fail(run: Any) -> None:
        await asyncio.sleep(50)
        if run.attempt == 1:
            raise ValueError

    job = await first.submit("slow_fail", retry_policy={"base_delay_seconds": 0})
    await first.stop()
    assert sorted(stored_states(tmp_path).values()) == ["FAILED", "QUEUED"]

    async with first:
        assert (await first.wait(job.job_id)).status == "COMPLETED"


async def test_who_waits_for_a_job_that_does_not_end_is_told(tmp_path: Path) -> None:
    scheduler = await started(tmp_path)
    await scheduler.pause()
    job = await scheduler.submit("work")
    waiting = asyncio.ensure_future(scheduler.wait(job.job_id))
    await testing.settled()

    await scheduler.stop()

    with pytest.raises(Unavailable, match="stopped before"):
        await waiting


async def test_a_stopped_scheduler_does_nothing_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scheduler = await started(tmp_path)
    job = await scheduler.submit("work", scheduled_for=scheduler._clock.now().after(100))
    await scheduler.stop()
    caplog.clear()

    await asyncio.sleep(1000)

    assert caplog.records == []
    assert stored_states(tmp_path) == {job.job_id: "QUEUED"}


async def test_a_stopped_scheduler_leaves_no_task_behind(tmp_path: Path) -> None:
    scheduler = new_scheduler(tmp_path)
    scheduler.retention.keep = Keep(jobs_days=30)
    await scheduler.start()
    await scheduler.wait((await scheduler.submit("work")).job_id)
    await scheduler.stop()

    assert {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()


async def test_nothing_that_was_acknowledged_is_lost(tmp_path: Path) -> None:
    scheduler = await started(tmp_path)
    submits = [asyncio.ensure_future(submit_after(scheduler, steps)) for steps in range(30)]
    for _ in range(10):
        await asyncio.sleep(0)
    await scheduler.stop()
    answers = await asyncio.gather(*submits, return_exceptions=True)
    assert {type(answer) for answer in answers} == {Job, Draining}
    acknowledged = [answer for answer in answers if isinstance(answer, Job)]

    assert {job.job_id for job in acknowledged} == stored_states(tmp_path).keys()


async def test_stopping_is_idempotent_and_a_stopped_scheduler_can_start_again(tmp_path: Path) -> None:
    scheduler = new_scheduler(tmp_path)
    assert await scheduler.stop()
    for _ in range(2):
        await scheduler.start()
        with pytest.raises(NextslotError, match="started already"):
            await scheduler.start()
        assert (await scheduler.wait((await scheduler.submit("work")).job_id)).status == "COMPLETED"
        assert await scheduler.stop()
        assert await scheduler.stop()


def test_a_scheduler_can_live_again_in_another_event_loop(tmp_path: Path) -> None:
    scheduler = new_scheduler(tmp_path)

    async def life() -> None:
        async with scheduler:
            job = await scheduler.submit("fail", {"times": 1})
            assert (await scheduler.wait(job.job_id)).status == "COMPLETED"

    async def nothing() -> None:
        async with scheduler:
            pass

    for main in (life, nothing, life):
        testing.run(main())


# Bounded.


@pytest.mark.parametrize("how", ["by argument", "by setting", "by a second stop"])
async def test_after_the_grace_time_what_runs_is_interrupted_and_retried_in_the_next_life(
    tmp_path: Path, how: str
) -> None:
    first = await started(tmp_path, shutdown_grace_seconds=30 if how == "by setting" else HOUR)
    job = await first.submit("work", {"seconds": HOUR, "answer": 42})
    stopping = asyncio.ensure_future(first.stop(30 if how == "by argument" else None))
    await asyncio.sleep(29)
    assert await states(first, job) == ["RUNNING"]
    await asyncio.sleep(1)
    if how == "by a second stop":
        assert await first.stop()
    assert await stopping

    async with new_scheduler(tmp_path, seed=1) as second:
        run, (lost, retry) = await second.run_of(job.job_id), await second.chain(job.job_id)
        assert run is not None
        assert (run.status, run.failure_kind, lost.decision) == ("FAILED", "interrupted", "retry")
        assert run.finished_at == lost.finished_at == run.started_at.after(30)
        assert (retry.status, retry.scheduled_for) == ("RUNNING", lost.finished_at)
        assert (await second.wait(job.job_id)).result == {"answer": 42}
    assert_counters(tmp_path)


async def test_the_grace_time_is_an_hour_and_its_rest_is_said_while_it_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "nextslot")
    scheduler = await started(tmp_path)
    job = await scheduler.submit("work", {"seconds": 2 * HOUR})

    stopping = asyncio.ensure_future(scheduler.stop())
    await asyncio.sleep(600)
    said = await scheduler.readiness()
    assert await stopping

    assert said is not None
    assert said.endswith("no new jobs are taken; what still runs is interrupted in 50 minutes")
    lines = [message for message in caplog.messages if message.startswith("stopping: 1 jobs are running")]
    assert (lines[0], lines[-1], len(lines)) == (
        "stopping: 1 jobs are running and are interrupted in 60 minutes",
        "stopping: 1 jobs are running and are interrupted in 60 seconds",
        60,
    )
    assert stored_states(tmp_path)[job.job_id] == "FAILED"


async def test_work_that_ends_within_the_grace_time_is_not_interrupted(tmp_path: Path) -> None:
    scheduler = await started(tmp_path)
    job = await scheduler.submit("work", {"seconds": 20})

    assert await scheduler.stop(grace_seconds=30)

    assert stored_states(tmp_path) == {job.job_id: "COMPLETED"}
    assert asyncio.get_running_loop().time() == pytest.approx(20, abs=1)


async def test_a_job_that_was_to_be_the_last_is_interrupted_but_not_retried(tmp_path: Path) -> None:
    scheduler = await started(tmp_path)
    job = await scheduler.submit("work", {"seconds": HOUR})
    await scheduler.cancel(job.job_id)

    await scheduler.stop(grace_seconds=1)

    assert stored_states(tmp_path) == {job.job_id: "FAILED"}


@pytest.mark.parametrize("stops", [1, 2])
async def test_work_that_ignores_the_signal_is_left_to_the_next_life(tmp_path: Path, stops: int) -> None:
    first = await started(tmp_path)
    job = await first.submit("stubborn", {"seconds": 500})
    stopping = [asyncio.ensure_future(first.stop(grace_seconds=5))]
    await asyncio.sleep(6)
    stopping += [asyncio.ensure_future(first.stop()) for _ in range(stops - 1)]

    async with asyncio.timeout(100):
        is_stored = await asyncio.gather(*stopping)

    assert is_stored == [False] * stops
    assert stored_states(tmp_path) == {job.job_id: "RUNNING"}
    await asyncio.sleep(1000)  # It returns at last, to nobody.
    assert asyncio.all_tasks() == {asyncio.current_task()}
    async with new_scheduler(tmp_path, seed=1) as second:
        assert (second.recovered.lost, len(await second.chain(job.job_id))) == (1, 2)
    assert_counters(tmp_path)


# Real signals to a real process.


async def test_work_that_says_how_long_its_end_may_take_has_so_much_longer(tmp_path: Path) -> None:
    class Slow:
        grace_seconds = 30.0

        async def __call__(self, run: Any) -> None:
            try:
                await asyncio.sleep(HOUR)
            except asyncio.CancelledError:
                await asyncio.sleep(STOP_GRACE_SECONDS + 25)

    scheduler = await started(tmp_path)
    await scheduler.offices.change("default", max_concurrent_jobs=0)
    scheduler.job_types.add("slow", Slow())
    await scheduler.submit("slow")
    await scheduler.submit("work", {"seconds": HOUR})

    assert await scheduler.stop(grace_seconds=0)

    assert asyncio.get_running_loop().time() == pytest.approx(STOP_GRACE_SECONDS + 25, abs=0.1)


async def test_work_that_says_nothing_is_waited_for_no_longer_than_the_usual_time(tmp_path: Path) -> None:
    scheduler = await started(tmp_path)
    await scheduler.submit("stubborn", {"seconds": HOUR})

    assert not await scheduler.stop(grace_seconds=0)

    # The second that its task is then given to be cancelled comes on top.
    assert asyncio.get_running_loop().time() == pytest.approx(STOP_GRACE_SECONDS + 1, abs=0.1)


def test_SIGTERM_lets_what_runs_finish_and_starts_nothing_more(tmp_path: Path) -> None:
    running, queued = prepare(tmp_path)

    with process(tmp_path) as child:
        eventually(lambda: (tmp_path / "started").exists())
        child.send_signal(signal.SIGTERM)
        eventually(lambda: "stopping: 1 jobs are running" in output(tmp_path))
        (tmp_path / "finish").touch()
        code = child.wait(20)

    assert (code, output(tmp_path).count("Traceback")) == (0, 0)
    assert stored_states(tmp_path) == {running: "COMPLETED", queued: "QUEUED"}


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_interrupts_what_runs_and_it_is_retried_after_the_restart(
    tmp_path: Path, second: signal.Signals
) -> None:
    running, _ = prepare(tmp_path)

    with process(tmp_path) as child:
        eventually(lambda: (tmp_path / "started").exists())
        child.send_signal(signal.SIGTERM)
        eventually(lambda: "stopping: 1 jobs are running" in output(tmp_path))
        child.send_signal(second)
        code = child.wait(20)

    assert (code, output(tmp_path).count("Traceback")) == (0, 0)
    assert stored_states(tmp_path)[running] == "FAILED"
    assert rows(tmp_path, "select failure_kind from runs") == [("interrupted",)]
    with process(tmp_path) as child:
        (tmp_path / "finish").touch()
        eventually(lambda: "COMPLETED" in retries_of(tmp_path, running))


def test_a_process_is_not_kept_alive_by_a_handler_that_ignores_its_signal(tmp_path: Path) -> None:
    running, _ = prepare(tmp_path, "deaf")

    with process(tmp_path, STOP_GRACE=0.2) as child:
        eventually(lambda: (tmp_path / "started").exists())
        child.send_signal(signal.SIGTERM)
        eventually(lambda: "stopping: 1 jobs are running" in output(tmp_path))
        child.send_signal(signal.SIGTERM)
        code = child.wait(20)

    assert (code, stored_states(tmp_path)[running]) == (1, "RUNNING")  # Not all was stored.
    assert "left to the next start" in output(tmp_path)


def test_a_killed_process_leaves_a_database_that_the_next_one_recovers(tmp_path: Path) -> None:
    running, _ = prepare(tmp_path)

    with process(tmp_path) as child:
        eventually(lambda: (tmp_path / "started").exists())
        child.kill()
        child.wait(20)
    (tmp_path / "finish").touch()
    with process(tmp_path):
        eventually(lambda: retries_of(tmp_path, running) == ["COMPLETED"])

    assert stored_states(tmp_path)[running] == "FAILED"
    assert rows(tmp_path, "select failure_kind from runs where failure_kind is not null") == [("crash",)]


# Arrangement.


async def started(directory: Path, **options: Any) -> Scheduler:
    scheduler = new_scheduler(directory, **options)
    await scheduler.start()
    return scheduler


async def submit_after(scheduler: Scheduler, steps: int) -> Job:
    for _ in range(steps):
        await asyncio.sleep(0)
    return await scheduler.submit("work")


PROGRAM = """
    import logging, os, sys, time
    from pathlib import Path
    from nextslot import Scheduler
    from nextslot.scheduler import startup_and_shutdown

    logging.basicConfig(level="INFO")
    startup_and_shutdown.STOP_GRACE_SECONDS = float(os.environ.get("STOP_GRACE", "10"))
    here = Path(sys.argv[1])
    app = Scheduler(sys.argv[2], data=here)

    @app.job_type("patient")
    def patient(run):
        (here / "started").touch()
        while not (here / "finish").exists():
            if run.wait(0.01):
                return "told"

    @app.job_type("deaf")
    def deaf(run):
        (here / "started").touch()
        time.sleep(100)

    app.run()
"""


def prepare(directory: Path, job_type: str = "patient") -> list[str]:
    """Stores two jobs in the queue of a scheduler that does not run yet."""

    async def body() -> list[str]:
        scheduler = Scheduler(databases.url(directory), data=directory)
        scheduler.job_type(job_type)(lambda run: None)
        register_handlers(scheduler)
        async with scheduler:
            await scheduler.pause()
            ids = [(await scheduler.submit(job_type)).job_id for _ in range(2)]
            await scheduler.stop()
        return ids

    ids = asyncio.run(body())
    connection = database(directory)
    connection.execute("delete from pauses")
    connection.close()
    return ids


@contextmanager
def process(directory: Path, **environment: object) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a scheduler in a process of its own inside this context."""
    arguments = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(directory), databases.url(directory)]
    variables = os.environ | {name: str(value) for name, value in environment.items()}
    with (directory / "output").open("wb") as file:
        child = subprocess.Popen(arguments, stdout=file, stderr=file, env=variables)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def eventually(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def output(directory: Path) -> str:
    return (directory / "output").read_text()


def rows(directory: Path, sql: str, *values: str) -> list[Any]:
    connection = database(directory)
    connection.set_busy_timeout(5000)
    found: list[Any] = connection.execute(sql, values).fetchall()
    connection.close()
    return found


def stored_states(directory: Path) -> dict[str, str]:
    """Returns what the file contains, by job."""
    return dict(rows(directory, "select job_id, coalesce(outcome, stage) from jobs"))


def retries_of(directory: Path, job_id: str) -> list[str]:
    return [row[0] for row in rows(directory, "select coalesce(outcome, stage) from jobs where retry_of = ?", job_id)]
