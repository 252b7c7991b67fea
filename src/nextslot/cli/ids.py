"""Resolves short ids: a whole id, the beginning or the end of one, or a name where things have names."""

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from nextslot.errors import Invalid, NotFound

if TYPE_CHECKING:
    from nextslot.client import Client

T = TypeVar("T")

_WHOLE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PART = re.compile(r"[0-9a-f-]{4,35}")
# How many matches of an ambiguous id are shown.
SHOWN = 5


def job_id(client: "Client", text: str) -> str:
    """Returns the whole id of the job that a text stands for."""
    wanted = text.strip().lower()
    if _WHOLE.fullmatch(wanted):
        return wanted
    if not _PART.fullmatch(wanted):
        raise NotFound("job", text)
    found: list[str] = []
    for job in client.jobs(q=wanted):
        if matches(job.job_id, wanted):
            found.append(job.job_id)
            if len(found) > SHOWN:
                break
    return only(found, "job", text)


def run_id(client: "Client", text: str) -> str:
    """Returns the id of the run that a text stands for: the run's own whole id, or its job's id, which may be short."""
    wanted = text.strip().lower()
    if _WHOLE.fullmatch(wanted):
        try:
            return client.run_by_id(wanted).run_id
        except NotFound:
            pass
    job = client.job(job_id(client, wanted))
    if job.run is None:
        raise Invalid(f"job {text} is {job.status} and has no run yet; `nextslot why {text}` shows the reason")
    return job.run.run_id


def named(items: Iterable[T], text: str, kind: str, id_of: Callable[[T], str], name_of: Callable[[T], str | None]) -> T:
    """Returns the item of a list that has this name, this id, or an id with this beginning or end."""
    everything = list(items)
    exact = [one for one in everything if text in (id_of(one), name_of(one))]
    found = exact or [one for one in everything if len(text) >= 4 and matches(id_of(one), text.lower())]
    whole = only([id_of(one) for one in found], kind, text)
    return next(one for one in found if id_of(one) == whole)


def matches(id: str, part: str) -> bool:
    return id.startswith(part) or id.endswith(part)


def only(found: list[str], kind: str, text: str) -> str:
    if not found:
        raise NotFound(kind, text)
    if len(found) > 1:
        some = ", ".join(found[:SHOWN]) + (", …" if len(found) > SHOWN else "")
        raise Invalid(f"{text!r} matches several: {some}; give more of the id")
    return found[0]
