"""Instants: points in time as they are stored and shown."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextslot import testing
from nextslot.clock import Instant, LoopAlarm, SchedulerAlarm, SystemClock
from nextslot.engine.timer import Timer


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


def test_a_timer_that_was_stopped_does_not_ring_and_waits_for_nothing() -> None:
    async def main() -> list[str]:
        rung: list[str] = []
        clock = testing.VirtualClock()
        timer = Timer(clock)
        timer.stop()
        timer.start(lambda: rung.append("ring"))
        timer.wake_by(clock.now().after(50))
        timer.stop()
        await asyncio.sleep(86400)
        assert not timer.is_late(clock.now())
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


def test_an_alarm_rings_when_it_finds_that_the_clock_was_set_back() -> None:
    async def main() -> list[float]:
        rung: list[float] = []
        clock, loop = testing.VirtualClock(), asyncio.get_running_loop()
        LoopAlarm(clock, lambda: rung.append(loop.time())).set(clock.now().after(5 * 3600))
        clock.jump(-86400)
        await asyncio.sleep(2 * 86400)
        return rung

    assert testing.run(main()) == [pytest.approx(3600)]


def test_DEC_003_the_alarm_of_production_is_one_job_of_APScheduler() -> None:
    async def main() -> tuple[list[bool], int, bool]:
        rung = asyncio.Event()
        clock = SystemClock()
        alarm = clock.alarm(rung.set)
        due = clock.now().after(0.05)
        alarm.set(clock.now().after(3600))
        alarm.set(due)
        assert isinstance(alarm, SchedulerAlarm)
        assert alarm._alarm_clock is not None
        jobs = len(alarm._alarm_clock._scheduler.get_jobs())
        await asyncio.wait_for(rung.wait(), 15)
        is_late = clock.now() >= due
        rung.clear()
        alarm.set(clock.now().after(0.02))
        alarm.set(None)
        await asyncio.sleep(0.1)
        return [is_late, rung.is_set()], jobs, alarm._alarm_clock is None

    assert asyncio.run(main()) == ([True, False], 1, True)


def test_the_alarm_of_production_looks_at_the_clock_at_least_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut into much shorter pieces here: the clock is put forward, and a wait of an hour is over at the next look."""
    monkeypatch.setattr(SchedulerAlarm, "LONGEST_WAIT", SchedulerAlarm.LONGEST_WAIT / 3000)

    async def main() -> bool:
        rung = asyncio.Event()
        clock = SetClock()
        clock.alarm(rung.set).set(clock.now().after(3600))
        clock.ahead = 3600
        return bool(await asyncio.wait_for(rung.wait(), 15))

    assert asyncio.run(main())


class SetClock(SystemClock):
    ahead = 0.0

    def now(self) -> Instant:
        return super().now().after(self.ahead)
