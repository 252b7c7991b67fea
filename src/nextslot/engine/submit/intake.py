"""Intake: checks requests, completes them with defaults, and puts their jobs into the queue, all or none."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from nextslot.domain import (
    URGENT,
    Group,
    GroupMode,
    GroupStatus,
    Job,
    Json,
    NewGroup,
    NewJob,
    Office,
    OnDependencyFailure,
    OnFailure,
    RetryPolicy,
    Stage,
    Template,
    id_of,
    request_checks,
    signals,
    webhook_delivery,
)
from nextslot.domain.bounds import MAX_PARAMS_BYTES
from nextslot.domain.limits import Limits
from nextslot.domain.request_checks import Form
from nextslot.domain.template_defaults import from_template, group_of_template
from nextslot.engine.dispatch.limits_and_slots import Combination
from nextslot.engine.engine_context import EngineContext
from nextslot.engine.finish.dependents import DependencyResolver, refuse_cycle
from nextslot.engine.finish.job_finisher import JobFinisher
from nextslot.errors import MOST_PROBLEMS, Invalid, NotFound, Problem, UnknownJobType
from nextslot.executors.job_types import JobType, resource_units
from nextslot.store.contract import Tx
from nextslot.store.tables import column_codec, dependencies, groups, jobs, offices, templates
from nextslot.system.instant import Instant

from .queue_order import NewWork, QueueManager

MAX_BATCH = 100_000


class Accepted(NamedTuple):
    """The job that answers a request: a new one, or the existing one with the same `unique_key`."""

    job: Job
    is_new: bool


# A new combination may need a new lane, which takes a millisecond of the transaction. Others wait for that.
MOST_KINDS = 1_000


class _Kind(NamedTuple):
    """What jobs with the same office, type, role and resources have in common."""

    office: Office
    resources: Mapping[str, int]
    lane_id: int
    retry_policy: RetryPolicy


class _SharedValues:
    """What the jobs of one request have in common, computed once."""

    def __init__(self) -> None:
        self.kinds: dict[tuple[object, ...], _Kind] = {}
        # The last request's fields and resources, and its job: the next request is often similar.
        self.form: Form = ()
        self.needs: Mapping[str, int] = {}
        self.affinity: str | None = None
        self.prototype: Job | None = None


class Intake:
    def __init__(
        self,
        engine: EngineContext,
        queue: QueueManager,
        resolver: DependencyResolver,
        finisher: JobFinisher,
        max_params_bytes: int = MAX_PARAMS_BYTES,
    ) -> None:
        self._chance = engine.chance
        self._job_types = engine.job_types
        self._lanes = engine.lanes
        self._workers = engine.workers
        self._queue = queue
        self._webhooks = engine.webhooks
        self._resolver = resolver
        self._finisher = finisher
        self.max_params_bytes = max_params_bytes

    def accept(
        self, tx: Tx, wanted: Sequence[NewJob], now: Instant, is_past: bool = False, ids: Sequence[str] = ()
    ) -> list[Accepted]:
        """Accepts requests and returns their jobs. `is_past`: the jobs ended in another system, so their limits and
        resources need not be possible here. `ids`: the ids that the jobs have already, in the order of the requests.
        """
        if not 0 < len(wanted) <= MAX_BATCH:
            raise Invalid(f"there are {len(wanted):,} jobs; give 1 to {MAX_BATCH:,} in one request", field="jobs")
        return self._create(tx, wanted, now, None, is_past, ids)

    def accept_group(
        self, tx: Tx, asked: NewGroup, now: Instant, is_past: bool = False
    ) -> tuple[Group, list[Accepted]]:
        """Creates a group of one office: from the given jobs, in their order, or from a template."""
        new = self._with_template(tx, asked)
        wanted, name = new.jobs, new.name
        if not 0 < len(wanted) <= MAX_BATCH:
            raise Invalid(f"there are {len(wanted):,} jobs; give a group 1 to {MAX_BATCH:,}", field="jobs")
        if len({new.office_id for new in wanted}) > 1:
            raise Invalid("the jobs are of several offices; give all jobs of a group the same office_id", field="jobs")
        if any(new.unique_key is not None for new in wanted):
            raise Invalid(
                "a member of a group has a unique_key; leave it out, as it may name a job outside", field="jobs"
            )
        office_id = wanted[0].office_id
        if name is not None and (problems := list(request_checks.text_problems("name", name))):
            raise Invalid(problems)
        if new.webhook is not None:
            self._webhooks.refuse_wrong("webhook", new.webhook, webhook_delivery.GROUP_EVENTS)
        group = Group(
            group_id=self._chance.new_id(),
            office_id=office_id,
            name=name,
            mode=new.mode or GroupMode.SEQUENTIAL,
            on_failure=new.on_failure or OnFailure.STOP,
            status=GroupStatus.QUEUED,
            members=len(wanted),
            created_at=now,
            template_id=new.template_id,
            schedule_id=new.schedule_id,
        )
        accepted = self._create(tx, wanted, now, group, is_past)
        if new.webhook is not None:
            groups.set_webhook(tx, group.group_id, new.webhook)
        # Read again, because a member whose prerequisite has already failed may have ended the group.
        return groups.get(tx, group.group_id) or group, accepted

    def known_group(self, tx: Tx, group_id: str) -> tuple[Group, list[Accepted]]:
        """Returns the group that an earlier request created, with its first jobs but not their retries."""
        group = groups.get(tx, group_id)
        assert group is not None
        roots = [job for job in jobs.members(tx, group_id) if job.retry_of is None]
        return group, [Accepted(job, is_new=False) for job in roots]

    def _with_template(self, tx: Tx, asked: NewGroup) -> NewGroup:
        """Returns the request for a group, completed by the template that it names, if it names one."""
        template_id = asked.template_id
        if template_id is None or asked.schedule_id is not None:
            return asked
        given = {"jobs": asked.jobs or None, "mode": asked.mode, "on_failure": asked.on_failure}
        problems = [
            Problem(name, "is given beside template_id; leave it out, because the template has it")
            for name, value in given.items()
            if value is not None
        ]
        if asked.params is not None:
            problems += request_checks.json_problems("params", asked.params)
        if asked.priority is not None:
            problems += request_checks.priority_problems(asked.priority)
        is_storable = isinstance(template_id, str) and request_checks.is_storable(template_id)
        template = templates.get(tx, template_id) if is_storable else None
        problems += _group_template_problems(asked, template)
        if problems or template is None:
            raise Invalid(problems)
        return group_of_template(asked, template)

    def change_params(self, tx: Tx, job_id: str, params: Mapping[str, Json], now: Instant) -> Job:
        """Changes the parameters of a queued job, and the resources and limits that follow from them (INV-001)."""
        job = self._queue.queued(tx, job_id)
        job_type = self._job_types.get(job.job_type)
        problems = list(request_checks.json_problems("params", params)) or self._params_problems(job_type, params)
        if problems:
            raise Invalid(problems)
        office = self.office(tx, job.office_id)
        own, affinity = job_type.needs(job.params), job.affinity
        if affinity == job_type.affinity(job.params):
            affinity = job_type.affinity(params)
        added = {name: units for name, units in job.resources.items() if units > own.get(name, 0)}
        resources = self._resources(office, job.role, job.job_type, job_type.needs(params), added)
        lane_id = self._lanes.lane_for(tx, office, job.role, job.job_type, resources, affinity, job.limit_keys)
        changed = job._replace(params=params, resources=resources, affinity=affinity, lane_id=lane_id)
        return self._queue.change_params(tx, job, changed, now)

    # From requests to jobs.

    def _create(
        self,
        tx: Tx,
        asked: Sequence[NewJob],
        now: Instant,
        group: Group | None,
        is_past: bool = False,
        ids: Sequence[str] = (),
    ) -> list[Accepted]:
        is_completed = group is not None and group.template_id is not None
        wanted = asked if is_completed else self._from_templates(tx, asked)
        forms = [request_checks.form(new) for new in wanted]
        if not is_past:
            self.check(wanted, now, forms)
            if not is_completed:
                self.note_resources(tx, asked)
        answers, existing = self._answers(tx, wanted, ids)
        # The jobs to create, each with the first request that it answers.
        made: dict[str, int] = {}
        for index, job_id in enumerate(answers):
            if job_id not in existing:
                made.setdefault(job_id, index)
        keys = self._keys(wanted, answers)
        waits = self._waits(tx, wanted, made, keys)
        self._refuse_cycle(wanted, made, waits, group is not None and group.mode is GroupMode.SEQUENTIAL)
        placed = self._store(tx, self._drafts(tx, wanted, forms, made, now, group), waits, now, group, _names(keys))
        return [
            Accepted(placed.get(job_id) or existing[job_id], is_new=made.get(job_id) == index)
            for index, job_id in enumerate(answers)
        ]

    def note_resources(self, tx: Tx, asked: Sequence[NewJob]) -> None:
        """Notes which requests name undeclared resources: the key of an office may not do so (spec 4.18)."""
        naming = [(index, new) for index, new in enumerate(asked) if new.resources]
        known = self._known_resources() if naming else set()
        listed = ", ".join(sorted(known))
        for index, new in naming:
            for name in sorted(resource_units(new.resources).keys() - known)[:MOST_PROBLEMS]:
                problem = (
                    f"has {name!r}, which is not in the configuration and belongs to no job type and no node; name one "
                    f"of {listed}, or ask an admin to grant the office own_resources"
                )
                found = Problem(_at(asked, index, "resources"), problem)
                tx.local(NewWork).own_resources.append((new.office_id, found))

    def _known_resources(self) -> set[str]:
        policy = self._lanes.policy
        configured = {*policy.resources, *policy.UNCOUNTED} if isinstance(policy, Limits) else set[str]()
        types = map(self._job_types.get, self._job_types.names())
        return configured.union(self._workers.counted, *(job_type.resources for job_type in types))

    def _from_templates(self, tx: Tx, wanted: Sequence[NewJob]) -> Sequence[NewJob]:
        """Returns the requests, completed by the templates that they name. Refuses unknown and archived templates."""
        if not any(new.template_id is not None or new.schedule_id is not None for new in wanted):
            return wanted
        named = {new.template_id for new in wanted if isinstance(new.template_id, str)}
        known = templates.get_many(tx, {name for name in named if request_checks.is_storable(name)})
        problems = [
            Problem(_at(wanted, index, problem.field), problem.problem)
            for index, new in enumerate(wanted)
            for problem in _template_problems(new, known)
        ]
        if problems:
            raise Invalid(problems[:MOST_PROBLEMS])
        return [new if new.template_id is None else from_template(new, known[new.template_id]) for new in wanted]

    def accept_each(self, tx: Tx, wanted: Sequence[NewJob], now: Instant) -> list[Job | Invalid]:
        """Creates independent jobs, whose templates are already applied. Returns a job or an error for each."""
        answers: list[Job | Invalid] = []
        known = _SharedValues()
        for new in wanted:
            try:
                form = request_checks.form(new)
                self.check([new], now, [form])
                answers.append(self._draft(tx, new, form, self._chance.new_id(), known, now))
            except Invalid as error:
                answers.append(error)
        drafts = {job.job_id: job for job in answers if isinstance(job, Job)}
        self._store(tx, drafts, {}, now, None, {})
        return answers

    def combinations(self, tx: Tx, wanted: Sequence[NewJob], now: Instant) -> Iterator[Combination]:
        """Yields the lane that each job would have, and nothing for a job that would be refused."""
        for new in wanted:
            try:
                self.check([new], now)
                office, job_type = self.office(tx, new.office_id), self._job_types.get(new.job_type or "")
                units = resource_units(new.resources)
                resources = self._resources(office, new.role, job_type.name, job_type.needs(new.params), units)
            except Invalid:
                continue
            yield self._lanes.combination(tx, office, new.role, job_type.name, resources, new.limit_keys)

    def _answers(self, tx: Tx, wanted: Sequence[NewJob], ids: Sequence[str]) -> tuple[list[str], dict[str, Job]]:
        """Returns the job id that answers each request, new or found by `unique_key`; and the existing jobs."""
        by_unique_key: dict[tuple[str, str], str] = {}
        existing: dict[str, Job] = {}
        answers = []
        for index, new in enumerate(wanted):
            own = ids[index] if ids else None
            known = by_unique_key.get((new.office_id, new.unique_key)) if new.unique_key is not None else None
            if known is None and new.unique_key is not None:
                job = jobs.by_unique_key(tx, new.office_id, new.unique_key)
                if job is not None:
                    existing[job.job_id] = job
                known = (own or self._chance.new_id()) if job is None else job.job_id
                by_unique_key[new.office_id, new.unique_key] = known
            answers.append(known or own or self._chance.new_id())
        return answers, existing

    def check(self, wanted: Sequence[NewJob], now: Instant, forms: Sequence[Form] | None = None) -> None:
        """Raises Invalid with all problems. Runs before any statement uses values of the requests."""
        forms = forms or [request_checks.form(new) for new in wanted]
        problems: list[Problem] = []
        valid_form: Form | None = None
        for index, (new, form) in enumerate(zip(wanted, forms, strict=True)):
            try:
                # If the last request was valid and this one has the same fields, only the parameters are checked.
                found = self._problems_of_params(new) if form == valid_form else self._problems(new, now)
            except UnknownJobType as error:
                if len(wanted) == 1:
                    raise
                found = error.problems
            valid_form = None if found else form
            if not found:
                continue
            problems += [Problem(_at(wanted, index, problem.field), problem.problem) for problem in found]
            if len(problems) >= MOST_PROBLEMS:
                break
        if problems:
            raise Invalid(problems)

    def problems_so_far(self, new: NewJob, now: Instant) -> list[Problem]:
        """Returns all problems of a request whose parameters may be incomplete, such as a template's."""
        return self._problems(new, now, is_complete=False)

    def check_graph(self, wanted: Sequence[NewJob], mode: GroupMode) -> None:
        """Raises Invalid if jobs of a template name a key that none of them has, or wait for each other."""
        names = [f"jobs.{index}" for index in range(len(wanted))]
        keys = self._keys(wanted, names)
        problems = [
            Problem(_at(wanted, index, "depends_on"), f"there is no job with the key {other!r} in this template")
            for index, new in enumerate(wanted)
            for other in new.depends_on
            if other not in keys
        ]
        if problems:
            raise Invalid(problems[:MOST_PROBLEMS])
        waits = {
            name: [keys[id_of(other)] for other in new.depends_on]
            for name, new in zip(names, wanted, strict=True)
            if new.depends_on
        }
        made = {name: index for index, name in enumerate(names)}
        self._refuse_cycle(wanted, made, waits, mode is GroupMode.SEQUENTIAL)

    def _problems(self, new: NewJob, now: Instant, is_complete: bool = True) -> list[Problem]:
        problems = request_checks.problems(new, now, self._webhooks.allow_private, self._webhooks.format_words)
        if any(problem.field.startswith(("job_type", "params")) for problem in problems):
            return problems
        try:
            job_type = self._job_types.get(new.job_type or "")
            if job_type.check_role is not None:
                job_type.check_role(new.role, None)
        except UnknownJobType as error:
            if not problems:
                raise
            return problems + error.problems
        return problems + self._params_problems(job_type, new.params, is_complete)

    def _problems_of_params(self, new: NewJob) -> list[Problem]:
        found = request_checks.params_problems(new.params)
        return found or self._params_problems(self._job_types.get(new.job_type or ""), new.params)

    def _params_problems(
        self, job_type: JobType, params: Mapping[str, Json], is_complete: bool = True
    ) -> list[Problem]:
        size = column_codec.size(params)
        if size > self.max_params_bytes:
            return [Problem("params", f"{size:,} bytes of JSON; at most {self.max_params_bytes:,} are allowed")]
        return job_type.problems(params) if is_complete else job_type.problems_so_far(params)

    def _keys(self, wanted: Sequence[NewJob], answers: Sequence[str]) -> dict[str, str]:
        """Returns the job id of each key."""
        keys: dict[str, str] = {}
        for index, new in enumerate(wanted):
            if new.key is not None:
                if new.key in keys:
                    raise Invalid(f"two jobs have the key {new.key!r}", field=f"jobs.{index}.key")
                keys[new.key] = answers[index]
        return keys

    def _waits(
        self, tx: Tx, wanted: Sequence[NewJob], made: Mapping[str, int], keys: Mapping[str, str]
    ) -> dict[str, list[str]]:
        """Returns the ids of the prerequisites of each new job. Refuses unknown ids and those of other offices."""
        waits = {
            job_id: [keys.get(id_of(other), id_of(other)) for other in wanted[index].depends_on]
            for job_id, index in made.items()
            if wanted[index].depends_on
        }
        if not waits:
            return waits
        office_of = {job_id: wanted[index].office_id for job_id, index in made.items()}
        outside = {other for others in waits.values() for other in others if other not in office_of}
        office_of |= {job_id: office_id for job_id, (_, office_id) in jobs.chains(tx, outside).items()}
        names = _names(keys)
        problems = []
        for job_id, others in waits.items():
            index, office_id = made[job_id], office_of[job_id]
            for other in others:
                if office_of.get(other) != office_id:
                    problem = f"there is no job or key {names.get(other, other)!r} in the office {office_id!r}"
                    problems.append(Problem(_at(wanted, index, "depends_on"), problem))
        if problems:
            raise Invalid(problems)
        return waits

    def _refuse_cycle(
        self,
        wanted: Sequence[NewJob],
        made: Mapping[str, int],
        waits: Mapping[str, list[str]],
        is_sequential: bool,
    ) -> None:
        """Raises DependencyCycle if jobs wait for each other; in a sequential group, each waits for the one before."""
        if not waits:
            return
        edges = dict(waits)
        if is_sequential:
            for before, job_id in pairwise(made):
                edges[job_id] = [*waits.get(job_id, ()), before]
        refuse_cycle(edges, {job_id: wanted[index].key or job_id for job_id, index in made.items()})

    def _drafts(
        self,
        tx: Tx,
        wanted: Sequence[NewJob],
        forms: Sequence[Form],
        made: Mapping[str, int],
        now: Instant,
        group: Group | None,
    ) -> dict[str, Job]:
        """Returns the jobs to store. Raises Invalid with the problems of all requests."""
        known = _SharedValues()
        problems: list[Problem] = []
        drafts: dict[str, Job] = {}
        for job_id, index in made.items():
            try:
                drafts[job_id] = self._draft(tx, wanted[index], forms[index], job_id, known, now, group, index)
            except Invalid as error:
                if len(wanted) == 1:
                    raise
                problems += [Problem(_at(wanted, index, problem.field), problem.problem) for problem in error.problems]
                if len(problems) >= MOST_PROBLEMS:
                    break
        if problems:
            raise Invalid(problems)
        return drafts

    def office(self, tx: Tx, office_id: str) -> Office:
        office = offices.get(tx, office_id)
        if office is None:
            raise NotFound("office", office_id)
        if office.status != "active":
            raise Invalid(f"the office {office_id!r} is archived", field="office_id")
        return office

    def _draft(
        self,
        tx: Tx,
        new: NewJob,
        form: Form,
        job_id: str,
        known: _SharedValues,
        now: Instant,
        group: Group | None = None,
        index: int | None = None,
    ) -> Job:
        """Returns the job for a request. Copies the last job if the request is like the last one: that is faster."""
        job_type = self._job_types.get(new.job_type or "")
        needs, affinity = job_type.needs(new.params), new.affinity or job_type.affinity(new.params)
        like = known.prototype
        if like is None or form != known.form or needs != known.needs or affinity != known.affinity:
            like = known.prototype = self._prototype(tx, new, needs, affinity, known, now, group)
            known.form, known.needs, known.affinity = form, needs, affinity
        position = self._queue.back(tx, like.office_id, like.priority)
        draft = like._replace(job_id=job_id, chain_id=job_id, params=new.params, position=position)
        if group is None:
            return draft
        return draft._replace(sequence=index, is_turn=group.mode is GroupMode.PARALLEL or index == 0)

    def _prototype(
        self,
        tx: Tx,
        new: NewJob,
        needs: Mapping[str, int],
        affinity: str | None,
        known: _SharedValues,
        now: Instant,
        group: Group | None,
    ) -> Job:
        job_type = self._job_types.get(new.job_type or "")
        added = resource_units(new.resources)
        limit_keys = None if new.limit_keys is None else tuple(dict.fromkeys(new.limit_keys))
        kind = (
            *(new.office_id, new.job_type, new.role, affinity, limit_keys),
            *(tuple(needs.items()), tuple(added.items())),
        )
        if kind not in known.kinds:
            if len(known.kinds) == MOST_KINDS:
                has = f"has more than {MOST_KINDS:,} different combinations of job type, role, resources and keys"
                raise Invalid(f"the request {has}; send its jobs in several requests", field="role")
            known.kinds[kind] = self._kind(tx, new, job_type, needs, added, affinity)
        office, resources, lane_id, retry_policy = known.kinds[kind]
        own = office.roles.get(new.role or "", {}).get("timeout_seconds")
        by_default = job_type.timeout_seconds or own or self._job_types.role_timeouts.get(new.role or "")
        kept = new.kept()
        kept["timeout_seconds"] = new.timeout_seconds or by_default or office.timeout_of(new.role)
        kept["limit_keys"], kept["affinity"] = limit_keys, affinity
        is_awaiting = new.await_signal is not None
        if new.await_signal is not None:
            kept["await_signal"] = signals.completed(new.await_signal)
        kept["stall_timeout_seconds"] = new.stall_timeout_seconds or job_type.stall_timeout_seconds
        return Job(
            **kept,
            job_id="",
            office_id=new.office_id,
            lane_id=lane_id,
            job_type=new.job_type or "",
            params={},
            stage=Stage.QUEUED,
            priority=URGENT if new.urgent else new.priority or 0,
            position=0,
            created_at=now,
            queued_at=now,
            chain_id="",
            retry_policy=request_checks.retry_policy(new.retry_policy, retry_policy),
            on_dependency_failure=OnDependencyFailure(new.on_dependency_failure or office.on_dependency_failure),
            resources=resources,
            group_id=None if group is None else group.group_id,
            is_due=new.scheduled_for is None or new.scheduled_for <= now,
            is_awaiting=is_awaiting,
            unmet=int(is_awaiting),
        )

    def _kind(
        self,
        tx: Tx,
        new: NewJob,
        job_type: JobType,
        needs: Mapping[str, int],
        added: Mapping[str, int],
        affinity: str | None,
    ) -> _Kind:
        office = self.office(tx, new.office_id)
        if job_type.check_role is not None:
            job_type.check_role(new.role, office)
        resources = self._resources(office, new.role, job_type.name, needs, added)
        lane_id = self._lanes.lane_for(tx, office, new.role, job_type.name, resources, affinity, new.limit_keys)
        return _Kind(
            office, resources, lane_id, request_checks.retry_policy(job_type.retry_policy, office.retry_policy)
        )

    def _resources(
        self, office: Office, role: str | None, job_type: str, own: Mapping[str, int], added: Mapping[str, int]
    ) -> dict[str, int]:
        """Returns the resources of the type and of the request. Raises if a job needs more units of one than exist."""
        units = {**own, **{name: max(count, own.get(name, 0)) for name, count in added.items()}}
        for key, needed in self._lanes.policy.keys(office.office_id, role, job_type, units).items():
            capacity = self._lanes.policy.capacity(key, office) if needed > 1 else 0
            if 0 < capacity < needed:
                problem = f"needs {needed} units of {key!r}, which has only {capacity}; ask for fewer"
                raise Invalid(problem, field="resources")
        return units

    # From drafts to rows.

    def _store(
        self,
        tx: Tx,
        drafts: dict[str, Job],
        waits: Mapping[str, Sequence[str]],
        now: Instant,
        group: Group | None,
        names: Mapping[str, str],
    ) -> dict[str, Job]:
        edges = self._resolver.edges(tx, waits, drafts, names) if waits else []
        unmet: dict[str, int] = {}
        for edge in edges:
            unmet[edge.job_id] = unmet.get(edge.job_id, 0) + (not edge.is_met)
        for job_id, others in waits.items():
            count = unmet[job_id] + drafts[job_id].is_awaiting
            drafts[job_id] = drafts[job_id]._replace(unmet=count, depends_on=tuple(dict.fromkeys(others)))
        if group is not None:
            groups.insert(tx, group)
        self._queue.enqueue(tx, list(drafts.values()), now)
        if edges:
            dependencies.insert(tx, edges)
            doomed = self._resolver.doomed(tx, edges, drafts)
            if doomed:
                self._finisher.cancel_doomed(tx, doomed, now)
                return jobs.get_many(tx, drafts)
        return drafts


def _names(keys: Mapping[str, str]) -> dict[str, str]:
    """Returns the keys of a request's jobs by job id."""
    return {job_id: key for key, job_id in keys.items()}


def _template_problems(new: NewJob, known: Mapping[str, Template]) -> Iterator[Problem]:
    if new.schedule_id is not None:
        yield Problem("schedule_id", "cannot be given: only a schedule sets it; trigger the schedule instead")
    if new.template_id is None:
        return
    template = known.get(new.template_id) if isinstance(new.template_id, str) else None
    if template is None or template.office_id != new.office_id:
        there = f"there is no template {new.template_id!r} in the office {new.office_id!r}"
        yield Problem("template_id", f"{there}; create it, or give another")
    elif template.archived_at is not None:
        yield Problem("template_id", f"the template {template.name!r} was archived on {template.archived_at}")
    elif template.jobs is not None:
        instead = "give its id to POST /api/job-groups (`nextslot template submit`, `submit_group_from`)"
        yield Problem("template_id", f"the template {template.name!r} makes a group, not a job; {instead}")
    elif new.job_type is not None and new.job_type != template.job_type:
        yield Problem("job_type", f"the template {template.name!r} makes jobs of the type {template.job_type!r}")


def _group_template_problems(asked: NewGroup, template: Template | None) -> Iterator[Problem]:
    if template is None or template.office_id != asked.office_id:
        there = f"there is no template {asked.template_id!r} in the office {asked.office_id!r}"
        yield Problem("template_id", f"{there}; create it, or give another")
    elif template.archived_at is not None:
        yield Problem("template_id", f"the template {template.name!r} was archived on {template.archived_at}")
    elif template.jobs is None:
        instead = "give its id to POST /api/jobs (`submit_from`)"
        yield Problem("template_id", f"the template {template.name!r} makes one job, not a group; {instead}")


def _at(wanted: Sequence[NewJob], index: int, field: str) -> str:
    """Returns the name of a field, with the index of its job if there are several."""
    return field if len(wanted) == 1 else f"jobs.{index}.{field}"
