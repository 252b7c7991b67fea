"""Measures a move from SQLite to PostgreSQL and back, for a database with many jobs, most of them ended.

    uv run python bench/move.py [--jobs 100000] [--url postgresql://…]

The jobs have a history as real ones do: nine of ten have run (a run and four events each), one of ten waits. Without
--url the script starts a server of its own, with fsync on. TMPDIR chooses the disk. Wall and processor seconds are
those of this process, without the PostgreSQL server's. Prints a line of JSON for each of the four steps.
"""

import argparse
import asyncio
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from nextslot import NewJob, Scheduler
from nextslot.store.open_store import load_export, write_export
from tests.postgres import Server

BATCH = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--url", help="An empty database; its schema public is emptied.")
    chosen = parser.parse_args()
    server = None if chosen.url else Server(shared_buffers="128MB")
    try:
        with tempfile.TemporaryDirectory() as directory:
            measure(Path(directory), chosen.jobs, chosen.url or server.url())  # type: ignore[union-attr]
    finally:
        if server is not None:
            server.remove()


def measure(directory: Path, jobs: int, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("drop schema public cascade; create schema public")
    first, second = f"sqlite:///{directory}/nextslot.db", f"sqlite:///{directory}/back.db"
    there, back = directory / "there.gz", directory / "back.gz"
    asyncio.run(fill(first, jobs))
    steps: list[tuple[str, Callable[[Any], Any], Path]] = [
        ("export from SQLite", lambda told: write_export(first, there, told), there),
        ("import into PostgreSQL", lambda told: load_export(there, url, told), there),
        ("export from PostgreSQL", lambda told: write_export(url, back, told), back),
        ("import into SQLite", lambda told: load_export(back, second, told), back),
    ]
    for name, step, file in steps:
        print(json.dumps({"step": name, "jobs": jobs, **timed(step), "file_mb": round(file.stat().st_size / 1e6, 1)}))
        sys.stdout.flush()
    print(json.dumps({"same_bytes": there.read_bytes() == back.read_bytes()}))


def timed(step: Callable[[Any], Any]) -> dict[str, Any]:
    phases: dict[str, list[float]] = {}

    def told(doing: str, table: str, done: int, rows: int) -> None:
        now = time.perf_counter()
        phases.setdefault(doing, [now, now])[1] = now

    began, used = time.perf_counter(), processor()
    moved = step(told)
    seconds = time.perf_counter() - began
    return {
        "rows": moved.rows,
        "findings": list(moved.findings)[:3],
        "seconds": round(seconds, 1),
        "cpu_seconds": round(processor() - used, 1),
        "rows_per_second": round(moved.rows / seconds),
        "phases": {doing: round(end - start, 1) for doing, (start, end) in phases.items()},
    }


def processor() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def fill(url: str, jobs: int) -> None:
    """Makes waiting jobs, then turns most of them into ended ones, with runs and events."""
    scheduler = Scheduler(url)

    @scheduler.job_type("work")
    async def work(run: Any, n: int, text: str) -> None: ...

    async with scheduler:
        await scheduler.pause()
        for start in range(0, jobs, BATCH):
            params = [
                {"n": n, "text": "some words that a job was given to work with"} for n in range(start, start + BATCH)
            ]
            await scheduler.submit_many([NewJob(job_type="work", params=one) for one in params[: jobs - start]])
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    with connection:
        for statement in _RAN:
            connection.execute(statement)
    connection.close()


# The rows that nine of ten jobs leave after a run, as a real run writes them.
_RAN = (
    "insert into maintenance (reason, never) values ('bench', 1)",
    "create temp table ran as select job_id, params, created_at from "
    "(select *, row_number() over (order by job_id) as number from jobs) where number % 10 <> 0",
    "insert into runs (run_id, job_id, params_snapshot, started_at) "
    "select 'r' || job_id, job_id, params, created_at + 1000 from ran",
    "update jobs set stage = 'RUNNING', started_at = created_at + 1000, worker_id = 'w' || job_id "
    "where job_id in (select job_id from ran)",
    "update runs set status = 'COMPLETED', finished_at = started_at + 5000, exit_code = 0, result = '{\"ok\":true}'",
    "update jobs set outcome = 'COMPLETED', finished_at = created_at + 6000 where job_id in (select job_id from ran)",
    "insert into events (type, office_id, job_id, run_id, details, timestamp) "
    "select 'job_started', 'default', job_id, 'r' || job_id, '{\"worker_id\":\"w\",\"attempt\":1}', created_at + 1000 "
    "from ran union all "
    "select 'run_ended', 'default', job_id, 'r' || job_id, '{\"status\":\"COMPLETED\"}', created_at + 6000 from ran "
    "union all select 'job_completed', 'default', job_id, 'r' || job_id, '{}', created_at + 6000 from ran",
    "update lanes set ready = ready - (select count(*) from ran), completed = (select count(*) from ran), "
    "completion_us = (select sum(finished_at - started_at) from jobs where outcome = 'COMPLETED')",
    "delete from maintenance",
)


if __name__ == "__main__":
    main()
