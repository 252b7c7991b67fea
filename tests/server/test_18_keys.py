"""Keys expire, rotate, are limited to addresses and job types, and end what is open by them (spec 18.13)."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from .support import Server, serving
from .test_18_neighbours import client_of, neighbours


async def made(server: Server, **limits: Any) -> tuple[str, str]:
    key, text = await server.scheduler.keys.create("made", ["operate"], "a", **limits)
    return key.key_id, text


async def status(server: Server, text: str, **body: Any) -> int:
    async with client_of(server, text) as client:
        return (await client.post("/api/jobs", json={"job_type": "echo", **body})).status_code


async def test_a_key_opens_nothing_once_it_has_expired(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a") as (server, _):
        _, text = await made(server, expires_at=datetime.now(UTC) + timedelta(seconds=2))

        before = await status(server, text)
        async with asyncio.timeout(20):
            while True:
                after = await status(server, text)
                if after == 401:
                    break
                await asyncio.sleep(0.05)

        assert (before, after) == (201, 401)


async def test_the_only_admin_key_does_not_expire(tmp_path: Path) -> None:
    soon = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    async with serving(tmp_path) as server:
        first = await server.client.post("/api/keys", json={"name": "x", "scopes": ["admin"], "expires_at": soon})
        lasting, text = await server.scheduler.keys.create("lasting", ["admin"])
        async with client_of(server, text) as admin:
            second = await admin.post("/api/keys", json={"name": "x", "scopes": ["admin"], "expires_at": soon})
            last = await admin.delete(f"/api/keys/{lasting.key_id}")

        assert [one.status_code for one in (first, second, last)] == [409, 201, 409]


async def test_a_rotated_key_opens_by_both_texts_until_the_overlap_is_over(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a") as (server, keys):
        key_id, old = await made(server)

        answer = await keys["admin"].post(f"/api/keys/{key_id}/rotate", json={"overlap_seconds": 3600})
        both = [await status(server, text) for text in (old, answer.json()["key"])]
        again = await keys["admin"].post(f"/api/keys/{key_id}/rotate")
        last = [await status(server, text) for text in (old, answer.json()["key"], again.json()["key"])]
        audit = (await keys["admin"].get("/api/audit")).text

        assert (answer.status_code, both, last) == (200, [201, 201], [401, 401, 201])
        assert "POST /api/keys/{key_id}/rotate" in audit
        assert not any(text in audit for text in (old, answer.json()["key"], again.json()["key"]))


@pytest.mark.parametrize(("networks", "expected"), [(["10.0.0.0/8"], 403), (["127.0.0.0/8", "::1"], 201)])
async def test_a_key_opens_only_from_its_addresses(tmp_path: Path, networks: list[str], expected: int) -> None:
    async with neighbours(tmp_path, "a") as (server, _):
        _, text = await made(server, allowed_addresses=networks)

        assert await status(server, text) == expected


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Real-IP", "Forwarded"])
async def test_a_header_does_not_change_the_address_of_a_caller(tmp_path: Path, header: str) -> None:
    async with neighbours(tmp_path, "a") as (server, _):
        _, text = await made(server, allowed_addresses=["10.0.0.0/8"])

        answer = await server.client.get("/api/jobs", headers={"X-API-Key": text, header: "10.0.0.1"})

        assert answer.status_code == 403


async def test_a_key_makes_only_jobs_of_its_types_by_whatever_way(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a") as (server, keys):
        _, text = await made(server, job_types=["echo"])
        failed = await server.scheduler.submit("fail", office_id="a")
        await server.scheduler.wait(failed.job_id)
        run = await server.scheduler.run_of(failed.job_id)
        assert run is not None
        ways: list[tuple[str, Any]] = [
            ("/api/jobs", {"job_type": "fail"}),
            ("/api/jobs/batch", {"jobs": [{"job_type": "echo"}, {"job_type": "fail"}]}),
            ("/api/job-groups", {"mode": "parallel", "jobs": [{"job_type": "fail"}]}),
            ("/api/direct/fail", {}),
            (f"/api/jobs/{failed.job_id}/rerun", {}),
            (f"/api/job-runs/{run.run_id}/retry", {}),
            ("/api/offices/a/jobs", {"jobs": [{"description": "d", "role": "FE", "job_type": "fail"}]}),
        ]
        before = (await keys["admin"].get("/api/jobs")).json()["items"]

        async with client_of(server, text) as client:
            refused = {path: (await client.post(path, json=body)).status_code for path, body in ways}

        assert refused == {path: 403 for path, _ in ways}
        assert (await keys["admin"].get("/api/jobs")).json()["items"] == before
        assert await status(server, text) == 201


@pytest.mark.parametrize("limits", ["key", "office"])
async def test_no_template_or_schedule_makes_jobs_of_types_that_a_key_or_its_office_may_not_make(
    tmp_path: Path, limits: str
) -> None:
    async with neighbours(tmp_path, "a") as (server, keys):
        kept = await server.scheduler.templates.create(name="kept", job_type="fail", office_id="a")
        cron: Any = {"template_id": kept.template_id, "cron_expression": "* * * * *", "office_id": "a"}
        off = await server.scheduler.schedules.create(name="off", enabled=False, **cron)
        _, text = await made(server, **({"job_types": ["echo"]} if limits == "key" else {}))
        if limits == "office":
            await keys["admin"].patch("/api/quotas/a", json={"job_types": ["echo"]})
        ways: list[tuple[str, str, Any]] = [
            ("POST", "/api/job-templates", {"name": "new", "job_type": "fail", "office_id": "a"}),
            ("PUT", "/api/job-templates/by-name/new?office_id=a", {"job_type": "fail"}),
            ("POST", "/api/job-templates", {"name": "group", "jobs": [{"job_type": "fail"}], "office_id": "a"}),
            ("PATCH", f"/api/job-templates/{kept.template_id}", {"priority": 1}),
            ("POST", "/api/schedules", {"name": "new", **cron}),
            ("PUT", "/api/schedules/by-name/new?office_id=a", {k: v for k, v in cron.items() if k != "office_id"}),
            ("PATCH", f"/api/schedules/{off.schedule_id}", {"enabled": True}),
        ]

        async with client_of(server, text) as client:
            refused = [(await client.request(method, path, json=body)).status_code for method, path, body in ways]
            allowed = await client.post("/api/job-templates", json={"name": "e", "job_type": "echo", "office_id": "a"})

        assert refused == [403] * len(ways)
        assert allowed.status_code == 201
        assert [one.name for one in (await server.scheduler.schedules.page()).items] == ["off"]


async def test_the_last_use_of_a_key_is_stored_and_not_with_every_request(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a") as (server, _):
        key_id, text = await made(server)
        before = (await server.scheduler.keys.get(key_id)).last_used_at

        await status(server, text)
        async with asyncio.timeout(20):
            while True:
                first = (await server.scheduler.keys.get(key_id)).last_used_at
                if first is not None:
                    break
                await asyncio.sleep(0.01)
        await status(server, text)
        await server.scheduler.submit("echo", office_id="a")

        assert before is None
        assert (await server.scheduler.keys.get(key_id)).last_used_at == first


@pytest.mark.parametrize("path", ["/api/events", "/api/direct/gate"])
async def test_spec_18_13_a_deleted_key_ends_its_streams(tmp_path: Path, path: str) -> None:
    async with neighbours(tmp_path, "a") as (server, keys):
        key_id, text = await made(server)
        method = "POST" if "direct" in path else "GET"
        options: dict[str, Any] = {"json": {}} if method == "POST" else {}
        async with (
            client_of(server, text) as client,
            client.stream(method, path, headers={"Accept": "text/event-stream"}, **options) as stream,
            asyncio.timeout(20),
        ):
            pieces = stream.aiter_text()
            await anext(pieces)
            deleted = await keys["admin"].delete(f"/api/keys/{key_id}")
            rest = "".join([piece async for piece in pieces])

        assert deleted.status_code == 204
        assert "was deleted or rotated, or has expired" in rest


async def test_a_stream_of_another_key_goes_on(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a") as (server, keys):
        key_id, _ = await made(server)
        async with (
            keys["a"].stream("GET", "/api/events", headers={"Accept": "text/event-stream"}) as stream,
            asyncio.timeout(20),
        ):
            pieces = stream.aiter_text()
            await anext(pieces)
            await keys["admin"].delete(f"/api/keys/{key_id}")
            job = await server.scheduler.submit("echo", office_id="a")
            async for piece in pieces:
                if job.job_id in piece:
                    break

        assert isinstance(stream, httpx2.Response)


async def test_a_key_that_may_submit_cancels_its_own_jobs_and_no_others(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a", "b") as (server, _):
        texts = {name: (await server.scheduler.keys.create(name, ["submit"], "a"))[1] for name in ("mine", "yours")}
        _, reader = await server.scheduler.keys.create("mine", ["read"], "a")
        _, stranger = await server.scheduler.keys.create("mine", ["submit"], "b")
        async with client_of(server, texts["mine"]) as client:
            job_id = (await client.post("/api/jobs", json={"job_type": "gate", "office_id": "a"})).json()["job_id"]

        async def cancelled(text: str) -> tuple[int, str]:
            async with client_of(server, text) as client:
                reply = await client.post(f"/api/jobs/{job_id}/cancel")
            return reply.status_code, reply.json().get("code", "")

        refused = [await cancelled(text) for text in (texts["yours"], reader, stranger)]

        assert refused == [(403, "forbidden"), (403, "forbidden"), (404, "not_found")]
        assert (await cancelled(texts["mine"]))[0] in (200, 202)


async def test_a_job_or_group_that_a_key_triggers_by_hand_is_its_own(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a", "b") as (server, _):
        scheduler = server.scheduler
        _, mine = await scheduler.keys.create("mine", ["submit"], "a")
        _, yours = await scheduler.keys.create("yours", ["submit"], "a")
        one = await scheduler.templates.create("one", "gate", office_id="a")
        some = await scheduler.templates.create(
            "some", office_id="a", jobs=[{"job_type": "gate"}, {"job_type": "gate"}], mode="sequential"
        )
        job_ids = []
        async with client_of(server, mine) as client, client_of(server, yours) as stranger:
            for template in (one, some):
                schedule = await scheduler.schedules.create(
                    template.name, template.template_id, "@yearly", office_id="a"
                )
                made = (await client.post(f"/api/schedules/{schedule.schedule_id}/trigger", json={})).json()
                job_ids += [job["job_id"] for job in made.get("jobs", [made])]
            owners = [(await scheduler.job(job_id)).created_by for job_id in job_ids]
            refused = [(await stranger.post(f"/api/jobs/{job_id}/cancel")).status_code for job_id in job_ids]
            # The last member first: the end of one that comes before it would end it too.
            cancelled = [(await client.post(f"/api/jobs/{one}/cancel")).status_code for one in reversed(job_ids)]

        assert owners == ["mine"] * 3
        assert refused == [403] * 3
        assert set(cancelled) <= {200, 202}


async def test_a_dry_run_needs_the_right_to_submit_and_stores_nothing(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a", "b") as (server, _):
        _, narrow = await server.scheduler.keys.create("narrow", ["submit"], "a", job_types=["echo"])
        _, reader = await server.scheduler.keys.create("reader", ["read"], "a")

        async def tried(text: str, **body: Any) -> httpx2.Response:
            async with client_of(server, text) as client:
                return await client.post("/api/jobs/dry-run", json=body)

        answers = [
            await tried(narrow, job_type="echo"),
            await tried(narrow, job_type="gate"),
            await tried(narrow, job_type="echo", office_id="b"),
            await tried(reader, job_type="echo"),
        ]

        assert [one.status_code for one in answers] == [200, 403, 404, 403]
        shown = answers[0].json()
        assert (shown["is_new"], shown["job"]["office_id"], shown["job"]["created_by"]) == (True, "a", "narrow")
        assert shown["reasons"][0]["code"] == "next"
        async with client_of(server, reader) as client:
            assert (await client.get("/api/jobs")).json()["items"] == []
