"""Who may do what: the console asks for a key, offers what it may do, and takes a refusal politely."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, expect

from tests.server.support import ServerThread

from .support import Console, opened


@dataclass(frozen=True)
class Keys:
    admin: str
    reader: str
    submitter: str
    studio: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("keys")) as running:
        yield running


@pytest.fixture(scope="module")
def keys(server: ServerThread) -> Keys:
    async def make() -> Keys:
        scheduler = server.server.scheduler
        await scheduler.offices.create("studio")
        for office_id in ("default", "studio"):
            await scheduler.pause(office_id=office_id)
            await scheduler.submit("echo", title=f"of {office_id}", office_id=office_id)
        _, admin = await scheduler.keys.create("the admin", ["admin"])
        _, reader = await scheduler.keys.create("the reader", ["read"])
        _, submitter = await scheduler.keys.create("the submitter", ["submit"])
        _, studio = await scheduler.keys.create("of the studio", ["operate"], "studio")
        return Keys(admin, reader, submitter, studio)

    return server.run(make())


def enter(console: Console, key: str, view: str = "now") -> None:
    console.page.goto(f"{console.url}/console/#/{view}")
    console.page.get_by_label("API key").fill(key)
    console.button("Open the console").click()


@pytest.fixture
def door(browser: Browser, server: ServerThread, keys: Keys) -> Iterator[Console]:
    """Opens a console that has no key yet. The browser logs refusals too."""
    with opened(browser, server.url, refusals=("/api/",)) as console:
        yield console


def test_a_key_is_asked_for_a_wrong_one_is_told_and_the_right_one_stays_in_the_tab(door: Console, keys: Keys) -> None:
    enter(door, "wrong")
    expect(door.find("#key-problem")).to_contain_text("not known")

    enter(door, keys.admin)
    door.has_queue("of default")
    door.page.reload()

    door.has_queue("of default")
    expect(door.find(".line.live")).to_be_visible()
    assert keys.admin not in door.page.url
    assert door.page.evaluate("localStorage.length") == 0


def test_a_read_only_key_sees_everything_and_is_offered_nothing(
    door: Console, keys: Keys, server: ServerThread
) -> None:
    enter(door, keys.reader)
    door.has_queue("of default")

    for view in ("now", "jobs", "schedules", "groups", "offices", "offices/studio", "webhooks", "system"):
        door.open(view).loaded()
        for word in ("Pause", "Cancel", "Resume", "Submit", "New", "Save", "Delete", "Retry"):
            expect(door.find("main").get_by_role("button", name=re.compile(rf"^{word}\b"))).to_have_count(0)
    job = server.run(server.server.scheduler.queue())[0]
    door.open(f"jobs/{job.job_id}")

    expect(door.find("main h1")).to_contain_text("of default")
    expect(door.find(".head button")).to_have_count(0)
    expect(door.find("nav").get_by_role("link", name="Submit")).to_have_count(0)
    door.open("submit", is_live=False)
    expect(door.find(".trouble")).to_contain_text("may not submit")


def test_what_a_key_may_not_do_is_refused_politely_if_it_is_tried(
    door: Console, keys: Keys, server: ServerThread
) -> None:
    enter(door, keys.submitter)
    door.has_queue("of default")

    # As if its scope had changed since the page was opened.
    door.page.evaluate("import(new URL('parts.js', location.href)).then((parts) => parts.me.scopes.push('operate'))")
    door.find("nav").get_by_role("link", name="Jobs").click()
    door.find("nav").get_by_role("link", name="Now").click()
    door.button("Move of default to the front").wait_for()
    door.button("Resume").click()

    door.says("this needs a key with the scope 'operate'; yours has 'submit'")
    door.has_queue("of default")
    assert server.run(server.server.scheduler.lists.queue()).paused_by


def test_a_key_of_one_office_sees_that_office_and_works_there(door: Console, keys: Keys, server: ServerThread) -> None:
    enter(door, keys.studio)
    door.has_queue("of studio")

    for view in ("jobs", "offices", "offices/studio", "webhooks", "system", "submit"):
        door.open(view).loaded()
        expect(door.find("main .trouble")).to_have_count(0)
    door.open("jobs")

    expect(door.find("tbody tr")).to_have_count(1)
    expect(door.find("tbody tr")).to_contain_text("of studio")


def test_a_key_that_is_deleted_meanwhile_leads_back_to_the_door(
    door: Console, keys: Keys, server: ServerThread
) -> None:
    key, text = server.run(server.server.scheduler.keys.create("short-lived", ["read"]))
    enter(door, text)
    door.has_queue("of default")

    server.run(server.server.scheduler.keys.delete(key.key_id))
    door.page.goto(f"{door.url}/console/#/jobs")

    expect(door.page.get_by_label("API key")).to_be_visible()
    expect(door.find("#key-problem")).to_contain_text("not known")


def test_a_key_is_made_shown_once_and_deleted(door: Console, keys: Keys, server: ServerThread) -> None:
    enter(door, keys.admin, "system")

    door.button("New key").click()
    door.dialog().get_by_label("Name").fill("made here")
    door.dialog().get_by_role("button", name="Make it").click()
    text = door.dialog().locator(".secret").inner_text()
    door.dialog().get_by_role("button", name="I have it").click()
    row = door.section("key").locator("tr", has_text="made here")
    expect(row).to_contain_text("read")
    assert server.run(server.server.scheduler.keys.find(text)) is not None
    row.get_by_role("button", name="Delete").click()
    door.dialog().get_by_role("button", name="Delete it").click()

    expect(row).to_have_count(0)
    assert server.run(server.server.scheduler.keys.find(text)) is None
