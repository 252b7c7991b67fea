"""A node whose PostgreSQL comes late, goes and comes back: real servers of both, as processes."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from tests.postgres import Server

NEXTSLOT = Path(sys.executable).with_name("nextslot")
CONFIGURATION = """
[job_types.quick]
command = ["true"]
[extensions]
disabled = ["stories"]
"""
PATIENCE = 120.0
NONE: dict[str, str] = {}


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.remove()


def test_a_node_that_starts_before_its_database_waits_and_says_so(server: Server, tmp_path: Path) -> None:
    server.stop()
    with serving(tmp_path, server.url()) as node:
        node.until(lambda: node.status("/health") == 200)
        node.until(lambda: "waits for its database" in node.detail("/ready"))

        assert node.status("/ready") == node.status("/api/jobs") == 503
        assert "waits for its database" in node.detail("/api/jobs")
        server.start()
        node.until(lambda: node.status("/ready") == 200)
        assert node.post("/api/jobs", {"job_type": "quick"}).status_code == 201
        lines = node.lines("waiting for the database")
        assert 1 <= len(lines) <= 8
        assert not node.lines("Traceback")


def test_a_signal_ends_the_waiting_in_good_order(server: Server, tmp_path: Path) -> None:
    server.stop()
    with serving(tmp_path, server.url()) as node:
        node.until(lambda: bool(node.lines("waiting for the database")))

        node.process.send_signal(signal.SIGTERM)

        assert node.process.wait(30) == 0
        assert not node.lines("Traceback")


def test_a_database_that_goes_while_a_node_recovers_is_waited_for(server: Server, tmp_path: Path) -> None:
    """The start is stopped at the lock that every writer takes, and the server is restarted under it."""
    with serving(tmp_path, server.url()) as node:
        node.until(lambda: node.status("/ready") == 200)
    blocker = psycopg.connect(server.url())
    blocker.execute("lock table nodes in access exclusive mode")
    with serving(tmp_path, server.url()) as node:
        node.until(lambda: is_blocked(server.url()))

        server.stop()
        blocker.close()
        node.until(lambda: bool(node.lines("waiting for the database")))
        server.start()

        node.until(lambda: node.status("/ready") == 200)
        assert not node.lines("Traceback")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda url: url.replace("/postgres?", "/nowhere?"), "nowhere"),
        (lambda url: url.replace("//postgres@", "//nobody_known@"), "nobody_known"),
    ],
    ids=["database", "user"],
)
def test_what_waiting_cannot_mend_fails_at_once(
    server: Server, tmp_path: Path, change: Callable[[str], str], sentence: str
) -> None:
    with serving(tmp_path, change(server.url())) as node:
        assert node.process.wait(PATIENCE) == 1
        assert sentence in node.log()
        assert "Traceback" not in node.log()


def test_a_wrong_password_fails_at_once_and_is_not_shown(server: Server, tmp_path: Path) -> None:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("create role guarded login password 'right'")
    rules = Path(server.url().partition("host=")[2].partition("&")[0].replace("%2F", "/")) / "pg_hba.conf"
    rules.write_text("local all guarded scram-sha-256\n" + rules.read_text())
    server.stop()
    server.start()

    with serving(tmp_path, server.url().replace("//postgres@", "//guarded:wrong-secret@")) as node:
        assert node.process.wait(PATIENCE) == 1
        assert "password authentication failed" in node.log()
        assert "wrong-secret" not in node.log()


def test_a_schema_from_the_future_fails_at_once(server: Server, tmp_path: Path) -> None:
    with serving(tmp_path, server.url()) as node:
        node.until(lambda: node.status("/ready") == 200)
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("insert into schema_migrations values (999, 'future')")

    with serving(tmp_path, server.url()) as node:
        assert node.process.wait(PATIENCE) == 1
        assert "use a newer release" in node.log()


def test_a_stream_outlives_an_outage_and_misses_nothing(server: Server, tmp_path: Path) -> None:
    with serving(tmp_path, server.url()) as node:
        node.until(lambda: node.status("/ready") == 200)
        stream = node.follow("/api/events")
        node.post("/api/jobs", {"job_type": "quick"})
        node.until(lambda: "job_completed" in stream.types)

        server.stop()
        node.until(lambda: node.status("/api/jobs") == 503)
        node.until(lambda: bool(node.lines("cannot renew its lease")))
        server.start()
        node.until(lambda: node.status("/ready") == 200)
        node.post("/api/jobs", {"job_type": "quick"})
        node.until(lambda: stream.types.count("job_completed") == 2)

        assert stream.numbers == list(range(stream.numbers[0], stream.numbers[-1] + 1))
        assert not node.lines("Traceback")


class Stream:
    def __init__(self) -> None:
        self.types: list[str] = []
        self.numbers: list[int] = []

    def read(self, url: str) -> None:
        with httpx2.stream("GET", url, headers={"accept": "text/event-stream"}, timeout=PATIENCE) as answer:
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                if name == "id":
                    self.numbers.append(int(value))
                elif name == "event":
                    self.types.append(value)


class Node:
    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.process, self.url, self._log = process, url, log

    def status(self, path: str) -> int:
        try:
            return httpx2.get(self.url + path, timeout=30).status_code
        except httpx2.TransportError:
            return 0

    def detail(self, path: str) -> str:
        return str(httpx2.get(self.url + path, timeout=30).json().get("detail", ""))

    def post(self, path: str, body: Any) -> httpx2.Response:
        return httpx2.post(self.url + path, json=body, timeout=60)

    def follow(self, path: str) -> Stream:
        stream = Stream()
        threading.Thread(target=self._read, args=(stream, path), daemon=True).start()
        return stream

    def _read(self, stream: Stream, path: str) -> None:
        try:
            stream.read(self.url + path)
        except httpx2.TransportError:
            stream.types.append("broken")

    def log(self) -> str:
        return self._log.read_text()

    def lines(self, words: str) -> list[str]:
        return [line for line in self.log().splitlines() if words in line]

    def until(self, is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not is_so():
            assert time.monotonic() < end, self.log()[-3000:]
            assert self.process.poll() is None, self.log()[-3000:]
            time.sleep(0.05)


@contextmanager
def serving(
    data: Path, url: str, more: str = "", port: int | None = None, name: str = "a", environment: dict[str, str] = NONE
) -> Iterator[Node]:
    (data / "nextslot.toml").write_text(CONFIGURATION + more)
    port = port or free_port()
    log = data / f"serve-{port}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [NEXTSLOT, "serve", "--data", data, "--port", str(port), "--database", url, "--node", name],
            stdout=file,
            stderr=file,
            cwd=data,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
        )
    try:
        yield Node(process, f"http://127.0.0.1:{port}", log)
    finally:
        process.kill()
        process.wait(30)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def is_blocked(url: str) -> bool:
    with psycopg.connect(url) as connection:
        found = connection.execute("select count(*) from pg_locks where not granted").fetchone()
        return found is not None and found[0] > 0
