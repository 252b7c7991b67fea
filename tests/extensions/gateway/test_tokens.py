"""The tokens of requests: streams are asked for them, and rates count those of requests that ended early too."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from nextslot.domain.limits import Rate, RateUnit
from nextslot.extensions.gateway.settings import UpstreamSettings
from nextslot.store.tables import rates
from tests.extensions.gateway.fake_upstream import fake_upstream
from tests.extensions.gateway.support import chat, directs, gateway
from tests.server.support import Server
from tests.support import eventually

# See `support.gateway`.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

CHAT = "/v1/chat/completions"
USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
# A token a minute: what a test lasts refills less than half of one.
SLOW = {"resource:fake": {RateUnit.TOKENS: Rate(per_minute=1, burst=1000)}}


async def counted(server: Server) -> int:
    """Returns how many tokens the rate of the resource has counted."""
    await eventually(lambda: not server.scheduler._runtime.direct.callers)
    found = await server.scheduler._access.read(lambda tx: rates.get_many(tx, {"resource:fake"}))
    bucket = found.get(("resource:fake", RateUnit.TOKENS))
    return 0 if bucket is None else round((bucket.full_at - server.scheduler._clock.now()) / 60_000_000)


def chunks(text: str) -> list[Any]:
    return [json.loads(one[6:]) for one in text.split("\n\n") if one.startswith("data: {")]


@pytest.mark.parametrize("model", ["plain", "usage-null"])
async def test_a_stream_is_asked_for_its_tokens_and_its_client_does_not_see_that(tmp_path: Path, model: str) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url, rates=SLOW) as server:
        answer = await server.client.post(CHAT, json=chat(model, stream=True))
        tokens, [stored] = await counted(server), await directs(server)

    assert upstream.asked[0].body["stream_options"] == {"include_usage": True}
    found = chunks(answer.text)
    assert not any("usage" in one for one in found), found
    assert all(one["choices"] or "filtered" in one for one in found), "nor the chunk that had only that"
    assert answer.text.endswith("data: [DONE]\n\n")
    assert stored.result == {"model": model, "usage": USAGE}
    assert tokens == 7


@pytest.mark.parametrize("options", [{"include_usage": True}, {"include_usage": True, "other": 1}])
async def test_a_client_who_asks_for_them_reads_what_the_upstream_sends(
    tmp_path: Path, options: dict[str, object]
) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url) as server:
        answer = await server.client.post(CHAT, json=chat("usage-null", stream=True, stream_options=options))

    assert upstream.asked[0].body["stream_options"] == options
    assert [one["usage"] for one in chunks(answer.text)] == [None, None, None, USAGE]


async def test_other_options_of_a_stream_are_kept(tmp_path: Path) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url) as server:
        await server.client.post(CHAT, json=chat("plain", stream=True, stream_options={"other": 1}))

    assert upstream.asked[0].body["stream_options"] == {"other": 1, "include_usage": True}


async def test_an_upstream_that_is_not_asked_gets_the_body_as_it_is_and_chunks_count(tmp_path: Path) -> None:
    async with fake_upstream() as upstream:
        quiet = {"fake": UpstreamSettings(base_url=upstream.base_url, ask_usage=False)}
        async with gateway(tmp_path, None, rates=SLOW, upstreams=quiet) as server:
            body = chat("plain", 400 * "x", stream=True)
            await server.client.post(CHAT, json=body)
            tokens = await counted(server)

    assert upstream.asked[0].body == body
    assert tokens == 103, "a token for four characters of the request, and one for each of three chunks"


@pytest.mark.parametrize("model", ["held-in-the-middle", "broken", "error-in-the-stream"])
async def test_a_stream_that_ends_early_counts_what_it_has_used_so_far(tmp_path: Path, model: str) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url, rates=SLOW) as server:
        body = chat(model, 400 * "x", stream=True)
        async with asyncio.timeout(60), server.client.stream("POST", CHAT, json=body) as answer:
            await anext(aiter(answer.aiter_lines()))
        tokens = await counted(server)

    assert tokens == 101


async def test_impossible_numbers_of_tokens_count_nothing_and_the_slot_is_free_again(tmp_path: Path) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url, rates=SLOW) as server:
        answers = [await server.client.post(CHAT, json=chat("impossible-usage")) for _ in range(2)]
        tokens, stored = await counted(server), await directs(server)

    assert [answer.status_code for answer in answers] == [200, 200]
    assert [one.status for one in stored] == ["COMPLETED", "COMPLETED"]
    assert tokens == 0


async def test_a_hang_up_before_the_answer_counts_the_request_and_a_refusal_counts_nothing(tmp_path: Path) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url, rates=SLOW) as server:
        for model in ("400", "500", "no-stream"):
            await server.client.post(CHAT, json=chat(model, 400 * "x", stream=True))
        before = await counted(server)
        parts = [{"type": "text", "text": 400 * "x"}, {"type": "image_url", "image_url": {"url": 4000 * "y"}}]
        body = {"model": "never", "messages": [{"role": "user", "content": parts}]}
        caller = asyncio.create_task(server.client.post(CHAT, json=body))
        await eventually(lambda: upstream.active)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        after = await counted(server)

    assert (before, after) == (0, 100)
