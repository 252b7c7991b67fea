"""Commands about quotas: the limits that admins grant to each office."""

from typing import Annotated, Any

import typer

from nextslot.cli import arguments
from nextslot.cli.session import Session, add_group

Which = Annotated[str, typer.Argument(metavar="OFFICE", help="The office's id.", show_default=False)]
# How a value that is not a number is shown.
WORDS = {("job_types", "[]"): "all", ("own_resources", "False"): "no", ("own_resources", "True"): "yes"}


def register(app: typer.Typer) -> None:
    add_group(app, "quota", "Quotas: what an office may use at most.", show, grant)


def show(session: Session, office: Which) -> None:
    """Show the quotas of an office, and what it uses of them."""
    _show(session, dict(session.client.quotas.get(office)))


def grant(
    session: Session,
    office: Which,
    changes: Annotated[
        list[str],
        typer.Argument(metavar="KEY=VALUE", help="Such as queued_jobs=1000; null is back to the default."),
    ],
) -> None:
    """Grant an office more or less; this needs a key with the scope admin."""
    given: Any = arguments.parameters(changes, {})
    _show(session, dict(session.client.quotas.change(office, **given)))


def _show(session: Session, quotas: dict[str, Any]) -> None:
    used = quotas.get("used") or {}
    rows = [
        [name, WORDS.get((name, str(value)), value), used.get(name, "")]
        for name, value in quotas.items()
        if name != "used"
    ]
    session.list(quotas, ("QUOTA", "AT MOST", "USED"), rows, "no quotas")
