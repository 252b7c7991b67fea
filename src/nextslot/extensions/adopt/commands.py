"""The commands `nextslot adopt stories` and `nextslot adopt office`, on a data directory that no server uses."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from zoneinfo import ZoneInfo

import typer

from nextslot.cli import output
from nextslot.cli.session import group, offline, run_offline, run_without_database
from nextslot.errors import Invalid

if TYPE_CHECKING:
    from nextslot.config import Configuration

    from .adopt_service import Report
    from .old_work import Found, Reading

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be taken over; store nothing.")]
Timezone = Annotated[str | None, typer.Option("--timezone", help="The zone of times without one, as Asia/Seoul.")]
Map = Annotated[
    list[str] | None, typer.Option("--map", help="OLD=NEW: the source calls the field NEW OLD. Repeatable.")
]

# How many of the things that are left behind a terminal shows.
MOST_SHOWN = 50


def register(app: typer.Typer) -> None:
    adopt = group("adopt", "Take over the jobs of an older system; its ids still find them.")
    offline(adopt, "stories")(adopt_stories)
    offline(adopt, "office")(adopt_office)
    app.add_typer(adopt)


def adopt_stories(
    is_json: bool,
    wanted: "Configuration",
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The old service's directory.", show_default=False)],
    dry_run: DryRun = False,
    timezone: Timezone = None,
    map_: Map = None,
) -> None:
    """Take over jobs, batches, stories and research cards of the old story service; nothing there is changed.

    Run it again to continue, or to add what was left.
    """
    from . import old_stories

    _adopt(is_json, wanted, old_stories.read(directory, _reading(timezone, map_)), dry_run)


def adopt_office(
    is_json: bool,
    wanted: "Configuration",
    url: Annotated[str, typer.Argument(metavar="URL", help="The old database's address.", show_default=False)],
    dry_run: DryRun = False,
    timezone: Timezone = None,
    map_: Map = None,
) -> None:
    """Take over job_queue and job_executions of the old office scheduler on PostgreSQL; nothing there is changed.

    Run it again to continue, or to add what was left.
    """
    from . import old_office

    _adopt(is_json, wanted, old_office.read(url, _reading(timezone, map_)), dry_run)


def _reading(timezone: str | None, pairs: list[str] | None) -> "Reading":
    from .old_work import Reading, names_of

    try:
        zone = None if timezone is None else ZoneInfo(timezone)
    except (ValueError, OSError, LookupError):
        raise Invalid(f"there is no time zone {timezone!r}; give one such as Asia/Seoul or UTC") from None
    return Reading(zone, names_of(pairs or ()))


def _adopt(is_json: bool, wanted: "Configuration", found: "Found", dry_run: bool) -> None:
    from .adopt_service import AdoptService

    if dry_run:
        report = run_without_database(wanted, AdoptService, lambda service: service.would_adopt(found))
    else:
        report = run_offline(wanted, AdoptService, lambda service: service.adopt(found))
    output.result(is_json, {"adopted": not dry_run, **asdict(report)}, "\n".join(_lines(report, dry_run)))


def _lines(report: "Report", dry_run: bool) -> list[str]:
    counts: dict[str, Any] = {
        "jobs": report.jobs,
        "batches": report.groups,
        "stories": report.stories,
        "research cards": report.cards,
    }
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "nothing"
    lines = [f"{'would take over' if dry_run else 'taken over'}: {said}"]
    if report.queued:
        lines.append(f"{report.queued} of the jobs {'would be' if dry_run else 'are'} in the queue")
    if report.crashed:
        lines.append(
            f"{report.crashed} were running there, and are FAILED (crash) here; nextslot retry runs them again"
        )
    if report.known:
        lines.append(f"{report.known} were taken over before")
    lines += [
        f"{'partly' if one.is_part else 'not'} taken over: {one.source}: {one.reason}"
        for one in report.left[:MOST_SHOWN]
    ]
    if len(report.left) > MOST_SHOWN:
        lines.append(f"and {len(report.left) - MOST_SHOWN} more; --json lists all")
    return lines
