"""The two clients: they carry out plans, one blocking, one on the running event loop, and know nothing else.

Everything that could differ between them by mistake is in the plans; here is only sending, reading and sleeping.
"""

import os
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlsplit

from nextslot.errors import Invalid

from .binding import Awaited, Blocking
from .operations import (
    DEFAULT_RETRIES,
    Give,
    Lost,
    Open,
    Operation,
    Pause,
    Reply,
    Request,
    RequestRetries,
    Send,
    StreamOperation,
)
from .verbs import Verbs

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8000"
CONNECT_SECONDS = 10.0
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server is, perhaps below a path, and what every request carries."""

    url: str
    key: str | None

    @classmethod
    def of(cls, url: str | None, key: str | None) -> "Address":
        url = (url or os.environ.get("NEXTSLOT_URL") or DEFAULT_URL).rstrip("/")
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise Invalid(f"{url!r} is not the address of a server, such as {DEFAULT_URL}", field="url")
        return cls(url, key or os.environ.get("NEXTSLOT_API_KEY") or None)

    @property
    def headers(self) -> dict[str, str]:
        return {"User-Agent": "nextslot", **({"X-API-Key": self.key} if self.key else {})}

    def pool(self) -> dict[str, Any]:
        """A server on this machine is not asked through a proxy."""
        return {"headers": self.headers, "trust_env": urlsplit(self.url).hostname not in LOOPBACK}

    def request(self, request: Request) -> dict[str, Any]:
        httpx2 = _http()
        content, headers = request.content, dict(request.headers)
        if content is not None:
            headers["Content-Type"] = "application/json"
        return {
            "method": request.method,
            "url": self.url + request.path,
            "params": dict(request.query) or None,
            "headers": headers,
            "content": content,
            "timeout": httpx2.Timeout(CONNECT_SECONDS, read=request.answer_seconds, pool=None),
        }


def _http() -> Any:
    """Imported with the first request: it takes longer than all of this package."""
    import httpx2

    return httpx2


def _lost(error: Exception) -> Lost:
    text = str(error)
    is_unsent = isinstance(error, (_http().ConnectError, _http().ConnectTimeout))
    return Lost(text.partition("] ")[2] or text or type(error).__name__, may_have_arrived=not is_unsent)


def _reply(response: "httpx2.Response", content: bytes) -> Reply:
    return Reply(response.status_code, {name.lower(): value for name, value in response.headers.items()}, content)


class BlockingTransport(Blocking):
    def __init__(self, address: Address) -> None:
        self._address = address
        self._pool: httpx2.Client | None = None
        # One pool, also when several threads ask for the first time at once.
        self._opening = threading.Lock()

    def run(self, plan: Operation[T]) -> T:
        answer: Any = None
        while True:
            try:
                step = plan.send(answer)
            except StopIteration as done:
                result: T = done.value
                return result
            match step:
                case Send(request):
                    answer = self._send(request)
                case Pause(seconds):
                    time.sleep(seconds)
                    answer = None

    def stream(self, plan: StreamOperation[T]) -> Generator[T, None, None]:
        answer: Any = None
        opened: httpx2.Response | None = None
        pieces: Iterator[bytes] = iter(())
        try:
            while True:
                try:
                    step = plan.send(answer)
                except StopIteration:
                    return
                answer = None
                match step:
                    case Give(item):
                        yield item
                    case Send(request):
                        answer = self._send(request)
                    case Pause(seconds):
                        time.sleep(seconds)
                    case Open(request):
                        if opened is not None:
                            opened.close()
                        opened, answer = self._open(request)
                        pieces = iter(()) if opened is None else opened.iter_bytes()
                    case _:
                        answer = self._next(pieces)
        finally:
            if opened is not None:
                opened.close()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _send(self, request: Request) -> Reply | Lost:
        try:
            response = self._opened_pool().request(**self._address.request(request))
            return _reply(response, response.content)
        except _http().TransportError as error:
            return _lost(error)

    def _open(self, request: Request) -> "tuple[httpx2.Response | None, Reply | Lost]":
        pool = self._opened_pool()
        try:
            response = pool.send(pool.build_request(**self._address.request(request)), stream=True)
            content = response.read() if response.status_code >= 400 else b""
            return response, _reply(response, content)
        except _http().TransportError as error:
            return None, _lost(error)

    def _next(self, pieces: Iterator[bytes]) -> bytes | Lost | None:
        try:
            return next(pieces, None)
        except _http().TransportError as error:
            return _lost(error)

    def _opened_pool(self) -> "httpx2.Client":
        with self._opening:
            if self._pool is None:
                self._pool = _http().Client(**self._address.pool())
            return self._pool


async def _sleep(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)


class AsyncTransport(Awaited):
    def __init__(self, address: Address) -> None:
        self._address = address
        self._pool: httpx2.AsyncClient | None = None

    async def run(self, plan: Operation[T]) -> T:
        answer: Any = None
        while True:
            try:
                step = plan.send(answer)
            except StopIteration as done:
                result: T = done.value
                return result
            match step:
                case Send(request):
                    answer = await self._send(request)
                case Pause(seconds):
                    await _sleep(seconds)
                    answer = None

    async def stream(self, plan: StreamOperation[T]) -> AsyncGenerator[T, None]:
        answer: Any = None
        opened: httpx2.Response | None = None
        pieces: AsyncIterator[bytes] | None = None
        try:
            while True:
                try:
                    step = plan.send(answer)
                except StopIteration:
                    return
                answer = None
                match step:
                    case Give(item):
                        yield item
                    case Send(request):
                        answer = await self._send(request)
                    case Pause(seconds):
                        await _sleep(seconds)
                    case Open(request):
                        if opened is not None:
                            await opened.aclose()
                        opened, answer = await self._open(request)
                        pieces = None if opened is None else opened.aiter_bytes()
                    case _:
                        answer = None if pieces is None else await self._next(pieces)
        finally:
            if opened is not None:
                await opened.aclose()

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.aclose()
            self._pool = None

    async def _send(self, request: Request) -> Reply | Lost:
        try:
            response = await self._opened_pool().request(**self._address.request(request))
            return _reply(response, response.content)
        except _http().TransportError as error:
            return _lost(error)

    async def _open(self, request: Request) -> "tuple[httpx2.Response | None, Reply | Lost]":
        pool = self._opened_pool()
        try:
            response = await pool.send(pool.build_request(**self._address.request(request)), stream=True)
            content = await response.aread() if response.status_code >= 400 else b""
            return response, _reply(response, content)
        except _http().TransportError as error:
            return None, _lost(error)

    async def _next(self, pieces: AsyncIterator[bytes]) -> bytes | Lost | None:
        try:
            return await anext(pieces, None)
        except _http().TransportError as error:
            return _lost(error)

    def _opened_pool(self) -> "httpx2.AsyncClient":
        if self._pool is None:
            self._pool = _http().AsyncClient(**self._address.pool())
        return self._pool


class Client(Verbs[Blocking]):
    """A scheduler over HTTP, blocking. Without arguments: NEXTSLOT_URL and NEXTSLOT_API_KEY, else this machine."""

    def __init__(self, url: str | None = None, *, key: str | None = None, retries: int = DEFAULT_RETRIES) -> None:
        address = Address.of(url, key)
        self._line = BlockingTransport(address)
        super().__init__(self._line, RequestRetries(address.url, retries))

    @property
    def url(self) -> str:
        return self._retries_policy.url

    def close(self) -> None:
        self._line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(Verbs[Awaited]):
    """A scheduler over HTTP, on the running event loop. The same verbs as `Client`, awaited."""

    def __init__(self, url: str | None = None, *, key: str | None = None, retries: int = DEFAULT_RETRIES) -> None:
        address = Address.of(url, key)
        self._line = AsyncTransport(address)
        super().__init__(self._line, RequestRetries(address.url, retries))

    @property
    def url(self) -> str:
        return self._retries_policy.url

    async def close(self) -> None:
        await self._line.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
