"""OfficeJobService: the jobs and settings of an office in the words of the office API, and sessions by role.

`scheduler.extension(OfficeJobService)` returns this service; the routes and the command line call it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nextslot.domain import ROLE_TIMEOUTS, Event, Job, Json, Office, Page, request_checks
from nextslot.domain.filters import JobFilter
from nextslot.domain.job_lifecycle import Cancellation
from nextslot.errors import Invalid, NotFound
from nextslot.extension_api import Attached
from nextslot.extension_api.host import Host, Once, Replayed, Tx
from nextslot.extension_api.tables import jobs
from nextslot.services import cursors
from nextslot.services.arguments import choice
from nextslot.services.bulk import BulkCancelled, Counted
from nextslot.services.cursors import DEFAULT_LIMIT, checked_limit
from nextslot.services.offices import get_office

from .office_jobs import (
    Filter,
    OfficeJobs,
    events_in_office_words,
    source_of,
    views,
)
from .office_words import (
    SESSION,
    Execution,
    OfficeConfig,
    OfficeEvents,
    OfficeJob,
    OfficeJobStatus,
    OfficeRole,
    OfficeStats,
    config_of,
    in_config_words,
    new_jobs,
    settings_of,
    with_limits_of_roles,
)
from .role_sessions import RoleCommand, SessionHandler, checked_roles, register_session
from .settings import RoleTable


class OfficeJobService(Attached):
    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._jobs = OfficeJobs(host)
        self._sessions = SessionHandler(host.job_types.guardians, host.offices.get)
        host.webhooks.use_office_words(_message)

    # Sessions.

    def configure(self, tables: Mapping[str, Any], data: Path) -> None:
        """Applies the `[roles.ROLE]` tables."""
        roles: Mapping[str, RoleTable] = tables["roles"]
        self.use_roles({name: role.options() for name, role in roles.items() if role.command is not None}, data)
        # A role may have a timeout without a command: its jobs then name their own type.
        self.host.job_types.role_timeouts = {
            name: role.timeout_seconds for name, role in roles.items() if role.timeout_seconds is not None
        }

    def use_roles(
        self, roles: Mapping[str, RoleCommand | Mapping[str, Any]], base_dir: Path | str | None = None
    ) -> None:
        """Replaces the commands of roles, which run jobs without a type of their own: the job type `session`.

        `roles` have the form of the `[roles.ROLE]` tables of a configuration.
        """
        self._sessions.roles = checked = checked_roles(roles, base_dir, self.host.job_types.guardians)
        self._sessions.base_dir = Path(base_dir or Path.cwd())
        self._register()
        self.host.job_types.role_timeouts = {
            name: role.timeout_seconds for name, role in checked.items() if role.timeout_seconds is not None
        }

    async def start(self) -> None:
        self._register()  # An office may have a command for a role although the configuration has none.

    def _register(self) -> None:
        if SESSION not in self.host.job_types:
            register_session(self.host.job_types, self._sessions)

    async def roles(self, office_id: str) -> list[OfficeRole]:
        """Returns the roles that the office or the configuration knows, and those with a timeout by default."""
        office = await self.host.offices.get(office_id)
        known = {*office.roles, *self._sessions.roles, *office.role_limits, *ROLE_TIMEOUTS}
        return [self._role(office, name) for name in sorted({*known, *self.host.job_types.role_timeouts})]

    async def put_role(
        self,
        office_id: str,
        role: str,
        *,
        command: Sequence[str] | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_ms: float | None = None,
        resume_args: Sequence[str] | None = None,
        resume_on: Sequence[str] | None = None,
        session_id_pattern: str | None = None,
    ) -> OfficeRole:
        """Stores how an office runs the jobs of a role; other settings come from the configuration or defaults."""
        seconds = None if timeout_ms is None else timeout_ms / 1000
        given = {
            "command": command and list(command),
            "cwd": cwd,
            "env": env,
            "timeout_seconds": seconds,
            "resume_args": None if resume_args is None else list(resume_args),
            "resume_on": None if resume_on is None else list(resume_on),
            "session_id_pattern": session_id_pattern,
        }
        own = {name: value for name, value in given.items() if value is not None}
        checked_roles({role: {"command": ["true"], **own}}, self._sessions.base_dir, self.host.job_types.guardians)
        office = await self.host.offices.change_from(office_id, lambda before: {"roles": {**before.roles, role: own}})
        return self._role(office, role)

    async def delete_role(self, office_id: str, role: str) -> OfficeRole:
        """Removes an office's own settings of a role."""

        def without(before: Office) -> dict[str, Any]:
            if role not in before.roles:
                raise NotFound(f"role of the office {office_id!r} with settings of its own", role)
            return {"roles": {name: settings for name, settings in before.roles.items() if name != role}}

        return self._role(await self.host.offices.change_from(office_id, without), role)

    def _role(self, office: Office, name: str) -> OfficeRole:
        own, found = office.roles.get(name, {}), self._sessions.role(office, name)
        by_file = self.host.job_types.role_timeouts.get(name)
        # A role without a command has no session yet, but its result contains the settings of the office.
        cwd = self._sessions.base_dir / own["cwd"] if "cwd" in own else None if found is None else found.command.cwd
        return OfficeRole(
            role=name,
            command=None if found is None else found.command.command,
            cwd=None if cwd is None else str(cwd),
            env={**({} if found is None else found.command.env), **own.get("env", {})},
            timeout_seconds=own.get("timeout_seconds") or by_file or office.timeout_of(name),
            max_concurrent=office.role_limits.get(name) or None,
            is_own=name in office.roles,
            resume_args=() if found is None else found.resume_args,
            resume_on=() if found is None else tuple(sorted(found.resume_on)),
            session_id_pattern=None if found is None else found.session_id_pattern,
        )

    # Jobs.

    async def submit(
        self,
        office_id: str,
        jobs: Sequence[Mapping[str, Any]],
        task_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> list[OfficeJob]:
        """Submits a graph of jobs, all or none; they depend on each other by `key`, on others by id.

        Each has `description`, `role`, and optionally `key`, `priority` (the lower the sooner), `depends_on`,
        `timeout_ms`, `params`, `urgent`, `job_type` and `await_signal`.
        """
        return (await self.accept(office_id, jobs, task_id, idempotency_key))[0]

    async def accept(
        self,
        office_id: str,
        jobs: Sequence[Mapping[str, Any]],
        task_id: str | None = None,
        idempotency_key: str | None = None,
        created_by: str | None = None,
    ) -> tuple[list[OfficeJob], bool]:
        """Does the same as `submit`, and returns whether the jobs are new or existed before."""
        wanted = new_jobs(office_id, jobs, task_id, created_by)

        def work(tx: Tx) -> tuple[list[OfficeJob], bool]:
            get_office(tx, office_id)
            return self._jobs.submit(tx, wanted, self.host.work.clock.now())

        once: Once[tuple[list[OfficeJob], bool]] = Once("office_jobs", office_id, wanted, _ids_of)
        try:
            return await self.host.work.with_key(idempotency_key).create(work, max(len(wanted), 1), once)
        except Replayed as known:
            ids = list(known.ids)
            return await self.host.work.read(lambda tx: views(tx, ids)), False

    async def jobs(
        self,
        office_id: str,
        status: OfficeJobStatus | str | None = None,
        role: str | None = None,
        task_id: str | None = None,
        cursor: str | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> Page[OfficeJob]:
        """Returns matching jobs. A page may have fewer than `limit`, or none, and still not be the last."""
        checked_limit(limit)
        wanted = Filter(None if status is None else choice(OfficeJobStatus, status, "status"), role, task_id)
        source = source_of(wanted)
        after = cursors.decode(source.name, cursor, source.shape)
        found, goes_on = await self.host.work.read(lambda tx: self._jobs.page(tx, office_id, wanted, after, limit))
        return Page(tuple(found), cursors.encode(source.name, goes_on))

    async def job(self, office_id: str, job_id: str) -> OfficeJob:
        return await self.host.work.read(lambda tx: self._jobs.get(tx, office_id, job_id))

    async def executions(self, office_id: str, job_id: str) -> tuple[Execution, ...]:
        """Returns each attempt of a job, from the first on."""
        return (await self.job(office_id, job_id)).executions

    async def retry(self, office_id: str, job_id: str) -> OfficeJob:
        """Retries a failed job, even after its last retry; a job that waits for its retry runs now."""
        return await self.host.work.create(
            lambda tx: self._jobs.retry(tx, office_id, job_id, self.host.work.clock.now())
        )

    async def cancel(
        self, office_id: str, job_id: str, reason: str | None = None, interrupt: bool | None = None
    ) -> tuple[OfficeJob, Cancellation]:
        """Cancels a job. Returns the job, and whether it is cancelled, was interrupted, or finishes first."""
        return await self.host.work.write(
            lambda tx: self._jobs.cancel(tx, office_id, job_id, _reason(reason), interrupt, self.host.work.clock.now())
        )

    async def cancel_all(
        self, office_id: str, task_id: str | None = None, include_running: bool = True, reason: str | None = None
    ) -> BulkCancelled:
        """Cancels every unfinished job of the office, or of one of its tasks; interrupts running jobs.

        Uses small transactions, so that a large office does not delay the others (US-JS06).
        """
        await self.host.offices.get(office_id)
        wanted = JobFilter(office_id=office_id, task_id=() if task_id is None else task_id)
        done = await self.host.bulk.cancel(wanted, include_running=include_running, reason=reason)
        return await self.host.work.read(lambda tx: _by_chain(tx, done))

    async def change_priority(
        self, office_id: str, job_id: str, priority: int | None = None, urgent: bool | None = None
    ) -> OfficeJob:
        return await self.host.work.write(
            lambda tx: self._jobs.change_priority(tx, office_id, job_id, priority, urgent, self.host.work.clock.now())
        )

    # Statistics, settings and events.

    async def stats(self, office_id: str) -> OfficeStats:
        """Counts the office's jobs by status, at a cost that does not grow with their number."""
        return await self.host.work.read(lambda tx: self._jobs.stats(tx, office_id))

    async def config(self, office_id: str) -> OfficeConfig:
        return config_of(await self.host.offices.get(office_id))

    async def change_config(self, office_id: str, changes: Mapping[str, Any]) -> OfficeConfig:
        """Changes settings by their names in the office API, times in milliseconds. A lower limit stops no job."""
        settings = settings_of(changes)
        try:
            changed = await self.host.offices.change_from(office_id, partial(with_limits_of_roles, settings))
            return config_of(changed)
        except Invalid as error:
            raise in_config_words(error) from error

    async def process(self, office_id: str) -> list[OfficeJob]:
        """Dispatches the office's queue, and returns the jobs that this started: usually none."""
        started = await self.host.work.write(lambda tx: self._jobs.process(tx, office_id))
        job_ids = [claim.job_id for claim in started.claims if claim.office_id == office_id]
        return await self.host.work.read(lambda tx: _views_of(tx, job_ids))

    async def in_office_words(self, office_id: str, found: Sequence[Event]) -> list[Event]:
        """Returns the events of the office among these, in its words and signs, with the ids of office jobs."""
        own = [event for event in found if event.office_id == office_id]
        return await self.host.work.read(lambda tx: events_in_office_words(tx, own)) if own else []

    async def events(
        self, office_id: str, after: int = 0, cursor: str | None = None, limit: int = DEFAULT_LIMIT
    ) -> OfficeEvents:
        """Returns events after a number, oldest first, with the ids of office jobs; a cursor replaces `after`."""
        checked_limit(limit)
        (start,) = cursors.decode("office_events", cursor, (int,)) or (after,)
        found, last, has_more = await self.host.work.read(
            lambda tx: self._jobs.events(tx, office_id, int(start), limit)
        )
        next_cursor = cursors.encode("office_events", (last,) if has_more else None)
        return OfficeEvents(items=tuple(found), next_cursor=next_cursor, next_after=last)


def _message(tx: Tx, job: Job) -> dict[str, Json]:
    """Returns the message of an office's own webhook about a job: the office job, and the execution that has ended."""
    (view,) = views(tx, [job.chain_id])
    return {"job": view.to_dict(), "execution": view.executions[-1].to_dict() if view.executions else None}


def _ids_of(made: tuple[list[OfficeJob], bool]) -> list[str]:
    return [one.job_id for one in made[0]]


def _views_of(tx: Tx, job_ids: Sequence[str]) -> list[OfficeJob]:
    chains = jobs.chains(tx, job_ids)
    return views(tx, [chains[job_id][0] for job_id in job_ids])


def _by_chain(tx: Tx, done: BulkCancelled) -> BulkCancelled:
    """Returns the result of a bulk cancel with the ids of office jobs."""
    counts = (done.cancelled, done.stopping, done.finishing)
    chains = jobs.chains(tx, [job_id for counted in counts for job_id in counted.ids])
    return BulkCancelled(*(Counted(one.count, tuple(chains[job_id][0] for job_id in one.ids)) for one in counts))


def _reason(reason: str | None) -> str | None:
    problems = [] if reason is None else list(request_checks.text_problems("reason", reason))
    if problems:
        raise Invalid(problems)
    return reason
