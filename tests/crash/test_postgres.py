"""Spec 15 on PostgreSQL: the scheduler is killed in its work, and then the server is: the same laws hold."""

import asyncio
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest

from nextslot import NewJob, Scheduler
from nextslot.errors import Unavailable
from tests import databases
from tests.crash import laws
from tests.crash.laws import Judge
from tests.crash.test_kill import Moment, lives
from tests.crash.worker import LIMIT
from tests.postgres import Server
from tests.support import eventually

JOBS = 1_000
KILLS = 8


@pytest.fixture(autouse=True)
def _on_postgres(on_database: str) -> None:
    databases.use("postgres")


def test_DEC_008_nothing_is_lost_doubled_or_reordered_by_kills_of_the_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEXTSLOT_CRASH_URL", databases.url(tmp_path))
    judge, chance = Judge(LIMIT), random.Random(8)
    moments = sorted(chance.sample(range(1, JOBS - JOBS // 10), KILLS))
    kills = [Moment(executions, chance.uniform(0, 0.02)) for executions in moments]

    broken = [found for life in lives(tmp_path, JOBS, kills) for found in judge.judge(life)]

    assert broken[:5] == []
    assert list(laws.unfinished(laws.find(tmp_path), JOBS))[:5] == []
    assert len(judge.interrupted) > KILLS // 2


def test_nothing_is_lost_or_doubled_by_crashes_of_the_server(tmp_path: Path) -> None:
    """With fsync on, and without a word to anybody; the scheduler lives on."""
    server = Server()
    executed: Counter[str] = Counter()

    async def main() -> list[str]:
        scheduler = Scheduler(server.url(), data=tmp_path)

        @scheduler.job_type("tiny")
        async def tiny(run: Any) -> None:
            executed[run.job_id] += 1
            await asyncio.sleep(0.005)

        async with scheduler:
            await scheduler.offices.change("default", max_concurrent_jobs=5)
            acknowledged: list[str] = []
            feeding = asyncio.ensure_future(feed(scheduler, acknowledged, 300))
            for _ in range(3):
                reached = len(executed) + 40
                await eventually(lambda reached=reached: len(executed) >= reached, seconds=60)  # type: ignore[misc]
                server.stop(signal.SIGQUIT)
                server.start()
            await feeding
            for job_id in acknowledged:
                assert (await asyncio.wait_for(scheduler.wait(job_id), 60)).status == "COMPLETED"
        return acknowledged

    try:
        acknowledged = asyncio.run(main())
        with psycopg.connect(server.url()) as connection:
            stored = {row[0] for row in connection.execute("select job_id from jobs")}
            unfinished = connection.execute("select count(*) from jobs where finished_at is null").fetchone()
    finally:
        server.remove()

    assert set(acknowledged) <= stored
    assert unfinished == (0,)
    assert executed == Counter(dict.fromkeys(stored, 1))


async def feed(scheduler: Scheduler, acknowledged: list[str], count: int) -> None:
    """Submits jobs. Repeats what is refused while the server is away, as a caller would."""
    while len(acknowledged) < count:
        try:
            jobs = await scheduler.submit_many([NewJob(job_type="tiny")] * 10)
        except Unavailable:
            await asyncio.sleep(0.05)
        else:
            acknowledged += [job.job_id for job in jobs]
            await asyncio.sleep(0.02)
