"""Commands about the service itself: start it, show its status, events and audit log."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nextslot.cli import arguments, output
from nextslot.cli.command import collecting_nothing
from nextslot.cli.options import Cursor, Data, Database, File, Limit
from nextslot.cli.session import Session, command, configuration, local

if TYPE_CHECKING:
    from nextslot.client import Event


def register(app: typer.Typer) -> None:
    for function in (serve, version, completion):
        local(app)(function)
    for query in (status, types, events, audit):
        command(app)(query)


def serve(
    is_json: bool,
    config: File = None,
    data: Data = Path(),
    host: Annotated[str | None, typer.Option(help="The address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.", show_default="8000"),
    ] = None,
    database: Database = None,
    node: Annotated[
        str | None, typer.Option(metavar="NAME", help="This node's name, where several nodes share the database.")
    ] = None,
    reload: Annotated[
        bool, typer.Option(help="For development: start again after each change of a .py or .toml file.")
    ] = False,
) -> None:
    """Start a server.

    Ctrl-C stops it after running work has finished; a second Ctrl-C interrupts that work.
    """
    data.mkdir(parents=True, exist_ok=True)
    if reload:
        from nextslot.cli import reloading

        options = {"data": data, "config": config, "host": host, "port": port, "database": database, "node": node}
        raise typer.Exit(reloading.serve(options, is_json))
    with collecting_nothing():
        wanted = configuration(data, config, server__host=host, server__port=port, store__url=database, node__name=node)
        from nextslot.cli import serving

    def ready(address: str) -> None:
        if is_json:
            output.print_json_line({"url": address, "data": str(wanted.data)})
        else:
            output.say(f"nextslot listens on {address}\n  console: {address}/console/\n  API:     {address}/docs")
            output.say(f"  data:    {wanted.data}\nStop with Ctrl-C.")
        sys.stdout.flush()

    if not asyncio.run(serving.serve(wanted, ready)):
        raise typer.Exit(1)


def version(is_json: bool) -> None:
    """Print the version."""
    from importlib.metadata import version as version_of

    found = version_of("nextslot")
    output.result(is_json, {"version": found}, found)


def completion(
    is_json: bool,
    shell: Annotated[str | None, typer.Argument(help="bash, zsh or fish; default: your shell.")] = None,
) -> None:
    """Print a shell's completion script.

    For example: eval "$(nextslot completion bash)"
    """
    name = shell or Path(os.environ.get("SHELL", "bash")).name
    if name not in ("bash", "zsh", "fish"):
        raise typer.BadParameter(f"{name!r} has no completion; use bash, zsh or fish")
    # This is typer's own protocol: the program prints the script if a variable asks for it.
    environment = {**os.environ, "_NEXTSLOT_COMPLETE": f"source_{name}"}
    program = [sys.executable, "-m", "nextslot.cli.main"]
    script = subprocess.run(program, env=environment, capture_output=True, text=True, check=True).stdout
    output.result(is_json, {"shell": name, "script": script}, script)


def status(session: Session) -> None:
    """Show service status.

    Shows the offices, the limits, and resources that do not answer.
    """
    found = session.client.status()

    def tables() -> None:
        of_many = f" of {found.live_nodes} live ones" if (found.live_nodes or 1) > 1 else ""
        ready = "ready" if found.ready else f"not ready: {found.not_ready_because}"
        output.say(f"nextslot {found.version}, node {found.node}{of_many}, {ready}")
        rows = [
            [
                one.office_id,
                one.running,
                one.queued,
                one.waiting,
                one.direct_running,
                one.direct_waiting,
                one.oldest_queued_at,
                "yes" if one.paused else "",
            ]
            for one in found.offices
        ]
        headings = ("OFFICE", "RUNNING", "QUEUED", "WAITING", "DIRECT", "ON HOLD", "OLDEST", "PAUSED")
        output.table(headings, rows, "no offices")
        used = [[one.limit, one.used, one.capacity or "no limit"] for one in found.limits]
        if used:
            output.say("")
            output.table(("LIMIT", "USED", "OF"), used, "")
        for one in found.held:
            since = f"has not answered since {output.moment(one.since)} ({one.failures} failures)"
            used_up = f"quota used up until {output.moment(one.quota_until)}"
            output.say(f"{one.resource}: {since if one.quota_until is None else used_up}")

    session.show(found.json, tables)


def types(session: Session) -> None:
    """List the job types and their parameters."""
    found = session.client.job_types()
    rows = [[one.job_type, _parameters(one.params_schema), ",".join(one.resources) or "-"] for one in found]
    everything = {"items": [one.json for one in found]}
    session.list(everything, ("TYPE", "PARAMS", "RESOURCES"), rows, "no job types")


def _parameters(schema: Any) -> str:
    required = schema.get("required", ())
    return " ".join(f"{name}=…" if name in required else f"[{name}=…]" for name in schema.get("properties", {}))


def events(
    session: Session,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow new events.")] = False,
    after: Annotated[int | None, typer.Option(help="Only events after this number.")] = None,
    job: Annotated[str | None, typer.Option(metavar="ID", help="Only events of this job.")] = None,
    type: Annotated[str | None, typer.Option(help="Such as job_failed; separate several by commas.")] = None,
    office: Annotated[str | None, typer.Option("--office", help="Only events of this office.")] = None,
    limit: Limit = 50,
) -> None:
    """Show past events, or follow new ones.

    Shows the latest events, oldest first; with -f, each new one as it comes. --after starts at another event.
    """
    client = session.client
    job_id = arguments.job_id(client, job) if job else None
    wanted = arguments.given(job_id=job_id, type=type, office_id=office)
    if follow:
        start = client.me().last_event if after is None else after
        for event in client.events(start, **wanted):
            if session.is_json:
                output.print_json_line(event.json)
            else:
                _print(event)
        return
    if after is None:
        # Without a filter, start near the end. Filtered events may be rare, so start at the first.
        after = 0 if wanted else max(0, client.me().last_event - limit)
    page = client.events_page(after, limit, **wanted)
    rows = [[one.seq, one.timestamp, one.type, output.short(one.job_id), one.details] for one in page.items]
    headings = ("SEQ", "WHEN", "TYPE", "JOB", "DETAILS")
    session.list(page.json, headings, rows, "nothing yet")


def _print(event: "Event") -> None:
    when = event.timestamp.astimezone().strftime("%H:%M:%S")
    details = json.dumps(event.details, ensure_ascii=False) if event.details else ""
    output.say(output.clean(f"{when} {event.seq} {event.type} {output.short(event.job_id)} {details}".rstrip()))
    sys.stdout.flush()


def audit(
    session: Session,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """Show who changed what through the API.

    Newest first; needs the scope admin.
    """
    page = session.client.audit_page(limit, cursor)
    rows = [[one.timestamp, one.actor, one.action, one.target] for one in page.items]
    session.list(page.json, ("WHEN", "WHO", "ACTION", "TARGET"), rows, "nothing yet")
