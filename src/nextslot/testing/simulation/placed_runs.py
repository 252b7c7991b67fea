"""A simulated engine on virtual time, with wrappers that write the real records, and what may never be seen of them.

The engine loses answers, starts a submission twice, forgets one, gives one handle to several runs, goes back in state,
says that work has ended that goes on, forgets stops, and does not answer for a while. Wrappers and whole machines die,
and storage cannot be written for a while. The work outlives every scheduler: `World` gives the engine to each.

`World` makes it for clients that say so (`Clients.has_engine`). What runs is seen here, and not by what is stored.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from nextslot.domain.limits import Limits
from nextslot.executors.engines import records
from nextslot.executors.engines.contract import Key, Refused, Seen, Sight, Submission, Unreachable
from nextslot.executors.engines.engines import EngineSettings
from nextslot.scheduler import Scheduler
from nextslot.store.contract import Tx

from . import check_reads
from .broken import Broken
from .oracles import ENGINE as NAME

SLOTS, SEATS = 2, 3
# The units that jobs of each type take.
SEATS_OF = {"placed": 1, "placed_big": 3}
LEASE_SECONDS, START_TIMEOUT_SECONDS = 300.0, 900.0
# How long the engine takes to start a submission.
START_DELAYS = (0.0, 0.0, 2.0, 30.0, 400.0)
# How long a fault of the engine or of its storage lasts.
SILENCES = (5.0, 60.0, 300.0)
PARTITIONS = (4.0, 45.0, 150.0, 450.0)
# How soon the processes of a run end that are killed.
KILL_SECONDS = 0.2
# The wrapper renews its lease and reads requests this often.
LOOK_SECONDS = 4.0


class PlacedWork:
    """What the wrappers did, as an observer on the engine's machines sees it."""

    def __init__(self) -> None:
        # By run, in seconds of the loop: when its work began, and when the last process of it was gone.
        self.began: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.jobs: dict[str, str] = {}
        self.seats: dict[str, int] = {}
        self.broken: list[Broken] = []
        self.met: Counter[str] = Counter()
        # Returns the runs whose ends are stored.
        self.stored_ends: Callable[[], Set[str | None]] = frozenset

    def begins(self, run_id: str, job_id: str, seats: int) -> None:
        if run_id in self.began:
            self.broken.append(Broken("a placed run is claimed once", f"the work of run {run_id} began twice"))
        if run_id in self.stored_ends():
            self.broken.append(Broken("no placed work begins after its run has ended", run_id))
        self.began[run_id], self.jobs[run_id], self.seats[run_id] = _now(), job_id, seats
        running = [one for one in self.began if one not in self.ended]
        if len(running) > SLOTS or sum(self.seats[one] for one in running) > SEATS:
            what = f"{len(running)} of {SLOTS} runs, {sum(self.seats[one] for one in running)} of {SEATS} seats"
            self.broken.append(Broken("an engine runs no more than its limits", what))

    def ends(self, run_id: str) -> None:
        self.ended.setdefault(run_id, _now())

    def overlapping(self, tx: Tx) -> Iterator[Broken]:
        """Finds work of a run that went on while work of the same chain ran."""
        chains: dict[str, list[tuple[float, float, str]]] = {}
        facts = check_reads.jobs(tx)
        for run_id, began in self.began.items():
            if (job := facts.get(self.jobs[run_id])) is not None:
                chains.setdefault(job.chain_id, []).append((began, self.ended.get(run_id, float("inf")), run_id))
        for spans in chains.values():
            spans.sort()
            for (_, end, first), (begin, _, second) in pairwise(spans):
                if begin < end:
                    yield Broken("no work of a run overlaps its retry", f"{second} began while {first} went on")

    def left(self) -> Iterator[Broken]:
        """Finds work that goes on when everything has ended."""
        for run_id in self.began.keys() - self.ended.keys():
            yield Broken("no process is left of a placed run", run_id)


class SimulatedWrapper:
    """The wrapper of one start of a run, on timers instead of in a process. The real code writes its records."""

    def __init__(self, engine: "SimulatedEngine", directory: Path) -> None:
        self._engine = engine
        self._directory = str(directory)
        self.run_id = directory.name
        self.has_claimed = self.is_over = False
        self._request: dict[str, Any] = {}
        self._patient_until = 0.0
        self._renewals = 0
        self._stopped: str | None = None
        self._timers: list[asyncio.TimerHandle] = []

    def start(self) -> None:
        """Claims the run and begins its work, unless another start or the scheduler has claimed it."""
        try:
            found = records.read(self._directory, records.REQUEST)
            claim = None if found is None else {"token": found["token"], "by": "wrapper", "pid": 1, "host": "simulated"}
            self.has_claimed = claim is not None and records.write_once(self._directory, records.CLAIM, claim)
        except OSError:
            found = None  # The run has ended, and its directory is gone.
        if found is None or not self.has_claimed:
            self._engine.work.met["refused start"] += found is not None
            self.is_over = True
            return
        self._request = found
        params = json.loads(found["stdin"])
        job_type = "placed_big" if found["argv"][-1] == "big" else "placed"
        self._engine.work.begins(self.run_id, found["env"]["NEXTSLOT_JOB_ID"], SEATS_OF[job_type])
        self._patient_until = _now() + found["patience_seconds"]
        does_fail = params["do"] == "fail" and int(found["env"]["NEXTSLOT_ATTEMPT"]) <= params["times"]
        seconds = 1e9 if params["do"] == "hang" else params["seconds"]
        self._after(seconds, lambda: self._end(1 if does_fail else 0))
        if found["timeout_seconds"] is not None:
            self._after(found["timeout_seconds"], lambda: self.stop("timeout"))
        self._look()

    def _after(self, seconds: float, call: Any) -> None:
        if seconds < 1e9:
            self._timers.append(asyncio.get_running_loop().call_later(seconds, call))

    def _look(self) -> None:
        """Renews the lease and reads requests, as long as the storage can be written."""
        if self.is_over:
            return
        if _now() >= self._patient_until:
            self._engine.work.met["patience"] += 1
            self._stopped = self._stopped or "lease"
            self._after(KILL_SECONDS, lambda: self._end(137))
            return
        if not self._engine.is_cut_off and not self._renew():
            return
        self._after(LOOK_SECONDS, self._look)

    def _renew(self) -> bool:
        """Renews the lease and reads requests. Returns False if the run is given up: its work is ended at once."""
        self._renewals += 1
        try:
            records.replace(self._directory, records.LEASE, f"{self._renewals}\n".encode())
            asked = records.read(self._directory, records.STOP)
            is_given_up = records.read(self._directory, records.END) is not None
        except OSError:
            return True  # The directory is gone; the wrapper is patient for a while.
        self._patient_until = _now() + self._request["patience_seconds"]
        if is_given_up:
            self.work_ends()
            return False
        if asked is not None:
            self.stop(str(asked["kind"]))
        return True

    def stop(self, why: str) -> None:
        if self.has_claimed and not self.is_over and self._stopped is None:
            self._stopped = why
            self._after(KILL_SECONDS, lambda: self._end(143))

    def work_ends(self) -> None:
        """Ends the wrapper and its work without a record: its machine is gone, or the run was given up."""
        if not self.is_over:
            self._over()

    def be_killed(self) -> None:
        """Kills the wrapper alone: its guardian ends the work, and writes the end."""
        if self.has_claimed and not self.is_over:
            self._after(KILL_SECONDS, lambda: self._end(137, "its wrapper was killed"))

    def _over(self) -> None:
        self.is_over = True
        self._engine.work.ends(self.run_id)
        for timer in self._timers:
            timer.cancel()

    def _end(self, code: int, lost: str | None = None) -> None:
        if self.is_over:
            return
        seconds = _now() - self._engine.work.began[self.run_id]
        self._over()
        end = {"token": self._request["token"], "by": "wrapper", "exit_code": code, "signal": None, "refused": None}
        self._write({**end, "stopped": self._stopped, "lost": lost, "seconds": seconds})

    def _write(self, end: Mapping[str, Any]) -> None:
        if not Path(self._directory).is_dir():
            return
        if self._engine.is_cut_off:
            asyncio.get_running_loop().call_later(5.0, self._write, end)
            return
        try:
            records.write_once(self._directory, records.END, dict(end))
        except OSError:
            return


class SimulatedEngine:
    """The engine that all schedulers of a history use."""

    def __init__(self, directory: Path, seed: int) -> None:
        directory.mkdir()
        self._chance = Random(f"engine {seed}")
        # A fifth of all engines are honest, so that a failure with them is not caused by a lie.
        self._lies = 0.0 if seed % 5 == 0 else 0.15
        self.work = PlacedWork()
        self.settings = EngineSettings(
            name=NAME,
            kind="simulated",
            directory=directory,
            slots=SLOTS,
            units={"seats": SEATS},
            python="python3",
            poll_seconds=5.0,
            lease_seconds=LEASE_SECONDS,
            start_timeout_seconds=START_TIMEOUT_SECONDS,
        )
        self._starts: dict[str, list[SimulatedWrapper]] = {}
        self._handles: dict[str, str] = {}
        self._silent_until = self._cut_until = 0.0

    def resources(self) -> dict[str, int]:
        return {NAME: SLOTS, f"{NAME}:seats": SEATS}

    def limits(self, limits: Limits) -> Limits:
        """Returns limits that contain those of the engine."""
        return Limits(**{**_fields(limits), "resources": {**limits.resources, **self.resources()}})

    def register(self, scheduler: Scheduler) -> None:
        """Adds the engine and its job types to a scheduler."""
        scheduler.job_types.engines.add(self.settings, self)
        for name, seats in SEATS_OF.items():
            command = ["work", name.removeprefix("placed_")]
            scheduler.job_types.add_command(name, command, engine=NAME, engine_units={"seats": seats})

    # Faults, which `World` causes.

    def fall_silent(self, chance: Random) -> None:
        self._silent_until = _now() + chance.choice(SILENCES)

    def cut_off(self, chance: Random) -> None:
        """Keeps the machines of the engine from writing to its storage for a while."""
        self._cut_until = _now() + chance.choice(PARTITIONS)

    def kill(self, chance: Random) -> None:
        """Kills the wrapper of a run, or its whole machine."""
        living = [one for starts in self._starts.values() for one in starts if one.has_claimed and not one.is_over]
        if living:
            victim = chance.choice(living)
            is_machine = chance.random() < 0.5
            self.work.met["machine" if is_machine else "wrapper"] += 1
            (victim.work_ends if is_machine else victim.be_killed)()

    @property
    def is_cut_off(self) -> bool:
        return _now() < self._cut_until

    # The contract of an engine.

    def submit(self, submission: Submission) -> str:
        self._answer("submit")
        if self._lied("refused", 0.1):
            raise Refused("there is no such partition")
        starts = 2 if self._lied("twice") else 1
        if self._lied("forgot"):
            starts = 0
        for _ in range(starts):
            self._schedule(submission)
        if self._lied("lost answer"):
            raise Unreachable("the answer was lost")
        # Two runs may have one handle.
        self._handles[submission.run_id] = handle = str(self._chance.randrange(3))
        return handle

    def _schedule(self, submission: Submission) -> None:
        wrapper = SimulatedWrapper(self, submission.directory)
        self._starts.setdefault(submission.run_id, []).append(wrapper)
        asyncio.get_running_loop().call_later(self._chance.choice(START_DELAYS), wrapper.start)

    def find(self, run_id: str) -> list[str]:
        self._answer("find")
        if self._lied("hid"):
            return []
        return [self._handles.get(run_id, "0") for one in self._starts.get(run_id, ()) if not one.is_over]

    def observe(self, keys: Sequence[Key]) -> Mapping[str, Seen]:
        self._answer("observe")
        return {key.run_id: Seen(self._sight(key.run_id)) for key in keys}

    def _sight(self, run_id: str) -> Sight:
        if self._lied("state"):
            return self._chance.choice(list(Sight))
        starts = self._starts.get(run_id, ())
        if not starts:
            return Sight.ABSENT
        if all(one.is_over for one in starts):
            return Sight.ENDED
        return Sight.RUNNING if any(one.has_claimed for one in starts) else Sight.QUEUED

    def logs(self, key: Key, offset: int) -> bytes:
        return b""

    def stop(self, key: Key, grace_seconds: float) -> None:
        self._answer("stop")
        if not self._lied("deaf", 3.0):
            for one in self._starts.get(key.run_id, ()):
                one.stop("engine")

    def forget(self, key: Key) -> None:
        self._answer("forget")

    def _answer(self, what: str) -> None:
        if _now() < self._silent_until or self._lied("unreachable", 0.5):
            raise Unreachable(f"no answer to {what}")

    def _lied(self, how: str, share: float = 1.0) -> bool:
        lies = self._chance.random() < self._lies * share
        self.work.met[how] += lies
        return lies


def _now() -> float:
    return asyncio.get_running_loop().time()


def _fields(limits: Limits) -> dict[str, Any]:
    return {name: getattr(limits, name) for name in limits.__dataclass_fields__}
