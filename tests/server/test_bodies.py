"""Bodies of requests: bounded before they are parsed, parsed without stopping others, and refused with a sentence."""

import asyncio
import json
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from nextslot.errors import Invalid
from nextslot.executors.run_context import RunContext
from nextslot.server import json_body, request_body
from nextslot.server.app import Options
from nextslot.server.problems import HttpProblem
from nextslot.server.request_body import Bodies, BodyLimits

from .support import ServerThread, serving

JSON = {"content-type": "application/json"}
MIB = 1024 * 1024
LATER = "2999-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, database_of_the_module: str) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("bodies")) as running:
        running.server.scheduler.job_types.add("anything", _anything)
        yield running


@pytest.fixture(scope="module")
def client(server: ServerThread) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=60) as made:
        yield made


async def _anything(run: RunContext, value: Any = None) -> None:
    """Takes whatever JSON there is."""


def sent(client: httpx2.Client, body: Any, path: str = "/api/jobs") -> tuple[int, str, str]:
    answer = client.post(path, content=body, headers=JSON)
    return answer.status_code, answer.json()["code"], answer.json()["detail"]


@pytest.mark.parametrize(("path", "limit"), [("/api/jobs", MIB), ("/api/jobs/batch", 64 * MIB)])
def test_a_body_is_refused_by_its_length_before_a_byte_of_it_is_sent(
    server: ServerThread, path: str, limit: int
) -> None:
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=30) as line:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        line.sendall(f"{head}Content-Length: {limit + 1}\r\n\r\n".encode())

        assert line.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_an_endless_chunked_body_is_refused_at_the_limit_of_its_route(client: httpx2.Client) -> None:
    def endless() -> Iterator[bytes]:
        yield b'{"job_type": "'
        for _ in range(64):
            yield b"x" * 65536

    assert sent(client, endless())[:2] == (413, "too_large")


def test_a_batch_that_is_larger_than_any_other_body_is_taken_item_by_item(client: httpx2.Client) -> None:
    jobs = [{"job_type": "echo", "params": {"text": f"{n} é \U0001f600 {'x' * 100_000}"}, "scheduled_for": LATER}
            for n in range(15)]  # fmt: skip

    answer = client.post("/api/jobs/batch", content=json.dumps({"jobs": jobs}), headers=JSON)

    assert answer.status_code == 201
    assert [one["params"] for one in answer.json()["items"]] == [one["params"] for one in jobs]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"job_type": "anything", "params": {"value": ' + b"[" * 500 + b"]" * 500 + b"}}",
        b'{"job_type": "echo", "webhook": ' + b'{"a":' * 900 + b"1" + b"}" * 901,
    ],
    ids=["lists", "objects", "params", "webhook"],
)
def test_a_body_that_is_nested_deep_is_refused(client: httpx2.Client, body: bytes) -> None:
    assert sent(client, body)[0] in (400, 422)


def test_a_body_of_too_many_values_keys_items_or_problems_is_refused_with_a_sentence(client: httpx2.Client) -> None:
    def keys(count: int) -> str:
        return "{" + ",".join(f'"{number:06}":1' for number in range(count)) + "}"

    too_many_items = '{"jobs": [' + ",".join(["{}"] * 100_001) + "]" + " " * 2 * MIB + "}"

    assert sent(client, keys(95_000))[1:] == ("invalid", "there are 95,000 problems, too many to list; correct the fields and send it again")  # fmt: skip  # noqa: E501
    assert sent(client, '{"jobs": [' + ",".join(["{}"] * 3_100_000) + "]}", "/api/jobs/batch")[0] == 413
    assert sent(client, keys(200_000), "/api/jobs/batch")[1:] == ("invalid", "the body has more than 1,000 keys, the most that are allowed; send fewer")  # fmt: skip  # noqa: E501
    assert sent(client, too_many_items, "/api/jobs/batch")[1:] == ("invalid", "jobs has more than 100,000 items, the most that are allowed; send fewer at once")  # fmt: skip  # noqa: E501
    assert sent(client, "[" + "1," * 150_000 + "1]")[1:] == ("too_large", "the body has more than 100,000 values, the most that are allowed here; send fewer")  # fmt: skip  # noqa: E501


def test_a_batch_in_which_everything_is_wrong_is_refused_with_the_first_problems(client: httpx2.Client) -> None:
    wrong = [dict.fromkeys((f"key{number}" for number in range(50)), 1) for _ in range(1000)]

    answer = client.post("/api/jobs/batch", json={"jobs": wrong})

    assert answer.status_code == 422
    assert len(answer.json()["errors"]) == 100


@pytest.mark.parametrize(
    "body",
    [
        b'{"job_type": "anything", "job_type": "echo"}',
        b'{"job_type": "anything", "params": {"value": [{"a": 1, "\\u0061": 2}]}}',
        b'{"job_type": "anything", "params": {"value": 1}, "params": {}' + b" " * 70_000 + b"}",
    ],
)
def test_a_key_that_is_given_twice_is_refused(client: httpx2.Client, body: bytes) -> None:
    status, code, detail = sent(client, body)

    assert (status, code) == (422, "invalid")
    assert "twice" in detail


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/jobs/a%00b", None),
        ("GET", "/api/jobs/%00", None),
        ("GET", "/api/jobs?q=%00", None),
        ("GET", "/api/jobs?office_id=a%00", None),
        ("POST", "/api/jobs/a%00/cancel", {}),
        ("POST", "/api/jobs", {"job_type": "ec\0ho"}),
        ("POST", "/api/jobs", {"job_type": "anything", "params": {"value": ["\0"]}}),
        ("POST", "/api/jobs", {"job_type": "echo", "office_id": "\0"}),
        ("POST", "/api/jobs", {"job_type": "echo", "depends_on": ["\0"]}),
        ("POST", "/api/jobs/cancel", {"task_id": ["\0"]}),
        ("PUT", "/api/queue/order", {"job_ids": ["\0"]}),
    ],
)
def test_nul_is_refused_everywhere_and_is_no_failure_of_the_store(
    server: ServerThread, client: httpx2.Client, method: str, path: str, body: Any
) -> None:
    health = server.server.scheduler._access.store.health
    answer = client.request(method, path, json=body) if body is not None else client.request(method, path)

    assert answer.status_code == 422
    assert "NUL" in answer.json()["detail"]
    assert health.failure() is None


def test_text_that_only_looks_like_nul_or_half_a_character_is_kept(client: httpx2.Client) -> None:
    value = ["\\u0000", "\\\\u0000", "\\ud800", "\U0001f600"]

    answer = client.post("/api/jobs", json={"job_type": "anything", "params": {"value": value}, "scheduled_for": LATER})

    assert answer.json()["params"] == {"value": value}


@pytest.mark.parametrize("size", [20_000, 500_000, 2 * MIB])
async def test_others_are_answered_while_a_large_body_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    is_parsing, was_answered, parse = threading.Event(), threading.Event(), json_body.parse

    def parse_slowly(*arguments: Any) -> Any:
        is_parsing.set()
        assert was_answered.wait(30), "nobody was answered while the body was parsed"
        return parse(*arguments)

    monkeypatch.setattr(json_body, "parse", parse_slowly)
    job = json.dumps({"job_type": "nothing", "params": {"text": "x" * 10_000}})
    body = f'{{"jobs": [{",".join([job] * (size // len(job) + 1))}]}}'
    async with serving(tmp_path) as server:
        large = asyncio.create_task(server.client.post("/api/jobs/batch", content=body, headers=JSON))
        await asyncio.to_thread(is_parsing.wait, 30)
        other = await server.client.get("/api/status")
        was_answered.set()

        assert other.status_code == 200
        assert (await large).status_code == 422


def test_the_parser_of_a_large_body_pauses_between_items() -> None:
    pauses: list[float] = []
    body = b"[" + b",".join([b'{"a": [1, 2, 3]}'] * 50_000) + b"]"

    json_body.parse(body, 100_000, pauses.append)

    assert len(pauses) > 10


async def test_a_body_waits_for_the_others_of_its_caller_and_is_refused_when_it_has_waited_too_long(
    tmp_path: Path,
) -> None:
    bodies = Bodies(BodyLimits(of_caller=100_000), wait_seconds=0.05)
    job = json.dumps({"job_type": "echo", "params": {"text": "x" * 60_000}})
    arrives = asyncio.Event()

    async def half_sent() -> Any:
        yield b" "
        await arrives.wait()
        yield job.encode()

    async with serving(tmp_path, Options(bodies=bodies)) as server:
        first = asyncio.create_task(server.client.post("/api/jobs", content=half_sent(), headers=JSON))
        while not bodies.bytes_in_progress:  # noqa: ASYNC110 - the server's time
            await asyncio.sleep(0.01)
        second = await server.client.post("/api/jobs", content=job, headers=JSON)
        small = await server.client.post("/api/jobs", json={"job_type": "echo"})
        arrives.set()

        assert (second.status_code, second.json()["code"]) == (429, "overloaded")
        assert int(second.headers["retry-after"]) >= 1
        assert small.status_code == 201
        assert (await first).status_code == 201
        assert (await server.client.post("/api/jobs", content=job, headers=JSON)).status_code == 201
        assert bodies.bytes_in_progress == 0


async def test_a_body_that_arrives_too_slowly_is_refused_and_counts_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_body, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(request_body, "BYTES_PER_SECOND", 10**12)
    bodies = Bodies()
    async with serving(tmp_path, Options(bodies=bodies)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.client.base_url.port)
        writer.write(b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        writer.write(b"Content-Length: 500000\r\n\r\n{")

        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
        assert bodies.bytes_in_progress == 0
        writer.close()


def test_a_body_in_pieces_is_parsed_as_it_would_be_at_once() -> None:
    chance = random.Random(7)
    for _ in range(300):
        wanted = {f"{number}é": value(chance, 3) for number in range(chance.randrange(20))}
        text = json.dumps(wanted, ensure_ascii=chance.random() < 0.5, indent=chance.choice([None, 1, 40]))

        assert json_body.parse(text.encode() + b" " * 6000, 6000, lambda _: None) == wanted


def value(chance: random.Random, depth: int) -> Any:
    if not depth or chance.random() < 0.3:
        return chance.choice([1, -2.5, 10**18, True, None, "", 'a,]}\\"\n', "é\U0001f600", {}, []])
    if chance.random() < 0.7:
        return [value(chance, depth - 2) if depth > 1 else 1 for _ in range(chance.randrange(30))]
    return {str(number): 0 for number in range(4)}


@pytest.mark.parametrize("body", [
    '{"a": [1 2]}', '{"a": [1,]}', '{"a" 1}', '{"a": 1,}', "{1: 2}", '{"a": 1', '{"a": [1', '{"a": tru}', '{"a": NaN}',
    '{} {}', '{"a": "\\ud800"}', '{"a": 1e999}', '{"a": 99999999999999999999}', '{"a": "\n"}',
])  # fmt: skip
def test_what_is_refused_at_once_is_refused_in_pieces_too(body: str) -> None:
    for most_item in (10_000, 100):
        with pytest.raises((HttpProblem, Invalid)):
            json_body.parse((body + " " * 200).encode(), most_item, lambda _: None)


def test_an_item_that_is_larger_than_a_single_body_may_be_is_refused() -> None:
    for item in ('"' + "x" * 5000 + '"', "[" + "1," * 3000 + "1]"):
        with pytest.raises(HttpProblem, match="an item of the body has more than 1,000 bytes"):
            json_body.parse(f'{{"a": [1, {item}], "b": []}}'.encode(), 1000, lambda _: None)
