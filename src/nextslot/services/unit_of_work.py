"""Access: the one write path of the services to the store. Who asks is a value that each write is given."""

import copy
from dataclasses import dataclass, replace
from typing import TypeVar

from nextslot.domain import PYTHON, RequestContext
from nextslot.engine.settings.audit_log import AuditLog
from nextslot.engine.submit.idempotency import Once, at_most_once
from nextslot.errors import Draining, Unavailable
from nextslot.store.contract import Store, Tx, Work
from nextslot.system.clock import Clock
from nextslot.system.disk_space import DiskSpace
from nextslot.telemetry.tracing import Tracer

T = TypeVar("T")


@dataclass(slots=True)
class _Gate:
    """Whether the store can be reached now. All callers of one scheduler share it."""

    store: Store | None = None
    is_draining: bool = False
    # What keeps the scheduler from starting, in a sentence for callers.
    obstacle: str | None = None


class UnitOfWork:
    """The way of one caller to the store: `context` says who that is, and nothing else does.

    A write of a caller that has an actor is audited in its own transaction. So a service cannot change anything for an
    HTTP request without an entry in the audit log.
    """

    def __init__(
        self, clock: Clock, audit: AuditLog, tracer: Tracer | None = None, disk: DiskSpace | None = None
    ) -> None:
        self.clock = clock
        self.audit = audit
        self.disk = disk
        self.context = PYTHON
        self._tracer = tracer or Tracer()
        self._gate = _Gate()

    def for_caller(self, context: RequestContext) -> "UnitOfWork":
        """Returns the way to the same store for another caller."""
        other = copy.copy(self)
        other.context = context
        return other

    def with_key(self, idempotency_key: str | None) -> "UnitOfWork":
        """Returns the way of the same caller, for a request that has this idempotency key."""
        if idempotency_key is None:
            return self
        return self.for_caller(replace(self.context, idempotency_key=idempotency_key))

    # Whether the store can be reached.

    def open(self, store: Store) -> None:
        self._gate.store, self._gate.obstacle = store, None

    def close(self) -> None:
        self._gate.store = None

    @property
    def is_open(self) -> bool:
        return self._gate.store is not None

    @property
    def store(self) -> Store:
        if self._gate.store is None:
            if self._gate.obstacle is not None:
                raise Unavailable(self._gate.obstacle)
            raise Unavailable("this scheduler is not running: use `async with scheduler:` or `await scheduler.start()`")
        return self._gate.store

    @property
    def is_draining(self) -> bool:
        return self._gate.is_draining

    @is_draining.setter
    def is_draining(self, is_draining: bool) -> None:
        self._gate.is_draining = is_draining

    @property
    def obstacle(self) -> str | None:
        return self._gate.obstacle

    @obstacle.setter
    def obstacle(self, obstacle: str | None) -> None:
        self._gate.obstacle = obstacle

    # Reads and writes.

    async def read(self, work: Work[T]) -> T:
        return await self.store.read(work)

    async def write(self, work: Work[T], rows: int = 1) -> T:
        """Stores a change and who made it, in one transaction."""
        if self.context.is_read_only:
            raise TypeError("this request only reads: give its route another method, or a scope that may change things")
        return await self.store.write(self._tracer.carried(self._audited(work), self.context.trace), rows=rows)

    async def write_more(self, work: Work[T], rows: int = 1) -> T:
        """Goes on with a change of many steps, whose first step was audited."""
        return await self.store.write(work, rows=rows)

    async def create(self, work: Work[T], rows: int = 1, once: Once[T] | None = None) -> T:
        """Stores new work, which a scheduler that is stopping does not take.

        A request with an idempotency key that was carried out before raises `Replayed`, if the work says with `once`
        how to know it again.
        """
        if self._gate.is_draining:
            raise Draining("the scheduler is stopping and takes no new jobs")
        self.refuse_new_work()
        key = self.context.idempotency_key
        if once is not None and key is not None:
            work = at_most_once(work, once, key, self.clock)
        return await self.write(work, rows=rows)

    def refuse_new_work(self) -> None:
        """Raises if what is new could not be kept: the file is damaged, or the disk is nearly full."""
        if self.store.health.damage is not None:
            raise Unavailable(f"{self.store.health.damage}. Nothing new is taken until then")
        if self.disk is not None:
            self.disk.refuse_if_low()

    def _audited(self, work: Work[T]) -> Work[T]:
        def audited(tx: Tx) -> T:
            answer = work(tx)
            self.audit.note(tx, self.context.actor, self.clock.now())
            return answer

        return audited
