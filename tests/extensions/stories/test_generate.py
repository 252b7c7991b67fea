"""Spec 11: a story or a research card for somebody on the line, with the bodies and answers of old clients."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pytest_httpserver import HTTPServer
from standardwebhooks import Webhook

from tests.extensions.legacy.old_service import CARD, LIGHTHOUSE, NOTHING, RESEARCH, STORY, TOPIC, old_service, seen
from tests.extensions.stories import ollama_server as ollama
from tests.server.support import Server, serving
from tests.support import eventually


async def story(server: Server, **body: Any) -> dict[str, Any]:
    answer = await server.client.post("/story/generate", json=body)
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


async def research(server: Server, **body: Any) -> httpx2.Response:
    return await server.client.post("/research/run", json={"topic": TOPIC, **body})


async def test_spec_11_a_story_is_answered_with_its_text_and_its_file(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY) as (server, _):
        answer = await story(server, topic="a lighthouse", tags=["sea"], target_length=500, model="big")

        assert list(answer) == [
            "success", "story_id", "story", "title", "file_path", "word_count", "metadata", "error",
            "webhook_triggered",
        ]  # fmt: skip
        assert (answer["success"], answer["error"], answer["webhook_triggered"]) == (True, None, False)
        assert (answer["title"], answer["story"]) == ("The Second Light", LIGHTHOUSE)
        assert LIGHTHOUSE in (tmp_path / answer["file_path"]).read_text()
        # Characters, as the old service counted.
        assert answer["word_count"] == len(LIGHTHOUSE)
        about = answer["metadata"]
        assert (about["model"], about["provider"], about["topic"]) == ("ollama:big", "ollama", "a lighthouse")
        assert (about["words"], about["tags"]) == (len(LIGHTHOUSE.split()), ["sea"])
        assert about["generation"] == {
            "target_length": 500,
            "actual_length": len(LIGHTHOUSE),
            "length_delta": len(LIGHTHOUSE) - 500,
        }
        assert about["ignored"] == []


async def test_a_caller_who_waits_chooses_the_parts_of_a_style(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY) as (server, model):
        await story(
            server, topic="a lighthouse", temperature=0.2, genre="horror", language="Welsh", system="You whisper."
        )

        asked = model.calls[0].body
        system, prompt = (message["content"] for message in asked["messages"])
        assert asked["options"]["temperature"] == 0.2
        assert system == "You whisper."
        assert "horror" in prompt
        assert "Welsh" in prompt


async def test_spec_11_no_job_is_made_and_the_caller_is_on_record(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY) as (server, _):
        answer = await story(server)

        [record] = (await server.client.get("/api/direct")).json()["items"]
        assert record["direct_id"] == answer["metadata"]["direct_id"]
        assert (record["job_type"], record["status"], record["office_id"]) == ("story", "COMPLETED", "default")
        assert (await server.client.get("/api/jobs")).json()["items"] == []


async def test_spec_11_what_old_clients_say_without_effect_is_listed(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY, RESEARCH) as (server, _):
        said = {"auto_research": False, "research_model": "x", "thumbnail_provider": "y", "mood": "dark"}

        answer = await story(server, **said)
        card = (await research(server, mood="dark")).json()

        assert answer["metadata"]["ignored"] == ["mood", "thumbnail_provider"]
        assert card["message"] == "Tidal Power. Ignored: mood"


async def test_a_topic_of_two_syllables_is_enough_for_a_caller_who_waits(tmp_path: Path) -> None:
    async with old_service(tmp_path, RESEARCH) as (server, _):
        assert (await research(server, topic="등대")).status_code == 200


async def test_spec_11_with_save_output_false_no_file_is_kept(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY) as (server, _):
        answer = await story(server, save_output=False)

        record = await server.scheduler.direct(answer["metadata"]["direct_id"])
        assert (answer["success"], answer["story"], answer["file_path"]) == (True, LIGHTHOUSE, None)
        assert (answer["title"], answer["word_count"]) == ("The Second Light", len(LIGHTHOUSE))
        assert record.artifacts == ()
    assert not [path for path in tmp_path.glob("artifacts/**/*") if path.is_file()]


async def test_spec_11_a_title_that_is_cut_in_the_record_is_whole_in_the_answer(tmp_path: Path) -> None:
    title = "등대지기의 아주 긴 이야기 " * 5

    async with old_service(tmp_path, ollama.tells(f"# {title}\n\n{LIGHTHOUSE}")) as (server, _):
        answers = [await story(server, save_output=is_saved) for is_saved in (True, False)]

        assert [answer["title"] for answer in answers] == [title.strip()] * 2
        assert [answer["story"] for answer in answers] == [LIGHTHOUSE] * 2


async def test_spec_11_a_story_that_failed_is_a_200_that_says_so(tmp_path: Path) -> None:
    async with old_service(tmp_path, NOTHING) as (server, _):
        answer = await story(server)

        assert answer["success"] is False
        assert "empty answer" in answer["error"]
        assert (answer["story"], answer["file_path"], answer["story_id"]) == (None, None, None)
        assert answer["metadata"]["failure_kind"] == "error"


async def test_spec_11_a_duplicate_is_no_success_if_asked(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY) as (server, _):
        first, again, checked = await story(server), await story(server), await story(server, enable_dedup=True)

        assert (first["success"], again["success"], checked["success"]) == (True, True, False)
        assert "duplicate" in checked["error"]


async def test_spec_11_research_is_answered_with_its_card(tmp_path: Path) -> None:
    async with old_service(tmp_path, RESEARCH) as (server, _):
        answer = await research(server, tags=["sea"])

        content = answer.json()
        card = json.loads((tmp_path / content["output_path"]).read_text())
        assert answer.status_code == 200
        assert CARD.items() <= card.items()
        assert content == {
            "card_id": card["card_id"],
            "status": "complete",
            "message": "Tidal Power",
            "output_path": content["output_path"],
            "webhook_triggered": False,
            "card": {**CARD, "topic": TOPIC, "tags": ["sea"], "model": card["model"]},
        }


async def test_spec_11_research_that_failed_is_502_and_says_why(tmp_path: Path) -> None:
    async with old_service(tmp_path, NOTHING) as (server, _):
        answer = await research(server)

        content = answer.json()
        assert (answer.status_code, content["code"]) == (502, "work_failed")
        assert "empty answer" in content["detail"]
        assert (await server.scheduler.direct(content["direct_id"])).status == "FAILED"


async def test_spec_11_research_that_takes_too_long_is_504(tmp_path: Path) -> None:
    async with old_service(tmp_path, ollama.says_nothing) as (server, model):
        answer = await research(server, timeout=1)

        assert (answer.status_code, answer.json()["code"]) == (504, "work_timed_out")
        assert "within 1 seconds" in answer.json()["detail"]
        await asyncio.wait_for(model.hung_up.wait(), 15)


@pytest.mark.parametrize(("path", "body"), [("/story/generate", {}), ("/research/run", {"topic": TOPIC})])
async def test_spec_11_a_wait_that_ran_out_is_503_slot_busy(tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    async with old_service(tmp_path, STORY) as (server, _):
        await server.scheduler.submit("gate")

        answer = await server.client.post(path, json={**body, "wait_timeout_seconds": 0.05})

        assert (answer.status_code, answer.json()["code"]) == (503, "slot_busy")
        assert answer.headers["retry-after"]
        assert answer.json()["ahead"] == 0


async def test_spec_11_who_hangs_up_while_the_work_runs_cancels_it(tmp_path: Path) -> None:
    async with old_service(tmp_path, ollama.says_nothing) as (server, model):
        asking = asyncio.create_task(server.client.post("/story/generate", json={}))
        await model.asked.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

        async def records() -> list[Any]:
            return list((await server.scheduler.lists.direct()).items)

        [record] = await seen(records, lambda found: found[0].finished_at is not None)
        assert (record.status, record.failure_kind) == ("FAILED", "cancelled")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/story/generate", {"target_length": 299}, "target_length"),
        ("/story/generate", {"target_length": 10_001}, "target_length"),
        ("/story/generate", {"save_output": "no"}, "save_output"),
        ("/story/generate", {"webhook_url": "not a url"}, "webhook_url"),
        ("/research/run", {}, "topic"),
        ("/research/run", {"topic": "too short"}, "topic"),
        ("/research/run", {"topic": " " * 20}, "topic"),
        ("/research/run", {"topic": "등"}, "topic"),
        ("/research/run", {"topic": TOPIC, "timeout": 0}, "timeout"),
    ],
)
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_spec_11_a_request_that_is_wrong_is_422_with_its_field(
    tmp_path: Path, path: str, body: dict[str, Any], field: str, accept: str
) -> None:
    async with old_service(tmp_path, STORY) as (server, _):
        answer = await server.client.post(path, json=body, headers={"accept": accept})

        assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
        assert {one["field"] for one in answer.json()["errors"]} == {field}
        assert (await server.scheduler.lists.direct()).items == ()


@pytest.mark.parametrize(("path", "body"), [("/story/generate", {}), ("/research/run", {"topic": TOPIC})])
async def test_spec_11_without_the_extension_it_is_404_and_says_so(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    async with serving(tmp_path, extensions=["legacy"]) as server:
        answer = await server.client.post(path, json=body)

        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        assert "the extension 'stories' is off" in answer.json()["detail"]


@pytest.mark.parametrize(("script", "event"), [(STORY, "direct.completed"), (NOTHING, "direct.failed")])
async def test_spec_11_its_webhook_is_told_how_it_ended(
    tmp_path: Path, httpserver: HTTPServer, script: ollama.Reply, event: str
) -> None:
    httpserver.expect_request("/hook").respond_with_data("thanks")

    async with old_service(tmp_path, script) as (server, _):
        answer = await story(server, webhook_url=httpserver.url_for("/hook"))
        await eventually(lambda: httpserver.log)

        [(request, _)] = httpserver.log
        told = Webhook(server.scheduler.webhooks.secret()).verify(request.data, dict(request.headers))
        assert answer["webhook_triggered"] is True
        assert (told["event"], told["direct"]["direct_id"]) == (event, answer["metadata"]["direct_id"])


async def test_spec_11_as_a_stream_the_caller_hears_progress_and_the_answer(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY) as (server, _):
        heard = await stream(server, "/story/generate", {"topic": "a lighthouse"})

        kinds = [kind for kind, _ in heard]
        assert {"started", "progress"} <= set(kinds)
        assert (kinds[-1], heard[-1][1]["story"], heard[-1][1]["success"]) == ("result", LIGHTHOUSE, True)


async def test_spec_11_in_a_stream_research_that_failed_is_an_error(tmp_path: Path) -> None:
    async with old_service(tmp_path, NOTHING) as (server, _):
        heard = await stream(server, "/research/run", {"topic": TOPIC})

        assert (heard[-1][0], heard[-1][1]["status"], heard[-1][1]["code"]) == ("error", 502, "work_failed")


async def stream(server: Server, path: str, body: dict[str, Any]) -> list[tuple[str, Any]]:
    """Returns every event of a stream, by its kind."""
    answer = await server.client.post(path, json=body, headers={"accept": "text/event-stream"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [part.split("\n") for part in answer.text.split("\n\n") if part.startswith("event: ")]
    return [(kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for kind, data in events]
