"""The verbs of jobs and of the queue. `verbs.py` adds the rest."""

import secrets
import time
from collections.abc import Sequence
from typing import Any, Unpack

from nextslot import domain
from nextslot.domain import AnyJob, id_of
from nextslot.domain.bounds import WAIT
from nextslot.errors import Invalid, NotEnded, TooManyJobs

from .binding import Operation, StreamOperation, Subject, Way, stream_verb, verb
from .keyword_arguments import JobChanges, JobFilter, JobOptions, NewJob
from .request_retries import RequestRetries, asked
from .requests import bodies, create, get, given, paged, part, patch, post, put, texts
from .values import (
    Cancelled,
    DryRun,
    Ended,
    Job,
    JobDetail,
    JobType,
    Json,
    Page,
    Paused,
    Queue,
    Released,
    Retried,
    Signal,
    Why,
)

# The first pause between two requests for an awaited job: short, for short jobs; later pauses grow.
FIRST_LOOK_SECONDS = 0.05
LONGEST_LOOK_SECONDS = 2.0


class JobVerbs(Subject[Way]):
    # Jobs.

    @verb
    def submit(
        self,
        job_type: str,
        params: Json | None = None,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Operation[Job]:
        """Puts a job into the queue; the job is stored when this returns."""
        body = {"job_type": job_type, "params": params or {}, **given(**options)}
        return self._ask(create("/api/jobs", body, idempotency_key), Job.read)

    @verb
    def dry_run(
        self, job_type: str, params: Json | None = None, *, wait_seconds: float = 5, **options: Unpack[JobOptions]
    ) -> Operation[DryRun]:
        """Checks a job as `submit` would. Returns what it would wait for and when it would run. Stores nothing."""
        body = {"job_type": job_type, "params": params or {}, **given(**options)}
        query = texts({"wait_seconds": wait_seconds})
        return self._ask(post("/api/jobs/dry-run", body, query=query, is_repeatable=True), DryRun.read)

    @verb
    def submit_from(
        self,
        template_id: str,
        params: Json | None = None,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Operation[Job]:
        """Puts a job of a template into the queue; the given parameters override those of the template."""
        body = {"template_id": template_id, "params": params or {}, **given(**options)}
        return self._ask(create("/api/jobs", body, idempotency_key), Job.read)

    @verb
    async def submit_many(
        self, jobs: Sequence[NewJob | domain.NewJob], *, idempotency_key: str | None = None
    ) -> list[Job]:
        """Submits many jobs, all or none; they may depend on each other by `key`.

        With an API key of one office, which may send fewer at once (quota `batch_jobs`), jobs without a `key` are sent
        in several requests, each of them all or none. After a failure, the same idempotency key continues the
        submission.
        """
        wanted, key = bodies(jobs), idempotency_key or secrets.token_hex(16)
        try:
            return await self._batch(wanted, key)
        except TooManyJobs as error:
            if not error.most or any(job.get("key") is not None for job in wanted):
                raise
            parts = [wanted[at : at + error.most] for at in range(0, len(wanted), error.most)]
        made: list[Job] = []
        for number, some in enumerate(parts, 1):
            made += await self._batch(some, f"{key}/{number}")
        return made

    def _batch(self, jobs: list[Json], idempotency_key: str) -> Operation[list[Job]]:
        request = create("/api/jobs/batch", {"jobs": jobs}, idempotency_key)
        return self._ask(request, lambda json: [Job.read(one) for one in json["items"]])

    @verb
    def job(self, job: AnyJob) -> Operation[JobDetail]:
        """Returns a job with its run and its whole chain."""
        return self._ask(get(f"/api/jobs/{part(id_of(job))}"), JobDetail.read)

    @stream_verb
    def jobs(self, *, sort: str | None = None, **filter: Unpack[JobFilter]) -> StreamOperation[Job]:
        """Yields jobs, newest first unless `sort` says another order; fetches pages as needed."""
        return self._each(Job, "/api/jobs", **given(sort=sort), **filter)

    @verb
    def jobs_page(
        self, limit: int = 50, cursor: str | None = None, *, sort: str | None = None, **filter: Unpack[JobFilter]
    ) -> Operation[Page[Job]]:
        return self._page(Job, "/api/jobs", limit, cursor, **given(sort=sort), **filter)

    @verb
    def change(self, job: AnyJob, **changes: Unpack[JobChanges]) -> Operation[Job]:
        """Changes a job that has not started (INV-001)."""
        return self._ask(patch(f"/api/jobs/{part(id_of(job))}", changes), Job.read)

    @verb
    def cancel(self, job: AnyJob, reason: str | None = None, interrupt: bool | None = None) -> Operation[Job]:
        """Cancels a job at once if it has not started; else requests its stop or lets it finish, as its office says."""
        body = given(reason=reason, interrupt=interrupt)
        return self._ask(post(f"/api/jobs/{part(id_of(job))}/cancel", body), Job.read)

    @verb
    def cancel_many(
        self,
        *,
        reason: str | None = None,
        interrupt: bool | None = None,
        include_running: bool = False,
        all: bool = False,
        **filter: Unpack[JobFilter],
    ) -> Operation[Cancelled]:
        """Cancels every job that matches a filter; an empty filter needs `all=True`."""
        more = given(reason=reason, interrupt=interrupt, include_running=include_running, all=all or None)
        return self._ask(post("/api/jobs/cancel", {**filter, **more}), Cancelled.read)

    @verb
    def retry_many(
        self, *, all: bool = False, dry_run: bool = False, **filter: Unpack[JobFilter]
    ) -> Operation[Retried]:
        """Retries the failed chains that match a filter; with `dry_run`, only returns these chains."""
        more = given(all=all or None, dry_run=dry_run or None)
        return self._ask(post("/api/jobs/retry", {**filter, **more}), Retried.read)

    @verb
    def move(
        self,
        job: AnyJob,
        *,
        to: str | None = None,
        before: AnyJob | None = None,
        after: AnyJob | None = None,
        place: int | None = None,
    ) -> Operation[Job]:
        """Moves a job to the `front` or `back`, before or after another job, or to a place of its office's queue."""
        body = given(to=to, before=before, after=after, place=place)
        return self._ask(post(f"/api/jobs/{part(id_of(job))}/move", body), Job.read)

    @verb
    def signal(
        self, job: AnyJob, name: str, payload: Any = None, answer: str = "approve", signal_id: str | None = None
    ) -> Operation[Signal]:
        """Answers the signal that a job waits for: `approve` or `reject`. The server keeps an early answer."""
        body = {"answer": answer, "payload": payload, **given(signal_id=signal_id)}
        return self._ask(post(f"/api/jobs/{part(id_of(job))}/signals/{part(name)}", body), Signal.read)

    @verb
    def signals(self, job: AnyJob) -> Operation[tuple[Signal, ...]]:
        """Returns the answers that the chain of a job got, and the answers that are kept for it."""
        return self._items(get(f"/api/jobs/{part(id_of(job))}/signals"), Signal)

    @verb
    def why(self, job: AnyJob, wait_seconds: float = 5) -> Operation[Why]:
        """Explains why a job is not running, and when it will run, if a forecast is ready within `wait_seconds`."""
        return self._ask(get(f"/api/jobs/{part(id_of(job))}/why", {"wait_seconds": wait_seconds}), Why.read)

    @verb
    def rerun(
        self,
        job: AnyJob,
        params: Json | None = None,
        priority: int | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> Operation[Job]:
        """Submits a new job with the fields of an ended one, in a chain of its own."""
        body = given(params=params, priority=priority)
        return self._ask(create(f"/api/jobs/{part(id_of(job))}/rerun", body, idempotency_key), Job.read)

    @verb
    async def wait(self, job: AnyJob, timeout: float | None = None) -> Ended:
        """Waits until the chain of a job has ended, retries included, even if the server restarts. Raises NotEnded
        after `timeout` seconds."""
        if timeout is not None and (problem := WAIT.problem(timeout)):
            raise Invalid(problem, field="timeout")
        until = None if timeout is None else time.monotonic() + timeout
        async for last in self._looks(id_of(job), until):
            if has_ended(last):
                return Ended(last)
            if until is not None and time.monotonic() >= until:
                raise NotEnded(id_of(job), last.status, timeout or 0)
        raise AssertionError("the last job of a chain has ended")

    @stream_verb
    def watch(self, job: AnyJob) -> StreamOperation[JobDetail]:
        """Yields the last job of a chain repeatedly until the chain has ended."""
        return self._looks(id_of(job))

    async def _looks(self, job_id: str, until: float | None = None) -> StreamOperation[JobDetail]:
        retries, pause = self._retries, FIRST_LOOK_SECONDS
        while True:
            job = await self._last_of(job_id, retries)
            yield job
            if has_ended(job):
                return
            await self._transport.sleep(pause if until is None else max(0, min(pause, until - time.monotonic())))
            retries, pause = retries.patient(), min(pause * 1.5, LONGEST_LOOK_SECONDS)

    async def _last_of(self, job_id: str, retries: RequestRetries) -> JobDetail:
        def job(id: str) -> Operation[JobDetail]:
            request = get(f"/api/jobs/{part(id)}")
            return asked(self._transport, retries, request, lambda reply: JobDetail.read(reply.json()))

        found = await job(job_id)
        is_last = not found.chain or found.chain[-1].job_id == found.job_id
        return found if is_last else await job(found.chain[-1].job_id)

    @verb
    def job_types(self) -> Operation[tuple[JobType, ...]]:
        """Returns the job types of the server and their parameters."""
        return self._items(get("/api/job-types"), JobType)

    # The queue.

    @verb
    def queue(
        self, office_id: str = "default", limit: int = 50, cursor: str | None = None, wait_seconds: float | None = None
    ) -> Operation[Queue]:
        """Returns the running and the waiting jobs of an office, in order, with expected times if a forecast is ready
        within `wait_seconds`: by default a second for at most 50 jobs, else no wait."""
        query = {"office_id": office_id, **paged(limit, cursor), "wait_seconds": wait_seconds}
        return self._ask(get("/api/queue", query), Queue.read)

    @verb
    def reorder(self, job_ids: Sequence[AnyJob]) -> Operation[Queue]:
        """Reorders these jobs among the places that they occupy now."""
        return self._ask(put("/api/queue/order", {"job_ids": [id_of(one) for one in job_ids]}), Queue.read)

    @verb
    def pause(
        self, *, office_id: str | None = None, job_type: str | None = None, resource: str | None = None
    ) -> Operation[Paused]:
        """Pauses an office, a job type, a resource or, without arguments, everything; running work continues."""
        body = given(office_id=office_id, job_type=job_type, resource=resource)
        return self._ask(post("/api/queue/pause", body), Paused.read)

    @verb
    def resume(
        self, *, office_id: str | None = None, job_type: str | None = None, resource: str | None = None
    ) -> Operation[Paused]:
        body = given(office_id=office_id, job_type=job_type, resource=resource)
        return self._ask(post("/api/queue/resume", body), Paused.read)

    @verb
    def release(self, resource: str) -> Operation[Released]:
        """Ends the hold of a resource that does not answer, or whose quota is used up."""
        return self._ask(post("/api/queue/release", {"resource": resource}), Released.read)


def has_ended(last: Job) -> bool:
    """Returns whether nothing follows the last job of a chain; after a failure, a retry is undecided at first."""
    if last.finished_at is None:
        return False
    return last.status != "FAILED" or last.permanently_failed or last.cancel_requested_at is not None
