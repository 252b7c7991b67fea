"""Decisions about webhooks: who receives an event, what follows an attempt, how it is signed."""

import base64
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError

from nextslot.domain import (
    Attempt,
    DeliveryStatus,
    RunStatus,
    Webhook,
    webhook_delivery,
    webhook_signature,
)
from nextslot.domain.webhook_delivery import (
    Target,
    after,
    problems,
    retry_after,
    run_events,
    targets,
)
from nextslot.domain.webhook_signature import secret_of, signed
from nextslot.system.clock import SystemClock
from nextslot.system.instant import Instant

NOW = Instant(1_800_000_000_000_000)
URL = "http://example.com/"
OWN = {"url": URL}


def subscription(webhook_id: str, url: str = URL, *events: str) -> Webhook:
    return Webhook(webhook_id=webhook_id, url=url, events=events or webhook_delivery.RUN_EVENTS, created_at=NOW)


def attempt(status_code: int | None = None, **more: Any) -> Attempt:
    return Attempt(number=1, attempted_at=NOW, duration_seconds=0.1, status_code=status_code, **more)


# The receivers of an event.


@pytest.mark.parametrize(
    ("status", "is_cancelled", "is_last", "expected"),
    [
        (RunStatus.COMPLETED, False, True, ("job.run.completed", "chain.completed")),
        (RunStatus.SKIPPED, False, True, ("job.run.skipped", "chain.skipped")),
        (RunStatus.FAILED, False, True, ("job.run.failed", "chain.failed")),
        (RunStatus.FAILED, False, False, ("job.run.failed",)),
        (RunStatus.FAILED, True, True, ("job.run.failed", "job.cancelled")),
    ],
)
def test_the_end_of_a_run_has_these_names(
    status: RunStatus, is_cancelled: bool, is_last: bool, expected: tuple[str, ...]
) -> None:
    assert run_events(status, is_cancelled, is_last) == expected


def test_every_way_that_leads_to_a_url_signs_the_one_message_to_it() -> None:
    subscribed = [subscription("a"), subscription("b"), subscription("c", "http://other.example/")]

    found = targets("job.run.failed", OWN, {"url": URL}, subscribed)

    assert found == [Target(URL, ("server", "a", "b"), True), Target("http://other.example/", ("c",), False)]


@pytest.mark.parametrize(
    ("event", "own", "office", "expected"),
    [
        ("job.run.failed", OWN, None, [True]),
        ("job.failed_permanently", OWN, None, []),
        ("job.failed_permanently", None, OWN, [False]),
        ("job.cancelled", None, OWN, []),
        ("job.cancelled", {"url": URL, "events": ["job.cancelled"]}, None, [True]),
        ("job.run.failed", {"url": URL, "events": ["job.cancelled"]}, None, []),
        ("chain.failed", OWN, OWN, []),
        ("job.run.failed", {"url": URL, "format": "gone", "events": ["failed"]}, None, [True]),
        ("direct.failed", OWN, None, []),
    ],
)
def test_a_webhook_hears_what_it_names_and_else_its_default(
    event: str, own: Any, office: Any, expected: list[bool]
) -> None:
    assert [target.is_own for target in targets(event, own, office, ())] == expected


@pytest.mark.parametrize(
    ("webhook", "fields"),
    [
        ({"url": URL}, []),
        ({"url": URL, "events": None}, []),
        ({"url": URL, "events": ["job.cancelled"]}, []),
        ({"url": URL, "format": "legacy"}, []),
        ({"url": URL, "format": "legacy", "events": ["failed"]}, []),
        ({"url": URL, "format": "legacy", "events": ["job.cancelled"]}, ["w.events"]),
        ({"url": URL, "events": ["failed"]}, ["w.events"]),
        ({"url": URL, "format": "old"}, ["w.format"]),
        ({"url": URL, "event": ["failed"]}, ["w"]),
        ({"url": URL, "events": "job.cancelled"}, ["w.events"]),
        ({"url": URL, "events": [["job.cancelled"]]}, ["w.events"]),
        ({"url": URL, "events": []}, ["w.events"]),
        ({}, ["w.url"]),
        ({"url": 5, "events": 5, 5: 5}, ["w", "w.url", "w.events"]),
        ("http://example.com/", ["w"]),
    ],
)
def test_what_is_wrong_with_a_webhook_is_named(webhook: Any, fields: list[str]) -> None:
    assert [problem.field for problem in problems("w", webhook, formats={"legacy": ("succeeded", "failed")})] == fields


# What follows an attempt.


@pytest.mark.parametrize(("tries", "delay"), [(1, 5), (2, 15), (3, 45)])
def test_a_failed_attempt_is_followed_by_another_after_5_15_and_45_seconds(tries: int, delay: float) -> None:
    following = after(attempt(error="no answer"), tries, NOW)

    assert (following.status, following.at) == (DeliveryStatus.PENDING, NOW.after(delay))


def test_the_fourth_attempt_is_the_last() -> None:
    following = after(attempt(500), 4, NOW)

    assert (following.status, following.at, following.reason) == (DeliveryStatus.FAILED, None, "it answered 500")


@pytest.mark.parametrize(
    ("status_code", "status"),
    [(200, "DELIVERED"), (299, "DELIVERED"), (300, "PENDING"), (199, "PENDING"), (410, "FAILED"), (400, "PENDING")],
)
def test_2xx_is_success_and_410_is_final(status_code: int, status: str) -> None:
    assert after(attempt(status_code), 1, NOW).status == status


def test_an_endpoint_may_ask_for_more_time_than_the_delay_but_not_for_less() -> None:
    assert after(attempt(429, retry_after_seconds=60), 1, NOW).at == NOW.after(60)
    assert after(attempt(429, retry_after_seconds=1), 1, NOW).at == NOW.after(5)


@pytest.mark.parametrize(
    ("status_code", "header", "seconds"),
    [
        (429, "30", 30),
        (503, " 30 ", 30),
        (503, "0", 0),
        (429, "999999", 3600),
        (429, "Fri, 15 Jan 2027 08:02:00 GMT", 120),
        (429, "Fri, 15 Jan 2027 07:00:00 GMT", 0),
        (429, "Fri, 15 Jan 2100 07:00:00 GMT", 3600),
        (500, "30", None),
        (429, None, None),
        (429, "soon", None),
        (429, "-5", None),
        (429, "1e3", None),
        (429, "٣", None),
        (429, "Fri, 15 Jan 2027 08:02:00", None),
        (429, "Fri, 99 Jan 99999 08:02:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_bounded_and_only_for_429_and_503(
    status_code: int, header: str | None, seconds: float | None
) -> None:
    assert retry_after(status_code, header, NOW) == seconds


# Signatures.


def test_a_receiver_verifies_what_was_signed_with_any_of_the_secrets() -> None:
    now = SystemClock().now()
    secrets = [secret_of("one"), secret_of("two")]

    headers = signed("an-id", '{"é": 1}'.encode(), secrets, now)

    for secret in secrets:
        assert Verifier(secret).verify('{"é": 1}'.encode(), headers) == {"é": 1}
    with pytest.raises(WebhookVerificationError):
        Verifier(secret_of("three")).verify('{"é": 1}'.encode(), headers)


@pytest.mark.parametrize("header", ["webhook-id", "webhook-timestamp"])
def test_the_id_and_the_time_are_signed_too(header: str) -> None:
    now = SystemClock().now()
    headers = signed("1", b"{}", [secret_of("one")], now)

    with pytest.raises(WebhookVerificationError):
        Verifier(secret_of("one")).verify(b"{}", headers | {header: str(int(headers[header]) + 1)})


@pytest.mark.parametrize(
    ("secret", "is_fine"),
    [
        (secret_of("x"), True),
        (secret_of("x").removeprefix("whsec_"), True),
        ("whsec_", False),
        ("whsec_c2hvcnQ=", False),
        ("whsec_" + "A" * 200, False),
        ("whsec_not base64 at all, but long enough", False),
        ("whsec_" + "AAAA " * 10, False),
        ("ключ" * 20, False),
        (5, False),
    ],
)
def test_a_secret_is_24_to_64_bytes_in_base64(secret: object, is_fine: bool) -> None:
    assert (webhook_signature.secret_problem(secret) is None) == is_fine


@pytest.mark.parametrize(
    ("events", "is_fine"), [(["a"], True), (["b", "a"], True), (["a", "x"], False), (["a", 1], False)]
)
def test_one_event_that_there_is_not_is_one_too_many(events: list[Any], is_fine: bool) -> None:
    assert (list(webhook_delivery.event_problems("events", events, ("a", "b"))) == []) == is_fine


@pytest.mark.parametrize(("length", "is_fine"), [(23, False), (24, True), (64, True), (65, False)])
def test_a_secret_has_24_to_64_bytes(length: int, is_fine: bool) -> None:
    secret = "whsec_" + base64.b64encode(bytes(length)).decode()

    assert (webhook_signature.secret_problem(secret) is None) == is_fine
