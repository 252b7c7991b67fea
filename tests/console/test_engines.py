"""Runs that an engine has: where they are on the page of a job and of the system, and how one is said to be lost."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from nextslot import extension_api
from nextslot.executors.engines.local_engine import LocalEngine
from nextslot.server.app import Options
from tests.engines.rig import Rig
from tests.server.support import Server, ServerThread, served

from .support import Console


class WithEngine(ServerThread):
    """A server that hands runs over to an engine on this machine."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self._place = place

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        try:
            scheduler = Rig(self._place, LocalEngine()).scheduler(extensions=extension_api.used_by_server())
            async with served(Server(scheduler, Options())) as server:
                self._started.set_result((server, asyncio.get_running_loop()))
                await self._stop.wait()
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
            raise


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    with WithEngine(tmp_path) as running:
        yield running


def test_a_run_on_an_engine_says_where_it_is_and_is_said_to_be_lost(console: Console, server: ServerThread) -> None:
    scheduler = server.server.scheduler
    job = server.run(
        scheduler.submit("script", {"script": "sleep 60"}, title="far away", retry_policy={"max_attempts": 0})
    )
    console.open(f"jobs/{job.job_id}")
    facts = console.page.get_by_role("region", name="Run", exact=True)
    expect(facts).to_contain_text("box")
    expect(facts).to_contain_text("running there")

    console.open("system")
    engine = console.section("Engines").locator("tbody tr")
    expect(engine).to_have_count(1)
    expect(engine.locator("td")).to_have_text(["box", "test", "4", "0", "0", "1", "0"])

    console.open(f"jobs/{job.job_id}")
    console.button("It is lost…").click()
    console.dialog().get_by_role("button", name="It is lost").click()
    console.says("It has ended as lost.")
    expect(console.find("h1 ~ .status")).to_have_text("failed")
    expect(console.section("How it ended")).to_contain_text("an operator has said that it is lost")

    run = server.run(scheduler.run_of(job))
    assert run is not None
    assert run.failure_kind == "crash"


def test_a_run_on_this_machine_names_no_engine(console: Console, server: ServerThread) -> None:
    job = server.run(server.server.scheduler.submit("echo", title="near"))
    server.run(server.server.scheduler.wait(job.job_id))

    console.open(f"jobs/{job.job_id}")
    expect(console.page.get_by_role("region", name="Run", exact=True)).to_be_visible()

    expect(console.page.get_by_role("region", name="Run", exact=True).locator("dt", has_text="Engine")).to_have_count(0)
    expect(console.button("It is lost…")).to_have_count(0)
