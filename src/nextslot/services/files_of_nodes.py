"""FilesOfNodes: reads files of runs that only another node has, by asking that node; and knows such requests of others.

A node is asked only at the address that it has stored itself when it joined, and only while it is alive. A request is
signed with a secret that the nodes share in their database: for one node, one file and a minute. The secret itself is
not sent. No redirect is followed, no proxy is used, and an answer has a bound.
"""

import hashlib
import hmac
import socket
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from nextslot.domain.addresses import is_loopback
from nextslot.errors import NotFound, Unavailable
from nextslot.executors.run_log import LogPart
from nextslot.store.contract import Tx
from nextslot.store.tables import nodes
from nextslot.system.clock import Clock

from .unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from httpx2 import AsyncClient, Response

# Carries the time and the signature of a request.
SIGNATURE = "x-nextslot-node"
VALID_SECONDS = 60.0
CONNECT_SECONDS, READ_SECONDS = 3.0, 30.0
# The most bytes of a log that another node may answer with.
MOST_LOG = 64 * 1024 * 1024
NOT_ALIVE = "the node is not alive"


class FilesOfNodes:
    def __init__(self, access: UnitOfWork, clock: Clock, node: str) -> None:
        self._access = access
        self._clock = clock
        self.node = node
        # The secret of the nodes, which never changes once it is stored; None until it was read.
        self._secret: str | None = None
        self._client: AsyncClient | None = None

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    # Asking.

    async def log(self, node_id: str, run_id: str, wanted: str) -> LogPart:
        """Reads a log of another node; `wanted` is `offset=…&limit=…` or `tail=…`. Raises NotFound, Unavailable."""
        response = await self._ask(node_id, run_id, "log", wanted)
        try:
            text = b""
            async for chunk in response.aiter_raw():
                text += chunk
                if len(text) > MOST_LOG:
                    raise Unavailable(f"node {node_id!r} answered with more than {MOST_LOG:,} bytes of a log")
            start, next_, size, cut = (
                int(response.headers[f"x-log-{name}"]) for name in ("start", "next", "size", "cut")
            )
        except (KeyError, ValueError) as error:
            raise Unavailable(f"node {node_id!r} did not answer with a log: it may have another version") from error
        except self._errors() as error:
            raise _silent(node_id, error) from error
        finally:
            await response.aclose()
        return LogPart(text, start, next_, size, cut)

    async def artifact(self, node_id: str, run_id: str, name: str, size: int) -> AsyncIterator[bytes]:
        """Reads an artifact of another node in chunks. Raises NotFound or Unavailable before the first one."""
        response = await self._ask(node_id, run_id, f"artifacts/{name}", "")
        return self._chunks(node_id, response, size)

    async def _chunks(self, node_id: str, response: "Response", size: int) -> AsyncIterator[bytes]:
        left = size
        try:
            async for chunk in response.aiter_raw():
                left -= len(chunk)
                if left < 0:
                    raise Unavailable(f"node {node_id!r} answered with more than the {size:,} bytes of the artifact")
                yield chunk
        except self._errors() as error:
            raise _silent(node_id, error) from error
        finally:
            await response.aclose()

    async def _ask(self, node_id: str, run_id: str, file: str, query: str) -> "Response":
        kind, _, name = ("log", "", run_id) if file == "log" else file.partition("/")
        kind = kind.removesuffix("s")
        found, secret = await self._access.read(lambda tx: _way_to(tx, node_id))
        reason = _obstacle(found, secret)
        if reason is not None or found is None or found[0] is None or secret is None:
            raise NotFound(kind, name, f"{self._where(node_id)}; {reason}")
        query = f"?{query}" if query else ""
        url = f"{found[0].rstrip('/')}/api/node-files/{run_id}/{quote(file)}{query}"
        now = str(int(self._clock.now()) // 1_000_000)
        headers = {
            SIGNATURE: f"{now}.{_signature(secret, node_id, now, f'{run_id}/{file}{query}')}",
            "accept-encoding": "identity",
        }
        client = self._open_client()
        try:
            response = await client.send(client.build_request("GET", url, headers=headers), stream=True)
        except self._errors() as error:
            raise _silent(node_id, error) from error
        if response.status_code == 200:
            return response
        await response.aclose()
        if response.status_code == 404:
            raise NotFound(kind, name, f"{self._where(node_id)}; it has it no longer")
        raise Unavailable(f"node {node_id!r} has the {kind}, and answered with the status {response.status_code}")

    def _where(self, node_id: str) -> str:
        return f"it is on the disk of node {node_id!r}, where the work ran, and this is node {self.node!r}"

    def _open_client(self) -> "AsyncClient":
        # Only here: a node that is alone needs no HTTP client.
        import httpx2

        if self._client is None:
            timeout = httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
            self._client = httpx2.AsyncClient(timeout=timeout, trust_env=False, follow_redirects=False)
        return self._client

    def _errors(self) -> tuple[type[Exception], ...]:
        import httpx2

        return (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError)

    # Being asked.

    async def is_of_a_node(self, target: str, signature: str | None) -> bool:
        """Returns whether another node has signed a request for this file, `RUN/log?…`, a short time ago."""
        time, _, given = (signature or "").partition(".")
        if not time.isascii() or not time.isdecimal() or len(time) > 15:
            return False
        if abs(int(self._clock.now()) / 1_000_000 - int(time)) > VALID_SECONDS:
            return False
        if self._secret is None:
            self._secret = await self._access.read(nodes.files_secret)
        if self._secret is None:
            return False
        return hmac.compare_digest(_signature(self._secret, self.node, time, target).encode(), given.encode())


def _signature(secret: str, node_id: str, time: str, target: str) -> str:
    text = f"nextslot:files\n{node_id}\n{time}\n{target}"
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def _way_to(tx: Tx, node_id: str) -> tuple[tuple[str | None, str] | None, str | None]:
    return nodes.address_of(tx, node_id), nodes.files_secret(tx)


def _obstacle(found: tuple[str | None, str] | None, secret: str | None) -> str | None:
    """Returns why a node cannot be asked, in words; None if it can."""
    if found is None:
        return NOT_ALIVE
    address, host = found
    if address is None or secret is None:
        return "it has stored no address at which it can be asked: set `[node] address` there"
    if is_loopback(urlsplit(address).hostname or "") and host != socket.gethostname():
        return f"its address {address} is known on its own machine only: set `[node] address` there"
    return None


def _silent(node_id: str, error: Any) -> Unavailable:
    reason = str(error) or type(error).__name__
    return Unavailable(f"node {node_id!r}, where the work ran, has the file, and does not answer: {reason}")
