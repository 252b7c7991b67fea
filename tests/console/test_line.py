"""The console is live, says when it is not, and misses nothing; a long log is followed as it grows."""

import asyncio
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from nextslot.executors.run_context import RunContext
from tests.server.support import ServerThread

from .support import Console, Line, opened

LOG_BYTES = 9_000_000


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("line")) as running:
        yield running


@pytest.fixture
def line(server: ServerThread) -> Iterator[Line]:
    found = Line(urlsplit(server.url).port or 0)
    yield found
    found.close()


def test_a_lost_line_is_said_and_what_was_missed_is_caught_up(
    browser: Browser, server: ServerThread, line: Line
) -> None:
    scheduler = server.server.scheduler
    server.run(scheduler.pause(office_id="default"))
    # The browser logs unreachable addresses too.
    with opened(browser, f"http://127.0.0.1:{line.port}", refusals=("/api/",)) as console:
        console.open("now")

        line.cut()
        expect(console.find(".outage")).to_contain_text("The line to the server is lost")
        expect(console.find(".line")).to_have_text("offline")
        for title in ("one", "two", "three"):
            server.run(scheduler.submit("echo", title=title))
        assert console.queue() == []
        line.mend()
        console.find(".outage").get_by_role("button", name="Now").click()

        console.has_queue("one", "two", "three")
        expect(console.find(".line")).to_have_text("live")
        expect(console.find(".outage")).to_have_count(0)
        console.says("3 missed events caught up")
        # What the page loads a moment after its view was not asked for while the server was away.
        expect(console.button("Desktop notifications")).to_be_visible()
        console.page.keyboard.press("Control+k")
        expect(console.dialog()).to_be_visible()


# Chromium draws every page of a test as if it were in sight.
AWAY = """
    Object.defineProperty(Document.prototype, "visibilityState", { get: () => (window.isAway ? "hidden" : "visible") });
    window.isAway = %s;
"""


def test_a_page_out_of_sight_gives_its_line_back_and_catches_up_when_it_is_seen(
    console: Console, server: ServerThread
) -> None:
    scheduler = server.server.scheduler
    server.run(scheduler.pause(office_id="default"))
    console.page.add_init_script(AWAY % "false")
    console.open("now")

    with console.page.expect_event("requestfailed", lambda one: "api/events" in one.url):
        console.page.evaluate("isAway = true; document.dispatchEvent(new Event('visibilitychange'))")
    server.run(scheduler.submit("echo", title="meanwhile"))
    console.page.evaluate("isAway = false; document.dispatchEvent(new Event('visibilitychange'))")

    expect(console.find(".line")).to_have_text("live")
    expect(console.find(".queue li .what a", has_text="meanwhile")).to_be_visible()
    expect(console.find(".toast, .outage")).to_have_count(0)


def test_many_pages_of_one_browser_are_open_at_once(browser: Browser, server: ServerThread) -> None:
    # A browser opens six connections to a server.
    with opened(browser, server.url) as console:
        others = [console.page.context.new_page() for _ in range(8)]
        for page in others:
            page.add_init_script(AWAY % "true")
            page.goto(f"{server.url}/console/#/schedules")
            expect(page.locator("main h1")).to_have_text("Schedules")
            expect(page.locator("main .empty")).to_contain_text("None yet")

        console.open("schedules").loaded()

        expect(console.find(".line")).to_have_text("live")


def test_an_event_that_happens_elsewhere_is_seen_at_once(console: Console, server: ServerThread) -> None:
    console.open("now")
    scheduler = server.server.scheduler

    first = server.run(scheduler.submit("gate", title="first"))
    server.run(scheduler.submit("gate", title="second"))
    expect(console.find(f".slot[data-job='{first.job_id}']")).to_contain_text("first")
    console.has_queue("second")
    server._loop.call_soon_threadsafe(server.server.gate.opened.set)

    console.has_queue()
    expect(console.find(".slot.free")).to_have_count(1)


def test_a_log_of_many_megabytes_is_followed_live_and_the_page_stays_usable(
    console: Console, server: ServerThread
) -> None:
    go_on = asyncio.Event()

    async def talk(run: RunContext) -> None:
        run.log.info("the beginning")
        await go_on.wait()
        block = "\n".join("x" * 120 for _ in range(700))
        for _ in range(LOG_BYTES // len(block)):
            run.log.info(block)
            await asyncio.sleep(0)
        run.log.info("the very end")

    server.server.scheduler.job_types.add("talkative", talk)
    job = server.run(server.server.scheduler.submit("talkative", title="talks"))
    console.open(f"jobs/{job.job_id}")
    expect(console.find("pre.log")).to_contain_text("the beginning")

    server._loop.call_soon_threadsafe(go_on.set)
    expect(console.find("pre.log .row").last).to_contain_text("the very end")
    expect(console.find("h1 ~ .status")).to_have_text("completed")

    assert int(console.find("pre.log").get_attribute("data-lines") or 0) > LOG_BYTES * 0.9 / 122
    assert _distance_to_the_end(console) < 60
    console.find("pre.log").focus()
    console.page.keyboard.press("Control+Home")
    expect(console.find("#L1")).to_be_in_viewport()


def _distance_to_the_end(console: Console) -> float:
    found: float = console.page.evaluate("""() => {
        const log = document.querySelector("pre.log");
        return log.scrollHeight - log.scrollTop - log.clientHeight;
    }""")
    return found
