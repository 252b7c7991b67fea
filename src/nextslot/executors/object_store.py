"""ObjectStore: stores run files as objects, on S3 or in a shared directory. Only this module imports obstore.

Every call blocks; `shared_run_files` makes the calls, in a thread. Each error of the store becomes Unavailable, with a
sentence.
"""

import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from nextslot.errors import Invalid, Unavailable
from nextslot.system.instant import Instant

from .run_log import make_private

S3, DIRECTORY = "s3", "file"
# How many bytes of an object are in memory at once.
CHUNK = 1024 * 1024
# The timeouts of a request and of a connection: a store that does not answer must not delay its caller for long,
# because the caller tries again and reports the problem.
REQUEST, CONNECT = "60s", "5s"
MOST_RETRIES = 2
MOST_ERROR = 300


class Stored(NamedTuple):
    """An object: its path below the prefix, its size, and when it was stored."""

    path: str
    size: int
    changed: Instant


def url_problem(url: str) -> str | None:
    """Returns a sentence about what is wrong with the address of a store; None if the address is valid."""
    try:
        found = urlsplit(url)
    except ValueError:
        return f"is {url!r}; write s3://BUCKET/PREFIX, or file:///DIRECTORY for a directory that all nodes share"
    if found.username is not None or found.password is not None or found.query or found.fragment:
        return "has more than a bucket and a prefix; keys and the endpoint are read from the environment (AWS_…)"
    is_s3 = found.scheme == S3 and bool(found.netloc)
    is_directory = found.scheme == DIRECTORY and not found.netloc and found.path.strip("/") != ""
    if not is_s3 and not is_directory:
        return f"is {url!r}; write s3://BUCKET/PREFIX, or file:///DIRECTORY for a directory that all nodes share"
    if importlib.util.find_spec("obstore") is None:
        return "needs the package obstore; install nextslot[objects]"
    return None


class ObjectStore:
    def __init__(self, url: str, environment: Mapping[str, str] = os.environ) -> None:
        """Opens the store at an address, without a request. Creates a missing directory, for its owner only."""
        problem = url_problem(url)
        if problem is not None:
            raise Invalid(f"the store of files {problem}", field="files.store")
        # Imported here because a server without a store of files does not need obstore.
        import obstore
        from obstore.exceptions import BaseError
        from obstore.store import LocalStore, S3Store

        self.url = url
        self._obstore = obstore
        self._errors: tuple[type[Exception], ...] = (BaseError, OSError, ValueError)
        self._store: Any
        with self._translated("is not usable"):
            if urlsplit(url).scheme == S3:
                is_plain = _endpoint(environment).startswith("http://")
                options: Any = {"timeout": REQUEST, "connect_timeout": CONNECT, "allow_http": is_plain}
                self._store = S3Store.from_url(url, client_options=options, retry_config={"max_retries": MOST_RETRIES})
            else:
                root = Path(unquote(urlsplit(url).path))
                _make_root(root)
                self._store = LocalStore(root, automatic_cleanup=True)

    def put(self, path: str, data: bytes | Path) -> None:
        """Stores an object, whole or not at all; sends a large file in parts."""
        with self._translated(f"did not take {path}"):
            self._obstore.put(self._store, path, data)

    def read(self, path: str, start: int, length: int) -> bytes:
        """Reads a part of an object. Raises FileNotFoundError if it is gone."""
        with self._translated(f"did not give {path}"):
            return bytes(self._obstore.get_range(self._store, path, start=start, length=length))

    def chunks(self, path: str) -> Iterator[bytes]:
        """Reads an object in chunks. Raises FileNotFoundError, before the first one, if it is gone."""
        with self._translated(f"did not give {path}"):
            found = self._obstore.get(self._store, path)
        return self._chunks(path, found)

    def _chunks(self, path: str, found: Any) -> Iterator[bytes]:
        with self._translated(f"did not give all of {path}"):
            for chunk in found.stream(min_chunk_size=CHUNK):
                yield bytes(chunk)

    def list(self, prefix: str) -> Iterator[Stored]:
        """Lists the objects below a prefix, which must be whole parts of their paths."""
        with self._translated("could not be listed"):
            for some in self._obstore.list(self._store, prefix, chunk_size=1000):
                for one in some:
                    at = one["last_modified"].timestamp()
                    yield Stored(one["path"], one["size"], Instant(round(at * 1_000_000)))

    def delete(self, paths: Iterable[str]) -> None:
        """Deletes objects; ignores missing ones."""
        found = list[str](paths)
        if not found:
            return
        try:
            with self._translated("could not delete objects"):
                self._obstore.delete(self._store, found)
        except FileNotFoundError:  # A store in a directory stops at the first missing object, and leaves the others.
            for path in found:
                self._delete_one(path)

    def _delete_one(self, path: str) -> None:
        try:
            with self._translated("could not delete objects"):
                self._obstore.delete(self._store, path)
        except FileNotFoundError:
            pass

    @contextmanager
    def _translated(self, problem: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except self._errors as error:
            raise Unavailable(f"the store of files {self.url} {problem}: {_in_a_line(error)}") from error


def _endpoint(environment: Mapping[str, str]) -> str:
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    return next((environment[name] for name in names if environment.get(name)), "")


def _make_root(root: Path) -> None:
    """Creates the directory, for its owner only: run files may contain secrets of other users (spec 18.14)."""
    try:
        make_private(root)
    except OSError as error:
        raise Invalid(f"cannot create the directory {root}: {error.strerror}", field="files.store") from error
    if root.stat().st_mode & 0o077:
        sentence = f"others may enter the directory {root}, and would read the files of runs: chmod 700 {root}"
        raise Invalid(sentence, field="files.store")


def _in_a_line(error: Exception) -> str:
    """Returns the message of an obstore error, without its debugging text and without markup of the answer."""
    said = str(error).partition("\n\nDebug source")[0]
    return " ".join(re.sub(r"<[^>]*>", " ", said).split())[:MOST_ERROR]
