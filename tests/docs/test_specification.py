"""docs/specification.md holds every rule that code, tests and documents refer to, and names the tests of each rule."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "specification.md").read_text()
PLACES = ["src", "tests", "docs", "bench", "scripts", "examples"]
KINDS = {".py", ".sql", ".md", ".toml", ".js", ".html", ".css"}

# Every id, and every numbered part, of the design documents that the product was built from.
DESIGN = [
    *(f"inv-{n:03}" for n in range(1, 7)),
    *(f"dec-{n:03}" for n in range(1, 13)),
    *(f"con-{n:03}" for n in range(1, 5)),
    *("oq-001", "oq-002", "oq-003", "oq-004", "oq-006", "oq-007"),
    *(f"us-js{n:02}" for n in range(1, 7)),
    *(
        f"persistence-{n}-{m}"
        for n, most in ((1, 4), (2, 5), (3, 4), (4, 5), (5, 5), (6, 3))
        for m in range(1, most + 1)
    ),
    *(f"flow-{n}" for n in range(1, 8)),
    *(f"plan-{n}-{m}" for n, most in ((1, 8), (2, 4), (3, 3), (4, 3), (5, 5)) for m in range(1, most + 1)),
    *(f"guards-risk-{n}" for n in range(1, 6)),
    *(f"offices-model-{n}" for n in range(1, 4)),
    *(f"offices-{word}" for word in ("endpoints", "resolver", "queue", "timeouts", "loop", "errors", "events")),
]

_RULE = re.compile(
    r'^- <a id="spec-(?P<anchor>[\d-]+)"></a>(?:<a id="[\w-]+"></a>)*\*\*(?P<rule>\d+\.\d+)\*\*'
    r"(?: \((?P<ids>[^)]+)\))?(?P<planned> \*Planned\.\*)?",
    re.MULTILINE,
)
_ROW = re.compile(r"^\| \[(\d+\.\d+)\]\(#spec-[\d-]+\) \| (.+) \|$", re.MULTILINE)
_ID = re.compile(r"(?<![A-Za-z])(INV|DEC|CON|OQ)[-_](\d+)|(?<![A-Za-z])US[-_]JS(\d+)(?:_(AC\d))?")
_NUMBER = re.compile(r"\b[Ss]pec (\d+(?:\.\d+)?)(?![\d.]*\d)|(?:test|of)_spec_(\d+)(?:_(\d+))?(?!\d)")
# Forms that lead nowhere: a number without the word `spec`, and documents that are not in this repository.
_LOOSE = re.compile(
    r"\b[Ss]ections? \d|[a-z] \((?:[45]|11)\.\d[,)]|\b[Tt]he seed(?:'s)?\b(?! \d)"
    r"|\b(?:persistence|office|design|own) seed\b"
    r"|\b[Ss]pec(?:ification)? \d+(?:\.\d+)?(?:,| and| or) \d|def test_(?:[1-9]|1\d|20)_(?!000)|US_JS(?!\d)"
)


def test_the_specification_has_its_sections_and_no_number_twice() -> None:
    sections = re.findall(r'^<a id="section-(\d+)"></a>\n\n## (\d+)\. ', PAGE, re.MULTILINE)
    anchors = re.findall(r'<a id="([\w-]+)">', PAGE)

    assert [(int(anchor), int(number)) for anchor, number in sections] == [(n, n) for n in range(1, 22)]
    assert sorted(anchors) == sorted(set(anchors))
    assert len(rules()) > 150


def test_a_rule_has_the_anchor_of_its_number_and_of_its_ids_and_stands_in_its_section() -> None:
    for section, text in sections():
        for found in _RULE.finditer(text):
            assert found["rule"].partition(".")[0] == section, found["rule"]
            assert found["anchor"] == found["rule"].replace(".", "-")
            assert all(f'<a id="{one.lower()}"></a>' in found[0] for one in (found["ids"] or "").split(", ") if one)
    listed = re.findall(r"^- <a id=", PAGE, re.MULTILINE)
    assert len(listed) == len(rules()), "a rule is written in another form than the others"


def test_the_rules_of_a_section_are_in_the_order_of_their_numbers() -> None:
    """There may be gaps: the number of a rule that was dropped is not given again."""
    for _, text in sections():
        numbers = [int(found["rule"].partition(".")[2]) for found in _RULE.finditer(text)]

        assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("place", [*PLACES, "README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_every_reference_to_the_specification_leads_to_a_rule_or_a_section(place: str) -> None:
    lost = [f"{where}: {name}" for where, line in lines(place) for name in references(line) if name not in targets()]

    assert lost == []


@pytest.mark.parametrize("place", [*PLACES, "README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_a_reference_has_a_form_that_can_be_looked_up(place: str) -> None:
    loose = [f"{where}: {found[0]}" for where, line in lines(place) for found in _LOOSE.finditer(line)]

    assert loose == [], "write it as `spec 7.2`, or say the rule in words"


def test_the_checks_notice_what_leads_nowhere() -> None:
    assert list(references("as INV-009, spec 2.99 and DEC_007 say")) == ["inv-009", "dec-007", "spec-2-99"]
    assert list(references("def test_spec_2_10_and_more(): # spec 7")) == ["spec-2-10", "section-7"]
    assert list(references("def test_US_JS01_AC4_a_cycle(): # US-JS06")) == ["us-js01-ac4", "us-js06"]
    assert {"inv-009", "spec-2-99"}.isdisjoint(targets())
    assert {"dec-007", "spec-2-10", "section-7", "us-js01-ac4", "us-js06"} <= targets()
    for line in (
        "(section 7)",
        "a run (5.1)",
        "the seed's words",
        "the office seed",
        "spec 4 and 14",
        "test_US_JS_a()",
    ):
        assert _LOOSE.search(line), line
    assert _LOOSE.search("def test_5_1_a() -> None:")


def test_every_rule_that_holds_today_has_tests_and_no_planned_rule_has_any() -> None:
    holding = {rule for rule, is_planned in rules().items() if not is_planned}

    assert set(table()) == holding


@pytest.mark.parametrize("rule", sorted(re.findall(_ROW, PAGE)), ids=lambda row: row[0])
def test_the_tests_that_show_a_rule_exist(rule: tuple[str, str]) -> None:
    missing = [name for name in re.findall(r"`(\w+)`", rule[1]) if name not in named_tests()]

    assert missing == []


def test_every_id_of_a_rule_that_holds_today_is_in_the_name_or_docstring_of_a_test() -> None:
    """So who looks for INV-004 finds its tests without the table."""
    ids = {
        one.lower()
        for found in _RULE.finditer(PAGE)
        if not found["planned"]
        for one in (found["ids"] or "").split(", ")
        if one
    }
    cited = {
        name.partition("-ac")[0] for texts in named_tests().values() for text in texts for name in references(text)
    }

    assert ids - cited == set()


@pytest.mark.parametrize("name", DESIGN)
def test_every_id_of_the_design_has_a_rule_whose_tests_exist(name: str) -> None:
    (line,) = [line for line in PAGE.splitlines() if f'<a id="{name}"></a>' in line]
    rule = _RULE.match(line)
    named = [rule["rule"]] if rule else re.findall(r"\[(\d+\.\d+)\]\(#spec-", line)

    assert named
    holding = [one for one in named if one in table()]
    assert holding or (rule is not None and rule["planned"]), "no rule of it holds today"
    assert all(test in named_tests() for one in holding for test in table()[one])


def test_nothing_in_the_source_relies_on_a_planned_rule() -> None:
    planned = {f"spec-{rule.replace('.', '-')}" for rule, is_planned in rules().items() if is_planned}

    relying = [where for where, line in lines("src") if planned.intersection(references(line))]

    assert relying == []


def test_a_word_of_the_glossary_is_explained_once_in_one_line() -> None:
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    words = [word for word, _ in rows]

    assert len(words) > 50
    assert sorted(words) == sorted(set(words))
    assert [word for word, meaning in rows if not meaning.endswith(".") or meaning == "."] == []


def sections() -> Iterator[tuple[str, str]]:
    parts = re.split(r"^## (?:(\d+)\. )?.*$", PAGE, flags=re.MULTILINE)
    yield from ((number, text) for number, text in zip(parts[1::2], parts[2::2], strict=True) if number)


def rules() -> dict[str, bool]:
    """Returns every rule, and whether it is only planned."""
    return {found["rule"]: bool(found["planned"]) for found in _RULE.finditer(PAGE)}


def table() -> dict[str, list[str]]:
    """Returns the tests that the specification names for each rule."""
    return {rule: re.findall(r"`(\w+)`", names) for rule, names in _ROW.findall(PAGE)}


@cache
def targets() -> frozenset[str]:
    return frozenset(re.findall(r'<a id="([\w-]+)">', PAGE))


def references(line: str) -> Iterator[str]:
    """Returns the anchors to which a line refers."""
    for family, number, story, criterion in _ID.findall(line):
        if family:
            yield f"{family}-{number}".lower()
        else:
            yield "-".join(part for part in (f"us-js{story}", criterion.lower()) if part)
    for text, section, rule in _NUMBER.findall(line):
        name = text or ".".join(part for part in (section, rule) if part)
        yield ("spec-" if "." in name else "section-") + name.replace(".", "-")


def lines(place: str) -> Iterator[tuple[str, str]]:
    """Yields each line of our own files in a directory, with its place. Leaves out vendored files and this file, which
    contains bad references.
    """
    start = ROOT / place
    files = sorted(start.rglob("*")) if start.is_dir() else [start]
    for path in files:
        if path.suffix in KINDS and "vendor" not in path.parts and path != Path(__file__):
            for number, line in enumerate(path.read_text().splitlines(), start=1):
                yield f"{path.relative_to(ROOT)}:{number}", line


@cache
def named_tests() -> dict[str, list[str]]:
    """Yields every test, with the texts in which it may cite a rule: its name, its docstring and its module's
    docstring.
    """
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        module = ast.parse(path.read_text())
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                texts = [node.name, ast.get_docstring(node) or "", ast.get_docstring(module) or ""]
                found.setdefault(node.name, []).extend(texts)
    return found


def test_every_test_and_file_that_the_rules_of_the_design_name_is_there() -> None:
    page = (ROOT / "docs" / "design-rules.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    files = set(re.findall(r"`((?:src|docs|tests)/[\w./-]+)`", page))
    anchors = set(re.findall(r"specification\.md#([\w-]+)", page)) - {
        "which-tests-show-a-rule",
        "deliberate-differences",
    }

    assert len(page.splitlines()) > 600
    assert sorted(named - named_tests().keys()) == []
    assert sorted(one for one in files if not (ROOT / one).exists()) == []
    assert sorted(one for one in anchors if one not in targets()) == []
