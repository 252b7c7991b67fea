"""StoredBytes: how many bytes the logs and artifacts of each office occupy on the disk of this node (spec 18.11).

It measures when an office with such a quota creates something, at most once a minute. Nothing polls.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping

from nextslot.executors.run_files import RunFiles
from nextslot.executors.threads import Threads
from nextslot.store.contract import Store
from nextslot.store.tables import quotas
from nextslot.system.clock import Clock
from nextslot.system.instant import Instant

# How long a measurement is used: at least a minute, and for a slow one this many times its own duration.
HOLDS_SECONDS = 60.0
TIMES_ITS_DURATION = 20
# How many runs are looked up in one read.
ROWS = 500


class StoredBytes:
    def __init__(self, clock: Clock, files: RunFiles, threads: Threads) -> None:
        self._clock = clock
        self._files = files
        self._threads = threads
        self.of_offices: Mapping[str, int] = {}
        self._holds_until: Instant | None = None
        self._measuring: asyncio.Task[None] | None = None

    async def refresh(self, store: Store) -> None:
        """Measures again if the last measurement is old. Callers wait only for the first measurement."""
        if self._holds_until is not None and self._clock.now() < self._holds_until:
            return
        if self._measuring is None or self._measuring.done():
            self._measuring = asyncio.create_task(self._measure(store), name="nextslot-stored-bytes")
        if self._holds_until is None:
            await asyncio.wait([self._measuring])

    async def _measure(self, store: Store) -> None:
        began = self._clock.now()
        sizes = await self._threads.run(self._files.sizes)
        found: Counter[str] = Counter()
        run_ids = list(sizes)
        for at in range(0, len(run_ids), ROWS):
            part = run_ids[at : at + ROWS]
            for run_id, office_id in (await store.read(lambda tx, p=part: quotas.offices_of(tx, p))).items():  # type: ignore[misc]
                found[office_id] += sizes[run_id]
        self.of_offices = found
        now = self._clock.now()
        took = (now - began) / 1_000_000
        self._holds_until = now.after(max(HOLDS_SECONDS, TIMES_ITS_DURATION * took))
