"""Commands about API keys: on a database, before any server runs, or with --url on a server."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from nextslot.cli import arguments, output
from nextslot.cli.options import Database, File
from nextslot.cli.session import Session, add_group, configuration

if TYPE_CHECKING:
    from nextslot.config import Configuration
    from nextslot.services.keys import KeyService

T = TypeVar("T")

Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The data directory; default: the current one, unless --url is given."),
]


def register(app: typer.Typer) -> None:
    add_group(app, "key", "API keys of a data directory or of a server.", add, ls, rm)


def add(
    session: Session,
    name: Annotated[str, typer.Argument(help="The name of the key's holder.", show_default=False)],
    scope: Annotated[str, typer.Option(help="read, submit, operate or admin.")] = "read",
    office: Annotated[str | None, typer.Option("--office", help="Restrict the key to this office.")] = None,
    data: Data = None,
    config: File = None,
    database: Database = None,
) -> None:
    """Create a key, which is shown only once."""
    if _is_online(session, data, database):
        made = session.client.keys.create(name, [scope], office)
        json, text = dict(made.json), made.key
    else:
        directory = data or Path()
        directory.mkdir(parents=True, exist_ok=True)
        wanted = configuration(directory, config, store__url=database)
        key, text = _offline(wanted, lambda keys: keys.create(name, [scope], office), creates=True)
        json = {**key.to_dict(), "key": text}
    session.say(json, text or "")


def ls(session: Session, data: Data = None, config: File = None, database: Database = None) -> None:
    """List keys, without their secrets, which are not stored."""
    if _is_online(session, data, database):
        json: Any = session.client.keys.page(500).json
    else:
        wanted = configuration(data or Path(), config, store__url=database)
        page = _offline(wanted, lambda keys: keys.list(None, 500))
        json = {"items": [one.to_dict() for one in page.items], "next_cursor": page.next_cursor}
    rows = [
        [output.short(one["key_id"]), one["name"], one["scopes"][-1], one["office_id"] or "all", one["created_at"]]
        for one in json["items"]
    ]
    headings = ("ID", "NAME", "SCOPE", "OFFICE", "CREATED")
    session.show(json, lambda: output.table(headings, rows, "no keys: a server on loopback accepts all local callers"))


def rm(
    session: Session,
    which: Annotated[str, typer.Argument(metavar="KEY", help="The key's name or id.", show_default=False)],
    data: Data = None,
    config: File = None,
    database: Database = None,
) -> None:
    """Delete a key, which is refused from then on."""
    if _is_online(session, data, database):
        everything = session.client.keys.list()
        key_id = arguments.named(everything, which, "key", lambda one: one.key_id, lambda one: one.name).key_id
        session.client.keys.delete(key_id)
    else:
        wanted = configuration(data or Path(), config, store__url=database)
        key_id = _offline(wanted, lambda keys: _deleted(keys, which))
    session.say({"key_id": key_id}, f"{key_id} deleted")


async def _deleted(keys: "KeyService", text: str) -> str:
    page = await keys.list(None, 500)
    key_id = arguments.named(page.items, text, "key", lambda one: one.key_id, lambda one: one.name).key_id
    await keys.delete(key_id)
    return key_id


def _is_online(session: Session, data: Path | None, database: str | None) -> bool:
    """Returns whether to ask a server: only if a server and neither a directory nor a database is given."""
    return data is None and database is None and session.url is not None


def _offline(wanted: "Configuration", work: "Callable[[KeyService], Awaitable[T]]", *, creates: bool = False) -> T:
    """Opens the database and calls `work` with its keys. Only a new key may create a database."""
    from nextslot import offline_commands

    async def do() -> T:
        async with offline_commands.keys(wanted, creates=creates) as keys:
            return await work(keys)

    return asyncio.run(do())
