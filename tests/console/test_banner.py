"""The banner says what holds work back; each kind has the button that ends it, and the button does so."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from nextslot.executors.run_context import Fail, RunContext
from tests.server.support import ServerThread

from .support import Console


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("banner")) as running:
        yield running


def notice(console: Console, text: str) -> Locator:
    found = console.find(".notices li", has_text=text)
    expect(found).to_have_count(1)
    return found


def ends(console: Console, text: str, button: str) -> None:
    """Presses the button of a notice, and waits until the notice has gone."""
    notice(console, text).get_by_role("button", name=button).click()
    expect(console.find(".notices li", has_text=text)).to_have_count(0)


def test_a_held_resource_is_named_with_the_time_and_released(console: Console, server: ServerThread) -> None:
    scheduler = server.server.scheduler
    is_up = threading.Event()

    async def ask(run: RunContext) -> Any:
        if not is_up.is_set():
            raise Fail("nobody answers", "unavailable")

    async def work() -> Any:
        scheduler.job_types.add("ask", ask, resources={"oracle": 1}, retry_policy={"max_attempts": 0})
        for _ in range(5):
            await scheduler.wait((await scheduler.submit("ask")).job_id)
        # Several: one of them may be the next attempt while the page opens.
        return [await scheduler.submit("ask") for _ in range(5)]

    *_, last = server.run(work())
    console.open("schedules")
    expect(notice(console, "oracle")).to_contain_text("held for")

    (held,) = server.run(scheduler.lists.status()).held
    is_up.set()
    ends(console, "oracle", "Release")
    server.run(scheduler.wait(last.job_id))

    # At once, not after the attempt at the end of the pause.
    started = server.run(scheduler.job(last.job_id)).started_at
    assert started is not None
    assert held.next_probe_at is not None
    assert started < held.next_probe_at


def test_a_node_that_is_drained_is_named_and_works_again(console: Console, server: ServerThread) -> None:
    scheduler = server.server.scheduler
    (node,) = server.run(scheduler.nodes.list())
    server.run(scheduler.nodes.drain(node.node_id))
    waiting = server.run(scheduler.submit("echo", title="waits"))
    console.open("groups")

    ends(console, f"node {node.node_id} takes no more work", "Let it work")

    server.run(scheduler.wait(waiting.job_id))
    assert server.run(scheduler.nodes.list())[0].status == "live"


def test_a_quota_that_is_used_up_is_named_and_an_admin_grants_more(console: Console, server: ServerThread) -> None:
    scheduler = server.server.scheduler
    server.run(scheduler.offices.create("studio"))
    server.run(scheduler.pause(office_id="studio"))
    server.run(scheduler.offices.grant("studio", queued_jobs=2))
    for title in ("one", "two"):
        server.run(scheduler.submit("echo", title=title, office_id="studio"))
    console.open("webhooks")

    notice(console, "quota of office studio").get_by_role("button", name="Grant more").click()
    field = console.dialog().get_by_label("Jobs that have not ended")
    expect(field).to_have_value("2")
    field.fill("-1")
    console.expected_refusals = ("/api/quotas",)
    field.evaluate("one => one.removeAttribute('min')")
    console.dialog().get_by_role("button", name="Grant it").click()
    expect(console.find("#field-queued_jobs-help")).to_be_visible()
    field.fill("50")
    console.dialog().get_by_role("button", name="Grant it").click()

    expect(console.find(".notices li", has_text="quota of office studio")).to_have_count(0)
    quotas = server.run(scheduler.offices.quotas("studio"))
    assert (quotas.queued_jobs, quotas.lanes, quotas.batch_jobs) == (50, 1000, 500)
    server.run(scheduler.submit("echo", title="three", office_id="studio"))


def test_a_webhook_that_was_disabled_is_named_and_enabled(console: Console, server: ServerThread) -> None:
    scheduler = server.server.scheduler
    with gone() as url:
        hook, _ = server.run(scheduler.webhooks.create(url, events=["job.run.completed"]))
        server.run(scheduler.webhooks.test(hook.webhook_id))
        for _ in range(400):
            if not server.run(scheduler.webhooks.get(hook.webhook_id)).enabled:
                break
            console.page.wait_for_timeout(50)
    assert "410" in (server.run(scheduler.webhooks.get(hook.webhook_id)).disabled_reason or "")
    console.open("system")

    ends(console, f"webhook {url} is disabled", "Enable")

    assert server.run(scheduler.webhooks.get(hook.webhook_id)).enabled


@contextmanager
def gone() -> Iterator[str]:
    """A receiver that says of every message that it is gone for good."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(410)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{receiver.server_port}/hook"
        finally:
            receiver.shutdown()
