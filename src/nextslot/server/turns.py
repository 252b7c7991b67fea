"""Lets only some requests continue in each turn of the event loop, so that no turn takes long.

A group commit answers up to 1,000 callers at once, and all of them may send the next request at once. Without this
layer one turn would serve all of them, and a request that needs three turns would wait three times as long.
"""

import asyncio
from collections import deque

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .auth import lane_of_address
from .known_keys import KnownKeys, key_text
from .request_log import PROBE_ENDS

# How many requests, and how many answers, begin in one turn: some ms of work. With 200 callers and 500 streams, the
# longest 1 % of turns took 29 ms of processor time, and 56 ms without this layer (one run of bench/health.py each).
TOGETHER = 16


class Turns:
    def __init__(self, app: ASGIApp, known: KnownKeys) -> None:
        self._app = app
        self._known = known
        # The waiting requests by lane: lanes take turns, one request each. A key that was not accepted lately counts
        # for nothing, else a stranger had a turn for each key that it invents.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        # How many requests continued in this turn; None while there are no requests, and turns are not counted.
        self._gone_on: int | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].endswith(PROBE_ENDS):
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                await self._turn(scope)
            await send(message)

        await self._turn(scope)
        await self._app(scope, receive, answer)

    async def _turn(self, scope: Scope) -> None:
        """Returns in the turn in which the request may continue. Callers take turns; each caller's requests keep their
        order."""
        if self._gone_on is None:
            self._gone_on = 0
            asyncio.get_running_loop().call_soon(self._next_turn)
        if self._gone_on < TOGETHER and not self._waiting:
            self._gone_on += 1
            return
        may_go_on = asyncio.get_running_loop().create_future()
        caller = self._known.lane(key_text(Headers(scope=scope))) or lane_of_address(scope)
        self._waiting.setdefault(caller, deque()).append(may_go_on)
        await may_go_on

    def _next_turn(self) -> None:
        count = 0
        while self._waiting and count < TOGETHER:
            caller = next(iter(self._waiting))
            own = self._waiting.pop(caller)
            may_go_on = own.popleft()
            if own:
                self._waiting[caller] = own
            if not may_go_on.done():  # If the future is done, its caller has disconnected.
                may_go_on.set_result(None)
                count += 1
        self._gone_on = count or None
        if count:
            asyncio.get_running_loop().call_soon(self._next_turn)
