"""Spec 18: a request has an id that is in its answer and in all its lines, and one line that gives nothing away."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from nextslot.server.app import Options
from nextslot.server.request_log import HEADER
from nextslot.services.lists import ListService
from nextslot.telemetry.logs import LogOutput
from tests import databases

from .support import serving


class Lines:
    """What was logged, as the server writes it."""

    def __init__(self) -> None:
        self._stream = io.StringIO()
        self.output = LogOutput("json", (), self._stream)

    @property
    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._stream.getvalue().splitlines()]

    def of(self, request_id: str) -> list[dict[str, Any]]:
        return [line for line in self.all if line.get("request_id") == request_id]

    @property
    def text(self) -> str:
        return self._stream.getvalue()


@pytest.fixture
def lines() -> Iterator[Lines]:
    found, logger = Lines(), logging.getLogger("nextslot")
    level = logger.level
    logger.addHandler(found.output)
    logger.setLevel(logging.DEBUG)
    yield found
    logger.removeHandler(found.output)
    logger.setLevel(level)


async def test_a_request_leaves_one_line_with_its_route_status_time_and_caller(tmp_path: Path, lines: Lines) -> None:
    async with serving(tmp_path) as server:
        await server.client.get("/api/jobs/some-job", headers={HEADER: "abc-1"})

    [line] = lines.of("abc-1")
    assert line.pop("duration_ms") > 0
    assert line | {"timestamp": ""} == {
        "timestamp": "",
        "level": "info",
        "logger": "nextslot.server.request_log",
        "event": "GET /api/jobs/{job_id} 404",
        "request_id": "abc-1",
        "method": "GET",
        "route": "/api/jobs/{job_id}",
        "status": 404,
        "caller": "local",
    }


async def test_the_id_of_the_caller_is_answered_and_a_strange_one_is_replaced(tmp_path: Path) -> None:
    given = ("a.b_c:d-9", "x" * 100, "x" * 101, "two words", "-", '{"a": 1}', "é", "")

    async with serving(tmp_path) as server:
        answers = [await server.client.get("/health", headers=[(b"x-request-id", one.encode())]) for one in given]
        answered = [answer.headers[HEADER] for answer in answers]

    assert answered[:2] == list(given[:2])
    assert not set(answered[2:]) & set(given)
    assert len(set(answered)) == len(given)


async def test_the_name_of_the_key_is_told_and_neither_the_key_nor_the_query_is(tmp_path: Path, lines: Lines) -> None:
    async with serving(tmp_path) as server:
        _, key = await server.scheduler.keys.create("nightly build", ["admin"])
        headers = {"X-API-Key": key, "Cookie": "session=oatmeal"}
        await server.client.get("/api/jobs?status=QUEUED&secret=hunter2", headers=headers)
        await server.client.get("/api/jobs?secret=hunter2")

    admitted, refused = [line for line in lines.all if line.get("route") == "/api/jobs"]
    assert admitted["caller"] == "nightly build"
    assert (refused["status"], "caller" in refused) == (401, False)
    for secret in (key, "hunter2", "oatmeal", "status=QUEUED"):
        assert secret not in lines.text


async def test_what_the_guard_refuses_and_what_is_no_route_is_told_too_without_its_path(
    tmp_path: Path, lines: Lines
) -> None:
    async with serving(tmp_path) as server:
        await server.client.get("/api/jobs", headers={"Host": "evil.example"})
        await server.client.get("/whsec/token-in-a-path")

    told = [(line["route"], line["status"]) for line in lines.all if "route" in line]
    assert told == [("unmatched", 403), ("unmatched", 404)]
    assert "token-in-a-path" not in lines.text


async def test_probes_are_quiet_and_what_broke_is_loud(
    tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        for path in ("/health", "/ready", "/metrics", "/api/jobs"):
            await server.client.get(path)
        monkeypatch.setattr(ListService, "status", _break)
        await server.client.get("/api/status")

    levels = {line["route"]: line["level"] for line in lines.all if "route" in line}
    assert levels == {
        "/health": "debug",
        "/ready": "debug",
        "/metrics": "debug",
        "/api/jobs": "info",
        "/api/status": "error",
    }


async def test_what_is_only_busy_now_is_no_error_and_a_database_that_takes_nothing_is_one(
    tmp_path: Path, lines: Lines
) -> None:
    async with serving(tmp_path) as server:
        await server.client.patch("/api/offices/default", json={"max_concurrent_jobs": 1})
        held = await server.client.post("/api/jobs", json={"job_type": "gate"})
        hurried = {"wait_timeout_seconds": 0.05}
        busy = await server.client.post("/api/direct/echo", json=hurried, headers={HEADER: "busy"})
        body = {"job_type": "echo", "params": {"text": "x" * 100_000}}
        with databases.taking_nothing(server.scheduler._access.store):
            refused = await server.client.post("/api/jobs", json=body, headers={HEADER: "refused"})
        assert (held.status_code, busy.status_code, refused.status_code) == (201, 503, 503)

    assert [line["level"] for line in lines.of("busy")] == ["warning"]
    assert [line["level"] for line in lines.of("refused")] == ["error", "warning"]


async def test_every_line_of_a_request_has_its_id_and_those_of_others_have_theirs(
    tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        monkeypatch.setattr(ListService, "status", _break)
        asked = [server.client.get("/api/status", headers={HEADER: f"id-{number}"}) for number in range(3)]
        answers: list[httpx2.Response] = await asyncio.gather(*asked)
        assert [answer.headers[HEADER] for answer in answers] == ["id-0", "id-1", "id-2"]

    for number in range(3):
        about = lines.of(f"id-{number}")
        assert [line["logger"] for line in about] == ["nextslot.server.problems", "nextslot.server.request_log"]
        assert [line["level"] for line in about] == ["error", "error"]
        assert "exception" in about[0]


async def test_a_run_is_not_told_as_part_of_the_request_that_submitted_it(tmp_path: Path, lines: Lines) -> None:
    async def speak(run: Any) -> None:
        logging.getLogger("nextslot.test").info("spoken")

    async with serving(tmp_path) as server:
        server.scheduler.job_types.add("speak", speak)
        made = await server.client.post("/api/jobs", json={"job_type": "speak"}, headers={HEADER: "asked"})
        await server.ended(made.json()["job_id"])

    [spoken] = [line for line in lines.all if line["event"] == "spoken"]
    assert "request_id" not in spoken
    assert {"job_id", "run_id"} <= spoken.keys()


async def test_below_a_proxys_path_the_route_is_the_same(tmp_path: Path, lines: Lines) -> None:
    async with serving(tmp_path, Options(root_path="/scheduler")) as server:
        await server.client.get("/scheduler/api/jobs", headers={HEADER: "proxied"})

    [line] = lines.of("proxied")
    assert (line["route"], line["status"]) == ("/api/jobs", 200)


async def _break(lists: ListService) -> Any:
    raise RuntimeError("it broke")
