"""Formats output for a terminal (tables, colours by status, readable times) and as JSON for programs.

rich is imported only where it draws something: its import takes as long as the rest of a short command.
"""

import functools
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

COLOURS = {
    "WAITING": "yellow",
    "QUEUED": "cyan",
    "RUNNING": "bold blue",
    "COMPLETED": "green",
    "FAILED": "bold red",
    "SKIPPED": "magenta",
    "CANCELLED": "bright_black",
    "PARTIAL": "red",
    "DELIVERED": "green",
    "fired": "green",
    "skipped": "magenta",
    "active": "green",
    "paused": "yellow",
    "archived": "bright_black",
    "pending": "yellow",
    "ready": "cyan",
    "processing": "bold blue",
    "done": "green",
    "failed": "bold red",
    "cancelled": "bright_black",
    "live": "green",
    "draining": "yellow",
    "left": "bright_black",
    "lost": "bold red",
}
# Wide enough that no output to a file or a pipe is cut.
NO_TERMINAL_WIDTH = 1000
SHORT = 8

Cell = Any


@functools.cache
def console(stderr: bool = False) -> "Console":
    """Returns the console. It uses colours only on a terminal; rich itself honours NO_COLOR."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else NO_TERMINAL_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_result(result: Any) -> None:
    """Prints the result of a run: whole into a pipe or a file, without fields for programs on a terminal."""
    print_json(for_people(result) if sys.stdout.isatty() else result)


def for_people(result: Any) -> Any:
    """Returns a value without the fields that only programs compare."""
    if isinstance(result, list):
        return [for_people(one) for one in result]
    if not isinstance(result, dict):
        return result
    return {name: for_people(value) for name, value in result.items() if name not in ("fingerprint", "sketch")}


def print_json_line(value: Any) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def write(content: bytes) -> None:
    """Prints a file: unchanged into a pipe or a file, without control characters on a terminal."""
    raw = getattr(sys.stdout, "buffer", None)
    if raw is None or sys.stdout.isatty():
        say(clean(content.decode(errors="replace").removesuffix("\n")))
    else:
        raw.write(content)
        raw.flush()


def result(is_json: bool, json: Any, text: str) -> None:
    if is_json:
        print_json(json)
    else:
        say(text)


def remark(text: str) -> None:
    """Writes a remark for people to stderr, so that stdout stays clean for pipes."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def confirm(question: str) -> None:
    """Asks for confirmation and aborts unless the answer is yes. Asks on stderr, since stdout may be a pipe."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise typer.Abort


def table(headings: Sequence[str], rows: Iterable[Sequence[Cell]], empty: str, next_cursor: str | None = None) -> None:
    found = list(rows)
    if found:
        console().print(drawn(headings, found))
    else:
        remark(empty)
    if next_cursor is not None:
        remark(f"there are more: --cursor {next_cursor}")


def drawn(headings: Sequence[str], rows: Iterable[Sequence[Cell]]) -> "Table":
    from rich.table import Table

    result = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        result.add_column(heading, no_wrap=True, overflow="ellipsis", justify="left")
    for row in rows:
        result.add_row(*(_cell(one) for one in row))
    return result


def facts(values: Mapping[str, Cell]) -> None:
    """Prints one line for each value that is not None."""
    from rich.table import Table

    result = Table(box=None, pad_edge=False, show_header=False)
    result.add_column(style="bold", no_wrap=True)
    result.add_column(overflow="fold")
    for name, value in values.items():
        if value is not None and value != "":
            result.add_row(name, _cell(value))
    console().print(result)


def coloured(word: str | None) -> "Text":
    from rich.text import Text

    return Text(word or "-", style=COLOURS.get(word or "", ""))


def _cell(value: Cell) -> "Text":
    """Returns plain text, never markup: a title may contain brackets or terminal control characters."""
    from rich.text import Text

    if isinstance(value, Text):
        return value
    if isinstance(value, datetime):
        return Text(moment(value))
    if value is None:
        return Text("-")
    return Text(clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))


def clean(text: str) -> str:
    """Replaces characters that would control the terminal."""
    return "".join(one if one.isprintable() or one in "\n\t" else "�" for one in text)


def short(id: str | None) -> str:
    """Returns the end of an id: its beginning is a time, which jobs submitted together share."""
    return "-" if not id else id[-SHORT:] if len(id) == 36 else id


def moment(when: datetime | None, now: datetime | None = None) -> str:
    """Returns a near time as a distance and a far time as a date."""
    if when is None:
        return "-"
    seconds = (when - (now or datetime.now(UTC))).total_seconds()
    if abs(seconds) >= 86400:
        return when.astimezone().strftime("%Y-%m-%d %H:%M")
    if abs(seconds) < 1:
        return "now"
    return f"in {duration(seconds)}" if seconds > 0 else f"{duration(-seconds)} ago"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def took(started: datetime | None, finished: datetime | None) -> str:
    if started is None:
        return "-"
    return duration(((finished or datetime.now(UTC)) - started).total_seconds())


# How often a long command shows its progress: people read no faster, and a log should stay short.
EVERY_SECONDS = 1.0


class Rows:
    """Shows on stderr how many rows a long command has done: one line on a terminal, a new line each time elsewhere."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._printed = self._counted_at = self._since = self._began
        self._total = 0
        self._last = ("", "", 0)
        self.seconds = 0.0

    def __enter__(self) -> "Rows":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.monotonic() - self._began
        if self._printed > self._began and sys.stderr.isatty():
            sys.stderr.write("\n")

    def note(self, doing: str, table: str, done: int, rows: int) -> None:
        now = time.monotonic()
        self._count(doing, table, done)
        if now - self._printed >= EVERY_SECONDS:
            self._printed = now
            speed = self._total / max(now - self._since, 0.001)
            self._print(f"{doing}: {table} {done:,} of {rows:,}, {speed:,.0f} rows/s")
        self._counted_at = now

    def _count(self, doing: str, table: str, done: int) -> None:
        """Adds up rows for each activity. Counts skipped rows of a table only once."""
        last_doing, last_table, last_done = self._last
        if doing != last_doing:
            self._total, self._since = 0, self._counted_at
        goes_on = table == last_table and last_doing in (doing, "skip")
        self._total += done - last_done if goes_on else done
        self._last = (doing, table, done)

    def _print(self, text: str) -> None:
        is_terminal = sys.stderr.isatty()
        sys.stderr.write(f"\r\x1b[K{text}" if is_terminal else f"{text}\n")
        sys.stderr.flush()
