"""HttpSender: the only code that sends HTTP requests to webhook receivers. `delivery_worker` calls it.

It resolves a name once for each connection, checks the addresses, and connects to one of them, so a name that resolves
differently a moment later has no effect. It follows no redirects, uses no proxy and stores no cookies.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpcore2

from nextslot.domain.addresses import Address, address_problem
from nextslot.executors.threads import Threads
from nextslot.system.clock import Clock

from .delivery_worker import EndpointResponse
from .webhook_outbox import WebhookService

FIRST_BYTES = 1000
# A connection that was idle for longer is not reused, because the other side may be about to close it.
IDLE_SECONDS = 1.0
# How long to try one address of a host before the next.
CONNECT_SECONDS = 3.0


class HttpSender:
    """Keeps connections open while there is much to send, and closes them afterwards."""

    def __init__(self, clock: Clock, threads: Threads, service: WebhookService) -> None:
        self._clock = clock
        self._backend = _CheckedBackend(threads, service)
        # Created once, on first use, because that takes longer than sending a message.
        self._tls: ssl.SSLContext | None = None
        self._idle: dict[str, list[httpcore2.AsyncHTTPConnection]] = {}
        self._in_use = 0
        self._exchanges = 0
        self._closing: asyncio.Task[None] | None = None

    async def send(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> EndpointResponse:
        got = _PartialResponse()
        try:
            async with asyncio.timeout(seconds):
                await self._exchange(url, headers, body, got)
        except TimeoutError:
            return got.answer(f"the endpoint did not respond within {seconds:g} seconds")
        except _Refused as error:
            return EndpointResponse(error=str(error), is_unreachable=True)
        except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
            return EndpointResponse(error=_with_cause("could not connect", error), is_unreachable=True)
        except (httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            return got.answer(_with_cause("the connection was cut, or the response was not HTTP", error))
        except (OSError, httpcore2.TimeoutException, httpcore2.UnsupportedProtocol, ValueError) as error:
            return got.answer(_with_cause("the message could not be sent", error))
        return got.answer("")

    async def close(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            await asyncio.wait([self._closing])
        await self._close_idle()

    async def _close_when_idle(self) -> None:
        """Runs while there are connections, and closes them after a time without messages."""
        while self._in_use or self._idle:
            seen = self._exchanges
            await self._clock.sleep(IDLE_SECONDS)
            if not self._in_use and seen == self._exchanges:
                await self._close_idle()

    async def _close_idle(self) -> None:
        idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                await connection.aclose()

    async def _exchange(self, url: str, headers: Mapping[str, str], body: bytes, got: "_PartialResponse") -> None:
        target = httpcore2.URL(url)
        connection = await self._connection(target.origin)
        self._in_use += 1
        self._exchanges += 1
        if self._closing is None or self._closing.done():
            self._closing = asyncio.get_running_loop().create_task(
                self._close_when_idle(), name="nextslot-webhook-connections"
            )
        try:
            # Set here, because the client omits the brackets of an IPv6 address.
            named = [("Host", urlsplit(url).netloc), *headers.items()]
            async with connection.stream("POST", target, headers=named, content=body) as response:
                await got.read(response)
        except BaseException:
            await connection.aclose()
            raise
        finally:
            self._in_use -= 1
        if connection.is_idle():
            self._idle.setdefault(str(target.origin), []).append(connection)

    async def _connection(self, origin: httpcore2.Origin) -> httpcore2.AsyncHTTPConnection:
        """Returns an idle connection that is still usable, or a new one."""
        idle = self._idle.get(str(origin))
        while idle:
            connection = idle.pop()
            if not connection.has_expired():
                return connection
            await connection.aclose()
        if origin.scheme == b"https" and self._tls is None:
            self._tls = httpcore2.default_ssl_context()
        return httpcore2.AsyncHTTPConnection(origin, self._tls, IDLE_SECONDS, network_backend=self._backend)


class _PartialResponse:
    """The part of a response that arrived before an error."""

    def __init__(self) -> None:
        self.status_code: int | None = None
        self.headers: Mapping[bytes, bytes] = {}
        self.text = b""

    async def read(self, response: httpcore2.Response) -> None:
        self.status_code = response.status
        self.headers = {name.lower(): value for name, value in response.headers}
        async for chunk in response.aiter_stream():
            self.text += chunk
            if len(self.text) >= FIRST_BYTES:
                return

    def answer(self, error: str) -> EndpointResponse:
        """Returns the response. If it has a status code, the endpoint has responded, even if the body then failed."""
        if self.status_code is None:
            return EndpointResponse(error=error)
        text = self.text[:FIRST_BYTES].decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
        return EndpointResponse(self.status_code, self._problem(), text, self._header(b"retry-after"))

    def _problem(self) -> str | None:
        if self.status_code is not None and 300 <= self.status_code < 400:
            where = self._header(b"location")
            return f"the endpoint answered {self.status_code}, and redirects are not followed" + (
                f" (to {where[:200]})" if where else ""
            )
        return None

    def _header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")


class _Refused(Exception):
    """Raised for an address to which no connection is allowed."""


class _CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Connects only to addresses that it has checked; TLS and the Host header still use the name."""

    def __init__(self, threads: Threads, service: WebhookService) -> None:
        self._threads = threads
        self._service = service
        self._plain = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        return _Stream(await self._connect(host, port, timeout, local_address, socket_options))

    async def _connect(
        self,
        host: str,
        port: int,
        timeout: float | None,
        local_address: str | None,
        socket_options: Iterable[Any] | None,
    ) -> httpcore2.AsyncNetworkStream:
        found = await self._resolve(host, port)
        for address in found:
            problem = address_problem(address, self._service.allow_private)
            if problem is not None:
                # One forbidden address is enough: a name that also leads there cannot be trusted.
                raise _Refused(f"refused: {problem}")
        for address in found[:-1]:
            try:
                return await self._plain.connect_tcp(str(address), port, CONNECT_SECONDS, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await self._plain.connect_tcp(str(found[-1]), port, timeout, local_address, socket_options)

    async def _resolve(self, host: str, port: int) -> list[Address]:
        """Resolves a name in a daemon thread, because a name server may take longer than any message may."""
        found = await self._threads.run(lambda: _look_up(host, port))
        if isinstance(found, OSError):
            raise httpcore2.ConnectError(f"the name {host!r} cannot be resolved: {found.strerror or found}")
        return found


class _Stream(httpcore2.AsyncNetworkStream):
    """Closes the connection if its TLS handshake is cancelled, which the HTTP client does not do."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self.read = stream.read  # type: ignore[method-assign]
        self.write = stream.write  # type: ignore[method-assign]
        self.aclose = stream.aclose  # type: ignore[method-assign]
        self.get_extra_info = stream.get_extra_info  # type: ignore[method-assign]

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        try:
            return await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except asyncio.CancelledError:
            await self._stream.aclose()
            raise


def _look_up(host: str, port: int) -> list[Address] | OSError:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return error if isinstance(error, OSError) else OSError(str(error))
    # Remove a zone (`fe80::1%eth0`): such an address is refused anyway.
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found] or OSError("no address")


def _with_cause(what: str, error: BaseException) -> str:
    """Returns a sentence with the cause, which the client's own errors often hide."""
    cause: BaseException | None = error
    while cause is not None and not str(cause):
        cause = cause.__cause__ or cause.__context__
    for nested in (error, error.__cause__, error.__context__):
        if isinstance(nested, ssl.SSLError):
            return f"TLS failed: {nested.reason or nested}"
    return f"{what}: {cause}"[:500] if cause is not None else what
