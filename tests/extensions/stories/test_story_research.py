"""Stories that use research, in a chosen style, by a model whose provider is configured."""

import json
from pathlib import Path
from typing import Any

import pytest

from nextslot import NewJob, config
from nextslot.errors import Invalid
from nextslot.extensions.stories.language_models import LanguageModels, LlmConfig, ProviderConfig
from nextslot.extensions.stories.story_service import StoryService
from nextslot.extensions.stories.styles import Style
from nextslot.scheduler_from_config import compose
from tests.extensions.legacy.old_service import CARD, LIGHTHOUSE, OTHER, RESEARCH, STORY, TOPIC, old_service
from tests.extensions.stories import ollama_server as ollama
from tests.server.support import Server

SUMMARY = "Tides turn turbines. The moon pays for it."


async def ended(server: Server, job_id: str) -> Any:
    return await server.scheduler.wait(job_id)


def prompts(model: ollama.ScriptedOllama) -> list[str]:
    return [call.body["messages"][-1]["content"] for call in model.calls]


async def test_a_story_whose_prerequisite_is_research_is_told_from_its_card(tmp_path: Path) -> None:
    async with old_service(tmp_path, RESEARCH, STORY) as (server, model):
        research, story = await server.scheduler.submit_many(
            [
                NewJob(job_type="research", key="tides", params={"topic": TOPIC}),
                NewJob(job_type="story", depends_on=["tides"], params={"topic": "the sea"}),
            ]
        )
        done = await ended(server, story.job_id)

        card = await server.scheduler.run_of(research.job_id)
        assert card is not None
        assert done.status == "COMPLETED", done
        assert SUMMARY in prompts(model)[1]
        assert "turbine" in prompts(model)[1]
        assert done.result["research"] == [{"card_id": card.run_id, "title": CARD["title"]}]
        about = next(one for one in done.run.artifacts if one.name.endswith(".json"))
        assert json.loads((tmp_path / about.path).read_text())["research"] == done.result["research"]


async def test_a_story_names_a_card_of_the_library(tmp_path: Path) -> None:
    async with old_service(tmp_path, RESEARCH, STORY) as (server, model):
        made = (await server.client.post("/research/run", json={"topic": TOPIC})).json()
        told = (await server.client.post("/story/generate", json={"research_card": made["card_id"]})).json()
        missing = await ended(server, (await server.scheduler.submit("story", {"research_card": "none"})).job_id)

        assert told["success"], told
        assert SUMMARY in prompts(model)[1]
        assert (missing.status, missing.run.failure_kind) == ("FAILED", "invalid")
        assert "there is no research card 'none'" in missing.run.error


async def test_auto_research_asks_the_research_model_first_and_uses_a_card_that_is_there(tmp_path: Path) -> None:
    async with old_service(tmp_path, RESEARCH, STORY, RESEARCH, OTHER) as (server, model):
        body = {"topic": TOPIC, "auto_research": True, "research_model": "small", "model": "big"}
        first = (await server.client.post("/story/generate", json=body)).json()
        await server.client.post("/research/run", json={"topic": TOPIC})
        second = (await server.client.post("/story/generate", json={**body, "topic": f"  {TOPIC.upper()}"})).json()

        assert (first["success"], second["success"]) == (True, True)
        assert first["metadata"]["ignored"] == []
        assert [call.body["model"] for call in model.calls][:2] == ["small", "big"]
        # The card of the second request is there already, so only the story is asked for.
        assert len(model.calls) == 4
        assert [SUMMARY in prompt for prompt in prompts(model)] == [False, True, False, True]


async def test_a_story_is_told_from_no_card_of_another_office(tmp_path: Path) -> None:
    async with old_service(tmp_path, RESEARCH, RESEARCH, STORY) as (server, model):
        await server.scheduler.offices.create("b", retry_policy={"max_attempts": 0})
        foreign = (await server.client.post("/research/run", json={"topic": TOPIC})).json()["card_id"]

        named = await server.scheduler.submit("story", {"research_card": foreign}, office_id="b")
        refused = await ended(server, named.job_id)
        about = await server.scheduler.submit("story", {"topic": TOPIC, "auto_research": True}, office_id="b")
        told = await ended(server, about.job_id)

        assert (refused.status, refused.run.failure_kind) == ("FAILED", "invalid")
        assert f"there is no research card '{foreign}'" in refused.run.error
        # The office has no card about the topic, so the story asks a model.
        assert told.result["research"] == [{"card_id": None, "title": CARD["title"]}]
        assert len(model.calls) == 3


async def test_texts_of_another_office_are_no_duplicates(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY, STORY, RESEARCH, RESEARCH) as (server, _):
        await server.scheduler.offices.create("b")
        for job_type, params in (
            ("story", {"enable_dedup": True}),
            ("research", {"topic": TOPIC, "enable_dedup": True}),
        ):
            for office_id in ("default", "b"):
                job = await server.scheduler.submit(job_type, params, office_id=office_id)
                assert (await ended(server, job.job_id)).status == "COMPLETED"

        for shelf, name in (("stories", "story_id"), ("research-cards", "card_id")):
            newest, _ = (await server.client.get(f"/api/{shelf}")).json()["items"]
            found = (await server.client.get(f"/api/{shelf}/{newest[name]}")).json()
            assert found["likeness"] == {"signal": "LOW", "similarity": 0.0, "most_similar": None}


async def test_without_auto_research_nothing_is_researched(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY) as (server, model):
        told = (await server.client.post("/story/generate", json={"topic": TOPIC})).json()

        assert (len(model.calls), told["metadata"]["research_used"]) == (1, [])


async def test_a_caller_who_says_nothing_of_research_gets_a_card_that_is_there_and_one_who_refuses_gets_none(
    tmp_path: Path,
) -> None:
    async with old_service(tmp_path, RESEARCH, STORY, OTHER) as (server, model):
        card = (await server.client.post("/research/run", json={"topic": TOPIC})).json()
        bodies: list[dict[str, Any]] = [{"topic": TOPIC}, {"topic": TOPIC, "auto_research": False}]
        told = [(await server.client.post("/story/generate", json=body)).json() for body in bodies]

        used = [{"card_id": card["card_id"], "title": CARD["title"]}]
        assert [one["metadata"]["research_used"] for one in told] == [used, []]
        assert [SUMMARY in prompt for prompt in prompts(model)] == [False, True, False]


STYLES = {
    "noir": Style(system="You are a tired detective.", genre="crime", language="German", length=600, temperature=0.1),
    "haiku": Style(template="Write {words} words of verse about {topic} ({tags}) in {language}."),
}


async def test_a_style_is_how_a_story_is_told_and_parameters_override_parts_of_it(tmp_path: Path) -> None:
    async with old_service(tmp_path, *[STORY] * 3) as (server, model):
        url = server.scheduler.extension(StoryService).models.config.ollama_base_url
        server.scheduler.extension(StoryService).use(LanguageModels(LlmConfig(url, styles=STYLES)))
        for params in (
            {"style": "noir", "topic": "rain"},
            {"style": "noir", "language": "Korean", "temperature": 0, "target_length": 3000, "system": "Be brief."},
            {"style": "haiku", "topic": "rain", "tags": ["wet"], "language": "French"},
        ):
            assert (await ended(server, (await server.scheduler.submit("story", params)).job_id)).status == "COMPLETED"

        noir, changed, haiku = (call.body for call in model.calls)
        assert noir["messages"][0]["content"] == "You are a tired detective."
        assert "a short crime story about this topic: rain" in noir["messages"][1]["content"]
        assert "It has about 100 words.\nIt is written in German." in noir["messages"][1]["content"]
        assert noir["options"]["temperature"] == 0.1
        assert changed["messages"][0]["content"] == "Be brief."
        assert "It has about 500 words.\nIt is written in Korean." in changed["messages"][1]["content"]
        assert changed["options"]["temperature"] == 0
        assert "Write 250 words of verse about rain (wet) in French." in haiku["messages"][1]["content"]


async def test_an_unknown_style_or_place_is_refused_by_name(tmp_path: Path) -> None:
    async with old_service(tmp_path) as (server, _):
        with pytest.raises(Invalid, match="there is no style 'noir'; the configuration has: none"):
            await server.scheduler.submit("story", {"style": "noir"})
        with pytest.raises(Invalid, match=r"has \{place\}"):
            await server.scheduler.submit("story", {"template": "in this {place}"})


def test_styles_are_settings_and_a_wrong_template_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nextslot.toml").write_text('[llm.styles.noir]\ngenre = "crime"\ntemperature = 0.2\n')
    scheduler = compose(config.load(tmp_path))
    found = scheduler.extension(StoryService).models.config.styles
    (tmp_path / "nextslot.toml").write_text('[llm.styles.noir]\ntemplate = "{where}"\n')

    assert found == {"noir": Style(genre="crime", temperature=0.2)}
    with pytest.raises(Invalid, match=r"llm\.styles\.noir\.template"):
        config.load(tmp_path)


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("claude-opus-4", "anthropic"),
        ("anthropic:claude-opus-4", "anthropic"),
        ("gemini-2.5-pro", "google"),
        ("gpt-5", "openai"),
        ("CLAUDE-3", "anthropic"),
    ],
)
async def test_a_model_whose_provider_is_not_configured_is_refused_by_name(
    tmp_path: Path, model: str, provider: str
) -> None:
    async with old_service(tmp_path) as (server, asked):
        for job_type, params in (("story", {}), ("research", {"topic": TOPIC})):
            with pytest.raises(Invalid, match=f"provider '{provider}', which is not configured"):
                await server.scheduler.submit(job_type, {**params, "model": model})
        old = await server.client.post("/jobs/story/trigger", json={"model": model})
        direct = await server.client.post("/story/generate", json={"model": model})

        assert (old.status_code, direct.status_code, asked.calls) == (422, 422, [])
        assert provider in direct.json()["detail"]


async def test_a_provider_without_a_model_is_refused(tmp_path: Path) -> None:
    async with old_service(tmp_path) as (server, _):
        with pytest.raises(Invalid, match="'ollama:' names no model; write ollama:NAME"):
            await server.scheduler.submit("story", {"model": "ollama:"})


async def test_a_claude_model_goes_to_its_provider_when_that_is_configured(tmp_path: Path) -> None:
    chunk = json.dumps({"choices": [{"delta": {"content": LIGHTHOUSE}, "finish_reason": "stop"}]})
    answer = ollama.says(f"data: {chunk}\n\ndata: [DONE]\n\n")
    async with old_service(tmp_path, answer, answer) as (server, asked):
        base = server.scheduler.extension(StoryService).models.config.ollama_base_url
        providers = {
            "anthropic": ProviderConfig(f"{base}/v1"),
            "google": ProviderConfig(f"{base}/v1beta/openai"),
        }
        server.scheduler.extension(StoryService).use(LanguageModels(LlmConfig(base, providers=providers)))
        jobs = [await server.scheduler.submit("story", {"model": name}) for name in ("claude-opus-4", "gemini-2.5-pro")]
        done = [await ended(server, job.job_id) for job in jobs]

        assert [one.status for one in done] == ["COMPLETED", "COMPLETED"]
        assert [job.resources for job in jobs] == [{"remote": 1, f"remote:{name}": 1} for name in providers]
        paths = {call.body["model"]: call.path for call in asked.calls}
        assert paths == {
            "claude-opus-4": "/v1/chat/completions",
            "gemini-2.5-pro": "/v1beta/openai/chat/completions",
        }
