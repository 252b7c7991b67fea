"""Clients of a simulated scheduler: each method makes one request, chosen by a random source.

The clients remember what was acknowledged: after a crash, the restarted scheduler must still know it.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, ClassVar

from nextslot.domain import Actor, Group, Job, NewJob, OnDependencyFailure
from nextslot.domain.filters import JobFilter, RunFilter
from nextslot.domain.limits import Limits
from nextslot.domain.request_context import RequestContext
from nextslot.engine.retention import Keep
from nextslot.errors import Conflict, Forbidden, NextslotError, NotFound, Refused, Unavailable
from nextslot.scheduler import Scheduler
from nextslot.services.lists import _status as lists_status
from nextslot.services.runtime_settings import ReloadableSettings
from nextslot.store.contract import Tx
from nextslot.system.instant import Instant

from . import check_reads, explanations, settings_oracle
from .acknowledged import Acknowledged, Orders, misplaced
from .followers import Followers
from .surroundings import ENDPOINTS, OFFICES, STALL_SECONDS, TYPES, Endpoints

DOINGS = (
    "ok",
    "ok",
    "ok",
    "ok",
    "fail",
    "fail",
    "skip",
    "hang",
    "stubborn",
    "report",
    "silent",
    "unavailable",
    "permission",
    "session_error",
)
# Valid requests, which are mixed with invalid ones, and the error codes that a valid request can never get.
VALID_REQUESTS = ("submit", "submit", "batch", "graph", "group")
REFUSALS = frozenset({"invalid", "conflict", "not_found", "unknown_job_type", "dependency_cycle", "store"})
# Idempotency keys are valid for 24 hours, by a clock that is sometimes changed by up to an hour.
ASKED = (
    "office_id",
    "job_type",
    "params",
    "timeout_seconds",
    "stall_timeout_seconds",
    "scheduled_for",
    "expires_at",
    "role",
    "webhook",
    "unique_key",
    "on_dependency_failure",
)
KEY_LIFETIME = 20 * 3600 * 1_000_000
# Errors that a valid request can get at any time, because the store or the scheduler does not work now.
ANY_TIME = frozenset({"unavailable", "draining", "commit_unknown", "disk_low", "store"})
# Errors that a valid request can get because another client was faster.
OVERTAKEN = {
    "answer": {"conflict", "forbidden", "not_found"},
    "ask": {"already_dispatched", "already_finished", "not_found"},
    "cancel": {"already_finished"},
    "cancel_direct": {"conflict", "not_found"},
    "change": {"already_dispatched", "already_finished"},
    "change_schedule": {"not_found"},
    "delete_schedule": {"not_found"},
    "direct": {"slot_busy"},
    "hang_up": {"slot_busy"},
    "move": {"already_dispatched", "already_finished"},
    "park": {"conflict", "not_found"},
    "redeliver": {"conflict"},
    "reorder": {"already_dispatched"},
    "rerun": {"illegal_transition"},
    "retry": {"conflict"},
    "rotate": {"not_found"},
    "subscribe": {"not_found"},
    "trigger": {"not_found"},
    "unsubscribe": {"not_found"},
}
CRONS = ("*/5 * * * *", "*/15 * * * *", "*/20 * * * *", "*/30 * * * *")
ZONES = ("UTC", "UTC", "Asia/Kathmandu")


class Clients:
    # More limits that their scheduler has.
    limits: ClassVar[Mapping[str, Any]] = {}
    # The named devices of their scheduler's machine, by resource.
    devices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    # Whether their scheduler has a simulated engine (`placed_runs.py`).
    has_engine: ClassVar[bool] = False

    def __init__(self, now: Callable[[], Instant], endpoints: Endpoints) -> None:
        self._now = now
        self._endpoints = endpoints
        self.followers = Followers(lambda: self.has_purged)
        self.scheduler: Scheduler = None  # type: ignore[assignment]  # Set before each start.
        # The acknowledged jobs, groups and schedules, in the order of their answers.
        self.jobs: list[str] = []
        self.groups: list[str] = []
        self.schedules: list[str] = []
        # The templates of each office.
        self.templates: dict[str, list[str]] = {}
        self.deliveries: set[str] = set()
        # The office of each job, by its id; the URL of each subscription, and how often a new secret was requested.
        self.offices: dict[str, str] = {}
        self.subscriptions: dict[str, str] = {}
        self.rotations: Counter[str] = Counter()
        # Offices that are archived, or may be because the answer did not come.
        self.archived: set[str] = set()
        self.keys: dict[str, tuple[Instant, list[str]]] = {}
        # The limits that direct callers have named, by office and id.
        self.caller_keys: dict[tuple[str, str], list[str]] = {}
        self.pauses: set[tuple[str, str]] = set()
        # Pauses and resumes that may or may not be stored.
        self.uncertain: set[tuple[str, str]] = set()
        self.broken: list[str] = []
        self.connections: dict[asyncio.Task[Any], None] = {}
        self.acknowledged = Acknowledged()
        self.orders = Orders()
        # The number of the newest checked event.
        self.last_event: Callable[[], int] = lambda: 0
        # Called before the limits are changed, and again when the change is acknowledged.
        self.configured: Callable[[Limits, bool], None] = lambda limits, is_acknowledged: None
        # Called before a request that may change the time of a retry.
        self.forget_retries: Callable[[], None] = lambda: None
        # Whether retention has run, so that old rows may be gone.
        self.has_purged = False

    async def act(self, kind: str, chance: Random) -> str:
        """Makes a request. Returns its result in a few words."""
        action: Callable[[Random], Awaitable[str]] = getattr(self, f"_{kind}")
        try:
            return await action(chance)
        except Refused as error:
            self.broken.append(f"a rule of the database refused {kind}: {error}")
            raise
        except NextslotError as error:
            self._check_refusal(kind, error)
            return f"{error.code}"

    def _check_refusal(self, kind: str, error: NextslotError) -> None:
        """Notes a valid request that was refused without a reason."""
        allowed = ANY_TIME | OVERTAKEN.get(kind, set())
        if kind in ("invalid", "crowd") or error.code in allowed or (self.has_purged and error.code == "not_found"):
            return
        if self.has_purged and "there is no job or key" in str(error):
            return
        if not (self.archived and "is archived" in str(error)):
            self.broken.append(f"the right request {kind} was refused: {error.code}: {error}")

    # Submitting jobs.

    async def _submit(self, chance: Random) -> str:
        new = self._new(chance)
        job = await self.scheduler.submit(**vars_of(new))
        self._got([job], [new])
        return job.job_id[-12:]

    async def _dependent(self, chance: Random) -> str:
        """Submits a job that depends on an earlier one, which may have ended long ago."""
        if not self.offices:
            return "nothing"
        other = chance.choice(list(self.offices)[-30:])
        policy = chance.choice((None, OnDependencyFailure.WAIT, OnDependencyFailure.CANCEL))
        new = self._new(chance, self.offices[other], depends_on=[other], on_dependency_failure=policy)
        return self._got([await self.scheduler.submit(**vars_of(new))], [new])

    async def _batch(self, chance: Random) -> str:
        """Submits several jobs; sometimes many quick ones, whose messages go to the same endpoint."""
        if chance.random() < 0.3:
            quick, webhook = {"do": "ok", "seconds": 0.0}, {"url": chance.choice(ENDPOINTS)}
            new = NewJob(job_type="work", params=quick, office_id=chance.choice(OFFICES), webhook=webhook)
            return self._got(await self.scheduler.submit_many([new] * chance.randint(5, 9)))
        wanted = [self._new(chance) for _ in range(chance.randint(2, 6))]
        return self._got(await self.scheduler.submit_many(wanted), wanted)

    async def _graph(self, chance: Random) -> str:
        """Submits jobs that depend on earlier ones of the same request."""
        office, made = chance.choice(OFFICES), []
        for number in range(chance.randint(2, 5)):
            depends_on = [f"k{chance.randrange(number)}"] if number and chance.random() < 0.8 else []
            policy = chance.choice((None, OnDependencyFailure.WAIT, OnDependencyFailure.CANCEL))
            made.append(
                self._new(chance, office, key=f"k{number}", depends_on=depends_on, on_dependency_failure=policy)
            )
        return self._got(await self.scheduler.submit_many(made), made)

    async def _group(self, chance: Random) -> str:
        office = chance.choice(OFFICES)
        wanted = [self._new(chance, office) for _ in range(chance.randint(1, 4))]
        mode, on_failure = chance.choice(("sequential", "parallel")), chance.choice(("stop", "continue", "skip"))
        group, jobs = await self.scheduler.submit_group(wanted, mode, on_failure)
        self.groups.append(group.group_id)
        return f"{mode} {on_failure} {self._got(jobs, wanted)}"

    async def _same_key(self, chance: Random) -> str:
        """Repeats a request with the same idempotency key: the second must return the jobs of the first."""
        key = f"key-{chance.randrange(4)}"
        wanted = [NewJob(job_type="work", params={"do": "ok"}, office_id="a")] * 2
        ids = [job.job_id for job in await self.scheduler.submit_many(wanted, key)]
        since, known = self.keys.get(key, (self._now(), ids))
        if known != ids and abs(self._now() - since) < KEY_LIFETIME:
            self.broken.append(f"the key {key} created {ids} after {known}")
        self.keys[key] = (since, known) if known == ids else (self._now(), ids)
        self.jobs += [job_id for job_id in ids if job_id not in self.jobs]
        return key

    async def _unique(self, chance: Random) -> str:
        job = await self.scheduler.submit(**vars_of(self._new(chance, "b", unique_key=f"u{chance.randrange(2)}")))
        if job.job_id not in self.jobs:
            self.jobs.append(job.job_id)
        return job.job_id[-12:]

    # Signals.

    async def _ask(self, chance: Random) -> str:
        """Submits jobs that wait for somebody: alone, after another job, in a group."""
        office, wait = chance.choice(OFFICES), self._wait_of(chance, "go")
        kind = chance.random()
        if kind < 0.25 and self.offices:
            other = chance.choice(list(self.offices)[-30:])
            new = self._new(chance, self.offices[other], depends_on=[other], await_signal=wait)
            return self._got([await self.scheduler.submit(**vars_of(new))], [new])
        if kind < 0.5:
            wanted = [self._new(chance, office, await_signal=wait if number else None) for number in range(3)]
            group, jobs = await self.scheduler.submit_group(wanted, chance.choice(("sequential", "parallel")), "skip")
            self.groups.append(group.group_id)
            return self._got(jobs, wanted)
        new = self._new(chance, office, await_signal=wait)
        job = await self.scheduler.submit(**vars_of(new))
        said = self._got([job], [new])
        if kind > 0.8:  # It asks now, if nothing else holds it back.
            await self.scheduler.change(job.job_id, scheduled_for=self._now().after(chance.choice((-1.0, 60.0))))
        return said

    def _wait_of(self, chance: Random, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "deadline_seconds": chance.choice((None, 5.0, 60.0, 900.0)),
            "on_deadline": chance.choice(("approve", "reject", "fail")),
            "answered_by": chance.choice(([], [], ["ada"])),
        }

    async def _session(self, chance: Random) -> str:
        """Submits a session that asks one to three questions in the middle of its work."""
        params = {
            "do": chance.choice(("ok", "early", "fail", "quota")),
            "seconds": chance.choice((0.0, 1.0, 20.0)),
            "asks": chance.randint(1, 3),
        }
        policy = {"max_attempts": chance.choice((0, 3)), "base_delay_seconds": 1}
        new = NewJob(job_type="session", params=params, office_id=chance.choice(OFFICES), retry_policy=policy)
        return self._got([await self.scheduler.submit(**vars_of(new))])

    async def _park(self, chance: Random) -> str:
        """Parks what runs, as a program beside it would; often it is cancelled or answered at the same instant."""
        running = await self.scheduler.running(chance.choice(OFFICES))
        if not running:
            return "nothing"
        job = chance.choice(running)
        run = await self.scheduler.run_of(job.job_id)
        if run is None:
            return "nothing"
        park = self.scheduler.park(run.run_id, **self._wait_of(chance, chance.choice(("go", "on"))))
        kind = chance.random()
        if kind < 0.3:
            await asyncio.gather(self._cancel_once(job.job_id, chance.choice((True, False))), park)
        elif kind < 0.6:
            await asyncio.gather(self._send(chance, job.job_id, "go"), park)
        else:
            await park
            self.acknowledged.is_so(("job", job.job_id, "is_parked"), True)
        return job.job_id[-12:]

    async def _answer(self, chance: Random) -> str:
        """Answers a wait: once, twice, in two ways at once; or one that is not there, or not any more."""
        waiting = [job for office in OFFICES for job in await self.scheduler.queue(office) if job.awaiting is not None]
        if not waiting or chance.random() < 0.15:
            if not self.jobs:
                return "nothing"
            return await self._send(chance, chance.choice(self.jobs[-20:]), chance.choice(("go", "step 1")))
        job = chance.choice(waiting)
        assert job.awaiting is not None
        name = str(job.awaiting["name"])
        several = [self._send(chance, job.job_id, name) for _ in range(chance.choice((1, 1, 2, 3)))]
        if chance.random() < 0.2:
            several.append(self._cancel_once(job.job_id, None))
        answers = await asyncio.gather(*several, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not (
                isinstance(answer, NextslotError)
                and answer.code in ("already_finished", *ANY_TIME, *OVERTAKEN["answer"])
            ):
                raise answer
        return " ".join(answer if isinstance(answer, str) else type(answer).__name__ for answer in answers)

    async def _send(self, chance: Random, job_id: str, name: str) -> str:
        """Sends an answer, and often once more as after a lost connection: that must be the same one."""
        answer, payload = chance.choice(("approve", "approve", "reject")), chance.choice((None, 1))
        signal_id = f"signal-{chance.getrandbits(40)}" if chance.random() < 0.5 else None
        actor = Actor(name=chance.choice(("ada", "bob")), key_id=None, action="test", target="test")
        sender = self.scheduler.for_caller(RequestContext(actor=actor))
        try:
            sent = await sender.accept_signal(job_id, name, payload, answer, signal_id)
        except (Conflict, Forbidden):
            return "refused"
        signal = sent.signal
        if (signal.answer, signal.payload) != (answer, payload):
            self.broken.append(f"{job_id} was answered {answer} {payload}, and {signal} is stored")
        fact = ("signal", f"{signal.chain_id} {signal.name} {signal.number}", "answer")
        self.acknowledged.is_so(fact, str(signal.answer))
        if signal_id is not None and chance.random() < 0.5:
            await asyncio.sleep(chance.choice((0.0, 30.0)))
            again = await sender.accept_signal(job_id, name, payload, answer, signal_id)
            if again.is_new or (again.signal.number, again.signal.answer) != (signal.number, signal.answer):
                self.broken.append(f"the answer {signal_id} was sent twice, and counted twice: {again}")
        return str(signal.answer)

    def _new(self, chance: Random, office: str | None = None, **more: Any) -> NewJob:
        doing = chance.choice(DOINGS)
        params = {"do": doing, "seconds": chance.choice((0.0, 0.5, 1.0, 7.5, 90.0)), "times": chance.choice((1, 2, 9))}
        timeout = chance.choice((5.0, 60.0)) if doing == "hang" or chance.random() < 0.2 else None
        stall = STALL_SECONDS if doing in ("report", "silent") else None
        soon, urgent, now = chance.random(), chance.random(), self._now()
        policy = {
            "max_attempts": chance.choice((0, 1, 3)),
            "base_delay_seconds": chance.choice((0, 1, 10, 60)),
            "backoff": chance.choice(("exponential", "linear")),
        }
        resources = chance.choice((None, None, None, {"gpu": 1}, {"disk": 2}, {"disk": 1, "gpu": 1}))
        webhook = {"url": chance.choice(ENDPOINTS)} if chance.random() < 0.3 else None
        return NewJob(
            job_type=chance.choice(TYPES),
            params=params,
            office_id=office or chance.choice(OFFICES),
            priority=chance.choice((None, None, 0, 5, -1)) if urgent >= 0.05 else None,
            urgent=urgent < 0.05,
            scheduled_for=now.after(chance.uniform(0, 900)) if soon < 0.15 else None,
            expires_at=now.after(chance.uniform(900, 1800)) if 0.1 < soon < 0.2 else None,
            role=chance.choice((None, None, "FE", "QA")),
            resources=resources,
            timeout_seconds=timeout,
            stall_timeout_seconds=stall,
            retry_policy=policy if chance.random() < 0.7 else None,
            webhook=webhook,
            **more,
        )

    def _got(self, jobs: Sequence[Any], wanted: Sequence[NewJob] = ()) -> str:
        for job, new in zip(jobs, wanted, strict=False):
            other = [
                name for name in ASKED if getattr(new, name) is not None and getattr(job, name) != getattr(new, name)
            ]
            if other or (new.priority is not None and job.priority != new.priority):
                self.broken.append(f"{job.job_id} has another {other or 'priority'} than was asked for")
        self.jobs += [job.job_id for job in jobs]
        self.offices.update((job.job_id, job.office_id) for job in jobs)
        return f"{len(jobs)} jobs to {jobs[-1].job_id[-12:]}"

    # Requests that share a transaction, some of them invalid.

    async def _crowd(self, chance: Random) -> str:
        """Makes several requests at once. The refused ones must change nothing for the others."""
        invalid = chance.choice((0.2, 0.5, 0.7))
        count = chance.randint(3, 12)
        kinds = ["invalid" if chance.random() < invalid else chance.choice(VALID_REQUESTS) for _ in range(count)]
        was_archived = set(self.archived)
        requests = [self.act(kind, Random(chance.getrandbits(32))) for kind in kinds]
        answers = await asyncio.gather(*requests, return_exceptions=True)
        for kind, answer in zip(kinds, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            if kind != "invalid" and answer in REFUSALS and not (was_archived or self.archived):
                self.broken.append(f"the valid request {kind} got {answer} beside invalid ones")
        return " ".join(answer for answer in answers if isinstance(answer, str))

    async def _invalid(self, chance: Random) -> str:
        """Makes a request that must be refused, often after it has changed its transaction."""
        office, job = chance.choice(OFFICES), self._new(chance)
        waiting = (await self.scheduler.queue(office))[:1]
        kind = chance.choice(("cycle", "stranger", "nowhere", "untyped", "half", "group", "defect"))
        if kind == "cycle":
            wanted = [self._new(chance, office, key="a", depends_on=["b"])]
            await self.scheduler.submit_many([*wanted, self._new(chance, office, key="b", depends_on=["a"])])
        elif kind == "stranger":
            await self.scheduler.submit_many([job, self._new(chance, office, depends_on=["nobody"])])
        elif kind == "nowhere":
            await self.scheduler.submit_many([job, self._new(chance, "nowhere")])
        elif kind == "untyped":
            await self.scheduler.submit_many([job, NewJob(job_type="untyped")])
        elif kind == "defect":
            return await self._defect()
        elif kind == "half" and waiting:
            await self.scheduler.change(waiting[0].job_id, title="half done", priority=10**9)
        else:
            await self.scheduler.submit_group([self._new(chance, office, key="a", depends_on=["a"])])
        self.broken.append(f"{kind} was not refused")
        return kind

    async def _wrong(self, chance: Random) -> str:
        """Makes wrong requests of the other kinds. Each must be refused with the right code, whatever else is going
        on.
        """
        yes: Any = "yes"
        queue = await self._queue(chance)
        if not queue:
            return "nothing"
        scheduler, job_id, office_id = self.scheduler, queue[0].job_id, queue[0].office_id
        elsewhere = next(iter(await scheduler.queue(chance.choice([one for one in OFFICES if one != office_id]))), None)
        ended = (await scheduler.lists.runs(RunFilter(status=("COMPLETED",)), limit=1)).items
        key = f"wrong-{chance.getrandbits(40)}"
        await scheduler.submit_many([NewJob(job_type="work", params={"do": "ok"}, office_id=office_id)], key)
        other = NewJob(job_type="work", params={"do": "skip"}, office_id=office_id)
        wrong: dict[str, tuple[str, Callable[[], Awaitable[Any]]]] = {
            "two places": ("invalid", lambda: scheduler.move(job_id, to="front", place=1)),
            "no place": ("invalid", lambda: scheduler.move(job_id)),
            "a side": ("invalid", lambda: scheduler.move(job_id, to="left")),
            "place 0": ("invalid", lambda: scheduler.move(job_id, place=0)),
            "itself": ("invalid", lambda: scheduler.move(job_id, before=job_id)),
            "beside nobody": ("not_found", lambda: scheduler.move(job_id, after="nobody")),
            "nobody": ("not_found", lambda: scheduler.move("nobody", place=1)),
            "nothing": ("invalid", lambda: scheduler.reorder([])),
            "twice": ("invalid", lambda: scheduler.reorder([job_id, job_id])),
            "a stranger": ("not_found", lambda: scheduler.reorder([job_id, "nobody"])),
            "a priority": ("invalid", lambda: scheduler.change(job_id, priority=10**9)),
            "a title": ("invalid", lambda: scheduler.change(job_id, title="")),
            "a cancel": ("not_found", lambda: scheduler.cancel("nobody")),
            "a group": ("not_found", lambda: scheduler.cancel_group("nobody")),
            "a run": ("not_found", lambda: scheduler.retry("nobody")),
            "a run's priority": ("invalid", lambda: scheduler.retry("nobody", priority=10**9)),
            "an office": ("not_found", lambda: scheduler.pause(office_id="nowhere")),
            "a schedule": ("not_found", lambda: scheduler.schedules.trigger("nobody")),
            "a caller": ("not_found", lambda: scheduler.cancel_direct("nobody")),
            "a caller's id": ("invalid", lambda: scheduler.run_direct("work", direct_id="a b")),
            "our id": ("invalid", lambda: scheduler.run_direct("work", direct_id=job_id)),
            "a wait": ("invalid", lambda: scheduler.run_direct("work", wait_timeout_seconds=-1.0)),
            "detach": ("invalid", lambda: scheduler.run_direct("work", detach=yes)),
            "a used key": ("idempotency_mismatch", lambda: scheduler.submit_many([other], key)),
            "an empty key": ("invalid", lambda: scheduler.submit_many([other], "")),
        }
        if elsewhere is not None:
            wrong["another queue"] = ("not_found", lambda: scheduler.move(job_id, before=elsewhere.job_id))
            wrong["two queues"] = ("invalid", lambda: scheduler.reorder([job_id, elsewhere.job_id]))
        if ended:
            wrong["no failure"] = ("conflict", lambda: scheduler.retry(ended[0].run_id))
            wrong["an ended job"] = ("already_finished", lambda: scheduler.move(ended[0].job_id, place=1))
        for name, (code, ask) in sorted(wrong.items()):
            await self._expect(name, code, ask)
        return str(len(wrong))

    async def _expect(self, name: str, code: str, ask: Callable[[], Awaitable[Any]]) -> None:
        """Checks a refusal. The job that a wrong request names may have started, ended or been deleted meanwhile."""
        try:
            await ask()
        except Unavailable:
            raise
        except NextslotError as error:
            if error.code not in (code, "already_dispatched", "already_finished", "draining", "not_found"):
                self.broken.append(f"{name} was refused as {error.code}, and should be as {code}: {error}")
        else:
            self.broken.append(f"{name} was not refused")

    async def _defect(self) -> str:
        """Runs a work whose error the database finds only at the commit, when it cannot name the work any more."""
        with contextlib.suppress(Refused):
            await self.scheduler._access.write(lambda tx: tx.execute("maintenance.begin", reason="left on"))
            self.broken.append("a transaction that left the rules switched off was not refused")
        return "refused"

    async def _outage(self, chance: Random) -> str:
        """Submits enough jobs of a resource that does not answer for the resource to be held."""
        params = {"do": "unavailable", "seconds": 0.0, "times": 9}
        policy = {"max_attempts": chance.choice((0, 1)), "base_delay_seconds": 0}
        new = NewJob(job_type="render", params=params, office_id=chance.choice(OFFICES), retry_policy=policy)
        return self._got(await self.scheduler.submit_many([new] * 6))

    async def _quota(self, chance: Random) -> str:
        """Submits jobs of a resource whose provider says that its quota is used up, sometimes with the time of its
        renewal.
        """
        params = {"do": chance.choice(("quota", "quota_until")), "seconds": 0.0, "times": chance.randint(1, 3)}
        policy = {"max_attempts": chance.choice((0, 1, 3)), "retry_on": chance.choice((None, ("error",)))}
        new = NewJob(job_type="render", params=params, office_id=chance.choice(OFFICES), retry_policy=policy)
        return self._got(await self.scheduler.submit_many([new] * chance.randint(1, 4)))

    async def _release(self, chance: Random) -> str:
        """Ends a hold, as an operator would."""
        held = (await self.scheduler.lists.status()).held
        with contextlib.suppress(NotFound):  # The hold has ended meanwhile.
            for one in held:
                await self.scheduler.release(one.resource)
        return ", ".join(one.resource for one in held)

    # Changing jobs.

    async def _queue(self, chance: Random) -> list[Job]:
        """Returns the queue of an office, after adding some long jobs if it is short."""
        office = chance.choice(OFFICES)
        queue = await self.scheduler.queue(office)
        if len(queue) < 3:
            job_type = chance.choice(("work", "work", "heavy"))
            new = NewJob(job_type=job_type, params={"do": "ok", "seconds": 90.0}, office_id=office)
            self._got(await self.scheduler.submit_many([new] * chance.randint(4, 7)))
            queue = await self.scheduler.queue(office)
        return queue

    async def _move(self, chance: Random) -> str:
        queue = await self._queue(chance)
        if not queue:
            return "nothing"
        job, other = chance.choice(queue), chance.choice(queue)
        how: dict[str, Any] = chance.choice(
            (
                {"to": "front"},
                {"to": "back"},
                {"before": other.job_id},
                {"after": other.job_id},
                {"place": 1},
                {"place": 2},
                {"place": 3},
                {"place": 5},
            )
        )
        if job.job_id in how.values():
            return "nothing"
        since = self.last_event()
        await self.scheduler.move(job.job_id, **how)
        order = self.orders.after(job.job_id, since)
        if order is not None and (problem := misplaced(order, job.job_id, how)):
            self.broken.append(f"{job.job_id} was moved {how}: {problem}")
        return f"{job.job_id[-12:]} {next(iter(how))}"

    async def _reorder(self, chance: Random) -> str:
        queue = [job.job_id for job in await self._queue(chance)]
        chosen = chance.sample(queue, min(len(queue), chance.randint(2, 5)))
        if len(chosen) < 2:
            return "nothing"
        since = self.last_event()
        done = [job.job_id for job in await self.scheduler.reorder(chosen)]
        orders = [order for job_id in chosen if (order := self.orders.after(job_id, since, is_alone=False)) is not None]
        if done != chosen or any([job_id for job_id in order if job_id in chosen] != chosen for order in orders[:1]):
            self.broken.append(f"{chosen} were not put into this order")
        return str(len(chosen))

    async def _change(self, chance: Random) -> str:
        queue = await self._queue(chance)
        if not queue:
            return "nothing"
        changes: dict[str, Any] = chance.choice(
            (
                {"priority": chance.choice((0, 5, -1))},
                {"urgent": True},
                {"params": {"do": "ok", "seconds": 0.5}},
                {"params": {"do": "ok", "seconds": chance.choice((0.5, 30.0))}},
                {"scheduled_for": self._now().after(chance.uniform(-60, 600))},
                {"title": "another"},
            )
        )
        before, since = chance.choice(queue), self.last_event()
        if "scheduled_for" in changes:
            self.forget_retries()
        job = await self.scheduler.change(before.job_id, **changes)
        if any(getattr(job, name) != value for name, value in changes.items() if name != "urgent"):
            self.broken.append(f"{job.job_id} was changed to {changes}, and is {job}")
        order = self.orders.after(job.job_id, since) if "priority" in changes else None
        if order is not None:
            others = {
                one.job_id for one in await self.scheduler.queue(job.office_id) if one.order_priority == job.priority
            }
            behind = set(order[order.index(job.job_id) + 1 :] if job.job_id in order else ()) & others
            if behind:
                self.broken.append(f"{job.job_id} got another priority, and is not behind the others: {min(behind)}")
        return f"{job.job_id[-12:]} {next(iter(changes))}"

    async def _cancel(self, chance: Random) -> str:
        """Cancels a job, often a running one, and then often again in another way."""
        running = await self.scheduler.running(chance.choice(OFFICES)) if chance.random() < 0.5 else []
        known = [job.job_id for job in running] or self.jobs[-20:]
        if not known:
            return "nothing"
        job_id = chance.choice(known)
        interrupts = chance.choice(((None,), (True,), (False,), (False, True), (True, False), (False, None)))
        said = [await self._cancel_once(job_id, interrupt) for interrupt in interrupts]
        return f"{job_id[-12:]} {' '.join(said)}"

    async def _cancel_once(self, job_id: str, interrupt: bool | None) -> str:
        """Cancels a job. A second cancel may turn a `finish` into an `interrupt`, but never the other way (spec
        7.3).
        """
        fact = ("job", job_id, "cancel_mode")
        was_interrupted = self.acknowledged.known(fact) == "interrupt"
        with self.acknowledged.asking(fact) as acknowledge:
            done = await self.scheduler.cancel(job_id, interrupt=interrupt)
            if done.cancellation != "cancelled":
                acknowledge("interrupt" if done.cancellation == "stopping" else "finish")
        if done.cancellation == "finishing" and (interrupt or was_interrupted):
            self.broken.append(f"{job_id} was to be interrupted, and may finish")
        if done.cancellation == "cancelled":
            self.acknowledged.is_so(("job", job_id, "is_cancelled"), True)
        self.acknowledged.is_so(("job", job_id, "is_retried"), False)
        return str(done.cancellation)

    async def _cancel_group(self, chance: Random) -> str:
        if not self.groups:
            return "nothing"
        return str(len(await self.scheduler.cancel_group(chance.choice(self.groups[-3:]))))

    async def _cancel_many(self, chance: Random) -> str:
        """Cancels all jobs of an office. None of those that wait now may wait afterwards."""
        office_id = chance.choice(OFFICES)
        waiting = {job.job_id for job in await self.scheduler.queue(office_id)}
        wanted = JobFilter(office_id=(office_id,))
        done = await self.scheduler.bulk.cancel(wanted, include_running=chance.random() < 0.5)
        left = waiting & {job.job_id for job in await self.scheduler.queue(office_id)}
        if left:
            self.broken.append(f"{len(left)} jobs wait after all were cancelled: {min(left)}")
        return str(done.cancelled.count)

    async def _retry(self, chance: Random) -> str:
        failed = (await self.scheduler.lists.runs(RunFilter(status=("FAILED",)), limit=20)).items
        if not failed:
            return "nothing"
        self.forget_retries()
        job = await self.scheduler.retry(chance.choice(failed).run_id)
        self.forget_retries()
        return job.job_id[-12:]

    async def _retry_many(self, chance: Random) -> str:
        return str((await self.scheduler.bulk.retry(JobFilter(office_id=(chance.choice(OFFICES),)))).retried.count)

    async def _rerun(self, chance: Random) -> str:
        if not self.jobs:
            return "nothing"
        job = await self.scheduler.bulk.rerun(chance.choice(self.jobs[-20:]))
        self.jobs.append(job.job_id)
        return job.job_id[-12:]

    # Pauses and settings.

    async def _pause(self, chance: Random) -> str:
        scope, name = self._scope(chance)
        await self._set(scope, name, is_paused=True)
        return f"{scope} {name}"

    async def _resume(self, chance: Random) -> str:
        scope, name = chance.choice(sorted(self.pauses)) if self.pauses else self._scope(chance)
        await self._set(scope, name, is_paused=False)
        return f"{scope} {name}"

    def _scope(self, chance: Random) -> tuple[str, str]:
        office = ("office_id", chance.choice(OFFICES))
        return chance.choice((office, office, ("job_type", "render"), ("resource", "gpu"), ("scheduler", "")))

    async def _set(self, scope: str, name: str, is_paused: bool) -> None:
        call = self.scheduler.pause if is_paused else self.scheduler.resume
        self.uncertain.add((scope, name))
        await call(**({} if scope == "scheduler" else {scope: name}))
        if is_paused:
            self.pauses.add((scope, name))
        else:
            self.pauses.discard((scope, name))
        self.uncertain.discard((scope, name))

    async def _office(self, chance: Random) -> str:
        changes: dict[str, Any] = chance.choice(
            (
                {"max_concurrent_jobs": chance.choice((1, 2, 3, 0))},
                {"role_limits": {"FE": chance.choice((1, 2)), "QA": 1}},
                {"cancel_mode": chance.choice(("finish", "interrupt"))},
                {"webhook": {"url": chance.choice(ENDPOINTS)}},
                {"priority_aging_seconds": chance.choice((None, 1800.0, 7200.0))},
            )
        )
        office_id = chance.choice(OFFICES)
        ((name, value),) = changes.items()
        with self.acknowledged.asking(("office", office_id, name)) as acknowledge:
            changed = await self.scheduler.offices.change(office_id, **changes)
            if name != "cancel_mode":
                acknowledge(value)
        if getattr(changed, name) != value:
            self.broken.append(f"{office_id} was changed to {changes}, and is {changed}")
        return f"{office_id} {changes}"

    async def _reload(self, chance: Random) -> str:
        """Changes the limits of the configuration while the scheduler runs."""
        new = Limits(
            running=chance.choice((2, 5, 8)),
            job_types=chance.choice(({}, {"work": 3}, {"work": 1, "heavy": 2})),
            resources={"gpu": chance.choice((1, 2)), "disk": chance.choice((2, 3))},
        )
        now = self.scheduler._runtime.lanes.policy
        if isinstance(now, Limits):
            resources = {**now.resources, **new.resources}
            new = replace(now, running=new.running, job_types=new.job_types, resources=resources)
        self.configured(new, False)
        starvation = self.scheduler._runtime.dispatcher.starvation_after_seconds
        waiting = self.scheduler._runtime.direct.most_waiting
        settings = ReloadableSettings(
            limits=new,
            starvation_after_seconds=starvation,
            direct_waiting=waiting,
            webhooks=self.scheduler._runtime.webhooks.settings,
        )
        await self.scheduler.settings.apply(settings, {}, {})
        self.configured(new, True)
        return str(new)

    async def _archive(self, chance: Random) -> str:
        """Archives an office for a while."""
        office_id = chance.choice(OFFICES[1:])
        self.archived.add(office_id)
        with self.acknowledged.asking(("office", office_id, "status")) as acknowledge:
            await self.scheduler.offices.change(office_id, status="archived")
            acknowledge("archived")
        await asyncio.sleep(chance.choice((0.0, 5.0, 600.0)))
        self.uncertain.add(("office_id", office_id))
        with self.acknowledged.asking(("office", office_id, "status")) as acknowledge:
            await retried(lambda: self.scheduler.offices.change(office_id, status="active"))
            acknowledge("active")
        # Activating an archived office also ends its pause.
        self.pauses.discard(("office_id", office_id))
        self.uncertain.discard(("office_id", office_id))
        self.archived.discard(office_id)
        return office_id

    async def _subscribe(self, chance: Random) -> str:
        events = chance.choice(
            (None, ["job.cancelled", "group.finished"], ["schedule.skipped", "job.failed_permanently"])
        )
        url = f"{chance.choice(ENDPOINTS)}/{chance.getrandbits(40):x}"
        office = self._endpoints.offices[url] = chance.choice((None, None, "a", "ab"))
        made, secret = await self.scheduler.webhooks.create(url, events, office)
        self.subscriptions[made.webhook_id] = url
        self._endpoints.secrets[url] = secret
        following = chance.random()
        await asyncio.sleep(chance.choice((0.0, 30.0)))
        if following < 0.4:
            await self._rotate(chance, made.webhook_id)
        elif following < 0.7:
            await self._unsubscribe(chance, made.webhook_id)
        return made.webhook_id[-12:]

    async def _rotate(self, chance: Random, webhook_id: str | None = None) -> str:
        """Rotates a secret: from the answer on, the new one signs."""
        if not self.subscriptions:
            return "nothing"
        webhook_id = webhook_id or chance.choice(list(self.subscriptions))
        url = self.subscriptions[webhook_id]
        self.rotations[url] += 1
        number = self.rotations[url]
        self._endpoints.rotates(url)
        _, secret = await self.scheduler.webhooks.rotate_secret(webhook_id)
        if number == self.rotations[url]:
            self._endpoints.secrets[url] = secret
        return webhook_id[-12:]

    async def _unsubscribe(self, chance: Random, webhook_id: str | None = None) -> str:
        if not self.subscriptions:
            return "nothing"
        webhook_id = webhook_id or chance.choice(list(self.subscriptions))
        await self.scheduler.webhooks.delete(webhook_id)
        self._endpoints.deleted.add(self.subscriptions[webhook_id])
        return webhook_id[-12:]

    async def _redeliver(self, chance: Random) -> str:
        ended = [
            one for one in (await self.scheduler.webhooks.deliveries_page(limit=20)).items if one.status == "FAILED"
        ]
        if not ended:
            return "nothing"
        delivery_id = chance.choice(ended).delivery_id
        self._endpoints.sent_again(delivery_id)
        return (await self.scheduler.webhooks.redeliver(delivery_id)).delivery_id[-12:]

    # Templates and schedules.

    async def _template(self, chance: Random) -> str:
        params = {"do": chance.choice(("ok", "fail", "skip")), "seconds": chance.choice((1.0, 60.0))}
        fields: dict[str, Any] = {"params": params}
        office_id = chance.choice(OFFICES)
        known = self.templates.get(office_id)
        if known and chance.random() < 0.5:
            return (await self.scheduler.templates.change(chance.choice(known), **fields)).template_id[-12:]
        return (await self._new_template(chance, office_id, fields))[-12:]

    async def _new_template(self, chance: Random, office_id: str, fields: dict[str, Any]) -> str:
        # One in two makes a graph: two jobs side by side, and one after both of them.
        work: dict[str, Any] = {"job_type": "work"}
        graph = [{**work, "key": "a"}, {**work, "key": "b"}, {**work, "depends_on": ["a", "b"]}]
        what = {"jobs": graph, "on_failure": chance.choice(("stop", "skip"))} if chance.random() < 0.5 else work
        name = f"t{chance.getrandbits(40)}"
        made = await self.scheduler.templates.create(name=name, office_id=office_id, **what, **fields)
        self.templates.setdefault(office_id, []).append(made.template_id)
        return made.template_id

    async def _schedule(self, chance: Random) -> str:
        office_id = chance.choice(OFFICES)
        if not self.templates.get(office_id):
            seconds = chance.choice((1.0, 60.0, 1200.0))
            await self._new_template(chance, office_id, {"params": {"do": "ok", "seconds": seconds}})
        fields: dict[str, Any] = {
            "template_id": chance.choice(self.templates[office_id]),
            "name": f"s{chance.getrandbits(40)}",
            "cron_expression": chance.choice(CRONS),
            "timezone": chance.choice(ZONES),
            "office_id": office_id,
            "catch_up_window_seconds": chance.choice((0.0, 1800.0, 86_400.0, 86_400.0)),
            "catch_up": chance.choice(("latest", "all", "none")),
            "overlap": chance.choice(("allow", "skip")),
        }
        made = await self.scheduler.schedules.create(**fields)
        self.schedules.append(made.schedule_id)
        names = ("cron_expression", "timezone", "office_id", "catch_up_window_seconds")
        self.acknowledged.is_so(("schedule", made.schedule_id, "plan"), tuple(fields[name] for name in names))
        return made.schedule_id[-12:]

    async def _change_schedule(self, chance: Random) -> str:
        if not self.schedules:
            return "nothing"
        changes = chance.choice(({"enabled": False}, {"enabled": True}, {"catch_up": "all"}, {"overlap": "skip"}))
        schedule_id = chance.choice(self.schedules)
        ((name, value),) = changes.items()
        with self.acknowledged.asking(("schedule", schedule_id, name)) as acknowledge:
            await self.scheduler.schedules.change(schedule_id, **changes)
            acknowledge(value)
        return str(changes)

    async def _delete_schedule(self, chance: Random) -> str:
        if not self.schedules:
            return "nothing"
        schedule_id = chance.choice(self.schedules)
        kept = [("schedule", schedule_id, name) for name in ("enabled", "catch_up", "overlap", "plan")]
        with self.acknowledged.asking(*kept):
            await self.scheduler.schedules.delete(schedule_id)
        self.acknowledged.is_so(("schedule", schedule_id, "is_deleted"), True)
        return schedule_id[-12:]

    async def _trigger(self, chance: Random) -> str:
        if not self.schedules:
            return "nothing"
        made = await self.scheduler.schedules.trigger(chance.choice(self.schedules))
        if isinstance(made, Group):
            self.groups.append(made.group_id)
            return made.group_id[-12:]
        self.jobs.append(made.job_id)
        return made.job_id[-12:]

    # Direct requests.

    async def _direct(self, chance: Random, direct_id: str | None = None, office_id: str | None = None) -> str:
        """Makes a direct request. One in eight works for longer than a reservation lasts."""
        wait = chance.choice((0.5, 10.0, 300.0))
        is_long = chance.random() < 0.12
        doing = "ok" if is_long else chance.choice(("ok", "ok", "fail", "skip", "hang"))
        job_type = chance.choice(TYPES)
        params = {"do": doing, "seconds": 1500.0 if is_long else chance.choice((0.0, 1.0, 20.0))}
        options: dict[str, Any] = {
            "office_id": office_id or chance.choice(OFFICES),
            "wait_timeout_seconds": wait,
            "timeout_seconds": 2000.0 if is_long else 30.0,
            "detach": chance.random() < 0.3,
            "direct_id": direct_id,
        }
        options |= self._of_caller(chance, params)
        if keys := options.get("limit_keys"):
            options["direct_id"] = direct_id or f"keyed-{chance.getrandbits(60):x}"
            self.caller_keys[options["office_id"], options["direct_id"]] = keys
        if chance.random() < 0.3:
            return await self._streamed(job_type, params, options)
        ended = await self.scheduler.run_direct(job_type, params, **options)
        return f"{ended.direct_id[-12:]} {ended.status}"

    def _of_caller(self, chance: Random, params: dict[str, Any]) -> dict[str, Any]:
        """Returns more options of a direct request, and may add to its parameters."""
        return {}

    async def _streamed(self, job_type: str, params: dict[str, Any], options: dict[str, Any]) -> str:
        """Makes a direct request and reads its place, progress and result one by one; the result must come last."""
        updates = [update async for update in self.scheduler.stream_direct(job_type, params, **options)]
        kinds = [update.kind for update in updates]
        places = [update.data["ahead"] for update in updates if update.kind == "place"]
        if kinds[-1] != "result" or "result" in kinds[:-1] or kinds.count("started") > 1:
            self.broken.append(f"a stream sent {kinds}")
        if places != sorted(set(places), reverse=True):
            self.broken.append(f"the places of a caller were {places}")
        return " ".join(kinds)

    async def _hang_up(self, chance: Random) -> str:
        """Makes a direct request and disconnects before its end."""
        seconds, direct_id = chance.choice((0.0, 0.2, 5.0)), f"caller-{chance.getrandbits(60):x}"
        office_id = chance.choice(OFFICES)
        connection = asyncio.ensure_future(self._direct(chance, direct_id, office_id))
        self.connections[connection] = None
        connection.add_done_callback(lambda done: self.connections.pop(done, None))
        done, _ = await asyncio.wait([connection], timeout=seconds)
        if not done:
            connection.cancel()
        answer = (await asyncio.gather(connection, return_exceptions=True))[0]
        if not done:
            await self._check_ended(direct_id, office_id)
        return answer if isinstance(answer, str) else type(answer).__name__

    async def _check_ended(self, direct_id: str, office_id: str) -> None:
        """Checks that the work of a disconnected caller ends, unless it is detached or cannot be interrupted."""
        await asyncio.sleep(100)  # An outage of the store is shorter than this.
        with contextlib.suppress(NotFound):
            found = await self.scheduler.direct(direct_id, office_id)
            if found.finished_at is None and not found.detach and found.job_type != "thread":
                self.broken.append(f"{direct_id} is {found.status} 100 seconds after its caller has hung up")

    async def _cancel_direct(self, chance: Random) -> str:
        waiting = [one for one in (await self.scheduler.lists.direct(limit=20)).items if one.finished_at is None]
        if not waiting:
            return "nothing"
        chosen = chance.choice(waiting)
        return (await self.scheduler.cancel_direct(chosen.direct_id, chosen.office_id)).direct_id[-12:]

    # Followers.

    async def _follow(self, chance: Random) -> str:
        """Follows all events, from now on or from the beginning."""
        last = await self.scheduler._access.read(check_reads.last_event)
        self.followers.add(chance.choice((0, last)) if not self.has_purged else last, chance.getrandbits(32))
        return ""

    async def _wait_for(self, chance: Random) -> str:
        """Waits for the end of a chain, which may come at any moment, or may have come long ago."""
        if not self.jobs or chance.random() < 0.6:
            new = NewJob(job_type="work", params={"do": "ok", "seconds": 0.0}, office_id=chance.choice(OFFICES))
            self._got([await self.scheduler.submit(**vars_of(new))])
        job_id = chance.choice(self.jobs[-2:])
        self.followers.wait_for(job_id)
        return job_id[-12:]

    async def _look(self, chance: Random) -> str:
        """Reads a list page by page, in pages of a few items, while other clients change what it lists."""
        office_id, job_type = chance.choice(OFFICES), chance.choice((None, "work", "render"))
        wanted = JobFilter(office_id=(office_id,), job_type=() if job_type is None else (job_type,))
        read, limit = self.scheduler._access.read, chance.choice((1, 2, 5))

        def own(tx: Tx) -> dict[str, int]:
            created = {job.job_id: job.created_at for job in check_reads.jobs(tx).values()}
            fitting = (one for one in check_reads.kinds(tx) if one.office_id == office_id)
            return {one.job_id: created[one.job_id] for one in fitting if job_type in (None, one.job_type)}

        before = await read(own)
        listed, cursor = [], None
        for _ in range(1000):
            page = await self.scheduler.lists.jobs(wanted, cursor, limit)
            listed += [(int(one.job.created_at), one.job.job_id) for one in page.items]
            cursor = page.next_cursor
            if cursor is None:
                break
        after = await read(own)
        for broken in explanations.listed_wrongly(set(before), set(after), listed):
            self.broken.append(str(broken))
        status = await read(lambda tx: list(explanations.counted_wrongly(tx, lists_status(tx, self._now()))))
        self.broken += [str(broken) for broken in status]
        return str(len(listed))

    async def _wait(self, chance: Random) -> str:
        """Disables all schedules, which would otherwise create hundreds of jobs, and lets a day pass."""
        await self._stop_schedules()
        return "a day"

    async def _purge(self, chance: Random) -> str:
        """Deletes all history that may be deleted and is more than a day old, and checks that it is gone."""
        self.has_purged = True
        days = chance.choice((1.0, 1.2))
        self.scheduler.retention.keep = Keep(jobs_days=days, events_days=days, deliveries_days=days, audit_days=days)
        access = self.scheduler._access
        before = access.clock.now().after(-days * 86_400)
        old = await access.read(lambda tx: settings_oracle.purgeable(tx, before))
        known = await access.read(lambda tx: check_reads.events(tx, 0))
        purged = str(await self.scheduler.retention.purge())
        left = old & await access.read(lambda tx: settings_oracle.purgeable(tx, before))
        if left:  # A message may have been sent again meanwhile, or a new job may depend on an old one.
            await self.scheduler.retention.purge()
            left &= await access.read(lambda tx: settings_oracle.purgeable(tx, before))
        if left:
            self.broken.append(f"a purge left {len(left)} old jobs: {min(left)}")
        rest = await self.scheduler.retention.purge(dry_run=True)
        if rest.direct or rest.occurrences or rest.deliveries or rest.audit:
            self.broken.append(f"a purge left old rows: {rest}")
        # What was young at the beginning may have become old: a purge can take minutes.
        latest = max(before, access.clock.now().after(-days * 86_400))
        first = min((event.seq for event in known if event.timestamp >= latest), default=0)
        kept = {event.seq for event in await access.read(lambda tx: check_reads.events(tx, 0))}
        if first and (lost := {event.seq for event in known if event.seq >= first} - kept):
            self.broken.append(f"a purge deleted young events: {min(lost)}")
        return purged

    # Ending the simulation.

    async def settle_all(self) -> None:
        """Resumes everything, and disables all schedules."""
        for office_id in OFFICES[1:]:
            with self.acknowledged.asking(("office", office_id, "status")) as acknowledge:
                await self.scheduler.offices.change(office_id, status="active")
                acknowledge("active")
        for scope in ({}, *({"office_id": one} for one in OFFICES), {"job_type": "render"}, {"resource": "gpu"}):
            await self.scheduler.resume(**scope)
        self.pauses.clear()
        await self._stop_schedules()

    async def _stop_schedules(self) -> None:
        for schedule in (await self.scheduler.schedules.page(limit=200)).items:
            if schedule.enabled:
                with self.acknowledged.asking(("schedule", schedule.schedule_id, "enabled")) as acknowledge:
                    await self.scheduler.schedules.change(schedule.schedule_id, enabled=False)
                    acknowledge(False)


def vars_of(new: NewJob) -> dict[str, Any]:
    """Returns a new job's fields as the arguments of `submit`."""
    return {name: getattr(new, name) for name in new.__dataclass_fields__ if getattr(new, name) is not None}


async def retried(call: Callable[[], Awaitable[Any]]) -> Any:
    """Repeats a call while the store does not answer."""
    while True:
        try:
            return await call()
        except Unavailable:
            await asyncio.sleep(1)
