"""examples/office runs as it stands, and does what its README says; docs/offices.md names what there is."""

import inspect
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from nextslot import Client
from nextslot.domain import Office
from nextslot.extensions.offices.client import Offices
from nextslot.extensions.offices.office_json import office_config
from nextslot.extensions.offices.office_service import OfficeJobService
from nextslot.extensions.offices.office_words import config_of
from nextslot.services.offices import OfficeService
from nextslot.system.instant import Instant

PAGE = (Path(__file__).parents[2] / "docs/offices.md").read_text()
EXAMPLE = Path(__file__).parents[2] / "examples/office"


def test_the_office_example_times_out_once_fails_once_and_ends_with_everything_done(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE / "run.py"), str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    *jobs, summary = ran.stdout.splitlines()
    assert [line.split()[0] for line in jobs] == ["PO", "Architect", "FE", "BE", "QA"]
    assert [line.partition("done")[2].strip() for line in jobs] == [
        "completed",
        "completed",
        "timeout, completed",
        "failed, completed",
        "completed",
    ]
    assert summary.startswith("5 done, 0 failed, ")
    assert len(list(tmp_path.rglob("report.md"))) == 5


def test_what_the_readme_of_the_example_says_to_paste_works_over_http(tmp_path: Path) -> None:
    begin, submit, more, change = re.findall(r"```sh\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)
    copy, serve = begin.splitlines()
    terminal = Terminal(tmp_path)
    terminal.paste(copy)
    with subprocess.Popen(["bash", "-c", f"exec {serve} --port 0 --json"], **terminal.options) as server:
        try:
            assert server.stdout is not None
            terminal.url = json.loads(server.stdout.readline())["url"]

            made = terminal.paste(submit)
            terminal.until_done(5)
            told = terminal.paste(more)
            refused = json.loads(terminal.paste(change))
        finally:
            server.kill()

    assert made.startswith('{"items":[')
    assert ("1 asked to stop" in told, '"done":5' in told) == (True, True), told
    assert (refused["status"], refused["code"]) == (409, "conflict")


class Terminal:
    """A shell in a directory that has the examples and the program."""

    url = ""

    def __init__(self, directory: Path) -> None:
        (directory / "examples").symlink_to(EXAMPLE.parent)
        program = directory / "bin/nextslot"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m nextslot.cli.main "$@"\n')
        program.chmod(0o755)
        path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        self.options: dict[str, Any] = {
            "cwd": directory,
            "env": {**os.environ, "PATH": path, "COLUMNS": "200"},
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
        }

    def live(self) -> dict[str, Any]:
        """Returns the options for a command that must keep running while the test pastes the others."""
        self.options["env"]["NEXTSLOT_URL"] = self.url
        return self.options

    def paste(self, lines: str, seconds: float = 300) -> str:
        self.options["env"]["NEXTSLOT_URL"] = self.url
        pasted = lines.replace("http://127.0.0.1:8000", self.url)
        ran = subprocess.run(["bash", "-ec", pasted], timeout=seconds, check=False, **self.options)
        assert ran.returncode == 0, ran.stderr
        return str(ran.stdout)

    def until_done(self, count: int) -> None:
        end = time.monotonic() + 60
        with Client(self.url) as client:
            offices = client.extension(Offices)
            while offices.stats("login").done < count:
                assert time.monotonic() < end, offices.stats("login")
                time.sleep(0.1)
            attempts = {one.role: len(one.executions) for one in offices.jobs_page("login").items}
        assert attempts == {"PO": 1, "Architect": 1, "FE": 2, "BE": 2, "QA": 1}


def test_every_method_of_offices_is_listed_with_its_parameters() -> None:
    rows = re.findall(r"^\| `(\w+)\((.*?)\)` \|", PAGE.split("\n## Methods of offices\n")[1], re.MULTILINE)

    listed = {name: [part.strip("* ") for part in parameters.split(",") if part] for name, parameters in rows}

    both = {**vars(OfficeService), **vars(OfficeJobService)}
    methods = {
        name: method for name, method in both.items() if not name.startswith("_") and name not in ("configure", "start")
    }
    assert listed == {name: list(inspect.signature(method).parameters)[1:] for name, method in methods.items()}


def test_every_setting_of_the_configuration_is_listed_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE.split("\n## Settings\n")[1].split("\n## ")[0], re.MULTILINE)

    shown = office_config(config_of(Office(office_id="o", name="o", created_at=Instant(0))))
    shown["maxConcurrentByRole"] = ", ".join(shown["maxConcurrentByRole"]) + ": 1 each"
    shown["retryOn"] = ", ".join(f"`{kind}`" for kind in shown["retryOn"])
    shown["retryBackoff"] = f"`{shown['retryBackoff']}`"
    assert dict(rows) == {name: "" if value is None else str(value) for name, value in shown.items()}
