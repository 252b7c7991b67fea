"""The console changes all that the API can change: roles, quotas, keys, templates, schedules."""

import json
from collections.abc import Iterator
from datetime import datetime

import pytest
from playwright.sync_api import Browser, expect

from nextslot.extensions.offices.office_service import OfficeJobService
from tests.server.support import ServerThread

from .support import Console, opened
from .test_keys import enter


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("editing")) as running:
        yield running


def test_a_role_of_an_office_is_made_changed_and_given_back_to_the_configuration(
    console: Console, server: ServerThread
) -> None:
    scheduler = server.server.scheduler
    service = scheduler.extension(OfficeJobService)
    server.run(scheduler.offices.create("studio"))
    console.open("offices/studio")
    section = console.section("Roles")

    console.button("New role").click()
    dialog = console.dialog()
    dialog.get_by_label("Name", exact=True).fill("QA/night")
    dialog.get_by_label("Command").fill("python3\n-c\nprint('a b')")
    dialog.get_by_label("Variables").fill("no sign")
    dialog.get_by_role("button", name="Make it").click()
    expect(console.find("#field-env-help")).to_contain_text("is not NAME=value")
    dialog.get_by_label("Variables").fill("TOKEN=a=b\nMODE=slow")
    dialog.get_by_label("Timeout, minutes").fill("1.5")
    dialog.get_by_label("Arguments that continue").fill("--resume\n{session_id}")
    dialog.get_by_label("Continue after these").fill("crash, quota")
    dialog.get_by_label("Pattern that finds").fill("session (.+)")
    dialog.get_by_role("button", name="Make it").click()
    row = section.locator("tr", has_text="QA/night")
    expect(row).to_contain_text("the office")

    def role() -> object:
        (found,) = [one for one in server.run(service.roles("studio")) if one.role == "QA/night"]
        return found

    made = role()
    assert list(made.command) == ["python3", "-c", "print('a b')"]  # type: ignore[attr-defined]
    assert made.env == {"TOKEN": "a=b", "MODE": "slow"}  # type: ignore[attr-defined]
    assert made.timeout_seconds == 90  # type: ignore[attr-defined]
    row.get_by_role("button", name="Change…").click()
    # What the office has, so that saving loses nothing but the variables, of which the dialog says so.
    expect(dialog.get_by_label("Command")).to_have_value("python3\n-c\nprint('a b')")
    expect(console.find("#field-env-help")).to_contain_text("MODE, TOKEN")
    dialog.get_by_label("Timeout, minutes").fill("2")
    dialog.get_by_label("Variables").fill("MODE=fast")
    dialog.get_by_role("button", name="Change it").click()
    console.says("Changed.")
    changed = role()
    assert (changed.timeout_seconds, changed.env) == (120, {"MODE": "fast"})  # type: ignore[attr-defined]
    assert list(changed.resume_args) == ["--resume", "{session_id}"]  # type: ignore[attr-defined]
    assert set(changed.resume_on) == {"crash", "quota"}  # type: ignore[attr-defined]
    assert changed.session_id_pattern == "session (.+)"  # type: ignore[attr-defined]
    row.get_by_role("button", name="Use the configuration…").click()
    dialog.get_by_role("button", name="Remove them").click()

    expect(row).to_have_count(0)
    assert server.run(scheduler.offices.get("studio")).roles == {}


def test_quotas_are_shown_in_words_and_changed(console: Console, server: ServerThread) -> None:
    scheduler = server.server.scheduler
    server.run(scheduler.offices.create("studio"))
    server.run(scheduler.offices.grant("studio", lanes=7))
    console.open("offices/studio")
    section = console.section("Quotas")
    expect(section).to_contain_text("Jobs that have not ended")
    expect(section).not_to_contain_text("queued_jobs")

    section.get_by_role("button", name="Change…").click()
    dialog = console.dialog()
    dialog.get_by_label("Jobs that have not ended").fill("1234")
    dialog.get_by_label("Different kinds of ready jobs").fill("")
    dialog.get_by_label("Job types").fill("echo, fail")
    dialog.get_by_label("May name resources").check()
    dialog.get_by_role("button", name="Grant it").click()
    expect(section).to_contain_text("1,234")

    quotas = server.run(scheduler.offices.quotas("studio"))
    assert (quotas.queued_jobs, quotas.lanes, quotas.own_resources) == (1234, 1000, True)
    assert quotas.job_types == ("echo", "fail")


def test_a_key_has_an_end_addresses_and_job_types_and_gets_another_text(browser: Browser, server: ServerThread) -> None:
    scheduler = server.server.scheduler
    _, admin = server.run(scheduler.keys.create("the admin", ["admin"]))
    with opened(browser, server.url, refusals=("/api/",)) as console:
        enter(console, admin, "system")
        console.button("New key").click()
        dialog = console.dialog()
        dialog.get_by_label("Name").fill("ci")
        dialog.get_by_label("It may").select_option("submit")
        dialog.get_by_label("Expires").fill("2031-02-03T04:05:00")
        dialog.get_by_label("Only from the addresses").fill("127.0.0.1, 10.0.0.0/8")
        dialog.get_by_label("May create only").fill("echo")
        dialog.get_by_role("button", name="Make it").click()
        text = dialog.locator(".secret").inner_text()
        dialog.get_by_role("button", name="I have it").click()
        row = console.section("key").locator("tr", has_text="ci")
        expect(row).to_contain_text("10.0.0.0/8")
        expect(row).to_contain_text("echo")

        (key,) = [one for one in server.run(scheduler.keys.page()).items if one.name == "ci"]
        assert (key.job_types, len(key.allowed_addresses)) == (("echo",), 2)
        expires = datetime.fromisoformat(str(key.expires_at))
        assert expires.astimezone().replace(tzinfo=None) == datetime(2031, 2, 3, 4, 5)  # noqa: DTZ001
        row.get_by_role("button", name="New text…").click()
        dialog.get_by_label("The text before stays valid").fill("0")
        dialog.get_by_role("button", name="Make it").click()
        expect(dialog.locator(".secret")).not_to_have_text(text)
        other = dialog.locator(".secret").inner_text()
        dialog.get_by_role("button", name="I have it").click()

    assert server.run(scheduler.keys.find(text)) is None
    found = server.run(scheduler.keys.find(other))
    assert found is not None
    assert found.name == "ci"


def test_a_template_of_a_group_is_made_and_all_of_a_template_is_changed(console: Console, server: ServerThread) -> None:
    scheduler = server.server.scheduler
    console.open("submit")

    console.button("New template").click()
    dialog = console.dialog()
    dialog.get_by_label("Name").fill("pipeline")
    jobs = [{"job_type": "echo", "key": "a"}, {"job_type": "echo", "depends_on": ["a"]}]
    dialog.get_by_label("Jobs of a group").fill(json.dumps(jobs))
    dialog.get_by_label("After a failure").select_option("continue")
    dialog.get_by_role("button", name="Make it").click()
    console.says("Made.")
    (made,) = server.run(scheduler.templates.page()).items
    assert (made.job_type, len(made.jobs or ()), made.mode, made.on_failure) == (None, 2, "parallel", "continue")

    single = server.run(scheduler.templates.create(name="nightly", job_type="echo"))
    console.page.reload()
    row = console.section("Templates").locator("tr", has_text="nightly")
    row.get_by_role("button", name="Change…").click()
    dialog.get_by_label("Resources").fill('{"gpu": 1')
    dialog.get_by_role("button", name="Change it").click()
    expect(console.find("#field-resources-help")).to_contain_text("This is not JSON")
    dialog.get_by_label("Resources").fill('{"gpu": 1}')
    dialog.get_by_label("Affinity").fill("llama")
    dialog.get_by_label("Limit keys").fill('["customer-7"]')
    dialog.get_by_label("Webhook").fill('{"url": "http://127.0.0.1:9/hook"}')
    dialog.get_by_label("Type", exact=True).fill("gate")
    dialog.get_by_role("button", name="Change it").click()
    console.says("Changed.")

    now = server.run(scheduler.templates.get(single.template_id))
    assert (now.job_type, now.resources, now.affinity, now.limit_keys) == ("gate", {"gpu": 1}, "llama", ("customer-7",))
    assert now.webhook is not None
    assert now.webhook["url"] == "http://127.0.0.1:9/hook"
    assert (now.name, now.params, now.priority, now.timeout_seconds) == ("nightly", {}, 0, None)


def test_a_schedule_gets_another_template_and_window_and_is_triggered_with_parameters(
    console: Console, server: ServerThread
) -> None:
    scheduler = server.server.scheduler
    first = server.run(scheduler.templates.create(name="first", job_type="gate"))
    second = server.run(scheduler.templates.create(name="second", job_type="echo", params={"text": "usual"}))
    made = server.run(
        scheduler.schedules.create(template_id=first.template_id, name="teatime", cron_expression="@yearly")
    )
    console.open(f"schedules/{made.schedule_id}")

    console.button("Change…").click()
    expect(console.page.get_by_label("Template", exact=True)).to_have_value(first.template_id)
    console.page.get_by_label("Template", exact=True).select_option("second")
    console.page.get_by_label("Older than so many seconds").fill("7200")
    console.page.get_by_label("Parameters over the template").fill("{")
    console.button("Save").click()
    expect(console.find("#field-param_overrides-help")).to_contain_text("This is not JSON")
    console.page.get_by_label("Parameters over the template").fill('{"times": 2}')
    console.button("Save").click()
    console.says("Saved.")
    now = server.run(scheduler.schedules.get(made.schedule_id))
    assert (now.template_id, now.catch_up_window_seconds) == (second.template_id, 7200)
    assert (now.office_id, now.param_overrides) == ("default", {"times": 2})

    console.button("Trigger now…").click()
    console.dialog().get_by_label("Parameters over the schedule's").fill('{"text": "ho"}')
    console.dialog().get_by_label("Priority").fill("7")
    console.dialog().get_by_role("button", name="Trigger now").click()
    expect(console.find("h1 ~ .status")).to_have_text("completed")

    job_id = console.page.url.rsplit("/", 1)[1]
    job = server.run(scheduler.job(job_id))
    assert (job.params, job.priority, job.schedule_id) == ({"text": "ho", "times": 2}, 7, made.schedule_id)
    run = server.run(scheduler.run_of(job))
    assert run is not None
    assert run.result == "hoho"


def test_what_the_form_of_submit_cannot_read_is_said_at_its_field(console: Console, server: ServerThread) -> None:
    console.open("submit?type=echo")
    if console.button("JSON").get_attribute("aria-pressed") == "false":
        console.button("JSON").click()

    console.page.get_by_label("Parameters (JSON)").fill('{"text": ')
    console.button("Submit").click()

    expect(console.find("#field-raw-help")).to_contain_text("This is not JSON")
    expect(console.page.get_by_label("Parameters (JSON)")).to_be_focused()
    assert server.run(server.server.scheduler.queue()) == []
