"""A turn of the event loop is short: a few requests continue at a time, in their order, and probes wait for none."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from nextslot.server.known_keys import KnownKeys
from nextslot.server.turns import TOGETHER, Turns

MANY = 5 * TOGETHER

Sent = Sequence[tuple[bytes, bytes]]


def test_in_one_turn_only_so_many_requests_begin_or_are_answered() -> None:
    app = App()
    asyncio.run(app.serve(MANY))

    assert sorted(app.begun.values()) == sorted(app.answered.values()) == sorted([*range(MANY)])
    assert max(app.per_turn) <= TOGETHER
    assert [*app.begun.values()] == [*range(MANY)]


def test_a_probe_begins_at_once_whatever_waits() -> None:
    app = App()
    asyncio.run(app.serve(MANY, probe="/health"))

    assert app.order.index("/health") < 2 * TOGETHER


@pytest.mark.parametrize("many", ["one known key", "one known key and invented ones", "invented keys"])
async def test_a_caller_does_not_wait_for_all_requests_of_another(many: str) -> None:
    app = App()
    for text in ("many", "one"):
        app.known.accepted(text, f"key {text}")

    def headers(number: int) -> Sent:
        known, invented = (b"x-api-key", b"many"), (b"authorization", b"Bearer %d" % number)
        return {"one known key": [known], "invented keys": [invented]}.get(many, [invented, known])

    tasks = [asyncio.create_task(app.request(number, headers(number))) for number in range(MANY)]
    tasks.append(asyncio.create_task(app.request(MANY, [(b"x-api-key", b"one")])))
    await asyncio.gather(*tasks)

    assert [*app.begun.values()].index(MANY) <= TOGETHER + 1


async def test_a_caller_who_hangs_up_while_it_waits_holds_up_nobody() -> None:
    app = App()
    tasks = [asyncio.create_task(app.request(number)) for number in range(MANY)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    async with asyncio.timeout(30):
        await asyncio.gather(*tasks, return_exceptions=True)

    assert set(app.answered.values()) >= set(range(1, MANY, 2))


class App:
    """An application that notes in which turn each request begins and is answered."""

    def __init__(self) -> None:
        self.known = KnownKeys()
        self._turns = Turns(self, self.known)
        self.begun: dict[int, int] = {}
        self.answered: dict[int, int] = {}
        self.order: list[str] = []
        self.per_turn: list[int] = [0]

    async def serve(self, count: int, probe: str | None = None) -> None:
        ticking = asyncio.create_task(self._tick())
        tasks = [asyncio.create_task(self.request(number)) for number in range(count)]
        if probe is not None:
            tasks.append(asyncio.create_task(self._turns({"type": "http", "path": probe}, nothing, self._sent)))
        await asyncio.gather(*tasks)
        ticking.cancel()

    async def request(self, number: int, headers: Sent = ()) -> None:
        scope = {
            "type": "http",
            "path": f"/api/jobs/{number}",
            "number": number,
            "headers": headers,
        }

        async def send(message: Any) -> None:
            self.answered[len(self.answered)] = number
            self.per_turn[-1] += 1

        await self._turns(scope, nothing, send)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.order.append(scope["path"])
        if "number" in scope:
            self.begun[len(self.begun)] = scope["number"]
            self.per_turn[-1] += 1
        await send({"type": "http.response.start"})

    async def _sent(self, message: Any) -> None:
        """Returns the probe's answer."""

    async def _tick(self) -> None:
        while True:
            self.per_turn.append(0)
            await asyncio.sleep(0)


async def nothing() -> Any:
    raise AssertionError("nobody reads here")
