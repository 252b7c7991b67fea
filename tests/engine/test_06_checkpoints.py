"""What an attempt leaves for the next one: stored with its chain, bounded, and only by a run that has not ended."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from nextslot import Fail, Scheduler
from nextslot.engine.retention import Keep
from nextslot.errors import Conflict, Invalid, Unavailable
from nextslot.store.maintenance.exported_rows import TABLES
from nextslot.store.tables import checkpoints
from tests.support import running_scheduler

AT_ONCE = {"base_delay_seconds": 0}


def steps(scheduler: Scheduler, seen: list[Any]) -> None:
    @scheduler.job_type("steps")
    async def go(run: Any, times: int = 2) -> Any:
        """A handler that makes one step per attempt, and fails this many times."""
        seen.append(run.last_checkpoint)
        done = (run.last_checkpoint or {"done": 0})["done"]
        await run.checkpoint({"done": done + 1})
        if run.attempt <= times:
            raise Fail("again")
        return done


async def test_the_next_attempt_gets_the_last_checkpoint(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        seen: list[Any] = []
        steps(scheduler, seen)

        job = await scheduler.submit("steps", retry_policy=AT_ONCE)
        ended = await scheduler.wait(job.job_id)

        assert seen == [None, {"done": 1}, {"done": 2}]
        assert ended.result == 2
        detail = await scheduler.lists.job(job.job_id)
        assert detail.checkpoint is not None
        assert detail.checkpoint.value == {"done": 3}
        assert ended.run is not None
        assert detail.checkpoint.run_id == ended.run.run_id


async def test_a_retry_by_hand_goes_on_from_it_too_and_a_rerun_begins_anew(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        seen: list[Any] = []
        steps(scheduler, seen)
        job = await scheduler.submit("steps", {"times": 1}, retry_policy={"max_attempts": 0})
        ended = await scheduler.wait(job.job_id)
        assert ended.run is not None

        await scheduler.retry(ended.run.run_id)
        await scheduler.wait(job.job_id)
        fresh = await scheduler.submit("steps", {"times": 0})
        await scheduler.wait(fresh.job_id)

        assert seen == [None, {"done": 1}, None]


async def test_of_many_that_wait_only_the_last_is_stored_and_all_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        writes: list[str] = []

        @scheduler.job_type("hasty")
        async def hasty(run: Any) -> Any:
            await asyncio.gather(*(run.checkpoint(number) for number in range(100)))

        @scheduler.job_type("careless")
        async def careless(run: Any) -> Any:
            run.checkpoint("not awaited")

        keep = checkpoints.keep

        def counted(tx: Any, run_id: str, value: str, now: Any) -> bool:
            writes.append(value)
            return keep(tx, run_id, value, now)

        monkeypatch.setattr(checkpoints, "keep", counted)
        first, second = await scheduler.submit("hasty"), await scheduler.submit("careless")
        await scheduler.wait(first.job_id)
        await scheduler.wait(second.job_id)

        kept = [(await scheduler.lists.job(one.job_id)).checkpoint for one in (first, second)]
        assert [one.value for one in kept if one is not None] == [99, "not awaited"]
        assert len([value for value in writes if value != '"not awaited"']) <= 3


async def test_a_value_that_cannot_be_stored_is_refused_with_a_sentence_and_the_old_one_stays(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        said: list[str] = []

        @scheduler.job_type("large")
        async def large(run: Any) -> Any:
            await run.checkpoint("small")
            for value in ("x" * 70_000, {"at": object()}, float("nan")):
                with pytest.raises(Invalid) as error:
                    await run.checkpoint(value)
                said.append(str(error.value))

        job = await scheduler.submit("large")
        ended = await scheduler.wait(job.job_id)

        assert ended.run is not None
        assert ended.run.error is None
        assert "70,002 bytes of JSON; at most 65,536 are stored" in said[0]
        assert "not JSON" in said[1]
        assert "finite" in said[2]
        assert (await scheduler.lists.job(job.job_id)).checkpoint.value == "small"  # type: ignore[union-attr]


# Sends lines to the channel, records the answers, and ends in the middle of a line.
LINES = {
    "a checkpoint": b'{"n": 1}\n',
    "invalid UTF-8": b'{"n": "\xff"}\n',
    "half a surrogate pair": b'{"n": "\\ud800"}\n',
    "half an object": b'{"n": \n',
    "no number": b"NaN\n",
    "an infinite number": b"1e999\n",
    "deep": b"[" * 100 + b"]" * 100 + b"\n",
    "too long": b'"' + b"x" * 64 * 1024 + b'"\n',
    "much too long": b'"' + b"x" * 300_000 + b'"\n',
    "the longest": b'"' + b"x" * (64 * 1024 - 2) + b'"\n',
    "another": b'{"n": 2}\n',
}
CHANNEL = f"""
import json, os, socket, sys
channel = socket.socket(fileno=int(os.environ["NEXTSLOT_CHECKPOINT_FD"]))
last = os.environ.get("NEXTSLOT_CHECKPOINT")
if last is not None:
    print("began with", open(last).read())
    sys.exit()
answers = channel.makefile("r")
for line in {list(LINES.values())!r}:
    channel.sendall(line)
    print("answer", answers.readline(), end="")
channel.sendall(b'{{"n": 3')
sys.exit(1)
"""


async def test_a_line_of_a_command_that_is_no_checkpoint_is_refused_with_a_sentence_and_a_torn_one_is_dropped(
    tmp_path: Path,
) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        program = tmp_path / "channel.py"
        program.write_text(CHANNEL)
        scheduler.job_types.add_command("lines", [sys.executable, "-IS", str(program)])

        job = await scheduler.submit("lines", retry_policy=AT_ONCE)
        ended = await scheduler.wait(job.job_id)
        first = await scheduler.run_of(job.job_id)
        assert first is not None
        assert ended.run is not None
        log = (tmp_path / (first.log_path or "")).read_text()
        answers = [line.removeprefix("answer ") for line in log.splitlines()]

        assert dict(zip(LINES, (one.partition(" ")[0] for one in answers), strict=True)) == {
            name: "ok" if name in ("a checkpoint", "the longest", "another") else "error" for name in LINES
        }
        assert all("is not JSON" in one for one in answers[1:6])
        assert "too deep" in answers[6]
        assert all("longer than 65,536 bytes" in one for one in answers[7:9])
        went_on = (tmp_path / (ended.run.log_path or "")).read_text()
        assert json.loads(went_on.removeprefix("began with ")) == {"n": 2}


async def test_only_a_run_that_has_not_ended_leaves_a_checkpoint(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", {"seconds": 10})
        run = await scheduler.run_of(job.job_id)
        assert run is not None

        kept = await scheduler.checkpoint(run.run_id, [1, 2])
        await scheduler.wait(job.job_id)
        with pytest.raises(Conflict, match="has ended"):
            await scheduler.checkpoint(run.run_id, [3])

        assert kept.value == [1, 2]
        assert (await scheduler.lists.job(job.job_id)).checkpoint == kept


async def test_a_direct_request_has_no_attempts_and_stores_none(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("direct")
        async def direct(run: Any) -> Any:
            with pytest.raises(Unavailable, match="only jobs have attempts"):
                await run.checkpoint(1)

        done = await scheduler.run_direct("direct")

        assert done.error is None


async def test_it_goes_with_its_chain(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        steps(scheduler, [])
        job = await scheduler.submit("steps", {"times": 1}, retry_policy=AT_ONCE)
        await scheduler.wait(job.job_id)
        await asyncio.sleep(40 * 86400)

        scheduler.retention.keep = Keep(jobs_days=30)
        await scheduler.retention.purge()

        def left(tx: Any) -> int:
            return len(tx.rows("checkpoints.of_chain", chain_id=job.chain_id))

        assert await scheduler._access.read(left) == 0


def test_it_is_part_of_an_export() -> None:
    assert "checkpoints" in TABLES
