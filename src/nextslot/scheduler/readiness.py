"""Readiness: checks whether the scheduler accepts and runs jobs now, for `/ready`, `/api/status` and the metrics.

A write that succeeded in the last 30 seconds proves that the store can write; one that failed in the last five seconds
proves that the store cannot. Without such a write, the check itself writes one row. So an idle scheduler that nobody
checks writes nothing.
"""

import asyncio

from nextslot.errors import NextslotError
from nextslot.services.unit_of_work import STARTING, UnitOfWork
from nextslot.store.contract import Store
from nextslot.store.tables import nodes
from nextslot.system.disk_space import DiskSpace

# How long the write of the row may take before the check counts it as failed.
PROBE_SECONDS = 5


def in_words(microseconds: int) -> str:
    """Returns the rest of a grace time in words: in minutes, or below two minutes in seconds."""
    seconds = max(0, round(microseconds / 1_000_000))
    return f"{seconds // 60} minutes" if seconds >= 120 else f"{seconds} seconds"


class Readiness:
    def __init__(self, access: UnitOfWork, disk: DiskSpace, node_id: str) -> None:
        self._access = access
        self._disk = disk
        self._node_id = node_id
        self._probe: asyncio.Task[None] | None = None

    async def problem(self) -> str | None:
        """Returns what keeps the scheduler from accepting and running jobs; None if nothing does."""
        if self._access.gate.is_draining:
            at = self._access.gate.interrupts_at
            rest = (
                "" if at is None else f"; what still runs is interrupted in {in_words(at - self._access.clock.now())}"
            )
            return f"the scheduler is stopping: running work finishes, and no new jobs are taken{rest}"
        if self._access.gate.store is None:
            return self._access.gate.obstacle or STARTING
        store = self._access.store
        try:
            await store.read(lambda tx: None)
        except NextslotError as error:
            return store.health.damage or f"the store does not answer: {error}"
        if store.health.damage is not None:
            return f"{store.health.damage}. No job is started until then"
        return self._disk.refusal() or await self._not_storing(store)

    async def _not_storing(self, store: Store) -> str | None:
        health = store.health
        if not health.has_stored() and health.failure() is None:
            if self._probe is None:
                self._probe = asyncio.create_task(self._write(store), name="nextslot-probe")
            await asyncio.wait([self._probe], timeout=PROBE_SECONDS)
        if health.has_stored():
            return None
        why = health.failure() or f"a row was not stored within {PROBE_SECONDS} seconds"
        return f"the database stores nothing: {why}"

    async def _write(self, store: Store) -> None:
        """Writes one row, which answers all checks that wait meanwhile."""
        try:
            await store.write(lambda tx: nodes.touch(tx, self._node_id, self._access.clock.now()))
            store.health.stored()
        except NextslotError as error:
            store.health.failed(str(error))
        finally:
            self._probe = None
