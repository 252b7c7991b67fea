"""Shell completion: proposes job types, ids of jobs, offices and filters, which it requests from the server.

If the server does not answer within two seconds, nothing is proposed, because the shell waits for the answer.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import typer

from .arguments import FILTERS

if TYPE_CHECKING:
    from nextslot.client import Client

Proposal = tuple[str, str]

# How many jobs are proposed, the newest first: these are the likely ones.
MOST_IDS = 50
SECONDS = 2.0


def job_types(context: typer.Context, incomplete: str) -> list[Proposal]:
    return _proposed(context, incomplete, lambda client: ((one.job_type, "") for one in client.job_types()))


def job_ids(context: typer.Context, incomplete: str) -> list[Proposal]:
    return _proposed(context, incomplete, _ids)


def offices(context: typer.Context, incomplete: str) -> list[Proposal]:
    return _proposed(context, incomplete, lambda client: ((one.office_id, "") for one in client.status().offices))


def filters(context: typer.Context, incomplete: str) -> list[Proposal]:
    """Proposes names of filters, then the values of a filter that has few."""
    name, equals, _ = incomplete.partition("=")
    if not equals:
        return [(f"{one}=", "") for one in FILTERS if one.startswith(incomplete)]
    values: dict[str, Callable[[Client], Iterable[Proposal]]] = {
        "status": lambda client: ((one, "") for one in _statuses()),
        "job_type": lambda client: ((one.job_type, "") for one in client.job_types()),
        "office_id": lambda client: ((one.office_id, "") for one in client.status().offices),
    }
    if name not in values:
        return []
    return _proposed(context, incomplete, lambda client: ((f"{name}={one}", "") for one, _ in values[name](client)))


def _ids(client: "Client") -> Iterator[Proposal]:
    for job in client.jobs_page(limit=MOST_IDS).items:
        yield job.job_id, f"{job.status} {job.job_type} {job.title or ''}".strip()


def _statuses() -> list[str]:
    from nextslot.domain import JobStatus

    return [one.value for one in JobStatus]


def _proposed(context: typer.Context, incomplete: str, ask: "Callable[[Client], Iterable[Proposal]]") -> list[Proposal]:
    from nextslot.client import Client

    given = {**context.find_root().params, **{name: value for name, value in context.params.items() if value}}
    found: list[Proposal] = []

    def look() -> None:
        # The command itself reports any error; here, the shell would print the error into the line.
        with contextlib.suppress(Exception), Client(given.get("url"), key=given.get("key"), retries=0) as client:
            found.extend(one for one in ask(client) if one[0].startswith(incomplete))

    asking = threading.Thread(target=look, daemon=True)
    asking.start()
    asking.join(SECONDS)
    return list(found)
