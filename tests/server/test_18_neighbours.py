"""Issue 17: no office or key can read, change or starve what is another's. Each law was an attack that worked."""

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pytest_httpserver import HTTPServer

from nextslot import Limits
from nextslot.engine.webhooks.webhook_outbox import MOST_SUBSCRIPTIONS, WebhookSettings
from nextslot.executors.run_context import QuotaExceeded, RunContext

from .support import Server, serving


@asynccontextmanager
async def neighbours(
    tmp_path: Path, *offices: str, **settings: Any
) -> AsyncIterator[tuple[Server, dict[str, httpx2.AsyncClient]]]:
    """Serves offices, and gives a client to an admin and to the `operate` key of each office."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(tmp_path, **settings))
        _, admin = await server.scheduler.keys.create("admin", ["admin"])
        texts = {"admin": admin}
        for office_id in offices:
            await server.scheduler.offices.create(office_id, max_concurrent_jobs=0)
            _, texts[office_id] = await server.scheduler.keys.create(office_id, ["operate"], office_id)
        clients = {name: client_of(server, text) for name, text in texts.items()}
        for client in clients.values():
            await stack.enter_async_context(client)
        yield server, clients


def client_of(server: Server, key: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=server.client.base_url, headers={"X-API-Key": key}, timeout=30)


async def test_spec_2_2_a_direct_id_that_is_anothers_run_id_reads_and_writes_nothing_of_it(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a", "b") as (server, keys):
        job = await server.scheduler.submit("echo", {"text": "secret"}, office_id="a")
        await server.scheduler.wait(job.job_id)
        run = await server.scheduler.run_of(job.job_id)
        assert run is not None
        before = (await server.scheduler.files.log(run.run_id)).text

        attack = await keys["b"].post("/api/direct/echo", json={"direct_id": run.run_id, "params": {"text": "mine"}})
        read = await keys["b"].get(f"/api/direct/{run.run_id}")

        assert (attack.status_code, attack.json()["code"]) == (422, "invalid")
        assert read.status_code == 404
        assert (await server.scheduler.files.log(run.run_id)).text == before
        assert b"secret" in before


async def test_a_chosen_id_is_found_in_the_office_of_the_key_else_in_the_one_that_is_named(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a", "b") as (_, keys):
        made = [await keys[office].post("/api/direct/echo", json={"direct_id": "one"}) for office in ("a", "b")]

        own = [(await keys[office].get("/api/direct/one")).json()["run_id"] for office in ("a", "b")]
        named = await keys["admin"].get("/api/direct/one", params={"office_id": "b"})
        unnamed = await keys["admin"].get("/api/direct/one")
        foreign = await keys["a"].get("/api/direct/one", params={"office_id": "b"})

        assert [one.status_code for one in made] == [200, 200]
        assert own == [one.json()["run_id"] for one in made]
        assert (named.json()["run_id"], unnamed.status_code, foreign.status_code) == (own[1], 404, 404)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/api/jobs/{}"), ("POST", "/api/jobs/{}/cancel"), ("GET", "/api/jobs/{}/why"), ("GET", "/api/offices/{}")],
)
async def test_spec_18_10_what_is_anothers_is_answered_like_what_is_not_there(
    tmp_path: Path, method: str, path: str
) -> None:
    async with neighbours(tmp_path, "a", "b") as (server, keys):
        await server.scheduler.pause(office_id="a")
        job = await server.scheduler.submit("echo", office_id="a")
        theirs, nothing = ("a", "nowhere") if "offices" in path else (job.job_id, "x" * len(job.job_id))

        answers = [await keys["b"].request(method, path.format(name)) for name in (theirs, nothing)]

        assert _shape(answers[0], theirs) == _shape(answers[1], nothing)
        assert answers[0].status_code == 404


async def test_a_foreign_neighbour_in_an_order_is_answered_like_an_unknown_one(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a", "b") as (server, keys):
        for office in ("a", "b"):
            await server.scheduler.pause(office_id=office)
        theirs = (await server.scheduler.submit("echo", office_id="a")).job_id
        mine = (await server.scheduler.submit("echo", office_id="b")).job_id

        for unknown in (theirs, "0" * len(theirs)):
            beside = await keys["b"].post(f"/api/jobs/{mine}/move", json={"before": unknown})
            order = await keys["b"].put("/api/queue/order", json={"job_ids": [mine, unknown]})
            waits = await keys["b"].post("/api/jobs", json={"job_type": "echo", "depends_on": [unknown]})

            assert [beside.status_code, order.status_code, waits.status_code] == [404, 404, 422]
            assert "office 'a'" not in beside.text + order.text + waits.text


async def test_a_key_of_one_office_need_not_name_it(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a") as (_, keys):
        job = await keys["a"].post("/api/jobs", json={"job_type": "echo"})
        queue = await keys["a"].get("/api/queue")

        assert (job.status_code, job.json()["office_id"], queue.json()["office_id"]) == (201, "a", "a")


async def test_why_shows_nothing_of_another_offices_work(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a", "b", limits=Limits(resources={"gpu": 1})) as (server, keys):
        held = await server.scheduler.submit("gate", office_id="a", title="the merger", resources=["gpu"])
        mine = await server.scheduler.submit("echo", office_id="b", resources=["gpu"])

        (seen, told) = [(await keys[who].get(f"/api/jobs/{mine.job_id}/why")).text for who in ("admin", "b")]

        assert "the merger" in seen
        assert "a job of another office" in told
        assert not any(one in told for one in ("the merger", held.job_id, '"gate"'))


def _shape(answer: httpx2.Response, name: str) -> tuple[int, Any]:
    """Returns an answer without the parts that depend on the sent id and on the request."""
    content = answer.json()
    return answer.status_code, {
        key: str(value).replace(name, "…") for key, value in content.items() if key != "request_id"
    }


async def test_an_office_that_pauses_itself_learns_of_no_other_paused_office(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a", "b") as (_, keys):
        for office_id in ("a", "b"):
            await keys["admin"].post("/api/queue/pause", json={"office_id": office_id})

        own = (await keys["b"].post("/api/queue/pause", json={"office_id": "b"})).json()["offices"]
        resumed = (await keys["b"].post("/api/queue/resume", json={"office_id": "b"})).json()["offices"]
        all_of_them = (await keys["admin"].post("/api/queue/pause", json={"office_id": "b"})).json()["offices"]

        assert (own, resumed, all_of_them) == (["b"], [], ["a", "b"])


async def test_an_office_with_all_subscriptions_that_it_may_have_leaves_those_of_others(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a", "b") as (server, keys):
        for number in range(MOST_SUBSCRIPTIONS):
            await server.scheduler.webhooks.create(f"https://example.org/{number}", office_id="b")

        full = await keys["b"].post("/api/webhooks", json={"url": "https://example.org/"})
        other = await keys["a"].post("/api/webhooks", json={"url": "https://example.org/"})
        whole = await keys["admin"].post("/api/webhooks", json={"url": "https://example.org/"})

        assert (full.status_code, full.json()["code"]) == (409, "conflict")
        assert full.json()["detail"] == "there are already 100 subscriptions for the office 'b': delete one first"
        assert [other.status_code, whole.status_code] == [201, 201]


async def test_a_key_of_one_office_ends_no_hold_of_a_resource_that_all_offices_use(tmp_path: Path) -> None:
    async def asks(run: RunContext) -> None:
        raise QuotaExceeded(retry_after=1000)

    async with neighbours(tmp_path, "a") as (server, keys):
        server.scheduler.job_type("asks", resources=["provider"])(asks)
        await server.scheduler.run_direct("asks", office_id="a")

        refused = await keys["a"].post("/api/queue/release", json={"resource": "provider"})
        still = (await keys["admin"].get("/api/status")).json()["held"]
        released = await keys["admin"].post("/api/queue/release", json={"resource": "provider"})

        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert ([one["resource"] for one in still], released.status_code) == (["provider"], 200)


async def test_h4_what_receivers_answer_is_shown_to_operators_only(tmp_path: Path, httpserver: HTTPServer) -> None:
    httpserver.expect_request("/inside").respond_with_data("the password is fish", status=418)
    async with neighbours(tmp_path, "a") as (server, keys):
        _, text = await server.scheduler.keys.create("submitter", ["submit"], "a")
        body = {"job_type": "echo", "webhook": {"url": httpserver.url_for("/inside")}}
        async with client_of(server, text) as submitter:
            job = (await submitter.post("/api/jobs", json=body)).json()["job_id"]
            path = f"/api/webhook-deliveries?job_id={job}"
            await _attempted(server, job)
            lower, upper = (await submitter.get(path)).text, (await keys["a"].get(path)).text

        assert ("fish" in upper, "418" in upper) == (True, True)
        assert ("fish" in lower, "418" in lower) == (False, False)


async def test_h4_the_webhook_of_an_office_leads_to_no_private_address_once_there_is_a_key(tmp_path: Path) -> None:
    settings = WebhookSettings(allow_private=True, is_private_until_keyed=True)
    async with neighbours(tmp_path, "a", webhooks=settings) as (_, keys):
        inside = {"webhook": {"url": "http://[::ffff:127.0.0.1]:9/"}}

        changed = await keys["a"].patch("/api/offices/a", json=inside)
        made = await keys["admin"].post("/api/offices", json=inside)
        outside = await keys["a"].patch("/api/offices/a", json={"webhook": {"url": "https://example.org/"}})

        assert (changed.status_code, made.status_code, outside.status_code) == (422, 422, 200)


async def test_a_delivery_to_a_subscription_for_all_offices_is_shown_to_no_office(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a") as (server, keys):
        everybodys, _ = await server.scheduler.webhooks.create("http://127.0.0.1:9/?token=fish")
        await keys["a"].post("/api/webhooks", json={"url": "http://127.0.0.1:9/own"})
        job = (await keys["a"].post("/api/jobs", json={"job_type": "echo"})).json()["job_id"]
        await server.scheduler.wait(job)
        of_all = (
            (await server.scheduler.webhooks.deliveries_page(webhook_id=everybodys.webhook_id)).items[0].delivery_id
        )

        (seen, shown) = [(await keys[who].get(f"/api/webhook-deliveries?job_id={job}")).json()["items"] for who in
                         ("admin", "a")]  # fmt: skip
        one = await keys["a"].get(f"/api/webhook-deliveries/{of_all}")
        again = await keys["a"].post(f"/api/webhook-deliveries/{of_all}/redeliver")

        assert {one["url"] for one in seen} == {"http://127.0.0.1:9/?token=fish", "http://127.0.0.1:9/own"}
        assert [one["url"] for one in shown] == ["http://127.0.0.1:9/own"]
        assert (one.status_code, again.status_code) == (404, 404)


async def test_spec_18_14_files_of_runs_and_the_lock_are_their_owners_alone(tmp_path: Path) -> None:
    def leave(run: RunContext) -> None:
        run.log.info("a secret")
        (run.artifacts / "film.txt").write_text("another")

    data = tmp_path / "data"
    async with neighbours(tmp_path, "a", data=data) as (server, _):
        server.scheduler.job_types.add("leave", leave)
        job = await server.scheduler.submit("leave", office_id="a")
        await server.scheduler.wait(job.job_id)

        roots = [data / "logs", data / "artifacts"]
        files = [path for root in roots for path in root.rglob("*") if path.is_file()]
        locks = list(tmp_path.rglob("*.lock"))

    assert [stat.S_IMODE(root.stat().st_mode) for root in roots] == [0o700, 0o700]
    assert {path.name for path in files} >= {"film.txt"}
    assert all(_others_cannot_read(path, data) for path in files)
    assert [stat.S_IMODE(path.stat().st_mode) for path in files if path.name == "film.txt"] == [0o600]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in locks)


def _others_cannot_read(path: Path, top: Path) -> bool:
    """Returns whether the file, or a directory above it, is closed to all users but the owner."""
    way = [path, *(parent for parent in path.parents if top in parent.parents)]
    return any(one.stat().st_mode & 0o077 == 0 for one in way if one.exists())


async def _attempted(server: Server, job_id: str) -> None:
    """Returns once the webhook of the job was tried."""
    async with asyncio.timeout(20):
        while True:
            found = (await server.scheduler.webhooks.deliveries_page(job_id=job_id)).items
            if found and found[0].attempts:
                return
            await asyncio.sleep(0.01)
