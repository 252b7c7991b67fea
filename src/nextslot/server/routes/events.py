"""Routes of events: lists them, or streams them as server-sent events that can be resumed."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import Query, Request, Response
from pydantic import Field

from nextslot.domain import Event, Scope
from nextslot.domain.filters import EventFilter
from nextslot.engine.events.event_feed import PAGE, EventPage
from nextslot.errors import Invalid, Unavailable
from nextslot.server import schemas
from nextslot.server.auth import caller_of, lane_of, scheduler_for
from nextslot.server.queries import PageQuery, filter_of, in_query
from nextslot.server.responses import event, page, stream, wants_stream
from nextslot.server.route_rules import needs
from nextslot.server.routing import router
from nextslot.server.schemas import Page

events = router("Events")

# The pause of a stream before it reads again from a database that was away.
ASK_AGAIN_SECONDS = 1.0


@in_query(EventFilter)
class EventQuery(PageQuery):
    after: int = Field(0, ge=0, lt=2**53, description="The number of the last event that the client has seen")


@events.get("/api/events", response_model=Page[schemas.Event], responses={200: {"content": {"text/event-stream": {}}}})
@needs(Scope.READ, is_long=wants_stream)
async def list_events(query: Annotated[EventQuery, Query()], request: Request) -> Response:
    """Lists events, the oldest first. With `Accept: text/event-stream` new ones follow; `Last-Event-ID` resumes."""
    scheduler = scheduler_for(request)
    wanted = filter_of(EventFilter, query.model_dump(), caller_of(request))
    if wants_stream(request):
        return stream(_followed(request, wanted, resumed(request, query.after)), request)
    found = await scheduler.lists.events(query.after, wanted, query.cursor, query.limit)
    return page(found)


def resumed(request: Request, after: int) -> int:
    given = request.headers.get("last-event-id")
    if given is None:
        return after
    if not given.isascii() or not given.isdecimal() or len(given) > 15:
        raise Invalid(
            f"is {given[:50]!r}; it must be the number of the last event that was seen", field="Last-Event-ID"
        )
    return int(given)


async def _followed(request: Request, wanted: EventFilter, after: int) -> AsyncGenerator[bytes, None]:
    last = after
    # Each page is sent as one message: a message for each event would take ten times as long.
    async with aclosing(pages_from(request, after)) as pages:
        async for some in pages:
            last = some.last
            if text := _shown(some, wanted):
                yield text
    # Only a scheduler that stops ends the stream: a reader who resumes with this number misses nothing.
    yield event({"after": last}, event="end", id=str(last))


async def pages_from(request: Request, after: int) -> AsyncGenerator[EventPage, None]:
    """Yields the events from a number on. In an outage of the database it waits, and goes on where it was."""
    last, scheduler, lane = after, scheduler_for(request), lane_of(request)
    while True:
        try:
            await request.app.state.shares.turn_of_history(lane)
            async with aclosing(scheduler.event_pages(last)) as pages:
                async for some in pages:
                    yield some
                    last = some.last
                    if len(some.events) == PAGE:  # There may be more history.
                        await request.app.state.shares.turn_of_history(lane)
            return
        except Unavailable:
            if scheduler.is_draining:
                return
            await asyncio.sleep(ASK_AGAIN_SECONDS)


def _shown(some: EventPage, wanted: EventFilter) -> bytes:
    """Returns the events that a filter takes, as one message. Streams that share a page share what is written here:
    each event that one of them takes is encoded once, and the message is put together once for all with a filter."""
    texts: dict[int, bytes] = some.form("texts", lambda _: {})

    def text_of(one: Event) -> bytes:
        return texts.get(one.seq) or texts.setdefault(one.seq, event(one.to_dict(), event=one.type, id=str(one.seq)))

    return some.form(wanted, lambda found: b"".join(text_of(one) for one in found if wanted.takes(one)))
