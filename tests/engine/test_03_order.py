"""Spec 3: the queue and its order."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextslot import Job, Scheduler, testing
from nextslot.domain import MAX_PRIORITY, URGENT, NewJob
from nextslot.engine.submit.queue_order import GAP
from nextslot.errors import (
    AlreadyDispatched,
    AlreadyFinished,
    IdempotencyMismatch,
    Invalid,
    NotFound,
)
from nextslot.store.tables.jobs import place_of
from tests.support import (
    assert_counters,
    counted_scheduler,
    database,
    history,
    new_scheduler,
    queued_ids,
    running_scheduler,
    started_order,
    states,
)

# The order.


async def test_INV_004_jobs_start_by_priority_then_position(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        low = await scheduler.submit("work", priority=-1)
        first = await scheduler.submit("work")
        second = await scheduler.submit("work")
        high = await scheduler.submit("work", priority=5)
        await scheduler.resume()

        for job in (low, first, second, high):
            await scheduler.wait(job.job_id)

        assert await started_order(scheduler) == [job.job_id for job in (high, first, second, low)]


async def test_INV_004_created_at_and_job_id_break_ties(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        jobs = []
        for _ in range(4):
            jobs.append(await scheduler.submit("work"))
            await asyncio.sleep(1)
        jobs += await scheduler.submit_many([NewJob(job_type="work")] * 3)
        await testing.crash(scheduler)
        database(tmp_path).execute("update jobs set position = 7")

        async with new_scheduler(tmp_path, seed=1) as second:
            assert await queued_ids(second) == ids(jobs)
            await second.resume()
            for job in jobs:
                await second.wait(job.job_id)
            assert await started_order(second) == ids(jobs)


@pytest.mark.parametrize("is_crash", [True, False])
async def test_spec_3_2_the_order_is_the_same_before_and_after_a_restart(tmp_path: Path, is_crash: bool) -> None:
    chance = random.Random(4)

    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work", {"seconds": 3})
        jobs = [await scheduler.submit("work", priority=chance.randint(-2, 2)) for _ in range(40)]
        for _ in range(40):
            one, other = chance.sample(jobs, 2)
            await scheduler.move(one.job_id, before=other.job_id)
        before = await queued_ids(scheduler)
        await testing.crash(scheduler) if is_crash else await scheduler.stop()

        async with new_scheduler(tmp_path, seed=1) as second:
            for job_id in before:
                await second.wait(job_id)
            started = await started_order(second)
            assert [job_id for job_id in started if job_id in before] == before


async def test_DEC_005_a_new_job_goes_a_gap_behind_the_last_of_its_priority(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        first = await scheduler.submit("work")
        second = await scheduler.submit("work")
        high = await scheduler.submit("work", priority=5)
        await an_office(scheduler)
        await scheduler.move(second.job_id, after=first.job_id)

        third = await scheduler.submit("work")

        last = (await scheduler.job(second.job_id)).position
        assert (third.position - last, high.position) == (GAP, GAP)
        assert (await scheduler.submit("work", office_id="o")).position == GAP


async def test_a_page_of_the_queue_goes_on_from_any_place(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        for number in range(25):
            await scheduler.submit("work", priority=number % 3)
        whole = await queued_ids(scheduler)

        pages: list[Job] = []
        while page := await scheduler.queue(after=place_of(pages[-1]) if pages else None, limit=7):
            pages += page

        assert ids(pages) == whole


async def test_waiting_jobs_have_their_place_in_the_queue_too(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        first = await scheduler.submit("work")
        waiting = await scheduler.submit("work", depends_on=[first.job_id])
        last = await scheduler.submit("work")

        assert await queued_ids(scheduler) == ids([first, waiting, last])


async def test_urgent_jobs_come_before_everything_first_come_first_served(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        ordinary = await scheduler.submit("work", priority=MAX_PRIORITY)
        first = await scheduler.submit("work", urgent=True)
        second = await scheduler.submit("work", priority=URGENT)
        raised = await scheduler.submit("work")
        await scheduler.change(raised.job_id, urgent=True)
        last = await scheduler.submit("work", urgent=True)

        assert first.priority == URGENT
        assert await queued_ids(scheduler) == ids([first, second, raised, last, ordinary])


# Moves.


@pytest.mark.parametrize(
    ("move", "order"),
    [
        ({"to": "front"}, "cabd"),
        ({"to": "back"}, "abdc"),
        ({"before": "a"}, "cabd"),
        ({"before": "b"}, "acbd"),
        ({"before": "d"}, "abcd"),
        ({"after": "a"}, "acbd"),
        ({"after": "b"}, "abcd"),
        ({"after": "d"}, "abdc"),
        ({"place": 1}, "cabd"),
        ({"place": 2}, "acbd"),
        ({"place": 3}, "abcd"),
        ({"place": 4}, "abdc"),
        ({"place": 99}, "abdc"),
    ],
)
async def test_a_job_moves_where_it_is_told(tmp_path: Path, move: dict[str, Any], order: str) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        jobs = {name: await scheduler.submit("work") for name in "abcd"}
        where: dict[str, Any] = {how: jobs[to].job_id if to in jobs else to for how, to in move.items()}

        moved = await scheduler.move(jobs["c"].job_id, **where)

        names = {job.job_id: name for name, job in jobs.items()}
        assert "".join(names[job_id] for job_id in await queued_ids(scheduler)) == order
        assert await scheduler.job(moved.job_id) == moved


async def test_a_moved_job_takes_the_priority_of_its_new_neighbours(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        high, middle, low = [await scheduler.submit("work", priority=p) for p in (10, 0, -10)]
        moved = await scheduler.submit("work", priority=3)

        for where, priority in (
            ({"to": "front"}, 10),
            ({"to": "back"}, -10),
            ({"before": middle.job_id}, 0),
            ({"after": high.job_id}, 10),
            ({"before": low.job_id}, -10),
            ({"place": 2}, 0),
            ({"place": 4}, -10),
        ):
            assert (await scheduler.move(moved.job_id, **where)).priority == priority
        assert await queued_ids(scheduler) == ids([high, middle, low, moved])


async def test_the_only_job_of_a_queue_stays_where_it_is(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        job = await scheduler.submit("work", priority=4)

        for where in ({"to": "front"}, {"to": "back"}, {"place": 1}, {"place": 7}):
            assert await scheduler.move(job.job_id, **where) == job
        assert [event.type for event in await history(scheduler)] == ["queue_paused", "job_queued"]


@pytest.mark.sqlite_only("counts the steps of its machine")
@pytest.mark.parametrize("where", ["before", "after", "place", "front"])
async def test_thousands_of_moves_into_the_same_spot_cost_little_and_keep_the_order(tmp_path: Path, where: str) -> None:
    async with counted_scheduler(tmp_path, synchronous="NORMAL") as scheduler:
        await scheduler.pause()
        jobs = await scheduler.submit_many([NewJob(job_type="work")] * 200)
        model = ids(jobs)
        spot, chance = jobs[100].job_id, random.Random(1)
        writer = scheduler._access.store._writer  # type: ignore[attr-defined]
        changes = writer.total_changes()
        for _ in range(2000):
            moved = chance.choice([job_id for job_id in model if job_id != spot])
            to = move_in_model(model, moved, where, spot)
            await scheduler.move(moved, **to)

        assert await queued_ids(scheduler) == model
        # The job itself, its event, and a few neighbours now and then; the queue is 200 long.
        assert (writer.total_changes() - changes) / 2000 < 8


moves = st.lists(
    st.tuples(
        st.sampled_from(["front", "back", "before", "after", "place", "priority", "reorder", "new"]),
        st.integers(0, 1000),
        st.integers(0, 1000),
    ),
    max_size=40,
)


@settings(max_examples=25, deadline=None)
@given(priorities=st.lists(st.integers(-1, 1), min_size=1, max_size=12), moves=moves, gap=st.sampled_from([2, 3, GAP]))
def test_no_move_changes_the_relative_order_of_other_jobs(
    priorities: list[int], moves: list[tuple[str, int, int]], gap: int
) -> None:
    async def main() -> None:
        async with counted_scheduler(Path(directory), synchronous="NORMAL") as scheduler:
            await scheduler.pause()
            for priority in priorities:
                await scheduler.submit("work", priority=priority)
            model = Model([(job.job_id, job.priority) for job in await scheduler.queue()])
            for how, one, other in moves:
                await model.apply(scheduler, how, one, other)
                assert [(job.job_id, job.priority) for job in await scheduler.queue()] == model.jobs

    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        # A small gap makes every other move a respacing.
        patch.setattr("nextslot.engine.submit.queue_order.GAP", gap)
        testing.run(main())


@pytest.mark.parametrize(
    "where",
    [
        {},
        {"to": "front", "place": 1},
        {"to": "middle"},
        {"to": ""},
        {"place": 0},
        {"place": -1},
        {"place": 1.5},
        {"place": "1"},
        {"place": True},
        {"place": 10**30},
        {"before": "itself"},
        {"after": "itself"},
    ],
)
async def test_a_move_that_makes_no_sense_is_refused(tmp_path: Path, where: dict[str, Any]) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        job, other = await scheduler.submit("work"), await scheduler.submit("work")
        itself: dict[str, Any] = {how: job.job_id if to == "itself" else to for how, to in where.items()}

        with pytest.raises(Invalid):
            await scheduler.move(job.job_id, **itself)

        assert await queued_ids(scheduler) == ids([job, other])


async def test_only_queued_jobs_of_the_same_office_are_neighbours(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        ended = await scheduler.submit("work")
        await scheduler.wait(ended.job_id)
        running = await scheduler.submit("work", {"seconds": 1000})
        job = await scheduler.submit("work")
        foreign = await scheduler.submit("work", office_id=await an_office(scheduler, max_concurrent_jobs=1))
        foreign_queued = await scheduler.submit("work", office_id="o")

        for error, other in (
            (AlreadyFinished, ended.job_id),
            (AlreadyDispatched, running.job_id),
            (NotFound, foreign.job_id),
            (NotFound, foreign_queued.job_id),
            (NotFound, "nothing"),
            (NotFound, ""),
        ):
            for where in ("before", "after"):
                with pytest.raises(error):
                    await scheduler.move(job.job_id, **{where: other})  # type: ignore[arg-type]
            if other not in (foreign.job_id, foreign_queued.job_id):
                with pytest.raises(error):
                    await scheduler.move(other, to="front")
        assert await scheduler.job(job.job_id) == job


# A whole order.


async def test_a_whole_order_gives_the_jobs_the_places_that_they_hold_now(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        a, b, c, d, e = [await scheduler.submit("work", priority=p) for p in (9, 5, 5, 1, 0)]

        moved = await scheduler.reorder(ids([d, a, c]))

        assert await queued_ids(scheduler) == ids([d, b, a, c, e])
        assert [job.priority for job in await scheduler.queue()] == [9, 5, 5, 1, 0]
        assert moved == [await scheduler.job(job.job_id) for job in (d, a, c)]


async def test_a_whole_order_is_applied_all_or_none(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first, a, b, c = [await scheduler.submit("work", {"seconds": 5}) for _ in range(4)]
        foreign = await scheduler.submit("work", office_id=await an_office(scheduler), scheduled_for=LATER)
        await scheduler.wait(first.job_id)  # So that `a` has been dispatched in the meantime.

        for error, job_ids, words in (
            (AlreadyDispatched, ids([c, a, b]), a.job_id),
            (AlreadyDispatched, ids([c, first, b]), first.job_id),
            (NotFound, [*ids([c, b]), "nothing"], "nothing"),
            (Invalid, ids([c, b, c]), "twice"),
            (Invalid, ids([c, b, foreign]), "offices"),
            (Invalid, [], "at least one"),
        ):
            with pytest.raises(error, match=words):
                await scheduler.reorder(job_ids)
            assert await queued_ids(scheduler) == ids([b, c])


# Priorities.


async def test_another_priority_puts_a_job_at_its_back(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        low, high, other_high, last = [await scheduler.submit("work", priority=p) for p in (0, 5, 5, 0)]

        await scheduler.change(low.job_id, priority=5)
        assert await queued_ids(scheduler) == ids([high, other_high, low, last])

        await scheduler.change(high.job_id, priority=0)
        assert await queued_ids(scheduler) == ids([other_high, low, last, high])

        same = await scheduler.change(other_high.job_id, priority=5)
        assert await queued_ids(scheduler) == ids([other_high, low, last, high])
        assert same == await scheduler.job(other_high.job_id), "and who asks for what is there gets the job as it is"


async def test_a_job_that_is_moved_to_the_front_starts_next(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first, second, third = [await scheduler.submit("work") for _ in range(3)]
        await scheduler.move(third.job_id, to="front")

        for job in (first, second, third):
            await scheduler.wait(job.job_id)

        assert await started_order(scheduler) == ids([first, third, second])


# Pauses.

SCOPES: list[dict[str, str]] = [{}, {"office_id": "default"}, {"job_type": "work"}, {"resource": "gpu"}]


@pytest.mark.parametrize("scope", SCOPES, ids=str)
async def test_a_pause_holds_the_queue_back_and_lets_running_work_go_on(tmp_path: Path, scope: dict[str, str]) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        running = await scheduler.submit("work", {"seconds": 5}, resources=["gpu"])
        queued = await scheduler.submit("work", resources=["gpu"])
        await scheduler.pause(**scope)

        assert (await scheduler.wait(running.job_id)).status == "COMPLETED"
        added = await scheduler.submit("work", resources=["gpu"])
        await asyncio.sleep(3600)
        assert await states(scheduler, queued, added) == ["QUEUED", "QUEUED"]

        await scheduler.resume(**scope)
        assert [(await scheduler.wait(job.job_id)).status for job in (queued, added)] == ["COMPLETED", "COMPLETED"]
        assert [event.type for event in await history(scheduler)].count("queue_resumed") == 1


@pytest.mark.parametrize("is_crash", [True, False])
@pytest.mark.parametrize("scope", SCOPES, ids=str)
async def test_a_pause_survives_a_restart(tmp_path: Path, scope: dict[str, str], is_crash: bool) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause(**scope)
        job = await scheduler.submit("work", resources=["gpu"])
        await testing.crash(scheduler) if is_crash else await scheduler.stop()

        async with new_scheduler(tmp_path, seed=1) as second:
            await asyncio.sleep(3600)
            assert await states(second, job) == ["QUEUED"]
            assert_counters(tmp_path)
            await second.resume(**scope)
            assert (await second.wait(job.job_id)).status == "COMPLETED"


async def test_a_pause_holds_back_only_what_it_names(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await an_office(scheduler)
        await scheduler.pause(office_id="default")
        await scheduler.pause(job_type="skip")
        await scheduler.pause(resource="gpu")

        held = [
            await scheduler.submit("work"),
            await scheduler.submit("skip", office_id="o"),
            await scheduler.submit("work", office_id="o", resources=["gpu"]),
        ]
        free = [await scheduler.submit("work", office_id="o"), await scheduler.submit("work", office_id="o")]
        await asyncio.sleep(60)

        assert await states(scheduler, *held, *free) == ["QUEUED"] * 3 + ["COMPLETED"] * 2
        assert (await scheduler.offices.get("default")).is_paused
        assert not (await scheduler.offices.get("o")).is_paused


async def test_pausing_twice_is_pausing_once(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        for scope in SCOPES:
            await scheduler.resume(**scope)
            await scheduler.pause(**scope)
            await scheduler.pause(**scope)
            await scheduler.resume(**scope)
            await scheduler.resume(**scope)

        assert [event.type for event in await history(scheduler)] == ["queue_paused", "queue_resumed"] * 4
        assert (await scheduler.wait((await scheduler.submit("work")).job_id)).status == "COMPLETED"


async def test_a_pause_needs_one_thing_that_is_there(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(Invalid):
            await scheduler.pause(office_id="default", job_type="work")
        for office_id in ("nowhere", ""):
            with pytest.raises(NotFound):
                await scheduler.pause(office_id=office_id)
            with pytest.raises(NotFound):
                await scheduler.resume(office_id=office_id)

        assert await history(scheduler) == []


# Idempotency keys.


async def test_the_same_request_again_is_answered_with_what_was_made_as_it_is_now(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", {"a": 1, "b": {"c": 2, "d": 3}}, idempotency_key="k")
        await scheduler.wait(job.job_id)

        again = await scheduler.submit("work", {"b": {"d": 3, "c": 2}, "a": 1}, idempotency_key="k")

        assert (again.job_id, again.status) == (job.job_id, "COMPLETED")
        assert [event.type for event in await history(scheduler)].count("job_queued") == 1


async def test_other_content_with_a_used_key_is_refused(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", {"a": 1}, idempotency_key="k")

        others: Any = (({"a": 2}, {}), ({"a": True}, {}), ({}, {}), ({"a": 1}, {"priority": 1}))
        for params, options in others:
            with pytest.raises(IdempotencyMismatch, match="'k'") as refused:
                await scheduler.submit("work", params, idempotency_key="k", **options)
            assert refused.value.code == "idempotency_mismatch"

        assert (await scheduler.submit("work", {"a": 1}, idempotency_key="k")).job_id == job.job_id


async def test_a_key_holds_for_24_hours_and_survives_a_restart(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", idempotency_key="k")
        await scheduler.wait(job.job_id)
        await testing.crash(scheduler)

        async with new_scheduler(tmp_path, seed=1) as second:
            await asyncio.sleep(24 * 3600 - 10)
            assert (await second.submit("work", idempotency_key="k")).job_id == job.job_id
            await asyncio.sleep(10)
            other = await second.submit("work", {"other": "content"}, idempotency_key="k")
            assert other.job_id != job.job_id
            assert (await second.submit("work", {"other": "content"}, idempotency_key="k")).job_id == other.job_id


async def test_a_key_can_be_used_again_after_a_day_however_many_there_were(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path, synchronous="NORMAL") as scheduler:
        await scheduler.pause()
        for number in range(250):
            await scheduler.submit("work", idempotency_key=f"k{number}")
        await asyncio.sleep(25 * 3600)

        again = await scheduler.submit("work", idempotency_key="k249")

        assert (await scheduler.submit("work", idempotency_key="k249")).job_id == again.job_id
        # Old keys are forgotten a few at a time.
        assert database(tmp_path).execute("select count(*) from idempotency_keys").get == 150


async def test_a_key_is_for_one_office_and_one_route(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await an_office(scheduler)
        one = await scheduler.submit("work", idempotency_key="k")
        other = await scheduler.submit("work", office_id="o", idempotency_key="k")
        batch = await scheduler.submit_many([NewJob(job_type="work")], idempotency_key="k")
        _, members = await scheduler.submit_group([NewJob(job_type="work")], idempotency_key="k")

        made = [one.job_id, other.job_id, batch[0].job_id, members[0].job_id]
        assert len(set(made)) == 4
        assert [
            (await scheduler.submit("work", idempotency_key="k")).job_id,
            (await scheduler.submit("work", office_id="o", idempotency_key="k")).job_id,
            (await scheduler.submit_many([NewJob(job_type="work")], idempotency_key="k"))[0].job_id,
            (await scheduler.submit_group([NewJob(job_type="work")], idempotency_key="k")).jobs[0].job_id,
        ] == made


async def test_a_batch_with_a_key_is_answered_whole(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        wanted = [NewJob(job_type="work", params={"n": n}) for n in range(3)]
        jobs = await scheduler.submit_many(wanted, idempotency_key="k")

        assert ids(await scheduler.submit_many(tuple(wanted), idempotency_key="k")) == ids(jobs)
        with pytest.raises(IdempotencyMismatch):
            await scheduler.submit_many(wanted[::-1], idempotency_key="k")
        with pytest.raises(IdempotencyMismatch):
            await scheduler.submit_many(wanted[:2], idempotency_key="k")


async def test_a_group_with_a_key_is_answered_whole_after_its_retries_too(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        wanted = [NewJob(job_type="fail", params={"times": 1}), NewJob(job_type="work")]
        group, jobs = await scheduler.submit_group(wanted, name="g", idempotency_key="k")
        await scheduler.wait(jobs[1].job_id)

        again, same = await scheduler.submit_group(wanted, name="g", idempotency_key="k")

        assert (again.group_id, again.status, ids(same)) == (group.group_id, "COMPLETED", ids(jobs))
        assert [job.status for job in same] == ["FAILED", "COMPLETED"]
        others: tuple[dict[str, Any], ...] = (
            {"name": "other"},
            {"name": "g", "mode": "parallel"},
            {"name": "g", "on_failure": "skip"},
        )
        for other in others:
            with pytest.raises(IdempotencyMismatch):
                await scheduler.submit_group(wanted, idempotency_key="k", **other)


async def test_a_request_that_was_refused_does_not_use_up_its_key(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        with pytest.raises(Invalid):
            await scheduler.submit("work", {"seconds": "soon"}, idempotency_key="k")

        assert (await scheduler.submit("work", {"seconds": 1}, idempotency_key="k")).status in ("QUEUED", "RUNNING")


async def test_a_replay_is_answered_even_when_the_request_would_be_refused_by_now(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        options: dict[str, Any] = {"expires_at": testing.BEGINNING.after(60), "idempotency_key": "k"}
        job = await scheduler.submit("work", **options)
        await asyncio.sleep(600)

        assert (await scheduler.submit("work", **options)).job_id == job.job_id


@pytest.mark.parametrize("key", ["", "x" * 1001, "nul\0", "\ud800", 5])
async def test_a_key_that_cannot_be_stored_is_refused(tmp_path: Path, key: Any) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(Invalid, match="idempotency_key"):
            await scheduler.submit("work", idempotency_key=key)
        with pytest.raises(Invalid, match="idempotency_key"):
            await scheduler.submit_group([NewJob(job_type="work")], idempotency_key=key)

        assert await history(scheduler) == []


async def test_requests_with_the_same_key_at_the_same_time_make_one_job(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        answers = await asyncio.gather(*[scheduler.submit("work", idempotency_key="k") for _ in range(20)])

        assert len({job.job_id for job in answers}) == 1


# Unique keys.


async def test_while_a_job_with_a_unique_key_has_not_ended_it_is_the_answer(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await an_office(scheduler)
        first = await scheduler.submit("work", unique_key="u")
        assert (await scheduler.submit("work", {"other": 1}, unique_key="u")).job_id == first.job_id
        assert (await scheduler.submit("work", unique_key="u", office_id="o")).job_id != first.job_id
        assert (await scheduler.submit("work", unique_key="other")).job_id != first.job_id

        await scheduler.wait(first.job_id)
        second = await scheduler.submit("work", unique_key="u")
        assert second.job_id != first.job_id

        await scheduler.cancel(second.job_id)
        await scheduler.wait(second.job_id)
        assert (await scheduler.submit("work", unique_key="u")).job_id not in (first.job_id, second.job_id)


async def test_a_unique_key_twice_in_one_batch_makes_one_job(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        known = await scheduler.submit("work", unique_key="known")
        wanted = [
            NewJob(job_type="work", unique_key="u"),
            NewJob(job_type="work", unique_key="u", key="second"),
            NewJob(job_type="work", unique_key="known", key="known"),
            NewJob(job_type="work", depends_on=["second", "known"]),
        ]

        first, second, third, last = await scheduler.submit_many(wanted)

        assert (second.job_id, third.job_id) == (first.job_id, known.job_id)
        assert last.depends_on == (first.job_id, known.job_id)
        assert (await scheduler.wait(last.job_id)).status == "COMPLETED"
        assert await started_order(scheduler) == ids([known, first, last])


async def test_a_member_of_a_group_has_no_unique_key(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(Invalid, match="unique_key"):
            await scheduler.submit_group([NewJob(job_type="work", unique_key="u")])


async def test_a_retry_does_not_hold_the_unique_key(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("fail", {"times": 1}, unique_key="u")
        await asyncio.sleep(5)
        retry = (await scheduler.chain(job.job_id))[-1]

        other = await scheduler.submit("work", unique_key="u")

        assert (retry.status, retry.unique_key) == ("WAITING", None)
        assert other.job_id not in (job.job_id, retry.job_id)


# Many at once.


async def test_many_jobs_are_made_all_or_none(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        wanted = [NewJob(job_type="work", key=f"k{n}") for n in range(500)]
        for wrong in (
            NewJob(job_type="nonsense"),
            NewJob(job_type="work", depends_on=["nothing"]),
            NewJob(job_type="work", key="k7"),
            NewJob(job_type="work", resources={"ollama": 2}),
            NewJob(job_type="work", depends_on=[""]),
        ):
            with pytest.raises(Invalid):
                await scheduler.submit_many([*wanted, *[NewJob(job_type="work", unique_key="u")] * 2, wrong])
        with pytest.raises(NotFound):
            await scheduler.submit_many([*wanted, NewJob(job_type="work", office_id="nowhere")])
        assert await history(scheduler) == []

        jobs = await scheduler.submit_many(wanted)

        assert await queued_ids(scheduler) == ids(jobs[1:])


async def test_a_batch_has_1_to_100000_jobs(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        for wanted in ([], [NewJob(job_type="work")] * 100_001):
            for submit in (scheduler.submit_many, scheduler.submit_group):
                with pytest.raises(Invalid, match="100,000"):
                    await submit(wanted)

        assert await history(scheduler) == []


async def test_one_bad_request_takes_no_other_of_its_group_commit_with_it(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        answers = await asyncio.gather(
            *[
                scheduler.submit("work", depends_on=[] if number % 3 else ["nothing"], idempotency_key=f"k{number}")
                for number in range(30)
            ],
            return_exceptions=True,
        )

        assert [isinstance(answer, Invalid) for answer in answers] == [number % 3 == 0 for number in range(30)]
        assert len(await queued_ids(scheduler)) + len(await scheduler.running()) == 20


# Expiry.


async def test_a_job_that_has_not_started_by_expires_at_is_cancelled(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        long = await scheduler.submit("work", {"seconds": 100}, expires_at=testing.BEGINNING.after(10))
        queued = await scheduler.submit("work", expires_at=testing.BEGINNING.after(50))
        waiting = await scheduler.submit("work", depends_on=[long.job_id], expires_at=testing.BEGINNING.after(60))
        in_time = await scheduler.submit("work", expires_at=testing.BEGINNING.after(200))
        await asyncio.sleep(70)
        cancelled = [await scheduler.job(job.job_id) for job in (queued, waiting)]

        assert [job.status for job in cancelled] == ["CANCELLED", "CANCELLED"]
        assert [job.cancel_reason for job in cancelled] == ["expired", "expired"]
        assert [job.finished_at for job in cancelled] == [testing.BEGINNING.after(50), testing.BEGINNING.after(60)]
        assert (await scheduler.wait(long.job_id)).status == "COMPLETED"
        assert (await scheduler.wait(in_time.job_id)).status == "COMPLETED"


async def test_a_job_that_expired_while_nothing_ran_is_cancelled_before_anything_starts(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        job = await scheduler.submit("work", expires_at=testing.BEGINNING.after(50))
        await testing.crash(scheduler)
        await asyncio.sleep(3600)

        async with new_scheduler(tmp_path, seed=1) as second:
            await second.resume()
            assert (await second.job(job.job_id)).cancel_reason == "expired"


async def test_a_job_that_has_expired_never_starts_even_before_its_timer_rings(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        clock = scheduler._clock
        assert isinstance(clock, testing.VirtualClock)
        first = await scheduler.submit("work", {"seconds": 10})
        job = await scheduler.submit("work", expires_at=testing.BEGINNING.after(1000))
        clock.jump(2000)  # As after a machine's sleep: the alarm is late, and the first job ends before it rings.

        await scheduler.wait(first.job_id)
        await asyncio.sleep(3600)

        assert (await scheduler.job(job.job_id)).cancel_reason == "expired"


@pytest.mark.parametrize("seconds", [-5, 0])
async def test_a_job_that_could_never_start_in_time_is_refused(tmp_path: Path, seconds: float) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(Invalid, match="could never start"):
            await scheduler.submit("work", expires_at=testing.BEGINNING.after(seconds))

        assert await history(scheduler) == []


# Arrangement.

LATER = testing.BEGINNING.after(10**6)


def ids(jobs: list[Job]) -> list[str]:
    return [job.job_id for job in jobs]


async def an_office(scheduler: Scheduler, **settings: Any) -> str:
    return (await scheduler.offices.create("o", **settings)).office_id


def move_in_model(model: list[str], moved: str, where: str, spot: str) -> dict[str, Any]:
    """Moves in the list, and says the same as arguments of `move`."""
    model.remove(moved)
    at = {"before": model.index(spot), "after": model.index(spot) + 1, "place": 50, "front": 0}[where]
    model.insert(at, moved)
    arguments: dict[str, dict[str, Any]] = {"front": {"to": "front"}, "place": {"place": 51}}
    return arguments.get(where, {where: spot})


class Model:
    """A queue as a plain list of (id, priority), in order."""

    def __init__(self, jobs: list[tuple[str, int]]) -> None:
        self.jobs = jobs

    async def apply(self, scheduler: Scheduler, how: str, one: int, other: int) -> None:
        job_id, priority = self.jobs[one % len(self.jobs)]
        rest = [job for job in self.jobs if job[0] != job_id]
        if how == "new":
            priority = other % 3 - 1
            self._insert(self.jobs, (await scheduler.submit("work", priority=priority)).job_id, priority)
        elif how == "reorder":
            await self._reorder(scheduler, random.Random(other))
        elif how == "priority":
            await scheduler.change(job_id, priority=other % 3 - 1)
            if other % 3 - 1 != priority:
                self.jobs = rest
                self._insert(rest, job_id, other % 3 - 1)
        elif rest:
            await self._move(scheduler, how, job_id, rest, other)

    async def _move(self, scheduler: Scheduler, how: str, job_id: str, rest: list[tuple[str, int]], other: int) -> None:
        index = other % len(rest)
        neighbour = rest[index]
        at, where = {
            "front": (0, {"to": "front"}),
            "back": (len(rest), {"to": "back"}),
            "before": (index, {"before": neighbour[0]}),
            "after": (index + 1, {"after": neighbour[0]}),
            "place": (index, {"place": index + 1}),
        }[how]
        await scheduler.move(job_id, **where)  # type: ignore[arg-type]
        priority = {"front": rest[0], "back": rest[-1]}.get(how, neighbour)[1]
        self.jobs = [*rest[:at], (job_id, priority), *rest[at:]]

    async def _reorder(self, scheduler: Scheduler, chance: random.Random) -> None:
        places = sorted(chance.sample(range(len(self.jobs)), chance.randint(1, len(self.jobs))))
        chosen = [self.jobs[place][0] for place in places]
        chance.shuffle(chosen)
        await scheduler.reorder(chosen)
        for place, job_id in zip(places, chosen, strict=True):
            self.jobs[place] = (job_id, self.jobs[place][1])

    @staticmethod
    def _insert(jobs: list[tuple[str, int]], job_id: str, priority: int) -> None:
        behind: Callable[[tuple[str, int]], bool] = lambda job: job[1] < priority  # noqa: E731
        jobs.insert(next((place for place, job in enumerate(jobs) if behind(job)), len(jobs)), (job_id, priority))
