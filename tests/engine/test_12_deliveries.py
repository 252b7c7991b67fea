"""Spec 12: deliveries: at least once, at their times, in nobody's way; stored, kept and sent again."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nextslot import (
    NewJob,
    Scheduler,
    errors,
    testing,
)
from nextslot.domain import Delivery
from nextslot.engine.webhooks.delivery_worker import EndpointResponse
from nextslot.engine.webhooks.webhook_outbox import WebhookSettings
from nextslot.testing import Mailbox
from tests.support import new_scheduler, running_scheduler

HOOK = "http://example.com/hook"
REFUSED = EndpointResponse(error="could not connect: refused", is_unreachable=True)


class Timed(Mailbox):
    """Also knows when each message came, and how long each URL takes to answer."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []
        self.seconds: dict[str, float] = {}
        self.most_at_once: dict[str, int] = {}
        self._at_once: dict[str, int] = {}

    async def send(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> EndpointResponse:
        self.times.append(asyncio.get_running_loop().time())
        now = self._at_once[url] = self._at_once.get(url, 0) + 1
        self.most_at_once[url] = max(now, self.most_at_once.get(url, 0))
        answer = await super().send(url, headers, body, seconds)
        await asyncio.sleep(min(self.seconds.get(url, 0), seconds))
        self._at_once[url] -= 1
        return EndpointResponse(error="no answer") if self.seconds.get(url, 0) > seconds else answer


@pytest.fixture
def box() -> Timed:
    return Timed()


async def delivered(scheduler: Scheduler, **wanted: Any) -> list[Delivery]:
    return list((await scheduler.webhooks.deliveries_page(limit=500, **wanted)).items)


async def tell(scheduler: Scheduler, box: Timed, url: str = HOOK, count: int = 1) -> None:
    """Ends this many runs at once, each with a webhook of its own. Times count from then on."""
    await scheduler.offices.change("default", max_concurrent_jobs=0)
    await scheduler.submit_many([NewJob(job_type="skip", webhook={"url": url}) for _ in range(count)])
    await testing.settled()
    began = asyncio.get_running_loop().time()
    box.times[:] = [at - began for at in box.times]


# Attempts.


async def test_DEC_009_a_delivery_is_tried_at_once_and_after_5_15_and_45_seconds_and_then_has_failed(
    tmp_path: Path, box: Timed
) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        box.answers[HOOK] = EndpointResponse(500, text="out of order")
        await tell(scheduler, box)
        base = asyncio.get_running_loop().time()
        await asyncio.sleep(3600)

        assert [round(at - base) if at > 1 else 0 for at in box.times] == [0, 5, 20, 65]
        (delivery,) = await delivered(scheduler)
        assert (delivery.status, delivery.reason, delivery.next_attempt_at) == ("FAILED", "it answered 500", None)
        assert [(one.number, one.status_code, one.answer) for one in delivery.attempts] == [
            (number, 500, "out of order") for number in (1, 2, 3, 4)
        ]
        assert len({message.headers["webhook-id"] for message in box.messages}) == 1
        assert len({message.body for message in box.messages}) == 1


@pytest.mark.parametrize("status_code", [200, 201, 202, 204, 299])
async def test_any_2xx_is_success(tmp_path: Path, box: Timed, status_code: int) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        box.answers[HOOK] = EndpointResponse(status_code)
        await tell(scheduler, box)
        await asyncio.sleep(3600)

        (delivery,) = await delivered(scheduler)
        assert (delivery.status, len(box.messages)) == ("DELIVERED", 1)


async def test_each_attempt_is_signed_with_its_own_time(tmp_path: Path, box: Timed) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        box.answers[HOOK] = REFUSED
        await tell(scheduler, box)
        await asyncio.sleep(100)

        stamps = [int(message.headers["webhook-timestamp"]) for message in box.messages]
        assert [stamp - stamps[0] for stamp in stamps] == [0, 5, 20, 65]
        assert len({message.headers["webhook-signature"] for message in box.messages}) == 4


@pytest.mark.parametrize("status_code", [429, 503])
async def test_an_endpoint_that_asks_for_time_gets_it(tmp_path: Path, box: Timed, status_code: int) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        box.answers[HOOK] = EndpointResponse(status_code, retry_after="120")
        await tell(scheduler, box)
        (delivery,) = await delivered(scheduler)
        box.answers.clear()
        await asyncio.sleep(119)
        before = len(box.messages)
        await asyncio.sleep(2)

        assert delivery.attempts[0].retry_after_seconds == 120
        assert delivery.next_attempt_at == delivery.attempts[0].attempted_at.after(120)
        assert (before, len(box.messages)) == (1, 2)


async def test_410_ends_a_delivery_at_once_and_disables_its_subscription(tmp_path: Path, box: Timed) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        webhook, _ = await scheduler.webhooks.create(HOOK, ["job.run.skipped"])
        box.answers[HOOK] = EndpointResponse(500)
        await scheduler.wait((await scheduler.submit("skip")).job_id)
        await testing.settled()
        box.answers[HOOK] = EndpointResponse(410)
        await scheduler.wait((await scheduler.submit("skip")).job_id)
        await testing.settled()
        await scheduler.wait((await scheduler.submit("skip")).job_id)
        await asyncio.sleep(3600)

        now = await scheduler.webhooks.get(webhook.webhook_id)
        assert not now.enabled
        assert "410" in (now.disabled_reason or "")
        # Neither the one that waited for its retry nor any that came later was sent.
        assert [one.status for one in await delivered(scheduler)] == ["FAILED", "FAILED"]
        assert len(box.messages) == 2


async def test_410_of_a_job_s_own_webhook_is_not_tried_again(tmp_path: Path, box: Timed) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        box.answers[HOOK] = EndpointResponse(410)
        await tell(scheduler, box)
        await asyncio.sleep(3600)

        assert [(one.status, len(one.attempts)) for one in await delivered(scheduler)] == [("FAILED", 1)]


async def test_an_attempt_that_breaks_in_an_unforeseen_way_has_failed_and_no_more(tmp_path: Path) -> None:
    class Broken(Mailbox):
        async def send(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> EndpointResponse:
            if not self.messages:
                await super().send(url, headers, body, seconds)
                raise RuntimeError("a defect")
            return await super().send(url, headers, body, seconds)

    async with running_scheduler(tmp_path, sender=Broken()) as scheduler:
        await scheduler.wait((await scheduler.submit("skip", webhook={"url": HOOK})).job_id)
        await asyncio.sleep(10)

        (delivery,) = await delivered(scheduler)
        assert [one.error for one in delivery.attempts] == ["the attempt failed unexpectedly: RuntimeError", None]
        assert delivery.status == "DELIVERED"


# The job's own view.


async def test_webhook_status_follows_the_job_s_own_deliveries_only(tmp_path: Path, box: Timed) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        await scheduler.webhooks.create("http://example.com/subscribed")
        box.answers[HOOK] = EndpointResponse(500)
        job = await scheduler.submit("work", webhook={"url": HOOK})
        without = await scheduler.submit("work")

        async def status() -> str:
            await testing.settled()
            return (await scheduler.job(job.job_id)).webhook_status

        seen = [await status()]
        await scheduler.wait(job.job_id)
        seen.append(await status())
        await asyncio.sleep(100)
        seen.append(await status())
        (delivery,) = await delivered(scheduler, job_id=job.job_id, status="FAILED")
        await scheduler.webhooks.redeliver(delivery.delivery_id)
        seen.append((await scheduler.job(job.job_id)).webhook_status)
        box.answers.clear()
        await asyncio.sleep(10)
        seen.append(await status())

        assert seen == ["none", "pending", "failed", "pending", "delivered"]
        assert (await scheduler.job(without.job_id)).webhook_status == "none"


async def test_webhook_status_of_a_retry_is_its_own(tmp_path: Path, box: Timed) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        box.answers[HOOK] = EndpointResponse(500)
        job = await scheduler.submit("fail", webhook={"url": HOOK})
        await asyncio.sleep(5)

        failed, retry = await scheduler.chain(job.job_id)

        assert (failed.webhook_status, retry.webhook_status) == ("pending", "none")


async def test_webhook_status_is_failed_if_one_of_several_has_failed(tmp_path: Path, box: Timed) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        webhook = {"url": HOOK, "events": ["job.run.failed", "job.failed_permanently"]}
        box.answers[HOOK] = EndpointResponse(410)
        job = await scheduler.submit("fail", webhook=webhook, retry_policy={"max_attempts": 0})
        await scheduler.wait(job.job_id)
        await testing.settled()
        box.answers.clear()
        one, two = await delivered(scheduler)
        await scheduler.webhooks.redeliver(one.delivery_id)
        await testing.settled()
        between = (await scheduler.job(job.job_id)).webhook_status
        await scheduler.webhooks.redeliver(two.delivery_id)
        await testing.settled()

        assert (between, (await scheduler.job(job.job_id)).webhook_status) == ("failed", "delivered")


# Sent again by hand.


async def test_what_has_ended_can_be_sent_again_under_the_same_id_with_a_new_round_of_attempts(
    tmp_path: Path, box: Timed
) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        box.answers[HOOK] = REFUSED
        await tell(scheduler, box)
        await asyncio.sleep(100)
        (failed,) = await delivered(scheduler)
        again = await scheduler.webhooks.redeliver(failed.delivery_id)
        await asyncio.sleep(100)
        (twice,) = await delivered(scheduler)
        box.answers.clear()
        await scheduler.webhooks.redeliver(failed.delivery_id)
        await testing.settled()

        assert (again.status, again.tries, again.reason) == ("PENDING", 0, None)
        assert (twice.status, [one.number for one in twice.attempts]) == ("FAILED", list(range(1, 9)))
        assert (await scheduler.webhooks.delivery(failed.delivery_id)).status == "DELIVERED"
        assert {message.headers["webhook-id"] for message in box.messages} == {failed.delivery_id}


async def test_what_is_still_being_delivered_cannot_be_sent_again(tmp_path: Path, box: Timed) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        box.answers[HOOK] = REFUSED
        await tell(scheduler, box)
        (delivery,) = await delivered(scheduler)

        with pytest.raises(errors.Conflict, match="wait for its next attempt at"):
            await scheduler.webhooks.redeliver(delivery.delivery_id)


async def test_what_a_deleted_subscription_signed_cannot_be_sent_again(tmp_path: Path, box: Timed) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        webhook, _ = await scheduler.webhooks.create(HOOK)
        delivery = await scheduler.webhooks.test(webhook.webhook_id)
        await testing.settled()
        await scheduler.webhooks.delete(webhook.webhook_id)

        with pytest.raises(errors.Conflict, match="cannot be signed"):
            await scheduler.webhooks.redeliver(delivery.delivery_id)


# Restarts.


async def test_what_waits_for_its_retry_survives_a_restart_and_keeps_its_time(tmp_path: Path, box: Timed) -> None:
    box.answers[HOOK] = REFUSED
    clock = testing.VirtualClock()
    async with new_scheduler(tmp_path, sender=box, clock=clock) as first:
        await tell(first, box)
        await asyncio.sleep(10)
        (before,) = await delivered(first)
    async with new_scheduler(tmp_path, seed=1, sender=box, clock=clock) as second:
        await testing.settled()
        sent = len(box.messages)
        box.answers.clear()
        await asyncio.sleep(15)

        (after,) = await delivered(second)
        assert (sent, after.status, len(after.attempts)) == (2, "DELIVERED", 3)
        assert after.attempts[2].attempted_at == before.next_attempt_at


async def test_a_crash_before_the_first_attempt_or_during_one_loses_nothing(tmp_path: Path, box: Timed) -> None:
    box.seconds[HOOK] = 5
    first = new_scheduler(tmp_path, sender=box)
    await first.start()
    await tell(first, box, count=6)
    await testing.crash(first)
    begun = {message.headers["webhook-id"] for message in box.messages}
    box.seconds.clear()

    async with new_scheduler(tmp_path, seed=1, sender=box) as second:
        await testing.settled()
        found = await delivered(second)

    assert 0 < len(begun) < 6
    assert [one.status for one in found] == ["DELIVERED"] * 6
    # Those that had begun came twice, under the same id.
    ids = [message.headers["webhook-id"] for message in box.messages]
    assert {one for one in ids if ids.count(one) == 2} == begun
    assert set(ids) == {one.delivery_id for one in found}


@pytest.mark.one_thread("virtual time goes on while a thread works")
async def test_a_shutdown_gives_attempts_a_short_while_and_leaves_the_rest_for_the_next_start(
    tmp_path: Path, box: Timed
) -> None:
    slow, slower = "http://slow.example/", "http://slower.example/"
    box.seconds.update({slow: 3, slower: 8})
    async with new_scheduler(tmp_path, sender=box) as first:
        await tell(first, box, slow)
        await tell(first, box, slower)
        await tell(first, box, slow, count=5)
    sent = len(box.messages)
    box.seconds.clear()
    async with new_scheduler(tmp_path, seed=1, sender=box) as second:
        statuses = {one.url: one.status for one in await delivered(second, status="DELIVERED")}
        waiting = len(await delivered(second, status="PENDING"))
        await testing.settled()

        assert statuses == {slow: "DELIVERED"}
        assert waiting + 2 == 7
        assert sent == 3
        assert {one.status for one in await delivered(second)} == {"DELIVERED"}


# In nobody's way.


async def test_an_endpoint_that_hangs_holds_up_neither_jobs_nor_other_endpoints(tmp_path: Path, box: Timed) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        dead = "http://dead.example/"
        box.seconds[dead] = 1000
        await tell(scheduler, box, dead, count=50)
        await tell(scheduler, box, HOOK, count=50)
        await testing.settled()

        assert len(await delivered(scheduler, status="DELIVERED")) == 50
        assert box.most_at_once[dead] <= 2
        assert await scheduler.running() == []


async def test_an_endpoint_that_answers_gets_more_at_once_up_to_a_bound(tmp_path: Path, box: Timed) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        box.seconds[HOOK] = 1
        await tell(scheduler, box, count=200)
        await asyncio.sleep(60)

        assert len(await delivered(scheduler, status="DELIVERED")) == 200
        assert box.most_at_once[HOOK] == 16


async def test_all_endpoints_together_have_a_bound_too(tmp_path: Path, box: Timed) -> None:
    async with running_scheduler(tmp_path, sender=box, webhooks=WebhookSettings(concurrency=3)) as scheduler:
        urls = [f"http://{name}.example/" for name in "abcdef"]
        box.seconds.update(dict.fromkeys(urls, 1))
        for url in urls:
            await tell(scheduler, box, url, count=4)
        busy = len(box.messages)
        await asyncio.sleep(60)

        assert busy == 2, "one office leaves a place to others"
        assert len(await delivered(scheduler, status="DELIVERED")) == 24


async def test_a_dead_endpoint_is_asked_once_for_everything_that_is_due_there(tmp_path: Path, box: Timed) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        box.answers[HOOK] = REFUSED
        await tell(scheduler, box, count=300)
        await asyncio.sleep(120)

        found = await delivered(scheduler, status="FAILED")
        assert len(found) == 300
        assert {len(one.attempts) for one in found} == {4}
        assert len(box.messages) < 30
        assert any("another delivery to this endpoint failed" in (one.attempts[1].error or "") for one in found)


async def test_a_dead_endpoint_that_comes_back_gets_everything_that_has_not_failed(tmp_path: Path, box: Timed) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        box.answers[HOOK] = REFUSED
        await tell(scheduler, box, count=300)
        await asyncio.sleep(30)
        box.answers.clear()
        await asyncio.sleep(60)

        assert len(await delivered(scheduler, status="DELIVERED")) == 300
        assert {len(one.attempts) for one in await delivered(scheduler)} == {4}


async def test_one_url_that_hangs_does_not_speak_for_another_of_the_same_server(tmp_path: Path, box: Timed) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        hangs, works = "http://example.com/hangs", "http://example.com/works"
        box.seconds[hangs] = 1000
        await tell(scheduler, box, hangs, count=20)
        # By then it counts as dead. The next attempt is for the URL that hangs, and the others are due as well.
        await asyncio.sleep(44)
        await tell(scheduler, box, hangs)
        await asyncio.sleep(1)
        await tell(scheduler, box, works, count=5)
        await asyncio.sleep(3600)

        by_url = {url: [one for one in await delivered(scheduler) if one.url == url] for url in (hangs, works)}
        assert {one.status for one in by_url[hangs]} == {"FAILED"}
        assert [(one.status, len(one.attempts)) for one in by_url[works]] == [("DELIVERED", 1)] * 5


async def test_an_endpoint_that_stops_answering_loses_its_room(tmp_path: Path, box: Timed) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        await tell(scheduler, box, count=50)
        box.seconds[HOOK] = 1000
        await tell(scheduler, box, count=50)
        at_first = box.most_at_once[HOOK]
        await asyncio.sleep(11)
        box.most_at_once.clear()
        await asyncio.sleep(60)

        assert at_first > 2
        assert box.most_at_once[HOOK] == 1


async def test_what_was_sent_while_the_store_was_being_read_is_not_sent_again(tmp_path: Path, box: Timed) -> None:
    class SlowReads:
        """What it has read is a second old when it arrives."""

        def __init__(self, store: Any) -> None:
            self.write = store.write
            self._store = store

        async def read(self, work: Any, *, is_small: bool = False) -> Any:
            found = await self._store.read(work, is_small=is_small)
            await asyncio.sleep(1)
            return found

    async with running_scheduler(tmp_path, sender=box) as scheduler:
        deliveries = scheduler._runtime.deliveries
        deliveries._store = SlowReads(deliveries._store)  # type: ignore[assignment]
        box.seconds[HOOK] = 0.5
        await tell(scheduler, box, count=100)
        await asyncio.sleep(60)

        ids = [message.headers["webhook-id"] for message in box.messages]
        assert len(ids) == len(set(ids)) == 100


async def test_an_idle_scheduler_with_subscriptions_does_nothing(tmp_path: Path, box: Timed) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        await scheduler.webhooks.create(HOOK)
        await scheduler.wait((await scheduler.submit("work")).job_id)
        await testing.settled()
        loop = asyncio.get_running_loop()
        timers = len(loop._scheduled)  # type: ignore[attr-defined]
        await asyncio.sleep(24 * 3600)

        assert len(box.messages) == 1
        assert len(loop._scheduled) <= timers  # type: ignore[attr-defined]
        assert scheduler._runtime.deliveries._endpoints == {}


async def test_silent_endpoints_of_one_office_leave_places_for_the_deliveries_of_another(
    tmp_path: Path, box: Timed
) -> None:
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        for office_id in ("a", "b"):
            await scheduler.offices.create(office_id, max_concurrent_jobs=0)
        silent = [f"http://silent-{number}.example.com/" for number in range(80)]
        box.seconds |= dict.fromkeys(silent, 100.0)
        await scheduler.submit_many([NewJob(job_type="skip", office_id="a", webhook={"url": url}) for url in silent])
        await testing.settled()
        before = len(box.messages)

        await scheduler.submit("skip", office_id="b", webhook={"url": HOOK})
        await testing.settled()

        assert 0 < before < WebhookSettings().concurrency
        assert [message.url for message in box.messages[before:]] == [HOOK]
