"""Commands about templates: reusable definitions of jobs and groups."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nextslot.cli import arguments, output, watching
from nextslot.cli.options import Office, OptionalType, Params, Priority, Retries, RetryOn, Webhook, WebhookFormat
from nextslot.cli.session import Session, add_group, with_parameters_of

from . import jobs

if TYPE_CHECKING:
    from nextslot.client import GroupDetail, Template

Which = Annotated[str, typer.Argument(metavar="TEMPLATE", help="The template's name or id.", show_default=False)]
Timeout = Annotated[float | None, typer.Option(metavar="SECONDS", help="The longest time a job may run.")]
Description = Annotated[str | None, typer.Option(help="What it is for.")]


def register(app: typer.Typer) -> None:
    add_group(
        app, "template", "Templates, reusable definitions of jobs and groups.", add, put, ls, show, change, submit, rm
    )


def find(session: Session, text: str, office: str | None = None) -> "Template":
    """Returns a template by its name or id; if an office is given, one of that office."""
    everything = (one for one in session.client.templates.list() if office in (None, one.office_id))
    return arguments.named(everything, text, "template", lambda one: one.template_id, lambda one: one.name)


def _fields(
    session: Session,
    name: Annotated[str, typer.Argument(help="A name, unique in its office.", show_default=False)],
    job_type: OptionalType = None,
    params: Params = None,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Make a group instead of one job: a JSON list of jobs, or an object with jobs, mode and on_failure; "
            "- means stdin.",
        ),
    ] = None,
    priority: Priority = None,
    timeout: Timeout = None,
    description: Description = None,
    webhook: Webhook = None,
    webhook_format: WebhookFormat = None,
    retries: Retries = None,
    retry_on: RetryOn = None,
    office: Office = None,
) -> Any:
    made = {"job_type": job_type}
    if group is not None:
        # Without a type, the first parameter is in the place of the type.
        params = [*([job_type] if job_type is not None else ()), *(params or ())]
        made = _group(group)
    elif job_type is None:
        raise typer.BadParameter("neither TYPE nor --group is given; give the type of the job, or the file of a group")
    options = _given(session, _types(made), params, priority, timeout, description)
    options |= arguments.follow_up(webhook, webhook_format, retries, retry_on)
    return {"name": name, **made, **arguments.given(office_id=office), **options}


def _group(file: str) -> Any:
    found = arguments.json_file(file)
    if isinstance(found, list):
        return {"jobs": found}
    if not isinstance(found, dict) or "jobs" not in found or found.keys() - {"jobs", "mode", "on_failure"}:
        raise typer.BadParameter(
            f"{file} does not describe a group; write a list of jobs, or an object with jobs, mode and on_failure"
        )
    return found


def types_of(template: "Template") -> list[str]:
    """Returns the types of the jobs that a template makes."""
    return _types({"job_type": template.job_type, "jobs": template.jobs})


def _types(made: Any) -> list[str]:
    jobs = made.get("jobs") or [made]
    return [str(one.get("job_type")) for one in jobs if isinstance(one, dict)] or [""]


@with_parameters_of(_fields)
def add(session: Session, **given: Any) -> None:
    """Create a template."""
    made = session.client.templates.create(**_fields(session, **given))
    session.say(made.json, made.template_id)


@with_parameters_of(_fields)
def put(session: Session, **given: Any) -> None:
    """Create a template, or make the one of this name what is given; other fields get their defaults."""
    made, is_new = session.client.templates.put(**_fields(session, **given))
    session.say(made.json, f"{'created' if is_new else 'changed'}: {made.template_id} {made.name}")


def ls(session: Session) -> None:
    """List templates."""
    page = session.client.templates.page(500)
    rows = [[output.short(one.template_id), one.name, _kind(one), one.priority, one.params] for one in page.items]
    headings = ("ID", "NAME", "TYPE", "PRIORITY", "PARAMS")
    session.list(page.json, headings, rows, "no templates")


def _kind(template: "Template") -> str:
    return template.job_type or f"{len(template.jobs or ())} jobs, {template.mode}"


def show(session: Session, template: Which) -> None:
    """Show a template."""
    found = find(session, template)
    session.show(found.json, lambda: output.facts(dict(found.json)))


def change(
    session: Session,
    template: Which,
    params: Params = None,
    name: Annotated[str | None, typer.Option(help="A new name.")] = None,
    priority: Priority = None,
    timeout: Timeout = None,
    description: Description = None,
) -> None:
    """Change a template, for future jobs; given parameters replace its own."""
    found = find(session, template)
    changes = _given(session, types_of(found), params, priority, timeout, description)
    if "params" in changes:
        changes["params"] = {**found.params, **changes["params"]}
    if name is not None:
        changes["name"] = name
    if not changes:
        raise typer.BadParameter(
            "nothing to change was given; give key=value, --name, --priority, --timeout or --description"
        )
    changed = session.client.templates.change(found.template_id, **changes)
    session.say(changed.json, f"{changed.name} changed")


def submit(
    session: Session,
    template: Which,
    params: Params = None,
    priority: Priority = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job or the group has ended.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait, and show the job's log.")] = False,
) -> None:
    """Submit a job or a group from a template; given parameters replace the template's."""
    found = find(session, template)
    given = jobs.parsed_for_all(session, types_of(found), params)
    if found.jobs is not None:
        if follow:
            raise typer.BadParameter("a group has no log of its own; use --wait, and `nextslot log ID -f` for a job")
        made = session.client.submit_group_from(found.template_id, given, priority, office_id=found.office_id)
        submitted_group(session, made, wait=wait)
        return
    job = session.client.submit_from(found.template_id, given, **arguments.given(priority=priority))
    jobs.submitted(session, job, wait=wait, follow=follow)


def submitted_group(session: Session, made: "GroupDetail", *, wait: bool) -> None:
    """Prints the id of a submitted group or, with --wait, waits for its end."""
    if wait:
        watching.wait_for_group(session, made)
    else:
        session.say(made.json, made.group_id)


def rm(session: Session, template: Which) -> None:
    """Archive a template: its schedules are disabled, its jobs stay."""
    gone = session.client.templates.archive(find(session, template).template_id)
    session.say(gone.json, f"{gone.name} archived")


def _given(
    session: Session,
    job_types: Sequence[str],
    params: list[str] | None,
    priority: int | None,
    timeout: float | None,
    description: str | None,
) -> Any:
    return arguments.given(
        params=jobs.parsed_for_all(session, job_types, params) if params else None,
        priority=priority,
        timeout_seconds=timeout,
        description=description,
    )
