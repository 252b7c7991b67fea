"""Deletes old history on request; the daily retention run needs no request."""

from nextslot.engine.retention import Keep, Purged, Retention

from .unit_of_work import UnitOfWork


class RetentionService:
    def __init__(self, access: UnitOfWork, retention: Retention) -> None:
        self._access = access
        self._retention = retention

    @property
    def keep(self) -> Keep:
        return self._retention.keep

    @keep.setter
    def keep(self, keep: Keep) -> None:
        self._retention.use(keep)

    async def purge(self, dry_run: bool = False) -> Purged:
        """Deletes history that is older than `keep` allows; `dry_run` only counts it."""
        if dry_run:
            return await self._access.read(self._retention.count)
        return await self._retention.purge(self._access.store)
