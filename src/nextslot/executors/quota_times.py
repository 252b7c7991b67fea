"""Reads when a used-up quota is renewed, from the headers of a provider's answer or from the output of a command.

Providers write times in many forms: seconds, durations, dates, epochs, times of day. A time that cannot be read becomes
None, and the scheduler then tries again after growing pauses.
"""

import importlib
import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from nextslot.system.instant import Instant

# Python's own parser of patterns; there is no public one.
parser: Any = importlib.import_module("re._parser")
codes: Any = importlib.import_module("re._constants")

# How many last lines of an output a pattern is tried on, and how much of each: bounds for the time of a search.
MOST_LINES = 20
LONGEST_LINE = 300
LONGEST_PATTERN = 300
# How many parts of any length a pattern may have: each multiplies the time of a search by the length of a line.
MOST_REPEATS = 2
# A number above this is an epoch, in seconds; one above the second in milliseconds.
_EPOCH, _EPOCH_MS = 1e9, 1e12

_DURATION = re.compile(r"(?:(\d{1,6}(?:\.\d{1,6})?)\s?(ms|d|h|m|s)[a-z]{0,7}[\s,]{0,3})")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# A time of day reached less than this ago means today: a command ends some time after its report, and clocks differ.
JUST_REACHED = timedelta(minutes=2)
_OF_DAY = re.compile(r"(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?\s?([ap]\.?m\.?)?", re.IGNORECASE)
_RESET = re.compile(r"(?:x-|anthropic-)?ratelimit-(?:reset(?P<of>-[\w-]+)?|(?P<kind>[\w-]+)-reset)")
# A used-up quota in the header of the IETF's drafts: `"name";r=0;t=13`, before that `limit=9, remaining=0, reset=13`.
_USED_UP = re.compile(r"(?:;\s*r|remaining)\s*=\s*0\s*[;,]\s*(?:t|reset)\s*=\s*(\d{1,9})(?!\d)")


class UsedUp(NamedTuple):
    """What an output says about a quota: its line, and the seconds until the quota is renewed, if it names them."""

    line: str
    seconds: float | None


def wall_time() -> Instant:
    return Instant.of(datetime.now(UTC))


def seconds_of_headers(headers: Mapping[str, str], now: Instant) -> float | None:
    """Returns the seconds until the quota is renewed. `retry-after` counts first. Of several resets, the latest counts;
    resets of quotas with something left do not count."""
    known = {name.lower(): value for name, value in headers.items()}
    if (milliseconds := known.get("retry-after-ms")) is not None and (
        found := seconds_of(milliseconds, now)
    ) is not None:
        return found / 1000
    if (after := known.get("retry-after")) is not None and (found := seconds_of(after, now)) is not None:
        return found
    resets = [
        seconds
        for name, value in known.items()
        if _RESET.fullmatch(name) and not _remains(known, name)
        if (seconds := seconds_of(value, now)) is not None
    ]
    resets += map(float, _USED_UP.findall(known.get("ratelimit", "")[:1000]))
    return max(resets, default=None)


def _remains(known: Mapping[str, str], name: str) -> bool:
    left = known.get(name.replace("reset", "remaining"), "0").strip()
    return left.replace(".", "", 1).isdigit() and float(left) > 0


def seconds_of(text: str, now: Instant, zone: tzinfo | None = None) -> float | None:
    """Reads seconds from a number, a duration (`6m0s`), an epoch, a date (ISO 8601 or HTTP), or a time of day."""
    text = text.strip()[:64]
    if re.fullmatch(r"\d{1,16}(\.\d{1,9})?", text):
        number = float(text)
        if number >= _EPOCH:
            number = (number / 1000 if number >= _EPOCH_MS else number) - now / 1_000_000
        return max(number, 0.0)
    return next((max(found, 0.0) for found in _readings(text, now, zone) if found is not None), None)


def _readings(text: str, now: Instant, zone: tzinfo | None) -> Iterator[float | None]:
    yield _duration(text.lower())
    yield _of_day(text, now, zone)
    yield _date(text, now, zone)


def _duration(text: str) -> float | None:
    if not re.fullmatch(f"(?:{_DURATION.pattern}){{1,4}}", text):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(text))


def _of_day(text: str, now: Instant, zone: tzinfo | None) -> float | None:
    match = _OF_DAY.fullmatch(text)
    if match is None or (match[2] is None and match[4] is None):
        return None
    hour, minute, second = int(match[1]), int(match[2] or 0), int(match[3] or 0)
    if match[4]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if match[4][0] in "pP" else 0)
    if hour > 23 or minute > 59 or second > 59:
        return None
    here = now.as_datetime().astimezone(zone)
    when = here.replace(hour=hour, minute=minute, second=second, microsecond=0)
    if when <= here - JUST_REACHED:
        when += timedelta(days=1)
    return (Instant.of(when) - now) / 1_000_000


def _date(text: str, now: Instant, zone: tzinfo | None) -> float | None:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        try:
            when = parsedate_to_datetime(text)
        except (ValueError, TypeError, IndexError):
            return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=zone) if zone is not None else when.astimezone()
    seconds = (Instant.of(when) - now) / 1_000_000
    return seconds if math.isfinite(seconds) else None


# Patterns for the output of commands.


def pattern_problem(pattern: object) -> str | None:
    """Returns what is wrong with a `quota_pattern`, such as that a search could take very long."""
    if pattern is None:
        return None
    if not isinstance(pattern, str) or not 1 <= len(pattern) <= LONGEST_PATTERN:
        example = '"limit reached.*until (?P<until>.+)"'
        return f"is not a text of 1 to {LONGEST_PATTERN} characters; write for example {example}"
    try:
        compiled, parsed = re.compile(pattern), parser.parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"is not a regular expression: {error}"
    unknown = sorted(compiled.groupindex.keys() - {"until", "retry_after", "zone"})
    if unknown:
        return f"has the group {unknown[0]!r}; the groups that count are until, retry_after and zone"
    repeats = list(_repeats(parsed, inside=False))
    if any(repeats):
        return "repeats a group that has repeats or alternatives itself, which can take for ever; write it without that"
    if len(repeats) > MOST_REPEATS:
        return f"has {len(repeats)} parts of any length (such as .*); write at most {MOST_REPEATS}"
    return None


def quota_in_output(pattern: str, tail: str, now: Instant) -> UsedUp | None:
    """Returns what the last line of an output that the pattern matches says about a quota."""
    compiled = re.compile(pattern)
    for line in reversed(tail.splitlines()[-MOST_LINES:]):
        found = compiled.search(line[:LONGEST_LINE])
        if found is not None:
            groups = found.groupdict()
            zone = _zone(groups.get("zone"))
            texts = (groups.get("retry_after"), groups.get("until"))
            seconds = next((s for text in texts if text and (s := seconds_of(text, now, zone)) is not None), None)
            return UsedUp(line[:LONGEST_LINE].strip(), seconds)
    return None


def _zone(name: str | None) -> tzinfo | None:
    try:
        return None if name is None else ZoneInfo(name.strip())
    except (ValueError, OSError, KeyError):  # An unknown zone: the time counts in the zone of this machine.
        return None


def _repeats(parsed: Any, inside: bool) -> Iterator[bool]:
    """Yields for each repeat of any length whether something in it can match in several ways."""
    for op, argument in parsed:
        if op in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            least, most, part = argument
            if most - least > 60:
                yield inside or _is_ambiguous(part)
            elif most > 1 and _is_ambiguous(part):
                yield True
            yield from _repeats(part, inside or most > 1)
        elif op is codes.BRANCH:
            for one in argument[1]:
                yield from _repeats(one, inside)
        elif op is codes.SUBPATTERN:
            yield from _repeats(argument[3], inside)
        elif op in (codes.ASSERT, codes.ASSERT_NOT, codes.GROUPREF_EXISTS, codes.ATOMIC_GROUP):
            yield True


def _is_ambiguous(parsed: Any) -> bool:
    for op, argument in parsed:
        if op in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            if argument[0] != argument[1] or _is_ambiguous(argument[2]):
                return True
        elif op is codes.BRANCH or (op is codes.SUBPATTERN and _is_ambiguous(argument[3])):
            return True
    return False
