"""What must hold of a database file at any moment, also the moment after a kill: read with plain SQL, judged here.

`Evidence` is what is found on disk; `Judge` sees it again after each kill and names every law that was broken.
"""

import heapq
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from tests import databases

IS_QUEUED = "stage = 'QUEUED'"
IS_READY = "stage = 'QUEUED' and unmet = 0 and is_due = 1 and is_turn = 1"
IS_RUNNING = "stage = 'RUNNING' and finished_at is null"
UNMET_EDGES = "select count(*) from dependencies where dependencies.job_id = jobs.job_id and is_met = 0"
END_EVENTS = {"job_completed", "job_failed", "job_timeout", "job_skipped", "job_cancelled"}


class Broken(NamedTuple):
    law: str
    how: str


class StoredJob(NamedTuple):
    job_id: str
    retry_of: str | None
    stage: str
    outcome: str | None
    decision: str | None
    priority: int
    position: int
    created_at: int
    started_at: int | None
    finished_at: int | None
    worker_id: str | None
    run_id: str | None
    run_status: str | None
    run_started_at: int | None
    run_finished_at: int | None
    failure_kind: str | None

    @property
    def is_running(self) -> bool:
        return self.stage == "RUNNING" and self.finished_at is None

    @property
    def place(self) -> tuple[int, int, int, str]:
        return -self.priority, self.position, self.created_at, self.job_id


class StoredEvent(NamedTuple):
    seq: int
    type: str
    job_id: str | None
    run_id: str | None


@dataclass(frozen=True)
class Evidence:
    jobs: dict[str, StoredJob]
    events: list[StoredEvent]
    miscounted: list[str]
    executions: list[tuple[str, str]]
    acknowledged: list[str]


def find(directory: Path) -> Evidence:
    """Reads the evidence on disk. Leaves the write-ahead log as the kill left it: the next life must cope with it."""
    connection = databases.plain(directory)
    if isinstance(connection, apsw.Connection):
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    jobs = stored_jobs(connection)
    events = stored_events(connection)
    miscounted = list(miscounts(connection))
    connection.close()
    executions = (directory / "executions").read_text().splitlines()
    return Evidence(
        jobs,
        events,
        miscounted,
        [(job_id, run_id) for job_id, run_id in map(str.split, executions)],
        (directory / "acknowledged").read_text().split(),
    )


def stored_jobs(connection: Any) -> dict[str, StoredJob]:
    found = _rows(
        connection,
        "select jobs.job_id, retry_of, jobs.stage, outcome, decision, priority, position, created_at,"
        " jobs.started_at, jobs.finished_at, worker_id, run_id, runs.status, runs.started_at, runs.finished_at,"
        " failure_kind from jobs left join runs using (job_id)",
    )
    return {job.job_id: job for job in map(StoredJob._make, found)}


def stored_events(connection: Any) -> list[StoredEvent]:
    return [StoredEvent(*row) for row in _rows(connection, "select seq, type, job_id, run_id from events order by seq")]


def miscounts(connection: Any) -> Iterator[str]:
    """Finds stored counters that differ from the jobs."""
    ready = dict(_rows(connection, f"select lane_id, count(*) from jobs where {IS_READY} group by 1"))
    running = dict(_rows(connection, f"select lane_id, count(*) from jobs where {IS_RUNNING} group by 1"))
    used: Counter[str] = Counter()
    for lane_id, stored, local, shared in _rows(connection, "select lane_id, ready, local, shared from lanes"):
        if stored != ready.get(lane_id, 0):
            yield f"lane {lane_id}: {stored} ready stored, {ready.get(lane_id, 0)} are"
        for key, units in {**json.loads(local), **json.loads(shared)}.items():
            used[key] += units * running.get(lane_id, 0)
    for key, stored in _rows(connection, "select limit_key, used from limits"):
        if stored != used[key]:
            yield f"limit {key}: {stored} stored, {used[key]} running"
    yield from _misjudged_lanes(connection)
    waiting = _rows(connection, f"select job_id, unmet, ({UNMET_EDGES}) as edges from jobs where {IS_QUEUED}")
    for job_id, unmet, edges in waiting:
        if unmet != edges:
            yield f"job {job_id} waits for {edges}, and {unmet} are stored"


def _misjudged_lanes(connection: Any) -> Iterator[str]:
    """Finds lanes with a wrong `is_open`, `first_rank` or `first_position`. Of the lanes of a class that have ready
    jobs, and whose office is not paused and has room for one more of them, one is open. A stored first place is not
    behind the first ready job.
    """
    limits = _rows(connection, "select limit_key, capacity, used from limits")
    room = {key: capacity - used if capacity else 2**31 for key, capacity, used in limits}
    columns = "lane_id, office_id, class_key, is_open, ready, is_paused, local"
    lanes = f"select {columns} from lanes join offices using (office_id)"
    startable: Counter[tuple[str, str]] = Counter()
    opened: Counter[tuple[str, str]] = Counter()
    for lane_id, office_id, class_key, is_open, ready, is_paused, local in _rows(connection, lanes):
        has_room = all(room[key] >= units for key, units in json.loads(local).items())
        can_start = ready > 0 and not is_paused and has_room
        startable[office_id, class_key] += can_start
        opened[office_id, class_key] += is_open
        if is_open and not can_start:
            yield f"lane {lane_id} is stored as open and is not"
    for of_class, count in startable.items():
        if opened[of_class] != min(count, 1):
            yield f"{opened[of_class]} lanes of {of_class} are open, and {count} could be"
    behind = f"""
        select lane_id from lanes where (first_rank is null) <> (ready = 0) or exists (
            select 1 from jobs where jobs.lane_id = lanes.lane_id and {IS_READY}
                and (-priority, position) < (first_rank, first_position))
    """
    for (lane_id,) in _rows(connection, behind):
        yield f"lane {lane_id} stands behind its first ready job"


def _rows(connection: Any, sql: str) -> list[Any]:
    rows: list[Any] = connection.execute(sql).fetchall()
    return rows


@dataclass
class Judge:
    """Knows what it saw after the kills before, so that nothing can vanish or change in silence."""

    limit: int
    before: Evidence | None = None
    interrupted: set[str] = field(default_factory=set)

    def judge(self, found: Evidence) -> list[Broken]:
        # Something has begun since the last kill, so recovery must be through.
        is_recovered = self.before is not None and len(found.executions) > len(self.before.executions)
        broken = [
            *lost(found, self.before),
            *doubled(found),
            *torn(found),
            *(unrecovered(found, self.interrupted) if is_recovered else ()),
            *unasked(found, self.interrupted),
            *replayed(found, self.limit),
            *crowded(found, self.limit),
            *untold(found.jobs, found.events),
            *(Broken("counters are what the jobs say", how) for how in found.miscounted),
        ]
        self.before = found
        self.interrupted |= {job.job_id for job in found.jobs.values() if job.is_running}
        return broken


def lost(found: Evidence, before: Evidence | None) -> Iterator[Broken]:
    for job_id in found.acknowledged:
        if job_id not in found.jobs:
            yield Broken("nothing acknowledged is ever lost", job_id)
    for job_id, job in before.jobs.items() if before else ():
        now = found.jobs.get(job_id)
        if now is None:
            yield Broken("no job is lost", job_id)
        elif job.finished_at is not None and now != job:
            yield Broken("what has ended never changes", f"{job} became {now}")


def doubled(found: Evidence) -> Iterator[Broken]:
    for job_id, times in Counter(job_id for job_id, _ in found.executions).items():
        if times > 1:
            yield Broken("no job runs twice", f"{job_id} ran {times} times")
    for job_id, run_id in found.executions:
        if job_id not in found.jobs or found.jobs[job_id].run_id != run_id:
            yield Broken("nothing runs before that is stored", f"{job_id} ran as {run_id}")
    began = {run_id for _, run_id in found.executions}
    for job in found.jobs.values():
        if job.run_status == "COMPLETED" and job.run_id not in began:
            yield Broken("nothing ends that did not begin", job.job_id)


def torn(found: Evidence) -> Iterator[Broken]:
    """Finds violations of spec 2.10: a job and its run start together and end together."""
    for job in found.jobs.values():
        mine = job.started_at, job.finished_at, job.outcome
        its_run = job.run_started_at, job.run_finished_at, job.run_status
        if (job.stage == "QUEUED") != (job.run_id is None) or mine != its_run:
            yield Broken("a job and its run start and end together", str(job))


def unrecovered(found: Evidence, interrupted: set[str]) -> Iterator[Broken]:
    """Finds jobs that a kill interrupted, but that did not fail for that reason or have no new job after them."""
    followed = Counter(job.retry_of for job in found.jobs.values())
    for job_id in interrupted:
        job = found.jobs[job_id]
        if (job.stage, job.outcome, job.failure_kind) != ("RUNNING", "FAILED", "crash"):
            yield Broken("an interrupted job is FAILED, kind crash", str(job))
        if followed[job_id] != 1:
            yield Broken("an interrupted job has one retry", f"{job_id} has {followed[job_id]}")


def unasked(found: Evidence, interrupted: set[str]) -> Iterator[Broken]:
    """Finds jobs that failed, were skipped, cancelled or retried for any other reason."""
    law = "nothing happens that nobody asked for"
    for job in found.jobs.values():
        if job.stage == "CANCELLED" or job.outcome == "SKIPPED":
            yield Broken(law, str(job))
        if job.outcome == "FAILED" and job.job_id not in interrupted:
            yield Broken(law, str(job))
        if job.retry_of is not None and job.retry_of not in interrupted:
            yield Broken(law, str(job))


def replayed(found: Evidence, limit: int) -> Iterator[Broken]:
    """Replays the events: each started job was the first of those queued at that moment (INV-004), and fitted."""
    queue: list[tuple[int, int, int, str]] = []
    running = 0
    for event in found.events:
        if event.type == "job_queued" and event.job_id in found.jobs:
            heapq.heappush(queue, found.jobs[event.job_id].place)
        elif event.type == "job_started":
            running += 1
            first = heapq.heappop(queue)[3] if queue else "nothing"
            if first != event.job_id:
                yield Broken("jobs start in the queue's order", f"{event}, and {first} was first")
                return
        elif event.type in END_EVENTS:
            running -= 1
        if running > limit:
            yield Broken("limits hold at every instant", f"{event} is one too many")
            return


def crowded(found: Evidence, limit: int) -> Iterator[Broken]:
    """Finds exceeded limits by the stored times: an end makes room for a start at the same instant."""
    steps = [(job.run_started_at, 1) for job in found.jobs.values() if job.run_started_at is not None]
    steps += [(job.run_finished_at, -1) for job in found.jobs.values() if job.run_finished_at is not None]
    running = 0
    for at, step in sorted(steps):
        running += step
        if running > limit:
            yield Broken("limits hold at every instant", f"{running} run at {at}")
            return


def untold(jobs: dict[str, StoredJob], events: list[StoredEvent]) -> Iterator[Broken]:
    """Finds changes without exactly one event, and gaps or repetitions in the numbers of events."""
    law = "events are complete"
    if [event.seq for event in events] != list(range(1, len(events) + 1)):
        yield Broken(law, "the numbers have gaps")
    told = Counter((event.job_id, "end" if event.type in END_EVENTS else event.type) for event in events)
    for job in jobs.values():
        counts = told[job.job_id, "job_queued"], told[job.job_id, "job_started"], told[job.job_id, "end"]
        # A skipped member of a group starts and ends at once, on no worker, and has only the event of its end.
        if counts != (1, job.worker_id is not None, job.finished_at is not None):
            yield Broken(law, f"{counts} for {job}")
    for event in events:
        of = jobs.get(event.job_id) if event.job_id is not None else None
        if (event.job_id is not None and of is None) or (event.run_id and (of is None or of.run_id != event.run_id)):
            yield Broken(law, f"{event} tells of something that is not there")


def unfinished(found: Evidence, jobs: int) -> Iterator[Broken]:
    """Checks at the end that there are as many chains as wanted jobs, and that the last job of each is COMPLETED."""
    law = "in the end every job has completed"
    roots = [job for job in found.jobs.values() if job.retry_of is None]
    if len(roots) != jobs:
        yield Broken(law, f"there are {len(roots)}")
    followed = {job.retry_of for job in found.jobs.values()}
    for job in found.jobs.values():
        if job.job_id not in followed and job.outcome != "COMPLETED":
            yield Broken(law, str(job))
