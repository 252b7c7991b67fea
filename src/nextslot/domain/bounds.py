"""What a field may hold: for each kind of bound one test, one sentence and one schema.

HTTP and Python refuse by these, with the same sentence.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from .json_types import Json

MAX_PRIORITY = 999_999
URGENT = 1_000_000
MAX_TEXT = 1000
# A century: longer is a mistake, and times stay far from where integers end.
MAX_SECONDS = 100 * 366 * 86400


@dataclass(frozen=True, eq=False)
class Bound:
    """Says what is wrong with a value, or None; and what the API's description says of it.

    As a note on a type (`Annotated[str, Bound(…)]`) pydantic obeys it too.
    """

    problem: Callable[[object], str | None]
    schema: Mapping[str, Json]
    # What a right value of JSON or TOML becomes: 5 seconds are 5.0.
    read: Callable[[Any], object] = lambda value: value

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> Any:
        from pydantic_core import core_schema  # Only who has pydantic calls this: the client does without.

        return core_schema.no_info_plain_validator_function(self._checked)

    def __get_pydantic_json_schema__(self, core: object, handler: object) -> dict[str, Json]:
        return dict(self.schema)

    def _checked(self, value: object) -> object:
        problem = self.problem(value)
        if problem is not None:
            raise ValueError(problem)
        return self.read(value)


def text_problem(value: object) -> str | None:
    if not isinstance(value, str):
        return "must be text"
    if not 0 < len(value) <= MAX_TEXT:
        return f"must have 1 to {MAX_TEXT} characters"
    return None if is_storable(value) else "must be valid Unicode without NUL"


def seconds_problem(value: object) -> str | None:
    return None if is_number(value, above=0) else "a number of seconds above 0"


def priority_problem(value: object) -> str | None:
    if type(value) is int and (-MAX_PRIORITY <= value <= MAX_PRIORITY or value == URGENT):
        return None
    return f"a whole number from -{MAX_PRIORITY:,} to {MAX_PRIORITY:,}"


def is_storable(text: str) -> bool:
    """Whether both databases take it: no NUL, no half of a surrogate pair."""
    return "\0" not in text and is_unicode(text)


def is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_number(value: object, above: float = -1e-9, most: float = MAX_SECONDS) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and above < value <= most
    )


Name = Annotated[str, Bound(text_problem, {"type": "string"})]
Text = Annotated[str, Bound(text_problem, {"type": "string", "minLength": 1, "maxLength": MAX_TEXT})]
Seconds = Annotated[
    float, Bound(seconds_problem, {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_SECONDS}, read=float)
]
Priority = Annotated[
    int, Bound(priority_problem, {"type": "integer", "minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY})
]
