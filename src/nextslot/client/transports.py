"""The two clients, and their transports: everything that sends, reads or sleeps."""

import contextlib
import functools
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import urlsplit

from nextslot.errors import Invalid

from .binding import Way, finish
from .request_retries import DEFAULT_RETRIES, RequestRetries
from .requests import Lost, OpenReply, Reply, Request
from .verbs import Verbs

if TYPE_CHECKING:
    import httpx2

DEFAULT_URL = "http://127.0.0.1:8000"
CONNECT_SECONDS = 10.0
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True)
class Address:
    """The address of the server, perhaps with a path, and the API key for it."""

    url: str
    key: str | None
    # A PEM file with the authorities that may sign the server's certificate; None for those of this machine.
    ca: str | None = None

    @classmethod
    def of(cls, url: str | None, key: str | None, ca: str | None = None) -> "Address":
        url = (url or os.environ.get("NEXTSLOT_URL") or DEFAULT_URL).rstrip("/")
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise Invalid(f"{url!r} is not the address of a server, such as {DEFAULT_URL}", field="url")
        ca = ca or os.environ.get("NEXTSLOT_CA") or None
        if ca is not None and not os.access(ca, os.R_OK):
            raise Invalid(f"is {ca!r}, which cannot be read; name a PEM file", field="ca")
        return cls(url, key or os.environ.get("NEXTSLOT_API_KEY") or None, ca)

    @property
    def headers(self) -> dict[str, str]:
        return {"User-Agent": "nextslot", **({"X-API-Key": self.key} if self.key else {})}

    def pool(self) -> dict[str, Any]:
        """Returns the options of a connection pool; requests to a server on this machine use no proxy."""
        options = {"headers": self.headers, "trust_env": urlsplit(self.url).hostname not in LOOPBACK}
        if self.ca is None:
            return options
        import ssl  # Imported here because the import takes long, and most clients do not need it.

        return {**options, "verify": ssl.create_default_context(cafile=self.ca)}

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
    """Imports httpx2 at the first request, because this import takes longer than that of the client."""
    import httpx2

    return httpx2


def _lost(error: Exception) -> Lost:
    text = str(error)
    is_unsent = isinstance(error, (_http().ConnectError, _http().ConnectTimeout))
    return Lost(text.partition("] ")[2] or text or type(error).__name__, may_have_arrived=not is_unsent)


def _reply(response: "httpx2.Response", content: bytes) -> Reply:
    return Reply(response.status_code, {name.lower(): value for name, value in response.headers.items()}, content)


class Transport:
    """Sends requests, blocking or on the event loop, by subclass. In a blocking one, no coroutine ever suspends."""

    is_blocking: ClassVar[bool]

    def __init__(self, address: Address, on_note: Callable[[str], None] | None) -> None:
        self._address = address
        self.on_note = on_note

    async def send(self, request: Request) -> Reply | Lost:
        try:
            response = await self._request(self._address.request(request))
        except _http().TransportError as error:
            return _lost(error)
        return _reply(response, response.content)

    @contextlib.asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[OpenReply | Reply | Lost]:
        """Sends a request, and yields an answer below 400 whose content the caller reads piece by piece."""
        try:
            response = await self._start(self._address.request(request))
        except _http().TransportError as error:
            yield _lost(error)
            return
        try:
            yield await self._opened(response)
        finally:
            await self._end(response)

    async def _opened(self, response: Any) -> OpenReply | Reply | Lost:
        if response.status_code < 400:
            return OpenReply(functools.partial(self._read, self._pieces(response)))
        try:
            return _reply(response, await self._content(response))
        except _http().TransportError as error:
            return _lost(error)

    async def _read(self, pieces: Any) -> bytes | Lost | None:
        try:
            return await self._next(pieces)
        except _http().TransportError as error:
            return _lost(error)

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    # `Any`: the blocking and the async responses of httpx2 have different methods.

    async def _request(self, options: dict[str, Any]) -> Any:
        raise NotImplementedError

    async def _start(self, options: dict[str, Any]) -> Any:
        raise NotImplementedError

    async def _content(self, response: Any) -> bytes:
        raise NotImplementedError

    def _pieces(self, response: Any) -> Any:
        raise NotImplementedError

    async def _next(self, pieces: Any) -> bytes | None:
        raise NotImplementedError

    async def _end(self, response: Any) -> None:
        raise NotImplementedError


class BlockingTransport(Transport):
    is_blocking = True
    _pool: "httpx2.Client | None" = None

    def __init__(self, address: Address, on_note: Callable[[str], None] | None) -> None:
        super().__init__(address, on_note)
        # Protects the creation of the pool, as several threads may send their first request at the same time.
        self._opening = threading.Lock()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  # Blocking is its purpose.

    async def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    async def _request(self, options: dict[str, Any]) -> Any:
        return self._opened_pool().request(**options)

    async def _start(self, options: dict[str, Any]) -> Any:
        pool = self._opened_pool()
        return pool.send(pool.build_request(**options), stream=True)

    async def _content(self, response: Any) -> bytes:
        return bytes(response.read())

    def _pieces(self, response: Any) -> Any:
        return response.iter_bytes()

    async def _next(self, pieces: Any) -> bytes | None:
        return next(pieces, None)

    async def _end(self, response: Any) -> None:
        response.close()

    def _opened_pool(self) -> "httpx2.Client":
        with self._opening:
            if self._pool is None:
                self._pool = _http().Client(**self._address.pool())
            return self._pool


class AsyncTransport(Transport):
    is_blocking = False
    _pool: "httpx2.AsyncClient | None" = None

    async def sleep(self, seconds: float) -> None:
        import asyncio  # Imported here because the blocking client does not need it.

        await asyncio.sleep(seconds)

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.aclose()
            self._pool = None

    async def _request(self, options: dict[str, Any]) -> Any:
        return await self._opened_pool().request(**options)

    async def _start(self, options: dict[str, Any]) -> Any:
        pool = self._opened_pool()
        return await pool.send(pool.build_request(**options), stream=True)

    async def _content(self, response: Any) -> bytes:
        return bytes(await response.aread())

    def _pieces(self, response: Any) -> Any:
        return response.aiter_bytes()

    async def _next(self, pieces: Any) -> bytes | None:
        return await anext(pieces, None)

    async def _end(self, response: Any) -> None:
        await response.aclose()

    def _opened_pool(self) -> "httpx2.AsyncClient":
        if self._pool is None:
            self._pool = _http().AsyncClient(**self._address.pool())
        return self._pool


class ConnectedVerbs(Verbs[Way]):
    """A scheduler over HTTP. Arguments that are not given come from NEXTSLOT_URL, NEXTSLOT_API_KEY and NEXTSLOT_CA;
    without these, the address is this machine.

    `on_note` gets the server's remarks about a submission, such as that no language model answers.
    """

    # Makes the transport; each subclass has its own.
    TRANSPORT: ClassVar[Any]

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        ca: str | None = None,
        retries: int = DEFAULT_RETRIES,
        on_note: Callable[[str], None] | None = None,
    ) -> None:
        address = Address.of(url, key, ca)
        super().__init__(self.TRANSPORT(address, on_note), RequestRetries(address.url, retries))


class Client(ConnectedVerbs[BlockingTransport]):
    """A scheduler over HTTP, blocking."""

    TRANSPORT = BlockingTransport

    def close(self) -> None:
        finish(self._transport.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(ConnectedVerbs[AsyncTransport]):
    """A scheduler over HTTP, on the running event loop. It has the verbs of `Client`, awaited."""

    TRANSPORT = AsyncTransport

    async def close(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
