"""Scheduler, Client and AsyncClient have one shape, and a wrong argument gets a sentence, or a type error."""

import inspect
import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nextslot import AsyncClient, Client, NewJob, RetryPolicy
from nextslot.client.binding import stream_verb, verb
from nextslot.client.verbs import Verbs
from nextslot.errors import Invalid, NotEnded
from nextslot.scheduler.services import Services
from nextslot.services.engines import EngineService
from nextslot.services.failures import FailureService
from nextslot.services.keys import KeyService
from nextslot.services.nodes import NodeService
from nextslot.services.offices import OfficeService
from nextslot.services.schedules import ScheduleService
from nextslot.services.stats import StatsService
from nextslot.services.templates import TemplateService
from nextslot.services.webhooks import WebhookSubscriptions
from tests.server.support import ServerThread
from tests.support import new_scheduler

# By subject, the class of the scheduler's verbs and of the client's.
SUBJECTS: dict[str, tuple[type, type]] = {"": (Services, Verbs), **{
    name: (part, type(getattr(Client("http://127.0.0.1:1"), name)))
    for name, part in {
        "templates": TemplateService, "schedules": ScheduleService, "webhooks": WebhookSubscriptions,
        "keys": KeyService, "nodes": NodeService, "engines": EngineService, "stats": StatsService,
        "failures": FailureService,
    }.items()
}}  # fmt: skip
# What has the client alone: reads that a scheduler has in `lists`, `bulk`, `forecast` and `files`, and what only a
# server has.
OF_CLIENT = {
    "artifact", "audit_page", "cancel_many", "direct_artifact", "direct_log", "directs_page", "events_page",
    "follow_log", "groups", "groups_page", "job_types", "jobs", "jobs_page", "log", "me", "ready", "reload",
    "reservations_page", "retry_many", "runs", "runs_page", "status", "watch",
}  # fmt: skip
# What has the scheduler alone: reads by parts, what routes need besides the value, and what belongs to one process.
OF_SCHEDULER = {
    "accept", "accept_group", "accept_retry", "accept_signal", "chain", "event_pages",
    "expected_direct_start", "for_caller", "job_of_link", "members", "progress", "readiness", "run_of", "running",
    "signal_by_link", "templates.store", "schedules.made", "schedules.store", "webhooks.secret", "webhooks.shown_to",
    "keys.find", "keys.find_all", "keys.get", "keys.is_guarded", "keys.note_use_soon", "keys.now", "keys.opens",
    "keys.watch", "failures.get",
}  # fmt: skip
# Arguments that only one of the two has: over HTTP, the server knows the caller and its office by the key, and a create
# carries its key of idempotency; a scheduler's caller sets the key in its context.
ONE_SIDED = {"created_by", "idempotency_key", "office_id", "wait_seconds"}
OTHER_ARGUMENTS = {"submit": "template_id", "events": "filter", "queue": "cursor"}
# What one verb returns in each: a scheduler says what it did, the answer over HTTP is what is there afterwards; a
# secret is a field of an answer, and lies beside the value in Python.
OTHER_RESULTS = {
    "cancel": ("Cancelled", "Job"), "cancel_group": ("list[Cancelled]", "GroupCancelled"),
    "dry_run": ("tuple[Accepted, Why]", "DryRun"), "group": ("Group", "GroupDetail"), "job": ("Job", "JobDetail"),
    "pause": ("None", "Paused"), "queue": ("list[Job]", "Queue"), "release": ("None", "Released"),
    "reorder": ("list[Job]", "Queue"), "resume": ("None", "Paused"),
    "keys.create": ("tuple[Key, str]", "Key"), "keys.rotate": ("tuple[Key, str]", "Key"),
    "webhooks.create": ("tuple[Webhook, str]", "Webhook"), "webhooks.rotate_secret": ("tuple[Webhook, str]", "Webhook"),
    "schedules.trigger": ("Job | Group", "Job | GroupDetail"), "failures.list": ("FailurePage", "Failures"),
}  # fmt: skip


# The part of an extension, of which each extension decides.
NEITHER = {"extension"}


def verbs() -> list[tuple[str, Any, Any]]:
    """Every verb of both, by its name with its subject."""
    found = []
    for subject, (ours, theirs) in SUBJECTS.items():
        for name in {one for one in (*dir(ours), *dir(theirs)) if not one.startswith("_")} - NEITHER:
            pair = [_verb(one, name) for one in (ours, theirs)]
            if any(pair):
                found.append((f"{subject}.{name}".lstrip("."), *pair))
    return sorted(found, key=lambda one: one[0])


def _verb(owner: type, name: str) -> Any:
    found = inspect.getattr_static(owner, name, None)
    return found if inspect.isfunction(found) or isinstance(found, (verb, stream_verb)) else None


def test_every_verb_is_in_both_or_named_with_the_one_that_has_it() -> None:
    here, there = ({name for name, *pair in verbs() if pair[other] is None} for other in (1, 0))

    assert (here, there) == (OF_SCHEDULER, OF_CLIENT)


BOTH = [pytest.param(name, ours, theirs, id=name) for name, ours, theirs in verbs() if ours and theirs]


@pytest.mark.parametrize(("name", "ours", "theirs"), BOTH)
def test_a_verb_takes_the_same_arguments_in_the_same_order_in_python_and_over_http(
    name: str, ours: Any, theirs: Any
) -> None:
    here, there = _arguments(ours), _arguments(theirs)

    if name in OTHER_ARGUMENTS:
        assert here != there
        assert OTHER_ARGUMENTS[name] in set(here) ^ set(there)
    else:
        assert here == there


@pytest.mark.parametrize(("name", "ours", "theirs"), BOTH)
def test_a_verb_returns_a_value_of_the_same_name_in_python_and_over_http(name: str, ours: Any, theirs: Any) -> None:
    kind = getattr(SUBJECTS[name.rpartition(".")[0]][1], "KIND", None)
    found = (_result(ours), _result(theirs).replace("~V", getattr(kind, "__name__", "")))

    if name in OTHER_RESULTS:
        assert found == OTHER_RESULTS[name]
    else:
        assert found[0] == found[1]


def _arguments(function: Any) -> list[str]:
    named = inspect.signature(getattr(function, "make", function)).parameters
    known = {"fields": "changes"}
    return [known.get(name, name) for name in named if name not in {"self", *ONE_SIDED}]


def _result(function: Any) -> str:
    """The annotation of a result, without modules and without what makes it a coroutine or an iterator."""
    function = getattr(function, "make", function)
    hint = str(inspect.signature(function).return_annotation)
    hint = re.sub(r"<class '(.*)'>", r"\1", hint)
    hint = re.sub(r"\b[A-Za-z_]+\.(?=[A-Za-z_~])", "", hint.replace("collections.abc.", ""))
    hint = re.sub(r"^Coroutine\[Any, Any, (.*)\]$", r"\1", hint)
    hint = re.sub(r"^AsyncGenerator\[(.*), None(?:Type)?\]$", r"AsyncIterator[\1]", hint)
    return hint.replace("NoneType", "None")


def test_no_verb_takes_any_keyword() -> None:
    """A type checker finds a misspelt option only if the options are written out."""
    parts = [ours for ours, _ in SUBJECTS.values()] + [theirs for _, theirs in SUBJECTS.values()] + [OfficeService]
    loose = [
        f"{part.__name__}.{name}"
        for part in parts
        for name in dir(part)
        if not name.startswith("_") and (found := _verb(part, name))
        for one in inspect.signature(getattr(found, "make", found)).parameters.values()
        if one.kind is inspect.Parameter.VAR_KEYWORD and one.annotation is Any
    ]
    assert sorted(set(loose)) == []


async def test_jobs_are_taken_where_ids_are_and_dicts_where_values_are(tmp_path: Path) -> None:
    async with new_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        first = await scheduler.submit("work", scheduled_for=(datetime.now(UTC) + timedelta(days=1)).isoformat())
        second, third = await scheduler.submit_many(
            [{"job_type": "work", "depends_on": [first]}, NewJob(job_type="work", depends_on=[first])]
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
            (second,) = await client.submit_many([NewJob(job_type="echo", depends_on=[first], priority=4)])
            group = await client.submit_group([NewJob(job_type="echo"), {"job_type": "echo"}])
            ended = await client.wait(second, timeout=30)

            assert (ended.status, ended.job.priority, ended.job.depends_on) == ("COMPLETED", 4, (first.job_id,))
            assert (await client.job(first)).retry_policy.max_attempts == 0
            assert len(group.jobs) == 2


async def test_the_end_of_a_chain_has_a_json_form_with_the_same_fields_in_python_and_over_http(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    async with new_scheduler(tmp_path / "here") as scheduler:
        here = await scheduler.wait(await scheduler.submit("work"))
    with ServerThread(tmp_path) as server:
        async with AsyncClient(server.url) as client:
            there = await client.wait(await client.submit("echo"), timeout=30)

    assert (here.is_success, there.is_success) == (True, True)
    assert (here.to_dict()["run"]["status"], there.to_dict()["run"]["status"]) == ("COMPLETED", "COMPLETED")
    assert here.to_dict().keys() <= there.to_dict().keys()
    assert json.dumps(here.to_dict())


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
        "from nextslot import AsyncClient, Client, NewJob, Scheduler\n"
        "async def f(s: Scheduler, c: Client, a: AsyncClient) -> None:\n"
        "    await s.submit('x', priority=3)\n"
        "    await s.submit('x', priorty=3)\n"
        "    c.submit('x', priorty=3)\n"
        "    await a.submit('x', priorty=3)\n"
        "    await s.schedules.create('n', 't', '@daily', timezon='UTC')\n"
        "    await s.templates.put('n', 'x', prams={})\n"
        "    await s.run_direct('x', detatch=True)\n"
        "    s.job_type('x', resorces=['gpu'])\n"
        "    await s.offices.change('x', max_concurent_jobs=1)\n"
        "    await s.offices.grant('x', queued=1)\n"
        "    await s.webhooks.change('x', enabld=True)\n"
        "    await s.failures.change('x', mutd=True)\n"
        "    first = await s.submit('x')\n"
        "    await s.submit_many([NewJob(job_type='x', depends_on=[first])])\n"
        "    async for template in s.templates.list():\n"
        "        print(template.name, (await s.templates.page(3)).items)\n"
        "    for one in c.templates.list():\n"
        "        print(one.name, c.templates.page(3).items)\n"
        "    print((await s.retry('x')).job_id, c.retry('x').job_id, (await a.retry('x')).job_id)\n"
    )

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path, program],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip

    wrong = sorted({int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line})
    assert wrong == [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14], done.stdout
