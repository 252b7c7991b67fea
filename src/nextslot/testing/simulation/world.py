"""Simulates a scheduler that crashes and restarts, its clients and its disk, and checks every law.

One thread, virtual time, a real SQLite file. The same plan gives the same history, to the byte.
"""

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from nextslot import testing
from nextslot.domain.limits import Limits
from nextslot.errors import NextslotError, Refused
from nextslot.executors.threads import InlineThreads
from nextslot.scheduler import Scheduler
from nextslot.store.contract import (
    Closing,
    Effects,
    Store,
    Tx,
    Work,
)
from nextslot.system.disk_space import DiskLimits
from nextslot.testing.faulty_disk import (
    FaultyDisk,
    FaultyStore,
    PowerCut,
    create_empty,
    dump,
    salvage,
)

from . import check_reads, explanations, oracles, settings_oracle, signal_oracle
from .broken import Broken
from .clients import Clients, retried
from .limited_clients import LimitedClients
from .oracles import Watch
from .placed_runs import SimulatedEngine
from .plan import Action, make
from .surroundings import (
    OFFICES,
    Endpoints,
    SlowThreads,
    Witness,
    register,
)
from .tiny_batches import tiny_batches

FILE = "nextslot.db"
STARVATION_AFTER_SECONDS = 600.0
# The time within which all work must be done after the last action.
REST_HOURS = 72
# The doctor examines the whole database after this many commits.
EXAMINED_EVERY = 5
# How often a start may fail because the disk fails; attempts are a second apart.
MAX_STARTS = 100
# How long a disk stays full, or does not respond.
OUTAGES = (0.5, 3.0, 40.0)
# After this long without a fault nothing may be late: an outage lasts 40 seconds, a slow commit 60.
CALM_AFTER_SECONDS = 110.0
# One history of so many has jobs with rates, keys, affinities and named devices.
LIMITED_EVERY = 7
# How long no scheduler runs between two lives; often the next one starts at once.
DOWNTIMES = (0.0, 0.0, 90.0, 2_000.0, 20_000.0)


class LawBroken(Exception):
    def __init__(self, broken: Sequence[Broken]) -> None:
        self.broken = list(broken)
        super().__init__("; ".join(str(one) for one in self.broken[:3]))


@dataclass
class History:
    """What happened, line by line, and the broken laws. `dump` contains the stored data at the end, if requested."""

    lines: list[str] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    dump: str = ""
    seconds: float = 0.0
    lives: int = 0
    faults: int = 0
    commits: int = 0
    jobs: int = 0
    # How often an engine failed in each way.
    met: Counter[str] = field(default_factory=Counter)


class SimulatedScheduler(Scheduler):
    """The real scheduler on a faulty disk."""

    def __init__(self, path: Path, disk: FaultyDisk, committed: Callable[[Tx], None], **options: Any) -> None:
        super().__init__(
            f"sqlite:///{path}",
            data=path.parent,
            is_threaded=False,
            disk=DiskLimits(warn_bytes=0, refuse_bytes=0),
            **{"threads": InlineThreads(), **options},
        )
        self._path = path
        self._disk = disk
        self._committed = committed
        self._open_store = self._open_faulty_store
        self.prepare: Callable[[FaultyStore], None] = lambda store: None

    def _open_faulty_store(
        self, closing: Closing, *, effects: Effects, opening: Work[None], refresh: Work[None]
    ) -> Store:
        store = FaultyStore(self._path, closing, effects, self._disk, self._committed, opening, self._clock.now)
        self.prepare(store)
        return store

    @property
    def is_dispatching(self) -> bool:
        return self._runtime.dispatcher.is_dispatching

    @property
    def faulty_store(self) -> FaultyStore | None:
        store = self._store
        return store if isinstance(store, FaultyStore) else None


class World:
    def __init__(self, directory: Path, seed: int, clients: type[Clients] = Clients) -> None:
        self._directory = directory
        self._seed = seed
        self._chance = testing.SeededChance(seed)
        self._clock = testing.VirtualClock()
        self._witness = Witness()
        self._endpoints = Endpoints(seed)
        self._fate = Random(f"fate {seed}")
        self._limits = Limits(
            running=5, job_types=self._fate.choice(({}, {"work": 3})), resources={"gpu": 1, "disk": 2}, **clients.limits
        )
        self._engine = SimulatedEngine(directory / "engine", seed) if clients.has_engine else None
        if self._engine is not None:
            self._limits = self._engine.limits(self._limits)
        # How many runs the simulated machine allows at once.
        self._node_running = self._fate.choice((0, 0, 4))
        self._threads = SlowThreads(seed)
        self._devices = clients.devices
        self._watch = Watch(STARVATION_AFTER_SECONDS, self._limits, self._node_running, self._devices)
        self._answers = signal_oracle.Answers()
        self._clients = clients(self._clock.wall, self._endpoints)
        self._followers = self._clients.followers
        self._clients.orders = self._watch.orders
        self._clients.last_event = lambda: self._watch.last_seq
        self._clients.configured = self._configured
        self._clients.forget_retries = self._watch.elapsed.forget_retries
        # In the order of the requests. The order of a set would differ each time.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._death = asyncio.Event()
        self._disk: FaultyDisk = None  # type: ignore[assignment]  # Set before the first start.
        self._scheduler: SimulatedScheduler = None  # type: ignore[assignment]
        # The transaction, counted from its start, in which the next scheduler loses its power.
        self._next_dies_in: int | None = None
        # The state of the data at the last check, and at the last examination by the doctor.
        self._watched: object = None
        self._examined: object = None
        # When the last fault happened, by the loop's time, and in which life of the scheduler.
        self._disturbed_at, self._calm_lives = 0.0, 1
        # The time of a run counts from its claim, but the witness sees the run only after the commit.
        self._has_slow_commits = False
        self.history = History()
        if self._engine is not None:
            self.history.met = self._engine.work.met
            self._engine.work.stored_ends = self._watch.ended_runs

    # The whole simulation.

    async def run(self, actions: Sequence[Action]) -> None:
        asyncio.get_running_loop().set_exception_handler(self._unhandled)
        try:
            await self._start(self._directory / "life-0" / FILE, is_new=True)
            for office in OFFICES[1:]:
                await retried(lambda office=office: self._make_office(office))  # type: ignore[misc]
            for action in actions:
                await self._step(action)
            await self._come_to_rest()
        except LawBroken as error:
            self.history.broken = error.broken
        finally:
            await self._close()

    async def _make_office(self, office: str) -> None:
        aging = Random(f"aging {self._seed} {office}").choice((None, None, 1800.0, 7200.0))
        await self._scheduler.offices.create(
            office, max_concurrent_jobs=2, role_limits={"FE": 1, "QA": 1}, priority_aging_seconds=aging
        )

    def _configured(self, limits: Limits, is_acknowledged: bool) -> None:
        """Notes new limits. The next scheduler starts with them too, because a reload means that the file has
        changed.
        """
        self._limits = limits
        self._watch.configured(limits, is_acknowledged)

    async def _step(self, action: Action) -> None:
        chance = Random(action.seed)
        fault = getattr(self, f"_fault_{action.kind}", None)
        if fault is not None:
            self.history.faults += 1
            self._note(action, "")
            self._disturbed_at = asyncio.get_running_loop().time()
            await fault(chance)
        else:
            task = asyncio.ensure_future(self._client(action, chance))
            self._tasks[task] = None
            task.add_done_callback(lambda done: self._tasks.pop(done, None))
        await self._pass_time(action.pause)
        self._check()

    async def _client(self, action: Action, chance: Random) -> None:
        try:
            answer = await self._clients.act(action.kind, chance)
        except asyncio.CancelledError:
            self._note(action, "nobody knows")
            raise
        self._note(action, answer)

    def _note(self, action: Action, what: str) -> None:
        self.history.lines.append(f"{self._clock.now()} {action.kind} {what}")

    async def _pass_time(self, seconds: float) -> None:
        """Lets time pass. If the power fails meanwhile, restarts the scheduler at once."""
        loop = asyncio.get_running_loop()
        end = loop.time() + max(seconds, 1e-6)
        while (left := end - loop.time()) > 0 or self._death.is_set():
            waiting = asyncio.ensure_future(self._death.wait())
            await asyncio.wait([waiting], timeout=max(left, 1e-6))
            waiting.cancel()
            if self._death.is_set():
                await self._restart()

    # Starts and crashes.

    @property
    def path(self) -> Path:
        return self._scheduler._path

    async def _start(self, path: Path, is_new: bool = False) -> None:
        """Starts a scheduler on the existing database, repeating failed starts. A crash may interrupt a start too."""
        if is_new:
            create_empty(path)
            self._new_disk()
        for _ in range(MAX_STARTS):
            self.history.lives += 1
            scheduler = self._scheduler = self._compose(path)
            self._endpoints.restarted()
            self._clients.scheduler = scheduler
            starting = asyncio.ensure_future(scheduler.start())
            death = asyncio.ensure_future(self._death.wait())
            await asyncio.wait([starting, death], return_when=asyncio.FIRST_COMPLETED)
            death.cancel()
            if self._death.is_set():
                path = await self._cut_power(path)
                starting.cancel()
                await asyncio.wait([starting])
                self._new_disk()
                continue
            error = starting.exception()
            if error is None:
                self._followers.begin(scheduler)
                return
            if isinstance(error, LawBroken):
                raise error
            if not isinstance(error, NextslotError) or isinstance(error, Refused):
                raise LawBroken([Broken("it starts on whatever a crash leaves", repr(error))])
            self.history.lines.append(f"{self._clock.now()} the start failed: {type(error).__name__}")
            await asyncio.sleep(1)
        raise LawBroken(
            [Broken("it starts again once the disk is well", f"it did not start within {MAX_STARTS} seconds")]
        )

    def _compose(self, path: Path) -> SimulatedScheduler:
        scheduler = SimulatedScheduler(
            path,
            self._disk,
            self._committed,
            clock=self._clock,
            chance=self._chance,
            sender=self._endpoints,
            limits=self._limits,
            node_running=self._node_running,
            node_resources=self._devices,
            threads=self._threads,
            starvation_after_seconds=STARVATION_AFTER_SECONDS,
        )
        register(scheduler, self._witness)
        if self._engine is not None:
            self._engine.register(scheduler)
        scheduler.prepare = self._opened
        return scheduler

    def _opened(self, store: FaultyStore) -> None:
        """Checks the reopened store before recovery has changed it."""
        self._witness.is_under_way = lambda run_id: store.inspect(lambda tx: check_reads.is_under_way(tx, run_id))
        self._witness.read = store.inspect
        broken = store.inspect(lambda tx: self._watch.reopened(tx, self._clients.has_purged))
        store.turns = lambda: self._fate.choice((0, 0, 1, 4))
        if self._next_dies_in is not None:
            store.dies_in, self._next_dies_in = self._next_dies_in, None
        self._refuse(broken + store.inspect(self._forgotten))

    def _new_disk(self) -> None:
        if self._disk is not None:
            self._disk.unregister()
        self._disk = FaultyDisk(Random(self._fate.getrandbits(32)))
        self._death = asyncio.Event()
        self._disk.on_death = self._death.set

    async def _restart(self) -> None:
        path = await self._cut_power(self.path)
        self._new_disk()
        await asyncio.sleep(self._fate.choice(DOWNTIMES))
        await self._start(path)

    async def _cut_power(self, path: Path) -> Path:
        """Cuts the power: copies the remaining files to where the next start finds them. Waiting clients get no
        response.
        """
        self._disk.die()
        self._followers.end()
        target = self._directory / f"life-{self.history.lives}" / FILE
        salvage(path, target)
        for task in [*self._tasks, *self._clients.connections]:
            task.cancel()
        await testing.crash(self._scheduler)
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=1)
        return target

    async def _close(self) -> None:
        store = self._scheduler.faulty_store
        self._followers.end()
        self._disk.heal()
        if store is not None:
            await testing.crash(self._scheduler)
        self._disk.unregister()
        self.history.seconds = asyncio.get_running_loop().time()

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Ignores tasks of a crashed scheduler; any other unhandled error is a defect."""
        error = context.get("exception")
        if error is not None and not isinstance(error, PowerCut):
            self._witness.broken.append(f"{context.get('message')}: {error!r}")

    # Faults.

    async def _fault_crash(self, chance: Random) -> None:
        self._disk.die()

    async def _fault_die_before_commit(self, chance: Random) -> None:
        self._die_in(chance, is_before=True)

    async def _fault_die_after_commit(self, chance: Random) -> None:
        self._die_in(chance, is_before=False)

    def _die_in(self, chance: Random, is_before: bool) -> None:
        store = self._scheduler.faulty_store
        if store is not None:
            store.dies_in, store.dies_before_commit = chance.randrange(4), is_before
        if chance.random() < 0.4:
            self._next_dies_in = chance.randrange(6)

    async def _fault_tear(self, chance: Random) -> None:
        self._disk.arm("tear", chance.randrange(12))

    async def _fault_disk_full(self, chance: Random) -> None:
        self._break_disk("full", chance)

    async def _fault_disk_io(self, chance: Random) -> None:
        self._break_disk("io", chance)

    async def _fault_disk_busy(self, chance: Random) -> None:
        self._break_disk("busy", chance)

    def _break_disk(self, mode: str, chance: Random) -> None:
        disk = self._disk
        disk.arm(mode, chance.randrange(10))
        asyncio.get_running_loop().call_later(chance.choice(OUTAGES), disk.heal)

    async def _fault_bad_sync(self, chance: Random) -> None:
        """Lets a commit succeed but report a failure; half of the time the power fails soon afterwards."""
        self._disk.arm("sync", chance.randrange(3))
        if chance.random() < 0.5:
            self._die_in(chance, is_before=True)

    async def _fault_slow_commit(self, chance: Random) -> None:
        store, self._has_slow_commits, self._witness.is_exact = self._scheduler.faulty_store, True, False
        self._watch.elapsed.is_exact = False
        if store is not None:
            store.delay = chance.choice((0.5, 5.0, 60.0))

    async def _fault_clock_forward(self, chance: Random) -> None:
        self._clock.jump(chance.choice((1.0, 61.0, 3601.0)))

    async def _fault_clock_back(self, chance: Random) -> None:
        self._clock.jump(-chance.choice((1.0, 61.0, 3601.0)))

    async def _fault_restart(self, chance: Random) -> None:
        """Stops the scheduler regularly, which interrupts runs after a grace period, and starts it again."""
        path = self.path
        self._followers.end()
        stopping = asyncio.ensure_future(self._scheduler.stop(grace_seconds=chance.choice((0.0, 30.0))))
        death = asyncio.ensure_future(self._death.wait())
        await asyncio.wait([stopping, death], return_when=asyncio.FIRST_COMPLETED)
        death.cancel()
        if self._death.is_set():
            path = await self._cut_power(path)
            stopping.cancel()
            await asyncio.wait([stopping])
            self._new_disk()
        elif stopping.exception() is not None:
            self._disk.heal()
            self._disk.die()
            path = await self._cut_power(path)
            self._new_disk()
        await asyncio.sleep(self._fate.choice(DOWNTIMES))
        await self._start(path)

    # Faults of an engine, if there is one.

    async def _fault_engine_silent(self, chance: Random) -> None:
        if self._engine is not None:
            self._engine.fall_silent(chance)

    async def _fault_engine_cut_off(self, chance: Random) -> None:
        if self._engine is not None:
            self._engine.cut_off(chance)

    async def _fault_engine_kill(self, chance: Random) -> None:
        if self._engine is not None:
            self._engine.kill(chance)

    # Laws.

    def _committed(self, tx: Tx) -> None:
        """Checks a commit. Collects broken laws instead of raising, which would count as the transaction's own error.

        Skips unchanged data that was already checked: a third of all commits change nothing.
        """
        self.history.commits += 1
        store = self._scheduler.faulty_store
        state = self._scheduler, store and store.changes, self._scheduler.is_dispatching
        if state != self._watched:
            self._watched = state
            self.history.broken += self._watch.committed(tx, self._clock.now(), self._scheduler.is_dispatching)
        if self.history.commits % EXAMINED_EVERY == 0 and state[:2] != self._examined:
            self._examined = state[:2]
            self.history.broken += oracles.examined(tx)

    def _check(self) -> None:
        self._refuse(self.history.broken)
        self._refuse(
            [Broken("no job runs twice, and nothing runs that is not stored", how) for how in self._witness.broken]
        )
        self._refuse([Broken("a session goes on where it was", how) for how in self._witness.sessions.broken])
        self._refuse([Broken("clients are answered rightly", how) for how in self._clients.broken])
        self._refuse([Broken("webhooks are what their receivers expect", how) for how in self._endpoints.broken])
        self._refuse(self._followers.broken)
        store = self._scheduler.faulty_store
        if self._engine is not None:
            self._refuse(self._engine.work.broken)
            overlapping = self._engine.work.overlapping
            if store is not None:
                self._refuse(store.inspect(lambda tx: list(overlapping(tx))))
        if store is not None:
            self._check_answers(store)
        if store is not None:
            has_purged = self._clients.has_purged
            self._refuse(store.inspect(lambda tx: list(self._answers.look(tx, has_purged))))
            self._refuse(store.inspect(lambda tx: list(signal_oracle.not_parked(tx))))
        if store is not None and self._is_calm(store):
            facts, now = store.inspect(check_reads.jobs), self._clock.now()
            interruptible = self._witness.began.keys() - self._witness.stubborn
            self._refuse(list(settings_oracle.late(facts, now, interruptible)))
            self._refuse(store.inspect(lambda tx: list(signal_oracle.unanswered(tx, now))))
            at, elapsed = asyncio.get_running_loop().time(), self._watch.elapsed
            self._refuse(store.inspect(lambda tx: list(elapsed.late(tx, at, interruptible))))
            idle, interrupted_at = self._endpoints.idle_seconds(), self._watch.interrupted_at
            self._refuse(
                store.inspect(
                    lambda tx: list(settings_oracle.late_elsewhere(tx, now, interruptible, interrupted_at, idle))
                )
            )

    def _is_calm(self, store: FaultyStore) -> bool:
        """Returns whether the last fault was so long ago that it cannot delay anything any more."""
        now = asyncio.get_running_loop().time()
        is_armed = self._disk.mode is not None or store.dies_in is not None or store.delay > 0
        if is_armed or self.history.lives != self._calm_lives:
            self._disturbed_at, self._calm_lives = now, self.history.lives
        return self.history.faults == 0 or now - self._disturbed_at > CALM_AFTER_SECONDS

    def _check_answers(self, store: FaultyStore) -> None:
        """Compares the answers that callers got, and would get now, with the stored data."""
        has_purged, scheduler = self._clients.has_purged, self._scheduler
        self._refuse(store.inspect(lambda tx: self._clients.acknowledged.missing(tx, has_purged)))
        queued = [job_id for queue in store.inspect(check_reads.queues).values() for job_id in queue]
        if queued and scheduler.is_dispatching:
            job_id = self._fate.choice(queued)
            self._refuse(store.inspect(lambda tx: list(explanations.explained_wrongly(scheduler, tx, job_id))))

    def _forgotten(self, tx: Tx) -> list[Broken]:
        """Finds acknowledged jobs and pauses that the restarted scheduler does not know."""
        jobs = set(check_reads.jobs(tx))
        if self._clients.has_purged:  # After a purge, ended jobs may be gone, but no others.
            jobs |= self._watch.ended
        broken = [
            Broken("nothing acknowledged is ever lost", job_id) for job_id in self._clients.jobs if job_id not in jobs
        ]
        scopes = {"office_id": "office", "job_type": "type", "resource": "resource", "scheduler": "scheduler"}
        wanted = {(scopes[scope], name) for scope, name in self._clients.pauses - self._clients.uncertain}
        missing = wanted - check_reads.pauses(tx)
        broken += [Broken("a pause survives a restart", str(one)) for one in sorted(missing)]
        return broken + self._clients.acknowledged.missing(tx, self._clients.has_purged)

    def _refuse(self, broken: Sequence[Broken]) -> None:
        if broken:
            raise LawBroken(broken)

    async def _come_to_rest(self) -> None:
        """Ends all requests and faults, waits until all work is done, and checks the final state."""
        self._disk.heal()
        await self._pass_time(60)
        store = self._scheduler.faulty_store
        assert store is not None
        store.dies_in = self._next_dies_in = None
        self._endpoints.is_well = True
        self._followers.hurry()
        await self._clients.settle_all()
        seen = {message.delivery_id for message in store.inspect(check_reads.messages)}
        for _ in range(REST_HOURS):
            await self._pass_time(3600)
            self._refuse(self.history.broken)  # What never comes to rest would be found after many minutes only.
        self._check()
        self._refuse(store.inspect(oracles.examined))
        now = self._clock.now()
        took = {} if self._has_slow_commits else self._witness.took
        received, has_purged = self._endpoints.received, self._clients.has_purged
        self.history.jobs = len(store.inspect(check_reads.jobs))
        if self._engine is not None:
            self._refuse(list(self._engine.work.left()))
        self._refuse(
            [
                *store.inspect(
                    lambda tx: list(oracles.unfinished(tx, now, self._limits.affinity_waits, self._clients.caller_keys))
                ),
                *oracles.fired_twice(self._watch.events),
                *oracles.timed_out_early(self._watch.events, took),
                # A timeout counts from the stored start, so the slow commit of a start takes part of it.
                *([] if self._has_slow_commits else store.inspect(lambda tx: list(settings_oracle.cut_short(tx)))),
                *store.inspect(lambda tx: list(oracles.misretried(tx, self._watch.events))),
                *store.inspect(lambda tx: list(oracles.miscounted_failures(tx, has_purged))),
                *store.inspect(lambda tx: list(oracles.unaccounted(tx, has_purged))),
                *store.inspect(lambda tx: list(oracles.undelivered(tx, received, seen, has_purged))),
                *store.inspect(self._forgotten),
                *store.inspect(lambda tx: list(oracles.stopped_in_vain(tx, self._witness.stopped))),
                *oracles.stalled_wrongly(self._watch.events, self._witness.reporting),
                *store.inspect(
                    lambda tx: list(oracles.wrong_messages(tx, self._watch.events, self._endpoints.contents))
                ),
                *self._followers.behind(store.inspect(check_reads.last_event)),
                *self._followers.unanswered(self._ended_chains(store)),
            ]
        )

    def _ended_chains(self, store: FaultyStore) -> Callable[[str], bool]:
        facts = store.inspect(check_reads.jobs)
        open_ = {job.chain_id for job in facts.values() if job.finished_at is None}
        return lambda job_id: job_id in facts and facts[job_id].chain_id not in open_


def clients_of(seed: int) -> type[Clients]:
    """Returns the clients of a history: in every seventh, their jobs fall under rates, keys and affinities too."""
    return LimitedClients if seed % LIMITED_EVERY == 4 else Clients


def simulate(
    seed: int,
    actions: Sequence[Action] | None = None,
    directory: Path | None = None,
    dumps: bool = False,
    clients: type[Clients] | None = None,
) -> History:
    """Simulates one history, from a seed or from the given actions, with clients of a given or of a chosen class."""
    memory = Path("/dev/shm")  # A simulation's files need not survive, and a disk is slower.
    if directory is None and memory.is_dir() and os.access(memory, os.W_OK):
        directory = memory
    place = tempfile.TemporaryDirectory(prefix="nextslot-sim-", dir=directory, ignore_cleanup_errors=True)
    with place, tiny_batches(seed):
        world = World(Path(place.name), seed, clients or clients_of(seed))
        return testing.run(_simulate(world, make(seed) if actions is None else actions, dumps))


async def _simulate(world: World, actions: Sequence[Action], dumps: bool) -> History:
    await world.run(actions)
    if dumps:
        world.history.dump = dump(world.path)
    return world.history
