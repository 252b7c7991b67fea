"""Rollups of ended jobs, and the depth of the queue by minute: one function per statement."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nextslot.domain.rollups import DIRECT, JOB, STORED_STEPS, End, RollupKey, Totals, ended
from nextslot.store.contract import Row, Tx

from . import column_codec

PAGE_ROWS = 5_000
_COUNTED = (*End._fields, "jobs")


class Rollup(NamedTuple):
    """The number of equal ends in the span that begins `at`."""

    at: int
    key: RollupKey
    totals: Totals


def count(tx: Tx, ends: Iterable[tuple[End, int]]) -> None:
    tx.execute_batch("rollups.count", _COUNTED, [(*end, jobs) for end, jobs in ends])


def take_recent(tx: Tx, before: int) -> list[tuple[End, int]]:
    """Deletes the ends of minutes before a time. Returns them, each with its number."""
    return [(End(*row[:-1]), row[-1]) for row in tx.rows("rollups.take_recent", before=before)]


def recent(tx: Tx, begin: int, until: int, office_id: str = "") -> list[tuple[End, int]]:
    rows = tx.rows("rollups.recent", begin=begin, until=until, office_id=office_id)
    return [(End(*row[:-1]), row[-1]) for row in rows]


def take(tx: Tx, step: int, begin: int, until: int) -> list[Rollup]:
    """Deletes the rollups of one step in a range, and returns them."""
    return [_rollup(row) for row in tx.rows("rollups.take", step=step, begin=begin, until=until)]


def stored(tx: Tx, step: int, begin: int, until: int, office_id: str = "") -> list[Rollup]:
    """Returns the rollups of one step in a range, of one office or, if that is empty, of all."""
    if office_id:
        rows = tx.rows("rollups.range_of_office", step=step, begin=begin, until=until, office_id=office_id)
    else:
        rows = tx.rows("rollups.range", step=step, begin=begin, until=until)
    return [_rollup(row) for row in rows]


def put(tx: Tx, step: int, at: int, key: RollupKey, totals: Totals) -> None:
    waits, durations = _histogram_text(totals.waits), _histogram_text(totals.durations)
    tx.execute_later(
        "rollups.put", step=step, at=at, **key._asdict(), jobs=totals.jobs, waits=waits, durations=durations
    )


def oldest(tx: Tx, step: int) -> int | None:
    row = tx.row("rollups.oldest", step=step)
    return None if row is None else row[0]


# The depth of the queue.


def sample(tx: Tx, minute: int) -> None:
    """Stores how many jobs are in the queue, unless this minute has a stored depth."""
    if tx.row("rollups.is_sampled", minute=minute) is None:
        tx.execute("rollups.sample", minute=minute)


def depth_now(tx: Tx, office_id: str, job_type: str) -> int:
    row = tx.row("rollups.depth_now", office_id=office_id, job_type=job_type)
    assert row is not None
    return int(row[0])


def depths(tx: Tx, begin: int, until: int, office_id: str, job_type: str) -> dict[int, int]:
    """Returns the stored depths in a range, and the first one after it, by time."""
    found: dict[int, int] = {}
    following = [tx.row("rollups.next_sample", step=step, after=until) for step in STORED_STEPS]
    last = min((row[0] for row in following if row is not None and row[0] is not None), default=None)
    wanted = {"office_id": office_id, "job_type": job_type}
    for step in STORED_STEPS:
        found.update((at, int(depth)) for at, depth in _depths(tx, step, begin, until, wanted))
        if last is not None:
            found.update((at, int(depth)) for at, depth in _depths(tx, step, last, last, wanted))
    return found


def _depths(tx: Tx, step: int, begin: int, until: int, wanted: dict[str, str]) -> list[Row]:
    return tx.rows("rollups.depths", step=step, begin=begin, until=until, **wanted)


def oldest_depth(tx: Tx, step: int) -> int | None:
    row = tx.row("rollups.oldest_depth", step=step)
    return None if row is None else row[0]


def keep_depth(tx: Tx, step: int, larger: int, at: int, begin: int, until: int) -> None:
    """Keeps only one of the depths of a step in a range: it becomes the depth of the larger span."""
    tx.execute("rollups.keep_depth", step=step, larger=larger, at=at)
    tx.execute("rollups.drop_depths", step=step, begin=begin, until=until)


# The history with which rollups are compared.


def bounds(tx: Tx) -> tuple[int, int]:
    """Returns since when history is complete, and since when rollups are written."""
    found: dict[str, int] = dict(tx.rows("rollups.bounds"))
    return found.get("history_from", 0), found.get("written_from", 0)


def clear_from(tx: Tx, begin: int) -> None:
    """Deletes the rollups from a time on. Rollups are written from that time on."""
    tx.execute("rollups.clear_from", begin=begin)
    tx.execute("rollups.clear_recent", begin=begin)
    tx.execute("rollups.reset_bound", name="written_from", at=begin)


def larger_spans(tx: Tx) -> set[tuple[int, int]]:
    """Returns (step, at) of every stored hour and day."""
    return {(step, at) for step, at in tx.rows("rollups.larger_spans")}


def history(tx: Tx) -> Iterator[End]:
    """Yields the end of every job and direct execution that is still stored."""
    for statement, kind in (("rollups.ended_jobs", JOB), ("rollups.ended_direct", DIRECT)):
        page = tx.rows(statement, after="", limit=PAGE_ROWS)
        while page:
            yield from _ends(page, kind)
            page = tx.rows(statement, after=page[-1][0], limit=PAGE_ROWS) if len(page) == PAGE_ROWS else []


def _ends(rows: Iterable[Row], kind: str) -> Iterator[End]:
    for _, office_id, job_type, outcome, queued_at, scheduled_for, started_at, finished_at in rows:
        free_at = max(queued_at, scheduled_for or 0)
        yield ended(RollupKey(office_id, job_type, kind, outcome), free_at, started_at, finished_at)


def _rollup(row: Row) -> Rollup:
    at, office_id, job_type, kind, outcome, jobs, waits, durations = row
    totals = Totals(jobs)
    totals.waits.update(_histogram(waits))
    totals.durations.update(_histogram(durations))
    return Rollup(at, RollupKey(office_id, job_type, kind, outcome), totals)


def _histogram_text(histogram: dict[int, int]) -> str:
    return column_codec.dumps({str(bucket): jobs for bucket, jobs in sorted(histogram.items())})


def _histogram(text: str) -> dict[int, int]:
    return {int(bucket): jobs for bucket, jobs in column_codec.loads(text).items()}
