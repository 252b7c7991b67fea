"""The nodes over HTTP where there is one, on both databases; several are in tests/nodes."""

import asyncio
from pathlib import Path

import pytest

from nextslot import testing
from nextslot.services import files_of_nodes
from nextslot.store.tables import nodes
from tests import databases
from tests.support import new_scheduler

from .support import serving


async def test_a_node_that_is_alone_is_listed_and_leads(tmp_path: Path) -> None:
    is_sqlite = databases.kind() == "sqlite"

    async with serving(tmp_path, node="one", node_running=4, node_resources={"gpu": 2}) as server:
        [node] = (await server.client.get("/api/nodes")).json()["items"]
        while not node["is_leader"]:  # On PostgreSQL it is chosen in the first moment of its lease.
            await asyncio.sleep(0.05)
            [node] = (await server.client.get("/api/nodes")).json()["items"]
        status = (await server.client.get("/api/status")).json()

        assert (node["node_id"], node["status"], node["running"], node["max_running"]) == ("one", "live", 0, 4)
        assert node["resources"] == {"gpu": 2}
        assert {"echo", "gate"} <= set(node["job_types"])
        assert (node["is_leader"], node["lease_until"] is None, node["ended_at"]) == (True, is_sqlite, None)
        assert (status["node"], status["live_nodes"]) == ("one", 1)


@pytest.mark.sqlite_only("a database that is shared has leases")
@pytest.mark.virtual_time
async def test_a_file_has_one_node_whatever_the_last_was_called(tmp_path: Path) -> None:
    first = new_scheduler(tmp_path, node="old", node_resources={"gpu": 1})
    await first.start()
    await testing.crash(first)

    async with new_scheduler(tmp_path, node="new") as second:
        known = await second.nodes.list()
        # What the old one had is nowhere else now, and need not be.
        ended = await second.wait((await second.submit("work", resources=["gpu"])).job_id)

    assert [(one.node_id, one.status, one.is_leader) for one in known] == [
        ("new", "live", True),
        ("old", "lost", False),
    ]
    assert ended.status == "COMPLETED"


async def test_what_it_can_run_is_told_as_it_is_now(tmp_path: Path) -> None:
    async with serving(tmp_path, node="one") as server:
        server.scheduler.job_types.add("newer", server.gate.hold)

        [node] = (await server.client.get("/api/nodes")).json()["items"]

        assert "newer" in node["job_types"]


async def test_a_drained_node_starts_nothing_says_why_and_works_again_when_told(tmp_path: Path) -> None:
    async with serving(tmp_path, node="one") as server:
        drained = await server.client.post("/api/nodes/one/drain")
        job = (await server.client.post("/api/jobs", json={"job_type": "echo"})).json()
        [reason] = (await server.client.get(f"/api/jobs/{job['job_id']}/why")).json()["reasons"]
        refused = await server.client.post("/api/direct/echo", json={})
        back = await server.client.post("/api/nodes/one/drain", json={"undo": True})
        ended = await server.ended(job["job_id"])

        assert drained.json()["status"] == "draining"
        assert (reason["code"], reason["text"]) == (
            "no_node",
            "No live node can take it: node 'one' is being drained.",
        )
        assert (refused.status_code, refused.json()["code"]) == (503, "draining")
        assert back.json()["status"] == "live"
        assert ended["status"] == "COMPLETED"


async def test_draining_is_in_the_audit_log_with_before_and_after(tmp_path: Path) -> None:
    async with serving(tmp_path, node="one") as server:
        await server.client.post("/api/nodes/one/drain")

        [entry] = (await server.client.get("/api/audit")).json()["items"]

        assert (entry["action"], entry["target"]) == ("POST /api/nodes/{node_id}/drain", "/api/nodes/one/drain")
        assert entry["details"] == {"before": {"status": "live"}, "after": {"status": "draining"}}


@pytest.mark.sqlite_only("the secret of nodes that share a database is given here")
@pytest.mark.virtual_time
async def test_the_signature_of_a_node_is_valid_for_one_file_of_one_node_and_a_minute(tmp_path: Path) -> None:
    async with new_scheduler(tmp_path) as scheduler:
        files = scheduler._runtime.files_of_nodes
        await scheduler._access.write(lambda tx: nodes.share_secret(tx, "shared"))

        def signed(node_id: str, target: str) -> str:
            now = str(int(scheduler._runtime.clock.now()) // 1_000_000)
            return f"{now}.{files_of_nodes._signature('shared', node_id, now, target)}"

        valid, others = signed(files.node, "run/log?tail=2"), signed("elsewhere", "run/log?tail=2")

        assert await files.is_of_a_node("run/log?tail=2", valid)
        assert not await files.is_of_a_node("run/log", valid)
        assert not await files.is_of_a_node("another/log?tail=2", valid)
        assert not await files.is_of_a_node("run/log?tail=2", others)
        assert not await files.is_of_a_node("run/log?tail=2", None)
        await asyncio.sleep(59)
        assert await files.is_of_a_node("run/log?tail=2", valid)
        await asyncio.sleep(2)
        assert not await files.is_of_a_node("run/log?tail=2", valid)
