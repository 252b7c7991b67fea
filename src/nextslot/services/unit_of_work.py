"""The only path from the services to the store: admission of new work, idempotency, and the audit log."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from nextslot.domain import PYTHON, RequestContext
from nextslot.engine.dispatch.limits_and_slots import NewLanes
from nextslot.engine.settings.audit_log import AuditLog
from nextslot.engine.settings.office_quotas import OfficeQuotas
from nextslot.engine.settings.stored_bytes import StoredBytes
from nextslot.engine.submit.idempotency import Once, at_most_once
from nextslot.engine.submit.queue_order import NewWork
from nextslot.errors import Draining, Forbidden, Invalid, OverQuota, Unavailable
from nextslot.store.contract import Store, Tx, Work
from nextslot.store.group_commit import GROUP_ROWS
from nextslot.system.clock import Clock
from nextslot.system.disk_space import DiskSpace
from nextslot.system.instant import Instant
from nextslot.telemetry.tracing import Tracer

T = TypeVar("T")
S = TypeVar("S")

# The sentence that callers get until the scheduler has started; `/ready` shows it too.
STARTING = "the scheduler is starting: it repairs what the last process left"
# The sentence for a caller on another event loop, whose futures this scheduler's loop would never wake.
ELSEWHERE = (
    "this scheduler runs on another event loop, so this call might never return: make the handler an async function, "
    "or use asyncio.run_coroutine_threadsafe(…, loop).result() with the scheduler's loop"
)


@dataclass(slots=True)
class Gate:
    """Says whether callers can reach the store now. All callers of one scheduler share it."""

    # None until callers may use it, and after the scheduler has stopped.
    store: Store | None = None
    # The event loop of a scheduler that has started.
    loop: asyncio.AbstractEventLoop | None = None
    is_draining: bool = False
    # When a stopping scheduler interrupts the work that still runs.
    interrupts_at: Instant | None = None
    # What the start waits for, as a sentence for callers; None if no start has begun.
    obstacle: str | None = None

    @property
    def absence(self) -> str:
        """Returns why there is no store now, in a sentence for callers."""
        if self.is_draining:
            return "the scheduler has stopped"
        return (
            self.obstacle or "this scheduler is not running: use `async with scheduler:` or `await scheduler.start()`"
        )


class _Undone(Exception):
    """Raised inside a transaction to roll all of it back. `seen` is the result of the trial."""

    def __init__(self, seen: Any) -> None:
        self.seen = seen


class UnitOfWork:
    """Reads and writes for one caller, whom `context` names.

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
        self.gate = Gate()
        self.quotas = OfficeQuotas()
        # Set by the runtime, which knows the directory of the run files.
        self.stored: StoredBytes | None = None

    def for_caller(self, context: RequestContext) -> "UnitOfWork":
        """Returns a unit of work on the same store for another caller."""
        other = object.__new__(UnitOfWork)
        other.__dict__.update(self.__dict__)
        other.context = context
        return other

    def with_key(self, idempotency_key: str | None) -> "UnitOfWork":
        """Returns a unit of work of the same caller, for a request that has this idempotency key."""
        if idempotency_key is None:
            return self
        return self.for_caller(replace(self.context, idempotency_key=idempotency_key))

    @property
    def store(self) -> Store:
        gate = self.gate
        if gate.store is None:
            raise Unavailable(gate.absence)
        # Without a running loop nothing can wait for ever: a thread reads the store itself.
        if gate.loop is not None and asyncio._get_running_loop() not in (gate.loop, None):
            raise Invalid(ELSEWHERE)
        return gate.store

    async def read(self, work: Work[T], is_small: bool = False) -> T:
        return await self.store.read(work, is_small=is_small)

    async def write(self, work: Work[T], rows: int = 1) -> T:
        """Stores a change and who made it, in one transaction."""
        if self.context.is_read_only:
            raise TypeError("this request only reads: give its route another method, or a scope that may change things")
        try:
            return await self.store.write(self._tracer.carried(self._audited(work), self.context.trace), rows=rows)
        except OverQuota as error:
            # Counted here and not in the work, because the store may run a refused work a second time.
            self.quotas.refused[error.quota] += 1
            raise

    async def write_more(self, work: Work[T], rows: int = 1) -> T:
        """Stores a later step of a change whose first step was audited; it has no audit entry of its own."""
        return await self.store.write(work, rows=rows)

    async def create(self, work: Work[T], rows: int = 1, once: Once[T] | None = None) -> T:
        """Stores new work. A stopping scheduler refuses it.

        With `once`, a request whose idempotency key was used before raises `Replayed`.
        """
        await self._refuse_unless_open()
        self.refuse_many(rows)
        key = self.context.idempotency_key
        if once is not None and key is not None:
            work = at_most_once(work, once, key, self.clock)
        return await self.write(work, rows=rows)

    async def try_out(self, work: Work[T], look: Callable[[Tx, T], S]) -> S:
        """Runs a creation with all its checks, returns what `look` reads afterwards, and rolls everything back."""
        await self._refuse_unless_open()
        audited = self._audited(work)

        def undone(tx: Tx) -> None:
            raise _Undone(look(tx, audited(tx)))

        try:
            # Alone in its transaction: otherwise the rest of its group would have to run again.
            await self.store.write(undone, rows=GROUP_ROWS + 1)
        except _Undone as end:
            seen: S = end.seen
            return seen
        raise AssertionError("the transaction was rolled back")

    async def _refuse_unless_open(self) -> None:
        if self.gate.is_draining:
            raise Draining("the scheduler is stopping and takes no new jobs")
        self.refuse_new_work()
        if self.quotas.are_bytes_granted:
            await self._measure_stored()

    async def stored_bytes_of(self, office_id: str) -> int | None:
        """Returns how many bytes the logs and artifacts of an office have on this node; None if no office has a quota
        of them."""
        if not self.quotas.are_bytes_granted:
            return None
        await self._measure_stored()
        return self.quotas.stored_bytes.get(office_id, 0)

    async def _measure_stored(self) -> None:
        if self.stored is not None:
            await self.stored.refresh(self.store)
            self.quotas.stored_bytes = self.stored.of_offices

    def refuse_new_work(self) -> None:
        """Raises if the database is damaged or the disk nearly full: new work might be lost."""
        if self.store.health.damage is not None:
            raise Unavailable(f"{self.store.health.damage}. No new work is accepted until then")
        if self.disk is not None:
            self.disk.refuse_if_low()

    def refuse_many(self, jobs: int) -> None:
        """Raises if a request with an office's key concerns more jobs than its quota `batch_jobs` allows."""
        self.quotas.check_batch(self.context.office_id, jobs)

    def refuse_type(self, office_id: str, job_type: str) -> None:
        """Raises if the caller's key or office may not create jobs of a type, now or through a template or schedule."""
        allowed = self.context.job_types
        if allowed and job_type not in allowed:
            raise Forbidden(f"this key may not make jobs of the type {job_type!r}, only {', '.join(allowed)}")
        if (problem := self.quotas.type_problem(office_id, [job_type])) is not None:
            raise Forbidden(problem)

    def _audited(self, work: Work[T]) -> Work[T]:
        def audited(tx: Tx) -> T:
            is_counted = self.context.job_types or self.quotas.are_granted or self.quotas.are_classes_counted
            # Nothing is read before a work that may be refused before it has changed anything.
            before = len(tx.local(NewWork).created) if is_counted else 0
            answer = work(tx)
            created = tx.local(NewWork).created[before:]
            if self.context.job_types or self.quotas.are_granted:
                for one in created:
                    self.refuse_type(one.office_id, one.job_type)
                self.quotas.check_created(tx, created)
            new = tx.local(NewWork)
            named, new.own_resources = new.own_resources, []
            if named and self.context.office_id is not None:
                self.quotas.check_resources(named)
            if tx.local(NewLanes).new_classes or self.quotas.are_classes_counted:
                self.quotas.check_classes(tx, created, self.clock.now())
            self.audit.note(tx, self.context.actor, self.clock.now())
            return answer

        return audited
