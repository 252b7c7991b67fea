"""Routes for a story or a research card as a direct request, with bodies and answers of their own."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, ClassVar

from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, Field

from nextslot.domain import Direct, DirectStatus, FailureKind, Scope, json_form
from nextslot.domain.request_checks import MAX_TEXT
from nextslot.errors import Invalid, NotFound, Problem, Unavailable
from nextslot.server import schemas
from nextslot.server.auth import caller_of, of_default, scheduler_for
from nextslot.server.problems import HttpProblem, content_of
from nextslot.server.responses import answer, event, stream, unless_hung_up, wants_stream
from nextslot.server.route_rules import always, needs
from nextslot.server.routes.direct import begun, direct_events
from nextslot.server.routing import router
from nextslot.services.read_run_files import RunFileService

from .story import read_story

generate = router("Direct requests")

Shown = Callable[[Direct], Awaitable[dict[str, Any]]]
Wait = Annotated[float, Field(ge=0, le=86_400, description="For the slot; default 300")]


Url = Annotated[str, Field(max_length=MAX_TEXT * 10, examples=["https://example.org/hook"])]
Tags = Annotated[list[Annotated[str, Field(min_length=1, max_length=100)]], Field(max_length=50)]
Model = Annotated[str, Field(min_length=1, max_length=200, description="None: the configured one")]
Length = Annotated[int, Field(ge=300, le=10_000, description="Characters, about")]
Timeout = Annotated[int, Field(ge=1, le=86_400, description="Seconds; 300 unless said")]

# The default timeout of a research request, in seconds.
RESEARCH_SECONDS = 300


class Asked(BaseModel):
    """The fields of both bodies. Unknown fields of old clients are ignored, and the answer names them."""

    model_config = ConfigDict(extra="allow", strict=True)

    # Fields that old clients send and that have no effect.
    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset()

    model: Model | None = None
    tags: Tags | None = None
    wait_timeout_seconds: Wait | None = None
    webhook_url: Url | None = Field(None, description="Gets a message when the work has ended")

    def ignored(self) -> list[str]:
        """Returns the names of ignored fields, in alphabetical order."""
        said = self.WITHOUT_EFFECT & self.model_fields_set
        return [name[:100] for name in sorted([*said, *(self.model_extra or {})])[:100]]


_PARAMS = ("topic", "model", "target_length", "tags", "research_model", "research_card", "style", "genre", "language",
           "temperature", "system", "template")  # fmt: skip


class StoryBody(Asked):
    WITHOUT_EFFECT = frozenset({"thumbnail_provider"})

    topic: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    target_length: Length | None = None
    save_output: bool = Field(True, description="false: no file is kept")
    enable_dedup: bool = Field(False, description="A duplicate of an earlier story is no success")
    auto_research: bool | None = Field(
        None, description="true: research the topic first, unless there is a card about it; null: only use such a card"
    )
    research_model: Model | None = None
    research_card: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    style: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(None, description="A configured style")
    genre: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    language: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    system: Annotated[str, Field(min_length=1, max_length=4000)] | None = Field(None, description="The system prompt")
    template: Annotated[str, Field(min_length=1, max_length=4000)] | None = Field(None, description="The prompt")
    thumbnail_provider: str | None = Field(None, description="Without effect")

    def params(self) -> dict[str, Any]:
        given = {name: value for name in _PARAMS if (value := getattr(self, name)) is not None}
        flags = {"enable_dedup": self.enable_dedup, "save_output": self.save_output}
        return {**given, **flags, "auto_research": self.auto_research}


class ResearchBody(Asked):
    topic: Annotated[str, Field(min_length=2, max_length=200, examples=["how tides turn turbines"])]
    timeout: Timeout | None = None
    enable_dedup: bool = Field(False, description="A duplicate of an earlier card is refused (409)")

    def params(self) -> dict[str, Any]:
        given = {"model": self.model, "tags": self.tags}
        said = {name: value for name, value in given.items() if value is not None}
        flags = {"enable_dedup": True} if self.enable_dedup else {}
        return {"topic": self.topic, "timeout": self.timeout or RESEARCH_SECONDS, **said, **flags}


class StoryAnswer(schemas.ResponseModel):
    success: bool
    story_id: str | None
    story: str | None
    title: str | None
    file_path: str | None = Field(description="Below the data directory")
    word_count: int | None = Field(description="Characters, as it always was; the words are in `metadata`")
    metadata: dict[str, Any]
    error: str | None = Field(description="Why it is no success")
    webhook_triggered: bool


class Card(schemas.ResponseModel):
    title: str
    topic: str
    tags: list[str]
    model: str
    summary: str
    key_concepts: list[str]
    applications: list[str]


class ResearchAnswer(schemas.ResponseModel):
    card_id: str
    status: str = Field(examples=["complete"])
    message: str
    output_path: str = Field(description="Below the data directory")
    webhook_triggered: bool
    card: Card


_STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}},
    204: {"description": "The caller hung up (nobody sees this)"},
}
_FAILED: dict[int | str, dict[str, Any]] = {
    502: {"description": "The work failed", "content": {"application/problem+json": {}}},
    504: {"description": "The work took too long", "content": {"application/problem+json": {}}},
}


@generate.post("/story/generate", response_model=StoryAnswer, responses=_STREAMED)
@needs(Scope.SUBMIT, of_default, is_long=always)
async def generate_story(body: StoryBody, request: Request) -> Response:
    """Waits for the next slot and for the story. Work that failed is a 200 too: `success` and `error` say so.

    With `Accept: text/event-stream`: `place`, `started`, `progress` and `output` as they come, `result` at the end.
    """
    files = scheduler_for(request).files

    async def shown(ended: Direct) -> dict[str, Any]:
        return await _story(files, body, ended)

    return await _in_old_words(_answered(request, "story", body, body.params(), shown))


@generate.post("/research/run", response_model=ResearchAnswer, responses={**_STREAMED, **_FAILED})
@needs(Scope.SUBMIT, of_default, conflicts=True, is_long=always)
async def run_research(body: ResearchBody, request: Request) -> Response:
    """Waits for the next slot and for the card. 409: a duplicate. 502: the work failed. 504: it took too long.

    With `Accept: text/event-stream` as for a story; work that failed is then an `error` at the end.
    """

    async def shown(ended: Direct) -> dict[str, Any]:
        return _card(body, ended)

    return await _in_old_words(_answered(request, "research", body, body.params(), shown))


async def _answered(request: Request, job_type: str, body: Asked, params: dict[str, Any], shown: Shown) -> Response:
    scheduler = scheduler_for(request)
    options = _options(body, request)
    if wants_stream(request):

        async def last(ended: Direct) -> bytes:
            try:
                return event(await shown(ended), event="result")
            except HttpProblem as error:
                return event(content_of(error), event="error")

        return stream(await begun(direct_events(scheduler, job_type, params, options, last)), request)
    ended = await unless_hung_up(request, scheduler.run_direct(job_type, params, **options))
    return Response(status_code=204) if ended is None else answer(await shown(ended))


async def _in_old_words(work: Awaitable[Response]) -> Response:
    """Raises errors with the field names of these bodies."""
    try:
        return await work
    except Invalid as error:
        raise _in_words_of_the_body(error) from None


def _in_words_of_the_body(error: Invalid) -> Invalid:
    """Returns the same error: our `params.topic` is `topic` here, and `webhook.url` is `webhook_url`."""

    def renamed(field: str) -> str:
        return "" if field == "params" else field.replace("webhook.", "webhook_").replace("params.", "")

    error.problems = [Problem(renamed(one.field), one.problem) for one in error.problems]
    error.args = ("; ".join(str(problem) for problem in error.problems),)
    return error


def _options(body: Asked, request: Request) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if body.wait_timeout_seconds is not None:
        options["wait_timeout_seconds"] = body.wait_timeout_seconds
    if body.webhook_url is not None:
        options["webhook"] = {"url": body.webhook_url}
    caller = caller_of(request)
    if caller.key_id is not None:
        options["created_by"] = caller.name
    return options


async def _story(files: RunFileService, body: StoryBody, ended: Direct) -> dict[str, Any]:
    metadata: dict[str, Any] = {"direct_id": ended.direct_id, "ignored": body.ignored()}
    if ended.status is not DirectStatus.COMPLETED:
        error = ended.error or ended.reason or f"the request was {ended.status.lower()}"
        nothing = dict.fromkeys(("story_id", "story", "title", "file_path", "word_count"))
        metadata["failure_kind"] = ended.failure_kind
        return {
            **nothing,
            "success": False,
            "metadata": metadata,
            "error": error,
            "webhook_triggered": _told(body, ended),
        }
    [told_of] = ended.result["stories"]
    title, text, path = told_of["title"], told_of.get("text"), None
    if text is None:
        title, text, path = await _saved(files, ended, told_of)
    return {
        "success": True,
        "story_id": told_of["story_id"],
        "story": text,
        "title": title,
        "file_path": path,
        "word_count": told_of["characters"],
        "metadata": {**_about(body, ended, told_of), **metadata},
        "error": None,
        "webhook_triggered": _told(body, ended),
    }


def _about(body: StoryBody, ended: Direct, story: dict[str, Any]) -> dict[str, Any]:
    model, length = ended.result["model"], story["characters"]
    delta = None if body.target_length is None else length - body.target_length
    return {
        "story_id": story["story_id"],
        "generated_at": json_form.time(ended.finished_at),
        "model": model,
        "provider": model.partition(":")[0],
        "topic": body.topic,
        "tags": body.tags or [],
        "words": story["words"],
        "characters": length,
        "research_used": ended.result.get("research", []),
        "generation": {"target_length": body.target_length, "actual_length": length, "length_delta": delta},
    }


async def _saved(files: RunFileService, ended: Direct, story: dict[str, Any]) -> tuple[str, str | None, str | None]:
    """Returns the title, the text and its file; no text if the file was deleted meanwhile."""
    [artifact] = [one for one in ended.artifacts if one.name == story["file"]]
    try:
        text = await files.text_of(ended.run_id, artifact.name, ended.worker_id)
    except (NotFound, Unavailable, OSError):
        return story["title"], None, None
    return *read_story(text), artifact.path


def _card(body: ResearchBody, ended: Direct) -> dict[str, Any]:
    if ended.status is not DirectStatus.COMPLETED:
        is_late = ended.failure_kind is FailureKind.TIMEOUT
        code = "work_timed_out" if is_late else "work_failed"
        status = 504 if is_late else 502
        if ended.status is DirectStatus.SKIPPED:
            status, code = 409, "conflict"
        detail = ended.error or ended.reason or f"the request was {ended.status.lower()}"
        data = {
            "direct_id": ended.direct_id,
            "failure_kind": ended.failure_kind,
            "webhook_triggered": _told(body, ended),
        }
        raise HttpProblem(status, code, detail, data=data)
    [path] = [one.path for one in ended.artifacts if one.name == ended.result["metadata"]]
    ignored = body.ignored()
    note = f". Ignored: {', '.join(ignored)}" if ignored else ""
    return {
        "card_id": ended.result["card_id"],
        "status": "complete",
        "message": f"{ended.result['title']}{note}",
        "output_path": path,
        "webhook_triggered": _told(body, ended),
        "card": {name: ended.result[name] for name in Card.model_fields},
    }


def _told(body: Asked, ended: Direct) -> bool:
    """Returns whether a webhook message is sent: none for a caller who left before the work began."""
    return body.webhook_url is not None and ended.status is not DirectStatus.CANCELLED
