"""Opens the store at an address: `sqlite:///file.db` (relative), `sqlite:////absolute/file.db`, `postgresql://…`."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from nextslot.errors import StoreError
from nextslot.store.maintenance.exported_rows import Moved, Progress
from nextslot.store.maintenance.maintenance import Maintenance, SqliteMaintenance
from nextslot.store.sqlite.sqlite_store import SqliteStore
from nextslot.system.sidecar import NodeVitals
from nextslot.telemetry.meters import Meters

from .contract import Closing, Effects, Store, Work, wall_clock
from .maintenance import move_sqlite

_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")


def open_store(
    url: str,
    closing: Closing,
    *,
    effects: Effects | None = None,
    node: str | None = None,
    opening: Work[None] = lambda tx: None,
    refresh: Work[None] = lambda tx: None,
    threaded: bool,
    synchronous: str,
    meters: Meters | None = None,
    vitals: NodeVitals | None = None,
    now: Callable[[], int] = wall_clock,
) -> Store:
    """Opens the store at an address. `opening` runs first in each writing transaction, `closing` last.

    `node` and `refresh` are for a database that several nodes share. Without `node`, the store needs the database for
    itself alone.
    """
    if synchronous not in ("FULL", "NORMAL"):
        raise StoreError(
            f"synchronous cannot be {synchronous!r}; use FULL (durable when acknowledged) "
            "or NORMAL (a power cut may lose recent commits)"
        )
    if url.startswith(_POSTGRES):
        with _driver():
            from nextslot.store.postgres.postgres_store import PostgresStore
        return PostgresStore(
            url,
            closing,
            effects=effects,
            node=node,
            opening=opening,
            refresh=refresh,
            threaded=threaded,
            synchronous=synchronous,
            meters=meters,
            vitals=vitals,
            now=now,
        )
    path = _path(url)
    if not path.parent.is_dir():
        raise StoreError(f"the directory of {path} does not exist: create it first")
    if path.is_dir():
        raise StoreError(f"{path} is a directory: give the path of a file in it")
    return SqliteStore(
        path,
        closing,
        effects=effects,
        opening=opening,
        threaded=threaded,
        synchronous=synchronous,
        meters=meters,
        now=now,
    )


def reach(url: str) -> None:
    """Raises Away while the database server does not answer. A file has no server."""
    if is_shared(url):
        with _driver():
            from .postgres import sessions
        sessions.reach(sessions.Address.of(url))


@contextmanager
def _driver() -> Iterator[None]:
    """Wraps the imports of PostgreSQL modules, which need an optional driver, with an error that says how to install
    it.
    """
    try:
        yield
    except ImportError as error:
        raise StoreError(f"the PostgreSQL driver is not installed ({error}): pip install nextslot[postgres]") from error


def maintenance(url: str) -> Maintenance:
    """Returns the maintenance operations of the database at an address."""
    path = sqlite_path(url)
    if path is not None:
        return SqliteMaintenance(path)
    with _driver():
        from nextslot.store.maintenance.backup_postgres import PostgresMaintenance
    return PostgresMaintenance(url)


def write_export(url: str, target: Path, progress: Progress) -> Moved:
    """Writes the whole database at an address to one file. Refused while a scheduler uses the database."""
    path = sqlite_path(url)
    if path is not None:
        return move_sqlite.write(path, target, progress)
    with _driver():
        from .maintenance import move_postgres
    return move_postgres.write(url, target, progress)


def load_export(source: Path, url: str, progress: Progress) -> Moved:
    """Loads an export into an empty database, verified, all or nothing. An interrupted import can be continued."""
    path = sqlite_path(url)
    if path is not None:
        return move_sqlite.load(source, path, progress)
    with _driver():
        from .maintenance import move_postgres
    return move_postgres.load(source, url, progress)


def is_shared(url: str) -> bool:
    """Returns whether several nodes can use the database."""
    return url.startswith(_POSTGRES)


def data_directory(url: str) -> Path:
    """Returns the default directory of logs and artifacts: beside a SQLite file, else in the current directory."""
    return Path("nextslot-data") if url.startswith(_POSTGRES) else _path(url).parent


def database_files(url: str) -> list[Path]:
    """Returns the files of a SQLite database, whether they exist or not."""
    path = sqlite_path(url)
    return [] if path is None else [path.with_name(path.name + end) for end in ("", "-wal", "-shm", ".lock")]


def directories(url: str, data: Path) -> dict[str, Path]:
    """Returns the directories that need disk space on this machine, by a readable name. A PostgreSQL server has its
    own.
    """
    path = sqlite_path(url)
    own = {} if path is None else {"database": path.resolve().parent}
    return {**own, "data directory": data}


def sqlite_path(url: str) -> Path | None:
    """Returns the file of a SQLite database; None for PostgreSQL."""
    return None if url.startswith(_POSTGRES) else _path(url)


def _path(url: str) -> Path:
    if not url.startswith(_SQLITE) or len(url) == len(_SQLITE):
        shown = re.sub(r"(//[^/@:]*):[^/]*@", r"\1:***@", url)
        raise StoreError(f"{shown!r} is not a database address; use sqlite:///file.db or postgresql://host/database")
    if url == _SQLITE + ":memory:":
        raise StoreError("a database in memory loses every job at its end; use sqlite:///file.db")
    return Path(unquote(url.removeprefix(_SQLITE)))
