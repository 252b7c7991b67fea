"""Doctor: is what is stored in order? Counters against counted rows, invariants as questions; each finding a sentence.

Over a transaction, so that all answers are of one moment. Called by `admin`, for `doctor`, `backup` and `restore`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from nextslot.store.contract import Tx
from nextslot.store.tables import column_codec, lanes


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


class _Sums(NamedTuple):
    """What an office's statistics are made of. Of a lane: only the sums over an office mean something."""

    running: int = 0
    chains: int = 0
    completed: int = 0
    skipped: int = 0
    failed: int = 0
    cancelled: int = 0
    completion_us: int = 0

    def plus(self, other: "_Sums") -> "_Sums":
        return _Sums(*(mine + more for mine, more in zip(self, other, strict=True)))


REPAIR = "run `nextslot doctor --repair` while no server runs: it counts again"
RETRY = "run `nextslot doctor --repair` while no server runs: it retries the job"
RESTART = "start the server: its recovery settles this"
RESTORE = "our own commits cannot leave this: restore a backup, or report it with the job's events"

# Questions whose answers should be empty: (statement, what the ids in it are, what to do).
_QUESTIONS = (
    ("doctor.runless", "the job {} is RUNNING without a run that goes on (spec 2.10)", RESTART),
    ("doctor.unfinished_runs", "the run {} goes on although its job has ended", RESTORE),
    ("doctor.other_outcomes", "the job {} ended otherwise than its run", RESTORE),
    ("doctor.shared_workers", "the worker {} runs two jobs at once (INV-003)", RESTORE),
    ("doctor.shared_slots", "the worker {} runs a job and a direct request at once (INV-003)", RESTORE),
    ("doctor.torn_jobs", "the job {} did not start and end together with its run (spec 2.10)", RESTORE),
    ("doctor.other_snapshots", "the run {} was given other parameters than its job has (INV-001)", RESTORE),
    (
        "doctor.shared_places",
        "the job {} has the place of another one in its queue (INV-004)",
        "move it: nextslot move",
    ),
    ("doctor.undecided", "the failure of the job {} has no decision (spec 6.6)", RESTART),
    ("doctor.lost_retries", "the job {} was to be retried, and is not (DEC-007)", "retry it: nextslot retry"),
    ("doctor.unstored_outcomes", "the run {} failed only because its outcome could not be stored", RETRY),
    ("doctor.retried_successes", "the job {} follows one that has not failed (DEC-007)", RESTORE),
    ("doctor.early_releases", "the job {} was let go before what it waits for succeeded (US-JS01)", RESTORE),
    ("doctor.early_starts", "the job {} was started while it waited for another (US-JS01)", RESTORE),
    ("doctor.forked_chains", "the job {} was retried twice: a chain is a line (DEC-007)", RESTORE),
    ("doctor.miscounted_waits", "the job {} does not know how many jobs it waits for", RESTORE),
    ("doctor.forgotten_waits", "the job {} waits for one that has succeeded", "cancel it and submit it again"),
    ("doctor.endless_waits", "the job {} waits for a time that nobody knows", "reschedule it"),
    ("doctor.miscounted_groups", "the group {} has other members than it counts", RESTORE),
    ("doctor.miscounted_ends", "the group {} counts other ends than its members have (INV-006)", RESTORE),
    ("doctor.early_turns", "the job {} was started before an earlier member of its group had ended", RESTORE),
    ("doctor.misjudged_groups", "the group {} has another status than its members say (INV-006)", RESTORE),
    ("doctor.unreserved_callers", "callers of the office {} wait without a reservation (DEC-004)", RESTART),
    ("doctor.strange_firings", "the job {} was made by another schedule than the ledger says", RESTORE),
    ("doctor.fired_twice", "two occurrences claim the job {}", RESTORE),
    ("doctor.unplanned", "the schedule {} is planned for a time that is accounted for", RESTART),
    ("doctor.misjudged_webhooks", "the webhook status of the job {} is not what its deliveries say", RESTORE),
    ("doctor.gaps", "numbers are missing before the event {}", RESTORE),
    ("doctor.untold", "the job {} has more or fewer events than happened to it", RESTORE),
    ("doctor.unheard", "the job {} has no event", RESTORE),
    ("doctor.told_in_disorder", "the events of the job {} are out of order", RESTORE),
    ("doctor.forgotten_reservations", "the reservation {} is held for a caller who has left", RESTART),
    ("doctor.suspended", "the rules are suspended for {}", RESTART),
)


def examine(tx: Tx) -> list[Finding]:
    """Everything that is not in order; reads only."""
    return [*_counter_findings(tx), *_sum_findings(tx), *_invariant_findings(tx)]


def unstored_outcomes(tx: Tx) -> list[str]:
    """Runs that failed only because their outcome could not be stored, and whose chain ended with that."""
    return [run_id for (run_id,) in tx.rows("doctor.unstored_outcomes")]


def repair(tx: Tx) -> int:
    """Sets every counter that is wrong to what was counted, and says how many there were."""
    used = _used_counted(tx)
    wrong_limits = [limit for limit in lanes.all_limits(tx) if limit.used != used.get(limit.limit_key, 0)]
    for limit in wrong_limits:
        tx.execute("doctor.repair_limit", limit_key=limit.limit_key, used=used.get(limit.limit_key, 0))
    wrong_lanes = [counted for stored, counted in _lanes(tx) if stored != counted]
    for lane in wrong_lanes:
        values = {"ready": lane.ready, "is_open": int(lane.is_open), "running": lane.running}
        tx.execute("doctor.repair_lane", lane_id=lane.lane_id, **values)
    return len(wrong_limits) + len(wrong_lanes) + _repair_sums(tx)


def _repair_sums(tx: Tx) -> int:
    """Of an office whose sums are wrong, those of all its lanes are set."""
    stored, counted, offices = _sums(tx)
    wrong = {office_id for office_id, _, _ in _wrong_sums(stored, counted, offices)}
    for lane_id, office_id in offices.items():
        if office_id in wrong:
            values = counted.get(lane_id, _Sums())._asdict()
            del values["running"]  # Which is right by now: it is a counter of the lane itself.
            tx.execute("doctor.repair_sums", lane_id=lane_id, **values)
    return len(wrong)


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


def _sum_findings(tx: Tx) -> Iterator[Finding]:
    for office_id, has, right in _wrong_sums(*_sums(tx)):
        for name, one, other in zip(_Sums._fields, has, right, strict=True):
            if one != other:
                problem = f"{name} of the office {office_id!r} is {one}, and {other} was counted"
                yield Finding(f"offices.{name}", problem, REPAIR)


def _sums(tx: Tx) -> tuple[dict[int, _Sums], dict[int, _Sums], dict[int, str]]:
    """By lane, as they are stored and as they were counted; and the office of each lane."""
    rows = tx.rows("doctor.sums")
    stored = {lane_id: _Sums(*sums) for lane_id, _, *sums in rows}
    completions = _counts(tx, "doctor.counted_completions")
    counted = {
        lane_id: _Sums(*sums)._replace(completion_us=completions.get(lane_id, 0))
        for lane_id, *sums in tx.rows("doctor.counted_sums")
    }
    return stored, counted, {lane_id: office_id for lane_id, office_id, *_ in rows}


def _wrong_sums(
    stored: dict[int, _Sums], counted: dict[int, _Sums], offices: dict[int, str]
) -> list[tuple[str, _Sums, _Sums]]:
    """(office, what is stored, what was counted)"""
    has: dict[str, _Sums] = {}
    right: dict[str, _Sums] = {}
    for lane_id, office_id in offices.items():
        has[office_id] = has.get(office_id, _Sums()).plus(stored[lane_id])
        right[office_id] = right.get(office_id, _Sums()).plus(counted.get(lane_id, _Sums()))
    return [(office_id, has[office_id], right[office_id]) for office_id in has if has[office_id] != right[office_id]]


def _invariant_findings(tx: Tx) -> Iterator[Finding]:
    for statement, problem, suggestion in _QUESTIONS:
        for (name,) in tx.rows(statement):
            yield Finding(statement.removeprefix("doctor."), problem.format(name), suggestion)


def _counts(tx: Tx, statement: str) -> dict[int, int]:
    return dict(tx.rows(statement))


def _used_counted(tx: Tx) -> dict[str, int]:
    """The units of each limit that jobs and direct executions take which run now."""
    jobs, callers = _counts(tx, "doctor.running"), _counts(tx, "doctor.direct_running")
    used: dict[str, int] = {}
    for lane_id, _, local, shared, *_ in tx.rows("doctor.lanes"):
        running = jobs.get(lane_id, 0) + callers.get(lane_id, 0)
        for key, units in {**column_codec.loads(local), **column_codec.loads(shared)}.items():
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
            for key, units in column_codec.loads(local).items()
        )
        count = ready.get(lane_id, 0)
        is_open_counted = count > 0 and not is_paused and not callers and has_room
        yield stored, replace(stored, ready=count, running=running.get(lane_id, 0), is_open=is_open_counted)
