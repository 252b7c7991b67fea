"""examples/office runs as it stands, and does what its README says; docs/offices.md names what there is."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

from nextslot.clock import Instant
from nextslot.faces.offices import Offices
from nextslot.model import Office
from nextslot.policy.offices import config_of
from nextslot.representation import office_config

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


def test_every_method_of_offices_is_listed_with_its_parameters() -> None:
    rows = re.findall(r"^\| `(\w+)\((.*?)\)` \|", PAGE.split("\n## Methods of offices\n")[1], re.MULTILINE)

    listed = {name: [part.strip("* ") for part in parameters.split(",")] for name, parameters in rows}

    methods = {name: method for name, method in vars(Offices).items() if not name.startswith("_")}
    assert listed == {name: list(inspect.signature(method).parameters)[1:] for name, method in methods.items()}


def test_every_setting_of_the_configuration_is_listed_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE.split("\n## Settings\n")[1].split("\n## ")[0], re.MULTILINE)

    shown = office_config(config_of(Office(office_id="o", name="o", created_at=Instant(0))))
    shown["maxConcurrentByRole"] = ", ".join(shown["maxConcurrentByRole"]) + ": 1 each"
    assert dict(rows) == {name: f"`{value}`" if name == "retryBackoff" else str(value) for name, value in shown.items()}
