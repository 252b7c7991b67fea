"""Legacy: the old endpoints' verbs on top of the queue (CON-004); `scheduler.legacy`. A chain is one old job."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nextslot.domain import (
    DEFAULT_OFFICE,
    DeliveryStatus,
    Group,
    GroupMode,
    Json,
    NewJob,
    OnFailure,
    RunStatus,
)
from nextslot.engine.finish.job_finisher import Cancelled, JobFinisher
from nextslot.engine.submit.idempotency import Once, Replayed
from nextslot.engine.submit.intake import Intake
from nextslot.errors import AlreadyFinished, Invalid, NotFound
from nextslot.executors.job_types import JobTypes
from nextslot.extensions.stories.similarity import KnownText, find_duplicate
from nextslot.services.arguments import found
from nextslot.services.unit_of_work import UnitOfWork
from nextslot.store.contract import Tx
from nextslot.store.tables import deliveries, groups

from . import legacy_table
from .old_words import (
    DedupCheck,
    OldBatch,
    OldJob,
    is_old,
    refusal,
)

# Of more research cards than this one is compared with the newest.
MOST_CARDS = 10_000
REASON = "cancelled through the old API"


class LegacyService:
    def __init__(self, access: UnitOfWork, job_types: JobTypes, intake: Intake, finisher: JobFinisher) -> None:
        self._access = access
        self._job_types = job_types
        self._intake = intake
        self._finisher = finisher

    async def trigger(self, wanted: NewJob) -> tuple[OldJob, bool]:
        """A job in the queue, and whether it is new."""

        def work(tx: Tx) -> tuple[OldJob, bool]:
            (accepted,) = self._intake.accept(tx, [wanted], self._access.clock.now())
            return found(legacy_table.old_job(tx, accepted.job.job_id), "job", accepted.job.job_id), accepted.is_new

        once: Once[tuple[OldJob, bool]] = Once("legacy", wanted.office_id, [wanted], lambda made: [made[0].root.job_id])
        try:
            return await self._access.create(work, once=once)
        except Replayed as known:
            return await self.job(known.ids[0]), False
        except Invalid as error:
            raise refusal(error) from None

    async def trigger_batch(
        self, wanted: Sequence[NewJob], webhook: Mapping[str, Json] | None
    ) -> tuple[OldBatch, bool]:
        """A parallel group whose members do not mind each other's failures: all of it, or nothing."""

        def work(tx: Tx) -> tuple[OldBatch, bool]:
            # Said of the type, where several jobs could only be called invalid.
            for new in wanted:
                self._job_types.get(new.job_type or "")
            group, accepted = self._intake.accept_group(
                tx,
                wanted,
                GroupMode.PARALLEL,
                OnFailure.CONTINUE,
                None,
                self._access.clock.now(),
                webhook,
            )
            return _batch(tx, group), accepted[0].is_new

        once: Once[tuple[OldBatch, bool]] = Once(
            "legacy_batch", DEFAULT_OFFICE, [*wanted, webhook], lambda made: [made[0].group.group_id]
        )
        try:
            return await self._access.create(work, len(wanted), once)
        except Replayed as known:
            return await self.batch(known.ids[0]), False
        except Invalid as error:
            raise refusal(error) from None

    async def job(self, job_id: str) -> OldJob:
        return await self._access.read(lambda tx: _job(tx, job_id))

    async def jobs(
        self, job_type: str | None = None, status: str | None = None, limit: int = 50
    ) -> tuple[list[OldJob], int]:
        """The newest first, and how many there are."""
        return await self._access.read(
            lambda tx: (legacy_table.page(tx, job_type, status, limit), legacy_table.total(tx, job_type, status))
        )

    async def running(self) -> list[OldJob]:
        return await self._access.read(legacy_table.running)

    async def batch(self, batch_id: str) -> OldBatch:
        def read(tx: Tx) -> OldBatch:
            group = groups.get(tx, batch_id)
            if group is None or group.office_id != DEFAULT_OFFICE:
                raise NotFound("batch", batch_id)
            batch = _batch(tx, group)
            if not all(is_old(one.root) for one in batch.members):
                raise NotFound("batch", batch_id)
            return batch

        return await self._access.read(read)

    async def cancel(self, job_id: str) -> tuple[OldJob, Cancelled | None]:
        """The last job of the chain is cancelled, or told to stop if it runs; None if the chain has ended."""

        def work(tx: Tx) -> tuple[OldJob, Cancelled | None]:
            old = _job(tx, job_id)
            try:
                done = self._finisher.cancel(tx, old.last.job_id, REASON, True, self._access.clock.now())
            except AlreadyFinished:
                return old, None
            return replace(old, last=done.job), done

        return await self._access.write(work)

    async def dedup_check(self, job_id: str) -> DedupCheck:
        """How much the card of a research job is like those that were completed before it."""

        def read(tx: Tx) -> tuple[OldJob, list[Json]]:
            old = _job(tx, job_id)
            before = old.last.finished_at if old.last.outcome is RunStatus.COMPLETED else None
            return old, [] if before is None else legacy_table.cards(tx, before, MOST_CARDS)

        old, earlier = await self._access.read(read)
        card = None if old.run is None else old.run.result
        if old.root.job_type != "research" or not _is_card(card):
            return DedupCheck(old)
        # Of thousands of cards this takes a while.
        return await asyncio.to_thread(_compared, old, card, [one for one in earlier if _is_card(one)])


def _job(tx: Tx, job_id: str) -> OldJob:
    old = legacy_table.old_job(tx, job_id)
    if old is None or not is_old(old.root):
        raise NotFound("job", job_id)
    return old


def _batch(tx: Tx, group: Group) -> OldBatch:
    webhook, delivery_id = groups.webhook(tx, group.group_id)
    delivery = None if delivery_id is None else deliveries.get(tx, delivery_id)
    is_sent = delivery is not None and delivery.status is DeliveryStatus.DELIVERED
    return OldBatch(group, legacy_table.members(tx, group.group_id), webhook, is_sent)


def _is_card(result: Json) -> bool:
    """Somebody may have a `research` of their own, whose results are not ours."""
    return isinstance(result, dict) and {"card_id", "metadata", "fingerprint", "sketch"} <= result.keys()


def _compared(old: OldJob, card: Json, earlier: Sequence[Json]) -> DedupCheck:
    known = [KnownText(one["fingerprint"], one["sketch"], one["card_id"]) for one in earlier]
    same = find_duplicate(card["fingerprint"], card["sketch"], known, threshold=0.0)
    path = next((one for one in old.artifacts if one.endswith(f"/{card['metadata']}")), None)
    if same is None:
        return DedupCheck(old, path, 0.0)
    return DedupCheck(old, path, round(same.similarity, 3), same.story_id)
