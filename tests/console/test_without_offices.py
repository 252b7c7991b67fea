"""The console of a server whose extension `offices` is off."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.server.support import ServerThread

from .support import Console


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(tmp_path, extensions=["stories", "legacy"]) as running:
        yield running


def test_without_the_extension_no_view_of_offices_is_offered_and_its_address_says_why(
    server: ServerThread, console: Console
) -> None:
    job = server.run(server.server.scheduler.submit("echo"))

    console.open("now").loaded()
    expect(console.find("nav a", has_text="Jobs")).to_have_count(1)
    expect(console.find("nav a", has_text="Offices")).to_have_count(0)
    for view in ("jobs", f"jobs/{job.job_id}", "submit?type=echo"):
        console.open(view).loaded()
        expect(console.find('main a[href^="#/offices"]')).to_have_count(0)

    for view in ("offices", "offices/default"):
        console.page.goto(f"{console.url}/console/#/{view}")
        expect(console.find("main")).to_contain_text("The extension offices is off on this server.")
