"""PastWork: stores work that ran in another system as if it had run here, with its original times.

An extension that adopts another system calls it in a database that no scheduler has open. The job comes from `Intake`
and ends by `JobFinisher`, both with a past `now`; only its start is different, because nothing is dispatched: it takes
no slot and launches nothing.
"""

from nextslot.domain import Job
from nextslot.engine.engine_context import EngineContext
from nextslot.store.contract import Tx
from nextslot.store.tables import groups, jobs, runs
from nextslot.system.instant import Instant

# The worker name of runs that happened in another system.
ELSEWHERE = "elsewhere"


class PastWork:
    def __init__(self, engine: EngineContext) -> None:
        self._chance = engine.chance
        self._lanes = engine.lanes
        self._events = engine.events

    def begin(self, tx: Tx, job: Job, at: Instant, session_id: str | None = None) -> str:
        """Starts a ready job at a past time. Returns its run, which the same transaction must end."""
        run_id = self._chance.new_id()
        lane, counters = self._lanes.lane(tx, job.lane_id), self._lanes.counters(tx)
        counters.take(lane)
        counters.remove_ready(job.lane_id)
        counters.tally(job.lane_id).running += 1
        runs.begin(tx, run_id, job.job_id, at, session_id)
        jobs.start(tx, job.job_id, ELSEWHERE, at)
        if job.group_id is not None:
            groups.begin(tx, job.group_id, at)
        self._events.note(tx, "job_started", at, job.office_id, job.job_id, run_id)
        return run_id
