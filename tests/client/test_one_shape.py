"""Scheduler, Client and AsyncClient have one shape, and a wrong argument gets a sentence, or a type error."""

import inspect
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nextslot import AsyncClient, Client, NewJob, RetryPolicy, Scheduler
from nextslot.client.binding import verb
from nextslot.errors import Invalid, NotEnded
from nextslot.services.schedules import ScheduleService
from nextslot.services.templates import TemplateService
from tests.server.support import ServerThread
from tests.support import new_scheduler

SAME = ("submit", "submit_from", "submit_many", "submit_group", "submit_group_from", "wait", "cancel", "change", "move",
        "pause", "resume", "run_direct", "stream_direct", "job", "group", "cancel_group")  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_a_verb_takes_the_same_arguments_in_python_and_over_http(name: str) -> None:
    ours = _arguments(getattr(Scheduler, name)) - {"created_by", "template_id"}

    assert _arguments(inspect.getattr_static(Client, name)) - {"template_id"} == ours


@pytest.mark.parametrize(("service", "subject"), [(TemplateService, "templates"), (ScheduleService, "schedules")])
def test_templates_and_schedules_are_put_in_the_same_way(service: type, subject: str) -> None:
    over_http = type(getattr(Client("http://127.0.0.1:1"), subject))
    for name in ("create", "put", "change", "get"):
        theirs = _arguments(inspect.getattr_static(over_http, name)) - {"idempotency_key"}
        assert {one.removesuffix("fields").removesuffix("changes") for one in theirs} == {
            one.removesuffix("fields").removesuffix("changes") for one in _arguments(getattr(service, name))
        }, name


def _arguments(function: Any) -> set[str]:
    made = function.make if isinstance(function, verb) or hasattr(function, "make") else function
    return set(inspect.signature(made).parameters) - {"self"}


async def test_jobs_are_taken_where_ids_are_and_dicts_where_values_are(tmp_path: Path) -> None:
    async with new_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        first = await scheduler.submit("work", scheduled_for=(datetime.now(UTC) + timedelta(days=1)).isoformat())
        second, third = await scheduler.submit_many(
            [{"job_type": "work", "depends_on": [first]}, NewJob(job_type="work", depends_on=[first])]  # type: ignore[list-item]
        )
        group = await scheduler.submit_group([{"job_type": "work"}, NewJob(job_type="work")], name="two")

        assert (second.depends_on, third.depends_on) == ((first.job_id,), (first.job_id,))
        assert await scheduler.chain(second) == [await scheduler.job(second)]
        assert (await scheduler.change(second, priority=3)).priority == 3
        assert [one.sequence for one in group.jobs] == [0, 1]
        assert group.to_dict()["jobs"][0]["job_id"] == group.jobs[0].job_id
        assert json.dumps(first.to_dict())
        await scheduler.cancel(third)
        await scheduler.cancel_group(group.group_id)


async def test_over_http_jobs_are_taken_where_ids_are_and_values_where_dicts_are(tmp_path: Path) -> None:
    with ServerThread(tmp_path) as server:
        async with AsyncClient(server.url) as client:
            first = await client.submit("echo", retry_policy=RetryPolicy(max_attempts=0), title=None)
            (second,) = await client.submit_many([NewJob(job_type="echo", depends_on=[first], priority=4)])  # type: ignore[list-item]
            group = await client.submit_group([NewJob(job_type="echo"), {"job_type": "echo"}])
            ended = await client.wait(second, timeout=30)

            assert (ended.status, ended.job.priority, ended.job.depends_on) == ("COMPLETED", 4, (first.job_id,))
            assert (await client.job(first)).retry_policy.max_attempts == 0
            assert len(group.jobs) == 2


async def test_a_wait_that_is_over_raises_an_error_that_says_so(tmp_path: Path) -> None:
    async with new_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        job = await scheduler.submit("work")

        with pytest.raises(NotEnded, match=r"has not ended after 0.1 seconds: it is QUEUED; wait longer") as over:
            await scheduler.wait(job, timeout=0.1)

        assert isinstance(over.value, TimeoutError)
        await scheduler.resume()
        assert (await scheduler.wait(job, timeout=1000)).status == "COMPLETED"


def test_a_wait_over_http_can_be_limited_too(tmp_path: Path) -> None:
    with ServerThread(tmp_path) as server, Client(server.url) as client:
        client.pause()
        job = client.submit("echo")

        with pytest.raises(NotEnded, match="it is QUEUED"):
            client.wait(job, timeout=0.1)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda s: s.submit_many([{}]), "job_type is missing; give it, or the template_id"),
        (lambda s: s.submit_many([{"job_type": "work", "priorty": 1}]), "jobs.0.priorty is not a field of a job"),
        (lambda s: s.submit_many([7]), "jobs.0 is 7; it must be a NewJob, or a dict of its fields"),
        (lambda s: s.submit_many({"job_type": "work"}), "jobs is an object; it must be a list of jobs"),
        (lambda s: s.wait(7), "job_id is 7; it must be a job, or the id of one"),
        (lambda s: s.wait(None), "job_id is null; it must be a job, or the id of one"),
        (lambda s: s.submit("work", priorty=3), "priorty is not a field of a job; did you mean priority?"),
        (lambda s: s.submit("work", scheduled_for="soon"), "scheduled_for is not a time with a time zone"),
    ],
)
async def test_a_wrong_argument_gets_a_sentence(tmp_path: Path, wrong: Any, sentence: str) -> None:
    async with new_scheduler(tmp_path) as scheduler:
        with pytest.raises(Invalid, match=sentence):
            await wrong(scheduler)


def test_mypy_refuses_misspelt_options(tmp_path: Path) -> None:
    program = tmp_path / "misspelt.py"
    program.write_text(
        "from nextslot import AsyncClient, Client, Scheduler\n"
        "async def f(s: Scheduler, c: Client, a: AsyncClient) -> None:\n"
        "    await s.submit('x', priority=3)\n"
        "    await s.submit('x', priorty=3)\n"
        "    c.submit('x', priorty=3)\n"
        "    await a.submit('x', priorty=3)\n"
        "    await s.schedules.create('n', 't', '@daily', timezon='UTC')\n"
        "    await s.templates.put('n', 'x', prams={})\n"
        "    await s.run_direct('x', detatch=True)\n"
        "    s.job_type('x', resorces=['gpu'])\n"
    )

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path, program],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip

    wrong = sorted({int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line})
    assert wrong == [4, 5, 6, 7, 8, 9, 10], done.stdout
