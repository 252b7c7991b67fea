"""What callers of `/v1` get: the upstream's answer, or an error in the form of the protocol."""

import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from nextslot.extensions.gateway import gateway_service
from nextslot.extensions.gateway.settings import ModelSettings, UpstreamSettings
from nextslot.system.instant import Instant
from tests.extensions.gateway.fake_upstream import OWL, fake_upstream
from tests.extensions.gateway.support import HELLO, chat, directs, gateway
from tests.server.support import Server
from tests.support import eventually

# See `support.gateway`.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

CHAT = "/v1/chat/completions"


def client_of(server: Server, key: str = "any") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{str(server.client.base_url).rstrip('/')}/v1", api_key=key, max_retries=0, timeout=60
    )


async def raw(server: Server, head: str) -> str:
    """Sends the head of a request, and returns what comes before the connection ends, or within a second."""
    url = server.client.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(f"{head}\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n".encode())
    answer = (await reader.readuntil(b"}}")).decode()
    writer.close()
    await writer.wait_closed()
    return answer


async def said(stream: Any) -> str:
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


def form(answer: httpx2.Response) -> tuple[int, str, str | None, str | None]:
    """Returns status, type, param and code of an error, after checking its form."""
    error = answer.json()["error"]
    assert {"message", "type", "param", "code"} <= set(error), error
    assert len(error["message"]) > 10
    assert answer.headers["content-type"] == "application/json"
    return answer.status_code, error["type"], error["param"], error["code"]


# Answers.


async def test_the_official_client_gets_what_the_upstream_says(tmp_path: Path) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url) as server:
        client = client_of(server)

        whole = await client.chat.completions.with_raw_response.create(model="plain", messages=HELLO)  # type: ignore[arg-type]
        stream = await client.chat.completions.create(**chat("plain"), stream=True)
        options = {"include_usage": True}
        counted = await client.chat.completions.create(**chat("plain"), stream=True, stream_options=options)  # type: ignore[call-overload]
        text = await client.completions.create(model="plain", prompt="Once")
        vector = await client.embeddings.create(model="plain", input="Once", encoding_format="float")
        models = [one.id async for one in client.models.list()]
        one = await client.models.retrieve("plain")

        answer = whole.parse()
        assert (answer.choices[0].message.content, answer.usage.total_tokens) == (OWL, 7)  # type: ignore[union-attr]
        assert float(whole.headers["x-nextslot-waited"]) < 60
        assert whole.headers["x-ratelimit-remaining-requests"] == "9"
        assert await said(stream) == OWL
        assert [chunk.usage.total_tokens async for chunk in counted if chunk.usage] == [7]
        assert text.choices[0].text == OWL
        assert vector.data[0].embedding == [0.5, -0.25]
        assert {"plain", "odd", "429"} <= set(models)
        assert (one.id, one.owned_by) == ("plain", "fake")
        assert upstream.most_active == 1


async def test_tools_and_images_reach_the_upstream_unchanged_and_nothing_of_them_is_stored(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 3_000_000}}
    wanted = {
        "model": "plain",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "xyzzy " + OWL}, image]}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": [1, 2.5, None, True]}}}],
        "tool_choice": "auto",
        "seed": 2**60,
        "made_up": {"é": 1e-7},
    }
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url) as server:
        answer = await server.client.post(CHAT, json=wanted)
        [stored] = await directs(server)

        assert answer.status_code == 200, answer.text
        assert upstream.asked[0].body == wanted
        assert stored.params == {"model": "plain", "endpoint": "chat/completions", "upstream": "fake"}
        await eventually(lambda: not upstream.active)
        ended = await server.scheduler.direct(stored.direct_id)
        assert ended.result is None or ended.result["usage"]["total_tokens"] == 7
        assert not any(b"xyzzy" in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


async def test_odd_chunks_arrive_as_a_stream_that_the_client_reads(tmp_path: Path) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url) as server:
        assert await said(await client_of(server).chat.completions.create(**chat("odd"), stream=True)) == OWL
        raw = await server.client.post(CHAT, json=chat("odd", stream=True))

        assert raw.headers["content-type"].startswith("text/event-stream")
        assert raw.text.endswith("data: [DONE]\n\n"), "a client that waits for it does not hang"
        assert "\r" not in raw.text
        assert ": hello" in raw.text


async def test_an_emoji_that_is_split_between_two_chunks_arrives(tmp_path: Path) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url) as server:
        raw = await server.client.post(CHAT, json=chat("half-pairs", stream=True))

    chunks = [json.loads(line[6:]) for line in raw.text.split("\n\n") if line.startswith("data: {")]
    halves = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(halves).encode("utf-16", "surrogatepass").decode("utf-16") == "🦉"
    assert "error" not in raw.text
    assert not any("usage" in chunk for chunk in chunks), "which only the gateway has asked for"


async def test_a_name_of_its_own_and_a_resource_for_a_model(tmp_path: Path) -> None:
    models = {"owl": ModelSettings(upstream="fake", name="plain", resource="gpu", units=1)}
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url, models=models) as server:
        answer = await server.client.post(CHAT, json=chat("owl"))
        prefixed = await server.client.post(CHAT, json=chat("fake/plain"))
        listed = (await server.client.get("/v1/models")).json()["data"]
        described = [(await server.client.get(f"/v1/models/{name}")).json() for name in ("owl", "fake/plain")]

        assert [(one["id"], one["owned_by"]) for one in described] == [("owl", "fake"), ("fake/plain", "fake")]
        assert (answer.status_code, prefixed.status_code, upstream.models) == (200, 200, ["plain", "plain"])
        assert listed[0]["id"] == "owl"
        limits = (await server.client.get("/api/status")).text
        assert "gpu" in limits


async def test_a_key_goes_upstream_and_is_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_KEY", "sekret-1")
    async with fake_upstream() as upstream:
        settings = {"fake": UpstreamSettings(base_url=upstream.base_url, token_env="FAKE_KEY")}
        async with gateway(tmp_path, None, upstreams=settings) as server:
            good = await server.client.post(CHAT, json=chat("plain"), headers={"Authorization": "Bearer mine"})
            refused = await server.client.post(CHAT, json=chat("401"))
            monkeypatch.delenv("FAKE_KEY")
            unset = await server.client.post(CHAT, json=chat("plain"))

    assert good.status_code == 200
    assert upstream.asked[0].headers["authorization"] == "Bearer sekret-1"
    assert form(refused) == (502, "server_error", None, "upstream_error"), "it is not the caller's key that is wrong"
    assert "FAKE_KEY" in refused.text
    assert "sekret" not in refused.text
    assert form(unset)[0] == 502
    assert "FAKE_KEY" in unset.text


# What upstreams do wrong.


@pytest.mark.parametrize(
    ("model", "status", "code", "words"),
    [
        ("broken-body", 502, "upstream_error", "in the middle"),
        ("silent-end", 502, "upstream_error", "without an answer"),
        ("no-json", 502, "upstream_error", "not JSON: <html>oops"),
        ("never", 504, "upstream_timeout", "within 0.3 seconds"),
        ("429", 429, "rate_limit_exceeded", "slow down"),
        ("307", 502, "upstream_error", "give that address"),
        ("500", 500, None, "Internal Server Error"),
        ("400", 400, None, "too long"),
    ],
)
async def test_a_plain_caller_gets_a_status_and_a_sentence(
    tmp_path: Path, model: str, status: int, code: str | None, words: str
) -> None:
    short: dict[str, Any] = {"first_byte_seconds": 0.3, "between_seconds": 0.3}
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url, **short) as server:
        answer = await server.client.post(CHAT, json=chat(model))
        await eventually(lambda: not upstream.active)
        after = await server.client.post(CHAT, json=chat("plain"))

        assert (form(answer)[0], form(answer)[3]) == (status, code)
        assert words in answer.json()["error"]["message"]
        assert "the upstream fake" in answer.text
        assert after.status_code == 200, "the slot is free again"
        assert [one.status for one in await directs(server)][-1] == "FAILED"
    if model == "429":
        assert answer.headers["retry-after"] == "7"


@pytest.mark.parametrize("model", ["429-ms", "429-anthropic", "429-ietf", "429-ietf-fields"])
async def test_every_header_of_a_quota_reaches_its_hold(tmp_path: Path, model: str) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url) as server:
        answer = await server.client.post(CHAT, json=chat(model))
        now = server.scheduler._clock.now()
        refused = await server.client.post(CHAT, json=chat("plain"), headers={"X-Nextslot-Wait": "0"})
        [held] = (await server.client.get("/api/status")).json()["held"]

    assert (answer.status_code, refused.status_code) == (429, 503)
    assert f"the quota of 'fake' is used up until {held['quota_until']}" in refused.json()["error"]["message"]
    assert held["resource"] == "fake"
    until = Instant.of(datetime.fromisoformat(held["quota_until"]))
    assert 1200 < (until - now) / 1_000_000 < 1236
    assert any("reset" in name or name in ("retry-after-ms", "ratelimit") for name in answer.headers)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("broken", "in the middle of its answer"),
        ("held-in-the-middle", "did not go on with its answer within 0.3 seconds"),
        ("no-json", "not JSON"),
        ("error-in-the-stream", "out of memory"),
    ],
)
async def test_a_stream_that_has_begun_ends_with_an_error_in_the_protocols_form(
    tmp_path: Path, model: str, words: str
) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url, between_seconds=0.3) as server:
        raw = await server.client.post(CHAT, json=chat(model, stream=True))
        stream = await client_of(server).chat.completions.create(**chat(model), stream=True)
        with pytest.raises(openai.APIError, match=words):
            await said(stream)

        *_, last, _ = raw.text.split("\n\n")
        assert raw.status_code == 200
        assert words in json.loads(last.removeprefix("data: "))["error"]["message"]
        assert all(json.loads(one[6:]) for one in raw.text.split("\n\n") if one.startswith("data: ")), "whole events"
        await eventually(lambda: not upstream.active)


@pytest.mark.parametrize("model", ["429", "500", "400", "no-stream", "silent-end", "never"])
async def test_a_stream_that_has_not_begun_has_the_errors_status(tmp_path: Path, model: str) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url, first_byte_seconds=0.3) as server:
        answer = await server.client.post(CHAT, json=chat(model, stream=True))

        wanted = {"429": 429, "500": 500, "400": 400, "never": 504}
        assert form(answer)[0] == wanted.get(model, 502)


async def test_an_upstream_that_is_down_is_named_at_once_and_used_again_at_once(tmp_path: Path) -> None:
    async with fake_upstream() as upstream:
        port = int(upstream.base_url.rpartition(":")[2])
    async with gateway(tmp_path, upstream.base_url) as server, asyncio.timeout(60):
        down = [await server.client.post(CHAT, json=chat("plain")) for _ in range(8)]
        listed = await server.client.get("/v1/models")
        async with fake_upstream(port):
            up = await server.client.post(CHAT, json=chat("plain"))

    assert {form(one)[0] for one in down} == {503}
    assert all("does not answer" in one.text and "retry-after" in one.headers for one in down)
    assert listed.json() == {"object": "list", "data": []}
    assert up.status_code == 200, "the hold of its resource has ended"


async def test_who_misspells_a_model_while_an_upstream_is_down_reads_which_models_there_are(tmp_path: Path) -> None:
    async with fake_upstream() as gone:
        pass
    async with fake_upstream() as upstream:
        urls = {"gone": gone.base_url, "fake": upstream.base_url}
        upstreams = {name: UpstreamSettings(base_url=url) for name, url in urls.items()}
        async with gateway(tmp_path, None, upstreams=upstreams) as server:
            answer = await server.client.post(CHAT, json=chat("plian"))

    assert form(answer)[0] == 503, "the upstream that is down may have it"
    assert "the upstream gone" in answer.text
    assert "there are these models: 307, 400" in answer.text


# What callers do wrong.


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "words"),
    [
        (CHAT, {"model": "plain", "messages": []}, 400, "messages", "messages is empty"),
        (CHAT, {"messages": HELLO}, 400, "model", "model is missing"),
        (CHAT, {"model": 7, "messages": HELLO}, 400, "model", "it must be a text"),
        (CHAT, {"model": "", "messages": HELLO}, 400, "model", "1 to 200"),
        (CHAT, {"model": "plain"}, 400, "messages", "messages is missing"),
        (CHAT, {"model": "plain", "messages": "hi"}, 400, "messages", "a list of messages"),
        (CHAT, {"model": "plain", "messages": ["hi"]}, 400, "messages.0", "an object"),
        (CHAT, {"model": "plain", "messages": [{"content": "hi"}]}, 400, "messages.0.role", "a text such as user"),
        (CHAT, {"model": "plain", "messages": [{"role": "user", "content": 5}]}, 400, "messages.0.content", "parts"),
        (CHAT, chat("plain", stream="yes"), 400, "stream", "true or false"),
        (CHAT, chat("plain", max_tokens="5"), 400, "max_tokens", "a whole number"),
        (CHAT, chat("plain", temperature=True), 400, "temperature", "a number"),
        (CHAT, chat("plain", tools={}), 400, "tools", "a list of objects"),
        (CHAT, chat("plain", stop=[1]), 400, "stop", "a list of texts"),
        (CHAT, chat("nobody"), 404, "model", "there are: "),
        (CHAT, [], 400, None, "JSON object"),
        (CHAT, None, 400, None, "no body"),
        ("/v1/completions", {"model": "plain"}, 400, "prompt", "prompt is missing"),
        ("/v1/completions", {"model": "plain", "prompt": 5}, 400, "prompt", "a text or a list"),
        ("/v1/embeddings", {"model": "plain", "input": []}, 400, "input", "input is empty"),
        ("/v1/embeddings", {"model": "plain", "input": "x", "stream": True}, 400, "stream", "not streamed"),
    ],
)
async def test_a_wrong_request_gets_a_sentence_that_names_the_field(
    tmp_path: Path, path: str, body: Any, status: int, param: str | None, words: str
) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url) as server:
        content = b"" if body is None else json.dumps(body).encode()
        answer = await server.client.post(path, content=content, headers={"Content-Type": "application/json"})

        assert (form(answer)[0], form(answer)[2]) == (status, param), answer.text
        assert words in answer.json()["error"]["message"]
        assert await directs(server) == []


async def test_refusals_of_the_server_itself_have_the_protocols_form_below_v1_only(tmp_path: Path) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url) as server:
        post, get, kind = server.client.post, server.client.get, {"Content-Type": "application/json"}

        assert form(await get("/v1/nothing"))[0::3] == (404, "not_found")
        assert form(await get(CHAT))[0::3] == (405, "method_not_allowed")
        assert form(await get("/v1/models/nobody"))[0::3] == (404, "model_not_found")
        assert form(await post(CHAT, content=b"{", headers=kind))[0::3] == (400, "malformed")
        assert form(await post(CHAT, content=b"x", headers={"Content-Type": "text/plain"}))[0] == 415
        assert form(await post(CHAT, json=chat("plain"), headers={"Origin": "http://evil.example"}))[0] == 403
        assert form(await post(CHAT, json=chat("plain"), headers={"X-Nextslot-Wait": "soon"}))[0] == 400
        too_large = await raw(server, f"POST {CHAT} HTTP/1.1\r\nContent-Length: {64 * 1024 * 1024 + 1}")
        assert too_large.startswith("HTTP/1.1 413")
        assert '"code":"too_large"' in too_large
        assert (await get("/api/nothing")).headers["content-type"] == "application/problem+json"

        _, admin = await server.scheduler.keys.create("root", ["admin"])
        assert form(await post(CHAT, json=chat("plain")))[0::3] == (401, "invalid_api_key")
        _, reader = await server.scheduler.keys.create("reader", ["read"])
        for_reader = {"Authorization": f"Bearer {reader}"}
        assert form(await post(CHAT, json=chat("plain"), headers=for_reader))[0:2] == (403, "permission_error")
        with pytest.raises(openai.AuthenticationError, match="not known"):
            await client_of(server, "wrong").models.list()
        assert (await client_of(server, admin).chat.completions.create(**chat("plain"))).choices


async def test_the_office_of_a_request_is_that_of_its_key(tmp_path: Path) -> None:
    offices = {"ada": "research"}
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url, offices=offices) as server:
        for office_id in ("research", "batch"):
            await server.scheduler.offices.create(office_id)
        keys = server.scheduler.keys
        _, root = await keys.create("root", ["admin"])
        _, ada = await keys.create("ada", ["submit"])
        _, bob = await keys.create("bob", ["submit"], office_id="batch")
        for key in (root, ada, bob):
            await client_of(server, key).chat.completions.create(**chat("plain"))

        found = [(one.office_id, one.created_by) for one in await directs(server)]
        assert found == [("batch", "bob"), ("research", "ada"), ("default", "root")]


# Jobs.


async def test_a_job_of_the_type_asks_a_model_too_and_its_answer_is_the_result(tmp_path: Path) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url) as server:
        submit, policy = server.scheduler.submit, {"max_attempts": 0}
        good = await submit("model_request", {"model": "plain", "body": {"messages": HELLO}}, retry_policy=policy)
        bad = await submit("model_request", {"model": "400", "body": {"messages": HELLO}}, retry_policy=policy)
        empty = await submit("model_request", {"model": "plain"}, retry_policy=policy)
        wrong = await server.client.post(
            "/api/jobs", json={"job_type": "model_request", "params": {"model": "plain", "body": {"messages": []}}}
        )
        ended = [await server.scheduler.wait(one.job_id) for one in (good, bad, empty)]

        assert ended[0].result["choices"][0]["message"]["content"] == OWL
        assert [one.status for one in ended] == ["COMPLETED", "FAILED", "FAILED"]
        assert "too long" in (ended[1].run.error or "")  # type: ignore[union-attr]
        assert "params.body" in (ended[2].run.error or "")  # type: ignore[union-attr]
        assert wrong.json()["errors"][0]["field"] == "params.body.messages"


async def test_metrics_count_the_answers_by_model_and_status(tmp_path: Path) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url) as server:
        await server.client.post(CHAT, json=chat("plain"))
        await server.client.post(CHAT, json=chat("500"))

        shown = (await server.client.get("/metrics")).text
        assert 'nextslot_gateway_answers_total{model="plain",status="200"} 1.0' in shown
        assert 'nextslot_gateway_answers_total{model="500",status="500"} 1.0' in shown


async def test_metrics_of_made_up_models_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_service, "MOST_COUNTED", 1)
    async with fake_upstream() as upstream:
        any_model = {"fake": UpstreamSettings(base_url=upstream.base_url, models=["*"])}
        async with gateway(tmp_path, None, upstreams=any_model) as server:
            for model in ("plain", "plain", "400", "429"):
                await server.client.post(CHAT, json=chat(model))

            shown = (await server.client.get("/metrics")).text

    counted = {line for line in shown.splitlines() if line.startswith("nextslot_gateway_answers_total{")}
    assert counted == {
        'nextslot_gateway_answers_total{model="plain",status="200"} 2.0',
        'nextslot_gateway_answers_total{model="(others)",status="400"} 1.0',
        'nextslot_gateway_answers_total{model="(others)",status="429"} 1.0',
    }
