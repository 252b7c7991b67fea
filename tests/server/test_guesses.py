"""A stranger without a key is bounded: guesses cost few reads, take a lane by address, and never a neighbour's turn."""

import asyncio
import secrets
from collections.abc import Sequence
from pathlib import Path

import httpx2
import pytest
from starlette.datastructures import Headers

from nextslot.domain import Key
from nextslot.errors import Away
from nextslot.server.app import Options
from nextslot.server.auth import lane_of_address
from nextslot.server.fair_shares import FairShares, ShareLimits
from nextslot.server.known_keys import MOST_AT_ONCE, PAUSE_SECONDS, KnownKeys, key_text

from .support import serving
from .test_18_neighbours import client_of

GUESSES = 400


async def test_hundreds_of_guesses_cost_few_reads_and_the_first_request_of_a_key_waits_for_none(tmp_path: Path) -> None:
    options, loop = Options(), asyncio.get_running_loop()
    async with serving(tmp_path, options) as server:
        _, text = await server.scheduler.keys.create("admin", ["admin"])
        async with client_of(server, text) as honest, httpx2.AsyncClient(
            base_url=server.client.base_url, timeout=60, limits=httpx2.Limits(max_connections=None)
        ) as stranger:  # fmt: skip
            before, began = options.known_keys.reads, loop.time()
            guesses = [
                asyncio.create_task(stranger.get("/api/jobs", headers={"X-API-Key": f"nsk_{secrets.token_hex(16)}"}))
                for _ in range(GUESSES)
            ]
            first = await honest.get("/api/jobs")
            statuses = {(await guess).status_code for guess in guesses}
            reads, took = options.known_keys.reads - before, loop.time() - began

    assert first.status_code == 200
    assert statuses == {401}
    assert reads <= 2 + took / PAUSE_SECONDS
    assert reads < GUESSES / 2


async def test_wrong_and_missing_keys_use_up_the_rate_of_their_address_and_not_that_of_a_key(tmp_path: Path) -> None:
    options = Options(shares=FairShares(ShareLimits(per_second=0.001)))
    async with serving(tmp_path, options) as server:
        _, text = await server.scheduler.keys.create("admin", ["admin"])
        _, other = await server.scheduler.keys.create("other", ["read"])

        wrong = [
            (await server.client.get("/api/jobs", headers=headers)).status_code
            for headers in ({"X-API-Key": "nsk_wrong"}, {}, {"Authorization": f"Bearer {secrets.token_hex()}"})
        ]
        async with client_of(server, text) as first, client_of(server, other) as second:
            known = [(await client.get("/api/jobs")).status_code for client in (first, second)]

    assert wrong == [401, 429, 429]
    assert known == [200, 200]


async def test_guesses_at_signed_links_use_up_the_rate_of_their_address_and_probes_do_not(tmp_path: Path) -> None:
    options = Options(shares=FairShares(ShareLimits(per_second=0.001)))
    async with serving(tmp_path, options) as server:
        paths = ("/signal/one", "/signal/two", "/health", "/ready", "/health")
        statuses = [(await server.client.get(path)).status_code for path in paths]

    assert statuses == [410, 429, 200, 200, 200]


async def test_an_error_of_the_store_reaches_every_caller_whose_key_was_looked_up() -> None:
    known = KnownKeys()

    async def away(digests: object) -> dict[str, Key]:
        raise Away("the store does not answer")

    answers = await asyncio.gather(*(known.find(f"key {n}", away) for n in range(5)), return_exceptions=True)

    assert [type(one) for one in answers] == [Away] * 5
    assert known.reads == 1


async def test_a_caller_who_hangs_up_takes_nobody_s_answer_with_it() -> None:
    known, asked = KnownKeys(), list[int]()

    async def none(digests: Sequence[str]) -> dict[str, Key]:
        asked.append(len(digests))
        return {}

    tasks = [asyncio.create_task(known.find("the same key", none)) for _ in range(3)]
    tasks += [asyncio.create_task(known.find(f"key {n}", none)) for n in range(MOST_AT_ONCE)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == [None] * (MOST_AT_ONCE + 2)
    assert asked == [MOST_AT_ONCE, 1]


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"X-API-Key": "one", "Authorization": "Bearer two"}, "one"),
        ({"Authorization": "Bearer two"}, "two"),
        ({"Authorization": "Basic two"}, None),
        ({}, None),
    ],
)
def test_which_key_a_request_carries(headers: dict[str, str], text: str | None) -> None:
    assert key_text(Headers(headers)) == text


def test_strangers_of_one_ipv6_network_share_a_lane() -> None:
    lanes = {
        host: lane_of_address({"client": (host, 1)}) for host in ("2001:db8::1", "2001:db8::2", "2001:db9::1", "::1")
    }

    assert lanes["2001:db8::1"] == lanes["2001:db8::2"]
    assert len(set(lanes.values())) == 3
    assert lane_of_address({"client": ("a name", 1)}) != lane_of_address({"client": None})
