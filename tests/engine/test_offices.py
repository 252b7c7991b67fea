"""Offices: rows of settings that can be read and changed while everything runs (spec 4 and spec 14)."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nextslot import NewJob, testing
from nextslot.domain import Office, RetryPolicy, default_office
from nextslot.domain.filters import JobFilter
from nextslot.domain.offices import OFFICE_RETRIES
from nextslot.errors import Conflict, Invalid, NotFound
from tests.support import (
    counted_scheduler,
    new_scheduler,
    peaks,
    running_scheduler,
    states,
)


async def test_the_office_default_always_exists(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        assert await scheduler.offices.get("default") == default_office(testing.BEGINNING)


async def test_the_office_default_cannot_be_archived(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(Conflict, match="paused, not archived"):
            await scheduler.offices.change("default", status="archived")

        assert (await scheduler.offices.get("default")).status == "active"


async def test_a_new_office_has_the_settings_of_the_office_design(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        office = await scheduler.offices.create("o")

        assert office == await scheduler.offices.get("o")
        assert office == Office(
            office_id="o",
            name="o",
            max_concurrent_jobs=3,
            role_limits={"FE": 1, "BE": 1, "QA": 1, "DevOps": 1},
            timeout_seconds=None,
            retry_policy=RetryPolicy(max_attempts=2, base_delay_seconds=60, retry_on=OFFICE_RETRIES),
            cancel_mode="interrupt",  # type: ignore[arg-type]
            on_dependency_failure="wait",  # type: ignore[arg-type]
            created_at=testing.BEGINNING,
        )


async def test_settings_are_stored_and_survive_a_restart(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", name="Office", max_concurrent_jobs=7)
        changed = await scheduler.offices.change(
            "o",
            role_limits={"FE": 2, "한국어/x": 1},
            timeout_seconds=0.5,
            retry_policy={"max_attempts": 4, "backoff": "linear"},
            cancel_mode="finish",
            on_dependency_failure="cancel",
            webhook={"url": "http://127.0.0.1/"},
        )
        default = await scheduler.offices.change("default", max_concurrent_jobs=2)
        await testing.crash(scheduler)

        async with new_scheduler(tmp_path, seed=1) as second:
            assert await second.offices.get("o") == changed
            assert await second.offices.get("default") == default
        assert (changed.name, changed.max_concurrent_jobs, changed.retry_policy.base_delay_seconds) == ("Office", 7, 60)


async def test_default_is_an_office_like_any_other_and_can_be_changed(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=3, timeout_seconds=5, cancel_mode="interrupt")
        jobs = [await scheduler.submit("work", {"seconds": 60}, retry_policy={"max_attempts": 0}) for _ in range(3)]
        assert await states(scheduler, *jobs) == ["RUNNING"] * 3

        await scheduler.cancel(jobs[0].job_id)
        ended = [await scheduler.wait(job.job_id) for job in jobs]

        assert [one.status for one in ended] == ["CANCELLED", "FAILED", "FAILED"]
        assert [one.run.failure_kind for one in ended if one.run] == ["cancelled", "timeout", "timeout"]


async def test_an_office_has_its_own_jobs_queue_and_limits(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        for office_id in ("o", "p"):
            await scheduler.offices.create(office_id, max_concurrent_jobs=1)
        mine = [await scheduler.submit("work", office_id="o") for _ in range(3)]
        theirs = [await scheduler.submit("work", office_id="p") for _ in range(2)]

        assert [job.job_id for job in await scheduler.queue("o")] == [job.job_id for job in mine[1:]]
        assert [job.job_id for job in await scheduler.running("p")] == [theirs[0].job_id]
        for job in [*mine, *theirs]:
            await scheduler.wait(job.job_id)
    assert (peaks(tmp_path)["office:o"], peaks(tmp_path)["office:p"], peaks(tmp_path)["scheduler"]) == (1, 1, 2)


async def test_a_name_that_begins_like_anothers_shares_no_limit_with_it(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=0)
        await scheduler.offices.create("o.1", max_concurrent_jobs=0)
        jobs = [
            await scheduler.submit("work", office_id=office_id, role="FE") for office_id in ("o", "o.1") for _ in "12"
        ]
        await scheduler.offices.change("o", role_limits={"FE": 2})

        assert await states(scheduler, *jobs) == ["RUNNING", "RUNNING", "RUNNING", "QUEUED"]


async def test_an_archived_office_takes_no_new_jobs_and_finishes_those_it_has(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=1)
        jobs = [await scheduler.submit("work", office_id="o") for _ in range(3)]
        await scheduler.offices.change("o", status="archived")

        with pytest.raises(Invalid, match="archived"):
            await scheduler.submit("work", office_id="o")

        assert [(await scheduler.wait(job.job_id)).status for job in jobs] == ["COMPLETED"] * 3


async def test_a_change_of_settings_keeps_a_pause(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        await scheduler.pause(office_id="o")
        job = await scheduler.submit("work", office_id="o")

        changed = await scheduler.offices.change("o", max_concurrent_jobs=9)
        await asyncio.sleep(60)

        assert changed.is_paused
        assert changed == await scheduler.offices.get("o")
        assert await states(scheduler, job) == ["QUEUED"]


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("colour", {"colour": "red"}),
        ("is_paused", {"is_paused": True}),
        ("created_at", {"created_at": 5}),
        ("name", {"name": ""}),
        ("name", {"name": 5}),
        ("name", {"name": "nul\0"}),
        ("name", {"name": "\ud800"}),
        ("status", {"status": "closed"}),
        ("max_concurrent_jobs", {"max_concurrent_jobs": -1}),
        ("max_concurrent_jobs", {"max_concurrent_jobs": 1.5}),
        ("max_concurrent_jobs", {"max_concurrent_jobs": True}),
        ("max_concurrent_jobs", {"max_concurrent_jobs": None}),
        ("max_concurrent_jobs", {"max_concurrent_jobs": 10**7}),
        ("role_limits.FE", {"role_limits": {"FE": -1}}),
        ("role_limits.FE", {"role_limits": {"FE": "1"}}),
        ("role_limits", {"role_limits": None}),
        ("role_limits", {"role_limits": ["FE"]}),
        ("role_limits", {"role_limits": {"": 1}}),
        ("role_limits", {"role_limits": {"\ud800": 1}}),
        ("role_limits", {"role_limits": {5: 1}}),
        ("timeout_seconds", {"timeout_seconds": 0}),
        ("timeout_seconds", {"timeout_seconds": float("nan")}),
        ("timeout_seconds", {"timeout_seconds": "soon"}),
        ("retry_policy.max_attempts", {"retry_policy": {"max_attempts": -1}}),
        ("retry_policy", {"retry_policy": "often"}),
        ("cancel_mode", {"cancel_mode": "kill"}),
        ("on_dependency_failure", {"on_dependency_failure": None}),
        ("webhook", {"webhook": "http://127.0.0.1/"}),
        ("webhook.url", {"webhook": {"url": Ellipsis}}),
    ],
    ids=str,
)
async def test_a_setting_that_makes_no_sense_is_refused(tmp_path: Path, field: str, settings: dict[Any, Any]) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        office = await scheduler.offices.create("o")

        with pytest.raises(Invalid) as refused:
            await scheduler.offices.change("o", **settings)

        assert [problem.field for problem in refused.value.problems] == [field]
        assert await scheduler.offices.get("o") == office


@pytest.mark.parametrize("office_id", ["", "a/b", "with space", "-first", "x" * 101, "nul\0", "한국어", 5])
async def test_a_name_that_does_not_fit_an_address_is_refused(tmp_path: Path, office_id: Any) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(Invalid) as refused:
            await scheduler.offices.create(office_id)

        assert [problem.field for problem in refused.value.problems] == ["office_id"]


async def test_an_office_is_made_once_and_found_only_if_it_is_there(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        office = await scheduler.offices.create("o", max_concurrent_jobs=5)

        for office_id in ("o", "default"):
            with pytest.raises(Conflict, match=office_id):
                await scheduler.offices.create(office_id)
        for ask in (scheduler.offices.get, scheduler.offices.change):
            with pytest.raises(NotFound, match="'nowhere'"):
                await ask("nowhere")

        assert await scheduler.offices.get("o") == office
        assert await scheduler.offices.change("o") == replace(office)


async def test_a_changed_limit_of_a_role_changes_no_office_whose_name_begins_alike(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        for office_id in ("a", "ab"):
            await scheduler.offices.create(office_id, role_limits={"FE": 1})
        wanted = [NewJob(job_type="work", params={"seconds": 60}, role="FE", office_id="ab") for _ in range(2)]
        await scheduler.submit_many(wanted)

        await scheduler.offices.change("a", role_limits={"FE": 2})
        await scheduler.submit_many(wanted)

        jobs = (await scheduler.lists.jobs(JobFilter())).items
        assert sorted(one.job.status for one in jobs) == ["QUEUED"] * 3 + ["RUNNING"]
