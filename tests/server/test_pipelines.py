"""Spec 10 over HTTP: templates that make a group, the groups that they make, and triggers of their schedules."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import httpx2
import pytest

from .support import ServerThread

GRAPH = [{"key": "a", "job_type": "echo"}, {"job_type": "echo", "depends_on": ["a"], "title": "last"}]
NUMBERS = count()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, database_of_the_module: str) -> Iterator[httpx2.Client]:
    directory = tmp_path_factory.mktemp("pipelines")
    with ServerThread(directory) as server, httpx2.Client(base_url=server.url, timeout=30) as made:
        yield made


def new_template(client: httpx2.Client, **fields: Any) -> Any:
    answer = client.post("/api/job-templates", json={"name": f"t{next(NUMBERS)}", "jobs": GRAPH, **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()


def new_schedule(client: httpx2.Client, **fields: Any) -> Any:
    template = new_template(client)
    plan = {"name": f"s{next(NUMBERS)}", "template_id": template["template_id"], "cron_expression": "@yearly"}
    return client.post("/api/schedules", json={**plan, **fields}).json()


def problems(answer: httpx2.Response) -> dict[str, str]:
    assert answer.status_code == 422, answer.text
    return {one["field"]: one["problem"] for one in answer.json()["errors"]}


def test_a_template_of_a_graph_is_shown_as_it_was_given(client: httpx2.Client) -> None:
    template = new_template(client)

    shown = client.get(f"/api/job-templates/{template['template_id']}").json()

    assert shown == template
    assert (shown["job_type"], shown["jobs"]) == (None, GRAPH)
    assert (shown["mode"], shown["on_failure"]) == ("parallel", "stop")


def test_a_cycle_of_a_template_is_answered_with_the_jobs_that_form_it(client: httpx2.Client) -> None:
    jobs = [{"key": key, "job_type": "echo", "depends_on": [other]} for key, other in (("a", "b"), ("b", "a"))]

    answer = client.post("/api/job-templates", json={"name": "cycle", "jobs": jobs})

    assert (answer.status_code, answer.json()["code"]) == (422, "dependency_cycle")
    assert set(answer.json()["cycle"]) == {"a", "b"}


def test_every_wrong_job_of_a_template_is_answered_by_its_place(client: httpx2.Client) -> None:
    unknown = client.post("/api/job-templates", json={"name": "x", "jobs": [{"job_type": "echo"}, {"job_type": "no"}]})
    unfit = client.post("/api/job-templates", json={"name": "x", "jobs": [{"job_type": "echo", "unique_key": "u"}]})
    many = client.post("/api/job-templates", json={"name": "x", "jobs": [{"job_type": "echo"}] * 1001})
    neither = client.post("/api/job-templates", json={"name": "x"})

    assert problems(unknown).keys() == {"jobs.1.job_type"}
    assert problems(unfit).keys() == {"jobs.0.unique_key"}
    assert problems(many).keys() == {"jobs"}
    assert problems(neither).keys() == {"job_type"}


def test_a_job_of_such_a_template_is_refused_and_the_sentence_names_the_route(client: httpx2.Client) -> None:
    template = new_template(client)

    found = problems(client.post("/api/jobs", json={"template_id": template["template_id"]}))

    assert "makes a group, not a job; give its id to POST /api/job-groups" in found["template_id"]


def test_a_group_is_made_from_a_template_and_repeated_by_its_key(client: httpx2.Client) -> None:
    template = new_template(client)
    body = {"template_id": template["template_id"], "params": {"text": "hi"}, "priority": 4, "name": "now"}

    made = client.post("/api/job-groups", json=body, headers={"idempotency-key": template["template_id"]})
    again = client.post("/api/job-groups", json=body, headers={"idempotency-key": template["template_id"]})

    assert (made.status_code, again.status_code) == (201, 200)
    assert made.headers["location"] == again.headers["location"] == f"/api/job-groups/{made.json()['group_id']}"
    assert (made.json()["name"], made.json()["template_id"]) == ("now", template["template_id"])
    assert [(job["params"], job["priority"]) for job in made.json()["jobs"]] == [({"text": "hi"}, 4)] * 2


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, {"jobs", "mode"}),
        ({"jobs": GRAPH}, {"mode"}),
        ({"jobs": GRAPH, "mode": "parallel", "params": {"x": 1}}, {"params"}),
        ({"jobs": GRAPH, "template_id": "TEMPLATE"}, {"jobs"}),
        ({"mode": "parallel", "template_id": "TEMPLATE"}, {"mode"}),
        ({"template_id": "nobody"}, {"template_id"}),
        ({"template_id": "TEMPLATE", "params": {"text": 7}}, {"jobs.0.params.text", "jobs.1.params.text"}),
        ({"template_id": "TEMPLATE", "webhook": {"url": "http://127.0.0.1/x", "events": ["x"]}}, {"webhook.events"}),
    ],
)
def test_a_group_is_its_jobs_or_a_template(client: httpx2.Client, body: Any, fields: set[str]) -> None:
    template = new_template(client)
    asked = {name: template["template_id"] if value == "TEMPLATE" else value for name, value in body.items()}

    assert problems(client.post("/api/job-groups", json=asked)).keys() == fields


def test_a_trigger_answers_201_with_the_group_and_is_repeated_by_its_key(client: httpx2.Client) -> None:
    schedule = new_schedule(client, param_overrides={"text": "x"})
    path, headers = f"/api/schedules/{schedule['schedule_id']}/trigger", {"idempotency-key": schedule["schedule_id"]}

    made = client.post(path, json={"priority": 3}, headers=headers)
    again = client.post(path, json={"priority": 3}, headers=headers)

    assert (made.status_code, again.status_code) == (201, 200)
    assert made.headers["location"] == again.headers["location"] == f"/api/job-groups/{made.json()['group_id']}"
    assert made.json()["schedule_id"] == schedule["schedule_id"]
    assert [(job["params"], job["priority"]) for job in made.json()["jobs"]] == [({"text": "x"}, 3)] * 2
    assert [job["job_id"] for job in again.json()["jobs"]] == [job["job_id"] for job in made.json()["jobs"]]


def test_a_patch_makes_a_group_of_a_template_of_one_job(client: httpx2.Client) -> None:
    template = new_template(client, jobs=None, job_type="echo")
    path = f"/api/job-templates/{template['template_id']}"

    assert problems(client.patch(path, json={"jobs": GRAPH})).keys() == {"job_type"}
    changed = client.patch(path, json={"jobs": GRAPH, "job_type": None}).json()

    assert (changed["job_type"], changed["jobs"], changed["mode"]) == (None, GRAPH, "parallel")
