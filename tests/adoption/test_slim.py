"""What an installation without extras can do, and how a command names the extra that it lacks."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from nextslot.cli.command import EXTRAS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/nextslot"
# Refuses the modules that it is given, as an environment does in which they are not installed.
WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
sys.argv = ["nextslot", *sys.argv[1:]]
"""
COMMAND = WITHOUT + "from nextslot.cli.command import main; main()"


def python(program: str, *words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", program, *words], cwd=cwd, capture_output=True, text=True, check=False)


def test_an_embedded_scheduler_needs_no_extra(tmp_path: Path) -> None:
    program = WITHOUT.format(modules=set(EXTRAS)) + "import runpy; runpy.run_path(sys.argv[1], run_name='__main__')"

    done = python(program, str(ROOT / "examples/newcomer/shop.py"), cwd=tmp_path)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [("ls",), ("--help",), ("serve",)])
def test_a_command_without_the_extra_cli_names_it(words: tuple[str, ...], tmp_path: Path) -> None:
    done = python(COMMAND.format(modules={"typer", "rich"}), *words, cwd=tmp_path)

    assert done.returncode == 1
    assert "pip install 'nextslot[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_serve_without_the_extra_server_names_it_and_stores_nothing(tmp_path: Path) -> None:
    modules = {module for module, extra in EXTRAS.items() if extra == "server"}

    done = python(COMMAND.format(modules=modules), "serve", "--port", "0", cwd=tmp_path)

    assert done.returncode == 1
    assert "pip install 'nextslot[server]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_other_commands_need_no_extra_but_cli(tmp_path: Path) -> None:
    modules = {module for module, extra in EXTRAS.items() if extra == "server"}

    done = python(COMMAND.format(modules=modules), "doctor", "--data", str(tmp_path), cwd=tmp_path)

    assert "nextslot[" not in done.stderr


def test_a_missing_module_of_no_extra_is_an_error_like_any_other(tmp_path: Path) -> None:
    done = python(COMMAND.format(modules={"orjson"}), "ls", cwd=tmp_path)

    assert "No module named 'orjson'" in done.stderr


def test_each_module_of_an_extra_is_installed_by_it() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    for module, extra in EXTRAS.items():
        named = {one.partition(">")[0].partition("[")[0].replace("-", "_") for one in extras[extra]}
        # FastAPI brings Starlette, whose versions it knows better than this project.
        assert module in named | ({"starlette"} if "fastapi" in named else set())


def test_the_page_on_deployment_lists_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    rows = re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "docs/deployment.md").read_text(), re.MULTILINE)

    assert sorted(rows) == sorted(extras)


def test_the_wheel_has_every_file_of_the_package_and_no_other(tmp_path: Path) -> None:
    packed = set(zipfile.ZipFile(build_wheel(tmp_path)).namelist())

    wanted = {
        f"nextslot/{path.relative_to(SOURCE).as_posix()}"
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in packed if not name.startswith("nextslot-") and not name.endswith("/")} == wanted
    assert {"nextslot/py.typed", "nextslot/console/index.html"} <= wanted
    assert any(name.endswith(".sql") for name in wanted)
    assert any(name.endswith("/licenses/LICENSE") for name in packed)


def build_wheel(directory: Path) -> Path:
    """Builds the wheel of this tree, and returns its path."""
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        if os.environ.get("CI") == "true":
            pytest.fail("there is no uv")
        pytest.skip("there is no uv")
    # The builder is a part of uv: nothing has to be fetched.
    command = [uv, "build", "--wheel", "--offline", "--out-dir", str(directory), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = directory.glob("*.whl")
    return wheel
