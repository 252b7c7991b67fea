"""Spec 4: rates, as buckets that refill; and how many jobs with the same key run at once."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nextslot import Job, Limits, NewJob, Scheduler, testing
from nextslot.domain.limits import Rate, RateUnit
from nextslot.errors import Invalid, SlotBusy
from nextslot.services.runtime_settings import ReloadableSettings
from tests.engine.test_cost import in_order, transactions
from tests.support import new_scheduler

NOW = testing.BEGINNING


def starts_a_minute(per_minute: float, burst: float = 1) -> Mapping[RateUnit, Rate]:
    return {RateUnit.STARTS: Rate(per_minute, burst)}


@asynccontextmanager
async def rated_scheduler(directory: Path, **options: Any) -> AsyncIterator[Scheduler]:
    scheduler = new_scheduler(directory, **options)
    add_types(scheduler)
    async with scheduler:
        yield scheduler


def add_types(scheduler: Scheduler, seconds: float = 0.5) -> None:
    async def work(run: Any) -> None:
        await asyncio.sleep(seconds)

    async def talk(run: Any, tokens: int) -> dict[str, Any]:
        await asyncio.sleep(seconds)
        return {"usage": {"total_tokens": tokens}}

    scheduler.job_types.add("mail", work)
    scheduler.job_types.add("other", work)
    scheduler.job_types.add("talk", talk)


async def started(scheduler: Scheduler, jobs: list[Job]) -> list[float]:
    """Waits for the jobs. Returns when they started, in seconds after the first."""
    found = [(await scheduler.wait(job.job_id)).job.started_at for job in jobs]
    first = min(at for at in found if at is not None)
    return [(at - first) / 1_000_000 for at in found if at is not None]


# Rates.


@pytest.mark.parametrize("limit_key", ["type:mail", "resource:provider", "office:default", "scheduler"])
async def test_no_more_starts_in_a_minute_than_the_rate_and_the_burst_allow(tmp_path: Path, limit_key: str) -> None:
    limits = Limits(resources={"provider": 0}, rates={limit_key: starts_a_minute(6, burst=3)})
    async with rated_scheduler(tmp_path, limits=limits, concurrency=100) as scheduler:
        jobs = await scheduler.submit_many([NewJob(job_type="mail", resources=["provider"])] * 8)

        at = await started(scheduler, jobs)

        assert at == [0, 0, 0, 10, 20, 30, 40, 50]


async def test_a_used_up_rate_does_not_hold_back_other_jobs(tmp_path: Path) -> None:
    limits = Limits(rates={"type:mail": starts_a_minute(1)})
    async with rated_scheduler(tmp_path, limits=limits, concurrency=1) as scheduler:
        jobs = await scheduler.submit_many(
            [NewJob(job_type="mail"), NewJob(job_type="mail"), NewJob(job_type="other"), NewJob(job_type="other")]
        )

        assert await started(scheduler, jobs) == [0, 60, 0.5, 1]


async def test_no_slot_is_kept_free_for_a_job_that_only_a_rate_holds_back(tmp_path: Path) -> None:
    limits = Limits(rates={"type:mail": starts_a_minute(1 / 60)})
    async with rated_scheduler(tmp_path, limits=limits, concurrency=1) as scheduler:
        mails = await scheduler.submit_many([NewJob(job_type="mail", priority=5)] * 2)
        await asyncio.sleep(2000)

        others = await scheduler.submit_many([NewJob(job_type="other")] * 3)

        assert await started(scheduler, others) == [0, 0.5, 1]
        assert await started(scheduler, mails) == [0, 3600]


async def test_of_several_used_up_rates_the_first_that_refills_lets_its_work_start(tmp_path: Path) -> None:
    limits = Limits(rates={"type:mail": starts_a_minute(6), "type:other": starts_a_minute(1)})
    async with rated_scheduler(tmp_path, limits=limits, concurrency=100) as scheduler:
        jobs = await scheduler.submit_many([NewJob(job_type=one) for one in ("mail", "mail", "other", "other")])

        assert await started(scheduler, jobs) == [0, 10, 0, 60]


async def test_a_rate_of_one_office_does_not_hide_another_office(tmp_path: Path) -> None:
    limits = Limits(running=1, rates={"office:a": starts_a_minute(1)})
    async with rated_scheduler(tmp_path, limits=limits) as scheduler:
        for office_id in "ab":
            await scheduler.offices.create(office_id, max_concurrent_jobs=0)
        jobs = await scheduler.submit_many([NewJob(job_type="mail", office_id=one) for one in "aaabbb"])

        at = await started(scheduler, jobs)

        assert at[:3] == [0, 60, 120]
        assert at[3:] == [0.5, 1, 1.5]


async def test_offices_take_turns_at_a_rate(tmp_path: Path) -> None:
    limits = Limits(rates={"type:mail": starts_a_minute(6)})
    async with rated_scheduler(tmp_path, limits=limits) as scheduler:
        for office_id in "ab":
            await scheduler.offices.create(office_id, max_concurrent_jobs=0)
        jobs = await scheduler.submit_many([NewJob(job_type="mail", office_id=one) for one in "aaabb"])

        at = await started(scheduler, jobs)

        assert at[:3] == [0, 20, 40]
        assert at[3:] == [10, 30]


async def test_tokens_are_taken_when_a_run_ends_and_nothing_starts_while_more_were_used(tmp_path: Path) -> None:
    limits = Limits(rates={"type:talk": {RateUnit.TOKENS: Rate(60, 10)}})
    async with rated_scheduler(tmp_path, limits=limits, concurrency=1) as scheduler:
        jobs = await scheduler.submit_many([NewJob(job_type="talk", params={"tokens": 40})] * 3)

        # It ends after half a second: 30 more than there were, and a start needs one.
        assert await started(scheduler, jobs) == [0, 31.5, 71.5]


async def test_tokens_of_direct_work_are_taken_too(tmp_path: Path) -> None:
    limits = Limits(rates={"type:talk": {RateUnit.TOKENS: Rate(60, 10)}})
    async with rated_scheduler(tmp_path, limits=limits, concurrency=1) as scheduler:
        await scheduler.run_direct("talk", {"tokens": 40})

        # It ended after half a second and used 30 more than there were; a start needs one.
        assert (await scheduler.run_direct("talk", {"tokens": 0})).started_at == NOW.after(31.5)


@pytest.mark.parametrize("end", ["fail", "stop", "return"])
async def test_tokens_that_a_run_has_counted_itself_are_taken_however_it_ends(tmp_path: Path, end: str) -> None:
    limits = Limits(rates={"type:count": {RateUnit.TOKENS: Rate(60, 10)}})
    async with rated_scheduler(tmp_path, limits=limits, concurrency=1) as scheduler:

        @scheduler.job_type("count")
        async def count(run: Any) -> None:
            run.used_tokens = 40
            await asyncio.sleep(0.5 if end != "stop" else 100)
            if end == "fail":
                raise ValueError

        wanted = NewJob(
            job_type="count", timeout_seconds=0.5 if end == "stop" else None, retry_policy={"max_attempts": 0}
        )
        jobs = await scheduler.submit_many([wanted] * 3)

        assert await started(scheduler, jobs) == [0, 31.5, 71.5]


async def test_a_run_that_reports_an_impossible_number_of_tokens_ends_and_holds_the_rate_for_a_year(
    tmp_path: Path,
) -> None:
    rate = {"type:talk": {RateUnit.TOKENS: Rate(per_minute=60, burst=60)}}
    async with rated_scheduler(tmp_path, limits=Limits(rates=rate)) as scheduler:
        first, second = await scheduler.submit_many([NewJob(job_type="talk", params={"tokens": 10**18})] * 2)

        ended = (await scheduler.wait(first.job_id)).job
        why = await scheduler.why(second)

        assert ended.status == "COMPLETED"
        assert [reason.code for reason in why.reasons] == ["rate_full"]
        assert why.expected.expected_start is not None
        assert 365 < (why.expected.expected_start - NOW) / 86_400_000_000 < 367


async def test_starts_and_tokens_have_buckets_of_their_own(tmp_path: Path) -> None:
    limits = Limits(rates={"type:talk": {RateUnit.TOKENS: Rate(60, 10), RateUnit.STARTS: Rate(60, 1)}})
    async with rated_scheduler(tmp_path, limits=limits, concurrency=1) as scheduler:
        jobs = await scheduler.submit_many([NewJob(job_type="talk", params={"tokens": n}) for n in (1, 1, 40, 1)])

        assert await started(scheduler, jobs) == [0, 1, 2, 33.5]


async def test_direct_callers_are_counted_and_go_first_at_a_rate(tmp_path: Path) -> None:
    limits = Limits(rates={"type:mail": starts_a_minute(6)})
    async with rated_scheduler(tmp_path, limits=limits, concurrency=100) as scheduler:
        jobs = await scheduler.submit_many([NewJob(job_type="mail")] * 2)
        caller = asyncio.create_task(scheduler.run_direct("mail"))

        ended = await caller

        assert ended.started_at == NOW.after(10)
        assert await started(scheduler, jobs) == [0, 20]


async def test_a_caller_whose_rate_is_used_up_is_told_so_when_its_wait_is_over(tmp_path: Path) -> None:
    limits = Limits(rates={"type:mail": starts_a_minute(1)})
    async with rated_scheduler(tmp_path, limits=limits, concurrency=100) as scheduler:
        await scheduler.run_direct("mail")

        with pytest.raises(SlotBusy):
            await scheduler.run_direct("mail", wait_timeout_seconds=20)


async def test_what_was_taken_is_still_taken_after_a_restart(tmp_path: Path) -> None:
    limits = Limits(rates={"type:mail": starts_a_minute(1, burst=2)})
    async with rated_scheduler(tmp_path, limits=limits, concurrency=100) as scheduler:
        before = await scheduler.submit_many([NewJob(job_type="mail")] * 3)
        await asyncio.sleep(20)

    async with rated_scheduler(tmp_path, limits=limits, concurrency=100) as scheduler:
        assert await started(scheduler, before) == [0, 0, 60]


async def test_a_rate_that_is_used_up_makes_one_alarm_and_no_polling(tmp_path: Path) -> None:
    limits = Limits(rates={"type:mail": starts_a_minute(1)})
    async with rated_scheduler(tmp_path, limits=limits, concurrency=100) as scheduler:
        jobs = await scheduler.submit_many([NewJob(job_type="mail")] * 2)
        await asyncio.sleep(1)
        before = scheduler._access.store.health.writes

        await asyncio.sleep(58)

        assert scheduler._access.store.health.writes == before
        assert await started(scheduler, jobs) == [0, 60]


async def test_nothing_is_stored_where_there_are_no_rates(tmp_path: Path) -> None:
    async with rated_scheduler(tmp_path) as scheduler:
        await scheduler.wait((await scheduler.submit("mail")).job_id)

        assert await scheduler._access.read(lambda tx: tx.rows("rates.all")) == []


async def test_a_changed_rate_counts_from_the_next_start(tmp_path: Path) -> None:
    scheduler = new_scheduler(tmp_path, limits=Limits(rates={"type:mail": starts_a_minute(1)}), concurrency=100)
    add_types(scheduler)
    async with scheduler:
        jobs = await scheduler.submit_many([NewJob(job_type="mail")] * 3)
        await asyncio.sleep(1)

        await scheduler.settings.apply(
            ReloadableSettings(limits=Limits(rates={"type:mail": starts_a_minute(6)})), {}, {}
        )

        assert await started(scheduler, jobs) == [0, 60, 70]


async def test_why_names_the_used_up_rate_and_when_it_goes_on_and_forecasts_know_it(tmp_path: Path) -> None:
    limits = Limits(resources={"provider": 0}, rates={"resource:provider": starts_a_minute(6)})
    async with rated_scheduler(tmp_path, limits=limits, concurrency=100) as scheduler:
        jobs = await scheduler.submit_many([NewJob(job_type="mail", resources=["provider"])] * 3)
        await asyncio.sleep(1)

        why = await scheduler.forecast.why(jobs[2].job_id)

        reason = why.reasons[0]
        assert reason.code == "rate_full"
        assert (
            reason.text == f"The rate of the resource 'provider', 6 starts a minute, is used up until {NOW.after(10)}."
        )
        assert reason.data == {
            "limit": "resource:provider",
            "unit": "starts",
            "per_minute": 6,
            "burst": 1,
            "until": str(NOW.after(10)),
        }
        assert why.expected.expected_start == NOW.after(20)


async def test_a_limit_that_only_a_rate_bounds_is_shown_without_a_number(tmp_path: Path) -> None:
    limits = Limits(rates={"type:mail": starts_a_minute(6)})
    async with rated_scheduler(tmp_path, limits=limits, concurrency=100) as scheduler:
        await scheduler.submit("mail")

        status = await scheduler.lists.status()

        assert {one.limit_key: one.capacity for one in status.limits}["type:mail"] == 0


def test_a_bucket_never_gives_more_than_its_burst_and_what_refills() -> None:
    rate, full_at, now, taken = Rate(90_000, 7), NOW, NOW, []
    for step in range(3000):
        now = now.after(step % 7 * 0.0001)
        if rate.opens_at(full_at) <= now:
            full_at = rate.after(full_at, 1, now)
            taken.append(now)

    for first, at in enumerate(taken):
        for count, later in enumerate(taken[first:], start=1):
            assert count <= rate.burst + (later - at) * rate.per_minute / 60_000_000 + 1e-6


# Keys.


async def test_of_jobs_with_the_same_key_so_many_run_at_once_as_its_pattern_says(tmp_path: Path) -> None:
    limits = Limits(limit_keys={"customer:*": 1, "customer:big*": 2})
    async with rated_scheduler(tmp_path, limits=limits, concurrency=100) as scheduler:
        keys = ["customer:a", "customer:a", "customer:b", "customer:big", "customer:big", "customer:big", "plain"] * 2
        jobs = await scheduler.submit_many([NewJob(job_type="mail", limit_keys=[key]) for key in keys])

        at = await started(scheduler, jobs)

        of = {key: sorted(one for one, other in zip(at, keys, strict=True) if other == key) for key in keys}
        assert of["customer:a"] == [0, 0.5, 1, 1.5]
        assert of["customer:b"] == [0, 0.5]
        assert of["customer:big"] == [0, 0, 0.5, 0.5, 1, 1]
        assert of["plain"] == [0, 0]


async def test_keys_belong_to_an_office(tmp_path: Path) -> None:
    async with rated_scheduler(tmp_path, limits=Limits(limit_keys={"customer:*": 1})) as scheduler:
        for office_id in "ab":
            await scheduler.offices.create(office_id, max_concurrent_jobs=0)
        jobs = await scheduler.submit_many(
            [NewJob(job_type="mail", office_id=one, limit_keys=["customer:7"]) for one in "aabb"]
        )

        assert await started(scheduler, jobs) == [0, 0.5, 0, 0.5]


async def test_a_full_key_does_not_hold_back_other_jobs_and_order_decides_among_those_that_fit(tmp_path: Path) -> None:
    limits = Limits(limit_keys={"customer:*": 1})
    async with rated_scheduler(tmp_path, limits=limits, concurrency=2) as scheduler:
        wanted = ["a", "a", "a", "b", "c"]
        jobs = await scheduler.submit_many([NewJob(job_type="mail", limit_keys=[f"customer:{one}"]) for one in wanted])

        assert await started(scheduler, jobs) == [0, 0.5, 1, 0, 0.5]


async def test_a_job_may_carry_several_keys_and_keeps_them_in_its_retries(tmp_path: Path) -> None:
    async def fails(run: Any) -> None:
        await asyncio.sleep(1)
        if run.attempt == 1:
            raise OSError("not yet")

    limits = Limits(limit_keys={"customer:*": 1, "shop:*": 1})
    scheduler = new_scheduler(tmp_path, limits=limits, concurrency=100)
    scheduler.job_types.add("fails", fails)
    async with scheduler:
        first = await scheduler.submit(
            "fails", limit_keys=["customer:a", "shop:1"], retry_policy={"base_delay_seconds": 0}
        )
        second = await scheduler.submit("fails", limit_keys=["shop:1"], retry_policy={"max_attempts": 0})

        ended = await scheduler.wait(first.job_id)

        assert ended.job.retry_of == first.job_id
        assert ended.job.limit_keys == ("customer:a", "shop:1")
        assert (await scheduler.job(second.job_id)).started_at == NOW.after(1)


async def test_another_number_for_a_pattern_counts_for_queued_jobs_too(tmp_path: Path) -> None:
    scheduler = new_scheduler(tmp_path, concurrency=100, limits=Limits(running=1))
    add_types(scheduler, seconds=10)
    async with scheduler:
        jobs = await scheduler.submit_many([NewJob(job_type="mail", limit_keys=["customer:a"])] * 4)
        await asyncio.sleep(1)

        await scheduler.settings.apply(ReloadableSettings(limits=Limits(limit_keys={"customer:*": 2})), {}, {})

        assert await started(scheduler, jobs) == [0, 1, 10, 11]


async def test_why_names_the_full_key(tmp_path: Path) -> None:
    limits = Limits(limit_keys={"customer:*": 1})
    async with rated_scheduler(tmp_path, limits=limits, concurrency=100) as scheduler:
        jobs = await scheduler.submit_many([NewJob(job_type="mail", limit_keys=["customer:a"])] * 2)

        why = await scheduler.forecast.why(jobs[1].job_id)

        assert why.reasons[0].code == "limit_full"
        assert "The limit of the key 'customer:a' in the office 'default' is full (1 of 1)" in why.reasons[0].text
        status = await scheduler.lists.status()
        assert not [one for one in status.limits if one.limit_key.startswith("key:")]


async def test_forecasts_know_full_keys(tmp_path: Path) -> None:
    limits = Limits(limit_keys={"customer:*": 1})
    async with rated_scheduler(tmp_path, limits=limits, concurrency=2) as scheduler:
        await scheduler.wait((await scheduler.submit("mail")).job_id)
        keys = [f"customer:{one}" for one in "aaab"]
        jobs = await scheduler.submit_many([NewJob(job_type="mail", limit_keys=[key]) for key in keys])

        made = await scheduler.forecast.queue()

        expected = [made.jobs[job.job_id].expected_start for job in jobs]
        assert expected == [(await scheduler.wait(job.job_id)).job.started_at for job in jobs]


@pytest.mark.parametrize("keys", [[], ["a"] * 11, [""], [7], "customer:a", ["x" * 201]])
async def test_wrong_keys_are_refused(tmp_path: Path, keys: Any) -> None:
    async with rated_scheduler(tmp_path) as scheduler:
        with pytest.raises(Invalid) as refused:
            await scheduler.submit("mail", limit_keys=keys)

        assert refused.value.problems[0].field == "limit_keys"


async def test_templates_give_their_jobs_keys(tmp_path: Path) -> None:
    async with rated_scheduler(tmp_path) as scheduler:
        template = await scheduler.templates.create("report", job_type="mail", limit_keys=["customer:a"])

        job = await scheduler.submit(template_id=template.template_id)

        assert job.limit_keys == ("customer:a",)
        assert (await scheduler.job(job.job_id)).limit_keys == ("customer:a",)


@pytest.mark.parametrize("customers", [20, 200])
async def test_a_hand_over_costs_the_same_with_many_keys_as_with_few(tmp_path: Path, customers: int) -> None:
    async with rated_scheduler(tmp_path, limits=Limits(limit_keys={"customer:*": 1})) as scheduler:
        new = [
            NewJob(job_type="work", params={"seconds": 1}, limit_keys=[f"customer:{number}"])
            for number in range(customers)
        ]
        await scheduler.submit_many(new)
        await asyncio.sleep(3.5)

        with transactions() as seen:
            await asyncio.sleep(1)

        (statements,) = in_order(seen)
        assert len(statements) <= 18, statements


async def test_many_waiting_jobs_of_full_keys_cost_no_more_than_a_page_of_lanes(tmp_path: Path) -> None:
    async with rated_scheduler(tmp_path, concurrency=41, limits=Limits(limit_keys={"customer:*": 1})) as scheduler:
        busy = [
            NewJob(job_type="work", params={"seconds": 1000}, limit_keys=[f"customer:{number}"]) for number in range(40)
        ]
        await scheduler.submit_many(busy * 3)
        others = [NewJob(job_type="work", params={"seconds": 1}, limit_keys=[f"other:{n}"]) for n in range(10)]
        await scheduler.submit_many(others)
        await asyncio.sleep(3.5)

        with transactions() as seen:
            await asyncio.sleep(1)

        (statements,) = in_order(seen)
        # 40 lanes are full: a lane of each is read, 16 at once.
        assert statements.count("lanes.of_class") <= 3
        assert len(statements) <= 70, statements


async def test_so_many_direct_requests_of_a_key_run_at_once_and_no_unit_lies_idle_for_the_next(tmp_path: Path) -> None:
    limits = Limits(resources={"gpu": 2}, limit_keys={"customer:*": 1})
    async with rated_scheduler(tmp_path, limits=limits, concurrency=10) as scheduler:

        @scheduler.job_type("draw", resources=["gpu"])
        async def draw(run: Any) -> None:
            await asyncio.sleep(10)

        callers = []
        for key in ("customer:a", "customer:a", "customer:b", "customer:b"):
            callers.append(asyncio.create_task(scheduler.run_direct("draw", limit_keys=[key])))
            await asyncio.sleep(0.01)
        ended = await asyncio.gather(*callers)

        assert [round(one.waited_seconds or 0) for one in ended] == [0, 10, 0, 10]


@pytest.mark.parametrize("keys", ["a", [], ["x" * 201]])
async def test_wrong_keys_of_a_direct_request_are_refused(tmp_path: Path, keys: Any) -> None:
    async with rated_scheduler(tmp_path) as scheduler:
        with pytest.raises(Invalid, match="limit_keys"):
            await scheduler.run_direct("mail", limit_keys=keys)
