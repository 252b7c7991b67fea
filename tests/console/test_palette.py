"""The palette and the keys of the keyboard: to any view, job, group or schedule without a mouse."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from nextslot import NewJob
from tests.server.support import ServerThread

from .support import Console, opened
from .test_views import PHONE, _too_wide, _violations


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("palette")) as running:
        scheduler = running.server.scheduler

        async def furnish() -> dict[str, str]:
            await scheduler.pause(office_id="default")
            jobs = [await scheduler.submit("echo", title=title) for title in ("first import", "second import")]
            group, _ = await scheduler.submit_group([NewJob(job_type="echo")], "parallel", name="a pair")
            return {"job": jobs[0].job_id, "group": group.group_id}

        running.ids = running.run(furnish())  # type: ignore[attr-defined]
        yield running


def wanted(console: Console, text: str) -> None:
    console.page.keyboard.press("Control+k")
    console.find("input[role=combobox]").fill(text)


def test_the_palette_goes_to_a_view(console: Console) -> None:
    console.open("now")

    wanted(console, "webh")
    expect(console.find("#palette-items").get_by_role("option")).to_have_count(2)
    console.page.keyboard.press("Enter")

    expect(console.find("main h1")).to_have_text("Webhooks")
    expect(console.dialog()).to_have_count(0)
    expect(console.find("#main")).to_be_focused()


@pytest.mark.parametrize(("kind", "name"), [("job", "first import"), ("group", "a pair")])
def test_an_id_that_is_pasted_leads_to_what_has_it(
    kind: str, name: str, browser: Browser, server: ServerThread
) -> None:
    found: str = server.ids[kind]  # type: ignore[attr-defined]
    with opened(browser, server.url, refusals=("/api/",)) as console:
        console.open("system").loaded()

        wanted(console, f"see {found} please")
        expect(console.find("#palette-items").get_by_role("option")).to_have_count(1)
        expect(console.find("#palette-items").get_by_role("option")).to_contain_text(name)
        console.page.keyboard.press("Enter")

        expect(console.find("main h1")).to_contain_text(name)
        assert found in console.page.url


def test_the_palette_finds_jobs_by_their_title_and_leads_to_the_search(console: Console) -> None:
    console.open("now")

    wanted(console, "import")
    expect(console.find("#palette-items").get_by_role("option")).to_have_count(3)
    console.page.keyboard.press("ArrowUp")
    expect(console.find("[aria-selected=true]")).to_contain_text("Search jobs for “import”")
    console.page.keyboard.press("Enter")

    expect(console.find("tbody tr")).to_have_count(2)
    expect(console.find("input[type=search]")).to_have_value("import")


def test_what_is_not_found_is_said(browser: Browser, server: ServerThread) -> None:
    with opened(browser, server.url, refusals=("/api/",)) as console:
        console.open("now")

        wanted(console, "01900000-0000-7000-8000-000000000000")

        expect(console.dialog()).to_contain_text("Nothing found.")
        console.page.keyboard.press("Escape")
        expect(console.dialog()).to_have_count(0)


def test_rows_are_walked_chosen_and_opened_by_keys(console: Console) -> None:
    console.open("jobs?q=import")
    expect(console.find("tbody tr")).to_have_count(2)

    console.page.keyboard.press("j")
    console.page.keyboard.press("j")
    console.page.keyboard.press("x")
    expect(console.page.get_by_label("Choose first import")).to_be_checked()
    console.page.keyboard.press("k")
    console.page.keyboard.press("Enter")

    expect(console.find("main h1")).to_contain_text("second import")


def test_a_question_mark_shows_the_keys(console: Console) -> None:
    console.open("now")

    console.page.keyboard.press("?")

    expect(console.dialog()).to_contain_text("Keys of the keyboard")
    expect(console.dialog().locator("dt", has_text="g y")).to_be_visible()


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("size", [{"width": 1280, "height": 800}, {"width": 820, "height": 1180}, PHONE])
def test_the_palette_and_the_help_are_accessible_and_fit(
    size: Any, colours: Any, browser: Browser, server: ServerThread
) -> None:
    with opened(browser, server.url, viewport=size, color_scheme=colours) as console:
        console.open("now").loaded()

        console.page.keyboard.press("?")
        expect(console.dialog()).to_be_visible()
        assert _violations(console.page) == []
        assert _too_wide(console.page) == []
        console.page.keyboard.press("Escape")
        wanted(console, "import")
        expect(console.find("#palette-items").get_by_role("option")).to_have_count(3)

        assert _violations(console.page) == []
        assert _too_wide(console.page) == []
