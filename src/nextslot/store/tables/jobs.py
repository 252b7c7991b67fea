"""Jobs: converts rows to values and back, one function per statement."""

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from nextslot.domain import (
    CancelMode,
    Decision,
    FailureKind,
    Job,
    Json,
    RetryPolicy,
    RunStatus,
    Stage,
)
from nextslot.domain.fingerprints import Fingerprint
from nextslot.domain.jobs import status_of
from nextslot.domain.retry import ChainRun
from nextslot.store.contract import Read, Row, Tx
from nextslot.system.instant import Instant

from . import column_codec
from .lanes import Bound
from .rows import JOBS


class Place(NamedTuple):
    """The place of a job in its office's queue; smaller is earlier. The priority includes the steps that the job gained
    by age.
    """

    minus_priority: int
    position: int
    created_at: int
    job_id: str

    @property
    def priority(self) -> int:
        return -self.minus_priority

    @property
    def bound(self) -> Bound:
        """Returns the part of the place that lanes store to keep their order."""
        return self.minus_priority, self.position


# Sorts before every place.
_FRONT = Place(-(2**31), -(2**62), 0, "")


class ExecutionSpec(NamedTuple):
    """The fields of a job that its execution needs."""

    params: str
    chain_id: str
    group_id: str | None
    retry_of: str | None
    timeout_seconds: float | None
    stall_timeout_seconds: float | None
    title: str | None
    role: str | None
    task_id: str | None
    depends_on: str | None
    await_signal: str | None


class FirstInLane(NamedTuple):
    """A ready job at the front of its lane."""

    place: Place
    passed_over_since: int | None
    spec: ExecutionSpec

    @property
    def job_id(self) -> str:
        return self.place.job_id


class ToAge(NamedTuple):
    """A queued job whose next step is due. `period` is None if its office no longer ages its jobs."""

    job_id: str
    lane_id: int
    position: int
    priority: int
    aged_steps: int
    ages_at: Instant
    is_ready: bool
    period: float | None


class Freed(NamedTuple):
    """A job after one of the things that held it back is gone."""

    job_id: str
    office_id: str
    lane_id: int
    is_ready: bool
    bound: Bound
    # Whether the job waits for nothing but its signal.
    is_asking: bool = False


class EndingFacts(NamedTuple):
    """The facts about a running job that decide what follows its end."""

    office_id: str
    lane_id: int
    chain_id: str
    group_id: str | None
    sequence: int | None
    retry_of: str | None
    worker_id: str | None
    has_webhook: bool
    started_at: Instant
    retry_policy: RetryPolicy
    cancel_mode: CancelMode | None
    # Whether another job waits for its chain.
    has_dependents: bool
    # When it was queued or, if later, its `scheduled_for`.
    free_at: Instant
    # The signal that its session has asked to wait for.
    park: Mapping[str, Json] | None
    # When its work began: later than its start if it was in the queue of an engine.
    began_at: Instant


class Link(NamedTuple):
    """A job, its chain, and the job that it retries."""

    job_id: str
    chain_id: str
    retry_of: str | None


_COLUMNS = JOBS.columns.index
_HELD_BACK = itemgetter(*map(_COLUMNS, ("unmet", "is_turn", "is_due")))
_DECIDED = itemgetter(*map(_COLUMNS, ("decision", "stage", "outcome")))
_IS_AWAITING = _COLUMNS("is_awaiting")
_LINK_COLUMNS = itemgetter(*map(_COLUMNS, Link._fields))


def insert(tx: Tx, jobs: Sequence[Job]) -> None:
    tx.execute_batch("jobs.insert", JOBS.new_columns, map(JOBS.new, jobs))


def get(tx: Tx, job_id: str) -> Job | None:
    row = tx.row("jobs.get", job_id=job_id)
    return None if row is None else JOBS.value(row)


def get_many(tx: Tx, job_ids: Iterable[str]) -> dict[str, Job]:
    return {job.job_id: job for job in of_rows(tx.rows("jobs.get_many", job_ids=column_codec.key_set(job_ids)))}


def chains(tx: Tx, job_ids: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Returns (chain, office) of each job."""
    return {row[0]: (row[1], row[2]) for row in tx.rows("jobs.chains", job_ids=column_codec.key_set(job_ids))}


def by_unique_key(tx: Tx, office_id: str, unique_key: str) -> Job | None:
    row = tx.row("jobs.by_unique_key", office_id=office_id, unique_key=unique_key)
    return None if row is None else JOBS.value(row)


def last_position(tx: Tx, office_id: str, priority: int) -> tuple[int, int | None]:
    """Returns the last position of a level; and, if the office ages its jobs, the largest position that it has given
    out.
    """
    row = tx.row("jobs.last_position", office_id=office_id, priority=priority)
    assert row is not None
    return row[0] or 0, row[1]


def heads(tx: Tx, lane_id: int, limit: int) -> list[FirstInLane]:
    return [_head(*row) for row in tx.rows("jobs.heads", lane_id=lane_id, limit=limit)]


def firsts(tx: Tx, lane_ids: Iterable[int]) -> dict[int, FirstInLane]:
    """Returns the first ready job of each lane."""
    rows = tx.rows("jobs.firsts", lane_ids=column_codec.key_set(map(str, lane_ids)))
    return {lane_id: _head(*head) for lane_id, *head in rows}


def start(tx: Tx, job_id: str, worker_id: str | None, now: Instant) -> None:
    """Sets a queued job to RUNNING. Its run was inserted just before."""
    tx.execute_later("jobs.start", job_id=job_id, worker_id=worker_id, now=now)


def ending_facts(tx: Tx, run_id: str, job_id: str) -> EndingFacts | None:
    """Returns the facts, or None if the run or its job has ended."""
    row = tx.row("jobs.ending_facts", run_id=run_id, job_id=job_id)
    if row is None:
        return None
    (office_id, lane_id, chain_id, group_id, sequence, retry_of, worker_id, has_webhook,
     started_at, policy, mode, has_dependents, queued_at, scheduled_for, park, began_at) = row  # fmt: skip
    return EndingFacts(
        office_id, lane_id, chain_id, group_id, sequence, retry_of, worker_id, has_webhook,
        Instant(started_at), column_codec.policy(policy), None if mode is None else CancelMode(mode), has_dependents,
        Instant(queued_at if scheduled_for is None else max(queued_at, scheduled_for)), column_codec.parsed(park),
        Instant(started_at if began_at is None else began_at),
    )  # fmt: skip


def asks_at_the_end(run_id: str, job_id: str) -> Read:
    """Returns the reads that `ending_facts` will make."""
    return Read("jobs.ending_facts", {"run_id": run_id, "job_id": job_id})


def succeed(tx: Tx, job_id: str, outcome: RunStatus, now: Instant) -> None:
    tx.execute_later("jobs.succeed", job_id=job_id, outcome=outcome, now=now)


def fail(tx: Tx, job_id: str, decision: Decision, error: Fingerprint, now: Instant) -> None:
    tx.execute_later(
        "jobs.fail",
        job_id=job_id,
        decision=decision,
        now=now,
        error_line=error.line,
        fingerprint=error.fingerprint,
    )


def stop(tx: Tx, job_id: str, now: Instant) -> None:
    tx.execute_later("jobs.stop", job_id=job_id, now=now)


def cancel(tx: Tx, job_id: str, reason: str | None, requested_at: Instant | None, now: Instant) -> bool:
    return tx.execute("jobs.cancel", job_id=job_id, reason=reason, requested_at=requested_at, now=now) == 1


def request_cancel(tx: Tx, job_id: str, mode: CancelMode, reason: str | None, now: Instant) -> bool:
    return tx.execute("jobs.request_cancel", job_id=job_id, mode=mode, reason=reason, now=now) == 1


def decide(tx: Tx, job_id: str, decision: Decision) -> bool:
    return tx.execute("jobs.decide", job_id=job_id, decision=decision) == 1


def undecided(tx: Tx, limit: int) -> list[Job]:
    return of_rows(tx.rows("jobs.undecided", limit=limit))


def close_with_run(tx: Tx, job_id: str, outcome: RunStatus, error: Fingerprint | None, finished_at: Instant) -> bool:
    closed = tx.execute(
        "jobs.close_with_run",
        job_id=job_id,
        outcome=outcome,
        finished_at=finished_at,
        decision=Decision.UNDECIDED if outcome is RunStatus.FAILED else None,
        error_line=None if error is None else error.line,
        fingerprint=None if error is None else error.fingerprint,
    )
    return closed == 1


def running(tx: Tx, node_id: str | None = None, limit: int = 1_000_000) -> list[Job]:
    """Returns the running jobs of one node, or of all nodes."""
    if node_id is None:
        return of_rows(tx.rows("jobs.running", limit=limit))
    return of_rows(tx.rows("jobs.running_on", node_id=node_id, limit=limit))


def running_of(tx: Tx, office_id: str) -> list[Job]:
    return of_rows(tx.rows("jobs.running_of", office_id=office_id))


def chain(tx: Tx, chain_id: str) -> list[Job]:
    """Returns the whole chain from its first job, in the order of its links."""
    found = {job.retry_of: job for job in of_rows(tx.rows("jobs.chain", chain_id=chain_id))}
    line = [found[None]] if None in found else []
    while line and line[-1].job_id in found:
        line.append(found[line[-1].job_id])
    return line


def failures_before(tx: Tx, chain_id: str, job_id: str) -> list[FailureKind]:
    """Returns the failure kinds of the runs that lead to a job, the oldest first, by walking the chain."""
    # A job that was cancelled before it ran, and then retried by hand, has no run. Its link counts like that of an
    # error.
    return [kind or FailureKind.ERROR for kind, _ in attempts(tx, chain_id, job_id)[:-1]]


def attempts(tx: Tx, chain_id: str, job_id: str) -> list[ChainRun]:
    """Reads the attempts of a chain up to a job, the oldest first."""
    before = {row[0]: row[1:] for row in tx.rows("jobs.chain_links", chain_id=chain_id)}
    found: list[ChainRun] = []
    link: str | None = job_id
    while link is not None:
        link, kind, beside = before[link]
        found.append(ChainRun(None if kind is None else FailureKind(kind), beside))
    return found[::-1]


def first_start(tx: Tx, chain_id: str) -> Instant | None:
    row = tx.row("jobs.first_start", chain_id=chain_id)
    return None if row is None else column_codec.instant(row[0])


def successor(tx: Tx, job_id: str) -> str | None:
    row = tx.row("jobs.successor", job_id=job_id)
    return row[0] if row else None


def due(tx: Tx, now: Instant, limit: int) -> list[Freed]:
    return [_freed(row) for row in tx.rows("jobs.due", now=now, limit=limit)]


def reschedule(tx: Tx, job_id: str, scheduled_for: Instant | None, is_due: bool) -> None:
    tx.execute("jobs.reschedule", job_id=job_id, scheduled_for=scheduled_for, is_due=int(is_due))


def give_turn(tx: Tx, job_id: str) -> Freed | None:
    row = tx.row("jobs.give_turn", job_id=job_id)
    return None if row is None else _freed(row)


def met(tx: Tx, job_id: str) -> Freed | None:
    row = tx.row("jobs.met", job_id=job_id)
    return None if row is None or row[9] != Stage.QUEUED else _freed(row)


def asked(tx: Tx, job_id: str, now: Instant, answer_by: Instant | None) -> None:
    tx.execute("jobs.asked", job_id=job_id, now=now, answer_by=answer_by)


def answered(tx: Tx, job_id: str) -> Freed | None:
    row = tx.row("jobs.answered", job_id=job_id)
    return None if row is None else _freed(row)


def unanswered(tx: Tx, now: Instant, limit: int) -> list[Job]:
    return of_rows(tx.rows("jobs.unanswered", now=now, limit=limit))


def expired(tx: Tx, now: Instant, limit: int) -> list[Job]:
    return of_rows(tx.rows("jobs.expired", now=now, limit=limit))


def next_instant(tx: Tx) -> Instant | None:
    """Returns when the next queued job is due, expires, or gets the default answer to its signal."""
    row = tx.row("jobs.next_instants")
    found = [instant for instant in row or () if instant is not None]
    return Instant(min(found)) if found else None


def pass_over(tx: Tx, job_id: str, now: Instant) -> None:
    tx.execute("jobs.pass_over", job_id=job_id, now=now)


def starving(tx: Tx, since: Instant, limit: int) -> list[tuple[str, int, FirstInLane]]:
    """Returns (office, lane, job) of ready jobs that have been passed over since a time or longer, the longest
    first.
    """
    rows = tx.rows("jobs.starving", since=since, limit=limit)
    return [(office_id, lane_id, _head(*head)) for office_id, lane_id, *head in rows]


def set_place(tx: Tx, job_id: str, priority: int, position: int, ages_at: Instant | None) -> bool:
    return tx.execute("jobs.set_place", job_id=job_id, priority=priority, position=position, ages_at=ages_at) == 1


def set_position(tx: Tx, job_id: str, position: int, ages_at: Instant | None) -> None:
    """Moves a job to another position to make room. `ages_at` becomes its next step unless it has one."""
    tx.execute("jobs.set_position", job_id=job_id, position=position, ages_at=ages_at)


def begin_aging(tx: Tx, job_ids: Iterable[str], ages_at: Instant) -> None:
    tx.execute("jobs.begin_aging", job_ids=column_codec.key_set(job_ids), ages_at=ages_at)


def to_age(tx: Tx, now: Instant, limit: int) -> list[ToAge]:
    return [
        ToAge(job_id, lane_id, position, priority, steps, Instant(ages_at), bool(is_ready), period)
        for job_id, lane_id, position, priority, steps, ages_at, is_ready, period in tx.rows(
            "jobs.to_age", now=now, limit=limit
        )
    ]


def age(tx: Tx, aged: Iterable[tuple[int, Instant | None, str]]) -> None:
    """Stores the steps of queued jobs: (steps, next step, job) each."""
    tx.execute_batch("jobs.age", ("aged_steps", "ages_at", "job_id"), aged)


def age_at_latest(tx: Tx, job_ids: Iterable[str], ages_at: Instant) -> None:
    tx.execute_batch("jobs.age_at_latest", ("ages_at", "job_id"), ((ages_at, job_id) for job_id in job_ids))


def next_step(tx: Tx) -> Instant | None:
    row = tx.row("jobs.next_step")
    return None if row is None else column_codec.instant(row[0])


def set_params(tx: Tx, job: Job) -> bool:
    return (
        tx.execute(
            "jobs.set_params",
            job_id=job.job_id,
            params=column_codec.dumps(job.params),
            resources=column_codec.dumps(job.resources),
            affinity=job.affinity,
            lane_id=job.lane_id,
        )
        == 1
    )


def set_title(tx: Tx, job_id: str, title: str | None) -> None:
    tx.execute("jobs.set_title", job_id=job_id, title=title)


def last(tx: Tx, office_id: str, but: str) -> Place | None:
    return _place(tx.row("jobs.last", office_id=office_id, but=but))


def nth(tx: Tx, office_id: str, place: int, but: str) -> Place | None:
    return _place(tx.row("jobs.nth", office_id=office_id, place=place, but=but))


def position_before(tx: Tx, office_id: str, place: Place, but: str) -> int | None:
    row = tx.row("jobs.position_before", office_id=office_id, but=but, **_key(place))
    return row[0] if row else None


def from_position(
    tx: Tx, office_id: str, place: Place, but: str, after: str, limit: int
) -> list[tuple[str, int, int, bool]]:
    """Returns (job, position, lane, whether it is ready) of the queued jobs of a level, from a position on."""
    rows = tx.rows("jobs.from_position", office_id=office_id, but=but, after=after, limit=limit, **_key(place))
    return [(job_id, position, lane_id, bool(is_ready)) for job_id, position, lane_id, is_ready in rows]


def queue(tx: Tx, office_id: str, after: Place | None, limit: int) -> list[Job]:
    """Returns a page of the office's queue in order, waiting jobs included."""
    return of_rows(tx.rows("jobs.queue", office_id=office_id, limit=limit, **_key(after or _FRONT)))


def queue_places(tx: Tx, office_id: str, after: Place | None, limit: int) -> list[tuple[Place, bool]]:
    """Returns the same page as places, each with whether its job may age."""
    rows = tx.rows("jobs.queue_places", office_id=office_id, limit=limit, **_key(after or _FRONT))
    return [(Place(-row[1], row[2], row[3], row[0]), row[4] == 1) for row in rows]


def member_at(tx: Tx, group_id: str, sequence: int) -> str | None:
    row = tx.row("jobs.members_after", group_id=group_id, sequence=sequence)
    return row[0] if row else None


def unstarted_members(tx: Tx, group_id: str, limit: int) -> list[Job]:
    return of_rows(tx.rows("jobs.unstarted_members", group_id=group_id, limit=limit))


def queued_members(tx: Tx, group_id: str, limit: int) -> list[Job]:
    return of_rows(tx.rows("jobs.queued_members", group_id=group_id, limit=limit))


def live_members(tx: Tx, group_id: str, limit: int) -> list[Job]:
    return of_rows(tx.rows("jobs.live_members", group_id=group_id, limit=limit))


def members(tx: Tx, group_id: str) -> list[Job]:
    return of_rows(tx.rows("jobs.members", group_id=group_id))


def shown(row: Row) -> dict[str, Any]:
    """Returns the JSON form of a job from its row, without `attempt`. Columns that contain JSON stay text, for
    `orjson`.
    """
    found = JOBS.shown(row)
    unmet, *is_free = _HELD_BACK(row)
    decision, stage, outcome = _DECIDED(row)
    found["status"] = status_of(stage, outcome, not unmet and all(is_free))
    found["permanently_failed"] = decision == Decision.PERMANENT
    if row[_IS_AWAITING] and stage == Stage.QUEUED:
        found["awaiting"] = JOBS.value(row).awaiting
    return found


def link_of(row: Row) -> Link:
    return Link(*_LINK_COLUMNS(row))


def links(tx: Tx, chain_ids: Iterable[str]) -> dict[str, str]:
    """Returns for each retry in these chains the job that it retries."""
    return dict(tx.rows("pages.links", chain_ids=column_codec.key_set(chain_ids)))


def queue_counts(tx: Tx) -> dict[str, int]:
    """Returns how many jobs of each office are queued, waiting ones included."""
    return dict(tx.rows("pages.queue_counts"))


def ready_counts(tx: Tx) -> dict[int, tuple[int, Instant]]:
    """Returns for each lane how many jobs are ready, and when the oldest of them was created."""
    return {lane_id: (count, Instant(oldest)) for lane_id, count, oldest in tx.rows("pages.ready_counts")}


def place_of(job: Job) -> Place:
    return Place(-job.order_priority, job.position, job.created_at, job.job_id)


def _key(place: Place) -> dict[str, object]:
    return {
        "priority": place.priority,
        "position": place.position,
        "created_at": place.created_at,
        "job_id": place.job_id,
    }


def _place(row: Row | None) -> Place | None:
    return None if row is None else Place(-row[1], row[2], row[3], row[0])


def _head(job_id: str, priority: int, position: int, created_at: int, since: int | None, *spec: Any) -> FirstInLane:
    return FirstInLane(Place(-priority, position, created_at, job_id), since, ExecutionSpec(*spec))


def _freed(row: Row) -> Freed:
    job_id, office_id, lane_id, unmet, is_due, is_turn, priority, position, is_awaiting = row[:9]
    is_free = is_due == 1 and is_turn == 1
    is_asking = is_free and is_awaiting == 1 and unmet == 1
    return Freed(job_id, office_id, lane_id, is_free and unmet == 0, (-priority, position), is_asking)


def of_rows(rows: Iterable[Row]) -> list[Job]:
    """Returns the jobs of whole rows."""
    return [JOBS.value(row) for row in rows]
