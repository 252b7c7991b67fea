"""Upstreams: the model servers behind the gateway. Each answer becomes parts, or an `UpstreamError`.

`GatewayService` sends requests through this module. Each upstream has one HTTP client, which reuses its connections.
"""

import asyncio
import http.cookiejar
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Protocol, runtime_checkable

import httpx2
import orjson

from nextslot.domain import FailureKind

from .error_form import ProtocolError
from .event_stream import TooLong, data_of, events
from .protocol import DONE, read_json, write_json

MIB = 1024 * 1024
MOST_OF_A_CHUNK = 16 * MIB
MOST_OF_AN_ANSWER = 64 * MIB
MOST_OF_AN_ERROR = 64 * 1024
MOST_SHOWN = 300
# A larger number of tokens is a mistake of the upstream.
MOST_TOKENS = 1_000_000_000
# How long a list of models is used, and how soon an unknown name makes the gateway read the list again.
LIST_SECONDS = 30.0
LIST_AGAIN_SECONDS = 2.0
# How long the end of a stream may take after its last event; a connection that has ended can be used again.
END_SECONDS = 0.2
# An idle connection is closed before most servers close it, so that no request meets a connection that is closing.
IDLE_SECONDS = 3.0
# The headers of an answer, by their beginnings, that its client gets, and that say when a used-up quota is renewed.
PASSED_ON = ("retry-after", "x-ratelimit-", "ratelimit", "anthropic-ratelimit-")


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, which is not streamed."""

    body: bytes
    headers: Mapping[str, str]
    usage: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """The upstream has accepted the request and streams from now on."""

    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Piece:
    """A whole event of a stream."""

    data: bytes
    usage: Mapping[str, Any] | None = None
    is_last: bool = False
    # Whether it is a part of the answer, about one token.
    has_text: bool = False


Part = Answer | Opened | Piece


class UpstreamError(Exception):
    """An upstream did not answer properly: the message for its caller, and the failure kind."""

    def __init__(self, shown: ProtocolError, kind: FailureKind) -> None:
        super().__init__(shown.message)
        self.shown = shown
        self.kind = kind


@runtime_checkable
class EmbeddedModels(Protocol):
    """The part of the extension `stories` that offers the embedded model, behind a server on loopback."""

    def embedded_models(self) -> Sequence[str]: ...

    def embedded_server(self) -> AbstractAsyncContextManager[str]: ...


@dataclass(frozen=True, slots=True)
class Timeouts:
    connect_seconds: float = 5.0
    first_byte_seconds: float = 600.0
    between_seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class UpstreamConfig:
    name: str
    resource: str
    # None stands for the embedded model.
    base_url: str | None = None
    token_env: str | None = None
    patterns: Sequence[str] = ()
    asks_usage: bool = True
    timeouts: Timeouts = field(default_factory=Timeouts)


class Upstream:
    """One model server. Belongs to one event loop."""

    def __init__(self, config: UpstreamConfig, find_embedded: Callable[[], EmbeddedModels | None]) -> None:
        self.config = config
        self._find_embedded = find_embedded
        self._client: httpx2.AsyncClient | None = None
        # The last list of models; None if it was never read.
        self._models: list[Mapping[str, Any]] | None = None
        self._read_at: float | None = None
        self._reading = asyncio.Lock()
        # Whether the last connection to the upstream failed.
        self.is_down = False
        address = "the embedded model" if config.base_url is None else _without_password(config.base_url)
        self._called = f"the upstream {config.name} ({address})"

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    # Its models.

    def accepts(self, model: str) -> str | None:
        """Returns the upstream's name for a model; None if the upstream is not known to have the model."""
        if self.config.patterns:
            return model if any(fnmatchcase(model, one) for one in self.config.patterns) else None
        names = {one["id"] for one in self._models or ()}
        return next((name for name in (model, f"{model}:latest") if name in names), None)

    @property
    def is_unlisted(self) -> bool:
        """Returns whether the upstream lists no models, so that it may have any model."""
        return self._models is None and not self.config.patterns and self.config.base_url is not None

    async def models(self, newer_than_seconds: float = LIST_SECONDS) -> list[Mapping[str, Any]]:
        """Returns the models of the upstream, from a list of at most this age; after a failure, from the last list."""
        async with self._reading:
            now = asyncio.get_running_loop().time()
            if self._read_at is None or now - self._read_at > newer_than_seconds:
                self._read_at = now
                found = await self._list()
                self._models = found if found is not None else self._models
        return self.listed

    @property
    def listed(self) -> list[Mapping[str, Any]]:
        """Returns the models of the last list, and the configured patterns that are plain names."""
        known = self._models or []
        if not self.config.patterns:
            return known
        listed = [one for one in known if self.accepts(one["id"])]
        plain = [one for one in self.config.patterns if "*" not in one and "?" not in one and "[" not in one]
        return listed + [_described(name) for name in plain if name not in {one["id"] for one in listed}]

    async def _list(self) -> list[Mapping[str, Any]] | None:
        if self.config.base_url is None:
            return [_described(name) for name in self._embedded_models()]
        try:
            async with asyncio.timeout(self.config.timeouts.connect_seconds):
                answer = await self._http().get(self._url(self.config.base_url, "models"), headers=self._headers())
            self.is_down = False
            listed = orjson.loads(answer.content)["data"] if answer.status_code == 200 else None
            return None if listed is None else [one for one in listed if isinstance(one["id"], str)]
        except httpx2.ConnectError:
            self.is_down = True
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, ValueError, LookupError, TypeError, UpstreamError):
            pass
        return None

    def _embedded_models(self) -> Sequence[str]:
        embedded = self._find_embedded()
        return () if embedded is None else embedded.embedded_models()

    async def answers(self) -> bool:
        """Returns whether the upstream accepts connections; the probe of its resource."""
        if self.config.base_url is None:
            return bool(self._embedded_models())
        try:
            async with asyncio.timeout(self.config.timeouts.connect_seconds):
                await self._http().get(self._url(self.config.base_url, "models"))
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError):
            return False
        self.is_down = False
        return True

    def unreachable(self, why: str = "") -> UpstreamError:
        message = f"{self._called} does not answer{why}; start it, or correct its base_url"
        return UpstreamError(
            ProtocolError(503, message, "upstream_unavailable", headers={"Retry-After": "5"}), FailureKind.UNAVAILABLE
        )

    # Requests.

    async def ask(
        self, endpoint: str, body: Mapping[str, Any], hides_usage: bool = False
    ) -> AsyncGenerator[Part, None]:
        """Yields the answer: one `Answer`, or `Opened` and then a `Piece` for each event of the stream. With
        `hides_usage`, the events do not show what only the gateway has asked for; such a piece may have no data.

        Closing the iterator closes the connection, so that the upstream stops its work.
        """
        async with self._address() as base_url:
            response = await self._begin(self._url(base_url, endpoint), body)
            try:
                if response.status_code != 200:
                    raise await self._refusal(response)
                if body.get("stream"):
                    async with aclosing(self._stream(response, hides_usage)) as parts:
                        async for part in parts:
                            yield part
                else:
                    yield await self._whole(response)
            finally:
                await response.aclose()

    @asynccontextmanager
    async def _address(self) -> AsyncIterator[str]:
        if self.config.base_url is not None:
            yield self.config.base_url
        elif (embedded := self._find_embedded()) is None or not embedded.embedded_models():
            remedy = "switch on the extension stories, and install nextslot[local-llm]"
            shown = ProtocolError(503, f"{self._called} is not installed: {remedy}", "upstream_unavailable")
            raise UpstreamError(shown, FailureKind.UNAVAILABLE)
        else:
            async with embedded.embedded_server() as base_url:
                yield base_url

    async def _begin(self, url: str, body: Mapping[str, Any]) -> httpx2.Response:
        seconds, unavailable = self.config.timeouts.first_byte_seconds, FailureKind.UNAVAILABLE
        request = self._http().build_request("POST", url, content=write_json(body), headers=self._headers())
        try:
            async with asyncio.timeout(seconds):
                response = await self._http().send(request, stream=True)
        except TimeoutError as error:
            raise self._too_slow("begin to answer", seconds) from error
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
            self.is_down = True
            raise self.unreachable(_because(error)) from error
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            raise self._broken(f"has no usable address{_because(error)}", FailureKind.INVALID) from error
        except httpx2.HTTPError as error:
            raise self._broken(f"closed the connection without an answer{_because(error)}", unavailable) from error
        self.is_down = False
        return response

    async def _whole(self, response: httpx2.Response) -> Answer:
        body = await self._read(response, MOST_OF_AN_ANSWER)
        try:
            answer = read_json(body)
        except ValueError as error:
            raise self._broken(f"answered something that is not JSON: {self._excerpt(body)}") from error
        if not isinstance(answer, dict):
            raise self._broken(f"answered something that is not a JSON object: {self._excerpt(body)}")
        if answer.get("error"):
            raise self._broken(f"reported an error: {self._reason(answer, body)}")
        return Answer(body, _passed_on(response), _usage(answer))

    async def _stream(self, response: httpx2.Response, hides_usage: bool) -> AsyncGenerator[Part, None]:
        kind = response.headers.get("content-type", "")
        if "text/event-stream" not in kind:
            body = await self._read(response, MOST_OF_AN_ERROR)
            raise self._broken(f"did not stream its answer, but sent {kind or 'no type'}: {self._said(body)}")
        yield Opened(_passed_on(response))
        has_ended = False
        pieces = self._pieces(response)
        try:
            async with aclosing(events(pieces, MOST_OF_A_CHUNK)) as found:
                async for lines in found:
                    data = data_of(lines)
                    if data is not None and data.strip() == b"[DONE]":
                        yield Piece(DONE, is_last=True)
                        await self._end(found)
                        return
                    chunk = None if data is None else self._chunk(data)
                    has_ended = has_ended or (chunk is not None and _is_last(chunk))
                    if chunk is None:
                        yield Piece(_event(lines))
                    else:
                        shown = _without_usage(lines, chunk) if hides_usage else _event(lines)
                        yield Piece(shown, _usage(chunk), has_text=_has_text(chunk))
        except TooLong as error:
            raise self._broken(f"sent an event of more than {MOST_OF_A_CHUNK:,} bytes") from error
        if not has_ended:
            raise self._cut()
        yield Piece(DONE, is_last=True)

    async def _end(self, found: AsyncGenerator[list[bytes], None]) -> None:
        """Reads the end of a stream, so that its connection can be used again."""
        with suppress(TimeoutError, UpstreamError, TooLong):
            async with asyncio.timeout(END_SECONDS):
                async for _ in found:
                    pass

    def _chunk(self, data: bytes) -> dict[str, Any]:
        try:
            chunk = read_json(data)
        except ValueError as error:
            raise self._broken(f"sent a chunk that is not JSON: {self._excerpt(data)}") from error
        if not isinstance(chunk, dict):
            raise self._broken(f"sent a chunk that is not a JSON object: {self._excerpt(data)}")
        if chunk.get("error"):
            raise self._broken(f"reported an error: {self._reason(chunk, data)}")
        return chunk

    async def _read(self, response: httpx2.Response, most: int) -> bytes:
        body = bytearray()
        async with aclosing(self._pieces(response)) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > most:
                    raise self._broken(f"answered with more than {most:,} bytes")
        return bytes(body)

    async def _pieces(self, response: httpx2.Response) -> AsyncGenerator[bytes, None]:
        stream, seconds = response.aiter_bytes(), self.config.timeouts.between_seconds
        try:
            while True:
                async with asyncio.timeout(seconds):
                    piece = await anext(stream, None)
                if piece is None:
                    return
                yield piece
        except TimeoutError as error:
            raise self._too_slow("go on with its answer", seconds) from error
        except httpx2.HTTPError as error:
            raise self._cut() from error

    async def _refusal(self, response: httpx2.Response) -> UpstreamError:
        """Makes the error for an answer other than 200. A refusal of the gateway's own key becomes a 502."""
        body, status = await self._read(response, MOST_OF_AN_ERROR), response.status_code
        error = _error_of(body)
        why = self._reason({"error": error}, body)
        if status in (401, 403):
            named = self.config.token_env or "token_env, which is not set"
            said = f"refused the gateway's key ({status}): {why}; correct the key in {named}"
            return self._broken(said, FailureKind.PERMISSION)
        if (elsewhere := response.headers.get("location")) and 300 <= status < 400:
            to = self._excerpt(elsewhere.encode())
            return self._broken(f"redirects to {to}; give that address as its base_url", FailureKind.INVALID)
        if not 400 <= status < 600:
            return self._broken(f"answered {status}: {why}")
        shown = ProtocolError(
            status,
            f"{self._called} answered {status}: {why}",
            _text(error, "code") or ("model_not_found" if status == 404 else None),
            _text(error, "param"),
            headers=_passed_on(response),
            type=_text(error, "type"),
        )
        return UpstreamError(shown, _kind(status))

    def _too_slow(self, what: str, seconds: float) -> UpstreamError:
        message = f"{self._called} did not {what} within {seconds:g} seconds"
        return UpstreamError(ProtocolError(504, message, "upstream_timeout"), FailureKind.TIMEOUT)

    def _cut(self) -> UpstreamError:
        return self._broken("closed the connection in the middle of its answer", FailureKind.UNAVAILABLE)

    def _broken(self, what: str, kind: FailureKind = FailureKind.ERROR) -> UpstreamError:
        return UpstreamError(ProtocolError(502, f"{self._called} {what}", "upstream_error"), kind)

    def _said(self, body: bytes) -> str:
        return self._reason({"error": _error_of(body)}, body)

    def _reason(self, answer: Mapping[str, Any], raw: bytes) -> str:
        error = answer.get("error")
        message = error.get("message") if isinstance(error, dict) else error
        return self._excerpt(message.encode("utf-8", "replace") if isinstance(message, str) else raw)

    def _excerpt(self, raw: bytes) -> str:
        """Returns a line of the upstream's error, with the gateway's key masked."""
        text = raw.decode("utf-8", "replace")
        if (token := self._token()) is not None:
            text = text.replace(token, "…")
        return " ".join(text[: 2 * MOST_SHOWN].split())[:MOST_SHOWN] or "nothing more was said"

    def _token(self) -> str | None:
        return os.environ.get(self.config.token_env) or None if self.config.token_env is not None else None

    def _headers(self) -> dict[str, str]:
        headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if self.config.token_env is not None:
            token = self._token()
            if token is None:
                what = f"needs a key in the environment variable {self.config.token_env}; set it, and restart"
                raise self._broken(what, FailureKind.PERMISSION)
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _http(self) -> httpx2.AsyncClient:
        if self._client is None:
            is_plain = not (self.config.base_url or "http://").startswith("https://")
            between = self.config.timeouts.between_seconds
            self._client = httpx2.AsyncClient(
                timeout=httpx2.Timeout(None, connect=self.config.timeouts.connect_seconds, write=between),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=IDLE_SECONDS),
                # Keeps a cookie of an upstream from going into another caller's request.
                cookies=http.cookiejar.CookieJar(http.cookiejar.DefaultCookiePolicy(allowed_domains=[])),
                # A server without TLS is on this machine or near it, where a proxy for the internet is wrong.
                trust_env=not is_plain,
                verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if is_plain else True,
            )
        return self._client

    def _url(self, base_url: str, path: str) -> str:
        base_url = base_url.rstrip("/")
        # Gemini's address ends with /v1beta/openai, and has no /v1 behind it.
        return f"{base_url}/{path}" if base_url.endswith(("/v1", "/openai")) else f"{base_url}/v1/{path}"


def _kind(status: int) -> FailureKind:
    if status == 504:
        return FailureKind.TIMEOUT
    if status in (408, 425, 429, 502, 503):
        return FailureKind.UNAVAILABLE
    return FailureKind.ERROR if status >= 500 else FailureKind.INVALID


def _error_of(body: bytes) -> Any:
    try:
        answer = orjson.loads(body)
    except ValueError:
        return None
    return answer.get("error") if isinstance(answer, dict) else None


def _text(error: Any, name: str) -> str | None:
    found = error.get(name) if isinstance(error, dict) else None
    return found if isinstance(found, str) else None


def _usage(answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the token counts of an answer, without other fields and impossible numbers that an upstream may send."""
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return None
    return {name: count for name, count in usage.items() if _is_count(count) and len(name) <= 100}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS


def _event(lines: list[bytes]) -> bytes:
    return b"\n".join(lines) + b"\n\n"


def _without_usage(lines: list[bytes], chunk: Mapping[str, Any]) -> bytes:
    """Returns an event without what `stream_options.include_usage` adds: a field `usage` that is null, and a chunk that
    has nothing else. Usage inside another chunk is what the upstream always sends.
    """
    if "usage" not in chunk or (chunk["usage"] is not None and chunk.get("choices")):
        return _event(lines)
    if chunk["usage"] is not None:
        return b""
    others = [line for line in lines if not line.startswith(b"data:")]
    return _event([*others, b"data: " + write_json({name: value for name, value in chunk.items() if name != "usage"})])


def _has_text(chunk: Mapping[str, Any]) -> bool:
    """Returns whether a chunk contains a part of the answer: of its text, its reasoning or its calls of tools."""
    choices = chunk.get("choices")
    return isinstance(choices, list) and any(
        isinstance(one, dict) and (one.get("text") or _says(one.get("delta"))) for one in choices
    )


def _says(delta: Any) -> bool:
    return isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role")


def _is_last(chunk: Mapping[str, Any]) -> bool:
    """Returns whether a chunk says how a choice ended; a chunk may have no choices."""
    choices = chunk.get("choices")
    return isinstance(choices, list) and any(isinstance(one, dict) and one.get("finish_reason") for one in choices)


def _passed_on(response: httpx2.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith(PASSED_ON)}


def _described(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0}


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"


def _because(error: Exception) -> str:
    text = str(error).strip()
    return f" ({text})" if text else ""
