"""Spec 12: who receives which events, in which words, signed with which secret; stored with their event (DEC-009)."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook as Receiver
from standardwebhooks.webhooks import WebhookVerificationError

from nextslot import (
    NewJob,
    Scheduler,
    errors,
    testing,
)
from nextslot.domain import json_form, webhook_signature
from nextslot.engine.webhooks.delivery_worker import EndpointResponse
from nextslot.engine.webhooks.webhook_outbox import WebhookSettings
from nextslot.testing import Mailbox, Message
from tests.engine.test_cost import HAND_OVER, transactions
from tests.support import history, named, new_scheduler, running_scheduler

HOOK = "http://example.com/hook"
OTHER = "http://example.com/other"
SECRET = "whsec_" + "c2VjcmV0" * 4


class Verifier(Receiver):
    """A receiver that lives in virtual time: everything but the age of the message is checked as ever."""

    def _Webhook__verify_timestamp(self, header: str) -> Any:
        from datetime import UTC, datetime

        return datetime.fromtimestamp(float(header), tz=UTC)


def verified(message: Message, secret: str) -> Any:
    return Verifier(secret).verify(message.body, dict(message.headers))


def told(box: Mailbox, url: str = HOOK) -> list[str]:
    return [message.content["event"] for message in box.messages if message.url == url]


async def run_to_its_end(scheduler: Scheduler, job_type: str, **options: Any) -> Any:
    ended = await scheduler.wait((await scheduler.submit(job_type, **options)).job_id)
    await testing.settled()
    return ended


@pytest.fixture
def box() -> Mailbox:
    return Mailbox()


# The content of messages.


@pytest.mark.parametrize(
    ("job_type", "event"),
    [("work", "job.run.completed"), ("fail", "job.run.failed"), ("skip", "job.run.skipped")],
)
async def test_DEC_009_the_end_of_a_run_is_told_in_the_words_of_the_api(
    tmp_path: Path, box: Mailbox, job_type: str, event: str
) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        ended = await run_to_its_end(scheduler, job_type, webhook={"url": HOOK}, retry_policy={"max_attempts": 0})

        (message,) = box.messages
        content = verified(message, scheduler.webhooks.secret())
        (delivery,) = (await scheduler.webhooks.deliveries_page()).items
        assert content["event"] == event
        assert content["delivery_id"] == message.headers["webhook-id"] == delivery.delivery_id
        assert content["timestamp"] == str(ended.job.finished_at)
        as_it_was = json_form.job(ended.job, 1) | {"webhook_status": "pending"}
        assert content["job"] == as_it_was
        assert content["run"] == ended.run.to_dict()


async def test_the_seq_of_a_message_is_the_number_of_its_event(tmp_path: Path, box: Mailbox) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        events = ["job.run.failed", "job.failed_permanently"]
        await run_to_its_end(
            scheduler, "fail", webhook={"url": HOOK, "events": events}, retry_policy={"max_attempts": 1}
        )

        numbers = {message.content["seq"]: message.content["event"] for message in box.messages}
        types = {event.seq: event.type for event in await history(scheduler)}
        assert [(types[seq], name) for seq, name in sorted(numbers.items())] == [
            ("job_failed", "job.run.failed"),
            ("job_failed", "job.run.failed"),
            ("job_failed_permanently", "job.failed_permanently"),
        ]


async def test_each_attempt_of_a_chain_is_told_and_says_which_it_is(tmp_path: Path, box: Mailbox) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        await run_to_its_end(scheduler, "fail", params={"times": 2}, webhook={"url": HOOK})

        heard = [(message.content["event"], message.content["job"]["attempt"]) for message in box.messages]
        assert heard == [("job.run.failed", 1), ("job.run.failed", 2), ("job.run.completed", 3)]


async def test_a_run_that_died_with_its_scheduler_is_told_by_the_next(tmp_path: Path, box: Mailbox) -> None:
    first = new_scheduler(tmp_path, sender=box)
    await first.start()
    job = await first.submit("work", {"seconds": 100}, webhook={"url": HOOK}, retry_policy={"max_attempts": 0})
    await testing.settled()
    await testing.crash(first)

    async with new_scheduler(tmp_path, seed=1, sender=box):
        await testing.settled()

    assert told(box) == ["job.run.failed"]
    assert box.messages[0].content["job"]["job_id"] == job.job_id
    assert box.messages[0].content["run"]["failure_kind"] == "crash"


async def test_members_that_a_group_skips_are_told_too_and_the_group_itself(tmp_path: Path, box: Mailbox) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        await scheduler.webhooks.create(HOOK, ["job.run.skipped", "group.finished"])
        wanted = [NewJob(job_type="fail", retry_policy={"max_attempts": 0}), NewJob(job_type="work")]
        group, jobs = await scheduler.submit_group(wanted, on_failure="skip")
        await scheduler.wait(jobs[1].job_id)
        await testing.settled()

        skipped, finished = (message.content for message in box.messages)
        assert (skipped["event"], skipped["job"]["job_id"]) == ("job.run.skipped", jobs[1].job_id)
        assert skipped["run"]["reason"] == "predecessor failed"
        assert finished["event"] == "group.finished"
        assert finished["group"] == (await scheduler.group(group.group_id)).to_dict()


async def test_a_cancelled_job_is_told_with_its_run_or_without_one(tmp_path: Path, box: Mailbox) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        webhook = {"url": HOOK, "events": ["job.cancelled", "job.run.failed"]}
        running = await scheduler.submit("work", {"seconds": 100}, webhook=webhook)
        queued = await scheduler.submit("work", webhook=webhook)
        await scheduler.cancel(queued.job_id)
        await scheduler.cancel(running.job_id, interrupt=True)
        await scheduler.wait(running.job_id)
        await testing.settled()

        heard = [(m.content["event"], m.content["job"]["job_id"], bool(m.content["run"])) for m in box.messages]
        assert heard == [
            ("job.cancelled", queued.job_id, False),
            ("job.run.failed", running.job_id, True),
            ("job.cancelled", running.job_id, True),
        ]


async def test_a_skipped_occurrence_is_told(tmp_path: Path, box: Mailbox) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        await scheduler.webhooks.create(HOOK, ["schedule.skipped"])
        now = scheduler._clock.now()
        shown: tuple[dict[str, str], dict[str, str]] = ({"schedule_id": "s"}, {"reason": "missed"})
        service = scheduler._runtime.webhooks
        await scheduler._access.write(lambda tx: service.schedule_skipped(tx, "default", *shown, now))
        await testing.settled()

        (message,) = box.messages
        assert message.content["event"] == "schedule.skipped"
        assert (message.content["schedule"], message.content["occurrence"]) == shown


@pytest.mark.parametrize(
    ("job_type", "event"), [("work", "direct.completed"), ("fail", "direct.failed"), ("skip", "direct.skipped")]
)
async def test_a_direct_request_is_told_only_if_it_names_a_webhook(
    tmp_path: Path, box: Mailbox, job_type: str, event: str
) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        await scheduler.webhooks.create(OTHER, ["job.run.completed", "job.run.failed", "job.run.skipped"])
        await scheduler.run_direct(job_type)
        ended = await scheduler.run_direct(job_type, webhook={"url": HOOK})
        await testing.settled()

        (message,) = box.messages
        content = verified(message, scheduler.webhooks.secret())
        assert content["event"] == event
        assert content["direct"] == ended.to_dict()


async def test_a_direct_request_that_died_with_its_scheduler_is_told_by_the_next(tmp_path: Path, box: Mailbox) -> None:
    first = new_scheduler(tmp_path, sender=box)
    await first.start()
    call = asyncio.create_task(first.run_direct("work", {"seconds": 100}, webhook={"url": HOOK}))
    await testing.settled()
    await testing.crash(first)
    call.cancel()

    async with new_scheduler(tmp_path, seed=1, sender=box):
        await testing.settled()

    assert told(box) == ["direct.failed"]


# The receivers of messages.


async def test_a_job_s_own_webhook_hears_the_events_it_names_and_else_the_ends_of_runs(
    tmp_path: Path, box: Mailbox
) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        never = {"max_attempts": 0}
        await run_to_its_end(scheduler, "fail", webhook={"url": HOOK}, retry_policy=never)
        await run_to_its_end(
            scheduler, "fail", webhook={"url": OTHER, "events": ["job.failed_permanently"]}, retry_policy=never
        )

        assert (told(box, HOOK), told(box, OTHER)) == (["job.run.failed"], ["job.failed_permanently"])


async def test_a_job_that_ends_without_having_run_tells_its_own_webhook(tmp_path: Path, box: Mailbox) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        own: dict[str, Any] = {"webhook": {"url": HOOK, "events": ["job.cancelled", "job.run.skipped"]}}
        await scheduler.submit("work", {"seconds": 100})
        await scheduler.cancel((await scheduler.submit("work", **own)).job_id)
        failing = NewJob(job_type="fail", retry_policy={"max_attempts": 0}, urgent=True)
        await scheduler.submit_group([failing, NewJob(job_type="work", **own)], on_failure="skip")
        await asyncio.sleep(200)

        assert told(box) == ["job.cancelled", "job.run.skipped"]


async def test_US_JS04_an_office_hears_of_its_own_jobs_and_of_permanent_failures(tmp_path: Path, box: Mailbox) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        await scheduler.offices.create("o", webhook={"url": HOOK})
        never = {"max_attempts": 0}
        await run_to_its_end(scheduler, "fail", office_id="o", retry_policy=never)
        await run_to_its_end(scheduler, "fail", retry_policy=never)
        heard = told(box)
        await scheduler.offices.change("o", webhook={"url": OTHER, "events": ["job.run.completed"]})
        await run_to_its_end(scheduler, "work", office_id="o")
        await scheduler.offices.change("o", webhook=None)
        await run_to_its_end(scheduler, "work", office_id="o")

        assert heard == ["job.run.failed", "job.failed_permanently"]
        assert told(box) == heard
        assert told(box, OTHER) == ["job.run.completed"]


async def test_a_subscription_hears_of_one_office_or_of_all(tmp_path: Path, box: Mailbox) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        for office_id in ("o", "office"):  # The name of one begins with that of the other.
            await scheduler.offices.create(office_id)
        await scheduler.webhooks.create(HOOK, office_id="o")
        await scheduler.webhooks.create(OTHER)
        for office_id in ("o", "office", "default"):
            await run_to_its_end(scheduler, "work", office_id=office_id)

        assert (len(told(box, HOOK)), len(told(box, OTHER))) == (1, 3)


async def test_one_delivery_per_url_and_event_signed_with_the_secret_of_every_way_that_leads_there(
    tmp_path: Path, box: Mailbox
) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        _, first = await scheduler.webhooks.create(HOOK)
        _, second = await scheduler.webhooks.create(HOOK, ["job.run.completed", "job.cancelled"])
        await scheduler.offices.change("default", webhook={"url": HOOK})
        await run_to_its_end(scheduler, "work", webhook={"url": HOOK})

        (message,) = box.messages
        for secret in (scheduler.webhooks.secret(), first, second):
            assert verified(message, secret)["event"] == "job.run.completed"
        with pytest.raises(WebhookVerificationError):
            verified(message, SECRET)


@pytest.mark.sqlite_only("counts its statements")
async def test_a_hand_over_that_nobody_listens_to_costs_nothing_before_and_after_somebody_did(
    tmp_path: Path, box: Mailbox
) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        webhook, _ = await scheduler.webhooks.create(HOOK)
        await scheduler.offices.create("o", webhook={"url": HOOK})
        await scheduler.submit_many([NewJob(job_type="work", params={"seconds": 1}) for _ in range(20)])
        await asyncio.sleep(3.5)
        with transactions() as heard:
            await asyncio.sleep(1)
        await scheduler.webhooks.delete(webhook.webhook_id)
        await asyncio.sleep(2)

        with transactions() as unheard:
            await asyncio.sleep(1)

        assert "deliveries.insert" in heard[0]
        assert unheard == [HAND_OVER]


async def test_listeners_are_known_again_after_a_restart(tmp_path: Path, box: Mailbox) -> None:
    async with new_scheduler(tmp_path, sender=box) as first:
        _, secret = await first.webhooks.create(HOOK)
        await first.offices.change("default", webhook={"url": OTHER})
    async with new_scheduler(tmp_path, seed=1, sender=box) as second:
        await run_to_its_end(second, "work")

        assert [message.url for message in box.messages] == [OTHER, HOOK]
        verified(box.messages[0], second.webhooks.secret())
        verified(box.messages[1], secret)


# Subscriptions.


async def test_a_secret_is_shown_once_and_is_in_no_representation_audit_or_log(
    tmp_path: Path, box: Mailbox, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        ann = named(scheduler, "ann")
        webhook, first = await ann.webhooks.create(HOOK)
        webhook, second = await ann.webhooks.rotate_secret(webhook.webhook_id)
        await ann.webhooks.test(webhook.webhook_id)
        await testing.settled()

        shown = [one.to_dict() for one in (await scheduler.webhooks.page()).items]
        shown += [one.to_dict() for one in (await scheduler.webhooks.deliveries_page()).items]
        audit = (await scheduler.lists.audit()).items
        assert webhook.created_by == "ann"
        assert len(audit) == 3
        everything = f"{shown} {audit} {caplog.text} {scheduler.webhooks} {WebhookSettings(secret=first)}"
        for secret in (first, second, scheduler.webhooks.secret()):
            assert secret.removeprefix("whsec_") not in everything


async def test_during_a_rotation_either_secret_verifies_and_afterwards_only_the_new_one(
    tmp_path: Path, box: Mailbox
) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        webhook, old = await scheduler.webhooks.create(HOOK)
        webhook, new = await scheduler.webhooks.rotate_secret(webhook.webhook_id)
        await run_to_its_end(scheduler, "work")
        await asyncio.sleep(24 * 3600)
        await run_to_its_end(scheduler, "work")

        during, after = box.messages
        assert verified(during, old) == verified(during, new)
        assert len(during.headers["webhook-signature"].split(" ")) == 2
        assert verified(after, new)
        with pytest.raises(WebhookVerificationError):
            verified(after, old)


async def test_spec_12_11_each_office_has_a_signing_secret_of_its_own(tmp_path: Path, box: Mailbox) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        for office_id in ("a", "b"):
            await scheduler.offices.create(office_id)
        await scheduler.submit("skip", office_id="a", webhook={"url": "http://example.com/hook"})
        await testing.settled()

        (message,) = box.messages
        assert verified(message, scheduler.webhooks.secret("a"))
        for other in (scheduler.webhooks.secret("b"), scheduler.webhooks.secret()):
            with pytest.raises(WebhookVerificationError):
                verified(message, other)


async def test_the_server_s_secret_is_generated_once_kept_and_overruled_by_the_configuration(tmp_path: Path) -> None:
    async with new_scheduler(tmp_path) as first:
        generated = first.webhooks.secret()
    async with new_scheduler(tmp_path, seed=1) as second:
        assert second.webhooks.secret() == generated
    async with new_scheduler(tmp_path, webhooks=WebhookSettings(secret=SECRET)) as third:
        assert third.webhooks.secret() == webhook_signature.secret_for(SECRET, "default")

    assert generated.startswith("whsec_")


def test_a_server_s_secret_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.Invalid) as refused:
        new_scheduler(tmp_path, webhooks=WebhookSettings(secret="whsec_short"))

    assert [problem.field for problem in refused.value.problems] == ["webhooks.secret"]
    assert "short" not in str(refused.value)


@pytest.mark.parametrize(
    ("field", "wanted"),
    [
        ("url", {"url": "ftp://example.com/"}),
        ("url", {"url": "http://169.254.169.254/latest/meta-data"}),
        ("url", {"url": None}),
        ("events", {"url": HOOK, "events": ["job.done"]}),
        ("events", {"url": HOOK, "events": []}),
        ("events", {"url": HOOK, "events": ["direct.completed"]}),
        ("office_id", {"url": HOOK, "office_id": 7}),
    ],
)
async def test_a_wrong_subscription_is_refused_with_the_name_of_the_field(
    tmp_path: Path, field: str, wanted: dict[str, Any]
) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(errors.Invalid) as refused:
            await scheduler.webhooks.create(**wanted)

        assert [problem.field for problem in refused.value.problems] == [field]
        assert (await scheduler.webhooks.page()).items == ()


@pytest.mark.parametrize(
    ("field", "webhook"),
    [
        ("webhook", {"url": HOOK, "secret": "x"}),
        ("webhook.url", {"events": ["job.cancelled"]}),
        ("webhook.url", {"url": "http://10.0.0.1/"}),
        ("webhook.events", {"url": HOOK, "events": ["group.finished"]}),
    ],
)
async def test_a_wrong_webhook_of_a_job_is_refused_and_nothing_is_stored(
    tmp_path: Path, field: str, webhook: dict[str, Any]
) -> None:
    async with running_scheduler(tmp_path, webhooks=WebhookSettings(allow_private=False)) as scheduler:
        with pytest.raises(errors.Invalid) as refused:
            await scheduler.submit("work", webhook=webhook)

        assert [problem.field for problem in refused.value.problems] == [field]
        assert await scheduler.queue() == []


async def test_an_unknown_office_subscription_or_delivery_is_not_found(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        hooks = scheduler.webhooks
        for call in (
            hooks.create(HOOK, office_id="nowhere"),
            hooks.get("x"),
            hooks.change("x", enabled=False),
            hooks.delete("x"),
            hooks.rotate_secret("x"),
            hooks.test("x"),
            hooks.delivery("x"),
            hooks.redeliver("x"),
        ):
            with pytest.raises(errors.NotFound):
                await call


async def test_a_subscription_can_be_changed_and_the_change_holds_for_what_happens_next(
    tmp_path: Path, box: Mailbox
) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        webhook, secret = await scheduler.webhooks.create(HOOK)
        changed = await scheduler.webhooks.change(webhook.webhook_id, url=OTHER, events=["job.run.skipped"])
        await run_to_its_end(scheduler, "work")
        await run_to_its_end(scheduler, "skip")

        assert await scheduler.webhooks.get(webhook.webhook_id) == changed
        assert (told(box), told(box, OTHER)) == ([], ["job.run.skipped"])
        assert verified(box.messages[0], secret)


@pytest.mark.parametrize("changes", [{}, {"secret": "x"}, {"enabled": "no"}, {"events": "all"}, {"url": "nowhere"}])
async def test_a_wrong_change_of_a_subscription_changes_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        webhook, _ = await scheduler.webhooks.create(HOOK)

        with pytest.raises(errors.Invalid):
            await scheduler.webhooks.change(webhook.webhook_id, **changes)

        assert await scheduler.webhooks.get(webhook.webhook_id) == webhook


async def test_a_disabled_subscription_hears_nothing_but_tests_until_it_is_enabled(
    tmp_path: Path, box: Mailbox
) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        webhook, _ = await scheduler.webhooks.create(HOOK)
        disabled = await scheduler.webhooks.change(webhook.webhook_id, enabled=False)
        await run_to_its_end(scheduler, "work")
        await scheduler.webhooks.test(webhook.webhook_id)
        await testing.settled()
        enabled = await scheduler.webhooks.change(webhook.webhook_id, enabled=True)
        await run_to_its_end(scheduler, "work")

        assert (disabled.disabled_reason, enabled.disabled_reason) == ("disabled by hand", None)
        assert told(box) == ["webhook.test", "job.run.completed"]


@pytest.mark.parametrize("end", ["delete", "disable"])
async def test_what_waits_for_a_subscription_that_ends_is_given_up_and_kept(
    tmp_path: Path, box: Mailbox, end: str
) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        box.answers[HOOK] = EndpointResponse(500)
        webhook, _ = await scheduler.webhooks.create(HOOK)
        await run_to_its_end(scheduler, "work")
        if end == "delete":
            await scheduler.webhooks.delete(webhook.webhook_id)
        else:
            await scheduler.webhooks.change(webhook.webhook_id, enabled=False)
        await asyncio.sleep(3600)

        (delivery,) = (await scheduler.webhooks.deliveries_page(webhook_id=webhook.webhook_id)).items
        assert (delivery.status, len(delivery.attempts), len(box.messages)) == ("FAILED", 1, 1)
        assert "subscription was" in (delivery.reason or "")


async def test_what_goes_to_a_job_s_own_webhook_too_is_sent_when_the_subscription_is_deleted(
    tmp_path: Path, box: Mailbox
) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        box.answers[HOOK] = EndpointResponse(500)
        webhook, _ = await scheduler.webhooks.create(HOOK)
        ended = await run_to_its_end(scheduler, "work", webhook={"url": HOOK})
        await scheduler.webhooks.delete(webhook.webhook_id)
        box.answers.clear()
        await asyncio.sleep(10)

        assert len(box.messages) == 2
        assert verified(box.messages[-1], scheduler.webhooks.secret())
        assert (await scheduler.job(ended.job.job_id)).webhook_status == "delivered"


async def test_lists_go_page_by_page_the_newest_first(tmp_path: Path, box: Mailbox) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        made = [(await scheduler.webhooks.create(f"{HOOK}/{n}"))[0] for n in range(5)]
        await run_to_its_end(scheduler, "work")

        first = await scheduler.webhooks.page(limit=3)
        second = await scheduler.webhooks.page(cursor=first.next_cursor, limit=3)
        assert [*first.items, *second.items] == made[::-1]
        assert second.next_cursor is None
        sent = await scheduler.webhooks.deliveries_page(limit=3)
        rest = await scheduler.webhooks.deliveries_page(cursor=sent.next_cursor, limit=3)
        ids = [one.delivery_id for one in (*sent.items, *rest.items)]
        assert ids == sorted(ids, reverse=True)
        assert len(ids) == 5


async def test_deliveries_are_found_by_job_subscription_event_and_status(tmp_path: Path, box: Mailbox) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        box.answers[OTHER] = EndpointResponse(410)
        webhook, _ = await scheduler.webhooks.create(HOOK, ["job.run.completed", "job.run.skipped"])
        first = await run_to_its_end(scheduler, "work", webhook={"url": OTHER})
        second = await run_to_its_end(scheduler, "skip")

        async def found(**wanted: Any) -> set[tuple[str | None, str]]:
            page = await scheduler.webhooks.deliveries_page(**wanted)
            return {(one.job_id, one.url) for one in page.items}

        one, two = first.job.job_id, second.job.job_id
        assert await found(job_id=one) == {(one, HOOK), (one, OTHER)}
        assert await found(job_id=one, webhook_id=webhook.webhook_id) == {(one, HOOK)}
        assert await found(job_id=one, status="FAILED") == {(one, OTHER)}
        assert await found(webhook_id=webhook.webhook_id) == {(one, HOOK), (two, HOOK)}
        assert await found(webhook_id=webhook.webhook_id, event="job.run.skipped") == {(two, HOOK)}
        assert await found(event="job.run.skipped") == {(two, HOOK)}
        assert await found(status="FAILED") == {(one, OTHER)}
        assert await found(status="DELIVERED") == {(one, HOOK), (two, HOOK)}
        assert await found(status="PENDING") == set()
