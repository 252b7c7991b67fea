"""Stories as a scheduler has them: their resources, and what a new story is compared with."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from nextslot import Scheduler
from nextslot.extensions.stories.language_models import LanguageModels, LlmConfig, ProviderConfig
from nextslot.extensions.stories.story_service import StoryService
from tests.extensions.stories import ollama_server as ollama

STORY = "# The Lamp\n\n" + "The keeper climbed the stairs and lit the lamp again. " * 8


async def test_the_resource_follows_from_the_model_and_is_stored_with_the_job(tmp_path: Path) -> None:
    async with story_teller(tmp_path) as scheduler:
        await scheduler.pause()

        local = await scheduler.submit("story", {"topic": "a lamp"})
        remote = await scheduler.submit("story", {"topic": "a lamp", "model": "cloud:large"}, resources=["desk"])

        assert (local.resources, remote.resources) == ({"ollama": 1}, {"remote": 1, "remote:cloud": 1, "desk": 1})
        changed = await scheduler.change(remote.job_id, params={"topic": "a lamp"})
        assert changed.resources == {"ollama": 1, "desk": 1}, "worked out again, and nothing of the old is left"


async def test_a_duplicate_of_a_completed_story_is_skipped_also_of_a_direct_callers(tmp_path: Path) -> None:
    async with story_teller(tmp_path) as scheduler:
        direct = await scheduler.run_direct("story", {"topic": "a lamp"})
        again = await scheduler.submit("story", {"topic": "a lamp", "enable_dedup": True})

        ended = await scheduler.wait(again.job_id)

        assert direct.result["stories"][0]["title"] == "The Lamp"
        assert [artifact.name for artifact in direct.artifacts] == ["001-the-lamp.json", "001-the-lamp.md"]
        assert ended.status == "SKIPPED"
        assert ended.run is not None
        assert direct.result["stories"][0]["story_id"] in (ended.run.reason or "")


@asynccontextmanager
async def story_teller(directory: Path) -> AsyncIterator[Scheduler]:
    async with ollama.scripted(ollama.tells(STORY)) as server:
        config = LlmConfig(server.base_url, providers={"cloud": ProviderConfig(server.base_url)})
        scheduler = Scheduler(f"sqlite:///{directory}/nextslot.db", extensions=["stories"])
        scheduler.extension(StoryService).use(LanguageModels(config))
        async with scheduler:
            yield scheduler
