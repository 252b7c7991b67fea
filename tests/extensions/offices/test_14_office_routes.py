"""Spec 14 through HTTP: what the routes of offices translate, by the criteria of US-JS01 to US-JS06 and beside them.

Jobs of the type `gate` run until the test opens their gate; where a criterion is about sessions, they are processes.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nextslot.domain import Event
from nextslot.executors.run_context import Fail, RunContext
from nextslot.extensions.offices.office_service import OfficeJobService
from tests.engine.receivers import Receiver, answers
from tests.extensions.offices.support import office_jobs
from tests.server.support import Server, serving
from tests.server.test_13_streams import Reader
from tests.support import database, eventually

Json = dict[str, Any]

DEFAULTS = {
    "maxConcurrentJobs": 3,
    "maxConcurrentByRole": {"FE": 1, "BE": 1, "QA": 1, "DevOps": 1},
    "defaultTimeout": 1_800_000,
    "maxRetries": 2,
    "retryBackoff": "exponential",
    "retryBaseDelay": 60_000,
    "retryOn": [],
    "priorityAging": None,
}
HOUR = 3_600_000

# A session that works until it is told to stop, and reports that it got the signal.
LISTENING = """
import signal, sys, time
def stop(number, frame):
    print("told to stop", flush=True)
    sys.exit(1)
signal.signal(signal.SIGTERM, stop)
print("working", flush=True)
time.sleep(3600)
"""


class Office:
    """The office `o` of a server, as a client of the HTTP API sees it."""

    def __init__(self, server: Server, office_id: str = "o") -> None:
        self.server, self.office_id = server, office_id

    async def ask(self, method: str, path: str, status: int = 200, **options: Any) -> Json:
        answer = await self.server.client.request(method, f"/api/offices/{self.office_id}{path}", **options)
        assert answer.status_code == status, answer.text
        found: Json = answer.json()
        return found

    async def submit(self, *jobs: Json, status: int = 201, **options: Any) -> list[Json]:
        task_id = options.pop("task_id", None)
        body = {"jobs": list(jobs), **({} if task_id is None else {"task_id": task_id})}
        made: list[Json] = (await self.ask("POST", "/jobs", status, json=body, **options))["items"]
        return made

    async def configure(self, **changes: Any) -> Json:
        return await self.ask("PATCH", "/scheduler/config", json=changes)

    async def change(self, **changes: Any) -> Json:
        return await self.ask("PATCH", "", json=changes)

    async def job(self, job: Json) -> Json:
        return await self.ask("GET", f"/jobs/{job['job_id']}")

    async def statuses(self, *jobs: Json) -> list[str]:
        return [(await self.job(job))["status"] for job in jobs]

    async def until(self, jobs: list[Json], *statuses: str) -> list[Json]:
        """Waits until each of the jobs has one of these statuses."""
        end = time.monotonic() + 30
        while True:
            found = [await self.job(job) for job in jobs]
            if all(one["status"] in statuses for one in found):
                return found
            assert time.monotonic() < end, [one["status"] for one in found]
            await asyncio.sleep(0.02)

    async def ended(self, *jobs: Json) -> list[Json]:
        return await self.until(list(jobs), "done", "failed", "cancelled")

    async def events(self, *types: str) -> list[Json]:
        found = await self.ask("GET", "/events", params={"limit": 500})
        return [event for event in found["items"] if event["type"] in types]

    async def started(self) -> list[str]:
        return [event["job_id"] for event in await self.events("job_started")]

    async def log(self, job: Json) -> str:
        run_id = (await self.job(job))["executions"][-1]["id"]
        return (await self.server.client.get(f"/api/job-runs/{run_id}/log")).text

    async def until_it_says(self, job: Json, text: str) -> None:
        end = time.monotonic() + 30
        while text not in await self.log(job):
            assert time.monotonic() < end
            await asyncio.sleep(0.02)


@asynccontextmanager
async def serving_office(tmp_path: Path, **config: Any) -> AsyncIterator[Office]:
    """Runs a server with the office `o`, which has the settings of spec 14.5 and these."""
    async with serving(tmp_path) as server:
        server.scheduler.job_types.add("flaky", flaky)
        office_jobs(server.scheduler).use_roles(
            {"Listener": {"command": [sys.executable, "-ISc", LISTENING]}, **SESSIONS}, tmp_path
        )
        made = await server.client.post("/api/offices", json={"office_id": "o"})
        assert (made.status_code, made.headers["location"]) == (201, "/api/offices/o")
        office = Office(server)
        if config:
            await office.configure(**config)
        yield office


async def flaky(run: RunContext, times: int = 1000, kind: str = "session_error") -> None:
    """A handler that fails in its first attempts."""
    if run.attempt <= times:
        raise Fail("bad luck", kind)


def job(description: str = "a job", **fields: Any) -> Json:
    """Submits a job of a type that takes no time, with a role that has no limit."""
    return {"description": description, "role": "PO", "job_type": "echo", **fields}


def gate(description: str = "a job", **fields: Any) -> Json:
    """Submits a job that runs until the gate is opened."""
    return job(description, job_type="gate", **fields)


def session(role: str, **fields: Any) -> Json:
    return {"description": f"what a {role} does", "role": role, **fields}


def script(code: str) -> Json:
    return {"command": [sys.executable, "-ISc", code]}


# Roles whose sessions end in the ways of spec 5.18.
SESSIONS = {
    "Conflicted": script("import sys; print('CONFLICT (content): Merge conflict in a.py'); sys.exit(1)"),
    "Denied": script("import sys; print('git@host: Permission denied (publickey).'); sys.exit(1)"),
    "Lost": {"command": ["no-such-agent"]},
    "Slow": script("import time; time.sleep(3600)"),
}


# US-JS01: dependencies.


async def test_US_JS01_AC1_a_job_without_dependencies_is_ready_when_it_is_created(tmp_path: Path) -> None:
    async with serving_office(tmp_path) as office:
        await office.change(status="paused")

        (made,) = await office.submit(job())

        assert (made["status"], made["depends_on"], made["blocked_by"], made["executions"]) == ("ready", [], [], [])
        assert await office.statuses(made) == ["ready"]


async def test_US_JS01_AC2_a_job_with_dependencies_is_ready_after_they_are_done(tmp_path: Path) -> None:
    async with serving_office(tmp_path) as office:
        first, second = await office.submit(gate(key="a"), job(depends_on=["a"]))
        assert (second["status"], second["depends_on"]) == ("pending", [first["job_id"]])
        assert second["blocked_by"] == [{"job_id": first["job_id"], "status": "ready"}]

        office.server.gate.opened.set()
        await office.ended(second)

        told = await office.events("job_completed", "job_ready", "job_started")
        assert [(one["type"], one["job_id"] == second["job_id"]) for one in told] == [
            ("job_started", False),
            ("job_completed", False),
            ("job_ready", True),
            ("job_started", True),
            ("job_completed", True),
        ]


async def test_US_JS01_AC4_a_cycle_is_refused_with_the_jobs_that_form_it_and_nothing_is_stored(tmp_path: Path) -> None:
    async with serving_office(tmp_path) as office:
        jobs = [job(key="free"), job(key="a", depends_on=["b"]), job(key="b", depends_on=["a"])]

        refused = await office.ask("POST", "/jobs", 422, json={"jobs": jobs})

        assert (refused["code"], sorted(refused["cycle"])) == ("dependency_cycle", ["a", "b"])
        assert (await office.ask("GET", "/jobs"))["items"] == []


# US-JS02: limits.


@pytest.mark.parametrize("limit", [None, 2])
async def test_US_JS02_AC1_an_office_runs_three_jobs_at_once_unless_told_otherwise(
    tmp_path: Path, limit: int | None
) -> None:
    async with serving_office(tmp_path, **{} if limit is None else {"maxConcurrentJobs": limit}) as office:
        jobs = await office.submit(*[gate() for _ in range(5)])
        allowed = limit or 3

        await office.until(jobs[:allowed], "processing")

        assert await office.statuses(*jobs[allowed:]) == ["ready"] * (5 - allowed)
        assert (await office.ask("GET", "/scheduler/config"))["maxConcurrentJobs"] == allowed


async def test_US_JS02_AC3_a_role_has_a_limit_of_its_own_and_does_not_hold_back_others(tmp_path: Path) -> None:
    async with serving_office(tmp_path) as office:
        first, second, other = await office.submit(gate(role="FE"), gate(role="FE"), gate(role="BE"))
        await office.until([first, other], "processing")
        assert await office.statuses(second) == ["ready"]

        await office.configure(maxConcurrentByRole={"FE": 2})

        await office.until([second], "processing")


# US-JS03: timeouts.


async def test_US_JS03_AC1_a_job_may_take_thirty_minutes_unless_told_otherwise(tmp_path: Path) -> None:
    async with serving_office(tmp_path) as office:
        jobs = await office.submit(gate(role="FE"), gate(timeout_ms=60_500))
        running = await office.until(jobs, "processing")

        assert [one["timeout_ms"] for one in jobs] == [1_800_000, 60_500]
        allowed = [span(one["executions"][0], "started_at", "timeout_at") for one in running]
        assert allowed == [timedelta(minutes=30), timedelta(seconds=60.5)]


def span(thing: Json, start: str, end: str) -> timedelta:
    return datetime.fromisoformat(thing[end]) - datetime.fromisoformat(thing[start])


async def test_US_JS03_AC2_a_job_that_times_out_is_failed_when_its_retries_are_spent(tmp_path: Path) -> None:
    async with serving_office(tmp_path, maxRetries=1, retryBaseDelay=0) as office:
        (made,) = await office.submit(session("Slow", timeout_ms=300))

        (ended,) = await office.ended(made)

        assert (ended["status"], ended["retry_count"]) == ("failed", 1)
        assert [one["status"] for one in ended["executions"]] == ["timeout"] * 2
        assert "timed out" in ended["executions"][0]["error_message"]


async def test_US_JS03_AC2_a_job_that_waits_to_be_retried_after_a_timeout_says_so_and_counts_as_pending(
    tmp_path: Path,
) -> None:
    async with serving_office(tmp_path, retryBaseDelay=HOUR) as office:
        (made,) = await office.submit(session("Slow", timeout_ms=300))

        await office.until([made], "timeout")

        assert (await office.ask("GET", "/scheduler/stats"))["pending"] == 1


async def test_US_JS03_AC3_the_session_that_runs_is_told_to_cancel(tmp_path: Path) -> None:
    async with serving_office(tmp_path, maxRetries=0) as office:
        (made,) = await office.submit(session("Listener", timeout_ms=3_000))

        (ended,) = await office.ended(made)

        assert (ended["status"], ended["executions"][0]["status"]) == ("failed", "timeout")
        assert "told to stop" in await office.log(made)


async def test_US_JS03_AC4_a_timeout_is_told_as_an_event_of_the_office(tmp_path: Path) -> None:
    async with serving_office(tmp_path, maxRetries=0) as office:
        (made,) = await office.submit(session("Slow", timeout_ms=300))
        await office.ended(made)

        (told,) = await office.events("job_timeout")

        assert set(told) == {"type", "job_id", "office_id", "details", "timestamp"}
        assert (told["job_id"], told["office_id"]) == (made["job_id"], "o")
        assert told["details"]["failure_kind"] == "timeout"


# US-JS04: retries.


async def test_US_JS04_AC1_a_job_is_retried_twice_unless_told_otherwise(tmp_path: Path) -> None:
    async with serving_office(tmp_path, retryBaseDelay=0) as office:
        made = await office.submit(job(job_type="flaky"), job(job_type="flaky", params={"times": 2}))

        spent, saved = await office.ended(*made)

        assert [(one["status"], one["retry_count"]) for one in (spent, saved)] == [("failed", 2), ("done", 2)]
        assert [one["attempt"] for one in saved["executions"]] == [1, 2, 3]
        assert [one["status"] for one in saved["executions"]] == ["failed", "failed", "completed"]
        assert {one["job_id"] for one in saved["executions"]} == {saved["job_id"]}


@pytest.mark.parametrize(("backoff", "delays"), [("exponential", [50, 100, 200]), ("linear", [50, 100, 150])])
async def test_US_JS04_AC2_the_wait_grows_with_each_retry(tmp_path: Path, backoff: str, delays: list[int]) -> None:
    async with serving_office(tmp_path, maxRetries=3, retryBaseDelay=50, retryBackoff=backoff) as office:
        (made,) = await office.submit(job(job_type="flaky"))
        await office.ended(made)

        chain = (await office.server.client.get(f"/api/jobs/{made['job_id']}")).json()["chain"]

        waits = [
            datetime.fromisoformat(retry["scheduled_for"]) - datetime.fromisoformat(retry["created_at"])
            for retry in chain[1:]
        ]
        assert waits == [timedelta(milliseconds=delay) for delay in delays]


async def test_US_JS04_AC3_what_can_be_retried_is_said_by_the_kind_of_failure(tmp_path: Path) -> None:
    async with serving_office(tmp_path, maxRetries=1, retryBaseDelay=0, maxConcurrentJobs=0) as office:
        roles = {"Slow": 2, "Lost": 2, "Conflicted": 1, "Denied": 1}
        made = await office.submit(*[session(role, timeout_ms=10_000) for role in roles if role != "Slow"])
        made[:0] = await office.submit(session("Slow", timeout_ms=300))

        ended = await office.ended(*made)

        assert {one["role"]: (one["status"], len(one["executions"])) for one in ended} == {
            role: ("failed", attempts) for role, attempts in roles.items()
        }
        permanent = await office.events("job_failed_permanently")
        assert {one["details"]["failure_kind"] for one in permanent} == {
            "timeout", "session_error", "git_conflict", "permission",
        }  # fmt: skip


async def test_US_JS04_AC4_a_permanent_failure_notifies_the_user_once_after_the_last_retry(tmp_path: Path) -> None:
    async with serving_office(tmp_path, retryBaseDelay=0) as office, Receiver(answers()) as receiver:
        await office.change(webhook={"url": receiver.url, "events": ["job.failed_permanently"]})
        (made,) = await office.submit(job(job_type="flaky"))
        await office.ended(made)
        await eventually(lambda: receiver.requests, 30)

        (told,) = await office.events("job_failed_permanently")
        assert (told["job_id"], told["details"]["failure_kind"]) == (made["job_id"], "session_error")
        assert len(await office.events("job_retrying")) == 2
        (notified,) = receiver.requests
        body = json.loads(notified.body)
        assert (body["event"], body["job"]["job_id"]) == ("job.failed_permanently", made["job_id"])


async def test_an_offices_own_webhook_has_office_words_and_a_subscription_the_engines(tmp_path: Path) -> None:
    wanted = ["job.run.failed"]
    async with (
        serving_office(tmp_path, maxRetries=1, retryBaseDelay=0) as office,
        Receiver(answers()) as own,
        Receiver(answers()) as subscribed,
    ):
        await office.change(webhook={"url": own.url, "events": wanted})
        await office.server.client.post("/api/webhooks", json={"url": subscribed.url, "events": wanted})
        (made,) = await office.submit(job(job_type="flaky", priority=-5, timeout_ms=9000))
        await office.ended(made)
        await eventually(lambda: len(own.requests) == len(subscribed.requests) == 2, 30)

        first, last = sorted((json.loads(one.body) for one in own.requests), key=lambda body: body["seq"])
        assert (first["job"]["status"], last["job"]["status"]) == ("pending", "failed")
        for attempt, body in enumerate((first, last), start=1):
            told = body["job"]
            assert (told["job_id"], told["priority"], told["timeout_ms"]) == (made["job_id"], -5, 9000)
            assert (body["execution"]["attempt"], body["execution"]["status"]) == (attempt, "failed")
        assert {json.loads(one.body)["job"]["priority"] for one in subscribed.requests} == {5}


async def test_a_url_that_is_an_offices_webhook_and_a_subscription_gets_both_forms(tmp_path: Path) -> None:
    async with serving_office(tmp_path) as office, Receiver(answers()) as receiver:
        await office.change(webhook={"url": receiver.url})
        await office.server.client.post("/api/webhooks", json={"url": receiver.url})
        (made,) = await office.submit(job(job_type="flaky", priority=-5, params={"times": 0}))
        await office.ended(made)
        await eventually(lambda: len(receiver.requests) == 2, 30)

        assert sorted(json.loads(one.body)["job"]["priority"] for one in receiver.requests) == [-5, 5]


async def test_the_events_of_an_office_have_its_signs_and_its_units(tmp_path: Path) -> None:
    async with serving_office(tmp_path, maxRetries=1, retryBaseDelay=1) as office:
        await office.change(status="paused")
        (made,) = await office.submit(job(job_type="flaky"))
        await office.ask("PATCH", f"/jobs/{made['job_id']}/priority", json={"priority": -5})
        await office.ask("PATCH", f"/jobs/{made['job_id']}/priority", json={"urgent": True})
        await office.change(status="active")
        await office.ended(made)

        assert [one["details"] for one in await office.events("job_moved")] == [
            {"priority": -5},
            {"priority": -1000000},
        ]
        (retrying,) = await office.events("job_retrying")
        assert retrying["details"].keys() == {"attempt", "delay_ms", "scheduled_for"}
        assert (retrying["details"]["attempt"], retrying["details"]["delay_ms"]) == (2, 1)
        engine = (await office.server.client.get("/api/events", params={"limit": 500})).json()["items"]
        assert [one["details"]["priority"] for one in engine if one["type"] == "job_moved"] == [5, 1_000_000]


# US-JS05: priority.


async def test_US_JS05_AC1_the_lower_priority_goes_first_and_is_shown_as_it_was_given(tmp_path: Path) -> None:
    async with serving_office(tmp_path) as office:
        await office.change(status="paused")
        jobs = await office.submit(*[job(priority=priority) for priority in (3, -5, 0)])

        ready = await office.ask("GET", "/jobs", params={"status": "ready"})

        assert [one["priority"] for one in jobs] == [3, -5, 0]
        assert [one["priority"] for one in ready["items"]] == [-5, 0, 3]


async def test_US_JS05_AC3_an_urgent_job_goes_before_everything_in_its_office(tmp_path: Path) -> None:
    async with serving_office(tmp_path, maxConcurrentJobs=1) as office:
        await office.change(status="paused")
        first, urgent = await office.submit(job(priority=-999_999), job(urgent=True))

        await office.change(status="active")
        await office.ended(first, urgent)

        assert await office.started() == [urgent["job_id"], first["job_id"]]


async def test_US_JS05_AC4_a_priority_is_changed_while_the_job_waits_and_not_after_it_has_started(
    tmp_path: Path,
) -> None:
    async with serving_office(tmp_path, maxConcurrentJobs=1) as office:
        running, second, third, last = await office.submit(gate(), job(), job(), job())
        await office.until([running], "processing")

        lower = await office.ask("PATCH", f"/jobs/{third['job_id']}/priority", json={"priority": -1})
        urgent = await office.ask("PATCH", f"/jobs/{last['job_id']}/priority", json={"urgent": True})
        refused = await office.ask("PATCH", f"/jobs/{running['job_id']}/priority", 409, json={"priority": 5})
        nothing = await office.ask("PATCH", f"/jobs/{second['job_id']}/priority", 422, json={})
        office.server.gate.opened.set()
        await office.ended(second, third, last)

        assert (lower["priority"], urgent["priority"]) == (-1, -1_000_000)
        assert (refused["code"], nothing["errors"][0]["field"]) == ("already_dispatched", "priority")
        assert (await office.started())[1:] == [one["job_id"] for one in (last, third, second)]


# US-JS06: bulk cancel.


async def two_tasks(office: Office) -> tuple[list[Json], list[Json]]:
    """Submits one running, one ready and one pending job for each of two tasks."""
    await office.change(status="paused")
    jobs = [gate(key="a"), gate(priority=1), gate(depends_on=["a"])]
    first = await office.submit(*jobs, task_id="first")
    second = await office.submit(*jobs, task_id="second")
    await office.change(status="active")
    await office.until([first[0], second[0]], "processing")
    assert await office.statuses(*first, *second) == ["processing", "ready", "pending"] * 2
    return first, second


async def test_US_JS06_AC1_every_pending_and_ready_job_of_an_office_is_cancelled(tmp_path: Path) -> None:
    async with serving_office(tmp_path, maxConcurrentJobs=2) as office:
        first, second = await two_tasks(office)
        await office.server.client.post("/api/offices", json={"office_id": "p"})
        other = Office(office.server, "p")
        (untouched,) = await other.submit(gate())

        done = await office.ask("POST", "/jobs/cancel-all", json={"include_running": False})

        cancelled = {one["job_id"] for one in (*first[1:], *second[1:])}
        assert (done.pop("job_ids") and done) == {"cancelled": 4, "stopping": 0, "finishing": 0}
        assert await office.statuses(*first, *second) == ["processing", "cancelled", "cancelled"] * 2
        assert {one["job_id"] for one in await office.events("job_cancelled")} == cancelled
        await other.until([untouched], "processing")


async def test_US_JS06_AC2_every_job_of_a_task_is_cancelled_and_no_other(tmp_path: Path) -> None:
    async with serving_office(tmp_path, maxConcurrentJobs=2) as office:
        first, second = await two_tasks(office)

        done = await office.ask("POST", "/jobs/cancel-all", json={"task_id": "first", "reason": "not needed"})
        await office.ended(*first)

        assert (done["cancelled"], done["stopping"], done["finishing"]) == (2, 1, 0)
        assert set(done["job_ids"]) == {one["job_id"] for one in first}
        assert await office.statuses(*first) == ["cancelled"] * 3
        assert "cancelled" not in await office.statuses(*second)


async def test_US_JS06_AC3_sessions_that_run_are_told_to_stop_too(tmp_path: Path) -> None:
    async with serving_office(tmp_path, maxConcurrentJobs=1) as office:
        running, queued = await office.submit(session("Listener"), session("Listener"))
        await office.until([running], "processing")
        await office.until_it_says(running, "working")

        done = await office.ask("POST", "/jobs/cancel-all")
        (stopped, _) = await office.ended(running, queued)

        assert (done["cancelled"], done["stopping"]) == (1, 1)
        assert [one["status"] for one in stopped["executions"]] == ["cancelled"]
        assert "told to stop" in await office.log(running)


async def test_US_JS06_AC4_what_was_cancelled_is_cancelled_says_when_and_never_runs(tmp_path: Path) -> None:
    async with serving_office(tmp_path, maxConcurrentJobs=2) as office:
        first, second = await two_tasks(office)
        await office.ask("POST", "/jobs/cancel-all")

        ended = await office.ended(*first, *second)

        assert {one["status"] for one in ended} == {"cancelled"}
        assert all(one["cancelled_at"] is not None and one["completed_at"] is None for one in ended)
        assert sorted(await office.started()) == sorted([first[0]["job_id"], second[0]["job_id"]])
        assert await office.ask("GET", "/scheduler/stats") == {
            "office_id": "o", "pending": 0, "ready": 0, "processing": 0, "done": 0, "failed": 0, "cancelled": 6,
            "avg_completion_time": 0,
        }  # fmt: skip


# The routes.


async def test_an_office_is_made_changed_found_and_listed(tmp_path: Path) -> None:
    async with serving_office(tmp_path) as office:
        client = office.server.client
        generated = (await client.post("/api/offices", json={"name": "Web team", "cancel_mode": "finish"})).json()
        taken = await client.post("/api/offices", json={"office_id": "o"})
        changed = await office.change(name="Team", on_dependency_failure="cancel", webhook={"url": "http://localhost/"})
        cleared = await office.change(webhook=None, status="archived")
        listed = (await client.get("/api/offices", params={"limit": 2})).json()

        assert (generated["name"], generated["cancel_mode"], generated["status"]) == ("Web team", "finish", "active")
        assert (taken.status_code, taken.json()["code"]) == (409, "conflict")
        assert (changed["name"], changed["on_dependency_failure"], changed["webhook"]["url"]) == (
            "Team", "cancel", "http://localhost/",
        )  # fmt: skip
        assert (cleared["webhook"], cleared["status"], cleared["name"]) == (None, "archived", "Team")
        assert (len(listed["items"]), listed["next_cursor"] is None) == (2, False)
        assert (await office.ask("POST", "/jobs", 422, json={"jobs": [job()]}))["code"] == "invalid"


async def test_the_configuration_has_the_names_defaults_and_nulls_of_the_office_design(tmp_path: Path) -> None:
    async with serving_office(tmp_path) as office:
        assert await office.ask("GET", "/scheduler/config") == DEFAULTS

        changed = await office.configure(maxConcurrentByRole=None, defaultTimeout=None, retryBackoff="linear")

        assert changed == {
            **DEFAULTS, "maxConcurrentByRole": {}, "retryBackoff": "linear",
        }  # fmt: skip
        assert await office.ask("GET", "/scheduler/config") == changed
        for wrong in ({"maxConcurrentJobs": None}, {"maxRetries": None}, {"retryBaseDelay": None}, {"maxRetries": -1},
                      {"max_retries": 1}, {"defaultTimeout": 0}, {"maxConcurrentByRole": {"FE": -1}}):  # fmt: skip
            refused = await office.ask("PATCH", "/scheduler/config", 422, json=wrong)
            assert refused["errors"][0]["field"].startswith(next(iter(wrong))), refused
        text = await office.ask("PATCH", "/scheduler/config", 422, json={"maxRetries": "3"})
        assert text["detail"].startswith("maxRetries is text; it must be a whole number")
        assert await office.ask("GET", "/scheduler/config") == changed


async def test_retryOn_is_set_over_HTTP_and_a_wrong_kind_is_named(tmp_path: Path) -> None:
    async with serving_office(tmp_path) as office:
        changed = await office.configure(retryOn=["error"])
        refused = [await office.ask("PATCH", "/scheduler/config", 422, json={"retryOn": kinds})
                   for kinds in (["cancelled"], "error", [1])]  # fmt: skip

        assert changed == {**DEFAULTS, "retryOn": ["error"]}
        assert refused[0]["detail"].startswith("retryOn has 'cancelled'; it must have only these kinds: crash, error")
        assert [one["errors"][0]["problem"] for one in refused[1:]] == ["is text; it must be a list",
                                                                        "is 1; it must be text"]  # fmt: skip
        assert await office.ask("GET", "/scheduler/config") == changed


async def test_a_request_sent_again_with_its_key_is_answered_with_what_it_made(tmp_path: Path) -> None:
    async with serving_office(tmp_path) as office:
        key: Json = {"headers": {"Idempotency-Key": "k"}}
        made = await office.submit(job(key="a"), job(depends_on=["a"]), **key)
        await office.ended(*made)

        again = await office.submit(job(key="a"), job(depends_on=["a"]), status=200, **key)
        other = await office.ask("POST", "/jobs", 422, json={"jobs": [job()]}, **key)

        assert [(one["job_id"], one["status"]) for one in again] == [(one["job_id"], "done") for one in made]
        assert other["code"] == "idempotency_mismatch"


async def test_jobs_are_listed_by_status_role_and_task_a_page_at_a_time(tmp_path: Path) -> None:
    async with serving_office(tmp_path) as office:
        await office.change(status="paused")
        await office.submit(job("1", role="FE"), job("2", role="BE"), task_id="t")
        await office.submit(job("3", role="FE"))

        async def listed(**query: Any) -> list[str]:
            return [one["description"] for one in (await office.ask("GET", "/jobs", params=query))["items"]]

        assert await listed(role="FE") == ["1", "3"]
        assert await listed(task_id="t", status="ready") == ["1", "2"]
        assert await listed(status="done") == []
        first = await office.ask("GET", "/jobs", params={"limit": 2})
        assert await listed(cursor=first["next_cursor"]) == ["3"]
        assert (await office.ask("GET", "/jobs", 422, params={"status": "QUEUED"}))["code"] == "invalid"


async def test_a_failed_job_is_retried_by_hand_and_shows_each_execution(tmp_path: Path) -> None:
    async with serving_office(tmp_path, maxRetries=0) as office:
        (made,) = await office.submit(job(job_type="flaky", params={"times": 1}))
        await office.ended(made)

        retried = await office.ask("POST", f"/jobs/{made['job_id']}/retry")
        await office.until([made], "done")
        found = await office.ask("GET", f"/jobs/{made['job_id']}/executions")
        refused = await office.ask("POST", f"/jobs/{made['job_id']}/retry", 409)

        assert (retried["job_id"], retried["retry_count"], found["next_cursor"]) == (made["job_id"], 1, None)
        assert [(one["attempt"], one["status"], one["error_message"]) for one in found["items"]] == [
            (1, "failed", "bad luck"),
            (2, "completed", None),
        ]
        assert set(found["items"][0]) == {
            "id", "job_id", "attempt", "started_at", "timeout_at", "completed_at", "session_id", "status",
            "error_message", "created_at",
        }  # fmt: skip
        assert refused["code"] == "conflict"


async def test_a_session_has_an_id_of_its_own_in_every_attempt(tmp_path: Path) -> None:
    async with serving_office(tmp_path, retryBaseDelay=0) as office:
        (made,) = await office.submit(session("Lost"))

        (ended,) = await office.ended(made)

        sessions = [one["session_id"] for one in ended["executions"]]
        assert (len(set(sessions)), None in sessions) == (3, False)
        unknown = await office.ask("POST", "/jobs", 422, json={"jobs": [session("Nobody")]})
        assert unknown["code"] == "unknown_job_type"


async def test_one_job_is_cancelled_at_once_or_told_to_stop_and_an_ended_one_is_refused(tmp_path: Path) -> None:
    async with serving_office(tmp_path, maxConcurrentJobs=1) as office:
        running, queued = await office.submit(gate(), gate())
        await office.until([running], "processing")

        cancelled = await office.ask("POST", f"/jobs/{queued['job_id']}/cancel", 200)
        await office.ask("POST", f"/jobs/{running['job_id']}/cancel", 202, json={"reason": "enough"})
        await office.ended(running)
        refused = await office.ask("POST", f"/jobs/{running['job_id']}/cancel", 409)

        assert (cancelled["status"], refused["code"]) == ("cancelled", "already_finished")
        assert (await office.ask("GET", "/jobs/none", 404))["code"] == "not_found"


async def test_events_go_on_where_a_page_ended_and_later_from_the_number_that_it_told(tmp_path: Path) -> None:
    async with serving_office(tmp_path) as office:
        made = await office.submit(job(), job())
        await office.ended(*made)
        types: list[str] = []
        page = await office.ask("GET", "/events", params={"limit": 4})
        types += [event["type"] for event in page["items"]]
        while page["next_cursor"] is not None:
            page = await office.ask("GET", "/events", params={"limit": 4, "cursor": page["next_cursor"]})
            types += [event["type"] for event in page["items"]]
        assert sorted(types) == ["job_completed"] * 2 + ["job_queued"] * 2 + ["job_started"] * 2

        assert (await office.ask("GET", "/events", params={"after": page["next_after"]}))["items"] == []
        await office.change(status="paused")
        later = await office.ask("GET", "/events", params={"after": page["next_after"]})

        assert [event["type"] for event in later["items"]] == ["queue_paused"]


async def test_process_answers_what_it_started(tmp_path: Path) -> None:
    async with serving_office(tmp_path) as office:
        await office.change(status="paused")
        (made,) = await office.submit(gate())
        assert await office.ask("POST", "/scheduler/process") == {"items": []}
        # Unseen by the server, so that there is something to find.
        database(tmp_path).execute("update offices set is_paused = 0 where office_id = 'o'")

        started = await office.ask("POST", "/scheduler/process")

        assert [(one["job_id"], one["status"]) for one in started["items"]] == [(made["job_id"], "processing")]


async def test_a_job_of_an_office_waits_for_its_answer_in_the_graph(tmp_path: Path) -> None:
    async with serving_office(tmp_path) as office:
        ask = {"name": "release", "question": "May it go live?"}
        _, deploy = await office.submit(
            {**gate("build"), "key": "build"},
            {**gate("deploy"), "depends_on": ["build"], "await_signal": ask},
        )
        refused = await office.server.client.post(
            "/api/offices/o/jobs", json={"jobs": [{**gate(), "await_signal": {"question": "no name"}}]}
        )
        shown = (await office.server.client.get(f"/api/jobs/{deploy['job_id']}")).json()

        assert deploy["status"] == "pending"
        assert (shown["awaiting"]["question"], shown["awaiting"]["asked_at"]) == ("May it go live?", None)
        assert refused.status_code == 422
        assert "jobs.0.await_signal.name" in refused.text


async def test_only_an_admin_of_the_whole_scheduler_sets_the_command_of_a_role(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.scheduler.offices.create("o")
        _, admin = await server.scheduler.keys.create("admin", ["admin"])
        _, operator = await server.scheduler.keys.create("operator", ["operate"])
        _, own = await server.scheduler.keys.create("own", ["operate"], office_id="o")
        asked = {"command": ["agent"], "env": {"TOKEN": "secret"}}

        answers_ = [
            await server.client.put("/api/offices/o/roles/FE", json=asked, headers={"X-API-Key": key})
            for key in (operator, own, admin)
        ]
        listed = await server.client.get("/api/offices/o/roles", headers={"X-API-Key": own})

        assert [one.status_code for one in answers_] == [403, 403, 200]
        assert "secret" not in answers_[2].text + listed.text
        (role,) = [one for one in listed.json()["items"] if one["role"] == "FE"]
        assert (role["command"], role["env"], role["is_own"]) == (["agent"], ["TOKEN"], True)


async def test_the_events_of_an_office_are_streamed_in_its_words(tmp_path: Path) -> None:
    async with serving_office(tmp_path) as office:
        await office.change(status="paused")
        (made,) = await office.submit(gate())
        await office.ask("PATCH", f"/jobs/{made['job_id']}/priority", json={"priority": -5})

        reader = Reader(office.server.client, "/api/offices/o/events")
        heard = [await reader.next()]
        while heard[-1]["event"] != "job_moved":
            heard.append(await reader.next())
        await reader.close()

        moved = heard[-1]["data"]
        assert (moved["job_id"], moved["details"]["priority"]) == (made["job_id"], -5)


async def test_streams_of_an_office_share_the_read_for_new_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    in_office_words = OfficeJobService.in_office_words

    async def counted(self: OfficeJobService, office_id: str, found: Sequence[Event]) -> list[Event]:
        reads.append(len(found))
        return await in_office_words(self, office_id, found)

    async with serving_office(tmp_path) as office:
        await office.change(status="paused")
        (made,) = await office.submit(gate())
        begin, events = await office.server.scheduler.lists.last_event(), office.server.scheduler._runtime.events
        readers = [Reader(office.server.client, f"/api/offices/o/events?after={begin}") for _ in range(5)]
        assert {await reader.comment() for reader in readers} == {": open"}
        await eventually(lambda: events._feed is not None and len(events._feed._waiting) == 5)

        monkeypatch.setattr(OfficeJobService, "in_office_words", counted)
        await office.ask("PATCH", f"/jobs/{made['job_id']}/priority", json={"priority": -5})
        heard = [await reader.next() for reader in readers]
        for reader in readers:
            await reader.close()

        assert [one["event"] for one in heard] == ["job_moved"] * 5
        assert reads == [1]


async def test_a_description_may_have_64_KiB(tmp_path: Path) -> None:
    async with serving_office(tmp_path) as office:
        (made,) = await office.submit(gate("d" * 65_536))
        refused = await office.server.client.post(
            "/api/offices/o/jobs", json={"jobs": [{"description": "d" * 65_537, "role": "FE"}]}
        )

        assert len(made["description"]) == 65_536
        assert refused.status_code == 422


async def test_an_office_says_which_of_its_settings_the_configuration_file_fixes(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.client.post("/api/offices", json={"office_id": "o"})
        settings = server.scheduler.settings.offices
        settings.use(settings._lanes.policy, {"o": {"max_concurrent_jobs": 3}})

        found = (await server.client.get("/api/offices/o")).json()
        refused = await server.client.patch("/api/offices/o/scheduler/config", json={"maxConcurrentJobs": 5})

    assert found["set_by_file"] == ["max_concurrent_jobs"]
    assert refused.status_code == 409
