"""Signals: what a job waits for before its start, the answer, and which words both may have."""

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Generic, NamedTuple

from nextslot.errors import Problem
from nextslot.system.instant import Instant

from . import bounds
from .bounds import Json
from .declared_values import At, Id, Internal, Says, Value

MOST_ANSWERERS = 100
# How many answers a chain keeps for waits to come, and how often its sessions may park.
MOST_KEPT = 100
MOST_PARKS = 1000
# How long a link in a chat notice can be used, if the wait has no earlier deadline.
LINK_SECONDS = 7 * 86400.0
# Who has answered, if it was nobody, or somebody with a signed link. No key may have such a name.
BY_DEADLINE, BY_LINK = "deadline", "link"


class Answer(StrEnum):
    """The answer to a wait. Only a deadline gives `fail`."""

    APPROVE = "approve"
    REJECT = "reject"
    FAIL = "fail"


ANSWERS = (Answer.APPROVE, Answer.REJECT)

# What a job waits for, as requests and answers have it.
SignalSetting = Annotated[
    Mapping[str, Json] | None,
    Says(
        "The signal that it waits for before its start: `name`, `question`, `deadline_seconds`, `on_deadline` "
        "(`approve`, `reject` or `fail`), `answered_by` (names of keys; none: everybody with the scope `operate`)"
    ),
]
_PARTS = ("name", "question", "deadline_seconds", "on_deadline", "answered_by")
_CHECKS = {
    "question": bounds.text_problem,
    "deadline_seconds": bounds.SECONDS.problem,
    "on_deadline": bounds.one_of(Answer).problem,
}


class Signal(Value, Generic[At]):
    """The answer to a wait of a chain, or one that came before and is kept."""

    FIRST = ("name", "answer", "payload", "sent_by", "sent_at", "job_id")

    chain_id: Internal[str]
    name: str
    number: Annotated[int, Says("Which wait of its chain for this name it answers, from 1")]
    job_id: Annotated[Id | None, Says("The job that waited; null: it is kept for a wait to come")]
    signal_id: Annotated[str | None, Says("What the sender called it")]
    answer: Answer
    payload: Json
    sent_by: Annotated[str, Says("The name of the key; `deadline` if nobody answered in time")]
    sent_at: At


def problems(field: str, wait: object) -> Iterator[Problem]:
    """Finds what is wrong with a wait, `{"name": …, …}`, that stands in this field; "": its parts are the fields."""
    within = f"{field}." if field else ""
    if not isinstance(wait, Mapping):
        yield Problem(field, bounds.must_be(wait, 'a JSON object: {"name": …}'))
        return
    for part in wait:
        if part not in _PARTS:
            yield Problem(field, f"has no part {part!r}; its parts are {', '.join(_PARTS)}")
    if (problem := bounds.text_problem(wait.get("name"), bounds.MAX_NAME)) is not None:
        yield Problem(f"{within}name", problem)
    elif "/" in str(wait["name"]):
        yield Problem(f"{within}name", "has a slash, which the address of a signal cannot have; choose another name")
    for part, check in _CHECKS.items():
        if wait.get(part) is not None and (problem := check(wait[part])) is not None:
            yield Problem(f"{within}{part}", problem)
    names = wait.get("answered_by") or ()
    if not isinstance(names, (list, tuple)) or any(bounds.text_problem(one) is not None for one in names):
        yield Problem(f"{within}answered_by", 'is not a list of texts; it must name keys, such as ["release"]')
    elif len(names) > MOST_ANSWERERS:
        yield Problem(f"{within}answered_by", f"has {len(names):,} names; it must have at most {MOST_ANSWERERS}")


def completed(wait: Mapping[str, Json]) -> dict[str, Json]:
    """Returns a wait with its defaults: its deadline rejects, and every caller with the scope `operate` may answer."""
    return {
        "name": wait["name"],
        "question": wait.get("question"),
        "deadline_seconds": wait.get("deadline_seconds"),
        "on_deadline": wait.get("on_deadline") or Answer.REJECT.value,
        "answered_by": list(wait.get("answered_by") or ()),
    }


class Link(NamedTuple):
    """What a signed link is about: whoever has it may answer this wait of this job until then."""

    job_id: str
    name: str
    expires_at: Instant


def link_token(secret: str, link: Link) -> str:
    """Returns the text of a signed link; nobody without the secret can make one."""
    content = urlsafe_b64encode("\n".join([link.job_id, str(int(link.expires_at)), link.name]).encode())
    return f"{content.decode().rstrip('=')}.{_mark(secret, content.rstrip(b'='))}"


def read_link(secret: str, token: str) -> Link | None:
    """Returns what a link is about; None if it was not made with this secret."""
    content, _, mark = token.partition(".")
    if not token.isascii() or not hmac.compare_digest(mark, _mark(secret, content.encode())):
        return None
    job_id, expires_at, name = urlsafe_b64decode(content + "=" * (-len(content) % 4)).decode().split("\n", 2)
    return Link(job_id, name, Instant(int(expires_at)))


def _mark(secret: str, content: bytes) -> str:
    return hmac.new(secret.encode(), b"nextslot signal link " + content, hashlib.sha256).hexdigest()
