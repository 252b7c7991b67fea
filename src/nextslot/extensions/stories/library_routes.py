"""Routes of the library: lists, finds and reads stories and research cards, and how similar one is to earlier ones."""

from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import Query, Request, Response
from pydantic import Field

from nextslot.domain import Scope, json_form
from nextslot.errors import NotFound, Unavailable
from nextslot.server.auth import caller_of, scheduler_for
from nextslot.server.queries import PageQuery, Values, split
from nextslot.server.responses import answer, page
from nextslot.server.route_rules import needs
from nextslot.server.routing import extension_of, router
from nextslot.server.schemas import Page, ResponseModel, Time
from nextslot.services.read_run_files import RunFileService

from .library import CARDS, STORIES, Entry, Shelf, Wanted
from .similarity import Duplicate, signal
from .story import read_story
from .story_service import StoryService

library = router("Library")


class LibraryQuery(PageQuery):
    q: str | None = Field(None, min_length=1, max_length=200, description="Words that it has, in any order")
    tag: str | None = Field(None, min_length=1, max_length=100)
    office_id: Values | None = None


class LibraryEntry(ResponseModel):
    title: str
    topic: str | None
    tags: list[str]
    model: str | None
    office_id: str
    job_id: str | None = Field(description="null: a direct request made it")
    run_id: str
    direct_id: str | None
    created_at: Time
    address: str | None = Field(description="Of its Markdown file; null: none was kept")


class StoryEntry(LibraryEntry):
    story_id: str
    words: int | None
    characters: int | None


class CardEntry(LibraryEntry):
    card_id: str
    summary: str
    key_concepts: list[str]
    applications: list[str]


class Likeness(ResponseModel):
    signal: Literal["LOW", "MEDIUM", "HIGH"]
    similarity: float
    most_similar: str | None = Field(description="The id of the earlier one that is most like it")


class StoryDetail(StoryEntry):
    text: str | None = Field(description="null: its file was deleted, or cannot be read now")
    likeness: Likeness


class CardDetail(CardEntry):
    likeness: Likeness


@library.get("/api/stories", response_model=Page[StoryEntry])
@needs(Scope.READ)
async def list_stories(query: Annotated[LibraryQuery, Query()], request: Request) -> Response:
    """Lists stories of completed work, the newest first. `q` searches titles, topics and tags."""
    return await _listed(request, STORIES, query)


@library.get("/api/stories/{story_id}", response_model=StoryDetail)
@needs(Scope.READ)
async def get_story(story_id: str, request: Request) -> Response:
    """Returns a story with its text, and how similar it is to earlier ones."""
    entry, likeness = await _found(request, STORIES, story_id)
    return answer({**_shown(entry), "text": await _text(scheduler_for(request).files, entry), "likeness": likeness})


@library.get("/api/research-cards", response_model=Page[CardEntry])
@needs(Scope.READ)
async def list_cards(query: Annotated[LibraryQuery, Query()], request: Request) -> Response:
    """Lists research cards of completed work, the newest first. `q` searches all their texts."""
    return await _listed(request, CARDS, query)


@library.get("/api/research-cards/{card_id}", response_model=CardDetail)
@needs(Scope.READ)
async def get_card(card_id: str, request: Request) -> Response:
    """Returns a research card, and how similar it is to earlier ones."""
    entry, likeness = await _found(request, CARDS, card_id)
    return answer({**_shown(entry), "likeness": likeness})


async def _listed(request: Request, shelf: Shelf, query: LibraryQuery) -> Response:
    offices = caller_of(request).narrowed(split(query.office_id))
    wanted = Wanted(tuple((query.q or "").split()), query.tag, offices)
    found = await extension_of(request, StoryService).entries(shelf, wanted, query.cursor, query.limit)
    return page(found, _shown)


async def _found(request: Request, shelf: Shelf, entry_id: str) -> tuple[Entry, dict[str, Any]]:
    service = extension_of(request, StoryService)
    entry = await service.entry(shelf, entry_id)
    caller_of(request).check_thing(entry.office_id, shelf.kind, entry_id)
    return entry, _likeness(await service.likeness(shelf, entry))


def _likeness(same: Duplicate | None) -> dict[str, Any]:
    similarity = 0.0 if same is None else round(same.similarity, 3)
    most_similar = same.story_id if same is not None and same.similarity > 0 else None
    return {"signal": signal(similarity), "similarity": similarity, "most_similar": most_similar}


def _shown(entry: Entry) -> dict[str, Any]:
    told = entry.told
    common = {
        "title": entry.title,
        "topic": entry.topic,
        "tags": entry.tags,
        "model": entry.model,
        "office_id": entry.office_id,
        "job_id": entry.job_id,
        "run_id": entry.work_id,
        "direct_id": entry.direct_id,
        "created_at": json_form.time(entry.finished_at),
        "address": _address(entry),
    }
    if "story_id" in told:
        return {"story_id": entry.entry_id, **common, "words": told.get("words"), "characters": told.get("characters")}
    texts = {name: told.get(name, []) for name in ("key_concepts", "applications")}
    return {"card_id": entry.entry_id, **common, "summary": told.get("summary", ""), **texts}


def _address(entry: Entry) -> str | None:
    file = entry.told.get("file")
    where = "direct" if entry.job_id is None else "job-runs"
    return None if file is None else f"/api/{where}/{quote(entry.work_id, safe='')}/artifacts/{quote(file)}"


async def _text(files: RunFileService, entry: Entry) -> str | None:
    kept, file = entry.told.get("text"), entry.told.get("file")
    if isinstance(kept, str) or file is None:
        return kept
    try:
        return read_story(await files.text_of(entry.work_id, file, entry.worker_id))[1]
    except (NotFound, Unavailable, OSError):
        return None
