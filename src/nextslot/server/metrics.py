"""The content of `GET /metrics`, in Prometheus' text format. docs/operations.md explains each metric.

Each scrape reads the stored numbers, at a cost that does not depend on ended jobs; the others come from the meters of
this process. Each application has a registry of its own.
"""

import platform
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from nextslot.domain import Limit, Node, OfficeStatus, SchedulerStatus
from nextslot.errors import StoreError, Unavailable
from nextslot.scheduler import Scheduler
from nextslot.telemetry.meters import Histogram, HttpMeters, Names, ProcessMeters

Labels = tuple[str, ...]


class Exposition:
    """The metrics of one application, collected at each scrape."""

    def __init__(self, app: FastAPI, scheduler: Scheduler, http: HttpMeters) -> None:
        self._app = app
        self._scheduler = scheduler
        self._http = http
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        meters = scheduler.meters
        self._meters = meters if isinstance(meters, ProcessMeters) else None
        self._offices = Names() if self._meters is None else self._meters.offices
        self._limits = Names()

    async def scrape(self) -> Collector:
        """Collects all metrics. If the store does not answer, collects only those that need no store."""
        is_ready = await self._scheduler.readiness() is None
        try:
            status = await self._scheduler.lists.status()
            nodes = _nodes(await self._scheduler.nodes.list(), self._scheduler.node)
        except (Unavailable, StoreError):
            status, nodes = None, iter(())
        return _Scraped([*self._collect(is_ready, status), *nodes, *self._registry.collect()])

    def _collect(self, is_ready: bool, status: SchedulerStatus | None) -> Iterator[Metric]:
        about = {"version": version("nextslot"), "node": self._scheduler.node, "python": platform.python_version()}
        yield InfoMetricFamily("nextslot", "What runs here.", about)
        yield GaugeMetricFamily("nextslot_ready", "1 while it takes and runs jobs.", int(is_ready))
        if (free := self._scheduler.disk.free()) is not None:
            about_space = "Free bytes where the database, logs and artifacts are, the least of them."
            yield GaugeMetricFamily("nextslot_disk_free_bytes", about_space, free)
        if status is not None:
            yield from _facts(status, self._offices, self._limits)
        recovered = self._scheduler.recovered
        found = {(name,): getattr(recovered, name) for name in ("lost", "closed", "decided", "direct")}
        yield _gauge("nextslot_recovered", "What the last start had to repair.", ("what",), found)
        if self._meters is not None:
            yield from _measured(self._meters)
            yield from _followed(self._meters, status)
        refused = {(quota,): count for quota, count in self._scheduler.quotas.refused.items()}
        yield _counter("nextslot_over_quota", "Requests that a quota has refused.", ("quota",), refused)
        yield from _requests(self._http)
        for attached in self._scheduler.attached.values():
            for counters in attached.counters():
                yield _counter(*counters)


class _Scraped(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


# Metrics from the store.


def _facts(status: SchedulerStatus, offices: Names, limits: Names) -> Iterator[Metric]:
    yield from _queues(status, offices)
    yield from _slots(status.limits, limits)
    paused = {(scope, offices.of(name) if scope == "office" else name): 1 for scope, name in _pauses(status)}
    yield _gauge("nextslot_paused", "1 for what is paused.", ("scope", "name"), paused)
    held = {(one.resource,): _seconds(status.now - one.since) for one in status.held}
    yield _gauge("nextslot_resource_held_seconds", "Since when a resource does not answer.", ("resource",), held)
    yield GaugeMetricFamily("nextslot_last_event", "The number of the newest event.", status.last_event)


def _queues(status: SchedulerStatus, names: Names) -> Iterator[Metric]:
    jobs: dict[Labels, float] = {}
    callers: dict[Labels, float] = {}
    oldest: dict[Labels, float] = {}
    for one in status.offices:
        office = names.of(one.office_id)
        _add(jobs, {(office, "QUEUED"): one.queued, (office, "WAITING"): one.waiting, (office, "RUNNING"): one.running})
        _add(callers, {(office, "WAITING"): one.direct_waiting, (office, "RUNNING"): one.direct_running})
        oldest[office,] = max(oldest.get((office,), 0.0), _age(one, status))
    by_status = ("office", "status")
    yield _gauge("nextslot_jobs", "Jobs that have not ended, by office and status.", by_status, jobs)
    yield _gauge("nextslot_oldest_queued_seconds", "Age of the oldest job that is free to go.", ("office",), oldest)
    yield _gauge("nextslot_direct_callers", "Direct callers that wait or run.", by_status, callers)


def _nodes(nodes: Iterable[Node], own: str) -> Iterator[Metric]:
    counts: dict[Labels, float] = dict.fromkeys([("live",), ("draining",), ("left",), ("lost",)], 0)
    leads = 0
    for one in nodes:
        counts[one.status,] += 1
        leads |= one.is_leader and one.node_id == own
    yield _gauge("nextslot_nodes", "Nodes that share the database, by status.", ("status",), counts)
    yield GaugeMetricFamily("nextslot_leader", "1 where this node is the leader.", int(leads))


def _age(office: OfficeStatus, status: SchedulerStatus) -> float:
    return 0.0 if office.oldest_queued_at is None else _seconds(status.now - office.oldest_queued_at)


def _slots(limits: Iterable[Limit], names: Names) -> Iterator[Metric]:
    used: dict[Labels, float] = {}
    capacity: dict[Labels, float] = {}
    for one in limits:
        name = names.of(one.limit_key)
        _add(used, {(name,): one.used})
        # A capacity of 0 means no limit. Published as infinity, so that used / capacity is right for every limit.
        _add(capacity, {(name,): float("inf") if one.capacity == 0 else one.capacity})
    yield _gauge("nextslot_limit_used", "Units of a limit that are in use.", ("limit",), used)
    yield _gauge("nextslot_limit_capacity", "Units that a limit has.", ("limit",), capacity)


def _pauses(status: SchedulerStatus) -> Iterator[tuple[str, str]]:
    yield from status.paused
    for office in status.offices:
        if office.paused:
            yield "office", office.office_id


# Metrics from the meters of this process.


def _measured(meters: ProcessMeters) -> Iterator[Metric]:
    by_type: dict[Labels, float] = {}
    for (event, _), count in meters.events.items():
        _add(by_type, {(event,): count})
    yield _counter("nextslot_events", "Events, by type.", ("type",), by_type)
    for event, name, about in (
        ("job_queued", "nextslot_jobs_created", "Jobs that were put into the queue, retries among them."),
        ("job_retrying", "nextslot_retries", "Jobs that were made to retry another."),
    ):
        by_office = {(office,): count for (what, office), count in meters.events.items() if what == event}
        yield _counter(name, about, ("office",), by_office)
    handovers = {(): meters.handovers}
    yield _histogram("nextslot_handover_seconds", "From the end of a run to the start of the next.", (), handovers)
    blocks = {(): meters.blocks}
    yield _histogram("nextslot_loop_blocked_seconds", "Times that the event loop did not answer.", (), blocks)
    runs = {(name, kind, outcome.lower()): durations for (name, kind, outcome), durations in meters.runs.items()}
    labels = ("job_type", "kind", "outcome")
    yield _histogram("nextslot_run_duration_seconds", "How long handlers ran.", labels, runs)
    kinds = ("job_type", "failure_kind")
    yield _counter("nextslot_run_failures", "Runs that failed, by kind of failure.", kinds, meters.failed)
    refused = {(result,): count for result, count in meters.refused_outcomes.items()}
    about = "Outcomes of runs that the store refused; given_up: a failure was stored in their place."
    yield _counter("nextslot_outcomes_refused", about, ("result",), refused)
    attempts = {(result,): durations for result, durations in meters.attempts.items()}
    yield _histogram("nextslot_webhook_attempt_seconds", "Attempts to send a webhook.", ("result",), attempts)
    deliveries = {(status.lower(),): count for status, count in meters.deliveries.items()}
    yield _counter(
        "nextslot_webhook_deliveries", "Deliveries by their status after an attempt.", ("status",), deliveries
    )
    yield from _store(meters)


def _store(meters: ProcessMeters) -> Iterator[Metric]:
    yield _histogram("nextslot_store_write_seconds", "Group commits, with the wait.", (), {(): meters.writes})
    yield _histogram("nextslot_store_group_size", "Works that were committed together.", (), {(): meters.groups})
    yield _histogram("nextslot_store_read_seconds", "Reads, with the wait.", (), {(): meters.reads})
    failures = {(operation,): count for operation, count in meters.failures.items()}
    yield _counter("nextslot_store_failures", "Works that failed in the store.", ("operation",), failures)


def _followed(meters: ProcessMeters, status: SchedulerStatus | None) -> Iterator[Metric]:
    yield GaugeMetricFamily("nextslot_event_followers", "Readers that follow the events.", len(meters.followers))
    if status is not None:
        lag = meters.lag(status.last_event)
        yield GaugeMetricFamily("nextslot_event_lag", "Events that the slowest follower has not received yet.", lag)


def _requests(http: HttpMeters) -> Iterator[Metric]:
    requests = {(method, route, str(status)): count for (method, route, status), count in http.requests.items()}
    labels = ("method", "route", "status")
    yield _counter("nextslot_http_requests", "Requests that were answered.", labels, requests)
    yield _histogram(
        "nextslot_http_request_duration_seconds", "Until the answer began.", ("method", "route"), http.durations
    )
    yield GaugeMetricFamily("nextslot_http_requests_in_progress", "Requests under way.", http.in_progress)


# Helpers that make metric families.


def _gauge(name: str, about: str, labels: Labels, values: Mapping[Any, float]) -> Metric:
    return _filled(GaugeMetricFamily(name, about, labels=labels), values)


def _counter(name: str, about: str, labels: Labels, values: Mapping[Any, float]) -> Metric:
    return _filled(CounterMetricFamily(name, about, labels=labels), values)


def _filled(family: Any, values: Mapping[Any, float]) -> Metric:
    for labels, value in sorted(values.items()):
        family.add_metric(labels, value)
    found: Metric = family
    return found


def _histogram(name: str, about: str, labels: Labels, values: Mapping[Any, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, about, labels=labels)
    for key, histogram in sorted(values.items(), key=lambda item: item[0]):
        family.add_metric(key, list(_buckets(histogram)), histogram.sum)
    return family


def _buckets(histogram: Histogram) -> Iterator[tuple[str, float]]:
    so_far = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        so_far += count
        yield "+Inf" if bound == float("inf") else str(float(bound)), so_far


def _add(sums: dict[Labels, float], more: Mapping[Labels, float]) -> None:
    """Adds up values with the same labels, such as `other`."""
    for labels, value in more.items():
        sums[labels] = sums.get(labels, 0) + value


def _seconds(microseconds: int) -> float:
    return max(0, microseconds) / 1_000_000
