"""Traces: a span for each request, run and delivery attempt, where OpenTelemetry is installed and wanted."""

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from pytest_httpserver import HTTPServer

from nextslot.config import load
from nextslot.errors import Invalid
from nextslot.executors.run_context import Fail, RunContext
from nextslot.scheduler_from_config import compose
from nextslot.services.lists import ListService
from nextslot.telemetry import tracing
from nextslot.telemetry.meters import ProcessMeters
from nextslot.telemetry.tracing import OtelTracer, Tracer, tracer
from tests.support import eventually

from .support import Server, serving

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


async def test_a_request_is_a_span_in_the_trace_of_its_caller(tmp_path: Path) -> None:
    async with traced(tmp_path) as (server, spans):
        await server.client.get("/api/jobs/none", headers={**CALLER, "X-Request-ID": "abc"})
    [span] = spans

    assert (span.name, span.kind) == ("GET /api/jobs/{job_id}", SpanKind.SERVER)
    assert f"{span.context.trace_id:032x}" == TRACE
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT
    assert dict(span.attributes or {}) == {
        "http.request.method": "GET",
        "http.route": "/api/jobs/{job_id}",
        "http.response.status_code": 404,
        "nextslot.request_id": "abc",
    }
    assert span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("traceparent", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01"])
async def test_a_traceparent_that_is_none_begins_a_new_trace(tmp_path: Path, traceparent: str) -> None:
    async with traced(tmp_path) as (server, spans):
        await server.client.get("/api/jobs", headers={"traceparent": traceparent})
    [span] = spans

    assert span.parent is None


async def test_probes_are_not_traced(tmp_path: Path) -> None:
    async with traced(tmp_path) as (server, spans):
        for path in ("/health", "/ready", "/metrics"):
            await server.client.get(path)

    assert spans == []


async def test_a_run_is_a_trace_of_its_own_that_is_linked_to_the_request(tmp_path: Path) -> None:
    async with traced(tmp_path) as (server, spans):
        made = await server.client.post("/api/jobs", json={"job_type": "echo"}, headers=CALLER)
        job_id = made.json()["job_id"]
        await server.scheduler.wait(job_id)
        stored = await server.scheduler.run_of(job_id)

    request, run = _named(spans, "POST /api/jobs"), _named(spans, "run echo")
    assert run.parent is None
    assert run.context.trace_id != request.context.trace_id
    assert [link.context.span_id for link in run.links] == [request.context.span_id]
    assert dict(run.attributes or {}) == {
        "nextslot.job_id": job_id,
        "nextslot.run_id": stored and stored.run_id,
        "nextslot.office_id": "default",
        "nextslot.job_type": "echo",
        "nextslot.attempt": 1,
        "nextslot.outcome": "COMPLETED",
    }


async def test_each_job_of_a_batch_and_of_other_requests_at_once_is_linked_to_its_own_request(tmp_path: Path) -> None:
    async with traced(tmp_path) as (server, spans):
        await server.scheduler.pause()
        jobs = [{"job_type": "echo"}, {"job_type": "fail"}]
        await server.client.post("/api/jobs/batch", json={"jobs": jobs}, headers=CALLER)
        last = await server.client.post("/api/jobs", json={"job_type": "gate"})
        server.gate.opened.set()
        await server.client.post("/api/queue/resume", json={})
        await server.scheduler.wait(last.json()["job_id"])

    batch, single = _named(spans, "POST /api/jobs/batch"), _named(spans, "POST /api/jobs")
    for run, request in (("run echo", batch), ("run fail", batch), ("run gate", single)):
        assert [link.context.span_id for link in _named(spans, run).links] == [request.context.span_id]


async def test_a_retry_is_linked_to_the_request_its_chain_began_with_and_a_failure_is_one(tmp_path: Path) -> None:
    async with traced(tmp_path) as (server, spans):
        policy = {"max_attempts": 1, "base_delay_seconds": 0.001}
        server.scheduler.job_types.add("flaky", _flaky, retry_policy=policy)
        made = await server.client.post("/api/jobs", json={"job_type": "flaky"})
        await server.scheduler.wait(made.json()["job_id"])

    request = _named(spans, "POST /api/jobs")
    first, second = [span for span in spans if span.name == "run flaky"]
    assert [link.context.span_id for link in (*first.links, *second.links)] == [request.context.span_id] * 2
    assert [(span.attributes or {})["nextslot.attempt"] for span in (first, second)] == [1, 2]
    assert (first.attributes or {})["nextslot.failure_kind"] == "unavailable"
    assert (first.status.status_code, first.status.description) == (StatusCode.ERROR, "not yet")
    assert second.status.status_code is StatusCode.UNSET


async def test_direct_work_is_linked_to_its_caller_and_what_a_handler_traces_is_below_its_run(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def look(run: RunContext) -> None:
        seen["span"] = trace.get_current_span().get_span_context().span_id

    async with traced(tmp_path) as (server, spans):
        server.scheduler.job_types.add("look", look)
        answer = await server.client.post("/api/direct/look", json={"direct_id": "d-1"})
        assert answer.status_code == 200, answer.text

    request, run = _named(spans, "POST /api/direct/{name}"), _named(spans, "run look")
    assert [link.context.span_id for link in run.links] == [request.context.span_id]
    assert (run.attributes or {})["nextslot.direct_id"] == "d-1"
    assert seen["span"] == run.context.span_id, "also in a thread"


async def test_each_attempt_to_deliver_is_a_span(tmp_path: Path, httpserver: HTTPServer) -> None:
    httpserver.expect_request("/hook").respond_with_data("no", status=503)
    exporter = InMemorySpanExporter()

    async with traced(tmp_path, exporter) as (server, spans):
        webhook = {"url": httpserver.url_for("/hook"), "events": ["job.run.completed"]}
        await server.client.post("/api/jobs", json={"job_type": "echo", "webhook": webhook})
        await eventually(lambda: any(span.name.startswith("deliver") for span in exporter.get_finished_spans()))

    request, attempt = _named(spans, "POST /api/jobs"), _named(spans, "deliver job.run.completed")
    assert attempt.kind is SpanKind.CLIENT
    assert [link.context.span_id for link in attempt.links] == [request.context.span_id]
    assert (attempt.attributes or {})["nextslot.attempt"] == 1
    assert (attempt.attributes or {})["http.response.status_code"] == 503
    assert attempt.status.status_code is StatusCode.ERROR


def test_the_framework_does_not_trace_beside_us_where_a_program_has_a_global_provider(tmp_path: Path) -> None:
    program = f"""
import asyncio, pathlib
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
from tests.server.support import serving
async def main():
    async with serving(pathlib.Path({str(tmp_path)!r})) as server:
        assert (await server.client.get("/api/jobs")).status_code == 200
asyncio.run(main())
assert exporter.get_finished_spans() == (), exporter.get_finished_spans()
"""

    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])


async def test_what_breaks_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(lists: ListService) -> Any:
        raise RuntimeError("it broke")

    async with traced(tmp_path) as (server, spans):
        monkeypatch.setattr(ListService, "status", fail)
        await server.client.get("/api/status")
    [span] = spans

    assert (span.attributes or {})["http.response.status_code"] == 500
    assert span.status.status_code is StatusCode.ERROR


async def test_only_so_many_requests_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MOST_LINKS", 2)

    async with traced(tmp_path) as (server, spans):
        await server.scheduler.pause()
        jobs = [{"job_type": "echo", "params": {"text": str(number)}} for number in range(3)]
        made = await server.client.post("/api/jobs/batch", json={"jobs": jobs})
        assert made.status_code == 201, made.text
        await server.scheduler.resume()
        await eventually(lambda: len(server.scheduler.tracer._links) == 2)  # type: ignore[attr-defined]
        for job in made.json()["items"]:
            await server.scheduler.wait(job["job_id"])

    assert [len(span.links) for span in spans if span.name == "run echo"] == [0, 1, 1]


# Whether there are any.


def test_without_a_setting_nothing_of_opentelemetry_is_loaded_but_what_the_framework_needs_itself() -> None:
    program = """
import sys
import nextslot.scheduler_from_config, nextslot.telemetry.tracing
nextslot.telemetry.tracing.tracer(None, {})
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
import nextslot.server.app
assert not [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
"""

    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("endpoint", "environment", "is_traced"),
    [
        (None, {}, False),
        ("http://127.0.0.1:9", {}, True),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, True),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/v1/traces"}, True),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ("http://127.0.0.1:9", {"OTEL_SDK_DISABLED": "true"}, False),
        ("http://127.0.0.1:9", {"OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_it_is_traced_where_a_setting_or_a_standard_variable_says_so(
    endpoint: str | None, environment: dict[str, str], is_traced: bool
) -> None:
    made = tracer(endpoint, environment)

    assert type(made) is (OtelTracer if is_traced else Tracer)
    made.close()


def test_a_missing_extra_is_named_where_traces_were_asked_for_and_else_of_no_account(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)

    with pytest.raises(Invalid, match=r"nextslot\[otel\]"):
        tracer("http://127.0.0.1:9", {})
    by_variable = tracer(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"})

    assert type(by_variable) is Tracer


def test_a_configured_server_is_measured_and_traced_as_its_file_says(tmp_path: Path) -> None:
    plain = compose(load(tmp_path))
    (tmp_path / "nextslot.toml").write_text('[telemetry]\notel_endpoint = "http://127.0.0.1:9"\n')
    traced = compose(load(tmp_path))

    assert isinstance(plain.meters, ProcessMeters)
    assert (type(plain.tracer), type(traced.tracer)) == (Tracer, OtelTracer)
    traced.tracer.close()


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://in.example/otlp/v1/traces", "https://in.example/otlp/v1/traces"),
    ],
)
def test_an_address_without_a_path_is_a_collectors(endpoint: str, address: str) -> None:
    assert tracing.traces_address(endpoint) == address


async def test_what_was_traced_reaches_the_collector_before_the_process_ends(
    tmp_path: Path, httpserver: HTTPServer
) -> None:
    httpserver.expect_request("/v1/traces", method="POST").respond_with_data(b"")
    made = tracer(httpserver.url_for(""), {}, "node-7", "1.2.3")

    async with serving(tmp_path, tracer=made) as server:
        answer = await server.client.post("/api/jobs", json={"job_type": "echo"})
        await server.scheduler.wait(answer.json()["job_id"])
    made.close()

    sent = b"".join(request.get_data() for request, _ in httpserver.log)
    for text in (b"POST /api/jobs", b"run echo", b"service.name", b"nextslot", b"node-7", b"1.2.3"):
        assert text in sent


@asynccontextmanager
async def traced(
    tmp_path: Path, exporter: InMemorySpanExporter | None = None
) -> AsyncIterator[tuple[Server, list[ReadableSpan]]]:
    """Runs a server. Yields its spans once it has ended."""
    exporter = exporter or InMemorySpanExporter()
    spans: list[ReadableSpan] = []
    async with serving(tmp_path, tracer=OtelTracer(exporter, is_batched=False)) as server:
        yield server, spans
    spans += exporter.get_finished_spans()


def _named(spans: list[ReadableSpan], name: str) -> Any:
    [span] = [span for span in spans if span.name == name]
    return span


async def _flaky(run: RunContext) -> None:
    if run.attempt == 1:
        raise Fail("not yet", "unavailable")
