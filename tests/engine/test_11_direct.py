"""Spec 11: direct requests take the next slot, and nothing is interrupted (DEC-004)."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from nextslot import Fail, Limits, NewJob, Scheduler, testing
from nextslot.domain import Direct, DirectStatus, FailureKind
from nextslot.errors import (
    Conflict,
    Draining,
    Invalid,
    NotFound,
    SlotBusy,
    Unavailable,
    UnknownJobType,
)
from nextslot.store.contract import Store, Tx
from nextslot.store.maintenance import doctor
from tests.support import database, history, new_scheduler, running_scheduler, states


async def test_DEC_004_the_order_is_running_then_direct_then_the_queue(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        order = watch_starts(scheduler)
        running = await scheduler.submit("work", {"seconds": 10})
        queued = [await scheduler.submit("work", {"seconds": 1}) for _ in range(5)]
        before = await places(scheduler)

        callers = [asyncio.ensure_future(scheduler.run_direct("work", {"seconds": 2, "n": n})) for n in range(10)]
        await asyncio.sleep(15)
        during = await places(scheduler)
        ended = await asyncio.gather(*callers)
        await scheduler.wait(queued[-1].job_id)

        assert before == during, "the queue's order is what it was, to the byte"
        assert [direct.status for direct in ended] == [DirectStatus.COMPLETED] * 10
        assert [direct.result["n"] for direct in by_start(ended)] == list(range(10)), "first come, first served"
        assert order == [running.job_id, *(d.direct_id for d in by_start(ended)), *(job.job_id for job in queued)]
        assert (await scheduler.wait(running.job_id)).status == "COMPLETED", "nothing is preempted"


async def test_a_caller_who_waits_keeps_back_what_it_needs_and_no_more(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, limits=Limits(running=3)) as scheduler:
        scheduler.job_type("paint", resources=["gpu"])(paint)
        for office_id in "ops":
            await scheduler.offices.create(office_id)
        running = await scheduler.submit("work", {"seconds": 50}, resources=["gpu"], office_id="s")
        caller = asyncio.ensure_future(scheduler.run_direct("paint", office_id="s"))
        await testing.settled()
        first, second = [await scheduler.submit("work", {"seconds": 50}, office_id=office_id) for office_id in "op"]

        assert await states(scheduler, running, first, second) == ["RUNNING", "RUNNING", "QUEUED"]
        await caller


async def test_what_a_caller_keeps_back_is_not_taken_by_a_job_that_needs_several_units(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, limits=Limits(resources={"gpu": 2})) as scheduler:
        scheduler.job_type("paint", resources=["gpu", "disk"])(paint)
        for office_id in "ps":
            await scheduler.offices.create(office_id)
        await scheduler.submit("work", {"seconds": 20}, resources=["disk"], office_id="s")
        caller = asyncio.ensure_future(scheduler.run_direct("paint", office_id="s"))
        await testing.settled()
        large = await scheduler.submit("work", {"seconds": 50}, resources={"gpu": 2}, office_id="p")

        assert (await caller).waited_seconds == 20
        assert ((await scheduler.wait(large.job_id)).job.started_at or 0) >= testing.BEGINNING.after(21)


@pytest.mark.parametrize("ends", ["it starts", "it hangs up"])
async def test_while_a_caller_waits_the_queue_of_its_office_dispatches_nothing(tmp_path: Path, ends: str) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        scheduler.job_type("paint", resources=["gpu"])(paint)
        for office_id in "ps":
            await scheduler.offices.create(office_id, max_concurrent_jobs=9)
        await scheduler.submit("work", {"seconds": 20}, resources=["gpu"], office_id="p")
        callers = [asyncio.ensure_future(scheduler.run_direct("paint", office_id="s")) for _ in range(2)]
        await testing.settled()
        held = await scheduler.submit("work", {"seconds": 5}, office_id="s")
        elsewhere = await scheduler.submit("work", {"seconds": 5}, office_id="p")

        assert await states(scheduler, held, elsewhere) == ["QUEUED", "RUNNING"]
        if ends == "it hangs up":
            callers.pop().cancel()
            await testing.settled()
            assert await states(scheduler, held) == ["QUEUED"], "there is another one"
            callers.pop().cancel()
            await testing.settled()
            assert await states(scheduler, held) == ["RUNNING"]
        else:
            await asyncio.sleep(20.5)
            assert await states(scheduler, held) == ["QUEUED"], "the first runs, and the second waits"
            await asyncio.sleep(1)
            assert await states(scheduler, held) == ["RUNNING"]
        await asyncio.gather(*callers)


async def paint(run: Any) -> None:
    await asyncio.sleep(1)


async def test_a_direct_request_makes_no_job_and_is_recorded(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        ended = await scheduler.run_direct("work", {"seconds": 3, "x": 1}, created_by="me")

        stored = await scheduler.direct(ended.direct_id)
        assert stored == ended
        assert (stored.status, stored.result, stored.created_by) == (DirectStatus.COMPLETED, {"x": 1}, "me")
        assert (stored.waited_seconds, stored.ran_seconds) == (0, 3)
        assert count(tmp_path, "jobs") == count(tmp_path, "runs") == 0
        assert [(r.status, r.run_id) for r in (await scheduler.lists.reservations()).items] == [
            ("RELEASED", ended.run_id)
        ]
        assert [e.type for e in await history(scheduler)] == ["reservation_made", "reservation_released"]


async def test_work_that_fails_or_skips_is_an_answer_and_is_not_retried(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        failed = await scheduler.run_direct("fail", {"kind": "error"})
        skipped = await scheduler.run_direct("skip", {"reason": "no need"})

        assert (failed.status, failed.failure_kind) == (DirectStatus.FAILED, FailureKind.ERROR)
        assert (skipped.status, skipped.reason) == (DirectStatus.SKIPPED, "no need")
        await asyncio.sleep(3600)
        assert count(tmp_path, "direct_executions") == 2


async def test_while_any_caller_of_an_office_waits_its_queue_dispatches_nothing(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=2)
        long = await scheduler.submit("work", {"seconds": 100})
        first = asyncio.ensure_future(scheduler.run_direct("work", {"seconds": 20}))
        second = asyncio.ensure_future(scheduler.run_direct("work", {"seconds": 20}))
        await testing.settled()
        queued = await scheduler.submit("work", {"seconds": 1})

        await asyncio.sleep(30)

        assert await states(scheduler, long, queued) == ["RUNNING", "QUEUED"], (
            "one slot was free for 20 s, and is again"
        )
        assert (first.done(), second.done()) == (True, False)
        await second
        await testing.settled()
        assert await states(scheduler, queued) == ["RUNNING"]


async def test_with_room_the_queue_goes_on_beside_a_direct_request_that_runs(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=2)
        caller = asyncio.ensure_future(scheduler.run_direct("work", {"seconds": 50}))
        await testing.settled()

        jobs = [await scheduler.submit("work", {"seconds": 10}) for _ in range(2)]
        await testing.settled()

        assert await states(scheduler, *jobs) == ["RUNNING", "QUEUED"], "it counts in the limits like a running job"
        await caller


async def test_the_units_a_holder_needs_are_kept_back_in_all_offices(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("gpu", resources={"gpu": 1})
        async def gpu(run: Any, seconds: float = 10) -> None:
            await asyncio.sleep(seconds)

        order = watch_starts(scheduler)
        for office in ("a", "b", "c"):
            await scheduler.offices.create(office)
        jobs = [await scheduler.submit("gpu", office_id=office) for office in ("a", "b", "c", "a", "b", "c")]
        await asyncio.sleep(1)

        ended = await scheduler.run_direct("gpu", {"seconds": 5}, office_id="c")

        assert order[:2] == [jobs[0].job_id, ended.direct_id], "three offices fight for it; the caller is next"
        for job in jobs:
            await scheduler.wait(job.job_id)


async def test_among_several_reservations_the_oldest_comes_first(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("gpu", resources={"gpu": 1})
        async def gpu(run: Any) -> None:
            await asyncio.sleep(10)

        for office in ("a", "b"):
            await scheduler.offices.create(office)
        await scheduler.submit("gpu")
        await asyncio.sleep(1)
        later = [asyncio.ensure_future(scheduler.run_direct("gpu", office_id=office)) for office in ("b", "a")]

        ended = await asyncio.gather(*later)

        assert [direct.office_id for direct in by_start(ended)] == ["b", "a"]


async def test_a_pause_does_not_hold_a_direct_request_back(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        job = await scheduler.submit("work")

        ended = await scheduler.run_direct("work", {"seconds": 1})

        assert ended.status is DirectStatus.COMPLETED
        assert await states(scheduler, job) == ["QUEUED"]


async def test_a_wait_that_runs_out_is_slot_busy_and_says_how_many_were_ahead(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work", {"seconds": 1000})
        patient = asyncio.ensure_future(scheduler.run_direct("work", wait_timeout_seconds=2000))
        await testing.settled()

        with pytest.raises(SlotBusy, match="within 60 seconds; callers ahead: 1") as refused:
            await scheduler.run_direct("work", wait_timeout_seconds=60)

        assert (refused.value.code, refused.value.ahead) == ("slot_busy", 1)
        assert (await patient).status is DirectStatus.COMPLETED
        assert count(tmp_path, "direct_executions", "status = 'CANCELLED' and reason = 'the wait ran out'") == 1


async def test_a_wait_runs_out_though_another_one_has_run_out_before(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work", {"seconds": 1000})
        waits = [asyncio.ensure_future(scheduler.run_direct("work", wait_timeout_seconds=wait)) for wait in (5, 10)]

        await asyncio.sleep(10.5)

        assert [isinstance(wait.done() and wait.exception(), SlotBusy) for wait in waits] == [True, True]


async def test_who_does_not_want_to_wait_at_all_gets_a_free_slot_or_a_refusal_at_once(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        served = await scheduler.run_direct("work", {"seconds": 1}, wait_timeout_seconds=0)
        await scheduler.submit("work", {"seconds": 1000})
        before = scheduler._clock.now()

        with pytest.raises(SlotBusy):
            await scheduler.run_direct("work", wait_timeout_seconds=0)

        assert served.status is DirectStatus.COMPLETED
        assert scheduler._clock.now() == pytest.approx(before, abs=1000)


async def test_a_caller_that_hangs_up_while_waiting_gives_its_place_up_at_once(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        running = await scheduler.submit("work", {"seconds": 10})
        queued = await scheduler.submit("work", {"seconds": 1})
        first, second = (asyncio.ensure_future(scheduler.run_direct("work", {"n": n})) for n in range(2))
        await testing.settled()

        first.cancel()
        await testing.settled()

        assert [r.status for r in (await scheduler.lists.reservations()).items] == ["ACTIVE", "RELEASED"], (
            "the next has reserved"
        )
        second.cancel()
        await scheduler.wait(running.job_id)
        await testing.settled()
        assert await states(scheduler, queued) == ["RUNNING"], "nobody waits, so the queue goes on"
        assert count(tmp_path, "direct_executions", "reason = 'the caller hung up'") == 2


async def test_a_caller_that_hangs_up_while_its_work_runs_ends_it_unless_it_asked_to_detach(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        attached = asyncio.ensure_future(scheduler.run_direct("work", {"seconds": 50}, direct_id="attached"))
        await asyncio.sleep(1)
        attached.cancel()
        await testing.settled()
        detached = asyncio.ensure_future(
            scheduler.run_direct("work", {"seconds": 50, "x": 1}, direct_id="detached", detach=True)
        )
        await asyncio.sleep(1)
        detached.cancel()
        await asyncio.sleep(100)

        ended = await scheduler.direct("attached")
        assert (ended.status, ended.failure_kind) == (DirectStatus.FAILED, FailureKind.CANCELLED)
        kept = await scheduler.direct("detached")
        assert (kept.status, kept.result) == (DirectStatus.COMPLETED, {"x": 1})


async def test_who_stops_listening_has_hung_up(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        running = scheduler.stream_direct("work", {"seconds": 50}, direct_id="running")
        assert (await anext(running)).kind == "started"
        waiting = scheduler.stream_direct("work", {"seconds": 50}, direct_id="waiting")
        assert (await anext(waiting)).kind == "place"

        for stream in (waiting, running):
            await stream.aclose()
        await asyncio.sleep(1)

        gone, stopped = await scheduler.direct("waiting"), await scheduler.direct("running")
        assert (gone.status, gone.reason) == (DirectStatus.CANCELLED, "the caller hung up")
        assert (stopped.status, stopped.failure_kind) == (DirectStatus.FAILED, FailureKind.CANCELLED)


async def test_direct_work_always_has_a_timeout(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        own = await scheduler.run_direct("work", {"seconds": 10_000}, timeout_seconds=5)
        default = await scheduler.run_direct("work", {"seconds": 10_000})

        assert (own.failure_kind, own.ran_seconds) == (FailureKind.TIMEOUT, 5)
        assert (default.failure_kind, default.ran_seconds) == (FailureKind.TIMEOUT, 3600)


async def test_the_reservation_is_renewed_while_its_owner_lives(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work", {"seconds": 3000})
        # Neither its wait nor its time ends before the reservation would: only the renewal itself is due.
        caller = asyncio.ensure_future(
            scheduler.run_direct("work", {"seconds": 1}, wait_timeout_seconds=5000, timeout_seconds=5000)
        )
        for _ in range(25):
            await asyncio.sleep(100)
            [reservation] = (await scheduler.lists.reservations()).items
            assert reservation.status == "ACTIVE"
            assert reservation.expires_at > scheduler._clock.now()

        assert (await caller).status is DirectStatus.COMPLETED


async def test_a_reservation_without_an_owner_expires_and_the_queue_goes_on(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        scheduler.job_type("paint", resources=["gpu"])(paint)
        await scheduler.offices.create("other")
        await scheduler.submit("work", {"seconds": 5000}, resources=["gpu"], office_id="other")
        left = asyncio.ensure_future(scheduler.run_direct("paint", direct_id="orphan", wait_timeout_seconds=5000))
        await testing.settled()
        job = await scheduler.submit("work", {"seconds": 5000})
        scheduler._runtime.direct.callers.clear()

        await asyncio.sleep(700)

        orphan = await scheduler.direct("orphan")
        assert (orphan.status, orphan.error) == (DirectStatus.FAILED, "its owner is gone")
        assert [one.status for one in (await scheduler.lists.reservations()).items] == ["EXPIRED"]
        assert await states(scheduler, job) == ["RUNNING"]
        assert (await scheduler.job(job.job_id)).started_at == orphan.finished_at
        assert orphan.finished_at == pytest.approx(orphan.created_at.after(600), abs=1000), "neither sooner nor later"
        left.cancel()


async def test_spec_11_13_callers_of_one_office_run_side_by_side_where_their_limits_have_room(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=3)
        callers = [asyncio.ensure_future(scheduler.run_direct("work", {"seconds": 10, "n": n})) for n in range(5)]

        ended = await asyncio.gather(*callers)

        assert [direct.waited_seconds for direct in ended] == [0, 0, 0, 10, 10]
        assert {r.status for r in (await scheduler.lists.reservations()).items} == {"RELEASED"}


async def test_spec_11_13_a_reservation_ends_when_its_caller_starts_and_goes_to_the_next(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        callers = [
            asyncio.ensure_future(scheduler.run_direct("work", {"seconds": 10}, direct_id=name)) for name in "abc"
        ]
        await testing.settled()

        found = {one.run_id: one.status for one in (await scheduler.lists.reservations()).items}

        a, b = await scheduler.direct("a"), await scheduler.direct("b")
        assert found == {a.run_id: "RELEASED", b.run_id: "ACTIVE"}
        assert (a.status, b.status) == (DirectStatus.RUNNING, DirectStatus.WAITING)
        await asyncio.gather(*callers)


async def test_spec_11_13_a_caller_passes_an_earlier_one_that_waits_for_other_limits(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        scheduler.job_type("paint", resources=["gpu"])(paint)
        await scheduler.offices.create("other")
        await scheduler.offices.change("default", max_concurrent_jobs=2)
        await scheduler.submit("work", {"seconds": 50}, resources=["gpu"], office_id="other")
        first = asyncio.ensure_future(scheduler.run_direct("paint"))
        await testing.settled()

        second, third = (asyncio.ensure_future(scheduler.run_direct("work", {"seconds": 5})) for _ in range(2))
        await testing.settled()
        fourth = await scheduler.run_direct("paint")

        assert ((await second).waited_seconds, (await third).waited_seconds) == (0, 5), "one slot is kept for the first"
        waited = [(await first).waited_seconds, fourth.waited_seconds]
        assert waited == pytest.approx([50, 51], abs=0.001), "who waits for the same is served in turn"


@pytest.mark.parametrize(("office_limit", "expected"), [(0, ["RUNNING", "QUEUED"]), (9, ["QUEUED", "QUEUED"])])
async def test_spec_11_13_only_jobs_that_share_a_limit_with_a_waiting_caller_wait(
    tmp_path: Path, office_limit: int, expected: list[str]
) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        scheduler.job_type("paint", resources=["gpu", "disk"])(paint)
        for office_id in "ps":
            await scheduler.offices.create(office_id, max_concurrent_jobs=office_limit)
        await scheduler.submit("work", {"seconds": 20}, resources=["gpu"], office_id="p")
        caller = asyncio.ensure_future(scheduler.run_direct("paint", office_id="s"))
        await testing.settled()

        unrelated = await scheduler.submit("work", {"seconds": 1}, office_id="s")
        related = await scheduler.submit("work", {"seconds": 1}, resources=["disk"], office_id="s")

        assert await states(scheduler, unrelated, related) == expected
        explained = await scheduler.forecast.why(related.job_id)
        assert "direct_waiting" in [reason.code for reason in explained.reasons]
        assert await scheduler._access.read(doctor.examine) == []
        await caller
        assert (await scheduler.wait(related.job_id)).job.started_at == (await caller).finished_at


async def test_after_a_crash_reservations_expire_executions_fail_and_the_queue_resumes(tmp_path: Path) -> None:
    first = new_scheduler(tmp_path)
    await first.start()
    callers = [
        asyncio.ensure_future(first.run_direct("work", {"seconds": 100}, direct_id=direct_id))
        for direct_id in ("running", "waiting")
    ]
    await testing.settled()
    job = await first.submit("work", {"seconds": 1})
    await testing.crash(first)
    for caller in callers:
        caller.cancel()

    second = new_scheduler(tmp_path, seed=1)
    async with second:
        for direct_id in ("running", "waiting"):
            ended = await second.direct(direct_id)
            assert (ended.status, ended.failure_kind) == (DirectStatus.FAILED, FailureKind.CRASH)
        statuses = [r.status for r in (await second.lists.reservations()).items]
        assert statuses == ["EXPIRED", "RELEASED"], "the caller that waited had the newer one"
        assert second.recovered.direct == 2
        assert (await second.wait(job.job_id)).status == "COMPLETED"
    third = new_scheduler(tmp_path, seed=2)
    async with third:
        assert third.recovered.direct == 0, "doing it twice changes nothing"


@pytest.mark.parametrize("caller", ["null", "(select run_id from direct_executions)"])
async def test_spec_11_10_a_reservation_without_a_waiting_execution_expires_and_callers_get_the_slot(
    tmp_path: Path, caller: str
) -> None:
    """Only a damaged database has one."""
    async with new_scheduler(tmp_path) as first:
        await first.run_direct("work", {"seconds": 1})
        job = await first.submit("work", {"seconds": 1}, scheduled_for=first._clock.now().after(500))
    damage(tmp_path, caller)

    async with new_scheduler(tmp_path, seed=1) as second:
        assert second.recovered.direct == 1
        assert sorted(one.status for one in (await second.lists.reservations()).items) == ["EXPIRED", "RELEASED"]
        assert (await second.run_direct("work", {"seconds": 1})).status is DirectStatus.COMPLETED
        assert (await second.wait(job.job_id)).status == "COMPLETED"


async def test_spec_11_10_such_a_reservation_expires_while_the_scheduler_runs_too(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.run_direct("work", {"seconds": 1})
        damage(tmp_path, "null")
        await scheduler.run_direct("work", {"seconds": 500}, timeout_seconds=5)

        assert "ACTIVE" not in {one.status for one in (await scheduler.lists.reservations()).items}


async def test_the_queue_is_what_it_was_after_callers_that_hang_up_time_out_and_a_crash(tmp_path: Path) -> None:
    first = new_scheduler(tmp_path)
    await first.start()
    await first.submit("work", {"seconds": 1000})
    queued = [await first.submit("work", {"seconds": 1}, priority=n % 3) for n in range(30)]
    before = rows(tmp_path)
    callers = [
        asyncio.ensure_future(first.run_direct("work", wait_timeout_seconds=10 if n % 2 else 900)) for n in range(10)
    ]
    await testing.settled()
    for caller in callers[:4]:
        caller.cancel()
    await asyncio.sleep(60)
    assert [caller.done() for caller in callers] == [True] * 4 + [False, True] * 3, "hung up, or waited too long"
    await testing.crash(first)
    ended = await asyncio.gather(*[caller for caller in callers if caller.done()], return_exceptions=True)
    for caller in callers:
        caller.cancel()

    assert rows(tmp_path) == before, "byte for byte"
    assert {type(end) for end in ended} == {asyncio.CancelledError, SlotBusy}
    second = new_scheduler(tmp_path, seed=1)
    async with second:
        ended_jobs = [(await second.wait(job.job_id)).job for job in queued]
    served = sorted(ended_jobs, key=lambda job: job.started_at or 0)
    assert [job.job_id for job in served] == [row[0] for row in before], "and it is served in that order"


async def test_at_most_a_hundred_callers_wait_in_an_office(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work", {"seconds": 10})
        callers = [asyncio.ensure_future(scheduler.run_direct("work", {"seconds": 0.1})) for _ in range(100)]
        await testing.settled()

        with pytest.raises(SlotBusy) as refused:
            await scheduler.run_direct("work")

        assert refused.value.ahead == 100
        assert all(direct.status is DirectStatus.COMPLETED for direct in await asyncio.gather(*callers))


async def test_a_direct_request_can_be_cancelled_while_it_waits_and_while_it_runs(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        running, waiting = (
            asyncio.ensure_future(scheduler.run_direct("work", {"seconds": 50}, direct_id=name)) for name in "ab"
        )
        await testing.settled()

        await scheduler.cancel_direct("b")
        await scheduler.cancel_direct("a")

        assert (await waiting).status is DirectStatus.CANCELLED
        assert (await running).failure_kind is FailureKind.CANCELLED
        with pytest.raises(Conflict, match="is FAILED since"):
            await scheduler.cancel_direct("a")


async def test_while_draining_waiting_callers_are_sent_away_and_running_work_finishes(tmp_path: Path) -> None:
    scheduler = new_scheduler(tmp_path)
    await scheduler.start()
    running, *waiting = (asyncio.ensure_future(scheduler.run_direct("work", {"seconds": 50})) for _ in range(3))
    await testing.settled()

    stopping = asyncio.ensure_future(scheduler.stop())
    await testing.settled()

    for caller in waiting:
        with pytest.raises(Draining, match="the scheduler is stopping; try again later"):
            await caller
    with pytest.raises(Draining):
        await scheduler.run_direct("work")
    assert (await running).status is DirectStatus.COMPLETED
    assert await stopping is True


async def test_a_caller_starts_in_the_transaction_that_empties_the_queue_of_another_office(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, limits=Limits(running=1)) as scheduler:

        @scheduler.job_type("fail later", retry_policy={"max_attempts": 1})
        async def fail_later(run: Any) -> None:
            await asyncio.sleep(5)
            raise Fail("as asked")

        await scheduler.offices.create("other")
        wanted = [NewJob(job_type=one, office_id="other") for one in ("fail later", "work")]
        _, members = await scheduler.submit_group(wanted, mode="parallel")
        caller = asyncio.ensure_future(scheduler.run_direct("work", {"seconds": 1}))

        assert (await caller).status is DirectStatus.COMPLETED
        assert await states(scheduler, *members) == ["FAILED", "CANCELLED"]


async def test_a_stop_ends_although_nothing_can_be_stored_and_every_caller_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = new_scheduler(tmp_path)
    await scheduler.start()
    running, waiting = (asyncio.ensure_future(scheduler.run_direct("work", {"seconds": 50})) for _ in range(2))
    await testing.settled()
    updates = scheduler.stream_direct("work")
    await anext(updates)

    async def unavailable(*_: Any, **__: Any) -> None:
        raise Unavailable("the disk is full")

    store = scheduler._store
    assert store is not None
    monkeypatch.setattr(store, "write", unavailable)

    assert await scheduler.stop(grace_seconds=60) is False
    for caller in (waiting, running, anext(updates)):
        with pytest.raises(Draining):
            await caller

    async with running_scheduler(tmp_path) as again:
        assert (await again.run_direct("work")).status is DirectStatus.COMPLETED


async def test_a_caller_hears_its_place_progress_and_output_as_they_come(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("talk")
        async def talk(run: Any) -> str:
            assert run.attempt == 1
            run.progress(0.5, "half")
            run.log.info("hello")
            return "done"

        await scheduler.submit("work", {"seconds": 5})
        before = asyncio.ensure_future(scheduler.run_direct("work", {"seconds": 5}))
        await testing.settled()

        heard = [update async for update in scheduler.stream_direct("talk")]

        assert [update.kind for update in heard] == ["place", "place", "started", "progress", "output", "result"]
        assert [update.data["ahead"] for update in heard[:2]] == [1, 0]
        assert [update.data["direct_id"] for update in heard[:3]] == [heard[5].data["direct"].direct_id] * 3
        assert heard[3].data == {"fraction": 0.5, "text": "half"}
        assert heard[4].data["text"].endswith("INFO hello\n")
        assert heard[5].data["direct"].result == "done"
        await before


async def test_a_place_that_was_read_too_early_is_not_told(tmp_path: Path) -> None:
    """Places are read when another node may have changed them; meanwhile they change here too."""
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work", {"seconds": 5})
        before = asyncio.ensure_future(scheduler.run_direct("work", {"seconds": 5}))
        await testing.settled()

        async def listen() -> list[Any]:
            stream = scheduler.stream_direct("work", {"seconds": 30})
            return [update.data["ahead"] if update.kind == "place" else update.kind async for update in stream]

        listening = asyncio.ensure_future(listen())
        await testing.settled()
        for seconds in (8, 8):  # Over the start of the one before it, and over its own.
            await scheduler._runtime.direct.look(cast("Store", SlowPlaces(scheduler._access.store, seconds)))
        await before

        assert await listening == [1, 0, "started", "result"]


class SlowPlaces:
    """A store whose lists are old when they come."""

    def __init__(self, store: Store, seconds: float) -> None:
        self._store = store
        self._seconds = seconds

    async def read(self, call: Callable[[Tx], Any], *, is_small: bool = False) -> Any:
        found = await self._store.read(call, is_small=is_small)
        if isinstance(found, list):
            await asyncio.sleep(self._seconds)
        return found


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"job_type": "nonsense"}, UnknownJobType),
        ({"job_type": "work", "params": {"seconds": "x"}}, Invalid),
        ({"job_type": "work", "wait_timeout_seconds": "soon"}, Invalid),
        ({"job_type": "work", "wait_timeout_seconds": -0.5}, Invalid),
        ({"job_type": "work", "timeout_seconds": -1}, Invalid),
        ({"job_type": "work", "direct_id": ""}, Invalid),
        ({"job_type": "work", "direct_id": "0199a7f0-0000-7000-8000-000000000000"}, Invalid),
        ({"job_type": "work", "colour": "red"}, Invalid),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
async def test_a_bad_direct_request_is_refused_and_nothing_is_stored(
    tmp_path: Path, options: dict[str, Any], problem: type[Exception]
) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(problem):
            await scheduler.run_direct(**options)

        assert count(tmp_path, "direct_executions") == 0


async def test_an_id_of_ones_own_choice_is_used_once(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.run_direct("work", direct_id="mine")

        with pytest.raises(Conflict, match="already"):
            await scheduler.run_direct("work", direct_id="mine")


async def test_spec_4_12_callers_who_come_without_end_do_not_starve_the_job_of_another_office(tmp_path: Path) -> None:
    async with running_scheduler(
        tmp_path, limits=Limits(resources={"gpu": 1}), starvation_after_seconds=600
    ) as scheduler:

        async def render(run: Any) -> None:
            await asyncio.sleep(30)

        scheduler.job_types.add("render", render, resources={"gpu": 1})
        for office_id in ("a", "b"):
            await scheduler.offices.create(office_id, max_concurrent_jobs=0)

        async def call_again_and_again() -> None:
            while True:
                await scheduler.run_direct("render", office_id="b", wait_timeout_seconds=10_000)

        callers = [asyncio.create_task(call_again_and_again()) for _ in range(3)]
        await testing.settled()
        job = await scheduler.submit("render", office_id="a")
        await asyncio.wait_for(scheduler.wait(job.job_id), 1000)
        ended = await scheduler.job(job.job_id)
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)

        assert ended.started_at is not None
        assert 600 <= (ended.started_at - job.created_at) / 1_000_000 <= 600 + 3 * 30


async def test_two_offices_may_choose_the_same_id_and_each_finds_its_own(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("web")
        ours = await scheduler.run_direct("work", {"x": 1}, direct_id="mine")
        theirs = await scheduler.run_direct("work", {"x": 2}, direct_id="mine", office_id="web")

        assert await scheduler.direct("mine") == ours
        assert await scheduler.direct("mine", "web") == theirs
        assert await scheduler.direct(theirs.run_id) == theirs
        assert ours.run_id != theirs.run_id


async def test_h1_a_chosen_id_names_no_file_and_no_run(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        ended = await scheduler.run_direct("work", {"x": 1}, direct_id="mine")

        assert "mine" not in (ended.run_id, *(path.stem for path in tmp_path.rglob("*")))
        with pytest.raises(NotFound):
            await scheduler.run_by_id("mine")


def damage(directory: Path, caller: str) -> None:
    """Stores an ACTIVE reservation that belongs to nobody, which the rules of the database refuse otherwise."""
    connection = database(directory)
    with connection:
        connection.execute("insert into maintenance values ('a test', 1)")
        connection.execute(
            f"insert into reservations values ('orphan', {caller}, 'default', 1, 'another', 9000000000000000, 'ACTIVE')"
        )
        connection.execute("delete from maintenance")
    connection.close()


def watch_starts(scheduler: Scheduler) -> list[str]:
    """Records the ids of started work, in order."""
    order: list[str] = []
    runner = scheduler._runner
    assert runner is not None
    run = runner._run

    async def noted(claim: Any, freed_at: float | None) -> None:
        await run(claim, freed_at)

    def launched(claim: Any, freed_at: float | None) -> Any:
        order.append(claim.job_id)
        return noted(claim, freed_at)

    runner._run = launched  # type: ignore[method-assign]
    return order


def rows(directory: Path) -> list[Any]:
    """Returns the queued jobs as they are stored, every column, in the order of the queue."""
    order = "priority desc, position, created_at, job_id"
    sql = f"select * from jobs where stage = 'QUEUED' and retry_of is null order by {order}"
    found: list[Any] = database(directory).execute(sql).fetchall()
    return found


async def places(scheduler: Scheduler) -> list[tuple[str, int, int]]:
    return [(job.job_id, job.priority, job.position) for job in await scheduler.queue()]


def by_start(ended: list[Direct]) -> list[Direct]:
    return sorted(ended, key=lambda direct: direct.started_at or 0)


def count(directory: Path, table: str, where: str = "1 = 1") -> int:
    number: int = database(directory).execute(f"select count(*) from {table} where {where}").get
    return number
