"""Spec 5.27: a job gets the results and artifacts of the jobs that it has waited for."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from nextslot import Fail, NewJob, Scheduler, Skip
from nextslot.errors import Unavailable
from nextslot.executors.run_context import RunContext
from nextslot.store.tables import dependencies
from tests import databases

pytestmark = pytest.mark.real_time

Seen = dict[str, Any]


def new_scheduler(directory: Path) -> Scheduler:
    return Scheduler(databases.url(directory), data=directory)


def with_types(scheduler: Scheduler, seen: list[Seen]) -> None:
    async def make(run: RunContext, text: str = "made") -> dict[str, str]:
        (run.artifacts / "note.txt").write_text(text)
        return {"text": text}

    async def use(run: RunContext, fails: int = 0) -> None:
        seen.append(
            {
                name: None if one is None else (one.result, one.file("note.txt").read_text(), len(one.artifacts))
                for name, one in run.inputs.items()
            }
        )
        if run.attempt <= fails:
            raise Fail("not yet")

    async def flaky(run: RunContext) -> str:
        (run.artifacts / "note.txt").write_text(f"attempt {run.attempt}")
        if run.attempt == 1:
            raise Fail("not yet")
        return f"attempt {run.attempt}"

    async def skip(run: RunContext) -> None:
        raise Skip("nothing to do")

    for name, handler in (("make", make), ("use", use), ("flaky", flaky), ("skip", skip)):
        scheduler.job_types.add(name, handler)


AT_ONCE = {"max_attempts": 3, "base_delay_seconds": 0}


async def test_inputs_are_named_by_key_or_by_id_and_a_skipped_one_is_none(tmp_path: Path) -> None:
    seen: list[Seen] = []
    async with new_scheduler(tmp_path) as scheduler:
        with_types(scheduler, seen)
        before = await scheduler.submit("make", {"text": "before"})
        await scheduler.wait(before.job_id)
        jobs = await scheduler.submit_many(
            [
                NewJob(job_type="make", key="first", params={"text": "one"}),
                NewJob(job_type="skip", key="second"),
                NewJob(job_type="use", depends_on=["first", "second", before.job_id]),
            ]
        )
        ended = await scheduler.wait(jobs[2].job_id)

        assert ended.status == "COMPLETED", ended
        assert seen == [
            {
                "first": ({"text": "one"}, "one", 1),
                "second": None,
                before.job_id: ({"text": "before"}, "before", 1),
            }
        ]


async def test_an_input_is_of_the_run_that_succeeded_and_a_retry_gets_the_same(tmp_path: Path) -> None:
    seen: list[Seen] = []
    async with new_scheduler(tmp_path) as scheduler:
        with_types(scheduler, seen)
        jobs = await scheduler.submit_many(
            [
                NewJob(job_type="flaky", key="first", retry_policy=AT_ONCE),
                NewJob(job_type="use", depends_on=["first"], params={"fails": 2}, retry_policy=AT_ONCE),
            ]
        )
        ended = await scheduler.wait(jobs[1].job_id)

        assert ended.status == "COMPLETED", ended
        assert seen == [{"first": ("attempt 2", "attempt 2", 1)}] * 3


async def test_a_job_without_prerequisites_has_no_inputs(tmp_path: Path) -> None:
    seen: list[Seen] = []
    async with new_scheduler(tmp_path) as scheduler:
        with_types(scheduler, seen)
        await scheduler.wait((await scheduler.submit("use")).job_id)

        assert seen == [{}]


async def test_inputs_are_there_after_a_restart_between_the_two_jobs(tmp_path: Path) -> None:
    seen: list[Seen] = []
    async with new_scheduler(tmp_path) as scheduler:
        with_types(scheduler, seen)
        await scheduler.pause(job_type="use")
        jobs = await scheduler.submit_many(
            [NewJob(job_type="make", key="first"), NewJob(job_type="use", depends_on=["first"])]
        )
        await scheduler.wait(jobs[0].job_id)
    async with new_scheduler(tmp_path) as again:
        with_types(again, seen)
        await again.resume(job_type="use")
        await again.wait(jobs[1].job_id)

        assert seen == [{"first": ({"text": "made"}, "made", 1)}]


def isolated(run: RunContext) -> Any:
    one = run.inputs["first"]
    assert one is not None
    return [one.result, one.file("note.txt").read_text()]


async def test_an_isolated_handler_gets_them_too(tmp_path: Path) -> None:
    async with new_scheduler(tmp_path) as scheduler:
        with_types(scheduler, [])
        scheduler.job_types.add("isolated", isolated, isolate=True)
        jobs = await scheduler.submit_many(
            [NewJob(job_type="make", key="first"), NewJob(job_type="isolated", depends_on=["first"])]
        )

        assert (await scheduler.wait(jobs[1].job_id)).result == [{"text": "made"}, "made"]


PROGRAM = """
import json, os, pathlib, shutil, sys
told = pathlib.Path(os.environ["NEXTSLOT_INPUTS"])
inputs = json.loads(told.read_text())
out = pathlib.Path(os.environ["NEXTSLOT_ARTIFACTS"], "seen.json")
note = pathlib.Path(inputs["first"]["artifacts"][0]["path"]).read_text()
out.write_text(json.dumps([sys.argv[1] == inputs["first"]["path"], inputs["first"]["result"], note, str(told)]))
"""


async def test_a_command_finds_a_file_with_its_inputs_and_the_directory_of_one_as_an_argument(tmp_path: Path) -> None:
    async with new_scheduler(tmp_path) as scheduler:
        with_types(scheduler, [])
        command = [sys.executable, "-c", PROGRAM, "{inputs.first.path}"]
        scheduler.job_types.add_command("read", command, tmp_path)
        jobs = await scheduler.submit_many(
            [NewJob(job_type="make", key="first"), NewJob(job_type="read", depends_on=["first"])]
        )
        ended = await scheduler.wait(jobs[1].job_id)

        assert ended.status == "COMPLETED", ended
        assert ended.run is not None
        is_same, result, note, told = json.loads((tmp_path / ended.run.artifacts[0].path).read_text())
        assert (is_same, result, note) == (True, {"text": "made"}, "made")
        assert not Path(told).exists()


async def test_a_command_whose_input_is_missing_or_was_skipped_fails_with_a_sentence(tmp_path: Path) -> None:
    async with new_scheduler(tmp_path) as scheduler:
        with_types(scheduler, [])
        scheduler.job_types.add_command("read", ["true", "{inputs.first.path}"], tmp_path)
        alone = await scheduler.submit("read")
        jobs = await scheduler.submit_many(
            [NewJob(job_type="skip", key="first"), NewJob(job_type="read", depends_on=["first"])]
        )
        ended = [await scheduler.wait(one) for one in (alone.job_id, jobs[1].job_id)]

        errors = [one.run.error or "" for one in ended if one.run is not None]
        assert [one.run.failure_kind for one in ended if one.run is not None] == ["invalid", "invalid"]
        assert "does not wait for" in errors[0]
        assert "was skipped" in errors[1]


async def test_inputs_that_cannot_be_read_are_a_failure_that_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Seen] = []
    async with new_scheduler(tmp_path) as scheduler:
        with_types(scheduler, seen)
        await scheduler.pause(job_type="use")
        jobs = await scheduler.submit_many(
            [NewJob(job_type="make", key="first"), NewJob(job_type="use", depends_on=["first"], retry_policy=AT_ONCE)]
        )
        await scheduler.wait(jobs[0].job_id)
        read, failed = dependencies.inputs, asyncio.Event()

        def away(tx: Any, job_id: str) -> Any:
            if not failed.is_set():
                failed.set()
                raise Unavailable("the disk is away")
            return read(tx, job_id)

        monkeypatch.setattr(dependencies, "inputs", away)
        await scheduler.resume(job_type="use")
        ended = await scheduler.wait(jobs[1].job_id)

        assert (ended.status, len(seen)) == ("COMPLETED", 1)
        assert ended.job.job_id != jobs[1].job_id
