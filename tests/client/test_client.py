"""Both clients against a real server: the same verbs, the same answers."""

import asyncio
import contextlib
import inspect
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import nextslot
from nextslot import AsyncClient, Client
from nextslot.client.binding import Subject, stream_verb, verb
from nextslot.client.keyword_arguments import NewJob
from nextslot.errors import (
    AlreadyFinished,
    Invalid,
    NotFound,
    SlotBusy,
    Unavailable,
    UnknownJobType,
)
from nextslot.extensions.offices.client import Offices
from nextslot.server.app import Options
from tests.serving import Served, open_gate, serving

# Work with either client, written once: verbs are called through these two.
Do = Callable[..., Any]


numbers = itertools.count()


class Blocking:
    """The blocking client. By its number its names are its own: all tests share a server."""

    def __init__(self, url: str, **options: Any) -> None:
        self.number = next(numbers)
        self.client = Client(url, **options)

    def __call__(self, name: str, *arguments: Any, **options: Any) -> Any:
        return find(self.client, name)(*arguments, **options)

    def take(self, most: int, name: str, *arguments: Any, **options: Any) -> list[Any]:
        with contextlib.closing(find(self.client, name)(*arguments, **options)) as items:
            return list(itertools.islice(items, most))

    def close(self) -> None:
        self.client.close()


class Awaited:
    """The asynchronous client, on a loop of its own."""

    def __init__(self, url: str, **options: Any) -> None:
        self.number = next(numbers)
        self.runner = asyncio.Runner()
        self.client = AsyncClient(url, **options)

    def __call__(self, name: str, *arguments: Any, **options: Any) -> Any:
        async def call() -> Any:
            return await find(self.client, name)(*arguments, **options)

        return self.runner.run(call())

    def take(self, most: int, name: str, *arguments: Any, **options: Any) -> list[Any]:
        async def read() -> list[Any]:
            found = []
            async with contextlib.aclosing(find(self.client, name)(*arguments, **options)) as items:
                async for item in items:
                    found.append(item)
                    if len(found) == most:
                        break
            return found

        return self.runner.run(read())

    def close(self) -> None:
        self.runner.run(self.client.close())
        self.runner.close()


def find(client: Any, name: str) -> Any:
    if name.startswith("offices."):
        client, name = client.extension(Offices), name.removeprefix("offices.")
    for part in name.split("."):
        client = getattr(client, part)
    return client


@pytest.fixture(params=[Blocking, Awaited], ids=["Client", "AsyncClient"])
def do(request: pytest.FixtureRequest, served: Served) -> Iterator[Any]:
    caller = request.param(served.url)
    yield caller
    caller.close()


def verbs(kind: type) -> set[str]:
    return {name for name, found in inspect.getmembers(kind) if isinstance(found, (verb, stream_verb))}


def test_both_clients_have_the_same_verbs_and_subjects() -> None:
    blocking, awaited = Client("http://x"), AsyncClient("http://x")
    subjects = {name for name, found in vars(blocking).items() if isinstance(found, Subject)}

    assert verbs(Client) == verbs(AsyncClient) >= {"submit", "wait", "events", "stream_direct"}
    assert subjects == {"templates", "schedules", "webhooks", "keys", "nodes", "quotas", "engines", "failures", "stats"}
    assert all(type(vars(blocking)[name]) is type(vars(awaited)[name]) for name in subjects)
    assert {name for name in dir(Client) if not name.startswith("_")} == {
        name for name in dir(AsyncClient) if not name.startswith("_")
    }


def test_a_job_is_submitted_and_waited_for(do: Any) -> None:
    job = do("submit", "echo", {"text": "hi"}, title="greeting", priority=3)
    ended = do("wait", job.job_id)

    assert (job.job_type, job.title, job.priority) == ("echo", "greeting", 3)
    assert (ended.status, ended.is_success, ended.result["text"]) == ("COMPLETED", True, "hi")


def test_waiting_is_for_the_whole_chain(do: Any) -> None:
    job = do("submit", "flaky", {"failures": 2})

    ended = do("wait", job.job_id)

    assert (ended.status, ended.result) == ("COMPLETED", {"attempt": 3})
    assert [one.status for one in ended.job.chain] == ["FAILED", "FAILED", "COMPLETED"]
    assert ended.job.chain[0].job_id == job.job_id


def test_waiting_ends_with_a_failure_for_good_and_with_a_cancel(do: Any, served: Served) -> None:
    failed = do("wait", do("submit", "fail", {"message": "no luck"}).job_id)
    later = do("submit", "echo", scheduled_for="2999-01-01T00:00:00Z")
    do("cancel", later.job_id, "not needed")
    cancelled = do("wait", later.job_id)

    assert (failed.status, failed.error, failed.is_success) == ("FAILED", "no luck", False)
    assert (cancelled.status, cancelled.error, cancelled.run) == ("CANCELLED", "not needed", None)


def test_lists_are_read_over_all_their_pages(do: Any) -> None:
    wanted: list[NewJob] = [{"job_type": "skip", "task_id": f"paged {do.number}"} for _ in range(7)]
    made = do("submit_many", wanted)

    first = do("jobs_page", 3, task_id=f"paged {do.number}")
    everything = do.take(100, "jobs", task_id=f"paged {do.number}")

    assert len(first.items) == 3
    assert first.next_cursor
    assert {job.job_id for job in everything} == {job.job_id for job in made}


def test_what_waits_for_an_answer_is_listed_apart(do: Any) -> None:
    task_id = f"asks {do.number}"
    plain = do("submit", "skip", task_id=task_id).job_id
    asks = do("submit", "echo", task_id=task_id, await_signal={"name": "go"}).job_id

    awaited = do.take(100, "jobs", task_id=task_id, awaiting_signal=True)
    others = do.take(100, "jobs", task_id=task_id, awaiting_signal=False)

    assert [one.job_id for one in awaited] == [asks]
    assert [one.job_id for one in others] == [plain]


def test_jobs_are_listed_by_when_they_ended_within_a_range_and_in_the_order_asked_for(do: Any) -> None:
    ended = [do("wait", do("submit", "skip", task_id=f"ended {do.number}").job_id).job for _ in range(3)]
    do("submit", "echo", task_id=f"ended {do.number}", scheduled_for="2999-01-01T00:00:00Z")
    own: Any = {"task_id": f"ended {do.number}"}

    since_first = do.take(10, "jobs", finished_after=ended[0].finished_at, **own)
    upwards = do.take(10, "jobs", sort="finished_at", **own)
    page = do("jobs_page", 1, sort="-finished_at", finished_before=ended[2].finished_at, **own)
    following = do("jobs_page", 1, page.next_cursor, sort="-finished_at", finished_before=ended[2].finished_at, **own)

    ids = [job.job_id for job in ended]
    assert [job.job_id for job in since_first] == [ids[2], ids[1]]
    assert [job.job_id for job in upwards] == ids
    assert [page.items[0].job_id, following.items[0].job_id] == [ids[1], ids[0]]


def test_the_same_idempotency_key_makes_one_job(do: Any) -> None:
    key = f"once {do.number}"

    first, again = (do("submit", "skip", idempotency_key=key) for _ in range(2))

    assert first.job_id == again.job_id


def test_errors_are_those_of_the_tree(do: Any) -> None:
    job_id = do("submit", "skip").job_id
    do("wait", job_id)

    with pytest.raises(UnknownJobType, match="no job type 'nope'"):
        do("submit", "nope")
    with pytest.raises(Invalid) as wrong:
        do("submit", "echo", {"number": "many"})
    with pytest.raises(NotFound):
        do("job", "nope/../x")
    with pytest.raises(AlreadyFinished):
        do("cancel", job_id)
    assert wrong.value.problems[0].field == "params.number"


def test_events_are_followed_from_a_number_on(do: Any) -> None:
    last = do("me").last_event
    job = do("submit", "echo")

    events = do.take(3, "events", last, job_id=job.job_id)

    assert [event.type for event in events] == ["job_queued", "job_started", "job_completed"]
    assert events[0].seq > last


def test_a_log_is_read_and_followed_to_its_end(do: Any, served: Served) -> None:
    gate = f"log {do.number}"
    job = do("submit", "gated", {"gate": gate})
    run = do("job", job.job_id).run
    threading.Timer(0.3, open_gate, (served, gate)).start()

    followed = "".join(do.take(100, "follow_log", run.run_id))

    assert f"before {gate}" in followed
    assert f"after {gate}" in followed
    assert do("log", run.run_id) == followed
    assert f"before {gate}" not in do("log", run.run_id, tail=1)


def test_a_direct_request_is_answered_with_its_result(do: Any) -> None:
    done = do("run_direct", "echo", {"text": "now"})
    failed = do("run_direct", "fail")

    assert (done.status, done.result["text"]) == ("COMPLETED", "now")
    assert (failed.status, failed.error) == ("FAILED", "failed as asked")


def test_a_direct_request_is_heard_as_it_goes(do: Any) -> None:
    heard = do.take(100, "stream_direct", "echo", {"text": "aloud"})

    assert heard[0].kind in ("place", "started")
    assert any("aloud" in update.data["text"] for update in heard if update.kind == "output")
    assert (heard[-1].kind, heard[-1].direct.status) == ("result", "COMPLETED")


def test_who_hangs_up_cancels_the_work(do: Any, served: Served) -> None:
    direct_id = f"hung-{do.number}"
    heard = do.take(1, "stream_direct", "gated", {"gate": "never"}, direct_id=direct_id)

    async def ended() -> str:
        # No event tells of the end: the reservation was released when the work started.
        while (found := await served.scheduler.direct(direct_id)).finished_at is None:  # noqa: ASYNC110 - stored
            await asyncio.sleep(0.02)
        return str(found.failure_kind)

    assert heard[0].kind == "started"
    assert served.run(ended()) == "cancelled"


def test_a_slot_that_is_busy_says_how_many_are_ahead(do: Any, served: Served) -> None:
    gate = f"busy {do.number}"
    job = do("submit", "gated", {"gate": gate})

    with pytest.raises(SlotBusy) as busy:
        do("run_direct", "echo", wait_timeout_seconds=0.05)

    open_gate(served, gate)
    do("wait", job.job_id)
    assert (busy.value.status, busy.value.ahead) == (503, 0)


def test_the_queue_is_shown_moved_and_paused(do: Any) -> None:
    do("offices.create", office := f"office-{do.number}")
    do("pause", office_id=office)
    first, second = (do("submit", "echo", office_id=office) for _ in range(2))

    do("move", second.job_id, to="front")

    queue = do("queue", office)
    assert queue.paused
    assert [job.job_id for job in queue.queue] == [second.job_id, first.job_id]
    assert do("why", first.job_id).reasons[0].code
    tried = do("dry_run", "echo", title="not stored")
    assert (tried.is_new, tried.job.title, bool(tried.reasons)) == (True, "not stored", True)
    assert do("cancel_many", office_id=office).cancelled == 2
    assert office not in do("resume", office_id=office).offices


def test_templates_and_schedules_have_their_verbs(do: Any) -> None:
    template = do("templates.create", f"template {do.number}", "echo", params={"text": "t"})
    schedule = do("schedules.create", f"schedule {do.number}", template.template_id, "@daily", enabled=False)

    triggered = do("schedules.trigger", schedule.schedule_id)

    assert do("templates.get", template.template_id) == template
    assert template in do.take(100, "templates.list")
    assert triggered.params == {"text": "t"}
    assert len(do("schedules.upcoming", schedule.schedule_id, 3)) == 3
    assert do("schedules.delete", schedule.schedule_id).deleted_at is not None
    graph = [{"key": "a", "job_type": "echo"}, {"job_type": "echo", "depends_on": ["a"]}]
    pipeline = do("templates.create", f"pipeline {do.number}", jobs=graph, params={"text": "p"})
    planned = do("schedules.create", f"planned {do.number}", pipeline.template_id, "@daily", enabled=False)
    group = do("schedules.trigger", planned.schedule_id, {"text": "q"})
    assert (group.schedule_id, [job.params for job in group.jobs]) == (planned.schedule_id, [{"text": "q"}] * 2)
    assert do("submit_group_from", pipeline.template_id, {"text": "r"}, 3).jobs[1].priority == 3
    assert pipeline.jobs == tuple(graph)
    assert do("templates.archive", template.template_id).archived_at is not None


def test_an_address_without_a_server_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"no server answers at http://127\.0\.0\.1:9/sub .*nextslot serve"):
        Client("http://127.0.0.1:9/sub/", retries=0).ready()
    with pytest.raises(Invalid, match="not the address of a server"):
        Client("localhost:8000")


def test_the_address_and_the_key_may_come_from_the_environment(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEXTSLOT_URL", served.url)

    with Client() as client:
        client.ready()

        assert client.url == served.url


def test_a_server_below_a_path_is_reached(tmp_path: Path) -> None:
    below = Options(root_path="/scheduler")
    with serving(tmp_path, options=below) as server, Client(f"{server.url}/scheduler") as client:
        job = client.submit("skip")

        assert client.wait(job.job_id).status == "SKIPPED"


def test_following_goes_on_over_a_restart_of_the_server_and_misses_nothing(tmp_path: Path) -> None:
    first = serving(tmp_path)
    server = first.__enter__()
    with Client(server.url) as client, contextlib.closing(client.events(0)) as events:
        before = client.submit("skip")
        seen = [next(events) for _ in range(3)]
        first.__exit__(None, None, None)
        with serving(tmp_path, port=int(server.url.rpartition(":")[2])):
            after = client.submit("skip")
            while seen[-1].job_id != after.job_id or seen[-1].type != "job_skipped":
                seen.append(next(events))

    assert {event.job_id for event in seen} >= {before.job_id, after.job_id}
    assert [event.seq for event in seen] == sorted({event.seq for event in seen})


def test_names_of_the_package_are_there_when_asked_for() -> None:
    assert all(getattr(nextslot, name).__name__ == name for name in nextslot.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        nextslot.Nothing  # noqa: B018


def test_the_client_imports_nothing_of_ours_but_declarations_and_errors() -> None:
    program = "import sys, nextslot.client; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    ours = {".".join(name.split(".")[:2]) for name in loaded if name.startswith("nextslot.")}
    assert ours == {"nextslot.client", "nextslot.domain", "nextslot.errors", "nextslot.system"}
    assert not {"asyncio", "cronsim", "httpx2", "pydantic", "typing_extensions"} & set(loaded)
