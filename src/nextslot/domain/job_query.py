"""The query of jobs in one line, as `GET /api/jobs?q=`, `nextslot ls -q` and the console's search take it.

    status:failed type:ingest error:"ECONNRESET" params.source=orders since:2h words of the title

`parsed` makes a filter of it. A wrong query is refused with the place of the mistake and what was expected there.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, NamedTuple

from nextslot.errors import Invalid
from nextslot.system.instant import Instant

from . import JobStatus
from .filters import JobFilter, folded

# How many characters of a title are indexed; the longest indexed word; the most terms and characters of a query.
READ_CHARACTERS = 1_000
LONGEST_WORD = 100
MOST_TERMS = 30
LONGEST_QUERY = 1_000

# By the word that a query uses: the field of the filter.
FIELDS: Mapping[str, str] = {
    "status": "status", "type": "job_type", "job_type": "job_type", "office": "office_id", "office_id": "office_id",
    "role": "role", "task": "task_id", "task_id": "task_id", "template": "template_id", "template_id": "template_id",
    "schedule": "schedule_id", "schedule_id": "schedule_id", "group": "group_id", "group_id": "group_id",
    "retry_of": "retry_of", "fingerprint": "fingerprint",
}  # fmt: skip
TIMES: Mapping[str, str] = {
    "since": "created_after", "until": "created_before",
    "created_after": "created_after", "created_before": "created_before",
    "finished_after": "finished_after", "finished_before": "finished_before",
}  # fmt: skip
NAMES = (*FIELDS, *TIMES, "error", "is")

_WORD = re.compile("[a-z0-9\u0080-\U0010ffff]+")
_PART_OF_ID = re.compile(r"[0-9a-f-]{4,36}")
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_AGO = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhdw])")
# No failure has this fingerprint: what two parts of a query exclude is not found.
_NOTHING = ("-",)


class Param(NamedTuple):
    """A parameter by its name, or by names with dots between them, and the value that it must have as text."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSearch(JobFilter):
    """A filter that also asks for words of the title or the error, and for parameters."""

    words: tuple[str, ...] = ()
    error_words: tuple[str, ...] = ()
    params: tuple[Param, ...] = ()

    def matches(self, job: Any) -> bool:
        return JobFilter.matches(self, job) and self.finds(job.title, job.error_line, lambda: job.params)

    def finds(self, title: str | None, error_line: str | None, params: Callable[[], Any]) -> bool:
        """Returns whether a job with these texts and parameters is among the results."""
        of_error = words_of(error_line)
        if not _begin(of_error, self.error_words) or not _begin(words_of(title) + of_error, self.words):
            return False
        return not self.params or _have(params(), self.params)


class Term(NamedTuple):
    """A part of a query: its field (None: plain text), its value, and where it begins."""

    name: str | None
    value: str
    at: int


def words_of(text: str | None) -> list[str]:
    """Returns the words of a text, as both databases see them."""
    return [word[:LONGEST_WORD] for word in _WORD.findall(folded((text or "")[:READ_CHARACTERS]))]


def resolved(filter: JobFilter, now: Instant) -> JobFilter:
    """Returns the filter that also asks for what its `q` says. What may be a part of an id stays in `q`, and what has
    no letter and no digit: it is looked for as it is, in the title and the id.
    """
    return filter if filter.q is None or isinstance(filter, JobSearch) else parsed(filter.q, now, filter)


def parsed(text: str, now: Instant, filter: JobFilter | None = None) -> JobFilter:
    """Returns the filter that a query means, within a filter. Raises Invalid with the place of the first mistake."""
    given = filter or JobFilter()
    found: dict[str, Any] = {}
    plain: list[str] = []
    error_words: list[str] = []
    params: list[Param] = []
    for term in terms(text):
        if term.name is None:
            plain.append(term.value)
        elif term.name.startswith("params."):
            params.append(Param(term.name.removeprefix("params."), term.value))
        elif term.name == "error":
            error_words += _words(term)
        elif term.name == "is":
            found["awaiting_signal"] = _is_awaiting(term)
        elif term.name in TIMES:
            name = TIMES[term.name]
            found[name] = _later(name, found.get(name), _time(term, now))
        else:
            name = FIELDS[term.name]
            found[name] = _both(found.get(name), _values(term, name))
    part = " ".join(plain) or None
    words = [word for one in plain for word in words_of(one)]
    if part is not None and words and not _PART_OF_ID.fullmatch(folded(part)):
        part = None
    elif part is not None:
        words = []
    kept = {field.name: getattr(given, field.name) for field in fields(JobFilter)}
    for name, value in found.items():
        own = kept[name]
        if name == "awaiting_signal":
            kept[name] = value if own in (None, value) else ()
            continue
        kept[name] = _later(name, own, value) if name in TIMES.values() else _both(own or None, value)
    if any(kept[name] == () for name in found):
        kept |= {name: getattr(given, name) for name in found} | {"fingerprint": _NOTHING}
    kept["q"] = part
    if not words and not error_words and not params:
        return JobFilter(**kept)
    return JobSearch(**kept, words=tuple(words), error_words=tuple(error_words), params=tuple(params))


def terms(text: str) -> list[Term]:
    """Splits a query into its parts. A value in quotes may have spaces; `\\"` in it is a quote."""
    if len(text) > LONGEST_QUERY:
        raise Invalid(f"has {len(text):,} characters; at most {LONGEST_QUERY:,} are allowed", "q")
    found: list[Term] = []
    at = 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text):
            return found
        if len(found) == MOST_TERMS:
            raise Invalid(_at(at, f"expected the end: a query has at most {MOST_TERMS} parts"), "q")
        term, at = _term(text, at)
        found.append(term)


_NAME = re.compile(r"(params\.[^\s:=\"]+|[A-Za-z_]+)([:=])")


def _term(text: str, at: int) -> tuple[Term, int]:
    name = _NAME.match(text, at)
    # What looks like an address or a qualified name is text: `http://…` and `a::b` name no field.
    if name is None or text.startswith(("//", ":"), name.end()):
        value, end = _value(text, at)
        return Term(None, value, at), end
    known = name[1] if name[1].startswith("params.") else name[1].lower()
    if known not in NAMES and not known.startswith("params."):
        raise Invalid(
            _at(
                at,
                f"{name[1]!r} is no field; expected one of {', '.join(NAMES)}, params.NAME; "
                "put a text with ':' into quotes",
            ),
            "q",
        )
    if name[2] == "=" and not known.startswith("params."):
        raise Invalid(_at(name.end() - 1, f"expected ':' after {name[1]!r}; only params.NAME takes '='"), "q")
    value, end = _value(text, name.end())
    if not value:
        raise Invalid(_at(name.end(), f"expected a value of {name[1]!r}"), "q")
    return Term(known, value, at), end


def _value(text: str, at: int) -> tuple[str, int]:
    if text[at : at + 1] != '"':
        end = at
        while end < len(text) and not text[end].isspace():
            end += 1
        return text[at:end], end
    parts: list[str] = []
    end = at + 1
    while end < len(text) and text[end] != '"':
        end += text[end] == "\\" and text[end + 1 : end + 2] in ('"', "\\")
        parts.append(text[end])
        end += 1
    if end >= len(text):
        raise Invalid(_at(at, "expected a closing quote"), "q")
    return "".join(parts), end + 1


def _values(term: Term, name: str) -> tuple[str, ...]:
    values = tuple(part.strip() for part in term.value.split(",") if part.strip())
    if not values:
        raise Invalid(_at(term.at, f"expected a value of {term.name!r}"), "q")
    if name != "status":
        return values
    known = tuple(value.upper() for value in values)
    for value in known:
        if value not in list(JobStatus):
            expected = ", ".join(JobStatus).lower()
            raise Invalid(_at(term.at, f"{value.lower()!r} is no status; expected one of {expected}"), "q")
    return known


def _is_awaiting(term: Term) -> bool:
    if term.value.lower() != "awaiting":
        raise Invalid(_at(term.at, f"{term.value!r} is nothing that a job can be; expected awaiting"), "q")
    return True


def _time(term: Term, now: Instant) -> Instant:
    ago = _AGO.fullmatch(term.value)
    if ago is not None:
        seconds = float(ago[1]) * _UNITS[ago[2]]
        return now.after(-min(seconds, now / 1_000_000))
    try:
        at = datetime.fromisoformat(term.value)
        # A day or a time without a zone is in UTC, as everything that the API says.
        return Instant.of(at if at.tzinfo else at.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        expected = f"expected how long ago, such as 2h or 7d, or a time such as {_EXAMPLE}"
        raise Invalid(_at(term.at, f"{term.value!r} is no time; {expected}"), "q") from None


_EXAMPLE = "2026-11-16T07:00+09:00"


def _words(term: Term) -> list[str]:
    found = words_of(term.value)
    if not found:
        raise Invalid(_at(term.at, f"{term.value!r} has no letter or digit; expected words of an error"), "q")
    return found


def _later(name: str, one: Instant | None, other: Instant) -> Instant:
    """Returns the narrower of two bounds."""
    if one is None:
        return other
    return max(one, other) if name.endswith("_after") else min(one, other)


def _both(one: Sequence[str] | None, other: Sequence[str]) -> tuple[str, ...]:
    """Returns the values that both allow."""
    return tuple(other) if one is None else tuple(value for value in one if value in other)


def _at(at: int, problem: str) -> str:
    return f"is wrong at character {at + 1}: {problem}"


def _begin(known: Sequence[str], wanted: Sequence[str]) -> bool:
    """Returns whether each wanted word is the beginning of a known one."""
    return all(any(word.startswith(one) for word in known) for one in wanted)


def _have(params: Any, wanted: Sequence[Param]) -> bool:
    return all(_text(_reached(params, one.name)) == one.value for one in wanted)


_MISSING = object()


def _reached(params: Any, name: str) -> Any:
    """Returns a parameter by its whole name, else by the names between the dots."""
    if isinstance(params, Mapping) and name in params:
        return params[name]
    found = params
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return _MISSING
        found = found[part]
    return found


def _text(value: Any) -> str | None:
    """Returns a text as it is, and anything else as JSON."""
    if value is _MISSING:
        return None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
