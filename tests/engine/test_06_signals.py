"""Jobs that wait for a person or a program: answers are stored once, kept, doubled, late, and by whom they may be."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nextslot import Fail, NewJob, Scheduler, testing
from nextslot.domain import Answer
from nextslot.domain.filters import JobFilter
from nextslot.domain.signals import MOST_KEPT
from nextslot.engine.finish import job_finisher
from nextslot.engine.signals.signals import Signals
from nextslot.errors import Conflict, Forbidden, Invalid, NotFound
from nextslot.store.maintenance import doctor
from tests.support import counted_scheduler, history, named, running_scheduler, states

ASK = {"name": "deploy", "question": "May it go live?"}


def reader(scheduler: Scheduler, seen: list[Any]) -> None:
    @scheduler.job_type("reader")
    async def read(run: Any) -> Any:
        seen.append({name: (one["answer"], one["payload"], one["sent_by"]) for name, one in run.signals.items()})


async def test_a_job_waits_for_its_signal_and_the_handler_gets_the_payload(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        seen: list[Any] = []
        reader(scheduler, seen)
        job = await scheduler.submit("reader", await_signal=ASK)
        await asyncio.sleep(3600)
        assert await states(scheduler, job) == ["WAITING"]
        waiting = await scheduler.job(job.job_id)
        assert waiting.awaiting is not None
        assert waiting.awaiting["question"] == "May it go live?"
        why = await scheduler.forecast.why(job.job_id)
        assert [one.code for one in why.reasons] == ["signal"]
        assert "waits for the signal 'deploy' (May it go live?)" in why.reasons[0].text
        assert why.expected.expected_start is None

        sent = await named(scheduler, "ada").accept_signal(job.job_id, "deploy", {"version": 7})
        await scheduler.wait(job.job_id)

        assert sent.is_new
        assert seen == [{"deploy": ("approve", {"version": 7}, "ada")}]
        assert (await scheduler.job(job.job_id)).awaiting is None
        types = [one.type for one in await history(scheduler)]
        assert types.count("job_awaiting_signal") == types.count("job_signalled") == 1


async def test_a_rejected_job_is_cancelled_and_says_by_whom(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", await_signal=ASK)

        await named(scheduler, "ada").signal(job.job_id, "deploy", answer="reject")

        ended = await scheduler.job(job.job_id)
        assert ended.status == "CANCELLED"
        assert ended.cancel_reason == "rejected (deploy): by ada"


async def test_an_answer_that_comes_before_the_job_waits_is_kept(tmp_path: Path) -> None:
    """The signal comes while its job still waits for another job; a job that parks finds one that came while it ran."""
    async with counted_scheduler(tmp_path) as scheduler:
        first = await scheduler.submit("work", {"seconds": 100})
        job = await scheduler.submit("work", depends_on=[first.job_id], await_signal=ASK)

        sent = await scheduler.accept_signal(job.job_id, "deploy")
        await asyncio.sleep(50)
        assert await states(scheduler, job) == ["WAITING"]
        await scheduler.wait(job.job_id)

        assert sent.signal.job_id == job.job_id
        assert await states(scheduler, job) == ["COMPLETED"]
        assert "job_awaiting_signal" not in {one.type for one in await history(scheduler)}


async def test_it_asks_when_nothing_else_holds_it_back_and_the_deadline_counts_from_then(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first = await scheduler.submit("work", {"seconds": 1000})
        wait = {**ASK, "deadline_seconds": 60}
        job = await scheduler.submit("work", depends_on=[first.job_id], await_signal=wait)
        await asyncio.sleep(990)
        assert (await scheduler.job(job.job_id)).asked_at is None

        await asyncio.sleep(20)
        asked = await scheduler.job(job.job_id)
        await asyncio.sleep(60)

        assert asked.asked_at is not None
        assert asked.answer_by == asked.asked_at.after(60)
        assert await states(scheduler, job) == ["CANCELLED"]


async def test_a_sequential_group_asks_at_the_turn_of_the_member(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        members = [NewJob(job_type="work"), NewJob(job_type="work", await_signal=ASK), NewJob(job_type="work")]
        group, made = await scheduler.submit_group(members)
        await asyncio.sleep(10)
        assert await states(scheduler, *made) == ["COMPLETED", "WAITING", "WAITING"]
        assert (await scheduler.job(made[1].job_id)).asked_at is not None

        await scheduler.signal(made[1].job_id, "deploy")
        await asyncio.sleep(10)

        assert await states(scheduler, *made) == ["COMPLETED"] * 3
        assert (await scheduler.group(group.group_id)).status == "COMPLETED"


@pytest.mark.parametrize(
    ("answer", "status", "error"),
    [
        ("approve", "COMPLETED", None),
        ("reject", "CANCELLED", None),
        ("fail", "FAILED", "no answer to the signal 'deploy' by"),
    ],
)
async def test_without_an_answer_in_time_the_default_answers(
    tmp_path: Path, answer: str, status: str, error: str | None
) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        dependent_of: list[Any] = []
        job = await scheduler.submit("work", await_signal={**ASK, "deadline_seconds": 60, "on_deadline": answer})
        dependent_of.append(await scheduler.submit("work", depends_on=[job.job_id], on_dependency_failure="cancel"))

        await asyncio.sleep(70)

        ended = await scheduler.job(job.job_id)
        run = await scheduler.run_of(job.job_id)
        (signal,) = await scheduler.signals(job.job_id)
        assert ended.status == status
        assert (signal.sent_by, signal.answer) == ("deadline", answer)
        assert error is None or (run is not None and (run.error or "").startswith(error))
        assert await states(scheduler, *dependent_of) == ["COMPLETED" if answer == "approve" else "CANCELLED"]
        with pytest.raises(Conflict, match="by deadline at"):
            await scheduler.signal(job.job_id, "deploy", answer="reject" if answer != "reject" else "approve")


async def test_the_same_answer_again_is_the_same_and_another_one_is_refused(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", await_signal=ASK)
        first = await scheduler.accept_signal(job.job_id, "deploy", {"n": 1}, signal_id="one")

        again = await scheduler.accept_signal(job.job_id, "deploy", {"n": 1})
        by_id = await scheduler.accept_signal(job.job_id, "deploy", {"n": 2}, signal_id="one")
        with pytest.raises(Conflict, match="was answered with another payload by python"):
            await scheduler.signal(job.job_id, "deploy", {"n": 2})
        with pytest.raises(Conflict, match="was answered with 'approve' by python"):
            await scheduler.signal(job.job_id, "deploy", answer="reject")

        assert [one.is_new for one in (first, again, by_id)] == [True, False, False]
        assert again.signal == by_id.signal == first.signal
        assert len(await scheduler.signals(job.job_id)) == 1


async def test_two_answers_at_once_store_one(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", await_signal=ASK)

        async def send(answer: str) -> str:
            try:
                return (await scheduler.accept_signal(job.job_id, "deploy", answer=answer)).signal.answer.value
            except Conflict:
                return "refused"

        answers = await asyncio.gather(*(send(one) for one in ("approve", "reject", "approve", "reject")))

        assert answers == ["approve", "refused", "approve", "refused"]


async def test_a_retry_does_not_ask_again_and_gets_the_same_answer(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        seen: list[Any] = []

        @scheduler.job_type("twice")
        async def twice(run: Any) -> Any:
            seen.append(run.signals["deploy"]["payload"])
            if run.attempt == 1:
                raise Fail("again")

        job = await scheduler.submit("twice", await_signal=ASK)
        await scheduler.signal(job.job_id, "deploy", 5)
        await scheduler.wait(job.job_id)

        assert seen == [5, 5]


async def test_a_template_and_its_schedules_make_jobs_that_ask(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        template = await scheduler.templates.create(name="nightly", job_type="work", await_signal=ASK)
        schedule = await scheduler.schedules.create(
            template_id=template.template_id, name="s", cron_expression="0 3 * * *", timezone="UTC"
        )
        await asyncio.sleep(24 * 3600)
        (by_schedule,) = (await scheduler.lists.jobs(JobFilter(schedule_id=schedule.schedule_id))).items
        by_hand = await scheduler.submit(template_id=template.template_id)
        other = await scheduler.submit(template_id=template.template_id, await_signal={"name": "other"})

        for job, name in ((by_schedule.job, "deploy"), (by_hand, "deploy"), (other, "other")):
            assert job.awaiting is not None
            assert job.awaiting["name"] == name
            await scheduler.signal(job.job_id, name)
        await scheduler.wait(by_schedule.job.job_id)
        with pytest.raises(Invalid, match=r"await_signal\.on_deadline"):
            await scheduler.templates.change(template.template_id, await_signal={**ASK, "on_deadline": "maybe"})
        await scheduler.templates.change(template.template_id, await_signal=None)
        plain = await scheduler.submit(template_id=template.template_id)

        assert plain.awaiting is None
        assert (await scheduler.job(by_schedule.job.job_id)).status == "COMPLETED"


async def test_only_those_who_are_named_may_answer(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", await_signal={**ASK, "answered_by": ["release"]})

        with pytest.raises(Forbidden, match="can be answered only by release"):
            await named(scheduler, "agent").signal(job.job_id, "deploy")
        assert "from release" in (await scheduler.forecast.why(job.job_id)).reasons[0].text
        await named(scheduler, "release").signal(job.job_id, "deploy")

        assert (await scheduler.wait(job.job_id)).job.status == "COMPLETED"


async def test_what_cannot_be_a_wait_or_an_answer_is_refused_with_a_sentence(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        several: list[tuple[Any, str]] = [
            ({}, "await_signal.name is null"),
            ({"name": "a/b"}, "slash"),
            ({"name": "a", "deadline": 3}, "has no part 'deadline'"),
            ({"name": "a", "deadline_seconds": 0}, "above 0"),
            ({"name": "a", "on_deadline": "maybe"}, "'approve', 'reject' or 'fail'"),
            ({"name": "a", "answered_by": "ada"}, "not a list of texts"),
            ("deploy", "a JSON object"),
        ]
        for wait, sentence in several:
            with pytest.raises(Invalid) as error:
                await scheduler.submit("work", await_signal=wait)
            assert sentence in str(error.value)
        job = await scheduler.submit("work", await_signal=ASK)
        with pytest.raises(Invalid, match="at most 65,536"):
            await scheduler.signal(job.job_id, "deploy", "x" * 70_000)
        with pytest.raises(Invalid, match="only a deadline"):
            await scheduler.signal(job.job_id, "deploy", answer="fail")
        with pytest.raises(NotFound):
            await scheduler.signal("nobody", "deploy")
        await scheduler.cancel(job.job_id)
        with pytest.raises(Conflict, match="has ended, as CANCELLED"):
            await scheduler.signal(job.job_id, "deploy")


async def test_a_parked_run_uses_up_no_attempt_and_goes_on_with_the_answer(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        seen: list[Any] = []

        @scheduler.job_type("session")
        async def session(run: Any) -> Any:
            answered = run.signals.get(f"step {len(seen)}")
            seen.append((run.last_checkpoint, None if answered is None else answered["answer"]))
            await run.checkpoint({"asked": len(seen)})
            if len(seen) <= 5:
                run.park(f"step {len(seen)}", question="Go on?", deadline_seconds=600)
            return "done"

        job = await scheduler.submit("session", retry_policy={"max_attempts": 0})
        for number in range(1, 6):
            await asyncio.sleep(10)
            last = (await scheduler.chain(job.job_id))[-1]
            assert last.status == "WAITING"
            assert last.awaiting is not None
            assert not await scheduler.running()
            await scheduler.signal(job.job_id, f"step {number}", answer="reject" if number == 3 else "approve")
        ended = await scheduler.wait(job.job_id)

        assert ended.result == "done"
        answers = ["approve", "approve", "reject", "approve", "approve"]
        assert seen == [(None, None), *(({"asked": n}, answer) for n, answer in enumerate(answers, 1))]
        runs = [await scheduler.run_of(one.job_id) for one in await scheduler.chain(job.job_id)]
        assert [one.failure_kind for one in runs if one is not None] == ["parked"] * 5 + [None]
        types = [one.type for one in await history(scheduler)]
        assert types.count("job_parked") == 5
        assert "job_failed" not in types


async def test_a_rejection_reaches_a_session_that_failed_before_it_asked(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("session")
        async def session(run: Any) -> Any:
            if run.attempt == 1:
                raise RuntimeError("not yet")
            if "plan" not in run.signals:
                run.park("plan", question="Go on?")
            return run.signals["plan"]["answer"]

        job = await scheduler.submit("session", retry_policy={"max_attempts": 2, "base_delay_seconds": 0})
        await asyncio.sleep(10)
        await scheduler.signal(job.job_id, "plan", answer="reject")

        assert (await scheduler.wait(job.job_id)).result == "reject"


async def test_a_run_that_was_asked_to_park_is_parked_however_it_ends(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("late")
        async def late(run: Any) -> Any:
            await asyncio.sleep(10)
            if not run.signals:
                raise Fail("it could not go on")

        for job_type, params in [("work", {"seconds": 10}), ("late", dict[str, Any]())]:
            job = await scheduler.submit(job_type, params)
            run = await scheduler.run_of(job.job_id)
            assert run is not None
            await scheduler.park(run.run_id, "go", question="Go?")
            await scheduler.signal(job.job_id, "go") if job_type == "late" else None
            await asyncio.sleep(15)

            parked = await scheduler.run_by_id(run.run_id)
            assert parked.failure_kind == "parked"
            assert parked.park is not None
            with pytest.raises(Conflict, match="only a running one can be parked"):
                await scheduler.park(run.run_id, "go")
            last = (await scheduler.chain(job.job_id))[-1]
            # The job whose signal came while it ran continues at once, because the answer was kept.
            assert last.status == ("RUNNING" if job_type == "late" else "WAITING")
            await scheduler.signal(job.job_id, "go")
            assert (await scheduler.wait(job.job_id)).job.status == "COMPLETED"


async def test_a_park_that_is_wrong_names_its_own_fields(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", {"seconds": 60})
        await asyncio.sleep(1)
        run = await scheduler.run_of(job.job_id)
        assert run is not None

        with pytest.raises(Invalid) as refused:
            await scheduler.park(run.run_id, "a/b", deadline_seconds=-1)

        assert [one.field for one in refused.value.problems] == ["name", "deadline_seconds"]


async def test_a_cancel_goes_over_a_park_and_a_kind_without_a_signal_is_a_failure(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", {"seconds": 10})
        run = await scheduler.run_of(job.job_id)
        assert run is not None
        await scheduler.park(run.run_id, "go")
        await scheduler.cancel(job.job_id, interrupt=True)
        await asyncio.sleep(1)
        wrong = await scheduler.submit("fail", {"kind": "parked"})
        ended = await scheduler.wait(wrong.job_id)

        assert await states(scheduler, job) == ["CANCELLED"]
        assert ended.run is not None
        assert ended.run.failure_kind == "invalid"
        assert "names the kind 'parked', but no signal" in (ended.run.error or "")


async def test_a_wait_survives_a_restart_and_its_deadline_too(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", await_signal={**ASK, "deadline_seconds": 60, "on_deadline": "approve"})
        other = await scheduler.submit("work", await_signal=ASK)
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.signal(other.job_id, "deploy")
        await asyncio.sleep(70)

        assert await states(scheduler, job, other) == ["COMPLETED", "COMPLETED"]
        assert (await scheduler.signals(job.job_id))[0].answer is Answer.APPROVE


async def test_what_came_first_while_the_scheduler_was_down_ends_a_wait(tmp_path: Path) -> None:
    wait: dict[str, Any] = {**ASK, "deadline_seconds": 60, "on_deadline": "fail"}
    async with running_scheduler(tmp_path) as scheduler:
        expired = await scheduler.submit("work", await_signal=wait, expires_at=testing.BEGINNING.after(30))
        failed = await scheduler.submit("work", await_signal=wait, expires_at=testing.BEGINNING.after(90))
    await asyncio.sleep(200)
    async with running_scheduler(tmp_path) as scheduler:
        assert await states(scheduler, expired, failed) == ["CANCELLED", "FAILED"]
        assert (await scheduler.job(expired)).cancel_reason == "expired"
        assert await scheduler.signals(expired) == ()


async def test_an_answer_after_the_deadline_is_late_even_if_the_timer_has_not_come_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        late = await scheduler.submit("work", await_signal={**ASK, "deadline_seconds": 60})
        monkeypatch.setattr(Signals, "do_due", lambda *given: 0)  # As if the timer were late.
        await asyncio.sleep(60)

        with pytest.raises(Conflict, match="was answered with 'reject' by deadline"):
            await scheduler.signal(late.job_id, "deploy", answer="approve")
        assert await scheduler.signals(late.job_id) == ()
        agreed = await scheduler.accept_signal(late.job_id, "deploy", answer="reject")

        assert (agreed.is_new, agreed.signal.sent_by) == (False, "deadline")
        assert await states(scheduler, late) == ["CANCELLED"]


async def test_a_retry_of_a_job_that_nobody_approved_asks_again(tmp_path: Path) -> None:
    """Else whoever may retry could go around the person who is asked."""
    async with counted_scheduler(tmp_path) as scheduler:
        wait = {**ASK, "deadline_seconds": 60, "on_deadline": "fail"}
        job = await scheduler.submit("work", await_signal=wait)
        await asyncio.sleep(61)
        run = await scheduler.run_of(job.job_id)
        assert run is not None

        again = await scheduler.retry(run.run_id)
        await asyncio.sleep(10)
        assert await states(scheduler, job, again) == ["FAILED", "WAITING"]
        await scheduler.signal(job.job_id, "deploy")
        await asyncio.sleep(10)

        assert await states(scheduler, again) == ["COMPLETED"]
        fresh = await scheduler.bulk.rerun(job.job_id)
        assert await states(scheduler, fresh) == ["WAITING"]


async def test_a_session_that_was_cancelled_while_it_waited_waits_again_after_a_retry(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", {"seconds": 10})
        run = await scheduler.run_of(job.job_id)
        assert run is not None
        await scheduler.park(run.run_id, "go")
        await asyncio.sleep(20)
        await scheduler.cancel((await scheduler.chain(job.job_id))[-1].job_id)

        again = await scheduler.retry(run.run_id)

        assert await states(scheduler, again) == ["WAITING"]
        assert again.awaiting is not None
        await scheduler.signal(job.job_id, "go")
        assert (await scheduler.wait(job.job_id)).job.status == "COMPLETED"


async def test_an_early_answer_of_somebody_who_may_not_answer_is_not_used(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", {"seconds": 10})
        run = await scheduler.run_of(job.job_id)
        assert run is not None
        await named(scheduler, "agent").signal(job.job_id, "go")

        await scheduler.park(run.run_id, "go", answered_by=["release"])
        await asyncio.sleep(20)
        last = (await scheduler.chain(job.job_id))[-1]
        assert last.status == "WAITING"
        await named(scheduler, "release").signal(job.job_id, "go", answer="reject")

        await scheduler.wait(job.job_id)
        assert [(one.sent_by, one.job_id) for one in await scheduler.signals(job.job_id)] == [
            ("agent", None),
            ("release", last.job_id),
        ]


async def test_the_first_answer_sent_again_late_does_not_answer_the_next_wait(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        answers: list[Any] = []

        @scheduler.job_type("asks twice")
        async def asks_twice(run: Any) -> Any:
            answers.append(run.signals.get("go", {}).get("payload"))
            if len(answers) < 3:
                run.park("go")

        job = await scheduler.submit("asks twice")
        await asyncio.sleep(1)
        first = await scheduler.accept_signal(job.job_id, "go", 1, signal_id="one")
        await asyncio.sleep(1)

        again = await scheduler.accept_signal(job.job_id, "go", 1, signal_id="one")
        assert (again.is_new, again.signal) == (False, first.signal)
        assert (await scheduler.chain(job.job_id))[-1].status == "WAITING"
        scheduler._clock.jump(-3600)  # type: ignore[attr-defined]
        await scheduler.signal(job.job_id, "go", 2, signal_id="two")
        await scheduler.wait(job.job_id)

        assert answers == [None, 1, 2]


async def test_a_chain_keeps_so_many_answers_and_parks_so_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one session could fill the database, and each of its ends would read a longer chain."""
    monkeypatch.setattr(job_finisher, "MOST_PARKS", 3)
    async with counted_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("for ever")
        async def for_ever(run: Any) -> Any:
            run.park("go", deadline_seconds=1, on_deadline="approve")

        running = await scheduler.submit("work", {"seconds": 1000})
        for number in range(MOST_KEPT):
            await scheduler.signal(running.job_id, f"name {number}")
        with pytest.raises(Conflict, match="keeps 100 answers that it has not waited for"):
            await scheduler.signal(running.job_id, "one more")
        assert not (await scheduler.accept_signal(running.job_id, "name 0")).is_new
        await scheduler.cancel(running.job_id, interrupt=True)
        looping = await scheduler.submit("for ever")
        ended = await scheduler.wait(looping.job_id)

        assert ended.run is not None
        assert (ended.job.status, ended.run.failure_kind) == ("FAILED", "invalid")
        assert "its chain has parked 3 times" in (ended.run.error or "")
        assert len(await scheduler.chain(looping.job_id)) == 4
        assert await scheduler._access.read(doctor.examine) == []
