"""The job type `story`, from the parameters to the files, against a scripted Ollama on a socket."""

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from nextslot.errors import Invalid
from nextslot.extensions.stories.documents import (
    clean,
    slug,
    whole_sentences,
    write_files,
)
from nextslot.extensions.stories.language_models import LanguageModels, LlmConfig
from nextslot.extensions.stories.similarity import (
    KnownText,
    find_duplicate,
    fingerprint,
    similarity,
    sketch,
)
from nextslot.extensions.stories.story import titled
from tests.extensions.stories import ollama_server as ollama
from tests.extensions.stories.language_jobs import (
    artifact,
    failure_kind,
    front_matter,
    names,
    progress_of,
    running,
    scripted,
)
from tests.support import eventually

LIGHTHOUSE = (
    "The lamp had not been lit for eleven years when Marta climbed the stairs again. She counted them as she always"
    " had, one hundred and forty, and at the top she found the old brass still warm. Somebody had been here. She"
    " looked out over the black water and saw, far away, a second light that answered hers, slow and steady, as if"
    " it had been waiting all that time. She lit the lamp, sat down on the cold step and began to write a letter."
)
CLOCK = (
    "In the market of Oru there was a clock that ran backwards, and nobody minded until the baker's son grew younger"
    " than his own sister. The mayor sent for a woman who mended kettles. She listened to the clock for a day and a"
    " night, then turned it upside down. Nothing changed, except that the town's people began to remember tomorrow."
)


async def test_spec_5_21_a_story_leaves_markdown_with_front_matter_and_a_json(tmp_path: Path) -> None:
    answer = ollama.tells("# The Second ", "Light\n\n", LIGHTHOUSE)
    async with scripted(tmp_path, answer) as (submit, _):
        ended = await submit("story", topic='a "lighthouse": keeper', tags=["sea", "night: long"], model="big")

    [told] = ended.result["stories"]
    text = artifact(tmp_path, ended, told["file"])
    about = json.loads(artifact(tmp_path, ended, told["metadata"]))
    assert names(ended) == ["001-the-second-light.json", "001-the-second-light.md"]
    assert text.endswith(f"\n---\n\n# The Second Light\n\n{LIGHTHOUSE}\n")
    assert front_matter(text).items() <= about.items()
    assert about["topic"] == 'a "lighthouse": keeper'
    assert about["tags"] == ["sea", "night: long"]
    assert about["model"] == "ollama:big"
    assert about["words"] == told["words"] == len(LIGHTHOUSE.split())
    assert about["fingerprint"] == told["fingerprint"] == fingerprint(LIGHTHOUSE)
    assert about["title"] == told["title"] == "The Second Light"


async def test_a_korean_story_keeps_its_title_in_the_names_of_its_files(tmp_path: Path) -> None:
    async with scripted(tmp_path, ollama.tells("# 등대\n\n", "그는 등대에 불을 켰다. 바다는 조용했다.")) as (submit, _):
        ended = await submit("story", topic="등대지기")

    assert names(ended) == ["001-등대.json", "001-등대.md"]
    assert artifact(tmp_path, ended, "001-등대.md").endswith("# 등대\n\n그는 등대에 불을 켰다. 바다는 조용했다.\n")


async def test_spec_5_21_the_target_length_reaches_the_model(tmp_path: Path) -> None:
    async with scripted(tmp_path, ollama.tells(LIGHTHOUSE)) as (submit, server):
        await submit("story", target_length=9000)
        await submit("story", target_length=300)

    long, short = (call.body for call in server.calls)
    assert long["options"]["num_predict"] > 2000 > 400 > short["options"]["num_predict"]
    assert "1500 words" in long["messages"][-1]["content"]


async def test_spec_5_21_as_many_stories_as_asked_each_told_what_came_before(tmp_path: Path) -> None:
    script = ollama.tells(f"# Light\n{LIGHTHOUSE}"), ollama.tells(f"# Clock\n{CLOCK}")
    async with scripted(tmp_path, *script) as (submit, server):
        ended = await submit("story", max_stories=2)

    assert names(ended) == ["001-light.json", "001-light.md", "002-clock.json", "002-clock.md"]
    assert [told["title"] for told in ended.result["stories"]] == ["Light", "Clock"]
    assert "different from these: Light" in server.calls[1].body["messages"][-1]["content"]


async def test_spec_5_24_a_failure_leaves_whole_stories_and_nothing_else(tmp_path: Path) -> None:
    script = ollama.tells(f"# Light\n{LIGHTHOUSE}"), ollama.cuts_the_connection
    async with scripted(tmp_path, *script) as (submit, _):
        ended = await submit("story", max_stories=2)

    assert (ended.status, failure_kind(ended)) == ("FAILED", "unavailable")
    assert "cut the connection in the middle" in (ended.error or "")
    assert names(ended) == ["001-light.json", "001-light.md"]
    assert sorted(path.name for path in (tmp_path / "artifacts").rglob("*.*")) == names(ended)


@pytest.mark.parametrize("answer", ["# Only a title", "<think>Hm, a story about", "   "])
async def test_spec_5_24_an_answer_without_a_story_is_empty(tmp_path: Path, answer: str) -> None:
    async with scripted(tmp_path, ollama.tells(answer)) as (submit, _):
        ended = await submit("story")

    assert (ended.status, failure_kind(ended), names(ended)) == ("FAILED", "error", [])
    assert "empty answer" in (ended.error or "")


async def test_spec_7_2_an_interrupting_cancel_hangs_up_and_leaves_nothing(tmp_path: Path) -> None:
    async with (
        ollama.scripted(ollama.talks_and_waits("# Light\n", LIGHTHOUSE)) as server,
        running(tmp_path, LanguageModels(LlmConfig(server.base_url))) as (scheduler, _),
    ):
        job = await scheduler.submit("story")
        await server.asked.wait()

        await scheduler.cancel(job.job_id, interrupt=True)

        async with asyncio.timeout(5):
            await server.hung_up.wait()
        ended = await scheduler.wait(job.job_id)
        assert (ended.status, names(ended)) == ("CANCELLED", [])


async def test_spec_5_4_progress_follows_the_characters_that_have_come(tmp_path: Path) -> None:
    async with (
        ollama.scripted(ollama.talks_and_waits("x" * 300)) as server,
        running(tmp_path, LanguageModels(LlmConfig(server.base_url))) as (scheduler, _),
    ):
        job = await scheduler.submit("story", {"target_length": 600, "max_stories": 2})

        await eventually(lambda: (progress_of(scheduler)[0] or 0) > 0)

        assert progress_of(scheduler) == (0.25, "story 1 of 2: 300 characters")
        await scheduler.cancel(job.job_id, interrupt=True)
        await scheduler.wait(job.job_id)


async def test_spec_5_23_dedup_skips_a_job_whose_stories_are_all_there_already(tmp_path: Path) -> None:
    same = LIGHTHOUSE.upper().replace(",", " -")
    async with scripted(tmp_path, ollama.tells(f"# One\n{LIGHTHOUSE}"), ollama.tells(f"# Two\n{same}")) as (
        submit,
        _,
    ):
        first = await submit("story", enable_dedup=True)
        second = await submit("story", enable_dedup=True)
        third = await submit("story", enable_dedup=False)

    story_id = first.result["stories"][0]["story_id"]
    assert (first.status, second.status, third.status) == ("COMPLETED", "SKIPPED", "COMPLETED")
    assert second.run is not None
    assert second.run.reason == f"the story is a duplicate (“Two”: it is the same as the story {story_id})"
    assert names(second) == []


async def test_spec_5_23_dedup_drops_similar_stories_and_says_so(tmp_path: Path) -> None:
    near = LIGHTHOUSE.replace("a letter", "a poem")
    script = [ollama.tells(f"# {title}\n{text}") for title, text in (("A", LIGHTHOUSE), ("B", near), ("C", CLOCK))]
    async with scripted(tmp_path, *script) as (submit, _):
        ended = await submit("story", enable_dedup=True, max_stories=3)

    [dropped] = ended.result["dropped"]
    assert [told["title"] for told in ended.result["stories"]] == ["A", "C"]
    assert dropped["title"] == "B"
    assert dropped["duplicate_of"] == ended.result["stories"][0]["story_id"]
    assert 0.8 <= dropped["similarity"] < 1
    assert names(ended) == ["001-a.json", "001-a.md", "003-c.json", "003-c.md"]


async def test_spec_5_23_stories_of_a_failed_run_do_not_count_for_its_retry(tmp_path: Path) -> None:
    light = ollama.tells(f"# Light\n{LIGHTHOUSE}")
    script = light, ollama.refuses(500, "no"), light, ollama.tells(f"# Clock\n{CLOCK}")
    async with scripted(tmp_path, *script) as (submit, _):
        ended = await submit("story", enable_dedup=True, max_stories=2, retries=1)

    assert ended.status == "COMPLETED"
    assert ended.job.retry_of is not None
    assert [told["title"] for told in ended.result["stories"]] == ["Light", "Clock"]


async def test_spec_5_21_a_hundred_stories_fit_into_a_result(tmp_path: Path) -> None:
    async with scripted(tmp_path, ollama.tells(f"# {'lighthouse ' * 4}{'🌊' * 90}\n", CLOCK)) as (
        submit,
        _,
    ):
        ended = await submit("story", max_stories=100)

    assert (ended.status, len(ended.result["stories"])) == ("COMPLETED", 100)


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"target_length": 299}, "params.target_length: 299 is less than"),
        ({"target_length": 10_001}, "params.target_length: 10001 is greater"),
        ({"max_stories": 0}, "params.max_stories"),
        ({"max_stories": 101}, "params.max_stories"),
        ({"topic": ""}, "params.topic"),
        ({"tags": "sea"}, "params.tags"),
        ({"enable_dedup": "yes"}, "params.enable_dedup"),
        ({"path": "/etc/passwd"}, 'not known: "path"'),
    ],
)
async def test_spec_5_21_parameters_that_do_not_fit_are_refused_at_creation(
    tmp_path: Path, params: dict[str, Any], problem: str
) -> None:
    async with running(tmp_path, LanguageModels()) as (scheduler, _):
        with pytest.raises(Invalid, match=problem):
            await scheduler.submit("story", params)


@pytest.mark.parametrize(
    ("text", "title", "body"),
    [
        ("# The *Sea*\nIt was.", "The Sea", "It was."),
        ("## **The Sea**\n\nIt was.", "The Sea", "It was."),
        ("**The Sea**\nIt was.", "The Sea", "It was."),
        ("Title: “The Sea”\n\nIt was.", "The Sea", "It was."),
        ("The Sea\n\nIt was.", "The Sea", "It was."),
        ("It was a dark night.\n\nIt was.", "The topic", "It was a dark night.\n\nIt was."),
        ("It was. And then the", "The topic", "It was. And then the"),
        ("It was a very long evening at sea. And then", "The topic", "It was a very long evening at sea."),
    ],
)
def test_a_title_is_the_first_heading_or_else_the_topic(text: str, title: str, body: str) -> None:
    assert titled(text, "the topic") == (title, body)


def test_without_a_topic_the_title_is_how_the_story_begins() -> None:
    assert titled("It was a dark night. " * 9, None)[0] == "It was a dark night. It was a dark night. It was…"


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("../../etc/passwd", "etc-passwd"),
        ("Ünder the Sea!", "ünder-the-sea"),
        ("바다 이야기", "바다-이야기"),
        ("등대", "등대"),
        ("समुद्र की कहानी", "समुद्र-की-कहानी"),
        ("مدينة/الملح", "مدينة-الملح"),
        ("𠀀" * 50, "𠀀" * 30),
        ("♥♥♥", "story"),
        ("..", "story"),
        ("a\0b\nc", "a-b-c"),
        ("word " * 50, "word-word-word-word-word-word-word-word"),
    ],
)
def test_spec_18_6_a_file_name_is_safe_whatever_the_title(title: str, expected: str) -> None:
    assert slug(title, "story") == expected


def test_text_is_cleaned_of_thoughts_controls_and_broken_signs() -> None:
    assert clean("<think>well\n</think>\n\nA\x00B\x1b[0m\r\nC\ud83d" + "\ude00 \ud800") == "AB[0m\nC😀 \ufffd"


def test_a_sentence_that_was_cut_off_is_left_out_unless_it_is_most_of_the_text() -> None:
    assert whole_sentences("One two three. “Four five six!” Seven") == "One two three. “Four five six!”"
    assert whole_sentences("One. Two three four five six seven") == "One. Two three four five six seven"


async def test_spec_5_24_files_are_written_all_or_none(tmp_path: Path) -> None:
    (tmp_path / "b.json").mkdir()

    with pytest.raises(OSError, match=r"b\.json"):
        await write_files(tmp_path, {"a.md": "text", "b.json": "{}"})

    assert [path.name for path in tmp_path.iterdir()] == ["b.json"]


async def test_spec_7_2_a_run_that_is_told_to_stop_while_it_writes_leaves_whole_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_writing, may_go_on = threading.Event(), threading.Event()

    def fsync(_: int) -> None:
        is_writing.set()
        may_go_on.wait(10)

    monkeypatch.setattr(os, "fsync", fsync)

    writing = asyncio.ensure_future(write_files(tmp_path, {"a.md": "text", "b.json": "{}"}))
    await asyncio.to_thread(is_writing.wait)

    writing.cancel()
    await asyncio.wait([writing], timeout=0.05)

    assert not writing.done()
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await writing

    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.md", "b.json"]


def test_similar_texts_have_similar_sketches() -> None:
    near = LIGHTHOUSE.replace("slow and steady", "slow and strong")

    assert similarity(sketch(LIGHTHOUSE), sketch(LIGHTHOUSE)) == 1
    assert 0.8 < similarity(sketch(LIGHTHOUSE), sketch(near)) < 1
    assert similarity(sketch(LIGHTHOUSE), sketch(CLOCK)) < 0.1
    assert similarity(sketch(LIGHTHOUSE), "not a sketch") == 0
    assert len(sketch(LIGHTHOUSE * 100)) == 172


def test_a_sketch_is_the_same_in_every_release() -> None:
    assert sketch("one two three four").startswith("jSJzIrY1XG5J5LWMdUymaFuJ")


def test_a_fingerprint_ignores_case_layout_and_punctuation() -> None:
    assert fingerprint("Once, upon\n a TIME.") == fingerprint("once upon – a time")
    assert fingerprint("Once upon a time") != fingerprint("Once upon a tide")


def test_the_most_similar_known_story_is_the_one_that_is_named() -> None:
    near = LIGHTHOUSE.replace("a letter", "a poem")
    known = [KnownText(fingerprint(text), sketch(text), name) for text, name in ((CLOCK, "clock"), (near, "near"))]

    found = find_duplicate(fingerprint(LIGHTHOUSE), sketch(LIGHTHOUSE), known)

    assert found is not None
    assert found.story_id == "near"
    assert find_duplicate(fingerprint(LIGHTHOUSE), sketch(LIGHTHOUSE), known, threshold=0.999) is None


async def test_spec_5_21_without_saving_there_is_one_story_and_its_text_is_the_result(tmp_path: Path) -> None:
    async with scripted(tmp_path, ollama.tells(f"# Light\n\n{LIGHTHOUSE}")) as (submit, _):
        ended = await submit("story", save_output=False)
        with pytest.raises(Invalid) as refused:
            await submit("story", save_output=False, max_stories=2)

    [told] = ended.result["stories"]
    assert (told["text"], told["file"], told["metadata"]) == (LIGHTHOUSE, None, None)
    assert names(ended) == []
    assert refused.value.problems[0].field == "params.max_stories"
