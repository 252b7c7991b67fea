"""The command `failures`: lists failures by fingerprint; retries, mutes or annotates one fingerprint."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nextslot.cli import arguments, output
from nextslot.cli.commands.stats import sparkline
from nextslot.cli.options import Cursor, Office, Yes
from nextslot.cli.session import Session, command
from nextslot.errors import NotFound

if TYPE_CHECKING:
    from nextslot.client import Failure, Failures

HEADINGS = ("FINGERPRINT", "TYPE", "KIND", "COUNT", "WHEN", "LAST", "MESSAGE")
# How many characters of a fingerprint and of a message a line shows.
SHORT, WIDE = 8, 70


def register(app: typer.Typer) -> None:
    command(app)(failures)


def failures(
    session: Session,
    fingerprint: Annotated[str | None, typer.Argument(help="Only this one; its beginning is enough.")] = None,
    since: Annotated[str, typer.Option(metavar="DURATION", help="How far back: 6h, 24h, 7d.")] = "24h",
    office: Office = None,
    type: Annotated[str | None, typer.Option(help="Only jobs of this type.")] = None,
    muted: Annotated[bool, typer.Option("--muted", help="Muted ones too.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Retry those that can be retried.")] = False,
    mute: Annotated[bool | None, typer.Option("--mute/--unmute", help="Leave it out of lists, or no longer.")] = None,
    note: Annotated[str | None, typer.Option(help="Note something about it; an empty text removes the note.")] = None,
    yes: Yes = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100, help="The most to show.")] = 25,
    cursor: Cursor = None,
) -> None:
    """Show failures that are alike: how often, when, and with which error.

    With a fingerprint: retry them, mute them, or store a note about them.
    """
    changes = arguments.given(muted=mute) | ({} if note is None else {"note": note or None})
    if fingerprint is None and (retry or changes):
        raise typer.BadParameter("nothing says which failures; give a fingerprint, as `nextslot failures` lists them")
    begin = datetime.now(UTC) - timedelta(seconds=arguments.seconds(since))
    if fingerprint is None:
        kept = None if muted else False
        found = session.client.failures.list(
            begin, office_id=office, job_type=type, muted=kept, cursor=cursor, limit=limit
        )
        session.list(found.json, HEADINGS, [_row(one) for one in found.items], "nothing has failed")
        return
    one = _one(session, fingerprint, begin, office)
    if changes:
        one = session.client.failures.change(
            one.fingerprint, **changes | ({"note": note or None} if "note" in changes else {})
        )
    if retry:
        _retry(session, one, yes)
    else:
        session.show(one.json, lambda: _show(one))


def _one(session: Session, text: str, begin: datetime, office: str | None) -> "Failure":
    """Returns the one failure whose fingerprint begins so."""
    page: Failures | None = None
    found: list[Failure] = []
    while page is None or page.next_cursor is not None:
        cursor = None if page is None else page.next_cursor
        page = session.client.failures.list(begin, office_id=office, cursor=cursor, limit=100)
        found += [one for one in page.items if one.fingerprint.startswith(text.lower())]
    if not found:
        raise NotFound("failure", text)
    if len(found) > 1:
        raise typer.BadParameter(f"{text!r} is the beginning of {len(found)} fingerprints; give more of it")
    return found[0]


def _retry(session: Session, failure: "Failure", yes: bool) -> None:
    wanted: Any = {"fingerprint": failure.fingerprint}
    count = session.client.retry_many(dry_run=True, **wanted).retried
    if not count:
        output.say("none of them can be retried: they have been retried already")
        return
    if not yes:
        output.confirm(f"retry {count} jobs?")
    done = session.client.retry_many(**wanted)
    session.say(done.json, f"{done.retried} retried")


def _row(one: "Failure") -> list[Any]:
    message = one.message if len(one.message) <= WIDE else f"{one.message[: WIDE - 1]}…"
    return [
        one.fingerprint[:SHORT],
        one.job_type,
        one.failure_kind,
        one.count,
        sparkline(list(one.buckets)),
        one.last_seen,
        f"{message} (muted)" if one.muted else message,
    ]


def _show(one: "Failure") -> None:
    rows: list[list[Any]] = [
        ["message", one.message],
        ["last error", one.last_error],
        ["type", one.job_type],
        ["kind", one.failure_kind],
        ["office", one.office_id],
        ["in all", one.total],
        ["first seen", one.first_seen],
        ["last seen", one.last_seen],
        ["muted", "yes" if one.muted else "no"],
        ["note", one.note or "-"],
        ["schedules", ", ".join(each.name or each.schedule_id for each in one.schedules) or "-"],
        ["last jobs", ", ".join(output.short(each.job_id) for each in one.last_runs) or "-"],
        ["fingerprint", one.fingerprint],
    ]
    output.table(("", ""), rows, "")
