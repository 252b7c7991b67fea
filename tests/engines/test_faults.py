"""Faults that the records and the engine can have, and what people then read."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from nextslot import Scheduler, testing
from nextslot.domain import FailureKind, Job, RunStatus
from nextslot.errors import Invalid
from nextslot.executors.engines import records
from nextslot.executors.engines.contract import Key, Seen, Sight, Submission, Unreachable
from nextslot.executors.engines.local_engine import LocalEngine
from nextslot.executors.engines.run_directory import RunDirectory
from nextslot.executors.process_tree.kill_tree import descendants
from tests.engines.evidence import GO
from tests.engines.rig import Rig, run_id_of, until, until_ended, until_running

# A wrapper to which its engine sends TERM in the moment after its claim.
TOLD_AT_ITS_CLAIM = """
import os, signal, sys
from nextslot.executors.engines import records, wrapper_main
write = records.write_once
def write_and_be_told(directory, name, record):
    done = write(directory, name, record)
    if name == records.CLAIM:
        os.kill(os.getpid(), signal.SIGTERM)
    return done
records.write_once = write_and_be_told
wrapper_main.main()
"""
# A wrapper to which its engine sends TERM after the command has ended.
TOLD_AFTER_ITS_COMMAND = """
import os, signal
from nextslot.executors.engines import wrapper_main
close = wrapper_main.OutputPieces.close
def close_and_be_told(pieces):
    close(pieces)
    os.kill(os.getpid(), signal.SIGTERM)
wrapper_main.OutputPieces.close = close_and_be_told
wrapper_main.main()
"""


class SlowEngine(LocalEngine):
    """Starts nothing, and can be away."""

    def __init__(self) -> None:
        self.is_there = True
        self.stopped: list[str] = []

    def submit(self, submission: Submission) -> str:
        self._answer()
        return "1@1"

    def find(self, run_id: str) -> list[str]:
        self._answer()
        return []

    def observe(self, keys: Sequence[Key]) -> dict[str, Seen]:
        self._answer()
        return {key.run_id: Seen(Sight.QUEUED, "it waits for a card") for key in keys}

    def stop(self, key: Key, grace_seconds: float) -> None:
        self._answer()
        self.stopped.append(key.run_id)

    def _answer(self) -> None:
        if not self.is_there:
            raise Unreachable("the cable is out")


class LateEngine(LocalEngine):
    """Says nothing of a submission before the run has ended, and then loses the answer."""

    def submit(self, submission: Submission) -> str:
        super().submit(submission)
        while records.read(str(submission.directory), records.END) is None:
            time.sleep(0.05)
        raise Unreachable("the connection was lost after the submission")


async def state_of(scheduler: Scheduler, job: Job) -> str | None:
    run = await scheduler.run_of(job)
    return None if run is None or run.placement is None else str(run.placement["state"])


async def until_state(scheduler: Scheduler, job: Job, state: str) -> None:
    async def is_so() -> bool:
        return await state_of(scheduler, job) == state

    await until(is_so)


async def until_explained(scheduler: Scheduler, job: Job, words: str) -> None:
    """Waits until the reason of a job that runs ends with these words."""

    async def is_so() -> bool:
        [reason] = (await scheduler.forecast.why(job.job_id)).reasons
        return reason.text.endswith(words)

    await until(is_so)


async def test_what_the_engine_does_not_start_in_time_fails_and_is_taken_back(tmp_path: Path) -> None:
    engine = SlowEngine()
    rig = Rig(tmp_path, engine, start_timeout_seconds=1.0)
    async with rig.scheduler() as scheduler:
        job = await scheduler.submit("work", {"key": "a", "seconds": "1"}, retry_policy={"max_attempts": 0})
        run_id = await run_id_of(scheduler, job) if await scheduler.run_of(job) else None
        ended = await scheduler.wait(job, 30)

    assert ended.run is not None
    assert (ended.run.failure_kind, ended.run.error) == (
        FailureKind.TIMEOUT,
        "the engine 'box' did not start it within 1 seconds",
    )
    assert engine.stopped == [ended.run.run_id]
    assert run_id in (None, ended.run.run_id)


async def test_a_run_without_a_sign_of_life_is_unknown_until_it_gives_one(tmp_path: Path) -> None:
    rig = Rig(tmp_path, LocalEngine(), lease_seconds=60.0)
    async with rig.scheduler() as scheduler:
        job = await scheduler.submit("work", {"key": "a", "seconds": "8"})
        run_id = await until_running(scheduler, job)
        wrapper = rig.wrapper(run_id)
        frozen = [wrapper, *(pid for pid, _ in descendants(wrapper))]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        await until_state(scheduler, job, "unknown")
        why = await scheduler.forecast.why(job.job_id)
        there = (await scheduler.engines.list())[0]
        for pid in reversed(frozen):
            os.kill(pid, signal.SIGCONT)
        await until_state(scheduler, job, "running")
        ended = await scheduler.wait(job, 60)

    assert "it gives no sign of life: its lease decides, or `job lost`" in why.reasons[0].text
    assert (there.unknown, there.running) == (1, 0)
    assert ended.run is not None
    assert (ended.run.run_id, ended.run.status) == (run_id, RunStatus.COMPLETED)
    assert len(rig.lines("begin")) == 1


async def test_a_run_that_ended_before_anybody_looked_says_that_it_ran_there_and_when_it_began(tmp_path: Path) -> None:
    rig = Rig(tmp_path, LateEngine())
    async with rig.scheduler() as scheduler:
        ended = await scheduler.wait(await scheduler.submit("work", {"key": "a", "seconds": "0.5"}), 60)

    assert ended.run is not None
    assert ended.run.status == RunStatus.COMPLETED
    assert ended.run.placement == {"engine": "box", "state": "running", "handle": None}
    assert ended.run.began_at is not None
    assert ended.run.finished_at is not None
    assert ended.run.finished_at - ended.run.began_at >= 500_000
    assert len(rig.lines("begin")) == 1


async def test_an_engine_that_is_away_is_held_and_says_so_and_is_released_when_it_answers(tmp_path: Path) -> None:
    engine = SlowEngine()
    rig = Rig(tmp_path, engine)
    async with rig.scheduler() as scheduler:
        first = await scheduler.submit("work", {"key": "a", "seconds": "1"})
        await until_state(scheduler, first, "queued")
        await until_explained(scheduler, first, " and has not started it. it waits for a card.")
        engine.is_there = False
        await until_held(scheduler, True)
        second = await scheduler.submit("work", {"key": "b", "seconds": "1"})
        why = await scheduler.forecast.why(second.job_id)
        [there] = await scheduler.engines.list()
        run = await scheduler.run_of(second)
        before = await state_of(scheduler, first)
        engine.is_there = True
        await until_held(scheduler, False)
        await until_state(scheduler, second, "queued")
        after = (await scheduler.engines.list())[0]

    assert there.problem == "the cable is out"
    assert run is None
    assert any("box" in one.text for one in why.reasons), why.reasons
    # Nothing that was handed over is cancelled or retried.
    assert before == "queued"
    assert (after.problem, after.queued) == (None, 2)


async def until_held(scheduler: Scheduler, wanted: bool) -> None:
    from nextslot.store.tables import outages

    async def is_so() -> bool:
        held = await scheduler._access.read(outages.all_of_them)
        return any(one.resource == "box" and one.held_since is not None for one in held) is wanted

    await until(is_so, 90)


async def test_a_wrapper_that_cannot_renew_its_lease_ends_its_tree_before_the_run_is_retried(tmp_path: Path) -> None:
    rig = Rig(tmp_path, LocalEngine(), lease_seconds=18.0)
    async with rig.scheduler() as scheduler:
        job = await scheduler.submit("leave", {"key": "a", "seconds": "60"}, retry_policy={"max_attempts": 0})
        run_id = await until_running(scheduler, job)
        await until(lambda: len(rig.processes(run_id)) >= 3)
        # A directory in its place refuses each renewal, and each reader.
        lease = rig.settings.directory / run_id / "lease"
        while not lease.is_dir():
            lease.unlink(missing_ok=True)
            try:
                lease.mkdir()
            except FileExistsError:
                continue
        await until_state(scheduler, job, "unknown")
        await until(lambda: not rig.processes(run_id), 30)
        is_unended = (await scheduler.run_by_id(run_id)).finished_at is None
        lease.rmdir()
        await until_ended(scheduler, run_id)
        ended = await scheduler.run_by_id(run_id)

    assert is_unended
    assert (ended.failure_kind, ended.error) == (
        FailureKind.CRASH,
        "its wrapper could not write to its directory for too long, and has ended it",
    )


def test_a_wrapper_that_its_engine_stops_right_after_its_claim_writes_the_end(tmp_path: Path) -> None:
    rig = Rig(tmp_path, LocalEngine())
    directory = rig.prepared("01a00000-0000-7000-8000-000000000001", "sleep 60")

    subprocess.run([sys.executable, "-c", TOLD_AT_ITS_CLAIM, str(directory.path)], timeout=60, check=False)

    end = directory.look(0).end
    assert end is not None, "nobody would know before the lease is over"
    assert end["stopped"] == "engine"


@pytest.mark.parametrize(("command", "stopped"), [("kill -TERM $$", "engine"), ("exit 143", "engine"), ("true", None)])
def test_a_signal_of_the_engine_that_meets_the_command_first_is_the_engines(
    tmp_path: Path, command: str, stopped: str | None
) -> None:
    """Else a time limit of Slurm, which signals all processes at once, is taken for an error of the command."""
    rig = Rig(tmp_path, LocalEngine())
    directory = rig.prepared("01a00000-0000-7000-8000-000000000001", command)

    subprocess.run([sys.executable, "-c", TOLD_AFTER_ITS_COMMAND, str(directory.path)], timeout=60, check=False)

    end = directory.look(0).end
    assert end is not None
    assert end["stopped"] == stopped


async def test_a_run_that_a_scheduler_gave_up_just_before_it_died_ends_and_is_retried(tmp_path: Path) -> None:
    rig = Rig(tmp_path, LocalEngine())
    first = rig.scheduler()
    await first.start()
    job = await first.submit("work", {"key": "a", "seconds": GO})
    run_id = await until_running(first, job)
    directory = RunDirectory(rig.settings.directory / run_id, "")
    token = str((records.read(str(directory.path), records.REQUEST) or {})["token"])
    await testing.crash(first)
    # What it does last: the record is written, and the end is not stored.
    assert directory.give_up(token, "its lease is over")
    await until(lambda: not rig.processes(run_id))
    rig.let_end()

    async with rig.scheduler() as second:
        ended = await second.wait(job, 60)
        before = await second.run_by_id(run_id)

    assert (before.failure_kind, before.error) == (FailureKind.CRASH, "its lease is over")
    assert ended.run is not None
    assert ended.run.status == RunStatus.COMPLETED
    assert rig.lines("overlap") == []


async def test_an_output_above_the_cap_keeps_its_beginning_and_its_end(rig: Rig) -> None:
    cap = 400_000
    script = "echo first; head -c 3000000 /dev/zero | tr '\\0' x | fold -w 100; echo; echo last"
    async with rig.scheduler() as scheduler:
        scheduler.job_types.add_command("talk", ["sh", "-c", script], engine="box", log_cap_bytes=cap)
        job = await scheduler.submit("talk")
        ended = await scheduler.wait(job, 60)
        assert ended.run is not None
        log = (rig.place / str(ended.run.log_path)).read_text()

    assert ended.run.status == RunStatus.COMPLETED
    assert log.startswith("first\nxxx")
    assert log.endswith("x\nlast\n")
    assert "bytes cut here" in log
    assert len(log) < 2 * cap


async def test_a_placed_run_has_its_files_in_the_store_that_all_nodes_read(tmp_path: Path) -> None:
    rig = Rig(tmp_path, LocalEngine())
    async with rig.scheduler(files=f"file://{tmp_path}/store") as scheduler:
        job = await scheduler.submit("work", {"key": "a", "seconds": "0.2"})
        ended = await scheduler.wait(job, 60)
        files = [one for one in (tmp_path / "store").rglob("*") if one.is_file()]

    assert ended.run is not None
    assert [one.name for one in ended.run.artifacts] == ["made.txt"]
    assert any(one.name == "made.txt" and one.read_text() == "a" for one in files), files
    assert any(one.read_bytes() == b"working for a\n" for one in files), files


async def test_a_placed_run_has_the_devices_that_it_holds_in_its_environment(tmp_path: Path) -> None:
    rig = Rig(tmp_path, LocalEngine())
    script = 'echo "[$CUDA_VISIBLE_DEVICES] [$NEXTSLOT_DEVICES]"; sleep 1'
    async with rig.scheduler(node_resources={"gpu": ["7", "9"]}, more={"gpu": 2}) as scheduler:
        scheduler.job_types.add_command("cards", ["sh", "-c", script], engine="box", resources={"gpu": 1})
        jobs = [await scheduler.submit("cards") for _ in range(2)]
        ended = [await scheduler.wait(job, 60) for job in jobs]
        runs = [one.run for one in ended if one.run is not None]
        logs = [(rig.place / str(run.log_path)).read_text() for run in runs]

    assert sorted(logs) == ['[7] [{"gpu": ["7"]}]\n', '[9] [{"gpu": ["9"]}]\n']
    assert [f"[{(run.devices or {})['gpu'][0]}]" for run in runs] == [log.split()[0] for log in logs]


async def test_an_engine_that_assigns_devices_itself_keeps_those_of_its_machines(tmp_path: Path) -> None:
    rig = Rig(tmp_path, LocalEngine(), variables=("CUDA_VISIBLE_DEVICES",))
    async with rig.scheduler(node_resources={"gpu": ["7"]}, more={"gpu": 1}) as scheduler:
        script = 'echo "[$CUDA_VISIBLE_DEVICES]"'
        scheduler.job_types.add_command("cards", ["sh", "-c", script], engine="box", resources={"gpu": 1})
        ended = await scheduler.wait(await scheduler.submit("cards"), 60)
        assert ended.run is not None
        log = (rig.place / str(ended.run.log_path)).read_text()

    assert log == "[]\n"


async def test_a_direct_request_of_a_type_on_an_engine_is_refused_at_the_door(tmp_path: Path) -> None:
    rig = Rig(tmp_path, LocalEngine())
    async with rig.scheduler() as scheduler:
        with pytest.raises(Invalid, match="runs on the engine 'box', where it waits for another queue; create a job"):
            await asyncio.wait_for(scheduler.run_direct("work", {"key": "a", "seconds": "0"}), 10)

    assert rig.lines("begin") == []
