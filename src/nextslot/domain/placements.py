"""Placements: where a run is that an engine has, and what was decided when it was handed over."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from .bounds import LOG_CAP_BYTES, Json
from .declared_values import Says, Value


class PlacementState(StrEnum):
    """What is known of a placed run, whose job is RUNNING from its submission."""

    SUBMITTING = "submitting"
    QUEUED = "queued"
    RUNNING = "running"
    # Its records do not say that it goes on, and do not say that it has ended.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementSpec:
    """What an engine is to run, frozen when the run starts. Secrets are in the run's directory only."""

    engine: str
    # The directory of the engine's runs, as an absolute path; each run has a directory of its own there.
    directory: str
    argv: Sequence[str]
    cwd: str | None = None
    options: Mapping[str, Json] = field(default_factory=dict)
    grace_seconds: float = 10.0
    timeout_seconds: float | None = None
    silence_seconds: float | None = None
    start_timeout_seconds: float | None = None
    lease_seconds: float = 900.0
    log_cap_bytes: int = LOG_CAP_BYTES
    exit_codes: Mapping[str, str] = field(default_factory=dict)
    quota_pattern: str | None = None
    quota_resource: str | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """What is stored of a run on an engine until it ends."""

    run_id: str
    spec: PlacementSpec
    state: PlacementState
    # The engine's own id; None: no submission was confirmed.
    handle: str | None
    token_hash: str
    # In microseconds: since when it is placed, when its wrapper claimed it, until when its lease holds.
    placed_at: int
    claimed_at: int | None = None
    lease_until: int | None = None


class Engine(Value):
    """An engine of the configuration, as this node sees it: where runs go that leave this machine."""

    name: str
    kind: Annotated[str, Says("`local`, `slurm`, `ray`, or what another extension offers")]
    slots: Annotated[int, Says("How many runs are handed to it at once")]
    submitting: Annotated[int, Says("Runs that were not handed over yet")]
    queued: Annotated[int, Says("Runs that wait there")]
    running: Annotated[int, Says("Runs that have begun there")]
    unknown: Annotated[int, Says("Runs that give no sign of life: their leases decide, or an operator")]
    problem: Annotated[str | None, Says("Why it does not answer this node; null: it does, or was not asked")] = None
