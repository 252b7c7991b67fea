"""Nodes whose handlers block them: who is named, who answers, what is lost and what is not. Real processes."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from nextslot import Limits, Scheduler
from tests import postgres
from tests.nodes import blocking_jobs
from tests.nodes.test_outages import Node, serving

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0
BLOCKING = """
[server]
health_port = 0
[job_types.doze]
handler = "tests.nodes.blocking_jobs:doze"
[job_types.hold]
handler = "tests.nodes.blocking_jobs:hold"
"""


@pytest.fixture
def database() -> Iterator[str]:
    name = postgres.borrow()
    yield postgres.address(name)
    postgres.give_back(name)


# Seen and answered for.


def test_a_job_that_blocks_the_loop_is_named_once_and_so_is_its_end(tmp_path: Path) -> None:
    with serving(tmp_path, f"sqlite:///{tmp_path}/jobs.db", BLOCKING) as node:
        node.until(lambda: node.status("/ready") == 200)
        job = node.post("/api/jobs", {"job_type": "doze", "params": {"seconds": 4}}).json()

        node.until(lambda: bool(node.lines("answers again")))
        [line] = [json.loads(line) for line in node.lines("has not answered for")]
        [end] = node.lines("answers again")
        found = httpx2.get(node.url + "/metrics", timeout=30).text

        assert line["job_id"] == job["job_id"]
        assert f"job {job['job_id']} of type doze" in line["event"]
        assert "blocking_jobs.py" in line["event"]
        assert " in doze" in line["event"]
        assert float(end.partition("after ")[2].split()[0]) >= 3.5
        assert "nextslot_loop_blocked_seconds_count 1" in found


@pytest.mark.parametrize("job_type", ["doze", "hold"])
def test_a_probe_is_answered_while_a_job_blocks_everything_else(tmp_path: Path, job_type: str) -> None:
    with serving(tmp_path, f"sqlite:///{tmp_path}/jobs.db", BLOCKING) as node:
        node.until(lambda: node.status("/ready") == 200)
        probes = probes_of(node)
        node.until(lambda: probe(probes, "/ready")[0] == 200)
        body = {"job_type": job_type, "params": {"seconds": 12}}
        threading.Thread(target=node.post, args=("/api/jobs", body), daemon=True).start()

        node.until(lambda: probe(probes, "/health")[1]["loop_answered_ms_ago"] > 1500)
        node.until(lambda: probe(probes, "/ready")[0] == 503)
        blocked = probe(probes, "/ready")[1]
        alive = probe(probes, "/health")
        with pytest.raises(httpx2.TimeoutException):
            httpx2.get(node.url + "/health", timeout=0.5)

        assert (alive[0], alive[1]["status"], blocked["status"]) == (200, "ok", "blocked")
        node.until(lambda: probe(probes, "/ready")[0] == 200)
        assert len(node.lines("blocks it at") + node.lines("no code of this process ran")) == 1
        assert probe(probes, "/elsewhere")[0] == 404


def test_probes_are_answered_while_the_node_waits_for_its_database(tmp_path: Path) -> None:
    with serving(tmp_path, "postgresql://nobody@127.0.0.1:1/nowhere", BLOCKING) as node:
        node.until(lambda: bool(node.lines("waiting for the database")))
        probes = probes_of(node)

        node.until(lambda: probe(probes, "/health")[0] == 200)
        assert probe(probes, "/ready")[0] == 503


def test_the_sidecar_is_started_again_and_ends_with_its_node(tmp_path: Path) -> None:
    with serving(tmp_path, f"sqlite:///{tmp_path}/jobs.db", BLOCKING) as node:
        node.until(lambda: node.status("/ready") == 200)
        node.until(lambda: len(sidecars_of(node.process.pid)) == 1)
        [first] = sidecars_of(node.process.pid)
        probes = probes_of(node)

        os.kill(first, signal.SIGKILL)
        node.until(lambda: sidecars_of(node.process.pid) not in ([], [first]))
        node.until(lambda: probe(probes, "/ready")[0] == 200)
        [second] = sidecars_of(node.process.pid)
        node.process.kill()
        node.process.wait()

        until(lambda: not Path(f"/proc/{second}").exists())


# Leases.


def test_a_held_interpreter_loses_neither_the_node_nor_what_it_runs(database: str, tmp_path: Path) -> None:
    """For twice as long as the lease."""
    with nodes(database, tmp_path, a=("60", "hold", "tick"), b=("60",)):
        tick, hold = submit(database, tmp_path, ("tick", {"seconds": 18}), ("hold", {"seconds": 14}))

        until(lambda: ended(database, hold) and ended(database, tick))

        assert asked(database, "select node_id, life, status from nodes where node_id in ('a', 'b') order by 1") == [
            ("a", 1, "live"),
            ("b", 1, "live"),
        ]
        ends = asked(database, "select status, failure_kind, error from runs")
        assert ends == [("COMPLETED", None, None)] * 2, (tmp_path / "a.log").read_text()[-3000:]


def test_a_node_that_is_unresponsive_for_too_long_lets_its_lease_go(database: str, tmp_path: Path) -> None:
    """Its guardians end its commands before the others take it for lost."""
    with nodes(database, tmp_path, a=("1", "hold", "tick"), b=("60",)):
        tick, hold = submit(database, tmp_path, ("tick", {"seconds": 60}), ("hold", {"seconds": 20}))

        until(lambda: ended(database, hold) and ended(database, tick))
        kinds = asked(database, "select failure_kind from runs order by started_at, run_id")[:2]
        beside = asked(database, "select beside from runs where failure_kind = 'crash'")
        until(lambda: asked(database, "select life, status from nodes where node_id = 'a'") == [(2, "live")])

        assert kinds == [("crash",), ("crash",)]
        assert sorted(beside, key=str) == [(0,), (None,)]


def test_a_blocked_loop_keeps_its_lease_no_longer_than_allowed(database: str, tmp_path: Path) -> None:
    with nodes(database, tmp_path, a=("2", "doze"), b=("60",)):
        (doze,) = submit(database, tmp_path, ("doze", {"seconds": 20}))

        until(lambda: asked(database, "select status from nodes where node_id = 'a'") == [("lost",)])
        until(lambda: asked(database, "select life, status from nodes where node_id = 'a'") == [(2, "live")])

        assert "node a stops renewing its lease" in (tmp_path / "a.log").read_text()
        assert asked(database, f"select failure_kind from runs where job_id = '{doze}'") == [("crash",)]


def test_a_node_whose_sidecar_is_killed_renews_alone(database: str, tmp_path: Path) -> None:
    with nodes(database, tmp_path, a=("60", "wait"), b=("60",)) as processes:
        (job,) = submit(database, tmp_path, ("wait", {"seconds": 12}))
        for pid in sidecars_of(processes["a"].pid):
            os.kill(pid, signal.SIGKILL)

        until(lambda: ended(database, job))

        assert asked(database, "select life, status from nodes where node_id = 'a'") == [(1, "live")]
        assert asked(database, f"select status from runs where job_id = '{job}'") == [("COMPLETED",)]


def submit(database: str, directory: Path, *jobs: tuple[str, dict[str, Any]]) -> list[str]:
    """Submits jobs through a third node, which runs nothing. Returns their ids when all of them run."""

    async def main() -> list[str]:
        scheduler = Scheduler(database, node="asks", data=directory / "asks", limits=Limits(running=0))
        scheduler.job_types.add_command("tick", ["sleep", "{seconds}"])
        for job_type in ("hold", "doze", "wait"):
            scheduler.job_types.add(job_type, getattr(blocking_jobs, job_type))
        async with scheduler:
            await scheduler.nodes.drain("asks")
            found = []
            for job_type, params in jobs:
                policy = {"max_attempts": 0}
                found.append((await scheduler.submit(job_type, params, retry_policy=policy)).job_id)
                until(lambda: asked(database, "select count(*) from runs") == [(len(found),)])
            return found

    return asyncio.run(main())


def ended(database: str, job_id: str) -> bool:
    return asked(database, f"select finished_at is not null from jobs where job_id = '{job_id}'") == [(True,)]


def asked(url: str, question: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(question).fetchall()


@contextlib.contextmanager
def nodes(database: str, directory: Path, **given: tuple[str, ...]) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, arguments in given.items():
            with (directory / f"{name}.log").open("wb") as log:
                command = [sys.executable, "-m", "tests.nodes.blocking_node", database, name, str(directory)]
                processes[name] = subprocess.Popen([*command, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=log)
            out = processes[name].stdout
            assert out is not None
            assert out.readline() == b"ready\n", (directory / f"{name}.log").read_text()[-3000:]
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def probes_of(node: Node) -> str:
    [line] = node.lines("health probes are answered on")
    return str(json.loads(line)["event"]).split()[-1]


def probe(url: str, path: str) -> tuple[int, dict[str, Any]]:
    answer = httpx2.get(url + path, timeout=5)
    return answer.status_code, answer.json()


def sidecars_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = [int(one) for path in children.parent.parent.glob("*/children") for one in path.read_text().split()]
    return [one for one in found if b"sidecar_main" in Path(f"/proc/{one}/cmdline").read_bytes()]


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)
