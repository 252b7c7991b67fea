"""The job type `research`: asks a model about a topic, and writes a research card as JSON and as Markdown."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from nextslot.domain import FailureKind
from nextslot.errors import Problem
from nextslot.executors.job_types import JobType, JobTypes, Note
from nextslot.executors.run_context import RunContext
from nextslot.system.clock import Clock, SystemClock
from nextslot.system.instant import Instant

from .documents import MOST_OF_A_TITLE, as_json, clean, markdown, shortened, slug, whole_sentences, write_files
from .language_models import LanguageModels, ModelName, model_problems, resource_for
from .providers import GenerateOptions
from .similarity import KnownText, find_duplicate, fingerprint, sketch

# The usual length of an answer, to estimate the progress.
EXPECTED_CHARACTERS = 1500
MOST_IN_A_LIST = 12
# The longest summary in a result; the files have the whole summary.
MOST_OF_A_SUMMARY = 4000

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "topic": {
            "type": "string",
            "minLength": 2,
            "maxLength": 200,
            "description": "10 to 200 characters; 2 are enough in Chinese, Japanese and Korean",
        },
        "tags": {
            "type": "array",
            "maxItems": 50,
            "items": {"type": "string", "minLength": 1, "maxLength": 100},
            "default": [],
        },
        "model": {"type": ["string", "null"], "minLength": 1, "maxLength": 200},
        "timeout": {
            "type": ["number", "null"],
            "exclusiveMinimum": 0,
            "maximum": 86_400,
            "description": "seconds that the model has for its answer",
        },
        "enable_dedup": {
            "type": "boolean",
            "default": False,
            "description": "skip a card that is the same as, or much like, an earlier completed one",
        },
    },
    "required": ["topic"],
    "additionalProperties": False,
}

SYSTEM = "You are a careful researcher. You answer with one JSON object and nothing else."

_TEXT_LIST = {"type": "array", "items": {"type": "string", "minLength": 3, "maxLength": 160}}
# The form of an answer, for servers that support one; its bounds keep a small model from endless repetition.
FORMAT: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 3, "maxLength": 80},
        "summary": {"type": "string", "minLength": 40, "maxLength": 900},
        "key_concepts": {**_TEXT_LIST, "minItems": 3, "maxItems": 6},
        "applications": {**_TEXT_LIST, "minItems": 2, "maxItems": 5},
    },
    "required": ["title", "summary", "key_concepts", "applications"],
}


# Reads the cards of COMPLETED runs of an office only, so that a retry does not find the card of its own failed run.
EarlierCards = Callable[[str], Awaitable[Iterable[KnownText]]]


async def no_earlier_cards(office_id: str) -> Iterable[KnownText]:
    return ()


def register_research(
    job_types: JobTypes,
    models: LanguageModels,
    *,
    earlier_cards: EarlierCards = no_earlier_cards,
    clock: Clock | None = None,
    note: Note | None = None,
) -> JobType:
    return job_types.register(
        "research",
        ResearchHandler(models, earlier_cards, clock or SystemClock()),
        params_schema=SCHEMA,
        infer_resources=lambda params: resource_for(params, models.config),
        check=lambda params: [*_topic_problems(params), *model_problems(params, models.config)],
        note=note,
    )


# A topic needs ten characters, blanks at its ends not counted; in Chinese, Japanese and Korean two are enough.
_LONG_ENOUGH = re.compile(r"\S[\s\S]{8,}\S|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af][\s\S]*\S")


def _topic_problems(params: Mapping[str, Any]) -> list[Problem]:
    topic = params.get("topic")
    if topic is None or _LONG_ENOUGH.search(topic):
        return []
    counted = f"has {len(topic.strip())} characters without blanks at its ends"
    return [Problem("params.topic", f"{counted}; it must have at least 10, in Chinese, Japanese and Korean 2")]


@dataclass(frozen=True, slots=True)
class ResearchCard:
    """A research card; `source` is the form of the answer from which the card was read: json, sections or text."""

    title: str
    summary: str
    key_concepts: list[str]
    applications: list[str]
    source: str

    @property
    def compared(self) -> str:
        """Returns the text for comparisons with other cards."""
        return "\n".join([self.summary, *self.key_concepts, *self.applications])


class ResearchHandler:
    def __init__(self, models: LanguageModels, earlier_cards: EarlierCards, clock: Clock) -> None:
        self._models = models
        self._earlier_cards = earlier_cards
        self._clock = clock

    async def __call__(
        self,
        run: RunContext,
        topic: str,
        tags: Iterable[str] = (),
        model: str | None = None,
        timeout: float | None = None,
        enable_dedup: bool = False,
    ) -> dict[str, Any]:
        topic = topic.strip()
        name = self._models.name(model)
        text = clean(await self._ask(run, name, topic, timeout))
        if not text:
            run.fail("the model gave an empty answer: thoughts, and nothing else")
        card = card_of(text, topic)
        marks = fingerprint(card.compared), await asyncio.to_thread(sketch, card.compared)
        if enable_dedup:
            await self._skip_duplicate(run, card, *marks)
        return await self._keep(run, name, topic, list(tags), card, text, marks)

    async def research(self, run: RunContext, topic: str, model: str | None) -> ResearchCard:
        """Returns a card about a topic from a model, for work that uses the card itself."""
        text = clean(await self._ask(run, self._models.name(model), topic, None))
        if not text:
            run.fail("the model gave an empty answer: thoughts, and nothing else")
        return card_of(text, topic)

    async def _skip_duplicate(self, run: RunContext, card: ResearchCard, mark: str, drawn: str) -> None:
        same = await asyncio.to_thread(find_duplicate, mark, drawn, await self._earlier_cards(run.office_id))
        if same is not None:
            run.skip(f"the card is a duplicate (“{card.title}”: {same.likeness('card')})")

    async def _ask(self, run: RunContext, name: ModelName, topic: str, timeout: float | None) -> str:
        run.log.info("asking %s about %r", name, topic)
        run.progress(0, f"waiting for {name}")
        text = ""
        options = GenerateOptions(max_tokens=1500, temperature=0.4, max_characters=40_000, format=FORMAT)
        try:
            async with (
                asyncio.timeout(timeout),
                aclosing(self._models.generate(name, _prompt(topic), SYSTEM, options)) as chunks,
            ):
                async for chunk in chunks:
                    text += chunk
                    run.progress(min(0.99, len(text) / EXPECTED_CHARACTERS), f"{len(text):,} characters")
        except TimeoutError:
            run.fail(f"{name} did not finish its answer within {timeout:g} seconds", FailureKind.TIMEOUT)
        return text

    async def _keep(
        self,
        run: RunContext,
        name: ModelName,
        topic: str,
        tags: list[str],
        card: ResearchCard,
        raw: str,
        marks: tuple[str, str],
    ) -> dict[str, Any]:
        about = {
            "topic": topic,
            "tags": tags,
            "model": str(name),
            "job_id": run.job_id,
            "run_id": run.run_id,
            "created_at": str(self._clock.now()),
        }
        result, files = result_of(run.run_id, card, about, {"read_from": card.source, "raw": raw}, marks)
        await write_files(run.artifacts, files)
        run.log.info("wrote %s: %r, read from %s", result["file"], card.title, card.source)
        return result


def result_of(
    run_id: str, card: ResearchCard, about: Mapping[str, Any], more: Mapping[str, Any], marks: tuple[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the result of a run that made a card, and its files."""
    about = {"card_id": run_id, "title": card.title, **about}
    texts = {"key_concepts": card.key_concepts, "applications": card.applications}
    stem = f"card-{slug(card.title, 'research')}"
    files = {
        f"{stem}.json": as_json({**about, "summary": card.summary, **texts, **more}),
        f"{stem}.md": markdown(about, _body(card)),
    }
    return {
        "card_id": run_id,
        "title": card.title,
        "topic": about["topic"],
        "tags": about["tags"],
        "summary": shortened(card.summary, MOST_OF_A_SUMMARY),
        **texts,
        "model": about["model"],
        "file": f"{stem}.md",
        "metadata": f"{stem}.json",
        # The fingerprint for comparisons with other cards.
        "fingerprint": marks[0],
        "sketch": marks[1],
    }, files


def past_result(
    run_id: str, job_id: str, at: Instant, told: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the result and the files of a run that made this card elsewhere."""
    card = ResearchCard(
        title=told["title"],
        summary=told["summary"],
        key_concepts=told["key_concepts"],
        applications=told["applications"],
        source="adopted",
    )
    about = {name: told[name] for name in ("topic", "tags", "model", "adopted_from")}
    about |= {"job_id": job_id, "run_id": run_id, "created_at": str(at)}
    return result_of(run_id, card, about, {}, (fingerprint(card.compared), sketch(card.compared)))


def _prompt(topic: str) -> str:
    return (
        f"Write a research card about this topic: {topic}\n\n"
        "Answer in the language of the topic, as JSON with title, summary (one paragraph),"
        " key_concepts (3 to 6 short phrases) and applications (2 to 5 short phrases)."
    )


def _body(card: ResearchCard) -> str:
    parts = [f"# {card.title}", "## Summary", card.summary]
    for heading, items in (("Key concepts", card.key_concepts), ("Applications", card.applications)):
        if items:
            parts += [f"## {heading}", "\n".join(f"- {item}" for item in items)]
    return "\n\n".join(parts)


def card_of(text: str, topic: str) -> ResearchCard:
    """Makes a card from an answer of any form: the requested one, sections with headings, or plain text."""
    found = _from_json(text)
    source = "json"
    if found is None:
        found, source = _from_sections(text), "sections"
    if found is None:
        found, source = _from_text(text), "text"
    summary = _line(found.get("summary")) or shortened(text, 600)
    return ResearchCard(
        title=shortened(_line(found.get("title")).strip('*#"“” '), MOST_OF_A_TITLE) or _as_title(topic),
        summary=summary,
        key_concepts=_items(found.get("key_concepts")) or _terms(text),
        applications=_items(found.get("applications")),
        source=source,
    )


def _as_title(topic: str) -> str:
    line = shortened(topic, MOST_OF_A_TITLE)
    return line[:1].upper() + line[1:]


def _from_json(text: str) -> dict[str, Any] | None:
    """Returns the first JSON object with a field of a card, even if its end was cut off."""
    start = text.find("{")
    if start < 0:
        return None
    found = _object(text[start:])
    if found is None:
        return None
    named = {re.sub(r"[^a-z]+", "_", str(name).strip().lower()).strip("_"): value for name, value in found.items()}
    return named if named.keys() & {"summary", "key_concepts", "applications"} else None


def _object(text: str) -> dict[str, Any] | None:
    decoder = json.JSONDecoder(strict=False)
    for attempt in (text, _closed(text)):
        try:
            value, _ = decoder.raw_decode(attempt)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    return None


def _closed(text: str) -> str:
    """Closes the open strings and brackets of a JSON object that was cut off."""
    closers: list[str] = []
    is_string = is_escaped = False
    for sign in text:
        if is_escaped:
            is_escaped = False
        elif is_string:
            is_escaped = sign == "\\"
            is_string = sign != '"'
        elif sign == '"':
            is_string = True
        elif sign in "{[":
            closers.append("}" if sign == "{" else "]")
        elif sign in "}]" and closers:
            closers.pop()
    ended = text[:-1] if is_escaped else text
    ended = ended + '"' if is_string else ended.rstrip().rstrip(",")
    return ended + "".join(reversed(closers))


_HEADING = re.compile(
    r"^[ \t]*(?:#{1,6}[ \t]*|\*\*|\d+[.)][ \t]*)*(title|summary|key[ _-]?concepts|applications)\b[ \t*]*:?[ \t*]*(.*)$",
    re.IGNORECASE | re.MULTILINE,
)


def _from_sections(text: str) -> dict[str, Any] | None:
    """Splits a text at headings such as `## Summary` or `Key concepts:`."""
    matches = list(_HEADING.finditer(text))
    sections: dict[str, str] = {}
    for match, following in pairwise([*matches, None]):
        assert match is not None
        name = re.sub(r"[ -]", "_", match[1].lower()).replace("keyconcepts", "key_concepts")
        body = text[match.end() : following.start() if following else len(text)]
        sections.setdefault(name, f"{match[2]}\n{body}".strip())
    if "summary" not in sections or len(sections) < 2:
        return None
    if (
        "title" not in sections
        and (heading := re.match(r"#{1,6}\s+(.+)", text))
        and heading.end() <= matches[0].start()
    ):
        sections["title"] = heading[1]
    return dict(sections)


def _from_text(text: str) -> dict[str, Any]:
    """Makes a card from prose: its first sentences, and its bullet points if it has any."""
    paragraphs = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
    prose = next((part for part in paragraphs if len(part) >= 80 and not part.startswith(("#", "-", "*", "{"))), text)
    heading = re.match(r"#{1,6}\s+(.+)", text)
    bullets = re.findall(r"^[ \t]*(?:[-*•]|\d+[.)])[ \t]+(.+)$", text, re.MULTILINE)
    return {
        "title": heading[1] if heading else "",
        "summary": whole_sentences(shortened(prose, 600).rstrip("…")),
        "key_concepts": bullets,
    }


def _line(value: Any) -> str:
    return " ".join(value.split()) if isinstance(value, str) else ""


def _items(value: Any) -> list[str]:
    """Returns a list from any form that models write: an array, an object, bullet points, or commas."""
    if isinstance(value, Mapping):
        value = [f"{name}: {text}" if isinstance(text, str) else str(name) for name, text in value.items()]
    if isinstance(value, str):
        lines = value.splitlines()
        value = lines if len(lines) > 1 else re.split(r"[;,]", value)
    if not isinstance(value, list):
        return []
    texts = (next((text for text in one.values() if isinstance(text, str)), "") if isinstance(one, dict) else one
             for one in value)  # fmt: skip
    lines = [re.sub(r"^\s*(?:[-*•]|\d+[.)])\s*", "", text).strip("* \t") for text in texts if isinstance(text, str)]
    return [shortened(line, 200) for line in dict.fromkeys(lines) if line][:MOST_IN_A_LIST]


def _terms(text: str) -> list[str]:
    """Returns the most frequent long words, for a text without key concepts."""
    words = [word.lower() for word in re.findall(r"[^\W\d_]{6,}", text)]
    return [word for word, _ in Counter(words).most_common(5)]
