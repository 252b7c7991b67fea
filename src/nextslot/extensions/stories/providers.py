"""The protocols of language models: Ollama's, and OpenAI's, which many servers speak.

Each answer becomes text chunks, or one `Fail` whose sentence names the server and what the server did.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import httpx2

from nextslot.domain import FailureKind
from nextslot.executors.run_context import Fail, QuotaExceeded

MAX_LINE_BYTES = 4 * 1024 * 1024
MOST_OF_AN_ERROR = 300


@dataclass(frozen=True, slots=True)
class RequestTimeouts:
    """The timeouts of a request. The first byte may take as long as a large model needs to load from disk."""

    connect_seconds: float = 5.0
    first_byte_seconds: float = 600.0
    between_seconds: float = 120.0
    # A chunk has about 150 bytes for 4 characters, and the thoughts of a model are much longer than its answer.
    max_stream_bytes: int = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """Options of a request; `format` is a JSON Schema for the answer, where the server supports that."""

    max_tokens: int = 1024
    temperature: float = 0.8
    max_characters: int = 100_000
    format: Mapping[str, Any] | None = None


class NoAnswer(Fail):
    """No server listens at the address. Nothing was sent, so another server may be used."""

    def __init__(self, message: str) -> None:
        super().__init__(message, FailureKind.UNAVAILABLE)


class Provider(Protocol):
    def generate(self, model: str, prompt: str, system: str, options: GenerateOptions) -> AsyncGenerator[str, None]: ...


class OllamaProvider:
    """Speaks Ollama's protocol: `POST /api/chat` with a stream of JSON lines."""

    def __init__(self, base_url: str, timeouts: RequestTimeouts, called: str = "Ollama") -> None:
        self._server = _ProviderServer(base_url, timeouts, called)

    async def generate(
        self, model: str, prompt: str, system: str, options: GenerateOptions
    ) -> AsyncGenerator[str, None]:
        wanted: dict[str, Any] = {
            "model": model,
            "messages": _messages(prompt, system),
            "stream": True,
            # Thoughts of a model are not part of the answer, and would use up its tokens.
            "think": False,
            "options": {"num_predict": options.max_tokens, "temperature": options.temperature, "repeat_penalty": 1.1},
        }
        if options.format is not None:
            wanted["format"] = options.format
        is_done = False
        async with self._server.post("/api/chat", wanted) as lines:
            async for line in lines:
                answer = self._server.json_of(line)
                message = answer.get("message")
                content = message.get("content") if isinstance(message, dict) else None
                if isinstance(content, str) and content:
                    yield content
                if answer.get("done") is True:
                    is_done = True
                    break
        if not is_done:
            raise self._server.cut()

    async def answers(self) -> bool:
        return await self._server.answers("/api/version")


class OpenAiProvider:
    """Speaks OpenAI's protocol: `POST /v1/chat/completions` with server-sent events."""

    def __init__(
        self,
        base_url: str,
        timeouts: RequestTimeouts,
        called: str,
        token: str | None = None,
        resource: str | None = None,
    ) -> None:
        base_url = base_url.rstrip("/")
        # Gemini's address ends with /v1beta/openai, and has no /v1 behind it.
        self._path = "/chat/completions" if base_url.endswith(("/v1", "/openai")) else "/v1/chat/completions"
        self._server = _ProviderServer(base_url, timeouts, called, token, resource)

    async def generate(
        self, model: str, prompt: str, system: str, options: GenerateOptions
    ) -> AsyncGenerator[str, None]:
        wanted = {
            "model": model,
            "messages": _messages(prompt, system),
            "stream": True,
            "max_tokens": options.max_tokens,
            "temperature": options.temperature,
        }
        is_done = False
        async with self._server.post(self._path, wanted) as lines:
            async for line in lines:
                if line.startswith(b"data:"):
                    data = line.removeprefix(b"data:").strip()
                    if data == b"[DONE]":
                        is_done = True
                        break
                elif line.startswith((b"event:", b"id:", b"retry:", b":")):
                    continue
                else:
                    data = line  # An error may come as plain JSON without `data:`.
                content, is_last = _choice(self._server.json_of(data))
                is_done = is_done or is_last
                if content:
                    yield content
        if not is_done:
            raise self._server.cut()


def _messages(prompt: str, system: str) -> list[dict[str, str]]:
    asked = [{"role": "user", "content": prompt}]
    return [{"role": "system", "content": system}, *asked] if system else asked


def _choice(answer: Mapping[str, Any]) -> tuple[str, bool]:
    """Returns the text of a chunk, and whether it is the last one with text."""
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(first, dict):
        return "", False
    delta = first.get("delta")
    content = delta.get("content") if isinstance(delta, dict) else None
    return content if isinstance(content, str) else "", first.get("finish_reason") is not None


class _ProviderServer:
    """One HTTP server: the part that both protocols share."""

    def __init__(
        self,
        base_url: str,
        timeouts: RequestTimeouts,
        called: str,
        token: str | None = None,
        resource: str | None = None,
    ) -> None:
        self._resource = resource
        self._base_url = base_url.rstrip("/")
        self._timeouts = timeouts
        self._name = called
        self._address = _without_password(self._base_url)
        self._called = f"{called} at {self._address}"
        self._token = token

    @asynccontextmanager
    async def post(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """Yields the lines of the answer. The end of the block closes the connection, so that the server stops."""
        async with self._client() as client:
            response = await self._begin(client, path, body)
            try:
                if response.status_code != 200:
                    raise await self._refusal(response, str(body["model"]))
                async with aclosing(self._lines(response)) as lines:
                    yield lines
            finally:
                await response.aclose()

    async def answers(self, path: str) -> bool:
        try:
            async with self._client() as client, asyncio.timeout(self._timeouts.connect_seconds):
                return (await client.get(self._url(path))).status_code == 200
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError):
            return False

    def json_of(self, line: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise Fail(f"{self._called} answered something that is not JSON: {self._excerpt(line)}") from error
        if not isinstance(answer, dict):
            raise Fail(f"{self._called} answered something that is not a JSON object: {self._excerpt(line)}")
        if answer.get("error"):
            raise Fail(f"{self._called} reported an error: {self._reason(answer, line)}")
        return answer

    def cut(self) -> Fail:
        return Fail(f"{self._called} cut the connection in the middle of its answer", FailureKind.UNAVAILABLE)

    def _client(self) -> httpx2.AsyncClient:
        is_plain = self._base_url.startswith("http://")
        timeout = httpx2.Timeout(None, connect=self._timeouts.connect_seconds, write=self._timeouts.between_seconds)
        headers = {"Accept-Encoding": "identity"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        return httpx2.AsyncClient(
            timeout=timeout,
            headers=headers,
            # A model server without TLS is on this machine or next to it: a proxy for the internet must not be asked,
            # and reading the system's certificates (0.1 s) is of no use.
            trust_env=not is_plain,
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if is_plain else True,
        )

    async def _begin(self, client: httpx2.AsyncClient, path: str, body: Mapping[str, Any]) -> httpx2.Response:
        try:
            request = client.build_request("POST", self._url(path), json=body)
            async with asyncio.timeout(self._timeouts.first_byte_seconds):
                return await client.send(request, stream=True)
        except TimeoutError as error:
            raise self._too_slow("begin to answer", self._timeouts.first_byte_seconds) from error
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
            raise NoAnswer(f"no {self._name} answers at {self._address}{_because(error)}") from error
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            raise Fail(f"{self._called}: this is not an address{_because(error)}", FailureKind.INVALID) from error
        except httpx2.HTTPError as error:
            raise Fail(
                f"{self._called} closed the connection without an answer{_because(error)}", FailureKind.UNAVAILABLE
            ) from error

    async def _lines(self, response: httpx2.Response) -> AsyncGenerator[bytes, None]:
        """Yields lines that are not blank; raises if one takes too long, or all are too large."""
        rest, total = b"", 0
        async with aclosing(self._pieces(response)) as pieces:
            async for piece in pieces:
                total += len(piece)
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield line.strip()
                if len(rest) > MAX_LINE_BYTES or total > self._timeouts.max_stream_bytes:
                    raise Fail(f"{self._called} did not come to an end: stopped after {total:,} bytes")
        if rest.strip():
            yield rest.strip()

    async def _pieces(self, response: httpx2.Response) -> AsyncGenerator[bytes, None]:
        stream = response.aiter_bytes()
        try:
            while True:
                async with asyncio.timeout(self._timeouts.between_seconds):
                    piece = await anext(stream, None)
                if piece is None:
                    return
                yield piece
        except TimeoutError as error:
            raise self._too_slow("go on with its answer", self._timeouts.between_seconds) from error
        except httpx2.HTTPError as error:
            raise self.cut() from error

    async def _refusal(self, response: httpx2.Response, model: str) -> Fail:
        """Makes the failure of an answer other than 200; only failures that may pass are retried."""
        body = b""
        async with aclosing(self._pieces(response)) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > MAX_LINE_BYTES:
                    break
        status, why = response.status_code, self._said(body)
        if status == 404:
            hint = f" (for Ollama: ollama pull {model})" if "model" in why else ""
            return Fail(f"{self._called} has no model {model!r}{hint}: {why}", FailureKind.INVALID)
        if status in (401, 403):
            return Fail(f"{self._called} refused our token: {status}, {why}", FailureKind.PERMISSION)
        if status == 429:
            message = f"{self._called} refused the request: its quota is used up, {why}"
            return QuotaExceeded.of_response(response.headers, message, resource=self._resource)
        if status in (408, 425, 502, 503, 504):
            return Fail(f"{self._called} is not ready: {status}, {why}", FailureKind.UNAVAILABLE)
        kind = FailureKind.ERROR if status >= 500 else FailureKind.INVALID
        return Fail(f"{self._called} answered {status}: {why}", kind)

    def _said(self, body: bytes) -> str:
        try:
            return self._reason(json.loads(body), body)
        except ValueError:
            return self._excerpt(body)

    def _reason(self, answer: Any, raw: bytes) -> str:
        error = answer.get("error") if isinstance(answer, dict) else None
        if isinstance(error, dict):
            error = error.get("message")
        return self._excerpt(error.encode("utf-8", "replace") if isinstance(error, str) else raw)

    def _excerpt(self, raw: bytes) -> str:
        """Returns a line of the server's error, with the token masked."""
        text = raw.decode("utf-8", "replace")
        if self._token:
            text = text.replace(self._token, "…")
        return " ".join(text[: 2 * MOST_OF_AN_ERROR].split())[:MOST_OF_AN_ERROR] or "nothing more was said"

    def _too_slow(self, what: str, seconds: float) -> Fail:
        return Fail(f"{self._called} did not {what} within {seconds:g} seconds", FailureKind.UNAVAILABLE)

    def _url(self, path: str) -> str:
        return self._base_url + path


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"


def _because(error: Exception) -> str:
    text = str(error).strip()
    return f" ({text})" if text else ""
