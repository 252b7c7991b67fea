"""Spec 5 and spec 14: the commands of roles, run for real as sessions of office jobs."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nextslot import Scheduler
from nextslot.domain import FailureKind
from nextslot.domain.offices import OFFICE_RETRIES
from nextslot.errors import Invalid, UnknownJobType
from nextslot.executors.command_output import LONGEST_TAIL
from nextslot.extensions.offices.office_words import OfficeJob
from nextslot.extensions.offices.role_sessions import RoleCommand
from tests.extensions.offices.support import office_jobs
from tests.support import eventually, processes_of

Main = Callable[[Scheduler], Awaitable[None]]


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    asyncio.run(eventually(lambda: not processes_of(tmp_path), seconds=5))


def python(code: str) -> list[str]:
    return [sys.executable, "-ISc", code]


@asynccontextmanager
async def scheduler_with_roles(directory: Path, **roles: Any) -> AsyncIterator[Scheduler]:
    """Runs a scheduler in real time that has these roles, and an office that retries once, at once."""
    scheduler = Scheduler(f"sqlite:///{directory}/nextslot.db", extensions=["offices"])
    office_jobs(scheduler).use_roles(roles)
    async with scheduler:
        retry = {"max_attempts": 1, "base_delay_seconds": 0, "retry_on": [*OFFICE_RETRIES, FailureKind.ERROR]}
        await scheduler.offices.create("o", retry_policy=retry, role_limits={})
        yield scheduler


async def ended(scheduler: Scheduler, **fields: Any) -> OfficeJob:
    """Runs a job of the role FE, and returns it when it has ended."""
    (job,) = await office_jobs(scheduler).submit("o", [{"description": "d", "role": "FE", **fields}])
    await scheduler.wait(job.job_id)
    return await office_jobs(scheduler).job("o", job.job_id)


def run_session(directory: Path, command: list[str], **role: Any) -> OfficeJob:
    found: list[OfficeJob] = []

    async def main() -> None:
        async with scheduler_with_roles(directory, FE={"command": command, **role}) as scheduler:
            found.append(await ended(scheduler))

    asyncio.run(main())
    return found[0]


def log_of(directory: Path, job: OfficeJob) -> str:
    (log,) = directory.rglob(f"{job.executions[-1].id}.log")
    return log.read_text()


# What a session is given.


async def test_a_session_gets_the_job_on_stdin_and_its_ids_in_the_environment(tmp_path: Path) -> None:
    code = (
        "import os, sys; print(sys.stdin.read());"
        " print(*(os.environ['NEXTSLOT_' + name] for name in ('SESSION_ID', 'ROLE', 'OFFICE_ID')))"
    )
    job = {"description": "Login page ü", "role": "FE", "params": {"branch": "main", "n": [1, None]}}

    async with scheduler_with_roles(tmp_path, FE={"command": python(code)}) as scheduler:
        (made,) = await office_jobs(scheduler).submit("o", [job], task_id="t1")
        await scheduler.wait(made.job_id)
        done = await office_jobs(scheduler).job("o", made.job_id)

        sent, ids = log_of(tmp_path, done).splitlines()
        assert json.loads(sent) == {**job, "task_id": "t1", "office_id": "o", "checkpoint": None, "signals": {}}
        assert ids == f"{done.executions[0].session_id} FE o"


def test_every_attempt_has_a_session_of_its_own(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['NEXTSLOT_SESSION_ID']); sys.exit(os.environ['NEXTSLOT_ATTEMPT'] == '1')"

    job = run_session(tmp_path, python(code))

    first, second = job.executions
    assert (job.status, first.status, second.status) == ("done", "failed", "completed")
    assert first.session_id is not None
    assert second.session_id is not None
    assert first.session_id != second.session_id
    assert log_of(tmp_path, job).strip() == second.session_id


async def test_a_role_has_its_own_command_directory_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    code = "import os; print(os.getcwd(), os.environ['MODEL'], 'SECRET' in os.environ)"
    monkeypatch.setenv("SECRET", "x")

    async with scheduler_with_roles(
        tmp_path,
        FE={"command": python(code), "cwd": str(tmp_path / "work"), "env": {"MODEL": "large"}},
        BE={"command": ["echo", "{role}"]},
    ) as scheduler:
        jobs = await office_jobs(scheduler).submit("o", [{"description": "d", "role": role} for role in ("FE", "BE")])
        for job in jobs:
            await scheduler.wait(job.job_id)
        done = [await office_jobs(scheduler).job("o", job.job_id) for job in jobs]

        assert log_of(tmp_path, done[0]).split() == [str(tmp_path / "work"), "large", "False"]
        assert log_of(tmp_path, done[1]).split() == ["{role}"]


# How it ends.


@pytest.mark.parametrize(
    ("says", "kind"),
    [
        ("CONFLICT (content): Merge conflict in src/app.py", "git_conflict"),
        ("Automatic merge failed; fix conflicts and then commit the result.", "git_conflict"),
        ("error: Your local changes to the following files would be overwritten by merge:", "git_conflict"),
        ("error: could not apply fa39187... something", "git_conflict"),
        ("git@github.com: Permission denied (publickey).", "permission"),
        ("remote: Permission to o/r.git denied to someone.", "permission"),
        ("Error: EACCES: permission denied, open '/etc/x'", "permission"),
        ("rm: cannot remove 'x': Operation not permitted", "permission"),
        ("fatal: Authentication failed for 'https://host/r.git/'", "permission"),
        ("no conflict here", "error"),
    ],
)
def test_the_end_of_the_output_says_what_a_person_has_to_resolve(says: str, kind: str) -> None:
    role = RoleCommand.of({"command": ["true"]})

    assert (role.kind_of(f"working\n{says}\n") or FailureKind.ERROR) == kind


def test_a_git_conflict_is_not_retried(tmp_path: Path) -> None:
    job = run_session(tmp_path, python("import sys; print('CONFLICT (content): Merge conflict in a'); sys.exit(1)"))

    assert (job.status, len(job.executions)) == ("failed", 1)
    assert job.executions[0].error_message == "exit code 1: CONFLICT (content): Merge conflict in a"


async def test_a_permission_error_is_not_retried_and_success_is_success_whatever_was_said(tmp_path: Path) -> None:
    says = "echo 'Permission denied'; exit "
    async with scheduler_with_roles(
        tmp_path, FE={"command": ["sh", "-c", says + "1"]}, BE={"command": ["sh", "-c", says + "0"]}
    ) as scheduler:
        failed, done = await ended(scheduler), await ended(scheduler, role="BE")

        assert (failed.status, len(failed.executions), done.status) == ("failed", 1, "done")


def test_the_exit_code_a_role_names_goes_before_what_was_said(tmp_path: Path) -> None:
    code = "import sys; print('Permission denied'); sys.exit(9)"

    job = run_session(tmp_path, python(code), exit_codes={9: "error"})

    assert (job.status, len(job.executions)) == ("failed", 2)


@pytest.mark.parametrize(("code", "status", "attempts"), [(3, "failed", 1), (4, "done", 1), (75, "done", 1)])
def test_exit_codes_mean_what_the_role_says(tmp_path: Path, code: int, status: str, attempts: int) -> None:
    job = run_session(tmp_path, ["sh", "-c", f"exit {code}"], exit_codes={3: "git_conflict", 4: "completed"})

    assert (job.status, len(job.executions)) == (status, attempts)


def test_a_roles_own_patterns_go_first_and_the_usual_ones_can_be_left_out() -> None:
    own = {"command": ["true"], "patterns": {"quota exceeded": "permission", "Permission denied": "session_error"}}
    said = "Permission denied\nquota exceeded\n"

    assert RoleCommand.of(own).kind_of(said) == "permission"
    assert RoleCommand.of(own).kind_of("quota exceeded\nPermission denied") == "session_error"
    assert RoleCommand.of({"command": ["true"], "default_patterns": False}).kind_of(said) is None


def test_only_the_end_of_a_long_output_is_looked_at(tmp_path: Path) -> None:
    code = f"import sys; print('Permission denied'); print('x\\n' * {LONGEST_TAIL}); sys.exit(1)"

    job = run_session(tmp_path, python(code))

    assert (job.status, len(job.executions)) == ("failed", 2)


@pytest.mark.parametrize("role", [{"command": ["/nowhere/agent"]}, {"command": ["true"], "cwd": "/nowhere"}])
async def test_a_session_that_cannot_be_started_is_a_session_error_and_is_retried(
    tmp_path: Path, role: dict[str, Any]
) -> None:
    async with scheduler_with_roles(tmp_path, FE=role) as scheduler:
        job = await ended(scheduler)
        run = await scheduler.run_of(job.job_id)

        assert run is not None
        assert (run.failure_kind, len(job.executions)) == ("session_error", 2)
        assert "no session could be started" in (job.executions[0].error_message or "")


# How it is ended.


async def test_a_timeout_ends_the_whole_tree_of_a_session_that_ignores_it(tmp_path: Path) -> None:
    stubborn = "trap '' TERM; setsid sleep 100 & while :; do sleep 0.1; done"
    async with scheduler_with_roles(
        tmp_path, FE={"command": ["sh", "-c", stubborn], "grace_seconds": 0.2}
    ) as scheduler:
        (job,) = await office_jobs(scheduler).submit("o", [{"description": "d", "role": "FE", "timeout_ms": 300}])
        await scheduler.wait(job.job_id)
        done = await office_jobs(scheduler).job("o", job.job_id)

        assert [execution.status for execution in done.executions] == ["timeout", "timeout"]
        assert not processes_of(tmp_path)


async def test_a_cancel_reaches_the_session(tmp_path: Path) -> None:
    listening = f"trap 'touch {tmp_path}/told; exit 1' TERM; touch {tmp_path}/began; while :; do sleep 0.05; done"
    async with scheduler_with_roles(tmp_path, FE={"command": ["sh", "-c", listening]}) as scheduler:
        (job,) = await office_jobs(scheduler).submit("o", [{"description": "d", "role": "FE"}])
        await eventually((tmp_path / "began").exists)

        _, what = await office_jobs(scheduler).cancel("o", job.job_id)
        await scheduler.wait(job.job_id)
        done = await office_jobs(scheduler).job("o", job.job_id)

        assert (what, done.status, done.executions[0].status) == ("stopping", "cancelled", "cancelled")
        assert (tmp_path / "told").exists()


# Roles as they are configured.


async def test_roles_are_changed_while_the_scheduler_runs(tmp_path: Path) -> None:
    async with scheduler_with_roles(tmp_path, FE={"command": ["true"]}) as scheduler:
        first = await ended(scheduler)
        office_jobs(scheduler).use_roles({"FE": {"command": ["sh", "-c", "exit 1"]}})
        second = await ended(scheduler)
        await scheduler.offices.change("o", status="paused")
        (job,) = await office_jobs(scheduler).submit("o", [{"description": "d", "role": "FE"}])
        office_jobs(scheduler).use_roles({})
        await scheduler.offices.change("o", status="active")
        await scheduler.wait(job.job_id)
        third = await office_jobs(scheduler).job("o", job.job_id)

        assert [one.status for one in (first, second, third)] == ["done", "failed", "failed"]
        assert third.executions[0].error_message == "the role 'FE' has no command any more"


@pytest.mark.parametrize(
    ("field", "table"),
    [
        ("command", {}),
        ("command", {"command": "agent"}),
        ("colour", {"command": ["a"], "colour": "red"}),
        ("resources", {"command": ["a"], "resources": ["gpu"]}),
        ("timeout_seconds", {"command": ["a"], "timeout_seconds": 0}),
        ("exit_codes.9", {"command": ["a"], "exit_codes": {9: "crash"}}),
        ("patterns", {"command": ["a"], "patterns": ["x"]}),
        ("patterns.x", {"command": ["a"], "patterns": {"x": "completed"}}),
        ("patterns.(", {"command": ["a"], "patterns": {"(": "permission"}}),
        ("default_patterns", {"command": ["a"], "default_patterns": 1}),
        ("", "agent"),
    ],
    ids=str,
)
def test_a_role_that_makes_no_sense_is_refused_and_the_roles_stay_as_they_were(field: str, table: Any) -> None:
    scheduler = Scheduler("sqlite:///unused.db", extensions=["offices"])
    office_jobs(scheduler).use_roles({"BE": {"command": ["true"]}})

    with pytest.raises(Invalid) as refused:
        office_jobs(scheduler).use_roles({"BE": {"command": ["true"]}, "FE": table})

    where = f"roles.FE.{field}" if field else "roles.FE"
    assert [problem.field for problem in refused.value.problems] == [where]
    assert "session" in scheduler.job_types


async def test_an_office_has_roles_of_its_own_over_the_configuration(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd(), os.environ.get('MODEL'), os.environ.get('KEPT'))"
    (tmp_path / "web").mkdir()
    configured = {"command": python(code), "env": {"MODEL": "small", "KEPT": "yes"}}
    async with scheduler_with_roles(tmp_path, FE=configured) as scheduler:
        service = office_jobs(scheduler)
        role = await service.put_role("o", "FE", cwd=str(tmp_path / "web"), env={"MODEL": "large"}, timeout_ms=60_000)
        await service.put_role("o", "Poet", command=python("print('a poem')"))
        placed = await service.put_role("o", "Cook", cwd=str(tmp_path / "kitchen"))

        as_set = await ended(scheduler)
        poem = await ended(scheduler, role="Poet")
        await service.delete_role("o", "FE")
        as_configured = await ended(scheduler)

        texts = [log_of(tmp_path, job) for job in (as_set, poem, as_configured)]
        assert texts[0] == f"{tmp_path / 'web'} large yes\n"
        assert texts[1] == "a poem\n"
        assert texts[2].endswith(" small yes\n")
        assert (role.is_own, role.timeout_seconds, as_set.timeout_ms) == (True, 60, 60_000)
        assert (placed.command, placed.cwd) == (None, str(tmp_path / "kitchen"))
        assert [one.role for one in await service.roles("o") if one.command is not None] == ["FE", "Poet"]
        with pytest.raises(UnknownJobType, match="has no command"):
            await service.submit("default", [{"description": "d", "role": "Poet"}])
        with pytest.raises(Invalid, match="command"):
            await service.put_role("o", "FE", command=["{file}"])
