"""The library over HTTP and at a terminal: stories and cards listed, searched, read, with their likeness."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from nextslot.extensions.stories import library
from tests.cli.terminal import Terminal
from tests.extensions.legacy.old_service import CARD, CLOCK, LIGHTHOUSE, OTHER, RESEARCH, STORY, TOPIC, old_service
from tests.server.support import Server


async def done(server: Server, job_type: str, **params: Any) -> str:
    job = await server.scheduler.submit(job_type, params)
    ended = await server.scheduler.wait(job.job_id)
    assert ended.status == "COMPLETED", ended
    return job.job_id


async def read(server: Server, path: str, /, expected: int = 200, **query: Any) -> Any:
    found = await server.client.get(path, params=query)
    assert found.status_code == expected, found.text
    return found.json()


async def test_a_story_of_a_job_and_one_of_a_direct_caller_are_listed_newest_first_and_read(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY, OTHER) as (server, _):
        job_id = await done(server, "story", topic="a lighthouse", tags=["Sea"])
        direct = (await server.client.post("/story/generate", json={"topic": "a clock"})).json()

        found = (await read(server, "/api/stories"))["items"]
        newest, oldest = found
        assert [one["title"] for one in found] == ["The Clock", "The Second Light"]
        assert (oldest["job_id"], oldest["direct_id"], oldest["topic"], oldest["tags"]) == (
            job_id, None, "a lighthouse", ["Sea"],
        )  # fmt: skip
        assert (newest["job_id"], newest["direct_id"], newest["story_id"]) == (
            None, direct["metadata"]["direct_id"], direct["story_id"],
        )  # fmt: skip
        for one, text in ((newest, CLOCK), (oldest, LIGHTHOUSE)):
            assert (await read(server, f"/api/stories/{one['story_id']}"))["text"] == text
            assert text in (await server.client.get(one["address"])).text


async def test_a_direct_story_has_its_callers_id_and_its_runs(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY) as (server, _):
        await server.scheduler.offices.create("web")
        body = {"params": {"topic": "a lighthouse"}, "direct_id": "mine", "office_id": "web"}
        direct = (await server.client.post("/api/direct/story", json=body)).json()

        [listed] = (await read(server, "/api/stories"))["items"]
        found = await read(server, f"/api/stories/{listed['story_id']}")
        for one in (listed, found):
            assert (one["direct_id"], one["run_id"], one["job_id"]) == ("mine", direct["run_id"], None)
        assert LIGHTHOUSE in (await server.client.get(found["address"])).text


async def test_a_story_without_a_file_is_read_from_its_result(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY) as (server, _):
        made = (await server.client.post("/story/generate", json={"save_output": False})).json()

        found = await read(server, f"/api/stories/{made['story_id']}")
        assert (found["text"], found["address"]) == (LIGHTHOUSE, None)


async def test_the_likeness_of_a_story_is_to_those_before_it(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY, OTHER, STORY) as (server, _):
        for _ in range(3):
            await done(server, "story")

        again, other, first = (await read(server, "/api/stories"))["items"]
        details = [await read(server, f"/api/stories/{one['story_id']}") for one in (first, other, again)]
        assert [one["likeness"]["signal"] for one in details] == ["LOW", "LOW", "HIGH"]
        assert details[0]["likeness"] == {"signal": "LOW", "similarity": 0.0, "most_similar": None}
        assert details[2]["likeness"] == {"signal": "HIGH", "similarity": 1.0, "most_similar": first["story_id"]}


async def test_the_library_is_searched_by_words_and_by_tag(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY, OTHER, RESEARCH) as (server, _):
        await done(server, "story", topic="a lighthouse", tags=["sea"])
        await done(server, "story", topic="ein Märchen", tags=["town"])
        await done(server, "research", topic=TOPIC)

        async def titles(path: str = "/api/stories", **query: Any) -> list[str]:
            return [one["title"] for one in (await read(server, path, **query))["items"]]

        assert await titles(q="LIGHT second") == ["The Second Light"]
        assert await titles(q="märchen") == ["The Clock"]
        assert await titles(tag="Sea") == ["The Second Light"]
        assert await titles(q="second clock") == []
        assert await titles("/api/research-cards", q="barrage turbine") == [CARD["title"]]
        assert await titles("/api/research-cards", q="nothing of the kind") == []


@pytest.mark.parametrize("step", [1, 2, library.STEP])
async def test_a_list_is_read_page_by_page_also_inside_the_stories_of_one_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(library, "STEP", step)
    async with old_service(tmp_path, *[STORY, OTHER] * 3) as (server, _):
        await done(server, "story", max_stories=3)
        await done(server, "story", max_stories=3)

        whole = [one["story_id"] for one in (await read(server, "/api/stories"))["items"]]
        paged: list[str] = []
        cursor: dict[str, Any] = {}
        for _ in range(4):
            page = await read(server, "/api/stories", **{"limit": 2, **cursor})
            paged += [one["story_id"] for one in page["items"]]
            cursor = {"cursor": page["next_cursor"]}
            if page["next_cursor"] is None:
                break
        assert paged == whole
        assert len(set(whole)) == 6


async def test_a_card_is_whole_in_the_answer_in_the_library_and_in_its_result(tmp_path: Path) -> None:
    async with old_service(tmp_path, RESEARCH) as (server, _):
        made = (await server.client.post("/research/run", json={"topic": TOPIC, "tags": ["sea"]})).json()

        card = await read(server, f"/api/research-cards/{made['card_id']}")
        for found in (made["card"], card):
            assert {name: found[name] for name in CARD} == CARD
            assert (found["topic"], found["tags"]) == (TOPIC, ["sea"])
        written = await server.client.get(card["address"])
        assert written.headers["content-security-policy"] == "sandbox"
        assert "Tides turn turbines. The moon pays for it." in written.text


async def test_research_with_dedup_skips_a_card_that_is_much_like_an_earlier_one(tmp_path: Path) -> None:
    async with old_service(tmp_path, *[RESEARCH] * 3) as (server, _):
        await done(server, "research", topic=TOPIC)
        job = await server.scheduler.submit("research", {"topic": TOPIC, "enable_dedup": True})
        ended = await server.scheduler.wait(job.job_id)
        direct = await server.client.post("/research/run", json={"topic": TOPIC, "enable_dedup": True})

        assert ended.status == "SKIPPED"
        assert ended.run is not None
        assert "the same as the card" in (ended.run.reason or "")
        assert (direct.status_code, direct.json()["code"]) == (409, "conflict")
        assert len((await read(server, "/api/research-cards"))["items"]) == 1


async def test_a_file_of_direct_work_cannot_be_reached_by_another_name(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY) as (server, _):
        made = (await server.client.post("/story/generate", json={"topic": "a lighthouse"})).json()
        direct_id = made["metadata"]["direct_id"]

        for name in ("../nextslot.db", "%2e%2e/%2e%2e/nextslot.db", "nothing.md"):
            answer = await server.client.get(f"/api/direct/{direct_id}/artifacts/{name}")
            assert answer.status_code == 404
        assert (await server.client.get("/api/direct/unknown/artifacts/001.md")).status_code == 404


async def test_a_key_of_one_office_reads_no_story_of_another(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY) as (server, _):
        await done(server, "story")
        [one] = (await read(server, "/api/stories"))["items"]
        await server.scheduler.offices.create("a")
        await server.scheduler.keys.create("root", ["admin"])
        _, secret = await server.scheduler.keys.create("a", ["read"], "a")
        server.client.headers["x-api-key"] = secret

        assert (await read(server, "/api/stories"))["items"] == []
        await read(server, f"/api/stories/{one['story_id']}", 404)
        await read(server, "/api/stories", 404, office_id="default")


async def test_a_type_of_that_name_with_another_result_is_no_entry(tmp_path: Path) -> None:
    async with old_service(tmp_path) as (server, _):

        async def own(run: Any) -> Any:
            return {"stories": ["a text", {"title": "no id"}], "card_id": 1}

        server.scheduler.job_types.replace(["story"], {})
        server.scheduler.job_types.add("story", own)
        await done(server, "story")

        assert (await read(server, "/api/stories"))["items"] == []
        for wrong in ("nothing-001", "%ED%A0%80-001", "-", "x" * 3000):
            await read(server, f"/api/stories/{wrong}", 404)
            await read(server, f"/api/research-cards/{wrong}", 404)


async def test_stories_and_files_are_printed_at_a_terminal(tmp_path: Path) -> None:
    async with old_service(tmp_path, STORY, RESEARCH) as (server, _):
        job_id = await done(server, "story", topic="a lighthouse", tags=["sea"])
        await done(server, "research", topic=TOPIC)
        url = str(server.client.base_url)

        async def nextslot(*words: str) -> str:
            ran = await asyncio.to_thread(Terminal(), *words, "--url", url)
            assert ran.code == 0, ran.err
            return ran.out

        assert "a lighthouse" in await nextslot("story", "ls")
        assert await nextslot("story", "ls", "nothing") == ""
        assert await nextslot("story", "cat", "last") == f"# The Second Light\n\n{LIGHTHOUSE}\n"
        assert LIGHTHOUSE in await nextslot("cat", job_id[-8:])
        about = json.loads(await nextslot("cat", job_id, "001-the-second-light.json"))
        assert about["title"] == "The Second Light"
        assert "Tidal Power" in await nextslot("card", "ls")
        assert (await nextslot("card", "cat", "last")).startswith(f"# {CARD['title']}\n\n{CARD['summary']}\n")
        for words in (("story", "ls"), ("card", "ls"), ("story", "cat", "last"), ("card", "cat", "last")):
            assert "fingerprint" not in await nextslot(*words)
