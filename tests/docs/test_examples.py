"""Every Python example in the README and the docs runs, and prints what it says it prints.

A block ```` ```python ```` is a program of its own; so is ```` ```python local-llm ````, which needs that extra,
```` ```python served ````, which finds a server in NEXTSLOT_URL, and ```` ```python postgres ````, which finds the
database of a scheduler in DATABASE_URL. Blocks ```` ```python continued ```` of a page are one program, run one after
the other with `await` at the top level, as in `python -m asyncio`. A comment that ends in `prints: …` is a line of the
output; there is no other output.
"""

import asyncio
import contextlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import databases
from tests.serving import serving
from tests.support import new_scheduler

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

NEEDS = ("served", "postgres")

TOP_LEVEL_AWAIT = """
import ast, asyncio, pathlib, sys
source = pathlib.Path(sys.argv[1]).read_text()
code = compile(source, sys.argv[1], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
asyncio.run(eval(code, {"__name__": "__main__"}))
"""


@dataclass(frozen=True)
class Program:
    name: str
    source: str
    is_continued: bool = False
    asks_a_model: bool = False
    # "served" or "postgres".
    needs: str = ""


def programs() -> list[Program]:
    found = []
    for page in PAGES:
        blocks = re.findall(r"^```python([^\n]*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
        alone = [source for kind, source in blocks if not kind.strip()]
        found += [Program(f"{page.stem}-{number}", source) for number, source in enumerate(alone, start=1)]
        asking = [source for kind, source in blocks if kind.strip() == "local-llm"]
        found += [Program(f"{page.stem}-local-llm", source, asks_a_model=True) for source in asking]
        for kind in NEEDS:
            needing = [source for needed, source in blocks if needed.strip() == kind]
            found += [Program(f"{page.stem}-{kind}-{n}", source, needs=kind) for n, source in enumerate(needing, 1)]
        continued = "\n".join(source for kind, source in blocks if kind.strip() == "continued")
        if continued:
            found.append(Program(f"{page.stem}-continued", continued, is_continued=True))
        assert {kind.strip() for kind, _ in blocks} <= {"", "continued", "local-llm", *NEEDS}, page
    return found


@pytest.mark.parametrize("program", programs(), ids=lambda program: program.name)
def test_an_example_does_what_it_says(tmp_path: Path, program: Program) -> None:
    if program.asks_a_model and importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("needs the extra local-llm")
    file = tmp_path / "example.py"
    file.write_text(program.source)
    harness = ["-c", TOP_LEVEL_AWAIT] if program.is_continued else []

    with surroundings(program, tmp_path) as variables:
        ran = subprocess.run(
            [sys.executable, "-W", "error", *harness, str(file)],
            cwd=tmp_path,
            env={**os.environ, "OLLAMA_BASE_URL": "http://127.0.0.1:9", **variables},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == re.findall(r"#.*?\bprints: (.*)$", program.source, re.MULTILINE)


@contextlib.contextmanager
def surroundings(program: Program, directory: Path) -> Iterator[dict[str, str]]:
    """What an example finds in its environment."""
    if program.needs == "served":
        with serving(directory) as server:
            yield {"NEXTSLOT_URL": server.url}
    elif program.needs == "postgres":
        databases.use("postgres")
        asyncio.run(started(directory))
        yield {"DATABASE_URL": databases.url(directory)}
        databases.spoil(directory)
        databases.use("sqlite")
    else:
        yield {}


async def started(directory: Path) -> None:
    """Makes the tables."""
    async with new_scheduler(directory, clock=None):
        pass


def test_the_readme_and_the_quickstart_have_examples() -> None:
    names = {program.name.partition("-")[0] for program in programs()}

    assert {"README", "quickstart", "how"} <= names


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_a_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())

    broken = [link for link in links if not link.startswith("http") and not leads_somewhere(page, link)]
    assert broken == []


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, heading = link.partition("#")
    target = page.parent / path if path else page
    return target.is_file() and (not heading or heading in anchors(target))


def anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub gives to headings, and those that the page itself sets."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a id="([^"]+)">', text))
