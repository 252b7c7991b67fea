"""Spec 18: every route × every scope × another office. A new route without a line in the table fails."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from nextslot import Scheduler
from nextslot.domain import Scope
from nextslot.server.app import Options, application, routes_of
from nextslot.server.auth import whole
from nextslot.server.routing import Route, rule_of

from .support import ServerThread

ROUTES = list(routes_of(application(Scheduler("sqlite:///never-opened.db"), Options())))
SCOPES = list(Scope)


@dataclass(frozen=True)
class World:
    """A server with an office `a` that has one of everything, an office `b`, and a key of every kind."""

    url: str
    ids: dict[str, str]
    # By scope and office; None is the whole scheduler.
    keys: dict[tuple[Scope, str | None], str]

    def send(self, route: Route, key: str | None, office_id: str = "a") -> httpx2.Response:
        ids = {**self.ids, "office_id": office_id}
        if name(route) == "DELETE /api/webhooks/{webhook_id}":
            ids["webhook"] = self._new_webhook()  # It may not live to the next request.
        method, path, body = request_for(route, ids)
        headers = {} if key is None else {"X-API-Key": key}
        # Whoever follows a stream would wait for its end; the door is the same.
        return httpx2.request(method, self.url + path, json=body, headers=headers, timeout=30)

    def _new_webhook(self) -> str:
        admin = {"X-API-Key": self.keys[Scope.ADMIN, None]}
        body = {"url": "http://127.0.0.1:9/", "office_id": "a"}
        made = httpx2.post(f"{self.url}/api/webhooks", json=body, headers=admin)
        return str(made.json()["webhook_id"])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, database_of_the_module: str) -> Iterator[World]:
    with ServerThread(tmp_path_factory.mktemp("world")) as server:
        yield server.run(_furnish(server))


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: name(route))
def test_a_route_without_a_key_says_401_unless_it_is_open_to_all(route: Route, world: World) -> None:
    answer = world.send(route, None)

    if rule_of(route.endpoint).scope is None:
        assert answer.status_code not in (401, 403)
    else:
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
        assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: name(route))
def test_a_route_takes_its_scope_and_those_above_and_no_lower_one(route: Route, world: World) -> None:
    needed = rule_of(route.endpoint).scope

    for scope in SCOPES:
        answer = world.send(route, world.keys[scope, None])

        if needed is None or scope.includes(needed):
            assert answer.status_code not in (401, 403), answer.text
        else:
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
            assert needed.value in answer.json()["detail"]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: name(route))
def test_a_key_of_one_office_opens_nothing_of_another(route: Route, world: World) -> None:
    rule = rule_of(route.endpoint)
    if rule.scope is None or rule.scope is Scope.ADMIN:
        return  # Open to all; or for admins, of whom there is none for one office.

    foreign = world.send(route, world.keys[Scope.OPERATE, "b"])
    own = world.send(route, world.keys[Scope.OPERATE, "a"])

    if name(route) in OF_NO_OFFICE:
        assert foreign.status_code not in (401, 403)
    elif name(route) in NARROWED:
        assert not any(one in foreign.text for one in world.ids.values())
        assert '"office_id":"a"' not in foreign.text
    elif rule.office is whole or name(route) in WHOLE:
        assert (foreign.status_code, foreign.json()["code"]) == (403, "forbidden"), foreign.text
    else:
        assert (foreign.status_code, foreign.json()["code"]) == (404, "not_found"), foreign.text
    is_whole = rule.office is whole or name(route) in WHOLE
    assert (own.status_code == 403) == is_whole, own.text


def test_the_first_key_must_be_an_admins_and_the_last_admins_stays(tmp_path_factory: pytest.TempPathFactory) -> None:
    with ServerThread(tmp_path_factory.mktemp("keys")) as server, httpx2.Client(base_url=server.url) as client:
        reader = client.post("/api/keys", json={"name": "r", "scopes": ["read"]})
        admin = client.post("/api/keys", json={"name": "a", "scopes": ["admin"]})
        client.headers["X-API-Key"] = admin.json()["key"]
        last = client.delete(f"/api/keys/{admin.json()['key_id']}")

        assert (reader.status_code, reader.json()["code"]) == (409, "conflict")
        assert admin.status_code == 201
        assert (last.status_code, last.json()["code"]) == (409, "conflict")


def test_a_deleted_key_opens_nothing(world: World) -> None:
    admin = {"X-API-Key": world.keys[Scope.ADMIN, None]}
    made = httpx2.post(f"{world.url}/api/keys", json={"name": "gone", "scopes": ["read"]}, headers=admin).json()

    before = httpx2.get(f"{world.url}/api/jobs", headers={"Authorization": f"Bearer {made['key']}"})
    httpx2.delete(f"{world.url}/api/keys/{made['key_id']}", headers=admin)
    after = httpx2.get(f"{world.url}/api/jobs", headers={"Authorization": f"Bearer {made['key']}"})

    assert (before.status_code, after.status_code) == (200, 401)


def test_a_key_is_shown_once_and_never_again(world: World) -> None:
    admin = {"X-API-Key": world.keys[Scope.ADMIN, None], "Idempotency-Key": "k"}
    body = {"name": "secret", "scopes": ["read"]}

    first = httpx2.post(f"{world.url}/api/keys", json=body, headers=admin)
    again = httpx2.post(f"{world.url}/api/keys", json=body, headers=admin)
    listed = httpx2.get(f"{world.url}/api/keys", headers=admin)
    audited = httpx2.get(f"{world.url}/api/audit", headers=admin)

    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["key_id"] == first.json()["key_id"]
    assert "key" not in again.json()
    assert first.json()["key"] not in listed.text + audited.text


def test_spec_3_9_a_repeated_creation_of_a_webhook_never_shows_its_secret_again(world: World) -> None:
    admin = {"X-API-Key": world.keys[Scope.ADMIN, None], "Idempotency-Key": "webhook"}
    body = {"url": "http://127.0.0.1:9/hook", "events": ["job.run.failed"]}

    first = httpx2.post(f"{world.url}/api/webhooks", json=body, headers=admin)
    again = httpx2.post(f"{world.url}/api/webhooks", json=body, headers=admin)

    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["webhook_id"] == first.json()["webhook_id"]
    assert first.json()["secret"] not in again.text


def test_a_key_of_one_office_lists_the_deliveries_of_its_own_webhooks_and_jobs_only(world: World) -> None:
    def listed(office_id: str, query: str) -> tuple[int, list[str]]:
        headers = {"X-API-Key": world.keys[Scope.READ, office_id]}
        answer = httpx2.get(f"{world.url}/api/webhook-deliveries{query}", headers=headers)
        return answer.status_code, [one["delivery_id"] for one in answer.json().get("items", [])]

    webhook, job = f"?webhook_id={world.ids['webhook']}", f"?job_id={world.ids['failed']}"

    status, mine = listed("a", webhook)

    assert status == 200
    assert world.ids["delivery"] in mine
    assert listed("a", job)[0] == 200
    assert [listed("b", query)[0] for query in (webhook, job)] == [404, 404]
    assert listed("a", "")[0] == 403


def name(route: Route) -> str:
    (method,) = route.methods or {""}
    return f"{method} {route.path}"


def request_for(route: Route, ids: dict[str, str]) -> tuple[str, str, Any]:
    """A request that the route would take, about the office `a`."""
    (method,) = route.methods or {""}
    path, body = EXAMPLES[name(route)]
    return method, path.format(**ids), _filled(body, ids)


def _filled(body: Any, ids: dict[str, str]) -> Any:
    if isinstance(body, dict):
        return {key: _filled(value, ids) for key, value in body.items()}
    if isinstance(body, list):
        return [_filled(value, ids) for value in body]
    return body.format(**ids) if isinstance(body, str) else body


# Routes that are about no office, and need none.
OF_NO_OFFICE = {
    "GET /api/job-types",
    "GET /api/me",
    "GET /api/schedules/preview",
    "GET /openapi.json",
    "GET /api/job-templates",
    "GET /api/job-templates/{template_id}",
}
# Lists, which show a key of one office what is its own, whatever it asks for.
NARROWED = {
    "GET /api/jobs", "POST /api/jobs/cancel", "POST /api/jobs/retry", "GET /api/job-runs", "GET /api/job-groups",
    "GET /api/direct", "GET /api/reservations", "GET /api/events", "GET /api/schedules", "GET /api/webhooks",
    "GET /api/offices",
}  # fmt: skip
# The old endpoints know no offices: they are about `default`, as are the requests for a story or a card. So a key of
# another office opens none of them.
WHOLE = {
    "POST /story/generate", "POST /research/run", "POST /jobs/story/trigger", "POST /jobs/research/trigger",
    "POST /jobs/batch/trigger", "GET /jobs", "GET /jobs/{job_id}", "GET /jobs/batch/{batch_id}", "POST /jobs/monitor",
    "POST /jobs/{job_id}/cancel", "POST /jobs/{job_id}/monitor", "POST /jobs/{job_id}/dedup_check",
}  # fmt: skip

JOB = {"job_type": "echo", "office_id": "{office_id}"}
EXAMPLES: dict[str, tuple[str, Any]] = {
    "GET /health": ("/health", None),
    "GET /ready": ("/ready", None),
    "GET /docs": ("/docs", None),
    "GET /docs/{name:path}": ("/docs/docs.css", None),
    "GET /console": ("/console", None),
    "GET /console/": ("/console/", None),
    "GET /console/{name:path}": ("/console/console.css", None),
    "GET /openapi.json": ("/openapi.json", None),
    "GET /api/status": ("/api/status", None),
    "GET /metrics": ("/metrics", None),
    "GET /api/job-types": ("/api/job-types", None),
    "POST /api/jobs": ("/api/jobs", JOB),
    "POST /api/jobs/batch": ("/api/jobs/batch", {"jobs": [JOB, JOB]}),
    "GET /api/jobs": ("/api/jobs", None),
    "POST /api/jobs/cancel": ("/api/jobs/cancel", {"status": "WAITING"}),
    "POST /api/jobs/retry": ("/api/jobs/retry", {"status": "FAILED"}),
    "GET /api/jobs/{job_id}": ("/api/jobs/{queued}", None),
    "PATCH /api/jobs/{job_id}": ("/api/jobs/{queued}", {"title": "new"}),
    "POST /api/jobs/{job_id}/cancel": ("/api/jobs/{failed}/cancel", {}),
    "POST /api/jobs/{job_id}/move": ("/api/jobs/{queued}/move", {"to": "front"}),
    "GET /api/jobs/{job_id}/why": ("/api/jobs/{queued}/why", None),
    "POST /api/jobs/{job_id}/rerun": ("/api/jobs/{failed}/rerun", {}),
    "GET /api/queue": ("/api/queue?office_id={office_id}", None),
    "PUT /api/queue/order": ("/api/queue/order", {"job_ids": ["{queued}"]}),
    "POST /api/queue/pause": ("/api/queue/pause", {"office_id": "{office_id}"}),
    "POST /api/queue/resume": ("/api/queue/resume", {"office_id": "{office_id}"}),
    "GET /api/job-runs": ("/api/job-runs", None),
    "GET /api/job-runs/{run_id}": ("/api/job-runs/{run}", None),
    "POST /api/job-runs/{run_id}/retry": ("/api/job-runs/{run}/retry", {}),
    "GET /api/job-runs/{run_id}/log": ("/api/job-runs/{run}/log", None),
    "GET /api/job-runs/{run_id}/artifacts/{name:path}": ("/api/job-runs/{run}/artifacts/none", None),
    "POST /api/job-groups": ("/api/job-groups", {"mode": "parallel", "jobs": [JOB]}),
    "GET /api/job-groups": ("/api/job-groups", None),
    "GET /api/job-groups/{group_id}": ("/api/job-groups/{group}", None),
    "POST /api/job-groups/{group_id}/cancel": ("/api/job-groups/{group}/cancel", {}),
    "GET /api/direct/{direct_id}/artifacts/{name:path}": ("/api/direct/{direct}/artifacts/none", None),
    "POST /api/direct/{name}": (
        "/api/direct/echo", {"office_id": "{office_id}", "wait_timeout_seconds": 0.01},
    ),
    "POST /story/generate": ("/story/generate", {"wait_timeout_seconds": 0.01}),
    "POST /research/run": ("/research/run", {"topic": "how tides turn turbines", "wait_timeout_seconds": 0.01}),
    "POST /jobs/story/trigger": ("/jobs/story/trigger", {}),
    "POST /jobs/research/trigger": ("/jobs/research/trigger", {"topic": "how tides turn turbines"}),
    "POST /jobs/batch/trigger": ("/jobs/batch/trigger", {"jobs": [{"type": "story"}]}),
    "GET /jobs": ("/jobs", None),
    "GET /jobs/{job_id}": ("/jobs/{queued}", None),
    "GET /jobs/batch/{batch_id}": ("/jobs/batch/{group}", None),
    "POST /jobs/monitor": ("/jobs/monitor", None),
    "POST /jobs/{job_id}/cancel": ("/jobs/{queued}/cancel", None),
    "POST /jobs/{job_id}/monitor": ("/jobs/{queued}/monitor", None),
    "POST /jobs/{job_id}/dedup_check": ("/jobs/{queued}/dedup_check", None),
    "GET /api/direct": ("/api/direct", None),
    "GET /api/direct/{name}": ("/api/direct/{direct}", None),
    "GET /api/direct/{direct_id}/log": ("/api/direct/{direct}/log", None),
    "POST /api/direct/{direct_id}/cancel": ("/api/direct/{direct}/cancel", None),
    "GET /api/reservations": ("/api/reservations", None),
    "GET /api/events": ("/api/events?limit=500", None),
    "POST /api/job-templates": ("/api/job-templates", {"name": "new", "job_type": "echo"}),
    "GET /api/job-templates": ("/api/job-templates", None),
    "GET /api/job-templates/{template_id}": ("/api/job-templates/{template}", None),
    "PATCH /api/job-templates/{template_id}": ("/api/job-templates/{template}", {"description": "new"}),
    "DELETE /api/job-templates/{template_id}": ("/api/job-templates/none", None),
    "POST /api/schedules": ("/api/schedules", {
        "template_id": "{template}", "name": "new", "cron_expression": "@daily", "office_id": "{office_id}"}),
    "GET /api/schedules": ("/api/schedules", None),
    "GET /api/schedules/preview": ("/api/schedules/preview?cron_expression=@daily", None),
    "GET /api/schedules/{schedule_id}": ("/api/schedules/{schedule}", None),
    "PATCH /api/schedules/{schedule_id}": ("/api/schedules/{schedule}", {"overlap": "skip"}),
    "DELETE /api/schedules/{schedule_id}": ("/api/schedules/{schedule}", None),
    "POST /api/schedules/{schedule_id}/trigger": ("/api/schedules/{schedule}/trigger", {}),
    "GET /api/schedules/{schedule_id}/upcoming": ("/api/schedules/{schedule}/upcoming", None),
    "GET /api/schedules/{schedule_id}/occurrences": ("/api/schedules/{schedule}/occurrences", None),
    "POST /api/webhooks": ("/api/webhooks", {"url": "http://127.0.0.1:9/", "office_id": "{office_id}"}),
    "GET /api/webhooks": ("/api/webhooks", None),
    "GET /api/webhooks/{webhook_id}": ("/api/webhooks/{webhook}", None),
    "PATCH /api/webhooks/{webhook_id}": ("/api/webhooks/{webhook}", {"enabled": True}),
    "DELETE /api/webhooks/{webhook_id}": ("/api/webhooks/{webhook}", None),
    "POST /api/webhooks/{webhook_id}/test": ("/api/webhooks/{webhook}/test", None),
    "POST /api/webhooks/{webhook_id}/rotate-secret": ("/api/webhooks/{webhook}/rotate-secret", None),
    "GET /api/webhook-deliveries": ("/api/webhook-deliveries?webhook_id={webhook}", None),
    "GET /api/webhook-deliveries/{delivery_id}": ("/api/webhook-deliveries/{delivery}", None),
    "POST /api/webhook-deliveries/{delivery_id}/redeliver": ("/api/webhook-deliveries/{delivery}/redeliver", None),
    "POST /api/offices": ("/api/offices", {}),
    "GET /api/offices": ("/api/offices", None),
    "GET /api/offices/{office_id}": ("/api/offices/{office_id}", None),
    "PATCH /api/offices/{office_id}": ("/api/offices/{office_id}", {"name": "new"}),
    "POST /api/offices/{office_id}/jobs": ("/api/offices/{office_id}/jobs", {
        "jobs": [{"description": "d", "role": "FE", "job_type": "echo"}]}),
    "GET /api/offices/{office_id}/jobs": ("/api/offices/{office_id}/jobs", None),
    "POST /api/offices/{office_id}/jobs/cancel-all": ("/api/offices/{office_id}/jobs/cancel-all", {"task_id": "t"}),
    "GET /api/offices/{office_id}/jobs/{job_id}": ("/api/offices/{office_id}/jobs/{queued}", None),
    "GET /api/offices/{office_id}/jobs/{job_id}/executions": (
        "/api/offices/{office_id}/jobs/{failed}/executions", None),
    "POST /api/offices/{office_id}/jobs/{job_id}/retry": ("/api/offices/{office_id}/jobs/{queued}/retry", None),
    "POST /api/offices/{office_id}/jobs/{job_id}/cancel": ("/api/offices/{office_id}/jobs/none/cancel", {}),
    "PATCH /api/offices/{office_id}/jobs/{job_id}/priority": (
        "/api/offices/{office_id}/jobs/{queued}/priority", {"priority": 1}),
    "GET /api/offices/{office_id}/scheduler/stats": ("/api/offices/{office_id}/scheduler/stats", None),
    "GET /api/offices/{office_id}/scheduler/config": ("/api/offices/{office_id}/scheduler/config", None),
    "PATCH /api/offices/{office_id}/scheduler/config": (
        "/api/offices/{office_id}/scheduler/config", {"maxConcurrentJobs": 0}),
    "POST /api/offices/{office_id}/scheduler/process": ("/api/offices/{office_id}/scheduler/process", None),
    "GET /api/offices/{office_id}/events": ("/api/offices/{office_id}/events", None),
    "POST /api/config/reload": ("/api/config/reload", None),
    "GET /api/me": ("/api/me", None),
    "POST /api/keys": ("/api/keys", {"name": "new", "scopes": ["read"]}),
    "GET /api/keys": ("/api/keys", None),
    "DELETE /api/keys/{key_id}": ("/api/keys/none", None),
    "GET /api/audit": ("/api/audit", None),
    "GET /api/nodes": ("/api/nodes", None),
    "POST /api/nodes/{node_id}/drain": ("/api/nodes/none/drain", {}),
    "DELETE /api/nodes/{node_id}": ("/api/nodes/none", None),
}  # fmt: skip


async def _furnish(server: ServerThread) -> World:
    scheduler = server.server.scheduler
    for office_id in ("a", "b"):
        await scheduler.offices.create(office_id, max_concurrent_jobs=0)
    failed = await scheduler.submit("fail", office_id="a")
    await scheduler.wait(failed.job_id)
    run = await scheduler.run_of(failed.job_id)
    assert run is not None
    direct = await scheduler.run_direct("echo", office_id="a")
    await scheduler.pause(office_id="a")
    queued = await scheduler.submit("echo", office_id="a", title="stays")
    group, _ = await scheduler.submit_group([_new_job()], "parallel")
    template = await scheduler.templates.create(name="t", job_type="echo")
    schedule = await scheduler.schedules.create(
        template_id=template.template_id, name="s", cron_expression="@yearly", office_id="a"
    )
    webhook, _ = await scheduler.webhooks.create("http://127.0.0.1:9/", office_id="a")
    delivery = await scheduler.webhooks.test(webhook.webhook_id)
    keys: dict[tuple[Scope, str | None], str] = {
        (Scope.ADMIN, None): (await scheduler.keys.create("admin", ["admin"]))[1]
    }
    for scope in (Scope.READ, Scope.SUBMIT, Scope.OPERATE):
        for of_office in (None, "a", "b"):
            _, keys[scope, of_office] = await scheduler.keys.create(f"{scope} {of_office}", [scope], of_office)
    ids = {
        "failed": failed.job_id,
        "run": run.run_id,
        "queued": queued.job_id,
        "group": group.group_id,
        "direct": direct.direct_id,
        "template": template.template_id,
        "schedule": schedule.schedule_id,
        "webhook": webhook.webhook_id,
        "delivery": delivery.delivery_id,
    }
    return World(server.url, ids, keys)


def _new_job() -> Any:
    from nextslot import NewJob

    return NewJob(job_type="echo", office_id="a")
