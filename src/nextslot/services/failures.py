"""Failures by fingerprint: counted over a range, muted, and noted. `bulk.retry` retries those of a fingerprint."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Unpack

from nextslot.client.keyword_arguments import FailureChanges
from nextslot.domain.bounds import MAX_TEXT, text_problem
from nextslot.domain.filters import JobFilter
from nextslot.domain.fingerprints import Failure, FailurePage
from nextslot.domain.rollups import DAY, FAILURES_KEPT_SECONDS, HOUR, SECOND, floor
from nextslot.errors import Invalid
from nextslot.store.contract import Tx
from nextslot.store.tables import failures
from nextslot.system.instant import Instant

from . import cursors
from .arguments import found, instant
from .unit_of_work import UnitOfWork

DEFAULT_LIMIT, MOST = 25, 100
# The parts of a range have one of these lengths, in hours, so that there are at most MOST_BUCKETS.
WIDTHS = (1, 2, 3, 4, 6, 8, 12, 24, 48, 72, 96)
MOST_BUCKETS = 30
KEPT_DAYS = FAILURES_KEPT_SECONDS // DAY


class FailureService:
    def __init__(self, access: UnitOfWork) -> None:
        self._access = access

    async def list(
        self,
        since: Instant | datetime | None = None,
        until: Instant | datetime | None = None,
        *,
        office_id: str | Sequence[str] = (),
        job_type: str | Sequence[str] = (),
        fingerprint: str | Sequence[str] = (),
        muted: bool | None = None,
        cursor: str | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> FailurePage:
        """Returns the failures that were seen in a range, the last seen first, each with how many there were.

        The range begins and ends at whole hours; by default it is the last day. `muted` is whether muted ones are
        wanted; None: both. Its cost depends on the range and the page, not on how many jobs have failed.
        """
        # The same checks, with the same sentences, as for jobs.
        wanted = JobFilter(office_id=office_id, job_type=job_type, fingerprint=fingerprint)
        after = cursors.decode("failures", cursor, (int, str))
        cursors.checked_limit(limit)
        if limit > MOST:
            raise Invalid(f"is {limit}; it must be at most {MOST}", "limit")
        begin, end, width = _range(instant(since, "since"), instant(until, "until"), self._access.clock.now())

        def read(tx: Tx) -> FailurePage:
            span = (Instant(begin), Instant(end))
            of = (tuple(wanted.office_id), tuple(wanted.fingerprint), tuple(wanted.job_type))
            some, next_ = failures.page(tx, *of, muted, span, after, limit)
            buckets = (end - begin) // (width * SECOND)
            items = failures.counted(tx, some, span, width * SECOND, buckets)
            return FailurePage(tuple(items), cursors.encode("failures", next_), *span, width)

        return await self._access.read(read)

    async def get(self, fingerprint: str) -> Failure:
        """Returns what is known of a fingerprint, without counts."""
        return await self._access.read(
            lambda tx: found(failures.get(tx, fingerprint), "failure", fingerprint), is_small=True
        )

    async def change(self, fingerprint: str, **changes: Unpack[FailureChanges]) -> Failure:
        """Changes `muted` and `note` of a fingerprint; what is not given stays, and the note None removes it."""
        if unknown := sorted(set(changes) - {"muted", "note"}):
            raise Invalid("cannot be changed; only muted and note can", unknown[0])
        if type(changes.get("muted", False)) is not bool:
            raise Invalid("must be true or false", "muted")
        note = changes.get("note")
        if note is not None and (problem := text_problem(note, MAX_TEXT)) is not None:
            raise Invalid(problem, "note")

        def work(tx: Tx) -> Failure:
            before = found(failures.get(tx, fingerprint), "failure", fingerprint)
            after = before._replace(**changes)
            failures.change(tx, fingerprint, after.muted, after.note)
            self._access.audit.changed(tx, _settings(before), _settings(after))
            return after

        return await self._access.write(work)


def _settings(failure: Failure) -> dict[str, Any]:
    return {"office_id": failure.office_id, "message": failure.message, "muted": failure.muted, "note": failure.note}


def _range(since: Instant | None, until: Instant | None, now: Instant) -> tuple[int, int, int]:
    """Returns the beginning and the end of a range, and the length of its parts in seconds; or refuses it."""
    hour = HOUR * SECOND
    last = now if until is None or until > now else until
    end = floor(last, HOUR) + hour
    begin = end - DAY * SECOND if since is None else floor(since, HOUR)
    if begin < 0:
        raise Invalid("must not be before 1970", "since")
    if since is not None and since >= last:
        raise Invalid("must be before `until`, and before now", "since")
    if end - begin > (FAILURES_KEPT_SECONDS + HOUR) * SECOND:
        raise Invalid(f"is more than {KEPT_DAYS} days before `until`; failures are kept for {KEPT_DAYS} days", "since")
    hours = (end - begin) // hour
    width = next(one for one in WIDTHS if -(-hours // one) <= MOST_BUCKETS)
    return end - -(-hours // width) * width * hour, end, width * HOUR
