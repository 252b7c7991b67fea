"""Spec 10: templates that make a group or a graph, and schedules of them.

Virtual time begins on Sunday, 15 November 2026, at 07:00 UTC.
"""

from pathlib import Path
from typing import Any

import pytest

from nextslot import NewJob, Scheduler, testing
from nextslot.domain import Group, Job, RetryPolicy, Schedule, Template
from nextslot.engine.schedules import template_jobs
from nextslot.engine.submit.idempotency import Replayed
from nextslot.errors import Conflict, DependencyCycle, Forbidden, Invalid, NotFound
from nextslot.store.maintenance import doctor
from nextslot.testing import Mailbox
from tests.engine.test_10_schedules import DAY, HOUR, MINUTE, at, ledger, passes, told, with_downtime
from tests.engine.test_19_retention import purge
from tests.support import history, named, new_scheduler, running_scheduler

HOOK = "http://127.0.0.1:9/hook"
# Two side by side, and one after both.
GRAPH: Any = [
    {"key": "a", "job_type": "work", "params": {"seconds": 10}},
    {"key": "b", "job_type": "work", "params": {"seconds": 20}},
    {"key": "c", "job_type": "work", "depends_on": ["a", "b"], "title": "the last"},
]


async def new_template(scheduler: Scheduler, jobs: Any = GRAPH, **fields: Any) -> Template:
    return await scheduler.templates.create(**{"name": "pipeline", "jobs": jobs, **fields})


async def new_schedule(scheduler: Scheduler, jobs: Any = GRAPH, template: Any = None, **fields: Any) -> Schedule:
    made = await new_template(scheduler, jobs, **(template or {}))
    given = {"name": "nightly", "template_id": made.template_id, "cron_expression": "0 * * * *", **fields}
    return await scheduler.schedules.create(**given)


async def triggered(scheduler: Scheduler, schedule: Schedule, **options: Any) -> Group:
    made = await scheduler.schedules.trigger(schedule.schedule_id, **options)
    assert isinstance(made, Group)
    return made


async def members(scheduler: Scheduler, group_id: str | None) -> list[Job]:
    return await scheduler.members(group_id or "")


# Making templates.


async def test_a_template_of_a_graph_keeps_its_jobs_and_chooses_its_mode(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        graph = await new_template(scheduler)
        line = await new_template(scheduler, [{"job_type": "work"}, {"job_type": "skip"}], name="line")
        chosen = await new_template(scheduler, GRAPH, name="chosen", mode="sequential", on_failure="skip")

        stored = await scheduler.templates.get(graph.template_id)
        assert stored == graph
        assert (stored.job_type, stored.jobs) == (None, tuple(GRAPH))
        assert (graph.mode, graph.on_failure) == ("parallel", "stop")
        assert (line.mode, line.on_failure) == ("sequential", "stop")
        assert (chosen.mode, chosen.on_failure) == ("sequential", "skip")


async def test_the_jobs_of_a_template_may_be_requests_as_for_a_group(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        wanted = [
            NewJob(job_type="work", key="a", retry_policy=RetryPolicy(max_attempts=1)),
            NewJob(job_type="skip", depends_on=["a"]),
        ]

        template = await new_template(scheduler, wanted)

        first, second = template.jobs or ()
        assert first["retry_policy"]["max_attempts"] == 1
        assert second == {"job_type": "skip", "depends_on": ["a"]}


@pytest.mark.parametrize(
    ("jobs", "field", "sentence"),
    [
        ([], "jobs", "there are 0 jobs; give a template 1 to 1,000"),
        ([{"job_type": "work"}] * 1001, "jobs", "there are 1,001 jobs"),
        ("work", "jobs", "it must be a list of jobs"),
        (["work"], "jobs.0", "it must be an object"),
        ([{"job_type": "nothing"}], "jobs.0.job_type", "there is no job type 'nothing'"),
        ([{"job_type": "work"}, {}], "jobs.1.job_type", "is missing"),
        ([{"job_type": "work", "params": {"seconds": "x"}}], "jobs.0.params.seconds", ""),
        ([{"job_type": "work", "params": [1]}], "jobs.0.params", ""),
        ([{"job_type": "work", "timeout_seconds": 0}], "jobs.0.timeout_seconds", ""),
        ([{"job_type": "work", "depends_on": 7}], "jobs.0.depends_on", ""),
        ([{"job_type": "work", "unique_key": "u"}], "jobs.0.unique_key", "cannot be given to a job of a template"),
        ([{"job_type": "work", "office_id": "web"}], "jobs.0.office_id", "cannot be given"),
        ([{"job_type": "work", "template_id": "t"}], "jobs.0.template_id", "cannot be given"),
        ([{"job_type": "work", "scheduled_for": "x"}], "jobs.0.scheduled_for", "cannot be given"),
        ([{"job_type": "work", "color": "red"}], "jobs.0.color", "cannot be given"),
        ([{"job_type": "work", "key": "a"}] * 2, "jobs.1.key", "two jobs have the key 'a'"),
        ([{"job_type": "work", "depends_on": ["z"]}] * 2, "jobs.0.depends_on", "there is no job with the key 'z'"),
        ([{"job_type": "work", "params": {"x": object()}}], "jobs", "JSON cannot express"),
        ([{"job_type": "work", "params": {"x": "y" * 2**20}}], "jobs", "bytes of JSON"),
    ],
)
async def test_a_wrong_job_of_a_template_is_named_and_nothing_is_stored(
    tmp_path: Path, jobs: Any, field: str, sentence: str
) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(Invalid) as refused:
            await new_template(scheduler, jobs)

        assert refused.value.problems[0].field == field
        assert sentence in refused.value.problems[0].problem
        assert (await scheduler.templates.page()).items == ()


async def test_every_wrong_job_of_a_template_is_named_at_once(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(Invalid) as refused:
            await new_template(scheduler, [{"job_type": "a"}, {"job_type": "work", "priority": "x"}, {"job_type": "c"}])

        found = [problem.field for problem in refused.value.problems]
        assert found == ["jobs.0.job_type", "jobs.1.priority", "jobs.2.job_type"]


@pytest.mark.parametrize(
    ("mode", "waits", "cycle"),
    [
        ("parallel", {"a": ["c"], "b": [], "c": ["a"]}, {"a", "c"}),
        ("sequential", {"a": ["b"], "b": [], "c": []}, {"a", "b"}),
    ],
)
async def test_a_cycle_of_a_template_is_named(tmp_path: Path, mode: str, waits: Any, cycle: set[str]) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        jobs = [{"job_type": "work", "key": key, "depends_on": others} for key, others in waits.items()]

        with pytest.raises(DependencyCycle) as refused:
            await new_template(scheduler, jobs, mode=mode)

        assert set(refused.value.cycle) == cycle


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"job_type": "work"}, "job_type"),
        ({"mode": "sideways"}, "mode"),
        ({"on_failure": "cry"}, "on_failure"),
        ({"timeout_seconds": -1}, "timeout_seconds"),
        ({"params": [1]}, "params"),
        ({"webhook": {"url": HOOK, "events": ["job.run.completed"]}}, "webhook.events"),
        ({"webhook": {"url": "file:///etc/passwd"}}, "webhook.url"),
        ({"jobs": None, "job_type": "work", "mode": "parallel"}, "mode"),
        ({"jobs": None}, "job_type"),
    ],
)
async def test_what_does_not_fit_a_group_is_named(tmp_path: Path, fields: Any, field: str) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(Invalid) as refused:
            await new_template(scheduler, **{"jobs": GRAPH, **fields})

        assert [problem.field for problem in refused.value.problems] == [field]


async def test_a_template_becomes_a_group_and_one_job_again_by_put_and_change(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        single, _ = await scheduler.templates.put("t", job_type="work")
        graph, is_new = await scheduler.templates.put("t", jobs=GRAPH)
        with pytest.raises(Invalid, match="job_type is given beside `jobs`"):
            await scheduler.templates.change(graph.template_id, job_type="work")
        longer = await scheduler.templates.change(graph.template_id, jobs=[*GRAPH, {"job_type": "skip"}])
        one_job = await scheduler.templates.change(graph.template_id, job_type="work", jobs=None)

        assert not is_new
        assert {one.template_id for one in (single, graph, longer, one_job)} == {single.template_id}
        assert (graph.job_type, graph.mode) == (None, "parallel")
        assert (len(longer.jobs or ()), longer.mode) == (4, "parallel")
        assert (one_job.job_type, one_job.jobs, one_job.mode, one_job.on_failure) == ("work", None, None, None)


# Groups of a template, without a schedule.


async def test_a_group_is_made_from_its_template_and_params_and_priority_go_to_every_job(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        template = await new_template(
            scheduler, params={"seconds": 3, "x": 1}, timeout_seconds=60, retry_policy={"max_attempts": 1}
        )

        group, jobs = await scheduler.submit_group_from(template.template_id, {"x": 2}, 7)
        ended = [await scheduler.wait(job.job_id) for job in jobs]

        assert (group.name, group.mode, group.members) == ("pipeline", "parallel", 3)
        assert (group.template_id, group.schedule_id) == (template.template_id, None)
        assert [job.params for job in jobs] == [{"seconds": one, "x": 2} for one in (10, 20, 3)]
        assert {(job.priority, job.timeout_seconds, job.retry_policy.max_attempts) for job in jobs} == {(7, 60, 1)}
        assert {(job.template_id, job.group_id) for job in jobs} == {(template.template_id, group.group_id)}
        assert jobs[2].depends_on == (jobs[0].job_id, jobs[1].job_id)
        assert [one.status for one in ended] == ["COMPLETED"] * 3
        assert ended[2].job.started_at == max(ended[0].job.finished_at or 0, ended[1].job.finished_at or 0)
        assert (await scheduler.group(group.group_id)).status == "COMPLETED"


async def test_a_template_of_a_group_makes_no_single_job_and_the_sentence_says_what_to_call(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        group, single = await new_template(scheduler), await scheduler.templates.create(name="one", job_type="work")

        with pytest.raises(Invalid, match="makes a group, not a job; give its id to POST /api/job-groups"):
            await scheduler.submit(template_id=group.template_id)
        with pytest.raises(Invalid, match="makes a group"):
            await scheduler.submit_group([NewJob(template_id=group.template_id)])
        with pytest.raises(Invalid, match="makes one job, not a group; give its id to POST /api/jobs"):
            await scheduler.submit_group_from(single.template_id)

        assert await scheduler.queue() == []


@pytest.mark.parametrize("template_id", ["nobody", "\0", 7])
async def test_an_unknown_template_makes_no_group(tmp_path: Path, template_id: Any) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(Invalid, match="there is no template"):
            await scheduler.submit_group_from(template_id)


async def test_a_template_of_another_office_makes_no_group_here(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("web")
        template = await new_template(scheduler, office_id="web")

        with pytest.raises(Invalid, match=r"there is no template .* in the office 'default'"):
            await scheduler.submit_group_from(template.template_id)
        _, jobs = await scheduler.submit_group_from(template.template_id, office_id="web")

        assert {job.office_id for job in jobs} == {"web"}


async def test_an_archived_template_makes_no_group_and_its_groups_stay(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        template = await new_template(scheduler)
        group, jobs = await scheduler.submit_group_from(template.template_id)

        await scheduler.templates.archive(template.template_id)

        with pytest.raises(Invalid, match="was archived"):
            await scheduler.submit_group_from(template.template_id)
        await scheduler.wait(jobs[2].job_id)
        assert (await scheduler.group(group.group_id)).status == "COMPLETED"


async def test_INV_005_a_group_keeps_its_copy_when_its_template_changes(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        template = await new_template(scheduler)
        _, jobs = await scheduler.submit_group_from(template.template_id)

        await scheduler.templates.change(template.template_id, jobs=[{"job_type": "skip"}], params={"reason": "y"})

        assert [(await scheduler.job(job.job_id)).params for job in jobs] == [job.params for job in jobs]
        _, later = await scheduler.submit_group_from(template.template_id)
        assert [job.job_type for job in later] == ["skip"]


async def test_a_key_that_may_not_make_a_type_makes_no_group_with_it(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        template = await new_template(scheduler, [{"job_type": "skip"}, {"job_type": "work"}])
        caller = named(scheduler, "limited", job_types=("skip",))

        with pytest.raises(Forbidden, match="'work'"):
            await caller.submit_group_from(template.template_id)

        assert await scheduler.queue() == []


async def test_a_group_of_a_template_is_made_once_for_an_idempotency_key(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        template = await new_template(scheduler)

        first, _ = await scheduler.submit_group_from(template.template_id, idempotency_key="k")
        again, jobs = await scheduler.submit_group_from(template.template_id, idempotency_key="k")

        assert (first.group_id, len(jobs)) == (again.group_id, 3)
        with pytest.raises(Invalid, match="another request"):
            await scheduler.submit_group_from(template.template_id, {"x": 1}, idempotency_key="k")


# Schedules.


async def test_an_occurrence_makes_the_whole_graph_with_one_row_and_one_event(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(scheduler, param_overrides={"x": 1}, priority=5)

        await passes(HOUR + MINUTE)

        [fired] = await ledger(scheduler, schedule)
        group = await scheduler.group(fired.group_id or "")
        jobs = await members(scheduler, fired.group_id)
        [event] = [event for event in await history(scheduler) if event.type == "schedule_fired"]
        assert (fired.outcome, fired.instant, fired.job_id) == ("fired", at("08:00"), jobs[0].job_id)
        assert (group.status, group.name, group.schedule_id) == ("COMPLETED", "nightly", schedule.schedule_id)
        assert [job.params for job in jobs] == [{"seconds": 10, "x": 1}, {"seconds": 20, "x": 1}, {"x": 1}]
        assert {(job.priority, job.schedule_id, job.scheduled_for) for job in jobs} == {
            (5, schedule.schedule_id, at("08:00"))
        }
        assert [job.title for job in jobs] == ["nightly", "nightly", "the last"]
        assert (event.job_id, event.details["group_id"]) == (fired.job_id, fired.group_id)


async def test_the_webhook_of_a_template_hears_once_of_the_whole_group(tmp_path: Path) -> None:
    box = Mailbox()
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        await new_schedule(scheduler, template={"webhook": {"url": HOOK}})

        await passes(HOUR + MINUTE)

        [message] = box.messages
        assert (message.content["event"], message.content["group"]["name"]) == ("group.finished", "nightly")
        assert message.content["group"]["status"] == "COMPLETED"
        assert [event.type for event in await history(scheduler)].count("group_finished") == 1


async def test_a_chat_hears_once_of_the_whole_group(tmp_path: Path) -> None:
    box = Mailbox()
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        webhook = {"url": "http://127.0.0.1:9/topic", "format": "ntfy"}
        await new_schedule(scheduler, template={"webhook": webhook})

        await passes(HOUR + MINUTE)

        [message] = box.messages
        assert message.content["title"] == "group nightly: completed"
        assert message.content["message"] == "3 of 3 succeeded"


async def test_a_group_that_is_submitted_with_a_webhook_tells_it_of_its_end(tmp_path: Path) -> None:
    box = Mailbox()
    async with running_scheduler(tmp_path, sender=box) as scheduler:
        _, jobs = await scheduler.submit_group([NewJob(job_type="work")] * 2, webhook={"url": HOOK})
        await scheduler.wait(jobs[1].job_id)
        await testing.settled()

        assert [message.content["event"] for message in box.messages] == ["group.finished"]
        with pytest.raises(Invalid, match=r"not an event that can be sent here; use group\.finished"):
            await scheduler.submit_group([NewJob(job_type="work")], webhook={"url": HOOK, "events": ["job.cancelled"]})


async def test_a_trigger_by_hand_answers_with_the_group(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(scheduler, param_overrides={"x": 1}, enabled=False)

        group = await triggered(scheduler, schedule, params={"x": 2}, priority=9)

        jobs = await members(scheduler, group.group_id)
        assert (group.members, group.name, group.schedule_id) == (3, "nightly", schedule.schedule_id)
        assert {(job.params["x"], job.priority) for job in jobs} == {(2, 9)}
        assert (await scheduler.wait(jobs[2].job_id)).status == "COMPLETED"
        assert [one.reason for one in await ledger(scheduler, schedule)] in ([], ["disabled"])
        with pytest.raises(Invalid) as refused:
            await triggered(scheduler, schedule, params={"seconds": "x"})
        assert {problem.field for problem in refused.value.problems} == {f"jobs.{n}.params.seconds" for n in range(3)}


async def test_a_trigger_is_carried_out_once_for_an_idempotency_key(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(scheduler)
        caller = named(scheduler, "somebody", idempotency_key="k")

        made = await caller.schedules.trigger(schedule.schedule_id)
        with pytest.raises(Replayed) as known:
            await caller.schedules.trigger(schedule.schedule_id)

        assert isinstance(made, Group)
        assert known.value.ids == [made.group_id]
        assert len((await scheduler.lists.groups()).items) == 1
        found = await scheduler.schedules.made(made.group_id)
        assert isinstance(found, Group)
        with pytest.raises(NotFound):
            await scheduler.schedules.made("nobody")


async def test_an_urgent_job_of_a_template_stays_urgent_unless_a_priority_is_given(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(scheduler, [{"job_type": "work", "urgent": True}, {"job_type": "work"}])

        own = await members(scheduler, (await triggered(scheduler, schedule)).group_id)
        given = await members(scheduler, (await triggered(scheduler, schedule, priority=3)).group_id)

        assert [job.priority for job in own] == [1_000_000, 0]
        assert [job.priority for job in given] == [3, 3]


async def test_overlap_asks_whether_the_last_group_has_ended_retries_included(tmp_path: Path) -> None:
    retried = {"max_attempts": 1, "base_delay_seconds": 90 * MINUTE, "jitter": 0}
    async with running_scheduler(tmp_path) as scheduler:
        jobs = [{"job_type": "work"}, {"job_type": "fail", "params": {"times": 1}, "retry_policy": retried}]
        schedule = await new_schedule(scheduler, jobs, overlap="skip")

        await passes(4 * HOUR + MINUTE)

        # The group of 08:00 ends at 09:30; that of 10:00 at 11:30.
        assert await told(scheduler, schedule) == ["08:00 fired", "09:00 overlap", "10:00 fired", "11:00 overlap"]


def test_catch_up_makes_one_group_for_what_was_missed(tmp_path: Path) -> None:
    async def before(scheduler: Scheduler) -> Schedule:
        return await new_schedule(scheduler)

    async def after(scheduler: Scheduler, schedule: Schedule) -> None:
        assert await told(scheduler, schedule) == ["08:00 coalesced", "09:00 coalesced", "10:00 fired"]
        assert len((await scheduler.lists.groups()).items) == 1

    with_downtime(tmp_path, before, 3.5 * HOUR, after)


def test_catch_up_of_all_makes_a_group_for_each(tmp_path: Path) -> None:
    async def before(scheduler: Scheduler) -> Schedule:
        return await new_schedule(scheduler, catch_up="all")

    async def after(scheduler: Scheduler, schedule: Schedule) -> None:
        rows = await ledger(scheduler, schedule)
        assert [one.outcome for one in rows] == ["fired"] * 3
        assert len({one.group_id for one in rows}) == 3

    with_downtime(tmp_path, before, 3.5 * HOUR, after)


def test_a_crash_leaves_an_occurrence_with_its_whole_group_or_neither(tmp_path: Path) -> None:
    async def main() -> None:
        first = new_scheduler(tmp_path)
        await first.start()
        schedule = await new_schedule(first, cron_expression="* * * * *")
        await passes(MINUTE)
        await testing.crash(first)
        async with new_scheduler(tmp_path, seed=1) as second:
            rows = await ledger(second, schedule)
            groups = (await second.lists.groups()).items
            assert [one.group_id for one in rows] == [one.group_id for one in groups]
            assert [one.members for one in groups] == [3]
            jobs = [job for job in await members(second, groups[0].group_id) if job.retry_of is None]
            assert [job.sequence for job in jobs] == [0, 1, 2]
            assert await second._access.read(doctor.examine) == []

    testing.run(main())


async def test_a_schedule_refuses_overrides_that_do_not_fit_every_job(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        jobs = [{"job_type": "work"}, {"job_type": "fail"}]

        with pytest.raises(Invalid) as refused:
            await new_schedule(scheduler, jobs, param_overrides={"seconds": 1, "reason": "x"})

        assert {problem.field.partition(".params")[0] for problem in refused.value.problems} == {"template.jobs.1"}


async def test_an_occurrence_whose_group_is_refused_is_skipped_with_the_reason_and_others_fire(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(scheduler)
        other = await new_schedule(scheduler, [{"job_type": "skip"}], {"name": "other"}, name="other")

        @scheduler.job_type("copy")
        async def copy(run: Any, source: str) -> None:
            """A handler with a parameter that neither the template nor the schedule has."""

        await scheduler.templates.change(schedule.template_id, jobs=[*GRAPH, {"job_type": "copy"}])

        await passes(HOUR)

        [row] = await ledger(scheduler, schedule)
        assert (row.reason, row.job_id, row.group_id) == ("refused", None, None)
        assert "jobs.3.params" in (row.detail or "")
        assert await told(scheduler, other) == ["08:00 fired"]
        assert [group.name for group in (await scheduler.lists.groups()).items] == ["other"]


async def test_a_schedule_of_a_graph_takes_no_template_of_another_office(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("web")

        with pytest.raises(Invalid, match=r"there is no template .* in the office 'web'"):
            await new_schedule(scheduler, office_id="web")


async def test_an_archived_template_of_a_graph_disables_its_schedule(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(scheduler)

        await scheduler.templates.archive(schedule.template_id)
        await passes(2 * HOUR)

        assert await told(scheduler, schedule) == ["08:00-09:00 2x disabled"]
        with pytest.raises(Conflict, match="archived"):
            await triggered(scheduler, schedule)


async def test_a_change_of_the_template_applies_to_the_next_occurrence(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(scheduler)
        await passes(HOUR)

        await scheduler.templates.change(schedule.template_id, jobs=None, job_type="work")
        await passes(HOUR)

        first, second = await ledger(scheduler, schedule)
        assert first.group_id is not None
        assert second.group_id is None
        assert (await scheduler.job(second.job_id or "")).group_id is None


async def test_a_transaction_of_large_groups_stays_small(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        jobs = [{"job_type": "skip"}] * template_jobs.MOST_JOBS
        for name in ("one", "two"):
            await new_schedule(scheduler, jobs, {"name": name}, name=name)

        await passes(HOUR)

        fired = [event for event in await history(scheduler) if event.type == "schedule_fired"]
        queued = [event.seq for event in await history(scheduler) if event.type == "job_queued"]
        # The second group is made by a later transaction: the event of the first comes before its jobs.
        assert len(fired) == 2
        assert fired[0].seq < queued[template_jobs.MOST_JOBS]


async def test_retention_drops_a_group_and_its_row_of_the_ledger_together(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(scheduler)
        await passes(HOUR + MINUTE)
        await scheduler.schedules.change(schedule.schedule_id, enabled=False)
        await passes(5 * DAY)

        purged = await purge(scheduler)

        assert (purged.jobs, purged.groups) == (3, 1)
        assert "fired" not in [one.outcome for one in await ledger(scheduler, schedule)]
        assert await scheduler._access.read(doctor.examine) == []
