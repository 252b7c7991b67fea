"""Takes in what other programs have put into the inbox, as if each of them had submitted its job itself.

A scheduler calls it at its start; the cluster calls it when a program announces a request, and now and then.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import replace

from nextslot.domain import PYTHON, NewJob
from nextslot.engine.submit.inbox import Inbox
from nextslot.errors import Invalid, NextslotError, OverQuota, StoreError, Unavailable
from nextslot.store.tables import inbox
from nextslot.store.tables.inbox import Waiting

from . import arguments
from .unit_of_work import UnitOfWork

log = logging.getLogger(__name__)

# Requests that go into one transaction.
BATCH = 100
# What a request has of its own, or may not say.
_NOT_OPTIONS = ("job_type", "params", "key", "created_by", "schedule_id")


class InboxService:
    def __init__(self, access: UnitOfWork, inbox_: Inbox) -> None:
        self._access = access.for_caller(PYTHON)
        self._clock = access.clock
        self._inbox = inbox_

    async def look(self) -> None:
        """Takes in what waits, in its order. What cannot be taken now, such as over a quota or while the scheduler
        stops, stays and is tried again. A request that comes meanwhile is for the next look, which it announces: else
        programs that never pause would keep a start, and all other work of the cluster, waiting."""
        after = newest = ""
        while self._access.gate.store is not None and not self._access.gate.is_draining:
            newest = newest or await self._access.read(inbox.newest)
            page = await self._access.read(lambda tx, a=after, b=newest: inbox.page(tx, a, b, BATCH))  # type: ignore[misc]
            if not page:
                return
            after = page[-1].job_id
            if not await self._take_together(page):
                for one in page:
                    await self._take(one)

    async def _take_together(self, page: Sequence[Waiting]) -> bool:
        """Takes requests in by one transaction. Returns False if one of them cannot be carried out."""
        try:
            wanted = [(one, _request(one)) for one in page]
            await self._access.create(lambda tx: self._inbox.take_all(tx, wanted, self._clock.now()), len(page))
        except Exception:  # Which of them it is, and what it means, shows when each is taken alone.
            return False
        return True

    async def _is_behind(self, new: NewJob) -> bool:
        """Returns whether a request depends on one that is still in the inbox."""
        names = [one for one in new.depends_on if isinstance(one, str)] if isinstance(new.depends_on, list) else []
        return bool(names) and await self._access.read(lambda tx: any(inbox.waits(tx, one) for one in names))

    async def _take(self, one: Waiting) -> None:
        is_behind = False
        try:
            new = _request(one)
            # Reads the inbox first: a job that has left the inbox exists when the transaction below begins.
            is_behind = await self._is_behind(new)
            await self._access.create(lambda tx: self._inbox.take(tx, one, new, self._clock.now()))
        except (OverQuota, Unavailable, StoreError) as error:
            log.warning("a request for %s stays in the inbox for now: %s", one.job_type, error)
        except NextslotError as error:
            if is_behind:
                log.warning("a request for %s stays in the inbox for now: it depends on one that stays", one.job_type)
                return
            why = f"refused: {error}"
            log.warning("a request for %s, which %s has stored, is %s", one.job_type, one.sent_by, why)
            await self._access.write(lambda tx: self._inbox.refuse(tx, one, why, self._clock.now()))
        except Exception:  # A defect of ours must not keep the requests behind this one from becoming jobs.
            log.exception("a request for %s stays in the inbox", one.job_type)


def _request(one: Waiting) -> NewJob:
    options = json.loads(one.options)
    wrong = [name for name in _NOT_OPTIONS if name in options]
    if wrong:
        raise Invalid("cannot be an option of nextslot_enqueue; leave it out", field=wrong[0])
    new = arguments.new_job(job_type=one.job_type, params=json.loads(one.params), **options)
    return replace(new, created_by=one.sent_by)
