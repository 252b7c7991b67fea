"""Inbox: makes jobs of the requests that other programs stored in their own transactions (`nextslot_enqueue`).

`services/inbox.py` calls it. The transaction that deletes a request stores its job, with the id that its program got.
So a request is taken in once, whoever takes it and whatever dies.
"""

import json
from collections.abc import Iterable

from nextslot.domain import DEFAULT_OFFICE, FailureKind, Job, NewJob, OnDependencyFailure, Outcome, RetryPolicy, Stage
from nextslot.domain.bounds import MAX_PARAMS_BYTES
from nextslot.engine.engine_context import EngineContext
from nextslot.engine.finish.job_finisher import JobFinisher
from nextslot.store.contract import Tx
from nextslot.store.tables import inbox, offices
from nextslot.store.tables.inbox import Waiting
from nextslot.system.instant import Instant

from .intake import Intake
from .past_work import PastWork
from .queue_order import QueueManager


class Inbox:
    def __init__(
        self, engine: EngineContext, intake: Intake, queue: QueueManager, past: PastWork, finisher: JobFinisher
    ) -> None:
        self._lanes = engine.lanes
        self._intake = intake
        self._queue = queue
        self._past = past
        self._finisher = finisher

    def take(self, tx: Tx, one: Waiting, new: NewJob, now: Instant) -> None:
        """Puts the job of a request into the queue, unless another node has. Raises what a submission would raise."""
        if inbox.delete(tx, one.job_id):
            self._intake.accept(tx, [new], now, ids=[one.job_id])

    def take_all(self, tx: Tx, wanted: Iterable[tuple[Waiting, NewJob]], now: Instant) -> None:
        for one, new in wanted:
            self.take(tx, one, new, now)

    def refuse(self, tx: Tx, one: Waiting, why: str, now: Instant) -> None:
        """Stores the job of a request that cannot be carried out: FAILED, of the kind `invalid`, with the reason."""
        if not inbox.delete(tx, one.job_id):
            return
        job = self._refused(tx, one, now)
        self._queue.enqueue(tx, [job], now)
        run_id = self._past.begin(tx, job, now)
        self._finisher.finish(tx, run_id, job.job_id, Outcome.failed(FailureKind.INVALID, why), now)

    def _refused(self, tx: Tx, one: Waiting, now: Instant) -> Job:
        """Returns the job of a refused request: in the office that it names, if there is one, and without options."""
        asked = json.loads(one.options).get("office_id")
        office = offices.get(tx, asked) if isinstance(asked, str) else None
        if office is None or office.status != "active":
            office = self._intake.office(tx, DEFAULT_OFFICE)
        return Job(
            job_id=one.job_id,
            chain_id=one.job_id,
            office_id=office.office_id,
            lane_id=self._lanes.lane_for(tx, office, None, one.job_type, {}, None),
            job_type=one.job_type,
            params=json.loads(one.params) if len(one.params.encode()) <= MAX_PARAMS_BYTES else {},
            stage=Stage.QUEUED,
            priority=0,
            position=self._queue.back(tx, office.office_id, 0),
            created_at=now,
            queued_at=now,
            created_by=one.sent_by,
            retry_policy=RetryPolicy(max_attempts=0),
            on_dependency_failure=OnDependencyFailure(office.on_dependency_failure),
            resources={},
            is_due=True,
        )
