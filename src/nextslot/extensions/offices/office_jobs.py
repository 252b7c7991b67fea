"""OfficeJobs: reads and changes an office's jobs, a chain at a time. `OfficeJobService` calls it.

Reads handle many chains at once: a page costs a few statements, however long its chains or the history are.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from nextslot.domain import (
    URGENT,
    Event,
    Job,
    NewJob,
    Office,
    RunStatus,
)
from nextslot.domain.job_lifecycle import Cancellation
from nextslot.errors import (
    MOST_PROBLEMS,
    Conflict,
    Invalid,
    NoHandler,
    NotFound,
    Problem,
    UnknownJobType,
)
from nextslot.extension_api.host import Accepted, Host, Started, Tx
from nextslot.extension_api.tables import events, jobs
from nextslot.services.offices import get_office
from nextslot.system.instant import Instant

from . import office_table as offices
from .office_table import RootPlace
from .office_words import (
    Blocker,
    OfficeJob,
    OfficeJobStatus,
    OfficeStats,
    engine_priority,
    event_details,
    in_office_words,
    office_job,
    priority_problems,
    status_of,
)

# How many chains or events a request reads before it returns what it has found, with a cursor.
MOST_LOOKED_AT = 5_000
STEP = 500

Key = tuple[int | str, ...]


class Filter(NamedTuple):
    status: OfficeJobStatus | None = None
    role: str | None = None
    task_id: str | None = None

    def takes(self, job: OfficeJob) -> bool:
        return (
            (self.status is None or job.status is self.status)
            and (self.role is None or job.role == self.role)
            and (self.task_id is None or job.task_id == self.task_id)
        )


class OfficeJobs:
    def __init__(self, host: Host) -> None:
        self._job_types = host.job_types
        self._dispatcher = host.dispatcher
        self._intake = host.intake
        self._queue = host.queue
        self._retries = host.retries
        self._finisher = host.finisher

    # Reads.

    def get(self, tx: Tx, office_id: str, job_id: str) -> OfficeJob:
        return views(tx, [_chain(tx, office_id, job_id)[0].job_id])[0]

    def page(
        self, tx: Tx, office_id: str, wanted: Filter, after: Key | None, limit: int
    ) -> tuple[list[OfficeJob], Key | None]:
        """Returns matching jobs by age, or waiting ones in the order of the queue, and the place of the next page."""
        get_office(tx, office_id)
        find = source_of(wanted).find
        found: list[OfficeJob] = []
        looked_at = 0
        while looked_at < MOST_LOOKED_AT:
            places = find(tx, office_id, wanted.task_id, after, STEP if wanted != Filter() else limit - len(found))
            if not places:
                return found, None
            for (after, _), view in zip(places, views(tx, [chain_id for _, chain_id in places]), strict=True):
                if wanted.takes(view):
                    found.append(view)
                    if len(found) == limit:
                        return found, after
            looked_at += len(places)
        return found, after

    def stats(self, tx: Tx, office_id: str) -> OfficeStats:
        """Returns the counts of an office's jobs, from sums that every change updates."""
        get_office(tx, office_id)
        sums = offices.sums(tx, office_id)
        done = sums.completed + sums.skipped
        ended = done + sums.failed + sums.cancelled
        return OfficeStats(
            office_id=office_id,
            pending=sums.chains - ended - sums.running - sums.ready,
            ready=sums.ready,
            processing=sums.running,
            done=done,
            failed=sums.failed,
            cancelled=sums.cancelled,
            avg_completion_time=round(sums.completion_us / sums.completed / 1000, 3) if sums.completed else 0.0,
        )

    def events(self, tx: Tx, office_id: str, after: int, limit: int) -> tuple[list[Event], int, bool]:
        """Returns the events of an office from a number on, oldest first, with the ids of its office jobs.

        Also returns the number from which to continue, and whether there may be more events now.
        """
        get_office(tx, office_id)
        found: list[Event] = []
        for _ in range(MOST_LOOKED_AT // STEP):
            seen = events.after(tx, after, STEP)
            for event in seen:
                after = event.seq
                if event.office_id == office_id:
                    found.append(event)
                    if len(found) == limit:
                        return events_in_office_words(tx, found), after, True
            if len(seen) < STEP:
                return events_in_office_words(tx, found), after, False
        return events_in_office_words(tx, found), after, True

    # Changes.

    def submit(self, tx: Tx, wanted: Sequence[NewJob], now: Instant) -> tuple[list[OfficeJob], bool]:
        """Puts a graph of jobs into the queue, all or none; returns them, and whether they are new."""
        self._refuse_unhandled(tx, wanted)
        try:
            accepted = self._intake.accept(tx, wanted, now)
        except Invalid as error:
            if type(error) is Invalid:
                raise in_office_words(error, len(wanted)) from error
            raise
        if all(one.is_new for one in accepted):
            return _fresh(tx, accepted), True
        return views(tx, [one.job.chain_id for one in accepted]), False

    def _refuse_unhandled(self, tx: Tx, wanted: Sequence[NewJob]) -> None:
        """Raises NoHandler for jobs that no handler can run, with all of these jobs in one error."""
        verdicts: dict[tuple[str, str | None], list[Problem]] = {}
        problems: list[Problem] = []
        for index, new in enumerate(wanted):
            if not isinstance(new.job_type, str) or not isinstance(new.role, str | None):
                continue  # The intake reports what is wrong with this job.
            known = verdicts.get((new.job_type, new.role))
            if known is None:
                known = verdicts[new.job_type, new.role] = self._handler_problems(new, get_office(tx, new.office_id))
            problems += [Problem(f"jobs.{index}.{one.field}", one.problem) for one in known]
            if len(problems) >= MOST_PROBLEMS:
                break
        if problems:
            raise NoHandler(problems)

    def _handler_problems(self, new: NewJob, office: Office) -> list[Problem]:
        try:
            job_type = self._job_types.get(new.job_type or "")
            if job_type.check_role is not None:
                job_type.check_role(new.role, office)
        except UnknownJobType as error:
            return error.problems
        return []

    def retry(self, tx: Tx, office_id: str, job_id: str, now: Instant) -> OfficeJob:
        """Retries the chain's failed run by hand, or brings its waiting retry forward."""
        chain = _chain(tx, office_id, job_id)
        found = offices.runs_of(tx, [job.job_id for job in chain])
        failed = [run for job in chain if (run := found.get(job.job_id)) and run.status is RunStatus.FAILED]
        if not failed:
            status = status_of(chain, found)
            raise Conflict(f"job {chain[0].job_id} is {status} and has not failed: there is nothing to retry")
        self._retries.retry_by_hand(tx, failed[-1].run_id, None, now)
        return views(tx, [chain[0].job_id])[0]

    def cancel(
        self, tx: Tx, office_id: str, job_id: str, reason: str | None, interrupt: bool | None, now: Instant
    ) -> tuple[OfficeJob, Cancellation]:
        chain = _chain(tx, office_id, job_id)
        done = self._finisher.cancel(tx, chain[-1].job_id, reason, interrupt, now)
        return views(tx, [chain[0].job_id])[0], done.cancellation

    def change_priority(
        self, tx: Tx, office_id: str, job_id: str, priority: int | None, urgent: bool | None, now: Instant
    ) -> OfficeJob:
        """Changes the priority of a job that has not started: lower goes first, urgent before all others (US-JS05)."""
        problems = [] if priority is None else list(priority_problems(priority))
        if priority is None and urgent is None:
            problems.append(Problem("priority", "say a priority, or urgent"))
        if problems:
            raise Invalid(problems)
        chain = _chain(tx, office_id, job_id)
        usual = 0 if chain[-1].priority == URGENT else chain[-1].priority
        wanted = usual if priority is None else engine_priority(priority)
        self._queue.change_priority(tx, chain[-1].job_id, URGENT if urgent else wanted, now)
        return views(tx, [chain[0].job_id])[0]

    def process(self, tx: Tx, office_id: str) -> Started:
        """Includes the office in this transaction's dispatch round; the result then has the started jobs."""
        get_office(tx, office_id)
        return self._dispatcher.look_at(tx, office_id)


def _chain(tx: Tx, office_id: str, job_id: str) -> list[Job]:
    """Returns the chain of this office that contains a job."""
    get_office(tx, office_id)
    job = jobs.get(tx, job_id)
    if job is None or job.office_id != office_id:
        raise NotFound(f"job in the office {office_id!r}", job_id)
    return jobs.chain(tx, job.chain_id)


# Chains as office jobs.


def views(tx: Tx, chain_ids: Sequence[str]) -> list[OfficeJob]:
    """Makes office jobs from chains, in the given order, with a few statements for all of them."""
    chains = _chains(tx, chain_ids)
    runs = offices.runs_of(tx, [job.job_id for chain in chains.values() for job in chain])
    waiting = [chain[0].job_id for chain in chains.values() if chain[-1].unmet > 0]
    unmet = offices.unmet(tx, waiting) if waiting else []
    became = _statuses(tx, {chain_id for _, chain_id in unmet}) if unmet else {}
    blockers: dict[str, list[Blocker]] = {}
    for job_id, chain_id in unmet:
        blockers.setdefault(job_id, []).append(Blocker(job_id=chain_id, status=became[chain_id]))
    return [office_job(chains[chain_id], runs, blockers.get(chain_id, ())) for chain_id in chain_ids]


def _fresh(tx: Tx, accepted: Sequence[Accepted]) -> list[OfficeJob]:
    """Makes office jobs from new jobs: reads only the older jobs for which they wait."""
    new = {one.job.job_id: one.job for one in accepted}
    outside = {other for job in new.values() for other in job.depends_on if other not in new}
    chain_of = {job_id: chain_id for job_id, (chain_id, _) in jobs.chains(tx, outside).items()} if outside else {}
    became = _statuses(tx, set(chain_of.values())) if outside else {}
    became |= {job_id: status_of([job], {}) for job_id, job in new.items()}

    def blockers(job: Job) -> list[Blocker]:
        waits_for = dict.fromkeys(chain_of.get(other, other) for other in job.depends_on)
        open_ = (other for other in waits_for if became[other] is not OfficeJobStatus.DONE)
        return [Blocker(job_id=other, status=became[other]) for other in open_]

    return [office_job([one.job], {}, blockers(one.job)) for one in accepted]


def _chains(tx: Tx, chain_ids: Iterable[str]) -> dict[str, list[Job]]:
    """Returns each chain from its first job on."""
    chains = {chain_id: [job] for chain_id, job in jobs.get_many(tx, chain_ids).items()}
    following = {job.retry_of: job for job in offices.later(tx, chains)}
    for chain in chains.values() if following else ():
        while (job := following.get(chain[-1].job_id)) is not None:
            chain.append(job)
    return chains


def _statuses(tx: Tx, chain_ids: Iterable[str]) -> dict[str, OfficeJobStatus]:
    chains = _chains(tx, chain_ids)
    before = [chain[-1].retry_of for chain in chains.values() if chain[-1].retry_of is not None]
    runs = offices.runs_of(tx, before) if before else {}
    return {chain_id: status_of(chain, runs) for chain_id, chain in chains.items()}


def events_in_office_words(tx: Tx, found: Sequence[Event]) -> list[Event]:
    """Returns the events in office words, with the first job of the chain in place of a retry."""
    chains = jobs.chains(tx, {event.job_id for event in found if event.job_id is not None})

    def root_of(job_id: str | None) -> str | None:
        return chains[job_id][0] if job_id in chains else job_id

    return [replace(event, job_id=root_of(event.job_id), details=event_details(event.details)) for event in found]


# Reads the chains behind a key, each with its key, in the order of their keys.

Find = Callable[[Tx, str, str | None, Key | None, int], list[tuple[Key, str]]]


class Source(NamedTuple):
    """A list of chains: its name, the types of its keys, and the function that reads it from a key on."""

    name: str
    shape: tuple[type, ...]
    find: Find


def source_of(wanted: Filter) -> Source:
    """Chooses the smallest list that has all matching chains."""
    if wanted.task_id is not None or wanted.status is None:
        return _BY_AGE
    return _QUEUED if wanted.status in _WAITING else _BY_STATUS.get(wanted.status, _BY_AGE)


def _by_age(tx: Tx, office_id: str, task_id: str | None, after: Key | None, limit: int) -> list[tuple[Key, str]]:
    found = offices.roots(tx, office_id, task_id, RootPlace(*(after or (-1, ""))), limit)  # type: ignore[arg-type]
    return [(place, place.job_id) for place in found]


def _queued(tx: Tx, office_id: str, task_id: str | None, after: Key | None, limit: int) -> list[tuple[Key, str]]:
    found = jobs.queue(tx, office_id, None if after is None else jobs.Place(*after), limit)  # type: ignore[arg-type]
    return [(jobs.place_of(job), job.chain_id) for job in found]


def _running(tx: Tx, office_id: str, task_id: str | None, after: Key | None, limit: int) -> list[tuple[Key, str]]:
    beginning = "" if after is None else str(after[0])
    found = sorted(job.chain_id for job in jobs.running_of(tx, office_id) if job.chain_id > beginning)
    return [((chain_id,), chain_id) for chain_id in found[:limit]]


def _failed(tx: Tx, office_id: str, task_id: str | None, after: Key | None, limit: int) -> list[tuple[Key, str]]:
    found = offices.failed(tx, office_id, "" if after is None else str(after[0]), limit)
    return [((chain_id,), chain_id) for chain_id in found]


def _cancelled(tx: Tx, office_id: str, task_id: str | None, after: Key | None, limit: int) -> list[tuple[Key, str]]:
    found = offices.cancelled(tx, office_id, "" if after is None else str(after[0]), limit)
    return [((chain_id,), chain_id) for chain_id in found]


_WAITING = frozenset({OfficeJobStatus.PENDING, OfficeJobStatus.READY, OfficeJobStatus.TIMEOUT})
_BY_AGE = Source("office_jobs", (int, str), _by_age)
_QUEUED = Source("office_queue", (int, int, int, str), _queued)
_BY_STATUS = {
    OfficeJobStatus.PROCESSING: Source("office_running", (str,), _running),
    OfficeJobStatus.FAILED: Source("office_failed", (str,), _failed),
    OfficeJobStatus.CANCELLED: Source("office_cancelled", (str,), _cancelled),
}
