"""Cursors: opaque texts that say where a page of a list ended. Also checks the length of pages."""

import base64
import binascii
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import orjson

from nextslot.domain import Page
from nextslot.domain.request_checks import is_storable
from nextslot.errors import Invalid
from nextslot.store.contract import Tx

from .unit_of_work import UnitOfWork

T = TypeVar("T")

DEFAULT_LIMIT = 50
MAX_LIMIT = 500
_LONGEST = 4000
_LARGEST = 2**62


def encode(kind: str, key: Sequence[int | str] | None) -> str | None:
    if key is None:
        return None
    return base64.urlsafe_b64encode(orjson.dumps([kind, *key])).rstrip(b"=").decode()


def decode(kind: str, cursor: str | None, shape: Sequence[type]) -> tuple[int | str, ...] | None:
    """Returns the key in a cursor of this kind of list. Refuses any other text."""
    if cursor is None:
        return None
    try:
        found = orjson.loads(base64.b64decode(_padded(cursor), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        found = None
    if not isinstance(found, list) or not found or not _fits(found[1:], shape):
        raise Invalid("is not a cursor; send the next_cursor of a page unchanged", "cursor")
    if found[0] != kind:
        raise Invalid(f"is a cursor of another list, not of {kind}", "cursor")
    return tuple(found[1:])


async def read_page(
    access: UnitOfWork,
    kind: str,
    first: int | str,
    cursor: str | None,
    limit: int,
    read: Callable[[Tx, Any, int], Sequence[T]],
    key: str,
) -> Page[T]:
    """Reads a page of a list. `key` is the field by which it is ordered; `first` sorts before the first item.

    `read` gets a key and a number, and reads that many items after the key.
    """
    (after,) = decode(kind, cursor, (type(first),)) or (first,)
    checked_limit(limit)
    # One more item than the page shows: its presence means that there is another page.
    items = await access.read(lambda tx: read(tx, after, limit + 1))
    shown = tuple(items[:limit])
    return Page(shown, encode(kind, (getattr(shown[-1], key),) if len(items) > limit else None))


def checked_limit(limit: int) -> int:
    if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
        raise Invalid(f"is {limit!r}; it must be a whole number from 1 to {MAX_LIMIT}", "limit")
    return limit


def _padded(cursor: object) -> bytes:
    if not isinstance(cursor, str) or len(cursor) > _LONGEST:
        raise ValueError
    return cursor.encode("ascii") + b"=" * (-len(cursor) % 4)


def _fits(key: Sequence[object], shape: Sequence[type]) -> bool:
    if len(key) != len(shape) or any(type(part) is not kind for part, kind in zip(key, shape, strict=True)):
        return False
    return all(abs(part) <= _LARGEST if isinstance(part, int) else is_storable(str(part)) for part in key)


async def each(page: Callable[[int, str | None], Awaitable[Page[T]]]) -> AsyncIterator[T]:
    """Yields the items of all pages of a list."""
    cursor: str | None = None
    while True:
        found = await page(MAX_LIMIT, cursor)
        for one in found.items:
            yield one
        cursor = found.next_cursor
        if cursor is None:
            return
