"""What tests of `story` and `research` share: a scheduler that has both, in real time, since models are on sockets."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nextslot import Scheduler
from nextslot.extensions.stories.language_models import LanguageModels, LlmConfig
from nextslot.extensions.stories.research import register_research
from nextslot.extensions.stories.similarity import KnownText
from nextslot.extensions.stories.story import register_story
from nextslot.scheduler import Ended
from tests.extensions.stories import ollama_server as ollama

Submit = Callable[..., Awaitable[Ended]]


@asynccontextmanager
async def running(directory: Path, models: LanguageModels) -> AsyncIterator[tuple[Scheduler, Submit]]:
    """Runs a scheduler. Yields it with a function that submits a job and waits for its end; dedup knows the completed
    jobs.
    """
    completed: list[KnownText] = []
    scheduler = Scheduler(f"sqlite:///{directory}/nextslot.db", data=directory)

    async def earlier(office_id: str) -> Iterable[KnownText]:
        return completed

    async def submit(job_type: str, retries: int = 0, **params: Any) -> Ended:
        policy = {"max_attempts": retries, "base_delay_seconds": 0.01}
        job = await scheduler.submit(job_type, params, retry_policy=policy)
        ended = await scheduler.wait(job.job_id)
        if ended.status == "COMPLETED" and job_type == "story":
            told = ended.result["stories"]
            completed.extend(KnownText(one["fingerprint"], one["sketch"], one["story_id"]) for one in told)
        return ended

    register_story(scheduler.job_types, models, earlier_stories=earlier)
    register_research(scheduler.job_types, models)
    try:
        async with scheduler:
            yield scheduler, submit
    finally:
        await models.close()


@asynccontextmanager
async def scripted(directory: Path, *script: ollama.Reply) -> AsyncIterator[tuple[Submit, ollama.ScriptedOllama]]:
    async with (
        ollama.scripted(*script) as server,
        running(directory, LanguageModels(LlmConfig(server.base_url))) as (_, submit),
    ):
        yield submit, server


def names(ended: Ended) -> list[str]:
    return sorted(artifact.name for artifact in ended.run.artifacts) if ended.run else []


def failure_kind(ended: Ended) -> str | None:
    return ended.run.failure_kind if ended.run else None


def artifact(directory: Path, ended: Ended, name: str) -> str:
    assert ended.run is not None
    [found] = [one for one in ended.run.artifacts if one.name == name]
    return (directory / found.path).read_text()


def front_matter(text: str) -> dict[str, Any]:
    lines = text.split("---\n")[1].splitlines()
    return {name: json.loads(value) for name, _, value in (line.partition(": ") for line in lines)}


def progress_of(scheduler: Scheduler) -> tuple[float | None, str]:
    executor = scheduler._runtime.executor
    return next((progress for run_id in executor._active if (progress := executor.progress(run_id))), (None, ""))
