"""Three nodes on one PostgreSQL, as real processes that are killed, stopped and started again, and so is the server.

`NEXTSLOT_NODE_JOBS=20000 NEXTSLOT_NODE_SECONDS=0.02 ./test tests/crash/test_nodes.py` is the long run.
"""

import http.server
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.crash.node import COMMANDS, GPUS, RUNNING, TIMES
from tests.postgres import Server

log = logging.getLogger(__name__)

ROOT = Path(__file__).parents[2]
JOBS = int(os.environ.get("NEXTSLOT_NODE_JOBS", "600"))
NAMES = ("a", "b", "c")
# By then everything has ended, on a machine that is busy with other things.
PATIENCE = 180.0 + JOBS / 20


class Nodes:
    """Three processes, and what was done to them."""

    def __init__(self, url: str, directory: Path, hook: str) -> None:
        self._url, self._directory, self._hook = url, directory, hook
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.kills = self.stops = 0

    def start(self, name: str, count: int = 0, inside: Sequence[str] = ()) -> None:
        """Starts a node. `inside` is the beginning of a command line that runs in another network namespace."""
        more = [str(count), self._hook] if count else []
        with (self._directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*inside, sys.executable, "-m", "tests.crash.node", self._url, name, self._directory, *more],
                cwd=ROOT,
                stdout=subprocess.PIPE if count else log,
                stderr=log,
            )
        if count:
            out = self._processes[name].stdout
            assert out is not None
            with out:
                assert out.readline() == b"ready\n", (self._directory / f"{name}.log").read_text()[-3000:]

    def kill(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()
        self.kills += 1
        self.start(name)

    def stand_still(self, name: str) -> None:
        """Stops a node for longer than its lease."""
        self._processes[name].send_signal(signal.SIGSTOP)
        time.sleep(TIMES.lease_seconds + 3 * TIMES.renew_seconds)
        self._processes[name].send_signal(signal.SIGCONT)
        self.stops += 1

    def revive(self) -> None:
        """Starts a node again if it could not start because the server was away, as a service manager would."""
        for name, process in list(self._processes.items()):
            if process.poll() is not None:
                self.start(name)

    def end(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(max_connections="60")
    yield server
    server.remove()


@pytest.fixture
def hook() -> Iterator[str]:
    """Runs a receiver that answers 200."""

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *words: Any) -> None: ...

    receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{receiver.server_port}/"
    receiver.shutdown()
    receiver.server_close()


def test_three_nodes_lose_and_double_nothing_while_they_and_the_server_are_killed(
    tmp_path: Path, server: Server, hook: str
) -> None:
    url, chance = server.url(), random.Random(JOBS)
    nodes = Nodes(url, tmp_path, hook)
    restarts = 0
    try:
        nodes.start("a", JOBS)
        nodes.start("b")
        nodes.start("c")
        end, restart_at = time.monotonic() + PATIENCE, time.monotonic() + min(90, PATIENCE / 12)
        while left(url):
            assert time.monotonic() < end, f"{left(url)} jobs and deliveries have not ended"
            if is_over_half(url):
                time.sleep(0.5)  # The second half is left in peace, so that it comes to an end.
            elif time.monotonic() > restart_at:
                server.stop()
                time.sleep(chance.uniform(0, 2))
                server.start()
                restarts, restart_at = restarts + 1, time.monotonic() + 90
            elif chance.random() < 0.5:
                nodes.kill(chance.choice(NAMES))
            else:
                nodes.stand_still(chance.choice(NAMES))
            time.sleep(chance.uniform(0.5, 2))
            nodes.revive()
    finally:
        nodes.end()

    log.warning("%d jobs, %d kills, %d stops, %d restarts of the server", JOBS, nodes.kills, nodes.stops, restarts)
    assert_nothing_ran_twice(tmp_path, url)
    assert_limits_held(url)
    assert asked(url, "select count(*) from deliveries where status <> 'DELIVERED'") == [(0,)]


@pytest.fixture
def elsewhere(server: Server) -> Iterator[tuple[list[str], str]]:
    """Makes another host, as a network namespace. Yields the beginning of command lines that run there, and a database
    address that both can use.
    """
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("only root can make network namespaces")
    number, name = os.getpid() % 250, f"nextslot{os.getpid()}"
    network, cable = f"10.231.{number}", f"ns{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine allows no network namespaces")
    try:
        for command in (
            f"ip link add {cable} type veth peer name far netns {name}",
            f"ip addr add {network}.1/24 dev {cable}",
            f"ip link set {cable} up",
            f"ip netns exec {name} ip addr add {network}.2/24 dev far",
            f"ip netns exec {name} ip link set far up",
            f"ip netns exec {name} ip link set lo up",
        ):
            subprocess.run(command.split(), check=True)
        server.listen(f"{network}.1")
        yield ["ip", "netns", "exec", name], f"postgresql://postgres@{network}.1/postgres"
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


def test_a_node_that_is_cut_off_from_the_database_ends_its_work_before_others_take_it_over(
    tmp_path: Path, elsewhere: tuple[list[str], str], hook: str
) -> None:
    inside, url = elsewhere

    def there(command: str) -> None:
        subprocess.run([*inside, *command.split()], check=True)

    nodes = Nodes(url, tmp_path, hook)
    try:
        nodes.start("b", 300, inside=inside)
        nodes.start("a")
        until(lambda: asked(url, "select count(*) > 0 from runs where status is null") == [(True,)])
        there("ip link set far down")
        until(lambda: state(url, "b") == "lost")
        there("ip link set far up")
        until(lambda: state(url, "b") == "live")
        until(lambda: left(url) == 0)
        lives = asked(url, "select life from nodes where node_id = 'b'")
    finally:
        nodes.end()

    assert lives == [(2,)]
    assert_nothing_ran_twice(tmp_path, url, 300)
    assert_limits_held(url)


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.2)


def left(url: str) -> int:
    """Returns the chains that have not ended."""
    try:
        [(jobs,)] = asked(url, "select count(*) from jobs where finished_at is null")
        [(deliveries,)] = asked(url, "select count(*) from deliveries where status = 'PENDING'")
    except psycopg.OperationalError:
        return 1
    return int(jobs) + int(deliveries)


def state(url: str, node_id: str) -> str:
    [(status,)] = asked(url, f"select status from nodes where node_id = '{node_id}'")
    return str(status)


def is_over_half(url: str) -> bool:
    [(ended,)] = asked(url, "select count(*) from jobs where finished_at is not null and retry_of is null")
    return bool(ended > JOBS / 2)


def assert_nothing_ran_twice(directory: Path, url: str, count: int = JOBS) -> None:
    lines = [line.split() for line in (directory / "runs").read_text().splitlines()]
    runs = [line[0] for line in lines if len(line) == 4]
    assert len(runs) == len(set(runs)), "a run was begun twice"
    assert asked(url, "select count(*) from jobs where retry_of is null") == [(count,)]
    unended = "select count(*) from jobs where decision is not null and decision not in ('retry', 'permanent')"
    assert asked(url, unended) == [(0,)]
    assert_no_command_ran_beside_its_replacement(directory, url)


def assert_no_command_ran_beside_its_replacement(directory: Path, url: str) -> None:
    ticks: dict[str, list[float]] = defaultdict(list)
    for line in (directory / "ticks").read_text().splitlines():
        run_id, _, at = line.partition(" ")
        ticks[run_id].append(float(at))
    chains: dict[str, list[str]] = defaultdict(list)
    order = (
        "select chain_id, run_id from jobs join runs using (job_id) where job_type = 'command' order by jobs.created_at"
    )
    for chain_id, run_id in asked(url, order):
        chains[chain_id].append(run_id)
    assert ticks
    for attempts in chains.values():
        seen = [ticks[run_id] for run_id in attempts if run_id in ticks]
        for earlier, later in pairwise(seen):
            assert max(earlier) <= min(later), "a command ran beside what replaced it"


def assert_limits_held(url: str) -> None:
    every = asked(url, "select job_type, runs.started_at, runs.finished_at from jobs join runs using (job_id)")
    assert most_at_once(every) <= RUNNING
    assert most_at_once([one for one in every if one[0] == "train"]) <= GPUS
    assert most_at_once([one for one in every if one[0] == "command"]) <= COMMANDS


def most_at_once(runs: list[tuple[Any, ...]]) -> int:
    """Returns the most runs at once. A run that ended in the microsecond in which another began counts as ended
    before.
    """
    changes = sorted([(began, 1) for _, began, _ in runs] + [(ended, -1) for _, _, ended in runs])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def asked(url: str, question: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, connect_timeout=5) as connection:
        return connection.execute(question).fetchall()
