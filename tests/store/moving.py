"""What the tests of moves ask of a database, and of what an import has left beside it."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import apsw
import psycopg

from nextslot.store.open_store import open_store

Notes = list[tuple[str, str, int, int]]

STAGING = "select nspname from pg_namespace where nspname like 'nextslot_import_%'"
END_THE_OTHERS = (
    "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
    "where datname = current_database() and pid <> pg_backend_pid()"
)


def file(path: Path) -> str:
    return f"sqlite:///{path}"


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def is_file(url: str) -> bool:
    return url.startswith("sqlite")


def quietly(doing: str, table: str, done: int, rows: int) -> None:
    """Ignores the progress."""


def close(url: str) -> None:
    """Opens a database, which makes its tables, and closes it."""
    asyncio.run(open_store(url, lambda tx: None, threaded=False, synchronous="FULL").close())


def answers(url: str, sql: str) -> list[tuple[Any, ...]]:
    """Returns the rows of plain SQL, as any tool would read them."""
    if is_file(url):
        with contextlib.closing(apsw.Connection(str(path_of(url)))) as connection:
            return list(connection.execute(sql))
    with contextlib.closing(psycopg.connect(url, autocommit=True)) as plain:
        cursor = plain.execute(sql)
        return cursor.fetchall() if cursor.description else []


def staged(url: str) -> str | None:
    """Returns the address of what an import has left; its tables have their plain names there."""
    if is_file(url):
        part = path_of(url).with_name(path_of(url).name + ".import")
        return file(part) if part.exists() else None
    found = answers(url, STAGING)
    return f"{url}&options=-csearch_path%3D{found[0][0]}" if found else None


def unseen(url: str) -> bool:
    """Checks that whoever opens the database finds no tables, whatever is beside it."""
    if is_file(url):
        return not path_of(url).exists()
    return answers(url, "select 1 from pg_tables where schemaname = 'public'") == []


def has_nothing(url: str) -> bool:
    """Checks that there is nothing, not even beside the database."""
    if is_file(url):
        path = path_of(url)
        return {one.name for one in path.parent.iterdir() if one.name.startswith(path.name)} <= {path.name + ".lock"}
    return unseen(url) and staged(url) is None


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]
