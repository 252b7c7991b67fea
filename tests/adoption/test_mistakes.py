"""The mistakes of docs/mistakes.md get the messages that the page shows.

Each row of the page is run as it is written. `python -m tests.adoption.test_mistakes` writes the page's tables anew.
"""

import ast
import asyncio
import pickle
import re
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nextslot import AsyncClient, Client, Limits, NewJob, NextslotError, Scheduler, Submitter, testing
from nextslot.config.loading import load

PAGE = Path(__file__).parents[2] / "docs/mistakes.md"

DECLARING = (
    "scheduler.job_type(work)",
    "scheduler.job_type('double')(work)",
    "scheduler.job_type('other')(double)",
    "scheduler.job_type('other', resources={'gpu': 0})(work)",
    "scheduler.job_type('other', retry_policy={'max_attempt': 3})(work)",
    "scheduler.cron('* * * *')(work)",
    "scheduler.cron('0 25 * * *')(work)",
    "scheduler.cron('@daily', timezone='Berlin')(work)",
    "scheduler.cron(every=timedelta(minutes=7))(work)",
    "scheduler.cron()(work)",
    "scheduler.cron(work)",
    "scheduler.cron(every=900)(work)",
    "scheduler.cron('@daily')(work)",
    "scheduler.job_type()(lambda: 1)",
    "scheduler.job_type('other', timeout=60)(work)",
    "scheduler.job_type('other', retries=3)(work)",
    "Scheduler(concurrency=0)",
    "Scheduler(Path('jobs.db'))",
    "Scheduler('jobs.db')",
    "Scheduler(limits={'running': 4})",
    "Limits(resources={'gpu': 'two'})",
    "Submitter('sqlite:///jobs.db')",
    "Client('127.0.0.1:8000')",
)
SUBMITTING = (
    "await Scheduler('sqlite:///other.db').submit('double')",
    "await scheduler.submit('duble')",
    "await scheduler.submit('double')",
    "await scheduler.submit('double', {'number': 'x'})",
    "await scheduler.submit('double', {'number': 1, 'nmae': 2})",
    "await scheduler.submit('double', {'number': 1}, priorty=3)",
    "await scheduler.submit('double', {'number': 1}, priority=10_000_000)",
    "await scheduler.submit('double', {'number': 1}, timeout_seconds=0)",
    "await scheduler.submit('double', {'number': 1}, scheduled_for=datetime(2027, 1, 1))",
    "await scheduler.submit('double', {'number': 1}, scheduled_for='soon')",
    "await scheduler.submit('double', {'number': 1}, depends_on=['nothing'])",
    "await scheduler.submit('double', {'number': 1}, depends_on=7)",
    "await scheduler.submit('double', {'number': 1}, office_id='studio')",
    "await scheduler.submit('double', {'number': 1}, retry_policy={'max_attempts': -1})",
    "await scheduler.submit_many([{}])",
    "await scheduler.submit_many({'job_type': 'double'})",
    "await scheduler.submit('double', number=1)",
    "await double.with_options(depends_on=[double.submit(1)]).submit(2)",
    "await double.submit(1, 2)",
    "await double.submit_many({'number': 2})",
    "await double.run_direct(number=-1)",
    "await scheduler.job_type('half')(half).run_direct(3)",
    "double.via('http://127.0.0.1:8000').submit(1)",
    "Client('http://127.0.0.1:8000').submit('double', {'number': Path('1')})",
    "Client('http://127.0.0.1:8000').group(7)",
)
AFTERWARDS = (
    "await scheduler.wait(7)",
    "await scheduler.wait('4fe1')",
    "await scheduler.wait(double.submit(1))",
    "await scheduler.wait('4fe1', timeout='5')",
    "scheduler.run()",
    "pickle.dumps(scheduler)",
    "await scheduler.move('4fe1')",
    "await scheduler.job('4fe1')",
    "await scheduler.schedules.get(scheduler)",
    "await scheduler.schedules.create('nightly', 'report', '@daily')",
    "await scheduler.start()",
)
CONFIGURING = (
    "[server]\nprot = 8000",
    "[server]\nport = 'high'",
    "[job_types.tidy]\ncomand = ['true']",
    "[job_types.tidy]\nhandler = 'shop:tidy'",
    "[schedules.nightly]\ntemplate = 'tidy'\ncron_expression = '@daily'",
)
SECTIONS = {"Declaring": DECLARING, "Submitting": SUBMITTING, "Afterwards": AFTERWARDS, "Configuring": CONFIGURING}


@dataclass
class Half:
    number: int


async def made(directory: Path, code: str) -> str:
    """Returns the message that a mistake gets."""
    scheduler = testing.scheduler(directory)

    def work() -> None: ...

    def half(number: int) -> Half:
        return number / 2  # type: ignore[return-value]

    @scheduler.job_type()
    def double(number: int) -> int:
        if number < 0:
            raise ValueError("negative")
        return number * 2

    known = {"scheduler": scheduler, "work": work, "double": double, "Scheduler": Scheduler, "timedelta": timedelta,
             "Submitter": Submitter, "Client": Client, "AsyncClient": AsyncClient, "NewJob": NewJob, "UTC": UTC,
             "datetime": datetime, "asyncio": asyncio, "pickle": pickle, "half": half, "Path": Path,
             "Limits": Limits}  # fmt: skip
    async with scheduler:
        try:
            found = eval(compile(code, "<mistake>", "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), known)
            if asyncio.iscoroutine(found):
                await found
        except NextslotError as error:
            return str(error)
    raise AssertionError(f"{code} is no mistake")


def refused(directory: Path, text: str) -> str:
    """Returns the message that a configuration file gets."""
    (directory / "nextslot.toml").write_text(text)
    with pytest.raises(NextslotError) as caught:
        load(directory, environment={})
    return str(caught.value)


def message(title: str, code: str) -> str:
    with tempfile.TemporaryDirectory() as directory:
        if title == "Configuring":
            return refused(Path(directory), code)
        return testing.run(made(Path(directory), code))


def row(title: str, code: str) -> str:
    shown = code.replace("\n", "` `").replace("|", r"\|")
    return f"| `{shown}` | {message(title, code).replace('|', '/').replace('<', '&lt;')} |"


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # Some of the mistakes.
@pytest.mark.parametrize(("title", "code"), [(title, code) for title, codes in SECTIONS.items() for code in codes])
def test_a_mistake_gets_the_message_of_the_page(title: str, code: str) -> None:
    assert row(title, code) in PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0].splitlines()


def test_the_page_has_each_mistake_once_and_there_are_many() -> None:
    rows = re.findall(r"^\| `", PAGE.read_text(), re.MULTILINE)

    assert len(rows) == sum(map(len, SECTIONS.values())) >= 33


def test_a_message_ends_no_thought_in_an_internal_error() -> None:
    internals = ("Traceback", "object at 0x", "KeyError", "TypeError", "AttributeError", "NoneType")

    assert [word for word in internals if word in PAGE.read_text()] == []


if __name__ == "__main__":
    parts = [PAGE.read_text().partition("\n## ")[0]]
    for name, mistakes in SECTIONS.items():
        lines = "\n".join(row(name, code) for code in mistakes)
        parts.append(f"\n## {name}\n\n| you write | you read |\n|---|---|\n{lines}\n")
    PAGE.write_text("".join(parts))
