"""Bounds of fields: for each kind of bound one test, one sentence and one schema.

HTTP, Python and the configuration refuse a value by the same bound, so with the same sentence.
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

# A value that JSON text can contain. Parameters and results of users have no narrower type.
Json = Any

MAX_PRIORITY = 999_999
URGENT = 1_000_000
MAX_TEXT = 1000
# A title may be a whole task description: 64 KiB of text.
MAX_TITLE = 65_536
MAX_NAME = 200
# The most bytes, as JSON, of a job's parameters, a run's result, its checkpoint, and the answer to a signal.
MAX_PARAMS_BYTES = 256 * 1024
MAX_RESULT_BYTES = 64 * 1024
MAX_CHECKPOINT_BYTES = 64 * 1024
MAX_PAYLOAD_BYTES = 64 * 1024
# The most bytes of a request's body, or of an item of a batch; and of the body of a batch.
MAX_BODY_BYTES = 1024 * 1024
MAX_BATCH_BYTES = 64 * 1024 * 1024
# How many bytes of a run's log are stored, unless its job type, its role or its handler sets another cap.
LOG_CAP_BYTES = 10 * 1024 * 1024
# How deep parameters may be nested, and how many jobs a job may wait for.
MAX_DEPTH = 64
MAX_DEPENDENCIES = 10_000
# A century: a longer time is a mistake, and sums of times stay far below the largest integer.
MAX_SECONDS = 100 * 366 * 86400
# The remedy for an unknown field of a job: newcomers write the parameters beside the fields.
IN_PARAMS = "; the parameters of the handler go into `params`"


@dataclass(frozen=True, eq=False)
class Bound:
    """Says what is wrong with a value, or None, and describes the allowed values for the OpenAPI document.

    pydantic obeys it as an annotation of a type (`Annotated[str, Bound(…)]`).
    """

    problem: Callable[[object], str | None]
    schema: Mapping[str, Json]
    # Converts an allowed value of JSON or TOML: 5 seconds become 5.0.
    read: Callable[[Any], object] = lambda value: value

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> Any:
        from pydantic_core import core_schema  # Imported here because the client has no use for it.

        return core_schema.no_info_plain_validator_function(self._checked)

    def __get_pydantic_json_schema__(self, core: object, handler: object) -> dict[str, Json]:
        return dict(self.schema)

    def _checked(self, value: object) -> object:
        problem = self.problem(value)
        if problem is not None:
            raise ValueError(problem)
        return self.read(value)


def whole(least: int, most: int | None = None, *others: int) -> Bound:
    """Makes the bound of a whole number from `least` to `most`. The sentence does not mention `others`, which are
    allowed too."""
    allowed = f"a whole number from {least:,}" + (" on" if most is None else f" to {most:,}")
    schema = {"type": "integer", "minimum": least} | ({} if most is None else {"maximum": max((most, *others))})

    def problem(value: object) -> str | None:
        if type(value) is int and ((least <= value and (most is None or value <= most)) or value in others):
            return None
        return must_be(value, allowed)

    return Bound(problem, schema)


def number(unit: str, most: float = MAX_SECONDS, *, least: float = 0, is_zero_allowed: bool = True) -> Bound:
    """Makes the bound of a number from `least` (or above 0) to `most`."""
    above, name = (least - 1e-9, "minimum") if is_zero_allowed else (0, "exclusiveMinimum")
    allowed = f"a number{unit} " + (f"from {least} to {most:,}" if is_zero_allowed else f"above 0, at most {most:,}")

    def problem(value: object) -> str | None:
        return None if is_number(value, above=above, most=most) else must_be(value, allowed)

    return Bound(problem, {"type": "number", name: least, "maximum": most}, read=float)


def one_of(words: Iterable[str], read: Callable[[Any], object] = str) -> Bound:
    """Makes the bound of a text that must be one of these words."""
    known = [str(word) for word in words]
    allowed = " or ".join([", ".join(map(repr, known[:-1])), repr(known[-1])])

    def problem(value: object) -> str | None:
        if isinstance(value, str) and value in known:
            return None
        return f"is {quoted(value)}; it must be {allowed}"

    return Bound(problem, {"type": "string", "enum": known}, read)


def text_problem(value: object, most: int = MAX_TEXT) -> str | None:
    if not isinstance(value, str):
        return must_be(value, "text")
    if not value:
        return f"is empty; it must have 1 to {most:,} characters"
    if len(value) > most:
        return f"has {len(value):,} characters; it must have 1 to {most:,} characters"
    return None if is_storable(value) else UNSTORABLE


UNSTORABLE = "has a NUL character or half of a surrogate pair; it must be valid Unicode without NUL"


def must_be(value: object, allowed: str) -> str:
    """Returns a sentence with the given value and what it must be. It repeats numbers but not texts, because a text may
    be a misplaced secret."""
    return f"is {_shown(value)}; it must be {allowed}"


def _shown(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() if abs(value) >= 2**64:
            return "a number that does not fit 64 bits"
        case int() | float():
            return f"{value}"
        case str():
            return "text"
        case list() | tuple():
            return "a list"
        case Mapping():
            return "an object"
        case Coroutine():
            return "a coroutine that was not awaited"
        case _:
            return f"of the type {type(value).__name__}"


def meant(name: object, known: Iterable[str], otherwise: str = "") -> str:
    """Returns the part of a sentence that suggests a similar name, or `otherwise` if no known name is similar."""
    from difflib import get_close_matches  # Imported here because most programs make no such mistake.

    close = get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {close[0]}?" if close else otherwise


def quoted(value: object) -> str:
    """Returns a short text in quotes, and the kind of any other value."""
    return repr(value) if isinstance(value, str) and len(value) <= 50 else _shown(value)


def is_storable(text: str) -> bool:
    """Returns whether both databases can store a text: it has no NUL and no half of a surrogate pair."""
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
    return isinstance(value, (int, float)) and not isinstance(value, bool) and above < value <= most


PRIORITY = whole(-MAX_PRIORITY, MAX_PRIORITY, URGENT)
# A limit of how many may run at once; 0 means no limit.
LIMIT = whole(0, 1_000_000)
SECONDS = number(" of seconds", is_zero_allowed=False)
# The period after which a job gets a step: a shorter one would keep the database busy with nothing else.
AGING = number(" of seconds", least=1)

Name = Annotated[str, Bound(text_problem, {"type": "string"})]
Text = Annotated[str, Bound(text_problem, {"type": "string", "minLength": 1, "maxLength": MAX_TEXT})]
# The name of what a resource should have loaded, such as a model.
Affinity = Annotated[
    str,
    Bound(partial(text_problem, most=MAX_NAME), {"type": "string", "minLength": 1, "maxLength": MAX_NAME}),
]
_LIMIT_KEY = partial(text_problem, most=MAX_NAME)
MAX_LIMIT_KEYS = 10


def _limit_keys_problem(value: object) -> str | None:
    if not isinstance(value, (list, tuple)) or not 0 < len(value) <= MAX_LIMIT_KEYS:
        return must_be(value, f"a list of 1 to {MAX_LIMIT_KEYS} keys")
    found = ((index, _LIMIT_KEY(one)) for index, one in enumerate(value))
    return next((f"has a key, number {index + 1}, that {problem}" for index, problem in found if problem), None)


# Of the jobs with the same key, only so many run at once as the configuration says.
LimitKeys = Annotated[
    Sequence[str],
    Bound(
        _limit_keys_problem,
        {
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": MAX_NAME},
            "minItems": 1,
            "maxItems": MAX_LIMIT_KEYS,
        },
        read=tuple,
    ),
]
TITLE = Bound(partial(text_problem, most=MAX_TITLE), {"type": "string", "minLength": 1, "maxLength": MAX_TITLE})
Title = Annotated[str, TITLE]
Seconds = Annotated[float, SECONDS]
# 0 seconds are allowed.
WAIT = number(" of seconds")
Delay = Annotated[float, WAIT]
Priority = Annotated[int, PRIORITY]
Limit = Annotated[int, LIMIT]
# A count such as a number of bytes, without a narrower bound.
COUNT = whole(0, 2**53)
Count = Annotated[int, COUNT]
