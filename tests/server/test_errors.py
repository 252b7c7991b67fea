"""Every error code of the API, as a client would meet it: status, code, a sentence that helps, and nothing stored."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from nextslot.server.app import Options
from nextslot.server.problems import TITLES
from nextslot.server.request_body import Bodies, BodyLimits
from nextslot.system.disk_space import DiskLimits

from ..support import eventually
from .support import ServerThread, serving


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, database_of_the_module: str) -> Iterator[httpx2.Client]:
    options = Options(bodies=Bodies(BodyLimits(body=10_000)))
    tmp_path = tmp_path_factory.mktemp("errors")
    with ServerThread(tmp_path, options) as server, httpx2.Client(base_url=server.url, timeout=30) as made:
        yield made


def test_malformed_json_is_400(client: httpx2.Client) -> None:
    for body in (b"{", b"\xff", b"[" * 5000, b'{"a": NaN}', b'{"a": "\\ud800"}'):
        answer = client.post("/api/jobs", content=body, headers={"content-type": "application/json"})

        assert problem(answer) == (400, "malformed")


def test_a_body_that_is_not_json_by_its_type_is_415(client: httpx2.Client) -> None:
    answer = client.post("/api/jobs", content="job_type=echo", headers={"content-type": "text/plain"})

    assert problem(answer) == (415, "unsupported_media_type")


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_that_is_too_large_is_413(client: httpx2.Client, is_chunked: bool) -> None:
    body = b'{"job_type": "' + b"x" * 20_000 + b'"}'
    content: Any = iter([body[:9000], body[9000:]]) if is_chunked else body

    answer = client.post("/api/jobs", content=content, headers={"content-type": "application/json"})

    assert problem(answer) == (413, "too_large")
    assert "10,000" in answer.json()["detail"]


def test_an_unknown_thing_is_404(client: httpx2.Client) -> None:
    for path in ("/api/jobs/none", "/api/job-runs/none", "/api/job-groups/none", "/api/schedules/none", "/nowhere"):
        answer = client.get(path)

        assert problem(answer) == (404, "not_found")
        assert path.rpartition("/")[2] in answer.json()["detail"]


def test_a_method_that_a_path_does_not_know_is_405_and_says_which_it_does(client: httpx2.Client) -> None:
    answer = client.delete("/api/jobs")

    assert problem(answer) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, POST"


def test_every_problem_of_a_body_is_named(client: httpx2.Client) -> None:
    answer = client.post("/api/jobs", json={"job_type": "echo", "prioritty": 1, "priority": "high", "title": ""})

    assert problem(answer) == (422, "invalid")
    assert {one["field"] for one in answer.json()["errors"]} == {"prioritty", "priority", "title"}


def test_a_name_that_a_query_gives_twice_is_422(client: httpx2.Client) -> None:
    answer = client.get("/api/jobs?status=QUEUED&status=FAILED")

    assert problem(answer) == (422, "invalid")
    assert "comma" in answer.json()["detail"]


def test_a_type_of_event_that_there_is_not_is_422_and_names_those_there_are(client: httpx2.Client) -> None:
    for accept in ("application/json", "text/event-stream"):
        answer = client.get("/api/events?type=job_failed,job_faild", headers={"accept": accept})

        assert problem(answer) == (422, "invalid")
        assert "is 'job_faild'; it must be one of job_queued, " in answer.json()["detail"]


def test_parameters_that_do_not_fit_the_type_are_422_with_their_place(client: httpx2.Client) -> None:
    answer = client.post("/api/jobs", json={"job_type": "echo", "params": {"times": "two", "more": 1}})

    assert problem(answer) == (422, "invalid")
    assert {one["field"] for one in answer.json()["errors"]} == {"params.times", "params"}


def test_a_batch_with_one_bad_job_says_which_and_stores_nothing(client: httpx2.Client) -> None:
    before = client.get("/api/events", params={"limit": 500}).json()["items"]

    answer = client.post("/api/jobs/batch", json={"jobs": [{"job_type": "echo"}, {"job_type": "nope"}]})

    assert problem(answer) == (422, "invalid")
    assert [one["field"] for one in answer.json()["errors"]] == ["jobs.1.job_type"]
    assert client.get("/api/events", params={"limit": 500}).json()["items"] == before


def test_every_bad_job_of_a_long_batch_is_named_and_nothing_is_stored(tmp_path: Path) -> None:
    jobs: list[dict[str, Any]] = [{"job_type": "echo"} for _ in range(1200)]
    jobs[3]["priority"], jobs[700]["params"], jobs[1199]["tittle"] = "high", [], "x"
    with ServerThread(tmp_path) as server, httpx2.Client(base_url=server.url, timeout=60) as client:
        answer = client.post("/api/jobs/batch", json={"jobs": jobs})

        assert problem(answer) == (422, "invalid")
        fields = [one["field"] for one in answer.json()["errors"]]
        assert fields == ["jobs.3.priority", "jobs.700.params", "jobs.1199.tittle"]
        assert client.get("/api/jobs").json()["items"] == []


def test_a_long_batch_is_answered_with_all_its_jobs_in_its_order(tmp_path: Path) -> None:
    jobs = [{"job_type": "echo", "title": f"number {number}"} for number in range(1001)]
    with ServerThread(tmp_path) as server, httpx2.Client(base_url=server.url, timeout=60) as client:
        answer = client.post("/api/jobs/batch", json={"jobs": jobs})

        assert answer.status_code == 201
        made = answer.json()["items"]
        assert [one["title"] for one in made] == [one["title"] for one in jobs]
        assert client.get(f"/api/jobs/{made[-1]['job_id']}").json()["title"] == "number 1000"


def test_an_unknown_job_type_is_422_and_names_those_there_are(client: httpx2.Client) -> None:
    answer = client.post("/api/jobs", json={"job_type": "ecko"})

    assert problem(answer) == (422, "unknown_job_type")
    assert "echo" in answer.json()["detail"]


def test_a_cycle_is_422_with_the_jobs_that_form_it(client: httpx2.Client) -> None:
    jobs = [{"job_type": "echo", "key": key, "depends_on": [on]} for key, on in (("a", "c"), ("b", "a"), ("c", "b"))]

    answer = client.post("/api/jobs/batch", json={"jobs": jobs})

    assert problem(answer) == (422, "dependency_cycle")
    assert sorted(answer.json()["cycle"]) == ["a", "b", "c"]


def test_a_used_key_with_other_content_is_422(client: httpx2.Client) -> None:
    headers = {"Idempotency-Key": "mismatch"}
    first = client.post("/api/jobs", json={"job_type": "echo"}, headers=headers)

    again = client.post("/api/jobs", json={"job_type": "echo"}, headers=headers)
    other = client.post("/api/jobs", json={"job_type": "echo", "priority": 1}, headers=headers)

    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["job_id"] == first.json()["job_id"]
    assert problem(other) == (422, "idempotency_mismatch")


async def test_an_ended_job_cannot_be_cancelled_and_the_answer_says_what_it_is(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        job = (await server.client.post("/api/jobs", json={"job_type": "echo"})).json()
        await server.ended(job["job_id"])

        answer = await server.client.post(f"/api/jobs/{job['job_id']}/cancel")

        assert problem(answer) == (409, "already_finished")
        assert "COMPLETED" in answer.json()["detail"]


async def test_INV_001_a_dispatched_job_cannot_be_changed(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        job = (await server.client.post("/api/jobs", json={"job_type": "gate"})).json()

        changed = await server.client.patch(f"/api/jobs/{job['job_id']}", json={"priority": 3})
        moved = await server.client.post(f"/api/jobs/{job['job_id']}/move", json={"to": "front"})

        assert problem(changed) == (409, "already_dispatched")
        assert problem(moved) == (409, "already_dispatched")


async def test_a_job_that_has_not_ended_cannot_be_run_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        job = (await server.client.post("/api/jobs", json={"job_type": "gate"})).json()

        answer = await server.client.post(f"/api/jobs/{job['job_id']}/rerun")

        assert problem(answer) == (409, "illegal_transition")


def test_a_name_that_is_taken_is_409(client: httpx2.Client) -> None:
    body = {"name": "taken", "job_type": "echo"}
    client.post("/api/job-templates", json=body)

    answer = client.post("/api/job-templates", json=body)

    assert problem(answer) == (409, "conflict")


def test_a_thing_is_put_by_its_name(client: httpx2.Client) -> None:
    template = client.put("/api/job-templates/by-name/put it/so", json={"job_type": "echo"})
    plan = {"template_id": template.json()["template_id"], "cron_expression": "@daily"}
    made = client.put("/api/schedules/by-name/put it", json=plan, params={"office_id": "default"})
    again = client.put("/api/schedules/by-name/put it", json={**plan, "timezone": "Europe/Berlin"})
    taken = client.post("/api/schedules", json={**plan, "name": "put it"})
    elsewhere = client.put("/api/schedules/by-name/put it", json=plan, params={"office_id": "nowhere"})

    assert (template.status_code, template.json()["name"]) == (201, "put it/so")
    assert (made.status_code, again.status_code) == (201, 200)
    assert made.headers["location"] == again.headers["location"]
    assert again.json()["timezone"] == "Europe/Berlin"
    assert problem(taken) == (409, "conflict")
    assert problem(elsewhere) == (422, "invalid")
    assert client.put("/api/schedules/by-name/put it", json={}).status_code == 422
    assert client.put("/api/schedules/by-name/", json=plan).status_code == 422


async def test_a_slot_that_does_not_come_free_is_503_with_how_many_were_ahead(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.client.post("/api/jobs", json={"job_type": "gate"})

        answer = await server.client.post("/api/direct/echo", json={"wait_timeout_seconds": 0.05})

        assert problem(answer) == (503, "slot_busy")
        assert answer.json()["ahead"] == 0
        assert int(answer.headers["retry-after"]) > 0


async def test_while_draining_new_work_is_503_and_reads_go_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        job = (await server.client.post("/api/jobs", json={"job_type": "gate"})).json()
        server.process.stop()
        await eventually(lambda: server.scheduler.is_draining)

        submitted = await server.client.post("/api/jobs", json={"job_type": "echo"})
        direct = await server.client.post("/api/direct/echo", json={})
        ready = await server.client.get("/ready")
        read = await server.client.get(f"/api/jobs/{job['job_id']}")

        assert problem(submitted) == problem(direct) == problem(ready) == (503, "draining")
        assert submitted.headers["retry-after"]
        assert (read.status_code, read.json()["status"]) == (200, "RUNNING")


async def test_a_store_that_does_not_answer_is_503_and_says_so_in_ready(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        server.scheduler._access.gate.store = None

        listed = await server.client.get("/api/jobs")
        ready = await server.client.get("/ready")
        health = await server.client.get("/health")

        assert problem(listed) == problem(ready) == (503, "unavailable")
        assert health.status_code == 200


async def test_a_disk_that_is_nearly_full_is_503_for_new_work_and_a_warning_before_that(tmp_path: Path) -> None:
    free = {"bytes": 10_000}
    limits = DiskLimits(warn_bytes=5_000, refuse_bytes=1_000, free_bytes=lambda place: free["bytes"])

    async with serving(tmp_path, disk=limits) as server:

        async def ready_with(free_bytes: int) -> httpx2.Response:
            free["bytes"] = free_bytes
            server.scheduler.disk._measured_at = None  # What was found holds for a second.
            return await server.client.get("/ready")

        enough, short = await ready_with(10_000), await ready_with(4_999)
        taken = await server.client.post("/api/jobs", json={"job_type": "gate"})
        low = await ready_with(999)
        submitted = await server.client.post("/api/jobs", json={"job_type": "echo"})
        many = await server.client.post("/api/jobs/batch", json={"jobs": [{"job_type": "echo"}]})
        direct = await server.client.post("/api/direct/echo", json={})
        cancelled = await server.client.post(f"/api/jobs/{taken.json()['job_id']}/cancel", json={"interrupt": True})
        metrics = await server.client.get("/metrics")

        assert enough.json() == {"status": "ready", "warnings": []}
        assert short.json()["warnings"] == ["the disk of the data directory has 4,999 bytes left, less than 5,000"]
        assert (taken.status_code, cancelled.status_code) == (201, 202)
        assert problem(low) == problem(submitted) == problem(many) == problem(direct) == (503, "disk_low")
        assert submitted.headers["retry-after"]
        assert "nextslot_disk_free_bytes 999.0" in metrics.text


def test_every_code_has_a_title_for_people() -> None:
    assert all(title and title[0].isupper() for title in TITLES.values())


def problem(answer: httpx2.Response) -> tuple[int, str]:
    """Returns status and code of a problem, after checking its form."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    content = answer.json()
    assert content["status"] == answer.status_code
    assert content["type"] == f"urn:nextslot:problem:{content['code']}"
    assert content["title"]
    assert content["detail"]
    return answer.status_code, content["code"]


async def test_a_note_of_any_characters_comes_as_a_header(tmp_path: Path) -> None:
    async def note(params: object) -> str:
        return "no model\r\nanswers for 등대"

    async with serving(tmp_path) as server:
        server.scheduler.job_types.register("noted", lambda run: None, note=note)
        job = await server.client.post("/api/jobs", json={"job_type": "noted"})

        assert job.status_code == 201
        assert job.headers["x-note"] == "no model answers for \\ub4f1\\ub300"


@pytest.mark.parametrize(
    ("method", "path", "body", "detail"),
    [
        ("POST", "/api/jobs", [], "the body is a list; it must be a JSON object"),
        ("POST", "/api/jobs", {"job_type": "echo", "params": "x"}, "params is text; it must be a JSON object"),
        ("POST", "/api/jobs", {"job_type": "echo", "depends_on": "x"}, "depends_on is text; it must be a list"),
        ("POST", "/api/jobs", {"job_type": "echo", "depends_on": [3]}, "depends_on.0 is 3; it must be text"),
        ("POST", "/api/jobs", {"job_type": "echo", "urgent": "yes"}, "urgent is text; it must be true or false"),
        (
            "POST",
            "/api/jobs",
            {"job_type": "echo", "scheduled_for": "noon"},
            "scheduled_for is text; it must be a time such as 2026-11-15T06:30:00Z",
        ),
        (
            "POST",
            "/api/jobs",
            {"job_type": "echo", "scheduled_for": "2026-11-15T06:30:00"},
            "scheduled_for has no time zone; add Z or an offset such as +01:00",
        ),
        ("GET", "/api/jobs?limit=0", None, "limit is 0; it must be at least 1"),
        ("POST", "/api/jobs", {"job_type": "echo", "priority": "3"}, "priority is text; it must be a whole number"),
        ("GET", "/api/jobs?limit=many", None, "limit is text; it must be a whole number"),
        ("GET", "/api/jobs?created_after=noon", None, "created_after is text; it must be a time such as"),
        ("GET", "/api/jobs?finished_before=noon", None, "finished_before is text; it must be a time such as"),
        (
            "GET",
            "/api/jobs?sort=newest",
            None,
            "sort is 'newest'; it must be 'created_at', '-created_at', 'finished_at'",
        ),
        ("GET", "/api/events?after=-1", None, "after is -1; it must be at least 0"),
        ("POST", "/api/job-groups", {"jobs": []}, "jobs has 0 items; it must"),
        (
            "POST",
            "/api/job-groups",
            {"mode": "zigzag", "jobs": [{"job_type": "echo"}]},
            "mode is 'zigzag'; it must be 'sequential' or 'parallel'",
        ),
        ("POST", "/api/keys", {"name": "a", "scopes": ["rule"]}, "scopes.0 is 'rule'; it must be 'read', 'submit', "),
        (
            "POST",
            "/api/webhooks",
            {"url": "not a url", "events": ["job.completed"]},
            "url contains ' '; a URL must be plain ASCII",
        ),
    ],
)
async def test_a_refusal_says_what_is_wrong_with_the_value_and_what_it_must_be(
    tmp_path: Path, method: str, path: str, body: object, detail: str
) -> None:
    async with serving(tmp_path) as server:
        answer = await server.client.request(method, path, json=body)

        assert (answer.status_code, answer.json()["detail"][: len(detail)]) == (422, detail)
