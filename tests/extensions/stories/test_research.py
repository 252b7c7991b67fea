"""The job type `research`: a card from whatever form of answer a model gives, against a scripted Ollama on a socket."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from nextslot.errors import Invalid
from nextslot.extensions.stories.language_models import LanguageModels
from nextslot.extensions.stories.research import card_of
from tests.extensions.stories import ollama_server as ollama
from tests.extensions.stories.language_jobs import artifact, failure_kind, front_matter, names, running, scripted

TOPIC = "how tidal power stations work"
CARD = {
    "title": "Tidal Power",
    "summary": "Tides turn turbines. The moon pays for it.",
    "key_concepts": ["barrage", "turbine", "tidal range"],
    "applications": ["power for harbours", "desalination"],
}


async def test_spec_5_22_research_leaves_a_card_as_json_and_markdown(tmp_path: Path) -> None:
    async with scripted(tmp_path, ollama.tells(*json.dumps(CARD).partition("turbines"))) as (submit, server):
        ended = await submit("research", topic=TOPIC, tags=["energy"], model="ollama:big")

    card = json.loads(artifact(tmp_path, ended, "card-tidal-power.json"))
    text = artifact(tmp_path, ended, "card-tidal-power.md")
    assert names(ended) == ["card-tidal-power.json", "card-tidal-power.md"]
    assert CARD.items() <= card.items()
    assert json.loads(card["raw"]) == CARD
    assert (card["topic"], card["tags"], card["model"]) == (TOPIC, ["energy"], "ollama:big")
    assert front_matter(text).items() <= card.items()
    assert "## Key concepts\n\n- barrage\n- turbine\n- tidal range\n\n## Applications\n\n- power" in text
    assert ended.result["card_id"] == card["card_id"]
    assert ended.result["file"] == "card-tidal-power.md"
    assert server.calls[0].body["format"]["required"] == list(CARD)


async def test_spec_5_22_an_answer_out_of_form_still_makes_a_card(tmp_path: Path) -> None:
    prose = "Tidal stations harness the movement of water through turbines. " * 3 + "Turbines harness tides."

    async with scripted(tmp_path, ollama.tells(prose)) as (submit, _):
        ended = await submit("research", topic=TOPIC)

    [name] = [name for name in names(ended) if name.endswith(".json")]
    card = json.loads(artifact(tmp_path, ended, name))
    assert card["title"] == "How tidal power stations work"
    assert card["summary"] == prose
    assert "turbines" in card["key_concepts"]
    assert (card["read_from"], card["raw"]) == ("text", prose)


async def test_spec_5_22_a_model_that_takes_too_long_is_a_timeout(tmp_path: Path) -> None:
    async with scripted(tmp_path, ollama.talks_and_waits("{")) as (submit, server):
        ended = await submit("research", topic=TOPIC, timeout=0.2)
        async with asyncio.timeout(5):
            await server.hung_up.wait()

    assert (ended.status, failure_kind(ended), names(ended)) == ("FAILED", "timeout", [])
    assert "did not finish its answer within 0.2 seconds" in (ended.error or "")


async def test_spec_5_24_research_that_fails_leaves_nothing(tmp_path: Path) -> None:
    async with scripted(tmp_path, ollama.refuses(404, '{"error": "model not found"}')) as (submit, _):
        ended = await submit("research", topic=TOPIC, model="absent")

    assert (ended.status, failure_kind(ended), names(ended)) == ("FAILED", "invalid", [])
    assert "has no model 'absent'" in (ended.error or "")


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({}, '"topic" is missing'),
        (
            {"topic": "too short"},
            r"^params\.topic has 9 characters without blanks at its ends; it must have at least 10, in",
        ),
        ({"topic": "short     "}, "params.topic has 5 characters"),
        ({"topic": "x" * 201}, "params.topic"),
        ({"topic": TOPIC, "timeout": 0}, "params.timeout"),
        ({"topic": TOPIC, "output": "/tmp"}, '"output" is not known'),
    ],
)
async def test_spec_5_22_parameters_that_do_not_fit_are_refused_at_creation(
    tmp_path: Path, params: dict[str, Any], problem: str
) -> None:
    async with running(tmp_path, LanguageModels()) as (scheduler, _):
        with pytest.raises(Invalid, match=problem):
            await scheduler.submit("research", params)


WHOLE = json.dumps(CARD)

ANSWERS = {
    "as asked": WHOLE,
    "in a fence": f"Here it is:\n```json\n{WHOLE}\n```\nGood luck!",
    "with other keys": WHOLE.replace('"key_concepts"', '"Key Concepts"').replace('"title"', '"Title"'),
    "with a line break in a string": WHOLE.replace("turbines. ", "turbines.\n"),
    "with objects in a list": WHOLE.replace('"barrage"', '{"name": "barrage"}'),
    "with text for a list": WHOLE.replace('["barrage", "turbine", "tidal range"]', '"barrage, turbine, tidal range"'),
    "cut off": WHOLE[:-2] + ", ",
    "in sections": (
        "# Tidal Power\n\n## Summary\nTides turn turbines.\nThe moon pays for it.\n\n"
        "## Key Concepts\n- barrage\n* turbine\n3. tidal range\n\n"
        "**Applications:**\n- power for harbours\n- desalination"
    ),
    "with labels": (
        "Title: Tidal Power\nSummary: Tides turn turbines. The moon pays for it.\n"
        "Key concepts: barrage, turbine, tidal range\nApplications: power for harbours; desalination"
    ),
}


@pytest.mark.parametrize("form", ANSWERS)
def test_a_card_is_read_from_many_forms_of_answer(form: str) -> None:
    card = card_of(ANSWERS[form], TOPIC)

    found = {"title": card.title, "summary": card.summary, "key_concepts": card.key_concepts}
    assert {**found, "applications": card.applications} == CARD
    assert card.source == ("json" if form not in ("in sections", "with labels") else "sections")


ODD = {
    "an open brace": "{",
    "braces that do not fit": "{]",
    "another object": '{"a": 1}',
    "deep arrays": "[" * 5000,
    "deep objects": '{"summary": ' * 3000,
    "one sign": "😀",
    "an empty heading": "# ",
    "a bullet": "- x",
    "an open escape": '{"title":"\\',
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_no_answer_is_too_odd_for_a_card(text: str) -> None:
    card = card_of(text, TOPIC)

    assert card.title
    assert card.summary


def test_bullet_points_in_plain_text_become_the_key_concepts() -> None:
    card = card_of("# Tides\n\nThey rise.\n\n- the moon\n- the sun\n", TOPIC)

    assert (card.title, card.key_concepts, card.source) == ("Tides", ["the moon", "the sun"], "text")
