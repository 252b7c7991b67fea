"""Agents use the scheduler by tools: the official client, over both transports, against real server processes."""

import asyncio
import inspect
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, Request, RequestParams, Result
from pydantic import ConfigDict, Field

from nextslot.extensions.mcp import routes, tools
from nextslot.extensions.mcp.tools import NEEDS

PAGE = (Path(__file__).parents[3] / "docs/mcp.md").read_text()
ANSWERS = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
CHATTY = """
import os
for number in range(60_000):
    print(number, "x" * 100)
open(os.environ["NEXTSLOT_ARTIFACTS"] + "/big", "w").write("y" * 300_000)
"""
# A file name that is not a URI as it stands.
ODD_NAME = "part 1/50% of ü?#.txt"
ODD = f"""
import os
from pathlib import Path
file = Path(os.environ["NEXTSLOT_ARTIFACTS"]) / {ODD_NAME!r}
file.parent.mkdir()
file.write_text("odd")
"""
CONFIG = """
[limits]
running = 4
[limits.resources]
one = 1
[job_types.say]
command = ["sh", "-c", "echo said; echo $0; echo file > $NEXTSLOT_ARTIFACTS/note.txt", "{text}"]
[job_types.slow]
command = ["sleep", "{seconds}"]
[job_types.held]
command = ["sleep", "{seconds}"]
resources = ["one"]
[job_types.odd]
command = ["python3", "odd.py"]
[job_types.chatty]
command = ["python3", "chatty.py"]
"""


@dataclass
class ServerProcess:
    """A real `nextslot serve`, with a key of every kind."""

    data: Path
    port: int
    process: subprocess.Popen[bytes] | None = None
    keys: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "nextslot.cli.main",
            "serve",
            "--data",
            str(self.data),
            "--port",
            str(self.port),
        ]
        with (self.data / "serve.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if httpx2.get(f"{self.url}/ready", timeout=5).status_code == 200:
                    return
            except httpx2.TransportError:
                time.sleep(0.1)
        raise AssertionError((self.data / "serve.log").read_text()[-2000:])

    def end(self, number: int = signal.SIGTERM) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(60)

    def make_keys(self) -> None:
        admin = self._made("admin", ["admin"])
        self.keys["admin"] = admin
        headers = {"X-API-Key": admin}
        for office in ("a", "b"):
            httpx2.post(f"{self.url}/api/offices", json={"office_id": office, "name": office}, headers=headers)
        for scope in ("read", "submit", "operate"):
            for office in ("a", "b"):
                name = f"{scope} {office}"
                self.keys[name] = self._made(name, [scope], office_id=office)
        self.keys["other a"] = self._made("other a", ["submit"], office_id="a")

    def _made(self, name: str, scopes: list[str], **more: Any) -> str:
        headers = {"X-API-Key": self.keys["admin"]} if self.keys else {}
        reply = httpx2.post(f"{self.url}/api/keys", json={"name": name, "scopes": scopes, **more}, headers=headers)
        assert reply.status_code == 201, reply.text
        text: str = reply.json()["key"]
        return text

    @asynccontextmanager
    async def agent(self, way: str, key: str | None = "submit a", **options: Any) -> AsyncIterator["Agent"]:
        text = None if key is None else self.keys[key]
        if way == "stdio":
            environment = {**os.environ, "NEXTSLOT_URL": self.url, **({"NEXTSLOT_API_KEY": text} if text else {})}
            command = StdioServerParameters(
                command=sys.executable, args=["-m", "nextslot.cli.main", "mcp"], env=environment
            )
            async with Client(stdio_client(command), **options) as client:
                yield Agent(client)
            return
        headers = {"Authorization": f"Bearer {text}"} if text else {}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            transport = streamable_http_client(f"{self.url}/mcp", http_client=http)
            async with Client(transport, mode="legacy" if way == "http, older" else "auto", **options) as client:
                yield Agent(client)


class Agent:
    def __init__(self, client: Client) -> None:
        self.client: Any = client  # Its answers are unions of all kinds of content.
        self.progress: list[tuple[float, str | None]] = []
        self.has_progress = asyncio.Event()

    async def call(self, tool: str, **arguments: Any) -> Any:
        """Returns the structured answer; asserts that there is one."""
        answer = await self._called(tool, arguments)
        assert not answer.is_error, answer.content[0].text
        assert json.loads(answer.content[0].text) == answer.structured_content
        return answer.structured_content

    async def refused(self, tool: str, **arguments: Any) -> str:
        answer = await self._called(tool, arguments)
        assert answer.is_error, answer.content
        text: str = answer.content[0].text
        return text

    async def _called(self, tool: str, arguments: dict[str, Any]) -> Any:
        async def note(progress: float, total: float | None, message: str | None) -> None:
            self.progress.append((progress, message))
            self.has_progress.set()

        return await self.client.call_tool(tool, arguments, progress_callback=note)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    made = _new_server(tmp_path_factory.mktemp("mcp"))
    made.start()
    made.make_keys()
    try:
        yield made
    finally:
        made.end()


def _new_server(data: Path) -> ServerProcess:
    (data / "nextslot.toml").write_text(CONFIG)
    (data / "chatty.py").write_text(CHATTY)
    (data / "odd.py").write_text(ODD)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return ServerProcess(data, port)


both = pytest.mark.parametrize("way", ["stdio", "http", "http, older"])


@both
async def test_an_agent_finds_work_tries_it_submits_it_and_reads_what_became_of_it(
    server: ServerProcess, way: str
) -> None:
    async with server.agent(way) as agent:
        types = {one["job_type"]: one for one in (await agent.call("list_job_types"))["items"]}
        schema = (await agent.call("list_job_types", name="say"))["params_schema"]
        tried = await agent.call("submit_job", job_type="say", params={"text": "x"}, dry_run=True)
        job = await agent.call("submit_job", job_type="say", params={"text": f"words {way}"}, title=way)
        ended = await agent.call("wait_for_job", job_id=job["job_id"])
        log = await agent.call("read_log", job_id=job["job_id"])
        listed = await agent.call("list_jobs", text=way, limit=1)
        resource = (await agent.client.read_resource(f"nextslot://jobs/{job['job_id']}/log")).contents[0]
        file = (await agent.client.read_resource(ended["artifacts"][0])).contents[0]

        assert types["say"]["required"] == ["text"]
        assert schema["required"] == ["text"]
        assert (tried["stored"], tried["codes"], tried["status"]) == (False, ["next"], "QUEUED")
        assert (job["is_new"], job["created_by"], job["office_id"]) == (True, "submit a", "a")
        assert (ended["ended"], ended["status"], ended["run"]["status"]) == (True, "COMPLETED", "COMPLETED")
        assert log["log"] == f"said\nwords {way}\n"
        assert resource.text == log["log"]
        assert file.text == "file\n"
        assert listed["items"][0]["job_id"] == job["job_id"]


@both
async def test_the_same_submission_again_is_the_same_job(server: ServerProcess, way: str) -> None:
    async with server.agent(way) as agent:
        call = {"job_type": "say", "params": {"text": way}, "idempotency_key": f"key {way}"}

        first, second = [await agent.call("submit_job", **call) for _ in range(2)]
        other = await agent.refused("submit_job", **{**call, "params": {"text": "other"}})

        assert (first["is_new"], second["is_new"]) == (True, False)
        assert first["job_id"] == second["job_id"]
        assert "use a new key" in other


@both
async def test_an_agent_cancels_its_own_jobs_and_no_others(server: ServerProcess, way: str) -> None:
    async with server.agent(way) as agent, server.agent("http", "other a") as other:
        async with server.agent("http", "operate a") as operator, server.agent("http", "submit b") as stranger:
            job = await agent.call("submit_job", job_type="slow", params={"seconds": 100})
            refused = [await one.refused("cancel_job", job_id=job["job_id"]) for one in (other, operator, stranger)]
            cancelled = await agent.call("cancel_job", job_id=job["job_id"], reason="not needed", interrupt=True)
            ended = await agent.call("wait_for_job", job_id=job["job_id"])

        assert all("was submitted by 'submit a', not by you" in one for one in refused[:2])
        assert "there is no job" in refused[2]
        headers = {"X-API-Key": server.keys["admin"]}
        entries = httpx2.get(f"{server.url}/api/audit", params={"limit": 20}, headers=headers).json()["items"]

        assert cancelled["job_id"] == job["job_id"]
        assert ended["status"] in ("CANCELLED", "FAILED")
        cancel = f"/api/jobs/{job['job_id']}/cancel"
        assert [one["actor"] for one in entries if one["target"] == cancel] == ["submit a"], "no refused call is there"


async def test_every_tool_needs_the_scope_that_it_names_and_is_shown_to_those_who_have_it(
    server: ServerProcess,
) -> None:
    async with server.agent("http", "submit a") as agent:
        job = await agent.call("submit_job", job_type="say", params={"text": "x"})
        await agent.call("wait_for_job", job_id=job["job_id"])
    of_tool = {"submit_job": {"job_type": "say", "params": {"text": "x"}, "dry_run": True}}
    scopes = ["read", "submit", "operate"]

    for held in scopes:
        async with server.agent("http", f"{held} a") as agent:
            shown = {one.name for one in (await agent.client.list_tools()).tools}
            assert shown == {name for name, needed in NEEDS.items() if scopes.index(needed) <= scopes.index(held)}
            for name, needed in NEEDS.items():
                has_id = "job_id" in _arguments_of(name)
                arguments = of_tool.get(name, {"job_id": job["job_id"]} if has_id else {})
                answer = await agent.client.call_tool(name, arguments)
                is_forbidden = answer.is_error and "needs a key with the scope" in answer.content[0].text
                assert is_forbidden == (name not in shown), (held, name, needed, answer.content[0].text)
    async with server.agent("http", "operate b") as stranger:
        for name in NEEDS:
            if "job_id" in _arguments_of(name):
                assert "there is no job" in await stranger.refused(name, job_id=job["job_id"])


def _arguments_of(tool: str) -> set[str]:
    return set(inspect.signature(getattr(tools.Tools, tool)).parameters)


async def test_a_wait_ends_at_its_bound_and_says_how_it_goes_on(server: ServerProcess) -> None:
    async with server.agent("http") as agent:
        job = await agent.call("submit_job", job_type="slow", params={"seconds": 30})
        began = time.monotonic()

        waited = await agent.call("wait_for_job", job_id=job["job_id"], timeout_seconds=2)

        assert 2 <= time.monotonic() - began < 15
        assert (waited["ended"], waited["status"]) == (False, "RUNNING")
        assert "call wait_for_job again" in waited["next"]
        assert agent.progress
        assert "it must be at most 50" in await agent.refused("wait_for_job", job_id="x", timeout_seconds=500)
        await agent.call("cancel_job", job_id=job["job_id"], interrupt=True)


async def test_a_job_that_waits_says_what_for_and_a_dry_run_says_it_before(server: ServerProcess) -> None:
    async with server.agent("http") as agent:
        holder = await agent.call("submit_job", job_type="held", params={"seconds": 60})
        tried = await agent.call("submit_job", job_type="held", params={"seconds": 1}, dry_run=True)
        second = await agent.call("submit_job", job_type="held", params={"seconds": 1})

        explained = await agent.call("explain_job", job_id=second["job_id"])
        no_log = await agent.refused("read_log", job_id=second["job_id"])
        queue = await agent.call("show_queue")

        assert "limit_full" in tried["codes"]
        assert tried.keys() == json.loads(ANSWERS[1]).keys()
        assert tried["reasons"] == explained["reasons"]
        assert holder["job_id"] in explained["reasons"][0]
        assert "has not run yet; explain_job says why" in no_log
        assert second["job_id"] in [one["job_id"] for one in queue["items"]]
        for job in (second, holder):
            await agent.call("cancel_job", job_id=job["job_id"], interrupt=True)


async def test_a_huge_log_and_a_huge_file_are_cut_with_a_sentence(server: ServerProcess) -> None:
    async with server.agent("http") as agent:
        job = await agent.call("submit_job", job_type="chatty")
        ended = await agent.call("wait_for_job", job_id=job["job_id"], timeout_seconds=50)
        answer = await agent.client.call_tool("read_log", {"job_id": job["job_id"], "lines": 200})
        resource = (await agent.client.read_resource(f"nextslot://jobs/{job['job_id']}/log")).contents[0]

        assert ended["status"] == "COMPLETED"
        assert len(answer.content[0].text) < 12_000
        shown: Any = answer.structured_content
        assert shown["log"].endswith(f"59999 {'x' * 100}\n")
        assert "read nextslot://jobs/" in shown["cut"]
        assert len(resource.text) <= tools.LONGEST_RESOURCE + 200
        assert resource.text.startswith("(the end of a log of ")
        with pytest.raises(MCPError, match="nextslot cat"):
            await agent.client.read_resource(f"nextslot://jobs/{job['job_id']}/artifacts/big")


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_a_file_is_read_by_the_address_that_its_job_names(server: ServerProcess, way: str) -> None:
    async with server.agent(way) as agent:
        job = await agent.call("submit_job", job_type="odd", title="t" * 1000)
        ended = await agent.call("wait_for_job", job_id=job["job_id"])
        (address,) = ended["artifacts"]
        file = (await agent.client.read_resource(address)).contents[0]

        assert file.text == "odd"
        assert ended["title"] == "t" * 200 + "… (cut: 1,000 characters in all)"


def _nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


NONSENSE: list[tuple[str, dict[str, Any]]] = [
    ("get_job", {"job_id": "../../api/keys"}),
    ("get_job", {"job_id": ".."}),
    ("get_job", {"job_id": "x\0y"}),
    ("get_job", {"job_id": "ü" * 200}),
    ("get_job", {"job_id": ""}),
    ("get_job", {"job_id": 7}),
    ("get_job", {}),
    ("read_log", {"job_id": "x?tail=1", "lines": 5}),
    ("read_log", {"job_id": "x", "lines": 10**9}),
    ("submit_job", {"job_type": "say", "params": {"text": "\0"}}),
    ("submit_job", {"job_type": "say", "params": {}}),
    ("submit_job", {"job_type": "say", "params": {"text": "x"}, "priority": 10**30}),
    ("submit_job", {"job_type": "say", "params": {"text": 10**30}}),
    ("submit_job", {"job_type": "say", "params": {"text": "x"}, "scheduled_for": "soon"}),
    ("submit_job", {"job_type": "say", "params": {"text": "x"}, "depends_on": ["nobody"]}),
    ("submit_job", {"job_type": "say", "params": {"text": "x"}, "office_id": "b"}),
    ("submit_job", {"job_type": "say", "params": {"text": "x"}, "idempotency_key": "\n\0"}),
    ("submit_job", {"job_type": "say", "params": {"text": "x" * 900_000}}),
    ("submit_job", {"job_type": "nothing of the kind"}),
    ("submit_job", {"job_type": "say", "params": {"text": "x"}, "dryrun": True}),
    ("submit_job", {"job_type": "say", "params": {"text": "x"}, **{f"extra {one}": one for one in range(1000)}}),
    ("submit_job", {"job_type": "say", "params": {"text": _nested(100)}}),
    ("submit_job", {"job_type": "say", "params": {"text": _nested(220)}}),
    ("submit_job", {"job_type": "say", "params": "text"}),
    ("submit_job", {"job_type": "say", "params": {"text": "x"}, "depends_on": [7] * 100}),
    ("list_jobs", {"cursor": "nonsense"}),
    ("list_jobs", {"status": ["HAPPY"]}),
    ("show_queue", {"office_id": "b"}),
    ("list_schedules", {"office_id": "b"}),
    ("cancel_job", {"job_id": "x", "reason": "\0"}),
    ("rm_rf", {"path": "/"}),
]


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_nonsense_is_refused_with_a_sentence_and_changes_nothing(server: ServerProcess, way: str) -> None:
    async with server.agent(way) as agent:
        before = (await agent.call("list_jobs", limit=50))["items"]
        for tool, arguments in NONSENSE:
            try:
                said = await agent.refused(tool, **arguments)
            except MCPError as error:
                said = str(error)
            assert len(said) > 15, (tool, arguments)
            assert "Traceback" not in said
            assert "Internal" not in said, (tool, arguments, said)
            assert not any(words in said for words in ("validation error", "Error executing")), (tool, arguments, said)
            assert len(said) < 2_000, said

        assert (await agent.call("list_jobs", limit=50))["items"] == before
    log = (server.data / "serve.log").read_text()
    assert "Traceback" not in log


async def test_a_refusal_of_arguments_names_each_problem_and_what_there_is(
    server: ServerProcess,
) -> None:
    async with server.agent("http") as agent:
        say = {"job_type": "say", "params": {"text": "x"}}
        schemas = {one.name: one.input_schema for one in (await agent.client.list_tools()).tools}

        misspelt = await agent.refused("submit_job", **say, dryrun=True)
        wrong = await agent.refused("submit_job", params=[1], timeout_seconds=-1)
        bound = await agent.refused("list_jobs", limit=51)

        assert misspelt.startswith("there is no argument 'dryrun'; the arguments of submit_job are job_type, params, ")
        assert "job_type is missing; give it" in wrong
        assert "params is a list; it must be a JSON object" in wrong
        assert "timeout_seconds is -1; it must be above 0" in wrong
        assert bound == "limit is 51; it must be at most 50"
        assert [schema["additionalProperties"] for schema in schemas.values()] == [False] * len(schemas)


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_a_wrong_prompt_is_refused_with_a_sentence(server: ServerProcess, way: str) -> None:
    async with server.agent(way) as agent:
        for name, said in (("nothing", "nothing"), ("diagnose_job", "job_id")):
            with pytest.raises(MCPError, match=rf"{said}.*prompts/list has the prompts"):
                await agent.client.get_prompt(name, {})


async def test_a_message_that_cannot_be_read_is_answered_over_stdio(server: ServerProcess) -> None:
    environment = {**os.environ, "NEXTSLOT_URL": server.url, "NEXTSLOT_API_KEY": server.keys["submit a"]}
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "nextslot.cli.main", "mcp", env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert agent.stdin is not None
    assert agent.stdout is not None
    deep = "[" * 500 + "]" * 500
    request = '{{"jsonrpc": "2.0", "id": {}, "method": "ping", "params": {}}}\n'

    agent.stdin.write(request.format(1, deep).encode() + request.format('"two"', deep).encode() + b"{\n")
    answers = [json.loads(await agent.stdout.readline()) for _ in range(3)]
    agent.stdin.close()

    assert [one["id"] for one in answers] == [1, "two", None]
    assert all("the message cannot be read" in one["error"]["message"] for one in answers)
    assert await agent.wait() == 0


def test_the_route_refuses_what_is_not_the_protocol_or_has_no_key(server: ServerProcess) -> None:
    def send(method: str = "POST", key: str | None = "read a", **more: Any) -> httpx2.Response:
        headers = {"X-API-Key": server.keys[key]} if key else {}
        return httpx2.request(method, f"{server.url}/mcp", headers={**headers, **more.pop("headers", {})}, **more)

    assert send(key=None, json={}).status_code == 401
    assert send("GET").status_code == 405
    assert send(content=b"{", headers={"content-type": "application/json"}).status_code == 400
    assert send(json=[]).status_code in (400, 406)
    assert send(json={"jsonrpc": "2.0"}).status_code in (400, 406)
    assert send(json={"x": "y" * 2_000_000}).status_code == 413
    assert send(json={}, headers={"Host": "evil.example"}).status_code == 403
    assert send(json={}, headers={"Origin": "http://evil.example"}).status_code == 403


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_a_server_that_is_killed_in_the_middle_of_a_wait_loses_no_job(tmp_path: Path, way: str) -> None:
    server = _new_server(tmp_path)
    server.start()
    try:
        async with server.agent(way, None) as agent:
            job = await agent.call("submit_job", job_type="slow", params={"seconds": 3}, idempotency_key="k")
            waiting = asyncio.ensure_future(
                agent._called("wait_for_job", {"job_id": job["job_id"], "timeout_seconds": 5})
            )
            await agent.has_progress.wait()
            await asyncio.to_thread(server.end, signal.SIGKILL)
            if way == "stdio":
                said = (await waiting).content[0].text
                assert "no server answers" in said
                assert "call wait_for_job again" in said
            else:
                await asyncio.gather(waiting, return_exceptions=True)
            await asyncio.to_thread(server.start)
            again = await agent.call("submit_job", job_type="slow", params={"seconds": 3}, idempotency_key="k")
            ended: dict[str, Any] = {"ended": False}
            for _ in range(10):
                if not ended["ended"]:
                    ended = await agent.call("wait_for_job", job_id=job["job_id"], timeout_seconds=20)

        assert (again["job_id"], again["is_new"]) == (job["job_id"], False)
        assert ended["ended"]
        assert ended["attempts"][0]["status"] == "FAILED"
    finally:
        server.end()


async def test_without_keys_a_session_cancels_what_it_has_submitted_and_nothing_else(tmp_path: Path) -> None:
    server = _new_server(tmp_path)
    server.start()
    slow: dict[str, Any] = {"job_type": "slow", "params": {"seconds": 100}}
    try:
        async with (
            server.agent("stdio", None) as by_stdio,
            server.agent("http, older", None) as by_http,
            server.agent("http, older", None) as other,
            server.agent("http", None) as without_session,
        ):
            for agent, stranger in ((by_stdio, by_http), (by_http, by_stdio), (by_http, other), (other, by_http)):
                job = await agent.call("submit_job", **slow)

                assert "by somebody else" in await stranger.refused("cancel_job", job_id=job["job_id"])
                assert "keeps no session" in await without_session.refused("cancel_job", job_id=job["job_id"])
                await agent.call("cancel_job", job_id=job["job_id"], interrupt=True)

            kept = await by_http.call("submit_job", **slow, idempotency_key="same")
            for stranger in (other, by_stdio):
                again = await stranger.call("submit_job", **slow, idempotency_key="same")
                assert (again["job_id"], again["is_new"]) == (kept["job_id"], False)
                assert "by somebody else" in await stranger.refused("cancel_job", job_id=kept["job_id"])
            alone = await without_session.call("submit_job", **slow)
            assert "Ask a person" in await without_session.refused("cancel_job", job_id=alone["job_id"])
            await by_http.call("cancel_job", job_id=kept["job_id"], interrupt=True)
            httpx2.post(f"{server.url}/api/jobs/{alone['job_id']}/cancel", json={"interrupt": True})
    finally:
        server.end()


@both
async def test_types_are_listed_in_pages_and_only_those_that_the_key_may_create(
    server: ServerProcess, way: str
) -> None:
    server.keys["narrow"] = server.keys.get("narrow") or server._made(
        "narrow", ["submit"], office_id="a", job_types=["say", "slow"]
    )
    async with server.agent(way) as agent, server.agent(way, "narrow") as narrow:
        every = (await agent.call("list_job_types", limit=50))["items"]
        first = await agent.call("list_job_types", limit=2)
        cursor = first["more"].split("'")[1]
        rest = await agent.call("list_job_types", limit=50, cursor=cursor)
        few = await narrow.call("list_job_types")
        hidden = await narrow.refused("list_job_types", name="held")
        refused = await narrow.refused("submit_job", job_type="held", params={"seconds": 1})
        unknown = await agent.refused("list_job_types", name="nothing", limit=1)
        schema = await narrow.call("list_job_types", name="say")

    names = [one["job_type"] for one in every]
    assert names == sorted(names)
    assert [one["job_type"] for one in (*first["items"], *rest["items"])] == names
    assert len(first["items"]) == 2
    assert [one["job_type"] for one in few["items"]] == ["say", "slow"]
    assert "more" not in few
    assert "'held' that you can submit; there are: say, slow" in hidden
    assert "held" in refused
    assert f"there are: {names[0]} and {len(names) - 1} more, which list_job_types lists" in unknown
    assert schema["job_type"] == "say"


@both
async def test_an_agent_finds_jobs_by_a_query_and_what_waits_for_a_person(server: ServerProcess, way: str) -> None:
    async with server.agent(way) as agent:
        word = f"zebra{way.replace(', ', '')}"
        say = {"job_type": "say", "params": {"text": word}, "title": f"{word} crossing"}
        asks = await agent.call("submit_job", **say, approval="May it be said?")
        plain = await agent.call("submit_job", **say)
        await agent.call("wait_for_job", job_id=plain["job_id"])

        async def found(**query: Any) -> list[str]:
            return [one["job_id"] for one in (await agent.call("list_jobs", **query))["items"]]

        assert await found(text=f"params.text={word} status:completed since:1h") == [plain["job_id"]]
        assert await found(text=f"{word} is:awaiting") == [asks["job_id"]]
        assert await found(text=word, awaiting_signal=True) == [asks["job_id"]]
        assert await found(text=word, awaiting_signal=False) == [plain["job_id"]]
        listed = await agent.call("list_jobs", text=word, awaiting_signal=True)
        assert "May it be said?" in listed["items"][0]["awaiting"]
        assert "'colour' is no field" in await agent.refused("list_jobs", text="colour:red")
        await agent.call("cancel_job", job_id=asks["job_id"])


async def test_prompts_name_the_tools_that_exist(server: ServerProcess) -> None:
    async with server.agent("http") as agent:
        prompts = (await agent.client.list_prompts()).prompts
        texts = [
            (await agent.client.get_prompt(one.name, {one.arguments[0].name: "x"})).messages[0].content.text
            for one in prompts
        ]

        assert {one.name for one in prompts} == {"diagnose_job", "run_work"}
        named = {word.strip(".,;`") for text in [*texts, tools.INSTRUCTIONS] for word in text.split()}
        assert {word for word in named if "_job" in word or word.startswith("list_")} <= {*NEEDS}


def test_without_the_extra_a_sentence_says_how_to_install_it() -> None:
    program = "import sys; sys.modules['mcp'] = None; from nextslot.cli.main import main; main(['mcp'])"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 1
    assert done.stderr == "nextslot: the extra mcp is not installed: pip install 'nextslot[mcp]'\n"
    assert routes.HAS_SDK


class NewTask(Result):
    """A task as the extension's specification has it, flat."""

    model_config = ConfigDict(extra="allow")

    result_type: Literal["task"] = Field(alias="resultType")
    task_id: str = Field(alias="taskId")
    status: str


class TaskState(Result):
    model_config = ConfigDict(extra="allow")

    status: str
    status_message: str | None = Field(None, alias="statusMessage")
    result: dict[str, Any] | None = None


class TaskId(RequestParams):
    task_id: str = Field(serialization_alias="taskId")


class TaskRequest(Request[TaskId, str]):
    name_param = "taskId"

    @classmethod
    def of(cls, method: str, task_id: str) -> "TaskRequest":
        return cls(method=f"tasks/{method}", params=TaskId(task_id=task_id))


class KnowsTasks(ClientExtension):
    """A client that knows tasks: it asks until a task has ended, and shows its caller the result."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self) -> None:
        self.tasks: list[str] = []
        self.states: list[TaskState] = []
        self.has_asked = asyncio.Event()

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=NewTask, resolve=self._resolve)]

    async def _resolve(self, task: NewTask, context: ClaimContext) -> CallToolResult:
        self.tasks.append(task.task_id)
        while True:
            state = await context.session.send_request(TaskRequest.of("get", task.task_id), TaskState)
            self.states.append(state)
            self.has_asked.set()
            if state.status == "cancelled":
                return CallToolResult(content=[], is_error=True)
            if state.status != "working":
                return CallToolResult.model_validate(state.result)
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_a_client_that_knows_tasks_gets_one_for_a_wait_without_a_bound(server: ServerProcess, way: str) -> None:
    knows = KnowsTasks()
    async with server.agent(way, "submit a", extensions=[knows]) as agent, server.agent("http", "other a") as other:
        job = await agent.call("submit_job", job_type="slow", params={"seconds": 2})

        ended = await agent.call("wait_for_job", job_id=job["job_id"])
        again = await agent.call("wait_for_job", job_id=job["job_id"])
        bounded = await agent.call("submit_job", job_type="slow", params={"seconds": 100})
        waited = await agent.call("wait_for_job", job_id=bounded["job_id"], timeout_seconds=1)
        plain = await other.call("wait_for_job", job_id=bounded["job_id"], timeout_seconds=1)
        missing = await agent.refused("wait_for_job", job_id="nobody")

        assert knows.tasks == [job["job_id"]]
        assert {one.status for one in knows.states} == {"working", "completed"}
        assert knows.states[0].status_message
        assert (ended["ended"], ended["status"]) == (True, "COMPLETED")
        assert again == ended
        assert (waited["ended"], plain["ended"]) == (False, False)
        assert "there is no job" in missing
        await agent.call("cancel_job", job_id=bounded["job_id"], interrupt=True)


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_a_task_is_cancelled_by_its_own_agent_only_and_outlives_its_connection(
    server: ServerProcess, way: str
) -> None:
    knows = KnowsTasks()
    async with server.agent(way, "submit a", extensions=[knows]) as agent:
        job = await agent.call("submit_job", job_type="say", params={"text": "x"}, approval="May it be said?")
        waiting = asyncio.ensure_future(agent._called("wait_for_job", {"job_id": job["job_id"]}))
        await knows.has_asked.wait()
        shown = await agent.call("get_job", job_id=job["job_id"])
        waiting.cancel()
    assert "May it be said?" in (knows.states[0].status_message or "")
    assert "nextslot approve" in shown["awaiting"]

    async with server.agent("http", "other a", extensions=[KnowsTasks()]) as other:
        with pytest.raises(MCPError, match="was submitted by 'submit a', not by you"):
            await other.client.session.send_request(TaskRequest.of("cancel", job["job_id"]), Result)
    async with server.agent("http", "operate b", extensions=[KnowsTasks()]) as stranger:
        for method in ("get", "cancel"):
            with pytest.raises(MCPError, match="there is no job"):
                await stranger.client.session.send_request(TaskRequest.of(method, job["job_id"]), Result)
    async with server.agent("http", "submit a") as unaware:
        with pytest.raises(MCPError, match="must declare the extension"):
            await unaware.client.session.send_request(TaskRequest.of("get", job["job_id"]), Result)
    async with server.agent(way, "submit a", extensions=[KnowsTasks()]) as agent:
        send = agent.client.session.send_request
        for _ in range(2):
            await send(TaskRequest.of("cancel", job["job_id"]), Result)
        state = await send(TaskRequest.of("get", job["job_id"]), TaskState)
        with pytest.raises(MCPError, match="people answer signals"):
            await send(TaskRequest.of("update", job["job_id"]), Result)

    assert state.status == "cancelled"


async def test_an_agent_asks_for_an_approval_and_cannot_give_it(server: ServerProcess) -> None:
    async with server.agent("http") as agent:
        call = {"job_type": "say", "params": {"text": "deployed"}, "approval": "May it go live?"}
        tried = await agent.call("submit_job", **call, dry_run=True)
        job = await agent.call("submit_job", **call)
        why = await agent.call("explain_job", job_id=job["job_id"])
        waited = await agent.call("wait_for_job", job_id=job["job_id"], timeout_seconds=1)
        answer = f"{server.url}/api/jobs/{job['job_id']}/signals/approval"
        answers = [httpx2.post(answer, headers={"X-API-Key": server.keys[name]}) for name in ("submit a", "operate b")]
        approved = httpx2.post(answer, headers={"X-API-Key": server.keys["operate a"]})
        ended = await agent.call("wait_for_job", job_id=job["job_id"])

        assert "signal" in tried["codes"]
        assert "May it go live?" in why["reasons"][0]
        assert "May it go live?" in waited["awaiting"]
        assert [one.status_code for one in answers] == [403, 404]
        assert (approved.status_code, approved.json()["sent_by"]) == (201, "operate a")
        assert ended["status"] == "COMPLETED"
