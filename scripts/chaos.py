"""Real chaos: real servers under load, and everything around them fails. In the end nothing may be lost or doubled.

    uv run python scripts/chaos.py --store sqlite --minutes 10
    uv run python scripts/chaos.py --store postgres --minutes 10 --seed 7

On SQLite: one server that is killed, stopped, restarted, on a disk that fails, with a clock that steps. On PostgreSQL:
three servers, each in a network namespace of its own, with lines to the database that stall and break; PostgreSQL is
killed too, and its disk fails. Needs gcc, and for PostgreSQL root and iproute2.

Each job takes locks and appends lines outside of the scheduler, so that doubled, lost or overlapping work is seen by
others than the scheduler. The report says what was done, and what was broken: the exit code is 1 if anything was.
"""

import argparse
import functools
import heapq
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.chaos import judge
from tests.chaos.load import Load, wait_until
from tests.chaos.network import Line, Loop, Machine
from tests.chaos.nodes import NEXTSLOT, VARIABLES, Node
from tests.crash.faulty_machine import FaultyMachine
from tests.postgres import Server

# Longer than the lease of a node, so that others take over its work.
LEASE_SECONDS = 30.0
DATABASE_PORT, PORT = 6432, 8000
# By then everything has ended regularly, even on a machine that is busy with other things.
PATIENCE = 300.0

Heal = Callable[[], None]


def missing(store: str) -> list[str]:
    """Returns what this machine lacks to run the chaos test."""
    wanted: dict[str, object] = {"gcc": shutil.which("gcc"), "flock (util-linux)": shutil.which("flock")}
    if store == "postgres":
        wanted |= {"root": os.getuid() == 0, "ip (iproute2)": shutil.which("ip")}
    return [name for name, found in wanted.items() if not found]


class Chaos:
    """Draws faults, the same ones for the same seed. Each lasts for a while, so several happen at once."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.done: Counter[str] = Counter()
        self._heals: list[tuple[float, int, Heal]] = []
        self._numbers = itertools.count()

    def for_a_while(self, seconds: float, heal: Heal) -> None:
        heapq.heappush(self._heals, (time.monotonic() + seconds, next(self._numbers), heal))

    def heal(self, is_over: bool = False) -> None:
        while self._heals and (is_over or self._heals[0][0] <= time.monotonic()):
            heapq.heappop(self._heals)[2]()


class World:
    """Runs one server on SQLite and its faults."""

    key: str | None = None
    # Whether all stored times come from one clock, even if the machines' clocks differ.
    has_one_clock = False

    def __init__(self, directory: Path, chaos: Chaos) -> None:
        self.directory, self.chaos = directory, chaos
        self.nodes = self.make_nodes()
        self.machines = [node.machine for node in self.nodes]

    def make_nodes(self) -> list[Node]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        return [Node("local", self.directory, "127.0.0.1", port)]

    def faults(self) -> list[tuple[int, Callable[[], None]]]:
        """Returns each fault and how often it happens relative to the others."""
        return [(4, self.kill), (3, self.stand_still), (1, self.end), (4, self.fail_disk), (2, self.step_clock)]

    def kill(self) -> None:
        self._count("server killed")
        self._any().kill()

    def stand_still(self) -> None:
        node, seconds = self._any(), self.chaos.chance.uniform(0.1, 4)
        self._count("server stopped")
        node.signal(signal.SIGSTOP)
        self.chaos.for_a_while(seconds, functools.partial(node.signal, signal.SIGCONT))

    def end(self) -> None:
        self._count("server ended in order")
        self._any().signal(signal.SIGTERM)

    def fail_disk(self) -> None:
        node, chance = self._any(), self.chaos.chance
        kinds = chance.sample(("read fails", "write fails", "disk full", "short write", "sync fails", "open fails"), 2)
        self._count("disk of a server fails")
        node.machine.fail({kind: chance.choice((0.01, 0.1, 0.5, 1.0)) for kind in kinds})
        self.chaos.for_a_while(chance.uniform(0.2, 5), functools.partial(node.machine.fail, {}))

    def step_clock(self) -> None:
        self._count("clock of a server steps")
        self._any().machine.set_clock(self.chaos.chance.choice((0, 5, -5, 437, -437, 3700, -3700)))

    def revive(self) -> None:
        for node in self.nodes:
            node.revive()

    def doctor(self) -> subprocess.CompletedProcess[str]:
        return self._command("doctor")

    def remove(self) -> None:
        for node in self.nodes:
            node.kill()

    def _command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(NEXTSLOT), *arguments, "--data", str(self.nodes[0].data)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=VARIABLES)

    def _any(self) -> Node:
        return self.chaos.chance.choice(self.nodes)

    def _count(self, fault: str) -> None:
        self.chaos.done[fault] += 1


class PostgresWorld(World):
    """Runs three servers on one PostgreSQL, each on a machine of its own."""

    has_one_clock = True

    def make_nodes(self) -> list[Node]:
        self._loop, self._hosts, self._lines = Loop(), list[Machine](), list[Line]()
        self.server = Server(max_connections="80", log_min_messages="panic")
        self._server_machine = FaultyMachine(self.server.directory, self.directory / "postgres.machine")
        (self.directory / "postgres.machine").chmod(0o666)
        self.server.environment = self._server_machine.environment()
        self._is_server_away = False
        self.server.stop()
        self.server.start()
        [place] = parse_qs(urlsplit(self.server.url()).query)["host"]
        target = f"{place}/.s.PGSQL.5432"
        nodes = []
        for name in "abc":
            machine = Machine()
            self._hosts.append(machine)
            self._lines.append(Line(self._loop, machine.near, DATABASE_PORT, target))
            database = f"postgresql://postgres@{machine.near}:{DATABASE_PORT}/postgres"
            inside = machine.inside
            nodes.append(Node(name, self.directory, machine.far, PORT, database=database, inside=inside))
        return nodes

    def __init__(self, directory: Path, chaos: Chaos) -> None:
        super().__init__(directory, chaos)
        self.machines.append(self._server_machine)
        made = self._command("key", "add", "chaos", "--scope", "admin", "--json")
        assert made.returncode == 0, made.stderr
        self.key = next(line for line in made.stdout.replace('"', " ").split() if line.startswith("nsk_"))

    def faults(self) -> list[tuple[int, Callable[[], None]]]:
        lines = [(3, self.stall), (2, self.swallow_answers), (3, self.cut), (1, self.unplug)]
        return [*super().faults(), *lines, (2, self.kill_server), (1, self.pause_server), (1, self.fail_server_machine)]

    def stand_still(self) -> None:
        node, chance = self._any(), self.chaos.chance
        seconds = chance.choice((1.0, 5.0, LEASE_SECONDS + 5))
        self._count("server stopped" if seconds < LEASE_SECONDS else "server stopped for longer than its lease")
        node.signal(signal.SIGSTOP)
        self.chaos.for_a_while(seconds, functools.partial(node.signal, signal.SIGCONT))

    def stall(self) -> None:
        self._break_line("line stalls", lambda line: line.stall(), (1.0, 8.0, LEASE_SECONDS + 5))

    def swallow_answers(self) -> None:
        self._break_line(
            "answers of the database are late", lambda line: line.stall(only_answers=True), (0.5, 3.0, 12.0)
        )

    def cut(self) -> None:
        self._break_line("line cut", Line.cut, (0.0, 0.1, 3.0, LEASE_SECONDS + 5))

    def _break_line(self, what: str, breaks: Callable[[Line], None], seconds: Sequence[float]) -> None:
        line = self.chaos.chance.choice(self._lines)
        self._count(what)
        breaks(line)
        self.chaos.for_a_while(self.chaos.chance.choice(seconds), line.heal)

    def unplug(self) -> None:
        machine = self.chaos.chance.choice(self._hosts)
        self._count("machine unplugged")
        machine.connect(False)
        self.chaos.for_a_while(
            self.chaos.chance.choice((2.0, LEASE_SECONDS + 5)), functools.partial(machine.connect, True)
        )

    def kill_server(self) -> None:
        if not self._is_server_away:
            self._is_server_away = True
            self._count("PostgreSQL killed")
            self.server.kill()
            self.chaos.for_a_while(self.chaos.chance.uniform(0, 4), self._start_server)

    def pause_server(self) -> None:
        if not self._is_server_away:
            self._is_server_away = True
            self._count("PostgreSQL stopped")
            self.server.pause()
            self.chaos.for_a_while(self.chaos.chance.uniform(0.5, 8), self._resume_server)

    def fail_server_machine(self) -> None:
        chance = self.chaos.chance
        self._count("disk of PostgreSQL fails")
        self._server_machine.fail(
            {chance.choice(("write fails", "disk full", "sync fails")): chance.choice((0.01, 0.2))}
        )
        self.chaos.for_a_while(chance.uniform(0.2, 2), functools.partial(self._server_machine.fail, {}))

    def _start_server(self) -> None:
        self._server_machine.fail({})
        self.server.start()
        self._is_server_away = False

    def _resume_server(self) -> None:
        self.server.resume()
        self._is_server_away = False

    def revive(self) -> None:
        if not self._is_server_away and not self.server.is_alive():
            self._count("PostgreSQL ended by itself")
            self._start_server()
        super().revive()

    def _command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return super()._command(*arguments, "--database", self.server.url())

    def remove(self) -> None:
        super().remove()
        for line in self._lines:
            line.close()
        for machine in self._hosts:
            machine.remove()
        self.server.remove()


def play(world: World, load: Load, seconds: float) -> None:
    """Starts all servers and callers, then injects faults until the time is up."""
    for node in world.nodes:
        node.start()
    assert wait_until(lambda: all(node.is_ready() for node in world.nodes), PATIENCE), "the servers do not come up"
    load.start()
    weights, faults = zip(*world.faults(), strict=True)
    end, pace = time.monotonic() + seconds, Pace(world, load)
    while time.monotonic() < end:
        world.chaos.heal()
        world.revive()
        if pace.is_time():
            [fault] = world.chaos.chance.choices(faults, weights)
            fault()
            pace.draw()
        time.sleep(0.1)


class Pace:
    """Decides when the next fault happens: mostly after some more answers, so that there is work to interrupt;
    sometimes at once, while servers still start or recover.
    """

    def __init__(self, world: World, load: Load) -> None:
        self._chance, self._history = world.chaos.chance, load.history
        self.draw()

    def draw(self) -> None:
        is_patient = self._chance.random() < 0.8
        self._earliest = time.monotonic() + self._chance.uniform(0.2, 3)
        self._latest = self._earliest + (120 if is_patient else 0)
        self._answers = len(self._history.acknowledged) + self._chance.randrange(1, 12)

    def is_time(self) -> bool:
        now = time.monotonic()
        return now > self._earliest and (now > self._latest or len(self._history.acknowledged) >= self._answers)


def settle(world: World, load: Load) -> list[dict[str, Any]]:
    """Injects no more faults, and waits until all work is done and every job has ended."""
    world.chaos.heal(is_over=True)
    for node in world.nodes:
        node.signal(signal.SIGCONT)
    world.revive()

    def is_done() -> bool:
        world.revive()
        if not world.nodes[0].is_ready():
            return False
        found[:] = judge.stored_jobs(world.nodes[0].url, world.key)
        return all(job["status"] in judge.ENDED for job in found)

    found: list[dict[str, Any]] = []
    time.sleep(3)
    load.stop()
    if not wait_until(is_done, PATIENCE):
        left = [job for job in found if job["status"] not in judge.ENDED]
        load.history.breaks(f"{len(left)} of {len(found)} jobs have not ended in {PATIENCE} s of peace: {left[:2]}")
    return found


def findings(world: World) -> list[str]:
    """Returns what the doctor finds after all servers have ended, and unexpected errors in their logs."""
    for node in world.nodes:
        node.end()
    broken = []
    doctor = world.doctor()
    if doctor.returncode != 0:
        broken.append(f"the doctor found: {doctor.stdout}{doctor.stderr}")
    for node in world.nodes:
        lines = node.log.read_text(errors="replace").splitlines()
        broken += [f"traceback in the log of {node.name}: {line[:400]} …" for line in lines if "Traceback" in line]
    return broken


def report(world: World, load: Load, jobs: Sequence[dict[str, Any]], broken: Sequence[str], seconds: float) -> str:
    history, ends = load.history, Counter(job["status"] for job in jobs)
    disk = sum((Counter(control.happened()) for control in world.machines), Counter[str]())
    own_ends = Counter(code for node in world.nodes for code in node.own_ends)
    lines = [
        f"{seconds:.0f} s, {sum(node.lives for node in world.nodes)} lives of {len(world.nodes)} server(s)",
        f"acknowledged: {len(history.acknowledged)} jobs, {len(history.cancelled)} cancels before the start, "
        f"{len(history.interrupted)} later; {history.refused} requests refused; {history.events} events followed",
        f"stored: {len(jobs)} jobs; ends: {_counted(ends)}",
        f"answers: {_counted(history.answers)}",
        f"faults: {_counted(world.chaos.done)}",
        f"operations that the disk failed: {_counted(disk)}",
        f"lives that ended by themselves, by exit code: {_counted(own_ends)}",
        f"violations: {len(broken)}",
        *(f"  {one}" for one in broken[:20]),
    ]
    return "\n".join(lines)


def _counted(counts: "Counter[Any]") -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=str) if count) or "none"


def run(store: str, seconds: float, seed: int, directory: Path) -> tuple[str, list[str]]:
    """Returns the report and the violations."""
    (directory / "locks").mkdir()
    world = (PostgresWorld if store == "postgres" else World)(directory, Chaos(seed))
    lines = directory / "lines"
    lines.touch()

    def ended() -> int:
        return lines.read_text().count("ended ")

    load = Load([node.url for node in world.nodes], world.key, str(directory), seed, ended)
    began = time.monotonic()
    try:
        play(world, load, seconds)
        jobs = settle(world, load)
        broken = findings(world)
    finally:
        world.remove()
    broken = [*judge.violations(load.history, jobs, judge.Witnesses(directory), world.has_one_clock), *broken]
    return report(world, load, jobs, broken, time.monotonic() - began), broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="keep logs and databases")
    options = parser.parse_args()
    if lacking := missing(options.store):
        sys.exit(f"chaos: this machine lacks {', '.join(lacking)}")
    # PostgreSQL runs as another user, who must be able to read the directory.
    directory = Path(tempfile.mkdtemp(prefix="nextslot-chaos-"))
    directory.chmod(0o755)
    text, broken = run(options.store, options.minutes * 60, options.seed, directory)
    print(f"chaos on {options.store}, seed {options.seed}: {text}")
    if broken or options.keep:
        print(f"logs and files: {directory}")
    else:
        shutil.rmtree(directory)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
