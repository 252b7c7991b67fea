"""The README as a newcomer follows it: `./run`, then each line pasted as it stands; and no link leads nowhere."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BIN = Path(sys.executable).parent


def test_each_line_of_the_readme_works_beside_the_demo(tmp_path: Path) -> None:
    lines = re.findall(r"^```sh\n(curl.*?)^```$", README, re.MULTILINE | re.DOTALL)[0]
    demo = [
        sys.executable,
        "-u",
        "-m",
        "nextslot.cli.main",
        "demo",
        "--no-story",
        "--port",
        "0",
        "--data",
        str(tmp_path / "demo"),
    ]
    with subprocess.Popen(demo, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        try:
            address = next(re.findall(r"http://[\d.]+:\d+", line)[0] for line in process.stdout if "listens on" in line)
            # The README's server has the usual port, and its commands are in the repository's environment.
            script = lines.replace("localhost:8000", address.removeprefix("http://")).replace(".venv/bin", str(BIN))
            ran = subprocess.run(
                ["bash", "-exuo", "pipefail", "-c", script],
                env={**os.environ, "NEXTSLOT_URL": address},
                capture_output=True,
                text=True,
                timeout=90,
                check=False,
            )
        finally:
            process.kill()

    assert ran.returncode == 0, ran.stderr
    assert '"job_type":"send"' in ran.stdout
    assert "paused" in ran.stdout


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())

    assert [link for link in links if not (page.parent / link).exists()] == []


# Pages for those who develop nextslot. All other pages say in words what a rule says.
WITH_IDS = ("specification.md", "design-rules.md", "why.md", "architecture.md", "reliability.md")


def test_the_ids_of_requirements_stay_in_the_specification() -> None:
    pages = [ROOT / "README.md", *(page for page in (ROOT / "docs").glob("*.md") if page.name not in WITH_IDS)]

    found = {page.name: re.findall(r"\b(?:DEC|INV|CON|OQ)-\d+", page.read_text()) for page in pages}

    assert {name: ids for name, ids in found.items() if ids} == {}


def test_run_installs_all_that_the_demo_needs_in_a_tree_without_an_environment(tmp_path: Path) -> None:
    files = [
        "run",
        "scripts/bootstrap.sh",
        "scripts/get_uv.py",
        "pyproject.toml",
        "uv.lock",
        "README.md",
        "LICENSE",
        "src",
    ]
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, tmp_path / name)

    ran = subprocess.run(
        [tmp_path / "run", "--once", "--no-story", "--port", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    assert "group publish" in ran.stdout
