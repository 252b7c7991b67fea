"""The timeline without a mouse, and what it says when it cannot show everything."""

import asyncio
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from nextslot import NewJob
from nextslot.executors.run_context import RunContext
from tests.server.support import ServerThread

from .support import Console
from .test_views import _violations


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("timeline")) as running:
        yield running


def test_a_bar_is_reached_read_and_opened_by_keys(console: Console, server: ServerThread) -> None:
    scheduler = server.server.scheduler
    server.run(scheduler.offices.change("default", max_concurrent_jobs=1))
    for title in ("first", "second", "third"):
        job = server.run(scheduler.submit("echo", title=title))
        server.run(scheduler.wait(job.job_id))
    console.open("now?hours=0.25")
    expect(console.find("svg.timeline [data-key]")).to_have_count(3)
    svg = console.find("svg.timeline")
    focused = console.find("svg.timeline [data-key]:focus")

    svg.focus()
    console.page.keyboard.press("Tab")
    expect(focused).to_have_attribute(
        "aria-label", re.compile(r"^third: completed, \d\d:\d\d:\d\d to .* · echo · default")
    )
    expect(console.find(".hovercard")).to_contain_text("third")
    expect(console.find(".hovercard")).to_contain_text("default")
    assert _violations(console.page) == []
    before = svg.get_attribute("data-from")
    console.page.keyboard.press("ArrowLeft")
    expect(focused).to_have_attribute("aria-label", re.compile("^second: "))
    expect(console.find(".hovercard")).to_contain_text("second")
    console.page.keyboard.press("ArrowLeft")
    expect(focused).to_have_attribute("aria-label", re.compile("^first: "))
    # At the end it stays, and the picture is not moved.
    console.page.keyboard.press("ArrowLeft")
    expect(focused).to_have_attribute("aria-label", re.compile("^first: "))
    assert float(svg.get_attribute("data-from") or 0) >= float(before or 0)
    console.page.keyboard.press("Escape")
    expect(svg).to_be_focused()
    expect(console.find(".hovercard")).to_have_count(0)
    console.page.keyboard.press("Tab")
    expect(focused).to_have_attribute("aria-label", re.compile("^first: "))
    console.page.keyboard.press("Enter")

    expect(console.find("main h1")).to_contain_text("first")


def test_lanes_that_are_not_shown_are_said_and_the_arrows_go_from_lane_to_lane(
    console: Console, server: ServerThread
) -> None:
    scheduler = server.server.scheduler
    all_run = asyncio.Barrier(15)

    async def together(run: RunContext) -> None:
        await all_run.wait()

    async def work() -> None:
        scheduler.job_types.add("together", together)
        await scheduler.offices.change("default", max_concurrent_jobs=0)
        jobs = await scheduler.submit_many([NewJob(job_type="together", title=f"one of {n}") for n in range(15)])
        for job in jobs:
            await scheduler.wait(job.job_id)

    server.run(work())
    console.open("now?hours=0.25")

    expect(console.find("svg.timeline [data-key]")).to_have_count(12)
    expect(console.find(".legend")).to_contain_text("3 more lanes not shown")
    console.find("svg.timeline").focus()
    console.page.keyboard.press("Tab")
    focused = console.find("svg.timeline [data-key]:focus .mark")
    lane = float(focused.get_attribute("y") or 0)
    console.page.keyboard.press("ArrowUp")
    assert float(focused.get_attribute("y") or 0) == lane - 20
    console.page.get_by_label("Lanes").select_option(label="lanes by type")

    expect(console.find(".legend")).not_to_contain_text("not shown")
