"""`isolate=True`, `module:function`, entry points: Python handlers found by name, in a process of their own."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nextslot import Ended, FailureKind, Scheduler
from nextslot.engine.effects import Claim, WorkKind
from nextslot.engine.execution.executor import ISOLATED, NOT_ISOLATED, Executor
from nextslot.errors import Invalid
from nextslot.executors.isolated_handler import IsolatedHandler
from nextslot.executors.job_type_catalog import Catalog, load_handler
from nextslot.executors.process_tree.process import WAS_KILLED, WAS_STOPPED
from nextslot.executors.process_tree.survivors import find_survivors
from nextslot.executors.run_files import RunFiles
from nextslot.executors.threads import DaemonThreads
from nextslot.system.clock import SystemClock
from tests.executors import isolated_examples as examples

NEVER_AGAIN = {"max_attempts": 0}


def test_it_runs_in_another_process_and_its_outcome_is_as_ever(tmp_path: Path) -> None:
    ended = isolated(tmp_path, examples.double, {"n": 21})

    assert ended.result["n"] == 42
    assert ended.result["pid"] != os.getpid()
    assert ended.run is not None
    assert [artifact.name for artifact in ended.run.artifacts] == ["note.txt"]
    log = (tmp_path / (ended.run.log_path or "")).read_text()
    assert "INFO doubling 21" in log
    assert "printed" in log


@pytest.mark.parametrize(
    ("handler", "status", "kind", "error"),
    [
        (examples.double_later, "COMPLETED", None, None),
        (examples.refuse, "FAILED", FailureKind.PERMISSION, "not mine"),
        (examples.nothing_to_do, "SKIPPED", None, None),
        (examples.broken, "FAILED", FailureKind.ERROR, "ValueError: boom"),
        (
            examples.crash,
            "FAILED",
            FailureKind.ERROR,
            "the handler's process was ended by SIGSEGV without reporting an outcome",
        ),
    ],
)
def test_every_end_of_an_isolated_handler_is_a_sensible_run(
    tmp_path: Path, handler: Callable[..., Any], status: str, kind: FailureKind | None, error: str | None
) -> None:
    ended = isolated(tmp_path, handler, {"n": 1} if handler is examples.double_later else {})

    assert ended.run is not None
    assert (ended.status, ended.run.failure_kind, ended.error) == (status, kind, error)


@pytest.mark.parametrize("handler", [examples.stubborn, examples.polite, examples.patient])
def test_it_can_be_ended_from_outside_whatever_it_does(tmp_path: Path, handler: Callable[..., Any]) -> None:
    ended = isolated(tmp_path, handler, {}, timeout_seconds=1, grace_seconds=0.5)

    assert ended.run is not None
    assert (ended.run.failure_kind, ended.error) == (FailureKind.TIMEOUT, "timed out after 1 seconds")
    assert find_survivors([ended.run.run_id]) == []


@pytest.mark.parametrize(
    ("handler", "kind", "error"),
    [
        (examples.stopping, FailureKind.ERROR, WAS_STOPPED),
        (examples.killing, FailureKind.ERROR, WAS_KILLED),
    ],
)
def test_one_that_attacks_its_guardian_fails_and_says_so(
    tmp_path: Path, handler: Callable[..., Any], kind: FailureKind, error: str
) -> None:
    ended = isolated(tmp_path, handler, {})

    assert ended.run is not None
    assert (ended.run.failure_kind, ended.error, ended.run.exit_code) == (kind, error, None)
    assert find_survivors([ended.run.run_id]) == []


def test_a_handler_that_cannot_be_found_again_is_refused() -> None:
    with pytest.raises(Invalid, match="a function at the top of a module"):
        Scheduler().job_types.add("x", lambda run: None, isolate=True)


@pytest.mark.parametrize("after", ["the same", "removed", "a closure"])
async def test_a_run_that_must_be_isolated_never_runs_inside_whatever_a_reload_did(tmp_path: Path, after: str) -> None:
    inside: list[str] = []
    catalog = Catalog()
    catalog.add("double", examples.double)
    draft = Catalog()
    draft.add("double", lambda run, n: inside.append("ran"))
    if after != "the same":
        catalog.replace(["double"], {"double": draft.get("double")} if after == "a closure" else {})
    executor = Executor(SystemClock(), catalog, DaemonThreads(), RunFiles(tmp_path))
    claim = Claim(WorkKind.JOB, "run-1", "job-1", "default", 1, "double", {"n": 4}, 3, "here", None, is_isolated=True)

    try:
        outcome = await executor.run(claim)
    finally:
        catalog.guardians.close()

    assert inside == []
    if after == "a closure":
        assert (outcome.failure_kind, outcome.error) == (FailureKind.ERROR, NOT_ISOLATED)
    else:
        assert (outcome.result["n"], outcome.result["pid"] == os.getpid()) == (8, False)
        assert ISOLATED in (tmp_path / str(outcome.log_path)).read_text()


async def test_its_parameters_are_checked_as_ever(tmp_path: Path) -> None:
    async with real_scheduler(tmp_path) as scheduler:
        scheduler.job_types.add("double", examples.double, isolate=True)

        with pytest.raises(Invalid, match=r"params.n: \"x\" is not of type"):
            await scheduler.submit("double", {"n": "x"})


async def test_a_handler_is_found_by_module_and_name(tmp_path: Path) -> None:
    async with real_scheduler(tmp_path) as scheduler:
        scheduler.job_types.add("double", "tests.executors.isolated_examples:double_later")

        job = await scheduler.submit("double", {"n": 3})

        assert (await scheduler.wait(job.job_id)).result == 6


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("json", "names no function; write module:function"),
        ("no_such_module_at_all:x", "cannot be imported"),
        ("json:no_such_function", "has no function 'no_such_function'"),
        ("json:__name__", "is not callable"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused_with_the_reason(name: str, problem: str) -> None:
    with pytest.raises(Invalid, match=problem):
        load_handler(name)


def test_installed_packages_offer_job_types_by_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "offer-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offer\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[nextslot.job_types]\ndouble = tests.executors.isolated_examples:double\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    scheduler = Scheduler()

    scheduler.job_types.add_offered()

    assert scheduler.job_types.get("double").handler is examples.double


def isolated(
    directory: Path, handler: Callable[..., Any], params: dict[str, Any], grace_seconds: float = 10, **options: Any
) -> Ended:
    found: list[Ended] = []

    async def main() -> None:
        async with real_scheduler(directory) as scheduler:
            job_type = scheduler.job_types.add("x", handler, isolate=True, retry_policy=NEVER_AGAIN, **options)
            assert isinstance(job_type.handler, IsolatedHandler)
            job_type.handler.grace_seconds = grace_seconds
            job = await scheduler.submit("x", params)
            found.append(await scheduler.wait(job.job_id))

    asyncio.run(main())
    return found[0]


@asynccontextmanager
async def real_scheduler(directory: Path) -> AsyncIterator[Scheduler]:
    async with Scheduler(f"sqlite:///{directory}/nextslot.db") as scheduler:
        yield scheduler
