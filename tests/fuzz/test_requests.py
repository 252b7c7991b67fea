"""Requests of every declared kind with hostile values: an answer in words, never a 5xx, and no half-done change."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextslot import Scheduler
from nextslot.server.app import describe
from tests.fuzz.grammars import HOSTILE, fuzzed, json_values, texts
from tests.server.support import ServerThread

pytestmark = pytest.mark.sqlite_only("hundreds of requests; tests/server asks both databases")
DOCUMENT = describe(Scheduler("sqlite:///never-opened.db"))
# Direct callers wait for their turn, and streams for events: tests/server/test_schema.py sends to them.
LEFT_OUT = ("/api/direct", "/api/config", "/jobs/")


def operations(*methods: str) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, operation)
        for path, every in DOCUMENT["paths"].items()
        for method, operation in every.items()
        if method in methods and not path.startswith(LEFT_OUT)
    ]


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return resolved(DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    for choice in schema.get("anyOf", ()):
        if "properties" in (found := resolved(choice)):
            return found
    return schema


def fields_of(operation: dict[str, Any]) -> list[str]:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    return sorted(resolved(content.get("schema", {})).get("properties", {}))


WRITES = operations("post", "put", "patch", "delete")
READS = operations("get")
# Fields that are valid often enough for the checks of the others to run.
RIGHT: dict[str, Any] = {"job_type": "echo", "template_id": "none", "cron_expression": "0 0 * * *", "name": "a name",
                         "url": "http://example.com/", "jobs": [{"job_type": "echo"}]}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """Runs a server whose queue is paused, so that only requests change anything."""
    with ServerThread(tmp_path_factory.mktemp("fuzzed")) as running:
        _, running.key = running.run(running.server.scheduler.keys.create("fuzzer", ["admin"]))
        running.run(running.server.scheduler.pause())
        yield running


@pytest.fixture(scope="module")
def client(server: ServerThread) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, headers={"x-api-key": server.key}, timeout=60) as found:
        yield found


def address(path: str, ids: str) -> str:
    """Returns a path with this text for each of its parameters."""
    while "{" in path:
        path = path[: path.index("{")] + _quoted(ids) + path[path.index("}") + 1 :]
    return path


def _quoted(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode(errors="surrogatepass"))


def last_event(client: httpx2.Client) -> int:
    return int(client.get("/api/status").raise_for_status().json()["last_event"])


@given(st.data())
@fuzzed(150)
def test_a_write_with_hostile_values_is_answered_in_words_and_changes_all_or_nothing(
    server: ServerThread, client: httpx2.Client, data: st.DataObject
) -> None:
    method, path, operation = data.draw(st.sampled_from(WRITES))
    names = [*fields_of(operation), "nothing"]
    body: Any = {name: RIGHT[name] for name in names if name in RIGHT}
    body |= data.draw(st.dictionaries(st.sampled_from(names), json_values(), max_size=3))
    if data.draw(st.integers(0, 9)) == 0:
        body = data.draw(json_values())
    before = last_event(client)

    answer = client.request(
        method.upper(),
        address(path, data.draw(texts)),
        content=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )

    assert answer.status_code < 500, (method, path, body, answer.text)
    if answer.status_code >= 400:
        assert answer.json()["detail"]
        assert last_event(client) == before, "it was refused, and something happened"


@given(st.data())
@fuzzed(150)
def test_a_list_with_a_hostile_filter_or_cursor_is_answered_or_refused_in_words(
    server: ServerThread, client: httpx2.Client, data: st.DataObject
) -> None:
    _, path, operation = data.draw(st.sampled_from(READS))
    names = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"] or ["cursor"]
    wanted = data.draw(st.dictionaries(st.sampled_from(names), texts | st.sampled_from(CURSORS), max_size=4))
    query = "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in wanted.items() if name != "wait")

    answer = client.get(f"{address(path, data.draw(texts))}?{query}")

    assert answer.status_code < 500, (path, wanted, answer.text)
    if answer.status_code >= 400:
        assert answer.json()["detail"]


# Cursors that somebody made up: base64 of nothing, of JSON, of what is too deep or too large.
CURSORS = (
    "AA",
    "e30",
    "W10",
    "W251bGxd",
    "WzFlOTk5XQ",
    "WyJhIiwiYiJd",
    "W1tbW1tbXV1dXV1d",
    "////",
    "=" * 9,
    "A" * 4096,
)


@pytest.mark.parametrize("bad", HOSTILE[:40])
def test_a_batch_with_one_bad_job_makes_none(client: httpx2.Client, bad: str) -> None:
    before = last_event(client)
    jobs = [{"job_type": "echo"}, {"job_type": "echo", "depends_on": [bad]}, {"job_type": "echo"}]

    answer = client.post(
        "/api/jobs/batch", content=json.dumps({"jobs": jobs}), headers={"content-type": "application/json"}
    )

    assert 400 <= answer.status_code < 500
    assert last_event(client) == before
