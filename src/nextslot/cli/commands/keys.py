"""Commands about API keys: on a database, before any server runs, or with --url on a server."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from nextslot.cli import arguments, output
from nextslot.cli.options import Database, File
from nextslot.cli.session import Session, add_group, configuration

if TYPE_CHECKING:
    from nextslot.config import Configuration
    from nextslot.domain import Key
    from nextslot.services.keys import KeyService

T = TypeVar("T")

Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The data directory; default: the current one, unless --url is given."),
]


def register(app: typer.Typer) -> None:
    add_group(app, "key", "API keys of a data directory or of a server.", add, ls, rotate, rm)


def add(
    session: Session,
    name: Annotated[str, typer.Argument(help="The name of the key's holder.", show_default=False)],
    scope: Annotated[str, typer.Option(help="read, submit, operate or admin.")] = "read",
    office: Annotated[str | None, typer.Option("--office", help="Restrict the key to this office.")] = None,
    expires: Annotated[str | None, typer.Option(help="How long it opens, such as 12h or 30d; default: always.")] = None,
    address: Annotated[
        list[str] | None, typer.Option(help="An address or network that it may be used from; repeat it for more.")
    ] = None,
    job_type: Annotated[
        list[str] | None, typer.Option(help="A type of jobs that it may make; repeat it for more; default: all.")
    ] = None,
    data: Data = None,
    config: File = None,
    database: Database = None,
) -> None:
    """Create a key, which is shown only once."""
    limits: dict[str, Any] = {"allowed_addresses": address or (), "job_types": job_type or ()}
    if expires is not None:
        limits["expires_at"] = datetime.now(UTC) + timedelta(seconds=arguments.seconds(expires))
    if _is_online(session, data, database):
        made = session.client.keys.create(name, [scope], office, **limits)
        json, text = dict(made.json), made.key
    else:
        directory = data or Path()
        directory.mkdir(parents=True, exist_ok=True)
        wanted = configuration(directory, config, store__url=database)
        key, text = _offline(wanted, lambda keys: keys.create(name, [scope], office, **limits), creates=True)
        json = {**key.to_dict(), "key": text}
    session.say(json, text or "")


def ls(session: Session, data: Data = None, config: File = None, database: Database = None) -> None:
    """List keys, without their secrets, which are not stored."""
    if _is_online(session, data, database):
        json: Any = session.client.keys.page(500).json
    else:
        wanted = configuration(data or Path(), config, store__url=database)
        page = _offline(wanted, lambda keys: keys.page(500))
        json = {"items": [one.to_dict() for one in page.items], "next_cursor": page.next_cursor}
    rows = [
        [
            output.short(one["key_id"]),
            one["name"],
            one["scopes"][-1],
            one["office_id"] or "all",
            one["created_at"],
            one["last_used_at"] or "never",
            one["expires_at"] or "never",
        ]
        for one in json["items"]
    ]
    headings = ("ID", "NAME", "SCOPE", "OFFICE", "CREATED", "LAST USED", "EXPIRES")
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


def rotate(
    session: Session,
    which: Annotated[str, typer.Argument(metavar="KEY", help="The key's name or id.", show_default=False)],
    overlap: Annotated[str, typer.Option(help="How long the previous text works too, such as 30m, 1h or 7d.")] = "0s",
    data: Data = None,
    config: File = None,
    database: Database = None,
) -> None:
    """Replace the text of a key; the new one is shown only once."""
    seconds = arguments.seconds(overlap)
    if _is_online(session, data, database):
        everything = session.client.keys.list()
        key_id = arguments.named(everything, which, "key", lambda one: one.key_id, lambda one: one.name).key_id
        changed = session.client.keys.rotate(key_id, seconds)
        json, text = dict(changed.json), changed.key
    else:
        wanted = configuration(data or Path(), config, store__url=database)
        key, text = _offline(wanted, lambda keys: _rotated(keys, which, seconds))
        json = {**key.to_dict(), "key": text}
    session.say(json, text or "")


async def _deleted(keys: "KeyService", text: str) -> str:
    key_id = await _id_of(keys, text)
    await keys.delete(key_id)
    return key_id


async def _rotated(keys: "KeyService", text: str, seconds: float) -> "tuple[Key, str]":
    return await keys.rotate(await _id_of(keys, text), seconds)


async def _id_of(keys: "KeyService", text: str) -> str:
    page = await keys.page(500)
    return arguments.named(page.items, text, "key", lambda one: one.key_id, lambda one: one.name).key_id


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
