"""AdoptService: stores the work of older systems as jobs of nextslot, and finds it by its old ids.

The commands call `adopt` while no server runs. Each job or group is one transaction with its aliases, so a killed
adoption has stored each of them once or not at all, and the next adoption stores the rest. A server with this extension
translates old ids in the paths of requests.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from nextslot.domain import GroupMode, Job, Json, NewGroup, OnFailure, Outcome, RunStatus, Stage
from nextslot.errors import Conflict, Invalid, NextslotError, NotFound
from nextslot.extension_api import Attached
from nextslot.extension_api.host import Host, Tx
from nextslot.extension_api.tables import aliases, jobs, offices
from nextslot.system.instant import Instant

from .old_work import Found, Left, OldGroup, OldJob, OldText

# Ids of nextslot are UUIDs of version 7, which no older system made, so these are never looked up as aliases.
_OURS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}(-\d{3})?")
_LINKS = (
    ("job", re.compile(r"(/api/jobs/)([^/]+)(.*)")),
    ("job", re.compile(r"(/api/offices/[^/]+/jobs/)([^/]+)(.*)")),
    ("group", re.compile(r"(/jobs/batch/|/api/job-groups/)([^/]+)(.*)")),
    ("job", re.compile(r"(/jobs/)([^/]+)(.*)")),
    ("run", re.compile(r"(/api/job-runs/)([^/]+)(.*)")),
    ("story", re.compile(r"(/api/stories/)([^/]+)(.*)")),
    ("card", re.compile(r"(/api/research-cards/)([^/]+)(.*)")),
)


@runtime_checkable
class Library(Protocol):
    """The methods of the extension `stories` that adoption needs."""

    def past_stories(
        self, run_id: str, job_id: str, at: Instant, stories: Sequence[Mapping[str, Any]]
    ) -> tuple[dict[str, Json], dict[str, str]]:
        """Returns the result of a run that wrote these stories, and its files."""

    def past_card(
        self, run_id: str, job_id: str, at: Instant, card: Mapping[str, Any]
    ) -> tuple[dict[str, Json], dict[str, str]]:
        """Returns the result of a run that made this research card, and its files."""


@dataclass(slots=True)
class Report:
    """The result of an adoption, or of a trial."""

    jobs: int = 0
    groups: int = 0
    stories: int = 0
    cards: int = 0
    queued: int = 0
    crashed: int = 0
    known: int = 0
    left: list[Left] = field(default_factory=list)

    def count(self, job: OldJob) -> None:
        self.jobs += 1
        self.stories += len(job.stories)
        self.cards += job.card is not None
        self.queued += not job.has_ended
        self.crashed += any(one.outcome.failure_kind == "crash" for one in job.attempts)


class AdoptService(Attached):
    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._report = Report()

    # Adoption.

    async def adopt(self, found: Found) -> Report:
        """Stores the work that is not stored yet. Safe to repeat, also after a killed adoption."""
        report = self._report = Report(left=list(found.left))
        all_jobs = [*found.jobs, *(member for group in found.groups for member in group.members)]
        self._know_types(all_jobs)
        for office_id in {job.new.office_id for job in all_jobs}:
            await self._have_office(office_id)
        for group in found.groups:
            if await self._stored(group, lambda tx, group=group: self._adopt_group(tx, group)):
                report.groups += 1
                for member in group.members:
                    report.count(member)
        for job in found.jobs:
            if await self._stored(job, lambda tx, job=job: self._adopt_job(tx, job)):
                report.count(job)
        return report

    def would_adopt(self, found: Found) -> Report:
        """Returns what an adoption into an empty database would store, and what it would leave out. Stores nothing."""
        report = Report(left=list(found.left))
        self._know_types([*found.jobs, *(member for group in found.groups for member in group.members)])
        for group in found.groups:
            if self._is_accepted(group, group.members, report):
                report.groups += 1
                for member in group.members:
                    report.count(member)
        taken: set[str] = set()
        for job in found.jobs:
            if lost := [other for other in job.depends_on if other not in taken]:
                report.left.append(Left(job.source, f"it waits for {', '.join(lost)}, which was not taken over"))
            elif self._is_accepted(job, [job], report):
                taken.add(job.alias)
                report.count(job)
        return report

    def _is_accepted(self, old: OldJob | OldGroup, members: Sequence[OldJob], report: Report) -> bool:
        """Returns whether the jobs would be accepted, and notes why not. Ended jobs are accepted as they were."""
        if any(member.has_ended for member in members):
            return True
        try:
            self.host.intake.check([member.new for member in members], old.created_at)
        except (Invalid, Conflict, NotFound) as error:
            report.left.append(Left(old.source, str(error)))
            return False
        return True

    async def _stored(self, old: OldJob | OldGroup, work: Any) -> bool:
        """Stores an item. Returns whether it was new; lists a refused item with the reason."""
        noted = len(self._report.left)
        try:
            is_new: bool = await self.host.work.write(work)
        except (Invalid, Conflict, NotFound) as error:
            del self._report.left[noted:]
            self._report.left.append(Left(old.source, str(error)))
            return False
        self._report.known += not is_new
        return is_new

    def _know_types(self, all_jobs: Sequence[OldJob]) -> None:
        """Lets this process store jobs whose type has no handler here, or whose role has no command."""
        types, wanted = self.host.job_types, {job.new.job_type or "" for job in all_jobs}
        for name in sorted(wanted - set(types.names())):
            types.add(name, _not_here)
        types.replace(wanted, {name: replace(types.get(name), check_role=None) for name in wanted})

    async def _have_office(self, office_id: str) -> None:
        if await self.host.work.read(lambda tx: offices.get(tx, office_id)) is None:
            await self.host.offices.create(office_id, name=office_id)

    def _adopt_group(self, tx: Tx, old: OldGroup) -> bool:
        if aliases.adopted(tx, "group", [old.source]):
            return False
        wanted = [member.new for member in old.members]
        is_past = any(member.has_ended for member in old.members)
        group, accepted = self.host.intake.accept_group(
            tx, NewGroup(jobs=wanted, mode=GroupMode.PARALLEL, on_failure=OnFailure.CONTINUE), old.created_at, is_past
        )
        self._alias(tx, "group", old.alias, group.group_id, old.source)
        pairs = list(zip(accepted, old.members, strict=True))
        for one, member in sorted(pairs, key=lambda pair: _end(pair[1])):
            self._replay(tx, one.job, member)
        return True

    def _adopt_job(self, tx: Tx, old: OldJob) -> bool:
        if aliases.adopted(tx, "job", [old.source]):
            return False
        found = {other: aliases.find(tx, "job", other) for other in old.depends_on}
        if lost := [other for other, job_id in found.items() if job_id is None]:
            raise Invalid(f"it waits for {', '.join(lost)}, which was not taken over")
        wanted = replace(old.new, depends_on=tuple(str(job_id) for job_id in found.values()))
        (accepted,) = self.host.intake.accept(tx, [wanted], old.created_at, is_past=old.has_ended)
        self._replay(tx, accepted.job, old)
        return True

    def _replay(self, tx: Tx, job: Job, old: OldJob) -> None:
        """Takes a new job through the events of the old job, at the old times."""
        self._alias(tx, "job", old.alias, job.job_id, old.source)
        run_id, at = "", job.created_at
        for number, attempt in enumerate(old.attempts, 1):
            is_last = number == len(old.attempts)
            started_at, at = max(attempt.started_at, at), max(attempt.finished_at, attempt.started_at, at)
            if run_id:
                job = self.host.retries.retry_by_hand(tx, run_id, None, started_at).job
            run_id = self.host.past.begin(tx, job, started_at, attempt.session_id)
            if is_last and old.cancelled_at is not None:
                self.host.finisher.cancel(tx, job.job_id, old.cancel_reason, True, at)
            outcome = attempt.outcome
            if is_last and outcome.status is RunStatus.COMPLETED and (old.stories or old.card):
                outcome = self._with_texts(tx, run_id, job.job_id, at, old)
            self.host.finisher.finish(tx, run_id, job.job_id, outcome, at)
            if attempt.alias is not None:
                self._alias(tx, "run", attempt.alias, run_id, f"run:{attempt.alias}")
        if old.cancelled_at is not None and not old.attempts:
            self.host.finisher.cancel(tx, job.job_id, old.cancel_reason, None, max(old.cancelled_at, at))
        elif run_id and not old.has_ended and jobs.chain(tx, job.chain_id)[-1].stage is not Stage.QUEUED:
            self.host.retries.retry_by_hand(tx, run_id, None, at)

    def _with_texts(self, tx: Tx, run_id: str, job_id: str, at: Instant, old: OldJob) -> Outcome:
        """Writes the files of stories or a card, before the commit that names them, and returns the outcome."""
        library = self.host.find("stories")
        if not isinstance(library, Library):
            raise Invalid(
                "the extension stories is disabled, and the library is part of it; enable it for the adoption"
            )
        if old.card is not None:
            result, files = library.past_card(run_id, job_id, at, _told(old.card))
            self._alias(tx, "card", old.card.alias, result["card_id"], old.card.source)
        else:
            result, files = library.past_stories(run_id, job_id, at, [_told(one) for one in old.stories])
            for story, made in zip(old.stories, result["stories"], strict=True):
                self._alias(tx, "story", story.alias, made["story_id"], story.source)
        directory = self.host.files.artifacts_directory(run_id)
        for name, content in files.items():
            (directory / name).write_text(content, "utf-8")
        return replace(Outcome.completed(result), artifacts=self.host.files.collect_artifacts(run_id))

    def _alias(self, tx: Tx, kind: str, alias: str, id: str, source: str) -> None:
        """Stores an old id as an alias. Old story ids may collide: the second one gets a number."""
        free, number = alias, 1
        while aliases.find(tx, kind, free) is not None:
            number += 1
            free = f"{alias}~{number}"
        if free != alias:
            self._report.left.append(Left(source, f"the id {alias} is another's already; it is found as {free}", True))
        aliases.insert(tx, kind, free, id, source)

    # Old links.

    def wrap(self, app: Any, root_path: str) -> Any:
        async def translated(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                scope = await self._translated(scope, root_path)
            await app(scope, receive, send)

        return translated

    async def _translated(self, scope: Any, root_path: str) -> Any:
        """Replaces an old id in a path by the id of nextslot, which all later steps use, checks of rights too."""
        path = scope["path"]
        prefix, rest = (root_path, path[len(root_path) :]) if root_path and path.startswith(root_path) else ("", path)
        for kind, link in _LINKS:
            if (found := link.fullmatch(rest)) is None:
                continue
            if _OURS.fullmatch(found[2]) or len(found[2]) > 200:
                return scope
            try:
                ours = await self.host.work.read(lambda tx, kind=kind, old=found[2]: aliases.find(tx, kind, old))  # type: ignore[misc]
            except NextslotError:  # The scheduler is starting or stopping; the route reports this.
                return scope
            if ours is None:
                return scope
            path = f"{prefix}{found[1]}{ours}{found[3]}"
            return {**scope, "path": path, "raw_path": path.encode()}
        return scope


def _end(old: OldJob) -> Instant:
    return old.attempts[-1].finished_at if old.attempts else old.cancelled_at or old.created_at


def _told(text: OldText) -> dict[str, Any]:
    return {
        "title": text.title,
        "text": text.text,
        "topic": text.topic,
        "tags": list(text.tags),
        "model": text.model,
        "summary": text.summary,
        "key_concepts": list(text.key_concepts),
        "applications": list(text.applications),
        "adopted_from": text.alias,
    }


async def _not_here(run: Any, **params: Any) -> None:
    raise AssertionError("an adoption runs nothing")
