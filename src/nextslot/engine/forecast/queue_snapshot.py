"""Snapshot: everything that decides when the next jobs of an office start, read in one transaction and bounded in size.

`forecast_simulator` simulates it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from nextslot.domain import GroupMode, Json, Node
from nextslot.domain.jobs import order_priority
from nextslot.domain.limits import UNLIMITED, ConcurrencyPolicy, is_local, resource_key
from nextslot.domain.run_estimates import linked
from nextslot.engine.effects import WorkKind
from nextslot.store.contract import Tx
from nextslot.store.tables import column_codec, forecast_reads
from nextslot.store.tables.forecast_reads import Rows
from nextslot.store.tables.lanes import Bound
from nextslot.system.instant import Instant

# How many jobs from the front of the office's queue a snapshot includes.
WINDOW = 1000
# How many jobs of all other offices that share a limit with the office a snapshot includes in total.
OTHERS = 3000
MOST_OFFICES = 1000
MOST_RUNNING = 10_000
# How many schedules a snapshot includes: those that fire next.
MOST_SCHEDULES = 500
# A forecast assumes that reservations are renewed, and that a resource which does not answer stays held.
NEVER = Instant(2**62)
CALLERS = "direct_executions"
NO_PARAMS: Mapping[str, Json] = {}


class Working(NamedTuple):
    """A job or a direct caller whose work is running."""

    kind: WorkKind
    id: str
    run_id: str
    job_type: str
    office_id: str
    started_at: Instant
    timeout_at: Instant | None
    lane_id: int
    worker_id: str
    is_stopping: bool
    # When its work has begun: later than its start if it was in the queue of an engine; None while it is there.
    began_at: Instant | None
    # The parameters on which the duration depends.
    params: Mapping[str, Json] = NO_PARAMS


@dataclass(frozen=True, slots=True)
class Snapshot:
    office_id: str
    now: Instant
    copies: list[Rows]
    working: list[Working]
    # The office's queued jobs in order, at most WINDOW, and whether these are all queued jobs.
    queue: list[str]
    is_whole: bool
    # The run ids of the waiting direct callers of the office.
    waiting: list[str]
    # By lane, how many of the copied jobs are ready to start, and the place of the first of them.
    ready: Mapping[int, tuple[int, Bound]]
    nodes: Sequence[Node]
    # Whether schedules make more jobs of these offices.
    has_schedules: bool
    # Whether an office moves its jobs forward while they are ready.
    has_aging: bool

    def with_patient_callers(self) -> "Snapshot":
        """Returns the same queue with direct callers whose waits never end."""
        copies = [
            rows.mapped("wait_until", lambda at: NEVER) if rows.table == CALLERS else rows for rows in self.copies
        ]
        return replace(self, copies=copies)


def take(
    tx: Tx,
    office_id: str,
    policy: ConcurrencyPolicy,
    nodes: Sequence[Node],
    now: Instant,
    sized_by: Mapping[str, str],
) -> Snapshot:
    """Reads the snapshot of an office. `sized_by` names, by type, the parameter on which durations depend."""
    queue = forecast_reads.queue(tx, office_id, WINDOW + 1)
    is_whole = len(queue.rows) <= WINDOW
    queue = Rows(queue.table, queue.columns, queue.rows[:WINDOW])
    running, callers, limits = (
        forecast_reads.running(tx, MOST_RUNNING),
        forecast_reads.callers(tx),
        forecast_reads.limits(tx),
    )
    others = _others(tx, office_id, _can_be_full(limits, policy, nodes), any(node.max_running for node in nodes))
    schedules = forecast_reads.schedules(tx, {office_id, *others}, MOST_SCHEDULES)
    jobs = _together([running, queue, *(forecast_reads.queue(tx, other, share) for other, share in others.items())])
    groups = forecast_reads.groups(tx, {group_id for group_id in jobs.column("group_id") if group_id is not None})
    jobs = _together([jobs, *_members(tx, jobs, groups), forecast_reads.chains(tx, _retried(jobs))])
    runs = forecast_reads.runs(tx, running.column("job_id"))
    offices = {office_id, *jobs.column("office_id"), *callers.column("office_id"), *schedules.column("office_id")}
    settings = forecast_reads.offices(tx, offices)
    sizes = _sizes(tx, {**_types(jobs), **_types(callers)}, sized_by)
    lanes = forecast_reads.lanes(tx, {*jobs.column("lane_id"), *callers.column("lane_id")})
    copies = [
        settings,
        lanes,
        limits,
        forecast_reads.limits_of(tx, lanes),
        forecast_reads.rates(tx),
        forecast_reads.pauses(tx),
        _outages(forecast_reads.outages(tx)),
        forecast_reads.affinities(tx),
        groups,
        _with_params(jobs, sizes),
        runs,
        forecast_reads.edges(tx, jobs.column("job_id")),
        _with_params(callers, sizes),
        forecast_reads.reservations(tx).mapped("expires_at", lambda at: NEVER),
        schedules,
        # A forecast sends nothing, so the copy needs no address.
        forecast_reads.templates(tx, schedules.column("template_id")).mapped("webhook", lambda webhook: None),
    ]
    return Snapshot(
        office_id=office_id,
        now=now,
        copies=copies,
        working=[*_running(running, runs, sizes), *_direct(callers, sizes)],
        queue=queue.column("job_id"),
        is_whole=is_whole,
        waiting=_waiting(callers, office_id),
        ready=_ready(jobs),
        nodes=nodes,
        has_schedules=bool(schedules.rows),
        has_aging=any(settings.column("priority_aging_seconds")),
    )


def _outages(held: Rows) -> Rows:
    """Returns the holds without their probes: the only predictable end of a hold is the renewal of a quota."""
    probe, quota = held.columns.index("probe_at"), held.columns.index("quota_until")
    rows = [
        row if row[probe] is None or row[quota] is not None else (*row[:probe], NEVER, *row[probe + 1 :])
        for row in held.rows
    ]
    return Rows(held.table, held.columns, rows)


def _can_be_full(limits: Rows, policy: ConcurrencyPolicy, nodes: Sequence[Node]) -> set[str]:
    """Returns the shared limits that can become full, through which jobs of one office can delay jobs of another."""
    limited = {key for key, held, _ in limits.rows if not is_local(key) and policy.room(key, held, 0) < UNLIMITED}
    return limited | {resource_key(resource) for node in nodes for resource in node.resources}


def _others(tx: Tx, office_id: str, can_be_full: set[str], share_slots: bool) -> dict[str, int]:
    """Returns the other offices to include, with the number of their jobs; all offices if nodes have limited slots.

    An office whose schedules fire next counts as an office with queued jobs.
    """
    if not can_be_full and not share_slots:
        return {}
    scheduled = forecast_reads.scheduled_offices(tx, MOST_SCHEDULES)
    queued = scheduled.union(forecast_reads.queued_offices(tx, MOST_OFFICES))
    if queued <= {office_id}:
        return {}
    found = queued if share_slots else _sharing(tx, office_id, queued, can_be_full, scheduled)
    found.discard(office_id)
    return {other: max(min(WINDOW, OTHERS // len(found)), 1) for other in sorted(found)}


def _sharing(tx: Tx, office_id: str, queued: set[str], can_be_full: set[str], scheduled: set[str]) -> set[str]:
    """Returns the queued offices that share such a limit with this office, directly or through other offices. Includes
    offices whose lanes do not show yet which limits their schedules' jobs will share."""
    lanes = forecast_reads.lanes_of(tx, {office_id, *queued})
    shared: dict[str, set[str]] = {}
    for office, limits in zip(lanes.column("office_id"), lanes.column("shared"), strict=True):
        shared.setdefault(office, set()).update(can_be_full & forecast_reads.lane_limits(limits).keys())
    return (linked(office_id, shared) & queued) | (scheduled - shared.keys())


def _members(tx: Tx, jobs: Rows, groups: Rows) -> list[Rows]:
    """Returns the members of sequential groups from the first copied member on, since each lets the next one start."""
    sequential = {row[0] for row in groups.rows if row[groups.columns.index("mode")] == GroupMode.SEQUENTIAL}
    first: dict[str, int] = {}
    for group_id, sequence in zip(jobs.column("group_id"), jobs.column("sequence"), strict=True):
        if group_id in sequential:
            first[group_id] = min(sequence, first.get(group_id, sequence))
    return [forecast_reads.members(tx, group_id, start, start + WINDOW) for group_id, start in first.items()]


def _retried(jobs: Rows) -> set[str]:
    """Returns the chains of copied retries; the start of a retry reads the earlier jobs of its chain."""
    pairs = zip(jobs.column("retry_of"), jobs.column("chain_id"), strict=True)
    return {chain_id for retry_of, chain_id in pairs if retry_of is not None}


def _together(parts: Iterable[Rows]) -> Rows:
    """Merges rows that have the same columns, and keeps each job once."""
    found: dict[str, tuple[Any, ...]] = {}
    columns: tuple[str, ...] = ()
    for part in parts:
        columns = part.columns
        for row in part.rows:
            found.setdefault(row[0], row)
    return Rows("jobs", columns, list(found.values()))


def _ready(jobs: Rows) -> dict[int, tuple[int, Bound]]:
    ready: dict[int, tuple[int, Bound]] = {}
    wanted = ("lane_id", "priority", "aged_steps", "position", "stage", "unmet", "is_due", "is_turn")
    for lane_id, priority, steps, position, *holds in zip(*(jobs.column(name) for name in wanted), strict=True):
        if holds == ["QUEUED", 0, 1, 1]:
            bound = -order_priority(priority, steps), position
            count, first = ready.get(lane_id, (0, bound))
            ready[lane_id] = count + 1, min(first, bound)
    return ready


def _types(rows: Rows) -> dict[str, str]:
    """Returns the job type of each job or caller, by job id or run id."""
    return dict(zip((row[0] for row in rows.rows), rows.column("job_type"), strict=True))


def _sizes(tx: Tx, types: Mapping[str, str], sized_by: Mapping[str, str]) -> dict[str, Mapping[str, Json]]:
    """Returns, for each job or caller whose duration depends on a parameter, this parameter alone."""
    if not sized_by:
        return {}
    found = forecast_reads.params(tx, [one for one, job_type in types.items() if job_type in sized_by])
    names = {one: sized_by[types[one]] for one in found}
    return {one: {name: found[one][name]} for one, name in names.items() if name in found[one]}


def _with_params(works: Rows, sizes: Mapping[str, Mapping[str, Json]]) -> Rows:
    if not sizes:
        return works
    rows = [(*row, column_codec.dumps(sizes.get(row[0], NO_PARAMS))) for row in works.rows]
    return Rows(works.table, (*works.columns, "params"), rows)


def _running(running: Rows, runs: Rows, sizes: Mapping[str, Mapping[str, Json]]) -> list[Working]:
    run_of = {row[1]: row for row in runs.rows}
    wanted = ("job_id", "job_type", "office_id", "started_at", "cancel_mode", "lane_id", "worker_id")
    return [
        Working(
            kind=WorkKind.JOB,
            id=job_id,
            run_id=run_of[job_id][0],
            job_type=job_type,
            office_id=office_id,
            started_at=Instant(started_at),
            timeout_at=column_codec.instant(run_of[job_id][3]),
            lane_id=lane_id,
            worker_id=worker_id,
            is_stopping=cancel_mode == "interrupt",
            began_at=_began(started_at, *run_of[job_id][4:]),
            params=sizes.get(job_id, NO_PARAMS),
        )
        for job_id, job_type, office_id, started_at, cancel_mode, lane_id, worker_id in zip(
            *(running.column(name) for name in wanted), strict=True
        )
    ]


def _began(started_at: int, placement: str | None, began_at: int | None) -> Instant | None:
    return Instant(started_at) if placement is None else column_codec.instant(began_at)


def _waiting(callers: Rows, office_id: str) -> list[str]:
    columns = (callers.column(name) for name in ("run_id", "office_id", "status"))
    return [one for one, office, status in zip(*columns, strict=True) if office == office_id and status == "WAITING"]


def _direct(callers: Rows, sizes: Mapping[str, Mapping[str, Json]]) -> list[Working]:
    wanted = ("run_id", "job_type", "office_id", "started_at", "timeout_at", "lane_id", "worker_id", "status")
    return [
        Working(
            kind=WorkKind.DIRECT,
            id=run_id,
            run_id=run_id,
            job_type=job_type,
            office_id=office_id,
            started_at=Instant(started_at),
            timeout_at=Instant(timeout_at),
            lane_id=lane_id,
            worker_id=worker_id,
            is_stopping=False,
            began_at=Instant(started_at),
            params=sizes.get(run_id, NO_PARAMS),
        )
        for run_id, job_type, office_id, started_at, timeout_at, lane_id, worker_id, status in zip(
            *(callers.column(name) for name in wanted), strict=True
        )
        if status == "RUNNING"
    ]
