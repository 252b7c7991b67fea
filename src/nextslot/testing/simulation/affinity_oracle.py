"""Checks by what resources have loaded: it lets jobs go before others, but only for the wait of the resource.

`oracles.Watch` calls it for each start of a commit, in order, with times of the loop.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from nextslot.store.contract import Tx

from . import check_reads
from .broken import Broken
from .check_reads import LaneNeeds

# Clocks do not treat a smaller difference as a step, so a wait may be wrong by this much.
TOLERANCE = 1.01


class _Loaded(NamedTuple):
    affinity: str
    # Since when others are passed over for it.
    since: float | None


class Loaded:
    def __init__(self, waits: Mapping[str, float]) -> None:
        self._waits = waits
        self._by_resource: dict[str, _Loaded] = {}
        # What was stored before this commit; None: a restart came between.
        self._before: dict[str, _Loaded] | None = None

    def restarted(self) -> None:
        self._before = None

    def starts(self, lane: LaneNeeds) -> None:
        for resource in lane.resources & self._waits.keys():
            known = self._by_resource.get(resource)
            if lane.affinity is not None and (known is None or known.affinity != lane.affinity):
                self._by_resource[resource] = _Loaded(lane.affinity, None)

    def lets_pass(self, one: LaneNeeds, others: Iterable[LaneNeeds], at: float) -> bool:
        """Returns whether a job may start before one of these, and notes since when that is so."""
        for other in others:
            for resource in one.resources & other.resources & self._waits.keys():
                known = self._by_resource.get(resource)
                if known is None or one.affinity != known.affinity or other.affinity in (None, known.affinity):
                    continue
                if known.since is None:
                    self._by_resource[resource] = known._replace(since=at)
                    return True
                if at < known.since + self._waits[resource] + TOLERANCE:
                    return True
        return False

    def left_out(self, one: LaneNeeds, others: Iterable[tuple[str, LaneNeeds]], at: float) -> Iterator[Broken]:
        """Finds jobs that need what is loaded, of a resource that loads something else for a job that starts."""
        for resource in one.resources & self._waits.keys():
            known = self._by_resource.get(resource)
            if known is None or one.affinity in (None, known.affinity):
                continue
            if known.since is not None and at > known.since + self._waits[resource] - TOLERANCE:
                continue
            for job_id, other in others:
                if resource in other.resources and other.affinity == known.affinity:
                    yield Broken("what needs the loaded affinity goes first", f"{job_id} needs {known} of {resource}")

    def committed(self, tx: Tx, at: float, now: int) -> Iterator[Broken]:
        """Compares what is stored with the starts that were seen; from then on the stored values count."""
        if not self._waits:
            return
        stored = {
            resource: _Loaded(affinity, None if since is None else at - (now - since) / 1_000_000)
            for resource, affinity, since in check_reads.affinities(tx)
        }
        if self._before is not None:
            for resource, known in self._by_resource.items():
                found = stored.get(resource)
                if found is None or found.affinity != known.affinity:
                    yield Broken("the affinity of the last start is stored", f"{resource}: {found}, and was {known}")
                elif _is_forgotten(self._before.get(resource), known, found):
                    yield Broken("a wait for another affinity goes on", f"{resource}: {found}, and was {known}")
        self._by_resource, self._before = stored, dict(stored)


def _is_forgotten(before: _Loaded | None, known: _Loaded, found: _Loaded) -> bool:
    """Returns whether the time since when others are passed over is gone or later, although nothing else was loaded."""
    if known.since is None:
        return False
    is_same = before is not None and before.since == known.since
    return found.since is None or (is_same and found.since > known.since + TOLERANCE)
