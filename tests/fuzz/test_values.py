"""Cron expressions, time zones, filters and configuration: whatever they say, the answer is a value or a sentence."""

import json
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from nextslot.config.loading import load
from nextslot.config.settings import Settings
from nextslot.domain import cron
from nextslot.domain.filters import EventFilter, JobFilter
from nextslot.errors import Invalid
from nextslot.system.instant import Instant
from tests.fuzz.grammars import crons, fuzzed, json_values, scalars, texts, zones

ROOT = Path(__file__).parents[2]
EXAMPLE = (ROOT / "examples" / "nextslot.toml").read_bytes()


NOW = Instant(1_794_873_600_000_000)


def value_or_sentence(call: Callable[[], Any]) -> tuple[Any, set[str | None]]:
    """Returns the value, or the fields that a refusal names; any other error fails the test."""
    try:
        return call(), set()
    except Invalid as error:
        problems = error.problems
    assert problems
    assert all(len(problem.problem) > 5 for problem in problems)
    return None, {problem.field for problem in problems}


@given(crons, zones)
@fuzzed(400)
def test_a_cron_expression_is_understood_or_refused_with_a_sentence(expression: str, zone: str) -> None:
    found, fields_ = value_or_sentence(lambda: cron.parse(expression, zone))
    assert fields_ <= {"cron_expression", "timezone"}
    if found is not None:
        first = found.after(NOW)
        assert first is None or first > NOW
        assert found.words


@pytest.mark.parametrize("kind", [JobFilter, EventFilter])
@given(st.data())
@fuzzed(300)
def test_a_filter_is_understood_or_refused_with_a_sentence(kind: Any, data: st.DataObject) -> None:
    names = [field.name for field in fields(kind)]
    given = data.draw(st.dictionaries(st.sampled_from(names), scalars | st.lists(scalars, max_size=4), max_size=3))

    _, wrong = value_or_sentence(lambda: kind(**given))

    assert wrong <= set(names)


def setting_names(model: type[BaseModel], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, field in model.model_fields.items():
        found.append((*path, name))
        for inner in [field.annotation, *getattr(field.annotation, "__args__", ())]:
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                found += setting_names(inner, (*path, name))
    return found


NAMES = setting_names(Settings)


def encoded(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def toml(path: tuple[str, ...], value: Any) -> str:
    """Returns one setting as TOML. Scalars and lists of JSON are valid TOML; None is not, and so is one more
    mistake.
    """
    return f"{'.'.join(json.dumps(part) for part in path)} = {json.dumps(value)}\n"


@given(st.lists(st.tuples(st.sampled_from(NAMES), scalars | st.lists(scalars, max_size=2)), max_size=3), texts)
@fuzzed(200)
def test_a_configuration_is_read_or_refused_with_its_places(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[tuple[tuple[str, ...], Any]], name: str
) -> None:
    text = "".join(toml(path, value) for path, value in wanted) + toml(("job_types", name, "command"), [name])
    check_configuration(tmp_path_factory, encoded(text))


@given(st.integers(0, len(EXAMPLE)), st.integers(0, 40), st.binary(max_size=8) | texts.map(encoded))
@fuzzed(200)
def test_a_configuration_with_a_slip_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, at: int, gone: int, new: bytes
) -> None:
    check_configuration(tmp_path_factory, EXAMPLE[:at] + new + EXAMPLE[at + gone :])


@given(st.dictionaries(st.sampled_from(NAMES), texts, max_size=3))
@fuzzed(150)
def test_settings_of_the_environment_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, wanted: dict[tuple[str, ...], str]
) -> None:
    environment = {f"NEXTSLOT_{'__'.join(path).upper()}": value for path, value in wanted.items() if len(path) > 1}

    value_or_sentence(lambda: load(tmp_path_factory.getbasetemp(), environment=environment))


def check_configuration(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed.toml"
    file.write_bytes(text)
    value_or_sentence(lambda: load(ROOT / "examples", file, environment={}).effective())


def test_the_grammar_makes_what_is_read_too() -> None:
    """Else all of the above would only prove that nothing is understood."""
    assert cron.parse("*/5 0-3 1,2 JAN Mon", "UTC").words
    assert tomllib.loads(EXAMPLE.decode())
    assert json_values().is_empty is False
