"""What is seen of several nodes: over HTTP, in `why`, in forecasts, and of files that are on another disk."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from nextslot import Limits, Scheduler
from nextslot.domain import Job
from nextslot.executors.run_context import RunContext
from nextslot.server.app import create_app
from nextslot.services import forecast

from .test_nodes import database, eventually, node, running

__all__ = ["database"]


@contextlib.asynccontextmanager
async def asking(scheduler: Scheduler) -> AsyncIterator[httpx2.AsyncClient]:
    """Makes a client of this node's own server."""
    transport = httpx2.ASGITransport(create_app(scheduler), client=("127.0.0.1", 1))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
        yield client


async def until_running(scheduler: Scheduler, job: Job) -> Job:
    async def runs() -> bool:
        return (await scheduler.job(job.job_id)).is_running

    await eventually(runs)
    return await scheduler.job(job.job_id)


async def reasons(scheduler: Scheduler, job: Job) -> dict[str, Any]:
    return {one.code: one for one in (await scheduler.forecast.why(job.job_id)).reasons}


# The list, and draining.


async def test_every_node_answers_who_there_is_and_a_drained_one_starts_nothing(database: str, tmp_path: Path) -> None:
    a = node(database, "a", tmp_path, node_running=3, node_resources={"gpu": 2})
    b = node(database, "b", tmp_path)
    async with running(a, b), asking(b) as client:
        drained = await client.post("/api/nodes/a/drain")
        jobs = [await b.submit("work") for _ in range(4)]
        ended = [await b.wait(job.job_id) for job in jobs]
        listed = (await client.get("/api/nodes")).json()["items"]
        back = await client.post("/api/nodes/a/drain", json={"undo": True})
        status = (await client.get("/api/status")).json()

    assert (drained.status_code, drained.json()["status"]) == (200, "draining")
    assert {one.result for one in ended} == {"b"}
    assert [(one["node_id"], one["status"], one["max_running"], one["resources"]) for one in listed] == [
        ("a", "draining", 3, {"gpu": 2}),
        ("b", "live", 0, {}),
    ]
    assert back.json()["status"] == "live"
    assert (status["node"], status["live_nodes"]) == ("b", 2)


async def test_a_node_that_is_not_known_is_404_and_one_that_is_gone_409(database: str, tmp_path: Path) -> None:
    a, b = node(database, "a", tmp_path), node(database, "b", tmp_path)
    async with running(b), asking(b) as client:
        async with running(a):
            pass
        unknown = await client.post("/api/nodes/nobody/drain")
        gone = await client.post("/api/nodes/a/drain")

    assert (unknown.status_code, unknown.json()["detail"]) == (404, "there is no node 'nobody'")
    assert gone.status_code == 409
    assert "node a is left since" in gone.json()["detail"]


async def test_a_node_that_is_gone_for_good_is_forgotten_with_all_that_it_had(database: str, tmp_path: Path) -> None:
    a = node(database, "a", tmp_path, node_resources={"gpu": 2})
    b = node(database, "b", tmp_path)
    async with running(b), asking(b) as client:
        async with running(a):
            refused = await client.delete("/api/nodes/a")
        waiting = await b.submit("work", resources={"gpu": 1})
        waits = await reasons(b, waiting)
        forgotten = await client.delete("/api/nodes/a")
        again = await client.delete("/api/nodes/a")
        # Nobody counts it now: it is only a limit of all.
        ended = await b.wait(waiting.job_id)
        listed = [one.node_id for one in await b.nodes.list()]
        async with running(node(database, "a", tmp_path)):
            lives = {one.node_id: one.life for one in await b.nodes.list()}

    assert refused.status_code == 409
    assert refused.json()["detail"] == "node a is live: stop it first, so that its runs can finish"
    assert set(waits) == {"no_node"}
    assert (forgotten.status_code, again.status_code, listed) == (204, 404, ["b"])
    assert ended.status == "COMPLETED"
    assert lives == {"a": 2, "b": 1}, "an earlier life of it is still known to be over"


# Why, and when.


async def test_a_type_that_only_another_node_can_run_is_no_reason(database: str, tmp_path: Path) -> None:
    a, b = node(database, "a", tmp_path), node(database, "b", tmp_path)

    @a.job_type("rare")
    async def rare(run: Any) -> str:
        return "a"

    async with running(a, b):
        await a.pause(job_type="rare")
        job = await a.submit("rare")
        alone = await reasons(b, job)
        await a.nodes.drain("a")
        drained = await reasons(b, job)
        await a.nodes.drain("a", undo=True)
        await a.resume(job_type="rare")
        assert (await b.wait(job.job_id)).result == "a"
        await a.pause(job_type="rare")
        left = await a.submit("rare")
        await a.stop()
        gone = await reasons(b, left)

    assert set(alone) == {"paused"}
    assert set(drained) == {"paused", "no_node"}
    assert "node 'a' is being drained" in drained["no_node"].text
    assert "node 'b' has no handler for the job type 'rare'" in drained["no_node"].text
    assert drained["no_node"].data["is_possible"] is False
    assert gone["no_handler"].text == "There is no handler for the job type 'rare' on any live node."


async def test_a_job_that_every_limit_allows_says_which_nodes_have_no_room_for_it(
    database: str, tmp_path: Path
) -> None:
    limits = Limits(running=0, resources={"gpu": 100})
    a = node(database, "a", tmp_path, limits=limits, node_resources={"gpu": 2})
    b = node(database, "b", tmp_path, limits=limits)
    async with running(a, b):
        first = await b.submit("work", {"seconds": 60.0}, resources={"gpu": 2})
        await until_running(b, first)
        second = await b.submit("work", resources=["gpu"])
        large = await b.submit("work", resources={"gpu": 3})
        waits, never = await reasons(b, second), await reasons(b, large)
        expected = (await b.forecast.why(large.job_id)).expected
        await b.cancel(first.job_id, interrupt=True)
        ended = await b.wait(second.job_id)

    assert "node 'a' has 0 of 2 units of the resource 'gpu' free" in waits["no_node"].text
    assert "node 'b' has no resource 'gpu'" in waits["no_node"].text
    assert waits["no_node"].data == {
        "nodes": [
            {"node_id": "a", "problem": "units_in_use", "resource": "gpu", "has": 2, "free": 0, "needs": 1},
            {"node_id": "b", "problem": "too_few_units", "resource": "gpu", "has": 0, "needs": 1},
        ],
        "is_possible": True,
    }
    assert "node 'a' has 2 of the resource 'gpu', and it needs 3" in never["no_node"].text
    assert never["no_node"].data["is_possible"] is False
    assert expected.expected_start is None
    assert ended.result == "a"


async def test_nodes_that_run_as_many_as_they_may_are_a_reason(database: str, tmp_path: Path) -> None:
    a, b = (node(database, name, tmp_path, node_running=1) for name in "ab")
    async with running(a, b):
        for _ in range(2):
            await until_running(a, await a.submit("work", {"seconds": 60.0}))
        third = await a.submit("work")
        found = await reasons(b, third)

        assert found["no_node"].text == (
            "No live node can take it now: node 'a' runs 1 of 1 at once; node 'b' runs 1 of 1 at once."
        )
        await a.stop(grace_seconds=0)
        await b.stop(grace_seconds=0)


async def test_a_forecast_knows_the_types_of_other_nodes(database: str, tmp_path: Path) -> None:
    a, b = node(database, "a", tmp_path, node_running=1), node(database, "b", tmp_path)

    @a.job_type("rare")
    async def rare(run: Any, seconds: float = 0.0) -> None:
        await asyncio.sleep(seconds)

    async with running(a, b):
        await until_running(b, await a.submit("rare", {"seconds": 60.0}))
        await a.offices.change("default", max_concurrent_jobs=1)
        waiting = await a.submit("rare")
        why = await b.forecast.why(waiting.job_id)

        assert why.expected.expected_start is not None
        await a.stop(grace_seconds=0)


async def test_a_forecast_learns_how_long_jobs_take_that_only_other_nodes_run(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast, "FILLED_AGAIN_SECONDS", 0.0)
    a, b = node(database, "a", tmp_path), node(database, "b", tmp_path)

    @a.job_type("rare")
    async def rare(run: Any, seconds: float = 0.0) -> None:
        await asyncio.sleep(seconds)

    async with running(a, b):
        await b.forecast.queue()
        await a.wait((await a.submit("rare", {"seconds": 0.1})).job_id)
        await until_running(b, await a.submit("rare", {"seconds": 60.0}))
        await a.offices.change("default", max_concurrent_jobs=1)
        waiting = await a.submit("rare")

        async def is_known() -> bool:
            return (await b.forecast.why(waiting.job_id)).expected.expected_end is not None

        await eventually(is_known)
        await a.stop(grace_seconds=0)


# Files.


async def test_a_log_and_an_artifact_on_another_disk_are_told_by_their_node(database: str, tmp_path: Path) -> None:
    a, b = node(database, "a", tmp_path), node(database, "b", tmp_path)

    @a.job_type("make")
    async def make(run: RunContext) -> None:
        run.log.info("done on a")
        (run.artifacts / "film.txt").write_text("a film")

    @a.job_type("silent")
    async def silent(run: RunContext) -> None:
        pass

    async with running(a, b), asking(a) as here, asking(b) as there:
        made, quiet = await a.submit("make"), await a.submit("silent")
        run, still = (await a.wait(made.job_id)).run, (await a.wait(quiet.job_id)).run
        called = await a.run_direct("make")
        assert run is not None
        assert still is not None
        log, film = f"/api/job-runs/{run.run_id}/log", f"/api/job-runs/{run.run_id}/artifacts/film.txt"
        at_home = [await here.get(path) for path in (log, film, f"/api/direct/{called.direct_id}/log")]
        away = [await there.get(path) for path in (log, film, f"/api/direct/{called.direct_id}/log")]
        followed = await there.get(log, headers={"Accept": "text/event-stream"})
        direct = (await there.get(f"/api/direct/{called.direct_id}")).json()
        nothing = await there.get(f"/api/job-runs/{still.run_id}/log")

    assert [one.status_code for one in at_home] == [200, 200, 200]
    assert [one.status_code for one in [*away, followed]] == [404, 404, 404, 404]
    assert {one.json()["detail"].partition("here: ")[2] for one in [*away, followed]} == {
        "it is on the disk of node 'a', where the work ran, and this is node 'b'; it has stored no address at which it "
        "can be asked: set `[node] address` there"
    }
    assert direct["log"] is None
    assert (nothing.status_code, nothing.text) == (200, "")
