"""The log, the page of a job, the timeline and the graph: read, searched, zoomed, compared."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from nextslot import NewJob
from nextslot.executors.run_context import RunContext
from tests.server.support import ServerThread

from .support import Console, opened
from .test_views import PHONE, _too_wide, _violations

SIZES: dict[str, Any] = {
    "desktop": {"width": 1280, "height": 800},
    "tablet": {"width": 820, "height": 1180},
    "phone": PHONE,
}
LINES = 200_000


async def speak(run: RunContext, kind: str = "colours") -> str:
    if kind == "colours":
        for number in range(1, 1001):
            if number == 700:
                run.log.error("no \x1b[1;31manswer\x1b[0m\n  at connect\n  at main")
            elif number % 100 == 0:
                run.log.warning("line %d is \x1b[33mslow\x1b[0m", number)
            else:
                run.log.info("line %d \x1b[32mok\x1b[0m \x1b[38;2;250;10;10mred\x1b[0m", number)
    elif kind == "raised":
        run.log.error("Traceback (most recent call last):\n  File 'a.py', line 3, in work\nshop.NoStock: none left")
        run.log.info("goes on")
    elif kind == "long":
        run.log.info("\n".join(f"row {number} {'x' * 40}" for number in range(1, LINES + 1)))
    elif kind == "wide":
        run.log.info("begin %s end", "한글" * 5 + "y" * 1_000_000)
    elif kind == "rubbish":
        run.log.info(
            "%s", "".join(chr(code) for code in range(256) if code != 10) * 40 + "\x1b[999;;9m\x1b]0;title\x07over"
        )
        run.log.info("10 %\r50 %\r100 % done")
    elif run.attempt == 1:
        run.log.info("first attempt")
        raise ConnectionError("once more")
    else:
        run.log.info("second attempt")
    return kind


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("inspector")) as running:
        running.server.scheduler.job_types.add(
            "speak", speak, retry_policy={"max_attempts": 1, "base_delay_seconds": 0}
        )
        running.run(running.server.scheduler.offices.create("wide"))
        yield running


def said(server: ServerThread, kind: str) -> str:
    """The id of an ended job that has written such a log."""
    scheduler = server.server.scheduler
    job = server.run(scheduler.submit("speak", {"kind": kind}, title=f"speaks {kind}", office_id="wide"))
    server.run(scheduler.wait(job.job_id))
    return job.job_id


def rows(console: Console) -> int:
    return console.find("pre.log .row").count()


# The log.


def test_a_log_shows_its_end_first_with_numbers_and_a_line_has_an_address(
    console: Console, server: ServerThread
) -> None:
    job_id = said(server, "colours")
    console.open(f"jobs/{job_id}")
    expect(console.find("#L1002")).to_contain_text("line 1000")
    assert rows(console) < 120

    console.find("#L1000 .no").click()
    expect(console.find(".row.is-wanted")).to_have_attribute("data-line", "1000")
    assert console.page.url.endswith(f"#/jobs/{job_id}#L1000")

    console.open(f"jobs/{job_id}#L120-L122")
    expect(console.find(".row.is-wanted")).to_have_count(3)
    expect(console.find("#L120")).to_contain_text("line 120")
    expect(console.find("#L120")).to_be_in_viewport()


def test_colours_are_classes_and_no_policy_is_broken(console: Console, server: ServerThread) -> None:
    console.open(f"jobs/{said(server, 'colours')}")

    expect(console.find("#L1001 .said .fg-2")).to_have_text("ok")
    expect(console.find("#L1001 .said")).to_contain_text("line 999 ok red")
    assert console.find("pre.log .row [style]").count() == 0


def test_the_first_error_is_found_and_levels_pick_out_lines(console: Console, server: ServerThread) -> None:
    console.open(f"jobs/{said(server, 'colours')}")

    console.button("First error").click()
    expect(console.find("#L700.level-error")).to_be_in_viewport()
    console.page.get_by_label("Levels").select_option(label="warnings and errors")
    expect(console.find("pre.log .row")).to_have_count(12)
    expect(console.find("#L702")).to_contain_text("at main")
    console.page.get_by_label("Levels").select_option(label="errors")
    expect(console.find("pre.log .row")).to_have_count(3)


def test_the_line_that_ends_a_traceback_is_an_error_whatever_the_exception_is_called(
    console: Console, server: ServerThread
) -> None:
    console.open(f"jobs/{said(server, 'raised')}")

    console.page.get_by_label("Levels").select_option(label="errors")

    expect(console.find("pre.log .row")).to_have_count(3)
    expect(console.find("pre.log .row").last).to_contain_text("shop.NoStock: none left")


def test_a_text_is_found_marked_and_walked_through(console: Console, server: ServerThread) -> None:
    console.open(f"jobs/{said(server, 'colours')}")
    search = console.page.get_by_label("Find in the log")

    search.fill("SLOW")
    expect(console.find(".logbar .hits")).to_have_text("9 of 9")
    first = console.find(".logbar .hits").inner_text()
    search.press("Enter")
    expect(console.find(".logbar .hits")).not_to_have_text(first)
    expect(console.find("mark.is-current")).to_have_text("slow")
    expect(console.find("mark.is-current")).to_be_in_viewport()
    search.press("Shift+Enter")
    expect(console.find(".logbar .hits")).to_have_text(first)
    search.fill("[.*")
    expect(console.find(".logbar .hits")).to_have_text("not found")


def test_times_of_lines_are_shown_in_the_zone_of_the_page(browser: Browser, server: ServerThread) -> None:
    with opened(browser, server.url, timezone_id="Asia/Seoul") as console:
        console.open(f"jobs/{said(server, 'colours')}")
        said_at = console.find("#L1002 .said").inner_text()[11:19]

        console.find(".logbar").get_by_role("button", name="Times in Asia/Seoul").click()
        shown = console.find("#L1002 .stamp")
        expect(shown).to_have_text(f"{(int(said_at[:2]) + 9) % 24:02}{said_at[2:]}")
        console.find("header.top").get_by_role("button", name="Times in UTC").click()
        expect(shown).to_have_text(said_at)
        console.find("header.top").get_by_role("button", name="Times in UTC").click()


@pytest.mark.parametrize("wraps", [True, False])
def test_a_log_of_200_000_lines_is_searched_and_scrolled_fluently(
    wraps: bool, console: Console, server: ServerThread
) -> None:
    console.open(f"jobs/{said(server, 'long')}")
    expect(console.find(f"[data-line='{LINES}']")).to_contain_text(f"row {LINES}")
    if not wraps:
        console.button("Wrap").click()

    console.page.get_by_label("Find in the log").fill("row 123456 ")
    expect(console.find(".logbar .hits")).to_have_text("1 of 1")
    expect(console.find("#L123456")).to_be_in_viewport()
    slowest = console.page.evaluate("""async () => {
        const box = document.querySelector("pre.log");
        const times = [];
        for (let step = 0; step < 40; step++) {
            box.scrollTop = (box.scrollHeight * (step * 7 % 40)) / 40;
            const began = performance.now();
            await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            times.push(performance.now() - began);
        }
        return times.sort((one, other) => one - other)[20];
    }""")

    assert rows(console) < 150
    # Two frames take 33 ms on a machine that has nothing else to do.
    assert slowest < 250


def test_a_line_of_a_megabyte_and_rubbish_are_shown(console: Console, server: ServerThread) -> None:
    console.open(f"jobs/{said(server, 'wide')}")
    expect(console.find("pre.log .row").last).to_contain_text("y end")
    assert rows(console) < 150
    assert (
        console.page.evaluate(
            "Math.max(...[...document.querySelectorAll('pre.log .said')].map((one) => one.textContent.length))"
        )
        <= 2000
    )
    console.button("Wrap").click()
    assert rows(console) < 150
    console.button("Wrap").click()

    console.open(f"jobs/{said(server, 'rubbish')}")
    expect(console.find("pre.log")).to_contain_text("␎␏")
    expect(console.find("pre.log")).to_contain_text("over")
    expect(console.find("pre.log .row").last).to_contain_text("100 % done")
    expect(console.find("pre.log .row").last).not_to_contain_text("50 %")


def test_following_pauses_when_somebody_scrolls_up(console: Console, server: ServerThread) -> None:
    go_on = asyncio.Event()

    async def grow(run: RunContext) -> None:
        run.log.info("\n".join(f"early {number}" for number in range(200)))
        await go_on.wait()
        run.log.info("\n".join(f"late {number}" for number in range(50)))

    server.server.scheduler.job_types.add("grow", grow)
    job = server.run(server.server.scheduler.submit("grow", title="grows", office_id="wide"))
    console.open(f"jobs/{job.job_id}")
    expect(console.find("pre.log .row").last).to_contain_text("early 199")
    expect(console.button("Follow")).to_have_attribute("aria-pressed", "true")

    console.find("pre.log").hover()
    console.page.mouse.wheel(0, -1200)
    expect(console.button("Follow")).to_have_attribute("aria-pressed", "false")
    server._loop.call_soon_threadsafe(go_on.set)

    expect(console.find("pre.log")).to_have_attribute("data-lines", "250")
    expect(console.find("pre.log")).not_to_contain_text("late 49")


def test_attempts_are_read_side_by_side(console: Console, server: ServerThread) -> None:
    scheduler = server.server.scheduler
    first = server.run(scheduler.submit("speak", {"kind": "again"}, title="twice"))
    second = server.run(_last_of_chain(scheduler, first.job_id))
    console.open(f"jobs/{second}")

    expect(console.find(".attempts li")).to_have_count(2)
    console.page.get_by_label("Beside it…").select_option(label="attempt 1")

    expect(console.find("pre.log")).to_have_count(2)
    expect(console.find("pre.log").nth(0)).to_contain_text("second attempt")
    expect(console.find("pre.log").nth(1)).to_contain_text("first attempt")
    expect(console.button("Scroll together")).to_have_attribute("aria-pressed", "true")


async def _last_of_chain(scheduler: Any, job_id: str) -> str:
    while True:
        found = await scheduler.lists.job(job_id)
        last = found.chain[-1]
        if len(found.chain) == 2 and last.status == "COMPLETED":
            return str(last.job_id)
        await asyncio.sleep(0.05)


# The page of a job.


def test_the_actions_of_a_job_stay_in_sight(console: Console, server: ServerThread) -> None:
    console.open(f"jobs/{said(server, 'colours')}")
    expect(console.find("#L1002")).to_be_attached()

    console.page.evaluate("scrollTo(0, document.body.scrollHeight)")

    expect(console.button("Run again…")).to_be_in_viewport()
    expect(console.find("aside section h2").first).to_have_text("Run")


def test_the_due_time_of_a_queued_job_is_changed(console: Console, server: ServerThread) -> None:
    scheduler = server.server.scheduler
    asked = {"name": "never"}
    job = server.run(scheduler.submit("echo", title="due later", office_id="wide", await_signal=asked))
    console.open(f"jobs/{job.job_id}")

    console.button("Change…").click()
    console.dialog().get_by_label("Not before").fill("2031-05-04T03:02:01")
    console.dialog().get_by_role("button", name="Change it").click()
    console.says("Changed.")

    assert str(server.run(scheduler.job(job.job_id)).scheduled_for).startswith("2031-05-0")


# The timeline.


def shown_range(console: Console) -> float:
    svg = console.find("svg.timeline")
    return float(svg.get_attribute("data-until") or 0) - float(svg.get_attribute("data-from") or 0)


def test_the_timeline_is_zoomed_moved_and_brushed(console: Console, server: ServerThread) -> None:
    said(server, "again")
    console.open("now?office=wide")
    expect(console.find("svg.timeline .mark, svg.timeline .count").first).to_be_attached()
    box = console.find("svg.timeline").bounding_box()
    assert box is not None
    whole = shown_range(console)
    middle = (box["x"] + box["width"] * 0.6, box["y"] + 40)

    console.page.mouse.move(*middle)
    console.page.mouse.wheel(0, -400)
    expect(console.button("To now")).to_be_visible()
    assert shown_range(console) < whole * 0.7
    before = console.find("svg.timeline").get_attribute("data-from")
    console.page.mouse.down()
    console.page.mouse.move(middle[0] - 120, middle[1], steps=3)
    console.page.mouse.up()
    assert float(console.find("svg.timeline").get_attribute("data-from") or 0) > float(before or 0)
    zoomed = shown_range(console)
    console.page.keyboard.down("Shift")
    console.page.mouse.down()
    console.page.mouse.move(middle[0], middle[1], steps=3)
    console.page.mouse.up()
    console.page.keyboard.up("Shift")
    assert shown_range(console) < zoomed * 0.5
    console.find("svg.timeline").focus()
    console.page.keyboard.press("-")
    console.page.keyboard.press("ArrowLeft")
    console.page.keyboard.press("0")

    expect(console.button("To now")).to_have_count(0)
    assert abs(shown_range(console) - whole) < 1000


def test_the_timeline_has_lanes_a_card_and_the_name_of_its_zone(browser: Browser, server: ServerThread) -> None:
    said(server, "colours")
    with opened(browser, server.url, timezone_id="Europe/Berlin") as console:
        console.open("now?office=wide&hours=0.25")

        expect(console.find(".legend")).to_contain_text("Times in Europe/Berlin")
        console.page.get_by_label("Lanes").select_option(label="lanes by type")
        expect(console.find("svg.timeline text.label").first).to_have_text(re.compile("speak|echo|grow"))
        console.find("svg.timeline .mark").first.hover(force=True)

        expect(console.find(".hovercard")).to_contain_text(re.compile("speak|echo|grow"))


def test_columns_count_runs_where_bars_have_no_room(console: Console, server: ServerThread) -> None:
    scheduler = server.server.scheduler
    server.run(scheduler.submit_many([NewJob(job_type="echo", office_id="wide") for _ in range(400)]))
    console.open("now?office=wide&hours=24")

    expect(console.find("svg.timeline .count").first).to_be_attached()
    expect(console.find(".legend")).to_contain_text("Columns count runs")


# The graph.


@pytest.fixture(scope="module")
def graph(server: ServerThread) -> str:
    """Frames, of which one fails, and a cut after them that is cancelled because of it."""
    scheduler = server.server.scheduler
    server.run(scheduler.offices.create("film", on_dependency_failure="wait"))
    frames = [NewJob(job_type="echo", key=str(one), title=f"frame {one}", office_id="film") for one in range(5)]
    bad = NewJob(job_type="fail", key="bad", title="bad frame", office_id="film", retry_policy={"max_attempts": 0})
    needs = (*(str(one) for one in range(5)), "bad")
    cut = NewJob(job_type="echo", key="cut", title="cut", office_id="film", depends_on=needs)
    group, _ = server.run(scheduler.submit_group([*frames, bad, cut], "parallel", name="movie"))
    return str(group.group_id)


def test_a_graph_has_progress_a_filter_a_path_and_folds(console: Console, graph: str) -> None:
    console.open(f"groups/{graph}").loaded()
    expect(console.find(".graphbar")).to_contain_text("7 of 7 ended")

    console.find(".graphbar").get_by_role("button", name="failed").click()
    expect(console.find(".node.dimmed")).to_have_count(6)
    console.find(".graphbar").get_by_role("button", name="failed").click()
    console.button("Critical path").click()
    expect(console.find(".node.critical")).not_to_have_count(0)
    console.button("Collapse alike").click()
    expect(console.find(".node")).to_have_count(3)
    folded = console.find(".node", has_text="echo × 5")
    folded.click()
    expect(console.find(".panel")).to_contain_text("5 of 5 ended")
    console.find(".panel").get_by_role("button", name="Expand").click()

    expect(console.find(".node")).to_have_count(7)


def test_a_node_shows_its_panel_with_neighbours_and_a_way_to_the_job(console: Console, graph: str) -> None:
    console.open(f"groups/{graph}").loaded()

    console.find(".node", has_text="bad frame").click()
    panel = console.find(".panel")
    expect(panel).to_contain_text("failed")
    panel.get_by_role("button", name="cut").click()
    expect(panel.locator("header")).to_contain_text("cut")
    expect(panel.get_by_role("button", name="bad frame")).to_be_visible()
    panel.get_by_role("link", name="Open").click()

    expect(console.find("main h1")).to_contain_text("cut")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_log_timeline_and_graph_are_accessible_and_fit(
    size: str, colours: Any, browser: Browser, server: ServerThread, graph: str
) -> None:
    job_id = said(server, "colours")
    with opened(browser, server.url, viewport=SIZES[size], color_scheme=colours) as console:
        console.open(f"jobs/{job_id}#L700")
        console.page.get_by_label("Find in the log").fill("line")
        expect(console.find("mark").first).to_be_attached()
        assert _violations(console.page) == []
        assert _too_wide(console.page) == []
        console.open("now?office=wide")
        expect(console.find("svg.timeline .mark, svg.timeline .count").first).to_be_attached()
        assert _violations(console.page) == []
        assert _too_wide(console.page) == []
        console.open(f"groups/{graph}").loaded()
        console.find(".node", has_text="bad frame").dispatch_event("click")
        expect(console.find(".panel")).to_be_visible()
        assert _violations(console.page) == []
        assert _too_wide(console.page) == []
