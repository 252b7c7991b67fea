"""What the simulation has found in the engine: each as a small law of its own, so that it is not found again."""

import asyncio
from pathlib import Path
from typing import Any

from nextslot import Scheduler, testing
from nextslot.engine.execution import timeouts
from nextslot.store.maintenance import doctor
from tests.support import new_scheduler, running_scheduler, states


async def with_callers_who_wait(scheduler: Scheduler, callers: int) -> tuple[list["asyncio.Task[Any]"], Any]:
    """Makes a state in which another run has the only graphics card; direct callers of office `a` wait for it, and a
    job behind them.
    """

    @scheduler.job_type("render", resources={"gpu": 1})
    async def render(run: Any, seconds: float = 1) -> None:
        await asyncio.sleep(seconds)

    for office in ("a", "b"):
        await scheduler.offices.create(office, max_concurrent_jobs=2)
    await scheduler.submit("render", {"seconds": 1000}, office_id="b")
    lines = []
    for _ in range(callers):
        wanted = scheduler.run_direct("render", office_id="a", wait_timeout_seconds=5000)
        lines.append(asyncio.ensure_future(wanted))
        await testing.settled()
    return lines, await scheduler.submit("work", {"seconds": 5}, office_id="a")


async def test_DEC_004_the_queue_does_not_go_past_a_caller_because_another_one_hung_up(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        (first, second), job = await with_callers_who_wait(scheduler, 2)

        second.cancel()
        await asyncio.sleep(10)
        while_one_waits = await states(scheduler, job)
        first.cancel()
        await testing.settled()
        when_none_waits = await states(scheduler, job)

        assert (while_one_waits, when_none_waits) == (["QUEUED"], ["RUNNING"])


async def test_recovery_counts_the_callers_of_the_last_life_out_in_its_own_transaction(tmp_path: Path) -> None:
    first = new_scheduler(tmp_path)
    await first.start()
    await with_callers_who_wait(first, 1)
    await testing.crash(first)
    second = new_scheduler(tmp_path, seed=1)
    found: list[Any] = []
    recover = second._runtime.direct.recover

    def recover_and_look(tx: Any, node_id: str | None = None) -> int:
        done = recover(tx, node_id)
        second._runtime.lanes.counters(tx).save()
        found.extend(doctor.examine(tx))
        return done

    second._runtime.direct.recover = recover_and_look  # type: ignore[method-assign]
    await second.start()
    await second.stop(grace_seconds=0)

    assert [one for one in found if one.check.startswith("lanes.")] == []


async def test_detached_work_outlasts_its_reservation_though_its_caller_hung_up_before_it_was_stored(
    tmp_path: Path,
) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        wanted: Any = {"timeout_seconds": 2000.0, "detach": True, "direct_id": "long"}
        caller = asyncio.ensure_future(scheduler.run_direct("work", {"seconds": 1500}, **wanted))
        await asyncio.sleep(0)

        caller.cancel()
        await asyncio.sleep(1000)
        while_it_works = await scheduler.direct("long")
        await asyncio.sleep(1000)
        ended = await scheduler.direct("long")

        assert (while_it_works.status, ended.status) == ("RUNNING", "COMPLETED")
        assert not scheduler._runtime.direct.callers


async def test_a_refused_caller_that_hung_up_is_forgotten(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        caller = asyncio.ensure_future(scheduler.run_direct("work", office_id="nowhere", detach=True))
        await asyncio.sleep(0)

        caller.cancel()
        await asyncio.sleep(1)

        assert not scheduler._runtime.direct.callers


async def test_runs_that_ignore_their_timeout_do_not_hide_others(tmp_path: Path, monkeypatch: Any) -> None:
    """A tick stops every run whose time is up, however many of them there are."""
    monkeypatch.setattr(timeouts, "BATCH", 1)
    async with running_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("deaf")
        async def deaf(run: Any) -> None:
            for _ in range(100):
                try:
                    await asyncio.sleep(10)
                except asyncio.CancelledError:
                    continue

        await scheduler.offices.create("another")
        await scheduler.submit("deaf", timeout_seconds=5)
        job = await scheduler.submit("work", {"seconds": 500}, timeout_seconds=6, office_id="another")
        await asyncio.sleep(60)

        assert await states(scheduler, job) == ["FAILED"]


async def test_a_retry_does_not_expire_with_its_job(tmp_path: Path) -> None:
    """The chain has started in time: what is left of it may take as long as it does."""
    async with running_scheduler(tmp_path) as scheduler:
        attempts: list[int] = []

        @scheduler.job_type("flaky")
        async def flaky(run: Any) -> None:
            attempts.append(run.attempt)
            if run.attempt == 1:
                raise RuntimeError("once")

        policy = {"max_attempts": 1, "base_delay_seconds": 120}
        expires_at = scheduler._clock.now().after(60)
        job = await scheduler.submit("flaky", expires_at=expires_at, retry_policy=policy)
        await asyncio.sleep(1000)
        chain = await scheduler.chain(job.job_id)

        assert attempts == [1, 2]
        assert [one.status for one in chain] == ["FAILED", "COMPLETED"]
