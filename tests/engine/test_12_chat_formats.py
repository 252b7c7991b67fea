"""Notices for people: receivers check the form that Slack, Discord and ntfy take, and refuse everything else."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest

from nextslot import NewJob
from nextslot.domain.filters import JobFilter
from nextslot.domain.signals import Link, link_token
from nextslot.domain.webhook_delivery import targets
from nextslot.engine.webhooks.chat_formats import chat_message
from nextslot.errors import Invalid
from nextslot.system.instant import Instant
from nextslot.testing import Mailbox, settled
from tests.support import running_scheduler

URLS = {
    "slack": "http://127.0.0.1/services/T0/B0/secret",
    "discord": "http://127.0.0.1/api/webhooks/1/secret",
    "ntfy": "http://127.0.0.1/my-topic",
}
NASTY = "<!channel> *bold* @everyone & <b>"


def check_slack(url: str, body: dict[str, Any]) -> str:
    """Checks the rules of https://api.slack.com/messaging/webhooks: `text` is required, and no unknown field is
    sent.
    """
    assert url == URLS["slack"]
    assert body.keys() <= {"text", "blocks", "unfurl_links"}
    text: str = body["text"]
    assert 0 < len(text) <= 40_000
    assert "<" not in text
    assert ">" not in text
    return text


def check_discord(url: str, body: dict[str, Any]) -> str:
    assert url == URLS["discord"]
    assert body.keys() == {"content", "allowed_mentions"}
    assert body["allowed_mentions"] == {"parse": []}
    assert 0 < len(body["content"]) <= 2000
    return str(body["content"])


def check_ntfy(url: str, body: dict[str, Any]) -> str:
    """Checks the rules of https://docs.ntfy.sh/publish/#publish-as-json: sent to the root, with the topic in the
    body.
    """
    assert urlsplit(url).path == "/"
    assert body["topic"] == "my-topic"
    assert body["priority"] in range(1, 6)
    assert len(body["message"].encode()) <= 4096
    return f"{body['title']}\n{body['message']}"


CHECKS = {"slack": check_slack, "discord": check_discord, "ntfy": check_ntfy}


def read(box: Mailbox, chat: str) -> list[str]:
    return [CHECKS[chat](message.url, json.loads(message.body)) for message in box.messages]


@pytest.mark.parametrize("chat", CHECKS)
async def test_a_jobs_own_webhook_tells_a_chat_what_became_of_it(tmp_path: Path, chat: str) -> None:
    box = Mailbox()
    webhook = {"url": URLS[chat], "format": chat}
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        policy = {"max_attempts": 0}
        for job_type in ("work", "fail"):
            job = await scheduler.submit(job_type, title=f"{NASTY} {job_type}", webhook=webhook, retry_policy=policy)
            ended = await scheduler.wait(job.job_id)
            await settled()
            assert (await scheduler.job(ended.job.job_id)).webhook_status == "delivered"

        done, failed = read(box, chat)
        assert "work completed" in done
        assert "fail failed" in failed
        assert "failed as asked" in failed


@pytest.mark.parametrize("chat", CHECKS)
async def test_an_offices_webhook_tells_a_chat_of_its_jobs_and_groups(tmp_path: Path, chat: str) -> None:
    box = Mailbox()
    async with running_scheduler(tmp_path, sender=box, extensions=["offices"]) as scheduler:
        events = ["job.run.completed", "group.finished"]
        await scheduler.offices.create("o", webhook={"url": URLS[chat], "format": chat, "events": events})
        _, members = await scheduler.submit_group([NewJob(job_type="work", office_id="o")], name="night")
        await scheduler.wait(members[0].job_id)
        await settled()

        first, second = read(box, chat)
        assert "work completed" in first
        assert "group night: completed" in second


@pytest.mark.parametrize("chat", CHECKS)
async def test_a_subscription_may_tell_a_chat_too(tmp_path: Path, chat: str) -> None:
    box = Mailbox()
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        made, _ = await scheduler.webhooks.create(URLS[chat], format=chat)
        await scheduler.webhooks.test(made.webhook_id)
        job = await scheduler.submit("work", title="the job")
        await scheduler.wait(job.job_id)
        await settled()

        tested, done = read(box, chat)
        assert "webhook.test" in tested
        assert "the job completed" in done
        assert {one.webhook_id for one in (await scheduler.webhooks.deliveries_page()).items} == {made.webhook_id}


async def test_the_format_of_a_subscription_is_checked_and_can_be_changed(tmp_path: Path) -> None:
    box = Mailbox()
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        made, _ = await scheduler.webhooks.create(URLS["slack"], format="slack")
        with pytest.raises(Invalid, match="it must be one of slack, discord, ntfy"):
            await scheduler.webhooks.create(URLS["slack"], format="teams")
        with pytest.raises(Invalid, match="has no topic"):
            await scheduler.webhooks.create("http://127.0.0.1/", format="ntfy")
        with pytest.raises(Invalid, match="give the whole URL"):
            await scheduler.webhooks.change(made.webhook_id, url=made.to_dict()["url"])

        plain = await scheduler.webhooks.change(made.webhook_id, format=None)
        job = await scheduler.submit("work")
        await scheduler.wait(job.job_id)
        await settled()

        assert plain.to_dict()["url"] == URLS["slack"]
        assert [json.loads(message.body)["event"] for message in box.messages] == ["job.run.completed"]


def test_a_url_of_a_chat_shares_no_message_with_other_forms() -> None:
    own, office = {"url": "http://a/x", "format": "slack"}, {"url": "http://a/x"}

    found = targets("job.run.failed", own, office, ())

    assert {(one.url, one.chat) for one in found} == {("http://a/x", "slack"), ("http://a/x", None)}


async def test_an_unknown_format_and_a_topic_that_is_missing_are_refused(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(Invalid, match="it must be one of slack, discord, ntfy"):
            await scheduler.submit("work", webhook={"url": URLS["slack"], "format": "teams"})
        with pytest.raises(Invalid, match="has no topic"):
            await scheduler.submit("work", webhook={"url": "http://127.0.0.1/", "format": "ntfy"})


@pytest.mark.parametrize("chat", ["slack", "discord"])
async def test_no_answer_shows_the_part_of_a_chats_url_that_lets_others_write_there(tmp_path: Path, chat: str) -> None:
    webhook = {"url": URLS[chat] + "?wait=secret", "format": chat}
    async with running_scheduler(tmp_path, sender=Mailbox()) as scheduler:
        office = await scheduler.offices.create("o", webhook=webhook)
        subscribed, _ = await scheduler.webhooks.create(URLS[chat] + "?wait=secret", office_id="o", format=chat)
        fields: Any = {"name": "one", "job_type": "work", "webhook": webhook, "office_id": "o"}
        one = await scheduler.templates.create(**fields)
        jobs: Any = [{"job_type": "work", "webhook": webhook}]
        several = await scheduler.templates.create(name="several", jobs=jobs, office_id="o")
        job = await scheduler.submit("work", webhook=webhook, office_id="o")
        await scheduler.wait(job.job_id)
        await settled()
        listed = await scheduler.lists.jobs_shown(JobFilter())
        deliveries = (await scheduler.webhooks.deliveries_page()).items

        shown = [one.to_dict() for one in (office, subscribed, one, several, job, *deliveries)]
        assert len(deliveries) == 3
        assert "secret" not in orjson.dumps([shown, listed.items]).decode().replace("old_secret_until", "")
        assert job.to_dict()["webhook"]["url"] == URLS[chat].replace("secret", "…")
        with pytest.raises(Invalid, match="give the whole URL"):
            await scheduler.submit("work", webhook=job.to_dict()["webhook"])


def test_a_long_error_is_cut_to_what_chats_take() -> None:
    job = {"job_id": "j", "office_id": "o", "job_type": "work", "title": "t" * 5000}
    content = {"job": job, "run": {"error": "é" * 9000}}

    for chat, check in CHECKS.items():
        message = chat_message(chat, URLS[chat], "job.run.failed", content)
        assert "…" in check(message.url, dict(message.body))


@pytest.mark.parametrize("chat", CHECKS)
def test_a_long_question_and_a_long_title_leave_the_link_and_the_job_in_a_notice(chat: str) -> None:
    job: dict[str, Any] = {"job_id": "01a1-job", "office_id": "o", "job_type": "work", "title": "t" * 5000}
    job["awaiting"] = {"name": "n" * 200, "question": "é" * 1000}
    link = link_token("secret", Link("0" * 36, "ü" * 200, Instant(2_000_000_000_000_000)))
    content = {"job": job, "link": f"https://people.example/signal/{link}"}

    linked = chat_message(chat, URLS[chat], "job.awaiting_signal", content)
    plain = chat_message(chat, URLS[chat], "job.awaiting_signal", {"job": job})

    assert f"https://people.example/signal/{link}\njob 01a1-job in o" in CHECKS[chat](linked.url, dict(linked.body))
    assert "…\nnextslot approve 01a1-job\njob 01a1-job in o" in CHECKS[chat](plain.url, dict(plain.body))


@pytest.mark.parametrize("chat", CHECKS)
def test_a_long_error_leaves_the_job_in_a_notice(chat: str) -> None:
    job = {"job_id": "01a1-job", "office_id": "o", "job_type": "work", "title": "t" * 5000}
    content = {"job": job, "run": {"error": "🚫" * 9000}}

    message = chat_message(chat, URLS[chat], "job.run.failed", content)

    assert "…\njob 01a1-job in o" in CHECKS[chat](message.url, dict(message.body))
