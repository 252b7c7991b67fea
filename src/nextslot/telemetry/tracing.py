"""Traces: a span for each request, run and delivery attempt, sent by OpenTelemetry if it is installed and configured.

Passed in like the clock. Without tracing, the plain `Tracer` is used and OpenTelemetry is not imported. A run has its
own trace, linked to that of the request that submitted it. The links are kept in memory only, so after a restart a run
has no link.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit

from nextslot.errors import Invalid

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import SpanContext

W = TypeVar("W", bound=Callable[..., Any])
# Attributes of a span. Those that are None are left out.
Facts = Mapping[str, str | int | float | bool | None]

# How many jobs have a link to the request that submitted them; the oldest is dropped first.
MOST_LINKS = 10_000
STANDARD_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_W3C = ("traceparent", "tracestate")


class Span:
    """An operation in progress. This one is not traced."""

    def note(self, facts: Facts) -> None:
        """Adds attributes."""

    def rename(self, name: str) -> None: ...

    def fail(self, why: str) -> None: ...


_NOTHING: AbstractContextManager[Span] = nullcontext(Span())


class Runnable(Protocol):
    """The attributes of a claim that a span uses."""

    @property
    def run_id(self) -> str: ...
    @property
    def job_id(self) -> str: ...
    @property
    def office_id(self) -> str: ...
    @property
    def job_type(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def kind(self) -> str: ...


class Submitted(Protocol):
    @property
    def job_id(self) -> str: ...
    @property
    def retry_of(self) -> str | None: ...


class Tracer:
    """Opens spans that trace nothing; `OtelTracer` sends them."""

    def request(self, method: str, headers: Mapping[str, str]) -> AbstractContextManager[Span]:
        """Opens the span of an HTTP request, as part of the caller's trace if the request has a W3C traceparent."""
        return _NOTHING

    def run(self, claim: Runnable) -> AbstractContextManager[Span]:
        return _NOTHING

    def attempt(self, delivery_id: str, event: str, job_id: str | None, number: int) -> AbstractContextManager[Span]:
        """Opens the span of one attempt to deliver a webhook."""
        return _NOTHING

    def current(self) -> object:
        """Returns the current task's span, for the context of a request; None if the task has none."""
        return None

    def carried(self, work: W, request_span: object) -> W:
        """Wraps a work, so that it counts as part of this span's request on any thread of the store. Without a span, it
        counts as part of the caller's current span."""
        return work

    def links_of(self, jobs: Iterable[Submitted]) -> Mapping[str, Any]:
        """Returns, for each of these new jobs, the span of the request that created it."""
        return {}

    def link(self, links: Mapping[str, Any]) -> None:
        """Links the runs and deliveries of stored jobs to these requests."""

    def called(self, run_id: str) -> None:
        """Links a direct execution to the current request of its caller."""

    def close(self) -> None:
        """Sends the remaining spans; blocks."""


def tracer(endpoint: str | None, environment: Mapping[str, str], node: str = "local", version: str = "") -> Tracer:
    """Returns the tracer configured by `[telemetry] otel_endpoint` or by OpenTelemetry's own environment variables."""
    is_asked = endpoint is not None or any(environment.get(name) for name in STANDARD_VARIABLES)
    is_off = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if not is_asked or is_off or environment.get("OTEL_TRACES_EXPORTER") == "none":
        return Tracer()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        if endpoint is None:
            return Tracer()  # The variables may be meant for other programs on this machine.
        raise Invalid(
            f"OpenTelemetry is not installed ({error}): pip install 'nextslot[otel]', or remove the setting",
            "telemetry.otel_endpoint",
        ) from error
    exporter = OTLPSpanExporter() if endpoint is None else OTLPSpanExporter(endpoint=traces_address(endpoint))
    return OtelTracer(exporter, environment, node, version)


def traces_address(endpoint: str) -> str:
    """Returns the address for traces: an endpoint without a path is a collector's, which takes them at `/v1/traces`."""
    return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + "/v1/traces"


class OtelTracer(Tracer):
    """Spans by OpenTelemetry, with a provider of our own; OpenTelemetry's global provider is neither set nor used.

    A run's span is the current one while its handler runs, so the handler's own spans are below it.
    """

    def __init__(
        self,
        exporter: "SpanExporter",
        environment: Mapping[str, str] | None = None,
        node: str = "local",
        version: str = "",
        *,
        is_batched: bool = True,
    ) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        about = {"service.version": version, "service.instance.id": node}
        if not (environment or {}).get("OTEL_SERVICE_NAME"):
            about["service.name"] = "nextslot"
        # The provider itself reads sampling and limits from the standard variables.
        self._provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
        self._provider.add_span_processor((BatchSpanProcessor if is_batched else SimpleSpanProcessor)(exporter))
        self._tracer = self._provider.get_tracer("nextslot", version)
        self._w3c = TraceContextTextMapPropagator()
        self._links: OrderedDict[str, SpanContext] = OrderedDict()
        # The request of the current work. A context variable, because the store runs works on its own threads.
        self._request: ContextVar[SpanContext | None] = ContextVar("request_span", default=None)

    def request(self, method: str, headers: Mapping[str, str]) -> AbstractContextManager[Span]:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind

        given = {name: headers[name] for name in _W3C if name in headers}
        caller = self._w3c.extract(given, Context())
        return self._span(method, SpanKind.SERVER, caller, {"http.request.method": method})

    def run(self, claim: Runnable) -> AbstractContextManager[Span]:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind

        about = {
            f"nextslot.{claim.kind}_id": claim.job_id,
            "nextslot.run_id": claim.run_id,
            "nextslot.office_id": claim.office_id,
            "nextslot.job_type": claim.job_type,
            "nextslot.attempt": claim.attempt,
        }
        # A caller chooses the id of a direct execution, and may choose one that is also the id of a job.
        linked = claim.job_id if claim.kind == "job" else claim.run_id
        return self._span(f"run {claim.job_type}", SpanKind.CONSUMER, Context(), about, linked)

    def attempt(self, delivery_id: str, event: str, job_id: str | None, number: int) -> AbstractContextManager[Span]:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind

        about = {"nextslot.delivery_id": delivery_id, "nextslot.event": event, "nextslot.attempt": number}
        if job_id is not None:
            about["nextslot.job_id"] = job_id
        return self._span(f"deliver {event}", SpanKind.CLIENT, Context(), about, job_id)

    @contextmanager
    def _span(
        self, name: str, kind: Any, parent: Any, about: Mapping[str, Any], job_id: str | None = None
    ) -> Iterator[Span]:
        """Opens a span, linked to the request that submitted the job."""
        from opentelemetry.trace import Link

        submitter = None if job_id is None else self._links.get(job_id)
        links = None if submitter is None else [Link(submitter)]
        with self._tracer.start_as_current_span(name, context=parent, kind=kind, attributes=about, links=links) as span:
            yield _OtelSpan(span)

    def current(self) -> "SpanContext | None":
        from opentelemetry.trace import get_current_span

        current = get_current_span().get_span_context()
        return current if current.is_valid else None

    def carried(self, work: W, request_span: Any) -> W:
        request_span = request_span or self.current()
        if request_span is None:
            return work

        def for_request(*arguments: Any) -> Any:
            token = self._request.set(request_span)
            try:
                return work(*arguments)
            finally:
                self._request.reset(token)

        return for_request  # type: ignore[return-value]

    def links_of(self, jobs: Iterable[Submitted]) -> Mapping[str, Any]:
        request_span = self._request.get()
        # A retry belongs to the request that began its chain, unless another request asks for it now.
        links = {job.job_id: request_span or (job.retry_of and self._links.get(job.retry_of)) for job in jobs}
        return {job_id: link for job_id, link in links.items() if link}

    def link(self, links: Mapping[str, Any]) -> None:
        for job_id, link in links.items():
            self._remember(job_id, link)

    def called(self, run_id: str) -> None:
        request_span = self.current()
        if request_span is not None:
            self._remember(run_id, request_span)

    def close(self) -> None:
        self._provider.shutdown()

    def _remember(self, id: str, link: "SpanContext") -> None:
        self._links[id] = link
        if len(self._links) > MOST_LINKS:
            self._links.popitem(last=False)


class _OtelSpan(Span):
    def __init__(self, span: Any) -> None:
        self._span = span

    def note(self, facts: Facts) -> None:
        self._span.set_attributes({name: value for name, value in facts.items() if value is not None})

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def fail(self, why: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        self._span.set_status(Status(StatusCode.ERROR, why))
