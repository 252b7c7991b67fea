"""Commands about API keys: on a database, before any server runs; or, with --url, on a server."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from nextslot.cli import ids, output
from nextslot.cli.session import Session, command, group

from .service import Database, configuration

if TYPE_CHECKING:
    from nextslot.config import Configuration
    from nextslot.services.keys import KeyService

T = TypeVar("T")

Data = Annotated[Path | None, typer.Option(metavar="DIR", help="Of this data directory; default: here, or --url.")]
File = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Default: nextslot.toml in there.")]


def register(app: typer.Typer) -> None:
    key = group("key", "API keys, of a directory or of a server.")
    for function in (add, ls, rm):
        command(key)(function)
    app.add_typer(key)


def add(
    session: Session,
    name: Annotated[str, typer.Argument(help="Whose it is.", show_default=False)],
    scope: Annotated[str, typer.Option(help="read, submit, operate or admin.")] = "read",
    office: Annotated[str | None, typer.Option("--office", help="For this office only.")] = None,
    data: Data = None,
    config: File = None,
    database: Database = None,
) -> None:
    """Make a key; it is shown this once."""
    if _is_online(session, data, database):
        made = session.client.keys.create(name, [scope], office)
        json, text = dict(made.json), made.key
    else:
        directory = data or Path()
        directory.mkdir(parents=True, exist_ok=True)
        wanted = configuration(directory, config, store__url=database)
        key, text = _offline(wanted, lambda keys: keys.create(name, [scope], office), creates=True)
        json = {**_json(key), "key": text}
    session.show(json, lambda: output.say(text or ""))


def ls(session: Session, data: Data = None, config: File = None, database: Database = None) -> None:
    """List keys; what their holders send is not stored."""
    if _is_online(session, data, database):
        json: Any = session.client.keys.page(500).json
    else:
        wanted = configuration(data or Path(), config, store__url=database)
        page = _offline(wanted, lambda keys: keys.list(None, 500))
        json = {"items": [_json(one) for one in page.items], "next_cursor": page.next_cursor}
    rows = [
        [output.short(one["key_id"]), one["name"], one["scopes"][-1], one["office_id"] or "all", one["created_at"]]
        for one in json["items"]
    ]
    headings = ("ID", "NAME", "SCOPE", "OFFICE", "CREATED")
    session.show(json, lambda: output.table(headings, rows, "no keys: a server on loopback is open to local callers"))


def rm(
    session: Session,
    which: Annotated[str, typer.Argument(metavar="KEY", help="Its name, or its id.", show_default=False)],
    data: Data = None,
    config: File = None,
    database: Database = None,
) -> None:
    """Delete a key: from now on it opens nothing."""
    if _is_online(session, data, database):
        everything = session.client.keys.list()
        key_id = ids.named(everything, which, "key", lambda one: one.key_id, lambda one: one.name).key_id
        session.client.keys.delete(key_id)
    else:
        wanted = configuration(data or Path(), config, store__url=database)
        key_id = _offline(wanted, lambda keys: _deleted(keys, which))
    session.show({"key_id": key_id}, lambda: output.say(f"{key_id} deleted"))


async def _deleted(keys: "KeyService", text: str) -> str:
    page = await keys.list(None, 500)
    key_id = ids.named(page.items, text, "key", lambda one: one.key_id, lambda one: one.name).key_id
    await keys.delete(key_id)
    return key_id


def _is_online(session: Session, data: Path | None, database: str | None) -> bool:
    """A directory or database that is named wins; else a server that is named; else the directory here."""
    return data is None and database is None and session.url is not None


def _offline(wanted: "Configuration", work: "Callable[[KeyService], Awaitable[T]]", *, creates: bool = False) -> T:
    """Only a key that is made makes a database for itself."""
    from nextslot import offline_commands

    async def do() -> T:
        async with offline_commands.keys(wanted, creates=creates) as keys:
            return await work(keys)

    return asyncio.run(do())


def _json(key: Any) -> dict[str, Any]:
    from nextslot.domain import json_form

    return dict(json_form.key(key))
