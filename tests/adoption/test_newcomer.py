"""A newcomer's project: it type-checks strictly, runs, and survives its second start."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/newcomer/shop.py"
PRINTED = """\
2 × tea sent
{'day': '2026-11-18', 'total': 5.0}
report of 2026-11-18
report 0 7 * * mon-fri Europe/Berlin
"""


def test_the_project_runs_and_survives_its_second_start(tmp_path: Path) -> None:
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, EXAMPLE], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )

        assert (done.returncode, done.stdout, done.stderr) == (0, PRINTED, "")


def test_the_project_type_checks_strictly(tmp_path: Path) -> None:
    assert mypy(tmp_path, EXAMPLE.read_text()) == ""


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ('charge.submit(ordr=order)', "ordr"),
        ('charge.submit(order="tea")', 'expected "Order"'),
        ('ship.run_direct(order=order, x=1)', '"x"'),
        ('ship.with_options(priorty=1)', "priorty"),
        ('scheduler.cron("@daily", timezon="UTC")', "timezon"),
        ('charge.submit()', "Missing positional argument"),
        ('int(await report.run_direct(day="today"))', 'expected "date | None"'),
    ],
)  # fmt: skip
def test_a_wrong_call_is_a_type_error(tmp_path: Path, wrong: str, why: str) -> None:
    text = EXAMPLE.read_text().replace("        print(await report", f"        {wrong}\n        print(await report")

    assert why in mypy(tmp_path, text)


def mypy(directory: Path, text: str) -> str:
    (directory / "project.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", directory.parent / "mypy", "project.py"],
        cwd=directory, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    return done.stdout if done.returncode else ""
