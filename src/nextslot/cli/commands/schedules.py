"""Commands about schedules, which create jobs from templates by cron expressions."""

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from nextslot.cli import arguments, output
from nextslot.cli.options import Count, Cron, Limit, Office, Params, Priority, Timezone
from nextslot.cli.session import Session, add_group, with_parameters_of

from . import jobs, templates

if TYPE_CHECKING:
    from nextslot.client import GroupDetail, Job, Occurrence, Schedule

Window = Annotated[
    float | None,
    typer.Option("--catch-up-window", metavar="SECONDS", help="How old a missed occurrence may be; default a day."),
]
Which = Annotated[str, typer.Argument(metavar="SCHEDULE", help="The schedule's name or id.", show_default=False)]


def register(app: typer.Typer) -> None:
    add_group(
        app,
        "schedule",
        "Schedules, which create jobs from templates by cron expressions.",
        add,
        put,
        ls,
        show,
        change,
        preview,
        upcoming,
        occurrences,
        trigger,
        enable,
        disable,
        rm,
    )


def find(session: Session, text: str) -> "Schedule":
    everything = session.client.schedules.list()
    return arguments.named(everything, text, "schedule", lambda one: one.schedule_id, lambda one: one.name)


def _fields(
    session: Session,
    name: Annotated[str, typer.Argument(help="A name, unique in its office.", show_default=False)],
    cron: Cron,
    template: Annotated[str, typer.Argument(help="The template's name or id.", show_default=False)],
    params: Params = None,
    timezone: Timezone = None,
    office: Office = None,
    catch_up: Annotated[
        str | None, typer.Option(help="Which missed occurrences fire: latest (default), all or none.")
    ] = None,
    catch_up_window: Window = None,
    overlap: Annotated[
        str | None, typer.Option(help="While the previous job or group runs: allow (default) or skip.")
    ] = None,
    priority: Priority = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="Create it disabled.")] = False,
) -> Any:
    found = templates.find(session, template, office)
    return arguments.given(
        name=name,
        template_id=found.template_id,
        cron_expression=cron,
        timezone=timezone,
        office_id=office,
        catch_up=catch_up,
        catch_up_window_seconds=catch_up_window,
        overlap=overlap,
        priority=priority,
        enabled=False if disabled else None,
        param_overrides=jobs.parsed_for_all(session, templates.types_of(found), params) if params else None,
    )


@with_parameters_of(_fields)
def add(session: Session, **given: Any) -> None:
    """Create a schedule."""
    made = session.client.schedules.create(**_fields(session, **given))
    session.say(made.json, _words(made))


@with_parameters_of(_fields)
def put(session: Session, **given: Any) -> None:
    """Create a schedule, or make the one of this name what is given; other fields get their defaults."""
    made, is_new = session.client.schedules.put(**_fields(session, **given))
    session.say(made.json, f"{'created' if is_new else 'changed'}: {_words(made)}")


def change(
    session: Session,
    schedule: Which,
    params: Params = None,
    name: Annotated[str | None, typer.Option(help="A new name.")] = None,
    cron: Annotated[str | None, typer.Option(help="A new cron expression.")] = None,
    timezone: Timezone = None,
    catch_up: Annotated[str | None, typer.Option(help="Which missed occurrences fire: latest, all or none.")] = None,
    catch_up_window: Window = None,
    overlap: Annotated[str | None, typer.Option(help="While the previous job runs: allow or skip.")] = None,
    priority: Priority = None,
) -> None:
    """Change a schedule, for its next occurrences; given parameters replace its own."""
    found = find(session, schedule)
    changes = arguments.given(
        name=name,
        cron_expression=cron,
        timezone=timezone,
        catch_up=catch_up,
        catch_up_window_seconds=catch_up_window,
        overlap=overlap,
        priority=priority,
    )
    if params:
        template = templates.find(session, found.template_id)
        new = jobs.parsed_for_all(session, templates.types_of(template), params)
        changes["param_overrides"] = {**(found.param_overrides or {}), **new}
    if not changes:
        raise typer.BadParameter("nothing to change was given; give key=value, --cron, --timezone or another option")
    changed = session.client.schedules.change(found.schedule_id, **changes)
    session.say(changed.json, _words(changed))


def ls(session: Session) -> None:
    """List schedules."""
    page = session.client.schedules.page(500)
    rows = [
        [output.short(one.schedule_id), one.name, one.cron_expression, one.timezone, _next(one), one.last_triggered_at]
        for one in page.items
    ]
    headings = ("ID", "NAME", "CRON", "ZONE", "NEXT", "LAST")
    session.list(page.json, headings, rows, "no schedules")


def show(session: Session, schedule: Which) -> None:
    """Show a schedule."""
    found = find(session, schedule)
    session.show(found.json, lambda: output.facts(dict(found.json)))


def preview(
    session: Session,
    cron: Cron,
    timezone: Timezone = None,
    count: Count = 10,
) -> None:
    """Explain a cron expression, and show when it would fire."""
    found = session.client.schedules.preview(cron, timezone, count)

    def show_preview() -> None:
        output.say(found.cron_words)
        output.table(("LOCAL", "WHEN"), [[one.local.isoformat(), one.utc] for one in found.items], "never")

    session.show(found.json, show_preview)


def upcoming(
    session: Session,
    schedule: Which,
    count: Count = 10,
) -> None:
    """Show the next occurrences of a schedule, without firing any."""
    found = session.client.schedules.upcoming(find(session, schedule).schedule_id, count)
    rows = [[one.local.isoformat(), one.utc] for one in found]
    session.list({"items": [one.json for one in found]}, ("LOCAL", "WHEN"), rows, "none")


def occurrences(
    session: Session,
    schedule: Which,
    limit: Limit = 50,
) -> None:
    """Show past occurrences and their outcomes, newest first."""
    page = session.client.schedules.occurrences_page(find(session, schedule).schedule_id, limit)
    rows = [[one.instant, one.count, output.coloured(one.outcome), one.reason or "", _made(one)] for one in page.items]
    headings = ("WHEN", "COUNT", "OUTCOME", "REASON", "MADE")
    session.list(page.json, headings, rows, "nothing yet")


def _made(one: "Occurrence") -> str:
    return f"group {output.short(one.group_id)}" if one.group_id else output.short(one.job_id)


def trigger(
    session: Session,
    schedule: Which,
    params: Params = None,
    priority: Priority = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job or the group has ended.")] = False,
) -> None:
    """Create a job, or the group, of a schedule now; given parameters replace its own."""
    found = find(session, schedule)
    types = templates.types_of(session.client.templates.get(found.template_id)) if params else []
    given = jobs.parsed_for_all(session, types, params) or None
    made = session.client.schedules.trigger(found.schedule_id, given, priority)
    if "job_id" in made.json:
        jobs.submitted(session, cast("Job", made), wait=wait, follow=False)
    else:
        templates.submitted_group(session, cast("GroupDetail", made), wait=wait)


def enable(session: Session, schedule: Which) -> None:
    """Enable a schedule."""
    _set_enabled(session, schedule, True)


def disable(session: Session, schedule: Which) -> None:
    """Disable a schedule until it is enabled again."""
    _set_enabled(session, schedule, False)


def _set_enabled(session: Session, schedule: str, enabled: bool) -> None:
    changed = session.client.schedules.change(find(session, schedule).schedule_id, enabled=enabled)
    session.say(changed.json, _words(changed))


def rm(session: Session, schedule: Which) -> None:
    """Delete a schedule; its jobs stay."""
    gone = session.client.schedules.delete(find(session, schedule).schedule_id)
    session.say(gone.json, f"{gone.name} deleted")


def _next(schedule: "Schedule") -> str:
    return output.moment(schedule.next_trigger_at) if schedule.enabled else "disabled"


def _words(schedule: "Schedule") -> str:
    words = f" ({schedule.cron_words})" if schedule.cron_words else ""
    return f"{schedule.schedule_id} {schedule.name}{words}: next {_next(schedule)}"
