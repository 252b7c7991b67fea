"""Failures by fingerprint, and the search for jobs, written in the transactions that end and create jobs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nextslot import Limits, NewJob, Scheduler
from nextslot.domain.filters import JobFilter
from nextslot.domain.rollups import DAY, HOUR
from nextslot.engine.retention import Keep
from nextslot.errors import Invalid, NotFound
from nextslot.store.tables import filter_sql
from tests.support import running_scheduler

NO_RETRY = {"max_attempts": 0}


@asynccontextmanager
async def scheduler_in(directory: Path) -> AsyncIterator[Scheduler]:
    async with running_scheduler(directory, limits=Limits()) as scheduler:

        async def broken(run: Any, error: str = "broken", **anything: Any) -> None:
            run.fail(error)

        scheduler.job_types.register("broken", broken)
        await scheduler.offices.change("default", max_concurrent_jobs=1000)
        yield scheduler


def failing(error: str, **more: Any) -> NewJob:
    return NewJob(job_type="broken", params={"error": error}, retry_policy=NO_RETRY, **more)


async def found_by(scheduler: Scheduler, query: str, **more: Any) -> list[str | None]:
    page = await scheduler.lists.jobs(JobFilter(q=query, **more))
    return [one.job.title for one in page.items]


async def test_failures_that_are_alike_are_one_row_with_their_count(tmp_path: Path) -> None:
    async with scheduler_in(tmp_path) as scheduler:
        jobs = await scheduler.submit_many([failing(f"timed out after {n} s") for n in range(7)] + [failing("refused")])
        await scheduler.submit("work", {"seconds": 1})
        await asyncio.sleep(5)

        page = await scheduler.failures.list()

        by_count = {one.count: one for one in page.items}
        assert sorted(by_count) == [1, 7]
        alike = by_count[7]
        assert alike.message == "timed out after <n> s"
        assert alike.last_error.startswith("timed out after ")
        assert (alike.job_type, alike.failure_kind, alike.office_id, alike.total) == ("broken", "error", "default", 7)
        assert sum(alike.buckets) == 7
        assert len(alike.buckets) == (page.until - page.since) // (page.bucket_seconds * 1_000_000)
        assert {one.job_id for one in alike.last_runs} <= {job.job_id for job in jobs}
        assert len(alike.last_runs) == 5
        listed = (await scheduler.lists.jobs(JobFilter(fingerprint=alike.fingerprint))).items
        assert len(listed) == 7
        assert {one.job.error_line for one in listed} == {f"timed out after {n} s" for n in range(7)}


async def test_a_session_that_waits_for_an_answer_has_not_failed(tmp_path: Path) -> None:
    async with scheduler_in(tmp_path) as scheduler:

        @scheduler.job_type("session")
        async def session(run: Any) -> str:
            if not run.signals:
                run.park("plan", question="Go on?")
            return "done"

        job = await scheduler.submit("session")
        await asyncio.sleep(5)
        waiting = (await scheduler.chain(job.job_id))[-1].status
        await scheduler.signal(job.job_id, "plan")

        assert (waiting, (await scheduler.wait(job.job_id)).result) == ("WAITING", "done")
        assert not (await scheduler.failures.list()).items


async def test_what_succeeds_or_is_cancelled_is_no_failure(tmp_path: Path) -> None:
    async with scheduler_in(tmp_path) as scheduler:
        await scheduler.submit("work")
        await scheduler.submit("skip")
        stopped = await scheduler.submit("work", {"seconds": 100})
        await asyncio.sleep(3)
        await scheduler.cancel(stopped.job_id, interrupt=True)
        await asyncio.sleep(30)

        assert (await scheduler.failures.list()).items == ()


async def test_a_job_that_fails_without_a_run_of_its_own_counts_too(tmp_path: Path) -> None:
    async with scheduler_in(tmp_path) as scheduler:
        await scheduler.submit("broken", {"error": "x"}, retry_policy={"max_attempts": 2, "base_delay_seconds": 1})
        await asyncio.sleep(60)

        (one,) = (await scheduler.failures.list()).items

        assert one.count == 3


async def test_a_range_counts_what_was_seen_in_it(tmp_path: Path) -> None:
    async with scheduler_in(tmp_path) as scheduler:
        await scheduler.submit_many([failing("early"), failing("both")])
        await asyncio.sleep(3 * DAY)
        await scheduler.submit_many([failing("both"), failing("late")])
        await asyncio.sleep(10)
        now = (await scheduler.lists.status()).now

        last_day = (await scheduler.failures.list()).items
        week = await scheduler.failures.list(now.after(-7 * DAY))
        before = (await scheduler.failures.list(now.after(-4 * DAY), now.after(-2 * DAY))).items

        assert {one.message: one.count for one in last_day} == {"both": 1, "late": 1}
        assert {one.message: one.count for one in week.items} == {"early": 1, "both": 2, "late": 1}
        assert week.bucket_seconds == 6 * HOUR
        assert {one.message: one.count for one in before} == {"early": 1, "both": 1}


async def test_pages_of_failures_follow_each_other(tmp_path: Path) -> None:
    async with scheduler_in(tmp_path) as scheduler:
        for word in "abcdefg":
            await scheduler.submit_many([failing(word)])
            await asyncio.sleep(2)

        seen: list[str] = []
        cursor = None
        while True:
            page = await scheduler.failures.list(cursor=cursor, limit=3)
            seen += [one.message for one in page.items]
            cursor = page.next_cursor
            if cursor is None:
                break

        assert seen == list("gfedcba")


async def test_a_muted_failure_with_a_note_stays_so_when_it_is_seen_again(tmp_path: Path) -> None:
    async with scheduler_in(tmp_path) as scheduler:
        await scheduler.submit_many([failing("known"), failing("new")])
        await asyncio.sleep(2)
        known = next(one for one in (await scheduler.failures.list()).items if one.message == "known")

        await scheduler.failures.change(known.fingerprint, muted=True, note="see T-1")
        await scheduler.submit_many([failing("known")])
        await asyncio.sleep(2)

        (muted,) = (await scheduler.failures.list(muted=True)).items
        assert (muted.message, muted.count, muted.muted, muted.note) == ("known", 2, True, "see T-1")
        assert [one.message for one in (await scheduler.failures.list(muted=False)).items] == ["new"]
        again = await scheduler.failures.change(known.fingerprint, note=None)
        assert (again.muted, again.note) == (True, None)


async def test_those_of_a_fingerprint_are_retried_by_the_filter_of_jobs(tmp_path: Path) -> None:
    async with scheduler_in(tmp_path) as scheduler:
        await scheduler.submit_many([failing("one"), failing("one"), failing("other")])
        await asyncio.sleep(2)
        fingerprint = next(one.fingerprint for one in (await scheduler.failures.list()).items if one.count == 2)
        wanted = JobFilter(fingerprint=fingerprint)

        tried = await scheduler.bulk.retry(wanted, dry_run=True)
        done = await scheduler.bulk.retry(wanted)
        await asyncio.sleep(2)

        assert (tried.retried.count, done.retried.count) == (2, 2)
        counts = {one.message: one.count for one in (await scheduler.failures.list()).items}
        assert counts == {"one": 4, "other": 1}


async def test_affected_schedules_are_named(tmp_path: Path) -> None:
    async with scheduler_in(tmp_path) as scheduler:
        template = await scheduler.templates.create("broken", "broken", retry_policy=NO_RETRY)
        schedule = await scheduler.schedules.create("hourly", template.template_id, "0 * * * *")
        await asyncio.sleep(3 * HOUR)

        (one,) = (await scheduler.failures.list()).items

        assert [(each.schedule_id, each.name) for each in one.schedules] == [(schedule.schedule_id, "hourly")]


async def test_failures_of_long_ago_are_forgotten_unless_somebody_said_something(tmp_path: Path) -> None:
    async with scheduler_in(tmp_path) as scheduler:
        await scheduler.submit_many([failing("old"), failing("noted")])
        await asyncio.sleep(2)
        noted = next(one for one in (await scheduler.failures.list()).items if one.message == "noted")
        await scheduler.failures.change(noted.fingerprint, note="why")
        old = next(one for one in (await scheduler.failures.list()).items if one.message == "old")
        await asyncio.sleep(94 * DAY)
        await scheduler.submit("work")
        await asyncio.sleep(2)

        with pytest.raises(NotFound):
            await scheduler.failures.get(old.fingerprint)
        assert (await scheduler.failures.get(noted.fingerprint)).note == "why"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"limit": 101}, "at most 100"),
        ({"cursor": "x"}, "cursor"),
        ({"office_id": ""}, "office_id"),
    ],
)
async def test_a_wrong_request_gets_a_sentence(tmp_path: Path, given: dict[str, Any], problem: str) -> None:
    async with scheduler_in(tmp_path) as scheduler:
        with pytest.raises(Invalid, match=problem):
            await scheduler.failures.list(**given)


async def test_a_wrong_range_or_change_gets_a_sentence(tmp_path: Path) -> None:
    async with scheduler_in(tmp_path) as scheduler:
        await scheduler.submit_many([failing("x")])
        await asyncio.sleep(2)
        (one,) = (await scheduler.failures.list()).items
        now = (await scheduler.lists.status()).now

        with pytest.raises(Invalid, match="since must be before `until`"):
            await scheduler.failures.list(now.after(10))
        with pytest.raises(Invalid, match="92 days"):
            await scheduler.failures.list(now.after(-100 * DAY))
        with pytest.raises(Invalid, match="must not be before 1970"):
            await scheduler.failures.list(until=now.after(-now / 1_000_000 + 5))
        with pytest.raises(Invalid, match="colour cannot be changed"):
            await scheduler.failures.change(one.fingerprint, colour="red")  # type: ignore[call-arg]
        with pytest.raises(Invalid, match="muted must be true or false"):
            await scheduler.failures.change(one.fingerprint, muted=1)  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="note"):
            await scheduler.failures.change(one.fingerprint, note="x" * 1001)
        with pytest.raises(NotFound):
            await scheduler.failures.change("0" * 24, muted=True)


# The search.


async def test_words_of_titles_and_errors_are_found_by_their_beginnings(tmp_path: Path) -> None:
    async with scheduler_in(tmp_path) as scheduler:
        await scheduler.submit_many(
            [
                failing("ECONNRESET while reading", title="Import orders"),
                NewJob(job_type="work", title="Import invoices-of-may", params={"source": "mail"}),
                NewJob(job_type="work", title="주문을 가져오기 100%_x"),
                NewJob(job_type="work", title="Reimport all"),
            ]
        )
        await asyncio.sleep(5)

        assert await found_by(scheduler, "imp") == ["Import invoices-of-may", "Import orders"]
        assert await found_by(scheduler, "IMP econn") == ["Import orders"]
        assert await found_by(scheduler, 'error:"reading econnreset"') == ["Import orders"]
        assert await found_by(scheduler, "error:import") == []
        assert await found_by(scheduler, "invoices may") == ["Import invoices-of-may"]
        assert await found_by(scheduler, "주문") == ["주문을 가져오기 100%_x"]
        assert await found_by(scheduler, "params.source=mail") == ["Import invoices-of-may"]
        assert await found_by(scheduler, "status:completed type:work imp since:1h") == ["Import invoices-of-may"]
        assert await found_by(scheduler, "imp office:other") == []
        assert await found_by(scheduler, "imp", status="FAILED") == ["Import orders"]


async def test_a_changed_title_is_found_by_its_new_words_only(tmp_path: Path) -> None:
    async with scheduler_in(tmp_path) as scheduler:
        await scheduler.pause()
        job = await scheduler.submit("work", title="Before")
        await scheduler.change(job.job_id, title="Afterwards")

        assert await found_by(scheduler, "before") == []
        assert await found_by(scheduler, "after") == ["Afterwards"]
        await scheduler.change(job.job_id, title=None)
        assert await found_by(scheduler, "after") == []


async def test_a_long_title_is_found_by_its_beginning(tmp_path: Path) -> None:
    async with scheduler_in(tmp_path) as scheduler:
        title = "begin " + "주" * 500 + " " + "word " * 500 + " end"
        await scheduler.submit("work", title=title)

        assert await found_by(scheduler, "begin " + "주" * 300) == [title]
        assert await found_by(scheduler, "end") == []


async def test_pages_of_a_search_follow_each_other_and_stop_after_so_many_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_sql, "LOOKED_AT", 50)
    monkeypatch.setattr(filter_sql, "AT_ONCE", 20)
    async with scheduler_in(tmp_path) as scheduler:
        await scheduler.pause()
        many = [NewJob(job_type="work", params={"n": n % 10, "s": n}, title=f"job {n}") for n in range(300)]
        await scheduler.submit_many(many)

        for query, most in (("params.n=3", 30), ("job params.n=3", 30), ("params.s=299", 1), ("params.s=0", 1)):
            seen: list[str | None] = []
            pages, cursor = 0, None
            while pages == 0 or cursor is not None:
                page = await scheduler.lists.jobs(JobFilter(q=query), cursor, 4)
                assert len(page.items) <= 4
                seen += [one.job.title for one in page.items]
                pages, cursor = pages + 1, page.next_cursor
            assert len(seen) == len(set(seen)) == most, query
            assert pages >= 6


async def test_common_words_are_found_among_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_sql, "MOST_BY_WORDS", 10)
    async with scheduler_in(tmp_path) as scheduler:
        await scheduler.pause()
        await scheduler.submit_many([NewJob(job_type="work", title=f"common {n}") for n in range(40)])

        assert await found_by(scheduler, "common") == [f"common {n}" for n in range(39, -1, -1)]
        assert await found_by(scheduler, "common 39x") == []


async def test_all_that_a_search_finds_can_be_cancelled_and_retried(tmp_path: Path) -> None:
    async with scheduler_in(tmp_path) as scheduler:
        await scheduler.submit_many([failing("ECONNRESET", title="a"), failing("refused", title="b")])
        await asyncio.sleep(2)

        assert (await scheduler.bulk.retry(JobFilter(q="error:econn"))).retried.count == 1
        await scheduler.pause()
        await scheduler.submit_many([NewJob(job_type="work", title=name) for name in ("x one", "x two", "y")])
        assert (await scheduler.bulk.cancel(JobFilter(q="x"))).cancelled.count == 2


async def test_deleted_history_is_not_found_any_more(tmp_path: Path) -> None:
    async with scheduler_in(tmp_path) as scheduler:
        await scheduler.submit_many([failing("ECONNRESET", title="gone")])
        await asyncio.sleep(5 * DAY)
        await scheduler.submit_many([NewJob(job_type="work", title="gone too")])

        scheduler.retention.keep = Keep(jobs_days=2)
        await scheduler.retention.purge()

        assert await found_by(scheduler, "gone") == ["gone too"]
        assert await found_by(scheduler, "econn") == []
