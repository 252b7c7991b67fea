"""The texts of the console: one file for each language, complete, and nowhere else."""

import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from nextslot.domain import FailureKind, JobStatus, Quotas, Scope, webhook_delivery
from nextslot.domain.declared_values import declared
from nextslot.domain.events import EventType
from nextslot.domain.groups import GroupStatus
from nextslot.domain.placements import PlacementState
from nextslot.domain.schedules import SkipReason
from nextslot.domain.webhooks import DeliveryStatus
from tests.server.support import ServerThread

from .js_literals import Literal, literals
from .support import opened

SOURCE = Path(str(resources.files("nextslot"))) / "console"
MODULES = sorted(
    path for path in SOURCE.rglob("*.js") if not {"vendor", "texts"} & set(path.parts) and path.name != "i18n.js"
)
LANGUAGES = ("en", "ko")
WORD = re.compile(r"[A-Za-z]{2,}")
# Attributes and properties whose value a person reads.
READ = re.compile(r"\b(?:title|label|placeholder|none|aria-label|help|alt|text|action|no|done)(?:=|: )$")
# Names that are no words of a language: the product.
NAMES = {"nextslot"}
# Functions that show a text which they are given.
SHOWING = {"toast", "attempt", "nothing", "eachOf", "useTitle", "sentence", "Error"}
# Where a text made of pieces is a name in the code: a key, an id, a value, an address, a name of a class.
NAMED = re.compile(
    r"\b(?:key|id|value|class|for|transform)(?:=\$\{|: )$"
    r"|\b(?:useKept|get|post|put|patch|pages|remove|act|getElementById)\($"
    r"|=> \[$|(?:class=\"|value=)\$\{\w+ \? $"
)
# Errors of the browser, parts of the page that are loaded later, kinds of a toast.
CODES = {
    "good",
    "bad",
    "AbortError",
    "Arrow",
    "Finder",
    "Help",
    "Bell",
    "Notices",
    "Accept",
    "Authorization",
    "Notification",
}
KEYS = {
    "Enter",
    "Escape",
    "Home",
    "End",
    "Tab",
    "ArrowUp",
    "ArrowDown",
    "ArrowLeft",
    "ArrowRight",
    "PageUp",
    "PageDown",
}
UNITS = {"kB", "MB", "GB"}


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


@pytest.mark.parametrize(
    ("kind", "codes"),
    [
        ("status", [*JobStatus, *GroupStatus, *DeliveryStatus]),
        ("failure", [*FailureKind]),
        ("hook", [*webhook_delivery.EVENTS, webhook_delivery.TEST_EVENT]),
        ("event", [*EventType]),
        ("quota", [one.name for one in declared(Quotas)]),
        ("placement", [*PlacementState]),
        ("skipped", [*SkipReason]),
        ("scope", [*Scope]),
    ],
)
def test_every_code_of_the_api_that_is_shown_has_words(kind: str, codes: list[str]) -> None:
    english = texts("en")

    assert [code for code in codes if f"{kind}_{str(code).replace('.', '_')}" not in english] == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_module_has_no_text_of_its_own(path: Path) -> None:
    source = path.read_text()

    found = [*_between_tags(source), *_in_literals(source), *_in_pieces_and_words(source)]

    assert found == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('toast(`${good} of ${all} retried.`);', ["{} of {} retried."]),
        ('const done = isLast ? `${n} jobs` : "";', ["{} jobs"]),
        ('eachOf(jobs, (job) => post(`api/jobs/${job.id}`, body), "retried");', ["retried"]),
        ('html`<button>${question.action || "OK"}</button>`;', ["OK"]),
        ('html`<p>${isOver && "Over"}</p>`;', ["Over"]),
        ('attempt(() => post("api/x"), "done");', ["done"]),
        ('html`<p title=${`${n} of them`}></p>`;', ["{} of them"]),
        ('html`<li key=${`free ${n}`} class=${one.state}>${t("free")}</li>`;', []),
        ('found.push({ key: `office ${one}`, text: t("office", one) });', []),
        ('if (event.key === "Enter") get(`api/jobs/${id}`); // press Enter', []),
        ('const is = status === "RUNNING" || /a "quoted" one/.test(name);', []),
    ],
)  # fmt: skip
def test_texts_in_pieces_and_single_words_are_found(source: str, found: list[str]) -> None:
    assert list(_in_pieces_and_words(source)) == found


def test_what_is_there_without_scripts_is_in_every_language() -> None:
    page = (SOURCE / "index.html").read_text()

    (said,) = re.findall(r"<noscript>(.*?)</noscript>", page, re.DOTALL)
    shown = re.sub(r"<noscript>.*?</noscript>", "", page, flags=re.DOTALL)

    assert 'lang="ko"' in said
    assert re.search(r"[가-힣]", said)
    assert set(re.findall(r"\w+", re.sub(r"<[^>]*>", " ", shown.split("<body>")[1]))) <= NAMES


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


def _in_pieces_and_words(source: str) -> Iterator[str]:
    """Returns texts that are put together of pieces, and single words that are shown."""
    for one in literals(source):
        is_shown = _is_pieces(one) if one.kind == "pieces" else _is_word(one)
        if is_shown:
            yield one.text


def _is_pieces(one: Literal) -> bool:
    """Says whether a template has a word of its own between spaces or at an end beside a space, and is no name."""
    words = set(re.findall(r"(?:(?<=\s)|^)[A-Za-z]{2,}(?=[\s.,:;!?…]|$)", one.text)) - UNITS
    is_sentence = bool(words) and re.search(r"\s", one.text.strip()) is not None
    return is_sentence and NAMED.search(one.before) is None


def _is_word(one: Literal) -> bool:
    """Says whether a literal is one word that people read: by a function that shows it, or by its capital."""
    if re.fullmatch(r"[A-Za-z]{2,}", one.text) is None or one.text in CODES | KEYS:
        return False
    if one.call in SHOWING:
        return re.search(r"[=!]==\s*$", one.before) is None
    return one.text == "OK" or re.fullmatch(r"[A-Z][a-z]+", one.text) is not None


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
