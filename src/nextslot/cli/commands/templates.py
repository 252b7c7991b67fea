"""Commands about templates: reusable job definitions."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nextslot.cli import arguments, output
from nextslot.cli.options import Office, Params, Priority, Retries, RetryOn, Type, Webhook, WebhookFormat
from nextslot.cli.session import Session, add_group, with_parameters_of

from . import jobs

if TYPE_CHECKING:
    from nextslot.client import Template

Which = Annotated[str, typer.Argument(metavar="TEMPLATE", help="The template's name or id.", show_default=False)]
Timeout = Annotated[float | None, typer.Option(metavar="SECONDS", help="The longest time a job may run.")]
Description = Annotated[str | None, typer.Option(help="What it is for.")]


def register(app: typer.Typer) -> None:
    add_group(app, "template", "Templates, reusable job definitions.", add, put, ls, show, change, submit, rm)


def find(session: Session, text: str, office: str | None = None) -> "Template":
    """Returns a template by its name or id; if an office is given, one of that office."""
    everything = (one for one in session.client.templates.list() if office in (None, one.office_id))
    return arguments.named(everything, text, "template", lambda one: one.template_id, lambda one: one.name)


def _fields(
    session: Session,
    name: Annotated[str, typer.Argument(help="A name, unique in its office.", show_default=False)],
    job_type: Type,
    params: Params = None,
    priority: Priority = None,
    timeout: Timeout = None,
    description: Description = None,
    webhook: Webhook = None,
    webhook_format: WebhookFormat = None,
    retries: Retries = None,
    retry_on: RetryOn = None,
    office: Office = None,
) -> Any:
    options = _given(session, job_type, params, priority, timeout, description)
    options |= arguments.follow_up(webhook, webhook_format, retries, retry_on)
    return {"name": name, "job_type": job_type, **arguments.given(office_id=office), **options}


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
    rows = [[output.short(one.template_id), one.name, one.job_type, one.priority, one.params] for one in page.items]
    headings = ("ID", "NAME", "TYPE", "PRIORITY", "PARAMS")
    session.list(page.json, headings, rows, "no templates")


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
    changes = _given(session, found.job_type, params, priority, timeout, description)
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
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job has ended.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait, and show the job's log.")] = False,
) -> None:
    """Submit a job from a template; given parameters replace the template's."""
    found = find(session, template)
    given = jobs.parsed_params(session, found.job_type, params)
    job = session.client.submit_from(found.template_id, given, **arguments.given(priority=priority))
    jobs.submitted(session, job, wait=wait, follow=follow)


def rm(session: Session, template: Which) -> None:
    """Archive a template: its schedules are disabled, its jobs stay."""
    gone = session.client.templates.archive(find(session, template).template_id)
    session.say(gone.json, f"{gone.name} archived")


def _given(
    session: Session,
    job_type: str,
    params: list[str] | None,
    priority: int | None,
    timeout: float | None,
    description: str | None,
) -> Any:
    return arguments.given(
        params=jobs.parsed_params(session, job_type, params) if params else None,
        priority=priority,
        timeout_seconds=timeout,
        description=description,
    )
