"""Measures hand-overs of the engine, and of a raw apsw loop that does the same writes, in one run.

    uv run python bench/handover.py [--backlog 1000,100000,1000000] [--jobs 2000] [--rounds 3] [--slots 1]

A hand-over is one durable commit: it ends a run and its job, appends the events, and starts the next job with its run.
The gap is the time between the end of one handler and the start of the next. The files are in one temporary directory
(TMPDIR chooses the disk; a tmpfs makes fsync free). Compare within one run only.
"""

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import apsw
import uuid_utils

from nextslot import Limits, NewJob, Scheduler
from nextslot.domain.rollups import bucket
from nextslot.store import dialects

BATCH = 20_000


async def fill(directory: Path, jobs: int, slots: int) -> None:
    """Makes a backlog of no-ops with the engine itself; no job runs yet."""
    scheduler = new_scheduler(directory, synchronous="NORMAL")
    async with scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=slots)
        await scheduler.pause()
        for first in range(0, jobs, BATCH):
            count = min(BATCH, jobs - first)
            await scheduler.submit_many([NewJob(job_type="noop", params={"i": first + i}) for i in range(count)])


class Timed(Scheduler):
    """A scheduler whose jobs only record their times."""

    started: list[float]
    ended: list[float]
    done: asyncio.Event


def new_scheduler(directory: Path, jobs: int = 0, **options: Any) -> Timed:
    scheduler = Timed(f"sqlite:///{directory}/nextslot.db", limits=Limits(), **options)
    started, ended = scheduler.started, scheduler.ended = [], []
    done = scheduler.done = asyncio.Event()
    clock = time.perf_counter

    @scheduler.job_type("noop")
    async def noop(run: Any, i: int) -> None:
        started.append(clock())
        if len(started) == jobs:
            done.set()
        ended.append(clock())

    return scheduler


async def engine(directory: Path, jobs: int) -> dict[str, float]:
    scheduler = new_scheduler(directory, jobs)
    async with scheduler:
        await scheduler.resume()
        await scheduler.done.wait()
        await scheduler.pause()
    return summary(scheduler.started[:jobs], scheduler.ended[:jobs])


def raw(directory: Path, jobs: int) -> dict[str, float]:
    """Executes the same statements on the same schema, and nothing else."""
    sql = dialects.statements()
    connection = apsw.Connection(str(directory / "nextslot.db"), statementcachesize=512)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    pragmas = {
        "journal_mode": "wal",
        "synchronous": "full",
        "foreign_keys": 1,
        "recursive_triggers": 1,
        "temp_store": 2,
    }
    for pragma, value in pragmas.items():
        connection.pragma(pragma, value)
    lane_id = connection.execute("select lane_id from lanes").fetchall()[0][0]
    started: list[float] = []
    ended: list[float] = []
    claimed: tuple[str, str] | None = None
    for _ in range(jobs + 1):
        now = time.time_ns() // 1000
        connection.execute("begin immediate")
        events = []
        if claimed is not None:
            run_id, job_id = claimed
            connection.execute(sql["runs.finish"], {
                "run_id": run_id, "job_id": job_id, "status": "COMPLETED", "now": now, "exit_code": None, "error": None,
                "failure_kind": None, "reason": None, "log_path": None, "session_id": None, "result": None,
            })  # fmt: skip
            connection.execute(sql["jobs.succeed"], {"job_id": job_id, "now": now, "outcome": "COMPLETED"})
            events.append(event("job_completed", job_id, run_id, now))
        head: tuple[Any, ...] = connection.execute(sql["jobs.heads"], {"lane_id": lane_id, "limit": 1}).fetchall()[0]
        job_id = head[0]
        claimed = (str(uuid_utils.uuid7()), job_id)
        connection.execute(
            sql["runs.begin"],
            {
                "run_id": claimed[0],
                "job_id": job_id,
                "now": now,
                "session_id": None,
                "is_inside": 1,
                "devices": None,
            },
        )
        connection.execute(sql["jobs.start"], {"job_id": job_id, "worker_id": "local/slot-1", "now": now})
        events.append(event("job_started", job_id, claimed[0], now))
        connection.execute(sql["lanes.tally"], {
            "lane_id": lane_id, "ready": -1, "running": int(len(events) == 1), "chains": 0, "completed": 1,
            "skipped": 0, "failed": 0, "cancelled": 0, "completion_us": 100,
        })  # fmt: skip
        if len(events) > 1:
            connection.execute(sql["rollups.count"], {
                "minute": now // 60_000_000 * 60_000_000, "office_id": "default", "job_type": "noop", "kind": "job",
                "outcome": "COMPLETED", "wait": bucket(1_000_000), "duration": bucket(100), "jobs": 1,
            })  # fmt: skip
        connection.executemany(sql["events.append"], events)
        connection.execute("commit")
        started.append(time.perf_counter())
        ended.append(time.perf_counter())
    connection.close()
    return summary(started[:jobs], ended[:jobs])


def event(type: str, job_id: str, run_id: str, now: int) -> dict[str, object]:
    return {"type": type, "office_id": "default", "job_id": job_id, "run_id": run_id, "details": "{}", "timestamp": now}


def summary(started: list[float], ended: list[float]) -> dict[str, float]:
    gaps = sorted(start - end for end, start in zip(ended, started[1:], strict=False))
    seconds = ended[-1] - ended[0]
    return {
        "per_second": (len(ended) - 1) / seconds,
        "p50_ms": gaps[len(gaps) // 2] * 1000,
        "p99_ms": gaps[len(gaps) * 99 // 100] * 1000,
    }


def measure(backlog: int, jobs: int, slots: int, parent: Path) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory(dir=parent) as made:
        ours, theirs = Path(made, "engine"), Path(made, "raw")
        ours.mkdir()
        asyncio.run(fill(ours, backlog + jobs + 1, slots))
        shutil.copytree(ours, theirs)
        found = {"raw": raw(theirs, jobs)} if slots == 1 else {}
        return {**found, "engine": asyncio.run(engine(ours, jobs))}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--backlog", default="1000,100000,1000000")
    arguments.add_argument("--jobs", type=int, default=2000)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--slots", type=int, default=1)
    arguments.add_argument("--json", type=Path, help="where to keep the figures")
    options = arguments.parse_args()
    table = []
    with tempfile.TemporaryDirectory(prefix="nextslot-bench-") as parent:
        for backlog in map(int, options.backlog.split(",")):
            rounds = [measure(backlog, options.jobs, options.slots, Path(parent)) for _ in range(options.rounds)]
            for who in rounds[0]:
                row = {key: statistics.median(r[who][key] for r in rounds) for key in rounds[0][who]}
                table.append({"backlog": backlog, "who": who, **row})
                print(
                    f"backlog {backlog:>9,}  {who:<7} {row['per_second']:>7,.0f} hand-overs/s"
                    f"   gap p50 {row['p50_ms']:.3f} ms   p99 {row['p99_ms']:.2f} ms",
                    flush=True,
                )
    if options.json:
        options.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
