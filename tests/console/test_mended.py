"""Defects that people met in the console, each as the law that it broke."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect

from nextslot.executors.run_context import RunContext
from tests.server.support import ServerThread

from .support import Console, opened

PHONE: Any = {"width": 390, "height": 844}


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("mended")) as running:
        yield running


def submit(server: ServerThread, job_type: str, *titles: str, **options: Any) -> list[str]:
    async def work() -> list[str]:
        made = [await server.server.scheduler.submit(job_type, title=title, **options) for title in titles]
        return [job.job_id for job in made]

    return server.run(work())


def fail(server: ServerThread, *titles: str, **options: Any) -> list[str]:
    ids = submit(server, "fail", *titles, **options)
    for job_id in ids:
        server.run(server.server.scheduler.wait(job_id))
    return ids


def paused_queue(server: ServerThread, *titles: str) -> list[str]:
    server.run(server.server.scheduler.pause(office_id="default"))
    return submit(server, "echo", *titles)


# Pauses.


def test_resume_names_and_resumes_what_is_paused(console: Console, server: ServerThread) -> None:
    scheduler = server.server.scheduler
    server.run(scheduler.pause())
    submit(server, "echo", "waits")
    console.open("now").has_queue("waits")

    console.button("Resume everything").click()

    console.says("The queue goes on.")
    expect(console.find(".queue li")).to_have_count(0)
    expect(console.button("Pause")).to_be_visible()
    assert server.run(scheduler.lists.paused()) == ((), ())


def test_an_office_that_is_paused_itself_is_resumed_after_the_scheduler(console: Console, server: ServerThread) -> None:
    server.run(server.server.scheduler.pause(office_id="default"))
    server.run(server.server.scheduler.pause())
    submit(server, "echo", "waits")
    console.open("now").has_queue("waits")

    console.button("Resume everything").click()
    console.says("This office is still paused.")
    console.button("Resume").click()

    expect(console.find(".queue li")).to_have_count(0)


# Retries.


def test_the_question_counts_the_jobs_that_will_be_retried(console: Console, server: ServerThread) -> None:
    fail(server, "one", "two", "three", retry_policy={"max_attempts": 2, "base_delay_seconds": 0.001})
    console.open("jobs?status=FAILED")
    expect(console.find("tbody tr")).to_have_count(9)

    console.page.get_by_role("button", name="Retry all that match").click()
    expect(console.dialog()).to_contain_text("Retry 3 jobs?")
    console.dialog().get_by_role("button", name="Retry them").click()

    console.says("3 jobs retried")


def test_of_the_chosen_only_last_attempts_are_counted(console: Console, server: ServerThread) -> None:
    fail(server, "one", retry_policy={"max_attempts": 2, "base_delay_seconds": 0.001})
    console.open("jobs?status=FAILED")
    expect(console.find("tbody tr")).to_have_count(3)

    console.page.get_by_label("Choose all").check()
    console.page.get_by_role("button", name="Retry 3").click()

    expect(console.dialog()).to_contain_text("Retry 1 failed job?")
    expect(console.dialog()).to_contain_text("Not counted, since retried already: 2 jobs.")


def test_an_attempt_whose_chain_goes_on_leads_to_the_last_one(console: Console, server: ServerThread) -> None:
    (first,) = fail(server, "one", retry_policy={"max_attempts": 1, "base_delay_seconds": 0.001})
    console.open(f"jobs/{first}")
    expect(console.section("Chain: 2 attempts")).to_be_visible()
    expect(console.button("Retry")).to_have_count(0)

    console.page.get_by_role("link", name="Last attempt").click()

    expect(console.button("Retry")).to_be_visible()


def test_ids_in_a_refusal_are_links(console: Console, server: ServerThread) -> None:
    (first,) = fail(server, "one")
    console.expected_refusals = ("/retry",)
    console.open(f"jobs/{first}")
    run = server.run(server.server.scheduler.run_of(first))
    assert run is not None
    expect(console.button("Retry")).to_be_visible()
    sentence = f"the chain of run {run.run_id} has succeeded since, with job {first}: there is nothing to retry"
    console.page.route(
        "**/retry", lambda route: route.fulfill(status=409, json={"detail": sentence, "code": "conflict"})
    )

    console.button("Retry").click()

    expect(console.find(".toast a")).to_have_attribute("href", f"#/jobs/{first}")


# Dialogs and forms.


def test_a_mistake_in_json_keeps_the_dialog_and_what_was_typed(console: Console, server: ServerThread) -> None:
    (job_id,) = paused_queue(server, "a")
    console.open(f"jobs/{job_id}")

    console.button("Change…").click()
    console.dialog().get_by_label("Title").fill("renamed")
    console.dialog().get_by_label("Parameters").fill('{"text": "tw')
    console.dialog().get_by_role("button", name="Change it").click()
    expect(console.dialog().locator("#field-params-help")).to_contain_text("This is not JSON")
    expect(console.dialog().get_by_label("Title")).to_have_value("renamed")
    expect(console.dialog().get_by_label("Parameters")).to_be_focused()
    console.dialog().get_by_label("Parameters").fill('{"text": "two"}')
    console.dialog().get_by_role("button", name="Change it").click()

    expect(console.find("main h1")).to_contain_text("renamed")
    expect(console.dialog()).to_have_count(0)


def test_what_the_server_refuses_is_said_at_its_field_and_the_dialog_stays(
    console: Console, server: ServerThread
) -> None:
    (done,) = submit(server, "echo", "says")
    server.run(server.server.scheduler.wait(done))
    console.expected_refusals = ("/rerun",)
    console.open(f"jobs/{done}")

    console.page.get_by_role("button", name="Run again").click()
    console.dialog().get_by_label("Parameters").fill("[1]")
    console.dialog().get_by_role("button", name="Run it again").click()

    expect(console.dialog().get_by_label("Parameters")).to_have_attribute("aria-invalid", "true")
    expect(console.dialog().locator("#field-params-help")).to_contain_text("object")


def test_a_switch_that_is_not_set_is_left_to_the_handler_and_can_be_set_to_no(
    console: Console, server: ServerThread
) -> None:
    async def clean(run: RunContext, denoise: bool = True) -> bool:
        return denoise

    server.server.scheduler.job_types.add("clean", clean)
    for choice, params, result in (("–", {}, True), ("no", {"denoise": False}, False)):
        console.open("now").open("submit?type=clean").loaded()
        console.page.get_by_label("denoise").select_option(label=choice)
        console.button("Submit").click()
        expect(console.find("h1 ~ .status")).to_have_text("completed")

        job = server.run(server.server.scheduler.job(console.page.url.rsplit("/", 1)[1]))
        run = server.run(server.server.scheduler.run_of(job))
        assert run is not None
        assert (job.params, run.result) == (params, result)


def test_the_overview_counts_the_failures_that_it_does_not_name(console: Console, server: ServerThread) -> None:
    for message in ("red", "green", "blue", "grey", "black"):
        fail(server, "one", "two", "three", params={"message": message})

    console.open("overview").loaded()

    verdict = console.find(".verdict")
    expect(verdict).to_contain_text("5 problems")
    expect(verdict.get_by_role("link", name="fail failed 3 times")).to_have_count(3)
    verdict.get_by_role("link", name="2 other kinds of failure").click()
    expect(console.find(".failures > li")).to_have_count(5)


def test_an_empty_field_that_is_required_is_not_submitted(console: Console, server: ServerThread) -> None:
    async def greet(run: RunContext, name: str) -> str:
        return name

    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    server.server.scheduler.job_types.add("greet", greet, params_schema=schema)
    console.open("submit?type=greet")

    console.button("Submit").click()
    expect(console.page.get_by_label("name *")).to_have_attribute("aria-invalid", "true")
    expect(console.page.get_by_label("name *")).to_be_focused()
    assert server.run(server.server.scheduler.lists.jobs()).items == ()
    console.page.get_by_label("name *").fill("tea")
    console.button("Submit").click()

    expect(console.section("How it ended").locator("pre")).to_have_text('"tea"')


def test_a_direct_caller_is_cancelled_only_after_a_question(console: Console, server: ServerThread) -> None:
    scheduler = server.server.scheduler
    submit(server, "gate", "at the gate")
    call = asyncio.run_coroutine_threadsafe(scheduler.run_direct("echo", direct_id="caller"), server._loop)
    console.open("now")

    console.find(".slot.direct").get_by_role("button", name="Cancel").click()
    expect(console.dialog()).to_contain_text("Somebody waits for its answer")
    assert not call.done()
    console.dialog().get_by_role("button", name="Cancel the request").click()

    expect(console.find(".slot.direct")).to_have_count(0)


# Now.


def test_the_queue_is_shown_before_its_forecast(console: Console, server: ServerThread) -> None:
    paused_queue(server, "a", "b")
    held: list[Route] = []

    def only_now(route: Route) -> None:
        if "wait_seconds=0" in route.request.url:
            route.continue_()
        else:
            held.append(route)

    console.page.route("**/api/queue?*", only_now)
    console.open("now")

    console.has_queue("a", "b")
    for route in held:
        route.continue_()


def test_a_forecast_without_an_estimate_is_told_from_one_that_is_on_its_way(
    console: Console, server: ServerThread
) -> None:
    paused_queue(server, "a", "b")
    held: list[Route] = []

    def unforeseen(route: Route) -> None:
        if "wait_seconds=0" in route.request.url:
            answer = route.fetch()
            route.fulfill(response=answer, json={**answer.json(), "forecast_at": None})
        else:
            held.append(route)

    console.page.route("**/api/queue?*", unforeseen)
    console.open("now").has_queue("a", "b")
    expected = console.find(".queue li > [title='Expected start']")
    expect(expected).to_have_text(["…", "…"])
    while not held:
        console.page.wait_for_timeout(50)
    for route in held:
        route.continue_()

    expect(expected).to_have_text(["no estimate", "no estimate"])


def test_reported_progress_stands_alone(console: Console, server: ServerThread) -> None:
    is_quick, end = asyncio.Event(), asyncio.Event()

    async def work(run: RunContext) -> None:
        if not is_quick.is_set():
            return
        run.progress(0.16, "slowly")
        await end.wait()

    server.server.scheduler.job_types.add("work", work)
    for job_id in submit(server, "work", "one", "two", "three"):
        server.run(server.server.scheduler.wait(job_id))
    server._loop.call_soon_threadsafe(is_quick.set)
    submit(server, "work", "four")
    console.open("now")

    slot = console.find(".slot", has_text="four")
    expect(slot).to_contain_text("16 %")
    expect(slot.locator(".number")).not_to_contain_text("/")
    server._loop.call_soon_threadsafe(end.set)


# Lists.


def test_only_jobs_that_the_filter_finds_are_announced(console: Console, server: ServerThread) -> None:
    fail(server, "old")
    console.open("jobs?status=FAILED")
    expect(console.find("tbody tr")).to_have_count(1)

    submit(server, "echo", "a", "b")
    fail(server, "new")
    console.button("Show 1 new job").click()

    expect(console.find("tbody tr")).to_have_count(2)
    expect(console.find("tbody tr").first).to_contain_text("new")


def test_back_shows_the_same_rows_at_the_same_place(console: Console, server: ServerThread) -> None:
    paused_queue(server, *(f"job {number}" for number in range(160)))
    console.open("jobs")
    expect(console.find("tbody tr")).to_have_count(50)
    console.page.mouse.wheel(0, 100_000)
    expect(console.find("tbody tr")).to_have_count(100)
    console.find("tbody tr").nth(90).scroll_into_view_if_needed()
    down = console.page.evaluate("scrollY")
    title = console.find("tbody tr").nth(90).locator("a").first.inner_text()

    console.find("tbody tr").nth(90).locator("a").first.click()
    expect(console.find("main h1")).to_contain_text(title)
    assert console.page.evaluate("scrollY") == 0
    console.page.go_back()

    expect(console.page.get_by_role("link", name=title, exact=True)).to_be_in_viewport()
    assert down > 1000
    assert abs(console.page.evaluate("scrollY") - down) < 60


# Getting about.


def test_a_view_that_could_not_be_loaded_opens_when_the_server_is_back(browser: Browser, server: ServerThread) -> None:
    with opened(browser, server.url, refusals=("/console/",)) as console:
        console.page.route("**/views/schedules.js", lambda route: route.abort())
        console.open("now")

        console.page.get_by_role("link", name="Schedules").click()
        expect(console.find("main")).to_contain_text("could not be loaded")
        console.page.unroute("**/views/schedules.js")

        expect(console.find("main h1")).to_have_text("Schedules")


@pytest.mark.parametrize("view", ["offices", "schedules"])
def test_what_one_thing_offers_is_gone_before_the_next_one_is_there(
    view: str, console: Console, server: ServerThread
) -> None:
    scheduler = server.server.scheduler
    template = server.run(scheduler.templates.create("echoes", "echo"))
    made = [
        server.run(scheduler.schedules.create(name, template.template_id, "0 0 1 1 *")) for name in ("first", "second")
    ]
    server.run(scheduler.offices.create("studio"))
    one, other = ("default", "studio") if view == "offices" else (made[0].schedule_id, made[1].schedule_id)
    console.open(f"{view}/{one}").loaded()
    dangerous = console.find("main button.danger")
    expect(dangerous.first).to_be_visible()
    held: list[Route] = []
    console.page.route(f"**/api/*/{other}*", lambda route: held.append(route))

    console.page.evaluate(f"location.hash = '#/{view}/{other}'")

    # Else this would cancel or delete what is not shown.
    expect(dangerous).to_have_count(0)
    for route in held:
        route.continue_()
    console.page.unroute_all(behavior="wait")
    expect(dangerous.first).to_be_visible()


@pytest.mark.parametrize(
    ("letter", "title"), [("y", "System"), ("u", "Submit a job"), ("s", "Schedules"), ("g", "Groups"), ("o", "Offices")]
)
def test_every_view_has_a_key(letter: str, title: str, console: Console) -> None:
    console.open("now")

    console.page.keyboard.press("g")
    console.page.keyboard.press(letter)

    expect(console.find("main h1")).to_have_text(title)


def test_a_slash_focuses_the_search_from_any_view(console: Console) -> None:
    console.open("schedules").loaded()

    console.page.keyboard.press("/")

    expect(console.find("main input[type=search]")).to_be_focused()
    expect(console.find("main input[type=search]")).to_have_value("")


def test_a_tab_has_the_name_of_what_it_shows_and_the_content_has_the_focus(
    console: Console, server: ServerThread
) -> None:
    (job_id,) = paused_queue(server, "morning import")
    console.open("now").has_queue("morning import")
    expect(console.page).to_have_title("Now – nextslot")

    console.page.get_by_role("link", name="morning import").click()

    expect(console.page).to_have_title("morning import – Jobs – nextslot")
    expect(console.find("#main")).to_be_focused()
    console.page.get_by_role("button", name="Cancel").click()
    console.dialog().get_by_role("button", name="Cancel the job").click()
    expect(console.find("h1 ~ .status")).to_have_text(re.compile("cancelled", re.IGNORECASE))
    expect(console.find("#main")).to_be_focused()
    assert job_id in console.page.url


# Numbers, times and room.


def test_the_mean_of_a_count_is_a_count_and_the_start_of_the_process_is_in_local_time(
    browser: Browser, server: ServerThread
) -> None:
    with opened(browser, server.url, timezone_id="Asia/Seoul") as console:
        console.open("system").loaded()

        shown = console.page.evaluate(
            """async () => (await import("./views/system.js")).parsedMetrics([
                "# TYPE nextslot_works histogram", "nextslot_works_sum 30", "nextslot_works_count 10",
                "# TYPE nextslot_wait_seconds histogram", "nextslot_wait_seconds_sum 30",
                "nextslot_wait_seconds_count 10",
                "# TYPE process_start_time_seconds gauge", "process_start_time_seconds 1.7e9",
            ].join("\\n")).map((row) => row[2])"""
        )

    assert shown == ["3 × 10", "3.0 s × 10", "2023-11-15 07:13:20"]


def test_the_calendar_has_every_occurrence_of_the_month(console: Console, server: ServerThread) -> None:
    async def make() -> str:
        template = await server.server.scheduler.templates.create(name="tea", job_type="echo")
        made = await server.server.scheduler.schedules.create(
            template_id=template.template_id, name="teatime", cron_expression="0 */2 * * *"
        )
        return made.schedule_id

    schedule_id = server.run(make())

    console.open(f"schedules/{schedule_id}?month=2031-03")

    expect(console.find(".calendar .day:not(.other)", has_text="12to come")).to_have_count(31)


def test_a_long_ledger_is_shown_in_parts(console: Console, server: ServerThread) -> None:
    async def make() -> str:
        template = await server.server.scheduler.templates.create(name="tea", job_type="echo")
        made = await server.server.scheduler.schedules.create(
            template_id=template.template_id, name="teatime", cron_expression="@yearly"
        )
        return made.schedule_id

    schedule_id = server.run(make())
    one = {"outcome": "fired", "until": None, "count": 1, "reason": None, "detail": None, "group_id": None}
    ids = {"job_id": "0199d2c4-0000-7000-8000-000000000000", "schedule_id": schedule_id}
    entries = [{**one, **ids, "instant": f"2031-03-{d:02}T{h:02}:00:00Z"} for d in range(1, 29) for h in range(24)]
    console.page.route("**/occurrences?*", lambda route: route.fulfill(json={"items": entries, "next_cursor": None}))
    console.open(f"schedules/{schedule_id}?month=2031-03")

    rows = console.section("Ledger").locator("tbody tr")
    expect(rows).to_have_count(50)
    console.section("Ledger").get_by_role("button", name="More").click()

    expect(rows).to_have_count(250)


def test_a_key_of_one_office_sees_its_own_numbers(browser: Browser, server: ServerThread) -> None:
    async def make() -> str:
        scheduler = server.server.scheduler
        await scheduler.offices.create("studio")
        await scheduler.pause(office_id="studio")
        for title in ("a", "b"):
            await scheduler.submit("echo", title=title, office_id="studio")
        await scheduler.keys.create("the admin", ["admin"])
        _, key = await scheduler.keys.create("of the studio", ["read"], "studio")
        return key

    key = server.run(make())
    with opened(browser, server.url, refusals=("/api/",)) as console:
        console.page.goto(f"{server.url}/console/#/offices")
        console.page.get_by_label("API key").fill(key)
        console.button("Open the console").click()

        row = console.find("tbody tr", has_text="studio")
        expect(row.locator("td.number").nth(0)).to_have_text("0")
        expect(row.locator("td.number").nth(1)).to_have_text("2")
        expect(row.locator("td").last).to_contain_text("ago")


def test_the_sections_of_the_system_do_not_push_each_other_about(console: Console) -> None:
    console.page.add_init_script(
        """globalThis.shift = 0;
        new PerformanceObserver((list) => list.getEntries().forEach((one) => (shift += one.value)))
          .observe({ type: "layout-shift", buffered: true });"""
    )

    console.open("system").loaded()
    expect(console.section("What happens")).to_be_visible()
    console.page.wait_for_timeout(500)

    assert console.page.evaluate("shift") < 0.1


def test_on_a_phone_no_word_is_torn_no_button_is_clipped_and_the_current_view_is_in_sight(
    browser: Browser, server: ServerThread
) -> None:
    server.run(server.server.scheduler.webhooks.create("http://127.0.0.1:9/a-rather-long-path/of/a/hook"))
    fail(server, "an import of the morning")
    with opened(browser, server.url, viewport=PHONE) as console:
        for view in ("webhooks", "system", "jobs", "offices"):
            console.open(view).loaded()

            expect(console.find("nav [aria-current]")).to_be_in_viewport(ratio=0.9)
            assert console.page.evaluate(TORN) == [], view
            assert console.page.evaluate(CLIPPED) == [], view


# Short words that stand on several lines.
TORN = """() => [...document.querySelectorAll("main td, main th, main .status, main button")].filter((one) => {
    const text = one.childElementCount === 0 ? one.textContent.trim() : "";
    if (!text || text.length > 14 || /[\\s-]/.test(text)) return false;
    const range = document.createRange();
    range.selectNodeContents(one);
    return new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1;
}).map((one) => one.outerHTML)"""

# Buttons that stick out of the screen and cannot be scrolled to.
CLIPPED = """() => [...document.querySelectorAll("main button, main a.button")].filter((one) =>
    one.offsetParent && one.getBoundingClientRect().right > innerWidth + 1 && !one.closest(".scroll")
).map((one) => one.outerHTML)"""
