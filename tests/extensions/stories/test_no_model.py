"""A server without a reachable model says so: at its start, at a submission, and to who waits."""

import logging
from pathlib import Path
from typing import Any

import pytest

from nextslot import Scheduler
from nextslot.extensions.stories.language_models import LanguageModels, LlmConfig, ProviderConfig
from nextslot.extensions.stories.story_service import StoryService
from tests.extensions.stories import ollama_server as ollama
from tests.extensions.stories.test_llm import NotInstalled, unused_port
from tests.server.support import serving
from tests.support import eventually

SAID = "No language model answers at http://127.0.0.1:"


def nobody_answers(scheduler: Scheduler) -> None:
    config = LlmConfig(f"http://127.0.0.1:{unused_port()}", providers={"cloud": ProviderConfig("http://127.0.0.1:9")})
    scheduler.extension(StoryService).use(LanguageModels(config, NotInstalled()))


async def test_it_is_in_the_answer_to_a_submission_and_in_why(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        nobody_answers(server.scheduler)
        await server.scheduler.pause()
        job = await server.client.post("/api/jobs", json={"job_type": "story"})
        many = await server.client.post("/api/jobs/batch", json={"jobs": [{"job_type": "echo"}, {"job_type": "story"}]})
        group = await server.client.post("/api/job-groups", json={"mode": "parallel", "jobs": [{"job_type": "story"}]})
        old = await server.client.post("/jobs/story/trigger", json={})
        why = await server.client.get(f"/api/jobs/{job.json()['job_id']}/why")

        assert [one.status_code for one in (job, many, group, old)] == [201, 201, 201, 202]
        assert all(one.headers["x-note"].startswith(SAID) for one in (job, many, group))
        assert SAID in old.json()["message"]
        assert why.json()["reasons"][0]["code"] == "note"
        assert why.json()["reasons"][0]["text"] == job.headers["x-note"]


@pytest.mark.parametrize("body", [{"job_type": "echo"}, {"job_type": "story", "params": {"model": "cloud:large"}}])
async def test_nothing_is_said_about_other_work_or_another_provider(tmp_path: Path, body: dict[str, Any]) -> None:
    async with serving(tmp_path) as server:
        nobody_answers(server.scheduler)
        await server.scheduler.pause()
        job = await server.client.post("/api/jobs", json=body)
        why = await server.client.get(f"/api/jobs/{job.json()['job_id']}/why")

        assert job.status_code == 201
        assert "x-note" not in job.headers
        assert "note" not in [reason["code"] for reason in why.json()["reasons"]]


async def test_nothing_is_said_while_a_model_answers(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, ollama.scripted() as model:
        models = LanguageModels(LlmConfig(model.base_url), NotInstalled())
        server.scheduler.extension(StoryService).use(models)
        await server.scheduler.pause()

        job = await server.client.post("/api/jobs", json={"job_type": "research", "params": {"topic": "x" * 20}})

        assert job.status_code == 201
        assert "x-note" not in job.headers


async def test_it_is_in_the_log_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        scheduler = Scheduler(f"sqlite:///{tmp_path}/nextslot.db", extensions=["stories"])
        nobody_answers(scheduler)
        async with scheduler:
            await eventually(lambda: any(SAID in record.getMessage() for record in caplog.records))
