"""Accepts connections on a thread of its own, answers `/health` there, and queues the rest for the event loop.

On the event loop a probe would wait for about five turns, each full of other callers' requests. On this thread it waits
only for the interpreter's lock, even if many connections wait for the event loop. While the event loop does not
respond, the acceptor leaves probes to it, because `/health` says that the event loop responds. `Process` starts an
acceptor for its listener.
"""

import asyncio
import contextlib
import errno
import logging
import re
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from nextslot.server.routes.service import healthy
from nextslot.system.randomness import Chance, SystemChance

from .connections import SHARE_CLOSED, Connections, written
from .problems import problem
from .request_guard import Admission
from .request_log import HEADER

log = logging.getLogger(__name__)

# How long a new connection may stay silent before it goes to the event loop without a request.
SILENT_SECONDS = 1.0
# How long it may stay silent while other connections wait for room.
PATIENT_SECONDS = 0.2
# Connections that the event loop takes in one turn.
TAKEN_AT_ONCE = 128
# How often the thread checks whether it may accept connections again.
FULL_SECONDS = 0.05
# The pause after the system refused an accept, for lack of descriptors or memory; asyncio pauses as long.
PAUSE_SECONDS = 1.0

_MOST_HEAD = 4096
# A request that no layer of the application would change: no body, no Origin, no request id.
_PROBE = re.compile(rb"GET /health HTTP/1\.1\r\n(?:[!-9;-~]+:[^\r\n]*\r\n)+\r\n", re.DOTALL)
_HEADER = re.compile(rb"^([!-9;-~]+):[ \t]*([^\r\n]*?)[ \t]*\r$", re.MULTILINE)
_FOR_THE_LOOP = frozenset({b"origin", b"content-length", b"transfer-encoding", b"upgrade", HEADER.lower().encode()})
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """Owns a listening socket until it is closed. `admit` and `answered` are called on the event loop."""

    def __init__(
        self,
        listener: socket.socket,
        admission: Admission,
        is_responsive: Callable[[], bool],
        admit: Callable[[socket.socket, str], None],
        answered: Callable[[str, float], None],
        connections: Connections | None = None,
        chance: Chance | None = None,
    ) -> None:
        """`is_responsive` says whether the event loop responds; `admit` gets a connection and its peer's address, and
        `answered` a probe's request id and its seconds. While `connections` has no room, new connections wait in the
        kernel's backlog.
        """
        self._listener = listener
        self._admission = admission
        self._is_responsive = is_responsive
        self._admit = admit
        self._answered = answered
        self._chance = chance or SystemChance()
        self._loop = asyncio.get_running_loop()
        self._connections = connections or Connections()
        # The peers of the connections that belong to this thread.
        self._peers: dict[socket.socket, str] = {}
        # Connections that wait for the event loop, with their peers. While there is one, `_take` is scheduled.
        self._untaken: deque[tuple[socket.socket, str]] = deque()
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        # New connections without a byte yet, and when each goes to the event loop anyway, the earliest first.
        self._silent: dict[socket.socket, float] = {}
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run, name="nextslot-acceptor", daemon=True)
        self._is_listening = False
        listener.setblocking(False)
        self._thread.start()

    def close(self) -> None:
        """Stops accepting. Connections that were queued for the event loop stay open."""
        self._is_over.set()
        # Wakes the thread: a plain close would not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    # On the thread.

    def _run(self) -> None:
        with self._selector:
            while not self._is_over.is_set():
                self._listen_while_there_is_room()
                for key, _ in self._selector.select(self._seconds_to_wait()):
                    self._serve(key.fileobj)
                self._hand_over_silent()
        for connection in list(self._silent):
            self._close(connection)

    def _listen_while_there_is_room(self) -> None:
        has_room = self._connections.has_room
        if not has_room:
            self._make_room()
        if has_room and not self._is_listening:
            self._selector.register(self._listener, selectors.EVENT_READ)
        elif self._is_listening and not has_room:
            self._selector.unregister(self._listener)
        self._is_listening = has_room

    def _make_room(self) -> None:
        since = time.monotonic() + SILENT_SECONDS - PATIENT_SECONDS
        too_silent = [connection for connection, until in self._silent.items() if until < since]
        for connection in too_silent[: max(1, self._connections.most // SHARE_CLOSED)]:
            self._end_silence(connection)
            self._close(connection)
        self._loop.call_soon_threadsafe(self._connections.make_room)

    def _seconds_to_wait(self) -> float | None:
        if not self._is_listening:
            return FULL_SECONDS
        return max(0.0, next(iter(self._silent.values())) - time.monotonic()) if self._silent else None

    def _serve(self, ready: object) -> None:
        if isinstance(ready, socket.socket) and ready is not self._listener:
            self._end_silence(ready)
            self._decide(ready)
        elif (connection := self._accept()) is not None:
            self._decide(connection)

    def _accept(self) -> socket.socket | None:
        try:
            connection, (peer, *_) = self._listener.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED and not self._is_over.is_set():
                log.error("a connection cannot be accepted: %s; raise the limit of open files", error.strerror)
                self._is_over.wait(PAUSE_SECONDS)
            return None
        connection.setblocking(False)
        if not self._connections.enter(peer):
            with contextlib.suppress(OSError):
                connection.send(_TOO_MANY)
            connection.close()
            return None
        self._peers[connection] = peer
        return connection

    def _close(self, connection: socket.socket) -> None:
        connection.close()
        self._connections.leave(self._peers.pop(connection))

    def _decide(self, connection: socket.socket) -> None:
        began = time.perf_counter()
        try:
            head = connection.recv(_MOST_HEAD, socket.MSG_PEEK)
            if self._is_for_me(head):
                self._answer(connection, head, began)
            else:
                self._hand_over(connection)
        except BlockingIOError:
            self._silent[connection] = time.monotonic() + SILENT_SECONDS
            self._selector.register(connection, selectors.EVENT_READ)
        except OSError:  # The caller has hung up.
            self._close(connection)

    def _is_for_me(self, head: bytes) -> bool:
        if not _PROBE.fullmatch(head) or not self._is_responsive():
            return False
        headers = [(name.lower(), value) for name, value in _HEADER.findall(head)]
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        is_plain = _FOR_THE_LOOP.isdisjoint(name for name, _ in headers)
        return is_plain and len(hosts) == 1 and self._admission.serves(hosts[0])

    def _answer(self, connection: socket.socket, head: bytes, began: float) -> None:
        request_id = self._chance.new_id()
        connection.recv(len(head))  # Closing a connection with unread bytes resets it, and its answer is lost.
        connection.send(written(healthy(), (HEADER.lower().encode(), request_id.encode())))
        self._close(connection)
        self._loop.call_soon_threadsafe(self._answered, request_id, time.perf_counter() - began)

    def _hand_over_silent(self) -> None:
        now = time.monotonic()
        for connection in [one for one, until in self._silent.items() if until <= now]:
            self._end_silence(connection)
            self._hand_over(connection)

    def _end_silence(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._silent[connection]

    def _hand_over(self, connection: socket.socket) -> None:
        with self._lock:
            self._untaken.append((connection, self._peers.pop(connection)))
            if len(self._untaken) == 1:
                self._loop.call_soon_threadsafe(self._take)

    # On the event loop.

    def _take(self) -> None:
        with self._lock:
            taken = [self._untaken.popleft() for _ in range(min(TAKEN_AT_ONCE, len(self._untaken)))]
            if self._untaken:
                self._loop.call_soon(self._take)
        for connection, peer in taken:
            self._admit(connection, peer)


_TOO_MANY = written(
    problem(429, "overloaded", "your address has too many connections open; close some of them", {"Retry-After": "1"})
)
