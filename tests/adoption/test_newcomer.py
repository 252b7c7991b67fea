"""A newcomer's project: it type-checks strictly, runs, and survives its second start."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import databases

PROJECT = Path(__file__).parents[2] / "examples/newcomer"
EXAMPLE = PROJECT / "shop.py"
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


def test_the_project_does_the_same_against_a_server(tmp_path: Path) -> None:
    (tmp_path / "nextslot.toml").write_text((PROJECT / "nextslot.toml").read_text())
    log = tmp_path / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "nextslot.cli.main", "serve", "--data", tmp_path, "--port", "0"],
            env={**os.environ, **databases.variables(tmp_path), "PYTHONPATH": str(PROJECT)},
            stdout=output, stderr=output,
        )  # fmt: skip
    try:
        done = subprocess.run(
            [sys.executable, PROJECT / "remote.py"], env={**os.environ, "NEXTSLOT_URL": address(server, log)},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    finally:
        server.terminate()
        server.wait(60)

    assert (done.returncode, done.stdout, done.stderr) == (0, PRINTED, "")


def address(server: "subprocess.Popen[bytes]", log: Path) -> str:
    end = time.monotonic() + 60
    while (found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())) is None:
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)
    return found[0]


def test_the_tests_of_the_project_pass_on_virtual_time(tmp_path: Path) -> None:
    for name in ("shop.py", "test_shop.py"):
        shutil.copy(PROJECT / name, tmp_path)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "test_shop.py"], cwd=tmp_path,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert done.stdout.splitlines()[-1].startswith("4 passed"), done.stdout


@pytest.mark.parametrize("name", sorted(one.name for one in PROJECT.glob("*.py")))
def test_the_project_type_checks_strictly(tmp_path: Path, name: str) -> None:
    shutil.copy(EXAMPLE, tmp_path)
    assert mypy(tmp_path, (PROJECT / name).read_text()) == ""


def test_the_project_type_checks_strictly_in_pyright_too(tmp_path: Path) -> None:
    for one in PROJECT.glob("*.py"):
        shutil.copy(one, tmp_path)
    (tmp_path / "wrong.py").write_text("from shop import charge\n\ncharge.submit(ordr=1)\n")
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')

    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson"], cwd=tmp_path,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip

    found = json.loads(done.stdout)["generalDiagnostics"]
    assert {Path(one["file"]).name for one in found} == {"wrong.py"}, done.stdout
    assert any('No parameter named "ordr"' in one["message"] for one in found)


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
