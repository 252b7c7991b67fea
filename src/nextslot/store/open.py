"""Opens a store by its address: `sqlite:///file.db` (relative), `sqlite:////absolute/file.db`."""

from pathlib import Path
from urllib.parse import unquote

from ..errors import StoreError
from .sqlite import SqliteStore
from .store import Closing, Store

_SQLITE = "sqlite:///"


def open_store(url: str, closing: Closing, *, threaded: bool, synchronous: str) -> Store:
    path = _path(url)
    if not path.parent.is_dir():
        raise StoreError(f"the directory of {path} does not exist: make it first")
    if path.is_dir():
        raise StoreError(f"{path} is a directory: name a file in it")
    if synchronous not in ("FULL", "NORMAL"):
        raise StoreError(
            "synchronous is FULL (durable when acknowledged) or NORMAL (a power cut may lose the last moment)"
        )
    return SqliteStore(path, closing, threaded=threaded, synchronous=synchronous)


def abandon_store(store: Store) -> None:
    """Drops a store as a crash would: works that wait are never run, and nothing is flushed."""
    assert isinstance(store, SqliteStore)
    store.abandon()


def data_directory(url: str) -> Path:
    """Where logs and artifacts go unless another place is given: beside the database."""
    return _path(url).parent


def _path(url: str) -> Path:
    if not url.startswith(_SQLITE) or len(url) == len(_SQLITE):
        raise StoreError(f"{url!r} is not a database address; use sqlite:///file.db")
    if url == _SQLITE + ":memory:":
        raise StoreError("a database in memory would forget every job; use sqlite:///file.db")
    return Path(unquote(url.removeprefix(_SQLITE)))
