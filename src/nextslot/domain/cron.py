"""Reads cron expressions as Debian does: the next occurrence, the occurrences of a span, the expression in words.

cronsim parses the expression and knows which days match. The instants of a day are computed here, because a day with a
clock change has 23, 24, 23.5 or no hours: cronsim's own steps lose the half hour of Lord Howe and double the day that
Apia skipped.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from nextslot.errors import Invalid
from nextslot.system.instant import Instant

from .bounds import text_problem

NAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MAX_LENGTH = 200
# A leap day on a given weekday comes back within 40 years: an expression without a match in 50 years never has one.
HORIZON_YEARS = 50

_FIELDS = ("minute", "hour", "day of month", "month", "day of week")
# Checked before cronsim parses it: two digits or a name of three letters; a step only after a range.
_VALUE = r"(?:\d{1,2}|[A-Za-z]{3})"
_ITEM = re.compile(rf"(?:\*|{_VALUE}-{_VALUE})(?:/\d{{1,2}})?|{_VALUE}")
_LONE_STEP = re.compile(rf"({_VALUE})/(\d{{1,2}})")
_ONE_IN_RANGE = re.compile(r"\b(\w+)-\1/\d+\b")
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+){0,2}")
_EVERY_SO_MANY = re.compile(r"\*/(\d{1,2})")
_LAST_OF_FIELD = (59, 23, 31, 12, 7)

_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# cronsim needs some time to start from.
_SOME_DAY = datetime(2000, 1, 1)  # noqa: DTZ001


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive occurrences: the first, the last, and how many there are."""

    first: Instant
    last: Instant
    count: int


@lru_cache(maxsize=4096)
def parse(expression: str, timezone: str = "UTC") -> "Cron":
    """Parses an expression; raises Invalid for the field `cron_expression` or `timezone`."""
    return Cron(_fields(expression), zone(timezone))


def every(interval: timedelta) -> str:
    """Returns the expression that fires at even steps of the clock: every 15 minutes at :00, :15, :30 and :45."""
    minutes, rest = divmod(interval, timedelta(minutes=1))
    if not rest and minutes in (m for m in range(1, 60) if 60 % m == 0):
        return f"*/{minutes} * * * *" if minutes > 1 else "* * * * *"
    if not rest and minutes in (h * 60 for h in range(1, 24) if 24 % h == 0):
        return f"0 */{minutes // 60} * * *" if minutes > 60 else "@hourly"
    if interval in (_DAY, 7 * _DAY):
        return "@daily" if interval == _DAY else "@weekly"
    allowed = "minutes that divide an hour, hours that divide a day, a day or a week"
    raise Invalid(f"is {interval}; it must be {allowed}: a cron expression says nothing else", field="every")


def in_words(expression: str) -> str:
    return parse(expression).words


@lru_cache(maxsize=1024)
def zone(name: str) -> ZoneInfo:
    problem = f"there is no time zone {name!r}: use a name such as Europe/Berlin or UTC"
    if not isinstance(name, str) or not _ZONE.fullmatch(name):
        raise Invalid(problem, field="timezone")
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # The zone does not exist, is not a zone, or is a directory of zones.
        raise Invalid(problem, field="timezone") from None


def _fields(expression: str) -> str:
    """Returns the five fields in a form that means to cronsim what the expression means to Debian's cron."""
    if (problem := text_problem(expression, MAX_LENGTH)) is not None:
        raise _bad(problem)
    if expression.strip().startswith("@"):
        known = NAMES.get(expression.strip().lower())
        if known is None:
            raise _bad(f"is {expression.strip()!r}, which is not a known name; use one of {', '.join(NAMES)}")
        return known
    fields = expression.split()
    if len(fields) != 5:
        raise _bad(f"has {len(fields)} fields; it must have five fields ({', '.join(_FIELDS)}) or be an @name")
    for index, field in enumerate(fields):
        for item in field.split(","):
            _check_item(index, field, item)
    return _ONE_IN_RANGE.sub(r"\1", " ".join(fields).upper())


def _check_item(index: int, field: str, item: str) -> None:
    lone = _LONE_STEP.fullmatch(item)
    if lone is not None:
        # Debian's cron reads 5/15 as 5, others as 5-59/15: refuse it rather than guess.
        better = f"{lone[1]}-{_LAST_OF_FIELD[index]}/{lone[2]}"
        raise _bad(f"has the step {item!r} without a range; write {better!r}")
    if not _ITEM.fullmatch(item):
        raise _bad(
            f"has the {_FIELDS[index]} {field!r}, which cannot be read; use numbers, names, ranges, steps and lists"
        )


def _bad(problem: str) -> Invalid:
    return Invalid(problem, field="cron_expression")


def _plain(minute: str, words: str) -> str:
    """Says "every 30 minutes" where the library says "every 30th minute of every hour"."""
    step = _EVERY_SO_MANY.fullmatch(minute)
    if step is None or 60 % int(step[1]) != 0:
        return words
    return re.sub(r"^Every \w+ minute( of every hour)?", f"Every {int(step[1])} minutes", words)


class Cron:
    """A cron expression in a time zone."""

    def __init__(self, fields: str, zone: ZoneInfo) -> None:
        try:
            self._days = CronSim(fields, _SOME_DAY)
        except CronSimError as error:
            raise _bad(_explained(fields, error)) from None
        self._zone = zone
        minute, hour = fields.split()[:2]
        self._minute = minute
        # Debian: with `*` in minute or hour, occurrences follow the changed clock; otherwise they are times of day.
        self._follows_the_clock = minute.startswith("*") or hour.startswith("*")
        self._seconds = [h * 3600 + m * 60 for h in sorted(self._days.hours) for m in sorted(self._days.minutes)]
        # The last answer of `after`: many schedules have the same expression and ask for the same time.
        self._asked: tuple[Instant, Instant | None] | None = None
        if next(self._dates(_SOME_DAY.date()), None) is None:
            raise _bad("never happens: no month has such a day")

    @property
    def words(self) -> str:
        return _plain(self._minute, self._days.explain())

    def local(self, at: Instant) -> datetime:
        """Returns the local time of an instant in this zone."""
        return at.as_datetime().astimezone(self._zone)

    def after(self, at: Instant) -> Instant | None:
        """Returns the first occurrence later than `at`."""
        asked = self._asked
        if asked is None or asked[0] != at:
            asked = self._asked = (at, self._after(at))
        return asked[1]

    def _after(self, at: Instant) -> Instant | None:
        after = at // 1_000_000
        for day in self._dates(self._date_before(at)):
            found = self._first_after(day, after)
            if found is None:
                continue
            # Where clocks go back over midnight, a day begins before the previous day has ended.
            next_day = self._first_after(day + _DAY, after) if self._is_matching(day + _DAY) else None
            first = found if next_day is None else min(found, next_day)
            return Instant(first * 1_000_000)
        return None

    def between(self, after: Instant, until: Instant) -> list[Instant]:
        """Returns every occurrence later than `after`, up to and including `until`, in order."""
        low, high = after // 1_000_000, until // 1_000_000
        found = {at for day in self._dates_until(after, until) for at in self._instants(day) if low < at <= high}
        return [Instant(at * 1_000_000) for at in sorted(found)]

    def span(self, after: Instant, until: Instant) -> Span | None:
        """Counts the occurrences that `between` would return; it takes time for each day, not for each occurrence."""
        low, high = after // 1_000_000, until // 1_000_000
        first, last, count = high + 1, low, 0
        odd: set[int] = set()
        for day in self._dates_until(after, until):
            midnight = self._plain_midnight(day)
            if midnight is None:
                odd.update(at for at in self._instants(day) if low < at <= high)
                continue
            begin = bisect_right(self._seconds, low - midnight)
            end = bisect_right(self._seconds, high - midnight)
            if begin < end:
                count += end - begin
                first, last = min(first, midnight + self._seconds[begin]), max(last, midnight + self._seconds[end - 1])
        if odd:
            first, last = min(first, *odd), max(last, *odd)
        count += len(odd)
        return Span(Instant(first * 1_000_000), Instant(last * 1_000_000), count) if count else None

    # Days.

    def _date_before(self, at: Instant) -> date:
        """Returns the day before a date. Its occurrences may fall on the next day, if clocks skip midnight."""
        return max(self.local(at).date(), date(2, 1, 1)) - _DAY

    def _dates_until(self, after: Instant, until: Instant) -> Iterator[date]:
        last = self.local(until).date() + _DAY
        for day in self._dates(self._date_before(after)):
            if day > last:
                return
            yield day

    def _dates(self, start: date) -> Iterator[date]:
        """Yields the matching days from `start` on."""
        day = start
        while day.year <= min(start.year + HORIZON_YEARS, 9998):
            if day.month not in self._days.months:
                day = (day.replace(day=1) + 32 * _DAY).replace(day=1)
                continue
            if self._days.match_day(day):
                yield day
            day += _DAY

    def _is_matching(self, day: date) -> bool:
        return day.month in self._days.months and self._days.match_day(day)

    # Instants, as seconds since 1970.

    def _first_after(self, day: date, after: int) -> int | None:
        midnight = self._plain_midnight(day)
        if midnight is None:
            return min((at for at in self._instants(day) if at > after), default=None)
        place = bisect_right(self._seconds, after - midnight)
        return midnight + self._seconds[place] if place < len(self._seconds) else None

    def _instants(self, day: date) -> list[int]:
        midnight = self._plain_midnight(day)
        if midnight is not None:
            return [midnight + second for second in self._seconds]
        start = datetime.combine(day, time())
        found: list[int] = []
        for second in self._seconds:
            found += self._instants_of(start + second * _SECOND)
        return found

    def _plain_midnight(self, day: date) -> int | None:
        return _plain_midnight(self._zone, day)

    def _instants_of(self, local: datetime) -> Iterator[int]:
        """Yields the instants of a local time: usually one; in a gap its end or none; in a fold one or both."""
        found = {at for fold in (0, 1) if self._wall(at := local - self._offset(local, fold)) == local}
        if self._follows_the_clock:
            yield from map(_epoch_seconds, found)
        elif found:
            yield _epoch_seconds(min(found))
        else:
            end = self._gap_end(local)
            # A date that does not exist in a zone has no occurrence.
            if local.date() in (self._wall(end).date(), self._wall(end - _SECOND).date()):
                yield _epoch_seconds(end)

    def _gap_end(self, local: datetime) -> datetime:
        """Returns the instant at which clocks went forward over a local time that does not exist."""
        low, high = local - self._offset(local, fold=1), local - self._offset(local, fold=0)
        before = self._wall(low) - low
        while high - low > _SECOND:
            middle = low + (high - low) // 2 // _SECOND * _SECOND
            low, high = (middle, high) if self._wall(middle) - middle == before else (low, middle)
        return high

    def _offset(self, local: datetime, fold: int = 0) -> timedelta:
        return _offset(self._zone, local, fold)

    def _wall(self, utc: datetime) -> datetime:
        return utc.replace(tzinfo=UTC).astimezone(self._zone).replace(tzinfo=None)


@lru_cache(maxsize=4096)
def _plain_midnight(zone: ZoneInfo, day: date) -> int | None:
    """Returns when a day begins, if clocks do not change on it or on the days beside it; else None.

    No zone has changed its clocks twice in three days.
    """
    start = datetime.combine(day, time())
    offset = _offset(zone, start)
    is_plain = _offset(zone, start - _DAY) == offset == _offset(zone, start + _DAY, fold=1)
    return _epoch_seconds(start - offset) if is_plain else None


def _offset(zone: ZoneInfo, local: datetime, fold: int = 0) -> timedelta:
    offset = local.replace(tzinfo=zone, fold=fold).utcoffset()
    assert offset is not None
    return offset


def _epoch_seconds(utc: datetime) -> int:
    return (utc.replace(tzinfo=UTC) - _EPOCH) // _SECOND


def _explained(fields: str, error: CronSimError) -> str:
    """Returns cronsim's error with the field that is wrong."""
    said = str(error)
    for name, field in zip(_FIELDS, fields.split(), strict=True):
        if said == f"Bad {name.replace(' ', '-')}":
            if name == "day of month" and _is_read(f"* * {field} * *"):
                return "never happens: no such month has that day"
            at = _FIELDS.index(name)
            if "-" in field and all(
                _is_read(" ".join(["*"] * at + [end] + ["*"] * (4 - at))) for end in field.split("-")
            ):
                return f"has the {name} {field.lower()!r}, a range that runs backwards"
            return f"has the {name} {field.lower()!r}, which is out of range"
    return said


def _is_read(fields: str) -> bool:
    try:
        CronSim(fields, _SOME_DAY)
    except CronSimError:
        return False
    return True
