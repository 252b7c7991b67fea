"""The command `stats`: how many jobs ended over time, as a table with one line for each step."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nextslot.cli import arguments, output
from nextslot.cli.session import Session, command

if TYPE_CHECKING:
    from nextslot.client import SeriesPoint

HEADINGS = ("FROM", "COMPLETED", "FAILED", "SKIPPED", "CANCELLED", "WAIT P50", "P95", "RAN P50", "P95", "QUEUE")
BARS = "▁▂▃▄▅▆▇█"


def register(app: typer.Typer) -> None:
    command(app)(stats)


def stats(
    session: Session,
    since: Annotated[str, typer.Option(metavar="DURATION", help="How far back: 90m, 24h, 7d.")] = "24h",
    step: Annotated[str, typer.Option(metavar="DURATION", help="One line for each: 1m, 5m, 15m, 1h or 1d.")] = "1h",
    office: Annotated[str | None, typer.Option("--office", help="Only this office.")] = None,
    type: Annotated[str | None, typer.Option(help="Only jobs of this type.")] = None,
    direct: Annotated[bool, typer.Option("--direct", help="Direct executions instead of jobs.")] = False,
) -> None:
    """Show how many jobs ended, how long they waited and ran, and the queue over time."""
    found = session.client.stats.series(
        datetime.now(UTC) - timedelta(seconds=arguments.seconds(since)),
        step=round(arguments.seconds(step)),
        office_id=office,
        job_type=type,
        kind="direct" if direct else "job",
    )

    def tables() -> None:
        output.table(HEADINGS, [_row(one) for one in found.points], "nothing yet")
        ended = [_ended(one) for one in found.points]
        output.say(f"ended  {sparkline(ended)}  {sum(ended)} in all")

    session.show(found.json, tables)


def _ended(point: "SeriesPoint") -> int:
    return point.completed + point.failed + point.skipped + point.cancelled


def _row(point: "SeriesPoint") -> list[Any]:
    return [
        point.at,
        point.completed,
        point.failed,
        point.skipped,
        point.cancelled,
        output.duration(point.wait_p50_seconds),
        output.duration(point.wait_p95_seconds),
        output.duration(point.duration_p50_seconds),
        output.duration(point.duration_p95_seconds),
        "-" if point.queue_depth is None else point.queue_depth,
    ]


def sparkline(values: list[int]) -> str:
    """Draws a bar for each value; only 0 has the lowest."""
    most = max(values, default=0)
    return "".join(BARS[0] if not value else BARS[-(-value * (len(BARS) - 1) // most)] for value in values)
