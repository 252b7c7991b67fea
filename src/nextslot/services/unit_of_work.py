"""Access: how a scheduler and its faces reach the store while it runs; who asked is written down with the change."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

from nextslot.domain import Actor
from nextslot.engine.settings.audit_log import AuditLog
from nextslot.engine.submit.idempotency import (
    Once,
    Replayed,
    remember,
    replay,
)
from nextslot.errors import Draining, Unavailable
from nextslot.store.contract import Store, Tx, Work
from nextslot.system.clock import Clock
from nextslot.telemetry.tracing import Tracer, Untraced

T = TypeVar("T")

# Who a change is made for: set by the HTTP layer for the time of a request. Python callers are not audited.
actor: ContextVar[Actor | None] = ContextVar("actor", default=None)
# The creating request that is being carried out, if its sender gave it an idempotency key.
once: ContextVar[Once | None] = ContextVar("once", default=None)


def asked_by() -> str | None:
    """Who asks. Call it before a work is handed in: a work shares its transaction with those of other callers."""
    who = actor.get()
    return None if who is None else who.name


class UnitOfWork:
    def __init__(
        self,
        clock: Clock,
        audit: AuditLog,
        tracer: Tracer | None = None,
        refuse_if_low: Callable[[], None] = lambda: None,
    ) -> None:
        """`refuse_if_low` raises while the disk has no room for new work."""
        self.clock = clock
        self._tracer = tracer or Untraced()
        self.is_draining = False
        # What keeps the scheduler from starting, in a sentence for callers.
        self.obstacle: str | None = None
        self._audit = audit
        self._refuse_if_low = refuse_if_low
        self._store: Store | None = None

    def open(self, store: Store) -> None:
        self._store, self.obstacle = store, None

    def close(self) -> None:
        self._store = None

    @property
    def is_open(self) -> bool:
        return self._store is not None

    @property
    def store(self) -> Store:
        if self._store is None:
            if self.obstacle is not None:
                raise Unavailable(self.obstacle)
            raise Unavailable("this scheduler is not running: use `async with scheduler:` or `await scheduler.start()`")
        return self._store

    async def read(self, work: Work[T]) -> T:
        return await self.store.read(work)

    async def write(self, work: Work[T], rows: int = 1) -> T:
        return await self.store.write(self._tracer.carried(self._audited(work)), rows=rows)

    async def create(self, work: Work[T], rows: int = 1) -> T:
        """A write that brings new work in, which a scheduler that is stopping does not take."""
        if self.is_draining:
            raise Draining("the scheduler is stopping and takes no new jobs")
        self.refuse_new_work()
        return await self.write(self._once(work), rows=rows)

    def refuse_new_work(self) -> None:
        """Raises if what is new could not be kept: the file is damaged, or the disk is nearly full."""
        if self.store.health.damage is not None:
            raise Unavailable(f"{self.store.health.damage}. Nothing new is taken until then")
        self._refuse_if_low()

    def _once(self, work: Work[T]) -> Work[T]:
        request = once.get()
        if request is None:
            return work

        def at_most_once(tx: Tx) -> T:
            sent = (request.office_id, request.route, request.key, request.digest)
            known = replay(tx, *sent, self.clock.now())
            if known is not None:
                raise Replayed(known)
            answer = work(tx)
            remember(tx, *sent, [request.id_of(answer)], self.clock.now())
            return answer

        return at_most_once

    def _audited(self, work: Work[T]) -> Work[T]:
        who = actor.get()

        def audited(tx: Tx) -> T:
            answer = work(tx)
            self._audit.note(tx, who, self.clock.now())
            return answer

        return audited
