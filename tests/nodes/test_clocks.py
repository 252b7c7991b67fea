"""Spec 5, time, on PostgreSQL: the server's clock counts, whatever those of the machines say."""

import asyncio
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from nextslot import RetryPolicy, Scheduler, testing
from nextslot.system.clock import SharedClock
from tests.nodes.test_nodes import database, eventually, node, running

__all__ = ["database"]

SECOND = 1_000_000
# Where a time is stored that somebody has to wait for, or that says when something was.
TIMES = """
    select 'event', timestamp from events union all select 'job', created_at from jobs
    union all select 'job', scheduled_for from jobs union all select 'run', started_at from runs
    union all select 'run', finished_at from runs union all select 'delivery', created_at from deliveries
    union all select 'delivery', next_attempt_at from deliveries union all select 'office', created_at from offices
    union all select 'node', joined_at from nodes union all select 'node', renewed_at from nodes
"""


def stored_times(address: str) -> list[tuple[str, float]]:
    """Returns every stored time, in seconds from the server's clock."""
    with psycopg.connect(address) as connection:
        now = connection.execute("select (extract(epoch from clock_timestamp()) * 1000000)::bigint").fetchone()
        assert now is not None
        return [(what, (at - now[0]) / SECOND) for what, at in connection.execute(TIMES) if at is not None]


@pytest.mark.parametrize("ahead", [437, -437])
async def test_a_node_that_starts_with_a_wrong_clock_recovers_by_the_servers(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    set_machine(monkeypatch, 0)
    box = testing.Mailbox()

    first = node(database, "a", tmp_path, sender=box)
    await first.start()
    await first.submit("work", {"seconds": 1000}, webhook={"url": "http://example.com/hook"})
    await testing.crash(first)

    set_machine(monkeypatch, ahead)
    async with running(node(database, "a", tmp_path, sender=box)):

        async def is_told() -> bool:
            return bool(box.messages)

        await eventually(is_told)

    assert [message.content["event"] for message in box.messages] == ["job.run.failed"]
    assert {what for what, _ in stored_times(database)} == {"event", "job", "run", "delivery", "office", "node"}
    assert [(what, at) for what, at in stored_times(database) if abs(at) > 200] == []


async def test_the_first_node_of_a_database_makes_it_by_the_servers_clock(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_machine(monkeypatch, 437)

    async with running(node(database, "a", tmp_path)):
        assert [(what, at) for what, at in stored_times(database) if abs(at) > 200] == []


def set_machine(monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    """Sets the wall clock of this machine only."""

    class Machine:
        def __getattr__(self, name: str) -> Any:
            return getattr(time, name)

        def time_ns(self) -> int:
            return time.time_ns() + ahead * 1_000_000_000

    for module in ("nextslot.system.clock", "nextslot.store.postgres.lease_and_leader"):
        monkeypatch.setattr(f"{module}.time", Machine())


def test_what_a_node_runs_keeps_its_time_when_the_servers_clock_steps_and_the_rest_follows_it(
    database: str, tmp_path: Path
) -> None:
    class Server(SharedClock):
        """A server whose clock is set by so many microseconds."""

        step = 0

        def adjust(self, server: int, sent: float, received: float) -> None:
            super().adjust(server + self.step, sent, received)

    async def main() -> None:
        clock = Server()
        a = node(database, "a", tmp_path, clock=clock)
        async with running(a):
            bounded = await a.submit("work", {"seconds": 1000}, timeout_seconds=600)
            await a.submit("fail", retry_policy=RetryPolicy(max_attempts=1, base_delay_seconds=600))
            await eventually(lambda: has_retry(a))
            before = due_times(database)
            for step in (7200 * SECOND, -3600 * SECOND):
                clock.step = step
                await eventually(lambda step=step: followed(a, database, before, step))  # type: ignore[misc]
                assert (await a.job(bounded.job_id)).status == "RUNNING"

    asyncio.run(main())


async def has_retry(scheduler: Scheduler) -> bool:
    return len(await scheduler.queue()) == 1


async def followed(scheduler: Scheduler, address: str, before: tuple[int, int], step: int) -> bool:
    await scheduler.process()  # A step is followed by the next transaction; if there is none, within a minute.
    timeout_at, scheduled_for = due_times(address)
    return abs(timeout_at - before[0] - step) < SECOND and scheduled_for == before[1]


def due_times(address: str) -> tuple[int, int]:
    """Returns when the running work times out, and when the retry that no node has taken yet is due."""
    with psycopg.connect(address) as connection:
        row = connection.execute(
            "select (select timeout_at from runs where status is null and timeout_at is not null), "
            "(select scheduled_for from jobs where retry_of is not null)"
        ).fetchone()
    assert row is not None
    return row[0], row[1]
