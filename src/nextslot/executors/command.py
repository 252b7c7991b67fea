"""Command job types: run an argv from the configuration as a process tree under a guardian, never through a shell."""

import asyncio
import errno
import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from nextslot.domain import FailureKind, Outcome, RunStatus
from nextslot.errors import Invalid, Problem, Unavailable

from . import inputs
from .checkpoints import CHANNEL_FD, FD_VARIABLE, FILE_VARIABLE, CheckpointLines
from .command_output import Output
from .engines.engines import EngineSettings, unit_of
from .engines.placed_command import placing_of
from .inputs import Inputs
from .job_types import JobType, JobTypes
from .process_tree.fork_server import Guardians
from .process_tree.process import End, Process, Start
from .process_tree.run_marks import RUN_ID
from .process_tree.survivors import end_survivors
from .quota_times import quota_in_output, wall_time
from .run_context import RunContext
from .sandbox import Sandbox

log = logging.getLogger(__name__)

GRACE_SECONDS = 10.0
SKIP_CODE = 75
# The longest argument that the kernel accepts (MAX_ARG_STRLEN), without its NUL.
LONGEST_ARGUMENT = 131_071
# The scheduler's environment may hold secrets, so a command inherits only what programs commonly need.
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR")
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"

COMPLETED, SKIPPED = "completed", "skipped"
NO_INPUTS: Inputs = {}
PLACEHOLDER = re.compile(r"\{([^\W\d][\w.-]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandType:
    """A command as configured. Each element `{name}` of `command` stands for the parameter of this name."""

    command: tuple[str, ...]
    cwd: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    pass_env: tuple[str, ...] = ()
    resources: Mapping[str, int] = field(default_factory=dict)
    timeout_seconds: float | None = None
    stall_timeout_seconds: float | None = None
    exit_codes: Mapping[int, str] = field(default_factory=dict)
    params_schema: Mapping[str, Any] | None = None
    grace_seconds: float = GRACE_SECONDS
    log_cap_bytes: int | None = None
    retry_policy: Mapping[str, Any] | None = None
    sandbox: Sandbox | None = None
    # Finds, in the output of a command that failed because of a used-up quota, its renewal time and its resource.
    quota_pattern: str | None = None
    quota_resource: str | None = None
    # The engine that runs the command, and the options of the engine; None if this node runs it under a guardian.
    engine: str | None = None
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    # How many of each unit of the engine a run takes, such as `{"gpu": 2}`.
    engine_units: Mapping[str, int] = field(default_factory=dict)

    @property
    def placeholders(self) -> list[str]:
        """Returns the names of the parameters that are arguments, in the order of the command."""
        found = dict.fromkeys(found[1] for element in self.command if (found := PLACEHOLDER.fullmatch(element)))
        return [name for name in found if not inputs.is_input(name)]

    def argv(self, params: Mapping[str, Any], given: Inputs = NO_INPUTS) -> tuple[str, ...]:
        """Returns the command's arguments. Each placeholder becomes exactly one argument: text unchanged, other values
        as JSON, and an input as the directory of its artifacts."""

        def value(name: str) -> str:
            return inputs.argument(name, given) if inputs.is_input(name) else _argument(params[name])

        return tuple(
            value(found[1]) if (found := PLACEHOLDER.fullmatch(element)) else element for element in self.command
        )

    def schema(self) -> dict[str, Any]:
        """Returns the JSON Schema of the parameters: the declared one, which also requires every placeholder."""
        declared = dict(self.params_schema or {})
        required = declared.get("required", [])
        return {"type": "object", **declared, "required": list(dict.fromkeys([*required, *self.placeholders]))}

    def problems(self, params: Mapping[str, Any]) -> list[Problem]:
        """Returns the problems of parameters that fit the schema but cannot be passed as arguments."""
        found = []
        for name in self.placeholders:
            argument = _argument(params[name])
            if "\0" in argument:
                found.append(
                    Problem(
                        f"params.{name}",
                        "contains a NUL character, which a command's argument cannot contain; remove it",
                    )
                )
            elif len(argument.encode()) > LONGEST_ARGUMENT:
                most = f"{LONGEST_ARGUMENT:,} bytes"
                found.append(
                    Problem(
                        f"params.{name}", f"is longer than {most}, the longest argument the kernel accepts; pass a file"
                    )
                )
        return found

    def outcome(self, end: End, last_line: str) -> Outcome:
        """Converts the command's exit code into an outcome; `last_line` of its output becomes the reason or error."""
        meaning = self.exit_codes.get(end.exit_code)
        if meaning is None:
            meaning = {0: COMPLETED, SKIP_CODE: SKIPPED}.get(end.exit_code, FailureKind.ERROR)
        how = f"ended by {end.signal}" if end.signal else f"exit code {end.exit_code}"
        if meaning == COMPLETED:
            return Outcome.completed()
        if meaning == SKIPPED:
            return Outcome.skipped(last_line or how)
        return Outcome.failed(FailureKind(meaning), f"{how}: {last_line}" if last_line else how)

    def used_up(self, outcome: Outcome, tail: str) -> Outcome | None:
        """Returns the outcome of a command that failed because a quota is used up, by the end of its output."""
        if outcome.status is not RunStatus.FAILED or self.quota_pattern is None:
            return None
        now = wall_time()
        found = quota_in_output(self.quota_pattern, tail, now)
        if found is None:
            return None
        until = None if found.seconds is None else now.after(found.seconds)
        failed = Outcome.failed(FailureKind.QUOTA, found.line, outcome.exit_code)
        return replace(failed, quota_until=until, quota_resource=self.quota_resource)


def _argument(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


class CommandHandler:
    """Runs the jobs of one command type."""

    def __init__(self, command: CommandType, guardians: Guardians) -> None:
        self._command = command
        self._guardians = guardians

    @property
    def grace_seconds(self) -> float:
        return self._command.grace_seconds

    async def __call__(self, run: RunContext, /, **params: Any) -> Outcome:
        """Runs the command. Returns, also after a cancel, only when no process of its tree is left."""
        if self._command.engine is not None:
            return _not_here(self._command, params)
        run.log_cap = self._command.log_cap_bytes
        output = Output(run)
        with run.told_files() as told:
            try:
                start = self._start(run, params, told)
            except Invalid as error:
                return Outcome.failed(FailureKind.INVALID, str(error))
            process = await start_command(self._command, start, run, self._guardians, output)
            end = await until_ended(process, run, self.grace_seconds)
        with suppress(OSError):
            run.artifacts.rmdir()  # Succeeds only if the command left no artifact.
        outcome = self._refused(end) if end.refused else broken(end) or self._ended(end, output)
        return with_process(outcome, process, end)

    def _ended(self, end: End, output: Output) -> Outcome:
        outcome = self._command.outcome(end, output.last_line)
        used_up = self._command.used_up(outcome, output.tail)
        return outcome if used_up is None else used_up

    def _start(self, run: RunContext, params: Mapping[str, Any], told: Mapping[str, str]) -> Start:
        cwd = self._command.cwd
        return Start(
            argv=self._command.argv(params, run.inputs),
            cwd=None if cwd is None else str(cwd),
            env=environment(self._command, run, told),
            stdin=orjson.dumps(params),
        )

    def _refused(self, end: End) -> Outcome:
        assert end.refused is not None
        stage, number = end.refused
        why = os.strerror(number)
        thing = (
            f"the working directory {str(self._command.cwd)!r}" if stage == "cwd" else repr(self._command.command[0])
        )
        if number in (errno.EACCES, errno.EPERM):
            return Outcome.failed(FailureKind.PERMISSION, f"{thing} cannot be used: {why}; check its permissions")
        if number == errno.E2BIG:
            return Outcome.failed(
                FailureKind.INVALID, f"{thing} was not started: arguments and environment are too long; shorten them"
            )
        if number == errno.ENOENT and stage == "program":
            return Outcome.failed(
                FailureKind.INVALID,
                f"{thing} was not found: the program or its interpreter is missing; check its name and PATH",
            )
        if number in (errno.ENOENT, errno.ENOTDIR, errno.ENOEXEC, errno.ELOOP, errno.ENAMETOOLONG):
            return Outcome.failed(FailureKind.INVALID, f"{thing} cannot be used: {why}; correct its path")
        return Outcome.failed(FailureKind.ERROR, f"{thing} could not be started: {why}")


def _not_here(command: CommandType, params: Mapping[str, Any]) -> Outcome:
    """Returns the failure of work that only the engine can run: a direct request, or a job with an invalid command."""
    why = "a direct caller cannot wait for it; create a job"
    try:
        command.argv(params)
    except (KeyError, Invalid) as error:
        why = f"its parameters do not fit its command any more: {error}"
    return Outcome.failed(FailureKind.INVALID, f"the engine {command.engine!r} runs jobs of this type: {why}")


async def start_command(
    command: CommandType, start: Start, run: RunContext, guardians: Guardians, output: Output
) -> Process:
    """Starts a command under a guardian, in its sandbox if it has one."""
    if command.sandbox is not None:
        inputs_paths = [one.path for one in run.inputs.values() if one is not None and one.path.exists()]
        told = [
            Path(start.env[name])
            for name in ("NEXTSLOT_INPUTS", "NEXTSLOT_SIGNALS", FILE_VARIABLE)
            if name in start.env
        ]
        shown = [*inputs_paths, *told]
        start = command.sandbox.apply(
            start, run.artifacts, shown, guardians.private_directories, guardians.private_files
        )
    return await guardians.start(start, output.write, CheckpointLines(run.keep_soon))


async def until_ended(process: Process, run: RunContext, grace_seconds: float) -> End:
    """Waits for the end of the tree. The first cancel stops the tree with grace; a second cancel kills it at once."""
    cancelled: asyncio.CancelledError | None = None
    end: End | None = None
    while end is None:
        try:
            end = await _ended(process, run)
        except asyncio.CancelledError as error:
            if run.is_stopped and cancelled is None:
                process.stop(grace_seconds)
            else:
                process.kill()
            cancelled = error
    if cancelled is not None and not run.is_stopped:
        raise cancelled  # The task was cancelled without a stop request: the scheduler itself is shutting down.
    return end


async def _ended(process: Process, run: RunContext) -> End:
    end = await process.ended()
    is_over = end.lost is None and end.broken is None
    while not is_over:
        try:
            await asyncio.to_thread(end_survivors, [run.run_id])
            is_over = True
        except Unavailable as error:  # Keep waiting: a retry must not start while a process of this run lives.
            log.error("run %s cannot end yet: %s", run.run_id, error)
    return end


def broken(end: End) -> Outcome | None:
    if end.broken is not None:
        return Outcome.failed(FailureKind.ERROR, f"the command could not be started: {end.broken}")
    if end.lost is not None:
        return Outcome.failed(FailureKind.ERROR, end.lost)
    return None


def with_process(outcome: Outcome, process: Process, end: End) -> Outcome:
    """Adds the exit code and the process id to an outcome, if the process was ever started."""
    if process.pid is None or end.refused or end.lost or end.broken:
        return outcome
    return replace(outcome, exit_code=end.exit_code, session_id=f"{process.pid}@{process.start_time}")


def environment(command: CommandType, run: RunContext, told: Mapping[str, str]) -> dict[str, str]:
    """Returns the command's environment: a few inherited variables, the configured ones, the ids of the run, the
    descriptor for checkpoints, and the files with the inputs and the last checkpoint, if there are any."""
    return {
        **_inherited(command.pass_env),
        **command.env,
        RUN_ID: run.run_id,
        "NEXTSLOT_JOB_ID": run.job_id,
        "NEXTSLOT_ATTEMPT": str(run.attempt),
        "NEXTSLOT_ARTIFACTS": str(run.artifacts.absolute()),
        FD_VARIABLE: str(CHANNEL_FD),
        **told,
        **run.environment,
    }


def _inherited(more: Sequence[str]) -> dict[str, str]:
    names = {*INHERITED, *more}
    found = {n: v for n, v in os.environ.items() if n in names or (n.startswith("LC_") and "LC_*" in names)}
    return {"PATH": DEFAULT_PATH, **found}


def register_command(job_types: JobTypes, name: str, command: CommandType, guardians: Guardians) -> JobType:
    """Registers a command as a job type."""
    if sys.platform != "linux":
        raise Invalid(
            "commands run on Linux only, where a guardian can own a whole process tree; use a Python handler here",
            field="command",
        )
    check_sandbox(command, guardians)
    engine = None if command.engine is None else job_types.engines.settings_of(command.engine)
    return job_types.register(
        name,
        CommandHandler(command, guardians),
        resources=command.resources if engine is None else _needs(command, engine),
        placing=None if engine is None else placing_of(command, engine),
        timeout_seconds=command.timeout_seconds,
        stall_timeout_seconds=command.stall_timeout_seconds,
        retry_policy=command.retry_policy,
        params_schema=command.schema(),
        check=command.problems,
    )


def _needs(command: CommandType, engine: EngineSettings) -> dict[str, int]:
    """Returns the resources of a run on an engine: a slot of it, its units there, and those of the job type."""
    if unknown := sorted(command.engine_units.keys() - engine.units.keys()):
        there = ", ".join(sorted(engine.units)) or "none"
        raise Invalid(f"the engine {engine.name!r} has no units {unknown[0]!r}; it has: {there}", field="engine_units")
    units = {unit_of(engine.name, unit): count for unit, count in command.engine_units.items()}
    return {engine.name: 1, **units, **command.resources}


def check_sandbox(command: CommandType, guardians: Guardians) -> None:
    """Raises Invalid if this machine cannot create the command's sandbox, or cannot enforce its limits."""
    if command.sandbox is None:
        return
    command.sandbox.try_out()
    missing = guardians.missing_controllers(command.sandbox.controllers)
    if missing:
        raise Invalid(
            f"limits memory, processors or processes, but the server may not limit {', '.join(sorted(missing))} with a "
            "cgroup here; start it as a systemd service with Delegate=yes, or remove memory_bytes, cpus and processes",
            field="sandbox",
        )
