"""The old `/jobs` endpoints (CON-004): their requests, answers and words, on top of the queue.

Each answer says that they are deprecated, and each call is counted.
"""

from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from nextslot.domain import DEFAULT_OFFICE, NewJob, Scope
from nextslot.domain.job_lifecycle import Cancellation
from nextslot.errors import NotFound
from nextslot.server.auth import caller_of, of_default
from nextslot.server.responses import answer
from nextslot.server.route_rules import needs
from nextslot.server.routing import Route, extension_of

from . import old_words as policy
from . import schemas as schemas
from .legacy_service import LegacyService
from .schemas import BatchTrigger, ListQuery, ResearchTrigger, StoryTrigger

# Where `Deprecated` puts the counts of calls into the scope of a request.
CALLS = "nextslot.legacy_calls"


class Deprecated:
    """Adds the deprecation headers to every answer, refusals included."""

    def __init__(self, app: ASGIApp, root_path: str, calls: Counter[str]) -> None:
        self._app = app
        self._calls = calls
        self._root_path = root_path.rstrip("/")

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "").removeprefix(self._root_path)
        if scope["type"] != "http" or not (path == "/jobs" or path.startswith("/jobs/")):
            await self._app(scope, receive, send)
            return
        headers = policy.headers(path, self._root_path)
        # For `CountedRoute`, which counts before the caller is identified.
        scope[CALLS] = self._calls

        async def send_deprecated(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
            await send(message)

        await self._app(scope, receive, send_deprecated)


class CountedRoute(Route):
    """Counts each call for the metrics, refused ones included."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def count_and_handle(request: Request) -> Response:
            request.scope[CALLS][f"{request.method} {self.path}"] += 1
            return await handle(request)

        return count_and_handle


legacy = APIRouter(route_class=CountedRoute, tags=["Legacy"])


@legacy.post("/jobs/story/trigger", status_code=202, response_model=schemas.Triggered, deprecated=True)
@needs(Scope.SUBMIT, of_default, creates=True)
async def trigger_story(body: StoryTrigger, request: Request) -> Response:
    """Use `POST /api/jobs` with the type `story`."""
    return await _triggered(body, "story", request)


@legacy.post("/jobs/research/trigger", status_code=202, response_model=schemas.Triggered, deprecated=True)
@needs(Scope.SUBMIT, of_default, creates=True)
async def trigger_research(body: ResearchTrigger, request: Request) -> Response:
    """Use `POST /api/jobs` with the type `research`."""
    return await _triggered(body, "research", request)


@legacy.post("/jobs/batch/trigger", status_code=202, response_model=schemas.BatchTriggered, deprecated=True)
@needs(Scope.SUBMIT, of_default, creates=True)
async def trigger_batch(body: BatchTrigger, request: Request) -> Response:
    """Submits all jobs, or none. Use `POST /api/job-groups` with the mode `parallel`."""
    wanted = [_new_job(one.type, one.params(), None, request) for one in body.jobs]
    batch, is_new = await _of(request).trigger_batch(wanted, body.webhook())
    headers = {"Location": f"/jobs/batch/{batch.group.group_id}"}
    notes = [*body.notes(), *await _of(request).notes(batch.members)]
    return answer(policy.batch_trigger(batch, notes), 202 if is_new else 200, headers)


@legacy.get("/jobs/batch/{batch_id}", response_model=schemas.Batch, deprecated=True)
@needs(Scope.READ, of_default)
async def get_batch(batch_id: str, request: Request) -> Response:
    """Use `GET /api/job-groups/{group_id}`."""
    return answer(policy.batch(await _of(request).batch(batch_id)))


@legacy.get("/jobs", response_model=schemas.JobList, deprecated=True)
@needs(Scope.READ, of_default)
async def list_old_jobs(query: Annotated[ListQuery, Query()], request: Request) -> Response:
    """Lists jobs, the newest first. Use `GET /api/jobs`."""
    job_type = None if query.type is None else policy.JOB_TYPES[query.type]
    status = None if query.status is None else policy.STORED[query.status]
    found, total = await _of(request).jobs(job_type, status, query.limit)
    message = f"{len(found)} of {total} jobs"
    return answer({"jobs": [policy.job(one) for one in found], "total": total, "message": message})


@legacy.post("/jobs/monitor", response_model=schemas.AllMonitored, deprecated=True)
@needs(Scope.READ, of_default)
async def monitor_jobs(request: Request) -> Response:
    """Lists running jobs. They need no monitoring; use `GET /api/jobs?status=RUNNING`."""
    running = await _of(request).running()
    return answer({"monitored_count": len(running), "results": [policy.monitored(one) for one in running]})


@legacy.get("/jobs/{job_id}", response_model=schemas.JobStatus, deprecated=True)
@needs(Scope.READ, of_default)
async def get_old_job(job_id: str, request: Request) -> Response:
    """Use `GET /api/jobs/{job_id}`."""
    return answer(policy.job(await _of(request).job(job_id)))


@legacy.post("/jobs/{job_id}/cancel", response_model=schemas.JobCancelled, deprecated=True)
@needs(Scope.OPERATE, of_default)
async def cancel_old_job(job_id: str, request: Request) -> Response:
    """Cancels a queued job, interrupts a running one. Use `POST /api/jobs/{job_id}/cancel`."""
    try:
        old, done = await _of(request).cancel(job_id)
    except NotFound as error:
        return answer(_cancelled(job_id, False, "Nothing was cancelled", str(error)))
    if done is None:
        problem = f"the job is {old.status} since {old.last.finished_at}"
        return answer(_cancelled(old.root.job_id, False, "There is nothing to cancel", problem))
    is_over = done.cancellation is Cancellation.CANCELLED
    message = "The job was cancelled" if is_over else "The job runs; it was told to stop and will not be retried"
    return answer(_cancelled(old.root.job_id, True, message, None))


@legacy.post("/jobs/{job_id}/monitor", response_model=schemas.Monitored, deprecated=True)
@needs(Scope.READ, of_default)
async def monitor_job(job_id: str, request: Request) -> Response:
    """Use `GET /api/jobs/{job_id}`."""
    try:
        return answer(policy.monitored(await _of(request).job(job_id)))
    except NotFound as error:
        return answer(_not_monitored(job_id, str(error)))


@legacy.post("/jobs/{job_id}/dedup_check", response_model=schemas.DedupCheck, deprecated=True)
@needs(Scope.READ, of_default)
async def check_duplicate(job_id: str, request: Request) -> Response:
    """Compares the card of a research job with earlier ones: HIGH from a similarity of 0.8 on, MEDIUM from 0.4."""
    return answer(policy.dedup_check(await _of(request).dedup_check(job_id)))


async def _triggered(body: StoryTrigger | ResearchTrigger, job_type: str, request: Request) -> Response:
    wanted = _new_job(job_type, body.params(), body.webhook(), request)
    old, is_new = await _of(request).trigger(wanted)
    headers = {"Location": f"/jobs/{old.root.job_id}"}
    notes = [*body.notes(), *await _of(request).notes([old])]
    return answer(policy.trigger(old, notes), 202 if is_new else 200, headers)


def _new_job(job_type: str, params: dict[str, Any], webhook: dict[str, Any] | None, request: Request) -> NewJob:
    caller = caller_of(request)
    created_by = caller.name if caller.key_id is not None else None
    return NewJob(job_type=job_type, params=params, office_id=DEFAULT_OFFICE, webhook=webhook, created_by=created_by)


def _of(request: Request) -> LegacyService:
    return extension_of(request, LegacyService)


def _cancelled(job_id: str, success: bool, message: str, error: str | None) -> dict[str, Any]:
    return {"job_id": job_id, "success": success, "message": message, "error": error}


def _not_monitored(job_id: str, error: str) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "status": None,
        "pid": None,
        "artifacts": [],
        "error": error,
        "message": "There is nothing to monitor",
        "reason": None,
        "webhook_processed": False,
    }
