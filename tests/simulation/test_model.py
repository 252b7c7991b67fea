"""The engine against the model: random lives on virtual time over a real file, compared after every single step.

`NEXTSLOT_EXAMPLES=5000` looks much longer, and elsewhere each time.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nextslot import (
    Fail,
    Instant,
    Limits,
    NewJob,
    RunContext,
    Scheduler,
    Skip,
    testing,
)
from nextslot import domain as stored
from nextslot.domain import RETRYABLE, OnDependencyFailure
from nextslot.engine.submit import queue_order
from nextslot.errors import Conflict
from nextslot.store.tables import jobs
from tests import databases
from tests.crash.laws import miscounts, stored_events, stored_jobs, untold
from tests.simulation.model import SECOND, Group, Job, Model

T = TypeVar("T")

EXAMPLES = int(os.environ.get("NEXTSLOT_EXAMPLES", "0"))
OFFICES = ("default", "a", "b")
CANCEL_MODES = {"default": "finish", "a": "interrupt", "b": "interrupt"}
CAPACITY = {
    "scheduler": 3,
    "office:default": 1,
    "office:a": 2,
    "office:b": 2,
    "role:a/FE": 1,
    "role:b/FE": 1,
    "role:default/FE": 0,
    "resource:gpu": 1,
    "resource:disk": 2,
}


class Request(NamedTuple):
    """What a caller asks for, in the words of the model."""

    office: str = "default"
    type: str = "work"
    priority: int = 0
    role: str | None = None
    resources: tuple[tuple[str, int], ...] = ()
    delay: int | None = None
    prerequisites: tuple[int, ...] = ()
    is_cancelled_with_prerequisite: bool = False
    timeout: int | None = None
    ignores_signals: bool = False
    retries: int = 1
    base_delay: int = 10
    is_linear: bool = False

    def as_new_job(self, depends_on: list[str], due: int | None) -> NewJob:
        return NewJob(
            job_type=self.type,
            params={"ignores_signals": self.ignores_signals},
            office_id=self.office,
            priority=self.priority,
            role=self.role,
            resources=dict(self.resources),
            scheduled_for=None if due is None else Instant(due),
            depends_on=depends_on,
            on_dependency_failure=OnDependencyFailure("cancel" if self.is_cancelled_with_prerequisite else "wait"),
            timeout_seconds=self.timeout,
            retry_policy={
                "max_attempts": self.retries,
                "base_delay_seconds": self.base_delay,
                "backoff": "linear" if self.is_linear else "exponential",
                "retry_on": sorted(RETRYABLE),
            },
        )

    def as_job(self, waits_for: set[str], due: int | None, group: Group | None) -> Job:
        return Job(
            root="",
            office=self.office,
            priority=self.priority,
            needs=self.needs,
            type=self.type,
            retries=self.retries,
            base_delay=self.base_delay,
            is_linear=self.is_linear,
            timeout=self.timeout,
            is_cancelled_with_prerequisite=self.is_cancelled_with_prerequisite,
            ignores_signals=self.ignores_signals,
            group=group,
            waits_for=waits_for,
            due=due,
        )

    @property
    def needs(self) -> dict[str, int]:
        """Returns every limit that applies to a job (spec 4)."""
        needs = {"scheduler": 1, f"office:{self.office}": 1}
        needs |= {f"role:{self.office}/{self.role}": 1} if self.role else {}
        needs |= {"resource:gpu": 1} if self.type == "render" else {}
        return needs | {f"resource:{name}": units for name, units in self.resources}


offices = st.sampled_from(OFFICES)
priorities = st.sampled_from((0, 0, 0, 5, -1, 1_000_000))
numbers = st.integers(0, 1000)
ways = st.sampled_from(("front", "back", "place", "before", "after"))
requests = st.builds(
    Request,
    office=offices,
    type=st.sampled_from(("work", "work", "work", "render")),
    priority=st.sampled_from((0, 0, 0, 5, -1)),
    role=st.sampled_from((None, None, None, "FE")),
    resources=st.sampled_from(((), (), (), (("gpu", 1),), (("disk", 1),), (("disk", 2),), (("gpu", 1), ("disk", 1)))),
    delay=st.sampled_from((None, None, None, 5, 60)),
    prerequisites=st.sampled_from(((), (), ())) | st.lists(numbers, min_size=1, max_size=2).map(tuple),
    is_cancelled_with_prerequisite=st.booleans(),
    timeout=st.sampled_from((None, None, 30)),
    ignores_signals=st.booleans(),
    retries=st.integers(0, 2),
    base_delay=st.sampled_from((5, 60)),
    is_linear=st.booleans(),
)


ends = st.tuples(
    numbers,
    st.sampled_from(("done", "done", "done", "skip", "fail", "fail")),
    st.sampled_from(("error", "error", "timeout", "git_conflict")),
)
steps_together = st.one_of(
    st.tuples(st.just("submit"), requests),
    st.tuples(st.just("move"), numbers, ways, numbers),
    st.tuples(st.just("change_priority"), numbers, priorities),
    st.tuples(st.just("reschedule"), numbers, st.sampled_from((None, 5))),
)


class Engine(RuleBasedStateMachine):
    """Each rule does one thing to the engine and to the model; then everything that both know is compared."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="nextslot-model-"))
        self.loop = testing.VirtualLoop()
        self.model = Model(dict(CAPACITY), CANCEL_MODES)
        self.work: dict[str, asyncio.Future[tuple[str, str]]] = {}
        self.is_ending = False
        self.together: list[tuple[Coroutine[Any, Any, Any], Callable[[Any], object]]] | None = None
        self.ids: dict[tuple[str, int], str] = {}
        self.groups: list[str] = []
        self.chance = testing.SeededChance()
        self.scheduler = self.new_scheduler()
        self.do(self.scheduler.start())
        for office in ("a", "b"):
            limit = CAPACITY[f"office:{office}"]
            self.do(self.scheduler.offices.create(office, max_concurrent_jobs=limit, timeout_seconds=10**7))
        self.file = databases.plain(self.directory)

    def new_scheduler(self) -> Scheduler:
        scheduler = testing.scheduler(
            self.directory,
            url=databases.url(self.directory),
            chance=self.chance,
            limits=Limits(running=CAPACITY["scheduler"], resources={"disk": 2}),
            synchronous="NORMAL",
            # The model does not know that a starving job keeps units back for itself.
            starvation_after_seconds=1e9,
        )
        scheduler.job_type("work")(self.handle)
        scheduler.job_type("render", resources=["gpu"])(self.handle)
        return scheduler

    async def handle(self, run: RunContext, ignores_signals: bool) -> None:
        """A handler that works until the state machine says how it ends."""
        verdict = self.work[run.job_id] = self.loop.create_future()
        while not verdict.done():
            try:
                await asyncio.wait([verdict])
            except asyncio.CancelledError:
                if not (ignores_signals and run.is_stopped) or self.is_ending:
                    raise
        how, kind = verdict.result()
        if how == "fail":
            raise Fail("as it was told", kind)
        if how == "skip":
            raise Skip("as it was told")

    # Both at once.

    def do(self, step: Coroutine[Any, Any, T]) -> T:
        """Lets the engine do it, and then everything that follows from it now."""
        self.model.now = self.now

        async def settle() -> T:
            done = await step
            await testing.settled()
            return done

        return self.loop.run_until_complete(settle())

    def both(self, step: Coroutine[Any, Any, T], effect: Callable[[T], object]) -> None:
        """Applies a step to the engine and then to the model; or later, where several steps share a transaction."""
        if self.together is None:
            effect(self.do(step))
        else:
            self.together.append((step, effect))

    @property
    def now(self) -> int:
        return testing.BEGINNING.after(self.loop.time())

    def queued(self, number: int) -> Job | None:
        """Returns a job that has not started."""
        return pick([job for line in self.model.queues.values() for job in line], number)

    # Jobs in.

    @initialize(load=st.lists(requests, min_size=6, max_size=12))
    def begin(self, load: list[Request]) -> None:
        self.serve_each_office()
        self.do_together([("submit", request) for request in load])

    def serve_each_office(self) -> None:
        """Serves each office once, so that it is always clear which one was served longest ago."""
        for office in OFFICES:
            self.submit(Request(office))
            self.agree()
            self.end([(0, "done", "")])

    @rule(request=requests)
    def submit(self, request: Request) -> None:
        new, made = self.translated(request, None)

        def submitted(job: stored.Job) -> None:
            made.root = job.job_id
            self.model.submit([made])

        said = {field.name: getattr(new, field.name) for field in fields(NewJob)}
        self.both(self.scheduler.submit(**said), submitted)

    @rule(
        wanted=st.lists(requests, min_size=2, max_size=4),
        mode=st.sampled_from(("sequential", "parallel")),
        on_failure=st.sampled_from(("stop", "continue", "skip")),
    )
    def submit_group(self, wanted: list[Request], mode: str, on_failure: str) -> None:
        group = Group(mode, on_failure)
        both = [self.translated(request._replace(office=wanted[0].office), group) for request in wanted]
        stored_group, members = self.do(self.scheduler.submit_group([new for new, _ in both], mode, on_failure))
        for (_, made), job in zip(both, members, strict=True):
            made.root = job.job_id
        self.groups.append(stored_group.group_id)
        self.model.submit([made for _, made in both])

    def translated(self, request: Request, group: Group | None) -> tuple[NewJob, Job]:
        """Translates a request for the engine and for the model."""
        here = [job for job in self.model.jobs if job.office == request.office]
        others = [here[number % len(here)] for number in request.prerequisites if here]
        due = self.now + request.delay * SECOND if request.delay else None
        new = request.as_new_job([self.ids[job.name] for job in others], due)
        return new, request.as_job({job.root for job in others}, due, group)

    # Ends.

    @precondition(lambda self: self.model.running)
    @rule(ends=st.lists(ends, min_size=1, max_size=3))
    def end(self, ends: list[tuple[int, str, str]]) -> None:
        """Ends work. Work that ends at the same time ends in one transaction, and only then is the next claimed."""
        model = self.model
        chosen = {model.running[number % len(model.running)]: (how, kind) for number, how, kind in ends}
        self.do(self.say({self.ids[job.name]: verdict for job, verdict in chosen.items()}))
        model.is_held = True
        for job, (how, kind) in chosen.items():
            if how == "fail":
                model.fail(job, kind)
            else:
                model.succeed(job, "COMPLETED" if how == "done" else "SKIPPED")
        model.is_held = False
        model.claim()

    async def say(self, verdicts: dict[str, tuple[str, str]]) -> None:
        for job_id, verdict in verdicts.items():
            self.work.pop(job_id).set_result(verdict)

    @rule(number=numbers, interrupt=st.sampled_from((None, None, True, False)))
    def cancel(self, number: int, interrupt: bool | None) -> None:
        live = [job for job in self.model.jobs if job.state in ("QUEUED", "RUNNING")]
        job = pick(live if number % 5 else self.model.jobs, number // 5)
        if job is None:
            return
        if job in live:
            self.do(self.scheduler.cancel(self.ids[job.name], interrupt=interrupt))
            self.model.cancel([job], interrupt)
        else:
            self.refused(self.scheduler.cancel(self.ids[job.name], interrupt=interrupt))

    @precondition(lambda self: self.groups)
    @rule(number=numbers, member=st.none() | numbers, interrupt=st.sampled_from((None, True, False)))
    def cancel_group(self, number: int, member: int | None, interrupt: bool | None) -> None:
        """Cancels all of a group, or one member."""
        place = number % len(self.groups)
        members = [self.model.chains[root][-1] for root in self.model.groups[place].roots]
        live = [job for job in members if job.state in ("QUEUED", "RUNNING")]
        one = pick(live, member) if member is not None else None
        if one is not None:
            self.do(self.scheduler.cancel(self.ids[one.name], interrupt=interrupt))
            self.model.cancel([one], interrupt)
        else:
            self.do(self.scheduler.cancel_group(self.groups[place], interrupt=interrupt))
            self.model.cancel(live, interrupt)

    @precondition(lambda self: any(job.state == "FAILED" for job in self.model.jobs))
    @rule(number=numbers, priority=st.none() | priorities)
    def retry_by_hand(self, number: int, priority: int | None) -> None:
        failed = pick([job for job in self.model.jobs if job.state == "FAILED"], number)
        assert failed is not None
        run = self.do(self.scheduler.run_of(self.ids[failed.name]))
        assert run is not None
        self.model.now = self.now
        if self.model.retry_by_hand(failed.root, priority):
            self.do(self.scheduler.retry(run.run_id, priority))
        else:
            self.refused(self.scheduler.retry(run.run_id, priority))

    def refused(self, step: Coroutine[Any, Any, Any]) -> None:
        with pytest.raises(Conflict):
            self.do(step)

    # Order.

    @rule(number=numbers, to=ways, place=numbers)
    def move(self, number: int, to: str, place: int) -> None:
        job = self.queued(number)
        if job is None:
            return
        model, job_id, move = self.model, self.ids[job.name], self.scheduler.move
        line = model.queues[job.office]
        if to == "front":
            self.both(move(job_id, to="front"), lambda _: model.move(job, 0))
        elif to == "back":
            self.both(move(job_id, to="back"), lambda _: model.move(job, len(line)))
        elif to == "place":
            place %= len(line) + 1
            self.both(move(job_id, place=1 + place), lambda _: model.move(job, place))
        elif other := pick([other for other in line if other is not job], place):
            beside = self.ids[other.name]
            if to == "before":
                self.both(move(job_id, before=beside), lambda _: model.move_before(job, other))
            else:
                self.both(move(job_id, after=beside), lambda _: model.move_after(job, other))

    @rule(office=offices, order=st.randoms(use_true_random=False))
    def reorder(self, office: str, order: Any) -> None:
        chosen = list(self.model.queues[office])
        order.shuffle(chosen)
        chosen = chosen[:3]
        if chosen:
            self.do(self.scheduler.reorder([self.ids[job.name] for job in chosen]))
            self.model.reorder(chosen)

    @rule(number=numbers, priority=priorities)
    def change_priority(self, number: int, priority: int) -> None:
        job = self.queued(number)
        if job is not None:
            step = self.scheduler.change(self.ids[job.name], priority=priority)
            self.both(step, lambda _: self.model.change_priority(job, priority))

    @rule(number=numbers, delay=st.sampled_from((None, 5, 60)))
    def reschedule(self, number: int, delay: int | None) -> None:
        job = self.queued(number)
        if job is not None:
            due = self.now + delay * SECOND if delay else None
            scheduled_for = None if due is None else Instant(due)
            step = self.scheduler.change(self.ids[job.name], scheduled_for=scheduled_for)
            self.both(step, lambda _: self.model.reschedule(job, due))

    @rule(steps=st.lists(steps_together, min_size=2, max_size=5))
    def do_together(self, steps: list[tuple[Any, ...]]) -> None:
        """Calls that come at once share a transaction: each sees what was done before it, nothing starts between."""
        self.together = []
        for name, *values in steps:
            getattr(self, name)(*values)
        both, self.together = self.together, None
        done = self.do(all_of([step for step, _ in both]))
        self.model.is_held = True
        for (_, effect), result in zip(both, done, strict=True):
            effect(result)
        self.model.is_held = False
        self.model.claim()

    # Limits, pauses, time, and lives.

    @rule(office=offices, limit=st.integers(0, 3))
    def change_limit(self, office: str, limit: int) -> None:
        self.do(self.scheduler.offices.change(office, max_concurrent_jobs=limit))
        self.model.capacity[f"office:{office}"] = limit
        self.model.claim()

    @rule(
        what=st.sampled_from(("scheduler", "office:default", "office:a", "office:b", "type:work", "resource:gpu")),
        is_pause=st.booleans(),
    )
    def pause_or_resume(self, what: str, is_pause: bool) -> None:
        scope, _, name = what.partition(":")
        said = {"office": "office_id", "type": "job_type", "resource": "resource"}
        options = {said[scope]: name} if name else {}
        self.do(self.scheduler.pause(**options) if is_pause else self.scheduler.resume(**options))
        (self.model.paused.add if is_pause else self.model.paused.discard)(what)
        self.model.claim()

    @rule(seconds=st.sampled_from((1, 6, 31, 61, 4000)))
    def let_time_pass(self, seconds: int) -> None:
        self.do(asyncio.sleep(seconds))
        self.model.advance(self.now)

    @rule(is_crash=st.booleans(), is_new=st.booleans(), seconds=st.sampled_from((0, 0, 7, 4000)))
    def start_again(self, is_crash: bool, is_new: bool, seconds: int) -> None:
        """Starts again after a crash or a stop, and a while; with the same object or another one, as in the same
        process or the next.
        """
        if is_crash:
            self.crash()
        else:
            self.stop()
        self.do(asyncio.sleep(seconds))
        self.scheduler = self.new_scheduler() if is_new else self.scheduler
        self.do(self.scheduler.start())
        self.model.start()

    def crash(self) -> None:
        self.is_ending = True
        self.do(testing.crash(self.scheduler))
        self.model.crash()
        self.is_ending = False

    def stop(self) -> None:
        """Stops the scheduler. Work that ignores its signal ends first, because it would delay the stop."""
        told = [(number, "done", "") for number, job in enumerate(self.model.running) if job.told]
        if told:
            self.end(told)
        self.is_ending = True
        assert self.do(self.scheduler.stop(grace_seconds=0))
        self.model.stop()
        self.is_ending = False

    # What both say.

    @invariant()
    def agree(self) -> None:
        self.model.advance(self.now)
        found = self.found()
        self.ids = {name: job.job_id for name, job in found.items()}
        kinds = {job.job_id: job.failure_kind for job in stored_jobs(self.file).values()}
        shown = {name: (*as_stored(job), kinds[job.job_id]) for name, job in found.items()}
        assert shown == {job.name: as_expected(job) for job in self.model.jobs}
        names = {job_id: name for name, job_id in self.ids.items()}
        for office in OFFICES:
            line = self.read(self.scheduler.queue(office))
            assert [names[job.job_id] for job in line] == [job.name for job in self.model.queues[office]]
        stored_groups = [self.read(self.scheduler.group(group_id)) for group_id in self.groups]
        assert [group.status for group in stored_groups] == list(map(self.model.group_status, self.model.groups))
        assert list(miscounts(self.file)) == []

    def found(self) -> dict[tuple[str, int], stored.Job]:
        """Returns every job of the engine, by its chain's first job and its number in the chain."""
        ids = [job_id for (job_id,) in self.file.execute("select job_id from jobs")]
        every = self.read(self.scheduler._access.read(lambda tx: jobs.get_many(tx, ids)))
        followers = {job.retry_of: job for job in every.values() if job.retry_of}
        found = {}
        for job in every.values():
            if job.retry_of is None:
                link: stored.Job | None = job
                number = 1
                while link is not None:
                    found[job.job_id, number] = link
                    link, number = followers.get(link.job_id), number + 1
        assert len(found) == len(every)
        return found

    def read(self, step: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(step)

    def teardown(self) -> None:
        try:
            assert list(untold(stored_jobs(self.file), stored_events(self.file))) == []
        finally:
            self.is_ending = True
            self.loop.run_until_complete(testing.crash(self.scheduler))
            self.file.close()
            self.loop.close()
            shutil.rmtree(self.directory)


PROFILE = settings(
    max_examples=EXAMPLES or 120,
    stateful_step_count=40,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


# Measuring coverage would make it three times as long, and other tests cover the same lines.
@pytest.mark.no_cover
def test_the_engine_does_at_every_step_what_the_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_order, "GAP", 2)  # So that neighbours often have to make room.
    # A step takes ten times as long on PostgreSQL, where the SQL is to be seen at work and not the engine once more.
    few = settings(PROFILE, max_examples=EXAMPLES or 20)

    run_state_machine_as_test(Engine, settings=PROFILE if databases.kind() == "sqlite" else few)


GROUP = [Request("a")] * 3
STUBBORN = Request("a", timeout=30, ignores_signals=True)
DEPENDENT = Request(prerequisites=(1,), is_cancelled_with_prerequisite=True)
# Rare, and found wrong once, in the engine or in a version of it that was broken on purpose.
LIVES: dict[str, list[tuple[Any, ...]]] = {
    "an office whose job started as it came was served": [
        *[("submit", Request(office)) for office in ("b", "a", "default", "a", "b")],
        ("end", [(2, "done", "")]),
    ],
    "of two offices that are served at once the first is served again first": [
        *[("submit", Request("a")), ("end", [(0, "done", "")]), ("pause_or_resume", "scheduler", True)],
        *[("submit", Request(office)) for office in ("a", "a", "b", "b")],
        ("pause_or_resume", "scheduler", False),
    ],
    "a new job goes behind those that had to make room in the same transaction": [
        ("pause_or_resume", "scheduler", True),
        ("do_together", [("submit", Request())] * 6),
        ("do_together", [("submit", Request()), *[("move", n, "after", 4) for n in range(4)], ("submit", Request())]),
    ],
    "a member that is cancelled before its turn has none to pass on": [
        *[("submit_group", GROUP, "sequential", "continue"), ("cancel_group", 0, 1, None)],
        *[("end", [(0, "done", "")]), ("end", [(0, "done", "")])],
    ],
    "what work was told first is what it ends of": [
        *[("submit", STUBBORN), ("let_time_pass", 31), ("cancel", 1, True), ("end", [(0, "done", "")])],
    ],
    "a chain that was opened again is not dead": [
        *[("submit", Request(retries=0)), ("end", [(0, "fail", "error")]), ("retry_by_hand", 0, None)],
        *[("submit", DEPENDENT), ("end", [(0, "done", "")]), ("end", [(0, "done", "")])],
    ],
}


@pytest.mark.parametrize("life", LIVES)
def test_a_life_that_went_wrong_once_goes_as_the_model_says(life: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_order, "GAP", 2)
    engine = Engine()
    engine.serve_each_office()

    for name, *values in LIVES[life]:
        getattr(engine, name)(*values)
        engine.agree()

    engine.teardown()


async def all_of(steps: list[Coroutine[Any, Any, Any]]) -> list[Any]:
    return await asyncio.gather(*steps)


def as_stored(job: stored.Job) -> tuple[object, ...]:
    worker = job.worker_id if job.is_running else None
    return job.status.value, job.priority, worker, None if job.is_due else job.scheduled_for


def as_expected(job: Job) -> tuple[object, ...]:
    worker = f"local/slot-{job.slot}" if job.state == "RUNNING" else None
    return job.shown_state, job.priority, worker, job.due, job.kind


def pick(jobs_: Sequence[Job], number: int) -> Job | None:
    return jobs_[number % len(jobs_)] if jobs_ else None
