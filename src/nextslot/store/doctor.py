"""Doctor: is what is stored in order? Counters against counted rows, invariants as questions; each finding a sentence.

Over a transaction, so that all answers are of one moment. Called by `admin`, for `doctor`, `backup` and `restore`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from . import codec, lanes
from .store import Tx


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that should not be, in a sentence, and what to do about it."""

    check: str
    problem: str
    suggestion: str


@dataclass(frozen=True, slots=True)
class _Lane:
    lane_id: int
    ready: int
    is_open: bool
    running: int


REPAIR = "run `nextslot doctor --repair` while no server runs: it counts again"
RESTART = "start the server: its recovery settles this"
RESTORE = "our own commits cannot leave this: restore a backup, or report it with the job's events"

# Questions whose answers should be empty: (statement, what the ids in it are, what to do).
_QUESTIONS = (
    ("doctor.runless", "the job {} is RUNNING without a run that goes on (5.1)", RESTART),
    ("doctor.unfinished_runs", "the run {} goes on although its job has ended", RESTORE),
    ("doctor.other_outcomes", "the job {} ended otherwise than its run", RESTORE),
    ("doctor.shared_workers", "the worker {} runs two jobs at once (INV-003)", RESTORE),
    ("doctor.forked_chains", "the job {} was retried twice: a chain is a line (DEC-007)", RESTORE),
    ("doctor.miscounted_waits", "the job {} does not know how many jobs it waits for", RESTORE),
    ("doctor.forgotten_waits", "the job {} waits for one that has succeeded", "cancel it and submit it again"),
    ("doctor.endless_waits", "the job {} waits for a time that nobody knows", "reschedule it"),
    ("doctor.miscounted_groups", "the group {} has other members than it counts", RESTORE),
    ("doctor.forgotten_reservations", "the reservation {} is held for a caller who has left", RESTART),
    ("doctor.suspended", "the rules are suspended for {}", RESTART),
)


def examine(tx: Tx) -> list[Finding]:
    """Everything that is not in order; reads only."""
    return [*_counter_findings(tx), *_invariant_findings(tx)]


def repair(tx: Tx) -> int:
    """Sets every counter that is wrong to what was counted, and says how many there were."""
    used = _used_counted(tx)
    wrong_limits = [limit for limit in lanes.all_limits(tx) if limit.used != used.get(limit.limit_key, 0)]
    for limit in wrong_limits:
        tx.run("doctor.repair_limit", limit_key=limit.limit_key, used=used.get(limit.limit_key, 0))
    wrong_lanes = [counted for stored, counted in _lanes(tx) if stored != counted]
    for lane in wrong_lanes:
        values = {"ready": lane.ready, "is_open": int(lane.is_open), "running": lane.running}
        tx.run("doctor.repair_lane", lane_id=lane.lane_id, **values)
    return len(wrong_limits) + len(wrong_lanes)


def _counter_findings(tx: Tx) -> Iterator[Finding]:
    used = _used_counted(tx)
    for limit in lanes.all_limits(tx):
        right = used.pop(limit.limit_key, 0)
        if limit.used != right:
            problem = f"the limit {limit.limit_key!r} has {limit.used} units in use, and {right} were counted"
            yield Finding("limits.used", problem, REPAIR)
    for key in used:
        yield Finding("limits.missing", f"the limit {key!r} is in use and not stored", RESTORE)
    for stored, counted in _lanes(tx):
        for name in ("ready", "running", "is_open"):
            has, right = getattr(stored, name), getattr(counted, name)
            if has != right:
                problem = f"{name} of the lane {stored.lane_id} is {int(has)}, and {int(right)} was counted"
                yield Finding(f"lanes.{name}", problem, REPAIR)


def _invariant_findings(tx: Tx) -> Iterator[Finding]:
    for statement, problem, suggestion in _QUESTIONS:
        for (name,) in tx.rows(statement):
            yield Finding(statement.removeprefix("doctor."), problem.format(name), suggestion)


def _counts(tx: Tx, statement: str) -> dict[int, int]:
    return dict(tx.rows(statement))  # type: ignore[arg-type]  # Rows of two columns.


def _used_counted(tx: Tx) -> dict[str, int]:
    """The units of each limit that jobs and direct executions take which run now."""
    jobs, callers = _counts(tx, "doctor.running"), _counts(tx, "doctor.direct_running")
    used: dict[str, int] = {}
    for lane_id, _, local, shared, *_ in tx.rows("doctor.lanes"):
        running = jobs.get(lane_id, 0) + callers.get(lane_id, 0)
        for key, units in {**codec.loads(local), **codec.loads(shared)}.items():
            if running:
                used[key] = used.get(key, 0) + running * units
    return used


def _lanes(tx: Tx) -> Iterator[tuple[_Lane, _Lane]]:
    """Each lane as it is stored, and as it was counted."""
    ready, running = _counts(tx, "doctor.ready"), _counts(tx, "doctor.running")
    used = _used_counted(tx)
    capacity = {limit.limit_key: limit.capacity for limit in lanes.all_limits(tx)}
    for lane_id, _, local, _, has_ready, is_open, has_running, is_paused, callers in tx.rows("doctor.lanes"):
        stored = _Lane(lane_id, has_ready, is_open == 1, has_running)
        has_room = all(
            capacity.get(key, 0) == 0 or capacity[key] - used.get(key, 0) >= units
            for key, units in codec.loads(local).items()
        )
        count = ready.get(lane_id, 0)
        is_open_counted = count > 0 and not is_paused and not callers and has_room
        yield stored, replace(stored, ready=count, running=running.get(lane_id, 0), is_open=is_open_counted)
