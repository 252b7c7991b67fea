"""Logs and artifacts of one node, read through another: real servers on one PostgreSQL, and S3 on loopback."""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests import postgres
from tests.nodes.test_outages import Node, serving
from tests.object_storage import S3, s3

# Each job type needs a resource that only node `a` has, so that `a` runs it.
ON_A = '''
[offices.default]
max_concurrent_jobs = 0
[limits.resources]
a = 10
b = 10
[job_types.grow]
command = ["sh", "-c", "i=0; while true; do i=$((i+1)); echo line $i; sleep 0.1; done"]
resources = ["a"]
retry_policy = { max_attempts = 1 }
[job_types.make]
command = ["sh", "-c", """
echo made
cd "$NEXTSLOT_ARTIFACTS"
printf '%2000000d' 7 > big.bin
mkdir 'ä b'
echo text > 'ä b/note 1.txt'
"""]
resources = ["a"]
[job_types.silent]
command = ["true"]
resources = ["a"]
[job_types.read]
command = ["sh", "-c", "cat $0/*/*.txt", "{inputs.made.path}"]
resources = ["b"]
'''


@pytest.fixture
def database() -> Iterator[str]:
    name = postgres.borrow()
    yield postgres.address(name)
    postgres.give_back(name)


@pytest.fixture
def storage() -> Iterator[S3]:
    with s3() as server:
        yield server


def two_nodes(stack: ExitStack, database: str, directory: Path, more: str = "", **options: Any) -> tuple[Node, Node]:
    made = []
    for name in "ab":
        (directory / name).mkdir()
        configuration = f"{ON_A}{more}\n[node.resources]\n{name} = 10\n"
        node = stack.enter_context(serving(directory / name, database, configuration, name=name, **options))
        node.until(lambda node=node: node.status("/ready") == 200)  # type: ignore[misc]
        made.append(node)
    return made[0], made[1]


def submit(node: Node, job_type: str, **body: Any) -> str:
    response = node.post("/api/jobs", {"job_type": job_type, **body})
    assert response.status_code == 201, response.text
    return str(response.json()["job_id"])


def get(node: Node, path: str, **options: Any) -> httpx2.Response:
    return httpx2.get(node.url + path, timeout=60, **options)


def run_of(node: Node, job_id: str) -> dict[str, Any]:
    """Waits for the run of a job."""
    found: list[dict[str, Any]] = []

    def is_there() -> bool:
        found[:] = get(node, f"/api/job-runs?job_id={job_id}").json()["items"]
        return bool(found)

    node.until(is_there)
    return found[0]


def ended(node: Node, job_id: str) -> dict[str, Any]:
    node.until(lambda: run_of(node, job_id)["status"] is not None)
    return run_of(node, job_id)


def log_path(run: dict[str, Any]) -> str:
    return f"/api/job-runs/{run['run_id']}/log"


class Follower(threading.Thread):
    """Follows a log through a node, until the stream ends."""

    def __init__(self, node: Node, run: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.url = node.url + log_path(run)
        self.text, self.end = "", dict[str, Any]()
        self.start()

    def run(self) -> None:
        kind = ""
        with httpx2.stream("GET", self.url, headers={"Accept": "text/event-stream"}, timeout=120) as answer:
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    data = json.loads(value)
                    self.text += data.get("text", "")
                    if kind in ("end", "error"):
                        self.end = data


def lines_of(text: str) -> list[int]:
    """Returns the numbers of the lines; raises if one is missing or is there twice."""
    numbers = [int(line.removeprefix("line ")) for line in text.splitlines() if text.endswith("\n") or line]
    assert numbers == list(range(1, len(numbers) + 1))
    return numbers


def test_a_log_of_a_node_is_followed_through_another_while_it_grows_and_after_the_node_was_killed(
    database: str, storage: S3, tmp_path: Path
) -> None:
    more = f'[files]\nstore = "{storage.url}"\n'
    with ExitStack() as stack:
        a, b = two_nodes(stack, database, tmp_path, more, environment=storage.environment)
        job = submit(b, "grow")
        run = run_of(b, job)
        follower = Follower(b, run)
        b.until(lambda: follower.text.count("\n") > 25)
        assert follower.is_alive(), "it grows"

        a.process.kill()
        a.process.wait()
        on_disk = (tmp_path / "a" / "logs" / run["run_id"][-2:] / f"{run['run_id']}.log").read_text()
        just_after = get(b, log_path(run))
        last = get(b, log_path(run) + "?tail=1")
        crashed = ended(b, job)
        follower.join(60)
        after = get(b, log_path(run))

        assert crashed["failure_kind"] == "crash"
        assert just_after.status_code == last.status_code == 200
        assert follower.text == after.text
        assert on_disk.startswith(after.text)
        assert len(lines_of(after.text)) > 25
        assert follower.end == {"offset": len(after.text), "ended": True}
        # At most what a second and a request take is missing, ten lines a second.
        assert on_disk.count("\n") - after.text.count("\n") < 40

        # The last lines are on the disk of `a`: it ships them when it comes back.
        again = stack.enter_context(
            serving(
                tmp_path / "a", database, ON_A + more + "\n[node.resources]\na = 10\n", environment=storage.environment
            )
        )
        again.until(lambda: get(b, log_path(run)).text == on_disk)
        b.until(lambda: not (tmp_path / "a" / "unshipped" / run["run_id"]).exists())


def test_files_in_the_store_are_read_on_every_node_and_are_inputs_there(
    database: str, storage: S3, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        more = f'[files]\nstore = "{storage.url}"\n'
        a, b = two_nodes(stack, database, tmp_path, more, environment=storage.environment)
        graph = [{"key": "made", "job_type": "make"}, {"job_type": "read", "depends_on": ["made"]}]
        made, reading = (one["job_id"] for one in b.post("/api/jobs/batch", {"jobs": graph}).json()["items"])
        run, read = ended(b, made), ended(b, reading)
        a.process.kill()
        a.process.wait()
        found = {one["name"]: one["size"] for one in run["artifacts"]}
        big = get(b, f"/api/job-runs/{run['run_id']}/artifacts/big.bin")
        note = get(b, f"/api/job-runs/{run['run_id']}/artifacts/ä b/note 1.txt")

        assert found == {"big.bin": 2_000_000, "ä b/note 1.txt": 5}
        assert get(b, log_path(run)).text == "made\n"
        assert (big.status_code, len(big.content), big.content[-1:]) == (200, 2_000_000, b"7")
        assert "attachment" in big.headers["content-disposition"]
        assert (note.text, note.headers["content-length"]) == ("text\n", "5")
        assert read["status"] == "COMPLETED", read
        assert get(b, log_path(read)).text == "text\n"


def test_without_a_store_the_node_that_ran_the_work_is_asked(database: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        a, b = two_nodes(stack, database, tmp_path)
        run, growing = ended(b, submit(b, "make")), run_of(b, submit(b, "grow"))
        quiet = ended(b, submit(b, "silent"))
        follower = Follower(b, growing)
        b.until(lambda: follower.text.count("\n") > 15)
        tail = get(b, log_path(growing) + "?tail=2")
        part = get(b, log_path(growing) + "?offset=7")
        big = get(b, f"/api/job-runs/{run['run_id']}/artifacts/big.bin")
        note = get(b, f"/api/job-runs/{run['run_id']}/artifacts/ä b/note 1.txt")
        unknown = get(b, f"/api/job-runs/{run['run_id']}/artifacts/other")

        assert get(b, log_path(run)).text == get(a, log_path(run)).text == "made\n"
        assert get(b, log_path(quiet)).text == ""
        assert (len(big.content), note.text, unknown.status_code) == (2_000_000, "text\n", 404)
        assert tail.text.count("\n") == 2
        assert part.text.startswith("line 2\n")
        assert int(part.headers["x-log-next"]) == 7 + len(part.content)
        unsigned = get(a, f"/api/node-files/{run['run_id']}/log")
        forged = get(a, f"/api/node-files/{run['run_id']}/log", headers={"X-Nextslot-Node": f"{int(time.time())}.00"})
        assert [unsigned.status_code, forged.status_code] == [401, 401]

        os.kill(a.process.pid, 19)  # It stands still.
        silent = get(b, log_path(run))
        a.process.kill()
        a.process.wait()
        b.until(lambda: follower.end != {})
        gone = get(b, log_path(run))

        assert silent.status_code == 503
        assert "node 'a', where the work ran, has the file, and does not answer" in silent.json()["detail"]
        assert gone.status_code == 404
        assert "on the disk of node 'a'" in gone.json()["detail"]
        assert "the node is not alive" in gone.json()["detail"]
        assert follower.end["ended"] is True
        assert "on the disk of node 'a'" in follower.end["missing"]
        assert len(lines_of(follower.text)) > 15
