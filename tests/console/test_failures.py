"""Failures, the query bar, columns and exports, the page of a job type, and the last outcomes of a schedule."""

import asyncio
import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from nextslot import NewJob, extension_api, testing
from nextslot.domain.rollups import HOUR
from nextslot.executors.run_context import RunContext
from nextslot.system.clock import SystemClock
from tests.server.support import ServerThread

from .support import Console, opened
from .test_views import PHONE, _too_wide, _violations
from .world import HOSTILE, run_in_thread

NO_RETRY = {"max_attempts": 0}
FORMULA = '=HYPERLINK("http://127.0.0.1/","x")'


async def broken(run: RunContext, error: str = "broken", **anything: Any) -> None:
    run.fail(error)


def live_through_yesterday(folder: Path) -> None:
    """On virtual time: failures of some hours, and a schedule whose jobs failed and succeeded."""

    async def main() -> None:
        clock = testing.VirtualClock(SystemClock().now().after(-9 * HOUR))
        scheduler = testing.scheduler(folder, clock=clock, extensions=extension_api.used_by_server())
        scheduler.job_types.add("ingest", broken)
        async with scheduler:
            await scheduler.offices.change("default", max_concurrent_jobs=50)
            template = await scheduler.templates.create(
                "import", "ingest", retry_policy=NO_RETRY, params={"error": "ECONNRESET from 10.0.0.7:5432 after 12 s"}
            )
            await scheduler.schedules.create("hourly import", template.template_id, "0 * * * *")
            for hour in range(8):
                lines = [f"KeyError: 'total' in /srv/in/{hour}-{n}.csv" for n in range(hour % 5 + 1)]
                await scheduler.submit_many(
                    [NewJob(job_type="ingest", params={"error": line}, retry_policy=NO_RETRY) for line in lines]
                )
                await asyncio.sleep(HOUR)

    run_in_thread(main())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    folder = tmp_path_factory.mktemp("failures")
    live_through_yesterday(folder)
    with ServerThread(folder) as running:
        scheduler = running.server.scheduler
        scheduler.job_types.add("ingest", broken)

        async def furnish() -> None:
            for title, error in ((HOSTILE, HOSTILE), ("Import orders", "refused by upstream"), (FORMULA, "@SUM(1)")):
                job = await scheduler.submit(
                    "ingest", {"error": error, "source": "orders"}, title=title, retry_policy=NO_RETRY
                )
                await scheduler.wait(job.job_id)

        running.run(furnish())
        yield running


def row(console: Console, text: str) -> Any:
    return console.find(".failures > li", has_text=text)


def test_failures_that_are_alike_are_one_row_with_a_sparkline_and_the_schedule(console: Console) -> None:
    console.open("failures").loaded()

    lost = row(console, "ECONNRESET from")
    expect(lost.locator(".message")).to_have_text("ECONNRESET from <n>.<n>:<n> after <n> s")
    expect(lost.get_by_role("link", name="hourly import")).to_be_visible()
    expect(lost.locator(".sparkline rect")).to_have_count(25)
    keys = row(console, "KeyError")
    expect(keys.locator(".counts strong")).to_have_text("21")
    console.button("Most first").click()
    expect(console.find(".failures > li").first).to_contain_text("KeyError")


def test_hostile_errors_and_titles_are_shown_as_text(console: Console) -> None:
    for view in ("failures", "jobs", "types/ingest"):
        console.open(view).loaded()

        expect(console.find("main").get_by_text("<img src=x onerror=").first).to_be_attached()
        assert console.page.evaluate("typeof hacked") == "undefined"
        assert console.page.locator("main img, main script").count() == 0


def test_a_message_leads_to_its_jobs_and_each_has_its_error_below_its_name(console: Console) -> None:
    console.open("failures").loaded()

    row(console, "refused by upstream").locator(".message").click()

    expect(console.find("tbody tr")).to_have_count(1)
    expect(console.find("tbody .error-line")).to_have_text("refused by upstream")


def test_a_note_is_kept_and_a_muted_failure_is_left_out_until_it_is_asked_for(console: Console) -> None:
    console.open("failures").loaded()
    known = row(console, "@SUM")

    known.get_by_role("button", name="Note…").click()
    console.dialog().get_by_label("Note").fill("see <b>T-1</b>")
    console.button("Save").click()
    expect(known.locator(".note")).to_have_text("see <b>T-1</b>")
    known.get_by_role("button", name="Mute").click()
    expect(known).to_have_count(0)
    console.button("Muted ones too").click()
    expect(known).to_contain_text("muted")
    known.get_by_role("button", name="Unmute").click()
    expect(known.get_by_role("button", name="Mute", exact=True)).to_be_visible()


def test_retry_says_first_how_many_there_will_be(console: Console) -> None:
    console.open("failures").loaded()

    row(console, "refused by upstream").get_by_role("button", name="Retry these…").click()
    expect(console.dialog()).to_contain_text("Retry 1 failed job?")
    console.button("Retry them").click()

    console.says("1 job retried")
    row(console, "refused by upstream").get_by_role("button", name="Retry these…").click()
    expect(console.dialog()).to_contain_text("Retry 1 failed job?")
    console.page.keyboard.press("Escape")


def test_retry_is_about_the_failures_that_the_row_counts(console: Console, server: ServerThread) -> None:
    console.open("failures?range=21600").loaded()
    lost = row(console, "ECONNRESET from")
    counted = int(lost.locator(".counts strong").inner_text())

    lost.get_by_role("button", name="Retry these…").click()

    # The others of yesterday are in another range.
    expect(console.dialog()).to_contain_text(f"Retry {counted} failed jobs?")
    assert 0 < counted < 8
    console.page.keyboard.press("Escape")


def test_failures_of_one_office_are_shown_alone(console: Console, server: ServerThread) -> None:
    scheduler = server.server.scheduler
    server.run(scheduler.offices.create("elsewhere", name="Elsewhere"))
    job = server.run(scheduler.submit("fail", {"message": "only there"}, office_id="elsewhere", retry_policy=NO_RETRY))
    server.run(scheduler.wait(job.job_id))
    console.open("failures").loaded()
    expect(row(console, "KeyError")).to_have_count(1)

    console.page.get_by_label("Office").select_option("Elsewhere")

    expect(console.find(".failures > li")).to_have_count(1)
    expect(row(console, "only there")).to_be_visible()


def test_the_list_of_jobs_is_sorted_by_headings_and_by_the_field(console: Console) -> None:
    console.open("jobs?status=FAILED").loaded()
    started = console.find("tbody tr").first.get_attribute("data-job")
    console.page.get_by_label("Sort by").select_option("First ended first")
    expect(console.find("tbody tr").first).not_to_have_attribute("data-job", started or "")
    assert "sort=finished_at" in console.page.url
    first = console.find("tbody tr").first.get_attribute("data-job")

    console.button("Took").click()
    expect(console.find("th[aria-sort=descending]")).to_contain_text("Took")
    expect(console.find("tbody tr").first).not_to_have_attribute("data-job", first or "")
    longest = console.find("tbody tr").first.get_attribute("data-job")
    console.find("th[aria-sort=descending] button").click()
    expect(console.find("th[aria-sort=ascending]")).to_contain_text("Took")
    expect(console.find("tbody tr").first).not_to_have_attribute("data-job", longest or "")
    console.page.reload()

    expect(console.page.get_by_label("Sort by")).to_have_value("duration")
    expect(console.find("th[aria-sort=ascending]")).to_contain_text("Took")


def test_the_query_bar_suggests_fields_and_values_and_filters(console: Console) -> None:
    console.open("jobs").loaded()
    bar = console.find("input[type=search]")

    bar.press_sequentially("sta")
    expect(console.find("#query-items li")).to_have_count(1)
    bar.press("ArrowDown")
    bar.press("Enter")
    expect(bar).to_have_value("status:")
    expect(console.find("#query-items li")).to_have_count(7)
    bar.press_sequentially("fai")
    bar.press("ArrowDown")
    bar.press("Enter")
    expect(bar).to_have_value("status:failed ")
    bar.press_sequentially("params.source=orders upstr")
    bar.press("Enter")

    expect(console.find("tbody tr").first).to_contain_text("Import orders")
    expect(console.page).to_have_url(re.compile(r"q=status%3Afailed"))


def test_a_wrong_query_says_where_and_what_was_expected(browser: Browser, server: ServerThread) -> None:
    with opened(browser, server.url, refusals=("/api/jobs",)) as console:
        console.open("jobs").loaded()
        bar = console.find("input[type=search]")

        bar.fill("status:late")
        bar.press("Enter")

        expect(console.find(".trouble")).to_contain_text("'late' is no status; expected one of waiting, queued")
        bar.fill("status:failed")
        bar.press("Enter")
        expect(console.find(".trouble")).to_have_count(0)


def test_columns_are_chosen_and_remembered(console: Console) -> None:
    console.open("jobs").loaded()

    console.find(".menu summary", has_text="Columns").click()
    console.page.get_by_label("Finished").check()
    expect(console.find("th", has_text="Finished")).to_have_count(1)
    console.page.reload()

    expect(console.find("th", has_text="Finished")).to_have_count(1)


def test_an_export_has_what_the_filter_finds_and_no_formula(console: Console) -> None:
    console.open("jobs?q=params.source%3Dorders").loaded()
    expect(console.find("tbody tr").first).to_be_visible()

    console.find(".menu summary", has_text="Export").click()
    with console.page.expect_download() as saving:
        console.button("CSV").click()
    rows = list(csv.DictReader(io.StringIO(Path(saving.value.path()).read_text("utf-8-sig"))))
    console.says("Saved")
    console.find(".menu summary", has_text="Export").click()
    with console.page.expect_download() as saving:
        console.button("JSON").click()
    jobs = json.loads(Path(saving.value.path()).read_text())

    titles = [one["title"] for one in rows]
    assert f"'{FORMULA}" in titles
    assert HOSTILE in titles
    assert "'@SUM(1)" in [one["error_line"] for one in rows]
    assert [one["job_id"] for one in rows] == [one["job_id"] for one in jobs]


def test_the_page_of_a_job_type_shows_rates_and_last_errors(console: Console) -> None:
    console.open("types").loaded()

    console.find("main").get_by_role("link", name="ingest").click()

    expect(console.find("main h1")).to_have_text("ingest")
    expect(console.find("dd", has_text="100.0 %")).to_be_visible()
    expect(console.section("Last errors").locator(".message", has_text="KeyError")).to_be_visible()
    expect(console.find("figure.chart")).to_have_count(2)


def test_a_schedule_shows_its_last_outcomes(console: Console) -> None:
    console.open("schedules").loaded()

    expect(console.find(".strip a.is-failed").first).to_be_visible()
    expect(console.find(".strip a.is-failed").first).to_have_attribute("aria-label", re.compile("^failed "))


def test_the_palette_pauses_and_resumes(console: Console) -> None:
    console.open("now").loaded()

    console.page.keyboard.press("Control+k")
    console.find("input[role=combobox]").fill("pause everything")
    expect(console.page.get_by_role("option", name="Pause everything", exact=True)).to_be_visible()
    console.page.keyboard.press("Enter")
    console.says("Paused: everything.")
    console.page.keyboard.press("Control+k")
    console.find("input[role=combobox]").fill("resume everything")
    expect(console.page.get_by_role("option", name="Resume everything", exact=True)).to_be_visible()
    console.page.keyboard.press("Enter")

    console.says("Resumed: everything.")


def test_the_palette_finds_the_job_of_a_run(browser: Browser, server: ServerThread) -> None:
    run = server.run(server.server.scheduler.lists.runs()).items[0]
    with opened(browser, server.url, refusals=("/api/",)) as console:
        console.open("now").loaded()

        console.page.keyboard.press("Control+k")
        console.find("input[role=combobox]").fill(run.run_id)
        expect(console.find("[role=option]")).to_have_count(1)
        console.page.keyboard.press("Enter")

        expect(console.page).to_have_url(re.compile(f"jobs/{run.job_id}"))


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("size", [{"width": 1280, "height": 800}, {"width": 820, "height": 1180}, PHONE])
@pytest.mark.parametrize("view", ["failures", "types/ingest", "jobs?status=FAILED", "schedules"])
def test_each_view_is_accessible_and_fits(
    view: str, size: Any, colours: Any, browser: Browser, server: ServerThread
) -> None:
    with opened(browser, server.url, viewport=size, color_scheme=colours) as console:
        console.open(view).loaded()

        assert _violations(console.page) == []
        assert _too_wide(console.page) == []


@pytest.mark.parametrize("size", [{"width": 1280, "height": 800}, PHONE])
def test_the_suggestions_and_menus_are_accessible_and_fit(size: Any, browser: Browser, server: ServerThread) -> None:
    with opened(browser, server.url, viewport=size) as console:
        console.open("jobs").loaded()

        console.find("input[type=search]").press_sequentially("status:")
        expect(console.find("#query-items li")).to_have_count(7)
        assert _violations(console.page) == []
        assert _too_wide(console.page) == []
        console.page.keyboard.press("Escape")
        console.find(".menu summary", has_text="Columns").click()

        assert _violations(console.page) == []
        assert _too_wide(console.page) == []
