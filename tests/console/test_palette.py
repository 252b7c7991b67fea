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
    console.find("dialog input[role=combobox]").fill(text)


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


def test_a_row_has_the_focus_before_the_next_key_comes(console: Console) -> None:
    console.open("jobs?q=import")
    expect(console.find("tbody tr")).to_have_count(2)

    focused = console.page.evaluate(
        """() => ["j", "j", "k"].map((key) => {
            document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
            return document.activeElement.textContent.trim();
        })"""
    )

    assert focused == ["second import", "first import", "second import"]


def test_a_keyboard_that_writes_hangul_has_the_shortcuts_and_composes_in_peace(console: Console) -> None:
    # What Chromium says of these keys while a Korean input method is on.
    press = """([target, key, code, isComposing, ctrlKey]) => document.querySelector(target).dispatchEvent(
        new KeyboardEvent("keydown", { key, code, isComposing, ctrlKey, bubbles: true, cancelable: true }))"""
    console.open("overview").loaded()

    for key, code in (("ㅎ", "KeyG"), ("ㅓ", "KeyJ")):
        console.page.evaluate(press, ["body", key, code, False, False])
    expect(console.find("main h1")).to_have_text("Jobs")
    console.page.evaluate(press, ["body", "ㅏ", "KeyK", False, True])
    console.dialog().get_by_role("combobox").fill("now")
    console.page.evaluate(press, ["dialog input", "Enter", "Enter", True, False])
    expect(console.dialog()).to_be_visible()
    console.page.evaluate(press, ["dialog input", "Enter", "Enter", False, False])

    expect(console.find("main h1")).to_have_text("Now")


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


def test_the_palette_acts_on_the_job_whose_page_is_open(console: Console, server: ServerThread) -> None:
    scheduler = server.server.scheduler
    made = server.run(scheduler.submit("fail", title="breaks"))
    server.run(scheduler.pause(office_id="default"))
    ids = [server.run(scheduler.submit("echo", title=title)).job_id for title in ("alpha", "beta", "gamma")]
    console.open(f"jobs/{ids[2]}")

    wanted(console, "to the front")
    expect(console.find("#palette-items").get_by_role("option").first).to_have_text("Move gamma to the front")
    console.page.keyboard.press("Enter")
    console.says("To the front: gamma.")
    wanted(console, "cancel")
    console.find("#palette-items").get_by_role("option", name="Cancel gamma").click()
    console.dialog().get_by_role("button", name="Cancel 1 job").click()
    console.says("1 of 1 job cancelled or asked to stop.")

    assert server.run(scheduler.job(ids[2])).status == "CANCELLED"
    assert server.run(scheduler.job(made.job_id)).status in ("QUEUED", "FAILED")


def test_the_palette_acts_on_what_is_ticked_in_a_list(console: Console, server: ServerThread) -> None:
    scheduler = server.server.scheduler
    server.run(scheduler.resume(office_id="default"))
    failed = [server.run(scheduler.submit("fail", title=title)) for title in ("torn", "worn")]
    for job in failed:
        server.run(scheduler.wait(job.job_id))
    server.run(scheduler.pause(office_id="default"))
    waiting = [server.run(scheduler.submit("echo", title=title)).job_id for title in ("tick", "tock")]
    console.open("jobs?job_type=fail")
    for job in failed:
        console.page.get_by_label(f"Choose {job.title}").check()

    # Nothing is typed: what can be done with the chosen ones comes first.
    console.page.keyboard.press("Control+k")
    expect(console.find("#palette-items").get_by_role("option").first).to_have_text("Retry 2 jobs…")
    console.page.keyboard.press("Enter")
    console.dialog().get_by_role("button", name="Retry 2 jobs").click()
    console.says("2 of 2 jobs retried.")

    console.open("jobs?job_type=echo")
    for title in ("tick", "tock"):
        console.page.get_by_label(f"Choose {title}").check()
    wanted(console, "to the front")
    expect(console.find("#palette-items").get_by_role("option").first).to_have_text("Move 2 jobs to the front")
    console.page.keyboard.press("Enter")
    console.says("To the front: 2 jobs.")

    assert [job.job_id for job in server.run(scheduler.queue())][:2] == waiting


def test_job_types_are_reached_by_the_palette_and_by_a_key(console: Console, server: ServerThread) -> None:
    console.open("now")

    wanted(console, "job types")
    console.page.keyboard.press("Enter")
    expect(console.find("main h1")).to_have_text("Job types")
    expect(console.find("nav a", has_text="Job types")).to_have_attribute("aria-current", "page")
    console.page.keyboard.press("g")
    console.page.keyboard.press("n")
    expect(console.find("main h1")).to_have_text("Now")
    console.page.keyboard.press("g")
    console.page.keyboard.press("t")

    expect(console.find("main h1")).to_have_text("Job types")


def test_who_goes_back_leaves_the_palette(console: Console) -> None:
    console.open("now")
    console.find("nav a", has_text="Groups").click()
    expect(console.find("main h1")).to_have_text("Groups")
    console.page.keyboard.press("Control+k")
    expect(console.dialog()).to_be_visible()

    console.page.go_back()

    expect(console.find("main h1")).to_have_text("Now")
    expect(console.dialog()).to_have_count(0)
