"""The overview: what is wrong in a sentence, history in charts, and ways from both to the jobs."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from nextslot import extension_api, testing
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
    """Runs four hours on virtual time, in which a job ends every 20 minutes and one in four fails."""

    async def main() -> None:
        clock = testing.VirtualClock(SystemClock().now().after(-4 * 3600))
        scheduler = testing.scheduler(folder, clock=clock, extensions=extension_api.used_by_server())
        scheduler.job_types.add("import", _import, retry_policy={"max_attempts": 0})
        async with scheduler:
            await scheduler.offices.create("studio", name="The studio")
            for number in range(12):
                job = await scheduler.submit("import", {"number": number}, title=f"import {number}")
                await scheduler.wait(job.job_id)

    run_in_thread(main())


async def _import(run: RunContext, number: int) -> int:
    await asyncio.sleep(1200)
    if number % 4 == 3:
        raise Fail("no connection", "error")
    return number


def test_nothing_is_wrong_or_each_problem_is_named_with_a_way_to_it(console: Console, server: ServerThread) -> None:
    console.open("overview").loaded()
    expect(console.find(".verdict")).to_contain_text("1 problem")
    expect(console.find(".verdict")).to_contain_text("import 11 failed 3 times")

    server.run(server.server.scheduler.pause(office_id="studio"))
    expect(console.find(".verdict")).to_contain_text("2 problems")
    console.find(".verdict").get_by_role("link", name="office The studio is paused").click()
    expect(console.button("Resume")).to_be_visible()
    console.button("Resume").click()
    console.open("overview")

    expect(console.find(".verdict")).to_contain_text("1 problem")


def test_the_overview_is_the_first_page(console: Console, server: ServerThread) -> None:
    console.page.goto(f"{server.url}/console/")

    expect(console.find("main h1")).to_have_text("Overview")
    expect(console.find("nav [aria-current]")).to_have_text("Overview")


def test_charts_share_a_crosshair_and_say_the_values_of_its_step(console: Console) -> None:
    console.open("overview?range=86400").loaded()
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


def test_a_range_that_is_dragged_leads_to_its_jobs(console: Console) -> None:
    console.open("overview?range=86400").loaded()
    expect(console.find(".pillar").first).to_be_attached()
    box = console.page.get_by_role("slider", name="Ended by outcome").bounding_box()
    assert box is not None

    console.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60)
    console.page.mouse.down()
    console.page.mouse.move(box["x"] + box["width"] - 4, box["y"] + 60, steps=4)
    expect(console.find(".chart .chosen")).to_have_count(4)
    console.page.mouse.up()

    expect(console.find("main h1")).to_have_text("Jobs")
    expect(console.find("tbody tr")).to_have_count(12)
    assert "created_after=" in console.page.url
    assert "created_before=" in console.page.url


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
