"""The words of the office API: what they may say, at their bounds, and what a refusal is called in them."""

from typing import Any

import pytest

from nextslot.domain import MAX_PRIORITY, URGENT
from nextslot.domain.request_checks import MAX_SECONDS
from nextslot.errors import Invalid, Problem
from nextslot.extensions.offices.office_words import (
    in_config_words,
    in_office_words,
    milliseconds,
    new_jobs,
    settings_of,
)

CENTURY_MS = MAX_SECONDS * 1000


@pytest.mark.parametrize(("timeout_ms", "seconds"), [(0.5, 0.0005), (1, 0.001), (CENTURY_MS, MAX_SECONDS)])
def test_a_timeout_is_any_time_above_nothing_and_up_to_a_century(timeout_ms: float, seconds: float) -> None:
    (new,) = new_jobs("o", [{"description": "d", "timeout_ms": timeout_ms}], None)

    assert new.timeout_seconds == seconds


@pytest.mark.parametrize(("priority", "engines"), [(-MAX_PRIORITY, MAX_PRIORITY), (-URGENT, URGENT), (0, 0)])
def test_the_lowest_priority_goes_first_and_lower_than_all_is_urgent(priority: int, engines: int) -> None:
    (new,) = new_jobs("o", [{"description": "d", "priority": priority}], None)

    assert new.priority == engines


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timeout_ms", 0),
        ("timeout_ms", CENTURY_MS + 1),
        ("priority", MAX_PRIORITY + 1),
        ("priority", URGENT),
        ("priority", -URGENT - 1),
    ],
)
def test_what_is_beyond_the_bounds_is_refused_before_it_is_translated(field: str, value: Any) -> None:
    with pytest.raises(Invalid) as refused:
        new_jobs("o", [{"description": "d", field: value}], None)

    assert [problem.field for problem in refused.value.problems] == [f"jobs.0.{field}"]


@pytest.mark.parametrize(
    ("engines", "count", "offices"),
    [
        ("title", 1, "jobs.0.description"),
        ("jobs.1.timeout_seconds", 2, "jobs.1.timeout_ms"),
        ("params.title", 1, "jobs.0.params.title"),
        ("jobs.1.params.timeout_seconds", 2, "jobs.1.params.timeout_seconds"),
        ("jobs", 1, "jobs"),
        ("jobs.0.role", 1, "jobs.0.role"),
        ("idempotency_key", 1, "idempotency_key"),
        ("office_id", 2, "office_id"),
    ],
)
def test_a_refusal_names_what_the_request_named(engines: str, count: int, offices: str) -> None:
    told = in_office_words(Invalid([Problem(engines, "is wrong")]), count)

    assert told.problems == [Problem(offices, "is wrong")]


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ({"defaultTimeout": None}, {"timeout_seconds": None}),
        ({"defaultTimeout": CENTURY_MS}, {"timeout_seconds": MAX_SECONDS}),
        ({"retryBaseDelay": CENTURY_MS}, {"retry_policy": {"base_delay_seconds": MAX_SECONDS}}),
    ],
)
def test_a_time_of_the_configuration_is_in_milliseconds_and_only_a_timeout_may_be_none(
    config: dict[str, Any], settings: dict[str, Any]
) -> None:
    assert settings_of(config) == settings


@pytest.mark.parametrize(
    ("name", "value"),
    [("retryBaseDelay", None), ("retryBaseDelay", CENTURY_MS + 1), ("defaultTimeout", CENTURY_MS + 1)],
)
def test_what_is_no_time_is_refused_by_the_name_of_the_setting(name: str, value: Any) -> None:
    with pytest.raises(Invalid) as refused:
        settings_of({name: value})

    assert [problem.field for problem in refused.value.problems] == [name]


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("role_limits.back.end.two", "maxConcurrentByRole.back.end.two"),
        ("retry_policy.max_attempts", "maxRetries"),
        ("name", "name"),
    ],
)
def test_a_refused_setting_has_the_name_that_the_configuration_has_for_it(setting: str, name: str) -> None:
    assert in_config_words(Invalid([Problem(setting, "is wrong")])).problems == [Problem(name, "is wrong")]


@pytest.mark.parametrize(("seconds", "shown"), [(1.001, "1001"), (0.29, "290"), (0.0015, "1.5"), (0, "0")])
def test_milliseconds_are_whole_where_they_are(seconds: float, shown: str) -> None:
    assert repr(milliseconds(seconds)) == shown
