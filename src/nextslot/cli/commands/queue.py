"""Commands about an office's queue: show, reorder, pause, resume."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nextslot.cli import arguments, output
from nextslot.cli.options import Cursor, Limit, OneOffice
from nextslot.cli.session import Session, add_group

if TYPE_CHECKING:
    from datetime import datetime

    from nextslot.client import Job, Queue
    from nextslot.client.values import Paused

# How long a list waits for the expected starts; without them it has everything else.
FORECAST_SECONDS = 1.0
Office = Annotated[str | None, typer.Option("--office", help="An office.")]
JobType = Annotated[str | None, typer.Option("--type", help="A job type.")]
Resource = Annotated[str | None, typer.Option("--resource", help="A resource.")]


def register(app: typer.Typer) -> None:
    add_group(app, "queue", "The queue: order, pause and resume.", ls, order, pause, resume, release)


def ls(
    session: Session,
    office: OneOffice = "default",
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """Show running and queued jobs, in order."""
    found = session.client.queue(office, limit, cursor, wait_seconds=FORECAST_SECONDS)

    if found.paused and not session.is_json:
        output.remark("paused: no more jobs start")
    session.list(found.json, HEADINGS, rows(found), f"nothing runs or waits in the office {office}")


HEADINGS = ("PLACE", "ID", "TYPE", "STATUS", "PRIORITY", "START", "TITLE")


def rows(queue: "Queue") -> list[list[Any]]:
    running = [_row("-", job, job.started_at) for job in queue.running]
    return running + [_row(job.place, job, job.expected_start) for job in queue.queue]


def _row(place: int | str, job: "Job", start: "datetime | None") -> list[Any]:
    status = output.coloured(job.status)
    return [place, output.short(job.job_id), job.job_type, status, job.priority, start, job.title or ""]


def order(
    session: Session,
    jobs: Annotated[list[str], typer.Argument(metavar="ID", help="Jobs of one office.", show_default=False)],
) -> None:
    """Reorder jobs: they exchange their places so that they follow each other in the given order."""
    found = session.client.reorder([arguments.job_id(session.client, one) for one in jobs])
    session.list(found.json, HEADINGS, rows(found), "nothing waits")


def pause(session: Session, office: Office = None, job_type: JobType = None, resource: Resource = None) -> None:
    """Pause an office, a job type, a resource or, without an option, the whole scheduler; running work continues."""
    found = session.client.pause(**_scope(office, job_type, resource))
    session.say(found.json, _words(found))


def resume(session: Session, office: Office = None, job_type: JobType = None, resource: Resource = None) -> None:
    """Resume what was paused."""
    found = session.client.resume(**_scope(office, job_type, resource))
    session.say(found.json, _words(found))


def release(
    session: Session,
    resource: Annotated[str, typer.Argument(help="A resource that `nextslot status` shows as held.")],
) -> None:
    """End the hold of a resource that does not answer, or whose quota is used up."""
    found = session.client.release(resource)
    session.say(found.json, f"{found.resource} is no longer held: its jobs start again")


def _scope(office: str | None, job_type: str | None, resource: str | None) -> dict[str, str]:
    found: dict[str, str] = arguments.given(office_id=office, job_type=job_type, resource=resource)
    if len(found) > 1:
        raise typer.BadParameter(
            "several options were given; give one of --office, --type and --resource, or none for the whole scheduler"
        )
    return found


def _words(found: "Paused") -> str:
    parts = ["the whole scheduler"] if found.scheduler else []
    for kind, names in (("office", found.offices), ("type", found.job_types), ("resource", found.resources)):
        parts += [f"{kind} {name}" for name in names]
    return "paused: " + ", ".join(parts) if parts else "nothing is paused"
