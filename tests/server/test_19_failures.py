"""Failures over HTTP, and the query of jobs: each office sees its own, and a wrong request gets a sentence."""

from pathlib import Path
from typing import Any

import pytest

from .support import serving
from .test_18_neighbours import neighbours


async def failed(client: Any, server: Any, message: str, **more: Any) -> Any:
    body = {"job_type": "fail", "params": {"message": message}, "retry_policy": {"max_attempts": 0}, **more}
    made = (await client.post("/api/jobs", json=body)).json()
    await server.scheduler.wait(made["job_id"])
    return (await client.get(f"/api/jobs/{made['job_id']}")).json()


def messages(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [one["message"] for one in answer.json()["items"]]


async def test_a_failure_has_the_fields_of_the_document(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        job = await failed(server.client, server, "row 7 is bad", title="Import")

        found = (await server.client.get("/api/failures")).json()

        document = (await server.client.get("/openapi.json")).json()
        [place] = [name for name in document["components"]["schemas"] if name == "Failure"]
        (one,) = found["items"]
        assert set(one) == set(document["components"]["schemas"][place]["properties"])
        assert (one["message"], one["last_error"], one["count"]) == ("row <n> is bad", "row 7 is bad", 1)
        assert (job["error_line"], job["fingerprint"]) == ("row 7 is bad", one["fingerprint"])
        assert one["last_runs"] == [{"run_id": job["run"]["run_id"], "job_id": job["job_id"]}]
        assert sum(one["buckets"]) == 1
        assert found["bucket_seconds"] == 3600


async def test_no_office_sees_or_changes_failures_and_notes_of_another(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a", "b") as (server, keys):
        mine = await failed(keys["a"], server, "the same")
        theirs = await failed(keys["b"], server, "the same")
        path = f"/api/failures/{theirs['fingerprint']}"

        assert mine["fingerprint"] != theirs["fingerprint"]
        assert messages(await keys["a"].get("/api/failures")) == ["the same"]
        assert len(messages(await keys["admin"].get("/api/failures"))) == 2
        assert (await keys["a"].get("/api/failures", params={"office_id": "b"})).status_code == 404
        assert messages(await keys["a"].get("/api/failures", params={"fingerprint": theirs["fingerprint"]})) == []
        refused = await keys["a"].patch(path, json={"muted": True})
        nowhere = await keys["a"].patch("/api/failures/nowhere", json={"muted": True})
        assert (refused.status_code, nowhere.status_code) == (404, 404)
        wanted = {"fingerprint": theirs["fingerprint"], "dry_run": True}
        assert (await keys["a"].post("/api/jobs/retry", json=wanted)).json()["retried"] == 0
        assert (await keys["b"].post("/api/jobs/retry", json=wanted)).json()["retried"] == 1
        changed = await keys["b"].patch(path, json={"note": "ours"})
        assert (changed.status_code, changed.json()["note"]) == (200, "ours")
        assert "ours" not in (await keys["a"].get("/api/failures")).text


async def test_no_query_leaves_the_office_of_its_key(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a", "b") as (server, keys):
        await failed(keys["a"], server, "mine", title="the import")
        await failed(keys["b"], server, "theirs", title="the import")

        for query in ("import", "office:b", "office:a,b import", "error:theirs", "params.message=theirs"):
            found = (await keys["a"].get("/api/jobs", params={"q": query})).json()["items"]
            assert {one["office_id"] for one in found} <= {"a"}, query


async def test_a_muted_failure_is_audited_with_what_it_was(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        job = await failed(server.client, server, "x")

        changed = await server.client.patch(f"/api/failures/{job['fingerprint']}", json={"muted": True, "note": "T-1"})

        assert (changed.json()["muted"], changed.json()["note"]) == (True, "T-1")
        (entry,) = (await server.client.get("/api/audit")).json()["items"][:1]
        assert entry["details"]["after"]["note"] == "T-1"
        assert entry["details"]["before"]["muted"] is False
        assert messages(await server.client.get("/api/failures", params={"muted": "false"})) == []
        assert messages(await server.client.get("/api/failures", params={"muted": "true"})) == ["x"]


@pytest.mark.parametrize(
    ("path", "query", "sentence"),
    [
        ("/api/failures", {"since": "yesterday"}, "a time such as"),
        ("/api/failures", {"since": "2000-01-01T00:00:00Z"}, "failures are kept for 92 days"),
        ("/api/failures", {"limit": "101"}, "100"),
        ("/api/failures", {"cursor": "x"}, "cursor"),
        ("/api/failures", {"colour": "red"}, "colour"),
        ("/api/jobs", {"q": "status:late"}, "'late' is no status"),
        ("/api/jobs", {"q": 'error:"x'}, "at character 7: expected a closing quote"),
        ("/api/jobs", {"q": "x" * 1001}, "1000"),
    ],
)
async def test_a_wrong_request_gets_a_sentence(tmp_path: Path, path: str, query: Any, sentence: str) -> None:
    async with serving(tmp_path) as server:
        answer = await server.client.get(path, params=query)

        assert answer.status_code == 422
        assert sentence in answer.text
