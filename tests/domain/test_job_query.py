"""The query of jobs in one line: what it means, and where it is wrong."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextslot.domain.filters import JobFilter
from nextslot.domain.job_query import JobSearch, Param, parsed, words_of
from nextslot.errors import Invalid
from nextslot.system.instant import Instant

NOW = Instant(1_794_830_400_000_000)


def test_bounds_of_the_end_are_times_and_the_narrower_one_holds() -> None:
    found = parsed("finished_after:2h finished_before:2030-01-01", NOW, JobFilter(finished_before=NOW))

    assert (found.finished_after, found.finished_before) == (NOW.after(-7200), NOW)
    assert found.usual_sort == "-finished_at"
    assert parsed("since:2h", NOW).usual_sort == "-created_at"


def test_every_part_narrows_the_filter() -> None:
    text = 'status:failed,cancelled type:ingest error:"ECONNRESET at" params.source=orders since:2h office:x role:FE'

    found = parsed(f"{text} Two words", NOW)

    assert isinstance(found, JobSearch)
    assert found.status == ("FAILED", "CANCELLED")
    assert (found.job_type, found.office_id, found.role) == (("ingest",), ("x",), ("FE",))
    assert found.error_words == ("econnreset", "at")
    assert found.params == (Param("source", "orders"),)
    assert found.created_after == NOW.after(-7200)
    assert found.words == ("two", "words")


def test_a_query_without_words_is_a_plain_filter() -> None:
    assert parsed("is:awaiting", NOW) == JobFilter(awaiting_signal=True)
    found = parsed("task:T-1 group:g template:t schedule:s retry_of:r fingerprint:f until:2026-11-16", NOW)

    assert type(found) is JobFilter
    assert (found.task_id, found.group_id, found.template_id) == (("T-1",), ("g",), ("t",))
    assert (found.schedule_id, found.retry_of, found.fingerprint) == (("s",), ("r",), ("f",))
    assert found.created_before == Instant(NOW - 12 * 3_600_000_000)


def test_a_query_cannot_widen_the_filter_that_it_is_given() -> None:
    own = JobFilter(office_id="a", created_after=NOW, created_before=NOW.after(10))

    assert parsed("office:a,b", NOW, own).office_id == ("a",)
    assert parsed("office:b", NOW, own) == replace(own, fingerprint="-")
    assert parsed("office:b office:c", NOW).fingerprint == ("-",)
    assert parsed("is:awaiting", NOW, JobFilter(awaiting_signal=True)) == JobFilter(awaiting_signal=True)
    asked_not = JobFilter(awaiting_signal=False)
    assert parsed("is:awaiting", NOW, asked_not) == replace(asked_not, fingerprint="-")
    assert parsed("status:failed", NOW, JobFilter(status="QUEUED")) == JobFilter(status="QUEUED", fingerprint="-")
    assert parsed("since:2h until:2030-01-01", NOW, own).created_after == NOW
    assert parsed("since:2h until:2030-01-01", NOW, own).created_before == NOW.after(10)


def test_what_may_be_a_part_of_an_id_is_looked_for_there() -> None:
    assert parsed("6f0a9e1b", NOW).q == "6f0a9e1b"
    assert isinstance(parsed("6f0a9e1b more", NOW), JobSearch)


def test_a_text_without_words_is_looked_for_as_it_is() -> None:
    assert parsed("% _", NOW) == JobFilter(q="% _")


def test_text_that_names_no_field_is_text() -> None:
    found = parsed("http://host/path :x a::b 12:30 C++", NOW)

    assert isinstance(found, JobSearch)
    assert found.words == ("http", "host", "path", "x", "a", "b", "12", "30", "c")


def test_quotes_hold_a_text_together() -> None:
    found = parsed(r'"two words" params.name="a \"b\" c"', NOW)

    assert isinstance(found, JobSearch)
    assert found.words == ("two", "words")
    assert found.params == (Param("name", 'a "b" c'),)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a foo:bar", "at character 3: 'foo' is no field; expected one of status, type"),
        ('error:"x', "at character 7: expected a closing quote"),
        ("since:soon", "at character 1: 'soon' is no time; expected how long ago, such as 2h"),
        ("a status:late", "at character 3: 'late' is no status; expected one of waiting, queued"),
        ("a is:late", "at character 3: 'late' is nothing that a job can be; expected awaiting"),
        ("type:", "at character 6: expected a value of 'type'"),
        ("type:,", "at character 1: expected a value of 'type'"),
        ("type=x", "at character 5: expected ':' after 'type'; only params.NAME takes '='"),
        ("params.x=", "at character 10: expected a value of 'params.x'"),
        ("error:!!", "at character 1: '!!' has no letter or digit"),
        ("a " * 31, "at character 61: expected the end: a query has at most 30 parts"),
        ("a" * 1001, "at most 1,000"),
    ],
)
def test_a_mistake_names_its_place_and_what_was_expected(text: str, problem: str) -> None:
    with pytest.raises(Invalid) as refused:
        parsed(text, NOW)

    assert problem in str(refused.value)


@given(st.text(max_size=100))
def test_any_text_is_a_filter_or_a_sentence(text: str) -> None:
    fields: set[str | None] = {"q"}
    try:
        parsed(text, NOW)
    except Invalid as refused:
        fields = {problem.field for problem in refused.problems}

    assert fields == {"q"}


def test_words_begin_with_the_wanted_ones() -> None:
    found = parsed("imp ord", NOW)
    assert isinstance(found, JobSearch)

    assert found.finds("Import of Orders", None, dict)
    assert found.finds("Import", "no orders", dict)
    assert not found.finds("Reimport Orders", None, dict)
    assert words_of("Ab-C_d 주문을 ä") == ["ab", "c", "d", "주문을", "ä"]


@pytest.mark.parametrize(
    ("query", "params", "is_found"),
    [
        ("params.n=3", {"n": 3}, True),
        ("params.n=3", {"n": "3"}, True),
        ("params.n=3", {"n": 30}, False),
        ("params.ok=true", {"ok": True}, True),
        ("params.a.b=x", {"a": {"b": "x"}}, True),
        ("params.a.b=x", {"a.b": "x"}, True),
        ("params.a.b=x", {"a": ["x"]}, False),
        ("params.a=null", {}, False),
        ("params.a=null", {"a": None}, True),
        ('params.a="[1,2]"', {"a": [1, 2]}, True),
    ],
)
def test_a_parameter_is_compared_as_text(query: str, params: dict[str, object], is_found: bool) -> None:
    found = parsed(query, NOW)
    assert isinstance(found, JobSearch)

    assert found.finds(None, None, lambda: params) is is_found
