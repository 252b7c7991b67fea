"""Cron as Debian's crontab(5) and cron(8) describe it: a table written out by hand, and properties against an oracle.

Each case says: after this moment (UTC), these are the next occurrences, as the clock on the wall of that zone shows
them. The offsets are those of the zones' own rules; none of it was produced by the code under test.
"""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nextslot.domain import cron
from nextslot.domain.cron import Cron, Span, parse
from nextslot.errors import Invalid
from nextslot.system.instant import Instant

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"
KATHMANDU, APIA, HAVANA = "Asia/Kathmandu", "Pacific/Apia", "America/Havana"


def utc(text: str) -> Instant:
    return Instant.of(datetime.fromisoformat(text).replace(tzinfo=UTC))


CASES = [
    # Plain fields.
    ("30 6 * * *", "UTC", "2026-11-15 06:29", ["2026-11-15 06:30+00", "2026-11-16 06:30+00"]),
    ("30 6 * * *", "UTC", "2026-11-15 06:30", ["2026-11-16 06:30+00"]),
    ("* * * * *", "UTC", "2026-12-31 23:58", ["2026-12-31 23:59+00", "2027-01-01 00:00+00"]),
    ("0 * * * *", "UTC", "2026-11-15 06:00", ["2026-11-15 07:00+00", "2026-11-15 08:00+00"]),
    ("5,35 9 * * *", "UTC", "2026-11-15 09:05", ["2026-11-15 09:35+00", "2026-11-16 09:05+00"]),
    ("0 9-11 * * *", "UTC", "2026-11-15 09:30", ["2026-11-15 10:00+00", "2026-11-15 11:00+00", "2026-11-16 09:00+00"]),
    # Steps.
    ("*/20 * * * *", "UTC", "2026-11-15 06:10", ["2026-11-15 06:20+00", "2026-11-15 06:40+00", "2026-11-15 07:00+00"]),
    ("*/45 * * * *", "UTC", "2026-11-15 06:10", ["2026-11-15 06:45+00", "2026-11-15 07:00+00"]),
    ("10-59/20 * * * *", "UTC", "2026-11-15 06:00",
     ["2026-11-15 06:10+00", "2026-11-15 06:30+00", "2026-11-15 06:50+00", "2026-11-15 07:10+00"]),
    ("0 1-23/10 * * *", "UTC", "2026-11-15 00:00",
     ["2026-11-15 01:00+00", "2026-11-15 11:00+00", "2026-11-15 21:00+00", "2026-11-16 01:00+00"]),
    ("0 0 */10 * *", "UTC", "2026-11-02 00:00", ["2026-11-11 00:00+00", "2026-11-21 00:00+00", "2026-12-01 00:00+00"]),
    ("0 0 1 */5 *", "UTC", "2026-01-15 00:00", ["2026-06-01 00:00+00", "2026-11-01 00:00+00", "2027-01-01 00:00+00"]),
    ("7-7/3 * * * *", "UTC", "2026-11-15 06:00", ["2026-11-15 06:07+00", "2026-11-15 07:07+00"]),
    # Sunday is 0 and 7; 15 November 2026 is one.
    ("0 12 * * 0", "UTC", "2026-11-09 00:00", ["2026-11-15 12:00+00", "2026-11-22 12:00+00"]),
    ("0 12 * * 7", "UTC", "2026-11-09 00:00", ["2026-11-15 12:00+00", "2026-11-22 12:00+00"]),
    ("0 12 * * SUN", "UTC", "2026-11-09 00:00", ["2026-11-15 12:00+00", "2026-11-22 12:00+00"]),
    ("0 12 * * 5-7", "UTC", "2026-11-09 00:00",
     ["2026-11-13 12:00+00", "2026-11-14 12:00+00", "2026-11-15 12:00+00", "2026-11-20 12:00+00"]),
    ("0 12 * * 0-1", "UTC", "2026-11-09 13:00", ["2026-11-15 12:00+00", "2026-11-16 12:00+00", "2026-11-22 12:00+00"]),
    ("0 12 * * 1-5", "UTC", "2026-11-13 13:00", ["2026-11-16 12:00+00"]),
    # Names, in any case.
    ("0 12 * * mon-fri", "UTC", "2026-11-13 13:00", ["2026-11-16 12:00+00"]),
    ("0 12 * * Mon,wed", "UTC", "2026-11-14 00:00",
     ["2026-11-16 12:00+00", "2026-11-18 12:00+00", "2026-11-23 12:00+00"]),
    ("0 0 1 jan,Jul *", "UTC", "2026-02-01 00:00", ["2026-07-01 00:00+00", "2027-01-01 00:00+00"]),
    ("0 0 1 oct-dec *", "UTC", "2026-10-02 00:00",
     ["2026-11-01 00:00+00", "2026-12-01 00:00+00", "2027-10-01 00:00+00"]),
    # Day of month OR day of week when both are restricted. 13 November 2026 is a Friday.
    ("0 0 13 * 5", "UTC", "2026-11-01 00:00",
     ["2026-11-06 00:00+00", "2026-11-13 00:00+00", "2026-11-20 00:00+00", "2026-11-27 00:00+00",
      "2026-12-04 00:00+00", "2026-12-11 00:00+00", "2026-12-13 00:00+00"]),
    ("0 0 1,15 * mon", "UTC", "2026-11-01 00:00",
     ["2026-11-02 00:00+00", "2026-11-09 00:00+00", "2026-11-15 00:00+00", "2026-11-16 00:00+00"]),
    # … AND when one of them begins with a star, whatever follows it.
    ("0 0 */2 * 5", "UTC", "2026-11-01 00:00", ["2026-11-13 00:00+00", "2026-11-27 00:00+00", "2026-12-11 00:00+00"]),
    ("0 0 13 * */5", "UTC", "2026-01-14 00:00",
     ["2026-02-13 00:00+00", "2026-03-13 00:00+00", "2026-09-13 00:00+00", "2026-11-13 00:00+00"]),
    ("0 0 * * 5", "UTC", "2026-11-13 00:00", ["2026-11-20 00:00+00"]),
    ("0 0 13 * *", "UTC", "2026-11-13 00:00", ["2026-12-13 00:00+00"]),
    # Month ends and leap days.
    ("0 0 31 * *", "UTC", "2026-01-31 00:00",
     ["2026-03-31 00:00+00", "2026-05-31 00:00+00", "2026-07-31 00:00+00", "2026-08-31 00:00+00"]),
    ("0 0 30 * *", "UTC", "2026-01-30 00:00", ["2026-03-30 00:00+00"]),
    ("59 23 28-31 2 *", "UTC", "2026-02-01 00:00",
     ["2026-02-28 23:59+00", "2027-02-28 23:59+00", "2028-02-28 23:59+00", "2028-02-29 23:59+00"]),
    ("0 0 29 2 *", "UTC", "2026-01-01 00:00", ["2028-02-29 00:00+00", "2032-02-29 00:00+00"]),
    ("0 0 29 2 *", "UTC", "2096-03-01 00:00", ["2104-02-29 00:00+00"]),
    ("0 0 29 2 */7", "UTC", "2026-01-01 00:00", ["2032-02-29 00:00+00", "2060-02-29 00:00+00"]),
    # Names for whole expressions.
    ("@yearly", "UTC", "2026-11-15 00:00", ["2027-01-01 00:00+00", "2028-01-01 00:00+00"]),
    ("@annually", "UTC", "2026-11-15 00:00", ["2027-01-01 00:00+00"]),
    ("@monthly", "UTC", "2026-11-15 00:00", ["2026-12-01 00:00+00", "2027-01-01 00:00+00"]),
    ("@weekly", "UTC", "2026-11-15 00:00", ["2026-11-22 00:00+00"]),
    ("@daily", BERLIN, "2026-11-15 00:00", ["2026-11-16 00:00+01"]),
    ("@midnight", "UTC", "2026-11-15 00:00", ["2026-11-16 00:00+00"]),
    ("@HOURLY", "UTC", "2026-11-15 00:00", ["2026-11-15 01:00+00"]),
    # Berlin, 29 March 2026: 02:00 becomes 03:00. A time of day in the gap fires once, at its end.
    ("30 2 * * *", BERLIN, "2026-03-28 12:00", ["2026-03-29 03:00+02", "2026-03-30 02:30+02"]),
    ("0 2 * * *", BERLIN, "2026-03-28 12:00", ["2026-03-29 03:00+02", "2026-03-30 02:00+02"]),
    ("15,45 2 * * *", BERLIN, "2026-03-28 12:00", ["2026-03-29 03:00+02", "2026-03-30 02:15+02"]),
    ("0 2,3 * * *", BERLIN, "2026-03-28 12:00", ["2026-03-29 03:00+02", "2026-03-30 02:00+02", "2026-03-30 03:00+02"]),
    ("59 1 * * *", BERLIN, "2026-03-28 12:00", ["2026-03-29 01:59+01", "2026-03-30 01:59+02"]),
    # … a rhythm follows the clock.
    ("*/30 * * * *", BERLIN, "2026-03-29 00:15", ["2026-03-29 01:30+01", "2026-03-29 03:00+02", "2026-03-29 03:30+02"]),
    ("*/30 2 * * *", BERLIN, "2026-03-28 12:00", ["2026-03-30 02:00+02", "2026-03-30 02:30+02"]),
    ("30 * * * *", BERLIN, "2026-03-29 00:00", ["2026-03-29 01:30+01", "2026-03-29 03:30+02"]),
    # Berlin, 25 October 2026: 03:00 becomes 02:00. A time of day fires once, the first time.
    ("30 2 * * *", BERLIN, "2026-10-24 12:00", ["2026-10-25 02:30+02", "2026-10-26 02:30+01"]),
    ("0 3 * * *", BERLIN, "2026-10-24 12:00", ["2026-10-25 03:00+01", "2026-10-26 03:00+01"]),
    ("0,30 2 * * *", BERLIN, "2026-10-24 12:00", ["2026-10-25 02:00+02", "2026-10-25 02:30+02", "2026-10-26 02:00+01"]),
    # … a regular interval continues through both hours.
    ("*/30 2 * * *", BERLIN, "2026-10-24 12:00",
     ["2026-10-25 02:00+02", "2026-10-25 02:30+02", "2026-10-25 02:00+01", "2026-10-25 02:30+01",
      "2026-10-26 02:00+01"]),
    ("15 * * * *", BERLIN, "2026-10-24 23:30", ["2026-10-25 02:15+02", "2026-10-25 02:15+01", "2026-10-25 03:15+01"]),
    # New York: 8 March and 1 November 2026.
    ("30 2 * * 0", NEW_YORK, "2026-03-05 00:00", ["2026-03-08 03:00-04", "2026-03-15 02:30-04"]),
    ("30 1 * * *", NEW_YORK, "2026-10-31 12:00", ["2026-11-01 01:30-04", "2026-11-02 01:30-05"]),
    ("0 0 * * *", NEW_YORK, "2026-10-31 12:00", ["2026-11-01 00:00-04", "2026-11-02 00:00-05"]),
    # Lord Howe, by half an hour: 4 October 2026 02:00 becomes 02:30; 5 April 2026 02:00 becomes 01:30.
    ("15 2 * * *", LORD_HOWE, "2026-10-03 12:00", ["2026-10-04 02:30+11", "2026-10-05 02:15+11"]),
    ("45 2 * * *", LORD_HOWE, "2026-10-03 12:00", ["2026-10-04 02:45+11", "2026-10-05 02:45+11"]),
    ("45 1 * * *", LORD_HOWE, "2026-04-04 12:00", ["2026-04-05 01:45+11", "2026-04-06 01:45+10:30"]),
    ("*/15 2 * * *", LORD_HOWE, "2026-10-03 12:00",
     ["2026-10-04 02:30+11", "2026-10-04 02:45+11", "2026-10-05 02:00+11"]),
    ("*/15 2 * * *", LORD_HOWE, "2026-04-04 12:00",
     ["2026-04-05 02:00+10:30", "2026-04-05 02:15+10:30", "2026-04-05 02:30+10:30"]),
    ("45 * * * *", LORD_HOWE, "2026-04-04 14:00",
     ["2026-04-05 01:45+11", "2026-04-05 01:45+10:30", "2026-04-05 02:45+10:30"]),
    # Kathmandu: 5:45 ahead, and no clock changes.
    ("0 0 * * *", KATHMANDU, "2026-11-14 18:14", ["2026-11-15 00:00+05:45", "2026-11-16 00:00+05:45"]),
    ("*/30 6 * * *", KATHMANDU, "2026-11-15 00:20", ["2026-11-15 06:30+05:45", "2026-11-16 06:00+05:45"]),
    # Apia had no 30 December 2011: after the 29th at -10 came the 31st at +14.
    ("0 12 * * *", APIA, "2011-12-29 00:00", ["2011-12-29 12:00-10", "2011-12-31 12:00+14"]),
    ("0 0 * * *", APIA, "2011-12-29 12:00", ["2011-12-31 00:00+14", "2012-01-01 00:00+14"]),
    ("30 12 30 * *", APIA, "2011-12-01 12:00", ["2012-01-30 12:30+14"]),
    ("0 * * * *", APIA, "2011-12-30 08:30", ["2011-12-29 23:00-10", "2011-12-31 00:00+14", "2011-12-31 01:00+14"]),
    # Havana changes at midnight: 8 March 2026 00:00 becomes 01:00; 1 November 2026 01:00 becomes 00:00.
    ("0 0 * * *", HAVANA, "2026-03-07 12:00", ["2026-03-08 01:00-04", "2026-03-09 00:00-04"]),
    ("30 0 * * *", HAVANA, "2026-10-31 12:00", ["2026-11-01 00:30-04", "2026-11-02 00:30-05"]),
    ("*/30 0 * * *", HAVANA, "2026-10-31 12:00",
     ["2026-11-01 00:00-04", "2026-11-01 00:30-04", "2026-11-01 00:00-05", "2026-11-01 00:30-05"]),
    # Zones that changed for good: Pyongyang lost half an hour at 23:30 on 4 May 2018, which became midnight.
    ("45 23 * * *", "Asia/Pyongyang", "2018-05-04 00:00", ["2018-05-05 00:00+09", "2018-05-05 23:45+09"]),
    ("0 0 * * *", "Asia/Pyongyang", "2018-05-03 16:00", ["2018-05-05 00:00+09", "2018-05-06 00:00+09"]),
    # Where clocks went back over midnight: Toronto, 29 October 2006 aside, at 00:01 in St. John's until 2011.
    ("*/30 23 * * *", "America/St_Johns", "2010-11-06 12:00",
     ["2010-11-06 23:00-02:30", "2010-11-06 23:30-02:30", "2010-11-06 23:30-03:30", "2010-11-07 23:00-03:30"]),
    ("30 23 * * *", "America/St_Johns", "2010-11-06 12:00", ["2010-11-06 23:30-02:30", "2010-11-07 23:30-03:30"]),
    # … where a minute of the next day comes before the last hour of this one is over.
    ("* * * * *", "America/St_Johns", "2010-11-07 02:28",
     ["2010-11-06 23:59-02:30", "2010-11-07 00:00-02:30", "2010-11-06 23:01-03:30"]),
    ("*/30 * * * 6,7", "America/St_Johns", "2010-11-07 02:00",
     ["2010-11-07 00:00-02:30", "2010-11-06 23:30-03:30", "2010-11-07 00:00-03:30"]),
    ("*/30 * * * 5,6", "America/St_Johns", "2010-11-07 02:00", ["2010-11-06 23:30-03:30", "2010-11-12 00:00-03:30"]),
    ("*/30 * * 10 *", "America/St_Johns", "2009-11-01 02:00", ["2009-10-31 23:30-03:30", "2010-10-01 00:00-02:30"]),
    # Where the hour before midnight is left out, what was to be in it comes at midnight, with what is then anyway.
    ("0 0,23 * * *", "America/Nuuk", "2026-03-28 12:00",
     ["2026-03-29 00:00-01", "2026-03-29 23:00-01", "2026-03-30 00:00-01"]),
]  # fmt: skip


def test_the_table_has_enough_cases() -> None:
    assert len(CASES) >= 60


@pytest.mark.parametrize(("expression", "zone", "after", "expected"), CASES)
def test_the_next_occurrences_are_those_of_debians_cron(
    expression: str, zone: str, after: str, expected: list[str]
) -> None:
    plan = parse(expression, zone)
    at: Instant | None = utc(after)

    found = []
    for _ in expected:
        assert at is not None
        at = plan.after(at)
        assert at is not None
        found.append(at)

    assert [shown(plan, one) for one in found] == expected
    assert plan.between(utc(after), found[-1]) == found
    assert plan.span(utc(after), found[-1]) == Span(found[0], found[-1], len(found))


def shown(plan: Cron, at: Instant) -> str:
    local = plan.local(at)
    offset = local.strftime("%z")
    return local.strftime("%Y-%m-%d %H:%M") + (offset[:3] if offset.endswith("00") else f"{offset[:3]}:{offset[3:]}")


# What is refused.


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "1 to 200 characters"),
        ("* * * *", "five fields"),
        ("0 * * * * *", "five fields"),
        ("0 0 1 1 * 2027", "five fields"),
        ("@reboot", "is '@reboot', which is not a known name; use one of @yearly"),
        ("@every 5m", "is '@every 5m', which is not a known name; use one of"),
        ("60 * * * *", "minute '60'"),
        ("* 24 * * *", "hour '24'"),
        ("* * 0 * *", "day of month '0'"),
        ("* * 32 * *", "day of month '32'"),
        ("* * * 13 *", "month '13'"),
        ("* * * * 8", "day of week '8'"),
        ("* * * * foo", "day of week 'foo'"),
        ("jan * * * *", "minute 'jan'"),
        ("30-10 * * * *", "backwards"),
        ("* * * * fri-mon", "backwards"),
        ("0 0 20-10 * *", "backwards"),
        ("*/0 * * * *", "minute '*/0'"),
        ("5/15 * * * *", "write '5-59/15'"),
        ("* 8/2 * * *", "write '8-23/2'"),
        ("1--100000000 * * * *", "minute"),
        ("1-100000000 * * * *", "minute"),
        ("*/99999999 * * * *", "minute"),
        ("0 0 L * *", "day of month"),
        ("0 0 * * 5L", "day of week"),
        ("0 0 * * 1#2", "day of week"),
        ("0 0 15W * *", "day of month"),
        ("0 0 ? * *", "day of month"),
        ("-1 * * * *", "minute"),
        (", * * * *", "minute"),
        ("1,,2 * * * *", "minute"),
        ("* * * * *; rm", "five fields"),
        ("٣ * * * *", "minute"),
        ("*", "five fields"),
        ("0," * 96 + "0 * * * *", "1 to 200 characters"),
        ("0 0 30 2 *", "never happens"),
        ("0 0 31 4,6,9,11 *", "never happens"),
        ("0 0 30-31 feb *", "never happens"),
        ("0 0 30-31/1 feb *", "never happens"),
    ],
)
def test_what_is_no_expression_is_refused_with_the_reason(expression: str, reason: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(expression)

    [problem] = refused.value.problems
    assert problem.field == "cron_expression"
    assert reason in problem.problem


@pytest.mark.parametrize(
    "zone",
    [
        "Mars/Olympus",
        "",
        "Europe",
        "../../etc/passwd",
        "/etc/localtime",
        "x" * 100,
        "x" * 100_000,
        "UT C",
        "America.Argentina/Buenos_Aires",  # Which is found where zones come with Python packages, and not elsewhere.
        7,
    ],
)
def test_what_is_no_zone_is_refused(zone: Any) -> None:
    with pytest.raises(Invalid) as refused:
        parse("* * * * *", zone)

    assert [problem.field for problem in refused.value.problems] == ["timezone"]


# Words.


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("30 6 * * 1-5", "At 06:30 on Monday through Friday"),
        ("@daily", "At 00:00 every day"),
        ("*/5 * * * *", "Every 5 minutes"),
        ("*/30 9-17 * * *", "Every 30 minutes from 09:00 through 17:59"),
        ("*/7 * * * *", "Every seventh minute of every hour"),
        ("*/1 * * * *", "Every minute"),
        ("0 0 29 2 *", "At 00:00 on February 29"),
    ],
)
def test_an_expression_can_be_said_in_words(expression: str, words: str) -> None:
    assert cron.in_words(expression) == words


# Properties.


def numbers(first: int, last: int) -> st.SearchStrategy[str]:
    value = st.integers(first, last)
    span = st.tuples(value, value).map(sorted).map(lambda ends: f"{ends[0]}-{ends[1]}")
    step = st.integers(1, max(2, (last - first) // 2))
    item = st.one_of(
        value.map(str),
        span,
        st.tuples(span, step).map(lambda pair: f"{pair[0]}/{pair[1]}"),
        step.map(lambda n: f"*/{n}"),
    )
    return st.one_of(st.just("*"), st.lists(item, min_size=1, max_size=3).map(",".join))


EXPRESSIONS = st.tuples(numbers(0, 59), numbers(0, 23), numbers(1, 31), numbers(1, 12), numbers(0, 7)).map(" ".join)
ZONES = st.sampled_from(
    ["UTC", BERLIN, NEW_YORK, LORD_HOWE, KATHMANDU, APIA, HAVANA, "America/St_Johns", "America/Nuuk", "Africa/Cairo"]
)
# Any time from 2000 to 2040; and times shortly before the clocks of one of these zones change.
CHANGES = ["2026-03-28", "2026-10-24", "2026-03-07", "2026-10-31", "2026-10-03", "2026-04-04", "2011-12-29",
           "2010-11-06",
           "2010-03-13", "2026-04-23", "2026-10-29"]  # fmt: skip
MOMENTS = st.one_of(
    st.integers(946_684_800, 2_208_988_800).map(lambda seconds: Instant(seconds * 1_000_000)),
    st.tuples(st.sampled_from(CHANGES), st.integers(0, 86400)).map(lambda pair: utc(pair[0]).after(pair[1])),
)


@given(EXPRESSIONS, ZONES, MOMENTS, st.integers(1, 20))
@settings(deadline=None)
def test_one_after_the_other_between_and_counted_are_the_same(
    expression: str, zone: str, at: Instant, count: int
) -> None:
    plan = parsed(expression, zone)

    found, last = [], at
    for _ in range(count):
        following = plan.after(last)
        assert following is not None
        assert following > last
        found.append(following)
        last = following
    assume(last - at < 20 * 366 * 86400 * 1_000_000)

    assert plan.between(at, last) == found
    assert plan.span(at, last) == Span(found[0], last, count)
    assert plan.after(Instant(last - 1)) == last


@given(EXPRESSIONS, ZONES, MOMENTS)
@settings(deadline=None)
def test_two_days_are_what_a_minute_by_minute_walk_along_the_wall_clock_finds(
    expression: str, zone: str, at: Instant
) -> None:
    plan = parsed(expression, zone)
    until = at.after(2 * 86400)

    assert plan.between(at, until) == walk(expression, ZoneInfo(zone), at, until)


def walk(expression: str, zone: ZoneInfo, at: Instant, until: Instant) -> list[Instant]:
    """Steps like cron(8): in each minute it compares the wall clock with the expression, and checks whether the clock
    jumped over minutes.
    """
    is_rhythm = any(field.startswith("*") for field in expression.split()[:2])
    matches = matcher(expression)
    found: list[Instant] = []
    minute = timedelta(minutes=1)
    moment = (at.as_datetime() - timedelta(days=2)).replace(second=0, microsecond=0)
    shown_before = moment.astimezone(zone).replace(tzinfo=None)
    highest = shown_before
    while moment <= until.as_datetime():
        wall = moment.astimezone(zone).replace(tzinfo=None, fold=0)
        if is_rhythm:
            fires = matches(wall)
        else:
            # Every minute of the wall that was not shown yet, up to this one; but not of days that were left out whole.
            jumped = [highest + step * minute for step in range(1, int((wall - highest) / minute) + 1)]
            whole = {day for day in {at.date() for at in jumped} if is_left_out(day, shown_before, wall)}
            fires = any(matches(at) for at in jumped if at.date() not in whole)
        if fires and at.as_datetime() < moment:
            found.append(Instant.of(moment))
        shown_before, highest = wall, max(highest, wall)
        moment += minute
    return found


def matcher(expression: str) -> Callable[[datetime], bool]:
    """Returns a matcher by the text of crontab(5), written independently of the code."""
    minute, hour, day, month, weekday = expression.split()
    minutes, hours, days = values(minute, 0, 59), values(hour, 0, 23), values(day, 1, 31)
    months, weekdays = values(month, 1, 12), {number % 7 for number in values(weekday, 0, 7)}
    both = all if day.startswith("*") or weekday.startswith("*") else any

    def matches(wall: datetime) -> bool:
        is_day = both((wall.day in days, wall.isoweekday() % 7 in weekdays))
        return wall.minute in minutes and wall.hour in hours and wall.month in months and is_day

    return matches


def values(field: str, first: int, last: int) -> set[int]:
    found: set[int] = set()
    for item in field.split(","):
        span, _, step = item.partition("/")
        low, _, high = (f"{first}-{last}" if span == "*" else span).partition("-")
        found.update(range(int(low), int(high or low) + 1, int(step or 1)))
    return found


def is_left_out(day: date, before: datetime, after: datetime) -> bool:
    return before.date() < day < after.date()


@given(EXPRESSIONS)
@settings(deadline=None)
def test_words_are_found_for_everything(expression: str) -> None:
    assert parsed(expression, "UTC").words


@given(st.text(max_size=40))
def test_any_text_is_an_expression_or_is_refused(text: str) -> None:
    try:
        found = parse(text).after(Instant(0))
    except Invalid:
        return

    assert found is not None


def test_years_of_every_minute_are_counted_without_being_listed() -> None:
    start, end = utc("2016-01-01 00:00"), utc("2026-01-01 00:00")

    span = parse("* * * * *", BERLIN).span(start, end)

    assert span == Span(start.after(60), end, (end - start) // 60_000_000)


def parsed(expression: str, zone: str) -> Cron:
    try:
        return parse(expression, zone)
    except Invalid as refused:
        assume("never happens" not in str(refused))
        raise
