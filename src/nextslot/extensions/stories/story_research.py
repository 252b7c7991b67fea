"""Finds the research for a story: cards of the job's prerequisites, a card that the job names, or a new card."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol

from nextslot.errors import NotFound
from nextslot.executors.run_context import RunContext

from .documents import shortened
from .research import ResearchCard

# The largest number of cards in a prompt, and the longest summary of a card.
MOST_CARDS = 5
MOST_OF_A_SUMMARY = 2000


class Source(NamedTuple):
    """A research card as a story uses it."""

    card_id: str | None
    title: str
    summary: str
    key_concepts: list[str]

    @property
    def prompt(self) -> str:
        concepts = f" Key concepts: {'; '.join(self.key_concepts)}." if self.key_concepts else ""
        return f"{self.title}: {shortened(self.summary, MOST_OF_A_SUMMARY)}{concepts}"

    def to_dict(self) -> dict[str, Any]:
        return {"card_id": self.card_id, "title": shortened(self.title, 96)}


# Finds a card of the library by its id, or the newest one about a topic; None if there is none.
# Finds a card of an office: by the id of the office, and an id or a topic.
FindCard = Callable[[str, str], Awaitable[Mapping[str, Any] | None]]


class Researches(Protocol):
    async def research(self, run: RunContext, topic: str, model: str | None) -> ResearchCard:
        """Returns a card about a topic from a model."""


async def no_card(office_id: str, wanted: str) -> Mapping[str, Any] | None:
    return None


class StoryResearch:
    def __init__(self, researcher: Researches, by_id: FindCard = no_card, by_topic: FindCard = no_card) -> None:
        self._researcher = researcher
        self._by_id = by_id
        self._by_topic = by_topic

    async def sources(
        self, run: RunContext, topic: str | None, card_id: str | None, is_automatic: bool | None, model: str | None
    ) -> list[Source]:
        """Returns the cards for a story: those of prerequisites, the named one, or else one about the topic, unless
        `is_automatic` is false. If none exists and `is_automatic` is true, requests one from a model."""
        found = [source for one in run.inputs.values() if one and (source := _source(one.result))]
        if card_id is not None:
            found.append(await self._named(run, card_id))
        if not found and is_automatic is not False and topic:
            known = _source(await self._by_topic(run.office_id, topic.strip()))
            found += [known] if known is not None else []
        if not found and is_automatic and topic:
            found.append(await self._new(run, topic.strip(), model))
        for source in found[:MOST_CARDS]:
            run.log.info("the story is told from the research %r (%s)", source.title, source.card_id or "new")
        return found[:MOST_CARDS]

    async def _named(self, run: RunContext, card_id: str) -> Source:
        try:
            source = _source(await self._by_id(run.office_id, card_id))
        except NotFound:
            source = None
        if source is None:
            run.fail(f"there is no research card {card_id!r}; `nextslot card ls` lists them", "invalid")
        return source

    async def _new(self, run: RunContext, topic: str, model: str | None) -> Source:
        card = await self._researcher.research(run, topic, model)
        return Source(None, card.title, card.summary, card.key_concepts)


def _source(card: Any) -> Source | None:
    """Returns the source in a result of research; None if the result is that of other work."""
    if not isinstance(card, Mapping) or not {"card_id", "title", "summary"} <= card.keys():
        return None
    concepts = card.get("key_concepts")
    return Source(card["card_id"], str(card["title"]), str(card["summary"]), list(concepts) if concepts else [])
