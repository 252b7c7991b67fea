"""Opens a store by its address: `sqlite:///file.db` (relative), `sqlite:////absolute/file.db`, `postgresql://…`."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from nextslot.errors import StoreError
from nextslot.store.maintenance.maintenance import Maintenance, SqliteMaintenance
from nextslot.store.maintenance.move import Moved, Progress
from nextslot.store.sqlite.sqlite_store import SqliteStore
from nextslot.system.sidecar import NodeVitals
from nextslot.telemetry.meters import Meters

from .contract import (
    Closing,
    Effects,
    Store,
    Work,
)
from .health import wall_clock
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
    """`opening` runs first in each writing transaction, `closing` last.

    `node` and `refresh` are for a database that several nodes share; without a node it is had for itself alone.
    """
    if synchronous not in ("FULL", "NORMAL"):
        raise StoreError(
            "synchronous is FULL (durable when acknowledged) or NORMAL (a power cut may lose the last moment)"
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
        raise StoreError(f"the directory of {path} does not exist: make it first")
    if path.is_dir():
        raise StoreError(f"{path} is a directory: name a file in it")
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
    """Raises Away while the server of a database does not answer; a file needs none."""
    if is_shared(url):
        with _driver():
            from .postgres import sessions
        sessions.reach(sessions.Address.of(url))


@contextmanager
def _driver() -> Iterator[None]:
    """Its modules are imported where they are used: the driver is an extra, and nobody else needs it."""
    try:
        yield
    except ImportError as error:
        raise StoreError(f"PostgreSQL needs a driver: pip install nextslot[postgres] ({error})") from error


def maintenance(url: str) -> Maintenance:
    """What offline commands do with the database at an address."""
    path = sqlite_path(url)
    if path is not None:
        return SqliteMaintenance(path)
    with _driver():
        from nextslot.store.maintenance.maintenance_postgres import PostgresMaintenance
    return PostgresMaintenance(url)


def write_export(url: str, target: Path, progress: Progress) -> Moved:
    """Everything that the database at an address has, in one file; refused while a scheduler has it."""
    path = sqlite_path(url)
    if path is not None:
        return move_sqlite.write(path, target, progress)
    with _driver():
        from .maintenance import move_postgres
    return move_postgres.write(url, target, progress)


def load_export(source: Path, url: str, progress: Progress) -> Moved:
    """The way back, into an empty database: whole and verified, or not at all; what was broken off goes on."""
    path = sqlite_path(url)
    if path is not None:
        return move_sqlite.load(source, path, progress)
    with _driver():
        from .maintenance import move_postgres
    return move_postgres.load(source, url, progress)


def abandon_store(store: Store) -> None:
    """Drops a store as a crash would: works that wait are never run, and nothing is flushed."""
    store.abandon()


def is_shared(url: str) -> bool:
    """Whether several nodes can have it."""
    return url.startswith(_POSTGRES)


def data_directory(url: str) -> Path:
    """Where logs and artifacts go unless another place is given: beside the database, or here if that is elsewhere."""
    return Path("nextslot-data") if url.startswith(_POSTGRES) else _path(url).parent


def directories(url: str, data: Path) -> dict[str, Path]:
    """Where disk space of this machine is needed, by names for people; PostgreSQL itself needs it elsewhere."""
    path = sqlite_path(url)
    own = {} if path is None else {"database": path.resolve().parent}
    return {**own, "data directory": data}


def sqlite_path(url: str) -> Path | None:
    """The file of a SQLite database; PostgreSQL has none."""
    return None if url.startswith(_POSTGRES) else _path(url)


def _path(url: str) -> Path:
    if not url.startswith(_SQLITE) or len(url) == len(_SQLITE):
        shown = re.sub(r"(//[^/@:]*):[^/]*@", r"\1:***@", url)
        raise StoreError(f"{shown!r} is not a database address; use sqlite:///file.db or postgresql://host/database")
    if url == _SQLITE + ":memory:":
        raise StoreError("a database in memory would forget every job; use sqlite:///file.db")
    return Path(unquote(url.removeprefix(_SQLITE)))
