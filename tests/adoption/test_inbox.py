"""A request that another program stores in its own transaction becomes a job, once, or a FAILED one that says why."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from nextslot import Scheduler
from nextslot.domain import FailureKind, JobStatus
from tests import databases
from tests.support import assert_counters, new_scheduler

pytestmark = pytest.mark.real_time


@pytest.fixture
def postgres(tmp_path: Path) -> Any:
    databases.use("postgres")
    yield databases.url(tmp_path)
    databases.use("sqlite")


def enqueue(connection: Any, job_type: object, params: object = None, options: object = None) -> str:
    given = [json.dumps({} if one is None else one) for one in (params, options)]
    ((job_id,),) = connection.execute("select nextslot_enqueue(%s, %s, %s)", (job_type, *given)).fetchall()
    return str(job_id)


async def test_a_request_becomes_the_job_whose_id_its_program_got(postgres: str, tmp_path: Path) -> None:
    async with new_scheduler(tmp_path, clock=None, is_threaded=True) as scheduler:
        with psycopg.connect(postgres) as program:
            first = enqueue(program, "work", {"seconds": 0, "a": 1}, {"priority": 7, "title": "of a program"})
            second = enqueue(program, "work", {"seconds": 0}, {"depends_on": [first]})
        ended = await wait(scheduler, second)

        made = await scheduler.job(first)
        assert (ended, made.status) == (JobStatus.COMPLETED, JobStatus.COMPLETED)
        assert (made.params, made.priority, made.title) == ({"seconds": 0, "a": 1}, 7, "of a program")
        assert made.created_by == "postgres"
    assert_counters(tmp_path)


async def test_a_transaction_that_is_rolled_back_leaves_no_job(postgres: str, tmp_path: Path) -> None:
    async with new_scheduler(tmp_path, clock=None, is_threaded=True) as scheduler:
        with psycopg.connect(postgres) as program:
            gone = enqueue(program, "work", {"seconds": 0})
            program.rollback()
            stays = enqueue(program, "work", {"seconds": 0})

        assert await wait(scheduler, stays) is JobStatus.COMPLETED
        assert await known(scheduler, gone) is False


async def test_a_request_that_depends_on_one_that_stays_over_a_quota_stays_too(postgres: str, tmp_path: Path) -> None:
    async with new_scheduler(tmp_path) as first:
        await first.offices.create("small")
        await first.offices.grant("small", queued_jobs=2)
        await first.pause(office_id="small")
        blocking = [await first.submit("work", {"seconds": 0}, office_id="small") for _ in range(2)]
    with psycopg.connect(postgres) as program:
        over = enqueue(program, "work", {"seconds": 0}, {"office_id": "small"})
        behind = enqueue(program, "work", {"seconds": 0}, {"depends_on": [over], "office_id": "small"})
        wrong = enqueue(program, "work", {"seconds": 0}, {"depends_on": ["nothing"]})

    async with new_scheduler(tmp_path, clock=None, is_threaded=True) as scheduler:
        assert (await scheduler.wait(wrong)).status == JobStatus.FAILED
        assert [await known(scheduler, one) for one in (over, behind)] == [False, False]

        for one in blocking:
            await scheduler.cancel(one)
        await scheduler.resume(office_id="small")

        assert await wait(scheduler, behind) is JobStatus.COMPLETED
        assert (await scheduler.job(over)).status == JobStatus.COMPLETED
    assert_counters(tmp_path)


@pytest.mark.parametrize(
    ("job_type", "params", "options", "why"),
    [
        ("wrk", {}, {}, "there is no job type 'wrk'"),
        ("work", {"seconds": "long"}, {}, "seconds"),
        ("work", {}, {"priorty": 1}, "priorty is not a field of a job; did you mean priority?"),
        ("work", {}, {"office_id": "nowhere"}, "there is no office 'nowhere'"),
        ("work", {}, {"depends_on": ["nothing"]}, "there is no job or key 'nothing'"),
        ("work", {}, {"depends_on": 7}, "depends_on"),
        ("work", {}, {"scheduled_for": "soon"}, "scheduled_for is not a time with a time zone"),
        ("work", {}, {"created_by": "eve"}, "created_by cannot be an option of nextslot_enqueue"),
        ("work", {}, {"retry_policy": [3]}, "retry_policy"),
        ("work", {"text": "x" * 300_000}, {}, "params"),
    ],
)
async def test_an_invalid_request_becomes_a_failed_job_that_says_why(
    postgres: str, tmp_path: Path, job_type: str, params: Mapping[str, Any], options: Mapping[str, Any], why: str
) -> None:
    async with new_scheduler(tmp_path):
        pass
    with psycopg.connect(postgres) as program:
        wrong, right = enqueue(program, job_type, params, options), enqueue(program, "work", {"seconds": 0})

    async with new_scheduler(tmp_path, clock=None, is_threaded=True) as scheduler:
        assert await wait(scheduler, right) is JobStatus.COMPLETED
        ended = await scheduler.wait(wrong)

        assert (ended.status, ended.run and ended.run.failure_kind) == (JobStatus.FAILED, FailureKind.INVALID)
        assert why in (ended.error or "")
        assert await scheduler.chain(wrong) == [ended.job]
    assert_counters(tmp_path)


async def test_what_names_an_archived_office_fails_in_another_office(postgres: str, tmp_path: Path) -> None:
    async with new_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("closed")
        await scheduler.offices.change("closed", status="archived")
    with psycopg.connect(postgres) as program:
        wrong = enqueue(program, "work", {}, {"office_id": "closed"})

    async with new_scheduler(tmp_path, clock=None, is_threaded=True) as scheduler:
        ended = await scheduler.wait(wrong)

        assert (ended.status, ended.job.office_id) == (JobStatus.FAILED, "default")
        assert "archived" in (ended.error or "")
    assert_counters(tmp_path)


@pytest.mark.parametrize(
    ("job_type", "params", "sentence"),
    [
        (None, {}, "job_type must be the name"),
        ("", {}, "job_type must be the name"),
        ("x", [1], "must be JSON objects"),
    ],
)
async def test_what_is_not_even_a_request_fails_in_its_own_transaction(
    postgres: str, tmp_path: Path, job_type: object, params: object, sentence: str
) -> None:
    async with new_scheduler(tmp_path):
        pass
    with psycopg.connect(postgres) as program, pytest.raises(psycopg.errors.InvalidParameterValue, match=sentence):
        enqueue(program, job_type, params)


async def test_a_program_needs_no_right_but_to_call_the_function(postgres: str, tmp_path: Path) -> None:
    async with new_scheduler(tmp_path):
        pass
    with psycopg.connect(postgres, autocommit=True) as owner:
        owner.execute("drop role if exists shop")
        owner.execute("create role shop")
        owner.execute("set session authorization shop")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            enqueue(owner, "work")
        owner.execute("reset session authorization")
        owner.execute("grant execute on function nextslot_enqueue to shop")
        owner.execute("set session authorization shop")
        owner.execute("set search_path = pg_catalog, public")

        sent = enqueue(owner, "work", {"seconds": 0})

        owner.execute("reset session authorization")
        assert owner.execute("select job_id, sent_by from inbox").fetchall() == [(sent, "shop")]
        owner.execute("drop owned by shop; drop role shop")


async def wait(scheduler: Scheduler, job_id: str) -> JobStatus:
    async with asyncio.timeout(30):
        while not await known(scheduler, job_id):  # noqa: ASYNC110 - another program can only look
            await asyncio.sleep(0.05)
    return (await scheduler.wait(job_id, timeout=60)).status


async def known(scheduler: Scheduler, job_id: str) -> bool:
    from nextslot.errors import NotFound

    try:
        await scheduler.job(job_id)
    except NotFound:
        return False
    return True
