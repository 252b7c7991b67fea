"""When a used-up quota is renewed, as headers of providers and outputs of commands say it."""

import time
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from nextslot import QuotaExceeded
from nextslot.executors.quota_times import pattern_problem, quota_in_output, seconds_of, seconds_of_headers
from nextslot.system.instant import Instant

NOW = Instant.of(datetime(2026, 11, 18, 13, 30, tzinfo=UTC))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "20"}, 20),
        ({"retry-after": "Wed, 18 Nov 2026 13:31:00 GMT"}, 60),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": "soon", "x-ratelimit-reset": "30"}, 30),
        ({"X-RateLimit-Reset": str(NOW // 1_000_000 + 90)}, 90),
        ({"x-ratelimit-reset": str(NOW // 1_000 + 90_000)}, 90),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6m0s"}, 360),
        (
            {
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-tokens": "6m0s",
                "x-ratelimit-remaining-tokens": "149984",
            },
            1,
        ),
        ({"anthropic-ratelimit-requests-reset": "2026-11-18T13:35:00Z"}, 300),
        ({"ratelimit-reset": "12"}, 12),
        ({"RateLimit": '"burst";r=7;t=60, "day";r=0;t=13'}, 13),
        ({"RateLimit": "limit=10, remaining=0, reset=15"}, 15),
        ({"RateLimit": "limit=10, remaining=4, reset=15"}, None),
        ({"retry-after": "-5"}, None),
        ({"content-type": "text/html"}, None),
        ({"retry-after": "Wed, 18 Nov 2020 13:31:00 GMT"}, 0),
    ],
)
def test_headers_of_providers_say_when_the_quota_is_renewed(headers: dict[str, str], seconds: float | None) -> None:
    assert seconds_of_headers(headers, NOW) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("15:00", 90 * 60),
        ("3pm", 90 * 60),
        ("3:15 p.m.", 105 * 60),
        ("13:30", 0),
        ("13:29", 0),
        ("13:28", 24 * 3600 - 120),
        ("12am", 10.5 * 3600),
        ("2h 30m", 9000),
        ("1 hour, 5 minutes", 3900),
        ("2026-11-18 14:00", 1800),
        ("2026-11-18T14:00:00+01:00", 0),
        ("1794999999.5", 1794999999.5 - NOW / 1e6),
        ("13pm", None),
        ("25:00", None),
        ("never", None),
        ("9999999999999999", 9999999999999.999 - NOW / 1e6),
    ],
)
def test_times_are_read_in_many_forms(text: str, seconds: float | None) -> None:
    found = seconds_of(text, NOW, ZoneInfo("UTC"))

    assert found == (None if seconds is None else pytest.approx(max(seconds, 0)))


def test_the_last_line_that_matches_says_until_when() -> None:
    pattern = r"limit reached.*resets (?P<until>\d{1,2}(:\d\d)?[ap]m) \((?P<zone>[\w/]+)\)"
    output = "working\nlimit reached, resets 3pm (Europe/Berlin)\nlimit reached, resets 4pm (Europe/Berlin)\nbye\n"

    found = quota_in_output(pattern, output, NOW)

    assert found == ("limit reached, resets 4pm (Europe/Berlin)", 90 * 60)
    assert quota_in_output(pattern, "all is well", NOW) is None
    assert quota_in_output("(?P<zone>x)(?P<until>7)", "x7", NOW) == ("x7", 7), "an unknown zone is left out"
    assert quota_in_output("limit", "the limit", NOW) == ("the limit", None)


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(a+)+b", "repeats a group"),
        ("(a|a)*b", "repeats a group"),
        ("(a{1,9}){2,9}b", "repeats a group"),
        ("(x(a*))+", "repeats a group"),
        ("a*a*a*b", "3 parts of any length"),
        ("(?=a*)b", "repeats a group"),
        ("(", "is not a regular expression"),
        ("(?P<when>x)", "has the group 'when'"),
        ("x" * 301, "is not a text of 1 to 300 characters"),
        (7, "is not a text of 1 to 300 characters"),
    ],
)
def test_a_pattern_whose_search_could_take_for_ever_is_refused(pattern: object, problem: str) -> None:
    assert problem in (pattern_problem(pattern) or "")


@pytest.mark.parametrize("pattern", [None, "limit reached.*until (?P<until>.+)", r"(usage|rate) limit (\d{1,3}%)?.*x"])
def test_usual_patterns_are_taken(pattern: str | None) -> None:
    assert pattern_problem(pattern) is None


def test_the_search_of_a_pattern_that_is_taken_is_bounded() -> None:
    pattern = "a*a*b"
    began = time.perf_counter()

    assert pattern_problem(pattern) is None
    assert quota_in_output(pattern, "\n".join(["a" * 1000] * 100), NOW) is None
    assert time.perf_counter() - began < 20


def test_a_handler_says_when_with_a_time_that_has_a_zone() -> None:
    assert QuotaExceeded(until=datetime(2026, 11, 18, 13, 30, tzinfo=UTC)).until == NOW
    assert QuotaExceeded.of_response({"retry-after": "7"}, resource="api").retry_after == 7
    with pytest.raises(ValueError, match="no time zone"):
        QuotaExceeded(until=datetime(2026, 11, 18, 13, 30))  # noqa: DTZ001
    with pytest.raises(ValueError, match="a number of seconds"):
        QuotaExceeded(retry_after=float("nan"))
