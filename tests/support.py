"""What tests of the engine share: a scheduler on virtual time, and handlers that do as they are told."""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw

from nextslot import Fail, Job, Scheduler, Skip, testing
from nextslot.model import Event

Main = Callable[[Scheduler], Awaitable[None]]


def with_scheduler(directory: Path, main: Main, **options: Any) -> None:
    """Runs `main` with a started scheduler that has the handlers below, on virtual time."""

    async def body() -> None:
        scheduler = new_scheduler(directory, **options)
        async with scheduler:
            await main(scheduler)

    testing.run(body())


def new_scheduler(directory: Path, **options: Any) -> Scheduler:
    scheduler = testing.scheduler(directory, **options)
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
        """Fails the first so many times of a chain."""
        if run.attempt <= times:
            raise Fail(f"failed as asked, {kind}", kind)

    @scheduler.job_type("skip")
    async def skip(run: Any, reason: str = "nothing to do") -> Any:
        raise Skip(reason)

    @scheduler.job_type("stubborn")
    async def stubborn(run: Any, seconds: float = 100) -> Any:
        """Ignores its signal until its time is up."""
        end = asyncio.get_running_loop().time() + seconds
        while (left := end - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue


async def states(scheduler: Scheduler, *jobs: Job) -> list[str]:
    return [(await scheduler.job(job.job_id)).state.value for job in jobs]


async def history(scheduler: Scheduler) -> list[Event]:
    """Every event so far."""
    from nextslot.store import events

    return await scheduler._access.read(lambda tx: events.after(tx, 0, 1_000_000))


def database(directory: Path) -> apsw.Connection:
    """Another connection to the same file, for plain SQL."""
    return apsw.Connection(str(directory / "nextslot.db"))


def with_counts(directory: Path, main: Main, **options: Any) -> None:
    """As `with_scheduler`; and in the end the stored counters are right."""
    with_scheduler(directory, main, **options)
    assert_counters(directory)


def assert_counters(directory: Path) -> None:
    """Every stored counter (lanes.ready, lanes.is_open, limits.used) says what the jobs themselves say."""
    connection = database(directory)
    ready: dict[int, int] = dict(_rows(connection, _READY))
    used: dict[str, int] = dict(_rows(connection, _USED))
    limits = {key: (capacity, count) for key, capacity, count in _rows(connection, "select * from limits")}
    lanes = _rows(
        connection, "select lane_id, local, ready, is_open, is_paused from lanes join offices using (office_id)"
    )
    connection.close()

    assert {key: count for key, (_, count) in limits.items() if count} == used
    assert {lane_id: count for lane_id, _, count, _, _ in lanes if count} == ready
    for lane_id, local, count, is_open, is_paused in lanes:
        has_room = all(
            limits[key][0] == 0 or limits[key][0] - limits[key][1] >= units for key, units in json.loads(local).items()
        )
        assert is_open == (count > 0 and not is_paused and has_room), f"lane {lane_id}"


_READY = """
    select lane_id, count(*) from jobs
    where status = 'QUEUED' and unmet = 0 and is_due = 1 and is_turn = 1 group by lane_id
"""
_USED = """
    select needs.key, sum(needs.value) from jobs join lanes using (lane_id), json_each(json_patch(local, shared)) needs
    where status = 'RUNNING' and finished_at is null group by needs.key
"""


def peaks(directory: Path) -> dict[str, int]:
    """The most units of each limit that were ever in use at once, from the stored starts and ends alone."""
    connection = database(directory)
    moments = _rows(
        connection,
        """
        select coalesce(finished_at, 1 << 62), 0, -needs.value, needs.key
        from jobs join lanes using (lane_id), json_each(json_patch(local, shared)) needs where worker_id is not null
        union all
        select started_at, 1, needs.value, needs.key
        from jobs join lanes using (lane_id), json_each(json_patch(local, shared)) needs where worker_id is not null
        order by 1, 2
        """,
    )
    connection.close()
    now: dict[str, int] = {}
    most: dict[str, int] = {}
    for _, _, units, key in moments:
        now[key] = now.get(key, 0) + units
        most[key] = max(most.get(key, 0), now[key])
    return most


def _rows(connection: apsw.Connection, sql: str) -> list[tuple[Any, ...]]:
    return connection.execute(sql).fetchall()


async def queued_ids(scheduler: Scheduler, office_id: str = "default") -> list[str]:
    """The office's queue in its order."""
    return [job.job_id for job in await scheduler.queue(office_id, limit=1_000_000)]


async def started_order(scheduler: Scheduler) -> list[str]:
    """The jobs in the order in which they were started."""
    return [event.job_id or "" for event in await history(scheduler) if event.type == "job_started"]


class Steps:
    """How much SQLite has worked: the steps of its virtual machine, which are the same on every machine."""

    def __init__(self) -> None:
        self.taken = 0

    def watch(self, connection: apsw.Connection) -> None:
        """From now on what this connection does is counted; fit for `apsw.connection_hooks` too."""
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._count)

    def _count(self, statement: dict[str, Any]) -> None:
        self.taken += statement["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]


def steps_of(scheduler: Scheduler) -> Steps:
    """Counts what a running scheduler's writing connection does from now on."""
    steps = Steps()
    steps.watch(scheduler._access.store._writer)  # type: ignore[attr-defined]
    return steps


def processes_of(directory: Path) -> list[int]:
    """The live processes of commands whose artifacts go below a directory: their environment says so."""
    mark = f"NEXTSLOT_ARTIFACTS={directory}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


async def eventually(is_so: Callable[[], object], seconds: float = 15) -> None:
    """Waits in real time, for what other processes do."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it did not come about"
        await asyncio.sleep(0.02)
