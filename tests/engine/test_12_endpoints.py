"""Spec 12 on real sockets: endpoints that refuse, hang, dribble, cut, redirect, or are not who they say they are."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook as Verifier

from nextslot import Job, NewJob, Scheduler
from nextslot.domain import Delivery
from nextslot.engine.webhooks.delivery_worker import MOST_ROOM
from nextslot.engine.webhooks.webhook_outbox import WebhookSettings
from tests.engine.receivers import MovedClock, Receiver, answers, dribbles, says, unused_port
from tests.support import eventually, register_handlers

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.sqlite_only("what happens at a socket does not depend on the database"),
]

CERTIFICATE = Path(__file__).with_name("localhost.pem")
QUICK = WebhookSettings(timeout_seconds=0.4)


@asynccontextmanager
async def scheduler_on_sockets(
    directory: Path, settings: WebhookSettings = QUICK
) -> AsyncIterator[tuple[Scheduler, MovedClock]]:
    """Runs a scheduler in real time whose clock can be moved."""
    clock = MovedClock()
    scheduler = Scheduler(f"sqlite:///{directory}/nextslot.db", clock=clock, webhooks=settings, synchronous="NORMAL")
    register_handlers(scheduler)
    async with scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=0)
        yield scheduler, clock


async def tell(scheduler: Scheduler, url: str, count: int = 1) -> list[Job]:
    return await scheduler.submit_many([NewJob(job_type="skip", webhook={"url": url}) for _ in range(count)])


async def attempted(scheduler: Scheduler, attempts: int = 1) -> Delivery:
    """Waits until the only delivery has been tried this often, and returns it."""
    async with asyncio.timeout(20):
        while True:
            found = (await scheduler.webhooks.deliveries_page()).items
            if found and len(found[0].attempts) >= attempts:
                return found[0]
            await asyncio.sleep(0.01)


def first_attempt(directory: Path, respond: Any, tls: ssl.SSLContext | None = None, **other: Any) -> Delivery:
    """Returns the delivery after its first attempt at an endpoint with this behaviour."""
    found: list[Delivery] = []

    async def main() -> None:
        async with scheduler_on_sockets(directory) as (scheduler, _), Receiver(respond, tls) as receiver:
            await tell(scheduler, other.get("url", receiver.url).replace("PORT", str(receiver.port)))
            found.append(await attempted(scheduler))

    asyncio.run(main())
    return found[0]


async def test_a_message_arrives_as_its_receiver_can_verify_it(tmp_path: Path) -> None:
    async with scheduler_on_sockets(tmp_path) as (scheduler, _), Receiver(answers(body="thanks")) as receiver:
        await tell(scheduler, receiver.url + "?shop=7")
        delivery = await attempted(scheduler)

        (request,) = receiver.requests
        content = Verifier(scheduler.webhooks.secret()).verify(request.body, request.headers)
        assert content["event"] == "job.run.skipped"
        assert request.line == "POST /hook?shop=7 HTTP/1.1"
        assert request.headers["host"] == f"localhost:{receiver.port}"
        assert request.headers["content-type"] == "application/json"
        assert (delivery.status, delivery.attempts[0].answer) == ("DELIVERED", "thanks")


async def test_an_endpoint_that_refuses_connections(tmp_path: Path) -> None:
    async with scheduler_on_sockets(tmp_path) as (scheduler, _):
        async with unused_port() as port:
            await tell(scheduler, f"http://127.0.0.1:{port}/")
            delivery = await attempted(scheduler)

        assert delivery.status == "PENDING"
        assert (delivery.reason or "").startswith("could not connect: "), "and then the system's own words"
        assert len(delivery.reason or "") > len("could not connect: ")


async def test_a_name_that_does_not_exist(tmp_path: Path) -> None:
    async with scheduler_on_sockets(tmp_path, WebhookSettings()) as (scheduler, _):
        await tell(scheduler, "http://nowhere.invalid/")
        delivery = await attempted(scheduler)

        assert "'nowhere.invalid' cannot be resolved" in (delivery.reason or "")


@pytest.mark.parametrize(
    ("respond", "reason"),
    [
        (says(b"", close=False), "the endpoint did not respond within 0.4 seconds"),
        (dribbles(b"HTTP/1.1 200 OK\r\nx-slow: "), "the endpoint did not respond within 0.4 seconds"),
        (says(b""), "the connection was cut"),
        (says(b"HTTP/1.1 200 OK\r\ncontent-le"), "the connection was cut"),
        (says(b"220 mail.example ESMTP\r\n"), "the connection was cut, or the response was not HTTP"),
        (answers("500 Internal Server Error"), "it answered 500"),
        (answers("404 Not Found"), "it answered 404"),
        (answers("400 Bad Request"), "it answered 400"),
    ],
    ids=["hangs", "dribbles its head", "cuts", "cuts in its head", "is no web server", "fails", "is not there", "no"],
)
def test_an_endpoint_that_does_not_take_it(tmp_path: Path, respond: Any, reason: str) -> None:
    delivery = first_attempt(tmp_path, respond)

    assert delivery.status == "PENDING"
    assert (delivery.reason or "").startswith(reason)
    assert "redirect" not in (delivery.reason or "")
    assert delivery.next_attempt_at is not None
    waits = (delivery.next_attempt_at - delivery.attempts[0].attempted_at) / 1_000_000
    assert waits == pytest.approx(5 + delivery.attempts[0].duration_seconds)


@pytest.mark.parametrize(
    "respond",
    [
        dribbles(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n"),
        says(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhalf"),
        says(b"HTTP/1.1 204 No Content\r\n\r\n"),
        says(b"HTTP/1.0 200 OK\r\n\r\nold"),
        answers(body="\0" + "x" * 100_000),
    ],
    ids=["dribbles its body", "cuts its body", "has no body", "speaks HTTP/1.0", "answers at length"],
)
def test_an_endpoint_that_has_said_2xx_has_taken_it_whatever_its_body_does(tmp_path: Path, respond: Any) -> None:
    delivery = first_attempt(tmp_path, respond)

    assert delivery.status == "DELIVERED"
    assert len(delivery.attempts[0].answer or "") <= 1000


async def test_a_redirect_is_a_failure_that_says_so_and_is_not_followed(tmp_path: Path) -> None:
    async with (
        scheduler_on_sockets(tmp_path) as (scheduler, _),
        Receiver(answers()) as other,
        Receiver(answers("302 Found", location=other.url)) as receiver,
    ):
        await tell(scheduler, receiver.url)
        delivery = await attempted(scheduler)

        assert delivery.reason == f"the endpoint answered 302, and redirects are not followed (to {other.url})"
        assert other.connections == 0


@pytest.mark.parametrize("status", ["300 Multiple Choices", "399 Elsewhere"])
def test_every_answer_that_points_elsewhere_is_a_redirect(tmp_path: Path, status: str) -> None:
    delivery = first_attempt(tmp_path, answers(status))

    assert delivery.reason == f"the endpoint answered {status[:3]}, and redirects are not followed"


def test_a_connection_that_is_reset_is_told_in_the_systems_words(tmp_path: Path) -> None:
    async def reset(receiver: Receiver, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    delivery = first_attempt(tmp_path, reset)

    told, _, cause = (delivery.reason or "").rpartition(": ")
    assert (told, "reset" in cause) == ("the connection was cut, or the response was not HTTP", True)


def test_a_reason_is_told_in_five_hundred_characters(tmp_path: Path) -> None:
    delivery = first_attempt(tmp_path, says(b"loud" * 500 + b"\r\n\r\n"))

    assert "loudloud" in (delivery.reason or "")
    assert len(delivery.reason or "") == 500


def test_410_is_the_end(tmp_path: Path) -> None:
    delivery = first_attempt(tmp_path, answers("410 Gone"))

    assert (delivery.status, delivery.reason) == ("FAILED", "it answered 410")


async def test_429_is_tried_again_when_it_said_and_not_before(tmp_path: Path) -> None:
    async with (
        scheduler_on_sockets(tmp_path) as (scheduler, clock),
        Receiver(answers("429 Too Many Requests", retry_after="60")) as receiver,
    ):
        await tell(scheduler, receiver.url)
        delivery = await attempted(scheduler)
        assert delivery.next_attempt_at is not None
        wait = (delivery.next_attempt_at - delivery.attempts[0].attempted_at) / 1_000_000
        receiver._respond = answers()
        clock.move(61)
        delivery = await attempted(scheduler, 2)

        assert 60 <= wait < 65
        assert (delivery.status, len(receiver.requests)) == ("DELIVERED", 2)
        assert len({request.headers["webhook-id"] for request in receiver.requests}) == 1


async def test_four_attempts_at_a_dead_endpoint_and_then_it_has_failed(tmp_path: Path) -> None:
    async with scheduler_on_sockets(tmp_path) as (scheduler, clock), unused_port() as port:
        await tell(scheduler, f"http://localhost:{port}/")
        for number, wait in enumerate((5, 15, 45), start=1):
            delivery = await attempted(scheduler, number)
            assert delivery.status == "PENDING"
            clock.move(wait)
        delivery = await attempted(scheduler, 4)

        assert delivery.status == "FAILED"
        assert await scheduler.job(delivery.job_id or "") is not None


# TLS.


def tls_server() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    delivery = first_attempt(tmp_path, answers(), tls_server())

    assert (delivery.status, delivery.reason) == ("PENDING", "TLS failed: CERTIFICATE_VERIFY_FAILED")


def test_a_trusted_certificate_of_another_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))

    delivery = first_attempt(tmp_path, answers(), tls_server(), url="https://127.0.0.1:PORT/")

    assert (delivery.status, delivery.reason) == ("PENDING", "TLS failed: CERTIFICATE_VERIFY_FAILED")


def test_a_trusted_certificate_is_checked_against_the_name_although_an_address_is_connected_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))

    assert first_attempt(tmp_path, answers(), tls_server()).status == "DELIVERED"


def test_an_endpoint_that_does_not_speak_tls_is_refused(tmp_path: Path) -> None:
    delivery = first_attempt(tmp_path, says(b"HTTP/1.1 200 OK\r\n\r\n"), url="https://localhost:PORT/")

    assert delivery.status == "PENDING"
    assert delivery.attempts[0].status_code is None


# Addresses.


def resolves(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Lets names that end in `.test` resolve to these addresses, one answer after the other. Records the names."""
    asked: list[str] = []
    really = socket.getaddrinfo

    def look_up(host: Any, port: Any, *rest: Any, **more: Any) -> Any:
        if not str(host).endswith(".test"):
            return really(host, port, *rest, **more)
        found = answers[min(len(asked), len(answers) - 1)]
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return asked


def test_a_name_that_leads_to_a_forbidden_address_is_not_connected_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolves(monkeypatch, ["127.0.0.1", "169.254.169.254"])

    delivery = first_attempt(tmp_path, answers(), url="http://metadata.test:PORT/")

    assert "refused: 169.254.169.254" in (delivery.reason or "")


async def test_a_private_address_behind_a_name_is_refused_unless_it_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolves(monkeypatch, ["127.0.0.1"])

    async with (
        scheduler_on_sockets(tmp_path, WebhookSettings(allow_private=False)) as (scheduler, _),
        Receiver(answers()) as receiver,
    ):
        await tell(scheduler, f"http://inside.test:{receiver.port}/")
        delivery = await attempted(scheduler)

        assert "127.0.0.1 is loopback or private" in (delivery.reason or "")
        assert receiver.connections == 0


async def test_spec_12_12_the_first_key_ends_what_is_sent_to_private_addresses(tmp_path: Path) -> None:
    async with (
        scheduler_on_sockets(tmp_path, WebhookSettings(is_private_until_keyed=True)) as (scheduler, _),
        Receiver(answers()) as receiver,
    ):
        webhook, _ = await scheduler.webhooks.create(receiver.url)
        await scheduler.keys.create("admin", ["admin"])
        await scheduler.webhooks.test(webhook.webhook_id)
        delivery = await attempted(scheduler)

        assert "is loopback or private" in (delivery.reason or "")
        assert receiver.connections == 0


async def test_a_name_is_resolved_once_for_a_connection_and_what_was_checked_is_connected_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = resolves(monkeypatch, ["127.0.0.1"], ["169.254.169.254"])

    async with scheduler_on_sockets(tmp_path) as (scheduler, _), Receiver(answers()) as receiver:
        await tell(scheduler, f"http://rebinds.test:{receiver.port}/")
        delivery = await attempted(scheduler)

        assert (delivery.status, asked) == ("DELIVERED", ["rebinds.test"])
        assert receiver.requests[0].headers["host"] == f"rebinds.test:{receiver.port}"


def test_of_several_addresses_the_first_that_answers_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolves(monkeypatch, ["127.0.0.2", "127.0.0.1"])

    assert first_attempt(tmp_path, answers(), url="http://two.test:PORT/").status == "DELIVERED"


# Many.


async def test_while_there_is_much_to_send_connections_are_used_again_and_then_let_go(tmp_path: Path) -> None:
    async with scheduler_on_sockets(tmp_path, WebhookSettings(timeout_seconds=30)) as (scheduler, _):
        is_much = asyncio.Event()

        async def answers_then(receiver: Receiver, writer: asyncio.StreamWriter) -> None:
            await is_much.wait()
            await answers()(receiver, writer)

        async with Receiver(answers_then) as receiver:
            for job in await tell(scheduler, receiver.url, count=200):
                await scheduler.wait(job.job_id)
            is_much.set()
            await eventually(lambda: len(receiver.requests) == 200, seconds=60)

            assert receiver.connections <= MOST_ROOM
            await eventually(lambda: receiver.open == 0)


async def test_a_thousand_deliveries_with_one_dead_endpoint_among_ten_do_not_wait_for_it(tmp_path: Path) -> None:
    async with (
        scheduler_on_sockets(tmp_path, WebhookSettings(timeout_seconds=300)) as (scheduler, _),
        Receiver(says(b"", close=False)) as dead,
    ):
        receivers = [await Receiver(answers()).__aenter__() for _ in range(9)]
        urls = [dead.url, *(one.url for one in receivers)]
        wanted = [NewJob(job_type="skip", webhook={"url": urls[n % 10]}) for n in range(1000)]
        await scheduler.submit_many(wanted)
        await eventually(lambda: sum(len(one.requests) for one in receivers) == 900, seconds=60)

        # The dead one was first in line, and not one attempt at it has ended yet.
        assert 0 < dead.connections <= 2
        failed = (await scheduler.webhooks.deliveries_page(status="FAILED")).items
        tried = [one for one in (await scheduler.webhooks.deliveries_page(status="PENDING")).items if one.attempts]
        assert (failed, [one for one in tried if one.url == dead.url]) == ((), [])
        for receiver in receivers:
            ids = [request.headers["webhook-id"] for request in receiver.requests]
            assert len(set(ids)) == len(ids) == 100
            await receiver.__aexit__()
