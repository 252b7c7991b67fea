"""The job type `story`: requests stories from a model, and writes each as Markdown and JSON to the run's artifacts."""

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from nextslot.errors import Problem
from nextslot.executors.job_types import JobType, JobTypes, Note
from nextslot.executors.run_context import RunContext
from nextslot.system.clock import Clock, SystemClock
from nextslot.system.instant import Instant

from . import styles
from .documents import MOST_OF_A_TITLE, as_json, clean, markdown, shortened, slug, whole_sentences, write_files
from .language_models import LanguageModels, LlmConfig, ModelName, model_problems, resource_for
from .providers import GenerateOptions
from .research import ResearchHandler, no_earlier_cards
from .similarity import THRESHOLD, Duplicate, KnownText, find_duplicate, fingerprint, sketch
from .story_research import Source, StoryResearch
from .styles import DEFAULT_LENGTH, DEFAULT_TEMPERATURE, PLACES, SYSTEM, Style, unknown_places

# The longest title in a result, where a hundred stories must fit into 64 KiB; the files have the whole title.
MOST_OF_A_TITLE_BYTES = 96

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "topic": {"type": ["string", "null"], "minLength": 1, "maxLength": 500},
        "model": {"type": ["string", "null"], "minLength": 1, "maxLength": 200},
        "target_length": {
            "type": ["integer", "null"],
            "minimum": 300,
            "maximum": 10_000,
            "description": f"about how many characters a story has; {DEFAULT_LENGTH:,} unless said",
        },
        "max_stories": {"type": "integer", "minimum": 1, "maximum": 100, "default": 1},
        "enable_dedup": {
            "type": "boolean",
            "default": False,
            "description": "drop stories that are the same as, or much like, an earlier completed one",
        },
        "style": {
            "type": ["string", "null"],
            "minLength": 1,
            "maxLength": 100,
            "description": "a named style of the configuration; the parameters from here on override parts of it",
        },
        "genre": {"type": ["string", "null"], "minLength": 1, "maxLength": 100},
        "language": {"type": ["string", "null"], "minLength": 1, "maxLength": 100},
        "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2},
        "system": {"type": ["string", "null"], "minLength": 1, "maxLength": 4000, "description": "the system prompt"},
        "template": {
            "type": ["string", "null"],
            "minLength": 1,
            "maxLength": 4000,
            "description": "the prompt, with {topic}, {genre}, {language}, {words} and {tags}",
        },
        "research_card": {
            "type": ["string", "null"],
            "minLength": 1,
            "maxLength": 200,
            "description": "the id of a research card that the story is told from",
        },
        "auto_research": {
            "type": ["boolean", "null"],
            "default": False,
            "description": "research the topic first, unless there is a card about it; null: only use such a card",
        },
        "research_model": {"type": ["string", "null"], "minLength": 1, "maxLength": 200},
        "save_output": {
            "type": "boolean",
            "default": True,
            "description": "false: no files; the text of the story, of which there is one, is in the result",
        },
        "tags": {
            "type": "array",
            "maxItems": 50,
            "items": {"type": "string", "minLength": 1, "maxLength": 100},
            "default": [],
        },
    },
    "additionalProperties": False,
    # Without files, only one story: the texts of many would not fit into a result.
    "if": {"properties": {"save_output": {"const": False}}, "required": ["save_output"]},
    "then": {"properties": {"max_stories": {"const": 1}}},
}

# Reads the stories of COMPLETED runs of an office, so that a retry does not find the stories of its own failed run.
EarlierStories = Callable[[str], Awaitable[Iterable[KnownText]]]


async def no_earlier_stories(office_id: str) -> Iterable[KnownText]:
    return ()


def register_story(
    job_types: JobTypes,
    models: LanguageModels,
    *,
    earlier_stories: EarlierStories = no_earlier_stories,
    research: StoryResearch | None = None,
    threshold: float = THRESHOLD,
    clock: Clock | None = None,
    note: Note | None = None,
) -> JobType:
    clock = clock or SystemClock()
    research = research or StoryResearch(ResearchHandler(models, no_earlier_cards, clock))
    return job_types.register(
        "story",
        StoryHandler(models, earlier_stories, research, threshold, clock),
        params_schema=SCHEMA,
        infer_resources=lambda params: resource_for(params, models.config),
        check=lambda params: [*model_problems(params, models.config), *_style_problems(params, models.config)],
        note=note,
    )


def _style_problems(params: Mapping[str, Any], config: LlmConfig) -> list[Problem]:
    name, template = params.get("style"), params.get("template")
    problems = []
    if name is not None and name not in config.styles:
        there = ", ".join(sorted(config.styles)) or "none"
        problems.append(Problem("params.style", f"there is no style {name!r}; the configuration has: {there}"))
    if template is not None and (unknown := unknown_places(template)):
        problems.append(Problem("params.template", f"has {{{unknown[0]}}}; it can have {', '.join(PLACES)}"))
    return problems


@dataclass(frozen=True, slots=True)
class Story:
    """A story that a model wrote; its files begin with `stem`."""

    story_id: str
    title: str
    text: str
    stem: str
    fingerprint: str
    sketch: str

    @property
    def words(self) -> int:
        return len(self.text.split())


class StoryHandler:
    def __init__(
        self,
        models: LanguageModels,
        earlier_stories: EarlierStories,
        research: StoryResearch,
        threshold: float,
        clock: Clock,
    ) -> None:
        self._models = models
        self._earlier_stories = earlier_stories
        self._research = research
        self._threshold = threshold
        self._clock = clock

    async def __call__(
        self,
        run: RunContext,
        topic: str | None = None,
        model: str | None = None,
        max_stories: int = 1,
        enable_dedup: bool = False,
        tags: Iterable[str] = (),
        save_output: bool = True,
        research_card: str | None = None,
        auto_research: bool | None = False,
        research_model: str | None = None,
        **style: Any,
    ) -> dict[str, Any]:
        name = self._models.name(model)
        sources = await self._research.sources(run, topic, research_card, auto_research, research_model)
        wanted = _Wanted(topic, self._style(run, style), max_stories, list(tags), sources)
        known = list(await self._earlier_stories(run.office_id)) if enable_dedup else []
        kept: list[Story] = []
        dropped: list[tuple[Story, Duplicate]] = []
        for index in range(1, max_stories + 1):
            story = await self._write(run, name, wanted, index, [story.title for story in kept])
            same = await asyncio.to_thread(_duplicate, story, known, self._threshold) if enable_dedup else None
            if same is not None:
                dropped.append((story, same))
                run.log.info("story %d, %r, is dropped: %s", index, story.title, same.likeness())
                continue
            if save_output:
                await self._keep(run, name, wanted, story)
            kept.append(story)
            known.append(KnownText(story.fingerprint, story.sketch, story.story_id))
        if not kept:
            run.skip(_reason(dropped))
        return {
            "model": str(name),
            **({"research": [one.to_dict() for one in sources]} if sources else {}),
            "stories": [_summary(story) if save_output else _unsaved(story) for story in kept],
            "dropped": [_dropped(story, same) for story, same in dropped],
        }

    def _style(self, run: RunContext, given: Mapping[str, Any]) -> Style:
        named = given.get("style")
        if named is None:
            return styles.of_params(given)
        found = self._models.config.styles.get(named)
        if found is None:  # The style existed when the job was submitted.
            run.fail(f"the configuration has no style {named!r} any more", "invalid")
        return styles.of_params(given).over(found)

    async def _write(self, run: RunContext, name: ModelName, wanted: "_Wanted", index: int, titles: list[str]) -> Story:
        """Requests one story, and reports the progress."""
        text = ""
        of_all = f"story {index} of {wanted.count}" if wanted.count > 1 else "the story"
        run.log.info("asking %s for %s, about %d characters", name, of_all, wanted.length)
        run.progress((index - 1) / wanted.count, f"waiting for {name}")
        chunks = self._models.generate(name, wanted.prompt(titles), wanted.style.system or SYSTEM, wanted.options())
        async with aclosing(chunks):
            async for chunk in chunks:
                text += chunk
                done = min(0.99, len(text) / wanted.length)
                run.progress((index - 1 + done) / wanted.count, f"{of_all}: {len(text):,} characters")
        title, body = titled(clean(text), wanted.topic)
        if not body:
            run.fail("the model gave an empty answer: a title or thoughts, and no story")
        return Story(
            story_id=f"{run.run_id}-{index:03}",
            title=title,
            text=body,
            stem=f"{index:03}-{slug(title, 'story')}",
            fingerprint=fingerprint(body),
            sketch=await asyncio.to_thread(sketch, body),
        )

    async def _keep(self, run: RunContext, name: ModelName, wanted: "_Wanted", story: Story) -> None:
        about = {
            "topic": wanted.topic,
            "tags": wanted.tags,
            "model": str(name),
            "job_id": run.job_id,
            "run_id": run.run_id,
            "created_at": str(self._clock.now()),
            **({"research": [one.to_dict() for one in wanted.sources]} if wanted.sources else {}),
        }
        await write_files(run.artifacts, files_of(story, about, {"target_length": wanted.length}))
        run.log.info("wrote %s.md: %r, %d words", story.stem, story.title, story.words)


def files_of(story: Story, about: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, str]:
    """Returns the files of a story: Markdown for readers, JSON with all known facts."""
    front = {
        "story_id": story.story_id,
        "title": story.title,
        **about,
        "words": story.words,
        "characters": len(story.text),
    }
    more = {**more, "fingerprint": story.fingerprint, "sketch": story.sketch}
    return {
        f"{story.stem}.md": markdown(front, f"# {story.title}\n\n{story.text}"),
        f"{story.stem}.json": as_json({**front, **more, "file": f"{story.stem}.md"}),
    }


def past_result(
    run_id: str, job_id: str, at: Instant, told: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the result and the files of a run that wrote these stories elsewhere."""
    files: dict[str, str] = {}
    stories = []
    for index, one in enumerate(told, 1):
        story = Story(
            story_id=f"{run_id}-{index:03}",
            title=one["title"],
            text=one["text"],
            stem=f"{index:03}-{slug(one['title'], 'story')}",
            fingerprint=fingerprint(one["text"]),
            sketch=sketch(one["text"]),
        )
        stories.append({**_summary(story), "topic": one["topic"], "tags": one["tags"]})
        about = {name: one[name] for name in ("topic", "tags", "model", "adopted_from")}
        files |= files_of(story, {**about, "job_id": job_id, "run_id": run_id, "created_at": str(at)}, {})
    return {"model": told[0]["model"], "stories": stories, "dropped": []}, files


@dataclass(frozen=True, slots=True)
class _Wanted:
    topic: str | None
    style: Style
    count: int
    tags: list[str]
    sources: list[Source]

    @property
    def length(self) -> int:
        return self.style.length or DEFAULT_LENGTH

    def prompt(self, titles: list[str]) -> str:
        parts = self.style.request(self.topic, self.tags)
        if self.sources:
            parts += ["It is told from this research:", *(f"- {source.prompt}" for source in self.sources)]
        if titles:
            parts.append(f"It is quite different from these: {'; '.join(titles[-10:])}.")
        parts.append("Its first line is its title, as a Markdown heading (# Title).")
        return "\n".join(parts)

    def options(self) -> GenerateOptions:
        # English has about four characters per token, other scripts one or two; a little room lets the story end.
        is_latin = not self.topic or sum(sign < "\u0250" for sign in self.topic) > len(self.topic) / 2
        tokens = math.ceil(self.length * (0.3 if is_latin else 1.0)) + 64
        temperature = DEFAULT_TEMPERATURE if self.style.temperature is None else self.style.temperature
        return GenerateOptions(max_tokens=tokens, temperature=temperature, max_characters=8 * self.length)


def titled(text: str, topic: str | None) -> tuple[str, str]:
    """Returns the title and the text. If a small model omitted the title, it is the topic or the first words."""
    first, _, rest = text.lstrip("\n").partition("\n")
    line = first.strip()
    heading = re.fullmatch(r"#{1,6}\s+(.+?)\s*#*|\*\*(.+?)\*\*|title\s*:\s*(.+)", line, re.IGNORECASE)
    if heading is not None:
        title = _plain(next(part for part in heading.groups() if part is not None))
    elif rest.startswith("\n") and len(line) <= 80 and not re.search(r"[.!?:,;…]$", line):
        title = _plain(line)
    else:
        title, rest = "", text
    if title:
        return title, whole_sentences(rest.strip())
    words = shortened(topic, 60) if topic and topic.strip() else shortened(text, 50)
    return _plain(words[:1].upper() + words[1:]) or "A story", whole_sentences(rest.strip())


def _plain(title: str) -> str:
    """Returns a title without the marks that models put around it."""
    bare = re.sub(r"^[\s_#]*title\s*:", "", title.replace("*", "").replace("`", ""), flags=re.IGNORECASE)
    return shortened(bare.strip('_#"“” \t'), MOST_OF_A_TITLE)


def _duplicate(story: Story, known: list[KnownText], threshold: float) -> Duplicate | None:
    return find_duplicate(story.fingerprint, story.sketch, known, threshold)


def _reason(dropped: list[tuple[Story, Duplicate]]) -> str:
    """Returns why a run kept no story: all were duplicates."""
    named = "; ".join(f"“{story.title}”: {same.likeness()}" for story, same in dropped[:5])
    more = f"; and {len(dropped) - 5} more" if len(dropped) > 5 else ""
    count = "the story is a duplicate" if len(dropped) == 1 else f"all {len(dropped)} stories are duplicates"
    return f"{count} ({named}{more})"


def _summary(story: Story) -> dict[str, Any]:
    return {
        "story_id": story.story_id,
        "title": _cut(story.title),
        "file": f"{story.stem}.md",
        "metadata": f"{story.stem}.json",
        "words": story.words,
        "characters": len(story.text),
        "fingerprint": story.fingerprint,
        "sketch": story.sketch,
    }


def _unsaved(story: Story) -> dict[str, Any]:
    """Returns a story with its text, without files."""
    return {**_summary(story), "title": story.title, "file": None, "metadata": None, "text": story.text}


def read_story(markdown: str) -> tuple[str, str]:
    """Returns the title and the text from the file that `StoryHandler` wrote."""
    title, _, text = markdown.partition("\n---\n\n")[2].partition("\n\n")
    return title.removeprefix("# "), text.removesuffix("\n")


def _dropped(story: Story, same: Duplicate) -> dict[str, Any]:
    return {
        "title": _cut(story.title),
        "duplicate_of": same.story_id,
        "similarity": round(same.similarity, 3),
    }


def _cut(title: str) -> str:
    return title.encode()[:MOST_OF_A_TITLE_BYTES].decode("utf-8", "ignore")
