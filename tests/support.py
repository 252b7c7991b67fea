"""Shared by tests of the engine: a scheduler on virtual time, and handlers that follow their parameters."""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw

from nextslot import (
    Fail,
    Job,
    Scheduler,
    Skip,
    testing,
)
from nextslot.domain import Actor, Event, RequestContext
from nextslot.scheduler import Services
from tests import databases

# `./test --all`, as in CI.
IS_ALL = bool(os.environ.get("NEXTSLOT_TEST_ALL"))


@asynccontextmanager
async def running_scheduler(directory: Path, **options: Any) -> AsyncIterator[Scheduler]:
    """Runs a scheduler that has the handlers below."""
    async with new_scheduler(directory, **options) as scheduler:
        yield scheduler


def new_scheduler(directory: Path, **options: Any) -> Scheduler:
    options = {"is_threaded": databases.is_threaded(), **options}
    scheduler = testing.scheduler(directory, url=databases.url(directory), **options)
    register_handlers(scheduler)
    return scheduler


def register_handlers(scheduler: Scheduler) -> None:
    @scheduler.job_type("work")
    async def work(run: Any, seconds: float = 1, **anything: Any) -> Any:
        """Takes a while, and returns what it was given."""
        await asyncio.sleep(seconds)
        return anything or None

    @scheduler.job_type("fail")
    async def fail(run: Any, kind: str = "error", times: int = 1_000_000) -> Any:
        """A handler that fails the first times of a chain."""
        if run.attempt <= times:
            raise Fail(f"failed as asked, {kind}", kind)

    @scheduler.job_type("skip")
    async def skip(run: Any, reason: str = "nothing to do") -> Any:
        raise Skip(reason)

    @scheduler.job_type("stubborn")
    async def stubborn(run: Any, seconds: float = 100) -> Any:
        """A handler that ignores its signal until its time is over."""
        end = asyncio.get_running_loop().time() + seconds
        while (left := end - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue


def named(scheduler: Scheduler, name: str, action: str = "POST", **more: Any) -> Services:
    """Returns the services of a scheduler for a caller whom the audit log names."""
    actor = Actor(name=name, key_id=None, action=action, target="all")
    return scheduler.for_caller(RequestContext(actor=actor, **more))


async def states(scheduler: Scheduler, *jobs: Job) -> list[str]:
    return [(await scheduler.job(job.job_id)).status.value for job in jobs]


async def history(scheduler: Scheduler) -> list[Event]:
    """Returns every event so far."""
    from nextslot.store.tables import events

    return await scheduler._access.read(lambda tx: events.after(tx, 0, 1_000_000))


def database(directory: Path) -> Any:
    """Opens another connection to the same database, for plain SQL: with SQLite's driver, or one with the same
    interface.
    """
    return databases.plain(directory)


@asynccontextmanager
async def counted_scheduler(directory: Path, **options: Any) -> AsyncIterator[Scheduler]:
    """Runs a scheduler as `running_scheduler` does; at the end the stored counters must be right."""
    async with running_scheduler(directory, **options) as scheduler:
        yield scheduler
    assert_counters(directory)


def assert_counters(directory: Path) -> None:
    """Checks that every stored counter (of lanes: ready, is_open and the sums; limits.used) matches the jobs."""
    connection = database(directory)
    ready: dict[int, int] = dict(_rows(connection, _READY))
    running: dict[int, int] = dict(_rows(connection, _RUNNING))
    limits = {key: (capacity, count) for key, capacity, count in _rows(connection, "select * from limits")}
    lanes = _rows(
        connection,
        "select lane_id, local, shared, ready, is_open, is_paused, office_id, class_key, first_rank, first_position "
        "from lanes join offices using (office_id)",
    )
    firsts = {lane_id: tuple(first) for lane_id, *first in _rows(connection, _FIRSTS)}
    sums, counted = set(_rows(connection, _SUMS)), set(_rows(connection, _COUNTED))
    connection.close()
    assert {row for row in sums if any(row[1:])} == counted
    used: dict[str, int] = {}
    for lane_id, local, shared, *_ in lanes:
        for key, units in {**json.loads(local), **json.loads(shared)}.items():
            if running.get(lane_id):
                used[key] = used.get(key, 0) + units * running[lane_id]

    assert {key: count for key, (_, count) in limits.items() if count} == used
    assert {lane_id: count for lane_id, _, _, count, *_ in lanes if count} == ready
    startable: dict[tuple[str, str], list[int]] = {}
    for _, local, _, count, is_open, is_paused, office_id, class_key, *_ in lanes:
        has_room = all(
            limits[key][0] == 0 or limits[key][0] - limits[key][1] >= units for key, units in json.loads(local).items()
        )
        if count > 0 and not is_paused and has_room:
            startable.setdefault((office_id, class_key), []).append(is_open)
        else:
            assert not is_open
    # One lane of each class is open for all that could start.
    assert all(sum(opened) == 1 for opened in startable.values()), startable
    for lane_id, *_, rank, position in lanes:
        assert (rank is None) == (lane_id not in firsts)
        assert rank is None or (rank, position) <= firsts[lane_id], f"lane {lane_id}"


_READY = """
    select lane_id, count(*) from jobs
    where stage = 'QUEUED' and unmet = 0 and is_due = 1 and is_turn = 1 group by lane_id
"""
_FIRSTS = """
    select lane_id, min(-priority), (
        select position from jobs first where first.lane_id = jobs.lane_id and stage = 'QUEUED' and unmet = 0
            and is_due = 1 and is_turn = 1
        order by priority desc, position limit 1)
    from jobs where stage = 'QUEUED' and unmet = 0 and is_due = 1 and is_turn = 1 group by lane_id
"""
# What an office's statistics are summed from, and the same by looking at every job.
_SUMS = """
    select office_id, sum(running), sum(chains), sum(completed), sum(skipped), sum(failed), sum(cancelled)
    from lanes group by office_id
"""
_COUNTED = """
    select jobs.office_id,
        sum(case when jobs.stage = 'RUNNING' and jobs.finished_at is null then 1 else 0 end),
        sum(case when jobs.retry_of is null then 1 else 0 end),
        sum(case when jobs.outcome = 'COMPLETED' then 1 else 0 end),
        sum(case when jobs.outcome = 'SKIPPED' then 1 else 0 end),
        sum(case when jobs.stage = 'RUNNING' and jobs.decision in ('permanent', 'cancelled') and later.job_id is null
            then 1 else 0 end),
        sum(case when jobs.stage = 'CANCELLED' and later.job_id is null then 1 else 0 end)
    from jobs left join jobs later on later.retry_of = jobs.job_id group by jobs.office_id
"""
_RUNNING = "select lane_id, count(*) from jobs where stage = 'RUNNING' and finished_at is null group by lane_id"


def peaks(directory: Path) -> dict[str, int]:
    """Returns the most units of each limit that were ever in use at once, computed from the stored starts and ends
    alone.
    """
    connection = database(directory)
    spans = _rows(
        connection,
        "select started_at, finished_at, local, shared from jobs join lanes using (lane_id) "
        "where worker_id is not null",
    )
    connection.close()
    moments = []
    for started_at, finished_at, local, shared in spans:
        for key, units in {**json.loads(local), **json.loads(shared)}.items():
            moments += [(started_at, 1, units, key), (finished_at or 1 << 62, 0, -units, key)]
    now: dict[str, int] = {}
    most: dict[str, int] = {}
    for _, _, units, key in sorted(moments):
        now[key] = now.get(key, 0) + units
        most[key] = max(most.get(key, 0), now[key])
    return most


def _rows(connection: Any, sql: str) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = connection.execute(sql).fetchall()
    return rows


async def queued_ids(scheduler: Scheduler, office_id: str = "default") -> list[str]:
    """Returns the office's queue in order."""
    return [job.job_id for job in await scheduler.queue(office_id, limit=1_000_000)]


async def started_order(scheduler: Scheduler) -> list[str]:
    """Returns the jobs in the order in which they were started."""
    return [event.job_id or "" for event in await history(scheduler) if event.type == "job_started"]


class Steps:
    """How much SQLite has worked: the steps of its virtual machine, which are the same on every machine."""

    def __init__(self) -> None:
        assert databases.kind() == "sqlite", "mark it: pytest.mark.sqlite_only('counts the steps of its machine')"
        self.taken = 0

    def watch(self, connection: apsw.Connection) -> None:
        """Counts what this connection does from now on; can be used in `apsw.connection_hooks` too."""
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._count)

    def _count(self, statement: dict[str, Any]) -> None:
        self.taken += statement["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]


def steps_of(scheduler: Scheduler) -> Steps:
    """Counts what a running scheduler's writing connection does from now on."""
    steps = Steps()
    steps.watch(scheduler._access.store._writer)  # type: ignore[attr-defined]
    return steps


def processes_of(directory: Path) -> list[int]:
    """Returns the live processes of commands whose artifacts are below a directory, by their environment."""
    mark = f"NEXTSLOT_ARTIFACTS={directory}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


async def eventually(is_so: Callable[[], object], seconds: float = 60) -> None:
    """Waits in real time, for what other processes do."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it did not come about"
        await asyncio.sleep(0.02)


def environment_of_copy(place: Path, **more: str) -> dict[str, str]:
    """Returns the environment of a process that uses the copy of the package in this directory. Coverage is off: lines
    of a copy would count as lines of the package that no other test runs.
    """
    return {**without_coverage(), "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1", **more}


def without_coverage() -> dict[str, str]:
    """Returns the environment of a process whose coverage is not measured."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "COVERAGE_"))}
