"""How language models are asked: names, resources, and every way in which a server can fail, on real sockets."""

import asyncio
import json
import socket
from contextlib import aclosing
from typing import Any

import pytest

from nextslot.errors import Invalid
from nextslot.executors.run_context import Fail
from nextslot.extensions.stories.embedded_model import EmbeddedModel
from nextslot.extensions.stories.language_models import (
    DEFAULT_MODEL,
    LanguageModels,
    LlmConfig,
    ProviderConfig,
    model_name,
    resource_for,
)
from nextslot.extensions.stories.providers import GenerateOptions, RequestTimeouts
from tests.extensions.stories import ollama_server as ollama

REMOTE = LlmConfig(providers={"acme": ProviderConfig("https://llm.example/v1", "ACME_TOKEN")})


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, f"ollama:{DEFAULT_MODEL}"),
        ("ollama:qwen3:30b", "ollama:qwen3:30b"),
        ("qwen3:30b", "ollama:qwen3:30b"),
        ("llama3", "ollama:llama3"),
        ("acme:large-1", "acme:large-1"),
        ("other:large-1", "ollama:other:large-1"),
    ],
)
def test_a_model_name_tells_who_answers_for_it(wanted: str | None, expected: str) -> None:
    assert str(model_name(wanted, REMOTE)) == expected


def test_CON_002_the_resource_follows_from_the_model() -> None:
    assert resource_for({}, REMOTE) == {"ollama": 1}
    assert resource_for({"model": None}, REMOTE) == {"ollama": 1}
    assert resource_for({"model": "qwen3:30b"}, REMOTE) == {"ollama": 1}
    assert resource_for({"model": "acme:large-1"}, REMOTE) == {"remote": 1, "remote:acme": 1}
    assert resource_for({}, LlmConfig(default_model="acme:x", providers=REMOTE.providers)) == {
        "remote": 1,
        "remote:acme": 1,
    }


def test_a_provider_cannot_take_ollamas_name() -> None:
    with pytest.raises(Invalid, match="is built in; choose another name"):
        LlmConfig(providers={"ollama": ProviderConfig("http://127.0.0.1:1")})


def test_OLLAMA_BASE_URL_says_where_ollama_is() -> None:
    assert LlmConfig.from_environment({"OLLAMA_BASE_URL": "http://gpu:1"}).ollama_base_url == "http://gpu:1"
    assert LlmConfig.from_environment({}).ollama_base_url == "http://127.0.0.1:11434"


async def test_an_answer_comes_in_the_pieces_that_the_server_sends() -> None:
    async with ollama.scripted(ollama.tells("Once ", "upon ", "a time")) as server:
        assert await ask(server.base_url) == ["Once ", "upon ", "a time"]

    asked = server.calls[0]
    assert (asked.method, asked.path) == ("POST", "/api/chat")
    assert asked.body["model"] == "big"
    assert asked.body["stream"] is True
    assert asked.body["options"]["num_predict"] == 77
    assert [message["role"] for message in asked.body["messages"]] == ["system", "user"]


NDJSON_CUT = '{"message": {"content": "Once"}, "done": false}\n'

FAILURES: dict[str, tuple[ollama.Reply, str, str]] = {
    "a missing model": (
        ollama.refuses(404, '{"error": "model \'big\' not found"}'),
        "invalid",
        r"has no model 'big' \(for Ollama: ollama pull big\)",
    ),
    "a cut connection": (ollama.cuts_the_connection, "unavailable", "cut the connection in the middle"),
    "an early end": (ollama.says(NDJSON_CUT), "unavailable", "cut the connection in the middle"),
    "no answer": (ollama.hangs_up_at_once, "unavailable", "closed the connection without an answer"),
    "a 500": (ollama.refuses(500, '{"error": "llama runner died"}'), "error", "answered 500: llama runner died"),
    "a 503": (ollama.refuses(503, "busy"), "unavailable", "is not ready: 503, busy"),
    "a 429": (ollama.refuses(429, "later"), "quota", "refused the request: its quota is used up, later"),
    "a 400": (ollama.refuses(400, "{}"), "invalid", "answered 400"),
    "a 401": (ollama.refuses(401, "who?"), "permission", "refused our token: 401"),
    "a redirect": (ollama.refuses(302, ""), "invalid", "answered 302: nothing more was said"),
    "an empty answer": (ollama.tells(), "error", "empty answer"),
    "a blank answer": (ollama.tells("  ", "\n"), "error", "empty answer"),
    "no JSON": (ollama.says("<html>Welcome</html>\n"), "error", "not JSON: <html>Welcome</html>"),
    "no object": (ollama.says("[1]\n"), "error", "not a JSON object"),
    "an error in the stream": (
        ollama.says(NDJSON_CUT + '{"error": "out of memory"}\n'),
        "error",
        "reported an error: out of memory",
    ),
    "endless text": (
        ollama.goes_on_for_ever('{"message": {"content": "and then "}, "done": false}\n'),
        "error",
        "stopped after 5,000 characters",
    ),
    "endless nothing": (
        ollama.goes_on_for_ever('{"message": {"content": ""}, "done": false}\n'),
        "error",
        "did not come to an end: stopped after",
    ),
    "an endless line": (ollama.goes_on_for_ever("x" * 10_000), "error", "did not come to an end: stopped after"),
    "a slow first byte": (ollama.says_nothing, "unavailable", "did not begin to answer within 0.5 seconds"),
    "a stalled stream": (ollama.talks_and_waits("Once"), "unavailable", "did not go on with its answer within 0.3"),
}


@pytest.mark.parametrize("case", FAILURES)
async def test_spec_5_24_each_way_to_fail_has_its_own_message_and_kind(case: str) -> None:
    reply, kind, message = FAILURES[case]

    async with ollama.scripted(reply) as server:
        with pytest.raises(Fail, match=message) as failed:
            await ask(server.base_url, IMPATIENT if "within" in message else BOUNDED)

        assert failed.value.kind == kind
        assert server.base_url in str(failed.value) or "the model" in str(failed.value)


async def test_spec_5_24_a_refused_connection_names_the_address_and_the_extra() -> None:
    url = f"http://127.0.0.1:{unused_port()}"

    with pytest.raises(Fail, match="no Ollama answers at " + url) as failed:
        await ask(url, embedded=NotInstalled())

    assert "the extra local-llm is not installed" in str(failed.value)
    assert failed.value.kind == "unavailable"


async def test_the_embedded_model_does_not_stand_in_for_another_one() -> None:
    with pytest.raises(Fail, match=f"the embedded model is {DEFAULT_MODEL}, not big") as failed:
        await ask(f"http://127.0.0.1:{unused_port()}", embedded=Installed())

    assert failed.value.kind == "unavailable"


async def test_closing_the_iterator_hangs_up() -> None:
    async with ollama.scripted(ollama.talks_and_waits("Once")) as server:
        models = LanguageModels(LlmConfig(server.base_url))
        async with aclosing(models.generate(models.name("big"), "Tell me")) as chunks:
            assert await anext(chunks) == "Once"

        async with asyncio.timeout(5):
            await server.hung_up.wait()


async def test_cancelling_the_task_hangs_up() -> None:
    async with ollama.scripted(ollama.says_nothing) as server:
        asking = asyncio.ensure_future(ask(server.base_url))
        await server.asked.wait()

        asking.cancel()

        async with asyncio.timeout(5):
            await server.hung_up.wait()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_the_probe_tells_whether_ollama_answers() -> None:
    async with ollama.scripted(ollama.refuses(200, '{"version": "0.9"}')) as server:
        assert await LanguageModels(LlmConfig(server.base_url), NotInstalled()).answers()
    assert not await LanguageModels(LlmConfig(server.base_url), NotInstalled()).answers()
    assert await LanguageModels(LlmConfig(server.base_url), Installed()).answers()


async def test_an_openai_compatible_server_is_asked_with_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_TOKEN", "secret-1234")
    first, last = event(delta={"content": "Once"}), event(delta={}, finish_reason="stop")

    async with ollama.scripted(ollama.says(f": hello\n\n{first}{last}data: [DONE]\n\n")) as server:
        assert await ask_acme(server.base_url + "/v1") == ["Once"]

    assert server.calls[0].path == "/v1/chat/completions"
    assert server.calls[0].headers["authorization"] == "Bearer secret-1234"
    assert server.calls[0].body["model"] == "large"


async def test_spec_18_8_a_token_never_appears_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_TOKEN", "secret-1234")
    replies = [
        ollama.refuses(401, '{"error": {"message": "wrong token: Bearer secret-1234"}}'),
        ollama.says("x" * 595 + "secret-1234\n"),
        ollama.says('data: {"error": "no: secret-1234"}\n\n'),
    ]

    for reply in replies:
        async with ollama.scripted(reply) as server:
            with pytest.raises(Fail) as failed:
                await ask_acme(server.base_url)

        assert "secr" not in str(failed.value)
    assert "secret-1234" not in repr(REMOTE)


async def test_spec_18_8_a_password_in_an_address_never_appears_in_an_error() -> None:
    with pytest.raises(Fail, match=r"no Ollama answers at http://127\.0\.0\.1:") as failed:
        await ask(f"http://me:hidden@127.0.0.1:{unused_port()}", embedded=NotInstalled())

    assert "hidden" not in str(failed.value)


async def test_a_provider_without_its_token_says_which_variable_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACME_TOKEN", raising=False)

    with pytest.raises(Fail, match="needs a token in the environment variable ACME_TOKEN") as failed:
        await ask_acme("http://127.0.0.1:1")

    assert failed.value.kind == "permission"


async def test_an_openai_stream_that_ends_early_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_TOKEN", "secret-1234")

    async with ollama.scripted(ollama.says(event(delta={"content": "Once"}))) as server:
        with pytest.raises(Fail, match=r"acme at .* cut the connection in the middle") as failed:
            await ask_acme(server.base_url)

    assert failed.value.kind == "unavailable"


async def test_an_address_that_is_none_is_said_to_be_none() -> None:
    with pytest.raises(Fail, match="not an address") as failed:
        await ask("gopher://model")

    assert failed.value.kind == "invalid"


class NotInstalled(EmbeddedModel):
    is_installed = False


class Installed(EmbeddedModel):
    is_installed = True


BOUNDED = RequestTimeouts(max_stream_bytes=200_000)
IMPATIENT = RequestTimeouts(first_byte_seconds=0.5, between_seconds=0.3)


async def ask(base_url: str, timeouts: RequestTimeouts = BOUNDED, embedded: EmbeddedModel | None = None) -> list[str]:
    models = LanguageModels(LlmConfig(base_url, timeouts=timeouts), embedded)
    options = GenerateOptions(max_tokens=77, max_characters=5000)
    return [chunk async for chunk in models.generate(models.name("big"), "Tell me", "You tell", options)]


async def ask_acme(base_url: str) -> list[str]:
    models = LanguageModels(LlmConfig(providers={"acme": ProviderConfig(base_url, "ACME_TOKEN")}))
    return [chunk async for chunk in models.generate(models.name("acme:large"), "Tell me")]


def event(**choice: Any) -> str:
    return f"data: {json.dumps({'choices': [choice]})}\n\n"


def unused_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
