"""Does in the console what people do, and checks the effects in the scheduler."""

import asyncio
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import APIResponse, Route, expect

from nextslot import NewJob
from nextslot.domain.filters import JobFilter
from nextslot.executors.run_context import RunContext
from tests.extensions.offices.support import office_jobs
from tests.server.support import ServerThread

from .support import Console, queue_order


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("actions")) as running:
        yield running


def submit(server: ServerThread, job_type: str, *titles: str, **options: Any) -> list[str]:
    async def work() -> list[str]:
        made = [await server.server.scheduler.submit(job_type, title=title, **options) for title in titles]
        return [job.job_id for job in made]

    return server.run(work())


def paused_queue(server: ServerThread, *titles: str) -> list[str]:
    server.run(server.server.scheduler.pause(office_id="default"))
    return submit(server, "echo", *titles)


def status_of(server: ServerThread, job_id: str) -> str:
    return str(server.run(server.server.scheduler.job(job_id)).status)


# The queue.


def test_a_job_is_dragged_to_another_place(console: Console, server: ServerThread) -> None:
    paused_queue(server, "a", "b", "c", "d")
    console.open("now").has_queue("a", "b", "c", "d")

    rows = console.find(".queue li")
    rows.nth(3).drag_to(rows.nth(1), target_position={"x": 300, "y": 3})

    console.has_stored_queue("a", "d", "b", "c")
    console.page.reload()
    console.has_queue("a", "d", "b", "c")
    assert queue_order(server) == ["a", "d", "b", "c"]


def test_a_job_is_moved_by_keys_and_keeps_the_focus(console: Console, server: ServerThread) -> None:
    paused_queue(server, "a", "b", "c", "d")
    console.open("now").has_queue("a", "b", "c", "d")

    console.page.get_by_role("button", name="Move c, place 3").focus()
    console.page.keyboard.press("Alt+ArrowUp")
    console.page.keyboard.press("Alt+ArrowUp")
    console.has_queue("c", "a", "b", "d")
    console.page.keyboard.press("Alt+End")

    console.has_stored_queue("a", "b", "d", "c")
    expect(console.page.get_by_role("button", name="Move c, place 4")).to_be_focused()
    console.page.reload()
    console.has_queue("a", "b", "d", "c")
    assert queue_order(server) == ["a", "b", "d", "c"]


def test_an_answer_from_before_a_move_does_not_undo_it(console: Console, server: ServerThread) -> None:
    paused_queue(server, "a", "b", "c")
    console.open("now").has_queue("a", "b", "c")
    held: list[tuple[Route, APIResponse]] = []

    def hold_the_first(route: Route) -> None:
        if held or "wait_seconds=30" in route.request.url:
            route.continue_()
        else:
            held.append((route, route.fetch()))

    console.page.route("**/api/queue?*", hold_the_first)
    submit(server, "echo", "d")
    while not held:
        console.page.wait_for_timeout(50)

    console.page.get_by_role("button", name="Move c, place 3").focus()
    with console.page.expect_response("**/move"):
        console.page.keyboard.press("Alt+Home")
    console.has_queue("c", "a", "b")
    route, before = held[0]
    route.fulfill(response=before)

    console.has_stored_queue("c", "a", "b", "d")
    expect(console.page.get_by_role("button", name="Move c, place 1")).to_be_focused()


def test_a_job_that_changes_while_the_list_is_on_its_way_is_shown_as_it_is(
    console: Console, server: ServerThread
) -> None:
    paused_queue(server, "a")
    held: list[tuple[Route, APIResponse]] = []
    console.page.route("**/api/jobs?*", lambda route: held.append((route, route.fetch())))
    console.open("jobs")
    while not held:
        console.page.wait_for_timeout(50)

    with console.page.expect_event("console", lambda message: message.text == "job_completed"):
        console.page.evaluate(
            """async () => (await import("./live.js")).live.listen((event) => console.log(event.type))"""
        )
        server.run(server.server.scheduler.resume(office_id="default"))
    route, before = held[0]
    route.fulfill(response=before)

    expect(console.find("tbody tr .status")).to_have_text("completed")


def test_leaving_with_a_move_that_is_not_stored_yet_is_asked_about(console: Console, server: ServerThread) -> None:
    paused_queue(server, "a", "b")
    console.open("now").has_queue("a", "b")
    held: list[Route] = []
    console.page.route("**/move", lambda route: held.append(route))

    console.button("Move b to the front").click()
    console.has_queue("b", "a")
    console.page.wait_for_function("!dispatchEvent(new Event('beforeunload', { cancelable: true }))")
    held[0].continue_()

    console.has_stored_queue("b", "a")
    assert console.page.evaluate("dispatchEvent(new Event('beforeunload', { cancelable: true }))")
    assert queue_order(server) == ["b", "a"]


def test_a_job_goes_to_the_front_and_another_is_cancelled(console: Console, server: ServerThread) -> None:
    ids = paused_queue(server, "a", "b", "c")
    console.open("now").has_queue("a", "b", "c")

    console.button("Move c to the front").click()
    console.has_queue("c", "a", "b")
    console.find(".queue li", has_text="b").get_by_role("button", name="Cancel").click()
    console.says("b is cancelled in 6 seconds.")

    console.has_queue("c", "a")
    assert server.run(server.server.scheduler.job(ids[1])).status == "CANCELLED"


def test_the_page_of_a_job_asks_for_the_reason_of_a_cancel(console: Console, server: ServerThread) -> None:
    (job_id,) = paused_queue(server, "unneeded")
    console.open(f"jobs/{job_id}")

    console.button("Cancel…").click()
    console.dialog().get_by_label("Reason").fill("not needed")
    console.dialog().get_by_role("button", name="Cancel the job").click()
    expect(console.find("h1 ~ .status")).to_have_text("cancelled")

    assert server.run(server.server.scheduler.job(job_id)).cancel_reason == "not needed"


def test_the_queue_is_paused_and_resumed(console: Console, server: ServerThread) -> None:
    console.open("now")

    console.button("Pause").click()
    expect(console.button("Resume")).to_be_visible()
    submit(server, "echo", "waits")
    console.has_queue("waits")
    console.button("Resume").click()

    expect(console.find(".queue li")).to_have_count(0)
    expect(console.button("Pause")).to_be_visible()


def test_what_runs_and_who_waits_on_the_line_hold_slots(console: Console, server: ServerThread) -> None:
    (gate,) = submit(server, "gate", "at the gate")
    scheduler = server.server.scheduler
    asyncio.run_coroutine_threadsafe(scheduler.run_direct("echo", direct_id="caller"), server._loop)
    console.open("now")

    expect(console.find(f".slot[data-job='{gate}']")).to_contain_text("at the gate")
    expect(console.find(".slot.direct")).to_contain_text("holds the next slot")
    console.find(f".slot[data-job='{gate}']").get_by_role("button", name="Cancel").click()
    console.dialog().get_by_role("button", name="Cancel the job").click()

    expect(console.find(".slot.free")).to_have_count(1)
    assert status_of(server, gate) == "CANCELLED"


# A job's life.


def test_a_jobs_life_is_watched_from_the_form_to_its_end_without_a_reload(
    console: Console, server: ServerThread
) -> None:
    step, end = _typed_work(server)
    console.open("submit?type=work")

    console.page.get_by_label("topic *").fill("tea")
    console.page.get_by_label("tags").fill("green\nhot")
    console.page.get_by_label("Title").fill("watched")
    console.button("Submit").click()
    expect(console.find("h1 ~ .status")).to_have_text("running")
    expect(console.find("pre.log")).to_contain_text("work on tea")
    server._loop.call_soon_threadsafe(step.set)
    expect(console.find("[role=progressbar]")).to_have_attribute("aria-valuenow", "40")
    server._loop.call_soon_threadsafe(end.set)

    expect(console.find("h1 ~ .status")).to_have_text("completed")
    expect(console.section("How it ended").locator("pre")).to_contain_text('"green"')
    expect(console.find("pre.log")).to_contain_text("done with tea")
    expect(console.section("Events")).to_contain_text("job_completed")


def test_a_form_says_what_is_wrong_with_a_parameter_and_nothing_is_submitted(
    console: Console, server: ServerThread
) -> None:
    _typed_work(server)
    console.expected_refusals = ("/api/jobs",)
    console.open("submit?type=work")

    console.page.get_by_label("size").fill("12")
    console.button("Submit").click()

    console.says("")
    expect(console.find("[aria-invalid=true]").first).to_be_visible()
    assert server.run(server.server.scheduler.lists.jobs()).items == ()


def _typed_work(server: ServerThread) -> tuple[asyncio.Event, asyncio.Event]:
    step, end = asyncio.Event(), asyncio.Event()

    async def work(run: RunContext, topic: str, tags: list[str], size: int = 1) -> list[str]:
        run.log.info("work on %s", topic)
        await step.wait()
        run.progress(0.4, "on the way")
        await end.wait()
        run.log.info("done with %s", topic)
        return tags

    schema = {
        "type": "object",
        "properties": {
            "topic": {"type": "string", "minLength": 2, "description": "What it is about"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "size": {"type": "integer", "maximum": 9},
        },
        "required": ["topic"],
    }
    server.server.scheduler.job_types.add("work", work, params_schema=schema)
    return step, end


def test_a_failed_job_is_retried_and_an_ended_one_runs_again_with_other_parameters(
    console: Console, server: ServerThread
) -> None:
    (failed,) = submit(server, "fail", "breaks")
    (done,) = submit(server, "echo", "says", params={"text": "one"})
    console.open(f"jobs/{failed}")

    console.button("Retry").click()
    expect(console.section("Chain: 2 attempts")).to_be_visible()
    console.open(f"jobs/{done}")
    console.page.get_by_role("button", name="Run again").click()
    console.dialog().get_by_label("Parameters").fill('{"text": "two"}')
    console.dialog().get_by_role("button", name="Run it again").click()

    expect(console.section("How it ended").locator("pre")).to_have_text('"two"')


def test_the_page_of_an_attempt_follows_the_attempts_after_it(console: Console, server: ServerThread) -> None:
    scheduler = server.server.scheduler
    (failed,) = submit(server, "fail", "breaks")
    server.run(scheduler.wait(failed))
    run = server.run(scheduler.run_of(failed))
    assert run is not None
    console.open(f"jobs/{failed}").loaded()
    server.run(scheduler.pause(office_id="default"))

    server.run(scheduler.retry(run.run_id))
    expect(console.section("Chain").locator("li").nth(1)).to_contain_text("queued")
    server.run(scheduler.resume(office_id="default"))

    expect(console.section("Chain").locator("li").nth(1)).to_contain_text("failed")


def test_a_queued_job_is_changed_and_moved_on_its_page(console: Console, server: ServerThread) -> None:
    _, last = paused_queue(server, "first", "last")
    console.open(f"jobs/{last}")

    console.button("To the front").click()
    console.says("It is first now.")
    console.button("Change…").click()
    console.dialog().get_by_label("Title").fill("renamed")
    console.dialog().get_by_role("button", name="Change it").click()

    expect(console.find("main h1")).to_contain_text("renamed")
    assert queue_order(server) == ["renamed", "first"]


# Lists.


def test_filters_live_in_the_address(console: Console, server: ServerThread) -> None:
    submit(server, "fail", "breaks")
    submit(server, "echo", "says hello", "says bye")
    console.open("jobs")
    expect(console.find("tbody tr")).to_have_count(3)

    console.find("input[type=search]").fill("hello")
    expect(console.find("tbody tr")).to_have_count(1)
    address = console.page.url
    console.find("input[type=search]").fill("")
    console.page.get_by_role("group", name="Statuses").get_by_role("button", name="FAILED").click()
    expect(console.find("tbody tr")).to_have_text(re.compile("breaks"))

    assert "status=FAILED" in console.page.url
    console.page.goto(address)
    console.page.reload()
    expect(console.find("tbody tr")).to_have_count(1)
    expect(console.find("tbody tr")).to_contain_text("says hello")


def test_a_rare_job_is_found_behind_pages_that_are_short(console: Console, server: ServerThread) -> None:
    async def fill() -> None:
        scheduler = server.server.scheduler
        await scheduler.pause(office_id="default")
        await scheduler.submit("echo", title="needle")
        await scheduler.submit_many([NewJob(job_type="echo", title=f"hay {number}") for number in range(3000)])

    server.run(fill())

    console.open("jobs?q=needle")

    expect(console.find("tbody tr")).to_have_count(1)


def test_scrolling_down_goes_on_with_the_next_page(console: Console, server: ServerThread) -> None:
    paused_queue(server, *(f"job {number}" for number in range(130)))
    console.open("jobs")

    expect(console.find("tbody tr")).to_have_count(50)
    console.page.mouse.wheel(0, 100_000)
    expect(console.find("tbody tr")).to_have_count(100)
    console.page.mouse.wheel(0, 100_000)

    expect(console.find("tbody tr")).to_have_count(130)


def test_all_that_match_are_cancelled_after_a_count_and_a_confirmation(console: Console, server: ServerThread) -> None:
    paused_queue(server, "keep", "drop 1", "drop 2", "drop 3")
    console.open("jobs?q=drop")

    console.page.get_by_role("button", name="Cancel all that match").click()
    expect(console.dialog()).to_contain_text("Cancel 3 jobs?")
    console.dialog().get_by_role("button", name="Keep them").click()
    assert len(queue_order(server)) == 4
    console.page.get_by_role("button", name="Cancel all that match").click()
    console.dialog().get_by_role("button", name="Cancel them").click()

    console.says("3 jobs cancelled")
    assert queue_order(server) == ["keep"]


def test_failed_jobs_are_chosen_and_retried(console: Console, server: ServerThread) -> None:
    ids = submit(server, "fail", "one", "two", "three")
    for job_id in ids:
        server.run(server.server.scheduler.wait(job_id))
    server.run(server.server.scheduler.pause(office_id="default"))
    console.open("jobs?status=FAILED")

    console.page.get_by_label("Choose one").check()
    console.page.get_by_label("Choose three").check()
    console.page.get_by_role("button", name="Retry 2").click()
    console.dialog().get_by_role("button", name="Retry 2 jobs").click()
    console.says("2 of 2 jobs retried")
    console.page.get_by_role("button", name="Retry all that match").click()
    console.dialog().get_by_role("button", name="Retry them").click()

    console.says("1 job retried")
    assert sorted(queue_order(server)) == ["one", "three", "two"]


# Schedules.


def test_a_schedule_is_made_with_a_preview_changed_triggered_and_deleted(
    console: Console, server: ServerThread
) -> None:
    server.run(server.server.scheduler.templates.create(name="tea", job_type="echo"))
    console.expected_refusals = ("/api/schedules/preview",)
    console.open("schedules")

    console.button("New schedule").click()
    console.page.get_by_label("Name").fill("teatime")
    console.page.get_by_label("Cron expression").fill("0 17 * *")
    expect(console.find("fieldset", has_text="What it means")).to_contain_text("it must have five fields")
    console.page.get_by_label("Cron expression").fill("0 17 * * mon-fri")
    console.page.get_by_label("Time zone").fill("Europe/London")
    expect(console.find("fieldset", has_text="What it means").locator("li")).to_have_count(5)
    expect(console.find("fieldset", has_text="What it means")).to_contain_text("17:00:00")
    console.button("Save").click()
    expect(console.find("main h1")).to_contain_text("teatime")
    console.button("Change…").click()
    console.page.get_by_label("Cron expression").fill("30 17 * * *")
    console.button("Save").click()
    expect(console.section("Next occurrences")).to_contain_text("17:30:00")
    console.button("Trigger now…").click()
    console.dialog().get_by_role("button", name="Trigger now").click()

    expect(console.find("h1 ~ .status")).to_have_text("completed")
    schedule = server.run(server.server.scheduler.schedules.page()).items[0]
    assert (schedule.cron_expression, schedule.timezone) == ("30 17 * * *", "Europe/London")


def test_a_schedule_is_switched_off_in_the_list_and_deleted_on_its_page(console: Console, server: ServerThread) -> None:
    async def make() -> str:
        template = await server.server.scheduler.templates.create(name="tea", job_type="echo")
        made = await server.server.scheduler.schedules.create(
            template_id=template.template_id, name="teatime", cron_expression="@yearly"
        )
        return made.schedule_id

    schedule_id = server.run(make())
    console.open("schedules")

    console.page.get_by_label("teatime is enabled").uncheck()
    expect(console.find("tbody tr")).to_contain_text("disabled")
    console.page.get_by_role("link", name="teatime").click()
    console.page.get_by_role("button", name="Delete").click()
    console.dialog().get_by_role("button", name="Delete it").click()

    expect(console.find("main")).to_contain_text("None yet")
    assert server.run(server.server.scheduler.schedules.get(schedule_id)).deleted_at is not None


# Graphs and groups.


def test_a_graph_of_a_thousand_nodes_is_drawn_searched_walked_by_keys_and_live(
    console: Console, server: ServerThread
) -> None:
    group_id = server.run(_thousand(server))
    console.open(f"groups/{group_id}")

    console.find("svg.graph[data-ready=true]").wait_for()
    expect(console.find(".node")).to_have_count(1000)
    expect(console.find("svg.graph")).to_have_class(re.compile("far"))
    console.page.get_by_label("Find in the graph").fill("node 777")
    expect(console.find(".node.dimmed")).to_have_count(999)
    server.run(server.server.scheduler.resume(office_id="default"))
    expect(console.find(".node[data-status=COMPLETED]").first).to_be_attached()
    console.find(".node[tabindex='0']").focus()
    console.page.keyboard.press("ArrowRight")
    expect(console.find("svg.graph")).not_to_have_class(re.compile("far"))
    console.page.keyboard.press("Enter")

    expect(console.find("main h1")).to_contain_text("node")
    assert "/jobs/" in console.page.url


async def _thousand(server: ServerThread) -> str:
    scheduler = server.server.scheduler
    await scheduler.pause(office_id="default")
    jobs = [
        NewJob(job_type="echo", title=f"node {number}", key=str(number), depends_on=_parents(number))
        for number in range(1000)
    ]
    group = await scheduler.submit_group(jobs, "parallel", name="thousand")
    return group.group_id


def _parents(number: int) -> tuple[str, ...]:
    """Returns layers of fifty jobs; each job waits for two of the previous layer."""
    layer, place = divmod(number, 50)
    return () if layer == 0 else tuple(str((layer - 1) * 50 + (place + step) % 50) for step in (0, 1))


def test_a_group_is_cancelled(console: Console, server: ServerThread) -> None:
    async def make() -> None:
        await server.server.scheduler.pause(office_id="default")
        await server.server.scheduler.submit_group(
            [NewJob(job_type="echo"), NewJob(job_type="echo")], "sequential", name="pair"
        )

    server.run(make())
    console.open("groups")

    console.find("tr", has_text="pair").get_by_role("button", name="Cancel").click()
    expect(console.dialog()).to_contain_text("2 members")
    console.dialog().get_by_role("button", name="Cancel the group").click()

    expect(console.find("tr", has_text="pair")).to_contain_text("cancelled")


# Offices, webhooks, the system.


def test_an_office_is_made_configured_paused_and_emptied(console: Console, server: ServerThread) -> None:
    console.open("offices")

    console.button("New office").click()
    console.dialog().get_by_label("Id").fill("studio")
    console.dialog().get_by_role("button", name="Make it").click()
    console.page.get_by_label("Jobs at once").fill("7")
    console.page.get_by_label("At once by role").fill("FE 2\nBE 3")
    console.button("Save").click()
    console.says("Saved.")
    console.button("Pause").click()
    expect(console.find("h1 ~ .status")).to_have_text("paused")
    submit(server, "echo", "a", "b", office_id="studio")
    expect(console.find(".stats > div").first).to_contain_text("2")
    console.page.get_by_role("button", name="Cancel everything").click()
    console.dialog().get_by_role("button", name="Cancel everything").click()

    console.says("2 jobs cancelled")
    config = server.run(office_jobs(server.server.scheduler).config("studio"))
    assert (config.max_concurrent_jobs, config.max_concurrent_by_role) == (7, {"FE": 2, "BE": 3})


def test_what_is_typed_stays_while_the_page_around_it_lives(console: Console, server: ServerThread) -> None:
    console.open("offices/default")

    console.page.get_by_label("Jobs at once").fill("5")
    submit(server, "echo", "something happens")
    expect(console.find(".stats > div", has_text="done")).to_contain_text("1")

    expect(console.page.get_by_label("Jobs at once")).to_have_value("5")


def test_a_webhook_is_made_tested_and_redelivered_and_its_secret_is_shown_once(
    console: Console, server: ServerThread
) -> None:
    with _receiver() as (url, got):
        console.open("webhooks")

        console.button("New subscription").click()
        console.dialog().get_by_label("URL").fill(url)
        console.dialog().get_by_role("button", name="Subscribe").click()
        expect(console.dialog().locator(".secret")).to_contain_text("whsec_")
        console.dialog().get_by_role("button", name="I have it").click()
        console.button("Test").click()
        expect(console.find("tr[data-delivery]")).to_contain_text("delivered")
        console.button("Redeliver").click()
        expect(console.find("tr[data-delivery]")).to_contain_text("2 attempts")
        console.find("tr[data-delivery]").get_by_role("button", name="2 attempts").click()

        expect(console.find("td .mono, td.mono", has_text="thanks").first).to_be_visible()
        assert len(got) == 2


class _receiver:  # noqa: N801 - reads as a function
    """Runs a receiver of webhooks that answers 200."""

    def __enter__(self) -> tuple[str, list[bytes]]:
        got: list[bytes] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                got.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"thanks")

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}/", got

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_the_whole_scheduler_is_paused_and_what_happens_is_told(console: Console, server: ServerThread) -> None:
    console.open("system")

    console.page.get_by_role("button", name="Pause everything").click()
    console.dialog().get_by_role("button", name="Pause it").click()

    expect(console.button("Resume everything")).to_be_visible()
    expect(console.section("What happens")).to_contain_text("queue_paused")
    expect(console.section("Audit")).to_contain_text("POST /api/queue/pause")


def test_the_nodes_are_shown_and_one_that_is_alone_is_not_offered_to_be_drained(console: Console) -> None:
    console.open("system")

    nodes = console.section("1 node")
    expect(nodes).to_contain_text("leads")
    expect(nodes).to_contain_text("live")
    expect(nodes.get_by_role("button")).to_have_count(0)


def test_a_template_is_saved_from_the_form_and_used(console: Console, server: ServerThread) -> None:
    console.open("submit?type=echo")

    console.page.get_by_label("text").fill("hello")
    console.page.get_by_role("button", name="Save as a template").click()
    console.dialog().get_by_label("Name").fill("greeting")
    console.dialog().get_by_role("button", name="Save").click()
    console.says("Saved.")
    console.page.get_by_label("Type or template").select_option(label="template: greeting")
    expect(console.page.get_by_label("text")).to_have_value("hello")
    console.button("Submit").click()

    expect(console.section("How it ended").locator("pre")).to_have_text('"hello"')
    found = server.run(server.server.scheduler.lists.jobs(JobFilter())).items[0].job
    assert (found.template_id is not None, found.params["text"]) == (True, "hello")


def test_a_job_that_waits_for_a_person_is_approved_and_another_one_rejected(
    console: Console, server: ServerThread
) -> None:
    wait = {"name": "release", "question": "May <b>version 7</b> go live?", "deadline_seconds": 3600}
    approved, rejected = submit(server, "echo", "Deploy 7", "Deploy 8", await_signal=wait)
    console.open(f"jobs/{approved}").loaded()
    asked = console.section("It waits for an answer")
    expect(asked).to_contain_text("May <b>version 7</b> go live?")
    expect(asked).to_contain_text("everybody with the scope operate")
    expect(asked).to_contain_text("reject, in ")

    console.button("Approve").click()
    console.dialog().get_by_label("Payload (JSON, optional)").fill("{")
    console.dialog().get_by_role("button", name="Approve").click()
    expect(console.dialog()).to_contain_text("This is not JSON")
    console.dialog().get_by_label("Payload (JSON, optional)").fill('{"size": 3}')
    console.dialog().get_by_role("button", name="Approve").click()
    console.says("Answered: approve.")
    expect(asked).to_have_count(0)
    console.open(f"jobs/{rejected}").loaded()
    console.button("Reject").click()
    console.dialog().get_by_role("button", name="Reject").click()
    console.says("Answered: reject.")
    expect(console.find("main .head")).to_contain_text("cancelled")

    (signal,) = server.run(server.server.scheduler.signals(approved))
    assert (signal.answer, signal.payload) == ("approve", {"size": 3})
    assert status_of(server, rejected) == "CANCELLED"


def test_now_lists_what_waits_for_an_answer_and_takes_the_answer(console: Console, server: ServerThread) -> None:
    server.run(server.server.scheduler.offices.create("studio"))
    wait = {"name": "release", "question": "May <b>version 7</b> go live?"}
    (named,) = submit(server, "echo", "Deploy 6", await_signal={**wait, "answered_by": ["ada"], "deadline_seconds": 60})
    (approved,) = submit(server, "echo", "Deploy 7", office_id="studio", await_signal=wait)
    (rejected,) = submit(server, "echo", "Deploy 8", await_signal={"name": "release"})
    console.open("now").loaded()

    def answer(job_id: str, word: str) -> None:
        console.find(f".asking tr[data-job='{job_id}']").get_by_role("button", name=word).click()
        console.dialog().get_by_role("button", name=word).click()
        console.says(f"Answered: {word.lower()}.")

    expect(console.section("Waiting for an answer: 3")).to_be_visible()
    expect(console.find(f"tr[data-job='{named}']")).to_contain_text("Who may answer: ada")
    expect(console.find(f"tr[data-job='{named}']")).to_contain_text("reject, in ")
    expect(console.find(f"tr[data-job='{approved}']")).to_contain_text("May <b>version 7</b> go live?")
    expect(console.find(f"tr[data-job='{approved}']")).to_contain_text("studio")
    answer(rejected, "Reject")
    expect(console.section("Waiting for an answer: 2")).to_be_visible()
    answer(approved, "Approve")
    expect(console.section("Waiting for an answer: 1")).to_be_visible()
    assert status_of(server, rejected) == "CANCELLED"

    server.run(server.server.scheduler.cancel(named))
    expect(console.find(".asking")).to_have_count(0)
    submit(server, "echo", "Deploy 9", await_signal={"name": "release"})
    expect(console.section("Waiting for an answer: 1")).to_contain_text("Deploy 9")


def test_a_query_asks_for_what_waits_for_an_answer(console: Console, server: ServerThread) -> None:
    submit(server, "echo", "Deploy 7", await_signal={"name": "release"})
    submit(server, "echo", "plain")
    console.open("jobs").loaded()

    console.page.get_by_label("Search").press_sequentially("is:")
    console.page.get_by_role("option", name="is:awaiting").click()

    expect(console.find("main")).to_contain_text("Deploy 7")
    expect(console.find("main")).not_to_contain_text("plain")


def test_a_job_is_submitted_with_a_question_that_a_person_must_approve(console: Console, server: ServerThread) -> None:
    console.open("submit?type=echo")

    console.page.get_by_label("text").fill("hello")
    console.page.get_by_label("Question that a person must approve first").fill("May it be said?")
    console.button("Submit").click()
    expect(console.section("It waits for an answer")).to_contain_text("May it be said?")
    console.button("Approve").click()
    console.dialog().get_by_role("button", name="Approve").click()

    expect(console.section("How it ended").locator("pre")).to_have_text('"hello"')
