"""All operations of a scheduler for one caller. HTTP and the Python API call them; `Scheduler` inherits them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import cached_property
from typing import TypeVar, Unpack

from nextslot.client.keyword_arguments import DirectOptions, JobChanges, JobOptions
from nextslot.client.keyword_arguments import NewJob as JobFields
from nextslot.domain import (
    DEFAULT_OFFICE,
    Actor,
    Answer,
    AnyJob,
    Checkpoint,
    Direct,
    Event,
    Group,
    GroupDetail,
    GroupMode,
    Job,
    Json,
    NewGroup,
    NewJob,
    OnFailure,
    RequestContext,
    Run,
    Signal,
    Why,
    id_of,
)
from nextslot.domain import signals as signal_rules
from nextslot.domain.bounds import WAIT
from nextslot.engine.direct.connected_callers import Update
from nextslot.engine.events.event_feed import EventPage
from nextslot.engine.finish.job_finisher import Cancelled
from nextslot.engine.finish.retries import Retried
from nextslot.engine.settings.office_quotas import OfficeQuotas
from nextslot.engine.signals.signals import Sent, refuse_signal
from nextslot.engine.submit.idempotency import Once, Replayed
from nextslot.engine.submit.intake import Accepted
from nextslot.errors import Conflict, Draining, Invalid, NotEnded, NotFound
from nextslot.executors.checkpoints import checked
from nextslot.executors.job_type_catalog import Catalog
from nextslot.extension_api import Attached
from nextslot.extension_api.host import Host
from nextslot.services import arguments
from nextslot.services.bulk import BulkService
from nextslot.services.engines import EngineService
from nextslot.services.failures import FailureService
from nextslot.services.forecast import ForecastService
from nextslot.services.keys import KeyService
from nextslot.services.lists import ListService
from nextslot.services.nodes import NodeService
from nextslot.services.offices import OfficeService
from nextslot.services.read_run_files import RunFileService
from nextslot.services.retention import RetentionService
from nextslot.services.runtime_settings import SettingsService
from nextslot.services.schedules import ScheduleService
from nextslot.services.stats import StatsService
from nextslot.services.templates import TemplateService
from nextslot.services.unit_of_work import UnitOfWork
from nextslot.services.webhooks import WebhookSubscriptions
from nextslot.store.contract import Tx
from nextslot.store.tables import checkpoints, direct, groups, jobs, runs, signals
from nextslot.store.tables.jobs import Place
from nextslot.system.disk_space import DiskSpace
from nextslot.system.instant import Instant

from .job_changes import change_job, refuse_wrong
from .runtime import Runtime
from .waiters import Ended

A = TypeVar("A", bound=Attached)

# How often the caller of a cancel checks whether the timer has cancelled all jobs.
CANCEL_POLL_SECONDS = 0.1


class Services:
    """The operations of a scheduler for one caller; each change is stored with the caller's context.

    A `Scheduler` has the services of callers in Python. `for_caller` returns the same services for another caller.
    """

    def __init__(self, runtime: Runtime, access: UnitOfWork, attached: dict[str, Attached]) -> None:
        self._runtime = runtime
        self._access = access
        self._clock = runtime.clock
        # The part of each extension in this scheduler, by the name of the extension.
        self.attached = attached

    def __getstate__(self) -> object:
        raise Invalid("a scheduler cannot be pickled: another process submits through a server, with a Submitter")

    def for_caller(self, context: RequestContext) -> "Services":
        """Returns the same services for another caller, whom the audit log then names for each change."""
        return Services(self._runtime, self._access.for_caller(context), self.attached)

    @property
    def quotas(self) -> OfficeQuotas:
        """Returns the quotas that admins granted to offices, as of the last commit."""
        return self._runtime.quotas

    @property
    def context(self) -> RequestContext:
        return self._access.context

    # Services by subject, created on first use: most requests need only one.
    files = cached_property(lambda self: RunFileService(self._runtime.files, self._runtime.files_of_nodes))
    lists = cached_property(lambda self: ListService(self._access))
    keys = cached_property(lambda self: KeyService(self._access, self._runtime.keys))
    templates = cached_property(lambda self: TemplateService(self._access, self._runtime.template_settings))
    schedules = cached_property(
        lambda self: ScheduleService(self._access, self._runtime.schedule_settings, self._runtime.trigger)
    )
    webhooks = cached_property(lambda self: WebhookSubscriptions(self._access, self._runtime.webhooks))
    bulk = cached_property(lambda self: BulkService(self._access, self._runtime.bulk_actions))
    offices = cached_property(
        lambda self: OfficeService(self._access, self._runtime.chance, self._runtime.offices, self._runtime.queue)
    )
    nodes = cached_property(lambda self: NodeService(self._access, self._runtime.cluster))
    engines = cached_property(
        lambda self: EngineService(
            self._access, self._runtime.job_types.engines, self._runtime.placed, self._runtime.finisher
        )
    )
    stats = cached_property(lambda self: StatsService(self._access))
    failures = cached_property(lambda self: FailureService(self._access))
    retention = cached_property(lambda self: RetentionService(self._access, self._runtime.retention))

    @cached_property
    def settings(self) -> SettingsService:
        return replace(self._runtime.settings, access=self._access)

    @property
    def job_types(self) -> Catalog:
        return self._runtime.job_types

    @property
    def forecast(self) -> ForecastService:
        """Returns the forecasts. One service caches them for all callers, because forecasts only read."""
        return self._runtime.forecasts

    # Extensions.

    def extension(self, kind: type[A]) -> A:
        """Returns the part of an extension in this scheduler for this caller, by the part's class."""
        for one in self.attached.values():
            if isinstance(one, kind):
                return self._for_caller(one)
        there = ", ".join(self.attached) or "none"
        raise NotFound("extension", kind.__name__, f"this scheduler has {there}; use Scheduler(extensions=[…])")

    def _find(self, name: str) -> Attached | None:
        one = self.attached.get(name)
        return None if one is None else self._for_caller(one)

    def _for_caller(self, one: A) -> A:
        return one if one.host is self._host else one.for_caller(self._host)

    @cached_property
    def _host(self) -> Host:
        runtime = self._runtime
        return Host(
            clock=self._clock,
            work=self._access,
            job_types=runtime.job_types,
            probe=runtime.outages.set_probe,
            outages=runtime.outages,
            find=self._find,
            intake=runtime.intake,
            past=runtime.past,
            queue=runtime.queue,
            dispatcher=runtime.dispatcher,
            retries=runtime.retries,
            finisher=runtime.finisher,
            webhooks=runtime.webhooks,
            offices=self.offices,
            bulk=self.bulk,
            files=runtime.files,
        )

    # State of the scheduler.

    @property
    def node(self) -> str:
        return self._runtime.workers.node

    @property
    def disk(self) -> DiskSpace:
        return self._runtime.disk

    @property
    def is_draining(self) -> bool:
        return self._access.gate.is_draining

    async def readiness(self) -> str | None:
        """Returns why the scheduler does not accept and run jobs now; None if it does."""
        return await self._runtime.readiness.problem()

    # Submission of jobs.

    async def submit(
        self,
        job_type: str | None = None,
        params: Mapping[str, Json] | None = None,
        *,
        template_id: str | None = None,
        created_by: str | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Puts a job of a type, or of a template, into the queue; the job is durable when this returns."""
        own = {"job_type": job_type, "params": {} if params is None else params, "template_id": template_id}
        new = arguments.new_job(**own, created_by=created_by, **options)
        return (await self.accept([new], idempotency_key))[0].job

    async def submit_from(
        self,
        template_id: str,
        params: Mapping[str, Json] | None = None,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Puts a job of a template into the queue; the given parameters override those of the template."""
        return await self.submit(None, params, template_id=template_id, idempotency_key=idempotency_key, **options)

    async def dry_run(
        self,
        job_type: str | None = None,
        params: Mapping[str, Json] | None = None,
        *,
        wait_seconds: float = 5,
        **options: Unpack[JobOptions],
    ) -> tuple[Accepted, Why]:
        """Returns the job that `submit` would create, what the job would wait for, and when it would run. Stores
        nothing.

        Waits at most `wait_seconds` for the forecast.
        """
        new = arguments.new_job(job_type=job_type, params={} if params is None else params, **options)
        intake, access = self._runtime.intake, self._access
        return await self.forecast.dry_run(
            access, lambda tx: intake.accept(tx, [new], self._clock.now())[0], access.context.office_id, wait_seconds
        )

    async def accept(
        self, wanted: Sequence[NewJob], idempotency_key: str | None = None, route: str = "jobs"
    ) -> list[Accepted]:
        """Does the same as `submit_many`, and returns with each job whether it is new or existed before."""
        intake, office_id = self._runtime.intake, wanted[0].office_id if wanted else None
        once: Once[list[Accepted]] = Once(route, office_id, wanted, _ids_of)
        try:
            return await self._access.with_key(idempotency_key).create(
                lambda tx: intake.accept(tx, wanted, self._clock.now()), len(wanted), once
            )
        except Replayed as known:
            ids = known.ids
            found = await self._access.read(lambda tx: jobs.get_many(tx, ids))
            return [Accepted(found[job_id], is_new=False) for job_id in ids]

    async def submit_many(self, jobs: Sequence[NewJob | JobFields], idempotency_key: str | None = None) -> list[Job]:
        """Puts many jobs into the queue in one transaction, all or none; they may depend on each other by `key`."""
        return [one.job for one in await self.accept(arguments.new_jobs(jobs), idempotency_key, "batch")]

    async def submit_group(
        self,
        jobs: Sequence[NewJob | JobFields],
        mode: GroupMode | str = GroupMode.SEQUENTIAL,
        on_failure: OnFailure | str = OnFailure.STOP,
        name: str | None = None,
        *,
        webhook: Mapping[str, Json] | None = None,
        idempotency_key: str | None = None,
    ) -> GroupDetail:
        """Puts a group of jobs into the queue, to run sequentially or in parallel. `webhook` gets a message when all
        jobs of the group have ended."""
        new = NewGroup(
            jobs=arguments.new_jobs(jobs),
            mode=arguments.choice(GroupMode, mode, "mode"),
            on_failure=arguments.choice(OnFailure, on_failure, "on_failure"),
            name=name,
            webhook=webhook,
        )
        group, accepted = await self.accept_group(new, idempotency_key)
        return GroupDetail.of(group, [one.job for one in accepted])

    async def submit_group_from(
        self,
        template_id: str,
        params: Mapping[str, Json] | None = None,
        priority: int | None = None,
        *,
        name: str | None = None,
        office_id: str = DEFAULT_OFFICE,
        webhook: Mapping[str, Json] | None = None,
        idempotency_key: str | None = None,
    ) -> GroupDetail:
        """Puts the group of a template into the queue; `params` and `priority` apply to every job of the group."""
        new = NewGroup(
            template_id=template_id, params=params, priority=priority, name=name, office_id=office_id, webhook=webhook
        )
        group, accepted = await self.accept_group(new, idempotency_key)
        return GroupDetail.of(group, [one.job for one in accepted])

    async def accept_group(self, new: NewGroup, idempotency_key: str | None = None) -> tuple[Group, list[Accepted]]:
        """Does the same as `submit_group` or `submit_group_from`, and returns with each job whether it is new or
        existed before."""
        intake, office_id = self._runtime.intake, new.jobs[0].office_id if new.jobs else new.office_id
        content: list[object] = [*new.jobs, new.mode, new.on_failure, new.name]
        if new.template_id is not None or new.webhook is not None:
            content += [new.template_id, new.params, new.priority, new.webhook]
        once: Once[tuple[Group, list[Accepted]]] = Once("groups", office_id, content, lambda made: [made[0].group_id])
        try:
            return await self._access.with_key(idempotency_key).create(
                lambda tx: intake.accept_group(tx, new, self._clock.now()), len(new.jobs) or 1, once
            )
        except Replayed as known:
            (group_id,) = known.ids
            return await self._access.read(lambda tx: intake.known_group(tx, group_id))

    async def retry(self, run_id: str, priority: int | None = None, *, idempotency_key: str | None = None) -> Job:
        """Retries a FAILED run by hand: creates a new job, or brings the waiting retry forward."""
        try:
            return (await self.accept_retry(run_id, priority, idempotency_key)).job
        except Replayed as known:
            return await self.job(known.ids[0])

    async def accept_retry(
        self, run_id: str, priority: int | None = None, idempotency_key: str | None = None
    ) -> Retried:
        """Does the same as `retry`, and returns with the job whether it is new. Raises `Replayed` for a key that was
        used before."""
        retries, office_id = self._runtime.retries, self._access.context.office_id
        once: Once[Retried] = Once("retry", office_id, [run_id, priority], lambda made: [made.job.job_id])
        return await self._access.with_key(idempotency_key).create(
            lambda tx: retries.retry_by_hand(tx, run_id, priority, self._clock.now()), once=once
        )

    async def checkpoint(self, run_id: str, value: Json) -> Checkpoint:
        """Stores what an unfinished run leaves for the next attempt of its chain, as `run.checkpoint` does."""
        text = checked(value)

        def keep(tx: Tx) -> Checkpoint:
            run, now = arguments.found(runs.get(tx, run_id), "run", run_id), self._clock.now()
            if run.status is not None or not checkpoints.keep(tx, run_id, text, now):
                raise Conflict(f"run {run_id} has ended: only a running one can leave a checkpoint")
            return Checkpoint(run_id=run_id, stored_at=now, value=value)

        return await self._access.write(keep)

    # Signals.

    async def signal(
        self,
        job: AnyJob,
        name: str,
        payload: Json = None,
        answer: Answer | str = Answer.APPROVE,
        signal_id: str | None = None,
    ) -> Signal:
        """Answers the signal that the chain of a job waits for, or keeps the answer until the chain waits for the
        signal.

        The same answer again, or the same `signal_id`, returns the stored answer.
        """
        return (await self.accept_signal(job, name, payload, answer, signal_id)).signal

    async def accept_signal(
        self,
        job: AnyJob,
        name: str,
        payload: Json = None,
        answer: Answer | str = Answer.APPROVE,
        signal_id: str | None = None,
    ) -> Sent:
        """Does the same as `signal`, and returns with the answer whether it is new."""
        refuse_signal(name, payload, signal_id)
        job_id = id_of(job)
        given, context = arguments.choice(Answer, answer, "answer"), self._access.context
        if given is Answer.FAIL:
            raise Invalid("is 'fail', which only a deadline answers; give 'approve' or 'reject'", field="answer")
        who = "python" if context.actor is None else context.actor.name
        callers = None if context.actor is None else (who,)

        def send(tx: Tx) -> Sent:
            sent = self._runtime.signals.send(
                tx, job_id, name, given, payload, who, self._clock.now(), signal_id=signal_id, callers=callers
            )
            self._access.audit.changed(tx, None, {"answer": sent.signal.answer.value})
            return sent

        return await self._access.write(send)

    async def signals(self, job: AnyJob) -> tuple[Signal, ...]:
        """Returns the answers that the chain of a job got, and the answers that are kept for it, oldest first."""
        found = await self.job(job)
        return tuple(await self._access.read(lambda tx: signals.of_chain(tx, found.chain_id)))

    async def job_of_link(self, token: str) -> Job:
        """Returns the job of a signed link; raises if the link is wrong or has expired."""
        return await self.job(self._link(token).job_id)

    async def signal_by_link(self, token: str, answer: str) -> Sent:
        """Answers a signal by its signed link, once, whoever uses it; the audit log names the job and the signal."""
        link, who = self._link(token), signal_rules.BY_LINK
        target = f"/api/jobs/{link.job_id}/signals/{link.name}"
        actor = Actor(name=who, key_id=None, action="POST /signal/{token}", target=target)
        access = self._access.for_caller(RequestContext(actor=actor))
        given = arguments.choice(Answer, answer, "answer")

        def send(tx: Tx) -> Sent:
            job = arguments.found(jobs.get(tx, link.job_id), "job", link.job_id)
            if job.awaiting is None or job.awaiting["name"] != link.name:
                raise Conflict(f"the signal {link.name!r} was answered before, or its job has ended: {job.status}")
            now = self._clock.now()
            sent = self._runtime.signals.send(tx, link.job_id, link.name, given, None, who, now, callers=(who,))
            access.audit.changed(tx, None, {"answer": sent.signal.answer.value})
            return sent

        return await access.write(send)

    def _link(self, token: str) -> signal_rules.Link:
        link = self._runtime.webhooks.read_link(token)
        if link is None or link.expires_at <= self._clock.now():
            problem = "is not one of this server" if link is None else f"has expired at {link.expires_at}"
            raise Invalid(f"the link {problem}; ask for a new notice, or answer with `nextslot approve`")
        return link

    async def park(
        self,
        run_id: str,
        name: str,
        question: str | None = None,
        deadline_seconds: float | None = None,
        on_deadline: str | None = None,
        answered_by: Sequence[str] | None = None,
    ) -> Run:
        """Stores that a run will end with the kind `parked`: its chain continues after the signal."""
        named = {"question": question, "deadline_seconds": deadline_seconds, "on_deadline": on_deadline,
                 "answered_by": None if answered_by is None else list(answered_by)}  # fmt: skip
        given = {"name": name, **{key: one for key, one in named.items() if one is not None}}
        if problems := list(signal_rules.problems("", given)):
            raise Invalid(problems)
        await self._access.write(lambda tx: self._runtime.signals.park(tx, run_id, signal_rules.completed(given)))
        return await self.run_by_id(run_id)

    # Changes of jobs.

    async def rerun(
        self,
        job: AnyJob,
        params: Mapping[str, Json] | None = None,
        priority: int | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> Job:
        """Submits a new job with the fields of an ended one, in a chain of its own."""
        context = replace(self.context, idempotency_key=idempotency_key or self.context.idempotency_key)
        try:
            return await self.for_caller(context).bulk.rerun(id_of(job), params, priority)
        except Replayed as known:
            return await self.job(known.ids[0])

    async def cancel(self, job: AnyJob, reason: str | None = None, interrupt: bool | None = None) -> Cancelled:
        job_id = id_of(job)
        return await self._access.write(
            lambda tx: self._runtime.finisher.cancel(tx, job_id, reason, interrupt, self._clock.now())
        )

    async def cancel_group(
        self, group_id: str, reason: str | None = None, interrupt: bool | None = None
    ) -> list[Cancelled]:
        """Cancels every member that has not ended; returns when all are cancelled or requested to stop."""
        began = self._clock.now()
        done = await self._access.write(
            lambda tx: self._runtime.finisher.cancel_group(tx, group_id, reason, interrupt, self._clock.now())
        )
        if done is not None:
            return done
        while (await self.group(group_id)).cancel_request is not None:
            await self._clock.sleep(CANCEL_POLL_SECONDS)
        members = await self.members(group_id)
        return [Cancelled.of(job) for job in members if (job.cancel_requested_at or 0) >= began]

    async def move(
        self,
        job: AnyJob,
        *,
        to: str | None = None,
        before: AnyJob | None = None,
        after: AnyJob | None = None,
        place: int | None = None,
    ) -> Job:
        queue, job_id = self._runtime.queue, id_of(job)
        beside = {name: one if one is None else id_of(one) for name, one in (("before", before), ("after", after))}
        return await self._access.write(
            lambda tx: queue.move(tx, job_id, self._clock.now(), to=to, place=place, **beside)
        )

    async def reorder(self, job_ids: Sequence[AnyJob]) -> list[Job]:
        self._access.refuse_many(len(job_ids))
        office_id, wanted = self._access.context.office_id, [id_of(one) for one in job_ids]
        return await self._access.write(
            lambda tx: self._runtime.queue.reorder(tx, wanted, self._clock.now(), office_id), rows=len(wanted)
        )

    async def change(self, job: AnyJob, **changes: Unpack[JobChanges]) -> Job:
        """Changes `params`, `priority`, `urgent`, `scheduled_for` or `title` of a job while it is queued (INV-001)."""
        refuse_wrong(changes)
        job_id = id_of(job)
        queue, intake = self._runtime.queue, self._runtime.intake
        return await self._access.write(lambda tx: change_job(tx, queue, intake, job_id, changes, self._clock.now()))

    async def pause(
        self, *, office_id: str | None = None, job_type: str | None = None, resource: str | None = None
    ) -> None:
        """Pauses an office, a job type, a resource or, without arguments, the whole scheduler; running work goes on."""
        scope, name = arguments.scope(office_id, job_type, resource)
        await self._access.write(lambda tx: self._runtime.queue.pause(tx, scope, name, self._clock.now()))

    async def resume(
        self, *, office_id: str | None = None, job_type: str | None = None, resource: str | None = None
    ) -> None:
        scope, name = arguments.scope(office_id, job_type, resource)
        await self._access.write(lambda tx: self._runtime.queue.resume(tx, scope, name, self._clock.now()))

    async def release(self, resource: str) -> None:
        """Ends the hold of a resource that does not answer, or whose quota is used up, so that its jobs start again."""
        await self._access.write(lambda tx: self._runtime.outages.release(tx, resource, self._clock.now()))

    # Direct requests.

    async def run_direct(
        self,
        job_type: str,
        params: Mapping[str, Json] | None = None,
        *,
        created_by: str | None = None,
        **options: Unpack[DirectOptions],
    ) -> Direct:
        """Waits for the next slot, runs the work, and returns the outcome; failed work raises no error.

        If the calling task is cancelled while it waits, the scheduler gives up the caller's place. If it is cancelled
        while the work runs, the scheduler cancels the work, unless `detach` is set.
        """
        own = {"job_type": job_type, "params": {} if params is None else params}
        wanted = arguments.new_direct(**own, created_by=created_by, **options)
        self._refuse_unless_taking()
        return await self._runtime.direct.execute(self._access, wanted)

    async def stream_direct(
        self, job_type: str, params: Mapping[str, Json] | None = None, **options: Unpack[DirectOptions]
    ) -> AsyncGenerator[Update, None]:
        """Does the same as `run_direct`, but yields places, progress and output as they come, and the result last."""
        wanted = arguments.new_direct(job_type=job_type, params={} if params is None else params, **options)
        self._refuse_unless_taking()
        # Closes the stream at once when the caller leaves; the garbage collector would close it later.
        async with aclosing(self._runtime.direct.stream(self._access, wanted)) as updates:
            async for update in updates:
                yield update

    async def expected_direct_start(
        self,
        job_type: str,
        params: Mapping[str, Json] | None = None,
        *,
        created_by: str | None = None,
        wait_seconds: float = 5,
        **options: Unpack[DirectOptions],
    ) -> Instant | None:
        """Returns when the work of a direct request would start if it were made now and its caller stayed, however
        long that takes. Stores nothing. Waits at most `wait_seconds` for the forecast; None if it is not known."""
        own = {"job_type": job_type, "params": {} if params is None else params}
        wanted = arguments.new_direct(**own, created_by=created_by, **options)
        handler, run_id = self._runtime.direct, self._runtime.chance.new_id()
        handler.check(wanted)
        return await self.forecast.start_of_direct(
            self._access, lambda tx: handler.add(tx, wanted, run_id, self._clock.now()), wait_seconds
        )

    def _refuse_unless_taking(self) -> None:
        if self._access.gate.is_draining:
            raise Draining("the scheduler is stopping and takes no direct requests")
        if self._runtime.dispatcher.is_held:
            raise Draining(f"node {self.node} is being drained and takes no direct requests: ask another node")
        self._access.refuse_new_work()

    async def direct(self, direct_id: str, office_id: str = DEFAULT_OFFICE) -> Direct:
        """Returns a direct execution. An id that a caller chose needs the `office_id` of that caller."""
        found = await self._access.read(lambda tx: direct.find(tx, direct_id, office_id))
        return arguments.found(found, "direct execution", direct_id)

    async def cancel_direct(self, direct_id: str, office_id: str = DEFAULT_OFFICE) -> Direct:
        handler = self._runtime.direct
        return await self._access.write(lambda tx: handler.cancel(tx, direct_id, office_id, self._clock.now()))

    # Queries.

    async def why(self, job: AnyJob, wait_seconds: float = 5) -> Why:
        """Explains why a job is not running, and when it will run, if a forecast is ready within `wait_seconds`."""
        return await self.forecast.why(id_of(job), self.context.office_id, wait_seconds)

    async def job(self, job: AnyJob) -> Job:
        job_id = id_of(job)
        found = await self._access.read(lambda tx: jobs.get(tx, job_id), is_small=True)
        return arguments.found(found, "job", job_id)

    async def run_of(self, job: AnyJob) -> Run | None:
        """Returns the run of a job, if it was dispatched."""
        job_id = id_of(job)
        return await self._access.read(lambda tx: runs.of_job(tx, job_id))

    async def run_by_id(self, run_id: str) -> Run:
        return arguments.found(await self._access.read(lambda tx: runs.get(tx, run_id)), "run", run_id)

    async def chain(self, job: AnyJob) -> list[Job]:
        """Returns the whole chain of a job, from the first attempt on."""
        found = await self.job(job)
        return await self._access.read(lambda tx: jobs.chain(tx, found.chain_id))

    async def group(self, group_id: str) -> Group:
        return arguments.found(await self._access.read(lambda tx: groups.get(tx, group_id)), "group", group_id)

    async def members(self, group_id: str) -> list[Job]:
        """Returns every job of a group, by place; each retry follows the job that it retries."""
        await self.group(group_id)
        return await self._access.read(lambda tx: jobs.members(tx, group_id))

    async def queue(self, office_id: str = "default", after: Place | None = None, limit: int = 500) -> list[Job]:
        """Returns a page of the office's queue in order, waiting jobs included, after the given place."""
        await self.offices.get(office_id)
        return await self._access.read(lambda tx: jobs.queue(tx, office_id, after, limit))

    async def running(self, office_id: str = "default") -> list[Job]:
        await self.offices.get(office_id)
        return await self._access.read(lambda tx: jobs.running_of(tx, office_id))

    def progress(self, run_id: str) -> tuple[float | None, str] | None:
        """Returns the progress of a run (0 to 1, and a text) while the run is running."""
        return self._runtime.progress(run_id)

    def events(self, after: int = 0) -> AsyncIterator[Event]:
        """Yields every event after a number, oldest first, and then each new event."""
        return self._runtime.events.follow(self._access.store, after)

    def event_pages(self, after: int = 0) -> AsyncGenerator[EventPage, None]:
        """Yields the same events in pages; each page has all events that exist when the caller requests it."""
        return self._runtime.events.follow_pages(self._access.store, after)

    async def wait(self, job: AnyJob, timeout: float | None = None) -> Ended:
        """Waits until the chain of a job has ended, retries included; raises NotEnded after `timeout` seconds."""
        if timeout is not None and (problem := WAIT.problem(timeout)):
            raise Invalid(problem, field="timeout")
        found = await self.job(job)
        waiting = self._runtime.waiters.wait(found.chain_id)
        if timeout is None:
            return await waiting
        ended, clock = asyncio.ensure_future(waiting), asyncio.ensure_future(self._clock.sleep(timeout))
        try:
            await asyncio.wait([ended, clock], return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return ended.result()
        finally:
            ended.cancel()
            clock.cancel()
        last = (await self.chain(found))[-1]
        raise NotEnded(found.job_id, last.status, timeout)


def _ids_of(accepted: Sequence[Accepted]) -> list[str]:
    return [one.job.job_id for one in accepted]
