"""Commands about an office's queue: show, reorder, pause, resume."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nextslot.cli import ids, output
from nextslot.cli.session import Session, command, group

if TYPE_CHECKING:
    from nextslot.client import Queue
    from nextslot.client.values import Paused

Office = Annotated[str | None, typer.Option("--office", help="An office.")]
JobType = Annotated[str | None, typer.Option("--type", help="A job type.")]
Resource = Annotated[str | None, typer.Option("--resource", help="A resource.")]


def register(app: typer.Typer) -> None:
    queue = group("queue", "The queue: order, pause and resume.")
    for function in (ls, order, pause, resume):
        command(queue)(function)
    app.add_typer(queue)


def ls(
    session: Session,
    office: Annotated[str, typer.Option("--office", help="The office.")] = "default",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=500, help="The most to show.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="The next page: the cursor that the last one printed.")] = None,
) -> None:
    """Show running and queued jobs, in order."""
    found = session.client.queue(office, limit, cursor)

    def tables() -> None:
        if found.paused:
            output.remark("paused: no more jobs start")
        output.table(HEADINGS, rows(found), f"nothing runs or waits in the office {office}")
        if found.next_cursor is not None:
            output.remark(f"there are more: --cursor {found.next_cursor}")

    session.show(found.json, tables)


HEADINGS = ("PLACE", "ID", "TYPE", "STATUS", "PRIORITY", "START", "TITLE")


def rows(queue: "Queue") -> list[list[Any]]:
    running = [
        [
            "-",
            output.short(job.job_id),
            job.job_type,
            output.coloured(job.status),
            job.priority,
            job.started_at,
            job.title,
        ]
        for job in queue.running
    ]
    waiting = [
        [
            job.place,
            output.short(job.job_id),
            job.job_type,
            output.coloured(job.status),
            job.priority,
            job.expected_start,
            job.title or "",
        ]
        for job in queue.queue
    ]
    return running + waiting


def order(
    session: Session,
    jobs: Annotated[list[str], typer.Argument(metavar="ID", help="Jobs of one office.", show_default=False)],
) -> None:
    """Reorder jobs: they exchange their places so that they follow each other in the given order."""
    found = session.client.reorder([ids.job_id(session.client, one) for one in jobs])
    session.show(found.json, lambda: output.table(HEADINGS, rows(found), "nothing waits"))


def pause(session: Session, office: Office = None, job_type: JobType = None, resource: Resource = None) -> None:
    """Pause an office, a job type, a resource or, without an option, the whole scheduler; running work continues."""
    _one(office, job_type, resource)
    found = session.client.pause(office_id=office, job_type=job_type, resource=resource)
    session.show(found.json, lambda: output.say(_words(found)))


def resume(session: Session, office: Office = None, job_type: JobType = None, resource: Resource = None) -> None:
    """Resume what was paused."""
    _one(office, job_type, resource)
    found = session.client.resume(office_id=office, job_type=job_type, resource=resource)
    session.show(found.json, lambda: output.say(_words(found)))


def _one(*scopes: str | None) -> None:
    if sum(one is not None for one in scopes) > 1:
        raise typer.BadParameter(
            "several options were given; give one of --office, --type and --resource, or none for the whole scheduler"
        )


def _words(found: "Paused") -> str:
    parts = ["the whole scheduler"] if found.scheduler else []
    for kind, names in (("office", found.offices), ("type", found.job_types), ("resource", found.resources)):
        parts += [f"{kind} {name}" for name in names]
    return "paused: " + ", ".join(parts) if parts else "nothing is paused"
