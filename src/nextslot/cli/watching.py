"""Waits at a terminal for a chain of jobs, or for a direct request.

Progress and log lines of direct work go to stderr, results to stdout.
"""

import contextlib
import re
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from . import arguments, output
from .session import Session

if TYPE_CHECKING:
    from nextslot.client import Client, Direct, Ended, GroupDetail, JobDetail, Update

SUCCESS = ("COMPLETED", "SKIPPED")
# After so long, the command says why it still waits.
SILENT_SECONDS = 1.0
# The reasons of `why` that hold a direct request too: a pause and the queue do not.
DELAYS_DIRECT = {"limit_full", "rate_full", "resource_held", "quota_used_up", "never_fits", "device_busy", "no_node"}
# The exit code by which shells report a program that Ctrl-C ended.
INTERRUPTED = 130


class Line:
    """Shows one line of progress on a terminal, and nothing elsewhere."""

    def __init__(self) -> None:
        self._progress: Any = None
        self._task: Any = None

    @contextlib.contextmanager
    def shown(self) -> Iterator["Line"]:
        if not sys.stderr.isatty():
            yield self
            return
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=output.console(stderr=True), transient=True) as self._progress:
            self._task = self._progress.add_task("waiting", total=None)
            yield self
        self._progress = None

    def update(self, text: str, fraction: float | None = None) -> None:
        if self._progress is not None:
            total = None if fraction is None else 1.0
            self._progress.update(self._task, description=output.clean(text), total=total, completed=fraction or 0.0)


def wait(session: Session, job_id: str, *, follow: bool, is_new: bool = True) -> None:
    """Waits until the chain has ended. The exit code says whether it succeeded."""
    from nextslot.client import Ended

    try:
        # Once the job's id is printed, Ctrl-C stops only the waiting, not the job.
        if not session.is_json and is_new:
            output.remark(f"submitted {job_id}")
        last = _followed(session, job_id) if follow else _awaited(session, job_id)
    except KeyboardInterrupt:
        output.remark(
            f"\nthe job continues: `nextslot log {job_id} -f` follows it, `nextslot cancel {job_id}` cancels it"
        )
        raise typer.Exit(INTERRUPTED) from None
    assert last is not None
    ended = Ended(last)
    session.show(last.json, lambda: _print_end(ended))
    if not ended.is_success:
        raise typer.Exit(1)


def wait_for_group(session: Session, group: "GroupDetail") -> None:
    """Waits until all chains of a group have ended. The exit code says whether all succeeded."""
    try:
        if not session.is_json:
            output.remark(f"submitted {group.group_id}")
        reasons = Reasons(session.client)
        with Line().shown() as line:
            for place, job in enumerate(group.jobs, 1):
                line.update(f"{job.title or job.job_type}, {place} of {len(group.jobs)}", place / len(group.jobs))
                for found in session.client.watch(job.job_id):
                    reasons.say(found)
    except KeyboardInterrupt:
        output.remark(f"\nthe group continues: `nextslot group show {group.group_id}` shows it")
        raise typer.Exit(INTERRUPTED) from None
    ended = session.client.group(group.group_id)
    session.say(ended.json, f"{ended.status} {ended.group_id}: {ended.succeeded} of {ended.members} succeeded")
    if ended.status != "COMPLETED":
        raise typer.Exit(1)


def _awaited(session: Session, job_id: str) -> "JobDetail | None":
    last, reasons = None, Reasons(session.client)
    with Line().shown() as line:
        for last in session.client.watch(job_id):
            reasons.say(last)
            line.update(*_progress(session.client, last))
    return last


class Reasons:
    """Prints what a job waits for to stderr, in the sentences of `why`, each sentence once; prints nothing if the job
    starts at once."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._began = time.monotonic()
        self._said: set[str] = set()

    def say(self, job: "JobDetail") -> None:
        if job.status not in ("WAITING", "QUEUED") or time.monotonic() - self._began < SILENT_SECONDS:
            return
        for reason in self._client.why(job, 0).reasons:
            # Ignores numbers, such as the jobs ahead, which change all the time.
            if (kind := re.sub(r"[0-9]+", "", reason.text)) not in self._said:
                self._said.add(kind)
                output.remark(output.clean(f"waiting: {reason.text}"))


def _say_why(client: "Client", job_type: str, params: dict[str, Any], office_id: str | None) -> None:
    """Prints what keeps a direct request waiting, in the words in which `why` explains a job of its type."""
    from nextslot.errors import NextslotError

    # A key may be allowed to run this directly, but not to ask; the request goes on without the explanation.
    with contextlib.suppress(NextslotError):
        found = client.dry_run(job_type, params, wait_seconds=0, **arguments.given(office_id=office_id))
        for reason in found.reasons:
            if reason.code in DELAYS_DIRECT:
                output.remark(output.clean(f"waiting: {reason.text}"))


def _followed(session: Session, job_id: str) -> "JobDetail | None":
    """Prints the log of each run of the chain that `watch` finds, from its beginning to its end."""
    last, followed, reasons = None, set(), Reasons(session.client)
    for last in session.client.watch(job_id):
        reasons.say(last)
        if last.run is not None and last.run.run_id not in followed:
            followed.add(last.run.run_id)
            for text in session.client.follow_log(last.run.run_id):
                write_log(session, text)
    return last


def _progress(client: "Client", job: "JobDetail") -> tuple[str, float | None]:
    if job.status != "RUNNING" or job.run is None:
        return f"{job.job_type} {job.status.lower()}", None
    progress = client.run_by_id(job.run.run_id).progress
    if progress is None:
        return f"{job.job_type} running", None
    return f"{job.job_type} {progress.text or 'running'}", progress.fraction


def _print_end(ended: "Ended") -> None:
    job = ended.job
    output.console(stderr=True).print(output.coloured(ended.status), end="")
    took = f" after {output.took(job.started_at, job.finished_at)}" if job.started_at else ""
    output.remark(f" {job.job_id}{took}")
    if ended.run is not None and ended.run.reason:
        output.remark(output.clean(ended.run.reason))
    if ended.error:
        output.remark(output.clean(ended.error))
    if ended.result is not None:
        output.print_result(ended.result)


def write_log(session: Session, text: str) -> None:
    """Writes log lines to stdout, or to stderr with --json, because they are not part of the JSON result."""
    stream = sys.stderr if session.is_json else sys.stdout
    stream.write(output.clean(text) if stream.isatty() else text)
    stream.flush()


def run(session: Session, job_type: str, params: dict[str, Any], options: Any) -> None:
    """Makes a direct request and shows its updates until it ends. Leaving early disconnects."""
    ended: Direct | None = None
    is_said = False
    with (
        Line().shown() as line,
        contextlib.closing(session.client.stream_direct(job_type, params, **options)) as updates,
    ):
        for update in updates:
            if update.kind == "place" and not is_said:
                is_said = True
                output.remark(
                    f"waiting: {job_type} takes the next slot; {update.data.get('ahead', 0)} callers are ahead"
                )
                _say_why(session.client, job_type, params, options.get("office_id"))
            _show_update(line, job_type, update)
            ended = update.direct or ended
    assert ended is not None
    found = ended
    session.show(found.json, lambda: _print_result(found))
    if found.status not in SUCCESS:
        raise typer.Exit(1)


def _show_update(line: Line, job_type: str, update: "Update") -> None:
    match update.kind:
        case "place":
            line.update(f"{job_type}: {update.data.get('ahead', 0)} ahead")
        case "started":
            line.update(f"{job_type} running")
        case "progress":
            line.update(f"{job_type} {update.data.get('text') or 'running'}", update.data.get("fraction"))
        case "output":
            sys.stderr.write(output.clean(str(update.data.get("text", ""))))
            sys.stderr.flush()
        case _:
            pass  # A newer server may send other kinds of updates.


def _print_result(ended: "Direct") -> None:
    if ended.status == "SKIPPED":
        output.remark(f"skipped: {output.clean(ended.reason or '')}")
    if ended.error:
        output.remark(f"failed ({ended.failure_kind}): {output.clean(ended.error)}")
    if ended.status == "COMPLETED" and ended.result is not None:
        output.print_result(ended.result)
