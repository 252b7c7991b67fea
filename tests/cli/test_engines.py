"""Runs on an engine at the command line: where they are, why they wait there, and how one is given up."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nextslot import Scheduler
from nextslot.executors.engines.engines import EngineSettings
from nextslot.executors.engines.local_engine import LocalEngine
from tests.cli.terminal import Terminal
from tests.serving import Served, serving


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    def prepare(scheduler: Scheduler) -> None:
        settings = EngineSettings(name="box", kind="local", slots=2, directory=tmp_path / "engines")
        settings.directory.mkdir()
        scheduler.job_types.engines.add(settings, LocalEngine())
        scheduler.job_types.add_command("stay", ["sleep", "60"], engine="box", retry_policy={"max_attempts": 0})

    with serving(tmp_path, prepare) as server:
        yield server


def test_a_run_on_an_engine_is_shown_with_its_place_and_is_given_up(nextslot: Terminal) -> None:
    job = nextslot("submit", "stay").word
    until = time.monotonic() + 60
    while "box, running, " not in (shown := nextslot("show", job).out):
        assert time.monotonic() < until, shown
        time.sleep(0.1)
    listed = nextslot("engine", "ls").rows
    why = nextslot("why", job).out
    given_up = nextslot("job", "lost", job)
    after = nextslot("show", job).out
    again = nextslot("job", "lost", job)

    assert [row[:7] for row in listed] == [["box", "local", "2", "0", "0", "1", "0"]]
    assert "It has been running on the engine 'box'" in why
    assert given_up.word == f"{job} is FAILED"
    assert "an operator has said that it is lost (crash)" in after
    assert "running" not in after
    assert (again.code, again.out) == (1, "")
    assert f"no engine runs job {job}, which is FAILED" in again.err
    assert "interrupt" not in again.err


def test_a_run_on_a_node_is_shown_without_an_engine_and_is_not_given_up(nextslot: Terminal, served: Served) -> None:
    job = nextslot("submit", "gated", "gate=node").word

    refused = nextslot("job", "lost", job)

    assert "engine" not in nextslot("show", job).out
    assert refused.code == 1
    assert f"no engine runs job {job}, which is " in refused.err
    assert "; cancel it instead" in refused.err
