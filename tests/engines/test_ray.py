"""Ray as an engine: what it sends, how it reads the answers, and what survives the failures of Ray.

The conformance suite runs on the same fake, and by `scripts/ray_conformance.py` on a real Ray.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nextslot.domain import FailureKind, JobStatus, RunStatus
from nextslot.executors.engines.contract import Cause, Key, Refused, Seen, Sight, Submission, Unreachable
from nextslot.executors.engines.engines import option_problems
from nextslot.extensions.ray import ray_engine
from nextslot.extensions.ray.ray_engine import KIND, RayEngine
from tests.engines.fake_ray import FakeRay
from tests.engines.rig import Rig, until, until_ended, until_running

RUN = "01a00000-0000-7000-8000-000000000009"
HANDLE = f"nextslot-{RUN}"


@pytest.fixture
def honest(fake_ray: FakeRay) -> FakeRay:
    fake_ray.is_lying = False
    return fake_ray


def submission(tmp_path: Path, script: str = "true", **options: Any) -> Submission:
    argv = ["sh", "-c", script]
    return Submission(run_id=RUN, directory=tmp_path, argv=argv, options=options, grace_seconds=20)


def wait_for(engine: RayEngine, status: Sight) -> Seen:
    import time

    end = time.monotonic() + 30
    while (seen := engine.observe([Key(RUN, HANDLE)])[RUN]).sight is not status:
        assert time.monotonic() < end
        time.sleep(0.02)
    return seen


def test_a_job_has_the_id_of_its_run_its_resources_and_always_a_number_of_cpus(honest: FakeRay, tmp_path: Path) -> None:
    engine = RayEngine({"address": honest.address + "/"})
    given = {"gpus": 0.5, "memory": 1000, "resources": {"tpu": 2}, "runtime_env": {"pip": ["x"]}}

    engine.submit(submission(tmp_path, "echo 'a b'", **given))
    body = honest.jobs[HANDLE].body

    assert body == {
        "entrypoint": """exec sh -c 'echo '"'"'a b'"'"''""",
        "submission_id": HANDLE,
        "entrypoint_num_cpus": 1,
        "entrypoint_num_gpus": 0.5,
        "entrypoint_memory": 1000,
        "entrypoint_resources": {"tpu": 2},
        # Ray waits as long between TERM and KILL as the wrapper needs.
        "runtime_env": {"pip": ["x"], "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "35"}},
    }


def test_a_submission_that_ray_has_already_is_found_and_makes_no_second_job(honest: FakeRay, tmp_path: Path) -> None:
    engine = RayEngine({"address": honest.address})

    handles = [engine.submit(submission(tmp_path, "sleep 1")) for _ in range(3)]

    assert handles == [HANDLE] * 3
    assert honest.submissions == 1
    assert engine.find(RUN) == [HANDLE]


def test_an_answer_that_is_not_rays_is_no_answer_and_a_wrong_request_is_refused(
    honest: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Refused, match="must be a number"):
        RayEngine({"address": honest.address}).submit(submission(tmp_path, cpus="2"))
    honest.problems.clear()
    # A server that answers 404 to everything must not be taken for a Ray that has forgotten its jobs.
    honest.is_another = True
    with pytest.raises(Unreachable, match="answered 404: Not Found"):
        RayEngine({"address": honest.address}).find(RUN)
    honest.is_another = False
    with pytest.raises(Unreachable, match="does not answer"):
        RayEngine({"address": "http://127.0.0.1:1"}).find(RUN)
    monkeypatch.setattr(ray_engine, "MOST_ANSWER_BYTES", 1)
    with pytest.raises(Unreachable, match="more than 1 bytes"):
        RayEngine({"address": honest.address}).find(RUN)


def test_a_silent_ray_is_left_after_a_bounded_time(honest: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "ANSWER_SECONDS", 0.3)
    honest.is_silent = True

    with pytest.raises(Unreachable, match="does not answer"):
        RayEngine({"address": honest.address}).observe([])


def test_the_token_is_read_from_the_variable_that_the_configuration_names(
    honest: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest.token = "s3cret"
    engine = RayEngine({"address": honest.address, "token_env": "TOKEN_OF_RAY"})

    with pytest.raises(Unreachable, match="TOKEN_OF_RAY, which must have Ray's token, is not set"):
        engine.find(RUN)
    monkeypatch.setenv("TOKEN_OF_RAY", "wrong")
    with pytest.raises(Unreachable, match="refuses the token") as refused:
        engine.find(RUN)
    monkeypatch.setenv("TOKEN_OF_RAY", "s3cret")

    assert engine.submit(submission(tmp_path)) == HANDLE
    assert "s3cret" not in str(refused.value)
    assert honest.jobs[HANDLE].body["entrypoint"] == "exec sh -c true"


def test_many_runs_are_observed_with_one_request(honest: FakeRay, tmp_path: Path) -> None:
    engine = RayEngine({"address": honest.address})
    engine.submit(submission(tmp_path, "sleep 2"))
    keys = [Key(f"r{n}", f"nextslot-r{n}") for n in range(30)]

    seen = engine.observe([*keys, Key(RUN, HANDLE)])

    assert honest.jobs[HANDLE].questions == 0
    assert seen[RUN].sight in (Sight.QUEUED, Sight.RUNNING)
    assert {seen[key.run_id].sight for key in keys} == {Sight.ABSENT}


def test_an_ended_job_is_deleted_once_ray_has_seen_its_end(
    honest: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "FORGET_SECONDS", 0.0)
    engine = RayEngine({"address": honest.address})
    engine.submit(submission(tmp_path, "sleep 0.3"))
    engine.forget(Key(RUN, HANDLE))
    is_there = HANDLE in honest.jobs
    wait_for(engine, Sight.ENDED)

    engine.forget(Key("r2", "nextslot-r2"))

    assert is_there
    assert honest.jobs == {}


def test_a_job_that_somebody_stops_has_a_cause(honest: FakeRay, tmp_path: Path) -> None:
    engine = RayEngine({"address": honest.address})
    engine.submit(submission(tmp_path, "echo here; exec sleep 60"))
    wait_for(engine, Sight.RUNNING)
    engine.stop(Key(RUN, HANDLE), 1.0)

    assert wait_for(engine, Sight.ENDED).cause is Cause.CANCELLED
    assert b"here" in engine.logs(Key(RUN, HANDLE), 0)
    assert engine.logs(Key("r2", "nextslot-r2"), 0) == b""


async def test_a_waiting_job_that_is_cancelled_never_begins_although_ray_starts_it_later(
    honest: FakeRay, tmp_path: Path
) -> None:
    honest.cpus = 0
    rig = Rig(tmp_path, RayEngine({"address": honest.address}))
    async with rig.scheduler() as scheduler:
        job = await scheduler.submit("work", {"key": "a", "seconds": "1"})
        await until(lambda: honest.jobs)
        await scheduler.cancel(job, interrupt=True)
        await scheduler.wait(job, 30)
        ended = await scheduler.job(job)
        [ray_job] = honest.jobs.values()
        promised = ray_job.status
        honest.cpus = 8
        await until(lambda: ray_job.status in ("SUCCEEDED", "FAILED"))

    assert promised == "PENDING"
    assert ended.status is JobStatus.CANCELLED
    assert rig.lines("begin") == []


def test_a_job_that_ray_has_given_up_waiting_with_is_submitted_again(honest: FakeRay, tmp_path: Path) -> None:
    engine = RayEngine({"address": honest.address})
    honest.cpus = 0
    engine.submit(submission(tmp_path))
    given_up = honest.jobs[HANDLE]
    given_up.status, given_up.message = "FAILED", "Job supervisor actor failed to start within 900.0 seconds."

    seen = engine.observe([Key(RUN, HANDLE)])[RUN].sight
    again = engine.submit(submission(tmp_path))

    assert (seen, again) == (Sight.ABSENT, HANDLE)
    assert honest.jobs[HANDLE] is not given_up
    assert honest.jobs[HANDLE].status == "PENDING"
    honest.cpus = 8


async def test_a_head_that_is_silent_and_then_forgets_everything_ends_and_doubles_nothing(
    honest: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "ANSWER_SECONDS", 0.3)
    rig = Rig(tmp_path, RayEngine({"address": honest.address}))
    async with rig.scheduler() as scheduler:
        running = await scheduler.submit("work", {"key": "a", "seconds": "5"})
        await until_running(scheduler, running)
        honest.cpus = 0
        waiting = await scheduler.submit("work", {"key": "b", "seconds": "0.1"})
        await until(lambda: len(honest.jobs) == 2)
        honest.is_silent = True

        async def is_noticed() -> bool:
            return (await scheduler.engines.list())[0].problem is not None

        await until(is_noticed)
        honest.forget_all()
        honest.is_silent, honest.cpus = False, 8
        ended = [await scheduler.wait(job, 90) for job in (running, waiting)]

    assert [one.run.status for one in ended if one.run] == [RunStatus.COMPLETED] * 2
    assert len(rig.lines("begin", "a")) == len(rig.lines("begin", "b")) == 1


async def test_a_killed_machine_of_ray_leaves_no_process_and_its_run_is_retried(
    honest: FakeRay, tmp_path: Path
) -> None:
    """Ray's watcher kills the process group of the wrapper: the guardian has a group of its own, and ends the tree."""
    rig = Rig(tmp_path, RayEngine({"address": honest.address}))
    async with rig.scheduler() as scheduler:
        job = await scheduler.submit("leave", {"key": "a", "seconds": "3"})
        run_id = await until_running(scheduler, job)
        await until(lambda: len(rig.processes(run_id)) >= 3)
        honest.kill_node(f"nextslot-{run_id}")
        await until_ended(scheduler, run_id)
        # The guardian itself is the last to go: it has written the end.
        await until(lambda: not rig.processes(run_id), 5)
        ended = await scheduler.wait(job, 60)
        first = await scheduler.run_by_id(run_id)

    assert first.failure_kind is FailureKind.CRASH
    assert ended.run is not None
    assert ended.run.status == RunStatus.COMPLETED
    assert rig.lines("overlap") == []


async def test_a_job_that_somebody_stops_on_ray_ends_its_tree_and_counts_as_a_failure(
    honest: FakeRay, tmp_path: Path
) -> None:
    rig = Rig(tmp_path, RayEngine({"address": honest.address}))
    async with rig.scheduler() as scheduler:
        job = await scheduler.submit("leave", {"key": "a", "seconds": "60"}, retry_policy={"max_attempts": 0})
        run_id = await until_running(scheduler, job)
        await until(lambda: len(rig.processes(run_id)) >= 3)
        await asyncio.to_thread(rig.engine.stop, Key(run_id, f"nextslot-{run_id}"), 1.0)
        ended = await scheduler.wait(job, 60)

    assert ended.run is not None
    assert (ended.run.failure_kind, ended.run.error) == (
        FailureKind.ERROR,
        "it was cancelled on the engine 'box', and not here",
    )
    assert rig.processes(run_id) == []


async def test_a_job_that_ray_cannot_start_fails_with_its_words(honest: FakeRay, tmp_path: Path) -> None:
    rig = Rig(tmp_path, RayEngine({"address": honest.address}))
    async with rig.scheduler() as scheduler:
        honest.cpus = 0
        job = await scheduler.submit("work", {"key": "a", "seconds": "1"}, retry_policy={"max_attempts": 0})
        await until(lambda: honest.jobs)
        [ray_job] = honest.jobs.values()
        ray_job.status, ray_job.message = "FAILED", "Failed to set up the runtime environment:\nno package x"
        ended = await scheduler.wait(job, 60)
        ray_job.body["entrypoint"], honest.cpus = "true", 8

    assert ended.run is not None
    assert ended.run.failure_kind is FailureKind.ERROR
    assert "ended it before it began: Ray: FAILED, no package x" in str(ended.run.error)
    assert rig.lines("begin") == []


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("partition", "gpu", "is not an option of Ray here"),
        ("cpus", "2", "is not a number of them from 0 on"),
        ("gpus", -1, "is not a number of them from 0 on"),
        ("cpus", float("nan"), "is not a number of them from 0 on"),
        ("cpus", True, "is not a number of them from 0 on"),
        ("memory", 0, "is not a whole number of bytes above 0"),
        ("memory", 1.5, "is not a whole number of bytes above 0"),
        ("resources", 3, "is not a table of numbers"),
        ("resources", {"GPU": 1}, "has an option of its own; write gpus"),
        ("resources", {"tpu": "many"}, "is not a number of them from 0 on"),
        ("runtime_env", "pip", "is not a table"),
        ("runtime_env", {"env_vars": {"A": "1"}}, "is not passed on; write them into env of the job type"),
        ("address", "10.0.0.1:8265", "is not an address of Ray's dashboard"),
        ("token_env", 7, "is not a text; write for example 'RAY_AUTH_TOKEN'"),
    ],
)
def test_each_wrong_option_is_named(option: str, value: object, problem: str) -> None:
    [found] = option_problems(KIND, {option: value}, "options")

    assert found.field.startswith(f"options.{option}")
    assert problem in found.problem


def test_a_job_type_does_not_set_the_options_of_the_engine_itself() -> None:
    given = {"address": "http://10.0.0.1:8265", "cpus": 2, "runtime_env": {"pip": ["x"]}, "resources": {"tpu": 0.5}}

    [found] = option_problems(KIND, given, "engine_options")

    assert list(option_problems(KIND, given, "options")) == []
    assert (found.field, "of the engine itself" in found.problem) == ("engine_options.address", True)
