"""API keys: makes, deletes, lists and finds them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import datetime

from nextslot.domain import Json, Key, NewKey, Page
from nextslot.engine.settings.key_ring import KeyRing, digest
from nextslot.engine.submit.idempotency import Once
from nextslot.errors import Unavailable
from nextslot.store.contract import Tx
from nextslot.store.tables import keys
from nextslot.system.instant import Instant

from .arguments import found, instant
from .cursors import DEFAULT_LIMIT, each, read_page
from .unit_of_work import UnitOfWork

NOTED_EVERY_SECONDS = 60.0


class KeyService:
    def __init__(self, access: UnitOfWork, ring: KeyRing) -> None:
        self._access = access
        self._ring = ring
        # When the use of each key was last stored, and the tasks that are storing one.
        self._noted: dict[str, Instant] = {}
        self._notes: set[asyncio.Task[None]] = set()

    async def create(
        self,
        name: str,
        scopes: Sequence[str],
        office_id: str | None = None,
        *,
        expires_at: Instant | datetime | None = None,
        allowed_addresses: Sequence[str] = (),
        job_types: Sequence[str] = (),
    ) -> tuple[Key, str]:
        """Creates a key. Returns it with its text, which is not stored.

        The key is valid until `expires_at`, from its allowed addresses only, and creates jobs of its types only.
        """
        created_by = self._access.context.asked_by
        wanted = NewKey(
            name=name,
            scopes=tuple(scopes),
            office_id=office_id,
            expires_at=instant(expires_at, "expires_at"),
            allowed_addresses=tuple(allowed_addresses),
            job_types=tuple(job_types),
        )

        def work(tx: Tx) -> tuple[Key, str]:
            key, text = self._ring.create(tx, wanted, created_by, self._access.clock.now())
            self._access.audit.changed(tx, None, _shown(key))
            return key, text

        once: Once[tuple[Key, str]] = Once("keys", None, wanted, lambda made: [made[0].key_id])
        return await self._access.create(work, once=once)

    async def rotate(self, key_id: str, overlap_seconds: float = 0.0) -> tuple[Key, str]:
        """Gives a key a new text, which is not stored. The old text stays valid for `overlap_seconds`."""

        def work(tx: Tx) -> tuple[Key, str]:
            before = found(keys.get(tx, key_id), "key", key_id)
            key, text = self._ring.rotate(tx, key_id, overlap_seconds, self._access.clock.now())
            self._access.audit.changed(tx, _shown(before), _shown(key))
            return key, text

        return await self._access.write(work)

    async def delete(self, key_id: str) -> None:
        def work(tx: Tx) -> None:
            self._access.audit.changed(tx, _shown(self._ring.delete(tx, key_id)), None)

        await self._access.write(work)

    async def get(self, key_id: str) -> Key:
        return found(await self._access.read(lambda tx: keys.get(tx, key_id)), "key", key_id)

    def list(self) -> AsyncIterator[Key]:
        """Yields keys, the newest first."""
        return each(self.page)

    async def page(self, limit: int = DEFAULT_LIMIT, cursor: str | None = None) -> Page[Key]:
        """Returns a page of keys, the newest first."""
        return await read_page(self._access, "keys", "~", cursor, limit, keys.page, "key_id")

    async def find(self, text: str) -> Key | None:
        """Finds a key by the digest of its text, so that the time of the comparison does not show how much of a guess
        is right."""
        return next(iter((await self.find_all([digest(text)])).values()), None)

    async def find_all(self, digests: Sequence[str]) -> dict[str, Key]:
        """Finds keys by the digests of their texts, with one read."""
        now = self._access.clock.now()
        return await self._access.read(lambda tx: keys.by_digest(tx, digests, now))

    async def opens(self, text: str) -> bool:
        """Returns whether a key with this text exists and has not expired."""
        key = await self.find(text)
        return key is not None and (key.expires_at is None or key.expires_at > self._access.clock.now())

    def watch(self, check_again: Callable[[], None]) -> Callable[[], None]:
        """Calls the function when a key has ended on this node, until the returned function is called."""
        self._ring.watchers.add(check_again)
        return lambda: self._ring.watchers.discard(check_again)

    def now(self) -> Instant:
        return self._access.clock.now()

    def note_use_soon(self, key: Key) -> None:
        """Starts a task that stores that a key was used now, unless a use was stored less than a minute ago."""
        now, last = self.now(), self._noted.get(key.key_id, key.last_used_at)
        if last is None or last.after(NOTED_EVERY_SECONDS) <= now:
            self._noted[key.key_id] = now
            task = asyncio.get_running_loop().create_task(self._note_use(key.key_id, now), name="nextslot-key-use")
            self._notes.add(task)
            task.add_done_callback(self._notes.discard)

    async def _note_use(self, key_id: str, now: Instant) -> None:
        with suppress(Unavailable):  # The request itself reports the problem.
            await self._access.write_more(lambda tx: keys.note_use(tx, key_id, now))

    async def is_guarded(self) -> bool:
        """Returns whether any key exists: as soon as one does, every caller needs a key."""
        if self._ring.is_guarded is None:
            self._ring.is_guarded = await self._access.read(keys.has_admin)
        return self._ring.is_guarded


def _shown(key: Key) -> dict[str, Json]:
    shown = {name: value for name, value in key.to_dict().items() if name not in ("scopes", "last_used_at")}
    return {**shown, "scope": key.scope}
