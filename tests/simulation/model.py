"""The rules of the specification as a small program over plain lists: what the engine is compared with, step by step.

Nothing here knows the engine. A job is known by its chain's first job and by its number in the chain. Where the
specification leaves something open, the comment says what is taken.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

SECOND = 1_000_000
NOT_RETRIED = {"cancelled", "git_conflict", "permission", "dependency", "invalid"}
AT_ONCE = {"crash", "interrupted"}
ENDED = {"COMPLETED", "FAILED", "SKIPPED", "CANCELLED"}
SUCCEEDED = {"COMPLETED", "SKIPPED"}


@dataclass(eq=False)
class Group:
    mode: str
    on_failure: str
    roots: list[str] = field(default_factory=list)
    is_started: bool = False


@dataclass(eq=False)
class Job:
    root: str
    office: str
    priority: int = 0
    # Units by limit; a pause of one of these, or of the type, holds it back too.
    needs: dict[str, int] = field(default_factory=dict)
    type: str = "work"
    retries: int = 3
    base_delay: int = 10
    is_linear: bool = False
    timeout: int | None = None
    is_cancelled_with_prerequisite: bool = False
    ignores_signals: bool = False
    group: Group | None = None
    number: int = 1
    state: str = "QUEUED"
    waits_for: set[str] = field(default_factory=set)
    due: int | None = None
    has_turn: bool = True
    slot: int | None = None
    timeout_at: int | None = None
    cancel_mode: str | None = None
    told: str | None = None
    kind: str | None = None
    # Whether it was alone in a scheduler that died.
    was_alone: bool = False
    is_cancelled_by_request: bool = False

    @property
    def name(self) -> tuple[str, int]:
        return self.root, self.number

    @property
    def is_ready(self) -> bool:
        return self.state == "QUEUED" and not self.waits_for and self.due is None and self.has_turn

    @property
    def shown_state(self) -> str:
        return "WAITING" if self.state == "QUEUED" and not self.is_ready else self.state


class Model:
    def __init__(self, capacity: dict[str, int], cancel_modes: dict[str, str]) -> None:
        self.capacity = capacity
        self.cancel_modes = cancel_modes
        self.queues: dict[str, list[Job]] = {office: [] for office in cancel_modes}
        self.running: list[Job] = []
        self.chains: dict[str, list[Job]] = {}
        self.groups: list[Group] = []
        self.paused: set[str] = set()
        # Offices, the one that was served longest ago first.
        self.turns = list(cancel_modes)
        self.is_up = True
        self.is_held = False
        self.now = 0

    @property
    def jobs(self) -> list[Job]:
        return [job for chain in self.chains.values() for job in chain]

    # 3: the queue and its order.

    def submit(self, new: Sequence[Job]) -> None:
        """Submits many jobs at once, as a group or not."""
        for job in new:
            self.chains[job.root] = [job]
            job.waits_for = {root for root in job.waits_for if not self._has_succeeded(root)}
            self._enqueue(job)
        if new[0].group is not None:
            self.groups.append(new[0].group)
            new[0].group.roots = [job.root for job in new]
            for job in new[1:]:
                job.has_turn = new[0].group.mode == "parallel"
        doomed = [job for job in new if job.is_cancelled_with_prerequisite and any(map(self._is_dead, job.waits_for))]
        for job in doomed:
            self._end(job, "CANCELLED")
        self._conclude(doomed)
        self.claim()

    def _enqueue(self, job: Job) -> None:
        """Puts a job at the back of its priority."""
        queue = self.queues[job.office]
        behind = [place for place, other in enumerate(queue) if other.priority < job.priority]
        queue.insert(behind[0] if behind else len(queue), job)

    def move(self, job: Job, place: int) -> None:
        """Moves a job to a place among the others. It takes the priority of the job before which it is put, or of the
        last one.
        """
        queue = self.queues[job.office]
        queue.remove(job)
        if queue:
            job.priority = queue[min(place, len(queue) - 1)].priority
        queue.insert(place, job)
        self.claim()

    def move_before(self, job: Job, other: Job) -> None:
        self.move(job, [one for one in self.queues[job.office] if one is not job].index(other))

    def move_after(self, job: Job, other: Job) -> None:
        queue = self.queues[job.office]
        queue.remove(job)
        job.priority = other.priority
        queue.insert(queue.index(other) + 1, job)
        self.claim()

    def reorder(self, jobs: Sequence[Job]) -> None:
        """Puts the jobs, in this order, into the places that they have now, with the priorities of these places."""
        queue = self.queues[jobs[0].office]
        places = sorted(queue.index(job) for job in jobs)
        priorities = [queue[place].priority for place in places]
        for job, place, priority in zip(jobs, places, priorities, strict=True):
            queue[place] = job
            job.priority = priority
        self.claim()

    def change_priority(self, job: Job, priority: int) -> None:
        if priority != job.priority:
            self.queues[job.office].remove(job)
            job.priority = priority
            self._enqueue(job)
        self.claim()

    def reschedule(self, job: Job, due: int | None) -> None:
        job.due = due
        self.claim()

    # 4: limits and dispatch.

    def claim(self) -> None:
        """Starts what may start: the office that was served longest ago, and of its jobs the first that fits."""
        while self.is_up and not self.is_held and "scheduler" not in self.paused:
            fitting = {office: [job for job in queue if self._may_start(job)] for office, queue in self.queues.items()}
            office = next((office for office in self.turns if fitting[office]), None)
            if office is None:
                return
            self._start(fitting[office][0])

    def _may_start(self, job: Job) -> bool:
        is_paused = not self.paused.isdisjoint({*job.needs, f"type:{job.type}"})
        return job.is_ready and not is_paused and all(self._room(key) >= units for key, units in job.needs.items())

    def _room(self, key: str) -> float:
        used = sum(job.needs.get(key, 0) for job in self.running)
        return self.capacity[key] - used if self.capacity[key] else float("inf")

    def _start(self, job: Job) -> None:
        self.queues[job.office].remove(job)
        self.turns.remove(job.office)
        self.turns.append(job.office)
        taken = {other.slot for other in self.running}
        job.slot = next(slot for slot in range(1, 100) if slot not in taken)
        job.state = "RUNNING"
        job.timeout_at = self.now + job.timeout * SECOND if job.timeout else None
        if job.group:
            job.group.is_started = True
        self.running.append(job)

    # 5, 6: ends, and retries.

    def succeed(self, job: Job, state: str) -> None:
        if job.told:
            self.fail(job, job.told)
            return
        self._end(job, state)
        self._conclude([job])
        self.claim()

    def fail(self, job: Job, kind: str) -> None:
        self._fail(job, job.told or kind)
        self.claim()

    def _fail(self, job: Job, kind: str) -> None:
        if kind == "cancelled":
            job.is_cancelled_by_request = True
            self._end(job, "CANCELLED", kind)
            self._conclude([job])
            return
        self._end(job, "FAILED", kind)
        counted = self._counted_links(self.chains[job.root])
        is_spent = job.retries == 0 or counted > job.retries or self._lone_crashes(self.chains[job.root]) > 1
        if job.cancel_mode or kind in NOT_RETRIED or is_spent:
            self._conclude([job])
        else:
            delay = 0 if kind in AT_ONCE else job.base_delay * (counted if job.is_linear else 2 ** (counted - 1))
            self._follow(job, job.priority, self.now + delay * SECOND if delay else None)

    def _lone_crashes(self, chain: list[Job]) -> int:
        row = itertools.takewhile(lambda job: job.kind == "crash", reversed(chain))
        return sum(job.was_alone for job in row)

    def _counted_links(self, chain: list[Job]) -> int:
        """Counts the retries that use up attempts: interruptions are free, up to four in a row."""
        counted = in_a_row = 0
        for job in chain:
            in_a_row = in_a_row + 1 if job.kind == "interrupted" else 0
            counted += not 1 <= in_a_row <= 4
        return counted

    def _follow(self, job: Job, priority: int, due: int | None) -> None:
        """Makes the next job of a chain: the same request, without the results of the old job."""
        follower = Job(
            job.root, job.office, priority, job.needs, job.type, job.retries, job.base_delay, job.is_linear,
            job.timeout, job.is_cancelled_with_prerequisite, job.ignores_signals, job.group, job.number + 1, due=due,
        )  # fmt: skip
        self.chains[job.root].append(follower)
        self._enqueue(follower)

    def retry_by_hand(self, root: str, priority: int | None) -> bool:
        """Retries by hand if that is allowed: the chain continues after a failure or a cancel; a waiting retry starts
        earlier.
        """
        last = self.chains[root][-1]
        if last.state == "QUEUED":
            last.due = None
            if priority is not None:
                self.change_priority(last, priority)
        elif last.state in ("FAILED", "CANCELLED"):
            self._follow(last, last.priority if priority is None else priority, None)
        else:
            return False
        self.claim()
        return True

    # 7: cancel.

    def cancel(self, jobs: Sequence[Job], interrupt: bool | None) -> None:
        """Cancels all jobs at once. Consequences follow when all of them are cancelled."""
        ended = []
        for job in jobs:
            if job.state == "QUEUED":
                job.is_cancelled_by_request = True
                self._end(job, "CANCELLED")
                ended.append(job)
                continue
            is_interrupt = self.cancel_modes[job.office] == "interrupt" if interrupt is None else interrupt
            if is_interrupt or job.cancel_mode is None:
                job.cancel_mode = "interrupt" if is_interrupt else "finish"
        self._conclude(ended)
        self.claim()
        self._tell([job for job in jobs if job.state == "RUNNING" and job.cancel_mode == "interrupt"], "cancelled")

    def _tell(self, jobs: Iterable[Job], kind: str) -> None:
        """Tells a run to stop. The first reason counts when it ends."""
        stopped = []
        for job in jobs:
            job.told = job.told or kind
            if not job.ignores_signals:
                stopped.append(job)
        for job in stopped:
            self._fail(job, job.told or kind)
        self.claim()

    # 8, 9: dependencies and groups.

    def _conclude(self, ended: Iterable[Job]) -> None:
        """Draws the consequences of ended chains for dependents and groups."""
        open_ = deque(ended)
        while open_:
            job = open_.popleft()
            for other in [other for queue in self.queues.values() for other in queue if job.root in other.waits_for]:
                if job.state in SUCCEEDED:
                    other.waits_for.discard(job.root)
                elif other.is_cancelled_with_prerequisite:
                    self._end(other, "CANCELLED")
                    open_.append(other)
            if job.group:
                open_.extend(self._go_on(job, job.group))

    def _go_on(self, job: Job, group: Group) -> list[Job]:
        """Gives the turn to the next member, if this one had it; or ends all members that have not started."""
        members = [self.chains[root][-1] for root in group.roots]
        if job.state in SUCCEEDED or group.on_failure == "continue":
            later = members[group.roots.index(job.root) + 1 :]
            if job.has_turn:
                for other in [other for other in later if other.state not in ENDED][:1]:
                    other.has_turn = True
            return []
        rest = [other for other in members if other.state == "QUEUED" and other.number == 1]
        for other in rest:
            self._end(other, "CANCELLED" if group.on_failure == "stop" else "SKIPPED")
        return rest

    def group_status(self, group: Group) -> str:
        members = [self.chains[root][-1] for root in group.roots]
        if not all(job.state in ENDED for job in members):
            return "RUNNING" if group.is_started else "QUEUED"
        if all(job.state in SUCCEEDED for job in members):
            return "COMPLETED"
        return "CANCELLED" if all(job.is_cancelled_by_request for job in members) else "PARTIAL"

    def _has_succeeded(self, root: str) -> bool:
        return any(job.state in SUCCEEDED for job in self.chains[root])

    def _is_dead(self, root: str) -> bool:
        return self.chains[root][-1].state in ("FAILED", "CANCELLED")

    def _end(self, job: Job, state: str, kind: str | None = None) -> None:
        (self.running if job.state == "RUNNING" else self.queues[job.office]).remove(job)
        job.state, job.kind, job.slot = state, kind, None

    # Time, and 15: recovery and shutdown.

    def advance(self, to: int) -> None:
        """Moves time through the stored instants, one after the other: first what is due at each, then timeouts."""
        while True:
            dues = [job.due for queue in self.queues.values() for job in queue if job.due is not None]
            timeouts = [job.timeout_at for job in self.running if job.timeout_at is not None and not job.told]
            instants = [at for at in dues + timeouts if at <= to]
            if not instants:
                self.now = to
                return
            self.now = min(instants)
            self._release_due()
            self.claim()
            overdue = [job for job in self.running if job.timeout_at is not None and job.timeout_at <= self.now]
            self._tell(overdue, "timeout")

    def _release_due(self) -> None:
        for job in [job for queue in self.queues.values() for job in queue]:
            if job.due is not None and job.due <= self.now:
                job.due = None

    def stop(self) -> None:
        """Stops the scheduler without a grace time: running work is told to stop, and stops."""
        self.is_up = False
        for job in list(self.running):
            self._fail(job, job.told or "interrupted")

    def crash(self) -> None:
        self.is_up = False

    def start(self) -> None:
        """Starts the scheduler: ends what the last life left running, one worker after the other, then dispatches."""
        is_alone = len(self.running) == 1
        for job in sorted(self.running, key=lambda job: job.slot or 0):
            job.was_alone = is_alone
            self._fail(job, "cancelled" if job.cancel_mode == "interrupt" else "crash")
        self._release_due()
        self.is_up = True
        self.claim()
