"""The tools, resources and prompts that agents get: the same over stdio and over HTTP.

Each tool sends requests of the API with the key of its caller (`client.py`) and answers a short form (`results.py`).
`connect` returns the API for the caller of a request.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from importlib.metadata import version
from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp_types import ListToolsResult, ToolAnnotations
from pydantic import Field

from nextslot.errors import NextslotError, NotFound, Unavailable

from . import results
from .client import Api, create, get, part, post

Connect = Callable[[Any], Api]
# Returns the session of a request, which knows its own jobs where no key does; None if the request has no session.
FindSession = Callable[[Any], str | None]

# Many clients give up on a tool after a minute.
LONGEST_WAIT_SECONDS = 50.0
FIRST_LOOK_SECONDS = 0.1
LONGEST_LOOK_SECONDS = 2.0
# Own jobs that are remembered where the server has no keys: there, no job says who made it.
MOST_REMEMBERED = 10_000
LONGEST_RESOURCE = 256 * 1024

INSTRUCTIONS = """nextslot is a durable job scheduler. A job waits in a queue until every limit that it falls under \
has room, then runs on the server; it goes on when you disconnect.
1. `list_job_types` says which types of work there are; with a name it returns that type's parameters.
2. `submit_job` with `dry_run: true` says what a job would wait for and when it would start. Without it the job is \
stored. Give an `idempotency_key` of your own: if an answer is lost, send the same call again, and it is the same job.
3. `wait_for_job` waits for a short while; call it again until `ended` is true. `explain_job` says why a job is not \
running yet. `read_log` shows the end of its log.
You can cancel only jobs that you have submitted. Times are UTC."""

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
JobId = Annotated[str, Field(min_length=1, max_length=200, description="The job's id, as submit_job returned it")]
OfficeId = Annotated[
    str | None, Field(max_length=200, description="An office; default: that of your key, else `default`")
]

# The scope that each tool needs; a key that has less does not see the tool, and the API refuses it.
NEEDS = {
    "list_job_types": "read",
    "submit_job": "submit",
    "get_job": "read",
    "list_jobs": "read",
    "explain_job": "read",
    "wait_for_job": "read",
    "read_log": "read",
    "cancel_job": "submit",
    "show_queue": "read",
    "list_schedules": "read",
}


def create_server(connect: Connect, find_session: FindSession) -> MCPServer[Any]:
    """Returns a server for one process; both functions get the SDK's context of a request."""
    from .tasks import Tasks

    tools = Tools(connect, find_session)
    server: MCPServer[Any] = MCPServer(
        "nextslot",
        title="nextslot job scheduler",
        version=version("nextslot"),
        instructions=INSTRUCTIONS,
        log_level="WARNING",
        subscriptions=False,
        extensions=[Tasks(tools)],
    )
    for name in NEEDS:
        method = getattr(tools, name)
        server.tool(annotations=_annotations(name))(method)
    server.middleware.append(tools.show_usable)
    _add_resources(server, connect)
    _add_prompts(server)
    return server


def _annotations(name: str) -> ToolAnnotations:
    if NEEDS[name] == "read":
        return READS
    is_cancel = name == "cancel_job"
    return ToolAnnotations(
        read_only_hint=False, destructive_hint=is_cancel, idempotent_hint=is_cancel, open_world_hint=False
    )


@contextmanager
def _refusals(kind: type[Exception] = ToolError) -> Any:
    """Answers a refused request with its sentence, and with what the agent can do."""
    try:
        yield
    except NextslotError as error:
        raise kind(sentence(error)) from error


def sentence(error: NextslotError) -> str:
    """Returns what a refused request says, and what an agent can do about it."""
    text = str(error)
    if error.status == 401:
        return (
            f"{text}. The key is in NEXTSLOT_API_KEY of `nextslot mcp`, or in the header Authorization: Bearer of /mcp"
        )
    if error.status == 403:
        return f"{text}. Ask a person for a key with that scope; do not try again with this one"
    if isinstance(error, NotFound) and text.startswith("there is no job "):
        return f"{text}; list_jobs lists the newest jobs"
    if error.code == "unknown_job_type":
        return f"{text}; list_job_types lists the types of this server"
    return text


class Tools:
    def __init__(self, connect: Connect, find_session: FindSession) -> None:
        self._connect = connect
        self._find_session = find_session
        # The jobs that each session has made, where the server has no keys.
        self._own: dict[tuple[str, str], None] = {}

    async def show_usable(self, ctx: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        """Leaves the tools out of the list that the caller's key may not use."""
        answer = await call_next(ctx)
        if ctx.method != "tools/list":
            return answer
        try:
            scopes = (await self._connect(ctx).json(get("/api/me")))["scopes"]
        except NextslotError:
            return answer  # The tools themselves say what is wrong.
        return _without_unusable(answer, scopes)

    # Types of work.

    async def list_job_types(
        self,
        ctx: Context,
        name: Annotated[
            str | None, Field(max_length=200, description="One type: returns its JSON Schema of parameters")
        ] = None,
        limit: Annotated[int, Field(ge=1, le=50)] = 20,
        cursor: Annotated[str | None, Field(max_length=1000, description="The next page: what `more` said")] = None,
    ) -> dict[str, Any]:
        """List the types of work that you can submit, by name, with their parameters.

        Without `name`: types with the names of their parameters. With `name`: that type and the JSON Schema that its
        params must fit.
        """
        api = self._api(ctx)
        with _refusals():
            allowed = (await api.json(get("/api/me")))["job_types"]
            items = (await api.json(get("/api/job-types")))["items"]
        known = {one["job_type"]: one for one in items if not allowed or one["job_type"] in allowed}
        if name is not None and name not in known:
            some = ", ".join(sorted(known)[:limit]) or "none"
            more = f" and {len(known) - limit} more, which list_job_types lists" if len(known) > limit else ""
            raise ToolError(f"there is no job type {name!r} that you can submit; there are: {some}{more}")
        if name is not None:
            return results.of_job_type(known[name], is_whole=True)
        names = sorted(one for one in known if one > (cursor or ""))
        shown = [results.of_job_type(known[one], is_whole=False) for one in names[:limit]]
        return results.page(shown, _rest({"next_cursor": names[limit - 1] if len(names) > limit else None}))

    # Submit, and what became of it.

    async def submit_job(
        self,
        ctx: Context,
        job_type: Annotated[str, Field(min_length=1, max_length=200, description="One of list_job_types")],
        params: Annotated[dict[str, Any] | None, Field(description="By the type's schema")] = None,
        idempotency_key: Annotated[
            str | None,
            Field(min_length=1, max_length=1000, description="Yours; the same call again with it is the same job"),
        ] = None,
        title: Annotated[str | None, Field(max_length=1000, description="What it is for, for people")] = None,
        priority: Annotated[int | None, Field(description="Higher runs earlier; default 0")] = None,
        scheduled_for: Annotated[
            str | None, Field(max_length=100, description="Not before this time, such as 2026-11-16T07:00:00Z")
        ] = None,
        depends_on: Annotated[
            list[str] | None, Field(max_length=100, description="Ids of jobs that must complete first")
        ] = None,
        timeout_seconds: Annotated[float | None, Field(gt=0, description="The longest time that it may run")] = None,
        approval: Annotated[
            str | None, Field(min_length=1, max_length=500, description="A question: it waits until a person says yes")
        ] = None,
        office_id: OfficeId = None,
        dry_run: Annotated[bool, Field(description="Store nothing; say what it would wait for and when")] = False,
    ) -> dict[str, Any]:
        """Put a job into the queue, or with `dry_run` ask what would happen to it.

        The job is stored when this answers, and runs even if you disconnect. Repeat a call whose answer was lost with
        the same `idempotency_key`: it makes no second job within 24 hours.
        """
        given = {
            "job_type": job_type,
            "params": params or {},
            "title": title,
            "priority": priority,
            "scheduled_for": scheduled_for,
            "depends_on": depends_on,
            "timeout_seconds": timeout_seconds,
            "await_signal": None if approval is None else {"name": "approval", "question": approval},
            "office_id": office_id,
        }
        body = {name: value for name, value in given.items() if value is not None}
        api = self._api(ctx)
        with _refusals():
            if dry_run:
                tried = await api.json(post("/api/jobs/dry-run", body))
                return {"stored": False, "would_be_accepted": True, **results.of_why(tried)}
            request = create("/api/jobs", body, idempotency_key)
            reply = await api.reply(request)
        job = reply.json()
        is_new = reply.status == 201
        if is_new:  # What was there before may be somebody else's, whose idempotency key was the same.
            self._remember(ctx, job["job_id"])
        shown = {"is_new": is_new, **results.of_job(job)}
        if note := reply.headers.get("x-note"):
            shown["note"] = results.cut(note, results.LONGEST_TEXT)
        return shown | {"next": "wait_for_job waits for its end; explain_job says why it does not run yet"}

    async def get_job(self, ctx: Context, job_id: JobId) -> dict[str, Any]:
        """Show a job: its status, its run with the result or the error, its attempts and its files."""
        with _refusals():
            return results.of_detail(await self._api(ctx).json(get(f"/api/jobs/{part(job_id)}")))

    async def list_jobs(
        self,
        ctx: Context,
        status: Annotated[
            list[Literal["WAITING", "QUEUED", "RUNNING", "COMPLETED", "FAILED", "SKIPPED", "CANCELLED"]] | None,
            Field(description="Only with one of these"),
        ] = None,
        job_type: Annotated[str | None, Field(max_length=200)] = None,
        text: Annotated[
            str | None,
            Field(
                max_length=1000,
                description="A query: words of the title or the error, and parts such as `type:ingest`, `since:2h` "
                '(`until:`), `error:"words"`, `params.NAME=value`, `task:`, `group:`, `schedule:`, `is:awaiting`; all '
                "must hold. Put a text with a colon into quotes",
            ),
        ] = None,
        awaiting_signal: Annotated[
            bool | None, Field(description="true: only jobs that wait for nothing but a person's answer")
        ] = None,
        office_id: OfficeId = None,
        limit: Annotated[int, Field(ge=1, le=50)] = 10,
        cursor: Annotated[str | None, Field(max_length=2000, description="The next page: what `more` said")] = None,
    ) -> dict[str, Any]:
        """List jobs, the newest first."""
        query = {
            "status": status,
            "job_type": job_type,
            "q": text,
            "awaiting_signal": awaiting_signal,
            "office_id": office_id,
        }
        with _refusals():
            found = await self._api(ctx).json(get("/api/jobs", {**query, "limit": limit, "cursor": cursor}))
        return results.page(map(results.of_listed, found["items"]), _rest(found))

    async def explain_job(self, ctx: Context, job_id: JobId) -> dict[str, Any]:
        """Explain why a job is not running, what it waits for, and when it is expected to start and end."""
        with _refusals():
            return results.of_why(await self._api(ctx).json(get(f"/api/jobs/{part(job_id)}/why", {"wait_seconds": 5})))

    async def wait_for_job(
        self,
        ctx: Context,
        job_id: JobId,
        timeout_seconds: Annotated[
            float, Field(gt=0, le=LONGEST_WAIT_SECONDS, description="Answer after this time at the latest")
        ] = 20,
    ) -> dict[str, Any]:
        """Wait until a job has ended, retries included, but no longer than `timeout_seconds`.

        If `ended` is false, the job goes on: call this again, or do something else meanwhile.
        """
        api, last, problem = self._api(ctx), None, None
        pause, said = FIRST_LOOK_SECONDS, None
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    try:
                        (last, has_ended), problem = await self.waited_for(api, job_id), None
                        if has_ended:
                            return {"ended": True, **results.of_detail(last)}
                        if (saying := await _progress(api, last)) != said:
                            said = saying
                            await ctx.report_progress(saying[0], 1.0, saying[1])
                    except NextslotError as error:
                        # A server that restarts comes back, and has the job.
                        if not isinstance(error, Unavailable) and error.status != 503:
                            raise ToolError(sentence(error)) from error
                        problem = error
                    await api.sleep(pause)
                    pause = min(pause * 1.5, LONGEST_LOOK_SECONDS)
        except TimeoutError:
            pass
        if problem is not None or last is None:
            why = f" ({problem})" if problem is not None else ""
            raise ToolError(
                f"no answer about job {job_id} within {timeout_seconds:g} s{why}. A job that was submitted is stored: "
                "call wait_for_job again later"
            )
        again = "it goes on; call wait_for_job again, or explain_job to see what it waits for"
        return {"ended": False, **results.of_detail(last), "next": again}

    async def read_log(
        self,
        ctx: Context,
        job_id: JobId,
        lines: Annotated[int, Field(ge=1, le=200, description="How many of the last lines")] = 50,
    ) -> dict[str, Any]:
        """Read the end of the log of a job's last run."""
        api = self._api(ctx)
        with _refusals():
            job = await _last_of(api, job_id)
            if job.get("run") is None:
                raise ToolError(f"job {job_id} is {job['status']} and has not run yet; explain_job says why")
            run_id = job["run"]["run_id"]
            reply = await api.reply(get(f"/api/job-runs/{part(run_id)}/log", {"tail": lines}))
        text, is_cut = results.tail(reply.content.decode(errors="replace"), results.LONGEST_LOG)
        size = int(reply.headers.get("x-log-size", len(reply.content)))
        shown = {"job_id": job["job_id"], "status": job["status"], "log": text, "bytes_in_all": size}
        if is_cut:
            shown["cut"] = f"only the last {results.LONGEST_LOG:,} characters; more: read nextslot://jobs/{job_id}/log"
        return shown

    async def cancel_job(
        self,
        ctx: Context,
        job_id: JobId,
        reason: Annotated[str | None, Field(max_length=1000, description="Why, for people")] = None,
        interrupt: Annotated[
            bool | None, Field(description="Whether a running job is stopped, or finishes; default: the office's rule")
        ] = None,
    ) -> dict[str, Any]:
        """Cancel a job that you have submitted: one that waits ends at once, one that runs is stopped or finishes.

        Jobs of others are refused.
        """
        with _refusals():
            return await self.cancel_own(ctx.request_context, job_id, reason=reason, interrupt=interrupt)

    async def cancel_own(self, request_context: Any, job_id: str, **given: Any) -> dict[str, Any]:
        """Cancels the last job of a chain that the caller has submitted: a retry has an id of its own."""
        api = self._connect(request_context)
        me = await api.json(get("/api/me"))
        if "submit" in me["scopes"]:  # Else the API refuses it, and says what is missing.
            await self._refuse_others(api, me, job_id, self._find_session(request_context))
        body = {name: value for name, value in given.items() if value is not None}
        last = (await _last_of(api, job_id))["job_id"]
        return results.of_job(await api.json(post(f"/api/jobs/{part(last)}/cancel", body)))

    async def _refuse_others(self, api: Api, me: results.Json, job_id: str, session: str | None) -> None:
        """Refuses jobs of others, also with a key that may cancel everything: agents err."""
        job = await api.json(get(f"/api/jobs/{part(job_id)}"))
        if me["key_id"] is not None:
            is_own = job["created_by"] == me["name"]
        elif session is None:
            raise ToolError(
                "this server has no keys, and your client keeps no session, so nothing says which jobs are yours. Ask "
                f"a person for a key, or to run `nextslot cancel {job_id}`"
            )
        else:
            is_own = any((session, one["job_id"]) in self._own for one in job["chain"])
        if not is_own:
            by = f"by {job['created_by']!r}" if job["created_by"] else "by somebody else"
            raise ToolError(f"job {job_id} was submitted {by}, not by you; a person can run `nextslot cancel {job_id}`")

    # The queue and the schedules.

    async def show_queue(
        self, ctx: Context, office_id: OfficeId = None, limit: Annotated[int, Field(ge=1, le=50)] = 10
    ) -> dict[str, Any]:
        """Show what runs and what waits in an office, in order, with the expected times."""
        query = {"office_id": office_id, "limit": limit}
        with _refusals():
            found = await self._api(ctx).json(get("/api/queue", query))
        running = [results.of_queued(one) for one in found["running"][:limit]]
        rest = "show_queue with a higher limit, or list_jobs" if found["next_cursor"] else None
        shown = results.page(map(results.of_queued, found["queue"]), rest)
        return {"office_id": found["office_id"], "paused": found["paused"], "running": running, **shown}

    async def list_schedules(
        self,
        ctx: Context,
        office_id: OfficeId = None,
        limit: Annotated[int, Field(ge=1, le=50)] = 20,
        cursor: Annotated[str | None, Field(max_length=2000, description="The next page: what `more` said")] = None,
    ) -> dict[str, Any]:
        """List the schedules that make jobs by a cron expression, with their next times."""
        query = {"office_id": office_id, "limit": limit, "cursor": cursor}
        with _refusals():
            found = await self._api(ctx).json(get("/api/schedules", query))
        return results.page(map(results.of_schedule, found["items"]), _rest(found))

    # What tasks share with the tools.

    async def waited_for(self, api: Api, job_id: str) -> tuple[Any, bool]:
        """Returns the last job of a chain, with its run, and whether nothing follows it."""
        last = await _last_of(api, job_id)
        return last, _has_ended(last)

    async def said(self, api: Api, job: results.Json) -> str:
        """Returns how far a job is, in words."""
        return (await _progress(api, job))[1]

    def api(self, request_context: Any) -> Api:
        return self._connect(request_context)

    def _api(self, ctx: Context) -> Api:
        return self._connect(ctx.request_context)

    def _remember(self, ctx: Context, job_id: str) -> None:
        session = self._find_session(ctx.request_context)
        if session is not None:
            self._own[session, job_id] = None
        if len(self._own) > MOST_REMEMBERED:
            del self._own[next(iter(self._own))]


def _without_unusable(answer: Any, scopes: list[str]) -> Any:
    if isinstance(answer, ListToolsResult):
        answer.tools = [one for one in answer.tools if NEEDS.get(one.name) in scopes]
    elif isinstance(answer, dict) and "tools" in answer:
        answer["tools"] = [one for one in answer["tools"] if NEEDS.get(one["name"]) in scopes]
    return answer


def _rest(found: results.Json) -> str | None:
    return f"call again with cursor {found['next_cursor']!r}" if found.get("next_cursor") else None


async def _last_of(api: Api, job_id: str) -> Any:
    """Returns the last job of a chain, with its run: a retry has an id of its own."""
    job = await api.json(get(f"/api/jobs/{part(job_id)}"))
    last = job["chain"][-1]["job_id"] if job.get("chain") else job["job_id"]
    return job if last == job["job_id"] else await api.json(get(f"/api/jobs/{part(last)}"))


def _has_ended(last: results.Json) -> bool:
    """Says whether nothing follows the last job of a chain; after a failure, the server decides whether to retry."""
    if last["finished_at"] is None:
        return False
    return last["status"] != "FAILED" or last["permanently_failed"] or last["cancel_requested_at"] is not None


async def _progress(api: Api, job: results.Json) -> tuple[float, str]:
    """Returns how far a job is, from 0 to 1, and a text."""
    run = job.get("run")
    if job["status"] != "RUNNING" or run is None:
        asked = results.of_awaiting(job)
        return 0.0, f"{job['status']}, attempt {job['attempt']}" + (f"; {asked}" if asked else "")
    progress = (await api.json(get(f"/api/job-runs/{part(run['run_id'])}"))).get("progress") or {}
    return float(progress.get("fraction") or 0), results.cut(progress.get("text") or "RUNNING", 200)


def _add_resources(server: MCPServer[Any], connect: Connect) -> None:
    @server.resource("nextslot://jobs/{job_id}", mime_type="application/json")
    async def job(job_id: str, ctx: Context) -> dict[str, Any]:
        """A job with its run, its whole result and its chain."""
        with _refusals(ResourceError):
            found: dict[str, Any] = await connect(ctx.request_context).json(get(f"/api/jobs/{part(job_id)}"))
            return found

    @server.resource("nextslot://jobs/{job_id}/log", mime_type="text/plain")
    async def log(job_id: str, ctx: Context) -> str:
        """The log of a job's last run; of a long one the last 256 KiB."""
        api = connect(ctx.request_context)
        with _refusals(ResourceError):
            run_id = await _run_of(api, job_id)
            reply = await api.reply(get(f"/api/job-runs/{part(run_id)}/log", {"tail": 5_000}))
        text, is_cut = results.tail(reply.content.decode(errors="replace"), LONGEST_RESOURCE)
        size = int(reply.headers.get("x-log-size", len(reply.content)))
        is_cut = is_cut or size > len(reply.content)
        whole = f"(the end of a log of {size:,} bytes; all of it: nextslot log {job_id})\n"
        return whole + text if is_cut else text

    @server.resource("nextslot://jobs/{job_id}/artifacts/{+name}", mime_type="application/octet-stream")
    async def artifact(job_id: str, name: str, ctx: Context) -> str | bytes:
        """A file that a job's last run has left; at most 256 KiB."""
        api = connect(ctx.request_context)
        with _refusals(ResourceError):
            run_id = await _run_of(api, job_id)
            where = "/".join(part(one) for one in name.split("/"))
            content = (await api.reply(get(f"/api/job-runs/{part(run_id)}/artifacts/{where}"))).content
        if len(content) > LONGEST_RESOURCE:
            size = f"{name} has {len(content):,} bytes, more than {LONGEST_RESOURCE:,}"
            raise ResourceError(f"{size}; a person can run `nextslot cat {job_id} {name}`")
        try:
            return content.decode()
        except UnicodeDecodeError:
            return content


async def _run_of(api: Api, job_id: str) -> str:
    job = await _last_of(api, job_id)
    if job.get("run") is None:
        raise ResourceError(f"job {job_id} is {job['status']} and has not run yet; wait_for_job waits for it")
    return str(job["run"]["run_id"])


def _add_prompts(server: MCPServer[Any]) -> None:
    @server.prompt()
    def diagnose_job(job_id: str) -> str:
        """Find out why a job failed or does not run."""
        return (
            f"Find out what is wrong with the nextslot job {job_id}. Call get_job. If it has not started, call "
            "explain_job, and say in plain words what it waits for and when it is expected to start. If it failed, "
            "call read_log, quote the line that says why, and say what a person can do. Change nothing."
        )

    @server.prompt()
    def run_work(goal: str) -> str:
        """Get work done by jobs, safely."""
        return (
            f"Get this done with nextslot: {goal}\nCall list_job_types and choose types that fit. Try each job with "
            "submit_job and dry_run first, and say when it would start. Then submit with an idempotency_key of your "
            "own, use depends_on where one job needs another, and call wait_for_job until `ended` is true. Report the "
            "results."
        )
