"""Commands on a database, given by its directory or address: backup, checks, configuration. Most need no server."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nextslot.cli import output
from nextslot.cli.options import Data, File
from nextslot.cli.session import Session, command, configuration, group, local, offline

if TYPE_CHECKING:
    from nextslot.config import Configuration
    from nextslot.store.maintenance.exported_rows import Moved

Force = Annotated[bool, typer.Option("--force", help="Overwrite what exists.")]


def register(app: typer.Typer) -> None:
    for function in (backup, restore, export, doctor, migrate, purge):
        offline(app)(function)
    offline(app, "import")(import_)
    config = group("config", "Check or reload the configuration.")
    local(config, "check")(config_check)
    command(config, "reload")(config_reload)
    app.add_typer(config)


def backup(
    is_json: bool,
    wanted: "Configuration",
    file: Annotated[Path, typer.Argument(help="The file to write.", show_default=False)],
    force: Force = False,
) -> None:
    """Copy the database; a server may be running.

    For PostgreSQL the copy is an export, compressed if FILE ends with .gz.
    """
    from nextslot import offline_commands

    with output.Rows() as rows:
        made = offline_commands.backup(wanted, file, force, rows.note)
    output.result(is_json, {"backup": str(made)}, f"{made}")


def restore(
    is_json: bool,
    wanted: "Configuration",
    file: Annotated[Path, typer.Argument(help="The backup file.", show_default=False)],
    force: Force = False,
    verify: Annotated[bool, typer.Option("--verify", help="Only check the backup.")] = False,
) -> None:
    """Restore a backup; existing files are kept under another name.

    A PostgreSQL database must be empty.
    """
    from nextslot import offline_commands

    if not verify:
        wanted.data.mkdir(parents=True, exist_ok=True)
    with output.Rows() as rows:
        kept = offline_commands.restore(wanted, file, force, verify, rows.note)
    what = "the backup is sound" if verify else "restored" + (f"; the previous file is now {kept}" if kept else "")
    output.result(is_json, {"restored": not verify, "kept": str(kept) if kept else None}, what)


def export(
    is_json: bool,
    wanted: "Configuration",
    file: Annotated[
        Path, typer.Argument(help="The file to write; compressed if it ends with .gz.", show_default=False)
    ],
    force: Force = False,
) -> None:
    """Export all stored data to one file, for import into another database; no server may be running."""
    from nextslot import offline_commands

    with output.Rows() as rows:
        moved = offline_commands.export_to(wanted, file, force, rows.note)
    _show_move(is_json, "exported", moved, rows)


def import_(
    is_json: bool,
    wanted: "Configuration",
    file: Annotated[Path, typer.Argument(help="The exported file.", show_default=False)],
) -> None:
    """Import an exported file into an empty SQLite or PostgreSQL database, verified, all or nothing.

    Run the same command again to continue an interrupted import.
    """
    from nextslot import offline_commands

    wanted.data.mkdir(parents=True, exist_ok=True)
    try:
        with output.Rows() as rows:
            moved = offline_commands.import_from(wanted, file, rows.note)
    except KeyboardInterrupt:
        output.remark("interrupted: run the same command again to continue")
        raise
    went_on = f", continued after {moved.resumed_rows:,} rows" if moved.resumed_rows else ""
    _show_move(is_json, "imported", moved, rows, went_on, resumed_rows=moved.resumed_rows)


def _show_move(is_json: bool, done: str, moved: "Moved", rows: output.Rows, how: str = "", **more: int) -> None:
    found = {"rows": moved.rows, "seconds": round(rows.seconds, 1), "tables": moved.tables, "findings": moved.findings}
    found |= {"changes": moved.changes, **more} if done == "imported" else more
    lines = [f"{done}: {moved.rows} rows, {moved.tables['jobs']} jobs, {moved.tables['events']} events{how}"]
    lines += [f"inconsistent already before the move: {problem}" for problem in moved.findings]
    lines += moved.changes
    output.result(is_json, {done: True, **found}, "\n".join(lines))


def doctor(
    is_json: bool,
    wanted: "Configuration",
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Correct counters, retry jobs whose outcome was lost; no server may be running."),
    ] = False,
) -> None:
    """Check whether the stored data is consistent; exit code 1 if not."""
    from nextslot import offline_commands

    found = offline_commands.doctor(wanted, repair)
    findings = [{"check": one.check, "problem": one.problem} for one in found.findings]
    lines = [f"{one['check']}: {one['problem']}" for one in findings] or ["no problems found"]
    if found.repaired:
        lines.insert(0, f"{found.repaired} counters corrected")
    if found.retried:
        lines.insert(0, f"{found.retried} jobs retried whose outcome was lost: the next start runs them")
    repairs = {"repaired": found.repaired, "retried": found.retried}
    output.result(is_json, {"findings": findings, **repairs}, "\n".join(lines))
    if findings:
        raise typer.Exit(1)


def migrate(
    is_json: bool,
    wanted: "Configuration",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the migrations.")] = False,
) -> None:
    """Migrate the database to this release; a server does so at its start."""
    from nextslot import offline_commands

    names = offline_commands.pending(wanted) if dry_run else offline_commands.migrate(wanted)
    output.result(is_json, {"migrations": names, "applied": not dry_run}, "\n".join(names) or "nothing to do")


def purge(
    is_json: bool,
    wanted: "Configuration",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be deleted.")] = False,
) -> None:
    """Delete history older than [retention] allows; a running server does so once a day."""
    from nextslot import offline_commands

    done = asdict(asyncio.run(offline_commands.purge(wanted, dry_run)))
    text = ", ".join(f"{count} {kind}" for kind, count in done.items() if count) or "nothing"
    output.result(is_json, {"purged": not dry_run, **done}, f"{'would delete' if dry_run else 'deleted'}: {text}")


def config_check(is_json: bool, data: Data = Path(), config: File = None) -> None:
    """Show all settings and where each came from; report every wrong one."""
    loaded = configuration(data, config)
    for sentence in [*loaded.warnings(), *loaded.command_warnings()]:
        output.remark(f"warning: {sentence}")
    found = loaded.effective()
    if is_json:
        output.print_json({one.name: {"value": one.value, "origin": one.origin} for one in found})
    else:
        output.table(("SETTING", "VALUE", "FROM"), [[one.name, one.value, one.origin] for one in found], "")


def config_reload(session: Session) -> None:
    """Reload the configuration of the running server; an invalid one changes nothing."""
    done = session.client.reload()
    session.show(done, lambda: output.facts(dict(done)))
