"""Routes of signals: answer what a job waits for, list the answers; and the page of a signed link."""

from html import escape
from typing import Any, Literal

from fastapi import Request, Response
from pydantic import Field

from nextslot.domain import Scope
from nextslot.domain.bounds import Text
from nextslot.errors import NextslotError
from nextslot.server import schemas
from nextslot.server.auth import of_job, scheduler_for
from nextslot.server.responses import answer
from nextslot.server.route_rules import needs, open_to_all
from nextslot.server.routing import router
from nextslot.server.schemas import Body

signals = router("Signals")

# No script, no image, no frame: the page has one question and two buttons.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Robots-Tag": "noindex",
}
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>nextslot</title><style>
body{{font:1.1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:3rem auto;padding:0 1rem}}form{{display:inline}}
button{{font:inherit;padding:.5rem 1.2rem;margin-right:1rem}}</style><h1>{title}</h1>{body}</html>"""


class SignalBody(Body):
    answer: Literal["approve", "reject"] = "approve"
    payload: Any = Field(None, description="JSON of at most 64 KiB, which the work gets")
    signal_id: Text | None = Field(
        None, description="An id that you choose: a repeated request with it has no further effect"
    )


class Items(schemas.ResponseModel):
    items: list[schemas.Signal]


@signals.post(
    "/api/jobs/{job_id}/signals/{name}",
    status_code=201,
    response_model=schemas.Signal,
    responses={200: {"model": schemas.Signal, "description": "It was answered so before"}},
)
@needs(Scope.OPERATE, of_job, conflicts=True)
async def send_signal(job_id: str, name: str, request: Request, body: SignalBody | None = None) -> Response:
    """Answers the signal that a job, or its chain, waits for; an answer that comes early is kept."""
    asked = body or SignalBody()
    sent = await scheduler_for(request).accept_signal(job_id, name, asked.payload, asked.answer, asked.signal_id)
    return answer(sent.signal.to_dict(), 201 if sent.is_new else 200)


@signals.get("/api/jobs/{job_id}/signals", response_model=Items)
@needs(Scope.READ, of_job)
async def list_signals(job_id: str, request: Request) -> Response:
    """Lists the answers that the chain of a job got, and those that are kept for it."""
    return answer({"items": [one.to_dict() for one in await scheduler_for(request).signals(job_id)]})


@signals.get("/signal/{token}", include_in_schema=False)
@open_to_all
async def show_link(token: str, request: Request) -> Response:
    """Shows the question of a signed link. It changes nothing: chats open links to show a preview."""
    try:
        job = await scheduler_for(request).job_of_link(token)
    except NextslotError as error:
        return _page("This link cannot be used", f"<p>{escape(str(error))}</p>", 410)
    wait = job.awaiting
    if wait is None:
        return _page("Nothing to answer", f"<p>{escape(job.title or job.job_type)} does not wait for an answer.</p>")
    question = escape(wait["question"] or f"The signal {wait['name']!r}")
    about = escape(f"{job.title or job.job_type}, job {job.job_id} in {job.office_id}")
    buttons = "".join(
        f'<form method="post" action="?answer={word}"><button>{word.capitalize()}</button></form>'
        for word in ("approve", "reject")
    )
    return _page(question, f"<p>{about}</p>{buttons}")


@signals.post("/signal/{token}", include_in_schema=False)
@open_to_all
async def use_link(token: str, request: Request, answer: Literal["approve", "reject"]) -> Response:
    """Answers by a signed link, once. The audit log names the link."""
    try:
        sent = await scheduler_for(request).signal_by_link(token, answer)
    except NextslotError as error:
        return _page("Not answered", f"<p>{escape(str(error))}</p>", 409)
    signal = sent.signal
    return _page(f"Answered: {signal.answer.value}", f"<p>by {escape(signal.sent_by)} at {signal.sent_at}</p>")


def _page(title: str, body: str, status: int = 200) -> Response:
    return Response(_PAGE.format(title=title, body=body), status, _HEADERS, "text/html")
