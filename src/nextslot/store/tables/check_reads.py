"""What is stored, read as a checker reads it: plainly, by statements that nothing else uses. Called by `simulation`."""

from collections.abc import Mapping
from typing import NamedTuple

from nextslot.store.contract import Row, Tx

from . import column_codec


class Waiting(NamedTuple):
    """A job that is, or was until it started, free to go."""

    job_id: str
    office_id: str
    lane_id: int
    priority: int
    position: int
    created_at: int
    passed_over_since: int | None

    @property
    def place(self) -> tuple[int, int, int, str]:
        return -self.priority, self.position, self.created_at, self.job_id


class WaitingCaller(NamedTuple):
    run_id: str
    office_id: str
    lane_id: int
    status: str
    is_holder: int


class LaneNeeds(NamedTuple):
    office_id: str
    job_type: str
    resources: frozenset[str]
    units: Mapping[str, int]


class Told(NamedTuple):
    """An event."""

    seq: int
    type: str
    job_id: str | None
    run_id: str | None
    office_id: str | None
    details: str
    timestamp: int


class JobFacts(NamedTuple):
    job_id: str
    chain_id: str
    retry_of: str | None
    office_id: str
    lane_id: int
    stage: str
    outcome: str | None
    decision: str | None
    retry_policy: str
    failure_kind: str | None
    created_at: int
    started_at: int | None
    finished_at: int | None
    scheduled_for: int | None
    expires_at: int | None
    unmet: int
    is_due: int
    is_turn: int
    group_id: str | None
    sequence: int | None
    has_webhook: int
    cancel_mode: str | None
    timeout_at: int | None
    run_id: str | None
    beside: int | None


class Message(NamedTuple):
    delivery_id: str
    status: str
    job_id: str | None
    is_own: int
    event: str


class Plan(NamedTuple):
    """A schedule, and how far it is accounted for."""

    schedule_id: str
    cron_expression: str
    created_at: int
    accounted_until: int
    enabled: int
    next_trigger_at: int | None


def ready(tx: Tx) -> list[Waiting]:
    return [Waiting(*row) for row in tx.rows("inspection.ready")]


def started(tx: Tx, after: int) -> list[Waiting]:
    return [Waiting(*row) for row in tx.rows("inspection.started", seq=after)]


def running_lanes(tx: Tx) -> list[int]:
    return [lane_id for (lane_id,) in tx.rows("inspection.running")]


def callers(tx: Tx) -> list[WaitingCaller]:
    return [WaitingCaller(*row) for row in tx.rows("inspection.callers")]


def needs(tx: Tx) -> dict[int, LaneNeeds]:
    return {
        lane_id: LaneNeeds(
            office_id,
            job_type,
            frozenset(column_codec.loads(resources)),
            {**column_codec.loads(local), **column_codec.loads(shared)},
        )
        for lane_id, office_id, job_type, resources, local, shared in tx.rows("inspection.lanes")
    }


def capacities(tx: Tx) -> dict[str, int]:
    return dict(tx.rows("inspection.limits"))


def pauses(tx: Tx) -> set[tuple[str, str]]:
    return {(scope, name) for scope, name in tx.rows("inspection.pauses")}


def held(tx: Tx) -> set[str]:
    return {resource for (resource,) in tx.rows("inspection.held")}


def events(tx: Tx, after: int) -> list[Told]:
    return [Told(*row) for row in tx.rows("inspection.events", seq=after)]


def is_under_way(tx: Tx, run_id: str) -> bool:
    return tx.row("inspection.unfinished", run_id=run_id) is not None


def jobs(tx: Tx) -> dict[str, JobFacts]:
    return {row[0]: JobFacts(*row) for row in tx.rows("inspection.jobs")}


def waits(tx: Tx) -> list[tuple[str, str]]:
    return [(job_id, chain_id) for job_id, chain_id in tx.rows("inspection.waits")]


def reservations(tx: Tx) -> list[tuple[str, int]]:
    return [(reservation_id, expires_at) for reservation_id, expires_at in tx.rows("inspection.reservations")]


def messages(tx: Tx) -> list[Message]:
    return [Message(*row) for row in tx.rows("inspection.deliveries")]


def schedules(tx: Tx) -> list[Plan]:
    return [Plan(*row) for row in tx.rows("inspection.schedules")]


def ledger(tx: Tx, schedule_id: str) -> list[Row]:
    """(instant, until, count, outcome)"""
    return tx.rows("inspection.occurrences", schedule_id=schedule_id)
