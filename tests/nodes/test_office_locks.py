"""Nodes that decide about different offices at the same time: who waits for whom, and what stays exact."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from nextslot import Limits, NewJob, Scheduler
from nextslot.domain.lease_times import LeaseTimes
from nextslot.services.runtime_settings import ReloadableSettings
from nextslot.store import dialects
from nextslot.store.postgres import office_locks
from nextslot.store.postgres.office_locks import CONFINED, OfficeGroups
from nextslot.store.postgres.sessions import Keys
from tests import postgres
from tests.nodes.test_nodes import eventually

# So slow that nothing is found by looking, and nothing but the test writes.
SLOW = LeaseTimes(renew_seconds=60, work_seconds=120, lease_seconds=200)
OFFICES = ("x", "y")


@pytest.fixture
def database() -> Iterator[str]:
    name = postgres.borrow()
    yield postgres.address(name)
    postgres.give_back(name)


class Jobs:
    """What the jobs of all nodes do: wait until the test lets them go, and count how many run at once."""

    def __init__(self) -> None:
        self.gates: dict[str, asyncio.Event] = {}
        self.running = Counter[str]()
        self.most_after = 0
        self.is_limited = False

    def gate(self, name: str) -> asyncio.Event:
        return self.gates.setdefault(name, asyncio.Event())


def node(database: str, name: str, directory: Path, jobs: Jobs, **options: Any) -> Scheduler:
    scheduler = Scheduler(database, node=name, data=directory / name, **{"lease": SLOW, "limits": Limits(), **options})

    @scheduler.job_type("wait")
    async def wait(run: Any, gate: str) -> None:
        jobs.running[gate] += 1
        await jobs.gate(gate).wait()

    @scheduler.job_type("count")
    async def count(run: Any) -> None:
        jobs.running["count"] += 1
        jobs.running[f"on {name}"] += 1
        if jobs.is_limited:
            jobs.most_after = max(jobs.most_after, jobs.running["count"])
        await asyncio.sleep(0.005)
        jobs.running["count"] -= 1

    return scheduler


@asynccontextmanager
async def running(*schedulers: Scheduler) -> AsyncIterator[None]:
    async with schedulers[0], schedulers[1]:
        for office_id in OFFICES:
            await schedulers[0].offices.create(office_id)
            await schedulers[0].offices.change(office_id, max_concurrent_jobs=0)
        yield


@contextmanager
def held(database: str, lock: Callable[[Keys], str]) -> Iterator[None]:
    """Holds a lock as a transaction of another node does."""
    with psycopg.connect(database) as connection:
        [(schema,)] = connection.execute("select current_schema()::regnamespace::oid::bigint").fetchall()
        connection.execute(lock(Keys.of(schema, "")))
        yield
        connection.rollback()


def of_office(office_id: str) -> Callable[[Keys], str]:
    return lambda keys: (
        f"select pg_advisory_xact_lock_shared({keys.writing}), pg_advisory_xact_lock({keys.of_group(office_id)})"
    )


async def begin_together() -> None:
    """Waits for the next minute if that is near: the first transaction of a minute writes alone."""
    if time.time() % 60 > 40:
        await asyncio.sleep(60 - time.time() % 60)


async def started(scheduler: Scheduler, jobs: Jobs, *gates: str) -> dict[str, str]:
    """Starts a job in each office that is named by its gate, one that waits behind it, and one that has ended."""
    found = {}
    for gate in gates:
        for params, job_type in (({}, "count"), ({"gate": gate}, "wait")):
            job = await scheduler.submit(job_type, params, office_id=gate)
            found[gate] = job.job_id
            if job_type == "count":
                await scheduler.wait(job.job_id)

    async def all_run() -> bool:
        return all(jobs.running[gate] for gate in gates)

    await eventually(all_run)
    return found


@pytest.fixture(autouse=True)
def alone_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets only the transaction write alone that needs it."""
    monkeypatch.setattr(office_locks, "ALONE_AFTER", 1)


async def test_offices_that_share_no_limit_do_not_wait_for_each_other(database: str, tmp_path: Path) -> None:
    jobs = Jobs()
    a, b = node(database, "a", tmp_path, jobs), node(database, "b", tmp_path, jobs)
    async with running(a, b):
        await begin_together()
        ids = await started(a, jobs, *OFFICES)
        with held(database, of_office("x")):
            jobs.gate("y").set()
            ended = await asyncio.wait_for(b.wait(ids["y"]), 20)

        jobs.gate("x").set()
        assert ended.status == (await asyncio.wait_for(b.wait(ids["x"]), 20)).status == "COMPLETED"


@pytest.mark.parametrize(
    "limits", [Limits(job_types={"wait": 10}), Limits(running=10)], ids=["of a type", "of the scheduler"]
)
async def test_offices_that_share_a_limit_have_one_lock(database: str, tmp_path: Path, limits: Limits) -> None:
    jobs = Jobs()
    a, b = (node(database, name, tmp_path, jobs, limits=limits) for name in "ab")
    async with running(a, b):
        await begin_together()
        ids = await started(a, jobs, *OFFICES)
        with held(database, of_office("x")):
            jobs.gate("y").set()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(b.wait(ids["y"])), 1)

        jobs.gate("x").set()
        for job_id in ids.values():
            assert (await asyncio.wait_for(b.wait(job_id), 20)).status == "COMPLETED"


async def test_a_limit_that_joins_offices_is_exact_from_its_commit_on(database: str, tmp_path: Path) -> None:
    jobs = Jobs()
    a, b = (node(database, name, tmp_path, jobs, node_running=4) for name in "ab")
    async with running(a, b):
        for office_id in OFFICES:
            await a.submit_many([NewJob(job_type="count", office_id=office_id)] * 150)

        async def both_work() -> bool:
            return jobs.running["on a"] > 20 and jobs.running["on b"] > 20

        await eventually(both_work)
        await a.settings.apply(ReloadableSettings(limits=Limits(job_types={"count": 2})), {}, {})
        jobs.is_limited = True

        connection = await psycopg.AsyncConnection.connect(database, autocommit=True)

        async def all_ended() -> bool:
            found = await connection.execute("select count(*) from jobs where finished_at is null")
            return await found.fetchone() == (0,)

        await eventually(all_ended)
        await connection.close()

    assert jobs.most_after <= 2
    with psycopg.connect(database) as plain:
        assert plain.execute("select used from limits where limit_key = 'type:count'").fetchall() == [(0,)]
        [(count, last)] = plain.execute("select count(*), max(seq) from events").fetchall()
    assert count == last


async def test_what_ends_while_a_node_waits_for_others_is_committed_together(database: str, tmp_path: Path) -> None:
    jobs = Jobs()
    a, b = node(database, "a", tmp_path, jobs), node(database, "b", tmp_path, jobs)
    marks = "select mark from commit_marks where node = 'a'"
    async with running(a, b):
        await begin_together()
        ids = [(await a.submit("wait", {"gate": str(number)}, office_id="x")).job_id for number in range(5)]

        async def all_run() -> bool:
            return all(jobs.running[str(number)] for number in range(5))

        await eventually(all_run)
        with psycopg.connect(database, autocommit=True) as connection:
            before = connection.execute(marks).fetchall()
            with held(database, of_office("x")):
                for number in range(5):
                    jobs.gate(str(number)).set()
                    await asyncio.sleep(0.05)
            for job_id in ids:
                await asyncio.wait_for(a.wait(job_id), 20)
            after = connection.execute(marks).fetchall()

    assert [mark for (mark,) in after] == [mark + 1 for (mark,) in before]


def test_offices_are_one_group_if_limits_connect_them() -> None:
    groups = OfficeGroups(
        [("b", "gpu"), ("a", "gpu"), ("c", "disk"), ("d", "disk"), ("b", "net"), ("e", "net"), ("f", "own")]
    )

    assert [groups.of(office_id) for office_id in "abcdefg"] == ["a", "a", "c", "c", "a", "f", "g"]


def test_groups_that_a_third_limit_connects_are_one() -> None:
    groups = OfficeGroups([("c", "1"), ("d", "1"), ("a", "2"), ("b", "2"), ("d", "3"), ("b", "3")])

    assert {groups.of(office_id) for office_id in "abcd"} == {"a"}


def test_every_confined_statement_exists() -> None:
    assert dialects.postgres_statements().keys() >= CONFINED
