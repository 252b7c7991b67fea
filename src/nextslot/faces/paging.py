"""Pages of a list that is read downwards by id or instant: what faces of settings share."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from ..errors import Invalid
from ..model import Page
from ..policy.requests import is_storable

T = TypeVar("T")

MAX_LIMIT = 500
# Above every id.
TOP = "~"


def checked_limit(limit: int) -> int:
    if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
        raise Invalid(f"a whole number from 1 to {MAX_LIMIT}", field="limit")
    return limit


def place(cursor: str | None) -> str:
    """Where a page begins: below this id."""
    if cursor is None:
        return TOP
    if not isinstance(cursor, str) or len(cursor) > 100 or not is_storable(cursor):
        raise Invalid("not a cursor that a list has given", field="cursor")
    return cursor


def page_of(items: Sequence[T], limit: int, cursor_of: Callable[[T], str]) -> Page[T]:
    """A page of one item more than it shows: that one says whether there is another page."""
    shown = tuple(items[:limit])
    return Page(items=shown, next_cursor=cursor_of(shown[-1]) if len(items) > limit else None)
