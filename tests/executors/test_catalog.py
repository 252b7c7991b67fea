"""The catalog: language models and commands as a scheduler has them, wired."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nextslot import Scheduler
from nextslot.errors import Invalid
from nextslot.extensions.stories.language_models import LanguageModels, LlmConfig, ProviderConfig
from tests.executors import ollama_server as ollama

STORY = "# The Lamp\n\n" + "The keeper climbed the stairs and lit the lamp again. " * 8


def test_the_resource_follows_from_the_model_and_is_stored_with_the_job(tmp_path: Path) -> None:
    async def main() -> None:
        async with story_teller(tmp_path) as scheduler:
            await scheduler.pause()

            local = await scheduler.submit("story", {"topic": "a lamp"})
            remote = await scheduler.submit("story", {"topic": "a lamp", "model": "cloud:large"}, resources=["desk"])

            assert (local.resources, remote.resources) == ({"ollama": 1}, {"remote": 1, "desk": 1})
            changed = await scheduler.change(remote.job_id, params={"topic": "a lamp"})
            assert changed.resources == {"ollama": 1, "desk": 1}, "worked out again, and nothing of the old is left"

    asyncio.run(main())


def test_a_duplicate_of_a_completed_story_is_skipped_also_of_a_direct_callers(tmp_path: Path) -> None:
    async def main() -> None:
        async with story_teller(tmp_path) as scheduler:
            direct = await scheduler.run_direct("story", {"topic": "a lamp"})
            again = await scheduler.submit("story", {"topic": "a lamp", "enable_dedup": True})

            ended = await scheduler.wait(again.job_id)

            assert direct.result["stories"][0]["title"] == "The Lamp"
            assert [artifact.name for artifact in direct.artifacts] == ["001-the-lamp.json", "001-the-lamp.md"]
            assert ended.status == "SKIPPED"
            assert ended.run is not None
            assert direct.result["stories"][0]["story_id"] in (ended.run.reason or "")

    asyncio.run(main())


def test_job_types_come_from_a_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "nextslot.toml").write_text(
        '[job_types.say]\ncommand = ["echo", "--", "{what}"]\nresources = { mouth = 1 }\n'
    )

    async def main() -> None:
        async with Scheduler(f"sqlite:///{tmp_path}/nextslot.db") as scheduler:
            scheduler.job_types.load(tmp_path / "nextslot.toml")

            job = await scheduler.submit("say", {"what": "$(whoami); --help"})
            ended = await scheduler.wait(job.job_id)

            assert job.resources == {"mouth": 1}
            assert ended.run is not None
            assert (tmp_path / (ended.run.log_path or "")).read_text() == "-- $(whoami); --help\n"

    asyncio.run(main())


@pytest.mark.parametrize("text", ["[job_types.say]\ncolour = 1\n", "[job_types\n", "\xff"])
def test_a_bad_configuration_file_is_refused_and_adds_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "nextslot.toml").write_bytes(text.encode("latin-1"))
    scheduler = Scheduler(f"sqlite:///{tmp_path}/nextslot.db")

    with pytest.raises(Invalid, match="job_types"):
        scheduler.job_types.load(tmp_path / "nextslot.toml")

    assert scheduler.job_types.names() == []


@asynccontextmanager
async def story_teller(directory: Path) -> AsyncIterator[Scheduler]:
    async with ollama.scripted(ollama.tells(STORY)) as server:
        config = LlmConfig(server.base_url, providers={"cloud": ProviderConfig(server.base_url)})
        scheduler = Scheduler(f"sqlite:///{directory}/nextslot.db")
        scheduler.use_language_models(LanguageModels(config))
        async with scheduler:
            yield scheduler
