"""Log lines: one JSON object each, with the ids of what they are about, and without secrets (spec 18)."""

import io
import json
import logging
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from nextslot import testing
from nextslot.config import load
from nextslot.configuration_reload import reload
from nextslot.scheduler_from_config import compose
from nextslot.telemetry import logs
from tests.support import running_scheduler

log = logging.getLogger("nextslot.test")
NAMES = (None, "nextslot", "uvicorn", "uvicorn.error", "uvicorn.access")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _loggers_as_before() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in NAMES]
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


# Form.


def test_a_line_is_a_JSON_object_where_nobody_watches() -> None:
    stream = io.StringIO()
    logs.install(stream=stream)

    log.warning("disk %s is full", "a", extra={"free": 0})

    [line] = lines(stream)
    assert list(line) == ["timestamp", "level", "logger", "event", "free"]
    assert line | {"timestamp": ""} == {
        "timestamp": "",
        "level": "warning",
        "logger": "nextslot.test",
        "event": "disk a is full",
        "free": 0,
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line["timestamp"])


@pytest.mark.parametrize(
    ("format", "stream", "is_json"),
    [
        ("auto", Terminal(), False),
        ("json", Terminal(), True),
        ("text", io.StringIO(), False),
        ("auto", io.StringIO(), True),
    ],
)
def test_the_form_follows_the_terminal_unless_it_is_set(format: str, stream: io.StringIO, is_json: bool) -> None:
    logs.install(format, stream=stream)

    log.info("hello")

    assert stream.getvalue().startswith("{") == is_json
    assert ("\x1b[" in stream.getvalue()) == (stream.isatty() and not is_json)
    assert "hello" in stream.getvalue()


def test_uvicorns_lines_have_the_same_form() -> None:
    stream = io.StringIO()
    theirs = logging.getLogger("uvicorn.error")
    theirs.addHandler(logging.StreamHandler(sys.stdout))
    logs.install(stream=stream)

    theirs.info("Started", extra={"color_message": "\x1b[1mStarted"})
    logging.getLogger("uvicorn.access").info('%s - "%s"', "127.0.0.1", "GET /")

    assert [(line["logger"], line["event"]) for line in lines(stream)] == [
        ("uvicorn.error", "Started"),
        ("uvicorn.access", '127.0.0.1 - "GET /"'),
    ]
    assert "color_message" not in stream.getvalue()


def test_an_exception_is_part_of_its_line() -> None:
    stream = io.StringIO()
    logs.install(stream=stream)

    try:
        raise ValueError("out of range")
    except ValueError:
        log.exception("it failed")

    [line] = lines(stream)
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: out of range")


def test_a_line_without_an_exception_says_none() -> None:
    stream = io.StringIO()
    logs.install(stream=stream)

    log.error("it failed", exc_info=(None, None, None))

    [line] = lines(stream)
    assert list(line) == ["timestamp", "level", "logger", "event"]


@pytest.mark.parametrize("format", ["json", "text"])
def test_a_message_cannot_look_like_another_line(format: str) -> None:
    stream = io.StringIO()
    logs.install(format, stream=stream)

    log.info("title: %s", "x\n2026-11-15 [critical] all is lost\x1b[2J")

    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b[2J" not in stream.getvalue()


def test_other_libraries_are_heard_from_a_warning_on() -> None:
    stream = io.StringIO()
    logs.install(level="debug", stream=stream)

    log.debug("ours")
    logging.getLogger("elsewhere").info("chatter")
    logging.getLogger("elsewhere").warning("trouble")

    assert [line["event"] for line in lines(stream)] == ["ours", "trouble"]


def test_installing_again_replaces_the_output() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.install(stream=first)
    logs.install(stream=second)

    log.info("once")

    assert (len(lines(first)), len(lines(second))) == (0, 1)


# Ids.


def test_lines_say_what_they_are_about_and_only_while_they_are() -> None:
    stream = io.StringIO()
    logs.install(stream=stream)

    with logs.bound(request_id="r1"), logs.bound(job_id="j1", office_id=None):
        log.info("inside")
    log.info("outside")

    inside, outside = lines(stream)
    assert (inside["request_id"], inside["job_id"], "office_id" in inside) == ("r1", "j1", False)
    assert "request_id" not in outside


@pytest.mark.parametrize("is_async", [True, False])
async def test_what_a_handler_logs_has_the_ids_of_its_job_and_not_of_the_request_that_made_it(
    tmp_path: Path, is_async: bool
) -> None:
    stream = io.StringIO()
    logs.install(stream=stream)

    async def loud(run: Any) -> None:
        log.info("at work")

    def loud_in_a_thread(run: Any) -> None:
        log.info("at work")

    async with running_scheduler(tmp_path) as scheduler:
        scheduler.job_types.add("loud", loud if is_async else loud_in_a_thread)
        with logs.bound(request_id="r1"):
            job = await scheduler.submit("loud")
        ended = await scheduler.wait(job.job_id)

        assert ended.run is not None
        [line] = [line for line in lines(stream) if line["event"] == "at work"]
        assert (line["job_id"], line["run_id"], line["office_id"]) == (job.job_id, ended.run.run_id, "default")
        assert "request_id" not in line


async def test_what_a_handler_logs_for_a_direct_caller_has_the_id_of_the_execution_and_of_no_job(
    tmp_path: Path,
) -> None:
    stream = io.StringIO()
    logs.install(stream=stream)

    async def loud(run: Any) -> None:
        log.info("at work")

    async with running_scheduler(tmp_path) as scheduler:
        scheduler.job_types.add("loud", loud)
        await scheduler.run_direct("loud", direct_id="d1")

        [line] = [line for line in lines(stream) if line["event"] == "at work"]
        assert (line["direct_id"], line["office_id"], line["job_type"]) == ("d1", "default", "loud")
        assert "job_id" not in line


# Secrets.

KEY, WEBHOOK = "nsk_0123456789abcdefGHIJ", "whsec_c2VjcmV0IHRoYXQ="


@pytest.mark.parametrize("format", ["json", "text"])
@pytest.mark.parametrize("secret", ['correct horse "battery"', KEY, WEBHOOK, "postgresql://me:hunter22@db/x"])
def test_no_secret_is_in_a_line_wherever_it_was_said(format: str, secret: str) -> None:
    stream = io.StringIO()
    logs.install(format, secrets=['correct horse "battery"'], stream=stream)

    log.info("it is %s", secret)
    log.info("given", extra={"headers": {"x": [secret]}, "thing": ValueError(secret)})
    try:
        raise ValueError(secret)
    except ValueError:
        log.exception("failed")
    with logs.bound(job_id=secret):
        log.info("bound")

    assert not re.search("battery|0123456789abcdef|c2VjcmV0|hunter22", stream.getvalue())
    assert stream.getvalue().count("********") >= 4


def test_what_is_no_secret_stays() -> None:
    text = "http://host:8000/x nsk_short https://user@host/ a:b@c"

    assert logs.masked(text) == text


@pytest.mark.real_time
async def test_level_and_secrets_change_with_the_configuration(tmp_path: Path) -> None:
    stream = io.StringIO()
    logs.install(level="error", stream=stream)
    secret = "whsec_" + "c2VjcmV0IHRoYXQgbm9ib2R5IG1heSBzZWUh"

    old = load(tmp_path, environment={}, overrides={"extensions.disabled": ["stories"]})
    new_values = {"extensions.disabled": ["stories"], "logs.level": "debug", "webhooks.secret": secret}
    new = load(tmp_path, environment={}, overrides=new_values)
    async with compose(old) as scheduler:
        log.info("not yet")
        await reload(scheduler, old, new)
        log.debug("now: %s", secret.removeprefix("whsec_"))
    assert [line["event"] for line in lines(stream) if line["logger"] == "nextslot.test"] == ["now: ********"]


def test_the_library_needs_no_structlog() -> None:
    code = "import sys, nextslot; sys.exit('structlog' in sys.modules or 'pydantic' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_server_without_a_terminal_needs_no_structlog() -> None:
    code = """
        import logging, sys
        from nextslot.telemetry import logs
        logs.install("json")
        logging.getLogger("nextslot").warning("hello", stack_info=True)
        sys.exit("structlog" in sys.modules)
    """

    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True)

    assert json.loads(done.stderr)["stack_info"].startswith("Stack")


async def test_a_run_has_a_context_of_its_own(tmp_path: Path) -> None:
    seen: list[Any] = []

    async with running_scheduler(tmp_path) as scheduler:
        asking: ContextVar[str | None] = ContextVar("asking", default=None)

        @scheduler.job_type("look")
        async def look(run: Any) -> None:
            seen.append(asking.get())

        token = asking.set("ops")
        job = await scheduler.submit("look")
        asking.reset(token)
        await scheduler.wait(job.job_id)
        await testing.settled()
    assert seen == [None]
