"""The exception tree: every error a caller can meet has a `code` for programs and a sentence for people."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class NextslotError(Exception):
    """The root of everything nextslot raises on purpose."""

    code = "error"
    # What the server answered with, when the error came over HTTP.
    status: int | None = None

    def data(self) -> Mapping[str, object]:
        """Returns what a program may need in addition to the sentence."""
        return {}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a request: where, and what."""

    field: str
    problem: str

    def __str__(self) -> str:
        if not self.field:
            return self.problem
        return f"{self.field}{' ' if self.problem.startswith(_VERBS) else ': '}{self.problem}"


# How many problems of a large request are reported.
MOST_PROBLEMS = 100

# A problem that begins with a verb continues the name of its field: `priority is 1500; it must be …`.
_VERBS = ("is ", "are ", "has ", "must ", "does ", "contains ", "cannot ", "never ")


class Invalid(NextslotError):
    """The request cannot be carried out as it stands; every problem is named, and nothing was stored."""

    code = "invalid"

    def __init__(self, problems: Sequence[Problem] | str, field: str = "") -> None:
        self.problems = [Problem(field, problems)] if isinstance(problems, str) else list(problems)
        super().__init__("; ".join(str(problem) for problem in self.problems))

    def data(self) -> Mapping[str, object]:
        return {"errors": [{"field": p.field, "problem": p.problem} for p in self.problems]}


class NotEnded(NextslotError, TimeoutError):
    """The caller did not want to wait any longer; the job goes on."""

    code = "not_ended"

    def __init__(self, job_id: str, status: str, seconds: float) -> None:
        super().__init__(
            f"job {job_id} has not ended after {seconds:g} seconds: it is {status}; wait longer, or ask `why` what it "
            "waits for"
        )


class RunFailed(NextslotError):
    """The work of a direct request did not complete."""

    code = "run_failed"

    def __init__(self, job_type: str, status: str, error: str | None) -> None:
        super().__init__(f"{job_type} ended {status}: {error or 'no reason given'}")
        self.job_status = status
        self.error = error


class UnknownJobType(Invalid):
    code = "unknown_job_type"

    def __init__(self, job_type: str, known: Sequence[str], field: str = "job_type") -> None:
        there = ", ".join(sorted(known)) if known else "none is registered"
        super().__init__(f"there is no job type {job_type!r} (known: {there})", field=field)


class NoHandler(UnknownJobType):
    """Nothing runs these jobs: their types are not known, or their roles have no command."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        Invalid.__init__(self, problems)


class DependencyCycle(Invalid):
    code = "dependency_cycle"

    def __init__(self, cycle: Sequence[str]) -> None:
        self.cycle = list(cycle)
        super().__init__("these jobs wait for each other: " + " → ".join([*cycle, cycle[0]]), field="depends_on")

    def data(self) -> Mapping[str, object]:
        return {**super().data(), "cycle": self.cycle}


class TooManyJobs(Invalid):
    """A request of an office names more jobs than it may: other offices would wait for the transaction."""

    code = "too_many_jobs"

    def __init__(self, office_id: str, number: int, most: int) -> None:
        self.most = most
        may = f"a key of the office {office_id!r} may name {most:,} in one request"
        remedy = "send several requests, or ask an admin for more (`batch_jobs`)"
        super().__init__(f"has {number:,} items, and {may}; {remedy}", field="jobs")

    def data(self) -> Mapping[str, object]:
        return {**super().data(), "most": self.most}


class IdempotencyMismatch(Invalid):
    code = "idempotency_mismatch"


class NotFound(NextslotError):
    code = "not_found"

    def __init__(self, kind: str, name: str, where: str = "") -> None:
        super().__init__(f"there is no {kind} {name!r}" + (f" here: {where}" if where else ""))


class Forbidden(NextslotError):
    """The caller's key does not allow this."""

    code = "forbidden"


class OverQuota(NextslotError):
    """The office has used up what an admin has granted it."""

    code = "over_quota"

    def __init__(self, quota: str, granted: str) -> None:
        super().__init__(f"{granted}: try again later, or ask an admin for more (`{quota}`)")
        self.quota = quota


class Conflict(NextslotError):
    """The request is fine, but what it is about is not in a state that allows it."""

    code = "conflict"


class IllegalTransition(Conflict):
    code = "illegal_transition"


class AlreadyDispatched(Conflict):
    code = "already_dispatched"


class AlreadyFinished(Conflict):
    code = "already_finished"


class Unavailable(NextslotError):
    """The operation was not stored; nothing half done remains, and it may be tried again."""

    code = "unavailable"


class SlotBusy(Unavailable):
    """A direct caller did not get the slot in the time it was ready to wait."""

    code = "slot_busy"

    def __init__(self, ahead: int, message: str) -> None:
        self.ahead = ahead
        super().__init__(message)

    def data(self) -> Mapping[str, object]:
        return {"ahead": self.ahead}


class Draining(Unavailable):
    code = "draining"


class DiskLow(Unavailable):
    """The disk has too little room left for new work; what runs is still stored."""

    code = "disk_low"


class Fenced(Unavailable):
    """The other nodes hold this node for lost and recover its work, so nothing that it writes is stored."""


class CommitUnknown(Unavailable):
    """The connection broke while a commit was on its way: it may or may not have been stored."""

    code = "commit_unknown"


class StoreError(NextslotError):
    """The database cannot be used as it is."""

    code = "store"


class AlreadyOpen(StoreError):
    """Another scheduler has this database open."""


class Away(StoreError):
    """The server of the database does not answer, or takes no connections yet: trying again may help."""


class Damaged(StoreError):
    """The database file is damaged, or not a database."""


class LostCommits(StoreError):
    """The database lacks commits that were acknowledged."""


class SchemaTooNew(StoreError):
    """The database was written by a newer release."""


class AffectedDatabase(StoreError):
    """The database library has a defect that can lose commits."""


class Refused(StoreError):
    """The database refused a change that would have broken an invariant: a defect of ours, never a user's fault."""

    code = "refused"
