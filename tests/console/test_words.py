"""The texts of the console: one file for each language, complete, and nowhere else."""

import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.server.support import ServerThread

from .support import opened

SOURCE = Path(str(resources.files("nextslot"))) / "console"
MODULES = sorted(
    path for path in SOURCE.rglob("*.js") if not {"vendor", "texts"} & set(path.parts) and path.name != "i18n.js"
)
LANGUAGES = ("en", "ko")
WORD = re.compile(r"[A-Za-z]{2,}")
# Attributes and properties whose value a person reads.
READ = re.compile(r"\b(?:title|label|placeholder|none|aria-label|help|alt|text|action|no|done)(?:=|: )$")
# Names that are no words of a language: the product, a key of the keyboard, a quota as the API calls it.
NAMES = {"nextslot", "job_types"}


def texts(language: str) -> dict[str, str]:
    """Returns the entries of a file: one per line, as JSON texts."""
    lines = (SOURCE / "texts" / f"{language}.js").read_text().splitlines()
    found = [re.fullmatch(r'  (\w+): (".*"),', line) for line in lines]
    return {one[1]: json.loads(one[2]) for one in found if one}


@pytest.mark.parametrize("language", LANGUAGES[1:])
def test_every_language_has_the_keys_and_placeholders_of_english(language: str) -> None:
    english, other = texts("en"), texts(language)

    assert list(other) == list(english)
    for key, text in english.items():
        assert set(re.findall(r"\{\d\}", other[key])) == set(re.findall(r"\{\d\}", text)), key
        assert other[key].strip(), key


def test_korean_is_written_in_korean() -> None:
    latin = {key: text for key, text in texts("ko").items() if not re.search(r"[가-힣]", text)}

    assert set(latin) <= {"id", "url", "json", "json_2", "alt", "unit_ms"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_module_uses_keys_that_are_there(path: Path) -> None:
    source, known = path.read_text(), texts("en")

    for key in re.findall(r'\bt\("(\w+)"', source):
        assert key in known, key
    for unit in re.findall(r'\bplural\([^;`]*?, "([a-z ]+)"\)', source):
        assert f"n_{unit.replace(' ', '_')}" in known, unit


def test_every_text_is_used() -> None:
    source = "\n".join(path.read_text() for path in MODULES)
    used = set(re.findall(r'"(\w+)"', source)) | set(re.findall(r'"([a-z ]+)"', source))
    kinds = {*re.findall(r'\bsaid\("(\w+)"', source), *re.findall(r'\bchoices\("(\w+)"', source)}

    for key in texts("en"):
        is_code = any(key.startswith(f"{kind}_") for kind in kinds)
        assert key in used or key.removeprefix("n_").replace("_", " ") in used or is_code, key


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_module_has_no_text_of_its_own(path: Path) -> None:
    source = path.read_text()

    found = [*_between_tags(source), *_in_literals(source)]

    assert found == []


def _between_tags(source: str) -> Iterator[str]:
    """Returns words in markup, between two tags."""
    for markup in _markup(source):
        for text in re.findall(r">([^<>]*)<", markup):
            if WORD.search(text) and text.strip() not in NAMES:
                yield text.strip()


def _markup(source: str) -> Iterator[str]:
    """Returns templates of markup without the expressions in them; nested templates separately."""
    begin = source.find("html`")
    while begin >= 0:
        text, depth, at = [], 0, begin + 5
        while depth or source[at] != "`":
            if source.startswith("${", at):
                depth, at = depth + 1, at + 2
                continue
            if depth and source[at] in "{}":
                depth += 1 if source[at] == "{" else -1
            elif not depth:
                text.append(source[at])
            at += 1
        yield "".join(text)
        begin = source.find("html`", begin + 5)


def _in_literals(source: str) -> Iterator[str]:
    """Returns literals that are sentences, or values of attributes that people read."""
    code = re.sub(r"^\s*//.*$|\s// .*$", "", source, flags=re.MULTILINE)
    for match in re.finditer(r'"((?:[^"\\\n]|\\.)*)"', code):
        before, text = code[: match.start()][-60:], match[1]
        if not WORD.search(text) or re.search(r"\b(?:closest|querySelector(?:All)?)(?:\?\.)?\($", before):
            continue
        is_sentence = re.search(r"[A-Z][a-z]+ [a-z]+ [a-z]+", text) is not None
        if is_sentence or (READ.search(before) and text not in NAMES and not text.startswith("#")):
            yield text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("words")) as running:
        running.run(running.server.scheduler.pause(office_id="default"))
        running.run(running.server.scheduler.submit("echo", title="first"))
        yield running


def test_the_language_is_the_browsers_until_the_user_chooses_another(browser: Browser, server: ServerThread) -> None:
    with opened(browser, server.url, locale="ko-KR") as console:
        console.open("now")
        expect(console.find("main h1")).to_have_text("지금")
        expect(console.find("html")).to_have_attribute("lang", "ko")
        expect(console.section("대기열: 작업 1개")).to_be_visible()

        console.button("English").click()
        expect(console.find("main h1")).to_have_text("Now")
        console.page.reload()

        expect(console.section("Queue: 1 job")).to_be_visible()
        expect(console.find("html")).to_have_attribute("lang", "en")
