"""GatewayService: chooses the upstream for a model, keeps the requests of connected callers, and has the job type.

A request's body stays in memory, in a `Call`: the store gets the model and the numbers of tokens, never the text.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nextslot.domain import Json, Outcome
from nextslot.domain.bounds import MAX_RESULT_BYTES
from nextslot.errors import Problem
from nextslot.executors.run_context import Fail, QuotaExceeded, RunContext
from nextslot.extension_api import Attached, Counters
from nextslot.extension_api.host import Host
from nextslot.system.instant import Instant

from .error_form import ProtocolError
from .protocol import (
    CHAT,
    ENDPOINTS,
    Body,
    checked,
    estimated_tokens,
    has_usage_in_stream,
    read_json,
)
from .refusals import in_the_protocols_form
from .settings import GatewaySettings, ModelSettings, UpstreamSettings
from .upstreams import (
    LIST_AGAIN_SECONDS,
    Answer,
    EmbeddedModels,
    Opened,
    Part,
    Piece,
    Timeouts,
    Upstream,
    UpstreamConfig,
    UpstreamError,
)

JOB_TYPE = "model_request"
OLLAMA = "ollama"
OLLAMA_BASE_URL = "http://127.0.0.1:11434"
# How many bytes may wait for a slow reader before the gateway stops reading from the upstream.
MOST_UNSENT = 1024 * 1024
MOST_NAMED = 10
# How long callers who are refused share the expected start of a further request for the same model.
NEXT_START_SECONDS = 5.0
ANSWER_FILE = "answer.json"
# How many models and statuses the metrics tell apart: a pattern for models lets callers make up any number of names.
MOST_COUNTED = 1000
OTHER_MODELS = "(others)"

_PARAMS = {
    "type": "object",
    "properties": {
        "model": {"type": "string", "minLength": 1, "maxLength": 200},
        "endpoint": {"enum": list(ENDPOINTS)},
        "upstream": {"type": "string"},
        "body": {"type": "object"},
    },
    "required": ["model"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Target:
    """The upstream of a request for a model, and the resources that the request needs."""

    upstream: Upstream
    # The upstream's name for the model.
    name: str
    resource: str
    units: int = 1
    # What the resource should have loaded; None stands for the model.
    affinity: str | None = None


@dataclass(slots=True, eq=False)
class Call:
    """A request of a connected caller."""

    call_id: str
    endpoint: str
    model: str
    target: Target
    body: Body
    _unsent: int = 0
    _has_room: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def hides_usage(self) -> bool:
        """Returns whether the gateway asks for the numbers of tokens in a stream whose client does not."""
        return self.is_stream and self.target.upstream.config.asks_usage and not has_usage_in_stream(self.body)

    @property
    def sent(self) -> Body:
        """Returns the body for the upstream."""
        body = self.body if self.model == self.target.name else {**self.body, "model": self.target.name}
        if not self.hides_usage:
            return body
        return {**body, "stream_options": {**(body.get("stream_options") or {}), "include_usage": True}}

    @property
    def params(self) -> dict[str, Json]:
        """Returns the parameters that are stored of the call."""
        return {"model": self.model, "endpoint": self.endpoint, "upstream": self.target.upstream.config.name}

    async def room_after(self, size: int) -> None:
        """Counts bytes that the caller has not read; waits while these are too many."""
        self._unsent += size
        while self._unsent > MOST_UNSENT:
            self._has_room.clear()
            await self._has_room.wait()

    def note_sent(self, size: int) -> None:
        self._unsent -= size
        self._has_room.set()


class GatewayService(Attached):
    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.settings = GatewaySettings()
        self._upstreams: dict[str, Upstream] = {}
        self._calls: dict[str, Call] = {}
        self._answered: Counter[tuple[str, ...]] = Counter()
        # By office and model, when a forecast of a further request was begun, and the expected start.
        self._next_starts: dict[tuple[str, str], tuple[Instant, asyncio.Future[Instant | None]]] = {}
        host.job_types.add(
            JOB_TYPE,
            self.request,
            params_schema=_PARAMS,
            infer_resources=self._resources,
            infer_affinity=self._affinity,
            check=_body_problems,
        )

    def configure(self, tables: Mapping[str, Any], data: Path) -> None:
        """Applies `[gateway]` once. A changed table needs a restart, because running work uses the old upstreams."""
        if not self._upstreams:
            self.settings = tables["gateway"]
            self._connect()

    def _connect(self) -> None:
        timeouts = Timeouts(
            self.settings.connect_seconds, self.settings.first_byte_seconds, self.settings.between_seconds
        )
        for name, one in (self.settings.upstreams or _usual_upstreams()).items():
            config = UpstreamConfig(
                name=name,
                resource=one.resource or (OLLAMA if one.embedded else name),
                base_url=one.base_url,
                token_env=one.token_env,
                patterns=tuple(one.models),
                asks_usage=one.ask_usage,
                timeouts=timeouts,
            )
            self._upstreams[name] = upstream = Upstream(config, self._embedded)
            if not one.embedded:
                self.host.probe(config.resource, upstream.answers)

    def _embedded(self) -> EmbeddedModels | None:
        found = self.host.find("stories")
        return found if isinstance(found, EmbeddedModels) else None

    async def start(self) -> None:
        if not self._upstreams:
            self._connect()

    async def stop(self) -> None:
        for upstream in self._upstreams.values():
            await upstream.close()

    def wrap(self, app: Any, root_path: str) -> Any:
        return in_the_protocols_form(app, root_path)

    def counters(self) -> Iterable[Counters]:
        yield (
            "nextslot_gateway_answers_total",
            "Answers of the gateway, by model and by the status that the caller got",
            ("model", "status"),
            self._answered,
        )

    def office_of(self, key_name: str) -> str | None:
        """Returns the configured office of a key that is valid for all offices."""
        return self.settings.offices.get(key_name)

    # Models.

    async def models(self) -> list[Mapping[str, Any]]:
        """Returns the models of all upstreams that answer, each name once, in the form of the protocol."""
        upstreams = self._upstreams.values()
        lists = await asyncio.gather(*(one.models() for one in upstreams))
        found = {
            one["id"]: {"object": "model", "created": 0, **one, "owned_by": upstream.config.name}
            for upstream, listed in reversed(list(zip(upstreams, lists, strict=True)))
            for one in listed
        }
        named = {
            name: {"id": name, "object": "model", "created": 0, "owned_by": one.upstream}
            for name, one in self.settings.models.items()
        }
        return [*named.values(), *(one for name, one in found.items() if name not in named)]

    async def model(self, name: str) -> Mapping[str, Any] | None:
        """Returns a model in the form of the protocol, also by a name that no list has, such as `openai/gpt-5`."""
        listed = next((one for one in await self.models() if one["id"] == name), None)
        if listed is None and (target := self._target(name)) is not None:
            return {"id": name, "object": "model", "created": 0, "owned_by": target.upstream.config.name}
        return listed

    async def call(self, call_id: str, endpoint: str, body: object) -> Call:
        """Makes a call from a request. Raises ProtocolError for a wrong request, or if its upstream is down."""
        asked = checked(endpoint, body)
        model = asked["model"]
        target = self._target(model)
        if target is None:
            await asyncio.gather(*(one.models(LIST_AGAIN_SECONDS) for one in self._upstreams.values()))
            target = self._target(model) or self._unlisted(model)
        if target is None:
            raise self.unknown(model)
        if target.upstream.is_down:
            await self._refuse_if_down(target)
        return Call(call_id, endpoint, model, target, asked)

    def _target(self, model: str) -> Target | None:
        configured = self.settings.models.get(model)
        if configured is not None:
            return self._configured(model, configured)
        for upstream in self._upstreams.values():
            if (name := upstream.accepts(model)) is not None:
                return Target(upstream, name, upstream.config.resource)
        prefix, slash, rest = model.partition("/")
        upstream_of_prefix = self._upstreams.get(prefix) if slash else None
        if upstream_of_prefix is not None and (name := upstream_of_prefix.accepts(rest)) is not None:
            return Target(upstream_of_prefix, name, upstream_of_prefix.config.resource)
        return None

    def _configured(self, model: str, settings: ModelSettings) -> Target:
        upstream = self._upstreams[settings.upstream]
        resource = settings.resource or upstream.config.resource
        return Target(upstream, settings.name or model, resource, settings.units, settings.affinity)

    def _unlisted(self, model: str) -> Target | None:
        """Returns the first upstream without a list of models: it may have the model, and reports an error if not."""
        found = next((one for one in self._upstreams.values() if one.is_unlisted), None)
        return None if found is None else Target(found, model, found.config.resource)

    def unknown(self, model: str) -> ProtocolError:
        known = self._known()
        there = f"there are: {known}" if known else "no upstream has a model now"
        return ProtocolError(404, f"there is no model {model[:200]!r}; {there}", "model_not_found", "model")

    def _known(self) -> str:
        """Returns the first models of the last lists, for people."""
        listed = [one["id"] for upstream in self._upstreams.values() for one in upstream.listed]
        known = list(dict.fromkeys([*self.settings.models, *listed]))
        return ", ".join(known[:MOST_NAMED]) + (", …" if len(known) > MOST_NAMED else "")

    async def _refuse_if_down(self, target: Target) -> None:
        """Raises at once while the upstream accepts no connections, instead of letting the caller wait for a slot."""
        if not await target.upstream.answers():
            shown = target.upstream.unreachable().shown
            if target.upstream.is_unlisted and (known := self._known()):
                shown.message += f"; without it there are these models: {known}"
            raise shown
        # The upstream answers again before the next probe of its resource.
        now = self.host.clock.now()
        await self.host.work.write_more(lambda tx: self.host.outages.answers_again(tx, target.resource, now))

    def _resources(self, params: Mapping[str, Any]) -> Mapping[str, int]:
        target = self._target_of(params)
        return {} if target is None else {target.resource: target.units}

    def _affinity(self, params: Mapping[str, Any]) -> str | None:
        target = self._target_of(params)
        return None if target is None else target.affinity or target.name

    def _target_of(self, params: Mapping[str, Any]) -> Target | None:
        """Returns the target of stored parameters. They may name an upstream whose list of models is not known yet."""
        model, named = str(params["model"]), params.get("upstream")
        target = self._target(model)
        if target is not None and (named in (None, target.upstream.config.name) or model in self.settings.models):
            return target
        upstream = self._upstreams.get(str(named)) or next(iter(self._upstreams.values()), None)
        return None if upstream is None else Target(upstream, model, upstream.config.resource)

    # Work.

    @contextmanager
    def connected(self, call: Call) -> Iterator[None]:
        """Keeps a call for the run that carries it out, until the block ends."""
        self._calls[call.call_id] = call
        try:
            yield
        finally:
            del self._calls[call.call_id]

    def note_answer(self, call: Call, status: int) -> None:
        key = (call.model, str(status))
        if len(self._answered) >= MOST_COUNTED and key not in self._answered:
            key = (OTHER_MODELS, str(status))
        self._answered[key] += 1

    async def start_of_next(
        self, office_id: str, call: Call, forecast: Callable[[], Coroutine[Any, Any, Instant | None]]
    ) -> Instant | None:
        """Returns when a further request like this one would start. Callers who are refused soon after each other
        share one forecast.
        """
        now = self.host.clock.now()
        self._next_starts = {
            key: kept for key, kept in self._next_starts.items() if kept[0] <= now < kept[0].after(NEXT_START_SECONDS)
        }
        key = (office_id, call.model)
        if key not in self._next_starts:
            self._next_starts[key] = now, asyncio.ensure_future(forecast())
        return await asyncio.shield(self._next_starts[key][1])

    async def request(
        self, run: RunContext, model: str, endpoint: str = CHAT, upstream: str | None = None, body: Body | None = None
    ) -> Any:
        """Sends a request to the upstream: for a connected caller, who gets each part at once, or for a job."""
        call = self._calls.get(run.job_id)
        if call is not None:
            return await self._answer(run, call)
        if body is None:
            raise Fail("it has no body, and no caller of /v1 is connected; give params.body", "invalid")
        try:
            call = await self.call(run.job_id, endpoint, {**body, "model": model, "stream": False})
        except ProtocolError as error:
            raise Fail(error.message, "unavailable" if error.status >= 500 else "invalid") from error
        return await self._as_job(run, call)

    async def _answer(self, run: RunContext, call: Call) -> Any:
        usage: Mapping[str, Any] | None = None
        try:
            async with aclosing(call.target.upstream.ask(call.endpoint, call.sent, call.hides_usage)) as parts:
                async for part in parts:
                    if isinstance(part, Opened):
                        run.used_tokens = estimated_tokens(call.body)
                    else:
                        usage = part.usage or usage
                    if isinstance(part, Piece):
                        run.used_tokens = max(run.used_tokens + part.has_text, _total(part.usage))
                    run.note("answer", {"part": part})
                    if isinstance(part, Piece):
                        await call.room_after(len(part.data))
        except UpstreamError as error:
            run.note("answer", {"part": error.shown})
            return _failed(error, call)
        except asyncio.CancelledError:
            # The upstream may have read the whole request before the caller hung up.
            run.used_tokens = run.used_tokens or estimated_tokens(call.body)
            raise
        return {"model": call.model, "usage": usage}

    async def _as_job(self, run: RunContext, call: Call) -> Any:
        """Returns the answer as the result of a job; an answer that is too large for a result is an artifact."""
        try:
            async with aclosing(call.target.upstream.ask(call.endpoint, call.sent)) as parts:
                [answer] = [part async for part in parts if isinstance(part, Answer)]
        except UpstreamError as error:
            return _failed(error, call)
        if len(answer.body) < MAX_RESULT_BYTES // 2:
            return read_json(answer.body)
        await asyncio.to_thread((run.artifacts / ANSWER_FILE).write_bytes, answer.body)
        return {"model": call.model, "usage": answer.usage, "file": ANSWER_FILE}


def _usual_upstreams() -> dict[str, UpstreamSettings]:
    address = os.environ.get("OLLAMA_BASE_URL") or OLLAMA_BASE_URL
    return {OLLAMA: UpstreamSettings(base_url=address), "embedded": UpstreamSettings(embedded=True)}


def _failed(error: UpstreamError, call: Call) -> Outcome:
    """Returns the outcome of a failed request. A used-up quota of the upstream holds its resource until the renewal."""
    if error.shown.status == 429:
        raise QuotaExceeded.of_response(error.shown.headers, error.shown.message, resource=call.target.resource)
    return Outcome.failed(error.kind, error.shown.message)


def _total(usage: Mapping[str, Any] | None) -> int:
    return 0 if usage is None else int(usage.get("total_tokens", 0))


def _body_problems(params: Mapping[str, Any]) -> list[Problem]:
    """Returns the problems with the body of a job; a call of `/v1` has no body here."""
    if "body" not in params:
        return []
    try:
        checked(params.get("endpoint", CHAT), {**params["body"], "model": params["model"]})
    except ProtocolError as error:
        return [Problem(f"params.body.{error.param}" if error.param else "params.body", error.message)]
    return []


__all__ = ["JOB_TYPE", "Answer", "Call", "GatewayService", "Opened", "Part", "Piece"]
