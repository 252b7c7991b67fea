"""The verbs of jobs and of the queue. `verbs.py` adds the rest."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, Unpack

from .binding import (
    Subject,
    Way,
    each,
    stream_verb,
    verb,
)
from .job_options import JobOptions, NewJob
from .operations import (
    Give,
    Operation,
    Pause,
    Request,
    RequestRetries,
    StreamOperation,
    asked,
    create,
    get,
    given,
    paged,
    part,
    post,
)
from .options import JobChanges, JobFilter
from .values import (
    Cancelled,
    Ended,
    Job,
    JobDetail,
    JobType,
    Json,
    Page,
    Paused,
    Queue,
    Retried,
    Why,
)

T = TypeVar("T")

# Between two looks at a job that is waited for: quick at first, for quick jobs.
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
        """Puts a job into the queue; durable when it returns."""
        body = {"job_type": job_type, "params": params or {}, **options}
        return self._ask(create("/api/jobs", body, idempotency_key), Job.read)

    @verb
    def submit_from(
        self,
        template_id: str,
        params: Json | None = None,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Operation[Job]:
        """Puts a job of a template into the queue; its parameters lie over the template's."""
        body = {"template_id": template_id, "params": params or {}, **options}
        return self._ask(create("/api/jobs", body, idempotency_key), Job.read)

    @verb
    def submit_many(self, jobs: Sequence[NewJob], *, idempotency_key: str | None = None) -> Operation[tuple[Job, ...]]:
        """Many jobs, all or none; they may depend on each other by `key`."""
        request = create("/api/jobs/batch", {"jobs": list(jobs)}, idempotency_key)
        return self._ask(request, lambda json: tuple(Job.read(one) for one in json["items"]))

    @verb
    def job(self, job_id: str) -> Operation[JobDetail]:
        """With its run, and its whole chain."""
        return self._ask(get(f"/api/jobs/{part(job_id)}"), JobDetail.read)

    @stream_verb
    def jobs(self, **filter: Unpack[JobFilter]) -> StreamOperation[Job]:
        """The newest first; pages are fetched as they are needed."""
        return each(lambda cursor: self._page(get("/api/jobs", {**filter, **paged(500, cursor)}), Job))

    @verb
    def jobs_page(
        self, limit: int = 50, cursor: str | None = None, **filter: Unpack[JobFilter]
    ) -> Operation[Page[Job]]:
        return self._page(get("/api/jobs", {**filter, **paged(limit, cursor)}), Job)

    @verb
    def change(self, job_id: str, **changes: Unpack[JobChanges]) -> Operation[Job]:
        """While it is queued (INV-001)."""
        request = Request(method="PATCH", path=f"/api/jobs/{part(job_id)}", body=dict(changes))
        return self._ask(request, Job.read)

    @verb
    def cancel(self, job_id: str, reason: str | None = None, interrupt: bool | None = None) -> Operation[Job]:
        """At once if it has not started; else it is told to stop, or finishes first, by its office's mode."""
        body = given(reason=reason, interrupt=interrupt)
        return self._ask(post(f"/api/jobs/{part(job_id)}/cancel", body), Job.read)

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
        """Every job that a filter finds; an empty filter needs `all=True`."""
        more = given(reason=reason, interrupt=interrupt, include_running=include_running, all=all or None)
        return self._ask(post("/api/jobs/cancel", {**filter, **more}), Cancelled.read)

    @verb
    def retry_many(self, *, all: bool = False, **filter: Unpack[JobFilter]) -> Operation[Retried]:
        """The failed chains that a filter finds."""
        return self._ask(post("/api/jobs/retry", {**filter, **given(all=all or None)}), Retried.read)

    @verb
    def move(
        self,
        job_id: str,
        *,
        to: str | None = None,
        before: str | None = None,
        after: str | None = None,
        place: int | None = None,
    ) -> Operation[Job]:
        """To the `front` or `back`, before or after a job, or to the n-th place of its office's queue."""
        body = given(to=to, before=before, after=after, place=place)
        return self._ask(post(f"/api/jobs/{part(job_id)}/move", body), Job.read)

    @verb
    def why(self, job_id: str) -> Operation[Why]:
        """Why it is not running, and when it will."""
        return self._ask(get(f"/api/jobs/{part(job_id)}/why"), Why.read)

    @verb
    def rerun(
        self,
        job_id: str,
        params: Json | None = None,
        priority: int | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> Operation[Job]:
        """A new job like an ended one, a chain of its own."""
        body = given(params=params, priority=priority)
        return self._ask(create(f"/api/jobs/{part(job_id)}/rerun", body, idempotency_key), Job.read)

    @verb
    def wait(self, job_id: str) -> Operation[Ended]:
        """Waits until the chain of a job has ended, retries included; also over a restart of the server."""
        return self._wait(job_id)

    def _wait(self, job_id: str) -> Operation[Ended]:
        for retries_policy, pause in _looks(self._retries_policy):
            job = yield from self._last_of(job_id, retries_policy)
            if has_ended(job):
                return Ended(job)
            yield Pause(pause)
        raise AssertionError("there is always another look")

    @stream_verb
    def watch(self, job_id: str) -> StreamOperation[JobDetail]:
        """The last job of its chain, looked at again and again until the chain has ended."""
        return self._watch(job_id)

    def _watch(self, job_id: str) -> StreamOperation[JobDetail]:
        for retries_policy, pause in _looks(self._retries_policy):
            job = yield from self._last_of(job_id, retries_policy)
            yield Give(job)
            if has_ended(job):
                return
            yield Pause(pause)

    def _last_of(self, job_id: str, retries_policy: RequestRetries) -> Operation[JobDetail]:
        job: JobDetail = yield from asked(retries_policy, get(f"/api/jobs/{part(job_id)}"), _read(JobDetail.read))
        if not job.chain or job.chain[-1].job_id == job.job_id:
            return job
        path = f"/api/jobs/{part(job.chain[-1].job_id)}"
        return (yield from asked(retries_policy, get(path), _read(JobDetail.read)))

    @verb
    def job_types(self) -> Operation[tuple[JobType, ...]]:
        """What can be run there, and with which parameters."""
        return self._ask(get("/api/job-types"), lambda json: tuple(JobType.read(one) for one in json["items"]))

    # The queue.

    @verb
    def queue(self, office_id: str = "default", limit: int = 50, cursor: str | None = None) -> Operation[Queue]:
        """What runs, and what waits, in order."""
        return self._ask(get("/api/queue", {"office_id": office_id, **paged(limit, cursor)}), Queue.read)

    @verb
    def reorder(self, job_ids: Sequence[str]) -> Operation[Queue]:
        """These jobs take, in this order, the places that they hold now."""
        request = Request(method="PUT", path="/api/queue/order", body={"job_ids": list(job_ids)})
        return self._ask(request, Queue.read)

    @verb
    def pause(
        self, *, office_id: str | None = None, job_type: str | None = None, resource: str | None = None
    ) -> Operation[Paused]:
        """An office, a job type, a resource, or (with nothing said) the whole scheduler; running work goes on."""
        body = given(office_id=office_id, job_type=job_type, resource=resource)
        return self._ask(post("/api/queue/pause", body), Paused.read)

    @verb
    def resume(
        self, *, office_id: str | None = None, job_type: str | None = None, resource: str | None = None
    ) -> Operation[Paused]:
        body = given(office_id=office_id, job_type=job_type, resource=resource)
        return self._ask(post("/api/queue/resume", body), Paused.read)


def has_ended(last: Job) -> bool:
    """Whether nothing follows the last job of a chain. A failure waits for its decision: a retry, or no more."""
    if last.finished_at is None:
        return False
    return last.status != "FAILED" or last.permanently_failed or last.cancel_requested_at is not None


def _looks(retries_policy: RequestRetries) -> Iterator[tuple[RequestRetries, float]]:
    """Without end: how patient to be with the server at each look, and how long to wait after it."""
    pause = FIRST_LOOK_SECONDS
    while True:
        yield retries_policy, pause
        retries_policy, pause = retries_policy.patient(), min(pause * 1.5, LONGEST_LOOK_SECONDS)


def _read(read: Callable[[Any], T]) -> Callable[[Any], T]:
    return lambda reply: read(reply.json())
