"""Actions can be undone, every view says what holds work back, and the console changes all that the API can change."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect

from nextslot.domain.webhook_delivery import EVENTS
from tests.server.support import ServerThread

from .support import Console, opened, queue_order


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("trust")) as running:
        yield running


def queued(server: ServerThread, *titles: str) -> list[str]:
    scheduler = server.server.scheduler
    server.run(scheduler.pause(office_id="default"))
    return [server.run(scheduler.submit("echo", title=title)).job_id for title in titles]


def status(server: ServerThread, job_id: str) -> Any:
    return server.run(server.server.scheduler.job(job_id)).status


# Undo.


def test_a_cancel_that_is_undone_never_reaches_the_server(console: Console, server: ServerThread) -> None:
    ids = queued(server, "a", "b")
    console.open("now").has_queue("a", "b")
    sent: list[str] = []
    console.page.on("request", lambda request: sent.append(request.url) if "/cancel" in request.url else None)

    console.find(".queue li", has_text="b").get_by_role("button", name="Cancel").click()
    expect(console.find(".queue li.going")).to_have_count(1)
    console.find(".toast").get_by_role("button", name="Undo").click()
    console.says("It stays.")
    console.page.wait_for_timeout(6500)

    assert sent == []
    assert status(server, ids[1]) == "QUEUED"
    expect(console.find(".queue li.going")).to_have_count(0)


def test_who_leaves_before_the_six_seconds_are_over_has_cancelled(console: Console, server: ServerThread) -> None:
    ids = queued(server, "one", "two")
    console.open("now").has_queue("one", "two")

    console.find(".queue li", has_text="one").get_by_role("button", name="Cancel").click()
    console.says("is cancelled in 6 seconds")
    console.page.goto("about:blank")
    for _ in range(100):
        if status(server, ids[0]) == "CANCELLED":
            break
        console.page.wait_for_timeout(50)

    assert status(server, ids[0]) == "CANCELLED"
    assert status(server, ids[1]) == "QUEUED"


def test_a_move_is_made_back(console: Console, server: ServerThread) -> None:
    queued(server, "a", "b", "c")
    console.open("now").has_queue("a", "b", "c")

    console.button("Move c to the front").click()
    console.has_stored_queue("c", "a", "b")
    console.find(".toast").get_by_role("button", name="Undo").click()

    console.has_stored_queue("a", "b", "c")
    console.says("Moved back.")
    assert queue_order(server) == ["a", "b", "c"]


def test_a_move_on_the_page_of_a_job_is_made_back(console: Console, server: ServerThread) -> None:
    ids = queued(server, "a", "b", "c", "d")
    console.open(f"jobs/{ids[2]}")

    console.button("To the front").click()
    console.says("It is first now.")
    console.find(".toast").get_by_role("button", name="Undo").click()
    console.says("Moved back.")

    assert queue_order(server) == ["a", "b", "c", "d"]


# The banner.


def test_every_view_says_what_holds_work_back_and_ends_it(console: Console, server: ServerThread) -> None:
    scheduler = server.server.scheduler
    server.run(scheduler.pause())
    server.run(scheduler.pause(job_type="echo"))
    server.run(scheduler.pause(office_id="default"))
    hook, _ = server.run(scheduler.webhooks.create("http://127.0.0.1:9/hook"))
    console.open("schedules")
    notices = console.find(".notices")

    expect(notices.locator("li")).to_have_count(2)
    console.button("1 more").click()
    expect(notices).to_contain_text("type echo is paused")
    notices.get_by_role("button", name="Resume: The whole scheduler is paused.").click()
    notices.get_by_role("button", name="Resume: office default is paused").click()
    notices.get_by_role("button", name="Resume: type echo is paused").click()

    expect(notices).to_have_count(0)
    paused = server.run(scheduler.lists.paused())
    assert not any(paused)
    assert hook.enabled


def test_types_and_resources_are_paused_on_the_page_of_the_system(console: Console, server: ServerThread) -> None:
    console.open("system")

    console.page.get_by_label("Pause a type or resource…").select_option(label="type echo")
    expect(console.section("Pauses")).to_contain_text("type echo")
    console.section("Pauses").get_by_role("button", name="Resume: type echo").click()

    expect(console.section("Pauses")).to_contain_text("No type or resource is paused.")


# Times, notifications, views.


def test_times_are_shown_in_the_browsers_zone_in_utc_or_in_that_of_a_schedule(
    browser: Browser, server: ServerThread
) -> None:
    scheduler = server.server.scheduler
    template = server.run(scheduler.templates.create(name="t", job_type="echo"))
    made = server.run(
        scheduler.schedules.create(
            template_id=template.template_id, name="noon", cron_expression="0 12 * * *", timezone="America/New_York"
        )
    )
    with opened(browser, server.url, timezone_id="Asia/Seoul") as console:
        console.open(f"schedules/{made.schedule_id}")
        when = console.section("Settings").locator("time").first
        local = when.get_attribute("title") or ""

        console.button("Times in UTC").click()
        expect(when).not_to_have_attribute("title", local)
        console.button("Times in America/New_York").click()

        assert " 12:00:00 (" in (when.get_attribute("title") or "")
        console.open("now")
        expect(console.button("Times in UTC")).to_have_text("UTC")


def test_notifications_are_shown_to_who_wants_them_while_the_page_is_out_of_sight(
    browser: Browser, server: ServerThread
) -> None:
    with opened(browser, server.url, permissions=["notifications"]) as console:
        # The system's own window cannot be seen from here: what is given to it can.
        console.page.add_init_script("""
            window.shown = [];
            const Real = Notification;
            window.Notification = class extends Real {
                constructor(title, ...rest) {
                    super(title, ...rest);
                    shown.push(title);
                }
            };
        """)
        console.open("jobs")
        bell = console.button("Desktop notifications")
        expect(bell).to_have_attribute("aria-pressed", "false")
        bell.click()
        expect(bell).to_have_attribute("aria-pressed", "true")
        console.page.evaluate("Object.defineProperty(document, 'visibilityState', { get: () => 'hidden' })")

        server.run(server.server.scheduler.submit("fail", title="breaks", retry_policy={"max_attempts": 0}))

        # `wait_for_function` would need what the policy of the page forbids.
        for _ in range(400):
            if console.page.evaluate("shown.length"):
                break
            console.page.wait_for_timeout(50)
        assert console.page.evaluate("shown[0]") == "breaks: failed, retries exhausted"


def test_a_view_is_loaded_when_the_pointer_is_near_its_link(console: Console) -> None:
    console.open("now")

    with console.page.expect_request("**/views/webhooks.js"):
        console.page.get_by_role("link", name="Webhooks").hover()


def test_a_shape_stands_where_content_will_be(console: Console) -> None:
    held: list[Any] = []
    console.page.route("**/api/queue?*", lambda route: held.append(route))
    console.open("jobs")

    console.page.get_by_role("link", name="Now", exact=True).click()
    expect(console.find("main .skeleton")).to_be_visible()
    # First these: to take the route away lets go on, a moment later, what it holds.
    for route in held:
        route.continue_()
    console.page.unroute("**/api/queue?*")

    expect(console.find("main h1")).to_have_text("Now")
    expect(console.find("main .skeleton")).to_have_count(0)


@pytest.mark.parametrize("view", ["jobs", "failures", "types", "schedules", "groups", "webhooks"])
def test_a_shape_stands_where_rows_will_be(view: str, console: Console) -> None:
    held: list[Any] = []
    path = {"types": "job-types", "groups": "job-groups"}.get(view, view)
    console.page.route(f"**/api/{path}*", lambda route: held.append(route))
    console.open(view)

    expect(console.find("main .skeleton").first).to_be_visible()
    for route in held:
        route.continue_()
    console.page.unroute(f"**/api/{path}*")

    expect(console.find("main .skeleton")).to_have_count(0)
    expect(console.find("main .empty, main .rows").first).to_be_visible()


def test_a_forecast_that_is_on_its_way_is_not_said_to_be_none(console: Console, server: ServerThread) -> None:
    (job_id,) = queued(server, "waits")
    held: list[Any] = []

    def only_reasons(route: Route) -> None:
        if "wait_seconds=0" in route.request.url:
            answer = route.fetch()
            none = {"expected_start": None, "expected_end": None, "confidence": "none", "forecast_at": None}
            route.fulfill(response=answer, json={**answer.json(), **none})
        else:
            held.append(route)

    console.page.route("**/why?*", only_reasons)
    console.open(f"jobs/{job_id}")
    why = console.section("Why is it not running")

    expect(why).to_contain_text("Expected start…")
    expect(why).not_to_contain_text("no estimate")
    while not held:
        console.page.wait_for_timeout(50)
    for route in held:
        route.continue_()
    console.page.unroute("**/why?*")
    expect(why).not_to_contain_text("…")


# Editing.


def test_a_subscription_is_changed(console: Console, server: ServerThread) -> None:
    hook, _ = server.run(server.server.scheduler.webhooks.create("http://127.0.0.1:9/hook"))
    console.open("webhooks")

    console.button("Change…").click()
    console.dialog().get_by_label("a group finished").check()
    console.dialog().get_by_label("Format").select_option("slack")
    console.dialog().get_by_role("button", name="Change it").click()
    console.says("Changed.")

    now = server.run(server.server.scheduler.webhooks.get(hook.webhook_id))
    assert "group.finished" in now.events
    assert (now.format, now.url) == ("slack", hook.url)


def test_a_subscription_keeps_what_is_not_changed(console: Console, server: ServerThread) -> None:
    events = ("job.failed_permanently", "job.awaiting_signal")
    url = "http://127.0.0.1:9/asks"
    hook, _ = server.run(server.server.scheduler.webhooks.create(url, events=events, format="discord"))
    console.open("webhooks")

    row = console.find(f"tr[data-webhook='{hook.webhook_id}']")
    row.get_by_role("button", name="Change…").click()
    expect(console.dialog().get_by_label("a job waits for an answer")).to_be_checked()
    console.dialog().get_by_label("a group finished").check()
    console.dialog().get_by_role("button", name="Change it").click()
    console.says("Changed.")

    now = server.run(server.server.scheduler.webhooks.get(hook.webhook_id))
    assert (set(now.events), now.format) == ({*events, "group.finished"}, "discord")


def test_a_subscription_keeps_events_that_the_console_does_not_know(console: Console, server: ServerThread) -> None:
    hook, _ = server.run(server.server.scheduler.webhooks.create("http://127.0.0.1:9/later"))
    sent: list[Any] = []

    def newer(route: Route) -> None:
        """Answers as a server of a later version, whose subscription has one event more."""
        answer = route.fetch()
        found = answer.json()
        for one in found["items"]:
            one["events"] = [*one["events"], "job.from_a_later_version"]
        route.fulfill(response=answer, json=found)

    console.page.route("**/api/webhooks?*", newer)
    console.page.on("request", lambda one: sent.append(one.post_data_json) if one.method == "PATCH" else None)
    console.expected_refusals = ("api/webhooks",)
    console.open("webhooks")

    console.find(f"tr[data-webhook='{hook.webhook_id}']").get_by_role("button", name="Change…").click()
    expect(console.dialog().get_by_label("job.from_a_later_version")).to_be_checked()
    console.dialog().get_by_role("button", name="Change it").click()
    expect(console.dialog()).to_contain_text("job.from_a_later_version")

    assert sent[0]["events"] == [*hook.events, "job.from_a_later_version"]


def test_every_event_can_be_chosen(console: Console) -> None:
    console.open("webhooks")

    console.button("New subscription").click()

    boxes = console.dialog().locator("input[type=checkbox]")
    assert sorted(boxes.evaluate_all("all => all.map(one => one.name)")) == sorted(EVENTS)


def test_the_webhook_of_an_office_keeps_its_format_and_its_events(console: Console, server: ServerThread) -> None:
    offices = server.server.scheduler.offices
    asks = {"format": "slack", "events": ["job.awaiting_signal"]}
    server.run(offices.create("chatty", webhook={"url": "http://127.0.0.1:9/old/secret", **asks}))
    console.open("offices/chatty")

    console.page.get_by_label("Webhook of the office").fill("http://127.0.0.1:9/new/secret")
    console.button("Save").click()
    console.says("Saved.")

    office = server.run(offices.get("chatty"))
    assert office.webhook == {"url": "http://127.0.0.1:9/new/secret", **asks}


def test_a_template_is_changed_and_archived(console: Console, server: ServerThread) -> None:
    scheduler = server.server.scheduler
    made = server.run(scheduler.templates.create(name="nightly", job_type="echo", params={"text": "a"}))
    console.open("submit")

    console.section("Templates").get_by_role("button", name="Change…").click()
    console.dialog().get_by_label("Parameters (JSON)").fill('{"text": "b"}')
    console.dialog().get_by_role("button", name="Change it").click()
    console.says("Changed.")
    assert server.run(scheduler.templates.get(made.template_id)).params == {"text": "b"}
    console.section("Templates").get_by_role("button", name="Archive…").click()
    console.dialog().get_by_role("button", name="Archive").click()

    expect(console.section("Templates")).to_contain_text("None yet.")
    expect(console.section("Templates").locator("tbody tr")).to_have_count(0)
    assert server.run(scheduler.templates.get(made.template_id)).archived_at is not None


def test_an_office_has_all_its_settings_and_what_the_file_sets_is_locked(
    console: Console, server: ServerThread
) -> None:
    scheduler = server.server.scheduler
    server.run(scheduler.offices.create("studio"))
    settings = scheduler.offices._settings
    settings.use(settings._lanes.policy, {"studio": {"max_concurrent_jobs": 3}})
    console.open("offices/studio")

    expect(console.page.get_by_label("Jobs at once")).to_be_disabled()
    expect(console.find("#field-maxConcurrentJobs-help")).to_contain_text("configuration file")
    console.page.get_by_label("Also retried").fill("error, unavailable")
    console.page.get_by_label("Priority rises by one").fill("60")
    console.button("Save").click()
    console.says("Saved.")

    office = server.run(scheduler.offices.get("studio"))
    assert office.priority_aging_seconds == 60
    assert {"error", "unavailable"} <= set(office.retry_policy.retry_on or ())
