"""What is declared is put at each start: made, or changed; what is not declared any more is reported and stays."""

import asyncio
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from nextslot import Limits, Scheduler
from nextslot.config.loading import load
from nextslot.domain import cron
from nextslot.errors import Invalid, RunFailed
from nextslot.scheduler_from_config import compose
from tests import databases
from tests.support import new_scheduler


def declare(scheduler: Scheduler, expression: str = "0 7 * * *", **options: Any) -> None:
    @scheduler.cron(expression, **options)
    async def report(kind: str = "whole") -> str:
        return f"the {kind} report"


async def schedules(scheduler: Scheduler) -> list[tuple[str, str, str, bool]]:
    found = (await scheduler.schedules.page()).items
    return [(one.name, one.cron_expression, one.timezone, one.enabled) for one in found]


async def test_each_start_makes_one_schedule_what_is_declared(tmp_path: Path) -> None:
    for expression, zone in (("0 7 * * *", "UTC"), ("0 7 * * *", "UTC"), ("0 8 * * *", "Europe/Berlin")):
        scheduler = new_scheduler(tmp_path)
        declare(scheduler, expression, timezone=zone)
        async with scheduler:
            assert await schedules(scheduler) == [("report", expression, zone, True)]
            assert len((await scheduler.templates.page()).items) == 1


async def test_a_schedule_that_somebody_has_disabled_stays_disabled(tmp_path: Path) -> None:
    for is_enabled in (True, False):
        scheduler = new_scheduler(tmp_path)
        declare(scheduler)
        async with scheduler:
            (one,) = (await scheduler.schedules.page()).items
            assert one.enabled is is_enabled
            await scheduler.schedules.change(one.schedule_id, enabled=False)


async def test_a_schedule_that_is_not_declared_any_more_is_reported_and_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = new_scheduler(tmp_path)
    declare(first)
    async with first:
        template, _ = await first.templates.put("by hand", "work")
        await first.schedules.put("by hand", template.template_id, "@daily")
    assert caplog.messages == []

    async with new_scheduler(tmp_path) as second:
        assert sorted(name for name, *_ in await schedules(second)) == ["by hand", "report"]

    (message,) = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert message.startswith("the schedule 'report' (0 7 * * *) is not declared any more and goes on; delete it")


async def test_a_schedule_is_reported_in_its_own_office_on_every_page_and_by_its_own_description(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = new_scheduler(tmp_path)
    first.declare.template("many", "work", description="All of them")
    for number in range(501):
        first.declare.schedule(f"plan {number}", "many", "@daily")
    async with first:
        await first.offices.create("paris")
        (template,) = (await first.templates.page()).items
        assert template.description == "All of them (declared by the application)"
    second = new_scheduler(tmp_path)
    second.declare.template("many", "work", office_id="paris")
    second.declare.schedule("plan 0", "many", "@daily", office_id="paris")
    async with second:
        pass

    reported = {one.getMessage().split("'")[1] for one in caplog.records if "not declared any more" in one.getMessage()}
    assert reported == {f"plan {number}" for number in range(501)}


async def test_the_options_of_a_handle_apply_to_schedules_and_direct_requests_or_are_refused(tmp_path: Path) -> None:
    scheduler = new_scheduler(tmp_path)

    @scheduler.cron("@daily", params={"seconds": 1})
    @scheduler.job_type(job_options={"priority": 7, "timeout_seconds": 5})
    async def slow(seconds: int) -> None:
        await asyncio.sleep(seconds)

    @scheduler.job_type(job_options={"title": "Title"})
    async def titled() -> str:
        return "done"

    with pytest.raises(Invalid, match="title is an option that jobs of schedules cannot have"):
        scheduler.cron("@daily")(titled)
    async with scheduler:
        (template,) = (await scheduler.templates.page()).items
        assert (template.priority, template.timeout_seconds) == (7, 5)
        with pytest.raises(RunFailed, match=r"slow ended FAILED: .*5"):
            await slow.run_direct(30)
        await slow.with_options(timeout_seconds=60).run_direct(30)
        with pytest.raises(Invalid, match="depends_on is an option of jobs; run_direct takes the next slot without it"):
            await slow.with_options(depends_on=["a"]).run_direct(30)
        assert await titled.run_direct() == "done"
        same = [await titled.with_options(idempotency_key="once").submit() for _ in range(2)]
        assert same[0].job_id == same[1].job_id
        with pytest.raises(Invalid, match="detach is not a field of a job"):
            await titled.with_options(detach=True).submit()


async def test_declarations_of_another_office_go_there(tmp_path: Path) -> None:
    scheduler = new_scheduler(tmp_path)
    async with scheduler:
        await scheduler.offices.create("paris")

    again = new_scheduler(tmp_path)

    @again.cron("@daily")
    @again.job_type(job_options={"office_id": "paris"})
    async def report() -> None: ...

    async with again:
        (template,), (schedule,) = (await again.templates.page()).items, (await again.schedules.page()).items
        assert (template.office_id, schedule.office_id) == ("paris", "paris")


async def test_a_wrong_declaration_is_refused_where_it_is_written(tmp_path: Path) -> None:
    scheduler = new_scheduler(tmp_path)
    declare(scheduler)

    with pytest.raises(Invalid, match="the job type 'report' is registered already"):
        declare(scheduler)
    with pytest.raises(Invalid, match="give either a cron expression"):
        scheduler.cron()
    with pytest.raises(Invalid, match="has 4 fields; it must have five fields"):
        scheduler.cron("* * * *")(_other)
    with pytest.raises(Invalid, match=r"write @scheduler.job_type\(\) with parentheses"):
        scheduler.job_type(_other)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="is a job type already"):
        scheduler.job_type()(scheduler.job_type("once")(_other))
    with pytest.raises(Invalid, match="every is 0:07:00; it must be minutes that divide an hour"):
        scheduler.cron(every=timedelta(minutes=7))


def _other() -> None: ...


@pytest.mark.parametrize(
    ("interval", "expression"),
    [
        (timedelta(minutes=1), "* * * * *"),
        (timedelta(minutes=15), "*/15 * * * *"),
        (timedelta(hours=1), "@hourly"),
        (timedelta(hours=6), "0 */6 * * *"),
        (timedelta(days=1), "@daily"),
        (timedelta(weeks=1), "@weekly"),
    ],
)
def test_an_interval_is_a_cron_expression(interval: timedelta, expression: str) -> None:
    assert cron.every(interval) == expression


async def test_a_handle_submits_runs_and_can_be_called(tmp_path: Path) -> None:
    scheduler = new_scheduler(tmp_path)

    @scheduler.job_type("double")
    def double(number: int) -> int:
        if number < 0:
            raise ValueError("negative")
        return number * 2

    async with scheduler:
        one = await double.with_options(priority=4).submit(1)
        two, three = await double.submit_many([{"number": 2}, {"number": 3}])
        group = await scheduler.submit_group([double.new(4), double.new(number=5)])

        assert one.priority == 4
        assert [(await scheduler.wait(job)).result for job in (one, two, three, *group.jobs)] == [2, 4, 6, 8, 10]
        assert await double.run_direct(number=6) == 12
        assert double(7) == 14
        with pytest.raises(RunFailed, match="double ended FAILED: ValueError: negative"):
            await double.run_direct(number=-1)
        with pytest.raises(Invalid, match="params is an object; it must be a list of dicts"):
            await double.submit_many({"number": 2})  # type: ignore[dict-item]
        with pytest.raises(Invalid, match="2 arguments are given, but 'double' takes 1"):
            await double.submit(1, 2)  # type: ignore[call-arg]


async def test_concurrency_lets_the_default_office_run_so_many(tmp_path: Path) -> None:
    async with new_scheduler(tmp_path, concurrency=4) as scheduler:
        await scheduler.submit_many([{"job_type": "work", "params": {"seconds": 100}}] * 6)

        assert len(await scheduler.running()) == 4
    with pytest.raises(Invalid, match="concurrency is 0; it must be a whole number from 1 on"):
        Scheduler(concurrency=0)


async def test_a_limit_that_the_default_office_does_not_reach_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with new_scheduler(tmp_path, limits=Limits(running=4)):
        pass

    assert "the office `default` runs 1 at once: give Scheduler(concurrency=4)" in caplog.text


@pytest.mark.parametrize(("offices", "is_reachable"), [("", False), ("[offices.other]\nmax_concurrent_jobs = 3", True)])
@pytest.mark.real_time
async def test_a_limit_of_the_configuration_that_no_office_reaches_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, offices: str, is_reachable: bool
) -> None:
    (tmp_path / "nextslot.toml").write_text(f"{offices}\n[limits]\nrunning = 4\n")
    async with compose(load(tmp_path, environment=databases.variables(tmp_path))):
        pass

    assert ("running = 4 is the most of all offices together, but together" in caplog.text) is not is_reachable


CONFIGURED = """
[job_types.tidy]
command = ["true"]
[templates.tidy]
job_type = "tidy"
[schedules.nightly]
template = "tidy"
cron_expression = "0 2 * * *"
timezone = "Europe/Berlin"
"""


@pytest.mark.real_time
async def test_the_configuration_declares_schedules_too(tmp_path: Path) -> None:
    (tmp_path / "nextslot.toml").write_text(CONFIGURED)
    for _ in range(2):
        async with compose(load(tmp_path, environment=databases.variables(tmp_path))) as scheduler:
            assert await schedules(scheduler) == [("nightly", "0 2 * * *", "Europe/Berlin", True)]


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ('timezon = "UTC"', "schedules.nightly.timezon: there is no such setting; did you mean timezone?"),
        ('cron_expression = "0 2 * *"', "schedules.nightly.cron_expression has 4 fields"),
        ('template = "tidi"', r"schedules.nightly.template is not the name of a \[templates.NAME\] table"),
    ],
)
def test_a_wrong_schedule_of_the_configuration_is_refused(tmp_path: Path, written: str, sentence: str) -> None:
    name = written.partition(" ")[0]
    lines = [line for line in CONFIGURED.splitlines() if not line.startswith(name)]
    (tmp_path / "nextslot.toml").write_text("\n".join([*lines, written]))

    with pytest.raises(Invalid, match=sentence):
        load(tmp_path, environment={})
