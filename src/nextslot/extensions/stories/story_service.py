"""StoryService: the job types `story` and `research` in one scheduler, and whether a model can answer them."""

import asyncio
import json
import logging
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from nextslot.domain import Json, Page
from nextslot.errors import NotFound
from nextslot.executors.job_types import JobTypes
from nextslot.extension_api import Attached
from nextslot.extension_api.host import Host
from nextslot.services import cursors
from nextslot.system.instant import Instant

from . import library
from . import research as research_cards
from . import story as stories_
from .embedded_model import weights
from .language_models import DEFAULT_MODEL, OLLAMA, LanguageModels, LlmConfig, ProviderConfig, resource_for
from .library import CARDS, STORIES, Entry, Shelf, Wanted
from .research import ResearchHandler, register_research
from .settings import LlmSettings
from .similarity import Duplicate, KnownText, find_duplicate, normalised
from .story import register_story
from .story_research import StoryResearch
from .styles import Style

log = logging.getLogger(__name__)

# How long the check whether a model answers stays valid: every submission of a story needs its result.
FRESH_SECONDS = 5.0


class StoryService(Attached):
    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._is_configured = False
        # The models of the last check, whether one answered, and until when this result is valid.
        self._known: tuple[LanguageModels, bool, float] | None = None
        self._asking = asyncio.Lock()
        self._first_look: asyncio.Task[None] | None = None
        self.models = LanguageModels()
        self.use(self.models)

    def use(self, models: LanguageModels) -> None:
        """Replaces the models of the job types `story` and `research`."""
        self.models = models
        types, clock, note = JobTypes(), self.host.clock, self.note
        researcher = ResearchHandler(models, self._earlier_cards, clock)
        research = StoryResearch(researcher, self._card, self._card_about)
        register_story(types, models, earlier_stories=self._earlier_stories, research=research, clock=clock, note=note)
        register_research(types, models, earlier_cards=self._earlier_cards, clock=clock, note=note)
        self.host.job_types.replace(types.names(), {name: types.get(name) for name in types.names()})
        self.host.probe(OLLAMA, models.answers)

    def configure(self, tables: Mapping[str, Any], data: Path) -> None:
        """Applies `[llm]` once. A changed table needs a restart, because running work still uses the old models."""
        if self._is_configured:
            return
        self._is_configured = True
        settings: LlmSettings = tables["llm"]
        providers = {name: ProviderConfig(one.base_url, one.token_env) for name, one in settings.providers.items()}
        given = {"ollama_base_url": settings.ollama_base_url, "default_model": settings.default_model}
        styles = {name: Style(**one.model_dump()) for name, one in settings.styles.items()}
        named: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        self.use(LanguageModels(replace(LlmConfig.from_environment(providers=providers, styles=styles), **named)))

    def find_model(self) -> str | None:
        """Returns a model for a story: the smallest of an Ollama that answers, else the embedded one if installed."""
        url = self.models.config.ollama_base_url
        try:
            with urllib.request.urlopen(f"{url.rstrip('/')}/api/tags", timeout=2) as answer:
                models = json.load(answer)["models"]
                writers = [model for model in models if "embed" not in model["name"]]
                return f"{OLLAMA}:{min(writers, key=lambda model: model['size'])['name']}" if writers else None
        except (OSError, ValueError, LookupError, TypeError):
            return DEFAULT_MODEL if weights() else None

    # For other extensions: the embedded model also speaks OpenAI's protocol.

    def embedded_models(self) -> list[str]:
        """Returns the names of the embedded models; none if the extra `local-llm` is not installed."""
        return [DEFAULT_MODEL] if self.models.embedded.is_installed else []

    def embedded_server(self) -> AbstractAsyncContextManager[str]:
        """Returns a context manager that keeps the server of the embedded model running, and yields its address."""
        return self.models.embedded.running()

    async def start(self) -> None:
        # The start does not wait for this check: a model server that does not answer takes seconds to time out.
        self._first_look = asyncio.create_task(self._say_at_start(), name="nextslot-stories")

    async def stop(self) -> None:
        if self._first_look is not None:
            self._first_look.cancel()
            await asyncio.wait([self._first_look])
        await self.models.close()

    async def _say_at_start(self) -> None:
        if not await self._answers():
            log.warning("%s", self._unreachable())

    async def note(self, params: Mapping[str, Json]) -> str | None:
        """Returns a sentence for callers who submit or await such a job, if no model answers."""
        asks_local = OLLAMA in resource_for(params, self.models.config)
        return None if not asks_local or await self._answers() else self._unreachable()

    def _unreachable(self) -> str:
        address = self.models.config.ollama_base_url
        return (
            f"No language model answers at {address}, and none is embedded: jobs of the types story and research wait "
            "until one does. Start Ollama, set llm.ollama_base_url, or install the extra local-llm."
        )

    async def _answers(self) -> bool:
        async with self._asking:
            models, loop = self.models, asyncio.get_running_loop()
            if self._known is None or self._known[0] is not models or loop.time() >= self._known[2]:
                self._known = models, await models.answers(), loop.time() + FRESH_SECONDS
            return self._known[1]

    # A story and its office. Cards and texts of other offices are hidden from it.

    async def _earlier_stories(self, office_id: str) -> list[KnownText]:
        return await self.host.work.read(lambda tx: library.earlier(tx, STORIES, office_id))

    async def _earlier_cards(self, office_id: str) -> list[KnownText]:
        return await self.host.work.read(lambda tx: library.earlier(tx, CARDS, office_id))

    async def _card(self, office_id: str, card_id: str) -> Mapping[str, Json]:
        card = await self.entry(CARDS, card_id)
        if card.office_id != office_id:
            raise NotFound(CARDS.kind, card_id)
        return card.told

    async def _card_about(self, office_id: str, topic: str) -> Mapping[str, Json] | None:
        """Returns the newest card of an office about a topic, by its words."""
        wanted = Wanted(offices=(office_id,), topic=normalised(topic))
        found, _ = await self.host.work.read(lambda tx: library.page(tx, CARDS, wanted, None, 1))
        return found[0].told if found else None

    # The library.

    async def entries(self, shelf: Shelf, wanted: Wanted, cursor: str | None, limit: int) -> Page[Entry]:
        """Returns stories or cards, newest first. A page may have fewer than `limit` and still not be the last."""
        after = cursors.decode(shelf.job_type, cursor, (int, str, int))
        found, goes_on = await self.host.work.read(
            lambda tx: library.page(tx, shelf, wanted, after, cursors.checked_limit(limit))  # type: ignore[arg-type]
        )
        return Page(tuple(found), cursors.encode(shelf.job_type, goes_on))

    async def entry(self, shelf: Shelf, entry_id: str) -> Entry:
        found = await self.host.work.read(lambda tx: library.find(tx, shelf, entry_id))
        if found is None:
            raise NotFound(shelf.kind, entry_id)
        return found

    async def likeness(self, shelf: Shelf, entry: Entry) -> Duplicate | None:
        """Returns the most similar earlier text of the same office; None if there is none."""
        known = await self.host.work.read(lambda tx: library.earlier(tx, shelf, entry.office_id, entry.finished_at))
        # Runs in a thread: with thousands of texts this takes a while.
        return await asyncio.to_thread(
            find_duplicate, entry.known.fingerprint, entry.known.sketch, known, threshold=0.0
        )

    # Stories and cards made elsewhere.

    def past_stories(
        self, run_id: str, job_id: str, at: Instant, stories: Sequence[Mapping[str, Any]]
    ) -> tuple[dict[str, Json], dict[str, str]]:
        """Returns the result and the files of a run that wrote these stories; their fingerprints are computed."""
        return stories_.past_result(run_id, job_id, at, stories)

    def past_card(
        self, run_id: str, job_id: str, at: Instant, card: Mapping[str, Any]
    ) -> tuple[dict[str, Json], dict[str, str]]:
        return research_cards.past_result(run_id, job_id, at, card)

    def most_similar_card(self, card: Mapping[str, Json], earlier: Sequence[Json]) -> tuple[str, float] | None:
        """Returns the earlier research card that is most similar to this one, and the similarity from 0 to 1."""
        known = [KnownText(one["fingerprint"], one["sketch"], one["card_id"]) for one in earlier]
        same = find_duplicate(card["fingerprint"], card["sketch"], known, threshold=0.0)
        return None if same is None else (same.story_id, same.similarity)
