"""`nextslot top`: shows running, queued and direct work live, through the public API."""

import contextlib
import select
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from nextslot.cli import output
from nextslot.cli.options import OneOffice
from nextslot.cli.session import Session, command
from nextslot.errors import NextslotError

from .queue import FORECAST_SECONDS

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from nextslot.client import Client, Direct, Queue
    from nextslot.client.values import Progress

# Progress makes no events, so it is fetched this often. Events are shown at once, but at most this often
# (SETTLE_SECONDS).
REFRESH_SECONDS = 2.0
SETTLE_SECONDS = 0.2


def register(app: typer.Typer) -> None:
    command(app)(top)


def top(
    session: Session,
    office: OneOffice = "default",
    once: Annotated[bool, typer.Option("--once", help="Show the queue once, and end.")] = False,
) -> None:
    """Watch the queue live; q or Ctrl-C ends it."""
    if session.is_json:
        output.print_json(session.client.queue(office, wait_seconds=FORECAST_SECONDS).json)
    elif once or not sys.stdout.isatty():
        output.console().print(drawn(fetched(session.client, office, FORECAST_SECONDS)))
    else:
        with contextlib.suppress(KeyboardInterrupt):
            _live(session, office)


@dataclass(frozen=True, slots=True)
class View:
    """The content of the screen at one moment."""

    queue: "Queue"
    direct: "tuple[Direct, ...]"
    progress: "dict[str, Progress]"


def fetched(client: "Client", office: str, wait_seconds: float = 0) -> View:
    queue = client.queue(office, limit=100, wait_seconds=wait_seconds)
    progress = {}
    for job in queue.running:
        run = client.job(job.job_id).run
        found = client.run_by_id(run.run_id).progress if run is not None else None
        if found is not None:
            progress[job.job_id] = found
    direct = client.directs_page(50, office_id=office, status="WAITING,RUNNING").items
    return View(queue, direct, progress)


def drawn(view: View, rows: int = 100) -> "Group":
    from rich.console import Group
    from rich.text import Text

    queue = view.queue
    paused = "  PAUSED" if queue.paused else ""
    waiting = f"{len(queue.queue)}{'+' if queue.next_cursor else ''} in the queue"
    head = Text(
        f"office {queue.office_id}: {len(queue.running)} running, {waiting}, {len(view.direct)} direct{paused}", "bold"
    )
    parts: list[RenderableType] = [head, Text(), _running(view)]
    if view.direct:
        table = [[output.short(one.direct_id), one.job_type, output.coloured(one.status)] for one in view.direct]
        parts += [Text(), output.drawn(("DIRECT", "TYPE", "STATUS"), table)]
    shown = [
        [job.place, output.short(job.job_id), job.job_type, output.coloured(job.status), job.priority,
         job.expected_start, job.title or ""]
        for job in queue.queue[: max(0, rows)]
    ]  # fmt: skip
    headings = ("PLACE", "ID", "TYPE", "STATUS", "PRIORITY", "EXPECTED", "TITLE")
    return Group(*parts, Text(), output.drawn(headings, shown))


def _running(view: View) -> "RenderableType":
    rows = []
    for job in view.queue.running:
        progress = view.progress.get(job.job_id)
        fraction = "" if progress is None or progress.fraction is None else f"{progress.fraction:.0%}"
        text = "" if progress is None else progress.text
        rows.append(
            [
                output.short(job.job_id),
                job.job_type,
                output.took(job.started_at, None),
                fraction,
                text or job.title or "",
            ]
        )
    return output.drawn(("RUNNING", "TYPE", "SINCE", "DONE", ""), rows)


def _live(session: Session, office: str) -> None:
    from rich.live import Live

    news, console = threading.Event(), output.console()
    listener = threading.Thread(target=_listen, args=(session, office, news), daemon=True)
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        listener.start()
        while not pressed("q", 0):
            view = fetched(session.client, office)
            live.update(drawn(view, console.height - len(view.queue.running) - len(view.direct) - 8), refresh=True)
            if pressed("q", SETTLE_SECONDS):
                return
            waited = SETTLE_SECONDS
            while waited < REFRESH_SECONDS and not news.is_set():
                if pressed("q", SETTLE_SECONDS):
                    return
                waited += SETTLE_SECONDS
            news.clear()


def _listen(session: Session, office: str, news: threading.Event) -> None:
    """Receives events on a separate connection. If that fails, the screen is refreshed by time alone."""
    from nextslot.client import Client

    with contextlib.suppress(NextslotError), Client(session.url, key=session.key) as client:
        for _ in client.events(client.me().last_event, office_id=office):
            news.set()


class _Pressed:
    def __call__(self, key: str, seconds: float) -> bool:
        """Returns whether this key was pressed within this time."""
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return bool(ready) and sys.stdin.read(1) == key


@contextlib.contextmanager
def _keys() -> Iterator[_Pressed]:
    """Switches the terminal to single key presses, and back at the end."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield _Pressed()
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
