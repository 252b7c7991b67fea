"""Who asks is a value that is handed down the write path: callers who share a group commit share nothing else."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

import nextslot
from nextslot import NewJob, Scheduler
from nextslot.domain import Actor, Job, RequestContext
from nextslot.scheduler import Services
from tests import databases
from tests.engine.test_refusals import Groups
from tests.support import eventually, named, register_handlers, running_scheduler

SOURCE = Path(nextslot.__file__).parent
NAMES = ["anna", "ben", "chris", "dora", "emil", "fay"]
HOOK = "http://127.0.0.1:9/"


@pytest.mark.parametrize("is_threaded", [False, True], ids=["one thread", "threads"])
@pytest.mark.real_time
async def test_each_change_in_one_group_commit_has_its_own_actor_and_its_own_key(
    tmp_path: Path, is_threaded: bool
) -> None:
    scheduler = Scheduler(databases.url(tmp_path), data=tmp_path, is_threaded=is_threaded)
    register_handlers(scheduler)
    async with scheduler:
        await scheduler.offices.create("shared", max_concurrent_jobs=0)
        callers = {name: _caller(scheduler, name) for name in NAMES}
        waiting = {name: await scheduler.submit("work", {"seconds": 0}, await_signal={"name": "go"}) for name in NAMES}
        with Groups() as groups:
            asked = [_ask(callers[name], waiting[name]) for name in NAMES]
            first = dict(zip(NAMES, await asyncio.gather(*asked), strict=True))
            asked = [_ask(callers[name], waiting[name]) for name in NAMES]
            again = dict(zip(NAMES, await asyncio.gather(*asked), strict=True))
        entries = (await scheduler.lists.audit(limit=500)).items

    assert max(groups.sizes) > len(NAMES), "they meet in one group commit"
    assert {name: made["created_by"] for name, made in first.items()} == {name: {name} for name in NAMES}
    assert [again[name]["ids"] for name in NAMES] == [first[name]["ids"] for name in NAMES]
    assert len({one for made in first.values() for one in made["ids"]}) == 7 * len(NAMES), "each made its own"
    # Six things each, once, though each was asked for twice; and a direct request and an answer each time.
    assert sorted(entry.actor for entry in entries) == sorted(NAMES * 10)
    assert all(entry.action == f"POST by {entry.actor}" for entry in entries)
    for entry in entries:
        assert _names_in(entry.details) <= {entry.actor}, "before and after are of its own change"
    assert {name for entry in entries for name in _names_in(entry.details)} == set(NAMES)


async def test_a_caller_in_python_is_not_named_and_leaves_nothing_to_who_shares_its_commit(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await asyncio.gather(
            scheduler.offices.create("silent"), named(scheduler, "anna").submit("work"), scheduler.submit("work")
        )

        (entry,) = (await scheduler.lists.audit()).items
        assert (entry.actor, entry.details) == ("anna", None)


@pytest.mark.real_time
async def test_from_the_commit_of_the_first_key_on_everybody_needs_one_also_if_its_maker_went_away(
    tmp_path: Path,
) -> None:
    """Memory follows the commit, not the caller."""
    scheduler = Scheduler(databases.url(tmp_path), data=tmp_path)
    async with scheduler:
        assert not await scheduler.keys.is_guarded()
        maker = asyncio.create_task(scheduler.keys.create("admin", ["admin"]))
        await asyncio.sleep(0)
        maker.cancel()
        await asyncio.gather(maker, return_exceptions=True)
        assert maker.cancelled()
        await eventually(lambda: scheduler._runtime.keys.is_guarded)

        assert await scheduler.keys.is_guarded()


def test_no_context_variable_is_read_where_something_is_stored() -> None:
    """Log lines and OpenTelemetry have theirs; the store makes an empty context for what it runs."""
    users = {str(file.relative_to(SOURCE)) for file in SOURCE.rglob("*.py") if "ContextVar" in file.read_text()}

    assert users == {"telemetry/logs.py", "telemetry/tracing.py"}


def _caller(scheduler: Scheduler, name: str) -> Services:
    actor = Actor(name=name, key_id=None, action=f"POST by {name}", target="all")
    return scheduler.for_caller(RequestContext(actor=actor, idempotency_key=f"the key of {name}"))


async def _ask(caller: Services, waiting: Job) -> dict[str, Any]:
    """Makes one of everything that stores who made it, all at once. Finds again what was made before."""
    name = caller.context.asked_by or ""
    kinds: list[Awaitable[tuple[str, str | None]]] = [
        _once(_key(caller, name), caller),
        _once(_webhook(caller), caller),
        _once(_office(caller, name), caller),
        _once(_template(caller, name), caller),
        _job(caller, name),
        _group(caller, name),
        _signal(caller, waiting, name),
    ]
    made, ended = await asyncio.gather(
        asyncio.gather(*kinds), caller.run_direct("work", {"seconds": 0}, created_by=name)
    )
    created_by = {by for _, by in made if by is not None} | {ended.created_by}
    return {"ids": [one for one, _ in made], "created_by": created_by}


async def _once(make: Awaitable[tuple[str, str | None]], caller: Services) -> tuple[str, str | None]:
    from nextslot.engine.submit.idempotency import Replayed

    try:
        return await make
    except Replayed as before:
        return before.ids[0], caller.context.asked_by


async def _key(caller: Services, name: str) -> tuple[str, str | None]:
    key, _ = await caller.keys.create(name, ["admin"])
    return key.key_id, key.created_by


async def _webhook(caller: Services) -> tuple[str, str | None]:
    made, _ = await caller.webhooks.create(HOOK)
    return made.webhook_id, made.created_by


async def _office(caller: Services, name: str) -> tuple[str, str | None]:
    return (await caller.offices.create(name=name)).office_id, None


async def _template(caller: Services, name: str) -> tuple[str, str | None]:
    return (await caller.templates.create(name=name, job_type="work")).template_id, None


async def _job(caller: Services, name: str) -> tuple[str, str | None]:
    job = await caller.submit("work", {"seconds": 0}, office_id="shared", created_by=name)
    return job.job_id, job.created_by


async def _signal(caller: Services, job: Job, name: str) -> tuple[str, str | None]:
    """Answers what the job will wait for; the same answer again returns the stored one."""
    signal = await caller.signal(job, "go", signal_id=name)
    return signal.chain_id, signal.sent_by


async def _group(caller: Services, name: str) -> tuple[str, str | None]:
    member = NewJob(job_type="work", params={"seconds": 0}, office_id="shared", created_by=name)
    group, (job,) = await caller.submit_group([member])
    return group.group_id, job.created_by


def _names_in(details: Any) -> set[str]:
    """Returns the names in the audit entry of a setting: of the thing, and of who changed it."""
    after = (details or {}).get("after") or {}
    return {after[field] for field in ("name", "created_by") if after.get(field) is not None}
