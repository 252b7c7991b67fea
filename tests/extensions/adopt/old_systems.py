"""Fixtures of the two old systems, in the forms that `docs/adopting.md` describes: what is assumed of them is here."""

import json
from pathlib import Path
from typing import Any

import apsw
import psycopg

TALE = "The lamp went out at midnight, and the keeper climbed the stairs alone. " * 6
CARD = {
    "card_id": "RC-20260118-090000",
    "title": "Lighthouse keepers",
    "topic": "lighthouse keepers at night",
    "tags": ["sea"],
    "summary": "Keepers lived alone for weeks, and logged each night by hand.",
    "key_concepts": ["isolation", "logbooks"],
    "applications": ["a story told by a logbook"],
    "model": "qwen3:30b",
    "created_at": "2026-01-18T09:05:00",
}
STORY_JOB = {
    "job_id": "0f8fad5b-d9cb-469f-a165-70867728950e",
    "type": "story_generation",
    "status": "succeeded",
    "params": {"max_stories": 1, "enable_dedup": True, "db_path": "/old/db", "target_length": 900, "tags": ["sea"]},
    "pid": 4711,
    "log_path": "logs/x.log",
    "artifacts": ["data/stories/20260118_101500.md"],
    "created_at": "2026-01-18T10:00:00",
    "started_at": "2026-01-18T10:00:01",
    "finished_at": "2026-01-18T10:15:00",
    "exit_code": 0,
    "error": None,
    "webhook_url": None,
    "webhook_events": ["succeeded"],
    "webhook_sent": False,
}


def old_job(job_id: str, status: str, **changes: Any) -> dict[str, Any]:
    return {**STORY_JOB, "job_id": job_id, "status": status, "params": {"max_stories": 1}, "artifacts": [], **changes}


JOBS = (
    STORY_JOB,
    old_job("j-research", "succeeded", type="research", params={"topic": "lighthouse keepers at night"},
            artifacts=["data/research/RC-20260118-090000.json"], created_at="2026-01-18T09:00:00",
            started_at="2026-01-18T09:00:01", finished_at="2026-01-18T09:05:00"),
    old_job("j-failed", "failed", exit_code=1, error="model not found"),
    old_job("j-skipped", "skipped", error="duplicate"),
    old_job("j-running", "running", finished_at=None, exit_code=None),
    old_job("j-cancelled", "cancelled", exit_code=-15),
    old_job("j-never", "cancelled", started_at=None, exit_code=None),
    old_job("j-queued", "queued", started_at=None, finished_at=None, exit_code=None,
            webhook_url="http://127.0.0.1:9/hook"),
    old_job("b-1", "succeeded"),
    old_job("b-2", "failed", exit_code=1, error="no"),
    old_job("j-strange", "paused"),
)  # fmt: skip
STORIES = {
    "20260118_101500.md": f"# The lamp\n\n{TALE}",
    "20260117_080000.md": f"# Alone\n\n{TALE.replace('lamp', 'storm').replace('keeper', 'captain')}",
}


def story_service(directory: Path) -> Path:
    """Makes the directory of an old story service: eleven jobs, a batch, two stories, a lost one, a research card."""
    for name in ("jobs", "batches", "stories", "research_cards"):
        (directory / name).mkdir(parents=True)
    for job in JOBS:
        (directory / "jobs" / f"{job['job_id']}.json").write_text(json.dumps(job))
    (directory / "jobs" / "broken.json").write_text("{")
    batch = {"batch_id": "batch-7", "job_ids": ["b-1", "b-2", "b-lost"], "created_at": "2026-01-18T10:00:00"}
    (directory / "batches" / "batch-7.json").write_text(json.dumps(batch))
    for name, text in STORIES.items():
        (directory / "stories" / name).write_text(text)
    about = {"story_id": "20260118_101500", "model": "qwen3:30b", "generated_at": "2026-01-18T10:15:00"}
    (directory / "stories" / "20260118_101500.json").write_text(json.dumps(about))
    (directory / "research_cards" / "RC-20260118-090000.json").write_text(json.dumps(CARD))
    registry = apsw.Connection(str(directory / "story_registry.db"))
    registry.execute("create table stories (story_id, title, file_path, topic, model, created_at, signature)")
    rows = [
        ("20260118_101500", "The lamp", "data/stories/20260118_101500.md", "lighthouses", None, None, "abc"),
        ("20260101_000000", "Gone", "data/stories/20260101_000000.md", None, None, "2026-01-01T00:00:00", "def"),
    ]
    registry.executemany("insert into stories values (?, ?, ?, ?, ?, ?, ?)", rows)
    registry.close()
    return directory


SCHEMA = """
create table job_queue (
    id uuid primary key default gen_random_uuid(), office_id varchar(100) not null, task_id varchar(100),
    role varchar(20), description text not null, status varchar(20) not null default 'pending', prio int default 0,
    depends_on uuid[] default '{}', params jsonb, branch text, created_at timestamp default now(),
    started_at timestamp, completed_at timestamp, error_message text,
    retry_count int default 0, timeout_ms int default 1800000, cancelled_at timestamptz
);
create table job_executions (
    id uuid primary key default gen_random_uuid(), job_id uuid references job_queue(id) on delete cascade,
    attempt int not null default 1, started_at timestamptz not null default now(), timeout_at timestamptz not null,
    completed_at timestamptz, session_id varchar(100), status varchar(20) not null default 'running',
    error_message text, created_at timestamptz default now()
);
"""
OFFICE = "web"


def uid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012}"


# (number, status, depends_on, executions as (status, error))
OFFICE_JOBS: tuple[tuple[int, str, tuple[int, ...], tuple[tuple[str, str | None], ...]], ...] = (
    (1, "done", (), (("timeout", None), ("completed", None))),
    (2, "done", (1,), (("completed", None),)),
    (3, "failed", (2,), (("failed", "no"), ("failed", "no"), ("failed", "never"))),
    (4, "pending", (3,), ()),
    (5, "ready", (2,), (("failed", "once"),)),
    (6, "processing", (), (("running", None),)),
    (7, "cancelled", (), (("cancelled", None),)),
    (8, "cancelled", (), ()),
    (9, "done", (), ()),
    (10, "pending", (11,), ()),
    (11, "pending", (10,), ()),
    (12, "sleeping", (), ()),
)


def office_database(address: str) -> None:
    """Makes the tables of an old office scheduler, with twelve jobs; `prio` is our `priority`."""
    with psycopg.connect(address) as connection:
        connection.execute(SCHEMA)
        for number, status, others, executions in OFFICE_JOBS:
            minute = f"2026-01-18 10:{number:02}"
            connection.execute(
                "insert into job_queue (id, office_id, task_id, role, description, status, prio, depends_on, params,"
                " created_at, completed_at, cancelled_at) values (%s, %s, 't', 'FE', %s, %s, %s, %s, '{\"n\": 1}',"
                " %s, %s, %s)",
                (uid(number), OFFICE, f"job {number}", status, number, [uid(one) for one in others], f"{minute}:00",
                 f"{minute}:50" if status in ("done", "failed") else None,
                 f"{minute}:55+00" if status == "cancelled" else None),
            )  # fmt: skip
            for attempt, (ended, error) in enumerate(executions, 1):
                began = f"{minute}:{attempt * 10:02}+00"
                connection.execute(
                    "insert into job_executions (id, job_id, attempt, started_at, timeout_at, completed_at, session_id,"
                    " status, error_message) values (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
                    (uid(number * 100 + attempt), uid(number), attempt, began, f"{minute}:59+00",
                     None if ended == "running" else f"{minute}:{attempt * 10 + 5:02}+00", f"s{attempt}", ended, error),
                )  # fmt: skip


def contents(address: str) -> list[Any]:
    with psycopg.connect(address) as connection:
        found = [connection.execute(f"select * from {name} order by id").fetchall() for name in
                 ("job_queue", "job_executions")]  # fmt: skip
        return [*found]


def files(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
