"""Commands about schedules, which create jobs from templates by cron expressions."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nextslot.cli import ids, output
from nextslot.cli.session import Session, command, group

from . import jobs, templates

if TYPE_CHECKING:
    from nextslot.client import Schedule

Which = Annotated[str, typer.Argument(metavar="SCHEDULE", help="The schedule's name or id.", show_default=False)]


def register(app: typer.Typer) -> None:
    schedule = group("schedule", "Schedules, which create jobs from templates by cron expressions.")
    for function in (add, ls, show, preview, upcoming, occurrences, trigger, enable, disable, rm):
        command(schedule)(function)
    app.add_typer(schedule)


def find(session: Session, text: str) -> "Schedule":
    everything = session.client.schedules.list()
    return ids.named(everything, text, "schedule", lambda one: one.schedule_id, lambda one: one.name)


def add(
    session: Session,
    name: Annotated[str, typer.Argument(help="A name for people.", show_default=False)],
    cron: Annotated[str, typer.Argument(help="Such as '0 6 * * mon-fri', or @daily.", show_default=False)],
    template: Annotated[str, typer.Argument(help="The template's name or id.", show_default=False)],
    params: jobs.Params = None,
    timezone: Annotated[str | None, typer.Option(help="Such as Europe/Berlin; default UTC.")] = None,
    office: jobs.Office = None,
    catch_up: Annotated[
        str | None, typer.Option(help="Which missed occurrences fire: latest (default), all or none.")
    ] = None,
    overlap: Annotated[str | None, typer.Option(help="While the previous job runs: allow (default) or skip.")] = None,
    priority: jobs.Priority = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="Create it disabled.")] = False,
) -> None:
    """Create a schedule."""
    found = templates.find(session, template)
    given = {
        "timezone": timezone,
        "office_id": office,
        "catch_up": catch_up,
        "overlap": overlap,
        "priority": priority,
        "enabled": False if disabled else None,
        "param_overrides": jobs.parsed_params(session, found.job_type, params) if params else None,
    }
    options: Any = {one: value for one, value in given.items() if value is not None}
    made = session.client.schedules.create(name, found.template_id, cron, **options)
    session.show(made.json, lambda: _print(made))


def ls(session: Session) -> None:
    """List schedules."""
    page = session.client.schedules.page(500)
    rows = [
        [output.short(one.schedule_id), one.name, one.cron_expression, one.timezone, _next(one), one.last_triggered_at]
        for one in page.items
    ]
    headings = ("ID", "NAME", "CRON", "ZONE", "NEXT", "LAST")
    session.show(page.json, lambda: output.table(headings, rows, "no schedules"))


def show(session: Session, schedule: Which) -> None:
    """Show a schedule."""
    found = find(session, schedule)
    session.show(found.json, lambda: output.facts(dict(found.json)))


def preview(
    session: Session,
    cron: Annotated[str, typer.Argument(help="Such as '0 6 * * mon-fri', or @daily.", show_default=False)],
    timezone: Annotated[str | None, typer.Option(help="Such as Europe/Berlin; default UTC.")] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=500, help="How many to show.")] = 10,
) -> None:
    """Explain a cron expression, and show when it would fire."""
    found = session.client.schedules.preview(cron, timezone, count)

    def show_preview() -> None:
        output.say(found.cron_words)
        output.table(("LOCAL", "WHEN"), [[one.local, one.utc] for one in found.items], "never")

    session.show(found.json, show_preview)


def upcoming(
    session: Session,
    schedule: Which,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=500, help="How many to show.")] = 10,
) -> None:
    """Show the next occurrences of a schedule, without firing any."""
    found = session.client.schedules.upcoming(find(session, schedule).schedule_id, count)
    rows = [[one.local, one.utc] for one in found]
    session.show({"items": [one.json for one in found]}, lambda: output.table(("LOCAL", "WHEN"), rows, "none"))


def occurrences(
    session: Session,
    schedule: Which,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=500, help="The most to show.")] = 50,
) -> None:
    """Show past occurrences and their outcomes, newest first."""
    page = session.client.schedules.occurrences_page(find(session, schedule).schedule_id, limit)
    rows = [
        [one.instant, one.count, output.coloured(one.outcome), one.reason or "", output.short(one.job_id)]
        for one in page.items
    ]
    headings = ("WHEN", "COUNT", "OUTCOME", "REASON", "JOB")
    session.show(page.json, lambda: output.table(headings, rows, "nothing yet"))


def trigger(session: Session, schedule: Which) -> None:
    """Create a job from a schedule now."""
    job = session.client.schedules.trigger(find(session, schedule).schedule_id)
    session.show(job.json, lambda: output.say(job.job_id))


def enable(session: Session, schedule: Which) -> None:
    """Enable a schedule."""
    changed = session.client.schedules.change(find(session, schedule).schedule_id, enabled=True)
    session.show(changed.json, lambda: _print(changed))


def disable(session: Session, schedule: Which) -> None:
    """Disable a schedule until it is enabled again."""
    changed = session.client.schedules.change(find(session, schedule).schedule_id, enabled=False)
    session.show(changed.json, lambda: _print(changed))


def rm(session: Session, schedule: Which) -> None:
    """Delete a schedule; its jobs stay."""
    gone = session.client.schedules.delete(find(session, schedule).schedule_id)
    session.show(gone.json, lambda: output.say(f"{gone.name} deleted"))


def _next(schedule: "Schedule") -> str:
    return output.moment(schedule.next_trigger_at) if schedule.enabled else "disabled"


def _print(schedule: "Schedule") -> None:
    words = f" ({schedule.cron_words})" if schedule.cron_words else ""
    output.say(f"{schedule.schedule_id} {schedule.name}{words}: next {_next(schedule)}")
