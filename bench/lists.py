"""Measures lists over a long history: the first and the last page, each filter, and bulk actions.

    uv run python bench/lists.py [--jobs 1000000] [--walked 100000]

The script writes the history into the file with plain SQL, since the engine would need ten minutes for it: one job in a
hundred failed, one was cancelled, one was skipped, the rest completed, over ten years. Times are medians of seven.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw

from nextslot import NewJob, Scheduler
from nextslot.domain.filters import EventFilter, JobFilter, RunFilter
from nextslot.store.sqlite import sqlite_store

ROUNDS = 7
QUEUED = 10_000

# Every hundredth job is of the small office, of a rare role, task and type; see the remainders below.
PLANT_JOBS = """
    with recursive numbers(n) as (select :first union all select n + 1 from numbers where n < :last),
    original as (select * from jobs order by created_at, job_id limit 1)
    insert into jobs (job_id, office_id, lane_id, job_type, params, stage, outcome, decision, priority, position,
        chain_id, unmet, is_due, is_turn, on_dependency_failure, role, task_id, title, resources, retry_policy,
        webhook_status, created_at, queued_at, started_at, finished_at, cancelled_at, cancel_reason)
    select printf('%08x-%04x-7000-8000-%012x', n / 65536, n % 65536, n),
        case when n % 1000 = 0 then 'small' else office_id end, lane_id,
        case when n % 1000 = 1 then 'rare' else job_type end, params,
        case when n % 100 = 2 then 'CANCELLED' else 'RUNNING' end,
        case n % 100 when 2 then null when 3 then 'FAILED' when 4 then 'SKIPPED' else 'COMPLETED' end,
        case when n % 100 = 3 then 'permanent' end, 0, n,
        printf('%08x-%04x-7000-8000-%012x', n / 65536, n % 65536, n), 0, 1, 1, 'wait',
        case when n % 1000 = 5 then 'QA' else 'FE' end, 'task ' || (n / 100), 'Job number ' || n, resources,
        retry_policy, 'none', n * 300000000, n * 300000000,
        case when n % 100 <> 2 then n * 300000000 + 1 end, n * 300000000 + 2,
        case when n % 100 = 2 then n * 300000000 + 2 end, case when n % 100 = 2 then 'planted' end
    from numbers, original
"""
PLANT_RUNS = """
    insert into runs (run_id, job_id, params_snapshot, status, started_at, finished_at, error, failure_kind)
    select job_id, job_id, params, outcome, started_at, finished_at, case when outcome = 'FAILED' then 'planted' end,
        case when outcome = 'FAILED' then 'error' end
    from jobs where outcome is not null and title is not null
"""
PLANT_EVENTS = """
    insert into events (type, office_id, job_id, details, timestamp)
    select 'job_queued', office_id, job_id, '{}', created_at from jobs where title is not null
"""


def new_scheduler(directory: Path) -> Scheduler:
    scheduler = Scheduler(f"sqlite:///{directory}/nextslot.db", synchronous="NORMAL")

    @scheduler.job_type("noop")
    async def noop(run: Any, **anything: Any) -> None:
        pass

    return scheduler


async def fill(directory: Path, jobs: int) -> None:
    async with new_scheduler(directory) as scheduler:
        await scheduler.offices.create("small")
        await scheduler.wait((await scheduler.submit("noop")).job_id)
    connection = apsw.Connection(str(directory / "nextslot.db"))
    connection.pragma("temp_store", 2)
    with connection:
        connection.execute("insert into maintenance values ('bench', 1)")
        for first in range(1, jobs + 1, 100_000):
            connection.execute(PLANT_JOBS, {"first": first, "last": min(first + 99_999, jobs)})
        connection.execute(PLANT_RUNS)
        connection.execute(PLANT_EVENTS)
        connection.execute("delete from maintenance")
    connection.pragma("wal_checkpoint(truncate)")
    connection.close()


async def timed(ask: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
    """Returns the milliseconds that a call took, and its last answer."""
    seconds: list[float] = []
    answer: Any = None
    for _ in range(ROUNDS):
        began = time.perf_counter()
        answer = await ask()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) * 1000, answer


async def depth(scheduler: Scheduler) -> None:
    first, page = await timed(lambda: scheduler.lists.jobs(limit=500))
    cursor, walked = page.next_cursor, len(page.items)
    began = time.perf_counter()
    last_cursor = cursor
    while cursor is not None:
        last_cursor = cursor
        page = await scheduler.lists.jobs(cursor=cursor, limit=500)
        walked, cursor = walked + len(page.items), page.next_cursor
        if len(page.items) == 500:
            deep = last_cursor
    seconds = time.perf_counter() - began
    last, _ = await timed(lambda: scheduler.lists.jobs(cursor=deep, limit=500))
    print(f"pages of 500: first {first:.2f} ms   last full one {last:.2f} ms   ratio {last / first:.2f}")
    print(f"the whole walk over {walked:,} jobs: {seconds:.1f} s", flush=True)


async def by_filter(scheduler: Scheduler, jobs: int) -> None:
    middle = jobs // 2
    an_id = f"{middle // 65536:08x}-{middle % 65536:04x}-7000-8000-{middle:012x}"
    filters: list[dict[str, Any]] = [
        {}, {"office_id": "default"}, {"office_id": "small"}, {"job_type": "rare"}, {"role": "QA"}, {"role": "FE"},
        {"task_id": f"task {middle // 100}"}, {"schedule_id": "none"}, {"template_id": "none"}, {"group_id": "none"},
        {"retry_of": an_id}, *({"status": status} for status in
            ("WAITING", "QUEUED", "RUNNING", "COMPLETED", "FAILED", "SKIPPED", "CANCELLED")),
        {"office_id": "small", "status": "FAILED"}, {"office_id": "default", "status": "FAILED"},
        {"role": "QA", "status": "FAILED"}, {"office_id": ["small", "default"], "job_type": ["rare", "noop"]},
        {"q": an_id}, {"q": "number 9"}, {"q": "not there"},
    ]  # fmt: skip
    for said in filters:
        ms, page = await timed(lambda: scheduler.lists.jobs(JobFilter(**said)))  # noqa: B023 - awaited here
        more = "" if page.next_cursor is None else "+"
        print(f"  jobs {said!s:<62} {ms:7.2f} ms   {len(page.items)}{more}", flush=True)


async def the_rest(scheduler: Scheduler, jobs: int) -> None:
    an_id = (await scheduler.lists.jobs(JobFilter(status="FAILED"), limit=1)).items[0].job.job_id
    asked: dict[str, Callable[[], Awaitable[Any]]] = {
        "runs": scheduler.lists.runs,
        "runs FAILED": lambda: scheduler.lists.runs(RunFilter(status="FAILED")),
        "runs of the small office": lambda: scheduler.lists.runs(RunFilter(office_id="small")),
        "events from the middle": lambda: scheduler.lists.events(jobs // 2),
        "events of a job": lambda: scheduler.lists.events(filter=EventFilter(job_id=an_id)),
        "events of the small office": lambda: scheduler.lists.events(filter=EventFilter(office_id="small")),
        "queue": scheduler.lists.queue,
        "status": scheduler.lists.status,
        "job": lambda: scheduler.lists.job(an_id),
    }
    for name, ask in asked.items():
        ms, _ = await timed(ask)
        print(f"  {name:<67} {ms:7.2f} ms", flush=True)


async def stability(scheduler: Scheduler, count: int) -> None:
    """Reads all pages of a list of this many jobs while others are added, run and cancelled; checks that it sees each
    job once.
    """
    await scheduler.resume()
    there = {one.job.job_id for one in await newest(scheduler, count)}
    seen: list[str] = []
    is_over = False

    async def meanwhile() -> int:
        rounds = 0
        while not is_over:
            made = await scheduler.submit_many([NewJob(job_type="noop")] * 20)
            await scheduler.bulk.cancel(JobFilter(q=made[-1].job_id))
            rounds += 1
        return rounds

    noise = asyncio.create_task(meanwhile())
    cursor = None
    while len(there.intersection(seen)) < len(there):
        page = await scheduler.lists.jobs(cursor=cursor, limit=500)
        seen += [one.job.job_id for one in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    is_over = True
    rounds = await noise
    once = len(seen) == len(set(seen))
    missed = len(there - set(seen))
    print(f"{len(there):,} jobs walked while {rounds * 20:,} came: {missed} missed, {'none' if once else 'SOME'} twice")


async def newest(scheduler: Scheduler, count: int) -> list[Any]:
    items: list[Any] = []
    cursor = None
    while len(items) < count:
        page = await scheduler.lists.jobs(cursor=cursor, limit=500)
        items += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    return items


async def in_bulk(scheduler: Scheduler) -> None:
    """Cancels many jobs while single jobs are submitted, and returns the longest wait of a submit."""
    await scheduler.pause()
    await scheduler.submit_many([NewJob(job_type="noop", task_id="bulk")] * 50_000)
    waits: list[float] = []
    is_over = False

    async def others() -> None:
        while not is_over:
            began = time.perf_counter()
            await scheduler.submit("noop")
            waits.append(time.perf_counter() - began)
            await asyncio.sleep(0.01)

    beside = asyncio.create_task(others())
    began = time.perf_counter()
    done = await scheduler.bulk.cancel(JobFilter(task_id="bulk"))
    seconds = time.perf_counter() - began
    is_over = True
    await beside
    print(f"{done.cancelled.count:,} jobs cancelled in {seconds:.1f} s; {len(waits)} others submitted meanwhile, "
          f"median {statistics.median(waits) * 1000:.1f} ms, longest {max(waits) * 1000:.0f} ms")  # fmt: skip


async def measure(directory: Path, jobs: int, walked: int) -> None:
    began = time.perf_counter()
    await fill(directory, jobs)
    print(f"{jobs:,} jobs planted in {time.perf_counter() - began:.0f} s", flush=True)
    async with new_scheduler(directory) as scheduler:
        await scheduler.pause()
        for _ in range(QUEUED // 10_000):
            await scheduler.submit_many([NewJob(job_type="noop")] * 10_000)
        await depth(scheduler)
        await by_filter(scheduler, jobs)
        await the_rest(scheduler, jobs)
        await in_bulk(scheduler)
        await stability(scheduler, walked)


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--jobs", type=int, default=1_000_000)
    arguments.add_argument("--walked", type=int, default=100_000)
    options = arguments.parse_args()
    print(f"SQLite {apsw.sqlite_lib_version()}, {sqlite_store.READERS} readers")
    with tempfile.TemporaryDirectory(prefix="nextslot-bench-") as made:
        asyncio.run(measure(Path(made), options.jobs, options.walked))


if __name__ == "__main__":
    main()
