"""Spec 5.25: a run without output and progress for ten minutes is reported, once a silence; nothing is ended."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from nextslot import Event, RunContext, Scheduler, testing
from nextslot.errors import Unavailable
from nextslot.store.contract import Tx
from nextslot.telemetry.meters import ProcessMeters
from nextslot.testing import BEGINNING, Mailbox
from tests.support import database, history, new_scheduler, running_scheduler

HOUR = 3600.0
MINUTE = 60.0
HOOK = "http://example.com/hook"


def register(scheduler: Scheduler) -> None:
    @scheduler.job_type("quiet")
    async def quiet(run: RunContext, active: list[float] = [], seconds: float = HOUR) -> None:  # noqa: B006
        """A handler that is active at these seconds, by progress, log and output in turn."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number, at in enumerate(active):
            await asyncio.sleep(began + at - loop.time())
            (lambda: run.progress(0.5), lambda: run.log.info("here"), lambda: run.write(b"here"))[number % 3]()
        await asyncio.sleep(began + seconds - loop.time())


async def stalls(scheduler: Scheduler) -> list[Event]:
    return [event for event in await history(scheduler) if event.type == "job_stalled"]


async def test_a_run_without_output_and_progress_for_ten_minutes_is_reported_once_and_goes_on(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        register(scheduler)
        job = await scheduler.submit("quiet")

        await asyncio.sleep(9.9 * MINUTE)
        assert await stalls(scheduler) == []

        await asyncio.sleep(40 * MINUTE)
        [event] = await stalls(scheduler)
        run = await scheduler.run_of(job.job_id)
        assert run is not None
        assert (event.job_id, event.run_id, event.office_id) == (job.job_id, run.run_id, "default")
        assert (event.timestamp - run.started_at) / 1_000_000 == pytest.approx(600, abs=1)
        assert event.details == {"silent_since": str(run.started_at), "job_type": "quiet"}
        assert run.silent_since == run.started_at

        assert (await scheduler.wait(job.job_id)).status == "COMPLETED"


@pytest.mark.parametrize("every", [5 * MINUTE, 9.9 * MINUTE])
async def test_a_run_that_reports_within_the_time_is_not_reported(tmp_path: Path, every: float) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        register(scheduler)
        job = await scheduler.submit("quiet", {"active": [every, 2 * every, 3 * every], "seconds": 3.5 * every})

        await scheduler.wait(job.job_id)

        assert await stalls(scheduler) == []


async def test_a_new_silence_after_new_output_is_a_new_alarm(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        register(scheduler)
        job = await scheduler.submit("quiet", {"active": [15 * MINUTE, 16 * MINUTE, 40 * MINUTE], "seconds": HOUR})
        silences = []
        await asyncio.sleep(MINUTE / 2)  # Between the minutes at which something happens.
        for _ in range(59):
            run = await scheduler.run_of(job.job_id)
            assert run is not None
            silences.append(run.silent_since is not None)
            await asyncio.sleep(MINUTE)

        found = [(event.timestamp - BEGINNING) / 1_000_000 for event in await stalls(scheduler)]
        assert found == pytest.approx([600, 16 * MINUTE + 600, 40 * MINUTE + 600], abs=1)
        # Silent from minute 10 to 15, from 26 to 40, and from 50 on.
        changes = [minute for minute in range(1, 59) if silences[minute] != silences[minute - 1]]
        assert changes == [10, 15, 26, 40, 50]


async def test_a_direct_execution_is_reported_too(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        register(scheduler)
        answer = asyncio.get_running_loop().create_task(
            scheduler.run_direct("quiet", {"seconds": 20 * MINUTE}, direct_id="d", wait_timeout_seconds=HOUR)
        )
        await asyncio.sleep(11 * MINUTE)

        [event] = await stalls(scheduler)
        found = await scheduler.direct("d")
        assert (event.job_id, event.run_id) == (None, found.run_id)
        assert found.silent_since == found.started_at
        assert (await answer).status == "COMPLETED"


@pytest.mark.real_time
async def test_a_handler_in_a_thread_ends_its_silence_too(tmp_path: Path) -> None:
    speak, end = threading.Event(), threading.Event()
    async with Scheduler(f"sqlite:///{tmp_path}/nextslot.db", stall_alarm_seconds=0.2) as scheduler:

        @scheduler.job_type("threaded")
        def work(run: RunContext) -> None:
            speak.wait(30)
            run.write(b"here")
            end.wait(30)

        job = await scheduler.submit("threaded")
        silent: list[bool] = []
        for _ in range(400):
            run = await scheduler.run_of(job.job_id)
            is_silent = run is not None and run.silent_since is not None
            if is_silent != (silent or [False])[-1]:
                silent.append(is_silent)
            if silent == [True]:
                speak.set()
            elif silent:
                break
            await asyncio.sleep(0.01)
        end.set()

        assert silent == [True, False]


@pytest.mark.parametrize("seconds", [None, 0])
async def test_the_alarm_can_be_switched_off(tmp_path: Path, seconds: float | None) -> None:
    async with running_scheduler(tmp_path, stall_alarm_seconds=seconds) as scheduler:
        register(scheduler)
        await scheduler.wait((await scheduler.submit("quiet")).job_id)

        assert await stalls(scheduler) == []


@pytest.mark.parametrize("step", [2 * HOUR, -HOUR], ids=["ahead", "back"])
async def test_a_wall_clock_that_steps_makes_no_silence_longer_or_shorter(tmp_path: Path, step: float) -> None:
    clock = testing.VirtualClock()
    async with running_scheduler(tmp_path, clock=clock) as scheduler:
        register(scheduler)
        await scheduler.submit("quiet")
        await asyncio.sleep(5 * MINUTE)
        clock.jump(step)

        await asyncio.sleep(4.9 * MINUTE)
        assert await stalls(scheduler) == []

        await asyncio.sleep(0.2 * MINUTE)
        assert len(await stalls(scheduler)) == 1


async def test_a_time_in_which_the_process_was_held_up_is_no_silence(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        register(scheduler)
        await scheduler.submit("quiet", {"active": [6 * MINUTE + 1800], "seconds": HOUR})
        await asyncio.sleep(5 * MINUTE)
        asyncio.get_running_loop().seconds += 1800  # type: ignore[attr-defined]

        await asyncio.sleep(5 * MINUTE)

        assert await stalls(scheduler) == []


def test_after_a_crash_nothing_is_doubled_for_the_dead_run(tmp_path: Path) -> None:
    async def first() -> str:
        scheduler = new_scheduler(tmp_path)
        register(scheduler)
        await scheduler.start()
        job = await scheduler.submit("quiet", retry_policy={"max_attempts": 0})
        await asyncio.sleep(11 * MINUTE)
        await testing.crash(scheduler)
        return job.job_id

    async def second(job_id: str) -> tuple[int, str]:
        scheduler = new_scheduler(tmp_path)
        register(scheduler)
        async with scheduler:
            await asyncio.sleep(2 * HOUR)
            return len(await stalls(scheduler)), (await scheduler.job(job_id)).status

    job_id = testing.run(first())

    assert testing.run(second(job_id)) == (1, "FAILED")


async def test_an_alarm_that_cannot_be_stored_at_once_is_stored_later_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        register(scheduler)
        await scheduler.submit("quiet")
        noted = scheduler._runtime.events.note
        failures = iter(range(3))

        def failing(tx: Tx, type: str, *rest: Any) -> None:
            if type == "job_stalled" and next(failures, None) is not None:
                raise Unavailable("the disk is full")
            noted(tx, type, *rest)

        monkeypatch.setattr(scheduler._runtime.events, "note", failing)
        await asyncio.sleep(20 * MINUTE)

        assert len(await stalls(scheduler)) == 1


async def test_a_webhook_that_asks_for_stalls_gets_one(tmp_path: Path) -> None:
    mailbox = Mailbox()
    async with running_scheduler(tmp_path, sender=mailbox) as scheduler:
        register(scheduler)
        await scheduler.webhooks.create(HOOK, events=["job.stalled"])
        own = {"url": HOOK + "/own", "events": ["job.stalled"]}
        job = await scheduler.submit("quiet", webhook=own)
        await asyncio.sleep(20 * MINUTE)
        bodies = {message.url: json.loads(message.body) for message in mailbox.messages}
        assert {url: body["event"] for url, body in bodies.items()} == dict.fromkeys(
            (HOOK, HOOK + "/own"), "job.stalled"
        )
        assert bodies[HOOK]["run"]["silent_since"] is not None
        assert len(mailbox.messages) == 2

        await scheduler.wait(job.job_id)
        assert (await scheduler.job(job.job_id)).webhook_status == "delivered"


async def test_why_says_since_when_a_run_is_silent(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        register(scheduler)
        job = await scheduler.submit("quiet")
        await asyncio.sleep(9 * MINUTE)
        assert [one.code for one in (await scheduler.forecast.why(job.job_id)).reasons] == ["running"]

        await asyncio.sleep(2 * MINUTE)
        running, silent = (await scheduler.forecast.why(job.job_id)).reasons
        assert (running.code, silent.code) == ("running", "silent")
        assert "no output and reported no progress since" in silent.text


async def test_stalls_are_counted(tmp_path: Path) -> None:
    meters = ProcessMeters()
    async with running_scheduler(tmp_path, meters=meters) as scheduler:
        register(scheduler)
        await scheduler.wait((await scheduler.submit("quiet")).job_id)

    assert meters.events["job_stalled", "default"] == 1


async def test_a_scheduler_with_nothing_to_do_looks_at_nothing(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        register(scheduler)
        await scheduler.wait((await scheduler.submit("quiet", {"seconds": 1})).job_id)
        await asyncio.sleep(1)

        waiting = [handle for handle in asyncio.get_running_loop()._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
        assert [handle for handle in waiting if "StallAlarm" in repr(handle)] == []


def test_a_run_that_ended_keeps_the_silence_in_which_it_ended(tmp_path: Path) -> None:
    async def body() -> None:
        async with running_scheduler(tmp_path) as scheduler:
            register(scheduler)
            job = await scheduler.submit("quiet", timeout_seconds=15 * MINUTE, retry_policy={"max_attempts": 0})
            await scheduler.wait(job.job_id)

    testing.run(body())

    with database(tmp_path) as connection:
        [(kind, since)] = connection.execute("select failure_kind, silent_since from runs").fetchall()
    assert (kind, since is not None) == ("timeout", True)
