"""Instants: points in time as they are stored and shown."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextslot import testing
from nextslot.engine.execution.timeouts import Timer
from nextslot.system.alarm_clock import AlarmClock
from nextslot.system.clock import LoopAlarm, SchedulerAlarm, SharedClock, SystemClock
from nextslot.system.instant import Instant


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


async def test_an_alarm_rings_once_at_the_instant_it_was_last_set_to() -> None:
    rung: list[float] = []
    clock, loop = testing.VirtualClock(), asyncio.get_running_loop()
    alarm = LoopAlarm(clock, lambda: rung.append(loop.time()))
    alarm.set(clock.now().after(50))
    alarm.set(clock.now().after(5 * 3600))
    await asyncio.sleep(86400)
    assert rung == [pytest.approx(5 * 3600)]


async def test_an_alarm_that_is_unset_does_not_ring() -> None:
    rung: list[str] = []
    clock = testing.VirtualClock()
    alarm = LoopAlarm(clock, lambda: rung.append("ring"))
    alarm.set(clock.now().after(50))
    alarm.set(None)
    await asyncio.sleep(86400)
    assert rung == []


async def test_a_timer_that_was_stopped_does_not_ring_and_waits_for_nothing() -> None:
    rung: list[str] = []
    clock = testing.VirtualClock()
    timer = Timer()
    timer.stop()
    timer.start(clock.alarm(lambda: rung.append("ring")))
    timer.wake_by(clock.now().after(50))
    timer.stop()
    await asyncio.sleep(86400)
    assert not timer.is_late(clock.now())
    assert rung == []


@pytest.mark.parametrize("jump", [-86400, -1800, -2, 2, 1800, 7200])
async def test_an_alarm_rings_at_its_next_look_when_the_clock_has_stepped(jump: float) -> None:
    rung: list[float] = []
    clock, loop = testing.VirtualClock(), asyncio.get_running_loop()
    LoopAlarm(clock, lambda: rung.append(loop.time())).set(clock.now().after(5 * 3600))
    clock.jump(jump)
    await asyncio.sleep(2 * 86400)
    assert rung == [pytest.approx(3600)]


@pytest.mark.parametrize("jump", [-3600, 3600])
async def test_a_clock_that_steps_counts_on_until_it_is_let_follow(jump: float) -> None:
    clock = testing.VirtualClock()
    clock.jump(jump)
    await asyncio.sleep(60)
    before, has_stepped, offset = clock.now(), clock.has_stepped, clock.offset

    clock.follow()

    assert (before, has_stepped) == (testing.BEGINNING.after(60), True)
    assert (clock.now(), clock.has_stepped) == (testing.BEGINNING.after(60 + jump), False)
    assert clock.offset - offset == jump * 1_000_000


async def test_a_small_difference_is_no_step_and_is_shown_at_once() -> None:
    clock = testing.VirtualClock()
    clock.jump(0.9)

    assert (clock.now(), clock.has_stepped) == (testing.BEGINNING.after(0.9), False)


async def test_small_differences_that_add_up_are_a_step() -> None:
    """A clock that drifts is not taken for one that steps at each look, and its drift does not add up unnoticed."""
    clock = testing.VirtualClock()
    offsets = [clock.offset]
    for _ in range(100):
        clock.jump(0.1)
        clock.follow()
        offsets.append(clock.offset)
    steps = [later - earlier for earlier, later in pairwise(offsets) if later != earlier]
    assert steps == [1_100_000] * 9


def test_a_process_that_stands_still_between_two_readings_sees_no_step() -> None:
    """Stopped, or on a machine that is busy: the readings are taken again."""

    class Stalled(SystemClock):
        stalls = 0

        def _wall(self) -> int:
            wall = super()._wall()
            if self.stalls:
                self.stalls -= 1
                self.ahead += 30.0
            return wall

        ahead = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.ahead

    clock = Stalled()
    before = clock._measure()
    clock.stalls = 3

    assert clock._measure() == pytest.approx(before - 90_000_000, abs=20_000)


def test_a_machine_whose_clock_is_wrong_counts_by_the_servers() -> None:
    clock = WrongClock()

    clock.adjust(testing.BEGINNING, sent=100.0, received=100.02)
    clock.follow()

    assert clock.now() == testing.BEGINNING.after(clock.monotonic() - 100.01)


@pytest.mark.parametrize(
    ("server", "sent", "received", "moved"),
    [
        (0.0, 100.0, 100.02, 0.0),
        (0.09, 100.0, 100.0, 0.0),
        (0.3, 100.0, 100.02, 0.3),
        (-0.3, 100.0, 100.02, -0.3),
        (3600.0, 100.0, 100.02, 3600.0),
        (2.5, 100.0, 105.0, 0.0),
        (30.0, 100.0, 105.0, 27.5),
    ],
    ids=["right", "within what a network does", "ahead", "behind", "it has stepped", "slow", "slow, and has stepped"],
)
def test_a_slow_answer_of_the_server_moves_the_clock_only_as_far_as_it_is_sure(
    server: float, sent: float, received: float, moved: float
) -> None:
    clock = WrongClock()
    clock.adjust(testing.BEGINNING, 100.0, 100.0)
    clock.adjust(testing.BEGINNING.after(server), sent, received)
    clock.follow()

    assert (clock.now() - testing.BEGINNING.after(clock.monotonic() - 100)) / 1e6 == pytest.approx(moved, abs=0.02)


class WrongClock(SharedClock):
    """A machine whose wall clock is 437 s ahead, and that started a minute ago."""

    def monotonic(self) -> float:
        return 160.0

    def _wall(self) -> int:
        return super()._wall() + (437_000_000 if self._server is None else 0)


async def test_an_alarm_for_a_time_that_has_passed_rings_at_once() -> None:
    rung: list[str] = []
    clock = testing.VirtualClock()
    LoopAlarm(clock, lambda: rung.append("ring")).set(clock.now().after(-10))
    await testing.settled()
    assert rung == ["ring"]


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


@pytest.mark.parametrize("ahead", [3600, -3600])
@pytest.mark.real_time
async def test_the_alarm_of_production_looks_at_the_clock_at_least_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """Cut into much shorter pieces here: the clock is set, and a wait of an hour is over at the next look."""
    monkeypatch.setattr(SchedulerAlarm, "LONGEST_WAIT", SchedulerAlarm.LONGEST_WAIT / 3000)

    rung = asyncio.Event()
    clock = SetClock()
    clock.alarm(rung.set).set(clock.now().after(3600))
    clock.ahead = ahead
    assert bool(await asyncio.wait_for(rung.wait(), 15))


class SetClock(SystemClock):
    ahead = 0

    def _wall(self) -> int:
        return super()._wall() + self.ahead * 1_000_000


@pytest.mark.parametrize("hours", [-1, 1])
def test_APScheduler_rings_in_time_though_the_wall_clock_is_set(monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    """It goes by the wall clock, and would wait for an hour more after one that was set back by an hour."""

    class Set(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(hours=hours)

    async def main() -> bool:
        rung = asyncio.Event()
        alarm_clock = AlarmClock(rung.set)
        alarm_clock.ring_after(0.05)
        for module in (base, "nextslot.system.alarm_clock"):
            monkeypatch.setattr(f"{module}.datetime", Set)
        try:
            return bool(await asyncio.wait_for(rung.wait(), 15))
        finally:
            alarm_clock.close()

    base = "apscheduler.schedulers.base"
    assert asyncio.run(main())
