"""BulkActions: one small step of an action on many jobs; and reruns of ended jobs (spec 7).

A step is one transaction over some ids that were read before. A job that no longer matches is left alone.
`services/bulk.py` runs the steps one after the other, and jobs are dispatched in between. If the process dies, the
finished steps stay, and the same call again does the rest.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nextslot.domain import (
    URGENT,
    Job,
    JobStatus,
    Json,
    NewJob,
    Stage,
)
from nextslot.domain.filters import JobFilter, to_cancel
from nextslot.domain.job_lifecycle import Cancellation
from nextslot.engine.submit.intake import Intake
from nextslot.errors import IllegalTransition, Invalid, NotFound
from nextslot.store.contract import ALL, Tx
from nextslot.store.tables import dependencies, jobs, runs
from nextslot.system.instant import Instant

from .job_finisher import JobFinisher
from .retries import RetryController


@dataclass(frozen=True, slots=True)
class Step:
    """The jobs that a step has cancelled, has asked to stop, or lets finish."""

    cancelled: tuple[str, ...] = ()
    stopping: tuple[str, ...] = ()
    finishing: tuple[str, ...] = ()


class BulkActions:
    def __init__(self, finisher: JobFinisher, retries: RetryController, intake: Intake) -> None:
        self._finisher = finisher
        self._retries = retries
        self._intake = intake

    def cancel(
        self,
        tx: Tx,
        job_ids: Iterable[str],
        filter: JobFilter,
        include_running: bool,
        reason: str | None,
        interrupt: bool | None,
        now: Instant,
    ) -> Step:
        """Cancels the jobs that still match and have not ended; running ones only with `include_running`."""
        live = [job for job in _still(tx, job_ids, filter) if job.status in to_cancel(include_running)]
        whole = [*live, *_rest_of_groups(tx, live, filter, include_running)]
        whole += _doomed(tx, whole, filter)
        done = self._finisher.cancel_many(tx, whole, reason, interrupt, now)

        def ids(cancellation: Cancellation) -> tuple[str, ...]:
            return tuple(one.job.job_id for one in done if one.cancellation is cancellation)

        return Step(ids(Cancellation.CANCELLED), ids(Cancellation.STOPPING), ids(Cancellation.FINISHING))

    def retry(self, tx: Tx, job_ids: Iterable[str], filter: JobFilter, now: Instant) -> list[Job]:
        """Creates a retry for each chain whose last job is one of these, still matches, and is FAILED. Other jobs are
        skipped."""
        runs_ = self.retryable(tx, job_ids, filter).values()
        return [self._retries.retry_by_hand(tx, run_id, None, now).job for run_id in runs_]

    def retryable(self, tx: Tx, job_ids: Iterable[str], filter: JobFilter) -> dict[str, str]:
        """Returns the jobs that `retry` would retry, each with its run."""
        found = {}
        for job in _still(tx, job_ids, filter):
            run = runs.of_job(tx, job.job_id)
            if job.status is JobStatus.FAILED and run is not None and jobs.successor(tx, job.job_id) is None:
                found[job.job_id] = run.run_id
        return found

    def rerun(
        self,
        tx: Tx,
        job_id: str,
        params: Mapping[str, Json] | None,
        priority: int | None,
        created_by: str | None,
        now: Instant,
    ) -> Job:
        """Creates a new job like an ended one, in a new chain. Given parameters replace those of the old job, key by
        key."""
        job = jobs.get(tx, job_id)
        if job is None:
            raise NotFound("job", job_id)
        if not job.has_ended:
            raise IllegalTransition(f"job {job_id} is {job.status}: only a job that has ended can be run again")
        if params is not None and not isinstance(params, dict):
            raise Invalid("must be a JSON object (a dict)", "params")
        wanted = job.priority if priority is None else priority
        again = _again(job, {**job.params, **(params or {})}, wanted, created_by)
        # Without the template, which may have changed since: the job already has its values.
        made = self._intake.accept_each(tx, [again], now)[0]
        if isinstance(made, Invalid):
            raise made
        return made


def _still(tx: Tx, job_ids: Iterable[str], filter: JobFilter) -> Sequence[Job]:
    """Returns the jobs that match now, in the given order."""
    ids = list(job_ids)
    found = jobs.get_many(tx, ids)
    return [found[job_id] for job_id in ids if job_id in found and filter.matches(found[job_id])]


def _rest_of_groups(tx: Tx, live: Sequence[Job], filter: JobFilter, include_running: bool) -> Iterator[Job]:
    """Yields the other matching members of the jobs' groups. Otherwise the group's rule would cancel them, with another
    reason."""
    seen = {job.job_id for job in live}
    for group_id in dict.fromkeys(job.group_id for job in live if job.group_id is not None):
        for job in jobs.live_members(tx, group_id, ALL):
            if job.job_id not in seen and filter.matches(job) and job.status in to_cancel(include_running):
                yield job


def _doomed(tx: Tx, chosen: Sequence[Job], filter: JobFilter) -> Iterator[Job]:
    """Yields matching jobs that depend on these. Otherwise their dependency rule would cancel them, with another
    reason."""
    seen = {job.job_id for job in chosen}
    ending = [job for job in chosen if job.stage is Stage.QUEUED]
    while ending:
        found = dependencies.doomed_by(tx, {job.chain_id for job in ending})
        ending = [job for job in jobs.get_many(tx, found - seen).values() if filter.matches(job)]
        seen |= found
        yield from ending


def _again(job: Job, params: Mapping[str, Json], priority: int, created_by: str | None) -> NewJob:
    """Returns the request for a job like this one, without group, schedule, dependencies, times and keys."""
    other = {"schedule_id": None, "scheduled_for": None, "expires_at": None, "unique_key": None}
    return NewJob(
        job_type=job.job_type,
        params=params,
        office_id=job.office_id,
        priority=0 if priority == URGENT else priority,
        urgent=priority == URGENT,
        on_dependency_failure=job.on_dependency_failure,
        resources=job.resources,
        retry_policy=job.retry_policy,
        **job.kept() | other | {"created_by": created_by},
    )
