"""Commands about engines, on which runs can be placed: list them, give up a lost run."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nextslot.cli import arguments, output
from nextslot.cli.session import Session, add_group

if TYPE_CHECKING:
    from nextslot.client import Engine

HEADINGS = ("ENGINE", "KIND", "SLOTS", "SUBMITTING", "QUEUED", "RUNNING", "UNKNOWN", "PROBLEM")


def register(app: typer.Typer) -> None:
    add_group(app, "engine", "Engines, such as Slurm, where runs go that leave this machine.", ls)
    add_group(app, "job", "What an operator knows of a job.", lost)


def ls(session: Session) -> None:
    """List the engines by name."""
    found = session.client.engines.list()
    everything = {"items": [one.json for one in found]}
    session.list(everything, HEADINGS, [_row(one) for one in found], "no engines: add a table [engines.NAME]")


def lost(
    session: Session, job: Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", show_default=False)]
) -> None:
    """Give up a run on an engine that you know to be dead, so that it is retried.

    It ends as a crash. Without this, it ends when its lease is over.
    """
    done = session.client.engines.lose(arguments.job_id(session.client, job))
    session.show(done.json, lambda: output.say(f"{done.job_id} is {done.status}"))


def _row(one: "Engine") -> list[Any]:
    return [one.name, one.kind, one.slots, one.submitting, one.queued, one.running, one.unknown, one.problem or ""]
