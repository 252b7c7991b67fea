"""Counts open connections, in all and by peer, and closes those that have waited longest when there are too many.

The acceptor's thread opens connections, the event loop closes them; `Connections` is used by both.
"""

import ipaddress
import logging
import resource
import threading
from collections import Counter
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

from starlette.responses import Response

from .log_throttle import Throttle

log = logging.getLogger(__name__)

# Of the most connections, one in so many is closed at once to make room.
SHARE_CLOSED = 16


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    # 0: half the limit of open files; the rest is for the database and the jobs.
    most: int = 0
    # 0: a quarter of all, and no limit for peers on this machine, because a proxy there is one peer for all callers.
    most_of_peer: int = 0
    head_bytes: int = 64 * 1024
    # How long a caller may take for the head of a request, and how long a connection may be idle after an answer.
    head_seconds: float = 10.0
    idle_seconds: float = 5.0
    # How long a caller may read nothing of an answer that is on its way.
    stalled_seconds: float = 60.0


class Waiting(Protocol):
    """A connection without a request in progress."""

    def make_room(self) -> None: ...


class Connections:
    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self.limits = limits or ConnectionLimits()
        self.most = self.limits.most or _open_files() // 2
        self._of_peers: Counter[str] = Counter()
        self._lock = threading.Lock()
        # Those without a request in progress, the one that has waited longest first; for the event loop alone.
        self._waiting: dict[Waiting, None] = {}
        self._throttle = Throttle()
        # How many were closed to make room, and how many were refused because of their peer.
        self.evicted = self.refused = 0

    @property
    def open(self) -> int:
        return self._of_peers.total()

    @property
    def has_room(self) -> bool:
        return self.open < self.most

    def enter(self, address: str) -> bool:
        """Counts a new connection. Returns False, and counts nothing, if its peer has too many."""
        peer = peer_of(address)
        with self._lock:
            if self._of_peers[peer] >= self._most_of(peer):
                self.refused += 1
                self.note(f"connections of {peer} are refused: it has {self._of_peers[peer]} open")
                return False
            self._of_peers[peer] += 1
            return True

    def leave(self, address: str) -> None:
        peer = peer_of(address)
        with self._lock:
            self._of_peers[peer] -= 1
            if not self._of_peers[peer]:
                del self._of_peers[peer]

    def _most_of(self, peer: str) -> int:
        if self.limits.most_of_peer:
            return self.limits.most_of_peer
        return self.most if ipaddress.ip_network(peer).is_loopback else max(1, self.most // 4)

    # On the event loop.

    def waits(self, connection: Waiting) -> None:
        self._waiting.pop(connection, None)
        self._waiting[connection] = None

    def works(self, connection: Waiting) -> None:
        self._waiting.pop(connection, None)

    def make_room(self) -> None:
        """Closes the connections that have waited longest without a request in progress."""
        if self.has_room:
            return
        closed = list(self._waiting)[: max(1, self.most // SHARE_CLOSED)]
        self.evicted += len(closed)
        for connection in closed:
            self.works(connection)
            connection.make_room()
        if closed:
            self.note("all connections are in use: those that waited longest without a request are closed")

    def note(self, sentence: str) -> None:
        """Logs a refusal, the same one once a second."""
        if (left_out := self._throttle.left_out(sentence)) is not None:
            log.warning("%s%s", sentence, left_out)


@lru_cache(maxsize=4096)  # Each request of a caller without a key needs it: 17 µs.
def peer_of(address: str) -> str:
    """Returns the network that counts as one peer: an address, or of IPv6 the 64 bits that a customer gets."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    bits = 64 if found.version == 6 and not found.is_loopback else found.max_prefixlen
    return str(ipaddress.ip_network((found, bits), strict=False))


def _open_files() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1_048_576 if limit == resource.RLIM_INFINITY else limit


def written(response: Response, *more: tuple[bytes, bytes]) -> bytes:
    """Writes a response as HTTP, for a connection that is then closed."""
    status = HTTPStatus(response.status_code)
    safe = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
    headers = [
        *response.raw_headers,
        *more,
        *safe,
        (b"connection", b"close"),
        (b"date", formatdate(usegmt=True).encode()),
    ]
    first = f"HTTP/1.1 {status.value} {status.phrase}".encode()
    return b"\r\n".join([first, *(name + b": " + value for name, value in headers), b"", bytes(response.body)])
