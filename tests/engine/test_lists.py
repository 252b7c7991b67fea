"""Lists: pages that are stable and cost the same at any depth, filters, and what is going on."""

import asyncio
import base64
import json
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextslot import (
    Instant,
    Job,
    Scheduler,
    testing,
)
from nextslot.domain import (
    JobStatus,
    Listed,
    NewJob,
    Page,
)
from nextslot.domain.filters import (
    DirectFilter,
    EventFilter,
    GroupFilter,
    JobFilter,
    JobSort,
    RunFilter,
)
from nextslot.errors import Invalid, NotFound
from nextslot.services.lists import _status, listed
from nextslot.store.sqlite.sqlite_store import SqliteTx
from nextslot.store.tables import filter_sql, keyset_pagination
from nextslot.store.tables import jobs as store_jobs
from tests.support import Steps, database, history, named, running_scheduler

NO_RETRY = {"max_attempts": 0}


# Pages.


async def test_pages_of_any_size_give_the_whole_list_newest_first(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        made = await some_jobs(scheduler, 25)

        walked = {limit: await walk(scheduler, limit=limit) for limit in (1, 2, 7, 24, 25, 26, 500)}

        assert all(ids == made[::-1] for ids in walked.values())


async def test_the_last_page_has_no_cursor_even_when_it_is_full(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await some_jobs(scheduler, 10)

        first = await scheduler.lists.jobs(limit=5)
        second = await scheduler.lists.jobs(cursor=first.next_cursor, limit=5)

        assert (len(second.items), second.next_cursor) == (5, None)


async def test_a_job_that_is_there_all_the_while_is_seen_exactly_once_whatever_comes_and_goes(tmp_path: Path) -> None:
    chance = random.Random(7)

    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=3)
        made = await some_jobs(scheduler, 300, {"seconds": 1})

        async def meanwhile() -> None:
            await some_jobs(scheduler, chance.randint(0, 9))
            live = (await scheduler.lists.jobs(JobFilter(status="QUEUED"), limit=500)).items
            await scheduler.cancel(chance.choice(live).job.job_id)
            await scheduler.move(chance.choice(live[:200]).job.job_id, to="front") if chance.random() < 0.1 else None
            await asyncio.sleep(chance.random())

        walked = await walk(scheduler, limit=11, meanwhile=meanwhile)

        assert [job_id for job_id in walked if job_id in set(made)] == made[::-1]
        assert len(set(walked)) == len(walked)


async def test_a_clock_that_is_set_back_hides_and_repeats_no_job(tmp_path: Path) -> None:
    clock = testing.VirtualClock()

    async with running_scheduler(tmp_path, clock=clock) as scheduler:
        made = await some_jobs(scheduler, 30)

        async def meanwhile() -> None:
            clock.jump(-5)
            await some_jobs(scheduler, 1)

        walked = await walk(scheduler, limit=4, meanwhile=meanwhile)

        assert [job_id for job_id in walked if job_id in set(made)] == made[::-1]
        created = [(await scheduler.job(job_id)).created_at for job_id in await walk(scheduler)]
        assert created == sorted(created, reverse=True)


def cursor_of(*parts: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).rstrip(b"=").decode()


NO_CURSORS: list[Any] = [
    "", "x", "not a cursor", "é", "=", "A" * 5000, cursor_of(), cursor_of("jobs"), cursor_of("runs", 1, "a"),
    cursor_of("jobs", "1", "a"), cursor_of("jobs", 1, 2), cursor_of("jobs", 1, "a", 1), cursor_of("jobs", True, "a"),
    cursor_of("jobs", 2**63, "a"), cursor_of("jobs", 1e300, "a"), cursor_of("jobs", None, "a"),
    cursor_of("jobs", 1, "\0"),
    base64.urlsafe_b64encode(b"[" * 1000).decode(), base64.urlsafe_b64encode(b'{"a":1}').decode(), 7, b"x",
]  # fmt: skip


async def test_what_is_no_cursor_of_this_list_is_refused(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        for cursor in NO_CURSORS:
            with pytest.raises(Invalid) as refused:
                await scheduler.lists.jobs(cursor=cursor)

            assert [problem.field for problem in refused.value.problems] == ["cursor"], cursor


async def test_a_cursor_belongs_to_its_kind_of_list(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await some_jobs(scheduler, 3)
        cursor = (await scheduler.lists.jobs(limit=1)).next_cursor
        lists: list[Callable[..., Any]] = [
            scheduler.lists.runs, scheduler.lists.groups, scheduler.lists.direct, scheduler.lists.reservations,
            scheduler.lists.events, scheduler.lists.audit, scheduler.offices.page, scheduler.lists.queue,
            scheduler.templates.page, scheduler.schedules.page,
        ]  # fmt: skip

        for other in lists:
            with pytest.raises(Invalid, match="cursor"):
                await other(cursor=cursor)


async def test_a_limit_is_a_whole_number_from_1_to_500(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        wrong: list[Any] = [0, -1, 501, 1.5, "5", True, None]
        for limit in wrong:
            with pytest.raises(Invalid) as refused:
                await scheduler.lists.jobs(limit=limit)

            assert [problem.field for problem in refused.value.problems] == ["limit"], limit


# Filters.

TITLES = ["Alpha", "alpha 50%", "BETA_x", "a!b", "Ünïcode", "it's", None]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> tuple[SqliteTx, list[Job]]:
    """Makes a database with jobs of every kind and status. Yields it with those jobs."""
    directory = tmp_path_factory.mktemp("zoo")

    async def main() -> None:
        async with running_scheduler(directory) as scheduler:
            await populate(scheduler)
            await testing.crash(scheduler)

    testing.run(main())
    return stored(directory)


async def populate(scheduler: Scheduler) -> None:
    """Makes jobs of every kind and status."""
    await scheduler.offices.create("o")
    await scheduler.offices.change("default", max_concurrent_jobs=2)
    template = await scheduler.templates.create(name="t", job_type="work")
    schedule = await scheduler.schedules.create(template_id=template.template_id, name="s", cron_expression="@daily")
    for _ in range(3):
        await scheduler.schedules.trigger(schedule.schedule_id)
        await scheduler.accept([NewJob(template_id=template.template_id)])
    for number in range(70):
        await asyncio.sleep(0.25 * (number % 3))
        kind = ("work", "work", "fail", "skip")[number % 4]
        await scheduler.submit(kind, office_id="o" if number % 3 else "default", **labels(number))
    members = [NewJob(job_type="work", params={"seconds": 1000}, title="member") for _ in range(3)]
    await scheduler.submit_group(members, "sequential")
    await asyncio.sleep(40)
    later = datetime(2100, 1, 1, tzinfo=UTC)
    for office_id in ("o", "default"):
        doomed = [await scheduler.submit("work", office_id=office_id, title="doomed") for _ in range(3)]
        await scheduler.cancel(doomed[0].job_id)
        await scheduler.submit("work", office_id=office_id, depends_on=[doomed[1].job_id], title="waits")
        await scheduler.submit("work", {"seconds": 1000}, office_id=office_id, urgent=True)
        ask: dict[str, Any] = {"office_id": office_id, "await_signal": {"name": "release"}}
        asks = [await scheduler.submit("work", title="asks", **ask) for _ in range(3)]
        await scheduler.signal(asks[0].job_id, "release")
        await scheduler.submit("work", title="asks", depends_on=[doomed[1].job_id], **ask)
        await scheduler.submit("work", title="asks", scheduled_for=later, **ask)
    await testing.settled()


def labels(number: int) -> dict[str, Any]:
    return {
        "title": TITLES[number % len(TITLES)],
        "role": ("FE", "BE", None)[number % 3],
        "task_id": (None, "t1", "t2", "t3")[number % 4],
        "retry_policy": {"max_attempts": number % 3, "base_delay_seconds": 5, "retry_on": ["error"]},
    }


def stored(directory: Path) -> tuple[SqliteTx, list[Job]]:
    tx = SqliteTx(database(directory))
    ids = [job_id for (job_id,) in tx.select("select job_id from jobs", {})]
    return tx, list(store_jobs.get_many(tx, ids).values())


@pytest.mark.sqlite_only("the same file")
def test_the_zoo_has_jobs_in_every_state(zoo: tuple[SqliteTx, list[Job]]) -> None:
    _, every = zoo

    assert {job.status for job in every} == set(JobStatus)
    assert {job.retry_of is None for job in every} == {True, False}


def several(*values: str) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(values), max_size=3, unique=True).map(tuple)


def wanted(every: Sequence[Job]) -> st.SearchStrategy[dict[str, Any]]:
    ids = [job.job_id for job in every]
    instants = sorted({job.created_at for job in every})
    ends = sorted({job.finished_at for job in every if job.finished_at is not None})
    return st.fixed_dictionaries(
        {},
        optional={
            "status": several(*JobStatus),
            "job_type": several("work", "fail", "skip", "nothing"),
            "office_id": several("default", "o", "nowhere"),
            "role": several("FE", "BE", "QA"),
            "task_id": several("t1", "t2", "t9"),
            "template_id": several(*{job.template_id for job in every if job.template_id}, "none"),
            "schedule_id": several(*{job.schedule_id for job in every if job.schedule_id}, "none"),
            "group_id": several(*{job.group_id for job in every if job.group_id}, "none"),
            "retry_of": st.lists(st.sampled_from(ids), max_size=5, unique=True).map(tuple),
            "created_after": st.sampled_from(instants),
            "created_before": st.sampled_from(instants),
            "awaiting_signal": st.booleans(),
            "finished_after": st.sampled_from(ends),
            "finished_before": st.sampled_from(ends),
            "q": st.sampled_from(["alpha", "ALPHA", "50%", "_", "%", "!", "'", "ünï", "Ü", "a", "7000", *ids[:3], "-"]),
        },
    )


def is_wanted(job: Job, said: dict[str, Any]) -> bool:
    """Returns whether a filter matches: the rule again, in plain code."""
    for name in ("status", "job_type", "office_id", "role", "task_id", "template_id", "schedule_id",
                 "group_id", "retry_of", "fingerprint"):  # fmt: skip
        if said.get(name) and getattr(job, name) not in said[name]:
            return False
    if "created_after" in said and not job.created_at > said["created_after"]:
        return False
    if "created_before" in said and not job.created_at < said["created_before"]:
        return False
    if "awaiting_signal" in said:
        is_asking = job.awaiting is not None and (job.unmet, job.is_due, job.is_turn) == (1, True, True)
        if is_asking is not said["awaiting_signal"]:
            return False
    if "finished_after" in said and not (job.finished_at and job.finished_at > said["finished_after"]):
        return False
    if "finished_before" in said and not (job.finished_at and job.finished_at < said["finished_before"]):
        return False
    if "q" not in said:
        return True
    if len(said["q"]) == 36:
        return bool(job.job_id == said["q"])
    lower = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
    return any(said["q"].translate(lower) in (text or "").translate(lower) for text in (job.title, job.job_id))


@pytest.mark.sqlite_only("one file for hundreds of questions; the next test asks both databases")
@settings(max_examples=200, deadline=None)
@given(
    data=st.data(),
    limit=st.integers(1, 60),
    budget=st.sampled_from([3, 17, 10_000]),
    sort=st.one_of(st.just(JobSort.NEWEST), st.sampled_from(JobSort)),
)
def test_a_filter_finds_what_a_plain_look_at_every_job_finds(
    zoo: tuple[SqliteTx, list[Job]], data: Any, limit: int, budget: int, sort: JobSort
) -> None:
    tx, every = zoo
    said = data.draw(wanted(every))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyset_pagination, "BUDGET", budget)
        found = [job for part in parts(tx, JobFilter(**said), limit, sort) for job in part]

    matching = [job for job in every if is_wanted(job, said)]
    assert [job.job_id for job in found] == [job.job_id for job in in_order(matching, sort)]
    assert all(JobFilter(**said).matches(job) == is_wanted(job, said) for job in every)


async def test_jobs_that_wait_for_an_answer_are_found_however_many_wait_for_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their index has no other job, so the first page has them all, although a page looks at three rows only."""
    async with running_scheduler(tmp_path) as scheduler:
        first = await scheduler.submit("work", {"seconds": 1000})
        await scheduler.submit("work", title="asks", await_signal={"name": "release"})
        await scheduler.submit_many([NewJob(job_type="work", depends_on=[first.job_id]) for _ in range(50)])
        held = {"name": "release"}
        await scheduler.submit("work", title="is held back", depends_on=[first.job_id], await_signal=held)
        monkeypatch.setattr(keyset_pagination, "BUDGET", 3)

        page = await scheduler.lists.jobs(JobFilter(awaiting_signal=True))
        by_query = await scheduler.lists.jobs(JobFilter(q="is:awaiting"))

    assert ([one.job.title for one in page.items], page.next_cursor) == (["asks"], None)
    assert by_query.items == page.items


def in_order(some: Sequence[Job], sort: str) -> list[Job]:
    """Returns the list of jobs in an order: the rule again, in plain code."""
    field = sort.removeprefix("-")

    def key(job: Job) -> tuple[Any, ...] | None:
        if field == "duration":
            if job.started_at is None or job.finished_at is None:
                return None
            return job.finished_at - job.started_at, job.job_id
        if field == "priority":
            return job.priority, job.created_at, job.job_id
        at = getattr(job, field)
        return None if at is None else (at, job.job_id)

    listed = [job for job in some if key(job) is not None]
    return sorted(listed, key=lambda job: key(job) or (), reverse=sort.startswith("-"))


async def test_both_databases_find_the_same(tmp_path: Path) -> None:
    chance = random.Random(5)

    async with running_scheduler(tmp_path) as scheduler:
        await populate(scheduler)
        await scheduler.pause()
        every = [one.job for one in (await scheduler.lists.jobs(limit=500)).items]
        for _ in range(150):
            said = some_filter(chance, every)
            sort = chance.choice([None, None, *JobSort])

            found = await walk(scheduler, filter=JobFilter(**said), limit=chance.choice([3, 20, 500]), sort=sort)

            matching = [job for job in every if is_wanted(job, said)]
            usual = "-finished_at" if {"finished_after", "finished_before"} & said.keys() else "-created_at"
            assert found == [job.job_id for job in in_order(matching, sort or usual)], (said, sort)


def some_filter(chance: random.Random, every: Sequence[Job]) -> dict[str, Any]:
    """Draws a filter from a few values of a job, so that it matches something, and from some values of others."""
    job, other = chance.choice(every), chance.choice(every)
    names = chance.sample([*JobFilter.LABELS, "status"], chance.randint(0, 3))
    said: dict[str, Any] = {
        name: [str(value) for value in {getattr(job, name), getattr(other, name)} - {None}] for name in names
    }
    if chance.random() < 0.3:
        said["created_after"] = min(job.created_at, other.created_at)
    if chance.random() < 0.3:
        said["created_before"] = max(job.created_at, other.created_at)
    if chance.random() < 0.3:
        said["awaiting_signal"] = chance.random() < 0.7
    if chance.random() < 0.3 and job.finished_at is not None:
        said[chance.choice(["finished_after", "finished_before"])] = job.finished_at
    if chance.random() < 0.4:
        said["q"] = chance.choice([job.job_id, job.job_id[5:14], "ALPHA", "50%", "_", "Ü", "ü"])
    return said


def parts(tx: SqliteTx, filter: JobFilter, limit: int, sort: JobSort = JobSort.NEWEST) -> Iterator[list[Job]]:
    after = None
    while True:
        part = filter_sql.jobs_page(tx, filter, after, limit, sort)
        assert len(part.items) <= limit
        yield part.items
        after = part.after
        if after is None:
            return


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("status", "DONE"), ("status", "completed"), ("status", 7), ("office_id", 7), ("office_id", [7]), ("role", ""),
        ("task_id", "a\0b"), ("task_id", ["x"] * 2 + [f"t{n}" for n in range(100)]), ("created_after", "yesterday"),
        ("created_before", Instant(-1)), ("q", ""), ("q", "x" * 1001), ("q", 7), ("q", "\ud800"),
    ],
)  # fmt: skip
def test_a_filter_that_makes_no_sense_is_refused_and_says_where(field: str, value: Any) -> None:
    with pytest.raises(Invalid) as refused:
        JobFilter(**{field: value})

    assert [problem.field for problem in refused.value.problems] == [field]


def test_every_problem_of_a_filter_is_named() -> None:
    with pytest.raises(Invalid) as refused:
        JobFilter(status="DONE", role="", created_after="now")  # type: ignore[arg-type]

    assert {problem.field for problem in refused.value.problems} == {"status", "role", "created_after"}


# What a page costs.


@pytest.mark.sqlite_only("counts the steps of its virtual machine")
def test_a_deep_page_costs_what_the_first_one_does(tmp_path: Path) -> None:
    tx, steps = history_of(tmp_path, 6_000)
    said: list[dict[str, Any]] = [{}, {"office_id": "default"}, {"job_type": "work"}, {"task_id": "t"}]

    each = [costs(tx, steps, JobFilter(**one), limit=50) for one in said]

    assert [len(pages) for pages in each] == [120] * 4
    assert all(max(pages) <= pages[0] * 1.1 for pages in each)


@pytest.mark.sqlite_only("counts the steps of its virtual machine")
@pytest.mark.parametrize("sort", [one for one in JobSort if one.field != "created_at"])
def test_a_page_in_another_order_costs_the_same_in_any_history(tmp_path: Path, sort: JobSort) -> None:
    tx, steps = history_of(tmp_path, 2_000)
    small = costs(tx, steps, JobFilter(), 50, sort)
    tx, steps = history_of(tmp_path, 6_000)

    large = costs(tx, steps, JobFilter(), 50, sort)

    assert (len(small), len(large)) == (40, 120)
    # The first page has no key to compare with.
    assert max(large) <= small[1] * 1.1


@pytest.mark.sqlite_only("counts the steps of its virtual machine")
@pytest.mark.parametrize("sort", ["finished_at", "-finished_at"])
def test_what_ended_within_a_range_costs_what_it_has_and_not_the_history_around_it(tmp_path: Path, sort: str) -> None:
    tx, steps = history_of(tmp_path, 3_000)
    first = min(job.finished_at for job in filter_sql.jobs_page(tx, JobFilter(), None, 5_000).items if job.finished_at)
    middle = JobFilter(
        status="COMPLETED", finished_after=Instant(first + 1_000), finished_before=Instant(first + 1_101)
    )
    small = costs(tx, steps, middle, 50, JobSort(sort))
    tx, steps = history_of(tmp_path, 9_000)

    large = costs(tx, steps, middle, 50, JobSort(sort))
    found = [job for part in parts(tx, middle, 500, JobSort(sort)) for job in part]

    assert len(found) == 100
    assert sum(large) <= sum(small) * 1.1


async def test_a_cursor_belongs_to_one_order(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        for job_id in await some_jobs(scheduler, 3):
            await scheduler.wait(job_id)
        cursors = {sort: (await scheduler.lists.jobs(limit=1, sort=sort)).next_cursor for sort in JobSort}

        for sort, cursor in cursors.items():
            for other in JobSort:
                if other == sort:
                    assert len((await scheduler.lists.jobs(cursor=cursor, limit=5, sort=other)).items) == 2
                else:
                    with pytest.raises(Invalid, match="cursor"):
                        await scheduler.lists.jobs(cursor=cursor, sort=other)


async def test_an_order_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(Invalid, match="sort is 'newest'; it must be one of created_at, -created_at, finished_at"):
            await scheduler.lists.jobs(sort="newest")


@pytest.mark.sqlite_only("counts the steps of its virtual machine")
@pytest.mark.parametrize(
    "said",
    [
        {"office_id": "o"}, {"status": "FAILED"}, {"status": "CANCELLED"}, {"status": "SKIPPED"}, {"status": "WAITING"},
        {"status": "QUEUED"}, {"status": "RUNNING"}, {"job_type": "fail"}, {"role": "rare"}, {"task_id": "rare"},
        {"template_id": "rare"}, {"schedule_id": "rare"}, {"group_id": "none"}, {"retry_of": "none"},
        {"office_id": ["o", "p"], "status": ["FAILED", "WAITING"]}, {"office_id": "default", "role": "rare"},
        {"q": "00000000-0000-0000-0000-000000000000"},
    ],
    ids=str,
)  # fmt: skip
def test_a_filter_that_finds_little_costs_the_same_in_any_history(tmp_path: Path, said: dict[str, Any]) -> None:
    tx, steps = history_of(tmp_path, 200)
    small = sum(costs(tx, steps, JobFilter(**said), limit=50))
    tx, steps = history_of(tmp_path, 4_000)

    large = sum(costs(tx, steps, JobFilter(**said), limit=50))

    assert large <= small + 100


@pytest.mark.sqlite_only("counts the steps of its virtual machine")
def test_a_search_looks_at_a_bounded_number_of_jobs_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyset_pagination, "BUDGET", 100)
    tx, steps = history_of(tmp_path, 1_000)
    small = max(costs(tx, steps, JobFilter(q="not there"), limit=50))
    tx, steps = history_of(tmp_path, 4_000)

    each = costs(tx, steps, JobFilter(q="not there"), limit=50)

    assert len(each) == 40
    assert max(each) <= small * 1.1


def history_of(directory: Path, jobs: int) -> tuple[SqliteTx, Steps]:
    """Makes a database whose office has this many jobs, all of them completed; each call adds to it."""
    if not (directory / "nextslot.db").exists():
        testing.run(one_job(directory))
    connection = database(directory)
    connection.pragma("foreign_keys", False)
    have: int = connection.execute("select count(*) from jobs").get
    with connection:
        connection.execute("insert into maintenance values ('test', 1)")
        connection.execute(_COPIES, {"first": have, "last": jobs - 1})
        connection.execute("delete from maintenance")
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    steps = Steps()
    steps.watch(connection)
    return SqliteTx(connection), steps


async def one_job(directory: Path) -> None:
    async with running_scheduler(directory) as scheduler:
        await scheduler.wait((await scheduler.submit("work", task_id="t")).job_id)


_COPIES = """
    with recursive numbers(n) as (select :first union all select n + 1 from numbers where n < :last),
    original as (select * from jobs order by created_at limit 1)
    insert into jobs (job_id, office_id, lane_id, job_type, params, stage, outcome, priority, position, chain_id,
        unmet, is_due, is_turn, on_dependency_failure, task_id, resources, retry_policy, webhook_status, created_at,
        queued_at, started_at, finished_at)
    select printf('10000000-0000-7000-0000-%012x', n), office_id, lane_id, job_type, params, stage, outcome, priority,
        position, printf('10000000-0000-7000-0000-%012x', n), unmet, is_due, is_turn, on_dependency_failure, task_id,
        resources, retry_policy, webhook_status, created_at + n, queued_at + n, started_at + n, finished_at + n
    from numbers, original
"""


def costs(tx: SqliteTx, steps: Steps, filter: JobFilter, limit: int, sort: JobSort = JobSort.NEWEST) -> list[int]:
    """Returns the cost of each page of a whole list."""
    each = []
    before = steps.taken
    for _ in parts(tx, filter, limit, sort):
        each.append(steps.taken - before)
        before = steps.taken
    return each


# Jobs and their chains.


async def test_a_listed_job_says_which_attempt_it_is(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("fail", retry_policy={"max_attempts": 2})
        other = await scheduler.submit("work")
        await scheduler.wait(job.job_id)

        shown = (await scheduler.lists.jobs()).items

        chain = [one.job_id for one in await scheduler.chain(job.job_id)]
        assert {one.job.job_id: one.attempt for one in shown} == {**numbered(chain), other.job_id: 1}
        assert await scheduler.lists.attempts([one.job for one in shown]) == {**numbered(chain), other.job_id: 1}


@pytest.mark.sqlite_only("counts statements on a connection of its own")
async def test_a_page_of_retries_costs_one_statement_more_and_one_of_first_attempts_none(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        for _ in range(5):
            await scheduler.wait((await scheduler.submit("fail", retry_policy={"max_attempts": 1})).job_id)
        await scheduler.submit("work")
        tx = CountingTx(tmp_path)
        retries = filter_sql.jobs_page(tx, JobFilter(job_type="fail"), None, 50).items
        first = filter_sql.jobs_page(tx, JobFilter(job_type="work"), None, 50).items
        tx.names.clear()

        assert len(listed(tx, retries)) == 10
        assert len(listed(tx, first)) == 1
        assert tx.names == ["pages.links"]


class CountingTx(SqliteTx):
    def __init__(self, directory: Path) -> None:
        super().__init__(database(directory))
        self.names: list[str] = []

    def rows(self, statement: str, /, **values: object) -> list[tuple[Any, ...]]:
        self.names.append(statement)
        return super().rows(statement, **values)


async def test_a_job_is_shown_with_its_run_and_its_whole_chain(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("fail", {"times": 1})
        ended = await scheduler.wait(job.job_id)

        first, last = await scheduler.lists.job(job.job_id), await scheduler.lists.job(ended.job.job_id)

        assert (first.attempt, last.attempt) == (1, 2)
        assert (first.run, last.run) == (await scheduler.run_of(job.job_id), ended.run)
        assert first.chain == last.chain == (first.job, last.job)
        assert first.attempts == {first.job.job_id: 1, last.job.job_id: 2}
        with pytest.raises(NotFound):
            await scheduler.lists.job("nothing")


# The queue.


async def test_places_go_on_from_page_to_page(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        for number in range(25):
            await scheduler.submit("work", priority=number % 3, office_id="default")

        placed, cursor = [], None
        for _ in range(4):
            page = await scheduler.lists.queue(cursor=cursor, limit=7)
            placed += [(one.place, one.job.job_id) for one in page.queue]
            cursor = page.next_cursor

        assert cursor is None
        assert placed == list(enumerate([job.job_id for job in await scheduler.queue()], start=1))


async def test_the_queue_shows_what_runs_who_waits_before_it_and_whether_it_is_paused(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        running = await scheduler.submit("work", {"seconds": 100})
        queued = await scheduler.submit("work", depends_on=[running.job_id])
        callers = [asyncio.ensure_future(scheduler.run_direct("work")) for _ in range(2)]
        await testing.settled()

        page = await scheduler.lists.queue()
        await scheduler.pause()
        paused = await scheduler.lists.queue()

        assert [one.job.job_id for one in page.running] == [running.job_id]
        assert [(one.job.job_id, one.job.status, one.place) for one in page.queue] == [(queued.job_id, "WAITING", 1)]
        assert page.reservation is not None
        assert (page.reservation.status, page.direct_waiting) == ("ACTIVE", 2)
        assert (page.office_id, page.is_paused, paused.is_paused) == ("default", False, True)
        await scheduler.resume()
        await asyncio.gather(*callers)


async def test_the_queue_of_an_office_that_is_paused_says_so_and_one_that_is_not_there_is_not_found(
    tmp_path: Path,
) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        await scheduler.pause(office_id="o")

        assert (await scheduler.lists.queue("o")).is_paused
        assert not (await scheduler.lists.queue()).is_paused
        with pytest.raises(NotFound):
            await scheduler.lists.queue("nowhere")


# Everything else.


async def test_runs_are_filtered_by_how_they_ended_and_by_their_jobs(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        done = await scheduler.submit("work", office_id="o")
        failed = await scheduler.submit("fail", {"kind": "invalid"})
        skipped = await scheduler.submit("skip", office_id="o")
        await asyncio.sleep(5)
        middle = (await run_of(scheduler, skipped)).started_at
        late = await scheduler.submit("work", {"seconds": 50})
        await testing.settled()

        async def found(**said: Any) -> set[str]:
            return {run.job_id for run in (await scheduler.lists.runs(RunFilter(**said))).items}

        ids = {name: job.job_id for name, job in {"d": done, "f": failed, "s": skipped, "l": late}.items()}
        assert await found() == set(ids.values())
        assert await found(status="FAILED") == await found(failure_kind="invalid") == {ids["f"]}
        assert await found(failure_kind=["error", "timeout"]) == set()
        assert await found(status=["COMPLETED", "SKIPPED"]) == await found(office_id="o") == {ids["d"], ids["s"]}
        assert await found(job_type="work") == {ids["d"], ids["l"]}
        assert await found(job_type="work", office_id="o", status="COMPLETED") == {ids["d"]}
        assert await found(job_id=ids["s"]) == {ids["s"]}
        assert await found(started_after=middle) == {ids["l"]}
        assert ids["l"] not in await found(started_before=(await run_of(scheduler, late)).started_at)


async def run_of(scheduler: Scheduler, job: Job) -> Any:
    return await scheduler.run_of(job.job_id)


async def test_runs_are_listed_newest_first_with_their_artifacts(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("files")
        async def files(run: Any, count: int) -> None:
            for number in range(count):
                (run.artifacts / f"{number}.txt").write_text("x")

        for count in range(3):
            await scheduler.wait((await scheduler.submit("files", {"count": count})).job_id)

        first = await scheduler.lists.runs(limit=2)
        second = await scheduler.lists.runs(cursor=first.next_cursor, limit=2)

        runs = [*first.items, *second.items]
        assert [len(run.artifacts) for run in runs] == [2, 1, 0]
        assert runs == [await scheduler.run_of(run.job_id) for run in runs]
        assert second.next_cursor is None


async def test_groups_are_listed_newest_first_by_office_and_status(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        made = []
        for office_id in ("default", "o", "default"):
            group, _ = await scheduler.submit_group([NewJob(job_type="work", office_id=office_id)])
            made.append(group.group_id)
            await asyncio.sleep(0.2)
        await scheduler.pause()
        await asyncio.sleep(5)

        async def found(**said: Any) -> list[str]:
            return [group.group_id for group in await whole(scheduler.lists.groups, GroupFilter(**said))]

        assert await found() == made[::-1]
        assert await found(office_id="default") == [made[2], made[0]]
        assert await found(status="COMPLETED", office_id=["o", "default"]) == [made[1], made[0]]


async def test_direct_executions_and_reservations_are_listed_newest_first(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        made = [(await scheduler.run_direct("work", office_id=office)).direct_id for office in ("default", "o", "o")]
        waiting = asyncio.ensure_future(scheduler.run_direct("work", {"seconds": 9}, direct_id="last"))
        await testing.settled()

        async def found(**said: Any) -> list[str]:
            return [one.direct_id for one in await whole(scheduler.lists.direct, DirectFilter(**said))]

        assert await found() == ["last", *made[::-1]]
        assert await found(office_id="o") == made[:0:-1]
        assert await found(status="RUNNING") == ["last"]
        assert await found(status="COMPLETED", office_id="default", job_type="work") == made[:1]
        reserved = await whole(scheduler.lists.reservations)
        assert [one.run_id for one in reserved[1:]] == made[::-1]
        await waiting


async def test_events_are_listed_oldest_first_from_a_number_by_job_type_and_office(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        job = await scheduler.submit("work", office_id="o")
        other = await scheduler.submit("fail", retry_policy={"max_attempts": 1})
        await scheduler.wait(job.job_id)
        await scheduler.wait(other.job_id)
        every = await history(scheduler)

        async def found(after: int = 0, **said: Any) -> list[int]:
            wanted = EventFilter(**said)
            return [event.seq for event in await whole(lambda **page: scheduler.lists.events(after, wanted, **page))]

        assert await found() == [event.seq for event in every]
        assert await found(after=3) == [event.seq for event in every if event.seq > 3]
        assert await found(job_id=job.job_id) == [event.seq for event in every if event.job_id == job.job_id]
        assert await found(2, job_id=job.job_id, type="job_completed") == [
            event.seq for event in every if event.job_id == job.job_id and event.type == "job_completed"
        ]
        assert await found(office_id="o") == [event.seq for event in every if event.office_id == "o"]


async def test_events_go_on_after_a_whole_number(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        wrong: list[Any] = [-1, 1.5, "1", True, 2**63]
        for after in wrong:
            with pytest.raises(Invalid) as refused:
                await scheduler.lists.events(after)

            assert [problem.field for problem in refused.value.problems] == ["after"], after


async def test_the_audit_log_and_the_offices_are_listed_in_pages(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        for number in range(5):
            await named(scheduler, "me", f"a{number}").offices.create(f"o{number}")

        audit = await whole(scheduler.lists.audit)
        offices = await whole(scheduler.offices.page)

        assert [entry.action for entry in audit] == ["a4", "a3", "a2", "a1", "a0"]
        assert [office.office_id for office in offices] == ["default", "o0", "o1", "o2", "o3", "o4"]


# What is going on.


async def test_the_status_counts_what_is_queued_waiting_and_running_in_each_office(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=2)
        await scheduler.pause(job_type="skip")
        jobs = [await scheduler.submit("work", {"seconds": 100}, office_id="o", role="QA") for _ in range(5)]
        await asyncio.sleep(1)
        await scheduler.submit("work", office_id="o", resources=["gpu"], role="QA")
        await scheduler.submit("work", office_id="o", depends_on=[jobs[0].job_id])
        await asyncio.sleep(1)

        status = await scheduler.lists.status()

        default, office = status.offices
        assert (office.queued, office.waiting, office.running) == (5, 1, 1)
        assert (default.office_id, default.queued, default.oldest_queued_at) == ("default", 0, None)
        assert office.oldest_queued_at == jobs[1].created_at
        assert {limit.limit_key: limit[1:] for limit in status.limits}["office:o"] == (2, 1)
        assert (status.paused, status.held) == ((("type", "skip"),), ())


async def test_the_status_says_which_resources_are_held_and_who_waits_on_the_line(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        for _ in range(5):
            job = await scheduler.submit("fail", {"kind": "unavailable"}, resources=["gpu"], retry_policy=NO_RETRY)
            await scheduler.wait(job.job_id)
        callers = [asyncio.ensure_future(scheduler.run_direct("work", {"seconds": 5})) for _ in range(3)]
        await testing.settled()

        status = await scheduler.lists.status()

        assert [(held.resource, held.failures) for held in status.held] == [("gpu", 5)]
        assert (status.offices[0].direct_waiting, status.offices[0].direct_running) == (2, 1)
        assert status.last_event == (await history(scheduler))[-1].seq
        await asyncio.gather(*callers)


@pytest.mark.sqlite_only("counts the steps of its virtual machine")
def test_the_status_costs_nothing_for_what_has_ended(tmp_path: Path) -> None:
    tx, steps = history_of(tmp_path, 100)
    _status(tx, testing.BEGINNING)
    small = steps.taken
    tx, steps = history_of(tmp_path, 3_000)

    _status(tx, testing.BEGINNING)

    assert steps.taken == small


# How the tests walk.


async def some_jobs(scheduler: Scheduler, count: int, params: dict[str, Any] | None = None) -> list[str]:
    return [(await scheduler.submit("work", params)).job_id for _ in range(count)]


async def walk(
    scheduler: Scheduler,
    limit: int = 500,
    meanwhile: Any = None,
    filter: JobFilter | None = None,
    sort: str | None = None,
) -> list[str]:
    """Reads the ids of a whole list of jobs, and makes changes between its pages."""
    seen: list[str] = []
    page: Page[Listed] = await scheduler.lists.jobs(filter, limit=limit, sort=sort)
    seen += [one.job.job_id for one in page.items]
    while page.next_cursor is not None:
        if meanwhile is not None:
            await meanwhile()
        page = await scheduler.lists.jobs(filter, page.next_cursor, limit, sort)
        seen += [one.job.job_id for one in page.items]
    return seen


def numbered(chain: Sequence[str]) -> dict[str, int]:
    return {job_id: place for place, job_id in enumerate(chain, start=1)}


async def whole(list_: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Returns every item of a list, read two at a time."""
    items: list[Any] = []
    cursor = None
    while True:
        page = await list_(*arguments, cursor=cursor, limit=2)
        items += page.items
        cursor = page.next_cursor
        if cursor is None:
            return items
