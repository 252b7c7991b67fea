"""Spec 16: a dry run says what a job would wait for and when it would run, and leaves nothing behind."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nextslot import Limits, NewJob, errors
from nextslot.services import forecast
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
        found = await asyncio.gather(*(scheduler.dry_run("work", wait_seconds=3.5) for _ in range(10)))

        assert most == forecast.MOST_TRIALS
        is_forecast = [why.forecast_at is not None for _, why in found]
        assert 4 <= sum(is_forecast) < 10
        assert all(why.reasons for _, why in found)


async def test_a_scheduler_that_stops_takes_no_dry_run(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work", {"seconds": 10})
        stopping = asyncio.ensure_future(scheduler.stop())
        await asyncio.sleep(1)

        with pytest.raises(errors.Draining):
            await scheduler.dry_run("work")
        await stopping
