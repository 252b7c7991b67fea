"""Spec 5: how Python handlers are run, and what they may answer."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import pytest

from nextslot import (
    Event,
    FailureKind,
    NewJob,
    Run,
    RunContext,
    Scheduler,
    Skip,
    testing,
)
from nextslot.domain import Outcome
from nextslot.engine.execution.executor import Executor
from nextslot.engine.execution.runner import MOST_REFUSALS, Runner
from nextslot.errors import Refused, Unavailable
from nextslot.store.tables import runs
from nextslot.telemetry.meters import ProcessMeters
from tests import databases
from tests.support import (
    counted_scheduler,
    history,
    register_handlers,
    running_scheduler,
    states,
)

NO_RETRY = {"max_attempts": 0}
FLAVOURS = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


# What a handler gets.


@FLAVOURS
def test_a_handler_gets_its_parameters_and_its_result_is_kept(tmp_path: Path, is_async: bool) -> None:
    def add(run: RunContext, a: int, b: int = 10) -> Any:
        return {"sum": a + b, "of": run.params, "type": run.job_type, "attempt": run.attempt, "office": run.office_id}

    run = run_once(tmp_path, add, {"a": 1}, is_async=is_async)

    assert run.status == "COMPLETED"
    assert run.result == {"sum": 11, "of": {"a": 1}, "type": "tested", "attempt": 1, "office": "default"}
    assert (run.error, run.failure_kind, run.log_path, run.artifacts) == (None, None, None, ())


def test_a_handler_that_changes_its_parameters_changes_nothing_stored(tmp_path: Path) -> None:
    def spoil(run: RunContext, items: list) -> None:
        items.append("spoiled")

    run = run_once(tmp_path, spoil, {"items": [1]})

    assert run.params_snapshot == {"items": [1]}


@pytest.mark.real_time
async def test_a_sync_handler_runs_in_a_thread_of_its_own(tmp_path: Path) -> None:
    threads = []

    async with real_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("where")
        def where(run: RunContext) -> None:
            threads.append(threading.current_thread())

        for _ in range(2):
            await scheduler.wait((await scheduler.submit("where")).job_id)

    assert threads[0] is not threading.main_thread()
    assert threads[1] is threads[0]  # Reused.
    assert threads[0].daemon  # It does not keep a stopped scheduler's process alive.


@pytest.mark.parametrize("is_late", [False, True])
async def test_an_outcome_that_comes_too_late_is_dropped_and_that_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_late: bool
) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", {"seconds": 5, "x": 1})
        await testing.settled()
        if is_late:
            run = await scheduler.run_of(job.job_id)
            assert run is not None
            await scheduler._access.store.write(
                lambda tx: scheduler._runtime.finisher.finish(
                    tx, run.run_id, job.job_id, Outcome.completed({"by": "somebody else"}), scheduler._clock.now()
                )
            )
        await asyncio.sleep(10)

        ended = await scheduler.wait(job.job_id)
        assert ended.result == ({"by": "somebody else"} if is_late else {"x": 1})
    assert ("its outcome is dropped" in caplog.text) == is_late


@pytest.mark.real_time
async def test_a_handler_that_blocks_does_not_block_the_others(tmp_path: Path) -> None:
    async with real_scheduler(tmp_path) as scheduler:
        released = threading.Event()

        @scheduler.job_type("block")
        def block(run: RunContext) -> bool:
            return released.wait(5)

        await scheduler.offices.change("default", max_concurrent_jobs=0)
        blocked = await scheduler.submit("block")
        quick = await scheduler.wait((await scheduler.submit("work", {"seconds": 0})).job_id)
        meanwhile = await states(scheduler, blocked)
        released.set()

        assert (quick.status, meanwhile) == ("COMPLETED", ["RUNNING"])
        assert (await scheduler.wait(blocked.job_id)).result is True


async def test_progress_is_seen_while_it_runs_and_kept_between_0_and_1(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("steps")
        async def steps(run: RunContext) -> None:
            for fraction, text in ((0.4, "reading"), (-3, ""), (7, "nearly there")):
                run.progress(fraction, text)
                await asyncio.sleep(10)

        job = await scheduler.submit("steps")
        seen = []
        await asyncio.sleep(5)
        run_id = await run_id_of(scheduler, job.job_id)
        for _ in range(3):
            seen.append(scheduler.progress(run_id))
            await asyncio.sleep(10)

        assert seen == [(0.4, "reading"), (0.0, ""), (1.0, "nearly there")]
        assert scheduler.progress(run_id) is None


def test_log_lines_go_to_the_run_s_own_file(tmp_path: Path) -> None:
    def talk(run: RunContext) -> None:
        run.log.info("first %s", "line")
        run.log.debug("zweite Zeile: äöü \udce4")

    run = run_once(tmp_path, talk)

    assert run.log_path is not None
    assert run.run_id in run.log_path
    lines = (tmp_path / run.log_path).read_text().splitlines()
    assert lines[0].endswith("INFO first line")
    assert lines[1].endswith("DEBUG zweite Zeile: äöü ?")


def test_a_log_is_capped_and_says_what_was_cut_from_its_middle(tmp_path: Path) -> None:
    line = "x" * (1 << 20)

    def flood(run: RunContext) -> None:
        run.log.info("the beginning")
        for _ in range(24):
            run.log.info(line)
        run.log.info("the end")

    run = run_once(tmp_path, flood)

    text = (tmp_path / str(run.log_path)).read_text()
    cut = text.index(" bytes cut here …")
    assert 9 << 20 < len(text) < (10 << 20) + 100
    assert "the beginning" in text[:100]
    assert text.endswith("the end\n")
    assert 4 << 20 < cut < 6 << 20
    said = int(text[:cut].rsplit("… ", 1)[1].replace(",", ""))
    assert 24 << 20 < said + len(text) < (24 << 20) + 5000


def test_files_left_in_the_artifacts_folder_are_listed(tmp_path: Path) -> None:
    def leave(run: RunContext) -> None:
        (run.artifacts / "b.txt").write_text("four")
        (run.artifacts / "inner" / "deep").mkdir(parents=True)
        (run.artifacts / "inner" / "deep" / "a.bin").write_bytes(b"123")
        (run.artifacts / "empty").mkdir()

    run = run_once(tmp_path, leave)

    assert {(a.name, a.size) for a in run.artifacts} == {("b.txt", 4), ("inner/deep/a.bin", 3)}
    assert {(tmp_path / a.path).read_bytes() for a in run.artifacts} == {b"four", b"123"}


def test_artifacts_of_a_failed_run_are_kept_too(tmp_path: Path) -> None:
    def leave(run: RunContext) -> None:
        (run.artifacts / "half.txt").write_text("half")
        raise ValueError

    assert [a.name for a in run_once(tmp_path, leave).artifacts] == ["half.txt"]


def test_a_link_that_leads_out_is_not_an_artifact(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")

    def link(run: RunContext) -> None:
        (run.artifacts / "file").symlink_to(secret / "key")
        (run.artifacts / "folder").symlink_to(secret)
        (run.artifacts / "own").write_text("mine")

    assert [a.name for a in run_once(tmp_path, link).artifacts] == ["own"]


def test_an_artifacts_folder_that_became_a_link_has_no_artifacts(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")

    def replace(run: RunContext) -> None:
        run.artifacts.rmdir()
        run.artifacts.symlink_to(secret)

    assert run_once(tmp_path, replace).artifacts == ()


def test_a_file_whose_name_cannot_be_stored_strands_no_job(tmp_path: Path) -> None:
    def leave(run: RunContext) -> None:
        Path(os.fsdecode(os.fsencode(run.artifacts) + b"/\xff\xfe.txt")).write_text("odd")
        (run.artifacts / "fine.txt").write_text("fine")

    run = run_once(tmp_path, leave)

    assert run.status == "COMPLETED"
    assert "fine.txt" in [a.name for a in run.artifacts]


# What a handler may answer.


@FLAVOURS
def test_a_handler_may_skip_with_a_reason(tmp_path: Path, is_async: bool) -> None:
    def by_run(run: RunContext) -> None:
        run.skip("nothing new")

    def by_raising(run: RunContext) -> NoReturn:
        raise Skip("nothing new")

    for number, handler in enumerate((by_run, by_raising)):
        run = run_once(tmp_path / str(number), handler, is_async=is_async)
        assert (run.status, run.reason, run.error) == ("SKIPPED", "nothing new", None)


def test_a_handler_that_fails_as_parked_reads_how_to_park(tmp_path: Path) -> None:
    run = run_once(tmp_path, lambda run: run.fail("not today", FailureKind.PARKED))

    assert (run.status, run.failure_kind) == ("FAILED", "invalid")
    assert "use run.park" in str(run.error)


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if kind is not FailureKind.PARKED])
def test_a_handler_may_fail_with_any_kind_but_parked(tmp_path: Path, kind: FailureKind) -> None:
    def fail(run: RunContext) -> None:
        run.fail("not today", kind)

    run = run_once(tmp_path, fail)

    assert (run.status, run.failure_kind, run.error) == ("FAILED", kind, "not today")


async def test_only_a_cancel_request_can_make_a_dispatched_job_cancelled(tmp_path: Path) -> None:
    """A handler that calls its own failure `cancelled` has failed: in a group it can be retried like any other."""
    async with running_scheduler(tmp_path) as scheduler:
        group, members = await scheduler.submit_group([NewJob(job_type="fail", params={"kind": "cancelled"})])
        ended = await scheduler.wait(members[0].job_id)
        await scheduler.retry(await run_id_of(scheduler, members[0].job_id))
        await scheduler.wait(members[0].job_id)

        assert (ended.status, ended.job.permanently_failed) == ("FAILED", True)
        assert (await scheduler.group(group.group_id)).status == "PARTIAL"


@FLAVOURS
def test_an_exception_is_a_failure_with_its_message(tmp_path: Path, is_async: bool) -> None:
    run = run_once(tmp_path, explode, is_async=is_async)

    assert (run.status, run.failure_kind, run.error) == ("FAILED", "error", "ValueError: boom at line 7")


async def test_the_traceback_is_in_the_log_and_nowhere_else(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        scheduler.job_type("explode")(explode)
        ended = await scheduler.wait((await scheduler.submit("explode", retry_policy=NO_RETRY)).job_id)

        assert ended.run is not None
        assert "Traceback" in (tmp_path / str(ended.run.log_path)).read_text()
        assert "Traceback" not in repr((ended, await history(scheduler)))
        assert __file__ not in repr((ended, await history(scheduler)))


def test_an_error_text_is_made_storable(tmp_path: Path) -> None:
    def shout(run: RunContext) -> None:
        raise ValueError("nul \0 half \ud800 " + "long" * 10_000)

    run = run_once(tmp_path, shout)

    assert run.error is not None
    assert run.error.startswith("ValueError: nul \N{REPLACEMENT CHARACTER} half ? long")
    assert len(run.error) == 10_000


@pytest.mark.parametrize(
    "result",
    [Ellipsis, {1, 2}, b"bytes", float("nan"), float("inf"), {"k": Ellipsis}, {(1,): 2}, "\ud800", 2**70],
    ids=repr,
)
async def test_a_result_that_is_not_json_is_an_invalid_failure_and_not_retried(tmp_path: Path, result: Any) -> None:
    async with running_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("nonsense")
        async def nonsense(run: RunContext) -> Any:
            return result

        ended = await scheduler.wait((await scheduler.submit("nonsense")).job_id)

        assert ended.run is not None
        assert (ended.run.status, ended.run.failure_kind) == ("FAILED", "invalid")
        assert "JSON" in str(ended.error)
        assert len(await scheduler.chain(ended.job.job_id)) == 1


def test_a_result_that_is_too_big_says_how_big_and_what_to_do(tmp_path: Path) -> None:
    run = run_once(tmp_path, lambda run: "x" * 70_000)

    assert (run.status, run.failure_kind, run.result) == ("FAILED", "invalid", None)
    assert "70,002 bytes" in str(run.error)
    assert "artifact" in str(run.error)


class Rude(BaseException):
    """Not even an Exception."""


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@FLAVOURS
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), Rude("x"), Mute(), asyncio.CancelledError("x")])
async def test_whatever_a_handler_raises_fails_its_job_and_nothing_else(
    tmp_path: Path, error: BaseException, is_async: bool
) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        scheduler.job_type("rude")(flavoured(raising(error), is_async))
        rude = await scheduler.submit("rude", retry_policy=NO_RETRY)
        after = await scheduler.submit("work")

        await asyncio.sleep(60)

        assert await states(scheduler, rude, after) == ["FAILED", "COMPLETED"]
        run = await scheduler.run_of(rude.job_id)
        assert run is not None
        assert (run.failure_kind, str(run.error).split(":")[0]) == ("error", type(error).__name__)


@pytest.mark.parametrize("error", [SystemExit(3), Rude("x"), Mute()])
@pytest.mark.real_time
async def test_whatever_a_handler_raises_in_its_thread_fails_its_job_only(tmp_path: Path, error: BaseException) -> None:
    async with real_scheduler(tmp_path) as scheduler:
        scheduler.job_type("rude")(raising(error))
        ended = await scheduler.wait((await scheduler.submit("rude", retry_policy=NO_RETRY)).job_id)
        after = await scheduler.wait((await scheduler.submit("work", {"seconds": 0})).job_id)

        assert (ended.status, after.status) == ("FAILED", "COMPLETED")


@FLAVOURS
def test_a_log_that_cannot_be_written_strands_no_job(tmp_path: Path, is_async: bool) -> None:
    def log(run: RunContext) -> None:
        run.log.info("hello")

    for number, (handler, status) in enumerate([(log, "COMPLETED"), (explode, "FAILED")]):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / "logs").write_text("a file where the folder should be")

        run = run_once(directory, handler, is_async=is_async)

        assert (run.status, run.log_path) == (status, None)


POISON = "rule poison before update on runs refuse 'no' when new.result like '%poison%';"


async def test_an_outcome_that_can_never_be_stored_says_why_frees_the_slot_and_its_chain_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    meters = ProcessMeters()

    async with counted_scheduler(tmp_path, meters=meters) as scheduler:
        databases.add_rule(tmp_path, POISON)
        policy = {"max_attempts": 1, "base_delay_seconds": 0}
        poisoned = await scheduler.submit("work", {"drink": "poison"}, retry_policy=policy)
        after = await scheduler.submit("work")
        await asyncio.sleep(120)

        first, second = await scheduler.chain(poisoned.job_id)
        assert await states(scheduler, first, second, after) == ["FAILED", "FAILED", "COMPLETED"]
        run = await the_run(scheduler, first.job_id)
        assert run.failure_kind == "error"
        assert run.error is not None
        assert run.error.startswith("its outcome could not be stored: the work ended COMPLETED, and the database")
        assert meters.refused_outcomes == {"tried_again": 2 * (MOST_REFUSALS - 1), "given_up": 2}


async def test_an_outcome_that_the_store_refuses_for_a_while_is_tried_again_and_stored_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, refusals = runs.finish, iter(range(MOST_REFUSALS - 1))

    def refuse(*values: Any) -> None:
        if next(refusals, None) is not None:
            raise Refused("INV-003")
        finish(*values)

    async with counted_scheduler(tmp_path) as scheduler:
        monkeypatch.setattr(runs, "finish", refuse)
        job = await scheduler.submit("work", {"x": 1})
        ended = await scheduler.wait(job.job_id)

        assert (ended.status, ended.result, ended.job.retry_of) == ("COMPLETED", {"x": 1}, None)


async def test_a_cancelled_run_whose_outcome_can_never_be_stored_stays_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = runs.finish

    def refuse_usual_words(tx: Any, run_id: str, job_id: str, outcome: Any, now: Any) -> None:
        if outcome.error == "cancelled":
            raise Refused("no such word")
        finish(tx, run_id, job_id, outcome, now)

    async with counted_scheduler(tmp_path) as scheduler:
        monkeypatch.setattr(runs, "finish", refuse_usual_words)
        job = await scheduler.submit("work", {"seconds": 1000})
        await scheduler.cancel(job.job_id, interrupt=True)
        ended = await scheduler.wait(job.job_id)

        assert (ended.status, ended.run and ended.run.failure_kind) == ("CANCELLED", "cancelled")


async def test_a_defect_of_the_executor_leaves_no_job_running_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any) -> Any:
        raise KeyError("run")

    async with counted_scheduler(tmp_path) as scheduler:
        with monkeypatch.context() as patch:
            patch.setattr(scheduler._runtime.executor, "run", broken)
            job = await scheduler.submit("work", retry_policy={"max_attempts": 0})
            ended = await scheduler.wait(job.job_id)

        assert (ended.status, ended.error) == ("FAILED", "the executor failed: KeyError: 'run'")
        assert (await scheduler.wait((await scheduler.submit("work")).job_id)).status == "COMPLETED"


async def test_a_run_that_is_told_to_stop_before_it_begins_never_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The effects of two commits, the claim and its cancel, may be carried out one right after the other."""
    began: list[str] = []
    launch = Runner.launch

    def launch_and_stop(runner: Runner, claim: Any) -> None:
        launch(runner, claim)
        assert isinstance(runner._executor, Executor)
        runner._executor.stop(claim.run_id, FailureKind.CANCELLED)

    monkeypatch.setattr(Runner, "launch", launch_and_stop)
    async with counted_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("noted")
        async def noted(run: RunContext) -> None:
            began.append(run.job_id)

        ended = await scheduler.wait((await scheduler.submit("noted")).job_id)

        assert (ended.status, ended.error, began) == ("FAILED", "cancelled", [])


async def test_an_outcome_that_cannot_be_stored_yet_is_kept_until_it_can_and_asked_for_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", {"seconds": 10, "x": 1})
        store, times = scheduler._access.store, list[float]()
        write = store.write

        async def unavailable(*work: Any, **options: Any) -> Any:
            times.append(asyncio.get_running_loop().time())
            if len(times) < 10:
                raise Unavailable("the disk is full")
            return await write(*work, **options)

        monkeypatch.setattr(store, "write", unavailable)
        ended = await scheduler.wait(job.job_id)
        monkeypatch.undo()

        assert (ended.status, ended.result) == ("COMPLETED", {"x": 1})
        pauses = [later - before for before, later in pairwise(times[:10])]
        assert pauses == pytest.approx([0.5, 1, 2, 4, 8, 16, 30, 30, 30])
        run = await the_run(scheduler, job.job_id)
        assert seconds(run) == 10, "it ended when the work did, and not when that could be stored"
        assert run.finished_at == (await scheduler.job(job.job_id)).finished_at


async def test_a_run_that_has_ended_leaves_no_task_behind(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        before = asyncio.all_tasks()

        ended = await scheduler.wait((await scheduler.submit("work", stall_timeout_seconds=1000)).job_id)
        await testing.settled()

        assert ended.status == "COMPLETED"
        assert asyncio.all_tasks() == before


# Timeouts.


async def test_a_run_that_is_out_of_time_is_told_to_stop_and_retried(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", {"seconds": 1000}, timeout_seconds=5, retry_policy={"max_attempts": 1})

        ended = await scheduler.wait(job.job_id)

        runs = [await the_run(scheduler, link.job_id) for link in await scheduler.chain(job.job_id)]
        assert [seconds(run) for run in runs] == [5, 5]  # Each retry has its full time.
        assert {(run.status, run.failure_kind) for run in runs} == {("FAILED", "timeout")}
        assert ended.error == "timed out after 5 seconds"
        assert types(await history(scheduler), job.job_id) == [
            "job_queued", "job_started", "job_timeout", "job_retrying"
        ]  # fmt: skip


async def test_when_a_run_is_out_of_time_is_stored_when_it_starts(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        first = await scheduler.submit("work", {"seconds": 7}, timeout_seconds=100)
        second = await scheduler.submit("work", {"seconds": 7}, timeout_seconds=0.5)
        await asyncio.sleep(8)

        in_time, late = await the_run(scheduler, first.job_id), await the_run(scheduler, second.job_id)
        assert in_time.timeout_at == in_time.started_at.after(100)
        assert late.timeout_at == late.started_at.after(0.5)
        assert (in_time.status, late.status, seconds(late)) == ("COMPLETED", "FAILED", 0.5)


@pytest.mark.parametrize(
    ("of_job", "of_type", "of_office", "expected"),
    [(1, 2, 3, 1), (None, 2, 3, 2), (None, None, 3, 3), (1, None, None, 1), (None, None, None, 1800)],
)
async def test_the_timeout_is_the_job_s_else_its_type_s_else_its_office_s(
    tmp_path: Path, of_job: float | None, of_type: float | None, of_office: float | None, expected: float | None
) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        scheduler.job_type("typed", timeout_seconds=of_type)(raising(ValueError()))
        await scheduler.offices.create("a", timeout_seconds=of_office)

        job = await scheduler.submit("typed", office_id="a", timeout_seconds=of_job)

        assert job.timeout_seconds == expected


async def test_US_JS03_the_default_office_has_no_timeout_and_others_have_half_an_hour(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("a")
        patient = await scheduler.submit("work", {"seconds": 100_000})
        limited = await scheduler.submit("work", {"seconds": 100_000}, office_id="a", retry_policy=NO_RETRY)

        await scheduler.wait(patient.job_id)

        assert await states(scheduler, patient, limited) == ["COMPLETED", "FAILED"]
        assert seconds(await the_run(scheduler, limited.job_id)) == 1800


async def test_a_job_keeps_the_timeout_it_was_created_with(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("a", timeout_seconds=50)
        job = await scheduler.submit("fail", {"times": 1, "kind": "session_error"}, office_id="a")
        await scheduler.offices.change("a", timeout_seconds=5)

        ended = await scheduler.wait(job.job_id)

        assert [link.timeout_seconds for link in await scheduler.chain(job.job_id)] == [50, 50]
        assert ended.status == "COMPLETED"


async def test_a_handler_that_ignores_its_signal_keeps_its_slot_until_it_returns(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        deaf = await scheduler.submit("stubborn", {"seconds": 100}, timeout_seconds=5, retry_policy=NO_RETRY)
        waiting = await scheduler.submit("work")

        await asyncio.sleep(99)
        before = await states(scheduler, deaf, waiting)
        await asyncio.sleep(10)

        assert before == ["RUNNING", "QUEUED"]
        assert await states(scheduler, deaf, waiting) == ["FAILED", "COMPLETED"]
        run = await the_run(scheduler, deaf.job_id)
        assert (run.failure_kind, seconds(run)) == ("timeout", 100)


async def test_no_progress_and_no_output_for_the_stall_time_is_a_timeout(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("steps")
        async def steps(run: RunContext, sign: str) -> None:
            for number in range(10):
                await asyncio.sleep(4)
                if sign == "progress":
                    run.progress(number / 10)
                elif sign == "output":
                    run.log.info("still here")

        await scheduler.offices.change("default", max_concurrent_jobs=0)
        options: dict[str, Any] = {"stall_timeout_seconds": 5, "retry_policy": NO_RETRY}
        alive = [await scheduler.submit("steps", {"sign": sign}, **options) for sign in ("progress", "output")]
        stalled = await scheduler.submit("steps", {"sign": "none"}, **options)
        await asyncio.sleep(100)

        assert await states(scheduler, *alive, stalled) == ["COMPLETED", "COMPLETED", "FAILED"]
        run = await the_run(scheduler, stalled.job_id)
        assert (run.failure_kind, 5 <= seconds(run) < 6) == ("timeout", True)


async def test_a_time_in_which_the_process_was_held_up_is_no_stall(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        reports = asyncio.Event()

        @scheduler.job_type("worker")
        async def work(run: RunContext) -> None:
            await reports.wait()
            for number in range(3):
                await asyncio.sleep(4)
                run.progress(number / 3)

        job = await scheduler.submit("worker", stall_timeout_seconds=5, retry_policy=NO_RETRY)
        await asyncio.sleep(1)
        asyncio.get_running_loop().seconds += 60  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        reports.set()

        assert (await scheduler.wait(job.job_id)).status == "COMPLETED"


# The cancel signal.


@pytest.mark.parametrize("way", ["check", "wait", "is_stopped"])
@pytest.mark.real_time
async def test_a_sync_handler_is_told_by_its_run(tmp_path: Path, way: str) -> None:
    async with real_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("listen")
        def listen(run: RunContext) -> str:
            run.log.info("listening")
            while way == "check":
                run.check()
                run.wait(0.001)
            while way == "is_stopped" and not run.is_stopped:
                run.wait(0.001)
            assert way != "wait" or run.wait(30)
            return "stopped in time"

        job = await scheduler.submit("listen")
        await scheduler.cancel(job.job_id, interrupt=True)

        ended = await scheduler.wait(job.job_id)

        assert ended.run is not None
        assert (ended.status, ended.run.status, ended.run.failure_kind) == ("CANCELLED", "FAILED", "cancelled")
        assert "Traceback" not in (tmp_path / str(ended.run.log_path)).read_text()


async def test_an_async_handler_is_cancelled_and_may_tidy_up(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        tidied = []

        @scheduler.job_type("tidy")
        async def tidy(run: RunContext) -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(3)
                tidied.append(run.is_stopped)

        job = await scheduler.submit("tidy")
        await asyncio.sleep(10)
        await scheduler.cancel(job.job_id, interrupt=True)
        ended = await scheduler.wait(job.job_id)

        assert tidied == [True]
        assert ended.run is not None
        assert (ended.status, ended.run.failure_kind, seconds(ended.run)) == ("CANCELLED", "cancelled", 13)


@pytest.mark.parametrize("answer", ["result", "error", "skip"])
async def test_once_told_to_stop_the_kind_is_what_it_was_told(tmp_path: Path, answer: str) -> None:
    async with running_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("answer")
        async def late(run: RunContext) -> str:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                if answer != "result":
                    raise ValueError if answer == "error" else Skip("too late") from None
            return "a result"

        job = await scheduler.submit("answer", timeout_seconds=1, retry_policy=NO_RETRY)
        run = (await scheduler.wait(job.job_id)).run

        assert run is not None
        assert (run.status, run.failure_kind, run.result) == ("FAILED", "timeout", None)


async def test_what_it_was_told_first_is_what_it_ended_of(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("stubborn", {"seconds": 60}, timeout_seconds=10)
        await asyncio.sleep(5)
        await scheduler.cancel(job.job_id, interrupt=True)

        run = (await scheduler.wait(job.job_id)).run

        assert run is not None
        assert run.failure_kind == "cancelled"


# Arrangement.


def explode(run: RunContext) -> None:
    raise ValueError("boom at line 7")


def raising(error: BaseException) -> Callable[[RunContext], None]:
    def handler(run: RunContext) -> None:
        raise error

    return handler


def flavoured(handler: Callable[..., Any], is_async: bool) -> Callable[..., Any]:
    """Returns the same handler, or an async one that does the same."""

    async def later(run: RunContext, **params: Any) -> Any:
        await asyncio.sleep(0)
        return handler(run, **params)

    return later if is_async else handler


def run_once(
    directory: Path, handler: Callable[..., Any], params: dict[str, Any] | None = None, *, is_async: bool = False
) -> Run:
    """Returns the run of one job with this handler, on virtual time. It ends within the hour and is never retried."""
    found: list[Run] = []

    async def main() -> None:
        async with running_scheduler(directory) as scheduler:
            scheduler.job_type("tested")(flavoured(handler, is_async))
            job = await scheduler.submit("tested", params, retry_policy=NO_RETRY)
            await asyncio.sleep(3600)
            found.append(await the_run(scheduler, job.job_id))

    directory.mkdir(exist_ok=True)
    testing.run(main())
    assert found[0].status is not None, "it is still running"
    return found[0]


@asynccontextmanager
async def real_scheduler(directory: Path) -> AsyncIterator[Scheduler]:
    """Runs a scheduler in real time with real threads; nothing here takes long."""
    scheduler = Scheduler(databases.url(directory), data=directory)
    register_handlers(scheduler)
    async with asyncio.timeout(30), scheduler:
        yield scheduler


async def the_run(scheduler: Scheduler, job_id: str) -> Run:
    run = await scheduler.run_of(job_id)
    assert run is not None
    return run


async def run_id_of(scheduler: Scheduler, job_id: str) -> str:
    return (await the_run(scheduler, job_id)).run_id


def seconds(run: Run) -> float:
    assert run.finished_at is not None
    return (run.finished_at - run.started_at) / 1_000_000


def types(events: list[Event], job_id: str) -> list[str]:
    return [event.type for event in events if event.job_id == job_id]
