"""A role that can resume: the same session continues after some kinds of failure, otherwise a new one begins."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from nextslot import Scheduler
from nextslot.domain import Run
from nextslot.domain.offices import OFFICE_RETRIES
from nextslot.domain.retry import quota_pause
from nextslot.errors import Invalid
from nextslot.executors.run_context import RunContext
from nextslot.extensions.offices import role_sessions
from nextslot.extensions.offices.role_sessions import RoleCommand
from nextslot.testing import crash
from tests.extensions.offices.support import office_jobs
from tests.extensions.offices.test_session import scheduler_with_roles

RESUME = {"resume_args": ["--resume", "{session_id}"], "exit_codes": {4: "quota", 5: "error"}}
# Says its arguments and its session; fails as the environment says, unless it was resumed.
AGENT = """
import os, sys
print("session id:", os.environ.get("OWN", os.environ["NEXTSLOT_SESSION_ID"]), sys.argv[1:], flush=True)
sys.exit(0 if os.environ["NEXTSLOT_ATTEMPT"] != "1" else int(os.environ["FAIL"]))
"""


async def runs_of(directory: Path, fail: int, **role: Any) -> list[Run]:
    command = role.pop("command", [sys.executable, "-ISc", AGENT])
    roles = {"FE": {"command": command, "env": {"FAIL": str(fail), **role.pop("env", {})}, **RESUME, **role}}
    async with scheduler_with_roles(directory, **roles) as scheduler:
        return await runs_in(scheduler)


async def runs_in(scheduler: Scheduler) -> list[Run]:
    (job,) = await office_jobs(scheduler).submit("o", [{"description": "d", "role": "FE"}])
    await asyncio.wait_for(scheduler.wait(job.job_id), 60)
    found = [await scheduler.run_of(one.job_id) for one in await scheduler.chain(job.job_id)]
    return [one for one in found if one is not None]


async def until_parked(scheduler: Scheduler) -> None:
    async for event in scheduler.events():
        if event.type == "job_awaiting_signal":
            return


def said(directory: Path, run: Run) -> str:
    return (directory / (run.log_path or "")).read_text()


async def test_after_a_kind_that_allows_it_the_same_session_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    first, second = await runs_of(tmp_path, 5, resume_on=["error"])

    assert second.session_id == first.session_id
    assert f"['--resume', '{first.session_id}']" in said(tmp_path, second)
    assert "goes on, after a failure of kind error" in said(tmp_path, second)


async def test_after_a_quota_hold_the_same_session_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The role says nothing of resume_on: a used-up quota is among the kinds after which a session goes on."""
    monkeypatch.chdir(tmp_path)

    first, second = await runs_of(tmp_path, 4)

    assert (first.failure_kind, first.exit_code) == ("quota", 4)
    assert first.finished_at is not None
    assert second.started_at - first.finished_at >= quota_pause(1) * 1_000_000
    assert second.session_id == first.session_id
    assert f"['--resume', '{first.session_id}']" in said(tmp_path, second)
    assert "goes on, after a failure of kind quota" in said(tmp_path, second)


async def test_an_office_says_how_its_own_command_of_a_role_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    configured = {"command": ["true"], "env": {"FAIL": "5"}, **RESUME}
    own: dict[str, Any] = {"command": [sys.executable, "-ISc", AGENT], "env": {"OWN": "its-own"}}
    resuming: dict[str, Any] = {
        "resume_args": ["-r", "{session_id}"],
        "resume_on": ["error"],
        "session_id_pattern": "id: ([a-z-]+)",
    }
    async with scheduler_with_roles(tmp_path, FE=configured) as scheduler:
        service = office_jobs(scheduler)
        plain = await service.put_role("o", "FE", **own)
        before = await runs_in(scheduler)
        changed = await service.put_role("o", "FE", **own, **resuming)
        after = await runs_in(scheduler)
        await service.put_role("o", "FE", resume_args=[])
        never = await service.roles("o")
        with pytest.raises(Invalid, match=r"must have \{session_id\}"):
            await service.put_role("o", "FE", resume_args=["-r"])

    assert (plain.resume_args, plain.session_id_pattern) == ((), None)
    assert before[0].session_id != before[1].session_id
    assert (changed.resume_args, changed.resume_on) == (("-r", "{session_id}"), ("error",))
    assert changed.session_id_pattern == "id: ([a-z-]+)"
    assert [one.session_id for one in after] == ["its-own", "its-own"]
    assert "['-r', 'its-own']" in said(tmp_path, after[1])
    assert [one.resume_args for one in never if one.role == "FE"] == [()]


async def test_after_another_kind_a_new_session_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    first, second = await runs_of(tmp_path, 5)

    assert second.session_id != first.session_id
    assert "--resume" not in said(tmp_path, second)


async def test_the_id_that_the_program_names_is_the_one_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    first, second = await runs_of(
        tmp_path, 5, resume_on=["error"], session_id_pattern="session id: ([a-z-]+)", env={"OWN": "its-own"}
    )

    assert first.session_id == second.session_id == "its-own"
    assert "['--resume', 'its-own']" in said(tmp_path, second)


class Named:
    """Remembers the ids that the output of a session names."""

    session_id: str | None = None

    def __init__(self) -> None:
        self.names: list[str] = []

    async def set_session(self, name: str) -> None:
        self.names.append(name)

    def write(self, data: bytes) -> None: ...

    def progress(self, fraction: float, text: str = "") -> None: ...


@pytest.mark.parametrize(
    ("pattern", "pieces", "name"),
    [
        (r"^session id: (\S+)$", [b"session id: ab", b"cdef\nmore"], "abcdef"),
        (r"^session id: (\S+)$", [b"session", b" id: ", b"abc", b"def", b"\n"], "abcdef"),
        (r"^session id: (\S+)$", [b"session id: abcdef"], "abcdef"),
        (r"^session id: (\S+)$", [b"session id: abcdef\n", b"session id: other\n"], "abcdef"),
        (r"session_id\W+([a-z]+)", [b'{"session_id": "abc', b'def", "tools": [' + b"x" * 5000, b"y" * 5000], "abcdef"),
        # The end of a long line is not the beginning of a line.
        (r"^id: (\S+)$", [b"x" * 2000 + b"id: ab\n" + b"z" * 1017, b"\n", b"id: abcdef\n"], "abcdef"),
        (r"session id: (\S+)|ID=(\S+)", [b"ID=abc", b"def\n"], "abcdef"),
        (r"[a-z]+-[0-9]+", [b"session-1", b"2 begins"], "session-12"),
        (r"^session id: (\S+)$", [b"nothing of the kind\n"], None),
    ],
)
async def test_an_id_that_comes_in_pieces_is_stored_whole_and_once(
    pattern: str, pieces: list[bytes], name: str | None
) -> None:
    run: Any = Named()
    output = role_sessions.SessionOutput(run, pattern)

    for piece in pieces:
        output.write(piece)
    await output.stored()

    assert run.names == ([] if name is None else [name])
    assert run.session_id == name


async def test_an_id_that_the_program_writes_in_pieces_is_the_one_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = """
import os, sys, time
os.write(1, b"session id: its-")
time.sleep(0.3)
os.write(1, b"own\\n")
print(sys.argv[1:])
sys.exit(0 if os.environ["NEXTSLOT_ATTEMPT"] != "1" else 5)
"""

    first, second = await runs_of(
        tmp_path,
        5,
        command=[sys.executable, "-ISc", code],
        resume_on=["error"],
        session_id_pattern=r"^session id: (\S+)$",
    )

    assert first.session_id == second.session_id == "its-own"
    assert "['--resume', 'its-own']" in said(tmp_path, second)


async def test_a_parked_session_goes_on_with_its_id_and_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "import sys, time; print(sys.argv[1:], sys.stdin.read()); time.sleep(2 if len(sys.argv) == 1 else 0)"
    roles = {"FE": {"command": [sys.executable, "-ISc", code], **RESUME}}
    async with scheduler_with_roles(tmp_path, **roles) as scheduler:
        (job,) = await office_jobs(scheduler).submit("o", [{"description": "d", "role": "FE"}])
        first = await scheduler.run_of(job.job_id)
        while first is None:
            await asyncio.sleep(0.02)
            first = await scheduler.run_of(job.job_id)
        await scheduler.park(first.run_id, "go", question="Go on?")
        await until_parked(scheduler)
        await scheduler.signal(job.job_id, "go", {"n": 7})
        ended = await asyncio.wait_for(scheduler.wait(job.job_id), 60)

        assert ended.run is not None
        assert ended.run.session_id == first.session_id
        assert f"['--resume', '{first.session_id}']" in said(tmp_path, ended.run)
        assert '"payload":{"n":7}' in said(tmp_path, ended.run)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"resume_args": "--resume"}, "a list of texts"),
        ({"resume_args": ["--resume"]}, "must have {session_id}"),
        ({"resume_on": ["tired"]}, "a list of failure kinds"),
        ({"session_id_pattern": "("}, "not a regular expression"),
    ],
)
def test_settings_that_make_no_sense_are_refused(table: Any, sentence: str) -> None:
    with pytest.raises(Invalid) as error:
        RoleCommand.of({"command": ["agent"], **table})

    assert sentence in str(error.value)


async def test_a_session_goes_on_after_an_attempt_that_died_before_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt starts, and its scheduler dies before the program does: its new id was never a session."""
    monkeypatch.chdir(tmp_path)
    has_started = asyncio.Event()

    async def stuck(role: RoleCommand, run: RunContext) -> tuple[str, ...]:
        if run.attempt > 1:
            has_started.set()
            await asyncio.Event().wait()
        return ()

    def with_role() -> Scheduler:
        scheduler = Scheduler(f"sqlite:///{tmp_path}/nextslot.db", extensions=["offices"])
        role = {"command": [sys.executable, "-ISc", AGENT], "env": {"FAIL": "5"}, **RESUME}
        office_jobs(scheduler).use_roles({"FE": {**role, "resume_on": ["error", "crash"]}})
        return scheduler

    async with with_role() as scheduler:
        retry = {"max_attempts": 3, "base_delay_seconds": 0, "retry_on": [*OFFICE_RETRIES, "error"]}
        await scheduler.offices.create("o", retry_policy=retry, role_limits={})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(role_sessions, "_resumed", stuck)
            (job,) = await office_jobs(scheduler).submit("o", [{"description": "d", "role": "FE"}])
            await asyncio.wait_for(has_started.wait(), 60)
            await crash(scheduler)
    async with with_role() as scheduler:
        await asyncio.wait_for(scheduler.wait(job.job_id), 60)
        found = [await scheduler.run_of(one.job_id) for one in await scheduler.chain(job.job_id)]

    runs = [one for one in found if one is not None]
    assert [one.failure_kind for one in runs] == ["error", "crash", None]
    assert [one.session_id for one in runs] == [runs[0].session_id, None, runs[0].session_id]
    assert f"['--resume', '{runs[0].session_id}']" in said(tmp_path, runs[2])
