"""Spec 18.11: admins set quotas for each office, which cap what an office may set for itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from nextslot import AsyncClient, Limits
from nextslot.client.keyword_arguments import NewJob
from nextslot.domain import Quotas
from nextslot.engine.settings import office_quotas
from nextslot.errors import TooManyJobs
from nextslot.executors.run_context import RunContext
from nextslot.server.problems import HttpProblem
from nextslot.server.request_body import Bodies

from .support import Server
from .test_18_neighbours import neighbours

STREAM = {"Accept": "text/event-stream"}


async def granted(admin: httpx2.AsyncClient, **quotas: Any) -> None:
    answer = await admin.patch("/api/quotas/a", json=quotas)
    assert answer.status_code == 200, answer.text


def over(answer: httpx2.Response, quota: str) -> bool:
    return (
        (answer.status_code, answer.json().get("code")) == (429, "over_quota")
        and "retry-after" in answer.headers
        and quota in answer.json()["detail"]
    )


@pytest.mark.parametrize("body", [{"queued_jobs": 1}, {"max_concurrent_jobs": 100}])
async def test_spec_18_11_only_admins_grant_quotas(tmp_path: Path, body: dict[str, int]) -> None:
    async with neighbours(tmp_path, "a", "b") as (_, keys):
        answers = {who: (await keys[who].patch("/api/quotas/a", json=body)).status_code for who in ("a", "b")}
        seen = {who: (await keys[who].get("/api/quotas/a")).status_code for who in ("admin", "a", "b")}

        assert answers == {"a": 403, "b": 403}
        assert seen == {"admin": 200, "a": 200, "b": 404}


async def test_spec_18_11_a_full_queue_takes_no_more_and_another_office_goes_on(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a", "b") as (server, keys):
        for office_id in ("a", "b"):
            await server.scheduler.pause(office_id=office_id)
        await granted(keys["admin"], queued_jobs=3)

        batch = await keys["a"].post("/api/jobs/batch", json={"jobs": [{"job_type": "echo"}] * 4})
        three = [(await keys["a"].post("/api/jobs", json={"job_type": "echo"})).status_code for _ in range(3)]
        fourth = await keys["a"].post("/api/jobs", json={"job_type": "echo"})
        other = await keys["b"].post("/api/jobs/batch", json={"jobs": [{"job_type": "echo"}] * 4})
        metrics = (await keys["admin"].get("/metrics")).text

        assert over(batch, "queued_jobs")
        assert three == [201, 201, 201]
        assert over(fourth, "queued_jobs")
        assert other.status_code == 201
        assert 'nextslot_over_quota_total{quota="queued_jobs"} 2.0' in metrics


async def test_spec_18_11_requests_and_streams_of_an_office_are_bounded(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a", "b") as (_, keys), AsyncExitStack() as stack:
        await granted(keys["admin"], streams=1)
        opened = await stack.enter_async_context(keys["a"].stream("GET", "/api/events", headers=STREAM))
        second = await keys["a"].get("/api/events", headers=STREAM)
        await granted(keys["admin"], requests_per_second=1)
        many = await asyncio.gather(*(keys["a"].get("/api/me") for _ in range(20)))
        others = await asyncio.gather(*(keys["b"].get("/api/me") for _ in range(20)))

        assert opened.status_code == 200
        assert over(second, "streams")
        assert any(over(one, "requests_per_second") for one in many)
        assert {one.status_code for one in others} == {200}


async def test_a_stream_that_has_ended_gives_its_place_back(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a") as (_, keys):
        await granted(keys["admin"], streams=1)
        async with keys["a"].stream("GET", "/api/events", headers=STREAM):
            pass
        async with asyncio.timeout(20):
            while True:
                async with keys["a"].stream("GET", "/api/events", headers=STREAM) as again:
                    if again.status_code == 200:
                        break
                await asyncio.sleep(0.01)

        assert again.status_code == 200


async def test_spec_18_11_an_office_does_not_lift_its_own_quota(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a") as (server, keys):
        await server.scheduler.offices.change("a", max_concurrent_jobs=2)
        await granted(keys["admin"], max_concurrent_jobs=2)
        path = "/api/offices/a/scheduler/config"

        lifted = [(await keys["a"].patch(path, json={"maxConcurrentJobs": n})).status_code for n in (3, 0)]
        lowered = (await keys["a"].patch(path, json={"maxConcurrentJobs": 1})).status_code

        assert (lifted, lowered) == ([403, 403], 200)


async def test_an_admin_grants_each_quota_by_its_default_and_more(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a") as (_, keys):
        for name, value in office_quotas.DEFAULTS.to_dict().items():
            await granted(keys["admin"], **{name: value})
        await granted(keys["admin"], queued_jobs=100_000_000)

        assert (await keys["a"].get("/api/quotas/a")).json()["queued_jobs"] == 100_000_000


async def test_an_office_makes_only_jobs_of_the_types_that_it_was_granted(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a") as (_, keys):
        await granted(keys["admin"], job_types=["echo"])

        made = [(await keys["a"].post("/api/jobs", json={"job_type": name})).status_code for name in ("echo", "fail")]

        assert made == [201, 403]


async def test_the_combinations_of_type_role_and_resources_of_an_offices_ready_jobs_are_bounded(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a") as (server, keys):
        await granted(keys["admin"], lanes=2)
        await server.scheduler.pause(office_id="a")

        async def made(role: str | None) -> Any:
            return await keys["a"].post("/api/jobs", json={"job_type": "echo", "role": role})

        first = [(await made(role)).status_code for role in ("r1", "r2")]
        third = await made("r3")
        second = await made("r1")
        assert (first, second.status_code) == ([201, 201], 201)
        assert over(third, "lanes")

        # A combination that has no ready job any more does not count.
        for job in await server.scheduler.queue("a"):
            await server.scheduler.cancel(job.job_id)
        assert [(await made(role)).status_code for role in ("r3", "r4")] == [201, 201]


async def test_the_combinations_of_type_and_resources_are_bounded_while_nothing_is_granted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(office_quotas, "DEFAULTS", Quotas(lanes=3))
    async with neighbours(tmp_path, "a", "b") as (server, keys):
        await server.scheduler.pause(office_id="a")

        async def made(office: str, units: int, role: str = "r1") -> Any:
            job = {"job_type": "echo", "resources": {"remote": units}, "role": role}
            return await keys[office].post("/api/jobs", json=job)

        first = [(await made("a", units)).status_code for units in (1, 2, 3)]
        fourth = await made("a", 4)
        roles = [(await made("a", 3, role)).status_code for role in ("r2", "r3")]
        other = await made("b", 4)

        assert (first, roles, other.status_code) == ([201] * 3, [201] * 2, 201)
        assert over(fourth, "lanes")


async def test_combinations_of_ended_jobs_lock_no_office_out_and_make_no_room_when_they_are_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(office_quotas, "DEFAULTS", Quotas(lanes=3))
    monkeypatch.setattr(office_quotas, "COUNTED_AGAIN_SECONDS", 0.0)
    for is_restarted in (False, True):
        async with neighbours(tmp_path, *([] if is_restarted else ["a"])) as (server, keys):
            if is_restarted:
                _, text = await server.scheduler.keys.create("again", ["operate"], "a")
                keys["a"] = keys["admin"]
                keys["a"].headers["X-API-Key"] = text
                await server.scheduler.resume(office_id="a")

            async def made(units: int) -> Any:
                job = {"job_type": "echo", "resources": {"remote": units}, "office_id": "a"}
                return await keys["a"].post("/api/jobs", json=job)

            for units in range(1, 9):
                job = await made(units)
                assert job.status_code == 201, job.text
                await server.scheduler.wait(job.json()["job_id"])
            await server.scheduler.pause(office_id="a")
            answers = [await made(units) for units in range(1, 9)]
            again = await made(1)
            await server.scheduler.bulk.cancel(all=True)
            after = await made(5)
            await server.scheduler.bulk.cancel(all=True)

            # One request may go beyond the quota, then none.
            statuses = [answer.status_code for answer in answers]
            assert statuses in ([201] * 3 + [429] * 5, [201] * 4 + [429] * 4)
            assert over(answers[-1], "lanes")
            assert again.status_code in (201, 429)
            assert after.status_code == 201


@asynccontextmanager
async def declared(tmp_path: Path) -> AsyncIterator[tuple[Server, dict[str, httpx2.AsyncClient]]]:
    """Makes two offices; `gpu` is configured, `printer` belongs to a job type, `scanner` to the node."""
    limits, node = Limits(resources={"gpu": 2}), {"scanner": 1, "gpu": 2, "printer": 1}
    async with neighbours(tmp_path, "a", "b", limits=limits, node_resources=node) as (server, keys):
        server.scheduler.job_types.add("print", _nothing, resources=["printer"])
        yield server, keys


async def _nothing(run: RunContext) -> None: ...


def naming(resource: str, **fields: Any) -> dict[str, Any]:
    return {"job_type": "echo", "resources": [resource], **fields}


async def test_spec_4_18_a_key_of_one_office_names_only_resources_that_somebody_has_declared(tmp_path: Path) -> None:
    async with declared(tmp_path) as (server, keys):
        known = [
            (await keys["a"].post("/api/jobs", json=naming(one))).status_code
            for one in ("gpu", "printer", "scanner", "remote")
        ]
        plain = await keys["a"].post("/api/jobs", json={"job_type": "print"})
        before = len((await server.scheduler.lists.jobs()).items)
        one = naming("gpu7")
        two = [{"job_type": "echo"}, one]
        refused = {
            "job": await keys["a"].post("/api/jobs", json=one),
            "batch": await keys["a"].post("/api/jobs/batch", json={"jobs": two}),
            "group": await keys["a"].post("/api/job-groups", json={"mode": "parallel", "jobs": two}),
            "template": await keys["a"].post("/api/job-templates", json={"name": "one", **one}),
            "pipeline": await keys["a"].post("/api/job-templates", json={"name": "two", "jobs": two}),
        }

        assert (known, plain.status_code) == ([201] * 4, 201)
        assert {how: answer.status_code for how, answer in refused.items()} == dict.fromkeys(refused, 422)
        assert {how: answer.json()["errors"][0]["field"] for how, answer in refused.items()} == {
            "job": "resources", "batch": "jobs.1.resources", "group": "jobs.1.resources",
            "template": "resources", "pipeline": "jobs.1.resources",
        }  # fmt: skip
        assert refused["job"].json()["detail"] == (
            "resources has 'gpu7', which is not in the configuration and belongs to no job type and no node; name one "
            "of gpu, printer, remote, scanner, or ask an admin to grant the office own_resources"
        )
        assert len((await server.scheduler.lists.jobs()).items) == before
        assert (await server.scheduler.templates.page(office_id="a")).items == ()


async def test_spec_4_18_an_office_that_was_granted_it_names_its_own_resources(tmp_path: Path) -> None:
    async with declared(tmp_path) as (_, keys):
        await granted(keys["admin"], own_resources=True)
        made = [(await keys[who].post("/api/jobs", json=naming("gpu7"))).status_code for who in ("a", "b")]
        template = await keys["a"].post("/api/job-templates", json=naming("gpu7", name="one"))
        await granted(keys["admin"], own_resources=None)
        again = await keys["a"].post("/api/jobs", json=naming("gpu7"))
        renamed = await keys["a"].patch(f"/api/job-templates/{template.json()['template_id']}", json={"name": "two"})
        wrong = await keys["admin"].patch("/api/quotas/a", json={"own_resources": 2})

        assert (made, template.status_code, again.status_code) == ([201, 422], 201, 422)
        assert (renamed.status_code, wrong.status_code) == (200, 422)


async def test_spec_4_18_a_caller_of_every_office_names_any_resource_and_an_office_uses_what_he_named(
    tmp_path: Path,
) -> None:
    async with declared(tmp_path) as (server, keys):
        job = await keys["admin"].post("/api/jobs", json=naming("gpu7", office_id="a"))
        template = await keys["admin"].post("/api/job-templates", json=naming("gpu7", name="one", office_id="a"))
        by_python = await server.scheduler.submit("echo", resources=["gpu8"], office_id="a")
        of_template = {"template_id": template.json()["template_id"]}
        schedule = await keys["a"].post(
            "/api/schedules", json={"name": "daily", "cron_expression": "@daily", **of_template}
        )

        uses = [
            await keys["a"].post("/api/jobs", json=of_template),
            await keys["a"].post(f"/api/schedules/{schedule.json()['schedule_id']}/trigger", json={}),
        ]

        assert (job.status_code, template.status_code, schedule.status_code) == (201, 201, 201)
        assert by_python.resources == {"gpu8": 1}
        assert [(one.status_code, one.json()["resources"]) for one in uses] == [(201, {"gpu7": 1})] * 2


async def test_a_request_that_names_its_own_resources_spoils_no_other_of_its_transaction(tmp_path: Path) -> None:
    async with declared(tmp_path) as (_, keys):
        wanted = [("gpu7", "admin"), ("gpu", "a"), ("gpu7", "a")] * 10

        answers = await asyncio.gather(
            *(keys[who].post("/api/jobs", json=naming(name, office_id="a")) for name, who in wanted)
        )

        assert [one.status_code for one in answers] == [201, 201, 422] * 10


async def test_a_request_with_thousands_of_combinations_is_refused_before_they_are_stored(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a") as (server, keys):
        await granted(keys["admin"], batch_jobs=2000)
        jobs = [{"job_type": "echo", "role": f"r{n}"} for n in range(1001)]

        refused = await keys["a"].post("/api/jobs/batch", json={"jobs": jobs})

        assert refused.status_code == 422
        assert refused.json()["detail"] == (
            "jobs.1000.role: the request has more than 1,000 different combinations of job type, role, resources and "
            "keys; send its jobs in several requests"
        )
        assert (await server.scheduler.lists.jobs()).items == ()


MANY = [{"job_type": "echo"}] * 501


async def test_spec_18_11_one_request_of_an_office_is_about_so_many_jobs_at_most(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a", "b") as (server, keys):
        await server.scheduler.pause()

        async def asked(who: str, number: int) -> list[int]:
            jobs = [{"job_type": "echo", "office_id": "a"}] * number
            work = [{"description": "d", "role": "r", "job_type": "echo"}] * number
            answers = [
                await keys[who].post("/api/jobs/batch", json={"jobs": jobs}),
                await keys[who].post("/api/job-groups", json={"jobs": jobs, "mode": "parallel"}),
                await keys[who].post("/api/offices/a/jobs", json={"jobs": work}),
            ]
            return [one.status_code for one in answers]

        default = (await keys["a"].get("/api/quotas/a")).json()["batch_jobs"]
        refused = await keys["a"].post("/api/jobs/batch", json={"jobs": MANY})
        order = await keys["a"].put("/api/queue/order", json={"job_ids": ["x"] * 501})
        too_many = await asked("a", 501)
        await granted(keys["admin"], batch_jobs=2)

        assert default == 500
        assert (refused.status_code, refused.json()["code"], refused.json()["most"]) == (422, "too_many_jobs", 500)
        assert refused.json()["detail"] == (
            "jobs has 501 items, and a key of the office 'a' may name 500 in one request; "
            "send several requests, or ask an admin for more (`batch_jobs`)"
        )
        assert order.json()["code"] == "too_many_jobs"
        assert too_many == [422] * 3
        assert await asked("a", 3) == [422] * 3
        assert await asked("a", 2) == [201] * 3
        assert await asked("admin", 3) == [201] * 3
        await granted(keys["admin"], batch_jobs=0)
        assert await asked("a", 3) == [201] * 3


async def test_a_client_with_the_key_of_an_office_sends_many_jobs_in_parts_and_makes_none_twice(
    tmp_path: Path,
) -> None:
    async with neighbours(tmp_path, "a") as (server, keys):
        await granted(keys["admin"], batch_jobs=2)
        url, key = str(server.client.base_url), str(keys["a"].headers["X-API-Key"])
        async with AsyncClient(url, key=key) as client:
            jobs = [NewJob(job_type="echo", params={"text": str(number)}) for number in range(5)]
            first = await client.submit_many(jobs, idempotency_key="once")
            again = await client.submit_many(jobs, idempotency_key="once")
            with pytest.raises(TooManyJobs, match="batch_jobs") as refused:
                await client.submit_many([NewJob(job_type="echo", key=str(number)) for number in range(3)])

        assert [job.params["text"] for job in first] == ["0", "1", "2", "3", "4"]
        assert [job.job_id for job in again] == [job.job_id for job in first]
        assert refused.value.most == 2
        assert len((await server.scheduler.lists.jobs()).items) == 5


async def test_direct_callers_of_an_office_are_bounded(tmp_path: Path) -> None:
    async with neighbours(tmp_path, "a") as (server, keys):
        await server.scheduler.offices.change("a", max_concurrent_jobs=1)
        await granted(keys["admin"], direct_callers=1)
        async with AsyncExitStack() as stack:
            read = []
            for _ in range(2):  # The first runs, the second waits.
                one = await stack.enter_async_context(
                    keys["a"].stream("POST", "/api/direct/gate", json={}, headers=STREAM)
                )
                read.append(one.aiter_text())
                await anext(read[-1])
            third = await keys["a"].post("/api/direct/gate", json={})
            server.gate.opened.set()

        assert over(third, "direct_callers")


async def test_spec_18_11_an_office_whose_files_take_too_much_makes_nothing_new_and_another_goes_on(
    tmp_path: Path,
) -> None:
    def leave(run: RunContext) -> None:
        (run.artifacts / "film.bin").write_bytes(b"x" * 5000)

    async with neighbours(tmp_path, "a", "b", data=tmp_path / "data") as (server, keys):
        server.scheduler.job_types.add("leave", leave)
        job = await server.scheduler.submit("leave", office_id="a")
        await server.scheduler.wait(job.job_id)
        direct = await keys["a"].post("/api/direct/leave", json={})

        await granted(keys["admin"], stored_bytes=10_000)
        used = (await keys["a"].get("/api/quotas/a")).json()["used"]
        refused = await keys["a"].post("/api/jobs", json={"job_type": "echo"})
        other = await keys["b"].post("/api/jobs", json={"job_type": "echo"})

        assert direct.status_code == 200
        assert used["stored_bytes"] >= 10_000
        assert over(refused, "stored_bytes")
        assert other.status_code == 201


async def test_body_bytes_of_an_office_are_bounded_by_its_quota() -> None:
    bodies = Bodies(wait_seconds=0.01)
    bodies.bytes_of = lambda lane: 100 if lane == "office a" else 0

    with bodies.of("office a") as one, bodies.of("office b") as two:
        await bodies._reserve("office a", 80)
        one.bytes = 80
        await bodies._reserve("office b", 80)
        two.bytes = 80

        await bodies._reserve("office b", 80)
        two.bytes += 80
        with pytest.raises(HttpProblem, match="in progress"):
            await bodies._reserve("office a", 80)
