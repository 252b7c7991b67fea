"""Spec 18.10: every route of the OpenAPI document × every kind of key. Nothing here lists routes by hand.

What a route must answer follows from the document: `x-scope` is the least scope, `x-whole` says that the route is about
the whole scheduler. Path, query and body are filled from the document's schemas; every id in them belongs to the office
`anothers`, and every text of it has this word. A route that forgets its check fails, which a planted one shows.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import httpx2
import jsonschema_rs
import pytest
from fastapi import Request, Response

from nextslot import NewJob, Scheduler, extension_api
from nextslot.domain import Scope
from nextslot.server.app import describe
from nextslot.server.auth import scheduler_for
from nextslot.server.responses import answer
from nextslot.server.route_rules import needs
from nextslot.server.routing import router

from .support import ServerThread

# The gateway is on only where it is configured.
EXTENSIONS: list[str | extension_api.Extension] = [*extension_api.used_by_server(), "gateway"]
FAR = Scheduler("sqlite:///never-opened.db", extensions=EXTENSIONS)
DOCUMENT = describe(FAR)
OPERATIONS = [
    (method.upper(), path)
    for path, methods in DOCUMENT["paths"].items()
    for method in methods
    if method != "parameters"
]
SCOPES = list(Scope)
OVER = ("queued_jobs", "lanes", "stored_bytes")
MARK = "anothers"


class Planted(extension_api.Extension):
    """A route that forgets to check whose job it shows."""

    name = "planted"

    def routers(self) -> Any:
        forgetful = router("Planted")

        @forgetful.get("/api/planted/{job_id}")
        @needs(Scope.READ)
        async def show(job_id: str, request: Request) -> Response:
            return answer({"job_id": (await scheduler_for(request).job(job_id)).job_id})

        return [forgetful]


@dataclass(frozen=True)
class World:
    """A server with an office `anothers` that has one of everything, an office `b`, and a key of every kind."""

    url: str
    document: dict[str, Any]
    # What fills a path, a query or a body, by the name of the parameter or field.
    values: dict[str, Any]
    keys: dict[tuple[Scope, str | None], str]
    ended: dict[str, str]
    # The key of an operator of an office that soon has used up its requests.
    used_up: str
    # The keys of offices that have used up another quota, by its name, which their ids end with.
    over: dict[str, str]

    def send(self, method: str, path: str, key: str | None) -> httpx2.Response:
        operation = self.document["paths"][path][method.lower()]
        query = {
            one["name"]: self.values[one["name"]]
            for one in operation.get("parameters", ())
            if one["in"] == "query" and one["name"] in self.values
        }
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        body = None if content is None else self._filled(content["schema"], "")
        where = re.sub(r"\{(\w+)\}", lambda found: str(self.values.get(found[1], "none")), path)
        headers = {} if key is None else {"X-API-Key": key}
        return httpx2.request(method, self.url + where, params=query, json=body, headers=headers, timeout=30)

    def _filled(self, schema: dict[str, Any], name: str) -> Any:
        """Makes a value that the schema takes: what is required, and whatever has an id of the office `anothers`."""
        if "$ref" in schema:
            return self._filled(self.document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], name)
        if name in self.values:
            return self.values[name]
        if "anyOf" in schema:
            return self._filled(schema["anyOf"][0], name)
        if schema.get("type") == "object":
            fields, required = schema.get("properties", {}), schema.get("required", ())
            wanted = [one for one in fields if one in required or one in self.values]
            return {one: self._filled(fields[one], one) for one in wanted}
        if schema.get("type") == "array":
            return [self._filled(schema["items"], name.removesuffix("s"))]
        for word in ("examples", "enum"):
            if word in schema:
                return schema[word][0]
        return {"string": "text", "integer": 1, "number": 1, "boolean": True, "null": None}.get(
            schema.get("type", "null")
        )

    def foreign_ids(self) -> list[str]:
        """Returns the ids of things of the office `anothers`."""
        return [one for one in self.values.values() if isinstance(one, str) and len(one) == 36]


def complaint(world: World, method: str, path: str) -> str | None:
    """Says what is wrong with the answers of a route to all kinds of keys; None if nothing is."""
    operation = world.document["paths"][path][method.lower()]
    scope = operation.get("x-scope")
    if scope is None:
        return None if world.send(method, path, None).status_code not in (401, 403) else "it is open, and refuses"
    for what, key in {"no key": None, **world.ended}.items():
        if (status := world.send(method, path, key).status_code) != 401:
            return f"{what}: {status}"
    # The highest scope comes last: what it deletes is not missed by the others.
    for held in SCOPES:
        status = (
            world.send(method, path, world.keys[held, None]).status_code if not held.includes(Scope(scope)) else 403
        )
        if status != 403:
            return f"a key with the scope {held}: {status}"
    # It may send two requests at once, and one a second.
    sent = (world.send(method, path, world.used_up) for _ in range(20))
    reply = next((one for one in sent if one.status_code == 429), None)
    if reply is None or code_of(reply) != "over_quota" or "retry-after" not in reply.headers:
        return f"the key of an office over its quota: {reply and reply.text[:300]}"
    if scope == Scope.ADMIN:
        return None  # No key of one office is an admin's.
    reply = world.send(method, path, world.keys[Scope.OPERATE, "b"])
    if operation.get("x-whole"):
        return None if reply.status_code == 403 else f"the key of an office on the whole scheduler: {reply.status_code}"
    leaked = [one for one in world.foreign_ids() if one in reply.text.replace(f"'{one}'", "")]
    if leaked or f'"office_id":"{MARK}"' in reply.text:
        return f"the key of another office reads {reply.text[:300]}"
    names = re.findall(r"\{(\w+)\}", path)
    if any(name in world.values for name in names) and reply.status_code != 404:
        return f"the key of another office: {reply.status_code} {reply.text[:300]}"
    return None


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, database_of_the_module: str) -> Iterator[World]:
    with ServerThread(tmp_path_factory.mktemp("world"), extensions=[*EXTENSIONS, Planted()]) as server:
        yield server.run(_furnish(server))


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_a_route_opens_to_those_whom_the_document_names_and_to_nobody_else(
    method: str, path: str, world: World
) -> None:
    assert complaint(world, method, path) is None


def code_of(reply: httpx2.Response) -> Any:
    """Returns the code of a refusal, which the gateway shows in OpenAI's form."""
    found = reply.json()
    return found.get("code") or found.get("error", {}).get("code")


@pytest.mark.parametrize("quota", OVER)
def test_an_office_over_a_quota_makes_nothing_by_any_route(quota: str, world: World) -> None:
    office_id = f"over-{quota}"
    # Without ids of the office `anothers`, which would be refused for another reason.
    own = replace(world, values={"office_id": office_id, **{name: world.values[name] for name in ("job_type", "role")}})
    listed = f"{world.url}/api/jobs?office_id={office_id}&limit=500"
    admin = {"X-API-Key": world.keys[Scope.OPERATE, None]}
    before = httpx2.get(listed, headers=admin).json()["items"]

    refused = set()
    for method, path in OPERATIONS:
        if method == "POST" and DOCUMENT["paths"][path]["post"].get("x-scope") == Scope.SUBMIT:
            reply = own.send(method, path, world.over[quota])
            if reply.status_code == 429:
                assert (code_of(reply), "retry-after" in reply.headers) == ("over_quota", True), path
                refused.add(path)

    assert len(before) == 2
    assert httpx2.get(listed, headers=admin).json()["items"] == before
    assert refused >= {"/api/jobs", "/api/jobs/batch", "/api/offices/{office_id}/jobs"}


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_a_route_answers_an_office_about_itself_with_nothing_of_another(method: str, path: str, world: World) -> None:
    office = {"office_id": "b"}
    for more in ((), ("job_type", "role", "to")):  # Some bodies take only one field.
        own = replace(world, values={**office, **{name: world.values[name] for name in more}})

        reply = own.send(method, path, world.keys[Scope.OPERATE, "b"])

        assert [one for one in (MARK, *world.foreign_ids()) if one in reply.text] == []


def test_a_route_that_forgets_its_check_is_noticed(world: World) -> None:
    assert "another office reads" in (complaint(world, "GET", "/api/planted/{job_id}") or "")


def test_what_is_of_another_office_was_found_by_its_own_key_and_changed_by_nobody(world: World) -> None:
    """So that the law is not kept by ids that lead nowhere."""
    own = world.keys[Scope.OPERATE, MARK]
    job = world.send("GET", "/api/jobs/{job_id}", own).json()

    assert (job["title"], job["status"]) == (f"stays {MARK}", "QUEUED")
    for method, path in OPERATIONS:
        names = [name for name in re.findall(r"\{(\w+)\}", path) if name in world.values]
        operation = world.document["paths"][path][method.lower()]
        if method == "GET" and names and operation.get("x-scope") == "read" and "x-whole" not in operation:
            reply = world.send(method, path, own)
            assert reply.status_code == 200 or "artifacts" in path, (path, reply.text)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_a_route_takes_the_scope_that_the_document_names(method: str, path: str, world: World) -> None:
    scope = world.document["paths"][path][method.lower()].get("x-scope", Scope.READ)

    reply = world.send(method, path, world.keys[Scope(scope), None])

    assert reply.status_code not in (401, 403)
    # No language model answers here.
    assert reply.status_code < 500 or path in ("/story/generate", "/research/run")
    assert undeclared(world, method, path, reply) == []


def test_a_field_of_an_answer_that_the_document_does_not_name_is_noticed(world: World) -> None:
    reply = httpx2.Response(200, json={"office_id": MARK, "planted": 1}, headers={"content-type": "application/json"})

    assert any("planted" in one for one in undeclared(world, "GET", "/api/offices/{office_id}", reply))


def undeclared(world: World, method: str, path: str, reply: httpx2.Response) -> list[str]:
    """Returns in what an answer differs from its schema in the document."""
    declared = world.document["paths"][path][method.lower()]["responses"].get(str(reply.status_code), {})
    content = declared.get("content", {}).get("application/json")
    if content is None or reply.headers.get("content-type") != "application/json":
        return []
    schema = {**content["schema"], "components": world.document["components"]}
    return [one.message for one in jsonschema_rs.Draft202012Validator(schema).iter_errors(reply.json())]


async def _furnish(server: ServerThread) -> World:
    scheduler = server.server.scheduler
    for office_id in (MARK, "b"):
        await scheduler.offices.create(office_id, max_concurrent_jobs=0)
    failed = await scheduler.submit("fail", office_id=MARK)
    await scheduler.wait(failed.job_id)
    run, fingerprint = await scheduler.run_of(failed.job_id), (await scheduler.job(failed.job_id)).fingerprint
    assert run is not None
    assert fingerprint is not None
    direct = await scheduler.run_direct("echo", office_id=MARK)
    await scheduler.pause(office_id=MARK)
    queued = await scheduler.submit("echo", office_id=MARK, title=f"stays {MARK}", created_by="submit None")
    group, _ = await scheduler.submit_group([NewJob(job_type="echo", office_id=MARK)], "parallel", name=f"g {MARK}")
    template = await scheduler.templates.create(name=f"t {MARK}", job_type="echo", office_id=MARK)
    schedule = await scheduler.schedules.create(
        template_id=template.template_id, name=f"s {MARK}", cron_expression="@yearly", office_id=MARK
    )
    webhook, _ = await scheduler.webhooks.create(f"http://127.0.0.1:9/{MARK}", office_id=MARK)
    delivery = await scheduler.webhooks.test(webhook.webhook_id)
    values = {
        "job_id": queued.job_id,
        "run_id": run.run_id,
        "group_id": group.group_id,
        "direct_id": direct.direct_id,
        "template_id": template.template_id,
        "schedule_id": schedule.schedule_id,
        "webhook_id": webhook.webhook_id,
        "delivery_id": delivery.delivery_id,
        "fingerprint": fingerprint,
        "office_id": MARK,
        "job_type": "echo",
        "job_ids": [queued.job_id],
        "url": "http://127.0.0.1:9/",
        "cron_expression": "@daily",
        "to": "front",
        "role": "FE",
        "wait_timeout_seconds": 0.01,
    }
    keys: dict[tuple[Scope, str | None], str] = {
        (Scope.ADMIN, None): (await scheduler.keys.create("admin", ["admin"]))[1]
    }
    for scope in (Scope.READ, Scope.SUBMIT, Scope.OPERATE):
        for of_office in (None, MARK, "b"):
            _, keys[scope, of_office] = await scheduler.keys.create(f"{scope} {of_office}", [scope], of_office)
    return World(server.url, describe(scheduler), values, keys, await _ended_keys(scheduler),
        await _used_up(server), {quota: await _over(server, quota) for quota in OVER})  # fmt: skip


async def _used_up(server: ServerThread) -> str:
    """Returns the key of an office that may send one request a second."""
    scheduler = server.server.scheduler
    await scheduler.offices.create("c")
    _, text = await scheduler.keys.create("used up", ["operate"], "c")
    await scheduler.offices.grant("c", requests_per_second=1)
    return text


async def _over(server: ServerThread, quota: str) -> str:
    """Returns the key of an office that has used up a quota by one job that has run and one that waits."""
    scheduler, office_id = server.server.scheduler, f"over-{quota}"
    await scheduler.offices.create(office_id)
    await scheduler.wait((await scheduler.submit("echo", office_id=office_id)).job_id)
    await scheduler.pause(office_id=office_id)
    await scheduler.submit("echo", office_id=office_id)
    _, text = await scheduler.keys.create(quota, ["submit"], office_id)
    await scheduler.offices.grant(office_id, **cast("Any", {quota: 1}))
    return text


async def _ended_keys(scheduler: Scheduler) -> dict[str, str]:
    """Returns the texts of a deleted, an expired and a rotated key, each with the scope `operate`."""
    deleted, gone = await scheduler.keys.create("deleted", ["operate"])
    await scheduler.keys.delete(deleted.key_id)
    _, late = await scheduler.keys.create("late", ["operate"], expires_at=datetime.now(UTC) + timedelta(seconds=0.01))
    rotated, old = await scheduler.keys.create("rotated", ["operate"])
    await scheduler.keys.rotate(rotated.key_id)
    return {"a deleted key": gone, "an expired key": late, "a rotated key": old}
