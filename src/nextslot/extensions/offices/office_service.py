"""Offices: teams with their own jobs and settings, in the words of the office API; `scheduler.offices`."""

from collections.abc import Mapping, Sequence
from typing import Any

from nextslot.domain import Office, Page, json_form, request_checks
from nextslot.domain.filters import JobFilter
from nextslot.domain.job_lifecycle import Cancellation
from nextslot.engine.settings.office_settings import OfficeSettings
from nextslot.engine.submit.idempotency import Once, Replayed
from nextslot.engine.submit.queue_order import QueueManager
from nextslot.errors import Invalid
from nextslot.services import cursors
from nextslot.services.arguments import choice
from nextslot.services.bulk import BulkCancelled, BulkService, Counted
from nextslot.services.cursors import DEFAULT_LIMIT, checked_limit
from nextslot.services.unit_of_work import UnitOfWork
from nextslot.store.contract import Tx
from nextslot.store.tables import jobs, offices
from nextslot.system.randomness import Chance

from .office_jobs import (
    Filter,
    OfficeJobs,
    get_office,
    source_of,
    views,
)
from .office_words import (
    Execution,
    OfficeConfig,
    OfficeEvents,
    OfficeJob,
    OfficeJobStatus,
    OfficeStats,
    config_of,
    in_config_words,
    new_jobs,
    settings_of,
)


class OfficeService:
    def __init__(
        self,
        access: UnitOfWork,
        chance: Chance,
        settings: OfficeSettings,
        jobs: OfficeJobs,
        queue: QueueManager,
        bulk: BulkService,
    ) -> None:
        self._access = access
        self._chance = chance
        self._settings = settings
        self._jobs = jobs
        self._queue = queue
        self._bulk = bulk

    # The offices themselves.

    async def create(self, office_id: str | None = None, **settings: Any) -> Office:
        """A new office, with the defaults of spec 14.5 for what is not said; without an id, one is made for it."""
        chosen = self._chance.new_id() if office_id is None else office_id
        content = {**settings, "office_id": office_id}

        def work(tx: Tx) -> Office:
            is_paused, rest = _split_status(settings)
            now = self._access.clock.now()
            office = self._settings.create(tx, chosen, rest, now)
            if is_paused:
                self._queue.pause(tx, "office", chosen, now)
            return self._changed(tx, None, chosen) if is_paused else self._noted(tx, None, office)

        once: Once[Office] = Once("offices", None, content, lambda made: [made.office_id])
        return await self._access.create(work, once=once)

    async def change(self, office_id: str, **settings: Any) -> Office:
        """While everything runs; `status` is `active`, `paused` (the queue's pause) or `archived`."""

        def work(tx: Tx) -> Office:
            is_paused, rest = _split_status(settings)
            before = get_office(tx, office_id)
            self._settings.change(tx, office_id, rest)
            if is_paused is not None:
                move = self._queue.pause if is_paused else self._queue.resume
                move(tx, "office", office_id, self._access.clock.now())
            return self._changed(tx, before, office_id)

        return await self._access.write(work)

    def _changed(self, tx: Tx, before: Office | None, office_id: str) -> Office:
        return self._noted(tx, before, get_office(tx, office_id))

    def _noted(self, tx: Tx, before: Office | None, after: Office) -> Office:
        self._access.audit.changed(tx, None if before is None else json_form.office(before), json_form.office(after))
        return after

    async def get(self, office_id: str) -> Office:
        return await self._access.read(lambda tx: get_office(tx, office_id))

    async def list(self, cursor: str | None = None, limit: int = DEFAULT_LIMIT) -> Page[Office]:
        """All of them, by their ids."""
        checked_limit(limit)
        (after,) = cursors.decode("offices", cursor, (str,)) or ("",)
        found = await self._access.read(lambda tx: offices.page(tx, str(after), limit + 1))
        return cursors.page_of("offices", found, limit, lambda office: (office.office_id,))

    # Their jobs.

    async def submit(
        self,
        office_id: str,
        jobs: Sequence[Mapping[str, Any]],
        task_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> "list_[OfficeJob]":
        """A graph of jobs in one transaction, all or none; they depend on each other by `key`, on others by id.

        Each has `description`, `role`, and optionally `key`, `priority` (the lower the sooner), `depends_on`,
        `timeout_ms`, `params`, `urgent` and `job_type`.
        """
        return (await self.accept(office_id, jobs, task_id, idempotency_key))[0]

    async def accept(
        self,
        office_id: str,
        jobs: Sequence[Mapping[str, Any]],
        task_id: str | None = None,
        idempotency_key: str | None = None,
        created_by: str | None = None,
    ) -> "tuple[list_[OfficeJob], bool]":
        """As `submit`, but says whether they are new or were there already."""
        wanted = new_jobs(office_id, jobs, task_id, created_by)

        def work(tx: Tx) -> tuple[list_[OfficeJob], bool]:
            get_office(tx, office_id)
            return self._jobs.submit(tx, wanted, self._access.clock.now())

        once: Once[tuple[list_[OfficeJob], bool]] = Once("office_jobs", office_id, wanted, _ids_of)
        try:
            return await self._access.with_key(idempotency_key).create(work, max(len(wanted), 1), once)
        except Replayed as known:
            ids = list_(known.ids)
            return await self._access.read(lambda tx: views(tx, ids)), False

    async def jobs(
        self,
        office_id: str,
        status: OfficeJobStatus | str | None = None,
        role: str | None = None,
        task_id: str | None = None,
        cursor: str | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> Page[OfficeJob]:
        """Those that match. A page may have fewer than `limit`, or none, and still not be the last."""
        checked_limit(limit)
        wanted = Filter(None if status is None else choice(OfficeJobStatus, status, "status"), role, task_id)
        source = source_of(wanted)
        after = cursors.decode(source.name, cursor, source.shape)
        found, goes_on = await self._access.read(lambda tx: self._jobs.page(tx, office_id, wanted, after, limit))
        return Page(tuple(found), cursors.encode(source.name, goes_on))

    async def job(self, office_id: str, job_id: str) -> OfficeJob:
        return await self._access.read(lambda tx: self._jobs.get(tx, office_id, job_id))

    async def executions(self, office_id: str, job_id: str) -> tuple[Execution, ...]:
        """Each attempt, from the first on."""
        return (await self.job(office_id, job_id)).executions

    async def retry(self, office_id: str, job_id: str) -> OfficeJob:
        """A job that failed, again, also after its retries are spent; one that waits to be retried goes now."""
        return await self._access.create(lambda tx: self._jobs.retry(tx, office_id, job_id, self._access.clock.now()))

    async def cancel(
        self, office_id: str, job_id: str, reason: str | None = None, interrupt: bool | None = None
    ) -> tuple[OfficeJob, Cancellation]:
        """The job as it is now, and whether it is cancelled, was told to stop, or will finish first."""
        return await self._access.write(
            lambda tx: self._jobs.cancel(tx, office_id, job_id, _reason(reason), interrupt, self._access.clock.now())
        )

    async def cancel_all(
        self, office_id: str, task_id: str | None = None, include_running: bool = True, reason: str | None = None
    ) -> BulkCancelled:
        """Everything that has not ended, of the office or of one of its tasks; running jobs are told to stop.

        In small steps, so that a large office does not hold up the others (US-JS06).
        """
        await self.get(office_id)
        wanted = JobFilter(office_id=office_id, task_id=() if task_id is None else task_id)
        done = await self._bulk.cancel(wanted, include_running=include_running, reason=reason)
        return await self._access.read(lambda tx: _by_chain(tx, done))

    async def change_priority(
        self, office_id: str, job_id: str, priority: int | None = None, urgent: bool | None = None
    ) -> OfficeJob:
        return await self._access.write(
            lambda tx: self._jobs.change_priority(tx, office_id, job_id, priority, urgent, self._access.clock.now())
        )

    # Its scheduler, as the office API calls it.

    async def stats(self, office_id: str) -> OfficeStats:
        """Right at every moment, at a cost that does not grow with the number of jobs."""
        return await self._access.read(lambda tx: self._jobs.stats(tx, office_id))

    async def config(self, office_id: str) -> OfficeConfig:
        return config_of(await self.get(office_id))

    async def change_config(self, office_id: str, changes: Mapping[str, Any]) -> OfficeConfig:
        """Change settings by their names in the office API, times in milliseconds. A lower limit stops no job."""
        settings = settings_of(changes)
        try:
            return config_of(await self.change(office_id, **settings))
        except Invalid as error:
            raise in_config_words(error) from error

    async def process(self, office_id: str) -> "list_[OfficeJob]":
        """Looks at the office's queue, and answers what that started: nothing, unless something changed unseen."""
        started = await self._access.write(lambda tx: self._jobs.process(tx, office_id))
        job_ids = [claim.job_id for claim in started.claims if claim.office_id == office_id]
        return await self._access.read(lambda tx: _views_of(tx, job_ids))

    async def events(
        self, office_id: str, after: int = 0, cursor: str | None = None, limit: int = DEFAULT_LIMIT
    ) -> OfficeEvents:
        """After a number, oldest first, by the jobs' ids; a cursor goes on where its page ended, and `after` is then
        not used."""
        checked_limit(limit)
        (start,) = cursors.decode("office_events", cursor, (int,)) or (after,)
        found, last, has_more = await self._access.read(lambda tx: self._jobs.events(tx, office_id, int(start), limit))
        next_cursor = cursors.encode("office_events", (last,) if has_more else None)
        return OfficeEvents(items=tuple(found), next_cursor=next_cursor, next_after=last)


# Inside the class above, `list` is its method.
list_ = list


def _ids_of(made: tuple[list[OfficeJob], bool]) -> list[str]:
    return [one.job_id for one in made[0]]


def _views_of(tx: Tx, job_ids: Sequence[str]) -> list[OfficeJob]:
    chains = jobs.chains(tx, job_ids)
    return views(tx, [chains[job_id][0] for job_id in job_ids])


def _by_chain(tx: Tx, done: BulkCancelled) -> BulkCancelled:
    """The same, by the ids of the office's jobs."""
    counts = (done.cancelled, done.stopping, done.finishing)
    chains = jobs.chains(tx, [job_id for counted in counts for job_id in counted.ids])
    return BulkCancelled(*(Counted(one.count, tuple(chains[job_id][0] for job_id in one.ids)) for one in counts))


def _split_status(settings: Mapping[str, Any]) -> tuple[bool | None, dict[str, Any]]:
    """Whether the office is to be paused, if that is said, and the rest as the settings are stored."""
    rest = dict(settings)
    status = rest.get("status")
    if status == "paused":
        rest["status"] = "active"
        return True, rest
    return (False if status == "active" else None), rest


def _reason(reason: str | None) -> str | None:
    problems = [] if reason is None else list(request_checks.text_problems("reason", reason))
    if problems:
        raise Invalid(problems)
    return reason
