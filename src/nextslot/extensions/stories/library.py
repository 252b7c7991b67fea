"""The library: stories and research cards of completed jobs and direct requests. Its routes call this module.

An entry is read from the result of its work; only the text of a story is in a file.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from nextslot.domain import Json
from nextslot.domain.request_checks import is_storable
from nextslot.extension_api.host import Row, Statements, Tx
from nextslot.extension_api.tables import column_codec
from nextslot.system.instant import Instant

from .similarity import KnownText, normalised

SQL = Statements(Path(__file__).with_name("ext_stories.sql"))
# How many works a request reads at most before it returns what it has found, with a cursor.
MOST_READ = 5_000
STEP = 200
# A text is compared with at most so many earlier ones, the newest.
MOST_COMPARED = 10_000

# The place where a page of the library ended: the end of a work, its id, and the number of its entry.
Place = tuple[int, str, int]
BEGINNING: Place = (2**62, "", 0)
LAST_OF_A_WORK = 10**6


@dataclass(frozen=True, slots=True)
class Shelf:
    """One kind of entries: its name, the job type that makes such entries, and the name of their ids."""

    kind: str
    job_type: str
    id_name: str


STORIES = Shelf("story", "story", "story_id")
CARDS = Shelf("research card", "research", "card_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A story or a card. `work_id` is the id of its run; `direct_id` is the id that a direct caller chose."""

    entry_id: str
    office_id: str
    job_id: str | None
    work_id: str
    direct_id: str | None
    worker_id: str | None
    finished_at: Instant
    params: Mapping[str, Json]
    model: str | None
    told: Mapping[str, Json]
    place: Place

    @property
    def title(self) -> str:
        return str(self.told["title"])

    @property
    def topic(self) -> str | None:
        topic: str | None = self.told.get("topic") or self.params.get("topic")
        return topic

    @property
    def tags(self) -> list[str]:
        return list(self.told.get("tags") or self.params.get("tags") or ())

    @property
    def known(self) -> KnownText:
        return KnownText(self.told["fingerprint"], self.told["sketch"], self.entry_id)


class Wanted(NamedTuple):
    """The filters of a list: words that an entry must all contain, a tag, offices (none: all), a topic in the form of
    `normalised`."""

    words: tuple[str, ...] = ()
    tag: str | None = None
    offices: tuple[str, ...] = ()
    topic: str | None = None

    def takes(self, entry: Entry) -> bool:
        if self.tag is not None and self.tag.casefold() not in (tag.casefold() for tag in entry.tags):
            return False
        if self.topic is not None and self.topic != normalised(entry.topic or ""):
            return False
        text = "\n".join(_searched(entry)).casefold()
        return all(word.casefold() in text for word in self.words)


def _searched(entry: Entry) -> Iterator[str]:
    yield entry.title
    yield entry.topic or ""
    yield from entry.tags
    yield str(entry.told.get("summary", ""))
    for name in ("key_concepts", "applications"):
        yield from entry.told.get(name, ())


def page(tx: Tx, shelf: Shelf, wanted: Wanted, after: Place | None, limit: int) -> tuple[list[Entry], Place | None]:
    """Returns entries, newest first, and the next place; a page may have fewer than `limit` and not be the last."""
    found: list[Entry] = []
    place = after or BEGINNING
    for _ in range(MOST_READ // STEP):
        works = _works(tx, shelf, wanted.offices, place)
        for entry in (entry for work in works for entry in _entries(shelf, work)):
            if not _is_behind(entry.place, place) or not wanted.takes(entry):
                continue
            found.append(entry)
            if len(found) == limit:
                return found, entry.place
        if len(works) <= STEP:
            return found, None
        place = (works[-1][3], works[-1][0], LAST_OF_A_WORK)
    return found, place


def find(tx: Tx, shelf: Shelf, entry_id: str) -> Entry | None:
    if not is_storable(entry_id):
        return None
    work_id = entry_id.rpartition("-")[0] if shelf is STORIES else entry_id
    rows = SQL.rows(tx, "work", job_type=shelf.job_type, work_id=work_id)
    return next((entry for row in rows for entry in _entries(shelf, row) if entry.entry_id == entry_id), None)


def earlier(tx: Tx, shelf: Shelf, office_id: str, before: Instant | None = None) -> list[KnownText]:
    """Returns the texts of an office's completed work for comparison, newest first; before a time, if given."""
    values = {"job_type": shelf.job_type, "office_id": office_id, "before": before or BEGINNING[0]}
    rows = SQL.rows(tx, "results", **values, limit=MOST_COMPARED)
    told = (one for row in rows for one in _told(shelf, column_codec.loads(row[0])))
    return [KnownText(one["fingerprint"], one["sketch"], one[shelf.id_name]) for one in told]


def _works(tx: Tx, shelf: Shelf, offices: Sequence[str], place: Place) -> list[Row]:
    values = {"job_type": shelf.job_type, "finished_at": place[0], "work_id": place[1]}
    values |= {"all_offices": int(not offices), "offices": column_codec.key_set(offices)}
    # The first of them may be the work at `place` itself, of which the last page showed some entries.
    return SQL.rows(tx, "works", **values, limit=STEP + 1)


def _is_behind(one: Place, other: Place) -> bool:
    """Returns whether a place comes later in the list: its work ended earlier, or it has a later entry of it."""
    return one[:2] < other[:2] or (one[:2] == other[:2] and one[2] > other[2])


def _entries(shelf: Shelf, work: Row) -> list[Entry]:
    work_id, job_id, office_id, finished_at, params, result, direct_id, worker_id = work
    loaded = column_codec.loads(result)
    return [
        Entry(
            entry_id=told[shelf.id_name],
            office_id=office_id,
            job_id=job_id,
            work_id=work_id,
            direct_id=direct_id,
            worker_id=worker_id,
            finished_at=Instant(finished_at),
            params=column_codec.loads(params),
            model=loaded.get("model"),
            told=told,
            place=(finished_at, work_id, index),
        )
        for index, told in enumerate(_told(shelf, loaded))
    ]


def _told(shelf: Shelf, result: Any) -> list[Mapping[str, Json]]:
    """Returns the stories or card in a result; none if its form differs: users may have types of that name."""
    if not isinstance(result, dict):
        return []
    items = result.get("stories") if shelf is STORIES else [result]
    needed = {shelf.id_name, "title", "fingerprint", "sketch"}
    return [one for one in items or () if isinstance(one, dict) and needed <= one.keys()]
