"""Reads the stored data for the oracles, with plain statements that nothing else uses."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from nextslot.store.contract import Row, Tx
from nextslot.store.tables import column_codec


class Waiting(NamedTuple):
    """A job that is ready or was ready until it started."""

    job_id: str
    office_id: str
    lane_id: int
    priority: int
    aged_steps: int
    position: int
    created_at: int
    passed_over_since: int | None

    @property
    def place(self) -> tuple[int, int, int, str]:
        level = self.priority if self.priority == 1_000_000 else min(self.priority + self.aged_steps, 999_999)
        return -level, self.position, self.created_at, self.job_id


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

    @property
    def affinity(self) -> str | None:
        names = [key.partition("/")[2] for key in self.units if key.startswith("affinity:")]
        return names[0] if names else None


class Told(NamedTuple):
    """A stored event."""

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
    await_signal: str | None
    is_awaiting: int
    asked_at: int | None
    answer_by: int | None
    worker_id: str | None
    park: str | None
    session_id: str | None
    cancel_reason: str | None


class StoredSignal(NamedTuple):
    chain_id: str
    name: str
    number: int
    job_id: str | None
    answer: str
    payload: str | None
    sent_by: str
    sent_at: int


class Message(NamedTuple):
    delivery_id: str
    status: str
    job_id: str | None
    is_own: int
    event: str


class Plan(NamedTuple):
    """A schedule, and up to when its occurrences are stored."""

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


def used_up(tx: Tx) -> set[str]:
    return {resource for (resource,) in tx.rows("inspection.used_up")}


def events(tx: Tx, after: int) -> list[Told]:
    return [Told(*row) for row in tx.rows("inspection.events", seq=after)]


def is_under_way(tx: Tx, run_id: str) -> bool:
    return tx.row("inspection.unfinished", run_id=run_id) is not None


def jobs(tx: Tx) -> dict[str, JobFacts]:
    return {row[0]: JobFacts(*row) for row in tx.rows("inspection.jobs")}


def signals(tx: Tx) -> list[StoredSignal]:
    return [StoredSignal(*row) for row in tx.rows("inspection.signals")]


def checkpoint(tx: Tx, chain_id: str) -> Any:
    row = tx.row("inspection.checkpoint", chain_id=chain_id)
    return None if row is None else column_codec.loads(row[0])


def waits(tx: Tx) -> list[tuple[str, str]]:
    return [(job_id, chain_id) for job_id, chain_id in tx.rows("inspection.waits")]


def reservations(tx: Tx) -> list[tuple[str, int]]:
    return [(reservation_id, expires_at) for reservation_id, expires_at in tx.rows("inspection.reservations")]


def messages(tx: Tx) -> list[Message]:
    return [Message(*row) for row in tx.rows("inspection.deliveries")]


def schedules(tx: Tx) -> list[Plan]:
    return [Plan(*row) for row in tx.rows("inspection.schedules")]


def ledger(tx: Tx, schedule_id: str) -> list[Row]:
    """Returns (instant, until, count, outcome) of stored occurrences."""
    return tx.rows("inspection.occurrences", schedule_id=schedule_id)


class CronPlan(NamedTuple):
    """The settings that decide about the occurrences of a schedule."""

    schedule_id: str
    office_id: str
    cron_expression: str
    timezone: str
    enabled: int
    is_deleted: int
    catch_up: str
    window_seconds: float
    overlap: str
    accounted_until: int


class OfficeFacts(NamedTuple):
    office_id: str
    status: str
    max_concurrent_jobs: int
    role_limits: Mapping[str, int]
    webhook: Mapping[str, Any] | None
    priority_aging_seconds: float | None


class Subscription(NamedTuple):
    webhook_id: str
    url: str
    events: tuple[str, ...]
    office_id: str | None


class DirectFacts(NamedTuple):
    direct_id: str
    status: str
    failure_kind: str | None
    is_detached: int
    is_cancelled: int
    timeout_seconds: float
    params: Any  # The text of the column until `direct` has parsed it; then an object.
    created_at: int
    started_at: int | None


def cron_settings(tx: Tx) -> dict[str, CronPlan]:
    return {row[0]: CronPlan(*row) for row in tx.rows("inspection.cron_settings")}


def busy_schedules(tx: Tx) -> set[str]:
    return {schedule_id for (schedule_id,) in tx.rows("inspection.busy")}


def offices(tx: Tx) -> dict[str, OfficeFacts]:
    return {
        office_id: OfficeFacts(
            office_id, status, most, column_codec.loads(roles), webhook and column_codec.loads(webhook), aging
        )
        for office_id, status, most, roles, webhook, aging in tx.rows("inspection.offices")
    }


def dependents(tx: Tx) -> dict[str, str]:
    """Returns the dependency policy of each job that waits for others."""
    return dict(tx.rows("inspection.dependents"))


def needed(tx: Tx) -> set[str]:
    return {job_id for (job_id,) in tx.rows("inspection.needed")}


def subscriptions(tx: Tx) -> list[Subscription]:
    return [
        Subscription(webhook_id, url, tuple(column_codec.loads(events)), office_id)
        for webhook_id, url, events, office_id in tx.rows("inspection.subscriptions")
    ]


def sent(tx: Tx, after: int) -> list[Row]:
    """Returns (event, url, office_id, seq) of messages."""
    return tx.rows("inspection.sent", seq=after)


def direct(tx: Tx) -> list[DirectFacts]:
    found = [DirectFacts(*row) for row in tx.rows("inspection.direct")]
    return [one._replace(params=column_codec.loads(one.params)) for one in found]


def last_event(tx: Tx) -> int:
    row = tx.row("inspection.last_event")
    return int(row[0]) if row else 0


class JobKind(NamedTuple):
    """The fields of a job that decide about its lane."""

    job_id: str
    lane_id: int
    office_id: str
    role: str | None
    job_type: str
    resources: Any  # Parsed later, like `params` above.
    limit_keys: Any
    affinity: str | None


def kinds(tx: Tx) -> list[JobKind]:
    found = [JobKind(*row) for row in tx.rows("inspection.kinds")]
    return [
        one._replace(
            resources=column_codec.loads(one.resources),
            limit_keys=[] if one.limit_keys is None else column_codec.loads(one.limit_keys),
        )
        for one in found
    ]


def token_uses(tx: Tx) -> list[tuple[str, int, int]]:
    """Returns (run_id, lane_id, tokens) of ended work whose result reports tokens."""
    rows = tx.rows("inspection.results")
    return [(run_id, lane_id, column_codec.loads(result)["usage"]["total_tokens"]) for run_id, lane_id, result in rows]


def affinities(tx: Tx) -> list[Row]:
    """Returns (resource, affinity, since when others are passed over for it)."""
    return tx.rows("lanes.loaded")


def device_holds(tx: Tx) -> dict[tuple[str, str], int]:
    """Returns how many named devices of a resource each worker holds, by (worker_id, resource)."""
    return {(worker_id, resource): count for worker_id, resource, count in tx.rows("inspection.device_holds")}


def workers(tx: Tx) -> list[tuple[str, int]]:
    """Returns (worker_id, lane_id) of the running jobs and callers."""
    return [(worker_id, lane_id) for worker_id, lane_id in tx.rows("inspection.workers")]


def failures(tx: Tx) -> tuple[set[Row], set[Row]]:
    """Returns the failures counted by fingerprint, and those of the jobs: (office_id, job_type, kind, number)."""
    return set(tx.rows("inspection.failures")), set(tx.rows("inspection.failed"))


def caller_lanes(tx: Tx) -> dict[tuple[str, str], int]:
    """Returns the lane of each direct execution, by (office_id, direct_id)."""
    return {(office_id, direct_id): lane for office_id, direct_id, lane in tx.rows("inspection.caller_lanes")}


def queues(tx: Tx) -> dict[str, list[str]]:
    """Returns the queued jobs of each office in order."""
    found: dict[str, list[str]] = {}
    for job_id, office_id in tx.rows("inspection.queue"):
        found.setdefault(office_id, []).append(job_id)
    return found


def holders(tx: Tx) -> list[tuple[str, int]]:
    """Returns (id, lane_id) of the running jobs and callers."""
    return [(name, lane_id) for name, lane_id in tx.rows("inspection.holders")]


class CallerTimes(NamedTuple):
    run_id: str
    status: str
    job_type: str
    wait_until: int
    timeout_at: int | None
    cancel_requested_at: int | None


def caller_times(tx: Tx) -> list[CallerTimes]:
    return [CallerTimes(*row) for row in tx.rows("inspection.waiting_callers")]


def time_limits(tx: Tx) -> list[tuple[str, float]]:
    """Returns (run_id, seconds) of the running jobs and callers that have a timeout."""
    return [(run_id, seconds) for run_id, seconds in tx.rows("inspection.time_limits")]


def pending(tx: Tx) -> list[Row]:
    """Returns (delivery_id, origin, next_attempt_at) of pending deliveries."""
    return tx.rows("inspection.pending")
