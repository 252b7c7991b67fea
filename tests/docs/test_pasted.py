"""Every example of every page that is not Python: configuration is loaded, commands are pasted into a shell, answers
have the fields that the page shows. Python examples are run by `test_examples.py`.

Pages that lead through a whole task have a test of their own (`ELSEWHERE`).
"""

import asyncio
import json
import re
import shutil
import socket
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from nextslot import Client, RunContext, Scheduler, testing
from nextslot.config.loading import load
from nextslot.domain import JobStatus
from nextslot.scheduler_from_config import compose
from tests import databases
from tests.serving import serving
from tests.support import new_scheduler

from .test_offices import Terminal

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@dataclass(frozen=True)
class Block:
    page: str
    kind: str
    # Of the blocks of this kind on the page, from 1.
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}-{self.kind}-{self.number}"


def found() -> Iterator[Block]:
    for page in PAGES:
        counts: dict[str, int] = {}
        for kind, text in re.findall(r"^```([^\n]*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            counts[kind] = counts.get(kind, 0) + 1
            yield Block(page.stem, kind, counts[kind], text)


BLOCKS = {str(one): one for one in found()}

# The pages and kinds that other tests run, and the blocks that are nothing to run.
ELSEWHERE = {
    "README-sh": "tests/docs/test_readme.py",
    "engines-sh": "tests/engines/test_page.py",
    "gateway": "tests/docs/test_gateway_page.py",
    "http-sh": "tests/docs/test_http_reference.py",
    "journey-office-sh": "tests/docs/test_journeys.py",
    "journey-story-sh": "tests/docs/test_journey_story.py",
    "lifecycle-mermaid": "tests/docs/test_lifecycle.py",
    "mcp-json-2": "tests/extensions/mcp/test_mcp.py",
    "operations-yaml-2": "tests/docs/test_monitoring.py",
    "tutorial-sh": "tests/docs/test_tutorial.py",
}
NOTHING_TO_RUN = {
    "migrating-py-1": "a program for Celery",
    "migrating-text-1": "a line of a crontab",
    "moving-sh-2": "shows what the commands of moving-sh-1 print if they are interrupted; see test_move_resumed.py",
    "postgresql-sh-1": "installs; scripts/check_versions.py does so with the extras of users",
    "tutorial-text-1": "installs; scripts/check_versions.py does so with the extras of users",
}


def block(name: str) -> str:
    """Returns the text of a block, for a test below that runs it."""
    return BLOCKS[name].text


CONFIGURATIONS = [one for one in BLOCKS.values() if one.kind == "toml" and one.page != "gateway"]
# Files that a page says to put beside its configuration.
BESIDE = {
    "thumb.schema.json": '{"properties": {"path": {"type": "string"}, "size": {"type": "integer"}}}',
    "shop.py": "def thumbnail(path: str) -> str:\n    return path\n",
}


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
def test_each_configuration_of_a_page_is_accepted(tmp_path: Path, configuration: Block) -> None:
    for name, text in BESIDE.items():
        (tmp_path / name).write_text(text)
    for name in ("workspace", "repository"):
        (tmp_path / name).mkdir()
    (tmp_path / "nextslot.toml").write_text(configuration.text)

    loaded = load(tmp_path, environment={})
    if configuration.page != "sandbox":  # Whether a machine can limit memory is not the page's.
        compose(loaded)


def test_the_first_commands_of_the_page_on_the_command_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    terminal = Terminal(tmp_path)
    terminal.url = f"http://127.0.0.1:{port}"
    terminal.options["env"] |= {"NEXTSLOT_SERVER__PORT": str(port), "NEXTSLOT_EXTENSIONS__DISABLED": '["stories"]'}
    (tmp_path / "nextslot.sh").write_text(block("cli-sh-1"))

    shown = terminal.paste("trap 'kill $! 2> serve.txt; wait' EXIT\n. ./nextslot.sh")

    assert "hello Ada\n" in shown
    assert "office default: 0 running, 1 in the queue" in shown


@contextmanager
def at_a_terminal(directory: Path, prepare: Callable[[Scheduler], None]) -> Iterator[Terminal]:
    terminal = Terminal(directory)
    with serving(directory, prepare, extensions=["offices"]) as server:
        terminal.url = server.url
        yield terminal


def add(scheduler: Scheduler, *job_types: str) -> None:
    """Registers job types that take any parameters; those of a failing job have `fail`."""

    async def work(run: RunContext, fail: str = "", **_: Any) -> str:
        if fail:
            raise TimeoutError(fail)
        return "done"

    for name in job_types:
        scheduler.job_types.add(name, work, retry_policy={"max_attempts": 0})


def test_searches_and_changes_of_many_jobs(tmp_path: Path) -> None:
    with at_a_terminal(tmp_path, lambda scheduler: add(scheduler, "story")) as terminal, Client(terminal.url) as client:
        failed = client.submit("story", {"fail": "timeout"})
        client.wait(failed, 60)
        gated = client.submit("gated", {"gate": "never"}, role="FE")

        # A retry by a filter asks first.
        looked = terminal.paste("yes | {\n" + block("cli-sh-2") + "}")

        assert looked.count(failed.job_id[-8:]) >= 2, looked
        assert client.job(gated).cancel_reason == "not needed"
        assert len(client.jobs_page(job_type="story").items) == 2


def test_a_shell_gets_completion(tmp_path: Path) -> None:
    assert "nextslot" in Terminal(tmp_path).paste(block("cli-sh-3") + "complete -p nextslot")


@pytest.mark.real_time
async def test_a_command_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "steps.sh").write_text('work_on() { echo "step $1"; }\n' + block("commands-sh-1"))
    (tmp_path / "nextslot.toml").write_text('[job_types.steps]\ncommand = ["bash", "steps.sh"]\n')
    async with compose(load(tmp_path, environment=databases.variables(tmp_path))) as scheduler:
        ended = await scheduler.wait(await scheduler.submit("steps"), timeout=60)

        assert (ended.status, ended.error) == (JobStatus.COMPLETED, None)
        assert ended.run is not None
        assert ended.run.log_path is not None
        assert (tmp_path / ended.run.log_path).read_text().split("\n")[:10] == [f"step {n}" for n in range(10)]


INPUTS = """
[extensions]
disabled = ["stories"]
[job_types.research]
command = ["sh", "-c", "echo card > $NEXTSLOT_ARTIFACTS/card.md"]
[job_types.check]
command = ["sh", "-c", "exit 75"]
[job_types.use]
command = ["sh", "-c", "cat $NEXTSLOT_INPUTS"]
"""


@pytest.mark.real_time
async def test_a_command_finds_what_others_have_made_in_the_form_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "nextslot.toml").write_text(INPUTS)
    shown = json.loads(block("commands-json-1"))
    async with compose(load(tmp_path, environment=databases.variables(tmp_path))) as scheduler:
        *_, last = await scheduler.submit_many(
            [
                {"job_type": "research", "key": "research"},
                {"job_type": "check", "key": "check"},
                {"job_type": "use", "depends_on": ["research", "check"]},
            ]
        )
        ended = await scheduler.wait(last, timeout=60)

        assert ended.run is not None
        assert ended.run.log_path is not None
        given = json.loads((tmp_path / ended.run.log_path).read_text())
    assert keys(given) == keys(shown)
    assert given["check"] is None


def keys(value: Any) -> Any:
    """Returns the names in an answer, without its values. A result may be anything."""
    if isinstance(value, dict):
        return {name: keys(one) for name, one in value.items() if name != "result"}
    return [keys(one) for one in value[:1]] if isinstance(value, list) else None


def test_a_group_from_stdin(tmp_path: Path) -> None:
    with (
        at_a_terminal(tmp_path, lambda scheduler: add(scheduler, "research", "story")) as terminal,
        Client(terminal.url) as client,
    ):
        terminal.paste(block("language-models-sh-1"))

        story, research = client.jobs_page().items
        assert (research.job_type, story.depends_on) == ("research", (research.job_id,))


def test_an_agents_program_is_given_a_command_that_there_is(tmp_path: Path) -> None:
    server = json.loads(block("mcp-json-1"))["mcpServers"]["nextslot"]
    command = " ".join([server["command"], *server["args"]])

    assert "Model Context Protocol" in Terminal(tmp_path).paste(f"{command} --help")
    assert set(server["env"]) == {"NEXTSLOT_URL", "NEXTSLOT_API_KEY"}


def test_a_database_moves_by_the_commands_of_the_page(tmp_path: Path) -> None:
    script, data = block("moving-sh-1"), tmp_path / "data"
    asyncio.run(one_job(data))
    databases.use("postgres")
    try:
        new = databases.url(tmp_path)
        export, import_, serve = [line.partition("#")[0] for line in script.splitlines()[1:]]
        moving = f"{export}\n{import_}".replace("DIR", str(data)).replace("postgresql://…", f"'{new}'")
        terminal = Terminal(tmp_path)
        told = terminal.paste(moving)
        began = serve.replace("DIR", str(data)).replace("postgresql://…", f"'{new}'")
        served = subprocess.Popen(["bash", "-c", f"exec {began} --port 0 --json"], **terminal.options)
        try:
            assert served.stdout is not None
            with Client(json.loads(served.stdout.readline())["url"]) as client:
                assert [one.status for one in client.jobs_page().items] == ["COMPLETED"]
        finally:
            served.kill()
            served.communicate()
    finally:
        databases.spoil(tmp_path)
        databases.use("sqlite")
    assert "1 jobs" in told
    first, second, row, *_, end, last = [json.loads(line) for line in block("moving-json-1").splitlines()]
    written = [json.loads(line) for line in unpacked(tmp_path / "all.gz")]
    assert [keys(one) for one in (written[0], written[1], written[-1])] == [keys(one) for one in (first, second, last)]
    assert (keys(written[-2]["end"]["offices"]), set(written[-2])) == (keys(end["end"]["offices"]), set(end))
    assert written[2][:2] == row[:2]


def unpacked(file: Path) -> list[str]:
    return subprocess.run(["gzip", "-dc", str(file)], capture_output=True, text=True, check=True).stdout.splitlines()


async def one_job(data: Path) -> None:
    data.mkdir()
    async with Scheduler(f"sqlite:///{data}/nextslot.db") as scheduler:
        add(scheduler, "work")
        await scheduler.wait(await scheduler.submit("work"), timeout=60)


def test_an_office_is_used_and_changed_at_a_terminal(tmp_path: Path) -> None:
    first, http = block("offices-sh-1"), block("offices-sh-2")
    shutil.copy(ROOT / "examples/office/graph.json", tmp_path / "dag.json")
    (tmp_path / "qa.sh").write_text("#!/bin/sh\n")
    with at_a_terminal(tmp_path, lambda scheduler: None) as terminal:
        roles = ("PO", "Architect", "FE", "BE", "QA")
        terminal.paste(
            "\n".join(["nextslot office add web", *(f"nextslot office role set web {one} -- true" for one in roles)])
        )
        submit, priority, *others = first.splitlines()
        told = terminal.paste(submit)
        waiting = "nextslot queue pause --office web; nextslot office submit web --graph dag.json --json > made.json"
        terminal.paste(waiting)
        job = json.loads((tmp_path / "made.json").read_text())["items"][0]["job_id"]
        told += terminal.paste("\n".join([priority.replace("4f2a91c3", job), *others]))
        told += terminal.paste(http.replace("localhost:8000", terminal.url.removeprefix("http://")))

    assert told.count(" done ") >= 5, told
    assert "has priority -5" in told
    assert '"timeout_ms":2700000' in told.replace(" ", "")


def test_statistics_and_failures_at_a_terminal(tmp_path: Path) -> None:
    stats, failures = block("operations-sh-1"), block("operations-sh-2")
    with at_a_terminal(tmp_path, lambda scheduler: add(scheduler, "story")) as terminal, Client(terminal.url) as client:
        ended = client.wait(client.submit("story", {"fail": "no answer"}), 60)
        fingerprint = client.failures.list().items[0].fingerprint
        told = terminal.paste(stats)
        told += terminal.paste(failures.replace("6f1f5ab0", fingerprint[:8]).replace("--retry", "--retry --yes"))

        assert ended.status == "FAILED"
        assert '"points":' in told
        assert "1 retried" in told
        assert client.failures.list(muted=True).items[0].note == "see T-12"


def test_prometheus_is_told_where_to_scrape(tmp_path: Path) -> None:
    text = block("operations-yaml-1")

    assert yaml.safe_load(text)["scrape_configs"][0]["job_name"] == "nextslot"
    if (promtool := shutil.which("promtool")) is not None:
        (tmp_path / "key").touch()
        (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus/nextslot.key", "key"))
        subprocess.run([promtool, "check", "config", "prometheus.yml"], cwd=tmp_path, check=True, capture_output=True)


def test_schedules_of_groups_and_by_name_at_a_terminal(tmp_path: Path) -> None:
    jobs = [{"job_type": "research", "key": "cards"}, {"job_type": "story", "depends_on": ["cards"]}]
    (tmp_path / "pipeline.json").write_text(json.dumps(jobs))
    group, by_name = block("schedules-sh-1"), block("schedules-sh-2")
    with (
        at_a_terminal(tmp_path, lambda scheduler: add(scheduler, "research", "story")) as terminal,
        Client(terminal.url) as client,
    ):
        # Nothing is sent to the real ntfy.sh: nobody listens at this address.
        told = terminal.paste(group.replace("https://ntfy.sh", "http://127.0.0.1:9"))
        (schedule,) = client.schedules.page().items
        client.schedules.delete(schedule.schedule_id)
        for _ in range(2):
            terminal.paste(by_name)

        assert told.count("COMPLETED") >= 2, told
        assert [one.timezone for one in client.schedules.page().items] == ["Europe/Berlin"]


def test_the_first_keys_are_made_on_the_data_directory(tmp_path: Path) -> None:
    (tmp_path / "nextslot.toml").write_text("[offices.builds]\n")
    commands = re.sub(r"^\$ ", "", block("security-console-1"), flags=re.MULTILINE)

    made = Terminal(tmp_path).paste(commands)

    assert made.count("nsk_") == 2, made


def test_a_job_waits_for_an_answer(tmp_path: Path) -> None:
    submit, why, approve = block("signals-sh-1").splitlines()
    with (
        at_a_terminal(tmp_path, lambda scheduler: add(scheduler, "deploy")) as terminal,
        Client(terminal.url) as client,
    ):
        job = terminal.paste(submit).strip()
        told = terminal.paste(f"{why}\n{approve}".replace("JOB", job))

        assert "It waits for the signal 'release' (May version 7 go live?) from " in told
        assert client.wait(job, 60).status == "COMPLETED"


def test_a_session_asks_in_the_middle(tmp_path: Path) -> None:
    known: dict[str, Any] = {}
    exec(textwrap.dedent(block("signals-text-1")).replace("…", "return 'deployed'"), known)

    async def main() -> object:
        async with testing.scheduler(tmp_path) as scheduler:
            scheduler.job_types.add("deploy", known["session"])
            job = await scheduler.submit("deploy")
            await testing.settled()
            await scheduler.signal(job, "release", answer="approve")
            return (await scheduler.wait(job)).result

    assert testing.run(main()) == "deployed"


def test_a_program_that_speaks_sql_stores_a_request(tmp_path: Path) -> None:
    databases.use("postgres")
    try:
        url = databases.url(tmp_path)
        asyncio.run(started(tmp_path))
        with psycopg.connect(url) as connection:
            connection.execute("drop role if exists shop")
            connection.execute("create role shop")
            connection.execute(block("web-applications-sql-2"))
            connection.execute("set role shop")
            ((job_id,),) = connection.execute(block("web-applications-sql-1")).fetchall()
            connection.execute("reset role")
            assert connection.execute("select job_id from inbox").fetchall() == [(job_id,)]
            connection.rollback()
    finally:
        databases.spoil(tmp_path)
        databases.use("sqlite")


async def started(directory: Path) -> None:
    async with new_scheduler(directory, clock=None):
        pass


def test_every_example_of_every_page_is_run_by_a_test() -> None:
    here = set(re.findall(r'block\("([\w-]+)"\)', Path(__file__).read_text())) | set(map(str, CONFIGURATIONS))
    python = {name for name, one in BLOCKS.items() if one.kind.startswith("python")}
    other = {name for name in BLOCKS if any(re.fullmatch(rf"{one}(-.*)?", name) for one in ELSEWHERE)}

    assert set(BLOCKS) - here - python - other - set(NOTHING_TO_RUN) == set()
    assert (here | set(NOTHING_TO_RUN)) - set(BLOCKS) == set()
    assert [file for file in ELSEWHERE.values() if not (ROOT / file).is_file()] == []
