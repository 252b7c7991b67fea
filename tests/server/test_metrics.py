"""Spec 18, observability: what an operator's alarms go by is exact, bounded, and described."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from pytest_httpserver import HTTPServer

from nextslot.domain import Event
from nextslot.executors.run_context import Fail, RunContext
from nextslot.telemetry.meters import Histogram, Names, ProcessMeters
from tests import databases
from tests.support import eventually

from .support import Server, serving

PAGE = Path(__file__).parents[2] / "docs/operations.md"
QUICKLY = {"max_attempts": 2, "base_delay_seconds": 0.001}

Scraped = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def test_what_waits_and_runs_is_told_by_office_and_state(tmp_path: Path) -> None:
    async with measured(tmp_path) as server:
        await server.scheduler.offices.create("studio", max_concurrent_jobs=2)
        await _submit(server, "gate", office_id="studio")
        await _submit(server, "echo")
        await _submit(server, "gate")
        await _submit(server, "echo")
        await _submit(server, "echo", scheduled_for="2100-01-01T00:00:00Z")
        caller = asyncio.create_task(server.client.post("/api/direct/echo", json={}))
        await _reserved(server)

        found = await scrape(server)

        jobs = {status: value(found, "nextslot_jobs", office="default", status=status) for status in STATES}
        assert jobs == {"QUEUED": 1, "WAITING": 1, "RUNNING": 1}
        assert value(found, "nextslot_jobs", office="studio", status="RUNNING") == 1
        assert value(found, "nextslot_direct_callers", office="default", status="WAITING") == 1
        assert 0 < value(found, "nextslot_oldest_queued_seconds", office="default") < 60
        assert value(found, "nextslot_oldest_queued_seconds", office="studio") == 0
        server.gate.opened.set()
        assert (await caller).status_code == 200


async def test_the_use_of_a_limit_is_told_beside_its_capacity_and_no_limit_is_an_infinite_one(tmp_path: Path) -> None:
    async with measured(tmp_path) as server:
        await server.scheduler.offices.create("studio", max_concurrent_jobs=3)
        await _submit(server, "gate", office_id="studio")
        await _submit(server, "gate", office_id="studio")

        found = await scrape(server)

        assert value(found, "nextslot_limit_used", limit="office:studio") == 2
        assert value(found, "nextslot_limit_capacity", limit="office:studio") == 3
        assert value(found, "nextslot_limit_capacity", limit="scheduler") == float("inf")


async def test_what_is_paused_has_a_series_of_its_own_for_as_long_as_it_is(tmp_path: Path) -> None:
    async with measured(tmp_path) as server:
        await server.scheduler.pause(job_type="echo")
        await server.scheduler.pause(office_id="default")
        paused = await scrape(server)
        await server.scheduler.resume(job_type="echo")
        after = await scrape(server)

        assert value(paused, "nextslot_paused", scope="type", name="echo") == 1
        assert value(paused, "nextslot_paused", scope="office", name="default") == 1
        assert ("nextslot_paused", frozenset({("scope", "type"), ("name", "echo")})) not in after


async def test_runs_are_counted_by_type_kind_and_outcome_and_failures_by_their_kind(tmp_path: Path) -> None:
    async with measured(tmp_path) as server:
        server.scheduler.job_types.add("flaky", _flaky, retry_policy=QUICKLY)
        for job_type in ("echo", "echo", "fail", "flaky"):
            await server.scheduler.wait(await _submit(server, job_type))
        await server.client.post("/api/direct/echo", json={})

        found = await scrape(server)

        runs = {key: count for key, count in found.items() if key[0] == "nextslot_run_duration_seconds_count"}
        assert {tuple(sorted(dict(labels).values())): count for (_, labels), count in runs.items()} == {
            ("completed", "echo", "job"): 2,
            ("completed", "direct", "echo"): 1,
            ("fail", "failed", "job"): 1,
            ("failed", "flaky", "job"): 2,
            ("completed", "flaky", "job"): 1,
        }
        assert value(found, "nextslot_run_failures_total", job_type="flaky", failure_kind="unavailable") == 2
        assert value(found, "nextslot_retries_total", office="default") == 2
        assert value(found, "nextslot_jobs_created_total", office="default") == 6
        assert value(found, "nextslot_events_total", type="job_failed_permanently") == 1
        assert value(found, "nextslot_last_event") == await _last_event(server)


async def test_a_hand_over_is_measured_for_each_job_that_follows_another(tmp_path: Path) -> None:
    async with measured(tmp_path) as server:
        await server.scheduler.pause()
        ids = [await _submit(server, "echo") for _ in range(4)]
        await server.scheduler.resume()
        await server.scheduler.wait(ids[-1])
        await server.scheduler.wait(await _submit(server, "echo"))

        found = await scrape(server)

        # The first of the four, and the last one alone, followed nobody.
        assert value(found, "nextslot_handover_seconds_count") == 3
        assert 0 < value(found, "nextslot_handover_seconds_sum") < 60


async def test_the_metrics_are_compressed_for_whom_that_suits(tmp_path: Path) -> None:
    async with measured(tmp_path) as server:
        sizes = {}
        for encoding in ("identity", "gzip"):
            answer = await server.client.get("/metrics", headers={"Accept-Encoding": encoding})
            assert answer.headers.get("Content-Encoding", "identity") == encoding
            assert "# TYPE nextslot_jobs gauge" in answer.text
            sizes[encoding] = int(answer.headers["Content-Length"])

        assert sizes["gzip"] < sizes["identity"] / 3


async def test_requests_are_counted_by_the_template_of_their_route(tmp_path: Path) -> None:
    async with measured(tmp_path) as server:
        for job_id in ("a", "b", "c"):
            await server.client.get(f"/api/jobs/{job_id}")
        await server.client.get("/no/such/path/1")
        await server.client.get("/no/such/path/2")
        await server.client.request("TRACE", "/api/jobs")
        await server.client.get("/api/jobs", headers={"Host": "evil.example"})

        found = await scrape(server)

        counted = {tuple(dict(labels)[name] for name in ("method", "route", "status")): count
                   for (name, labels), count in found.items() if name == "nextslot_http_requests_total"}  # fmt: skip
        assert counted == {
            ("GET", "/api/jobs/{job_id}", "404"): 3,
            ("GET", "unmatched", "404"): 2,
            ("OTHER", "/api/jobs", "405"): 1,
            ("GET", "unmatched", "403"): 1,
        }
        duration = "nextslot_http_request_duration_seconds_count"
        assert value(found, duration, method="GET", route="/api/jobs/{job_id}") == 3
        assert value(found, "nextslot_http_requests_in_progress") == 1, "this scrape"


async def test_calls_of_the_old_endpoints_are_counted(tmp_path: Path) -> None:
    async with measured(tmp_path) as server:
        await server.client.get("/jobs/queue")
        await server.client.get("/jobs/queue")

        found = await scrape(server)

        calls = [count for (name, _), count in found.items() if name == "nextslot_legacy_requests_total"]
        assert calls == [2]


async def test_the_store_tells_its_writes_reads_and_what_it_could_not_do(tmp_path: Path) -> None:
    async with measured(tmp_path) as server:
        before = await scrape(server)
        await _submit(server, "gate")
        stored = await scrape(server)
        body = {"job_type": "echo", "params": {"text": "x" * 100_000}}
        with databases.taking_nothing(server.scheduler._access.store):
            refused = await server.client.post("/api/jobs", json=body)
        after = await scrape(server)

        assert refused.status_code == 503
        # Where nodes share the database, one of them may tell meanwhile that it lives.
        most = 1 if databases.kind() == "sqlite" else 3
        assert 1 <= _more(before, stored, "nextslot_store_write_seconds_count") <= most
        assert 1 <= _more(before, stored, "nextslot_store_group_size_sum") <= most
        assert _more(before, stored, "nextslot_store_read_seconds_count") >= 1
        assert value(stored, "nextslot_store_failures_total", operation="write") == 0
        assert 1 <= value(after, "nextslot_store_failures_total", operation="write") <= most


async def test_a_full_line_of_direct_callers_is_no_failure_of_the_store(tmp_path: Path) -> None:
    async with measured(tmp_path) as server:
        await _submit(server, "gate")
        body = {"wait_timeout_seconds": 0.01}
        sent_away = await server.client.post("/api/direct/echo", json=body)
        found = await scrape(server)

        assert sent_away.status_code == 503
        assert value(found, "nextslot_store_failures_total", operation="write") == 0


async def test_the_lag_of_the_slowest_follower_of_the_events_is_told(tmp_path: Path) -> None:
    async with measured(tmp_path) as server:
        await server.scheduler.wait(await _submit(server, "echo"))
        last = await _last_event(server)
        quick, slow = _follower(server), _follower(server)
        for _ in range(last):
            await anext(quick)
        await anext(slow)
        behind = await scrape(server)
        await slow.aclose()
        await quick.aclose()
        alone = await scrape(server)

        # It has been given the first, and has not come back for more.
        assert value(behind, "nextslot_event_lag") == last
        assert value(behind, "nextslot_event_followers") == 2
        assert (value(alone, "nextslot_event_lag"), value(alone, "nextslot_event_followers")) == (0, 0)


async def test_webhooks_are_counted_by_attempt_and_by_what_became_of_them(
    tmp_path: Path, httpserver: HTTPServer
) -> None:
    httpserver.expect_request("/good").respond_with_data("fine")
    httpserver.expect_request("/bad").respond_with_data("no", status=500)

    async with measured(tmp_path) as server:
        for path in ("/good", "/bad"):
            webhook = {"url": httpserver.url_for(path), "events": ["job.run.completed"]}
            await server.scheduler.submit("echo", webhook=webhook)
        meters: Any = server.scheduler.meters
        await eventually(lambda: sum(meters.deliveries.values()) == 2)

        found = await scrape(server)

        assert value(found, "nextslot_webhook_attempt_seconds_count", result="2xx") == 1
        assert value(found, "nextslot_webhook_attempt_seconds_count", result="5xx") == 1
        assert value(found, "nextslot_webhook_deliveries_total", status="delivered") == 1
        assert value(found, "nextslot_webhook_deliveries_total", status="pending") == 1


async def test_offices_beyond_the_bound_are_added_up_as_other(tmp_path: Path) -> None:
    meters = ProcessMeters()
    meters.offices = Names(2)

    async with serving(tmp_path, meters=meters) as server:
        for office_id in ("a", "b", "c"):
            await server.scheduler.offices.create(office_id)
            await server.scheduler.pause(office_id=office_id)
            await _submit(server, "echo", office_id=office_id)

        found = await scrape(server)

        offices = {dict(labels)["office"] for name, labels in found if name == "nextslot_jobs"}
        assert len(offices) == 3
        assert "other" in offices
        queued = [count for (name, labels), count in found.items()
                  if name == "nextslot_jobs" and ("status", "QUEUED") in labels]  # fmt: skip
        assert sum(queued) == 3
        created = [count for (name, _), count in found.items() if name == "nextslot_jobs_created_total"]
        assert sum(created) == 3
        assert len(created) <= 3


def test_a_name_keeps_its_series_and_who_comes_too_late_shares_one() -> None:
    names = Names(2)

    found = [names.of(name) for name in ("a", "b", "c", "a", "d", "b")]

    assert found == ["a", "b", "other", "a", "other", "b"]


@pytest.mark.parametrize(("seconds", "place"), [(0.0, 0), (1.0, 0), (1.5, 1), (2.0, 1), (2.5, 2)])
def test_a_bucket_takes_what_is_at_most_its_bound(seconds: float, place: int) -> None:
    histogram = Histogram((1.0, 2.0))

    histogram.note(seconds)

    assert (histogram.counts.index(1), histogram.count, histogram.sum) == (place, 1, seconds)


async def test_a_scheduler_that_is_not_measured_tells_what_is_stored_and_its_requests(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await _submit(server, "gate")

        found = await scrape(server)

        assert value(found, "nextslot_jobs", office="default", status="RUNNING") == 1
        assert value(found, "nextslot_http_requests_total", method="POST", route="/api/jobs", status="201") == 1
        assert not any(name.startswith("nextslot_handover") for name, _ in found)


async def test_two_applications_in_one_process_share_nothing(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()

    async with measured(tmp_path) as server:
        await server.client.get("/api/jobs")

        async def beside() -> None:
            async with measured(tmp_path / "other") as other:
                found = await scrape(other)
            assert not any(name == "nextslot_http_requests_total" for name, _ in found)

        await asyncio.to_thread(lambda: asyncio.run(beside()))
        found = await scrape(server)
        assert value(found, "nextslot_http_requests_total", method="GET", route="/api/jobs", status="200") == 1


async def test_who_asks_for_openmetrics_gets_that(tmp_path: Path) -> None:
    async with measured(tmp_path) as server:
        await server.scheduler.wait(await _submit(server, "fail"))
        accept = "application/openmetrics-text; version=1.0.0"

        answer = await server.client.get("/metrics", headers={"Accept": accept})

        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        names = {family.name for family in openmetrics_families(answer.text)}  # type: ignore[no-untyped-call]
        assert {"nextslot_jobs", "nextslot_run_duration_seconds", "nextslot_run_failures"} <= names


async def test_the_operations_page_lists_every_metric_and_no_other(tmp_path: Path) -> None:
    shown: set[str] = set()

    async with measured(tmp_path) as server:
        text = (await server.client.get("/metrics")).text
        shown.update(re.findall(r"^# TYPE (nextslot_\w+)", text, re.MULTILINE))

    listed = re.findall(r"^\| `(nextslot_\w+)`", PAGE.read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == shown


STATES = ("QUEUED", "WAITING", "RUNNING")


async def scrape(server: Server) -> Scraped:
    answer = await server.client.get("/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=")
    samples = [sample for family in text_string_to_metric_families(answer.text) for sample in family.samples]
    found = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(found) == len(samples), "a series was told twice"
    return found


def value(found: Scraped, metric: str, **labels: str) -> float:
    return found[metric, frozenset(labels.items())]


def _more(before: Scraped, after: Scraped, metric: str) -> float:
    return value(after, metric) - value(before, metric)


@asynccontextmanager
async def measured(tmp_path: Path) -> AsyncIterator[Server]:
    async with serving(tmp_path, meters=ProcessMeters()) as server:
        yield server


async def _submit(server: Server, job_type: str, **options: Any) -> str:
    answer = await server.client.post("/api/jobs", json={"job_type": job_type, **options})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["job_id"])


async def _reserved(server: Server) -> None:
    """Waits until a direct caller waits for the slot."""
    events = _follower(server)
    while (await anext(events)).type != "reservation_made":
        pass
    await events.aclose()


async def _last_event(server: Server) -> int:
    return (await server.scheduler.lists.status()).last_event


def _follower(server: Server) -> AsyncGenerator[Event, None]:
    events: Any = server.scheduler.events()
    follower: AsyncGenerator[Event, None] = events
    return follower


async def _flaky(run: RunContext) -> None:
    if run.attempt <= 2:
        raise Fail("not yet", "unavailable")
