"""What `key=value` means: JSON where the schema wants it, else text."""

from typing import Any

import pytest

from nextslot.cli import arguments, output

SCHEMA = {
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "size": {"type": "number"},
        "on": {"type": "boolean"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "mode": {"enum": ["1", "2"]},
        "either": {"type": ["integer", "string"]},
        "there": {"$ref": "#/$defs/list"},
        "itself": {"$ref": "#/properties/itself"},
        "anything": {},
    },
    "$defs": {"list": {"type": "array"}},
}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("text=5", "5"), ("text=true", "true"), ('text="quoted"', "quoted"), ("count=5", 5), ("count=five", "five"),
        ("size=5", 5), ("size=5.5", 5.5), ("count=5.5", "5.5"), ("on=true", True), ("on=yes", "yes"),
        ("maybe=null", None), ("maybe=5", "5"), ("mode=1", "1"), ("either=5", 5), ("either=x", "x"),
        ("there=[1]", [1]), ("there=1", "1"), ("itself=1", 1), ("anything={}", {}), ("unknown=1", 1),
        ("unknown=a=b", "a=b"), ("text:=5", 5), ("empty=", ""),
    ],
)  # fmt: skip
def test_a_value_is_json_where_the_schema_allows_its_kind(word: str, value: Any) -> None:
    assert list(arguments.parameters([word], SCHEMA).values()) == [value]


def test_the_later_of_two_wins() -> None:
    assert arguments.parameters(["count=1", "count=2"], SCHEMA) == {"count": 2}


def test_a_name_wins_over_a_part_of_an_id() -> None:
    things = [("11112222", "aaaa"), ("aaaa3333", "other")]

    found = arguments.named(things, "aaaa", "thing", lambda one: one[0], lambda one: one[1])

    assert found == ("11112222", "aaaa")


def test_nothing_that_a_terminal_would_obey_is_printed() -> None:
    assert output.clean("a\x1b[2Jb\tc\r\n") == "a�[2Jb\tc�\n"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.04, "0.0 s"), (9.94, "9.9 s"), (59, "59 s"), (61, "1 min 1 s"), (7320, "2 h 2 min")]
)
def test_durations_are_said_as_people_do(seconds: float, words: str) -> None:
    assert output.duration(seconds) == words
