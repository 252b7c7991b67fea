"""Three simulated nodes that share one database: leases, the leader, notices, fencing, drains, skewed clocks.

`nextslot-sim --nodes` runs it. The nodes are real schedulers, each on a machine of its own (`machines.py`), with one
SQLite file in place of a server (`shared_database.py`). Machines are stopped, cut off, killed and restarted. Requests
and answers are late. Notices are lost, late or doubled. Answers to commits get lost. The same seed gives the same
history.
"""

import asyncio
import copy
import json
import os
import random
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from nextslot.domain.job_lifecycle import CRASH_ERROR, CRASHES_ERROR
from nextslot.domain.limits import Limits
from nextslot.executors.run_context import RunContext
from nextslot.executors.threads import InlineThreads
from nextslot.scheduler import Scheduler
from nextslot.store.contract import Closing, Effects, Store, Tx, Work
from nextslot.system.disk_space import DiskLimits
from nextslot.system.instant import Instant
from nextslot.testing.faulty_disk import create_empty
from nextslot.testing.virtual_time import SeededChance

from . import check_reads, oracles, settings_oracle
from .broken import Broken
from .check_reads import JobFacts
from .clients import Clients
from .followers import Followers
from .machines import Machine, Machines
from .oracles import Watch
from .plan import LENGTH, Action
from .shared_database import NodeClock, NodeStore, Observed, SharedDatabase, shared
from .surroundings import OFFICES, Endpoints, SlowThreads, Witness, register
from .world import EXAMINED_EVERY, STARVATION_AFTER_SECONDS, History, LawBroken, clients_of

NAMES = ("n1", "n10", "n2")  # The name of one node begins with that of another.
SECOND = 1_000_000
# How long a healthy node may take: to check after a lost notice, to become the leader, to take over the runs of a lost
# node.
LOOKS_WITHIN, LEADS_WITHIN = 15.0, 80.0
# How long work that a node has lost may continue there, counted from when the node could notice it.
STOPS_WITHIN = 8.0
REST_SECONDS = 20_000.0
# The allowed commits without an event in a minute: checks after renewals, and attempts of deliveries.
MOST_IDLE_COMMITS = 300
# By how much a machine's clock is wrong.
SKEWS = (0.0, -40.0, 3_700.0)

_CLIENTS = {
    "submit": 30,
    "batch": 8,
    "graph": 5,
    "group": 4,
    "same_key": 3,
    "move": 3,
    "cancel": 10,
    "cancel_many": 2,
    "retry": 4,
    "pause": 3,
    "resume": 4,
    "direct": 6,
    "hang_up": 2,
    "schedule": 4,
    "subscribe": 2,
    "outage": 1,
    "quota": 1,
    "release": 1,
    "follow": 3,
    "wait_for": 6,
    "office": 2,
}
_FAULTS = {
    "kill": 4,
    "stop": 4,
    "cut": 5,
    "lag": 4,
    "deafen": 3,
    "lose_answer": 4,
    "drain": 3,
    "restart": 2,
}


def make(seed: int, length: int = LENGTH) -> list[Action]:
    chance = random.Random(f"nodes {seed}")
    made = []
    for _ in range(length):
        kinds = _FAULTS if seed % 6 and chance.random() < 0.25 else _CLIENTS
        kind = chance.choices(list(kinds), list(kinds.values()))[0]
        pause = chance.choice((0.0, 0.0, 0.4, 3.0, 12.0, 45.0))
        made.append(Action(kind, chance.getrandbits(32), pause))
    return made


class SimulatedNode(Scheduler):
    """A real scheduler, as one of several nodes."""

    def __init__(self, world: "NodesWorld", name: str, machine: Machine, most: int, **options: Any) -> None:
        directory = world.database.path.parent
        super().__init__(
            f"sqlite:///{world.database.path}",
            data=directory / name,
            node=name,
            node_running=most,
            is_threaded=False,
            disk=DiskLimits(warn_bytes=0, refuse_bytes=0),
            **options,
        )
        self.name = name
        self.machine = machine
        self._world = world
        self._open_store = self._open_shared_store
        self.most = most

    def _open_shared_store(
        self, closing: Closing, *, effects: Effects, opening: Work[None], refresh: Work[None]
    ) -> Store:
        return NodeStore(
            self._world.database, self.name, self.machine, closing, effects, opening, refresh, self._world.committed
        )

    def _be_watched(self, store: Store) -> None:
        """Does nothing: a simulated machine has no second thread for a watchdog."""

    @property
    def node_store(self) -> NodeStore | None:
        return self._store if isinstance(self._store, NodeStore) else None

    @property
    def has_joined(self) -> bool:
        return self._cluster._has_joined and self._cluster._rejoining is None

    def is_connected(self, run_id: str) -> bool:
        return self._runtime.direct.is_connected(run_id)

    def use_host(self, host: str) -> None:
        registry = self._runtime.cluster.registry
        registry.card = registry.card._replace(host=host)


class Site:
    """A place for a node: its name, its current scheduler and machine, and its clients."""

    def __init__(self, name: str, clients: Clients) -> None:
        self.name = name
        self.clients = clients
        self.scheduler: SimulatedNode | None = None
        self.starting: asyncio.Task[Any] | None = None
        self.stopping: asyncio.Task[Any] | None = None
        self.start_at = 0.0
        # When it was last disturbed: stopped, cut off, slowed down, drained, or down.
        self.disturbed_until = 0.0
        self.lag: Callable[[], float] = lambda: 0.0
        self.slow_until = 0.0


class NodesWorld:
    def __init__(self, directory: Path, seed: int) -> None:
        self._chance = Random(f"nodes world {seed}")
        self.machines = Machines(Random(f"machines {seed}"))
        path = directory / "shared" / "nextslot.db"
        create_empty(path)
        self.database = SharedDatabase(path, self.machines, Random(f"notices {seed}"))
        self._ids = SeededChance(seed)
        self._endpoints = Endpoints(seed, is_timed=False)
        self._threads = SlowThreads(seed)
        first = clients_of(seed)(lambda: Instant(self.database.now()), self._endpoints)
        self._limits = Limits(running=5, resources={"gpu": 1, "disk": 2}, **first.limits)
        self._watch = Watch(STARVATION_AFTER_SECONDS, self._limits)
        # Each machine has its own time, so the length of a wait is not exact.
        self._watch.elapsed.is_exact = False
        self._clients = first
        self._sites = [Site(name, self._clients_of(first)) for name in NAMES]
        self._witness = Witness()
        # For each run, the machine and the job.
        self._running: dict[str, tuple[Machine, str]] = {}
        self._chains: dict[str, str] = {}
        # In seconds: since when each waiting job could start, and when each stored run ended.
        self._idle_since: dict[str, float] = {}
        self._ended_at: dict[str, float] = {}
        self._draining: set[str] = set()
        self._idle_commits: deque[float] = deque()
        self._stores: list[NodeStore] = []
        self.history = History()

    def _clients_of(self, first: Clients) -> Clients:
        """Returns the clients of one node. All nodes' clients share the memory of acknowledged changes."""
        clients = copy.copy(first)
        clients.followers = Followers(lambda: False)
        return clients

    @property
    def observed(self) -> list[Observed]:
        return self.database.observed

    # The whole simulation.

    def run(self, actions: Sequence[Action]) -> None:
        try:
            for site in self._sites:
                self._start(site)
            self._pass_time(2)
            self._begin_offices()
            for action in actions:
                self._step(action)
            self._come_to_rest()
        except LawBroken as error:
            self.history.broken = error.broken
        finally:
            self.history.seconds = self.machines.seconds
            self._close()

    def _begin_offices(self) -> None:
        for office in OFFICES[1:]:
            self._ask(lambda one, office=office: one.offices.create(office, max_concurrent_jobs=2))  # type: ignore[misc]

    def _ask(self, call: Callable[[SimulatedNode], Any]) -> Any:
        """Calls a healthy node until it answers."""
        for _ in range(60):
            for site in self._sites:
                if site.scheduler is not None and self._is_healthy(site, 0.0):
                    task = site.scheduler.machine.begin(call(site.scheduler))
                    for _ in range(40):
                        self._pass_time(0.5)
                        if task.done():
                            break
                    if task.done() and task.exception() is None:
                        return task.result()
            self._pass_time(5)
        raise LawBroken([Broken("one of several nodes answers", "none did for minutes")])

    def _step(self, action: Action) -> None:
        chance = Random(action.seed)
        fault = getattr(self, f"_fault_{action.kind}", None)
        if fault is not None:
            self.history.faults += 1
            self._note(action, "")
            fault(chance)
        else:
            live = [site for site in self._sites if site.scheduler is not None and site.starting is None]
            if live:
                site = chance.choice(live)
                assert site.scheduler is not None
                site.scheduler.machine.begin(self._client(site, action, chance))
        self._pass_time(action.pause)
        self._check()

    async def _client(self, site: Site, action: Action, chance: Random) -> None:
        self._note(action, f"{site.name} {await site.clients.act(action.kind, chance)}")

    def _note(self, action: Action, what: str) -> None:
        self.history.lines.append(f"{self.machines.seconds:.3f} {action.kind} {what}")

    def _pass_time(self, seconds: float, part: float = 1.0) -> None:
        end = self.machines.seconds + seconds
        while True:
            self._tend()
            self.machines.pass_time(max(min(part, end - self.machines.seconds), 0.0))
            self._watch_time()
            if self.machines.seconds >= end:
                return

    # Starts and ends of nodes.

    def _start(self, site: Site) -> None:
        self.history.lives += 1
        machine = self.machines.new(lambda: self._lag(site))
        machine.set_exception_handler(self._unhandled)
        scheduler = site.scheduler = SimulatedNode(
            self,
            site.name,
            machine,
            2 if site.name == NAMES[0] else 0,
            clock=NodeClock(self.machines, self._chance.choice(SKEWS)),
            chance=self._ids,
            sender=self._endpoints,
            limits=self._limits,
            node_resources=self._clients.devices,
            threads=self._threads if self._chance.random() < 0.8 else InlineThreads(),
            starvation_after_seconds=STARVATION_AFTER_SECONDS,
        )
        scheduler.use_host(self._chance.choice(("here", "here", f"machine-{self.history.lives}")))
        register(scheduler, _NodeWitness(self, machine))
        site.clients.scheduler = scheduler
        site.starting = machine.begin(scheduler.start())
        # A start may fail because its machine is killed or stopped; that is no defect.
        site.starting.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._disturb(site, 0.0)

    def _tend(self) -> None:
        """Restarts the nodes that are due, and checks the results of starts and stops."""
        for site in self._sites:
            if site.scheduler is None and self.machines.seconds >= site.start_at:
                self._start(site)
            if site.starting is not None and site.starting.done():
                error = site.starting.exception()
                site.starting = None
                if error is not None:
                    self._kill(site, 1.0)
                    continue
                assert site.scheduler is not None
                self._begin_followers(site, site.scheduler)
            if site.stopping is not None and site.stopping.done():
                site.stopping = None
                self._kill(site, 1.0)
            if site.scheduler is None or site.starting is not None or not site.scheduler.has_joined:
                self._disturb(site, 0.0)

    def _begin_followers(self, site: Site, scheduler: SimulatedNode) -> None:
        async def begin() -> None:
            site.clients.followers.begin(scheduler)

        scheduler.machine.begin(begin())

    def _kill(self, site: Site, away: float) -> None:
        node = site.scheduler
        if node is None:
            return
        node.machine.kill()
        if node.node_store is not None:
            node.node_store.kill()
        self.database.forget(site.name)
        self.database.observe("crash", site.name)
        followers = site.clients.followers
        followers._tasks.clear()
        followers._waiting.clear()
        followers._scheduler = None
        site.scheduler = site.starting = site.stopping = None
        site.start_at = self.machines.seconds + away
        self._disturb(site, away)

    def _disturb(self, site: Site, seconds: float) -> None:
        site.disturbed_until = max(site.disturbed_until, self.machines.seconds + seconds)

    def _is_healthy(self, site: Site, for_seconds: float) -> bool:
        """Returns whether a node has worked without a disturbance for this long."""
        return site.scheduler is not None and self.machines.seconds - site.disturbed_until >= for_seconds

    def _lag(self, site: Site) -> float:
        if self.machines.seconds < site.slow_until:
            return self._chance.choice((0.0, 0.2, 3.0, 9.0, 26.0))
        return self._chance.choice((0.0, 0.0, 0.0, 0.001, 0.05))

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None:
            self._witness.broken.append(f"{context.get('message')}: {error!r}")

    def _close(self) -> None:
        for site in self._sites:
            if site.scheduler is not None and site.scheduler.node_store is not None:
                site.scheduler.machine.kill()
                site.scheduler.node_store.kill()
        self.machines.close()

    # Faults.

    def _site(self, chance: Random) -> Site:
        return chance.choice(self._sites)

    def _fault_kill(self, chance: Random) -> None:
        self._kill(self._site(chance), chance.choice((0.0, 5.0, 70.0)))

    def _fault_stop(self, chance: Random) -> None:
        """Stops a machine, for less or for longer than its lease."""
        site, seconds = self._site(chance), chance.choice((8.0, 22.0, 40.0, 120.0))
        if site.scheduler is not None:
            site.scheduler.machine.stop_for(seconds)
            self._disturb(site, seconds)

    def _fault_cut(self, chance: Random) -> None:
        site, seconds = self._site(chance), chance.choice((4.0, 15.0, 26.0, 45.0, 120.0))
        self.database.cut_off(site.name, seconds)
        self._disturb(site, seconds)

    def _fault_lag(self, chance: Random) -> None:
        site, seconds = self._site(chance), chance.choice((20.0, 60.0))
        site.slow_until = self.machines.seconds + seconds
        self._disturb(site, seconds + 60)

    def _fault_deafen(self, chance: Random) -> None:
        """Loses all notices for a while. Nodes must find changes by their own checks."""
        self.database.deaf_until = self.machines.seconds + chance.choice((10.0, 60.0))

    def _fault_lose_answer(self, chance: Random) -> None:
        site = self._site(chance)
        store = site.scheduler.node_store if site.scheduler is not None else None
        if store is not None:
            store.loses_next_answer = True
            self._disturb(site, 5.0)

    def _fault_drain(self, chance: Random) -> None:
        """Drains a node by a request to any node, or ends that."""
        live = [site for site in self._sites if site.scheduler is not None and site.starting is None]
        if not live:
            return
        asked, name, undo = chance.choice(live), chance.choice(NAMES), chance.random() < 0.5
        assert asked.scheduler is not None

        async def drain(scheduler: SimulatedNode) -> None:
            try:
                await scheduler.nodes.drain(name, undo=undo)
            except Exception as error:  # The node may be down, or the database may not answer.
                self.history.lines.append(f"{self.machines.seconds:.3f} drain {name}: {type(error).__name__}")

        asked.scheduler.machine.begin(drain(asked.scheduler))

    def _fault_restart(self, chance: Random) -> None:
        site = self._site(chance)
        if site.scheduler is not None and site.starting is None and site.stopping is None:
            site.stopping = site.scheduler.machine.begin(site.scheduler.stop(grace_seconds=chance.choice((0.0, 20.0))))
            self._disturb(site, 60.0)

    # Laws.

    def committed(self, store: NodeStore, tx: Tx) -> None:
        """Checks a commit of any node."""
        self.history.commits += 1
        before = self._watch.last_seq
        found = self._watch.committed(tx, self.database.now(), is_dispatching=False)
        # Each node remembers the largest turn that it has seen, so several nodes may use turns out of order.
        self.history.broken += [broken for broken in found if broken.law != "offices are served in turn"]
        self._observe(store.node, tx, before)
        if self.history.commits % EXAMINED_EVERY == 0:
            self.history.broken += oracles.examined(tx)
        self._judge_business(before)
        facts = self._watch._facts(tx, self.database.now())
        idle = {one.how for one in oracles.idle(facts)}
        self._idle_since = {how: self._idle_since.get(how, self.machines.seconds) for how in idle}

    def _judge_business(self, before: int) -> None:
        """Counts the commits of the last minute that stored no event: nodes must not keep each other busy with
        notices.
        """
        now = self.machines.seconds
        if self._watch.last_seq > before:
            self._idle_commits.clear()
        self._idle_commits.append(now)
        while self._idle_commits[0] < now - 60:
            self._idle_commits.popleft()
        if len(self._idle_commits) > MOST_IDLE_COMMITS:
            how = f"{len(self._idle_commits)} commits in a minute in which nothing happened"
            self.history.broken.append(Broken("nodes that have nothing to do are quiet", how))

    def _observe(self, node: str, tx: Tx, before: int) -> None:
        """Notes the steps of the lease protocol in a commit, and its effects on runs."""
        for event in check_reads.events(tx, before):
            details = json.loads(event.details)
            if event.type == "node_joined":
                self.database.observe("register", details["node_id"])
                self._draining.discard(details["node_id"])
            elif event.type == "node_lost":
                self.database.observe("lose", details["node_id"])
            elif event.type == "node_left":
                self.database.observe("leave", details["node_id"])
            elif event.type in ("node_drained", "node_resumed"):
                (self._draining.add if event.type == "node_drained" else self._draining.discard)(details["node_id"])
            elif event.type == "job_started" and event.job_id is not None:
                worker = details["worker_id"].rpartition("/slot-")[0]
                self.database.observe("claim", worker, self._chain(tx, event.job_id))
                if worker in self._draining:
                    self.history.broken.append(Broken("a drained node starts nothing", f"{event.job_id} at {worker}"))
                if worker != node:
                    self.history.broken.append(Broken("a node starts its own runs", f"{worker} by {node}"))
            elif event.run_id is not None and event.type in oracles.ENDS and event.type != "job_skipped":
                self._ended_at[event.run_id] = self.machines.seconds
                is_lost = details.get("error") in (CRASH_ERROR, CRASHES_ERROR)
                if event.job_id is not None:
                    name = "recover" if is_lost else "finish"
                    self.database.observe(name, node, self._chain(tx, event.job_id))

    def _chain(self, tx: Tx, job_id: str) -> str:
        if job_id not in self._chains:
            self._chains = {job.job_id: job.chain_id for job in check_reads.jobs(tx).values()}
        return self._chains[job_id]

    def begins(self, run: RunContext, machine: Machine) -> None:
        """Checks a handler that begins: no other handler may work for the same chain on a machine that could know
        that.
        """
        chain = self._chains.get(run.job_id, run.job_id)
        for other_id, (other, job_id) in self._running.items():
            if other is machine or other.is_dead or self._chains.get(job_id, job_id) != chain:
                continue
            if other_id in self._witness.stubborn:  # Only the end of its node stops it.
                continue
            # A machine that was stopped notices a moment after it continues what it has missed.
            if any(self.machines.seconds - one.stopped_until < STOPS_WITHIN for one in (machine, other)):
                continue
            self._witness.broken.append(f"run {run.run_id} began while {other_id} of its chain goes on elsewhere")
        self._running[run.run_id] = (machine, run.job_id)

    def ends(self, run: RunContext) -> None:
        self._running.pop(run.run_id, None)

    def _watch_time(self) -> None:
        """Checks that everything has happened that is due by now."""
        now = self.machines.seconds
        for run_id, (machine, _) in list(self._running.items()):
            if machine.is_dead:
                del self._running[run_id]
                continue
            since = max(self._ended_at.get(run_id, now), machine.stopped_until)
            if not machine.is_stopped and now - since > STOPS_WITHIN and run_id not in self._witness.stubborn:
                how = f"{run_id} ended {now - since:.0f} s ago by the database"
                self.history.broken.append(Broken("what was taken away from a node stops there", how))
        healthy = [site for site in self._sites if self._is_healthy(site, LOOKS_WITHIN)]
        workers = [
            site.scheduler
            for site in healthy
            if site.name not in self._draining and site.scheduler and not site.scheduler.most
        ]
        for how, since in self._idle_since.items():
            # A direct caller's work starts on the node to which the caller is connected.
            able = workers if how.startswith("job ") else [one for one in workers if one.is_connected(how.split()[0])]
            if able and now - since > LOOKS_WITHIN and now - since > self._since_deaf():
                self.history.broken.append(Broken("what can run does run, on some node", how))

    def _since_deaf(self) -> float:
        """Returns how long changes may still be unknown, because lost notices are made up for with the next renewal."""
        return LOOKS_WITHIN if self.machines.seconds < self.database.deaf_until + LOOKS_WITHIN else 0.0

    def _check(self) -> None:
        self._refuse(self.history.broken)
        self._refuse(
            [Broken("no job runs twice, and nothing runs that is not stored", how) for how in self._witness.broken]
        )
        self._refuse([Broken("clients are answered rightly", how) for how in self._clients.broken])
        self._refuse([Broken("webhooks are what their receivers expect", how) for how in self._endpoints.broken])
        for site in self._sites:
            self._refuse(site.clients.followers.broken)
        self._refuse(list(self._late()))

    def _late(self) -> Iterator[Broken]:
        """Finds what is late although the responsible nodes are healthy."""
        store = next(
            (one.scheduler.node_store for one in self._sites if one.scheduler and one.scheduler.node_store), None
        )
        if store is None:
            return
        jobs, now = check_reads.jobs(store.inspection()), self.database.now()
        healthy = {site.name for site in self._sites if self._is_healthy(site, LOOKS_WITHIN)}
        is_led = len([site for site in self._sites if self._is_healthy(site, LEADS_WITHIN)]) == len(self._sites)
        for job in jobs.values():
            if is_led and job.stage == "QUEUED" and not job.is_due and (job.scheduled_for or now) < now - 15 * SECOND:
                yield Broken("what is due happens in time", f"{job.job_id} was due at {job.scheduled_for}, it is {now}")
            if job.stage == "RUNNING" and job.finished_at is None and job.run_id in self._running:
                yield from self._overdue(job, now, healthy)

    def _overdue(self, job: JobFacts, now: int, healthy: set[str]) -> Iterator[Broken]:
        machine, _ = self._running[job.run_id or ""]
        name = next((site.name for site in self._sites if site.scheduler and site.scheduler.machine is machine), None)
        at = self._watch.interrupted_at.get(job.run_id or "", now)
        if name not in healthy or job.run_id in self._witness.stubborn:
            return
        if at < now - 15 * SECOND:
            yield Broken("a cancelled run stops in time", f"{job.run_id} since {at}, it is {now}")
        if (job.timeout_at or now) < now - 15 * SECOND:
            yield Broken("a run ends at its timeout", f"{job.run_id} had time until {job.timeout_at}, it is {now}")

    def _any_store(self) -> NodeStore:
        return next(one.scheduler.node_store for one in self._sites if one.scheduler and one.scheduler.node_store)

    def _refuse(self, broken: Sequence[Broken]) -> None:
        if broken:
            raise LawBroken(broken)

    def _come_to_rest(self) -> None:
        """Repairs everything, lets current work end, and checks the final state."""
        self.database.heal()
        for site in self._sites:
            site.slow_until = 0.0
            if site.scheduler is not None:
                site.scheduler.machine.stopped_until = min(site.scheduler.machine.stopped_until, self.machines.seconds)
            site.start_at = min(site.start_at, self.machines.seconds)
            site.clients.followers.hurry()
        self._endpoints.is_well = True
        self._pass_time(150)
        for name in NAMES:
            self._ask(lambda one, name=name: one.nodes.drain(name, undo=True))  # type: ignore[misc]
        self._ask(lambda one: self._settled(one))
        end = self.machines.seconds + REST_SECONDS
        while self.machines.seconds < end:
            self._pass_time(60, part=10.0)
            self._check()
            if not list(oracles.unfinished(self._any_store().inspection(), self.database.now())):
                break
        tx, now = self._any_store().inspection(), self.database.now()
        self.history.jobs = len(check_reads.jobs(tx))
        last = check_reads.last_event(tx)
        self._refuse(
            [
                *oracles.examined(tx),
                *oracles.unfinished(tx, now, self._limits.affinity_waits, self._clients.caller_keys),
                *settings_oracle.cut_short(tx),
                *oracles.fired_twice(self._watch.events),
                *oracles.misretried(tx, self._watch.events),
                *oracles.miscounted_failures(tx, has_purged=False),
                *oracles.unaccounted(tx, has_purged=False),
                *oracles.undelivered(tx, self._endpoints.received, set(), has_purged=False),
                *oracles.stopped_in_vain(tx, self._witness.stopped),
                *self._forgotten(tx),
                *self._leaderless(tx),
            ]
        )
        has_ended = _ended_chains(tx)
        self._pass_time(60, part=10.0)  # By then every node knows of the latest changes.
        followers = [site.clients.followers for site in self._sites]
        self._refuse([broken for one in followers for broken in (*one.behind(last), *one.unanswered(has_ended))])

    async def _settled(self, scheduler: SimulatedNode) -> None:
        clients = copy.copy(self._clients)
        clients.scheduler = scheduler
        await clients.settle_all()

    def _forgotten(self, tx: Tx) -> Iterator[Broken]:
        jobs = check_reads.jobs(tx)
        for job_id in self._clients.jobs:
            if job_id not in jobs:
                yield Broken("nothing acknowledged is ever lost", job_id)

    def _leaderless(self, tx: Tx) -> Iterator[Broken]:
        leaders = [
            site.name for site in self._sites if site.scheduler and site.scheduler._runtime.cluster._leader._is_leading
        ]
        if len(leaders) != 1:
            yield Broken("one node leads when all are well", str(leaders))


class _NodeWitness(Witness):
    """Reports what happens on one machine to the whole simulation."""

    def __init__(self, world: NodesWorld, machine: Machine) -> None:
        super().__init__()
        shared_by_all = world._witness
        self.began, self.began_at, self.took = shared_by_all.began, shared_by_all.began_at, shared_by_all.took
        self.stopped, self.reporting, self.stubborn = (
            shared_by_all.stopped,
            shared_by_all.reporting,
            shared_by_all.stubborn,
        )
        self.broken = shared_by_all.broken
        self.is_exact = False
        self._world = world
        self._machine = machine

    def begins(self, run: RunContext) -> None:
        super().begins(run)
        self._world.begins(run, self._machine)

    def ends(self, run: RunContext, do: str = "ok") -> None:
        self._world.ends(run)
        super().ends(run, do)


def _ended_chains(tx: Tx) -> Callable[[str], bool]:
    facts = check_reads.jobs(tx)
    open_ = {job.chain_id for job in facts.values() if job.finished_at is None}
    return lambda job_id: job_id in facts and facts[job_id].chain_id not in open_


def simulate(seed: int, actions: Sequence[Action] | None = None, directory: Path | None = None) -> History:
    """Simulates one history of three nodes."""
    return simulated(seed, actions, directory).history


def simulated(seed: int, actions: Sequence[Action] | None = None, directory: Path | None = None) -> NodesWorld:
    memory = Path("/dev/shm")
    if directory is None and memory.is_dir() and os.access(memory, os.W_OK):
        directory = memory
    with tempfile.TemporaryDirectory(prefix="nextslot-sim-", dir=directory, ignore_cleanup_errors=True) as place:
        world = NodesWorld(Path(place), seed)
        with shared(world.database):
            world.run(make(seed) if actions is None else actions)
        return world
