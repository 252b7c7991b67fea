"""What the hot path costs, counted in statements: deterministic, so that it can be a law; times belong in bench/."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nextslot import NewJob, testing
from nextslot.store.postgres import postgres_store
from nextslot.store.sqlite import sqlite_store
from tests import databases
from tests.support import running_scheduler

HAND_OVER = [
    "jobs.ending_facts",
    "runs.finish",
    "jobs.succeed",
    "lanes.of_office",
    "lanes.outlook",
    "limits.get_many",
    "jobs.heads",
    "runs.begin",
    "jobs.start",
    "lanes.tally",
    "rollups.count",
    "events.append",
]
ENQUEUE = [
    "offices.get",
    "jobs.last_position",
    "jobs.insert",
    "lanes.of_office",
    "lanes.outlook",
    "limits.get_many",
    "lanes.tally",
    "events.append",
]


async def test_a_hand_over_is_one_transaction_of_twelve_statements(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.submit_many([NewJob(job_type="work", params={"seconds": 1}) for _ in range(10)])
        await asyncio.sleep(3.5)

        with transactions() as seen:
            await asyncio.sleep(1)

        assert in_order(seen) == in_order([HAND_OVER])


async def test_enqueueing_behind_a_full_limit_is_one_transaction_of_eight_statements(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work", {"seconds": 100})
        await scheduler.submit("work")

        with transactions() as seen:
            await scheduler.submit("work")

        assert in_order(seen) == in_order([ENQUEUE])


async def test_jobs_that_end_together_share_a_transaction_and_a_look_at_the_queue(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=10)
        await scheduler.submit_many([NewJob(job_type="work", params={"seconds": 1}) for _ in range(60)])
        await asyncio.sleep(3.5)

        with transactions() as seen:
            await asyncio.sleep(1)

        (together,) = seen
        each = 10 if databases.kind() == "sqlite" else 1
        many = ("runs.finish", "jobs.succeed", "runs.begin", "jobs.start")
        assert [together.count(statement) for statement in many] == [each] * len(many)
        reads = ("lanes.of_office", "lanes.outlook", "limits.get_many", "jobs.heads")
        once = (*reads, "lanes.tally", "rollups.count", "events.append")
        assert [together.count(statement) for statement in once] == [1] * len(once)


async def test_an_idle_scheduler_does_nothing_at_all(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.wait((await scheduler.submit("work")).job_id)
        await testing.settled()

        with transactions() as seen:
            await asyncio.sleep(24 * 3600)

        assert seen == []


def in_order(seen: list[list[str]]) -> list[list[str]]:
    """Returns the statements of each transaction for a comparison. On PostgreSQL some are prefetched, so their order
    does not count there.
    """
    return seen if databases.kind() == "sqlite" else [sorted(names) for names in seen]


@contextmanager
def transactions() -> Iterator[list[list[str]]]:
    """Returns the names of the statements of every transaction, in order."""
    seen: list[list[str]] = []

    module, name = (sqlite_store, "SqliteTx") if databases.kind() == "sqlite" else (postgres_store, "PostgresTx")
    real = getattr(module, name)

    def counted(connection: object) -> object:
        tx = real(connection)
        names: list[str] = []
        seen.append(names)
        tx._statements = _Noting(tx._statements, names)
        return tx

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, counted)
        yield seen


class _Noting(dict[str, str]):
    def __init__(self, statements: object, names: list[str]) -> None:
        super().__init__(statements)  # type: ignore[call-overload]
        self._names = names

    def __getitem__(self, name: str) -> str:
        self._names.append(name)
        return super().__getitem__(name)
