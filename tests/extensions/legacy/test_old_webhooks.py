"""Webhooks in the old words: sent once when a chain has ended, as the old service sent them (CON-004)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nextslot import Scheduler, testing
from nextslot.errors import Invalid
from nextslot.extensions.legacy.old_words import WEBHOOK_EVENTS
from nextslot.testing import Mailbox
from tests import databases
from tests.engine.test_12_webhooks import HOOK, run_to_its_end, told, verified
from tests.engine.test_15_recovery import by_hand
from tests.support import eventually, new_scheduler, running_scheduler

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def box() -> Mailbox:
    return Mailbox()


def legacy(*events: str) -> dict[str, Any]:
    return {"url": HOOK, "events": list(events or WEBHOOK_EVENTS), "format": "legacy"}


async def test_CON_004_a_legacy_webhook_is_sent_once_when_the_chain_has_ended_with_the_first_job_s_id(
    tmp_path: Path, box: Mailbox
) -> None:
    async with running_scheduler(tmp_path, sender=box, extensions=["legacy"]) as scheduler:
        root = await scheduler.submit("fail", {"times": 1}, webhook=legacy())
        ended = await scheduler.wait(root.job_id)
        await testing.settled()

        (message,) = box.messages
        content = verified(message, scheduler.webhooks.secret())
        assert list(content) == [
            *("event", "job_id", "type", "status", "params", "created_at", "started_at", "finished_at"),
            *("exit_code", "error", "artifacts", "timestamp"),
        ]
        assert (content["event"], content["status"], content["job_id"]) == ("succeeded", "succeeded", root.job_id)
        assert content["created_at"] == str(root.created_at)
        assert content["started_at"] == str((await scheduler.job(root.job_id)).started_at)
        assert content["finished_at"] == str(ended.job.finished_at)
        assert (content["exit_code"], content["error"], content["artifacts"]) == (None, None, [])
        assert message.headers["X-Job-ID"] == root.job_id
        assert message.headers["X-Job-Event"] == "succeeded"
        assert message.headers["User-Agent"] == "HorrorStoryGenerator/1.3"


@pytest.mark.parametrize(
    ("job_type", "events", "heard"),
    [
        ("fail", (), ["failed"]),
        ("skip", (), ["skipped"]),
        ("work", ("failed",), []),
        ("fail", ("failed",), ["failed"]),
    ],
)
async def test_CON_004_a_legacy_webhook_hears_the_old_words(
    tmp_path: Path, box: Mailbox, job_type: str, events: tuple[str, ...], heard: list[str]
) -> None:
    async with running_scheduler(tmp_path, sender=box, extensions=["legacy"]) as scheduler:
        await run_to_its_end(scheduler, job_type, webhook=legacy(*events))

        assert told(box) == heard


@pytest.mark.real_time
async def test_CON_004_a_legacy_webhook_hears_with_which_code_and_error_a_command_ended(
    tmp_path: Path, box: Mailbox
) -> None:
    scheduler = Scheduler(databases.url(tmp_path), data=tmp_path, sender=box, extensions=["legacy"])
    scheduler.job_types.add_command("exits", ["sh", "-c", "exit 3"])
    async with asyncio.timeout(30), scheduler:
        job = await scheduler.submit("exits", webhook=legacy(), retry_policy={"max_attempts": 0})
        ended = await scheduler.wait(job.job_id)
        await eventually(lambda: box.messages)

    content = box.messages[0].content
    assert (content["event"], content["exit_code"], content["error"]) == ("failed", 3, ended.error)


async def test_CON_004_a_legacy_webhook_does_not_hear_of_a_cancel(tmp_path: Path, box: Mailbox) -> None:
    async with running_scheduler(tmp_path, sender=box, extensions=["legacy"]) as scheduler:
        running = await scheduler.submit("work", {"seconds": 100}, webhook=legacy())
        queued = await scheduler.submit("work", webhook=legacy())
        await scheduler.cancel(queued.job_id)
        await scheduler.cancel(running.job_id, interrupt=True)
        await scheduler.wait(running.job_id)
        await testing.settled()

        assert box.messages == []


@pytest.mark.parametrize(
    ("finish", "heard"),
    [
        ("status = 'COMPLETED'", ["succeeded"]),
        ("status = 'FAILED', failure_kind = 'error'", []),
        ("status = 'FAILED', failure_kind = 'invalid'", ["failed"]),
    ],
)
def test_spec_15_2_what_the_last_life_did_not_tell_in_old_words_is_told_by_the_next(
    tmp_path: Path, box: Mailbox, finish: str, heard: list[str]
) -> None:
    async def die() -> None:
        scheduler = new_scheduler(tmp_path, extensions=["legacy"])
        await scheduler.start()
        await scheduler.submit("stubborn", webhook={"url": HOOK, "format": "legacy"})
        await testing.crash(scheduler)

    async def live_on() -> None:
        async with new_scheduler(tmp_path, seed=1, sender=box, extensions=["legacy"]):
            await asyncio.sleep(1)

    testing.run(die())
    by_hand(tmp_path, f"update runs set {finish}, finished_at = started_at + 7")
    testing.run(live_on())

    assert told(box) == heard


def test_without_the_extension_a_stored_job_of_the_old_endpoints_sends_the_usual_messages(
    tmp_path: Path, box: Mailbox
) -> None:
    async def submit() -> None:
        async with new_scheduler(tmp_path, extensions=["legacy"]) as scheduler:
            await scheduler.pause()
            await scheduler.submit("work", webhook=legacy("failed"))

    async def run() -> None:
        async with new_scheduler(tmp_path, seed=1, sender=box) as scheduler:
            await scheduler.resume()
            await asyncio.sleep(100)

    testing.run(submit())
    testing.run(run())

    assert told(box) == ["job.run.completed"]


async def test_without_the_extension_the_old_words_are_refused(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(Invalid, match="it must be one of slack, discord, ntfy"):
            await scheduler.submit("work", webhook=legacy())
