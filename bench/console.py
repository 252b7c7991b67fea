"""Measures each view of the console with an empty cache: what it weighs, and when it shows its data.

    uv run python bench/console.py [--jobs 1000000] [--save bench/results/DATE-console.json] [--check]

Starts a real server on a new database with that many jobs: nearly two thirds have ended, one in ten of them failed, the
others wait in the queue of an office that is paused. Jobs that ended have their runs, events, titles and failures. Most
are copies, in plain SQL, of some that the engine ran on virtual time, since it would need ten minutes for a million.

A view has a sign for each of its parts, an element that is there only when the data of that part is shown
(`tests/console/first_content.py`). `content` is when the first sign was there, `complete` when the last one was; the
weight is what went over the wire until then. `--check` fails if a view weighs more than 150 kB or shows its first
content after more than a second.
"""

import argparse
import asyncio
import concurrent.futures
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw

ROOT = Path(__file__).parents[1]
# Replaces this folder on the path: its `http.py` would hide the library's `http`.
sys.path[0] = str(ROOT)

from nextslot import NewJob, Scheduler, extension_api, testing  # noqa: E402
from nextslot.domain.filters import JobFilter  # noqa: E402
from nextslot.domain.rollups import HOUR, SECOND  # noqa: E402
from nextslot.executors.run_context import Fail, RunContext  # noqa: E402
from nextslot.server.app import Options  # noqa: E402
from nextslot.server.serve import Process  # noqa: E402
from nextslot.store.sqlite import sqlite_store  # noqa: E402
from nextslot.store.tables import search  # noqa: E402
from nextslot.system.clock import SystemClock  # noqa: E402
from tests.browser import open_browser  # noqa: E402
from tests.console.first_content import VIEWS, Visit, visit  # noqa: E402

BATCH = 50_000
LINES = 100_000
ORIGINALS = 400
MOST_BYTES, MOST_MS = 150_000, 1_000
NO_RETRY = {"max_attempts": 0}


def main() -> None:
    parser = argparse.ArgumentParser(description="The console's weight and speed.")
    parser.add_argument("--jobs", type=int, default=10_000, help="default: %(default)s; at least 2,000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--views", help="only views whose address contains this")
    parser.add_argument("--save", type=Path, help="a file for the figures, as JSON")
    parser.add_argument("--check", action="store_true", help="fail if a view is too heavy or too slow")
    options = parser.parse_args()
    if options.jobs < 2_000:
        parser.error("--jobs must be at least 2,000")
    with tempfile.TemporaryDirectory() as folder:
        _fill(Path(folder), options.jobs * 62 // 100)
        with _serving(Path(folder), options.jobs * 38 // 100) as (url, ids), open_browser() as browser:
            rows = [
                _measured(browser, url, view, ids, options.rounds)
                for view in VIEWS
                if not options.views or options.views in view
            ]
    found = {
        "measured_at": datetime.now(UTC).isoformat(timespec="minutes"), "jobs": options.jobs,
        "rounds": options.rounds, "cores": os.cpu_count(), "load_average": [round(one, 1) for one in os.getloadavg()],
        "views": rows,
    }  # fmt: skip
    if options.save:
        options.save.write_text(json.dumps(found, indent=1) + "\n")
    print(f"load {found['load_average']} on {found['cores']} cores")
    bad = [row for row in rows if row["bytes"] > MOST_BYTES or row["content_ms"] > MOST_MS]
    if bad:
        print("too heavy or too slow:", ", ".join(row["view"] for row in bad))
    if bad and options.check:
        raise SystemExit(1)


def _measured(browser: Any, url: str, view: str, ids: dict[str, str], rounds: int) -> dict[str, Any]:
    visits = [visit(browser, f"{url}/console/#/{view.format(**ids)}", VIEWS[view]) for _ in range(rounds)]
    middle = Visit(*(statistics.median(column) for column in zip(*visits, strict=True)))
    row: dict[str, Any] = {
        "view": view, "requests": round(middle.requests), "bytes": round(middle.bytes),
        "content_ms": round(middle.content_ms), "complete_ms": round(middle.complete_ms),
    }  # fmt: skip
    print(
        f"| `{view}` | {row['requests']} | {row['bytes'] / 1000:.0f} kB | {row['content_ms'] / 1000:.2f} s "
        f"| {row['complete_ms'] / 1000:.2f} s |",
        flush=True,
    )
    return row


# The database.


async def _ingest(run: RunContext, number: int) -> int:
    await asyncio.sleep(20 + number % 100)
    if number % 10 == 3:
        raise Fail(
            f"no connection to host {'abcdefghijklmnopqrstuvwxyz'[number // 10 % 26]} for part {number}", "error"
        )
    return number


def _fill(folder: Path, ended: int) -> None:
    """Makes a history: some jobs by the engine on virtual time, and so many copies of them."""
    began = time.monotonic()
    testing.run(_live(folder))
    with apsw.Connection(str(folder / "nextslot.db")) as connection:
        connection.pragma("foreign_keys", False)
        connection.execute("insert into maintenance values ('bench', 1)")
        _copy(connection, ended // ORIGINALS)
        search.fill(sqlite_store.SqliteTx(connection))
        connection.execute("delete from maintenance")
    with apsw.Connection(str(folder / "nextslot.db")) as connection:
        connection.execute("analyze")
        jobs: int = connection.execute("select count(*) from jobs").get
    print(f"{jobs:,} jobs have ended; made in {time.monotonic() - began:.0f} s", flush=True)


async def _live(folder: Path) -> None:
    clock = testing.VirtualClock(SystemClock().now().after(-30 * HOUR))
    scheduler = testing.scheduler(folder, clock=clock, extensions=extension_api.used_by_server())
    scheduler.job_types.add("ingest", _ingest, retry_policy=NO_RETRY)
    async with scheduler:
        for office_id in ("studio", "shop"):
            await scheduler.offices.create(office_id, max_concurrent_jobs=4)
        template = await scheduler.templates.create("import", "ingest", params={"number": 1})
        for number in range(20):
            await scheduler.schedules.create(f"import {number}", template.template_id, f"{number} */6 * * *")
        for number in range(ORIGINALS):
            office_id = ("studio", "shop")[number % 2]
            new: dict[str, Any] = {"title": f"Import orders {number}", "office_id": office_id}
            await scheduler.submit("ingest", {"number": number}, **new)
            await asyncio.sleep(200)
        members = [NewJob(job_type="ingest", params={"number": n}, key=f"k{n}", office_id="shop") for n in range(60)]
        await scheduler.submit_group(members, "parallel", name="sixty")
        await asyncio.sleep(2 * HOUR)


def _copy(connection: apsw.Connection, times: int) -> None:
    """Copies the ended jobs that stand alone, with their runs and events, so many times into the ten days before."""
    execute = connection.execute
    execute("create temp table originals as select job_id, row_number() over (order by created_at) as n from jobs "
            "where finished_at is not null and retry_of is null and group_id is null "
            "and schedule_id is null")  # fmt: skip
    execute("create temp table copies as with recursive numbers(k) as (select 1 union all select k + 1 from numbers "
            "where k < ?) select k, k * (864000000000 / ?) as earlier from numbers", (times, times))  # fmt: skip
    new_id = "printf('%08x-%04x-7000-8000-%012x', 16777216 + copies.k, 0, originals.n)"
    of_run = "printf('%08x-%04x-7000-9000-%012x', 16777216 + copies.k, 0, originals.n)"
    every = "join originals on originals.job_id = {0}.job_id, copies"
    changed = {"job_id": new_id, "chain_id": new_id, "run_id": of_run}
    moved = {"created_at", "queued_at", "started_at", "finished_at", "cancelled_at", "timeout_at", "timestamp"}

    def copy(table: str, without: tuple[str, ...] = ()) -> None:
        names = [row[1] for row in execute(f"pragma table_info({table})") if row[1] not in without]
        values = [
            changed.get(name) or f"{table}.{name}" + (" - copies.earlier" if name in moved else "") for name in names
        ]
        execute(f"insert into {table} ({', '.join(names)}) select {', '.join(values)} "
                f"from {table} {every.format(table)}")  # fmt: skip

    for table, without in (("jobs", ()), ("runs", ()), ("events", ("seq",))):
        copy(table, without)
    hour = HOUR * SECOND
    execute("delete from failure_hours")
    execute("insert into failure_hours (fingerprint, hour, failed) select fingerprint, finished_at / ? * ?, count(*) "
            "from jobs where fingerprint is not null group by 1, 2", (hour, hour))  # fmt: skip
    execute("update failures set total = total * ?, first_seen = first_seen - 864000000000", (times + 1,))
    execute("update rollups_recent set jobs = jobs * ?", (times,))


@contextmanager
def _serving(folder: Path, queued: int) -> Iterator[tuple[str, dict[str, str]]]:
    ready: concurrent.futures.Future[None] = concurrent.futures.Future()
    found: dict[str, Any] = {}

    async def talk(run: Any) -> None:
        run.log.info("\n".join(f"line {number} of the log of a job" for number in range(LINES)))

    async def ingest(run: Any, number: int) -> int:
        return number

    async def serve() -> None:
        scheduler = Scheduler(
            f"sqlite:///{folder}/nextslot.db", synchronous="NORMAL", extensions=extension_api.used_by_server()
        )
        # What schedules missed runs first.
        scheduler.job_types.add("ingest", ingest, retry_policy=NO_RETRY)
        scheduler.job_types.add("talk", talk)
        process = Process(scheduler, Options(), "127.0.0.1", 0)
        listening = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(process.run(listening.set_result))
        found.update(url=await listening, loop=asyncio.get_running_loop(), stop=process.stop)
        found["ids"] = await _furnish(scheduler, queued)
        ready.set_result(None)
        await task

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    ready.result()
    try:
        yield found["url"], found["ids"]
    finally:
        found["loop"].call_soon_threadsafe(found["stop"])
        thread.join()


async def _furnish(scheduler: Scheduler, queued: int) -> dict[str, str]:
    await scheduler.webhooks.create("http://127.0.0.1:9/hook")
    talkative = await scheduler.submit("talk", title="talkative")
    await scheduler.wait(talkative.job_id)
    await scheduler.run_direct("talk", {})
    await scheduler.pause(office_id="default")
    began = time.monotonic()
    made = []
    for start in range(0, queued, BATCH):
        numbers = range(start, min(queued, start + BATCH))
        made = await scheduler.submit_many([_job(number) for number in numbers])
    print(f"{queued:,} jobs are queued; made in {time.monotonic() - began:.0f} s", flush=True)
    failed = (await scheduler.lists.jobs(JobFilter(status="FAILED"), limit=1)).items[0].job
    return {
        "done": talkative.job_id,
        "failed": failed.job_id,
        "queued": made[-1].job_id,
        "rare": "talkative",
        "common": "orders",
        "type": "ingest",
        "office": "default",
        "schedule": (await scheduler.schedules.page(limit=1)).items[0].schedule_id,
        "group": (await scheduler.lists.groups(limit=1)).items[0].group_id,
    }


def _job(number: int) -> NewJob:
    return NewJob(job_type="ingest", params={"number": number}, title=f"Queued part {number:07}", priority=number % 7)


if __name__ == "__main__":
    main()
