"""Explains why a job is not running, and forecasts when it starts and ends (spec 16), alone or with its queue."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nextslot.domain import DEFAULT_OFFICE, Confidence, Direct, Expected, Forecast, Job, Json, Reason, Stage, Why
from nextslot.domain.run_estimates import guess
from nextslot.engine.cluster.node_registry import NodeRegistry
from nextslot.engine.forecast.expected_starts import make_forecast
from nextslot.engine.forecast.forecast_simulator import DispatchRules, PastRuns
from nextslot.engine.forecast.queue_snapshot import Snapshot, take
from nextslot.engine.forecast.run_durations import RUNS_READ, Durations
from nextslot.engine.forecast.why import MOST_AHEAD, Explained, Explainer, Progress
from nextslot.engine.submit.intake import Accepted
from nextslot.errors import NotFound
from nextslot.executors.threads import Threads
from nextslot.store.contract import Tx, Work
from nextslot.store.tables import events, forecast_reads, offices
from nextslot.system.instant import Instant

from .turns_with_rest import EndTurn, TurnsWithRest
from .unit_of_work import UnitOfWork

# While the queue changes, a forecast is reused for ten times as long as it took to make, but at most for five seconds.
# So forecasts use at most a tenth of a processor with any number of callers, and a quick forecast is nearly always new.
# While nothing changes, it is reused until the first start or end that it expects, at most for a minute.
REUSED = 10
LONGEST_USE_SECONDS = 5.0
LONGEST_UNCHANGED_SECONDS = 60.0
# How often a node of several reads the durations of past runs again.
FILLED_AGAIN_SECONDS = 600.0

# How many forecasts of dry runs are made at the same time. More callers do not keep more threads busy.
MOST_TRIALS = 2
# Other writes wait for the transaction of a dry run: after each, its office waits this many times as long for the next.
RESTS = 3

# Returns a job type's note for callers, given the type's name and a job's parameters.
Note = Callable[[str, Mapping[str, Json]], Awaitable[str | None]]


@dataclass(frozen=True, slots=True)
class _Version:
    """What a forecast was made from: the number of writes of this node, the newest event, the rules, and the progress
    of runs."""

    writes: int
    last_event: int
    rules: DispatchRules
    progress: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class _Kept:
    forecast: Forecast
    # Until when it is reused in any case, and until when it is reused if its version is still current.
    until: Instant
    unchanged_until: Instant
    version: _Version


@dataclass(slots=True)
class _DryRuns:
    """The dry runs of an office: their transactions, and their forecasts."""

    transactions: TurnsWithRest = field(default_factory=lambda: TurnsWithRest(LONGEST_USE_SECONDS))
    forecasts: TurnsWithRest = field(default_factory=lambda: TurnsWithRest(LONGEST_USE_SECONDS))


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
        self._filled_at: Instant | None = None
        self._making: dict[str, asyncio.Future[_Kept]] = {}
        self._trials: set[asyncio.Future[Any]] = set()
        # The dry runs of each office that has a key; those of all other callers share one.
        self._offices: dict[str | None, _DryRuns] = {}

    async def why(self, job_id: str, seen_by: str | None = None, wait_seconds: float | None = None) -> Why:
        """Returns every reason why a job is not running, the most important first, and when it is expected to run.

        Callers of one office, `seen_by`, see no ids, titles or types of other offices. With `wait_seconds`, it waits
        no longer than this for a forecast, and returns the reasons without one if it is not there by then.
        """
        explained = await self._access.read(
            lambda tx: self._explainer.explain(tx, job_id, self._access.gate.is_draining, seen_by)
        )
        expected, made_at = await self._expected(explained, wait_seconds)
        return await self._why(explained, expected, made_at)

    async def dry_run(
        self, access: UnitOfWork, accept: Work[Accepted], seen_by: str | None = None, wait_seconds: float = 5
    ) -> tuple[Accepted, Why]:
        """Returns the job that a request would make, what it would wait for, and when it would run. Stores nothing.

        An office gets one forecast at a time, and rests after it as after any other forecast. A dry run whose turn does
        not come in time gets none.
        """
        own = self._offices.setdefault(seen_by, _DryRuns())
        until = asyncio.get_running_loop().time() + wait_seconds
        forecast = await own.forecasts.turn(wait_seconds) if wait_seconds > 0 else None

        def look(tx: Tx, accepted: Accepted) -> tuple[Accepted, Explained, Snapshot | None]:
            explained = self._explainer.explain(tx, accepted.job.job_id, access.gate.is_draining, seen_by)
            is_seen = forecast is not None and not explained.is_blocked
            return accepted, explained, self._snapshot(tx, accepted.job.office_id) if is_seen else None

        try:
            async with own.transactions.one(RESTS):
                accepted, explained, snapshot = await access.try_out(accept, look)
            made = None
            if forecast is not None and snapshot is not None:
                seconds = until - asyncio.get_running_loop().time()
                end_turn, forecast = forecast, None  # From now on `_trial` ends it.
                made = await self._trial(snapshot, seconds, end_turn)
        finally:
            if forecast is not None:
                forecast(0)
        if made is None:
            return accepted, await self._why(explained, Expected(), None)
        return accepted, await self._why(explained, _of(made, explained), made.made_at)

    async def start_of_direct(self, access: UnitOfWork, add: Work[Direct], wait_seconds: float = 5) -> Instant | None:
        """Returns when the work of a further direct caller would start, if the caller stayed; None if that is unknown
        or not ready in time. Stores nothing."""
        own = self._offices.setdefault(access.context.office_id, _DryRuns())
        until = asyncio.get_running_loop().time() + wait_seconds
        end_turn = await own.forecasts.turn(wait_seconds)
        if end_turn is None:
            return None
        try:
            async with own.transactions.one(RESTS):
                run_id, snapshot = await access.try_out(
                    add, lambda tx, added: (added.run_id, self._snapshot(tx, added.office_id))
                )
        except BaseException:
            end_turn(0)
            raise
        made = await self._trial(snapshot, until - asyncio.get_running_loop().time(), end_turn)
        return None if made is None else made.jobs.get(run_id, Expected()).expected_start

    async def _why(self, explained: Explained, expected: Expected, made_at: Instant | None) -> Why:
        job = explained.job
        note = await self._note(job.job_type, job.params) if job.stage is Stage.QUEUED else None
        noted = () if note is None else (Reason(code="note", text=note, data={"job_type": job.job_type}),)
        return Why(
            job_id=job.job_id,
            status=job.status,
            reasons=(*noted, *explained.reasons),
            ahead=min(explained.ahead, MOST_AHEAD),
            expected=expected,
            forecast_at=made_at,
        )

    async def _trial(self, snapshot: Snapshot, seconds: float, end_turn: EndTurn) -> Forecast | None:
        """Makes the forecast of a dry run unless too many others are being made. Returns None if it is not ready in
        time. Ends the turn when the forecast has been made, whoever still waits for it."""
        making = None
        try:
            async with asyncio.timeout(seconds):
                await asyncio.sleep(0)  # Nobody simulates for a caller whose time is over.
                while len(self._trials) >= MOST_TRIALS:
                    await asyncio.wait(self._trials, return_when=asyncio.FIRST_COMPLETED)
                making = asyncio.ensure_future(self._simulated(snapshot))
                self._trials.add(making)
                making.add_done_callback(self._end_trial)
                making.add_done_callback(lambda done: end_turn(REUSED))
                return (await asyncio.shield(making))[0]
        except TimeoutError:
            return None
        finally:
            if making is None:
                end_turn(0)

    def _end_trial(self, done: "asyncio.Future[Any]") -> None:
        self._trials.discard(done)
        if not done.cancelled():
            done.exception()  # A caller that still waits gets the error.

    async def queue(self, office_id: str = DEFAULT_OFFICE) -> Forecast:
        """Forecasts the ends of an office's running jobs, and starts and ends of the first 1,000 jobs of its queue."""
        return (await asyncio.shield(self._under_way(office_id))).forecast

    async def queue_within(self, office_id: str, seconds: float) -> Forecast | None:
        """Forecasts the same, but returns None if the forecast is not ready in time. It is finished anyway, for the
        next caller."""
        kept = await self._usable(office_id)
        if kept is not None:
            return kept.forecast
        making = self._under_way(office_id)
        await asyncio.wait([making], timeout=seconds)
        return making.result().forecast if making.done() else None

    def _under_way(self, office_id: str) -> "asyncio.Future[_Kept]":
        """Returns the task that makes an office's forecast. Callers that come meanwhile share it."""
        making = self._making.get(office_id)
        if making is None:
            making = self._making[office_id] = asyncio.ensure_future(self._current(office_id))
            making.add_done_callback(lambda done: self._end_making(office_id, done))
        return making

    def _end_making(self, office_id: str, done: "asyncio.Future[_Kept]") -> None:
        del self._making[office_id]
        if not done.cancelled():
            done.exception()  # Callers that wait get the error. Without them, nobody needs it.

    async def _current(self, office_id: str) -> _Kept:
        kept = await self._usable(office_id)
        if kept is None:
            kept = self._kept[office_id] = await self._made(office_id)
        return kept

    async def _usable(self, office_id: str) -> _Kept | None:
        """Returns the kept forecast if it is new enough, or nothing has changed since it was made."""
        kept, now = self._kept.get(office_id), self._access.clock.now()
        if kept is None or not kept.forecast.made_at <= now < max(kept.until, kept.unchanged_until):
            return None
        is_current = now < kept.until or await self._version(kept.version.progress) == kept.version
        return kept if is_current else None

    async def _version(self, runs: Iterable[str]) -> _Version:
        # Counted before the reads: a write in between makes the version older than the data, never newer.
        writes = self._access.store.health.writes
        last_event = await self._access.read(events.last)
        return _Version(writes, last_event, self._rules(), {run_id: self._fraction(run_id) for run_id in runs})

    async def _made(self, office_id: str) -> _Kept:
        began = self._access.clock.now()
        before = await self._version(())
        await self._fill()
        snapshot = await self._access.read(lambda tx: self._snapshot(tx, office_id))
        made, reported = await self._simulated(snapshot)
        now = self._access.clock.now()
        used = min(max((now - began) / 1_000_000, 0) * REUSED, LONGEST_USE_SECONDS)
        return _Kept(made, now.after(used), _first_change(made), replace(before, progress=reported))

    async def _simulated(self, snapshot: Snapshot) -> tuple[Forecast, dict[str, float | None]]:
        """Returns the forecast of a snapshot, and the progress of each run as it was used."""
        await self._fill()
        estimates, rules = self._durations.estimates(), self._rules()
        reported = {one.run_id: self._fraction(one.run_id) for one in snapshot.working}
        progress = {run_id: fraction for run_id, fraction in reported.items() if fraction is not None}
        past = PastRuns(estimates, guess(estimates.values()), progress, self._durations.models())
        made = await self._threads.run(lambda: _attempt(lambda: make_forecast(snapshot, rules, past)))
        if isinstance(made, Exception):
            raise made
        return made, reported

    def _snapshot(self, tx: Tx, office_id: str) -> Snapshot:
        if offices.get(tx, office_id) is None:
            raise NotFound("office", office_id)
        nodes = self._registry.everybody(tx)
        sized_by = {job_type: model.name for job_type, model in self._durations.models().items()}
        return take(tx, office_id, self._rules().policy, nodes, self._access.clock.now(), sized_by)

    async def _fill(self) -> None:
        now = self._access.clock.now()
        is_old = self._filled_at is not None and now >= self._filled_at.after(FILLED_AGAIN_SECONDS)
        if is_old and self._access.store.is_shared:
            self._durations.is_filled = False  # Other nodes have run jobs since then.
        if not self._durations.is_filled:
            self._filled_at = now
            self._durations.fill(await self._access.read(lambda tx: forecast_reads.durations(tx, RUNS_READ)))

    def _fraction(self, run_id: str) -> float | None:
        found = self._progress(run_id)
        return None if found is None else found[0]

    async def _expected(self, explained: Explained, seconds: float | None) -> tuple[Expected, Instant | None]:
        """Returns when a job is expected to run, and when that forecast was made."""
        job = explained.job
        if job.has_ended:
            start, end = job.started_at, job.finished_at
            known = Expected(expected_start=start, expected_end=end, confidence=Confidence.HIGH)
            return Expected() if start is None else known, None
        if explained.is_blocked:
            return Expected(), None
        made = await (self.queue(job.office_id) if seconds is None else self.queue_within(job.office_id, seconds))
        if made is None:
            return Expected(), None
        return _of(made, explained), made.made_at


def _of(made: Forecast, explained: Explained) -> Expected:
    found = made.jobs.get(explained.job.job_id)
    return found if found is not None else _beyond(made, explained.job, explained.ahead)


def _first_change(made: Forecast) -> Instant:
    """Returns the first start or end that this forecast expects. From then on the forecast is outdated."""
    expected = [at for one in made.jobs.values() for at in (one.expected_start, one.expected_end) if at is not None]
    longest = made.made_at.after(LONGEST_UNCHANGED_SECONDS)
    return min([longest, *(at for at in expected if at > made.made_at)])


def _beyond(made: Forecast, job: Job, ahead: int) -> Expected:
    """Forecasts a job that is not among the first 1,000, assuming that the queue continues at the pace of its
    beginning."""
    if made.is_whole or made.last_start is None or not job.is_ready or not made.places <= ahead <= MOST_AHEAD:
        return Expected()
    pace = (made.last_start - made.made_at) / made.places
    return Expected(
        expected_start=Instant(round(made.last_start + pace * (ahead + 1 - made.places))), confidence=Confidence.LOW
    )


def _attempt(call: Callable[[], Forecast]) -> Forecast | Exception:
    """Returns an exception instead of raising it, because a call in a thread must not raise."""
    try:
        return call()
    except Exception as error:  # `_made` raises it.
        return error
