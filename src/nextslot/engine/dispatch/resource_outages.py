"""Outages: holds back jobs that need a resource which does not answer, so that they do not use up their retries.

After five failures of kind `unavailable` in a row, no job that needs the resource starts. After pauses that grow, the
resource is tried again: by its probe function if it has one, otherwise by starting one job.

A resource whose quota is used up (failure kind `quota`) is held until the instant at which the quota is renewed. The
timer ends this hold; nothing is tried before.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable

from nextslot.domain import (
    FailureKind,
    Lane,
    Outcome,
    RunStatus,
)
from nextslot.domain.retry import quota_pause
from nextslot.engine.engine_context import EngineContext
from nextslot.errors import NotFound
from nextslot.store.contract import Store, Tx
from nextslot.store.tables import outages
from nextslot.system.instant import Instant

log = logging.getLogger(__name__)

FAILURES = 5
FIRST_PAUSE = 10.0
LONGEST_PAUSE = 600.0

Probe = Callable[[], Awaitable[bool]]


class Outages:
    def __init__(self, engine: EngineContext) -> None:
        self._clock = engine.clock
        self._lanes = engine.lanes
        self._timer = engine.timer
        self._events = engine.events
        self._probes: dict[str, Probe] = {}

    def set_probe(self, resource: str, probe: Probe) -> None:
        """Sets the function that checks whether a held resource answers again."""
        self._probes[resource] = probe

    # The end of a run.

    def after_run(self, tx: Tx, lane: Lane, outcome: Outcome, now: Instant) -> Instant | None:
        """Stores what an outcome says about the resources of a lane. Returns when a used-up quota is renewed; None if
        the outcome says nothing about a quota."""
        if outcome.failure_kind is FailureKind.QUOTA:
            return self._use_up(tx, lane, outcome, now)
        for resource in lane.resources:
            if outcome.status is RunStatus.FAILED and outcome.failure_kind is FailureKind.UNAVAILABLE:
                self.note_silence(tx, resource, now)
            elif outcome.failure_kind not in (FailureKind.CRASH, FailureKind.INTERRUPTED, FailureKind.CANCELLED):
                self.answers_again(tx, resource, now)
            elif outcome.failure_kind is not FailureKind.CRASH:  # Recovery clears a probe that died.
                self._probe_again(tx, resource, now)
        return None

    def _use_up(self, tx: Tx, lane: Lane, outcome: Outcome, now: Instant) -> Instant | None:
        """Holds the resource that the outcome names, or else all resources of the lane, until the quota is renewed."""
        named = outcome.quota_resource
        known = None if outcome.quota_until is None else (outcome.quota_until - now) / 1_000_000
        ends = []
        for resource in lane.resources if named is None else (named,):
            stored = outages.get(tx, resource)
            pause = quota_pause(1 + (0 if stored is None else stored.quota_answers), known)
            was_used_up = stored is not None and stored.quota_until is not None
            until = outages.use_up(tx, resource, now.after(pause), FIRST_PAUSE, now)
            self._timer.note(tx, until)
            if not was_used_up:
                details = {"resource": resource, "quota_until": str(until)}
                self._events.note(tx, "resource_held", now, None, details=details)
            ends.append(until)
        return max(ends, default=None if known is None else now.after(quota_pause(1, known)))

    def _probe_again(self, tx: Tx, resource: str, now: Instant) -> None:
        """Lets another job probe a held resource after a pause, because the last probe ended without an answer."""
        for outage in outages.all_of_them(tx):
            if outage.resource == resource and outage.is_probed and outage.probe_at is not None:
                outages.hold(tx, resource, outage.pause_seconds, now)
                self._timer.note(tx, now.after(outage.pause_seconds))

    def note_silence(self, tx: Tx, resource: str, now: Instant) -> None:
        """Counts one failure of a resource to answer, and holds it after several; an engine is a resource too."""
        failures, was_held, pause = outages.failed(tx, resource, FIRST_PAUSE)
        if failures < FAILURES:
            return
        pause = min(2 * pause, LONGEST_PAUSE) if was_held else FIRST_PAUSE
        outages.hold(tx, resource, pause, now)
        self._timer.note(tx, now.after(pause))
        if not was_held:
            details = {"resource": resource, "failures": failures, "probe_at": str(now.after(pause))}
            self._events.note(tx, "resource_held", now, None, details=details)

    def answers_again(self, tx: Tx, resource: str, now: Instant) -> None:
        """Ends the hold of a resource that has answered, and forgets its failures."""
        if outages.answered(tx, resource):
            self._lanes.counters(tx).is_freed = True
            self._events.note(tx, "resource_released", now, None, details={"resource": resource})

    def release(self, tx: Tx, resource: str, now: Instant) -> None:
        """Ends a hold because an operator says that the resource is usable again."""
        stored = outages.get(tx, resource)
        if stored is None or stored.held_since is None:
            raise NotFound("hold of the resource", resource)
        outages.forget(tx, resource)
        self._released(tx, resource, now)

    def _released(self, tx: Tx, resource: str, now: Instant) -> None:
        self._lanes.counters(tx).include_all_offices()
        self._events.note(tx, "resource_released", now, None, details={"resource": resource})

    # Dispatch.

    def held(self, tx: Tx, now: Instant) -> dict[str, bool]:
        """Returns the held resources, with True for each that one job may probe by starting."""
        return {
            outage.resource: outage.quota_until is None
            and outage.resource not in self._probes
            and not outage.is_probed
            and outage.probe_at <= now
            for outage in outages.all_of_them(tx)
            if outage.probe_at is not None
        }

    def let_through(self, tx: Tx, resources: Iterable[str]) -> None:
        """Marks resources as being probed by a starting job."""
        for resource in resources:
            outages.probe(tx, resource)

    # Probing.

    def do_due(self, tx: Tx, now: Instant) -> tuple[list[outages.Outage], Instant | None]:
        """Ends the holds whose quota is renewed. Returns the resources to probe now, and when the next pause ends.
        Dispatches where a starting job is the probe."""
        due = [o for o in outages.all_of_them(tx) if o.probe_at is not None and o.probe_at <= now]
        for outage in [one for one in due if one.quota_until is not None]:
            outages.renew(tx, outage.resource)
            self._released(tx, outage.resource, now)
            due.remove(outage)
        if any(outage.resource not in self._probes for outage in due):
            self._lanes.counters(tx).include_all_offices()
        return [outage for outage in due if outage.resource in self._probes], outages.next_probe(tx, now)

    async def probe(self, store: Store, due: Iterable[outages.Outage]) -> None:
        """Runs the probe of each resource, and stores whether the resource answers."""
        for outage in due:
            is_there = await self._ask(outage.resource, self._probes[outage.resource])
            await store.write(lambda tx, o=outage, yes=is_there: self._probed(tx, o, yes))  # type: ignore[misc]

    async def _ask(self, resource: str, probe: Probe) -> bool:
        try:
            return await probe()
        except Exception as error:  # A probe that raises counts as a resource that does not answer.
            log.info("the probe of the resource %s failed: %s", resource, error)
            return False

    def _probed(self, tx: Tx, outage: outages.Outage, is_there: bool) -> None:
        now = self._clock.now()
        if is_there:
            self.answers_again(tx, outage.resource, now)
        else:
            pause = min(2 * outage.pause_seconds, LONGEST_PAUSE)
            outages.hold(tx, outage.resource, pause, now)
            self._timer.note(tx, now.after(pause))

    def recover(self, tx: Tx) -> None:
        """Clears the marks of probing jobs: these jobs died with the last incarnation of the scheduler."""
        outages.forget_probes(tx)
