"""Commands about offices: their settings, their figures, and their jobs in the language of offices."""

import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nextslot.cli import arguments, output
from nextslot.cli.session import Session, command, group

if TYPE_CHECKING:
    from nextslot.client.transports import BlockingTransport

    from .client import OfficeEvent, OfficeJob, OfficeJobOptions, OfficeOptions, OfficeRoleOptions, Offices

Which = Annotated[str, typer.Argument(metavar="OFFICE", help="Its id, or its name.", show_default=False)]
Job = Annotated[str, typer.Argument(metavar="ID", help="The job, by its id or a part of it.", show_default=False)]
Name = Annotated[str | None, typer.Option(help="What people call it.")]
CancelMode = Annotated[str | None, typer.Option(help="Running work: finish or interrupt.")]
OnDependencyFailure = Annotated[str | None, typer.Option(help="Dependents of what failed: wait or cancel.")]


def register(app: typer.Typer) -> None:
    office = group("office", "Offices: their settings, and their jobs.")
    for function in (add, ls, show, change, config, stats, submit, jobs, retry, cancel, process, events):
        command(office)(function)
    command(office, takes_negative=True)(priority)
    command(office, "cancel-all")(cancel_all)
    role = group("role", "How an office runs the jobs of its roles.")
    command(role, "ls")(role_ls)
    command(role, "set")(role_set)
    command(role, "rm")(role_rm)
    office.add_typer(role)
    app.add_typer(office)


def _offices(session: Session) -> "Offices[BlockingTransport]":
    from .client import Offices

    return session.client.extension(Offices)


def find(session: Session, text: str) -> str:
    everything = _offices(session).list()
    return arguments.named(everything, text, "office", lambda one: one.office_id, lambda one: one.name).office_id


def add(
    session: Session,
    office_id: Annotated[str | None, typer.Argument(help="A short name; else one is made.")] = None,
    name: Name = None,
    cancel_mode: CancelMode = None,
    on_dependency_failure: OnDependencyFailure = None,
) -> None:
    """Make an office."""
    made = _offices(session).create(office_id, **_given(name, None, cancel_mode, on_dependency_failure))
    session.show(made.json, lambda: output.say(made.office_id))


def ls(session: Session) -> None:
    """List offices."""
    page = _offices(session).page(500)
    rows = [
        [one.office_id, one.name, output.coloured(one.status), one.max_concurrent_jobs, one.cancel_mode]
        for one in page.items
    ]
    headings = ("ID", "NAME", "STATUS", "AT ONCE", "CANCEL")
    session.show(page.json, lambda: output.table(headings, rows, "no offices"))


def show(session: Session, office: Which) -> None:
    """Show an office."""
    found = _offices(session).get(find(session, office))
    session.show(found.json, lambda: output.facts(dict(found.json)))


def change(
    session: Session,
    office: Which,
    name: Name = None,
    status: Annotated[str | None, typer.Option(help="active, paused or archived.")] = None,
    cancel_mode: CancelMode = None,
    on_dependency_failure: OnDependencyFailure = None,
) -> None:
    """Change an office."""
    changes = _given(name, status, cancel_mode, on_dependency_failure)
    if not changes:
        raise typer.BadParameter("say what to change: --name, --status, --cancel-mode or --on-dependency-failure")
    changed = _offices(session).change(find(session, office), **changes)
    session.show(changed.json, lambda: output.say(f"{changed.office_id} changed"))


def config(
    session: Session,
    office: Which,
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Such as maxConcurrentJobs=3.")
    ] = None,
) -> None:
    """Show an office's scheduler settings, or change them."""
    offices, office_id = _offices(session), find(session, office)
    given: Any = arguments.parameters(changes or (), {})
    found = offices.change_config(office_id, **given) if given else offices.config(office_id)
    session.show(found.json, lambda: output.facts(dict(found.json)))


def stats(session: Session, office: Which) -> None:
    """Show how many of an office's jobs have which status."""
    found = _offices(session).stats(find(session, office))
    session.show(found.json, lambda: output.facts(dict(found.json)))


def submit(
    session: Session,
    office: Which,
    description: Annotated[str | None, typer.Argument(help="What is to be done.", show_default=False)] = None,
    params: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Parameters.")] = None,
    role: Annotated[str, typer.Option(help="Who does it, such as FE.")] = "BE",
    priority: Annotated[int | None, typer.Option(help="Lower goes first.")] = None,
    urgent: Annotated[bool, typer.Option("--urgent", help="Before everything else.")] = False,
    task: Annotated[str | None, typer.Option(help="The task it belongs to.")] = None,
    job_type: Annotated[str | None, typer.Option("--type", help="Default: the command of the role.")] = None,
    after: Annotated[list[str] | None, typer.Option(metavar="ID", help="Not before this job is done.")] = None,
    graph: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Jobs that depend on each other, as JSON; - is stdin.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until all have ended.")] = False,
) -> None:
    """Give an office a job, or a graph of jobs."""
    office_id = find(session, office)
    if (graph is None) == (description is None):
        raise typer.BadParameter("say what is to be done, or give a file with --graph")
    if graph is not None:
        jobs_, named = _graph(graph)
        made = _offices(session).submit(office_id, jobs_, task or named)
    else:
        job = _job(session, description or "", params, role, priority, urgent, job_type, after)
        made = _offices(session).submit(office_id, [job], task)
    if wait:
        _wait(session, office_id, made, is_graph=graph is not None)
    elif graph is not None:
        session.show({"items": [one.json for one in made]}, lambda: output.say("\n".join(one.job_id for one in made)))
    else:
        session.show(made[0].json, lambda: output.say(made[0].job_id))


def _graph(file: Path) -> tuple[list[Any], str | None]:
    """Reads a list of jobs, or an object with `jobs` and a `task_id`, as the HTTP API takes it."""
    text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    try:
        found = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{file} is not valid JSON: {error}") from error
    whole = {"jobs": found} if isinstance(found, list) else found
    if not isinstance(whole, dict) or not isinstance(whole.get("jobs"), list):
        raise typer.BadParameter(f"{file} has no jobs; write a list of jobs, or an object with the list as `jobs`")
    return whole["jobs"], whole.get("task_id")


def _wait(session: Session, office_id: str, made: "Sequence[OfficeJob]", is_graph: bool) -> None:
    """Waits until the jobs have ended, retries included. The exit code says whether all are done."""
    if not session.is_json:
        output.remark(f"submitted {len(made)} jobs" if is_graph else f"submitted {made[0].job_id}")
    # Jobs behind one that failed would wait for ever, unless somebody retries it.
    ended: dict[str, OfficeJob] = {}
    waiting = [one.job_id for one in made]
    while waiting:
        for job_id in waiting:
            found = _offices(session).job(office_id, job_id)
            if found.status in _ENDED or any(one["status"] in _LOST for one in found.json["blocked_by"]):
                ended[job_id] = found
        waiting = [job_id for job_id in waiting if job_id not in ended]
        if waiting:
            time.sleep(LOOK_SECONDS)
    last = [ended[one.job_id] for one in made]
    rows = [[output.short(one.job_id), one.role, output.coloured(one.status), one.description] for one in last]
    shown = {"items": [one.json for one in last]} if is_graph else last[0].json
    session.show(shown, lambda: output.table(("ID", "ROLE", "STATUS", "DESCRIPTION"), rows, ""))
    if any(one.status != "done" for one in last):
        raise typer.Exit(1)


_LOST = ("failed", "cancelled")
_ENDED = ("done", *_LOST)
# How often a waiting command reads the jobs again.
LOOK_SECONDS = 0.5


def _job(
    session: Session,
    description: str,
    params: list[str] | None,
    role: str,
    priority: int | None,
    urgent: bool,
    job_type: str | None,
    after: list[str] | None,
) -> "OfficeJobOptions":
    job: OfficeJobOptions = {"description": description, "role": role}
    if params:
        job["params"] = arguments.parameters(params, {})
    if priority is not None:
        job["priority"] = priority
    if urgent:
        job["urgent"] = True
    if job_type is not None:
        job["job_type"] = job_type
    if after:
        job["depends_on"] = [arguments.job_id(session.client, one) for one in after]
    return job


def jobs(
    session: Session,
    office: Which,
    status: Annotated[str | None, typer.Option(help="pending, ready, processing, done, failed, cancelled.")] = None,
    role: Annotated[str | None, typer.Option(help="Of this role.")] = None,
    task: Annotated[str | None, typer.Option(help="Of this task.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=500, help="At most so many.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="The next page: what the last one said.")] = None,
) -> None:
    """List an office's jobs."""
    office_id = find(session, office)
    page = _offices(session).jobs_page(office_id, limit, cursor, status=status, role=role, task_id=task)
    rows = [
        [
            output.short(one.job_id),
            one.role,
            output.coloured(one.status),
            one.priority,
            one.retry_count,
            one.created_at,
            one.description,
        ]
        for one in page.items
    ]
    headings = ("ID", "ROLE", "STATUS", "PRIORITY", "RETRIES", "CREATED", "DESCRIPTION")
    session.show(page.json, lambda: output.table(headings, rows, "no jobs"))


def retry(session: Session, office: Which, job: Job) -> None:
    """Retry an office's failed job."""
    done = _offices(session).retry(find(session, office), arguments.job_id(session.client, job))
    session.show(done.json, lambda: output.say(f"{done.job_id} {done.status}"))


def cancel(session: Session, office: Which, job: Job) -> None:
    """Cancel an office's job."""
    done = _offices(session).cancel(find(session, office), arguments.job_id(session.client, job))
    session.show(done.json, lambda: output.say(f"{done.job_id} {done.status}"))


def cancel_all(
    session: Session,
    office: Which,
    task: Annotated[str | None, typer.Option(help="Only of this task.")] = None,
    running: Annotated[bool, typer.Option("--running/--queued-only", help="Running ones too.")] = True,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Cancel all of an office's jobs."""
    office_id = find(session, office)
    if not yes:
        what = f"all jobs of the office {office_id}" + (f" that belong to the task {task}" if task else "")
        output.confirm(f"cancel {what}?")
    done = _offices(session).cancel_all(office_id, task, running)
    counts = f"{done.cancelled} cancelled, {done.stopping} asked to stop, {done.finishing} left to finish"
    session.show(done.json, lambda: output.say(counts))


def priority(
    session: Session,
    office: Which,
    job: Job,
    value: Annotated[int | None, typer.Argument(metavar="PRIORITY", help="Lower goes first.")] = None,
    urgent: Annotated[bool | None, typer.Option("--urgent/--normal", help="Before everything else.")] = None,
) -> None:
    """Change the priority of an office's job."""
    if value is None and urgent is None:
        raise typer.BadParameter("say which: a number, or --urgent")
    job_id = arguments.job_id(session.client, job)
    done = _offices(session).set_priority(find(session, office), job_id, value, urgent)
    session.show(done.json, lambda: output.say(f"{done.job_id} has priority {done.priority}"))


def process(session: Session, office: Which) -> None:
    """Look at an office's queue now; shows what was started."""
    started = _offices(session).process(find(session, office))
    words = "\n".join(one.job_id for one in started) or "nothing was started"
    session.show({"items": [one.json for one in started]}, lambda: output.say(words))


def events(
    session: Session,
    office: Which,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow new events.")] = False,
    after: Annotated[int | None, typer.Option(help="Only later ones than this number.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=500, help="At most so many.")] = 100,
) -> None:
    """Show what happened in an office, oldest first; with -f, each new event as it comes."""
    offices, office_id = _offices(session), find(session, office)
    if follow:
        start = session.client.me().last_event if after is None else after
        for event in offices.follow(office_id, start):
            if session.is_json:
                output.print_json_line(event.json)
            else:
                when = event.timestamp.astimezone().strftime("%H:%M:%S")
                output.say(output.clean(" ".join([when, *_event_words(event)])))
        return
    found = offices.events(office_id, after or 0, limit)
    rows = [[one.timestamp, *_event_words(one)] for one in found.items]
    session.show(found.json, lambda: output.table(("WHEN", "TYPE", "JOB", "DETAILS"), rows, "nothing yet"))


def _event_words(event: "OfficeEvent") -> list[str]:
    return [event.type, output.short(event.job_id), json.dumps(event.details, ensure_ascii=False)]


Role = Annotated[str, typer.Argument(metavar="ROLE", help="Such as FE.", show_default=False)]


def role_ls(session: Session, office: Which) -> None:
    """List the roles of an office: their commands, timeouts and limits."""
    found = _offices(session).roles(find(session, office))
    rows = [
        [
            one.role,
            "office" if one.is_own else "",
            None if one.timeout_ms is None else f"{one.timeout_ms / 1000:g} s",
            one.max_concurrent,
            one.cwd,
            ", ".join(one.env),
            shlex.join(one.command or ()),
        ]
        for one in found
    ]
    headings = ("ROLE", "SET BY", "TIMEOUT", "AT ONCE", "DIRECTORY", "VARIABLES", "COMMAND")
    session.show({"items": [one.json for one in found]}, lambda: output.table(headings, rows, "no roles"))


def role_set(
    session: Session,
    office: Which,
    role: Role,
    argv: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND…]", help="What its sessions run.", show_default=False)
    ] = None,
    cwd: Annotated[str | None, typer.Option(help="The directory of its sessions.")] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable; can be repeated.")] = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="Of its jobs that have none.")] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="ARGS", help="Added to go on with a session: '--resume {session_id}'.")
    ] = None,
    resume_on: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="It goes on after this kind of failure; can be repeated.")
    ] = None,
    session_id_pattern: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Finds the session's id in its output.")
    ] = None,
) -> None:
    """Set how an office runs the jobs of a role; what is not given is as the configuration says.

    It replaces what was set before, and needs a key with the scope admin.
    """
    pairs = [one.partition("=") for one in env or ()]
    wrong = [name + given for name, given, _ in pairs if not name or not given]
    if wrong:
        raise typer.BadParameter(f"--env {wrong[0]!r} is not a variable; write --env NAME=VALUE")
    settings: OfficeRoleOptions = {}
    if argv:
        settings["command"] = argv
    if cwd is not None:
        settings["cwd"] = cwd
    if pairs:
        settings["env"] = {name: value for name, _, value in pairs}
    if timeout is not None:
        settings["timeout_ms"] = timeout * 1000
    if resume is not None:
        settings["resume_args"] = shlex.split(resume)
    if resume_on:
        settings["resume_on"] = resume_on
    if session_id_pattern is not None:
        settings["session_id_pattern"] = session_id_pattern
    if not settings:
        raise typer.BadParameter("nothing was given; give a command after --, or an option")
    done = _offices(session).put_role(find(session, office), role, **settings)
    session.show(done.json, lambda: output.say(f"{role} is set: {shlex.join(done.command or ()) or 'no command'}"))


def role_rm(session: Session, office: Which, role: Role) -> None:
    """Remove an office's own settings of a role; the configuration's count again."""
    done = _offices(session).delete_role(find(session, office), role)
    session.show(done.json, lambda: output.say(f"{role} is as the configuration says"))


def _given(
    name: str | None, status: str | None, cancel_mode: str | None, on_dependency_failure: str | None
) -> "OfficeOptions":
    said: Any = {
        "name": name,
        "status": status,
        "cancel_mode": cancel_mode,
        "on_dependency_failure": on_dependency_failure,
    }
    given: OfficeOptions = {}
    given.update({one: value for one, value in said.items() if value is not None})  # type: ignore[typeddict-item]
    return given
