"""Fingerprints: what is alike has the same one, and what is not has another."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextslot.domain import FailureKind
from nextslot.domain.fingerprints import LINE_CHARACTERS, fingerprint


def of(error: str | None, office: str = "default", job_type: str = "ingest", kind: str = "error") -> str:
    return fingerprint(office, job_type, FailureKind(kind), error).fingerprint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("timed out after 30 s", "timed out after 4.5 s"),
        ("no job 0193f6a2-7b1c-7c3e-8d52-6f0a9e1b2c3d", "no job 0193f6a2-7b1c-7c3e-8d52-aaaaaaaaaaaa"),
        ("commit 1f0c9ab3d2 is bad", "commit 99aa00bb11ff is bad"),
        ("at 0x7f01 in", "at 0xFFEE00 in"),
        ("cannot open '/srv/a/1.csv'", "cannot open '/data/other file.csv'"),
        ('cannot open "C:\\temp\\a"', 'cannot open "D:\\x\\y\\z"'),
        ("cannot open /srv/a/1.csv now", "cannot open /var/b/2.csv now"),
        ("at 2026-11-16T07:00:01.5Z: bad", "at 2025-01-02 03:04:05+09:00: bad"),
        ("one\n  two", "one two"),
    ],
)
def test_errors_that_differ_in_numbers_ids_times_and_paths_are_alike(one: str, other: str) -> None:
    assert of(one) == of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("refused", "reset"), ("KeyError: 'source'", "KeyError: 'target'"), ("dead beef", "dead face"), ("a", None)],
)
def test_other_words_are_another_failure(one: str | None, other: str | None) -> None:
    assert of(one) != of(other)


def test_offices_types_and_kinds_have_fingerprints_of_their_own() -> None:
    found = {of("x"), of("x", office="b"), of("x", job_type="b"), of("x", kind="timeout")}

    assert len(found) == 4


def test_a_fingerprint_stays_the_same_from_release_to_release() -> None:
    found = fingerprint("default", "ingest", FailureKind.ERROR, "row 12 of '/a/b' failed at 0x1f")

    assert found == ("f46a4e54189c75f124041aa2", "row <n> of <path> failed at <hex>", "row 12 of '/a/b' failed at 0x1f")


@given(st.one_of(st.none(), st.text(max_size=3000)))
def test_any_error_has_a_fingerprint_of_bounded_length_on_one_line(error: str | None) -> None:
    found = fingerprint("default", "ingest", FailureKind.ERROR, error)

    assert len(found.fingerprint) == 24
    assert len(found.line) <= LINE_CHARACTERS
    assert len(found.pattern) <= LINE_CHARACTERS
    assert found.line.split() == found.line.split(" ") or not found.line


@pytest.mark.parametrize("part", ["0", "'/", "/a", "a/", "0-", "f", "00:", "'", "\\", "2026-01-01T"])
def test_no_error_takes_long(part: str) -> None:
    began = time.process_time()

    of(part * 1_000_000)

    assert time.process_time() - began < 0.5
