"""Offices: each has a queue, limits and defaults of its own; `scheduler.offices`. Jobs name theirs by `office_id`."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Unpack

from nextslot.client.keyword_arguments import OfficeOptions, QuotaChanges
from nextslot.domain import Office, Page, Quotas
from nextslot.engine.settings.office_settings import OfficeSettings
from nextslot.engine.submit.idempotency import Once
from nextslot.engine.submit.queue_order import QueueManager
from nextslot.errors import NotFound
from nextslot.store.contract import Tx
from nextslot.store.tables import offices
from nextslot.store.tables import quotas as quotas_table
from nextslot.system.randomness import Chance

from .cursors import DEFAULT_LIMIT, each, read_page
from .unit_of_work import UnitOfWork


class OfficeService:
    def __init__(self, access: UnitOfWork, chance: Chance, settings: OfficeSettings, queue: QueueManager) -> None:
        self._access = access
        self._chance = chance
        self._settings = settings
        self._queue = queue

    async def create(self, office_id: str | None = None, **settings: Unpack[OfficeOptions]) -> Office:
        """Creates an office. Missing settings get the defaults of spec 14.5, and a missing id is generated."""
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

    async def change(self, office_id: str, **settings: Unpack[OfficeOptions]) -> Office:
        """Changes settings of an office. `status` is `active`, `paused` (its queue is paused) or `archived`."""
        return await self.change_from(office_id, lambda before: settings)

    async def change_from(self, office_id: str, settings: Callable[[Office], Mapping[str, Any]]) -> Office:
        """Changes settings of an office to what a function returns for the stored office, inside the transaction."""

        def work(tx: Tx) -> Office:
            before = get_office(tx, office_id)
            is_paused, rest = _split_status(settings(before))
            self._settings.change(tx, office_id, rest)
            if is_paused is not None:
                move = self._queue.pause if is_paused else self._queue.resume
                move(tx, "office", office_id, self._access.clock.now())
            return self._changed(tx, before, office_id)

        return await self._access.write(work)

    async def quotas(self, office_id: str) -> Quotas:
        """Returns the quotas of an office."""
        await self.get(office_id)
        return self._access.quotas.of(office_id)

    async def used(self, office_id: str) -> dict[str, int | None]:
        """Returns how much of its quotas an office uses. `stored_bytes` is None while no office has a quota of
        bytes."""
        queued = await self._access.read(lambda tx: quotas_table.open_chains(tx, office_id))
        stored = await self._access.stored_bytes_of(office_id)
        return {"queued_jobs": queued, "stored_bytes": stored}

    async def grant(self, office_id: str, **quotas: Unpack[QuotaChanges]) -> Quotas:
        """Sets the quotas of an office, by the fields of `Quotas`; None restores the default."""

        def work(tx: Tx) -> Quotas:
            before, after = self._access.quotas.change(tx, office_id, quotas)
            self._access.audit.changed(tx, before.to_dict(), after.to_dict())
            return after

        return await self._access.write(work)

    def _changed(self, tx: Tx, before: Office | None, office_id: str) -> Office:
        return self._noted(tx, before, get_office(tx, office_id))

    def _noted(self, tx: Tx, before: Office | None, after: Office) -> Office:
        self._access.audit.changed(tx, None if before is None else before.to_dict(), after.to_dict())
        return after

    def set_by_file(self, office_id: str) -> list[str]:
        """Returns the names of an office's settings that only the configuration file can change."""
        return self._settings.set_by_file(office_id)

    async def get(self, office_id: str) -> Office:
        return await self._access.read(lambda tx: get_office(tx, office_id))

    def list(self) -> AsyncIterator[Office]:
        """Yields all offices, by id."""
        return each(self.page)

    async def page(self, limit: int = DEFAULT_LIMIT, cursor: str | None = None) -> Page[Office]:
        """Returns a page of all offices, by id."""
        return await read_page(self._access, "offices", "", cursor, limit, offices.page, "office_id")


def get_office(tx: Tx, office_id: str) -> Office:
    office = offices.get(tx, office_id)
    if office is None:
        raise NotFound("office", office_id)
    return office


def _split_status(settings: Mapping[str, Any]) -> tuple[bool | None, dict[str, Any]]:
    """Splits settings into whether to pause the office (None: unchanged) and the fields to store."""
    rest = dict(settings)
    status = rest.get("status")
    if status == "paused":
        rest["status"] = "active"
        return True, rest
    return (False if status == "active" else None), rest
