"""Speaks HTTP on one connection, as uvicorn does, with limits for the size and time of a request's head, for idle time
and for stalled answers.

`Process` makes one for each connection that the acceptor has accepted.
"""

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .connections import Connections, written
from .problems import problem


class BoundedHttp(HttpToolsProtocol):
    def __init__(self, connections: Connections, peer: str, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._open = connections
        self._limits = connections.limits
        self._peer = peer
        # Fires when the caller has taken too long for a head, or has been idle for too long after an answer.
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._is_idle = self._is_lost = False
        # Whether the next bytes belong to a head, and how many bytes of it have arrived.
        self._is_in_head = True
        self._head_bytes = 0
        self._arriving = 0
        # The task of the TLS handshake. During it there is no transport, and so no deadline of this class.
        self._handshake: asyncio.Task[None] | None = None

    def begin_handshake(self, handshake: asyncio.Task[None]) -> None:
        """Lets the connection be closed to make room before its TLS handshake is over, as one with half a head may."""
        self._handshake = handshake
        self._open.waits(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait(self._limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._deadline, self._stalled):
            if timer is not None:
                timer.cancel()
        self._is_lost = True
        self._open.works(self)
        self._open.leave(self._peer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._is_idle and self._is_in_head:
            self._wait(self._limits.head_seconds)
        self._arriving = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # Nothing is upgraded here: the request gets a usual answer.
        except httptools.HttpParserError:
            self._refuse(400, "malformed", "the request is not valid HTTP; send HTTP/1.1")
            return
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.head_bytes:
                detail = f"the head of the request has more than {self._limits.head_bytes:,} bytes; send fewer headers"
                self._refuse(431, "too_large", detail)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._cancel_deadline()
        self._open.works(self)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_in_head = True
        # `data_received` adds the bytes that are arriving. Some of them may belong to the next head; these are not
        # counted.
        self._head_bytes = -self._arriving
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._may_be_aborted()
        elif self.cycle.response_complete:
            # Also for the rest of a body that no route reads.
            self._wait(self._limits.idle_seconds)
            self._is_idle = True

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self._stalled or self.loop.call_later(self._limits.stalled_seconds, self._abandon)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def make_room(self) -> None:
        if self.transport is None:
            if self._handshake is not None:
                self._handshake.cancel()
        elif self._is_idle and not self.transport.is_closing():
            # The caller may still be reading the answer. The next time, the connection is aborted.
            self.transport.close()
            self._may_be_aborted()
        else:
            self.transport.abort()

    def _may_be_aborted(self) -> None:
        """Lets the connection be aborted to make room while it closes: its caller may read nothing of the answer, or
        never end TLS."""
        if not self._is_lost:
            self._open.waits(self)

    def _wait(self, seconds: float) -> None:
        """Waits some seconds for a head. During that time the connection may be closed to make room."""
        self._cancel_deadline()
        self._deadline = self.loop.call_later(seconds, self._give_up)
        self._open.waits(self)

    def _cancel_deadline(self) -> None:
        self._is_idle = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        if self._is_idle or self._head_bytes <= 0:
            self.transport.close()
        else:
            self._refuse(408, "too_slow", "the head of the request did not arrive in time")

    def _abandon(self) -> None:
        self._open.note("a caller who read nothing of its answer for too long was disconnected")
        self.transport.abort()

    def _refuse(self, status: int, code: str, detail: str) -> None:
        self._open.note(f"a connection is closed with {status}: {detail}")
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(written(problem(status, code, detail)))
        self.transport.close()
        self._may_be_aborted()
