"""Explains why a job is not running, and forecasts when it starts and ends (spec 16), alone or with its queue."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from nextslot.domain import (
    DEFAULT_OFFICE,
    Confidence,
    Expected,
    Forecast,
    Job,
    Json,
    Reason,
    Stage,
    Why,
)
from nextslot.domain.run_estimates import guess
from nextslot.engine.cluster.node_registry import NodeRegistry
from nextslot.engine.forecast.expected_starts import make_forecast
from nextslot.engine.forecast.forecast_simulator import DispatchRules, PastRuns
from nextslot.engine.forecast.queue_snapshot import Snapshot, take
from nextslot.engine.forecast.run_durations import RUNS_READ, Durations
from nextslot.engine.forecast.why import MOST_AHEAD, Explained, Explainer
from nextslot.errors import NotFound
from nextslot.executors.threads import Threads
from nextslot.store.contract import Tx
from nextslot.store.tables import forecast_reads, offices
from nextslot.system.instant import Instant

from .unit_of_work import UnitOfWork

# A forecast is used for ten times as long as it took to make, but at most for five seconds. So forecasts never take
# more than a tenth of a processor, however many callers ask, and one that is quick to make is always new.
REUSED = 10
LONGEST_USE_SECONDS = 5.0

Progress = Callable[[str], tuple[float | None, str] | None]
# Returns a job type's note for callers, by its name and the parameters of a job.
Note = Callable[[str, Mapping[str, Json]], Awaitable[str | None]]


@dataclass(frozen=True, slots=True)
class _Kept:
    forecast: Forecast
    until: Instant


class ForecastService:
    def __init__(
        self,
        access: UnitOfWork,
        explainer: Explainer,
        registry: NodeRegistry,
        rules: Callable[[], DispatchRules],
        durations: Durations,
        progress: Progress,
        threads: Threads,
        note: Note,
    ) -> None:
        self._access = access
        self._explainer = explainer
        self._registry = registry
        self._rules = rules
        self._durations = durations
        self._progress = progress
        self._threads = threads
        self._note = note
        self._kept: dict[str, _Kept] = {}
        self._making: dict[str, asyncio.Lock] = {}

    async def why(self, job_id: str, seen_by: str | None = None) -> Why:
        """Returns every reason why a job is not running, the most important first, and when it is expected to run.

        Callers of one office, `seen_by`, see no ids, titles or types of other offices.
        """
        explained = await self._access.read(
            lambda tx: self._explainer.explain(tx, job_id, self._access.gate.is_draining, seen_by)
        )
        job = explained.job
        note = await self._note(job.job_type, job.params) if job.stage is Stage.QUEUED else None
        noted = () if note is None else (Reason(code="note", text=note, data={"job_type": job.job_type}),)
        return Why(
            job_id=job_id,
            status=job.status,
            reasons=(*noted, *explained.reasons),
            ahead=min(explained.ahead, MOST_AHEAD),
            expected=await self._expected(explained),
        )

    async def queue(self, office_id: str = DEFAULT_OFFICE) -> Forecast:
        """Forecasts the ends of an office's running jobs, and starts and ends of the first 1,000 jobs of its queue."""
        lock = self._making.setdefault(office_id, asyncio.Lock())
        async with lock:
            kept = self._kept.get(office_id)
            if kept is None or not kept.forecast.made_at <= self._access.clock.now() < kept.until:
                kept = self._kept[office_id] = await self._made(office_id)
        return kept.forecast

    async def _made(self, office_id: str) -> _Kept:
        began = self._access.clock.now()
        if not self._durations.is_filled:
            self._durations.fill(await self._access.read(lambda tx: forecast_reads.durations(tx, RUNS_READ)))
        snapshot = await self._access.read(lambda tx: self._snapshot(tx, office_id))
        estimates = self._durations.estimates()
        reported = {one.run_id: self._fraction(one.run_id) for one in snapshot.working}
        progress = {run_id: fraction for run_id, fraction in reported.items() if fraction is not None}
        past = PastRuns(estimates, guess(estimates.values()), progress)
        rules = self._rules()
        made = await self._threads.run(lambda: _attempt(lambda: make_forecast(snapshot, rules, past)))
        if isinstance(made, Exception):
            raise made
        took = (self._access.clock.now() - began) / 1_000_000
        return _Kept(made, self._access.clock.now().after(min(max(took, 0) * REUSED, LONGEST_USE_SECONDS)))

    def _snapshot(self, tx: Tx, office_id: str) -> Snapshot:
        if offices.get(tx, office_id) is None:
            raise NotFound("office", office_id)
        nodes = self._registry.everybody(tx)
        return take(tx, office_id, self._rules().policy, nodes, self._access.clock.now())

    def _fraction(self, run_id: str) -> float | None:
        found = self._progress(run_id)
        return None if found is None else found[0]

    async def _expected(self, explained: Explained) -> Expected:
        job = explained.job
        if job.has_ended:
            is_known = job.started_at is not None
            return Expected(
                expected_start=job.started_at,
                expected_end=job.finished_at if is_known else None,
                confidence=Confidence.HIGH if is_known else Confidence.NONE,
            )
        if explained.is_blocked:
            return Expected()
        made = await self.queue(job.office_id)
        found = made.jobs.get(job.job_id)
        return found if found is not None else _beyond(made, job, explained.ahead)


def _beyond(made: Forecast, job: Job, ahead: int) -> Expected:
    """Forecasts a job behind the first 1,000: assumes that the queue goes on at the pace of its beginning."""
    if made.is_whole or made.last_start is None or not job.is_ready or not made.places <= ahead <= MOST_AHEAD:
        return Expected()
    pace = (made.last_start - made.made_at) / made.places
    return Expected(
        expected_start=Instant(round(made.last_start + pace * (ahead + 1 - made.places))), confidence=Confidence.LOW
    )


def _attempt(call: Callable[[], Forecast]) -> Forecast | Exception:
    """Returns the exception of a call, because a call in a thread must not raise."""
    try:
        return call()
    except Exception as error:  # `_made` raises it.
        return error
