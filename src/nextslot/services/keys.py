"""API keys: makes, deletes, lists and finds them."""

from collections.abc import Sequence

from nextslot.domain import Json, Key, Page
from nextslot.engine.settings.key_ring import KeyRing, digest
from nextslot.engine.submit.idempotency import Once
from nextslot.store.contract import Tx
from nextslot.store.tables import keys

from .arguments import found
from .cursors import DEFAULT_LIMIT, read_page
from .unit_of_work import UnitOfWork


class KeyService:
    def __init__(self, access: UnitOfWork, ring: KeyRing) -> None:
        self._access = access
        self._ring = ring

    async def create(self, name: str, scopes: Sequence[str], office_id: str | None = None) -> tuple[Key, str]:
        """Makes a key; returns it with the text that its holder sends, which is not stored."""
        created_by = self._access.context.asked_by

        def work(tx: Tx) -> tuple[Key, str]:
            key, text = self._ring.create(tx, name, scopes, office_id, created_by, self._access.clock.now())
            self._access.audit.changed(tx, None, _shown(key))
            return key, text

        content = {"name": name, "scopes": scopes, "office_id": office_id}
        once: Once[tuple[Key, str]] = Once("keys", None, content, lambda made: [made[0].key_id])
        return await self._access.create(work, once=once)

    async def delete(self, key_id: str) -> None:
        def work(tx: Tx) -> None:
            self._access.audit.changed(tx, _shown(self._ring.delete(tx, key_id)), None)

        await self._access.write(work)

    async def get(self, key_id: str) -> Key:
        return found(await self._access.read(lambda tx: keys.get(tx, key_id)), "key", key_id)

    async def list(self, cursor: str | None = None, limit: int = DEFAULT_LIMIT) -> Page[Key]:
        """The newest first."""
        return await read_page(self._access, "keys", "~", cursor, limit, keys.page, "key_id")

    async def find(self, text: str) -> Key | None:
        """Finds a key by the digest of its text, so that no comparison takes longer for a text that is nearly right."""
        return await self._access.read(lambda tx: keys.by_digest(tx, digest(text)))

    async def is_guarded(self) -> bool:
        """Returns whether there is a key: from the first one on every caller needs one."""
        if self._ring.is_guarded is None:
            self._ring.is_guarded = await self._access.read(keys.has_admin)
        return self._ring.is_guarded


def _shown(key: Key) -> dict[str, Json]:
    return {"key_id": key.key_id, "name": key.name, "scope": key.scope, "office_id": key.office_id}
