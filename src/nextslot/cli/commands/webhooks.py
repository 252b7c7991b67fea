"""Commands about webhooks: subscriptions and deliveries."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from nextslot.cli import arguments, output
from nextslot.cli.options import Cursor, Limit
from nextslot.cli.session import Session, add_group, offline

if TYPE_CHECKING:
    from nextslot.client.values import Delivery, Webhook
    from nextslot.config import Configuration

Which = Annotated[
    str,
    typer.Argument(metavar="WEBHOOK", help="The subscription's id, or the beginning or end of it.", show_default=False),
]
Events = Annotated[str | None, typer.Option(help="Events, separated by commas; default: the three job.run.*.")]


def register(app: typer.Typer) -> None:
    commands = (add, ls, show, enable, disable, test, rotate, rm, deliveries, redeliver)
    webhook = add_group(app, "webhook", "Webhooks: subscriptions and deliveries.", *commands)
    offline(webhook)(secret)


def find(session: Session, text: str) -> "Webhook":
    everything = session.client.webhooks.list()
    return arguments.named(everything, text, "webhook", lambda one: one.webhook_id, lambda one: one.url)


def add(
    session: Session,
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="The address that receives messages.", show_default=False)
    ],
    events: Events = None,
    office: Annotated[str | None, typer.Option("--office", help="Only events of this office.")] = None,
    format_: Annotated[str | None, typer.Option("--format", help="For a chat: slack, discord or ntfy.")] = None,
) -> None:
    """Create a subscription; its secret is shown only once."""
    made = session.client.webhooks.create(address, events.split(",") if events else None, office, format_)
    session.say(made.json, f"{made.webhook_id}\nsecret: {made.secret}")


def ls(session: Session) -> None:
    """List subscriptions."""
    page = session.client.webhooks.page(500)
    rows = [
        [
            output.short(one.webhook_id),
            one.url,
            ",".join(one.events),
            one.office_id or "all",
            "yes" if one.enabled else f"no: {one.disabled_reason or 'disabled'}",
        ]
        for one in page.items
    ]
    headings = ("ID", "URL", "EVENTS", "OFFICE", "ENABLED")
    session.list(page.json, headings, rows, "no webhooks")


def show(session: Session, webhook: Which) -> None:
    """Show a subscription."""
    found = find(session, webhook)
    session.show(found.json, lambda: output.facts(dict(found.json)))


def enable(session: Session, webhook: Which) -> None:
    """Enable a subscription."""
    _set_enabled(session, webhook, True)


def disable(session: Session, webhook: Which) -> None:
    """Disable a subscription."""
    _set_enabled(session, webhook, False)


def _set_enabled(session: Session, webhook: str, enabled: bool) -> None:
    changed = session.client.webhooks.change(find(session, webhook).webhook_id, enabled=enabled)
    session.say(changed.json, f"{changed.webhook_id} {'enabled' if enabled else 'disabled'}")


def test(session: Session, webhook: Which) -> None:
    """Send a test message to a subscription."""
    sent = session.client.webhooks.test(find(session, webhook).webhook_id)
    session.say(sent.json, f"{sent.delivery_id} {sent.status}")


def rotate(session: Session, webhook: Which) -> None:
    """Replace the secret, which is shown only once; the previous one stays valid for a while."""
    changed = session.client.webhooks.rotate_secret(find(session, webhook).webhook_id)
    session.say(changed.json, f"secret: {changed.secret}")


def rm(session: Session, webhook: Which) -> None:
    """Delete a subscription."""
    found = find(session, webhook)
    session.client.webhooks.delete(found.webhook_id)
    session.say({"webhook_id": found.webhook_id}, f"{found.webhook_id} deleted")


def deliveries(
    session: Session,
    job: Annotated[str | None, typer.Option(metavar="ID", help="Only deliveries about this job.")] = None,
    event: Annotated[str | None, typer.Option(help="Such as job.run.failed.")] = None,
    status: Annotated[str | None, typer.Option(help="PENDING, DELIVERED or FAILED.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """List deliveries, newest first."""
    client = session.client
    job_id = arguments.job_id(client, job) if job else None
    page = client.webhooks.deliveries_page(limit, cursor, job_id=job_id, event=event, status=status)
    rows = [
        [
            one.delivery_id,
            one.event,
            output.coloured(one.status),
            len(one.attempts),
            _last(one),
            one.created_at,
            one.url,
        ]
        for one in page.items
    ]
    headings = ("ID", "EVENT", "STATUS", "ATTEMPTS", "LAST", "CREATED", "URL")
    session.list(page.json, headings, rows, "no deliveries")


def redeliver(
    session: Session,
    delivery: Annotated[str, typer.Argument(metavar="DELIVERY", help="The delivery's whole id.", show_default=False)],
) -> None:
    """Send a message again."""
    sent = session.client.webhooks.redeliver(delivery)
    session.say(sent.json, f"{sent.delivery_id} {sent.status}")


def secret(
    is_json: bool,
    wanted: "Configuration",
    office: Annotated[str, typer.Option("--office", help="The office.")] = "default",
) -> None:
    """Print the secret that signs the webhooks of an office and of its jobs.

    It comes from the configuration, or from the database of a data directory that no server uses.
    """
    from nextslot import offline_commands

    found = asyncio.run(offline_commands.webhook_secret(wanted, office))
    output.result(is_json, {"secret": found}, found)


def _last(delivery: "Delivery") -> str:
    if not delivery.attempts:
        return "-"
    last = delivery.attempts[-1]
    return str(last.status_code) if last.status_code is not None else last.error or "-"
