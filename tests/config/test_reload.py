"""A scheduler from a configuration, and a configuration that is read again while it runs (spec 15, spec 17)."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nextslot import Scheduler, offline_commands, testing
from nextslot.config import Configuration, load
from nextslot.configuration_reload import ConfiguredScheduler, Reloaded, reload
from nextslot.domain import PYTHON, Actor, RequestContext
from nextslot.domain.limits import Limits
from nextslot.domain.webhook_signature import secret_for
from nextslot.errors import (
    Conflict,
    Invalid,
    SlotBusy,
    Unavailable,
    UnknownJobType,
)
from nextslot.executors.threads import InlineThreads
from nextslot.scheduler_from_config import compose, reloadable_settings
from tests import databases
from tests.support import register_handlers, states


class Server:
    """A running scheduler with its configuration file."""

    def __init__(self, directory: Path, text: str, **options: Any) -> None:
        self.directory = directory
        self.configured = ConfiguredScheduler(
            self.written(text),
            clock=testing.VirtualClock(),
            chance=testing.SeededChance(),
            threads=InlineThreads(),
            is_threaded=False,
            **options,
        )
        self.scheduler = self.configured.scheduler
        register_handlers(self.scheduler)

    def written(self, text: str) -> Configuration:
        (self.directory / "nextslot.toml").write_text('[extensions]\ndisabled = ["stories"]\n' + text)
        return load(self.directory, environment=databases.variables(self.directory))

    async def reload(self, text: str, context: RequestContext = PYTHON) -> Reloaded:
        """Does what SIGHUP does."""
        (self.directory / "nextslot.toml").write_text('[extensions]\ndisabled = ["stories"]\n' + text)
        return await self.configured.reload(context)


@asynccontextmanager
async def reloadable_server(directory: Path, text: str, **options: Any) -> AsyncIterator[Server]:
    """Runs a server. At the end, the doctor must find nothing in its database."""
    server = Server(directory, text, **options)
    async with server.scheduler:
        yield server
    left = load(directory, os.devnull, environment=databases.variables(directory))
    assert offline_commands.doctor(left).findings == ()


async def running(scheduler: Scheduler, office_id: str = "default") -> int:
    return len(await scheduler.running(office_id))


async def submit(scheduler: Scheduler, count: int, **options: Any) -> None:
    for _ in range(count):
        await scheduler.submit("work", {"seconds": 100}, **options)
    await testing.settled()


# Composed.


async def test_a_scheduler_is_made_as_its_configuration_says(tmp_path: Path) -> None:
    text = """
        [limits]
        running = 5
        max_params_bytes = 100
        direct_waiting = 1
        [node]
        name = "big"
        [offices.web]
        max_concurrent_jobs = 2
        [job_types.hello]
        command = ["echo", "hello"]
        [roles.FE]
        timeout_seconds = 7
    """

    async with reloadable_server(tmp_path, text.replace("[offices.web]", "[offices.web]\nrole_limits = {}")) as server:
        scheduler = server.scheduler
        await submit(scheduler, 3, office_id="web", role="FE")

        [first, second] = await scheduler.running("web") + await scheduler.running()
        assert first.timeout_seconds == second.timeout_seconds == 7
        assert first.worker_id == "big/slot-1"
        assert "hello" in scheduler.job_types.names()
        with pytest.raises(Invalid, match="at most 100 are allowed"):
            await scheduler.submit("work", {"text": "x" * 200})


@pytest.mark.sqlite_only("a file")
async def test_the_database_and_the_runs_files_are_in_the_data_directory(tmp_path: Path) -> None:
    async with reloadable_server(tmp_path, ""):
        assert (tmp_path / "nextslot.db").exists()


# Read again.


async def test_a_higher_limit_starts_jobs_at_once(tmp_path: Path) -> None:
    async with reloadable_server(tmp_path, "") as server:
        await submit(server.scheduler, 5)
        assert await running(server.scheduler) == 1

        done = await server.reload("[offices.default]\nmax_concurrent_jobs = 3")

        assert await running(server.scheduler) == 3
        assert [(one.name, one.before, one.after) for one in done.applied] == [
            ("offices.default.max_concurrent_jobs", None, 3)
        ]


async def test_a_lower_limit_stops_no_running_job(tmp_path: Path) -> None:
    async with reloadable_server(tmp_path, "[offices.default]\nmax_concurrent_jobs = 4") as server:
        await submit(server.scheduler, 6)
        assert await running(server.scheduler) == 4

        await server.reload("[offices.default]\nmax_concurrent_jobs = 9\n[limits]\nrunning = 2")

        assert await running(server.scheduler) == 4
        await asyncio.sleep(150)
        assert await running(server.scheduler) == 2


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[limits]\nrunning = 1", "[limits]\nrunning = 3"),
        ("[limits.job_types]\nwork = 1", "[limits.job_types]\nwork = 3"),
        ("[limits.resources]\ngpu = 1", "[limits.resources]\ngpu = 3"),
        ("", "[limits.resources]\ngpu = 3"),
    ],
)
async def test_every_shared_limit_can_change_while_running(tmp_path: Path, before: str, after: str) -> None:
    office = "\n[offices.default]\nmax_concurrent_jobs = 0"

    async with reloadable_server(tmp_path, before + office) as server:
        await submit(server.scheduler, 5, resources={"gpu": 1} if "gpu" in after else None)
        assert await running(server.scheduler) == 1

        await server.reload(after + office)

        assert await running(server.scheduler) == 3


async def test_a_limit_that_is_first_met_after_the_reload_has_the_new_size(tmp_path: Path) -> None:
    async with reloadable_server(tmp_path, "") as server:
        await server.reload("[limits.resources]\ngpu = 2\n[offices.default]\nmax_concurrent_jobs = 0")

        await submit(server.scheduler, 3, resources={"gpu": 1})

        assert await running(server.scheduler) == 2


async def test_a_job_that_comes_with_the_reload_meets_the_new_limits(tmp_path: Path) -> None:
    async with reloadable_server(tmp_path, "") as server:
        await asyncio.gather(
            server.reload("[limits.resources]\ngpu = 2\n[offices.default]\nmax_concurrent_jobs = 0"),
            *(server.scheduler.submit("work", {"seconds": 100}, resources={"gpu": 1}) for _ in range(3)),
        )
        await testing.settled()

        assert await running(server.scheduler) == 2


async def test_new_job_types_need_no_restart_and_start_what_waited_for_them(tmp_path: Path) -> None:
    async with reloadable_server(tmp_path, FUNCTION) as server:
        scheduler = server.scheduler
        await scheduler.pause()
        waiting = await scheduler.submit("quick")
        await server.reload("")
        await scheduler.resume()
        with pytest.raises(UnknownJobType):
            await scheduler.submit("quick")
        assert await states(scheduler, waiting) == ["QUEUED"]

        await server.reload(FUNCTION)

        assert (await scheduler.wait(waiting.job_id)).status == "COMPLETED"


FUNCTION = "[job_types.quick]\nhandler = 'tests.config.test_reload:quick'\nparams_schema = {}"


def quick(run: object) -> None:
    """A handler that the configuration names."""


async def slow(run: object) -> str:
    await asyncio.sleep(50)
    return "to the end"


async def test_a_job_whose_type_is_removed_while_it_runs_ends_as_it_would_have(tmp_path: Path) -> None:
    async with reloadable_server(tmp_path, "[job_types.slow]\nhandler = 'tests.config.test_reload:slow'") as server:
        job = await server.scheduler.submit("slow")
        await testing.settled()

        await server.reload("")

        assert (await server.scheduler.wait(job.job_id)).result == "to the end"


async def test_a_job_whose_type_was_removed_can_be_interrupted(tmp_path: Path) -> None:
    async with reloadable_server(tmp_path, "[job_types.slow]\nhandler = 'tests.config.test_reload:slow'") as server:
        job = await server.scheduler.submit("slow", retry_policy={"max_attempts": 0})
        await testing.settled()
        await server.reload("")

        assert await server.scheduler.stop(grace_seconds=0)

        await server.scheduler.start()
        assert await states(server.scheduler, job) == ["FAILED"]


async def test_a_type_that_Python_registered_is_not_taken_over_by_the_file(tmp_path: Path) -> None:
    async with reloadable_server(tmp_path, "") as server:
        with pytest.raises(Invalid, match=r"job_types\.work: another job type has this name already"):
            await server.reload("[job_types.work]\ncommand = ['true']\n[limits]\nrunning = 7")

        assert server.scheduler._runtime.lanes.policy == Limits()


async def test_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    async with reloadable_server(tmp_path, "") as server:
        await submit(server.scheduler, 3)

        with pytest.raises(Invalid, match=r"server\.prot"):
            await server.reload("[offices.default]\nmax_concurrent_jobs = 3\n[server]\nprot = 1")

        assert await running(server.scheduler) == 1
        assert (await server.scheduler.offices.get("default")).max_concurrent_jobs == 1


@pytest.mark.sqlite_only("names another file")
async def test_what_cannot_change_while_running_is_told_and_does_not_stop_the_rest(tmp_path: Path) -> None:
    async with reloadable_server(tmp_path, "") as server:
        await submit(server.scheduler, 3)

        done = await server.reload(
            "[server]\nport = 9\n[store]\nurl = 'sqlite:///other.db'\n[node]\nname = 'x'\n"
            "[offices.default]\nmax_concurrent_jobs = 2"
        )

        assert [one.name for one in done.needs_restart] == ["node.name", "server.port", "store.url"]
        assert [one.name for one in done.applied] == ["offices.default.max_concurrent_jobs"]
        assert await running(server.scheduler) == 2


async def test_the_other_limits_of_the_engine_change_too(tmp_path: Path) -> None:
    text = "[limits]\nmax_params_bytes = 50\ndirect_waiting = 1\nstarvation_after_seconds = 5\n"

    async with reloadable_server(tmp_path, "") as server:
        scheduler = server.scheduler
        await submit(scheduler, 1)

        await server.reload(text + "[server]\nshutdown_grace_seconds = 3\n[roles.QA]\ntimeout_seconds = 9")

        with pytest.raises(Invalid, match="at most 50 are allowed"):
            await scheduler.submit("work", {"text": "x" * 100})
        first = asyncio.create_task(scheduler.run_direct("work"))
        await testing.settled()
        with pytest.raises(SlotBusy):
            await scheduler.run_direct("work")
        await first
        assert (await scheduler.submit("work", role="QA")).timeout_seconds == 9
        assert scheduler.shutdown_grace_seconds == 3
        assert scheduler._runtime.dispatcher.starvation_after_seconds == 5


async def test_a_reload_that_the_store_does_not_take_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(work: object, rows: int = 1) -> None:
        raise Unavailable("the disk is full")

    async with reloadable_server(tmp_path, FUNCTION) as server:
        with monkeypatch.context() as broken:
            broken.setattr(server.scheduler._access, "write", refuse)
            with pytest.raises(Unavailable):
                await server.reload("[limits]\nmax_params_bytes = 50")

        assert "quick" in server.scheduler.job_types.names()
        assert server.scheduler._runtime.intake.max_params_bytes > 50


async def test_what_needs_a_restart_is_told_until_there_is_one(tmp_path: Path) -> None:
    async with reloadable_server(tmp_path, "") as server:
        first = await server.reload("[server]\nport = 9")
        again = await server.reload("[server]\nport = 9\n[limits]\nrunning = 5")
        back = await server.reload("[limits]\nrunning = 5")

        assert [one.name for one in first.changes] == ["server.port"]
        assert [(one.name, one.needs_restart) for one in again.changes] == [
            ("limits.running", False),
            ("server.port", True),
        ]
        assert back.changes == ()


async def test_two_who_ask_at_once_are_served_one_after_the_other(tmp_path: Path) -> None:
    async with reloadable_server(tmp_path, "") as server:
        first, second = await asyncio.gather(server.reload("[limits]\nrunning = 5"), server.reload(""))

        assert [change.after for change in first.changes] in ([5], [])
        assert server.configured.configuration.settings.limits.running == 0
        assert server.scheduler._runtime.lanes.policy == Limits()
        assert len(first.changes) == len(second.changes)


def test_a_file_that_appears_later_is_read(tmp_path: Path) -> None:
    server = Server(tmp_path, "")
    (tmp_path / "nextslot.toml").unlink()
    without = load(tmp_path, environment={}, overrides={"server.port": 1})

    server.written("[server]\nhost = 'localhost'\nport = 2")

    again = without.read_again().settings.server
    assert (again.host, again.port) == ("localhost", 1)


async def test_a_file_that_has_gone_changes_nothing_and_is_told(tmp_path: Path) -> None:
    async with reloadable_server(tmp_path, FUNCTION) as server:
        (tmp_path / "nextslot.toml").unlink()

        with pytest.raises(Invalid, match=r"nextslot\.toml cannot be read: No such file"):
            await server.configured.reload()

        assert "quick" in server.scheduler.job_types.names()


# Webhooks.

SECRET = "whsec_" + "c2VjcmV0IHRoYXQgbm9ib2R5IG1heSBzZWUh"
HERE = "http://127.0.0.1:9/hook"


async def test_the_secret_of_the_file_signs_at_once_and_without_one_the_kept_secret_does(tmp_path: Path) -> None:
    async with reloadable_server(tmp_path, "") as server:
        kept = server.scheduler.webhooks.secret()

        await server.reload(f"[webhooks]\nsecret = '{SECRET}'")
        assert server.scheduler.webhooks.secret() == secret_for(SECRET, "default") != kept

        await server.reload("")
        assert server.scheduler.webhooks.secret() == kept


async def test_private_addresses_are_allowed_to_a_local_server_until_the_file_says_no(tmp_path: Path) -> None:
    async with reloadable_server(tmp_path, "") as server:
        await server.scheduler.webhooks.create(HERE)

        await server.reload("[webhooks]\nallow_private = false")

        with pytest.raises(Invalid, match="allow_private"):
            await server.scheduler.webhooks.create(HERE)


async def test_spec_12_12_a_key_or_an_allowed_host_ends_private_addresses(tmp_path: Path) -> None:
    behind_a_proxy = load(tmp_path, environment={}, overrides={"server.allowed_hosts": ["jobs.example.org"]})
    assert not reloadable_settings(behind_a_proxy.settings).webhooks.allow_private

    async with reloadable_server(tmp_path, "") as server:
        await server.scheduler.webhooks.create(HERE)
        await server.scheduler.keys.create("admin", ["admin"])

        with pytest.raises(Invalid, match="allow_private"):
            await server.scheduler.webhooks.create(HERE)

        await server.reload("[webhooks]\nallow_private = true")
        await server.scheduler.webhooks.create(HERE)
        for webhook in (await server.scheduler.webhooks.page()).items:
            await server.scheduler.webhooks.delete(webhook.webhook_id)


@pytest.mark.parametrize(
    ("host", "is_allowed"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("example.com", False)],
)
def test_a_server_that_others_reach_calls_no_private_addresses(tmp_path: Path, host: str, is_allowed: bool) -> None:
    configuration = load(tmp_path, environment={}, overrides={"server.host": host})

    assert reloadable_settings(configuration.settings).webhooks.allow_private == is_allowed


async def test_deliveries_go_by_the_new_settings_and_those_under_way_are_not_cut(tmp_path: Path) -> None:
    box = testing.Mailbox()

    async with reloadable_server(tmp_path, "", sender=box) as server:
        await server.scheduler.submit("work", webhook={"url": "http://example.com/"})
        await asyncio.sleep(10)
        await server.reload(f"[webhooks]\nsecret = '{SECRET}'\ntimeout_seconds = 3\nconcurrency = 2")
        await server.scheduler.submit("work", webhook={"url": "http://example.com/"})
        await asyncio.sleep(10)

        assert len(box.messages) == 2
        assert (await server.scheduler.webhooks.deliveries_page(status="PENDING")).items == ()


async def test_what_sent_by_the_old_settings_is_closed_when_its_last_message_has_been_answered(tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []

    class Slow(testing.Mailbox):
        async def send(self, *given: Any) -> Any:
            told.append(("sent", asyncio.get_running_loop().time()))
            await asyncio.sleep(20)
            return await super().send(*given)

        async def close(self) -> None:
            told.append(("closed", asyncio.get_running_loop().time()))

    async with reloadable_server(tmp_path, "", sender=Slow()) as server:
        await server.scheduler.submit("skip", webhook={"url": "http://example.com/"})
        await asyncio.sleep(5)
        await server.reload("[webhooks]\ntimeout_seconds = 30")
        await asyncio.sleep(100)

        (sent, began), (closed, ended) = told
        assert (sent, closed) == ("sent", "closed")
        assert ended - began == pytest.approx(20)
        assert (await server.scheduler.webhooks.deliveries_page(status="PENDING")).items == ()


async def test_an_offices_webhook_from_the_file_is_told_at_once(tmp_path: Path) -> None:
    box = testing.Mailbox()

    async with reloadable_server(tmp_path, "", sender=box) as server:
        await server.reload("[offices.default]\nwebhook = { url = 'http://example.com/office' }")
        await server.scheduler.submit("work")
        await asyncio.sleep(10)

        assert [message.url for message in box.messages] == ["http://example.com/office"]


# Offices.


async def test_a_setting_that_the_file_names_cannot_be_changed_through_the_API(tmp_path: Path) -> None:
    async with reloadable_server(
        tmp_path, "[offices.web]\nmax_concurrent_jobs = 2\nretry_policy = {max_attempts = 1}"
    ) as server:
        scheduler = server.scheduler

        with pytest.raises(Conflict, match="'max_concurrent_jobs' of the office 'web' is set in the configuration"):
            await scheduler.offices.change("web", max_concurrent_jobs=9)
        with pytest.raises(Conflict, match="'retry_policy'"):
            await scheduler.offices.change("web", retry_policy={"max_attempts": 9})

        changed = await scheduler.offices.change(
            "web", name="Web", max_concurrent_jobs=2, retry_policy={"base_delay_seconds": 5}
        )
        assert (changed.name, changed.retry_policy.max_attempts, changed.retry_policy.base_delay_seconds) == (
            "Web",
            1,
            5,
        )


async def test_a_setting_that_the_file_no_longer_names_stays_as_it_is_and_is_free_again(tmp_path: Path) -> None:
    async with reloadable_server(tmp_path, "[offices.web]\nmax_concurrent_jobs = 2") as server:
        await server.reload("")

        assert (await server.scheduler.offices.get("web")).max_concurrent_jobs == 2
        assert (await server.scheduler.offices.change("web", max_concurrent_jobs=9)).max_concurrent_jobs == 9


def test_what_the_file_names_wins_over_what_was_stored_also_after_a_restart(tmp_path: Path) -> None:
    async def change() -> None:
        async with reloadable_server(tmp_path, "") as server:
            await server.scheduler.offices.change("default", max_concurrent_jobs=7, timeout_seconds=5)

    async def look() -> None:
        async with reloadable_server(
            tmp_path, "[offices.default]\nmax_concurrent_jobs = 2\ntimeout_seconds = 0"
        ) as server:
            office = await server.scheduler.offices.get("default")
            await submit(server.scheduler, 4)
            assert (office.max_concurrent_jobs, office.timeout_seconds) == (2, None)
            assert await running(server.scheduler) == 2

    testing.run(change())
    testing.run(look())


async def test_role_limits_of_the_file_apply_at_once(tmp_path: Path) -> None:
    async with reloadable_server(tmp_path, "[offices.web]") as server:
        await submit(server.scheduler, 3, office_id="web", role="FE")
        assert await running(server.scheduler, "web") == 1

        await server.reload("[offices.web]\nrole_limits = { FE = 2 }")

        assert await running(server.scheduler, "web") == 2


# Told.


async def test_the_audit_log_has_before_and_after_without_secrets(tmp_path: Path) -> None:
    async with reloadable_server(tmp_path, "") as server:
        ops = RequestContext(actor=Actor(name="ops", key_id=None, action="reload", target="config"))
        await server.reload(f"[limits]\nrunning = 3\n[webhooks]\nsecret = '{SECRET}'", ops)
    [(details,)] = databases.plain(tmp_path).execute("select details from audit")
    assert isinstance(details, str)
    assert '"limits.running":0' in details
    assert '"limits.running":3' in details
    assert '"webhooks.secret":"********"' in details


async def test_reading_the_same_configuration_again_changes_nothing(tmp_path: Path) -> None:
    async with reloadable_server(tmp_path, FUNCTION) as server:
        assert (await server.reload(FUNCTION)).changes == ()


@pytest.mark.real_time
async def test_a_changed_command_is_used_by_the_next_job(tmp_path: Path) -> None:
    """In real time, because commands are real processes."""
    configuration = load(
        tmp_path, environment=databases.variables(tmp_path), overrides={"extensions.disabled": ["stories"]}
    )
    scheduler = compose(configuration)
    async with scheduler:
        for word in ("one", "two"):
            (tmp_path / "nextslot.toml").write_text(f"[job_types.say]\ncommand = ['echo', '{word}']")
            new = load(
                tmp_path, environment=databases.variables(tmp_path), overrides={"extensions.disabled": ["stories"]}
            )
            await reload(scheduler, configuration, new)
            configuration = new
            ended = await scheduler.wait((await scheduler.submit("say")).job_id)
            assert ended.run is not None
            assert ended.run.log_path is not None
            assert (tmp_path / ended.run.log_path).read_text() == f"{word}\n"


DECLARED = """
[job_types.tidy]
command = ["true"]
[templates.tidy]
job_type = "tidy"
description = "Tidies"
[schedules.nightly]
template = "tidy"
cron_expression = "0 2 * * *"
"""


async def test_a_reload_that_the_store_refuses_changes_no_template(tmp_path: Path) -> None:
    async with reloadable_server(tmp_path, DECLARED) as server:
        changed = DECLARED.replace("Tidies", "Cleans").replace('"0 2 * * *"', '"0 2 * * *"\noffice_id = "nowhere"')

        with pytest.raises(Invalid, match="nowhere"):
            await server.reload(changed)

        (template,) = (await server.scheduler.templates.page()).items
        assert template.description == "Tidies (declared in the configuration)"


async def test_a_reload_makes_an_office_and_a_template_in_it_together(tmp_path: Path) -> None:
    async with reloadable_server(tmp_path, DECLARED) as server:
        await server.reload(
            DECLARED.replace('job_type = "tidy"', 'job_type = "tidy"\noffice_id = "paris"').replace(
                'template = "tidy"', 'template = "tidy"\noffice_id = "paris"'
            )
            + "[offices.paris]\nmax_concurrent_jobs = 2\n"
        )

        offices = {one.office_id for one in (await server.scheduler.templates.page()).items}
        assert offices == {"default", "paris"}


async def test_a_reload_reports_a_schedule_that_is_not_declared_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with reloadable_server(tmp_path, DECLARED) as server:
        await server.reload(DECLARED.partition("[schedules")[0])

    assert "the schedule 'nightly' (0 2 * * *) is not declared any more and goes on" in caplog.text
