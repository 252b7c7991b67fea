"""Long waits as tasks of the protocol, for clients that support tasks: `wait_for_job` then returns a task at once.

A task is a job and has the job's id. Nothing else is stored, so a task outlives the connection and a restart.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, CallToolResult, RequestParams, TextContent
from mcp_types.jsonrpc import MISSING_REQUIRED_CLIENT_CAPABILITY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field

from nextslot.errors import NextslotError, NotFound

from . import results
from .tools import Tools, sentence

TASKS = "io.modelcontextprotocol/tasks"
# The tool whose answer may be a task.
WAIT = "wait_for_job"
POLL_SECONDS = 2.0
_TIMES = ("created_at", "started_at", "finished_at")


class TaskParams(RequestParams):
    task_id: str = Field(alias="taskId", min_length=1, max_length=200)


class Tasks(Extension):
    identifier = TASKS

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def methods(self) -> Sequence[MethodBinding]:
        handlers = {"tasks/get": self._get, "tasks/cancel": self._cancel, "tasks/update": self._update}
        versions = frozenset(MODERN_PROTOCOL_VERSIONS)
        return [MethodBinding(name, TaskParams, handler, versions) for name, handler in handlers.items()]

    async def intercept_tool_call(self, params: Any, ctx: Any, call_next: Any) -> Any:
        """Answers a wait without a time limit with a task, if the client supports tasks and the job has not ended."""
        arguments = params.arguments or {}
        job_id = arguments.get("job_id")
        is_plain = params.name != WAIT or arguments.keys() != {"job_id"}
        if is_plain or not isinstance(job_id, str) or not _knows_tasks(ctx):
            return await call_next(ctx)
        try:
            task = await self._task(ctx, job_id)
        except NextslotError:
            return await call_next(ctx)  # The tool reports the error.
        return {"resultType": "task", **task} if task["status"] == "working" else await call_next(ctx)

    async def _get(self, ctx: Any, params: TaskParams) -> dict[str, Any]:
        _refuse_others(ctx)
        try:
            return await self._task(ctx, params.task_id)
        except NextslotError as error:
            raise _refusal(error) from error

    async def _cancel(self, ctx: Any, params: TaskParams) -> dict[str, Any]:
        """Cancels the job of a task, if the job is the caller's own; does nothing to a job that has ended."""
        _refuse_others(ctx)
        api = self._tools.api(ctx)
        try:
            if not (await self._tools.waited_for(api, params.task_id))[1]:
                await self._tools.cancel_own(ctx, params.task_id)
        except NextslotError as error:
            raise _refusal(error) from error
        except ToolError as error:
            raise MCPError(INVALID_REQUEST, str(error)) from error
        return {}

    async def _update(self, ctx: Any, params: TaskParams) -> dict[str, Any]:
        raise MCPError(INVALID_PARAMS, "no task of this server asks its client for anything; people answer signals")

    async def _task(self, ctx: Any, job_id: str) -> dict[str, Any]:
        """Returns the job as a task; for an ended job, with the result that the tool would have returned."""
        api = self._tools.api(ctx)
        job, has_ended = await self._tools.waited_for(api, job_id)
        task: dict[str, Any] = {
            "taskId": job_id,
            "createdAt": job["created_at"],
            "lastUpdatedAt": max(job[name] for name in _TIMES if job.get(name) is not None),
            "ttlMs": None,
            "pollIntervalMs": round(POLL_SECONDS * 1000),
        }
        if not has_ended:
            return {**task, "status": "working", "statusMessage": await self._tools.said(api, job)}
        if job["status"] == "CANCELLED":
            return {**task, "status": "cancelled", "statusMessage": job.get("cancel_reason") or "cancelled"}
        return {**task, "status": "completed", "result": _result({"ended": True, **results.of_detail(job)})}


def _knows_tasks(ctx: Any) -> bool:
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return False
    capabilities = ctx.session.client_capabilities
    return capabilities is not None and TASKS in (capabilities.extensions or {})


def _refuse_others(ctx: Any) -> None:
    if not _knows_tasks(ctx):
        needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        text = f"a client that asks for tasks must declare the extension {TASKS}; or call {WAIT}"
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, text, needed)


def _refusal(error: NextslotError) -> MCPError:
    return MCPError(INVALID_PARAMS if isinstance(error, NotFound) else INTERNAL_ERROR, sentence(error))


def _result(answer: Mapping[str, Any]) -> dict[str, Any]:
    text = orjson.dumps(answer, option=orjson.OPT_INDENT_2).decode()
    made = CallToolResult(content=[TextContent(type="text", text=text)], structured_content=dict(answer))
    return made.model_dump(by_alias=True, mode="json", exclude_none=True)
