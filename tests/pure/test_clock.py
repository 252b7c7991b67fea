"""Instants: points in time as they are stored and shown."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextslot import testing
from nextslot.clock import Instant, LoopAlarm, SystemClock


@given(st.datetimes(timezones=st.just(UTC)))
def test_an_instant_and_its_datetime_are_the_same_time(when: datetime) -> None:
    assert Instant.of(when).as_datetime() == when


def test_an_instant_does_not_depend_on_the_zone_it_was_given_in() -> None:
    seoul = datetime(2026, 11, 15, 16, 0, tzinfo=timezone(timedelta(hours=9)))

    assert Instant.of(seoul) == Instant.of(datetime(2026, 11, 15, 7, 0, tzinfo=UTC)) == testing.BEGINNING


def test_an_instant_prints_as_RFC_3339_to_the_microsecond() -> None:
    assert str(Instant(1_794_726_000_000_001)) == "2026-11-15T07:00:00.000001Z"
    assert str(Instant(0)) == "1970-01-01T00:00:00.000000Z"


def test_instants_sort_as_text_as_they_do_in_time() -> None:
    times = [Instant(at) for at in (0, 999_999, 1_000_000, 10**12, 10**15, testing.BEGINNING)]

    assert sorted(times, key=str) == sorted(times)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        Instant.of(datetime(2026, 1, 1))  # noqa: DTZ001


def test_after_counts_fractions_of_seconds_to_the_microsecond() -> None:
    assert Instant(1_000_000).after(0.25) == Instant(1_250_000)
    assert Instant(1_000_000).after(-1) == Instant(0)
    assert type(Instant(0).after(1)) is Instant


def test_the_system_clock_reads_the_wall_clock() -> None:
    before = datetime.now(UTC)

    now = SystemClock().now().as_datetime()

    assert before <= now + timedelta(microseconds=1)
    assert now <= datetime.now(UTC)


def test_an_alarm_rings_once_at_the_instant_it_was_last_set_to() -> None:
    async def main() -> list[float]:
        rung: list[float] = []
        clock, loop = testing.VirtualClock(), asyncio.get_running_loop()
        alarm = LoopAlarm(clock, lambda: rung.append(loop.time()))
        alarm.set(clock.now().after(50))
        alarm.set(clock.now().after(5 * 3600))
        await asyncio.sleep(86400)
        return rung

    assert testing.run(main()) == [pytest.approx(5 * 3600)]


def test_an_alarm_that_is_unset_does_not_ring() -> None:
    async def main() -> list[str]:
        rung: list[str] = []
        clock = testing.VirtualClock()
        alarm = LoopAlarm(clock, lambda: rung.append("ring"))
        alarm.set(clock.now().after(50))
        alarm.set(None)
        await asyncio.sleep(86400)
        return rung

    assert testing.run(main()) == []


@pytest.mark.parametrize("jump", [-1800, 1800, 7200])
def test_an_alarm_follows_a_clock_that_is_set_within_an_hour(jump: float) -> None:
    async def main() -> float:
        rung: list[float] = []
        clock = testing.VirtualClock()
        due = clock.now().after(2.5 * 3600)
        alarm = LoopAlarm(clock, lambda: rung.append((clock.now() - due) / 1e6))
        alarm.set(due)
        clock.jump(jump)
        await asyncio.sleep(86400)
        return rung[0]

    assert 0 <= testing.run(main()) <= 3600


def test_an_alarm_for_a_time_that_has_passed_rings_at_once() -> None:
    async def main() -> list[str]:
        rung: list[str] = []
        clock = testing.VirtualClock()
        LoopAlarm(clock, lambda: rung.append("ring")).set(clock.now().after(-10))
        await testing.settled()
        return rung

    assert testing.run(main()) == ["ring"]
