"""Doctor: checks whether the stored data is consistent. Each finding is a sentence.

Compares stored counters with counted rows, and queries for rows that violate an invariant, all in one transaction.
`offline_commands` calls it for `doctor`, `backup` and `restore`.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from operator import add

from nextslot.domain.limits import office_key
from nextslot.store.contract import Row, Tx
from nextslot.store.tables import column_codec, lanes, rollup_spans
from nextslot.system.instant import Instant


@dataclass(frozen=True, slots=True)
class Finding:
    """An inconsistency in the stored data, as a sentence, and what to do about it."""

    check: str
    problem: str
    suggestion: str


@dataclass(frozen=True, slots=True)
class _Lane:
    lane_id: int
    ready: int
    is_open: bool
    running: int
    # The place of the first ready job, or one before it.
    first: lanes.Bound | None


# The counters of a lane that an office's statistics add up. Only the sums over an office are meaningful.
_SUMS = tuple(name for name in lanes.LaneTally.__slots__ if name != "ready")
_Sums = tuple[int, ...]
_NO_SUMS: _Sums = (0,) * len(_SUMS)

# The most findings about rollups: where one is wrong, many usually are.
MOST_ROLLUPS = 100

REPAIR = "run `nextslot doctor --repair` while no server runs: it corrects the counters"
RETRY = "run `nextslot doctor --repair` while no server runs: it retries the job"
RESTART = "start the server: its recovery repairs this"
RESTORE = "nextslot itself cannot have stored this: restore a backup, or report it with the job's events"

# Queries that should return nothing: (statement, the sentence about each id it returns, what to do).
_CHECKS = (
    ("doctor.runless", "the job {} is RUNNING without an unfinished run (spec 2.10)", RESTART),
    ("doctor.unfinished_runs", "the run {} is unfinished although its job has ended", RESTORE),
    ("doctor.other_outcomes", "the job {} has another outcome than its run", RESTORE),
    ("doctor.shared_workers", "the worker {} runs two jobs at once (INV-003)", RESTORE),
    ("doctor.shared_slots", "the worker {} runs a job and a direct request at once (INV-003)", RESTORE),
    ("doctor.left_devices", "the device {} is held by a worker that runs nothing", RESTART),
    ("doctor.torn_jobs", "the job {} did not start and end at the same times as its run (spec 2.10)", RESTORE),
    ("doctor.other_snapshots", "the run {} has other parameters than its job (INV-001)", RESTORE),
    (
        "doctor.shared_places",
        "the job {} has the same place in its queue as another job (INV-004)",
        "move it: nextslot move",
    ),
    (
        "doctor.unaged",
        "the job {} is ready in an office that ages its jobs, but gets no further steps (spec 3.13)",
        "move it: nextslot move",
    ),
    ("doctor.undecided", "the job {} failed, and its retry was never decided (spec 6.6)", RESTART),
    (
        "doctor.lost_retries",
        "the job {} should have been retried, but has no retry (DEC-007)",
        "retry it: nextslot retry",
    ),
    ("doctor.unstored_outcomes", "the run {} failed only because its outcome could not be stored", RETRY),
    ("doctor.retried_successes", "the job {} retries a job that has not failed (DEC-007)", RESTORE),
    ("doctor.early_releases", "the job {} was released before its dependencies had succeeded (US-JS01)", RESTORE),
    ("doctor.early_starts", "the job {} was started while it waited for a dependency (US-JS01)", RESTORE),
    ("doctor.forked_chains", "the job {} was retried twice, so its chain forks (DEC-007)", RESTORE),
    ("doctor.miscounted_waits", "the job {} stores a wrong number of dependencies it waits for", RESTORE),
    ("doctor.forgotten_waits", "the job {} waits for a dependency that has succeeded", "cancel it and submit it again"),
    ("doctor.endless_waits", "the job {} waits for a time that is not stored", "reschedule it"),
    ("doctor.miscounted_groups", "the group {} stores a wrong number of members", RESTORE),
    ("doctor.miscounted_ends", "the group {} stores a wrong number of ended members (INV-006)", RESTORE),
    ("doctor.early_turns", "the job {} was started before an earlier member of its group had ended", RESTORE),
    ("doctor.misjudged_groups", "the group {} has a status that its members contradict (INV-006)", RESTORE),
    ("doctor.unreserved_callers", "callers of the office {} wait without a reservation (DEC-004)", RESTART),
    (
        "doctor.strange_firings",
        "the job {} was created by another schedule, or is in another group, than its occurrence says",
        RESTORE,
    ),
    ("doctor.fired_twice", "two occurrences have created the same job {}", RESTORE),
    ("doctor.unplanned", "the schedule {} is due at a time that already has an occurrence", RESTART),
    ("doctor.misjudged_webhooks", "the webhook status of the job {} contradicts its deliveries", RESTORE),
    ("doctor.gaps", "numbers are missing before the event {}", RESTORE),
    ("doctor.untold", "the job {} has too many or too few events", RESTORE),
    ("doctor.unheard", "the job {} has no event", RESTORE),
    ("doctor.told_in_disorder", "the events of the job {} are out of order", RESTORE),
    (
        "doctor.forgotten_reservations",
        "the reservation {} is held for no direct execution that waits (DEC-004)",
        RESTART,
    ),
    ("doctor.suspended", "the database's rules are switched off for {}", RESTART),
)


def examine(tx: Tx) -> list[Finding]:
    """Returns all findings; only reads."""
    return [*_counter_findings(tx), *_sum_findings(tx), *_invariant_findings(tx), *_rollup_findings(tx)]


def unstored_outcomes(tx: Tx) -> list[str]:
    """Returns the runs that failed only because their outcome could not be stored, and whose chain ended with that."""
    return [run_id for (run_id,) in tx.rows("doctor.unstored_outcomes")]


def runs_with_files(tx: Tx, since: Instant, limit: int) -> list[tuple[str, bool, list[str]]]:
    """Returns the newest runs that have left files: their ids, whether they have a log, and names of artifacts."""
    rows = tx.rows("doctor.with_files", since=since, limit=limit)
    made: dict[str, list[str]] = {}
    for run_id, name, *_ in tx.rows("pages.artifacts", run_ids=column_codec.key_set(row[0] for row in rows)):
        made.setdefault(run_id, []).append(name)
    return [(run_id, bool(has_log), made.get(run_id, [])) for run_id, has_log in rows]


def repair(tx: Tx) -> int:
    """Sets every wrong counter to the counted value. Returns how many were wrong.

    Rollups are made again from history if one is wrong, or if history goes further back than they do.
    """
    used = _used_counted(tx)
    wrong_limits = [limit for limit in lanes.all_limits(tx) if limit.used != used.get(limit.limit_key, 0)]
    for limit in wrong_limits:
        tx.execute("doctor.repair_limit", limit_key=limit.limit_key, used=used.get(limit.limit_key, 0))
    wrong_lanes = [counted for stored, counted in _lanes(tx) if stored != counted]
    for lane in wrong_lanes:
        rank, position = lane.first or (None, None)
        values = {"ready": lane.ready, "is_open": int(lane.is_open), "running": lane.running}
        tx.execute("doctor.repair_lane", lane_id=lane.lane_id, first_rank=rank, first_position=position, **values)
    return len(wrong_limits) + len(wrong_lanes) + _repair_sums(tx) + _repair_rollups(tx)


def _repair_rollups(tx: Tx) -> int:
    wrong = len(rollup_spans.differences(tx)) or int(rollup_spans.is_behind_history(tx))
    if wrong:
        rollup_spans.rebuild(tx)
    return wrong


def _repair_sums(tx: Tx) -> int:
    """Corrects the counters of all lanes of each office whose sums are wrong. Returns the number of these offices."""
    stored, counted, offices = _sums(tx)
    wrong = {office_id for office_id, _, _ in _wrong_sums(stored, counted, offices)}
    for lane_id, office_id in offices.items():
        if office_id in wrong:
            values = dict(zip(_SUMS, counted.get(lane_id, _NO_SUMS), strict=True))
            del values["running"]  # This counter of the lane is already correct here.
            tx.execute("doctor.repair_sums", lane_id=lane_id, **values)
    return len(wrong)


def _counter_findings(tx: Tx) -> Iterator[Finding]:
    used = _used_counted(tx)
    for limit in lanes.all_limits(tx):
        right = used.pop(limit.limit_key, 0)
        if limit.used != right:
            problem = f"the limit {limit.limit_key!r} stores {limit.used} units in use, but {right} are in use"
            yield Finding("limits.used", problem, REPAIR)
    for key in used:
        yield Finding("limits.missing", f"the limit {key!r} is in use, but not stored", RESTORE)
    for stored, counted in _lanes(tx):
        for name in ("ready", "running", "is_open", "first"):
            has, right = getattr(stored, name), getattr(counted, name)
            if has != right:
                problem = f"{name} of the lane {stored.lane_id} is stored as {has!r}, but counted as {right!r}"
                yield Finding(f"lanes.{name}", problem, REPAIR)


def _sum_findings(tx: Tx) -> Iterator[Finding]:
    for office_id, has, right in _wrong_sums(*_sums(tx)):
        for name, one, other in zip(_SUMS, has, right, strict=True):
            if one != other:
                problem = f"{name} of the office {office_id!r} is stored as {one}, but counted as {other}"
                yield Finding(f"offices.{name}", problem, REPAIR)


def _sums(tx: Tx) -> tuple[dict[int, _Sums], dict[int, _Sums], dict[int, str]]:
    """Returns the sums of each lane, as stored and as counted; and the office of each lane."""
    rows = tx.rows("doctor.sums")
    stored = {lane_id: tuple(sums) for lane_id, _, *sums in rows}
    completions = _counts(tx, "doctor.counted_completions")
    counted = {lane_id: (*sums, completions.get(lane_id, 0)) for lane_id, *sums in tx.rows("doctor.counted_sums")}
    return stored, counted, {lane_id: office_id for lane_id, office_id, *_ in rows}


def _wrong_sums(
    stored: dict[int, _Sums], counted: dict[int, _Sums], offices: dict[int, str]
) -> list[tuple[str, _Sums, _Sums]]:
    """Returns (office, stored sums, counted sums) of each office whose sums differ."""
    has: dict[str, _Sums] = {}
    right: dict[str, _Sums] = {}
    for lane_id, office_id in offices.items():
        has[office_id] = _plus(has.get(office_id, _NO_SUMS), stored[lane_id])
        right[office_id] = _plus(right.get(office_id, _NO_SUMS), counted.get(lane_id, _NO_SUMS))
    return [(office_id, has[office_id], right[office_id]) for office_id in has if has[office_id] != right[office_id]]


def _plus(one: _Sums, other: _Sums) -> _Sums:
    return tuple(map(add, one, other))


def _invariant_findings(tx: Tx) -> Iterator[Finding]:
    for statement, problem, suggestion in _CHECKS:
        for (name,) in tx.rows(statement):
            yield Finding(statement.removeprefix("doctor."), problem.format(name), suggestion)


def _rollup_findings(tx: Tx) -> Iterator[Finding]:
    for at, key, stored, counted in rollup_spans.differences(tx)[:MOST_ROLLUPS]:
        what = f"the rollup of {Instant(at)} (office {key.office_id!r}, {key.kind} {key.job_type!r}, {key.outcome})"
        if stored.jobs != counted.jobs:
            yield Finding("rollups.jobs", f"{what} stores {stored.jobs} ends, but {counted.jobs} are counted", REPAIR)
        else:
            yield Finding("rollups.times", f"{what} stores other waits or durations than history has", REPAIR)


def _counts(tx: Tx, statement: str) -> dict[int, int]:
    return dict(tx.rows(statement))


def _used_counted(tx: Tx) -> dict[str, int]:
    """Returns the units of each limit that running jobs and direct executions use."""
    jobs, callers = _counts(tx, "doctor.running"), _counts(tx, "doctor.direct_running")
    used: dict[str, int] = {}
    for row in tx.rows("doctor.lanes"):
        running = jobs.get(row[0], 0) + callers.get(row[0], 0)
        for key, units in _needs(row).items() if running else ():
            used[key] = used.get(key, 0) + running * units
    return used


def _needs(row: Row) -> dict[str, int]:
    """Returns the units of each limit that a job of the lane needs."""
    return {**column_codec.loads(row[2]), **column_codec.loads(row[3])}


def _lanes(tx: Tx) -> Iterator[tuple[_Lane, _Lane]]:
    """Yields each lane, as stored and as counted."""
    ready, running = _counts(tx, "doctor.ready"), _counts(tx, "doctor.running")
    firsts = {lane_id: (rank, position) for lane_id, rank, position in tx.rows("doctor.firsts")}
    stored: dict[int, _Lane] = {}
    startable: dict[tuple[str, str], list[_Lane]] = {}
    held_back = Counter[str]()
    for lane, of_class, can_start in _startable(tx, ready):
        stored[lane.lane_id] = lane
        if can_start:
            startable.setdefault(of_class, []).append(lane)
        elif ready.get(lane.lane_id):
            held_back[of_class[0]] += 1
    # For each class, one of the lanes that could start is marked as open: any of them is right. Behind very many lanes
    # that are held back, a search need not have found one.
    opened = {
        next((lane for lane in found if lane.is_open), found[0]).lane_id
        for (office_id, _), found in startable.items()
        if 2 * held_back[office_id] < lanes.MOST_SEARCHED or any(lane.is_open for lane in found)
    }
    # While the rate of an office holds its jobs back, its lanes are not open.
    rated = {limit_key for (limit_key,) in tx.rows("doctor.rated")}
    opened -= {
        lane.lane_id
        for (office_id, _), found in startable.items()
        for lane in found
        if office_key(office_id) in rated and not lane.is_open
    }
    for lane_id, lane in stored.items():
        first = firsts.get(lane_id)
        if first is not None and lane.first is not None and lane.first < first:
            first = lane.first
        counted = _Lane(lane_id, ready.get(lane_id, 0), lane_id in opened, running.get(lane_id, 0), first)
        yield lane, counted


def _startable(tx: Tx, ready: dict[int, int]) -> Iterator[tuple[_Lane, tuple[str, str], bool]]:
    """Yields each lane as stored, its office and class, and whether its office may start one of its jobs."""
    used = _used_counted(tx)
    capacity = {limit.limit_key: limit.capacity for limit in lanes.all_limits(tx)}
    rows = tx.rows("doctor.lanes")
    bounded = {row[0]: {key for key in _needs(row) if capacity.get(key, 0)} for row in rows}
    callers: dict[str, set[str]] = {}  # For each office, the limits that apply to waiting direct callers.
    for lane_id, office_id in tx.rows("doctor.caller_lanes"):
        callers.setdefault(office_id, set()).update(bounded[lane_id])
    for lane_id, office_id, local, _, class_key, has_ready, is_open, has_running, rank, position, is_paused in rows:
        has_room = all(
            capacity.get(key, 0) == 0 or capacity[key] - used.get(key, 0) >= units
            for key, units in column_codec.loads(local).items()
        )
        is_behind_caller = not bounded[lane_id].isdisjoint(callers.get(office_id, ()))
        can_start = ready.get(lane_id, 0) > 0 and not is_paused and not is_behind_caller and has_room
        first = None if rank is None else (rank, position)
        yield _Lane(lane_id, has_ready, is_open == 1, has_running, first), (office_id, class_key), can_start
