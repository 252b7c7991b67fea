"""What is shown stays where it belongs: words in their box, names in their node, buttons and columns on the screen."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from nextslot import NewJob, extension_api, testing
from nextslot.executors.run_context import RunContext
from nextslot.system.clock import SystemClock
from tests.server.support import ServerThread

from .support import Console, opened
from .test_mended import TORN
from .world import run_in_thread

PHONE: Any = {"width": 390, "height": 844}
TABLET: Any = {"width": 820, "height": 1180}
DESK: Any = {"width": 1440, "height": 900}
KOREAN = "주문 데이터를 가져와서 창고에 저장하고 보고서를 만듭니다"
LONG = "Supercalifragilisticexpialidocious" * 4


def live_through_hours(folder: Path) -> None:
    """On virtual time: a schedule whose jobs take longer than the time between two of them, and one that fails."""

    async def slow(run: RunContext) -> None:
        await asyncio.sleep(3000)

    async def main() -> None:
        clock = testing.VirtualClock(SystemClock().now().after(-9 * 3600))
        scheduler = testing.scheduler(folder, clock=clock, extensions=extension_api.used_by_server())
        scheduler.job_types.add("slow", slow)
        async with scheduler:
            template = await scheduler.templates.create(KOREAN, "slow")
            await scheduler.schedules.create(KOREAN, template.template_id, "*/30 * * * *", overlap="skip")
            await scheduler.schedules.create("weekdays", template.template_id, "0 9 * * 1-5", enabled=False)
            await asyncio.sleep(8 * 3600)

    run_in_thread(main())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    folder = tmp_path_factory.mktemp("fit")
    live_through_hours(folder)
    with ServerThread(folder) as running:
        scheduler = running.server.scheduler

        async def furnish() -> dict[str, str]:
            for title in (KOREAN, LONG, "Import orders"):
                await scheduler.wait((await scheduler.submit("fail", {"message": f"no {LONG}"}, title=title)).job_id)
            jobs = [
                NewJob(job_type="gate", key="a", title=KOREAN),
                NewJob(job_type="echo", depends_on=("a",), title=LONG),
            ]
            group, _ = await scheduler.submit_group(jobs, "parallel", name=KOREAN)
            waiting = await scheduler.submit("echo", title="waits", await_signal={"name": "release"})
            schedules = await scheduler.schedules.page()
            (skipping,) = [one.schedule_id for one in schedules.items if one.name == KOREAN]
            return {"group": group.group_id, "waiting": waiting.job_id, "schedule": skipping}

        running.ids = running.run(furnish())  # type: ignore[attr-defined]
        yield running


def ids(server: ServerThread) -> dict[str, str]:
    found: dict[str, str] = server.ids  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("locale", ["en-US", "ko-KR"])
def test_the_words_of_a_calendar_stay_in_their_day(locale: str, browser: Browser, server: ServerThread) -> None:
    with opened(browser, server.url, locale=locale) as console:
        console.open(f"schedules/{ids(server)['schedule']}")
        expect(console.find(".calendar .status.is-skipped").first).to_be_visible()

        for size in (PHONE, TABLET, DESK):
            console.page.set_viewport_size(size)
            assert console.page.evaluate(OUT_OF_ITS_DAY) == []
            assert set(console.page.evaluate(LINES_OF_A_COUNT)) == {1}
            # A date and a time, each in one piece.
            assert max(console.page.evaluate(LINES_OF_A_TIME)) <= 2


OUT_OF_ITS_DAY = """() => [...document.querySelectorAll(".calendar .day")].filter((day) =>
    [...day.querySelectorAll("span")].some((one) =>
        one.getBoundingClientRect().right > day.getBoundingClientRect().right + 1)
).map((one) => one.textContent)"""

LINES = """((one) => {
    const range = document.createRange();
    range.selectNodeContents(one);
    return new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size;
})"""
LINES_OF_A_COUNT = f"() => [...document.querySelectorAll('.calendar .status')].map((one) => {LINES}(one.firstChild))"
LINES_OF_A_TIME = f"() => [...document.querySelectorAll('main tbody time')].map({LINES})"


def test_a_name_of_wide_letters_stays_in_its_node(console: Console, server: ServerThread) -> None:
    console.open(f"groups/{ids(server)['group']}").loaded()

    node = console.find(".graph .node", has_text=KOREAN[:4])
    expect(node.locator("text")).to_contain_text("…")
    name, frame = node.locator("text").bounding_box(), node.locator("rect").first.bounding_box()
    assert name is not None
    assert frame is not None
    assert name["x"] + name["width"] <= frame["x"] + frame["width"]


def test_on_a_tablet_every_view_can_be_seen_in_the_navigation(browser: Browser, server: ServerThread) -> None:
    for locale in ("en-US", "ko-KR"):
        with opened(browser, server.url, viewport=TABLET, locale=locale) as console:
            console.page.goto(f"{server.url}/console/#/jobs")
            console.find("tbody tr[data-job]").first.wait_for()

            for link in console.find("nav a").all():
                expect(link).to_be_in_viewport(ratio=1)


def test_on_a_phone_every_action_of_a_job_can_be_seen(browser: Browser, server: ServerThread) -> None:
    with opened(browser, server.url, viewport=PHONE) as console:
        console.open(f"jobs/{ids(server)['waiting']}").loaded()

        for name in ("To the front", "To the back", "Change…", "Cancel…"):
            expect(console.button(name)).to_be_in_viewport(ratio=1)


@pytest.mark.parametrize("size", [PHONE, TABLET, DESK], ids=["phone", "tablet", "desk"])
def test_the_name_of_a_job_is_not_covered_by_the_navigation(size: Any, browser: Browser, server: ServerThread) -> None:
    with opened(browser, server.url, viewport={**size, "height": 500}) as console:
        console.open(f"jobs/{ids(server)['waiting']}").loaded()
        expect(console.section("Events").locator("tbody tr").first).to_be_visible()
        console.page.evaluate("scrollTo(0, document.body.scrollHeight)")

        name, navigation = console.find("main .head").bounding_box(), console.find("header.top").bounding_box()

        assert console.page.evaluate("scrollY") > 100
        assert name is not None
        assert navigation is not None
        assert abs(name["y"] - (navigation["y"] + navigation["height"])) <= 1


def test_on_a_phone_numbers_fill_their_row_and_stand_on_one_line(browser: Browser, server: ServerThread) -> None:
    with opened(browser, server.url, viewport=PHONE) as console:
        for view in ("system", "offices/default"):
            console.open(view).loaded()
            stats = console.find(".stats").bounding_box()
            last = console.find(".stats > div").last.bounding_box()

            assert stats is not None
            assert last is not None
            assert abs(stats["x"] + stats["width"] - last["x"] - last["width"]) <= 1, view
            assert {one.bounding_box()["height"] < 40 for one in console.find(".stats b").all()} == {True}, view  # type: ignore[index]


def test_on_a_phone_the_lists_of_jobs_and_schedules_need_no_scrolling_aside(
    browser: Browser, server: ServerThread
) -> None:
    with opened(browser, server.url, viewport=PHONE) as console:
        for view in ("jobs", "schedules"):
            console.open(view).loaded()
            console.find("main tbody tr").first.wait_for()

            assert console.page.evaluate(
                "[...document.querySelectorAll('main .scroll')].map((one) => one.scrollWidth - one.clientWidth)"
            ) == [0], view
            assert console.page.evaluate(TORN) == [], view
        # An expression is one thing to read.
        assert {line.bounding_box()["height"] < 30 for line in console.find("td code").all()} == {True}  # type: ignore[index]


def test_a_value_that_stands_alone_can_be_seen_in_a_chart(console: Console) -> None:
    console.open("overview").loaded()

    expect(console.find('.chart path.dots[d^="M"]').first).to_be_attached()
