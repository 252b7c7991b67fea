"""Back leads to what was there: rows and place of Failures, state of the graph and of the timeline."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from nextslot import NewJob
from nextslot.executors.run_context import RunContext
from tests.server.support import ServerThread

from .support import Console

LETTERS = "abcdefghijklmnopqrstuvwxyz"


async def broken(run: RunContext, error: str) -> Any:
    run.fail(error)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("back")) as running:
        yield running


def fail_in_many_ways(server: ServerThread, number: int) -> None:
    scheduler = server.server.scheduler
    scheduler.job_types.add("broken", broken, retry_policy={"max_attempts": 0})

    async def work() -> None:
        await scheduler.offices.change("default", max_concurrent_jobs=30)
        # Numbers are left out of what makes failures alike, so each has letters of its own.
        words = [f"cause {one}{other}" for one in LETTERS for other in LETTERS][:number]
        jobs = await scheduler.submit_many([NewJob(job_type="broken", params={"error": word}) for word in words])
        for job in jobs:
            await scheduler.wait(job.job_id)

    server.run(work())


def test_back_shows_the_same_failures_at_the_same_place(console: Console, server: ServerThread) -> None:
    fail_in_many_ways(server, 60)
    console.open("failures")
    rows = console.find(".failures > li")
    expect(rows).to_have_count(25)
    console.page.mouse.wheel(0, 100_000)
    expect(rows).to_have_count(50)
    rows.nth(45).scroll_into_view_if_needed()
    down = console.page.evaluate("scrollY")
    cause = rows.nth(45).locator(".message").inner_text()

    rows.nth(45).locator("p a.id").first.click()
    expect(console.find("main h1")).to_contain_text("broken")
    console.page.go_back()

    expect(console.page.get_by_role("link", name=cause, exact=True)).to_be_in_viewport()
    assert down > 1000
    assert abs(console.page.evaluate("scrollY") - down) < 60
    console.button("Most first").click()
    expect(rows).not_to_have_count(0)


def test_another_filter_of_the_failures_begins_with_its_first_page(console: Console, server: ServerThread) -> None:
    console.open("failures")
    rows = console.find(".failures > li")
    expect(rows).to_have_count(25)
    console.page.mouse.wheel(0, 100_000)
    expect(rows).to_have_count(50)

    console.page.evaluate("scrollTo(0, 0)")
    console.button("7 d").click()

    expect(rows).to_have_count(25)


def test_back_shows_the_graph_as_it_was(console: Console, server: ServerThread) -> None:
    scheduler = server.server.scheduler
    jobs = [NewJob(job_type="echo", key=str(one), title=f"frame {one}") for one in range(4)]
    cut = NewJob(job_type="fail", key="cut", title="cut", depends_on=tuple("0123"))
    group, _ = server.run(scheduler.submit_group([*jobs, cut], "parallel", name="movie"))
    console.open(f"groups/{group.group_id}").loaded()
    expect(console.find(".graphbar")).to_contain_text("5 of 5 ended")
    console.button("Critical path").click()
    console.find(".graphbar").get_by_role("button", name="failed").click()
    console.page.get_by_label("Find in the graph").fill("cut")
    console.find("svg.graph").locator("..").get_by_role("button", name="Zoom in").click()
    drawn = console.find("svg.graph > g")
    placed = drawn.get_attribute("transform")
    console.find(".node", has_text="cut").dispatch_event("click")

    console.find(".panel").get_by_role("link", name="Open").click()
    expect(console.find("main h1")).to_contain_text("cut")
    console.page.go_back()
    console.loaded()

    expect(console.find(".panel header")).to_contain_text("cut")
    expect(console.button("Critical path")).to_have_attribute("aria-pressed", "true")
    expect(console.find(".graphbar").get_by_role("button", name="failed")).to_have_attribute("aria-pressed", "true")
    expect(console.page.get_by_label("Find in the graph")).to_have_value("cut")
    expect(console.find(".node.dimmed")).to_have_count(4)
    assert drawn.get_attribute("transform") == placed


def test_back_shows_the_timeline_as_it_was(console: Console, server: ServerThread) -> None:
    done = server.run(server.server.scheduler.submit("echo", title="short"))
    server.run(server.server.scheduler.wait(done.job_id))
    console.open("now?hours=0.25")
    expect(console.find("svg.timeline [data-key]").first).to_be_attached()
    console.page.get_by_label("Lanes").select_option(label="lanes by type")
    console.section("Past and forecast").get_by_role("button", name="Zoom in").click()
    svg = console.find("svg.timeline")
    shown = (svg.get_attribute("data-from"), svg.get_attribute("data-until"))

    console.find("nav a", has_text="Groups").click()
    expect(console.find("main h1")).to_have_text("Groups")
    console.page.go_back()

    expect(console.find("svg.timeline")).to_have_attribute("data-from", shown[0] or "")
    expect(console.find("svg.timeline")).to_have_attribute("data-until", shown[1] or "")
    expect(console.page.get_by_label("Lanes")).to_have_value("type")
