"""Commands about groups: jobs that belong together."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nextslot.cli import arguments, output
from nextslot.cli.options import Cursor, Interrupt, Limit, Office, Reason
from nextslot.cli.session import Session, add_group

from . import jobs

if TYPE_CHECKING:
    from nextslot.client import Group

Which = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name or id.", show_default=False)]


def register(app: typer.Typer) -> None:
    add_group(app, "group", "Groups of jobs, sequential or parallel.", add, ls, show, cancel)


def find(session: Session, text: str) -> str:
    return arguments.named(
        session.client.groups(), text, "group", lambda one: one.group_id, lambda one: one.name
    ).group_id


def add(
    session: Session,
    file: Annotated[
        str,
        typer.Argument(
            help="A file with a JSON list of jobs as in POST /api/jobs/batch; - means stdin.", show_default=False
        ),
    ],
    name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
    parallel: Annotated[
        bool, typer.Option("--parallel/--sequential", help="Run the jobs at the same time, or one by one.")
    ] = False,
    on_failure: Annotated[
        str, typer.Option(help="What a failed member does to the others: stop, continue or skip.")
    ] = "stop",
) -> None:
    """Submit jobs as a group."""
    mode = "parallel" if parallel else "sequential"
    made = session.client.submit_group(_jobs(file), mode, on_failure, name)
    session.say(made.json, made.group_id)


def _jobs(file: str) -> Any:
    found = arguments.json_file(file)
    if not isinstance(found, list):
        raise typer.BadParameter(f"{file} does not contain a JSON list; write a list of jobs")
    return found


def ls(
    session: Session,
    status: Annotated[str | None, typer.Option(help="QUEUED, RUNNING, COMPLETED, PARTIAL, CANCELLED.")] = None,
    office: Office = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """List groups, newest first."""
    page = session.client.groups_page(limit, cursor, status=status, office_id=office)
    headings = ("ID", "NAME", "MODE", "STATUS", "ENDED", "SUCCEEDED", "CREATED")
    session.list(page.json, headings, [_row(one) for one in page.items], "no groups")


def _row(one: "Group") -> list[Any]:
    return [
        output.short(one.group_id),
        one.name or "",
        one.mode,
        output.coloured(one.status),
        f"{one.ended} of {one.members}",
        one.succeeded,
        one.created_at,
    ]


def show(session: Session, group: Which) -> None:
    """Show a group with its jobs."""
    found = session.client.group(find(session, group))

    def tables() -> None:
        output.facts({name: value for name, value in found.json.items() if name != "jobs"})
        output.say("")
        output.table(jobs.HEADINGS, [jobs.row(job) for job in found.jobs], "")

    session.show(found.json, tables)


def cancel(
    session: Session,
    group: Which,
    reason: Reason = None,
    interrupt: Interrupt = None,
) -> None:
    """Cancel every job of a group that has not ended."""
    done = session.client.cancel_group(find(session, group), reason, interrupt)
    summary = f"{done.cancelled} cancelled, {len(done.stopping)} asked to stop, {len(done.finishing)} left to finish"
    session.say(done.json, summary)
