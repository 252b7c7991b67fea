"""Every view: accessible in light and dark, fits a phone, and shows hostile text as text."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.server.support import ServerThread

from .support import Console, opened
from .world import HOSTILE, furnish, live_through_yesterday

AXE = (Path(__file__).parent / "vendor/axe.min.js").read_text()
PHONE: Any = {"width": 390, "height": 844}
SIZES: Any = {
    "desktop": {"width": 1280, "height": 800},
    "tablet": {"width": 820, "height": 1180},
    "phone": PHONE,
}

VIEWS = {
    "overview": "overview",
    "now": "now",
    "jobs": "jobs",
    "failures": "failures?muted=true",
    "job types": "types",
    "a job type": "types/fail",
    "a job that is done": "jobs/{done}",
    "a job that failed": "jobs/{failed}",
    "a job that was cancelled": "jobs/{cancelled}",
    "a job that waits": "jobs/{queued}",
    "schedules": "schedules",
    "a schedule": "schedules/{schedule}",
    "groups": "groups",
    "a graph": "groups/{group}",
    "a graph around a job": "graph?job_id={queued}",
    "offices": "offices",
    "an office": "offices/studio",
    "webhooks": "webhooks",
    "system": "system",
    "submit": "submit?type=talk",
    "direct requests": "direct",
    "a direct request": "direct/{direct}",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    folder = tmp_path_factory.mktemp("views")
    live_through_yesterday(folder)
    with ServerThread(folder) as running:
        running.ids = running.run(furnish(running))  # type: ignore[attr-defined]
        yield running


def address(view: str, server: ServerThread) -> str:
    return VIEWS[view].format(**server.ids)  # type: ignore[attr-defined]


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_accessible_in_every_size_and_colour_and_runs_nothing_that_data_says(
    view: str, console: Console, server: ServerThread
) -> None:
    console.open(address(view, server)).loaded()

    for size in SIZES:
        console.page.set_viewport_size(SIZES[size])
        console.page.emulate_media(color_scheme="light")
        light = _violations(console.page)
        console.page.emulate_media(color_scheme="dark")
        # Of what axe looks at, only contrast depends on the colours.
        dark = _violations(console.page, "color-contrast")

        assert (size, light, dark, _too_wide(console.page)) == (size, [], [], [])
    assert console.page.evaluate("typeof hacked") == "undefined"
    assert console.page.locator("main img, main script, main iframe").count() == 0


def test_in_korean_every_view_is_accessible_and_fits(browser: Browser, server: ServerThread) -> None:
    with opened(browser, server.url, locale="ko-KR") as console:
        for view in VIEWS:
            # One page for all of them: only what differs is loaded.
            console.page.goto(f"{server.url}/console/#/{address(view, server)}")
            console.find("main h1").first.wait_for()
            expect(console.find("main .empty", has_text="불러오는 중")).to_have_count(0)
            for size in SIZES:
                console.page.set_viewport_size(SIZES[size])
                assert (view, size, _too_wide(console.page)) == (view, size, [])
            assert (view, _violations(console.page)) == (view, [])


# Where a dialog is opened from: the view, and its button.
DIALOGS = {
    "cancel a job": ("a job that waits", "Cancel…"),
    "change a job": ("a job that waits", "Change…"),
    "run a job again": ("a job that is done", "Run again…"),
    "trigger a schedule": ("a schedule", "Trigger now…"),
    "an office": ("offices", "New office"),
    "a role": ("an office", "New role"),
    "cancel an office's jobs": ("an office", "Cancel everything…"),
    "a subscription": ("webhooks", "New subscription"),
    "a key": ("system", "New key"),
    "pause everything": ("system", "Pause everything…"),
    "a template": ("submit", "New template"),
    "cancel a direct request": ("a direct request", "Cancel…"),
}


def test_every_dialog_is_accessible_and_fits(console: Console, server: ServerThread) -> None:
    for name, (view, button) in DIALOGS.items():
        console.page.emulate_media(color_scheme="light")
        console.page.set_viewport_size(SIZES["desktop"])
        console.page.goto(f"{server.url}/console/#/{address(view, server)}")
        console.button(button).first.click()
        expect(console.dialog()).to_be_visible()

        for size in SIZES:
            console.page.set_viewport_size(SIZES[size])
            found = _violations(console.page), _too_wide(console.page)
            assert (name, size, *found) == (name, size, [], [])
        console.page.emulate_media(color_scheme="dark")
        assert (name, _violations(console.page, "color-contrast")) == (name, [])
        console.page.keyboard.press("Escape")
        expect(console.dialog()).to_have_count(0)


@pytest.mark.parametrize(
    "view",
    [
        "now", "jobs", "failures", "a job that is done", "a job that failed", "schedules", "a schedule", "groups",
        "an office",
    ],
)  # fmt: skip
def test_hostile_text_is_shown_as_it_is(view: str, console: Console, server: ServerThread) -> None:
    console.open(address(view, server))

    expect(console.find("main").get_by_text(HOSTILE[:60]).first).to_be_attached()


def test_a_log_an_error_a_result_and_an_artifact_show_hostile_text_as_it_is(
    console: Console, server: ServerThread
) -> None:
    console.open(address("a job that is done", server))

    expect(console.find("pre.log")).to_contain_text(HOSTILE[:60])
    expect(console.section("How it ended").locator("pre")).to_contain_text("onerror=")
    expect(console.section("1 artifact")).to_contain_text("<b>said<b>.txt")

    console.open(address("a job that failed", server))

    expect(console.section("How it ended").locator("pre")).to_contain_text(HOSTILE[:60])


def test_an_artifact_is_saved_under_its_name(console: Console, server: ServerThread) -> None:
    console.open(address("a job that is done", server))

    with console.page.expect_download() as download:
        console.section("1 artifact").get_by_role("button", name="Save").click()

    assert Path(download.value.path()).read_text() == HOSTILE


def test_the_calendar_and_the_ledger_of_a_schedule_show_what_fired_and_why_the_rest_did_not(
    console: Console, server: ServerThread
) -> None:
    console.open(address("a schedule", server))

    ledger = console.section("Ledger")
    expect(ledger.get_by_text("disabled").first).to_be_visible()
    expect(ledger.locator("td", has_text="fired")).to_have_count(4)
    expect(console.find(".calendar .is-completed").first).to_contain_text("fired")
    expect(console.find(".calendar .is-skipped").first).to_contain_text("disabled")
    expect(console.section("Occurrences it would have").locator("li")).to_have_count(10)


def test_why_a_job_waits_is_said_with_links_to_who_holds_what_it_needs(console: Console, server: ServerThread) -> None:
    console.open(address("a job that waits", server))

    why = console.section("Why is it not running")
    expect(why.locator("li").first).to_be_visible()
    why.get_by_role("link").first.click()

    expect(console.find("main h1")).to_be_visible()
    assert "/jobs/" in console.page.url or "/direct/" in console.page.url


def test_a_view_that_does_not_exist_and_a_job_that_does_not_exist_say_so(
    browser: Browser, server: ServerThread
) -> None:
    with opened(browser, server.url, refusals=("/api/jobs/nobody",)) as console:
        console.page.goto(f"{server.url}/console/#/nowhere")
        expect(console.find("main")).to_contain_text("no such view")

        console.page.goto(f"{server.url}/console/#/jobs/nobody")
        expect(console.find(".trouble")).to_contain_text("nobody")


def test_going_elsewhere_right_after_the_first_drawing_is_noticed(console: Console) -> None:
    # In the very moment in which the view is drawn, before anything after it can run.
    console.page.add_init_script(
        """new MutationObserver((_, observer) => {
          if (!document.querySelector("#main")) return;
          observer.disconnect();
          history.replaceState(null, "", "#/jobs");
          dispatchEvent(new HashChangeEvent("hashchange"));
        }).observe(document, { childList: true, subtree: true });"""
    )
    console.page.goto(f"{console.url}/console/#/nowhere")

    expect(console.find("main h1")).to_have_text("Jobs")


def test_the_switch_of_colours_holds_after_a_reload(console: Console) -> None:
    console.open("now")

    console.page.get_by_role("button", name="Colours: auto").click()
    console.page.get_by_role("button", name="Colours: light").click()
    console.page.reload()

    expect(console.page.get_by_role("button", name="Colours: dark")).to_be_visible()
    expect(console.find("html")).to_have_attribute("data-theme", "dark")


def test_keys_of_the_keyboard_go_to_a_view_and_to_the_search(console: Console) -> None:
    console.open("now")

    console.page.keyboard.press("g")
    console.page.keyboard.press("j")
    expect(console.find("main h1")).to_have_text("Jobs")
    console.page.keyboard.press("/")

    expect(console.find("input[type=search]")).to_be_focused()


def _violations(page: Page, *rules: str) -> list[str]:
    page.evaluate(AXE)
    options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
    found = page.evaluate("async (options) => (await axe.run(options)).violations", options)
    return [f"{one['id']}: {one['nodes'][0]['html'][:160]} {one['nodes'][0]['failureSummary']}" for one in found]


def _too_wide(page: Page) -> list[str]:
    """Returns the elements that are wider than the screen and do not scroll themselves, once charts have their size."""
    found: list[str] = []
    for _ in range(50):
        found = page.evaluate("""() => {
            if (document.documentElement.scrollWidth <= innerWidth) return [];
            const isOut = (one) => one.getBoundingClientRect().right > innerWidth + 1 && !one.closest(".scroll *");
            return [...document.querySelectorAll("body *")].filter(isOut).map((one) => one.outerHTML.slice(0, 200));
        }""")
        if not found:
            break
        page.wait_for_timeout(100)
    return found
