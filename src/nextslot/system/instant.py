"""Instant: a point in time. Separate from the clocks, so that values can be imported without asyncio."""

from datetime import UTC, datetime, timedelta
from typing import Self

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Instant(int):
    """A point in time: whole microseconds since 1970 in UTC, as the database stores it; prints as RFC 3339."""

    @classmethod
    def of(cls, when: datetime) -> Self:
        if when.tzinfo is None:
            raise ValueError("this time has no time zone: use datetime.now(UTC), or another zone")
        return cls((when - _EPOCH) // _MICROSECOND)

    def as_datetime(self) -> datetime:
        return _EPOCH + timedelta(microseconds=int(self))

    def after(self, seconds: float) -> "Instant":
        return Instant(self + round(seconds * 1_000_000))

    def __str__(self) -> str:
        return self.as_datetime().isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"

    def __repr__(self) -> str:
        return f"Instant({self})"
