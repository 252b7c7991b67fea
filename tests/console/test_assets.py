"""The files of the console: complete, as published, under a strict policy, below any path."""

import gzip
import hashlib
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser

from nextslot.server.app import Options
from tests.server.support import ServerThread

from .support import opened

ROOT = Path(__file__).parents[2]
SOURCE = Path(str(resources.files("nextslot"))) / "console"
OURS = sorted(path for path in SOURCE.rglob("*.js") if "vendor" not in path.parts)
VENDORED = [SOURCE / "vendor", Path(__file__).parent / "vendor"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("assets"), Options(root_path="/below/it")) as running:
        yield running


def test_the_policy_lets_the_page_run_nothing_but_its_own_files(server: ServerThread) -> None:
    answer = httpx2.get(f"{server.url}/console/")

    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert (policy["script-src"], policy["style-src"], policy["connect-src"]) == ("'self'", "'self'", "'self'")
    assert (policy["base-uri"], policy["frame-ancestors"]) == ("'none'", "'none'")
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_console_without_its_slash_leads_to_the_one_with_it(server: ServerThread) -> None:
    answer = httpx2.get(f"{server.url}/console")

    assert (answer.status_code, answer.headers["location"]) == (307, "console/")


def test_files_are_small_on_the_wire_and_are_not_sent_twice(server: ServerThread) -> None:
    first = httpx2.get(f"{server.url}/console/app.js", headers={"Accept-Encoding": "gzip"})
    again = httpx2.get(f"{server.url}/console/app.js", headers={"If-None-Match": first.headers["etag"]})
    plain = httpx2.get(f"{server.url}/console/app.js", headers={"Accept-Encoding": "identity"})

    assert first.headers["content-encoding"] == "gzip"
    assert first.content == plain.content == (SOURCE / "app.js").read_bytes()
    assert (again.status_code, again.content) == (304, b"")
    assert "content-encoding" not in plain.headers


@pytest.mark.parametrize("name", ["../server/routes/keys.py", "..%2fapi%2fkeys.py", "views", "nothing.js"])
def test_nothing_but_its_files_is_served(name: str, server: ServerThread) -> None:
    assert httpx2.get(f"{server.url}/console/{name}").status_code == 404


def test_the_console_works_below_a_path(browser: Browser, server: ServerThread) -> None:
    with opened(browser, f"{server.url}/below/it") as console:
        console.open("now")

        asked = []
        console.page.on("request", lambda request: asked.append(request.url))
        console.open("jobs")
        console.open("system")

        assert asked
        assert all(url.startswith(f"{server.url}/below/it/") for url in asked)


@pytest.mark.parametrize("folder", VENDORED, ids=lambda folder: folder.parent.name)
def test_vendored_files_are_those_that_were_published(folder: Path) -> None:
    lines = [line.split("  ") for line in (folder / "SHA256SUMS").read_text().splitlines()]
    sums = {name: digest for digest, name in lines}

    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.suffix in (".js", ".txt")
    }

    assert found == sums
    assert any("LICENSE" in name for name in found)


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_our_modules_make_no_markup_from_text_and_need_no_loose_policy(path: Path) -> None:
    text = path.read_text()
    forbidden = ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "new Function", "javascript:")

    for word in forbidden:
        assert word not in text, word


def test_every_module_that_is_imported_is_there_and_every_one_that_is_there_is_used() -> None:
    used = {SOURCE / "app.js"}
    for path in OURS:
        for name in re.findall(r"""(?:from|import\(|URL\()\s*"(\.{0,2}/?[\w./-]+\.js)\"""", path.read_text()):
            target = (path.parent / name).resolve()
            assert target.is_file(), f"{path.name} imports {name}"
            used.add(target)

    assert set(OURS) <= used


def test_the_page_with_its_first_view_is_light() -> None:
    scripts = imported_by(["app.js", "views/overview.js", "texts/en.js"])
    first = [SOURCE / "index.html", SOURCE / "console.css", SOURCE / "icon.svg", *scripts]

    weight = sum(len(gzip.compress(file.read_bytes())) for file in first)

    assert weight < 50_000


def imported_by(names: list[str]) -> set[Path]:
    """These scripts, and all that a browser must load before one of them runs."""
    found: set[Path] = set()
    left = [SOURCE / name for name in names]
    while left:
        script = left.pop().resolve()
        if script not in found:
            found.add(script)
            imports = re.findall(r'^(?:import|export)[^;]*?from "(\.[^"]+)"', script.read_text(), re.MULTILINE)
            left += [script.parent / one for one in imports]
    return found
