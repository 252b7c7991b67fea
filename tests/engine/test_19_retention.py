"""Spec 19: history goes when it is old enough, whole chains and groups, and never what something alive refers to."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nextslot import Limits, NewJob, Scheduler, testing
from nextslot.engine import retention
from nextslot.engine.retention import Keep, Purged
from nextslot.engine.webhooks.delivery_worker import EndpointResponse
from nextslot.errors import NotFound
from nextslot.store.contract import Tx
from nextslot.store.maintenance import doctor
from nextslot.store.tables import lanes
from tests.support import counted_scheduler, history, named, running_scheduler

DAY = 86_400
HOOK = "http://127.0.0.1:9/hook"
ALL = Keep(jobs_days=2, events_days=2, deliveries_days=2, audit_days=2)


class Silence(testing.Mailbox):
    """An endpoint that takes days to answer."""

    async def send(self, *message: Any) -> EndpointResponse:
        await asyncio.sleep(9 * DAY)
        return EndpointResponse(200)


async def exists(scheduler: Scheduler, job_id: str) -> bool:
    try:
        await scheduler.job(job_id)
    except NotFound:
        return False
    return True


async def purge(scheduler: Scheduler, keep: Keep = ALL) -> Any:
    """Purges once, by request; afterwards everything is kept again."""
    scheduler.retention.keep = keep
    try:
        return await scheduler.retention.purge()
    finally:
        scheduler.retention.keep = Keep()


async def test_what_ended_long_ago_goes_with_its_run_events_and_messages_and_the_rest_stays(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        old = await scheduler.submit("work", webhook={"url": HOOK})
        await asyncio.sleep(3 * DAY)
        new = await scheduler.submit("work", {"seconds": 1})
        await scheduler.wait(new.job_id)

        purged = await purge(scheduler)

        assert (purged.jobs, purged.deliveries) == (1, 0)
        assert [await exists(scheduler, job.job_id) for job in (old, new)] == [False, True]
        assert list((await scheduler.webhooks.deliveries_page()).items) == []
        assert {event.job_id for event in await history(scheduler)} == {new.job_id}
        assert await scheduler._access.read(doctor.examine) == []


async def test_nothing_goes_unless_it_is_said_how_long_it_is_kept(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work")
        await asyncio.sleep(4000 * DAY)

        purged = await scheduler.retention.purge()

        assert purged.jobs == purged.events == 0
        assert await exists(scheduler, job.job_id)


async def test_a_chain_goes_as_a_whole_and_not_while_its_last_job_is_young(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("fail", {"times": 1}, retry_policy={"base_delay_seconds": 3 * DAY})
        await asyncio.sleep(3.5 * DAY)
        young = await purge(scheduler)
        chain = await scheduler.chain(job.job_id)
        await asyncio.sleep(3 * DAY)
        old = await purge(scheduler)

        assert (young.jobs, len(chain), old.jobs) == (0, 2, 2)
        assert await scheduler._access.read(doctor.examine) == []


async def test_a_group_goes_with_all_its_members_or_not_at_all(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        wanted = [NewJob(job_type="work"), NewJob(job_type="work", params={"seconds": 3.0 * DAY})]
        group, _ = await scheduler.submit_group(wanted, "parallel")
        await asyncio.sleep(2.9 * DAY)
        early = await purge(scheduler)
        await asyncio.sleep(4 * DAY)
        late = await purge(scheduler)

        assert (early.jobs, early.groups, late.jobs, late.groups) == (0, 0, 2, 1)
        with pytest.raises(NotFound):
            await scheduler.group(group.group_id)


async def test_what_a_job_that_lives_waited_for_stays(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first = await scheduler.submit("work")
        second = await scheduler.submit("fail", retry_policy={"max_attempts": 0})
        waiting = await scheduler.submit("work", depends_on=[first.job_id, second.job_id])
        await asyncio.sleep(5 * DAY)
        while_it_lives = await purge(scheduler)
        await scheduler.cancel(waiting.job_id)
        after = await purge(scheduler)

        assert (while_it_lives.jobs, after.jobs) == (0, 2)
        assert await exists(scheduler, waiting.job_id)
        assert await scheduler._access.read(doctor.examine) == []


async def test_a_job_stays_until_its_last_message_has_been_sent(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, sender=Silence()) as scheduler:
        job = await scheduler.submit("work", webhook={"url": HOOK})
        await asyncio.sleep(2.5 * DAY)
        pending = (await scheduler.webhooks.deliveries_page()).items[0].status
        purged = await purge(scheduler)

        assert (pending, purged.jobs) == ("PENDING", 0)
        assert await exists(scheduler, job.job_id)


async def test_the_numbers_of_events_go_on_when_old_ones_are_gone(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work")
        await asyncio.sleep(5 * DAY)
        last = (await history(scheduler))[-1].seq
        purged = await purge(scheduler)
        await scheduler.submit("work", {"seconds": 9})

        numbers = [event.seq for event in await history(scheduler)]
        assert purged.events == last - 1
        assert numbers == list(range(last, last + len(numbers)))


async def test_a_dry_run_counts_the_same_and_takes_nothing(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        jobs = await scheduler.submit_many([NewJob(job_type="work", params={"seconds": 0.1})] * 120)
        await scheduler.run_direct("work")
        await asyncio.sleep(5 * DAY)
        scheduler.retention.keep = ALL
        counted = await scheduler.retention.purge(dry_run=True)
        is_there = await exists(scheduler, jobs[0].job_id)
        purged = await scheduler.retention.purge()

        assert is_there
        assert replace(counted, lanes=purged.lanes) == purged
        assert (counted.jobs, counted.direct) == (120, 1)


async def test_all_that_is_old_enough_goes_and_is_counted_by_its_kind_in_however_many_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ROWS", 2)

    async with running_scheduler(tmp_path) as scheduler:
        ann = named(scheduler, "ann")
        webhook, _ = await ann.webhooks.create(HOOK, events=["group.finished"])
        for _ in range(5):
            await ann.webhooks.test(webhook.webhook_id)
            await scheduler.run_direct("work")
        await asyncio.sleep(5 * DAY)
        scheduler.retention.keep = ALL
        counted = await scheduler.retention.purge(dry_run=True)
        purged = await scheduler.retention.purge()

        assert replace(counted, lanes=purged.lanes) == purged
        assert (purged.deliveries, purged.direct) == (5, 5)
        assert purged.audit > 2
        assert purged.events == 2 * 5 - 1, "the last one stays, for its number"
        assert await scheduler.retention.purge() == Purged()


async def test_a_job_younger_than_a_day_stays_however_little_is_to_be_kept_because_keys_are_answered_with_it(
    tmp_path: Path,
) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        keep = Keep(jobs_days=0.1)
        await scheduler.wait((await scheduler.submit("work", {"seconds": 1})).job_id)
        await scheduler.run_direct("work")
        await asyncio.sleep(0.9 * DAY)
        scheduler.retention.keep = keep
        counted = await scheduler.retention.purge(dry_run=True)
        young = await purge(scheduler, keep)
        await asyncio.sleep(0.2 * DAY)
        scheduler.retention.keep = keep
        counted_later = await scheduler.retention.purge(dry_run=True)

        assert (counted.jobs, young.jobs, counted.direct, young.direct) == (0, 0, 0, 0)
        old = await purge(scheduler, keep)
        assert (counted_later.jobs, old.jobs, counted_later.direct, old.direct) == (1, 1, 1, 1)


async def test_it_happens_daily_without_being_asked(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        scheduler.retention.keep = ALL
        job = await scheduler.submit("work")
        await asyncio.sleep(1.9 * DAY)
        before = await exists(scheduler, job.job_id)
        await asyncio.sleep(1.5 * DAY)

        assert (before, await exists(scheduler, job.job_id)) == (True, False)


async def test_logs_and_artifacts_go_with_their_job_or_before_it(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("writes")
        async def writes(run: Any) -> None:
            run.log.info("a line")
            (run.artifacts / "file.txt").write_text("text")

        ended = await scheduler.wait((await scheduler.submit("writes")).job_id)
        assert ended.run is not None
        files = scheduler._runtime.files
        log, kept = files.log_file(ended.run.run_id), files.artifacts_root(ended.run.run_id)
        were_there = log.exists() and kept.exists()
        now = scheduler._clock.now() / 1_000_000
        os.utime(log, (now, now))
        os.utime(kept, (now, now))
        await asyncio.sleep(3 * DAY)
        purged = await purge(scheduler, Keep(files_days=2))

        assert were_there
        assert (log.exists(), kept.exists(), purged.files, purged.jobs) == (False, False, 1, 0)
        assert await exists(scheduler, ended.job.job_id)


async def test_a_log_in_pieces_goes_as_a_whole_and_not_while_its_run_goes_on(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("floods")
        async def floods(run: Any, seconds: float) -> None:
            run.log_cap = 10_000
            run.write(b"a line\n" * 10_000)
            await asyncio.sleep(seconds)

        ended = await scheduler.wait((await scheduler.submit("floods", {"seconds": 0})).job_id)
        assert ended.run is not None
        await scheduler.submit("floods", {"seconds": 9 * DAY})
        files = scheduler._runtime.files
        now = scheduler._clock.now() / 1_000_000
        for path in (tmp_path / "logs").rglob("*"):
            os.utime(path, (now, now))
        there = log_files(tmp_path)
        await asyncio.sleep(3 * DAY)
        purged = await purge(scheduler, Keep(files_days=2))

        gone = {files.log_paths(ended.run.run_id).log, files.log_paths(ended.run.run_id).cut}
        assert gone < there
        assert (log_files(tmp_path), purged.files) == (there - gone, 1)
        assert len(there - gone) > 2


async def test_a_crash_in_a_purge_leaves_whole_chains(tmp_path: Path) -> None:
    scheduler = testing.scheduler(tmp_path)
    scheduler.job_type("work")(_nothing)
    await scheduler.start()
    jobs = await scheduler.submit_many([NewJob(job_type="work")] * 130)
    await asyncio.sleep(5 * DAY)
    scheduler.retention.keep = ALL
    purging = asyncio.ensure_future(scheduler.retention.purge())
    while await exists(scheduler, jobs[0].job_id):
        await testing.settled()
    await testing.crash(scheduler)
    purging.cancel()
    again = testing.scheduler(tmp_path, seed=1)
    again.job_type("work")(_nothing)
    async with again:
        left = len((await again.lists.jobs(limit=200)).items)
        assert left < 130
        assert await again._access.read(doctor.examine) == []


async def lanes_of(scheduler: Scheduler) -> tuple[int, int]:
    """Returns the number of lanes, and of limits of roles."""

    def count(tx: Tx) -> tuple[int, int]:
        of_roles = [one for one in lanes.all_limits(tx) if one.limit_key.startswith("role:")]
        return len(lanes.running_counts(tx)), len(of_roles)

    return await scheduler._access.read(count)


async def test_lanes_that_nothing_refers_to_go_and_come_back_when_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ROWS", 3)
    async with counted_scheduler(tmp_path) as scheduler:
        old = [NewJob(job_type="work", role=f"r{number}", resources=[f"machine-{number}"]) for number in range(7)]
        for job in await scheduler.submit_many(old):
            await scheduler.wait(job.job_id)
        await scheduler.run_direct("work")
        await scheduler.pause()
        waiting = await scheduler.submit("work", role="r0", resources=["machine-0"])
        before = await lanes_of(scheduler)
        await asyncio.sleep(3 * DAY)

        purged = await purge(scheduler)
        after = await lanes_of(scheduler)
        again = await scheduler.submit("work", role="r3", resources=["machine-3"])
        await scheduler.resume()
        ended = [await scheduler.wait(job_id) for job_id in (waiting.job_id, again.job_id)]

        assert before == (8, 7)
        assert purged.lanes == 6
        assert after == (2, 1), "that of the job that waits, and the newest"
        assert [one.job.status for one in ended] == ["COMPLETED", "COMPLETED"]
        assert await lanes_of(scheduler) == (3, 2)
        assert (await purge(scheduler)).lanes == 1
        assert await scheduler._access.read(doctor.examine) == []


async def test_a_role_keeps_its_limit_while_another_lane_has_it(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        one = await scheduler.submit("work", role="r", resources=["gpu"])
        await scheduler.wait(one.job_id)
        await scheduler.pause()
        await asyncio.sleep(3 * DAY)
        other = await scheduler.submit("work", role="r")

        purged = await purge(scheduler)

        assert purged.lanes == 1
        assert await lanes_of(scheduler) == (1, 1)
        await scheduler.resume()
        assert (await scheduler.wait(other.job_id)).job.status == "COMPLETED"
        assert await scheduler._access.read(doctor.examine) == []


async def test_a_limit_stays_while_a_lane_with_other_limits_has_it_too(tmp_path: Path) -> None:
    limits = Limits(limit_keys={"customer:*": 1}, resources={"gpu": 1}, affinity_waits={"gpu": 10.0})
    async with counted_scheduler(tmp_path, limits=limits) as scheduler:
        alone: dict[str, Any] = {"role": "r", "limit_keys": ["customer:7"]}
        old = await scheduler.submit("work", resources=["gpu"], affinity="small", **alone)
        await scheduler.wait(old.job_id)
        await asyncio.sleep(3 * DAY)
        await scheduler.pause()
        both = [await scheduler.submit("work", **alone), await scheduler.submit("work", limit_keys=["customer:7"])]

        purged = await purge(scheduler)
        kept = {one.limit_key for one in await scheduler._access.read(lanes.all_limits)}
        await scheduler.resume()

        assert purged.lanes == 1
        assert {"role:default/r", "key:default/customer:7"} <= kept
        assert "affinity:default/small" not in kept
        assert [(await scheduler.wait(one.job_id)).job.status for one in both] == ["COMPLETED", "COMPLETED"]
        assert await scheduler._access.read(doctor.examine) == []


async def test_a_purge_leaves_the_limits_of_lanes_that_are_made_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        for role in ("a", "b", None):
            await scheduler.wait((await scheduler.submit("work", role=role)).job_id)
        await asyncio.sleep(3 * DAY)
        await scheduler.pause()
        with monkeypatch.context() as patch:  # As a crash between the lanes and their limits does.
            patch.setattr(lanes, "drop_limits", lambda tx, keys, after: None)
            await purge(scheduler)

        last, unneeded = await scheduler._access.read(lanes.unneeded_limits)
        new = await scheduler.submit("work", role="a")
        await scheduler._access.write(lambda tx: lanes.drop_limits(tx, unneeded, last))
        await scheduler.resume()

        assert sorted(unneeded) == ["role:default/a", "role:default/b"]
        assert (await scheduler.wait(new.job_id)).job.status == "COMPLETED"
        assert await lanes_of(scheduler) == (2, 1)
        assert await scheduler._access.read(doctor.examine) == []


async def test_a_crash_between_the_jobs_and_their_lanes_leaves_lanes_for_the_next_purge(tmp_path: Path) -> None:
    scheduler = testing.scheduler(tmp_path)
    scheduler.job_type("work")(_nothing)
    await scheduler.start()
    jobs = await scheduler.submit_many([NewJob(job_type="work", role=str(number)) for number in range(30)])
    await asyncio.sleep(5 * DAY)
    scheduler.retention.keep = ALL
    purging = asyncio.ensure_future(scheduler.retention.purge())
    while await exists(scheduler, jobs[-1].job_id):
        await testing.settled()
    await testing.crash(scheduler)
    purging.cancel()
    again = testing.scheduler(tmp_path, seed=1)
    again.job_type("work")(_nothing)
    async with again:
        await purge(again)
        assert await lanes_of(again) == (1, 1), "the newest stays, so that no other gets its id"
        new = await again.submit("work", role="1")
        assert (await again.wait(new.job_id)).job.status == "COMPLETED"
        assert await again._access.read(doctor.examine) == []


def log_files(folder: Path) -> set[Path]:
    return {path for path in (folder / "logs").rglob("*") if path.is_file()}


async def _nothing(run: Any) -> None:
    """Does nothing and returns at once."""
