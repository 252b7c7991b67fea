"""What a demanding caller tries: odd bodies, odd methods, filters that name nothing. Each is refused, or right."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from nextslot.executors.run_context import RunContext

from .support import ServerThread

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, database_of_the_module: str) -> Path:
    return tmp_path_factory.mktemp("attacks")


@pytest.fixture(scope="module")
def client(data: Path) -> Iterator[httpx2.Client]:
    with ServerThread(data) as server, httpx2.Client(base_url=server.url, timeout=30) as made:
        server.server.scheduler.job_types.add("anything", _anything)
        yield made


async def _anything(run: RunContext, value: Any = None) -> None:
    """Takes whatever JSON there is."""


def sent(client: httpx2.Client, body: bytes, path: str = "/api/jobs", **headers: str) -> httpx2.Response:
    return client.post(path, content=body, headers=JSON | headers)


@pytest.mark.parametrize("number", ["18446744073709551616", "-9223372036854775809", "9" * 100])
def test_a_whole_number_that_would_lose_digits_is_refused(client: httpx2.Client, number: str) -> None:
    answer = sent(client, b'{"job_type": "anything", "params": {"value": %s}}' % number.encode())

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert number in answer.json()["detail"]


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 0.12345678901234567, "9" * 100])
def test_what_has_many_digits_but_loses_none_is_kept_as_it_is(client: httpx2.Client, value: Any) -> None:
    answer = client.post("/api/jobs", json={"job_type": "anything", "params": {"value": value}, **later()})

    assert answer.status_code == 201
    assert answer.json()["params"] == {"value": value}


def test_a_long_number_deep_inside_is_no_error_of_ours(client: httpx2.Client) -> None:
    depth = 1000
    body = b'{"job_type": "anything", "params": {"value": %s1234567890123456789%s}}' % (b"[" * depth, b"]" * depth)

    assert sent(client, body).status_code in (400, 422)


def test_a_body_that_is_no_json_is_told_where_it_ceases_to_be(client: httpx2.Client) -> None:
    answer = sent(client, b'{"job_type": echo}')

    assert (answer.status_code, answer.json()["code"]) == (400, "malformed")
    assert "after 13 characters" in answer.json()["detail"]


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b'"text"', b"1"])
def test_a_body_that_is_no_object_is_told_that_one_is_needed(client: httpx2.Client, body: bytes) -> None:
    answer = sent(client, body)

    assert answer.status_code == 422
    assert "a JSON object" in answer.json()["detail"]


def test_a_field_of_several_types_is_named_as_the_caller_wrote_it(client: httpx2.Client) -> None:
    answer = sent(client, b'{"job_type": "echo", "resources": {"gpu": 1.5}}')

    assert {one["field"] for one in answer.json()["errors"]} == {"resources.gpu", "resources"}


def test_a_body_that_is_compressed_is_415_and_says_so(client: httpx2.Client) -> None:
    answer = sent(client, b"{}", **{"content-encoding": "gzip"})

    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
    assert "gzip" in answer.json()["detail"]


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/api/jobs", "/openapi.json"])
def test_head_answers_as_get_does_without_a_body(client: httpx2.Client, path: str) -> None:
    head, got = client.head(path), client.get(path)

    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == got.headers["content-type"]


def test_head_of_a_stream_ends(client: httpx2.Client) -> None:
    answer = client.head("/api/events", headers={"accept": "text/event-stream"})

    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")


def test_head_of_what_can_only_be_changed_is_405(client: httpx2.Client) -> None:
    answer = client.head("/api/jobs/batch")

    assert answer.status_code == client.get("/api/jobs/batch").status_code != 200


@pytest.mark.parametrize("nothing", [[], ""])
@pytest.mark.parametrize("field", ["task_id", "group_id", "status"])
def test_a_bulk_cancel_whose_list_happens_to_be_empty_cancels_nothing(
    client: httpx2.Client, field: str, nothing: Any
) -> None:
    job = client.post("/api/jobs", json={"job_type": "echo", **later()}).json()

    answer = client.post("/api/jobs/cancel", json={"job_type": "echo", field: nothing})

    assert answer.status_code == 422
    assert [one["field"] for one in answer.json()["errors"]] == [field]
    assert client.get(f"/api/jobs/{job['job_id']}").json()["status"] == "WAITING"


def later() -> dict[str, str]:
    return {"scheduled_for": "2999-01-01T00:00:00Z"}


@pytest.fixture
def log(client: httpx2.Client, data: Path) -> tuple[str, Path]:
    """Returns the path of a run's log in the API, and its file."""
    job = client.post("/api/jobs", json={"job_type": "echo", "params": {"text": "hello"}}).json()
    ended: dict[str, Any] = {}
    while ended.get("finished_at") is None:
        ended = client.get(f"/api/jobs/{job['job_id']}").json()
    run = ended["run"]
    return f"/api/job-runs/{run['run_id']}/log", data / run["log_path"]


def test_a_log_whose_directory_is_none_is_empty(client: httpx2.Client, log: tuple[str, Path]) -> None:
    path, file = log
    file.unlink()
    shutil.rmtree(file.parent)
    file.parent.touch()

    answers = [client.get(path, params=query) for query in ({}, {"tail": 3}, {"offset": 5})]

    file.parent.unlink()
    assert [(answer.status_code, answer.text) for answer in answers] == [(200, "")] * 3


def test_a_log_that_cannot_be_read_is_503_and_says_why(client: httpx2.Client, log: tuple[str, Path]) -> None:
    path, file = log
    file.unlink()
    file.mkdir()

    answer = client.get(path)

    file.rmdir()
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert "cannot be read: Is a directory" in answer.json()["detail"]


@pytest.mark.parametrize("offset", [2**31, 2**53, 2**63 - 1, 2**63, 10**30])
def test_a_log_from_far_beyond_its_end_is_empty_or_refused(
    client: httpx2.Client, log: tuple[str, Path], offset: int
) -> None:
    answer = client.get(log[0], params={"offset": offset})

    assert (answer.status_code == 200 and answer.text == "") or answer.status_code == 422


@pytest.mark.parametrize("path", ["/api/jobs?status=QUEUED&status=RUNNING", "/api/reservations?limit=1&limit=2"])
def test_a_query_that_names_something_twice_is_refused_with_the_way_to_write_it(
    client: httpx2.Client, path: str
) -> None:
    answer = client.get(path)

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert "by comma" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/api/jobs", 200), ("GET", "/api/jobs/none", 404), ("GET", "/nowhere", 404), ("DELETE", "/api/jobs", 405),
     ("POST", "/api/jobs", 422), ("GET", "/openapi.json", 200), ("GET", "/health", 200), ("GET", "/metrics", 200)],
)  # fmt: skip
def test_every_answer_says_that_it_is_neither_kept_nor_guessed(
    client: httpx2.Client, method: str, path: str, status: int
) -> None:
    answer = client.request(method, path)

    assert answer.status_code == status
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "no-store" in answer.headers["cache-control"]
    if status >= 400:
        assert answer.headers["content-type"] == "application/problem+json"


def test_files_of_the_console_are_not_guessed_either(client: httpx2.Client) -> None:
    assert client.get("/console/").headers.get_list("x-content-type-options") == ["nosniff"]
