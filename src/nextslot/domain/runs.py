"""Runs: what happened when a job ran, and how the executor saw it end."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Generic

from nextslot.system.instant import Instant

from .bounds import Json
from .declared_values import Apart, At, Id, Later, Says, Value
from .failures import FailureKind


class RunStatus(StrEnum):
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"


class Artifact(Value):
    """A file that a run produced; `path` is relative to the artifacts directory."""

    name: str
    path: str
    size: int


class OutcomeFields(Value):
    """The stored fields of the end of a run or of a direct request."""

    exit_code: Later[int | None] = None
    error: Later[str | None] = None
    failure_kind: Later[FailureKind | None] = None
    reason: Annotated[Later[str | None], Says("Why the run was SKIPPED")] = None
    log_path: Later[str | None] = None
    session_id: Later[str | None] = None
    result: Annotated[Later[Json], Says("What the work returned")] = None


class Run(OutcomeFields, Generic[At]):
    """What happened when a job ran. Each dispatched job has exactly one run (DEC-001)."""

    FIRST = ("run_id", "job_id", "status")

    run_id: Id
    job_id: Id
    params_snapshot: Mapping[str, Json]
    started_at: At
    template_id: str | None = None
    status: Annotated[RunStatus | None, Says("null while it runs")] = None
    timeout_at: At | None = None
    finished_at: At | None = None
    silent_since: Annotated[
        Later[At | None],
        Says("Since when the work has written no output and reported no progress; set only after the alarm"),
    ] = None
    devices: Annotated[Later[Mapping[str, Json] | None], Says("The named devices that the work had, by resource")] = (
        None
    )
    placement: Annotated[
        Later[Mapping[str, Json] | None],
        Says("The engine that has it: its `state` there and its `handle`; null: a node ran it"),
    ] = None
    began_at: Annotated[
        Later[At | None],
        Says("When its work began on the engine, later than `started_at`; null: it has not, or a node ran it"),
    ] = None
    park: Annotated[Later[Mapping[str, Json] | None], Says("The signal that its session waits for")] = None
    artifacts: Apart[tuple[Artifact, ...]] = ()


class Checkpoint(Value, Generic[At]):
    """What a run has stored for the next attempt of its chain. Only the newest one of a chain is kept."""

    run_id: Id
    stored_at: At
    value: Json


class Outcome(OutcomeFields):
    """How a run ended, as the executor saw it; one of the three named constructors makes it."""

    status: RunStatus
    artifacts: tuple[Artifact, ...] = ()
    # For a failure of kind `quota`: when the provider renews the quota, and of which resource; None if unknown.
    quota_until: Instant | None = None
    quota_resource: str | None = None
    # For a failure of kind `parked`: the signal that the session waits for.
    park: Mapping[str, Json] | None = None
    # How many tokens the work has used, if its result does not say so.
    used_tokens: int = 0
    # How long the work took on its engine, without its time in the engine's queue; None if a node ran it.
    worked_seconds: float | None = None

    @classmethod
    def completed(cls, result: Json = None) -> "Outcome":
        return _COMPLETED if result is None else cls(status=RunStatus.COMPLETED, result=result)

    @classmethod
    def failed(cls, kind: FailureKind, error: str, exit_code: int | None = None) -> "Outcome":
        return cls(status=RunStatus.FAILED, failure_kind=kind, error=error, exit_code=exit_code)

    @classmethod
    def parked(cls, wait: Mapping[str, Json]) -> "Outcome":
        """Ends a run whose session waits for a signal. The next job of the chain continues when the signal arrives."""
        error = f"parked until the signal {wait['name']!r} comes"
        return cls(status=RunStatus.FAILED, failure_kind=FailureKind.PARKED, error=error, park=wait)

    @classmethod
    def skipped(cls, reason: str) -> "Outcome":
        return cls(status=RunStatus.SKIPPED, reason=reason)


_COMPLETED = Outcome(status=RunStatus.COMPLETED)
