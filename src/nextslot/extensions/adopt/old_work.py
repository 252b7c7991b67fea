"""Values between the readers of older systems and `adopt_service`: old work in nextslot's words, under its old ids.

Also contains what the readers share: times without a zone, mapped names, and the list of items that are left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any

from nextslot.domain import Json, NewJob, Outcome
from nextslot.errors import Invalid
from nextslot.system.instant import Instant

RUNNING_THEN = "it was running in the old system when it was adopted"


@dataclass(frozen=True, slots=True, kw_only=True)
class OldAttempt:
    """A past run. `alias` is its own old id, if it had one."""

    started_at: Instant
    finished_at: Instant
    outcome: Outcome
    alias: str | None = None
    session_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OldText:
    """A story or a research card: its old id and its known fields."""

    alias: str
    source: str
    title: str
    text: str
    topic: str | None = None
    tags: tuple[str, ...] = ()
    model: str = "unknown"
    # Only of a card.
    summary: str = ""
    key_concepts: tuple[str, ...] = ()
    applications: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OldJob:
    """A job of an older system. A job without attempts and without `cancelled_at` has not run yet."""

    alias: str
    source: str
    new: NewJob
    created_at: Instant
    attempts: tuple[OldAttempt, ...] = ()
    cancelled_at: Instant | None = None
    cancel_reason: str | None = None
    # Whether the last attempt ended the job; if not, the job is queued for its next attempt.
    has_ended: bool = False
    depends_on: tuple[str, ...] = ()
    stories: tuple[OldText, ...] = ()
    card: OldText | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OldGroup:
    alias: str
    source: str
    created_at: Instant
    members: tuple[OldJob, ...]


@dataclass(frozen=True, slots=True)
class Left:
    """An item that is not adopted, with the reason; or only a part of it (`is_part`)."""

    source: str
    reason: str
    is_part: bool = False


@dataclass(slots=True)
class Found:
    """The groups and jobs that a reader has found, in an order in which prerequisites come first."""

    groups: list[OldGroup] = field(default_factory=list)
    jobs: list[OldJob] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read a source: the zone of its naive times, and its names for known fields."""

    zone: tzinfo | None
    names: Mapping[str, str]

    def renamed(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {self.names.get(name, name): value for name, value in row.items()}

    def time(self, value: object) -> Instant | None:
        """Returns a time from a datetime or ISO 8601; naive times are in the given zone."""
        if value is None or value == "":
            return None
        try:
            at = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).replace("Z", "+00:00"))
        except ValueError:
            raise Invalid(f"{value!r} is not a time") from None
        if at.tzinfo is None:
            if self.zone is None:
                raise NoZone(
                    f"the time {value!s} has no time zone; give the old system's, such as --timezone Asia/Seoul"
                )
            at = at.replace(tzinfo=self.zone)
        return Instant(round(at.timestamp() * 1_000_000))


class NoZone(Invalid):
    """A source has naive times, and no zone was given, so that nothing of the source can be read."""


def names_of(pairs: Sequence[str]) -> dict[str, str]:
    """Reads `--map old=new`."""
    found: dict[str, str] = {}
    for pair in pairs:
        old, equals, new = pair.partition("=")
        if not (old and equals and new):
            raise Invalid(f"--map is {pair!r}; write --map old=new, such as --map prio=priority")
        found[old] = new
    return found


def plain(value: object, most: int | None = None) -> str | None:
    """Returns a text that a database can store: without NUL and broken surrogates, and of at most this length."""
    if value is None:
        return None
    text = str(value).replace("\0", "").encode("utf-8", "ignore").decode()
    return text if most is None else text[:most]


def known(params: Mapping[str, Json], names: Sequence[str]) -> tuple[dict[str, Json], list[str]]:
    """Splits parameters into the known ones and the names of the unknown ones."""
    taken = {name: params[name] for name in names if params.get(name) is not None}
    return taken, sorted(name for name, value in params.items() if name not in names and value not in (None, [], ""))


def ordered(times: Sequence[Instant | None]) -> Iterator[Instant]:
    """Yields times that never go back, even if a clock was set back; a missing time repeats the one before."""
    last: Instant | None = None
    for at in times:
        if at is not None and (last is None or at > last):
            last = at
        assert last is not None
        yield last
