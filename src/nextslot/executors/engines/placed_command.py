"""Converts a command type that names an engine into a placement spec, and the record of the end into an outcome."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nextslot.domain import FailureKind, Outcome
from nextslot.domain.placements import PlacementSpec
from nextslot.executors.process_tree.process import End

from .contract import Cause
from .engines import EngineSettings, Placing

if TYPE_CHECKING:
    from nextslot.executors.command import CommandType
    from nextslot.executors.command_output import Output

# Why the wrapper, or the scheduler instead, has ended a run that had begun.
STOPPED = {
    "cancelled": (FailureKind.CANCELLED, "cancelled"),
    "interrupted": (FailureKind.INTERRUPTED, "interrupted"),
    "stall": (FailureKind.TIMEOUT, "no output and no progress for {silence_seconds:g} seconds"),
    "timeout": (FailureKind.TIMEOUT, "timed out after {timeout_seconds:g} seconds"),
    "lease": (FailureKind.CRASH, "its wrapper could not write to its directory for too long, and has ended it"),
}
# What a wrapper writes as the reason of its stop after a signal of the engine.
BY_ENGINE = "engine"
# Why the engine has ended such a run. Somebody who cancels a run there must not see it come back for ever: that counts.
ENDED_BY_ENGINE = {
    None: (FailureKind.INTERRUPTED, "the engine {engine!r} has ended it"),
    Cause.PREEMPTED: (FailureKind.INTERRUPTED, "the engine {engine!r} has preempted it, or its machine has failed"),
    Cause.TIME_LIMIT: (FailureKind.TIMEOUT, "the engine {engine!r} has ended it at its own time limit"),
    Cause.CANCELLED: (FailureKind.ERROR, "it was cancelled on the engine {engine!r}, and not here"),
}


def placing_of(command: "CommandType", engine: EngineSettings) -> Placing:
    """Returns how nextslot hands jobs of a command type to its engine."""

    def spec(params: Mapping[str, Any], timeout: float | None, stall_timeout: float | None) -> PlacementSpec:
        made = PlacementSpec(
            engine=engine.name,
            directory=str(engine.directory),
            argv=command.argv(params),
            cwd=None if command.cwd is None else str(command.cwd),
            options={**engine.options, **command.engine_options},
            grace_seconds=command.grace_seconds,
            timeout_seconds=timeout,
            silence_seconds=stall_timeout,
            start_timeout_seconds=engine.start_timeout_seconds,
            lease_seconds=engine.lease_seconds,
            exit_codes={str(code): meaning for code, meaning in command.exit_codes.items()},
            quota_pattern=command.quota_pattern,
            quota_resource=command.quota_resource,
        )
        cap = command.log_cap_bytes
        return made if cap is None else replace(made, log_cap_bytes=cap)

    def environment() -> Mapping[str, str]:
        passed = {name: os.environ[name] for name in command.pass_env if name in os.environ}
        return {**passed, **command.env}

    return Placing(engine.name, spec, environment)


def outcome_of(spec: PlacementSpec, end: Mapping[str, Any], output: "Output", cause: Cause | None = None) -> Outcome:
    """Returns the outcome that the record of a run's end contains, with the time that the wrapper measured.

    `cause` is why the engine has ended the run.
    """
    return replace(_outcome(spec, end, output, cause), worked_seconds=end.get("seconds"))


def _outcome(spec: PlacementSpec, end: Mapping[str, Any], output: "Output", cause: Cause | None) -> Outcome:
    from nextslot.executors.command import CommandType

    if end["by"] == "scheduler":
        return Outcome.failed(FailureKind.CRASH, str(end["why"]))
    if end["refused"] is not None:
        stage, number = end["refused"]
        thing = f"the working directory {spec.cwd!r}" if stage == "cwd" else repr(spec.argv[0])
        error = f"{thing} cannot be used on the engine {spec.engine!r}: {os.strerror(number)}; it must be there too"
        return Outcome.failed(FailureKind.INVALID, error)
    if end["lost"] is not None:
        return Outcome.failed(FailureKind.CRASH, f"the run was ended because {end['lost']}")
    if end["stopped"] is not None:
        kind, words = STOPPED.get(end["stopped"], ENDED_BY_ENGINE[cause])
        times = {name: getattr(spec, name) or 0.0 for name in ("timeout_seconds", "silence_seconds")}
        error = words.format(engine=spec.engine, **times)
        return Outcome.failed(kind, error, int(end["exit_code"]))
    command = CommandType(
        command=tuple(spec.argv),
        exit_codes={int(code): meaning for code, meaning in spec.exit_codes.items()},
        quota_pattern=spec.quota_pattern,
        quota_resource=spec.quota_resource,
    )
    outcome = command.outcome(End(exit_code=int(end["exit_code"]), signal=end["signal"]), output.last_line)
    outcome = command.used_up(outcome, output.tail) or outcome
    return replace(outcome, exit_code=int(end["exit_code"]))
