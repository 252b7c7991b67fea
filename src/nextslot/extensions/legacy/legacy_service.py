"""The methods behind the old endpoints (CON-004). A chain is one old job."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from nextslot.domain import (
    DEFAULT_OFFICE,
    DeliveryStatus,
    Group,
    GroupMode,
    Json,
    NewGroup,
    NewJob,
    OnFailure,
    RunStatus,
)
from nextslot.errors import AlreadyFinished, Invalid, NotFound, Unavailable
from nextslot.extension_api import Attached, Counters
from nextslot.extension_api.host import Cancelled, Host, Once, Replayed, Tx
from nextslot.extension_api.tables import deliveries, groups
from nextslot.services.arguments import found

from . import legacy_table
from .messages import OldMessages
from .old_words import FORMAT, DedupCheck, OldBatch, OldJob, is_old, refusal

# A card is compared with at most so many earlier ones, the newest.
MOST_CARDS = 10_000
REASON = "cancelled through the old API"


@runtime_checkable
class ComparesCards(Protocol):
    """The part of the extension `stories` that compares cards, if that extension is enabled."""

    def most_similar_card(self, card: Mapping[str, Json], earlier: Sequence[Json]) -> tuple[str, float] | None: ...


class LegacyService(Attached):
    def __init__(self, host: Host) -> None:
        super().__init__(host)
        host.webhooks.add_format(FORMAT, OldMessages())
        # How often each old endpoint was called.
        self.calls: Counter[str] = Counter()

    def wrap(self, app: Any, root_path: str) -> Any:
        from .routes import Deprecated

        return Deprecated(app, root_path, self.calls)

    def counters(self) -> Iterable[Counters]:
        calls: dict[tuple[str, ...], float] = {(route,): count for route, count in self.calls.items()}
        return [("nextslot_legacy_requests", "Calls of the old endpoints.", ("route",), calls)]

    async def notes(self, jobs: Iterable[OldJob]) -> list[str]:
        """Returns the notes of the job types of new jobs for their caller, without the full stops at their ends."""
        firsts = {one.root.job_type: one.root for one in jobs}
        found = [await self.host.job_types.note(job.job_type, job.params) for job in firsts.values()]
        return list(dict.fromkeys(note.removesuffix(".") for note in found if note is not None))

    async def trigger(self, wanted: NewJob) -> tuple[OldJob, bool]:
        """Submits a job; returns it, and whether it is new."""

        def work(tx: Tx) -> tuple[OldJob, bool]:
            (accepted,) = self.host.intake.accept(tx, [wanted], self.host.work.clock.now())
            return found(legacy_table.old_job(tx, accepted.job.job_id), "job", accepted.job.job_id), accepted.is_new

        once: Once[tuple[OldJob, bool]] = Once("legacy", wanted.office_id, [wanted], lambda made: [made[0].root.job_id])
        try:
            return await self.host.work.create(work, once=once)
        except Replayed as known:
            return await self.job(known.ids[0]), False
        except Invalid as error:
            raise refusal(error) from None

    async def trigger_batch(
        self, wanted: Sequence[NewJob], webhook: Mapping[str, Json] | None
    ) -> tuple[OldBatch, bool]:
        """Submits a parallel group whose other members go on when one fails; all of it, or nothing."""

        def work(tx: Tx) -> tuple[OldBatch, bool]:
            # An unknown type has an error code of its own, which the error about several jobs does not have.
            for new in wanted:
                self.host.job_types.get(new.job_type or "")
            batch = NewGroup(jobs=wanted, mode=GroupMode.PARALLEL, on_failure=OnFailure.CONTINUE, webhook=webhook)
            group, accepted = self.host.intake.accept_group(tx, batch, self.host.work.clock.now())
            return _batch(tx, group), accepted[0].is_new

        once: Once[tuple[OldBatch, bool]] = Once(
            "legacy_batch", DEFAULT_OFFICE, [*wanted, webhook], lambda made: [made[0].group.group_id]
        )
        try:
            return await self.host.work.create(work, len(wanted), once)
        except Replayed as known:
            return await self.batch(known.ids[0]), False
        except Invalid as error:
            raise refusal(error) from None

    async def job(self, job_id: str) -> OldJob:
        return await self.host.work.read(lambda tx: _job(tx, job_id))

    async def jobs(
        self, job_type: str | None = None, status: str | None = None, limit: int = 50
    ) -> tuple[list[OldJob], int]:
        """Lists jobs, the newest first; returns also how many there are."""
        return await self.host.work.read(
            lambda tx: (legacy_table.page(tx, job_type, status, limit), legacy_table.total(tx, job_type, status))
        )

    async def running(self) -> list[OldJob]:
        return await self.host.work.read(legacy_table.running)

    async def batch(self, batch_id: str) -> OldBatch:
        def read(tx: Tx) -> OldBatch:
            group = groups.get(tx, batch_id)
            if group is None or group.office_id != DEFAULT_OFFICE:
                raise NotFound("batch", batch_id)
            batch = _batch(tx, group)
            if not all(is_old(one.root) for one in batch.members):
                raise NotFound("batch", batch_id)
            return batch

        return await self.host.work.read(read)

    async def cancel(self, job_id: str) -> tuple[OldJob, Cancelled | None]:
        """Cancels the last job of the chain, or interrupts it if it runs; None if the chain has ended."""

        def work(tx: Tx) -> tuple[OldJob, Cancelled | None]:
            old = _job(tx, job_id)
            try:
                done = self.host.finisher.cancel(tx, old.last.job_id, REASON, True, self.host.work.clock.now())
            except AlreadyFinished:
                return old, None
            return replace(old, last=done.job), done

        return await self.host.work.write(work)

    async def dedup_check(self, job_id: str) -> DedupCheck:
        """Compares the card of a research job with those that were completed before it."""

        def read(tx: Tx) -> tuple[OldJob, list[Json]]:
            old = _job(tx, job_id)
            before = old.last.finished_at if old.last.outcome is RunStatus.COMPLETED else None
            return old, [] if before is None else legacy_table.cards(tx, old.root.office_id, before, MOST_CARDS)

        old, earlier = await self.host.work.read(read)
        card = None if old.run is None else old.run.result
        if old.root.job_type != "research" or not _is_card(card):
            return DedupCheck(old)
        stories = self.host.find("stories")
        if not isinstance(stories, ComparesCards):
            raise Unavailable("the extension 'stories' is off: it compares research cards")
        # In a thread: with thousands of cards this takes a while.
        cards = [one for one in earlier if _is_card(one)]
        same = await asyncio.to_thread(stories.most_similar_card, card, cards)
        return _compared(old, card, same)


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
    """Returns whether a result is a research card: users may have a job type `research` of their own."""
    return isinstance(result, dict) and {"card_id", "metadata", "fingerprint", "sketch"} <= result.keys()


def _compared(old: OldJob, card: Json, same: tuple[str, float] | None) -> DedupCheck:
    path = next((one for one in old.artifacts if one.endswith(f"/{card['metadata']}")), None)
    if same is None:
        return DedupCheck(old, path, 0.0)
    card_id, score = same
    return DedupCheck(old, path, round(score, 3), card_id)
