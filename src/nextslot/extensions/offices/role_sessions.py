"""Sessions: jobs that name no type of their own, run as the command of their role, a process tree for each attempt.

`OfficeJobService.use_roles` makes the job type `session` of them. The command gets the job as JSON on its stdin.
"""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from nextslot.domain import FailureKind, Office, Outcome
from nextslot.domain.bounds import text_problem
from nextslot.domain.request_checks import text_problems
from nextslot.errors import Invalid, NoHandler, Problem, Unavailable
from nextslot.executors.command import (
    CommandType,
    broken,
    check_sandbox,
    environment,
    start_command,
    until_ended,
    with_process,
)
from nextslot.executors.command_config import MEANINGS, command_type
from nextslot.executors.command_output import Output
from nextslot.executors.job_types import JobType, JobTypes
from nextslot.executors.process_tree.fork_server import Guardians
from nextslot.executors.process_tree.process import End, Start
from nextslot.executors.run_context import RunContext

from .office_words import SESSION

# The failure kinds that a pattern may name: neither success nor those of runs that the scheduler ends.
KINDS = frozenset(MEANINGS & set(FailureKind))
# Stands for the id of the session in `resume_args`.
SESSION_ID = "{session_id}"

# After these failures, which are not the session's fault, the session can continue, unless its role says otherwise.
RESUMED = frozenset({FailureKind.CRASH, FailureKind.INTERRUPTED, FailureKind.PARKED, FailureKind.QUOTA})
RESUME_SETTINGS = ("resume_args", "resume_on", "session_id_pattern")
LONGEST_SESSION_ID = 200
# How many bytes before a chunk of output are searched together with the chunk for the id of the session.
OVERLAP = 1024

# Messages of git, ssh and the system about failures that a person has to resolve (spec 5.18).
DEFAULT_PATTERNS: Mapping[str, FailureKind] = {
    r"CONFLICT \([^)\n]+\)": FailureKind.GIT_CONFLICT,
    r"Automatic merge failed": FailureKind.GIT_CONFLICT,
    r"(fix|resolve all|Resolve all) conflicts": FailureKind.GIT_CONFLICT,
    r"you need to resolve your current index first": FailureKind.GIT_CONFLICT,
    r"local changes to the following files would be overwritten": FailureKind.GIT_CONFLICT,
    r"error: could not apply [0-9a-f]{7,}": FailureKind.GIT_CONFLICT,
    r"[Pp]ermission denied": FailureKind.PERMISSION,
    r"Permission to \S+ denied": FailureKind.PERMISSION,
    r"Operation not permitted": FailureKind.PERMISSION,
    r"\b(EACCES|EPERM)\b": FailureKind.PERMISSION,
    r"Authentication failed for": FailureKind.PERMISSION,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCommand:
    """A role of the configuration: the command of its jobs, and the meaning of the command's end."""

    command: CommandType
    patterns: Mapping[str, FailureKind] = field(default_factory=dict)
    default_patterns: bool = True
    # Arguments that make the command continue the earlier session; without them, each attempt begins a new one.
    resume_args: tuple[str, ...] = ()
    resume_on: frozenset[FailureKind] = RESUMED
    # Finds the id that the program gives its session in its output; None if the program takes the id of nextslot.
    session_id_pattern: str | None = None

    @property
    def timeout_seconds(self) -> float | None:
        return self.command.timeout_seconds

    @classmethod
    def of(cls, table: Mapping[str, Any], base_dir: Path | str | None = None) -> "RoleCommand":
        """Makes a role from a table `[roles.ROLE]`: a command's settings, `patterns`, `default_patterns`."""
        problems = list(_problems(table))
        if problems:
            raise Invalid(problems)
        options = dict(table)
        patterns = {str(pattern): FailureKind(kind) for pattern, kind in options.pop("patterns", {}).items()}
        with_defaults = options.pop("default_patterns", True)
        resuming = _resuming({name: options.pop(name, None) for name in RESUME_SETTINGS})
        command = command_type(options, Path(base_dir or Path.cwd()))
        return cls(command=command, patterns=patterns, default_patterns=with_defaults, **resuming)

    def kind_of(self, tail: str) -> FailureKind | None:
        """Finds the failure kind by the end of the output: the role's own patterns first, then the default ones."""
        for patterns in (self.patterns, DEFAULT_PATTERNS if self.default_patterns else {}):
            found = [
                (match.end(), kind)
                for pattern, kind in patterns.items()
                for match in re.finditer(pattern, tail, re.MULTILINE)
            ]
            if found:
                return max(found, key=lambda one: one[0])[1]
        return None

    def outcome(self, end: End, output: Output) -> Outcome:
        """Decides how a session ended: by its exit code if the role has a rule for it, else by its last lines."""
        if end.refused is not None:
            return Outcome.failed(FailureKind.SESSION_ERROR, self._refusal(end.refused))
        lost = broken(end)
        if lost is not None:
            return replace(lost, failure_kind=FailureKind.SESSION_ERROR)
        outcome = self.command.outcome(end, output.last_line)
        if (used_up := self.command.used_up(outcome, output.tail)) is not None:
            return used_up
        if outcome.failure_kind is FailureKind.ERROR and end.exit_code not in self.command.exit_codes:
            return replace(outcome, failure_kind=self.kind_of(output.tail) or FailureKind.ERROR)
        return outcome

    def _refusal(self, refused: tuple[str, int]) -> str:
        stage, number = refused
        what = f"the working directory {str(self.command.cwd)!r}" if stage == "cwd" else repr(self.command.command[0])
        return f"no session could be started: {what}: {os.strerror(number)}"


def _problems(table: object) -> Iterator[Problem]:
    """Finds problems of the settings that only roles have, and of those that roles may not have."""
    if not isinstance(table, Mapping):
        yield Problem("", "must be a table")
        return
    for name in ("params_schema", "resources", "retry_policy"):
        if name in table:
            yield Problem(name, "there is no such setting of a role")
    if type(table.get("default_patterns", True)) is not bool:
        yield Problem("default_patterns", "true or false")
    args = table.get("resume_args", [])
    if not isinstance(args, (list, tuple)) or not all(isinstance(one, str) and "\0" not in one for one in args):
        yield Problem("resume_args", 'a list of texts: ["--resume", "{session_id}"]')
    elif args and not any(SESSION_ID in one for one in args):
        yield Problem("resume_args", "names no session; one of its texts must have {session_id}")
    kinds = table.get("resume_on", [])
    if not isinstance(kinds, (list, tuple, frozenset)) or set(kinds) - set(FailureKind):
        yield Problem("resume_on", "a list of failure kinds, such as " + ", ".join(sorted(RESUMED)))
    found = table.get("session_id_pattern")
    try:
        if found is not None:
            re.compile(found)
    except (re.error, TypeError) as error:
        yield Problem("session_id_pattern", f"not a regular expression: {error}")
    patterns = table.get("patterns", {})
    if not isinstance(patterns, Mapping):
        yield Problem("patterns", 'patterns with what they mean: { "merge conflict" = "git_conflict" }')
        return
    for pattern, kind in patterns.items():
        if kind not in KINDS:
            yield Problem(f"patterns.{pattern}", "means one of " + ", ".join(sorted(KINDS)))
        try:
            re.compile(str(pattern))
        except re.error as error:
            yield Problem(f"patterns.{pattern}", f"not a regular expression: {error}")


class SessionOutput(Output):
    """Output of a program, searched for the id that the program gives its session; the first id counts."""

    def __init__(self, run: RunContext, pattern: str | None) -> None:
        super().__init__(run)
        self._pattern = None if pattern is None else re.compile(pattern.encode(), re.MULTILINE)
        # The end of the output so far; and 1 if its first byte is only there to show whether a line begins after it.
        self._before, self._begin = b"", 0
        self.storing: asyncio.Task[None] | None = None

    def write(self, data: bytes) -> None:
        super().write(data)
        self._search(self._before + data, is_whole=False)

    def _search(self, text: bytes, *, is_whole: bool) -> None:
        """Stores the first id. What is found at the end of unfinished output may be the beginning of a longer id."""
        if self._pattern is None or self._run.set_session is None:
            return
        found = self._pattern.search(text, self._begin)
        if found is not None and (is_whole or found.end() < len(text) or text.endswith(b"\n")):
            name = next(filter(None, found.groups()), found[0]).decode("utf-8", "replace")
            if name and text_problem(name, LONGEST_SESSION_ID) is None:
                self._pattern, self._run.session_id = None, name
                self.storing = asyncio.ensure_future(self._run.set_session(name))
        self._before, self._begin = text[-OVERLAP:], int(self._begin or len(text) > OVERLAP)

    async def stored(self) -> None:
        """Waits until the id is stored, so that the id is stored before the end of the run."""
        self._search(self._before, is_whole=True)
        if self.storing is not None:
            await asyncio.wait([self.storing])
            if not self.storing.cancelled() and (error := self.storing.exception()) is not None:
                self._run.log.error("the id of the session could not be stored: %s", error)


class SessionHandler:
    """Runs the jobs of type `session`: each attempt is a process tree under a guardian, with a new session, or with
    that of the attempt before if the role says how to resume it.

    `find_office` reads the office of a run, whose settings of a role override those of the configuration.
    """

    def __init__(self, guardians: Guardians, find_office: Callable[[str], Awaitable[Office]]) -> None:
        self.roles: Mapping[str, RoleCommand] = {}
        self.base_dir = Path.cwd()
        self._guardians = guardians
        self._find_office = find_office

    def role(self, office: Office, name: str) -> RoleCommand | None:
        """Returns how an office runs sessions of a role; None if it runs none."""
        return with_own(self.roles.get(name), office.roles.get(name), self.base_dir)

    @property
    def grace_seconds(self) -> float:
        return max((role.command.grace_seconds for role in self.roles.values()), default=0.0)

    async def __call__(self, run: RunContext, /, **params: Any) -> Outcome:
        """Runs the session. Returns, even if interrupted, only when nothing of the process tree is left."""
        try:
            role = self.role(await self._find_office(run.office_id), run.role or "")
        except Unavailable as error:
            return _not_begun(run, f"the settings of its office could not be read: {error}")
        if role is None:  # The role had a command when the job was submitted.
            return _not_begun(run, f"the role {run.role!r} has no command any more")
        run.log_cap = role.command.log_cap_bytes
        more = await _resumed(role, run)
        output = SessionOutput(run, role.session_id_pattern)
        with run.told_files() as told:
            start = _start(role.command, run, told, more)
            process = await start_command(role.command, start, run, self._guardians, output)
            end = await until_ended(process, run, role.command.grace_seconds)
        await output.stored()
        with suppress(OSError):
            run.artifacts.rmdir()  # Succeeds only if the directory is empty.
        return replace(with_process(role.outcome(end, output), process, end), session_id=run.session_id)


def with_own(role: RoleCommand | None, own: Mapping[str, Any] | None, base_dir: Path) -> RoleCommand | None:
    """Overrides the configured settings of a role by those of an office; adds the office's variables."""
    if not own:
        return role
    if role is None:
        return RoleCommand.of(own, base_dir) if "command" in own else None
    changes: dict[str, Any] = {name: own[name] for name in ("timeout_seconds",) if name in own}
    if "command" in own:
        changes["command"] = tuple(own["command"])
        role = replace(role, resume_args=(), session_id_pattern=None)  # Both belong to another program.
    if "cwd" in own:
        changes["cwd"] = base_dir / own["cwd"]
    command = replace(role.command, **changes, env={**role.command.env, **own.get("env", {})})
    return replace(role, command=command, **_resuming(own))


def _resuming(table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a table that say how its sessions go on."""
    read: Mapping[str, Callable[[Any], Any]] = {
        "resume_args": tuple,
        "resume_on": lambda given: frozenset(map(FailureKind, given)),
    }
    return {name: read.get(name, str)(table[name]) for name in RESUME_SETTINGS if table.get(name) is not None}


def _not_begun(run: RunContext, error: str) -> Outcome:
    run.session_id = None  # The next attempt then continues the session before.
    return Outcome.failed(FailureKind.SESSION_ERROR, error)


async def _resumed(role: RoleCommand, run: RunContext) -> tuple[str, ...]:
    """Returns the arguments that continue the session of the attempt before; none for a new session."""
    if run.attempt == 1 or run.set_session is None or run.session_id is None:
        return ()
    earlier = run.earlier_session if role.resume_args else None
    resumes = earlier is not None and earlier[1] in role.resume_on
    session_id, kind = earlier if earlier is not None and resumes else (run.session_id, None)
    try:
        await run.set_session(session_id)  # Stored before the start, so that the attempt after a crash finds it too.
    except Unavailable as error:
        run.log.warning("a new session begins, because the id of its session could not be stored: %s", error)
        return ()
    if not resumes:
        return ()
    run.session_id = session_id
    run.log.info("the session %s goes on, after a failure of kind %s", session_id, kind)
    return tuple(one.replace(SESSION_ID, session_id) for one in role.resume_args)


def _start(command: CommandType, run: RunContext, told: Mapping[str, str], more: tuple[str, ...] = ()) -> Start:
    job = {
        "description": run.title,
        "role": run.role,
        "task_id": run.task_id,
        "office_id": run.office_id,
        "params": run.params,
        "checkpoint": run.last_checkpoint,
        "signals": run.signals,
    }
    env = environment(command, run, told)
    env["NEXTSLOT_OFFICE_ID"] = run.office_id
    if run.role is not None:
        env["NEXTSLOT_ROLE"] = run.role
    if run.session_id is not None:
        env["NEXTSLOT_SESSION_ID"] = run.session_id
    if more:
        env["NEXTSLOT_RESUMES"] = "1"
    cwd = None if command.cwd is None else str(command.cwd)
    return Start(argv=(*command.command, *more), cwd=cwd, env=env, stdin=orjson.dumps(job))


def checked_roles(
    tables: Mapping[str, RoleCommand | Mapping[str, Any]], base_dir: Path | str | None, guardians: Guardians
) -> dict[str, RoleCommand]:
    """Makes roles from values or configured tables, all or none; each problem names its place."""
    roles: dict[str, RoleCommand] = {}
    problems: list[Problem] = []
    for name, table in tables.items():
        problems += [Problem(f"roles.{name}", one.problem) for one in text_problems("role", name)]
        try:
            roles[name] = table if isinstance(table, RoleCommand) else RoleCommand.of(table, base_dir)
            check_sandbox(roles[name].command, guardians)
        except Invalid as error:
            problems += [Problem(".".join(filter(None, ["roles", name, p.field])), p.problem) for p in error.problems]
    if problems:
        raise Invalid(problems)
    return roles


def register_session(job_types: JobTypes, handler: SessionHandler) -> JobType:
    """Registers the commands of roles as the job type `session`, which accepts any parameters."""

    def check_role(role: str | None, office: Office | None) -> None:
        if role is None:
            raise NoHandler([Problem("role", "a job without a job_type needs a role")])
        if office is not None and handler.role(office, role) is None:
            what = f"the role {role!r} has no command"
            with_command = {*handler.roles, *(name for name, own in office.roles.items() if "command" in own)}
            there = ", ".join(sorted(with_command)) or "none has"
            raise NoHandler([Problem("role", f"{what} (roles that have a command: {there})")])

    return job_types.register(
        SESSION, handler, params_schema={"type": "object"}, check_role=check_role, has_session=True
    )
