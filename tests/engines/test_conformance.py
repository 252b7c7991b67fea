"""What holds of every engine: the fake one that lies, the local one, and a real Slurm."""

import asyncio
import os
import shlex
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from nextslot import testing
from nextslot.domain import FailureKind, JobStatus, RunStatus
from nextslot.domain.bounds import MAX_CHECKPOINT_BYTES
from nextslot.errors import Conflict
from nextslot.executors.checkpoints import CheckpointLines
from nextslot.executors.engines import wrapper_archive, wrapper_main
from nextslot.executors.engines.contract import Key, Sight, Submission
from tests.engines.evidence import GO
from tests.engines.rig import PATIENCE, Rig, run_id_of, until, until_running


async def test_a_job_runs_once_and_its_log_and_artifacts_are_those_of_any_job(rig: Rig) -> None:
    async with rig.scheduler() as scheduler:
        job = await scheduler.submit("work", {"key": "a", "seconds": "0.2"})
        ended = await scheduler.wait(job, PATIENCE)
        log = rig.place / str(ended.run.log_path) if ended.run else Path()

    assert ended.run is not None
    assert ended.run.status == RunStatus.COMPLETED
    assert [one.name for one in ended.run.artifacts] == ["made.txt"]
    assert log.read_text() == "working for a\n"
    assert ended.run.placement is not None
    assert ended.run.placement["engine"] == "box"
    assert len(rig.lines("begin")) == len(rig.lines("end")) == 1


async def test_a_command_that_fails_gives_its_code_and_its_last_line(rig: Rig) -> None:
    async with rig.scheduler() as scheduler:
        policy = {"max_attempts": 1}
        job = await scheduler.submit("script", {"script": "echo no luck; exit 7"}, retry_policy=policy)
        ended = await scheduler.wait(job, PATIENCE)

    assert ended.run is not None
    assert (ended.run.exit_code, ended.run.error) == (7, "exit code 7: no luck")


async def test_the_command_gets_its_parameters_and_the_ids_of_its_run_and_no_other_variable_of_ours(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_SERVER", "hunter2")
    script = 'cat; echo; echo "$NEXTSLOT_RUN_ID $NEXTSLOT_ATTEMPT [$SECRET_OF_THE_SERVER]"'
    async with rig.scheduler() as scheduler:
        job = await scheduler.submit("script", {"script": script})
        ended = await scheduler.wait(job, PATIENCE)
        assert ended.run is not None
        log = (rig.place / str(ended.run.log_path)).read_text()

    assert f"{ended.run.run_id} 1 []" in log
    assert "NEXTSLOT_RUN_ID" in log.splitlines()[0]


# The shell's `echo` writes to the channel, and reads none of the answers.
LEAVES = """
if [ -n "$NEXTSLOT_CHECKPOINT" ]; then cat "$NEXTSLOT_CHECKPOINT"; exit; fi
echo '{"n": 1}' >&3
head -c 100000 /dev/zero | tr '\\0' x >&3
echo >&3
printf '{"n": "\\377"}\\n{"n": \\nNaN\\n{"n": 2' >&3
%s
exit 1
"""


@pytest.mark.parametrize("after", ["sleep 1", "true"])
async def test_a_retry_begins_with_the_last_line_that_is_a_checkpoint_also_if_nobody_reads_the_answers(
    rig: Rig, after: str
) -> None:
    async with rig.scheduler() as scheduler:
        job = await scheduler.submit("script", {"script": LEAVES % after})
        ended = await scheduler.wait(job, PATIENCE)
        chain = await scheduler.chain(job)

    assert ended.run is not None
    assert len(chain) == 2
    assert (rig.place / str(ended.run.log_path)).read_text() == '{"n":1}'


async def test_the_last_checkpoint_is_stored_before_the_end_however_long_it_is(rig: Rig) -> None:
    leaves = """
    if [ -n "$NEXTSLOT_CHECKPOINT" ]; then wc -c < "$NEXTSLOT_CHECKPOINT"; exit; fi
    (printf '"'; head -c 65534 /dev/zero | tr '\\0' x; echo '"') >&3
    exit 1
    """
    async with rig.scheduler() as scheduler:
        job = await scheduler.submit("script", {"script": leaves})
        ended = await scheduler.wait(job, PATIENCE)

    assert ended.run is not None
    assert (rig.place / str(ended.run.log_path)).read_text() == "65536\n"


def test_the_wrapper_which_imports_nothing_of_ours_bounds_checkpoints_as_the_scheduler_does() -> None:
    assert wrapper_main.MAX_CHECKPOINT_BYTES == MAX_CHECKPOINT_BYTES


async def test_a_checkpoint_that_is_nested_too_deep_is_refused_as_anywhere_else(rig: Rig) -> None:
    lines = ["[" * levels + inner + "]" * levels for levels in (61, 62, 63, 64, 900) for inner in ("", "1", '{"a": 1}')]
    asks = """
    import os, sys
    for line in sys.argv[1:]:
        os.write(3, line.encode() + b"\\n")
        print(os.read(3, 4096).decode(), end="")
    """
    script = shlex.join([sys.executable, "-c", textwrap.dedent(asks), *lines])
    async with rig.scheduler() as scheduler:
        ended = await scheduler.wait(await scheduler.submit("script", {"script": script}), PATIENCE)

    assert ended.run is not None
    answers = (rig.place / str(ended.run.log_path)).read_text().splitlines()
    assert answers == [await answer_of_the_scheduler(line) for line in lines]
    assert {answer.partition(" ")[0] for answer in answers} == {"ok", "error"}


async def answer_of_the_scheduler(line: str) -> str:
    """Returns the answer to a command that no engine runs."""
    stored = asyncio.get_running_loop().create_future()
    stored.set_result(None)
    answers: list[bytes] = []
    channel = CheckpointLines(lambda text: stored)
    channel.answer = answers.append
    channel.write(f"{line}\n".encode())
    await asyncio.sleep(0)
    [answer] = answers
    return answer.decode().rstrip("\n")


async def test_a_run_goes_on_while_its_scheduler_is_dead_and_is_adopted(rig: Rig) -> None:
    first = rig.scheduler()
    await first.start()
    job = await first.submit("work", {"key": "a", "seconds": GO})
    run_id = await until_running(first, job)
    await testing.crash(first)

    async with rig.scheduler() as second:
        adopted = await second.run_of(job)
        rig.let_end()
        ended = await second.wait(job, PATIENCE)
        chain = await second.chain(job)

    assert adopted is not None
    assert adopted.status is None
    assert ended.run is not None
    assert (ended.run.run_id, ended.run.status) == (run_id, RunStatus.COMPLETED)
    assert (rig.place / str(ended.run.log_path)).read_text() == "working for a\n"
    assert len(chain) == len(rig.lines("begin")) == 1


async def test_a_run_that_ended_while_no_scheduler_was_there_gets_its_outcome(rig: Rig) -> None:
    first = rig.scheduler()
    await first.start()
    job = await first.submit("work", {"key": "a", "seconds": GO})
    await until_running(first, job)
    await testing.crash(first)
    rig.let_end()
    await until(lambda: rig.lines("end"))

    async with rig.scheduler() as second:
        ended = await second.wait(job, PATIENCE)

    assert ended.run is not None
    assert ended.run.status == RunStatus.COMPLETED
    assert len(rig.lines("begin")) == 1


async def test_a_shutdown_does_not_wait_for_a_placed_run_and_does_not_interrupt_it(rig: Rig) -> None:
    async with rig.scheduler() as scheduler:
        job = await scheduler.submit("work", {"key": "a", "seconds": GO})
        await until_running(scheduler, job)
    has_ended_before = bool(rig.lines("end"))
    rig.let_end()

    async with rig.scheduler() as scheduler:
        ended = await scheduler.wait(job, PATIENCE)

    assert not has_ended_before
    assert ended.run is not None
    assert ended.run.status == RunStatus.COMPLETED
    assert len(rig.lines("begin")) == 1


async def test_a_cancel_ends_the_whole_tree_also_children_that_forked_twice(rig: Rig) -> None:
    async with rig.scheduler() as scheduler:
        job = await scheduler.submit("leave", {"key": "a", "seconds": "60"})
        run_id = await until_running(scheduler, job)
        await until(lambda: len(rig.processes(run_id)) >= 3)
        await scheduler.cancel(job, interrupt=True)
        await scheduler.wait(job, PATIENCE)
        ended = await scheduler.job(job)

    assert ended.status is JobStatus.CANCELLED
    assert rig.processes(run_id) == []


async def test_children_that_outlive_a_command_end_with_it(rig: Rig) -> None:
    async with rig.scheduler() as scheduler:
        job = await scheduler.submit("leave", {"key": "a", "seconds": "0.1"})
        ended = await scheduler.wait(job, PATIENCE)
        run_id = await run_id_of(scheduler, job)

    assert ended.run is not None
    assert ended.run.status == RunStatus.COMPLETED
    assert rig.processes(run_id) == []


async def test_the_timeout_counts_from_the_claim_and_is_kept_without_a_scheduler(rig: Rig) -> None:
    first = rig.scheduler()
    await first.start()
    policy = {"max_attempts": 1}
    job = await first.submit("work", {"key": "a", "seconds": "60"}, timeout_seconds=5, retry_policy=policy)
    run_id = await until_running(first, job)
    run = await first.run_of(job)
    await testing.crash(first)
    await until(lambda: (rig.settings.directory / run_id / "end.json").exists())

    async with rig.scheduler() as second:
        ended = await second.wait(job, PATIENCE)

    assert run is not None
    assert run.timeout_at is not None
    assert ended.run is not None
    assert (ended.run.failure_kind, ended.run.error) == (FailureKind.TIMEOUT, "timed out after 5 seconds")


async def test_no_more_runs_are_handed_over_than_there_are_slots(rig: Rig) -> None:
    async with rig.scheduler() as scheduler:
        jobs = [await scheduler.submit("work", {"key": str(n), "seconds": "0.3"}) for n in range(9)]
        most = 0
        while not all([(await scheduler.job(job)).has_ended for job in jobs]):
            there = (await scheduler.engines.list())[0]
            most = max(most, there.submitting + there.queued + there.running + there.unknown)
            await asyncio.sleep(0.05)

    assert 1 < most <= rig.settings.slots
    assert len(rig.lines("end")) == 9


async def test_a_run_whose_wrapper_was_killed_ends_with_its_tree_and_is_retried(rig: Rig) -> None:
    async with rig.scheduler() as scheduler:
        job = await scheduler.submit("leave", {"key": "a", "seconds": GO})
        run_id = await until_running(scheduler, job)
        await until(lambda: len(rig.processes(run_id)) >= 3)
        rig.kill(run_id, with_guardian=False)
        await until(lambda: not rig.processes(run_id))
        rig.let_end()
        ended = await scheduler.wait(job, PATIENCE)
        chain = await scheduler.chain(job)
        first = await scheduler.run_of(chain[0])

    assert first is not None
    assert (first.failure_kind, first.error) == (
        FailureKind.CRASH,
        "the run was ended because its wrapper was killed",
    )
    assert ended.run is not None
    assert ended.run.status == RunStatus.COMPLETED
    assert rig.lines("overlap") == []
    assert rig.processes(run_id) == []


async def test_a_run_whose_guardian_was_killed_ends_with_its_tree_and_is_retried(rig: Rig) -> None:
    async with rig.scheduler() as scheduler:
        job = await scheduler.submit("leave", {"key": "a", "seconds": GO})
        run_id = await until_running(scheduler, job)
        await until(lambda: len(rig.processes(run_id)) >= 3)
        wrapper = rig.wrapper(run_id)
        guardian = int(Path(f"/proc/{wrapper}/task/{wrapper}/children").read_text().split()[0])
        os.kill(guardian, signal.SIGKILL)
        await until(lambda: not rig.processes(run_id))
        rig.let_end()
        ended = await scheduler.wait(job, PATIENCE)
        chain = await scheduler.chain(job)

    assert len(chain) == 2
    assert ended.run is not None
    assert ended.run.status == RunStatus.COMPLETED
    assert rig.lines("overlap") == []
    assert rig.processes(run_id) == []


async def test_a_run_that_nothing_is_left_of_ends_when_its_lease_is_over(impatient: Rig) -> None:
    async with impatient.scheduler() as scheduler:
        job = await scheduler.submit("work", {"key": "a", "seconds": GO})
        run_id = await until_running(scheduler, job)
        impatient.kill(run_id, with_guardian=True)
        impatient.let_end()
        ended = await scheduler.wait(job, 1.5 * PATIENCE)
        first = await scheduler.run_by_id(run_id)

    assert first.failure_kind is FailureKind.CRASH
    assert f"has not renewed its lease for {impatient.settings.lease_seconds:g} seconds" in str(first.error)
    assert ended.run is not None
    assert ended.run.status == RunStatus.COMPLETED
    assert impatient.lines("overlap") == []


async def test_a_run_that_an_operator_gives_up_ends_its_tree_and_is_retried(rig: Rig) -> None:
    async with rig.scheduler() as scheduler:
        job = await scheduler.submit("leave", {"key": "a", "seconds": "30"})
        run_id = await until_running(scheduler, job)
        await scheduler.engines.lose(job.job_id)
        first = await scheduler.run_by_id(run_id)
        await until(lambda: not rig.processes(run_id))
        with pytest.raises(Conflict, match=f"no engine runs job {job.job_id}, which is FAILED$"):
            await scheduler.engines.lose(job.job_id)
        await scheduler.cancel((await scheduler.chain(job))[-1], interrupt=True)
        await scheduler.wait(job, PATIENCE)

    assert (first.failure_kind, first.error) == (FailureKind.CRASH, "an operator has said that it is lost")


def test_a_submission_may_be_repeated_and_is_found_until_it_has_ended(rig: Rig) -> None:
    wrapper = wrapper_archive.ship(rig.settings.directory)
    run_id = "01a00000-0000-7000-8000-000000000001"
    script = f"echo once >> {rig.work}/starts; until [ -e {rig.work}/{GO} ]; do sleep 0.05; done"
    directory = rig.prepared(run_id, script)
    argv = (rig.settings.python, "-I", str(wrapper), str(directory.path))
    what = Submission(run_id=run_id, directory=directory.path, argv=argv)

    handles = [_until_answered(lambda: rig.engine.submit(what)) for _ in range(2)]
    found = _until_answered(lambda: rig.engine.find(run_id))
    rig.let_end()
    _wait_for(lambda: directory.look(0).end is not None)
    _wait_for(lambda: _until_answered(lambda: rig.engine.find(run_id)) == [])

    assert found
    assert set(handles) >= set(found)
    assert (rig.work / "starts").read_text() == "once\n"


def test_an_engine_says_that_it_does_not_know_what_was_never_submitted(rig: Rig, kind: str) -> None:
    if kind == "lying":
        pytest.skip("it lies about that")
    keys = [Key(f"01a00000-0000-7000-8000-00000000010{n}", handle) for n, handle in enumerate(("4000", "4001"))]
    if kind == "local":
        keys = [Key(key.run_id, f"{key.handle}@1") for key in keys]

    seen = rig.engine.observe(keys)
    none = rig.engine.observe([])

    assert {one.sight for one in seen.values()} == {Sight.ABSENT}
    assert none == {}
    assert rig.engine.find(keys[0].run_id) == []
    rig.engine.stop(keys[0], 1.0)


def _until_answered(ask: object) -> list[str]:
    from nextslot.executors.engines.contract import Unreachable

    while True:
        try:
            return ask()  # type: ignore[operator, no-any-return]
        except Unreachable:
            continue


def _wait_for(is_so: object) -> None:
    import time

    end = time.monotonic() + PATIENCE
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.05)
