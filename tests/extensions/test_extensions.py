"""Extensions: found by name, switched on and off, and left out without the core noticing (spec 17.6)."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

import nextslot
from nextslot import Scheduler, extension_api
from nextslot.config import load
from nextslot.errors import Invalid, NotFound, UnknownJobType
from nextslot.extension_api import Attached, Extension
from nextslot.extension_api.host import Host
from nextslot.extensions.offices.office_service import OfficeJobService
from nextslot.scheduler_from_config import compose
from tests.cli.terminal import Terminal
from tests.server import support
from tests.serving import serving
from tests.support import environment_of_copy, named

ROOT = Path(__file__).parents[2]
SOURCE = Path(nextslot.__file__).parent
BUILT_IN = ["adopt", "demo", "gateway", "legacy", "mcp", "offices", "stories"]
QUICK = '[job_types.quick]\ncommand = ["true"]\n'
# Of the core's tests those that are nearest to what extensions hook into: webhooks, job types, routes and errors.
SAMPLE = [
    "tests/domain/test_webhook_policy.py",
    "tests/engine/test_12_webhooks.py",
    "tests/executors/test_catalog.py",
    "tests/server/test_errors.py",
]


# Left out.


@pytest.mark.parametrize("gone", [["offices"], ["stories"], ["legacy"], BUILT_IN], ids="+".join)
def test_without_the_directory_of_an_extension_a_server_runs_jobs(tmp_path: Path, gone: list[str]) -> None:
    package = copy_without(tmp_path, gone)

    with served(tmp_path, QUICK, package) as client:
        job = client.post("/api/jobs", json={"job_type": "quick"})
        ended = client.get(f"/api/jobs/{job.json()['job_id']}/why")
        paths = client.get("/openapi.json").json()["paths"]

    assert (job.status_code, ended.status_code) == (201, 200)
    routes = {"offices": "/api/offices", "stories": "/story/generate", "legacy": "/jobs"}
    assert [name for name, path in routes.items() if path in paths] == [name for name in routes if name not in gone]


def test_without_the_directories_of_all_extensions_the_sample_of_the_cores_tests_passes(tmp_path: Path) -> None:
    package = copy_without(tmp_path, BUILT_IN)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *SAMPLE]

    ran = subprocess.run(
        command, cwd=ROOT, env=environment_of_copy(package), capture_output=True, text=True, timeout=280, check=False
    )

    assert ran.returncode == 0, ran.stdout[-3000:]


def copy_without(directory: Path, gone: Sequence[str]) -> Path:
    """Copies the package without these extensions; checks that an import of `nextslot` from there uses the copy."""
    package = directory / "package"
    shutil.copytree(SOURCE, package / "nextslot", ignore=shutil.ignore_patterns("__pycache__"))
    for name in gone:
        shutil.rmtree(package / "nextslot/extensions" / name)
    found = subprocess.check_output(
        [sys.executable, "-c", "import nextslot; print(nextslot.__file__)"], env=environment_of_copy(package), text=True
    )
    assert Path(found.strip()).is_relative_to(package)
    return package


@contextmanager
def served(directory: Path, configuration: str, package: Path, **variables: str) -> Iterator[httpx2.Client]:
    """Runs a real server from the package in this directory."""
    data = directory / "data"
    data.mkdir()
    (data / "nextslot.toml").write_text(configuration)
    command = [sys.executable, "-m", "nextslot.cli.main", "serve", "--data", str(data), "--port", "0", "--json"]
    process = subprocess.Popen(
        command, env=environment_of_copy(package, **variables), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        with httpx2.Client(base_url=url, timeout=30) as client:
            yield client
    finally:
        process.terminate()
        process.communicate(timeout=60)


# Switched on and off.


def test_a_server_has_all_that_come_with_it_unless_they_are_disabled(tmp_path: Path) -> None:
    (tmp_path / "nextslot.toml").write_text('[extensions]\ndisabled = ["legacy"]\n')

    assert list(compose(load(tmp_path, environment={})).attached) == ["adopt", "mcp", "offices", "stories"]
    assert list(compose(load(tmp_path, environment={"NEXTSLOT_EXTENSIONS__DISABLED": "stories,offices"})).attached) == [
        "adopt", "legacy", "mcp",
    ]  # fmt: skip


def test_an_unknown_name_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(
        Invalid,
        match="there is no extension 'legcay'; "
        "there are: adopt, demo, gateway, legacy, mcp, offices, ray, slurm, stories",
    ):
        load(tmp_path, environment={}, overrides={"extensions.disabled": ["legcay"]})
    with pytest.raises(Invalid, match="there is no extension 'legcay'"):
        Scheduler(f"sqlite:///{tmp_path}/nextslot.db", extensions=["legcay"])


async def test_what_is_disabled_is_404_and_says_so_and_its_job_types_are_unknown(tmp_path: Path) -> None:
    async with support.serving(tmp_path, extensions=[]) as server:
        answers = [await server.client.get(path) for path in ("/api/offices", "/jobs", "/api/offices/x/jobs")]
        job = await server.client.post("/api/jobs", json={"job_type": "story"})

        assert [answer.status_code for answer in answers] == [404, 404, 404]
        assert answers[0].json()["detail"] == (
            "the extension 'offices' is off on this server: see `extensions.disabled` in its configuration"
        )
        assert (job.status_code, job.json()["code"]) == (422, "unknown_job_type")
        assert (await server.client.get("/apiary")).json()["detail"].startswith("there is no route /apiary")


def test_the_commands_of_a_disabled_extension_say_so(tmp_path: Path) -> None:
    with serving(tmp_path, extensions=["legacy"]) as there:
        ran = Terminal()("office", "ls", "--url", there.url)

    assert ran.code == 1
    assert "the extension 'offices' is off on this server" in ran.err


async def test_an_embedded_scheduler_has_none_unless_asked(tmp_path: Path) -> None:
    async with Scheduler(f"sqlite:///{tmp_path}/nextslot.db") as scheduler:
        assert scheduler.attached == {}
        with pytest.raises(NotFound, match="this scheduler has none"):
            scheduler.extension(OfficeJobService)
        with pytest.raises(UnknownJobType):
            await scheduler.submit("story")
    async with Scheduler(f"sqlite:///{tmp_path}/nextslot.db", extensions=["offices"]) as scheduler:
        assert (await scheduler.extension(OfficeJobService).stats("default")).done == 0


def test_the_switch_of_the_old_service_is_refused_at_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nextslot.cli.main", "serve", "--data", str(tmp_path), "--port", "0"]
    ran = subprocess.run(
        command,
        env={**os.environ, "API_AUTH_ENABLED": "true"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ran.returncode == 1
    assert "API_AUTH_ENABLED" in ran.stderr
    assert "nextslot key add" in ran.stderr


# An extension of somebody else's.


class Greeter(Attached):
    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.seen: list[str] = []
        host.job_types.add("greet", self._greet)

    def configure(self, tables: Mapping[str, Any], data: Path) -> None:
        self.seen.append("configured")

    async def start(self) -> None:
        self.seen.append("started")
        await self.host.offices.create("greeters")

    async def stop(self) -> None:
        self.seen.append("stopped")

    async def _greet(self, run: Any, whom: str) -> str:
        return f"hello {whom}"


class Greetings(Extension):
    name = "greetings"

    def attach(self, host: Host) -> Attached:
        return Greeter(host)


async def test_an_extension_brings_job_types_and_is_started_and_stopped_with_its_scheduler(tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path}/nextslot.db", extensions=[Greetings()])
    greeter = scheduler.extension(Greeter)
    async with scheduler:
        job = await scheduler.submit("greet", {"whom": "you"}, office_id="greeters")
        ended = await scheduler.wait(job.job_id)

    assert ended.result == "hello you"
    assert greeter.seen == ["started", "stopped"]


async def test_what_an_extension_stores_names_the_caller_for_whom_it_was_called(tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path}/nextslot.db", extensions=[Greetings()])
    async with scheduler:
        for name in ("ann", "ben"):
            greeter = named(scheduler, name).extension(Greeter)
            await greeter.host.offices.create(f"office-of-{name}")
            greeter.seen.append(name)
        entries = (await scheduler.lists.audit()).items

    assert [entry.actor for entry in reversed(entries)] == ["ann", "ben"]
    assert scheduler.extension(Greeter).seen == ["started", "ann", "ben", "stopped"], "one part for all callers"


PACKAGE = """
from nextslot.domain import Scope
from nextslot.extension_api import Attached, Extension

class Ping(Extension):
    name = "ping"
    paths = ("/ping",)

    def settings(self):
        from nextslot.config.settings import Section
        class PingTable(Section):
            word: str = "pong"
        return {"ping": (PingTable, PingTable())}

    def attach(self, host):
        return Pinged(host)

    def routers(self):
        from fastapi import Request, Response
        from nextslot.server.responses import answer
        from nextslot.server.route_rules import needs
        from nextslot.server.routing import extension_of, router
        ping = router("Ping")

        @ping.get("/ping")
        @needs(Scope.READ)
        async def pong(request: Request) -> Response:
            return answer({"said": extension_of(request, Pinged).word})

        return [ping]

class Pinged(Attached):
    def configure(self, tables, data):
        self.word = tables["ping"].word

extension = Ping()
"""


@pytest.mark.parametrize("is_configured", [True, False])
def test_an_installed_package_offers_an_extension_that_is_on_when_it_is_configured(
    tmp_path: Path, is_configured: bool
) -> None:
    package = tmp_path / "installed"
    (package / "ping-1.0.dist-info").mkdir(parents=True)
    (package / "pinging.py").write_text(PACKAGE)
    (package / "ping-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: ping\nVersion: 1.0\n")
    (package / "ping-1.0.dist-info/entry_points.txt").write_text(f"[{extension_api.GROUP}]\nping = pinging:extension\n")

    with served(tmp_path, '[ping]\nword = "peng"\n' if is_configured else "", package) as client:
        answer = client.get("/ping")

    if is_configured:
        assert (answer.status_code, answer.json()) == (200, {"said": "peng"})
    else:
        assert (answer.status_code, "'ping' is off" in answer.json()["detail"]) == (404, True)
