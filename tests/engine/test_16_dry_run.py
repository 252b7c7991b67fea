"""Spec 16: a dry run says what a job would wait for and when it would run, and leaves nothing behind."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nextslot import Limits, NewJob, errors
from nextslot.services import forecast
from nextslot.services.turns_with_rest import TurnsWithRest
from tests.support import counted_scheduler, database, history, named, running_scheduler


def stored(directory: Path) -> list[Any]:
    """Returns everything that a submission would change."""
    connection = database(directory)
    tables = ("jobs", "events", "audit", "idempotency_keys", "lanes", "limits")
    found = [connection.execute(f"select count(*) from {table}").fetchall() for table in tables]
    connection.close()
    return found


async def test_a_dry_run_says_what_the_job_would_wait_for_and_when_it_would_start(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path, limits=Limits(running=1)) as scheduler:
        for _ in range(6):
            await scheduler.wait((await scheduler.submit("work", {"seconds": 100})).job_id)
        holder = await scheduler.submit("work", {"seconds": 100})

        accepted, why = await scheduler.dry_run("work", {"seconds": 100})
        real = await scheduler.submit("work", {"seconds": 100})
        known = await scheduler.forecast.why(real.job_id)

        assert accepted.is_new
        assert [(one.code, one.text) for one in why.reasons] == [(one.code, one.text) for one in known.reasons]
        assert holder.job_id in why.reasons[0].text
        assert (why.status, why.ahead, why.expected) == (known.status, known.ahead, known.expected)
        assert why.expected.expected_start is not None


async def test_a_dry_run_stores_nothing(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work", {"seconds": 100})
        before, events = stored(tmp_path), await history(scheduler)

        accepted, _ = await named(scheduler, "somebody").dry_run("work", resources=["new resource"], role="NEW")

        assert stored(tmp_path) == before
        assert await history(scheduler) == events
        with pytest.raises(errors.NotFound):
            await scheduler.job(accepted.job.job_id)


async def test_a_dry_run_is_refused_as_the_submission_would_be(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(errors.UnknownJobType):
            await scheduler.dry_run("no such type")
        with pytest.raises(errors.Invalid, match="depends_on"):
            await scheduler.dry_run("work", depends_on=["nobody"])
        with pytest.raises(errors.NotFound, match="office"):
            await scheduler.dry_run("work", office_id="elsewhere")
        with pytest.raises(errors.Forbidden, match="may not make jobs of the type"):
            await named(scheduler, "narrow", job_types=("story",)).dry_run("work")


async def test_a_dry_run_of_a_unique_key_shows_the_job_that_has_it(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", {"seconds": 100}, unique_key="nightly")

        accepted, why = await scheduler.dry_run("work", unique_key="nightly")

        assert (accepted.is_new, accepted.job.job_id, why.status) == (False, job.job_id, "RUNNING")


async def test_a_dry_run_that_can_never_start_has_no_expected_start(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.pause()

        _, why = await scheduler.dry_run("work")

        assert [one.code for one in why.reasons] == ["paused"]
        assert (why.expected.expected_start, why.forecast_at) == (None, None)


async def test_many_dry_runs_at_once_make_few_forecasts_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_scheduler(tmp_path, limits=Limits(running=1)) as scheduler:
        await scheduler.submit_many([NewJob(job_type="work", params={"seconds": 10})] * 5)
        busy, most = 0, 0
        simulated = scheduler.forecast._simulated

        async def counted(snapshot: Any) -> Any:
            nonlocal busy, most
            busy += 1
            most = max(most, busy)
            try:
                await asyncio.sleep(1)
                return await simulated(snapshot)
            finally:
                busy -= 1

        monkeypatch.setattr(scheduler.forecast, "_simulated", counted)
        for number in range(10):
            await scheduler.offices.create(f"office-{number}")
        callers = [named(scheduler, "somebody", office_id=f"office-{number}") for number in range(10)]
        found = await asyncio.gather(*(one.dry_run("work", wait_seconds=3.5) for one in callers))

        assert most == forecast.MOST_TRIALS
        is_forecast = [why.forecast_at is not None for _, why in found]
        assert 4 <= sum(is_forecast) < 10
        assert all(why.reasons for _, why in found)


async def test_dry_runs_of_an_office_in_a_loop_leave_the_processor_and_the_forecasts_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_scheduler(tmp_path, limits=Limits(running=1)) as scheduler:
        await scheduler.submit_many([NewJob(job_type="work", params={"seconds": 10_000})] * 5)
        for office_id in ("greedy", "modest"):
            await scheduler.offices.create(office_id)
        greedy, modest = (named(scheduler, one, office_id=one) for one in ("greedy", "modest"))
        working, loop, simulated = 0.0, asyncio.get_running_loop(), scheduler.forecast._simulated

        async def slow(snapshot: Any) -> Any:
            nonlocal working
            await asyncio.sleep(0.25)
            working += 0.25
            return await simulated(snapshot)

        async def in_a_loop() -> None:
            while loop.time() < began + 100:
                await greedy.dry_run("work", wait_seconds=2)

        monkeypatch.setattr(scheduler.forecast, "_simulated", slow)
        began = loop.time()
        looping = [asyncio.create_task(in_a_loop()) for _ in range(20)]
        await asyncio.sleep(50)
        asked_at = loop.time()
        _, why = await modest.dry_run("work", wait_seconds=2)
        waited = loop.time() - asked_at
        await asyncio.gather(*looping)
        used = working / (loop.time() - began)

        assert why.forecast_at is not None
        assert waited < 0.6
        assert 0.05 < used < 0.11


async def test_a_dry_run_beyond_the_turn_of_its_office_reads_no_queue_and_says_what_it_would_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_scheduler(tmp_path, limits=Limits(running=1)) as scheduler:
        await scheduler.submit_many([NewJob(job_type="work", params={"seconds": 10})] * 5)
        snapshots, taken = list[object](), scheduler.forecast._snapshot

        def counted(*of: Any) -> Any:
            snapshots.append(of)
            return taken(*of)

        monkeypatch.setattr(scheduler.forecast, "_snapshot", counted)
        _, first = await scheduler.dry_run("work")
        found = [await scheduler.dry_run("work", wait_seconds=0) for _ in range(3)]

        assert first.forecast_at is not None
        assert len(snapshots) == 1
        assert [(why.forecast_at, bool(why.reasons)) for _, why in found] == [(None, True)] * 3


async def test_the_transactions_of_an_office_s_dry_runs_take_at_most_a_quarter_of_the_writer() -> None:
    turns, loop, worked = TurnsWithRest(5.0), asyncio.get_running_loop(), 0.0

    async def in_a_loop() -> None:
        nonlocal worked
        while loop.time() < began + 100:
            async with turns.one(forecast.RESTS):
                await asyncio.sleep(0.1)
                worked += 0.1

    began = loop.time()
    await asyncio.gather(*(in_a_loop() for _ in range(10)))

    assert 0.2 < worked / (loop.time() - began) <= 0.26


async def test_a_caller_who_hangs_up_while_it_waits_for_its_turn_keeps_nobody_waiting() -> None:
    turns = TurnsWithRest(5.0)
    end = await turns.turn()
    assert end is not None
    waiting = [asyncio.create_task(turns.turn()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    assert await turns.turn(1) is None
    end(10)
    await asyncio.sleep(0.1)
    waiting[1].cancel()

    next_end = await waiting[2]

    assert next_end is not None


async def test_a_scheduler_that_stops_takes_no_dry_run(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work", {"seconds": 10})
        stopping = asyncio.ensure_future(scheduler.stop())
        await asyncio.sleep(1)

        with pytest.raises(errors.Draining):
            await scheduler.dry_run("work")
        await stopping
