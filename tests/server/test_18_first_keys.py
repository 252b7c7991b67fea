"""Spec 18: keys are shown once, and open what is theirs. `test_18_every_route.py` tries every route."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from nextslot.domain import Scope

from .support import ServerThread


@dataclass(frozen=True)
class World:
    """A server with an office `a` that has one of everything, an office `b`, and a key of every kind."""

    url: str
    ids: dict[str, str]
    # By scope and office; None is the whole scheduler.
    keys: dict[tuple[Scope, str | None], str]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, database_of_the_module: str) -> Iterator[World]:
    with ServerThread(tmp_path_factory.mktemp("world")) as server:
        yield server.run(_furnish(server))


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
    template = await scheduler.templates.create(name="t", job_type="echo", office_id="a")
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
