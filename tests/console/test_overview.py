"""The overview: what is wrong in a sentence, history in charts, and ways from both to the jobs."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from nextslot import NewJob, extension_api, testing
from nextslot.executors.run_context import Fail, RunContext
from nextslot.system.clock import SystemClock
from tests.server.support import ServerThread

from .support import Console, opened
from .test_views import PHONE, _too_wide, _violations
from .world import run_in_thread

SIZES: dict[str, Any] = {
    "desk": {"width": 1280, "height": 800},
    "tablet": {"width": 820, "height": 1180},
    "phone": PHONE,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    folder = tmp_path_factory.mktemp("overview")
    _live_through_hours(folder)
    with ServerThread(folder) as running:
        yield running


def _live_through_hours(folder: Path) -> None:
    """Runs four hours on virtual time, in which a job ends every 20 minutes and one in four fails. All of them were
    created before the first one ended. At last, an office has 250 failures that are alike.
    """

    async def main() -> None:
        clock = testing.VirtualClock(SystemClock().now().after(-4 * 3600))
        scheduler = testing.scheduler(folder, clock=clock, extensions=extension_api.used_by_server())
        scheduler.job_types.add("import", _import, retry_policy={"max_attempts": 0})
        scheduler.job_types.add("upload", _upload, retry_policy={"max_attempts": 0})
        async with scheduler:
            await scheduler.offices.create("studio", name="The studio")
            jobs = [
                await scheduler.submit("import", {"number": number}, title=f"import {number}") for number in range(12)
            ]
            for job in jobs:
                await scheduler.wait(job.job_id)
            many = [NewJob(job_type="upload", params={"number": number}, office_id="studio") for number in range(250)]
            for made in await scheduler.submit_many(many):
                await scheduler.wait(made.job_id)

    run_in_thread(main())


async def _import(run: RunContext, number: int) -> int:
    await asyncio.sleep(1200)
    if number % 4 == 3:
        raise Fail("no connection", "error")
    return number


async def _upload(run: RunContext, number: int) -> None:
    raise Fail(f"part {number} was refused", "error")


def test_nothing_is_wrong_or_each_problem_is_named_with_a_way_to_it(console: Console, server: ServerThread) -> None:
    console.open("overview").loaded()
    expect(console.find(".verdict")).to_contain_text("2 problems")
    expect(console.find(".verdict")).to_contain_text("import failed 3 times: no connection")
    expect(console.find(".verdict")).to_contain_text("upload failed 250 times: part <n> was refused")

    server.run(server.server.scheduler.pause(office_id="studio"))
    expect(console.find(".verdict")).to_contain_text("3 problems")
    console.find(".verdict").get_by_role("link", name="office The studio is paused").click()
    expect(console.button("Resume")).to_be_visible()
    console.button("Resume").click()
    console.open("overview")

    expect(console.find(".verdict")).to_contain_text("2 problems")


def test_a_failure_leads_to_its_row_and_is_no_problem_once_it_is_muted(console: Console, server: ServerThread) -> None:
    console.open("overview").loaded()

    console.find(".verdict").get_by_role("link", name="upload failed 250 times").click()
    expect(console.find("main h1")).to_have_text("Failures")
    expect(console.find(".failures > li")).to_have_count(1)
    expect(console.find(".failures .counts strong")).to_have_text("250")
    console.button("Mute").click()
    expect(console.button("Unmute")).to_be_visible()
    console.open("overview")

    expect(console.find(".verdict")).to_contain_text("1 problem")
    expect(console.find(".verdict")).not_to_contain_text("upload")
    console.open("failures?muted=true").loaded()
    console.button("Unmute").click()
    expect(console.button("Unmute")).to_have_count(0)


def test_the_oldest_waiting_jobs_are_named_the_longest_first(console: Console, server: ServerThread) -> None:
    scheduler = server.server.scheduler
    server.run(scheduler.pause(office_id="studio"))
    made = [server.run(scheduler.submit("echo", office_id="studio", title=f"waits {n}")) for n in (1, 2)]

    console.open("overview").loaded()
    oldest = console.section("Oldest waiting").locator("li")

    expect(oldest).to_have_count(2)
    expect(oldest.first).to_contain_text("waits 1")
    oldest.first.get_by_role("link").click()
    expect(console.find("main h1")).to_contain_text("waits 1")
    for job in made:
        server.run(scheduler.cancel(job.job_id))
    server.run(scheduler.resume(office_id="studio"))


def test_job_events_do_not_load_the_status_again(console: Console, server: ServerThread) -> None:
    asked: list[str] = []
    console.open("overview").loaded()
    expect(console.section("Oldest waiting").locator(".empty")).to_have_text("Nothing waits.")
    console.page.wait_for_timeout(1500)  # The banner loads later than the view.
    console.page.on("request", lambda request: asked.append(request.url))

    server.run(server.server.scheduler.pause(office_id="studio"))
    expect(console.find(".verdict")).to_contain_text("The studio is paused")
    asked.clear()
    job = server.run(server.server.scheduler.submit("echo", office_id="studio", title="one more"))
    expect(console.section("Oldest waiting")).to_contain_text("one more")

    assert not [url for url in asked if "/api/offices" in url or "/api/schedules" in url or "/api/webhooks" in url]
    assert len([url for url in asked if "/api/jobs" in url]) == 1
    server.run(server.server.scheduler.cancel(job.job_id))
    server.run(server.server.scheduler.resume(office_id="studio"))


def test_the_overview_is_the_first_page(console: Console, server: ServerThread) -> None:
    console.page.goto(f"{server.url}/console/")

    expect(console.find("main h1")).to_have_text("Overview")
    expect(console.find("nav [aria-current]")).to_have_text("Overview")


def test_charts_share_a_crosshair_and_say_the_values_of_its_step(console: Console) -> None:
    console.open("overview?range=86400&office=default").loaded()
    expect(console.find(".pillar").first).to_be_attached()

    ended = console.page.get_by_role("slider", name="Ended by outcome")
    ended.focus()
    console.page.keyboard.press("End")
    while "completed 1" not in (ended.get_attribute("aria-valuetext") or ""):
        before = ended.get_attribute("aria-valuenow")
        console.page.keyboard.press("ArrowLeft")
        expect(ended).not_to_have_attribute("aria-valuenow", before or "")

    expect(console.find(".chart .cross")).to_have_count(4)
    run_time = console.page.get_by_role("slider", name="Run time")
    expect(run_time).to_have_attribute("aria-valuetext", re.compile("p50 (19|20|21) min"))


def pillars(console: Console, look: str = "") -> list[dict[str, float]]:
    """Returns the bars of the first chart in the order of time."""
    found = console.find(f".chart >> nth=0 >> .pillar{look}")
    expect(found.first).to_be_attached()
    boxes: list[Any] = [found.nth(index).bounding_box() for index in range(found.count())]
    return sorted(boxes, key=lambda box: box["x"])


def drag(console: Console, x: float, y: float) -> None:
    """Drags from a point of the first chart to its end."""
    box: Any = console.page.get_by_role("slider", name="Ended by outcome").bounding_box()
    console.page.mouse.move(x, y)
    console.page.mouse.down()
    console.page.mouse.move(box["x"] + box["width"] - 4, y, steps=4)
    expect(console.find(".chart .chosen")).to_have_count(4)
    console.page.mouse.up()
    expect(console.find("main h1")).to_have_text("Jobs")


def test_a_range_that_is_dragged_leads_to_the_jobs_that_ended_in_it(console: Console) -> None:
    console.open("overview?range=86400&office=default").loaded()
    eighth = pillars(console)[7]

    # Above the bar: no outcome is chosen.
    drag(console, eighth["x"] + eighth["width"] / 2, eighth["y"] - 20)

    # All jobs were created hours before.
    expect(console.find("tbody tr")).to_have_count(5)
    expect(console.find("tbody tr").first).to_contain_text("import 11")
    assert "finished_after=" in console.page.url
    assert "finished_before=" in console.page.url
    assert "status=" not in console.page.url
    console.page.go_back()
    expect(console.find("main h1")).to_have_text("Overview")


def test_a_drag_that_begins_at_an_outcome_leads_to_the_jobs_that_ended_so(console: Console) -> None:
    console.open("overview?range=86400&office=default").loaded()
    failed = pillars(console, ".is-failed")[1]

    drag(console, failed["x"] + failed["width"] / 2, failed["y"] + failed["height"] / 2)

    expect(console.find("tbody tr")).to_have_count(2)
    expect(console.find("tbody tr").first).to_contain_text("import 11")
    expect(console.find("tbody tr").last).to_contain_text("import 7")
    assert "status=FAILED" in console.page.url


def test_a_range_of_run_times_leads_to_the_longest_first(console: Console) -> None:
    console.open("overview?range=86400&office=default").loaded()
    chart = console.page.get_by_role("slider", name="Run time")
    chart.focus()

    console.page.keyboard.press("End")
    console.page.keyboard.press("Shift+Home")
    console.page.keyboard.press("Enter")

    expect(console.find("tbody tr")).to_have_count(12)
    expect(console.page.get_by_label("Sort by")).to_have_value("-duration")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_the_overview_is_accessible_and_fits(size: str, colours: Any, browser: Browser, server: ServerThread) -> None:
    with opened(browser, server.url, viewport=SIZES[size], color_scheme=colours) as console:
        console.open("overview").loaded()
        expect(console.find(".pillar").first).to_be_attached()

        heading, verdict, chart = (console.find(one).first.bounding_box() for one in ("h1", ".verdict", ".chart"))
        assert heading is not None
        assert verdict is not None
        assert chart is not None
        assert heading["y"] < verdict["y"] < chart["y"]
        assert _violations(console.page) == []
        assert _too_wide(console.page) == []
