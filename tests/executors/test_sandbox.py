"""Commands in a sandbox, made by bubblewrap for real. Only limits of cgroups are tested on a directory of our own."""

import asyncio
import os
import pwd
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nextslot import NewJob, Run, Scheduler
from nextslot.config.loading import load
from nextslot.errors import Invalid
from nextslot.executors.command import CommandType, check_sandbox
from nextslot.executors.job_type_catalog import check_job_type
from nextslot.executors.process_tree.cgroups import OWN_PART, enable_controllers, enter_cgroup
from nextslot.executors.process_tree.fork_server import Guardians
from nextslot.executors.sandbox import Sandbox, sandbox_of
from nextslot.scheduler_from_config import compose
from tests.support import eventually, processes_of

NO_RETRY = {"max_attempts": 0}
LIMIT_SECONDS = 120
IS_ROOT = os.geteuid() == 0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Makes a directory whose programs every user may read, as in a project. Nothing may run from it at the end."""
    if shutil.which("bwrap") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("there is no bubblewrap: apt-get install bubblewrap")
        pytest.skip("there is no bubblewrap")
    project = tmp_path / "project"
    project.mkdir(mode=0o755)
    yield project
    asyncio.run(eventually(lambda: not processes_of(tmp_path), seconds=5))


def test_a_command_cannot_write_outside_of_its_artifacts(place: Path) -> None:
    script = "touch /etc/planted ../planted planted; echo mine > $NEXTSLOT_ARTIFACTS/result; ls $NEXTSLOT_ARTIFACTS"

    run = run_command(place, ["sh", "-c", script])

    assert run.status == "COMPLETED"
    assert log_of(place, run).count("Read-only file system") == 2
    assert not Path("/etc/planted").exists()
    assert sorted(path.name for path in place.parent.rglob("planted")) == []
    assert [(one.name, one.size) for one in run.artifacts] == [("result", 5)]


def test_a_command_writes_where_it_is_allowed_to(place: Path) -> None:
    work = place / "work"
    work.mkdir()
    work.chmod(0o777)

    run = run_command(place, ["sh", "-c", "echo done > work/file && touch planted"], writable=["work"])

    assert (run.status, (work / "file").read_text(), (place / "planted").exists()) == ("FAILED", "done\n", False)


def test_a_command_has_a_temporary_directory_of_its_own(place: Path) -> None:
    name = f"nextslot-sandbox-{os.getpid()}"
    Path("/tmp", name).write_text("a neighbour's")
    try:
        run = run_command(place, ["sh", "-c", f"ls /tmp/{name}; touch /tmp/{name}.mine && ls /tmp"])
    finally:
        Path("/tmp", name).unlink()

    assert run.status == "COMPLETED"
    assert "No such file" in log_of(place, run)
    assert f"{name}.mine" in log_of(place, run)
    assert not Path("/tmp", f"{name}.mine").exists()


def test_a_command_sees_neither_the_database_nor_files_of_other_runs(place: Path) -> None:
    script = f"cat {place}/nextslot.db {place}/nextslot.db-wal | wc -c; find {place}/logs {place}/artifacts -type f"

    run = run_command(place, ["sh", "-c", script], writable=["."], user=own_user())

    assert "0" in log_of(place, run).splitlines()
    assert log_of(place, run).count("Permission denied") == 2
    assert not any(line.endswith(".log") for line in log_of(place, run).splitlines())


SECRETS = """
[server]
tls_certificate = "cert.pem"
tls_key = "live.pem"

[job_types.tested]
command = ["sh", "-c", "cat nextslot.toml live.pem archive.pem | grep -c SECRET; cat cert.pem"]
sandbox = { writable = ["."], user = "USER" }

[roles.be]
command = ["sh", "-c", "cat nextslot.toml live.pem | grep -c SECRET; touch planted; id -u; grep -c : /proc/net/dev"]
sandbox = { hidden = ["private"], open_files = 77 }

[webhooks]
secret = "whsec_U0VDUkVUU0VDUkVUU0VDUkVUU0VDUkVU"  # SECRET
"""


@pytest.fixture
def configured(place: Path) -> Scheduler:
    """Makes a server's scheduler by a configuration file with secrets, whose key for TLS is a link, as certbot's is."""
    text = SECRETS.replace(', user = "USER"', ', user = "root"' if IS_ROOT else "")
    (place / "nextslot.toml").write_text(text)
    (place / "archive.pem").write_text("SECRET")
    (place / "live.pem").symlink_to("archive.pem")
    (place / "cert.pem").write_text("for everybody")
    (place / "private").mkdir()
    return compose(load(place, environment={}))


async def test_a_command_reads_neither_the_configuration_nor_the_key_for_tls_whatever_its_account(
    place: Path, configured: Scheduler
) -> None:
    async with configured as scheduler, asyncio.timeout(LIMIT_SECONDS):
        job = await scheduler.submit("tested", retry_policy=NO_RETRY)
        run = await eventual_end(scheduler, job.job_id)

    assert log_of(place, run).splitlines()[-2:] == ["0", "for everybody"]
    assert log_of(place, run).count("Permission denied") == 3


async def test_the_session_of_a_role_runs_in_its_sandbox(place: Path, configured: Scheduler) -> None:
    async with configured as scheduler, asyncio.timeout(LIMIT_SECONDS):
        job = await scheduler.submit("session", role="be", retry_policy=NO_RETRY)
        run = await eventual_end(scheduler, job.job_id)

    said = log_of(place, run).splitlines()
    assert "0" in said
    assert said[-2:] == [str(pwd.getpwnam("nobody").pw_uid if IS_ROOT else os.geteuid()), "1"]
    assert "touch: cannot touch 'planted': Read-only file system" in said
    assert not (place / "planted").exists()


async def test_a_command_reads_what_its_prerequisites_have_made_and_nothing_of_others(place: Path) -> None:
    script = "cat {inputs.first.path}/file; cat $NEXTSLOT_INPUTS | wc -l; find artifacts -name other"
    scheduler = Scheduler(f"sqlite:///{place}/nextslot.db", synchronous="NORMAL")
    made = ["sh", "-c", "mkdir $NEXTSLOT_ARTIFACTS/sub; echo made | tee $NEXTSLOT_ARTIFACTS/file"]
    scheduler.job_types.add_command("first", made, place, sandbox={})
    scheduler.job_types.add_command("other", ["sh", "-c", "touch $NEXTSLOT_ARTIFACTS/other"], place)
    reads = ["sh", "-c", script.replace("{inputs.first.path}", "$0"), "{inputs.first.path}"]
    scheduler.job_types.add_command("reader", reads, place, sandbox={})
    async with scheduler, asyncio.timeout(LIMIT_SECONDS):
        await eventual_end(scheduler, (await scheduler.submit("other")).job_id)
        first = NewJob(job_type="first", key="first")
        after = NewJob(job_type="reader", depends_on=["first"], retry_policy=NO_RETRY)
        _, job = await scheduler.submit_many([first, after])
        run = await eventual_end(scheduler, job.job_id)

        assert (log_of(place, run), run.status) == ("made\n0\n", "COMPLETED")


def test_a_hidden_path_is_empty(place: Path) -> None:
    (place / "secrets").mkdir()
    (place / "secrets" / "token").write_text("x")
    (place / "nextslot.toml").write_text("secret")

    run = run_command(place, ["sh", "-c", "ls secrets; cat nextslot.toml"], hidden=["secrets", "nextslot.toml"])

    assert log_of(place, run) == "cat: nextslot.toml: Permission denied\n"


@pytest.mark.parametrize(("network", "status"), [(True, "COMPLETED"), (False, "FAILED")])
def test_the_network_is_there_only_if_the_sandbox_says_so(place: Path, network: bool, status: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: server.accept()[0].close(), daemon=True).start()
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"

        run = run_command(place, ["python3", "-c", code], network=network)

        assert run.status == status
        if not network:
            socket.create_connection(("127.0.0.1", port), 5).close()


def test_a_command_sees_and_signals_no_process_of_others(place: Path) -> None:
    run = run_command(place, ["sh", "-c", f"kill -0 {os.getpid()} || ls /proc | grep -c '^[0-9]'"])

    assert int(log_of(place, run).split()[-1]) < 10


def test_a_command_gains_no_rights(place: Path) -> None:
    run = run_command(place, ["grep", "-E", "NoNewPrivs|CapPrm|CapEff", "/proc/self/status"])

    assert log_of(place, run).split() == ["CapPrm:", "0" * 16, "CapEff:", "0" * 16, "NoNewPrivs:", "1"]


@pytest.mark.skipif(not IS_ROOT, reason="only root can change the account")
@pytest.mark.parametrize(("user", "expected"), [(None, "nobody"), ("daemon", "daemon"), ("1", "daemon"), ("0", "root")])
def test_a_command_of_root_runs_as_nobody_or_as_the_account_that_is_named(
    place: Path, user: str | None, expected: str
) -> None:
    run = run_command(place, ["sh", "-c", "id -un; touch $NEXTSLOT_ARTIFACTS/mine"], user=user)

    assert (run.status, log_of(place, run)) == ("COMPLETED", f"{expected}\n")
    [found] = [place / one.path for one in run.artifacts]
    assert found.stat().st_uid == pwd.getpwnam(expected).pw_uid


@pytest.mark.parametrize(
    ("limit", "script", "problem"),
    [
        ({"open_files": 20}, "ulimit -n", "20"),
        ({"file_bytes": 4096}, "head -c 8192 /dev/zero > /tmp/file; wc -c < /tmp/file", "4096"),
        ({"address_space_bytes": 300_000_000}, "python3 -c 'bytes(400_000_000)'", "MemoryError"),
        ({"cpu_seconds": 1}, "ulimit -t", "1"),
    ],
)
def test_each_process_has_the_limits_of_the_sandbox(
    place: Path, limit: dict[str, int], script: str, problem: str
) -> None:
    run = run_command(place, ["sh", "-c", script], **limit)

    assert problem in log_of(place, run).split()


def test_a_command_sees_only_the_devices_that_it_is_given(place: Path) -> None:
    script = ["sh", "-c", "ls /dev"]
    without = log_of(place, run_command(place, script)).split()
    other = next(path for path in sorted(Path("/dev").iterdir()) if path.name not in without and path.is_char_device())
    given = log_of(place, run_command(place, script, devices=[str(other)])).split()

    assert set(given) - set(without) == {other.name}


def test_the_exit_code_and_the_parameters_pass_through(place: Path) -> None:
    run = run_command(place, ["sh", "-c", "cat; exit 3"], exit_codes={"3": "permission"}, params={"a": [1]})

    assert (run.failure_kind, run.exit_code, log_of(place, run)) == ("permission", 3, '{"a":[1]}')


async def test_a_command_in_a_sandbox_has_its_grace_time_to_end(place: Path) -> None:
    script = "trap 'echo saved > $NEXTSLOT_ARTIFACTS/state; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    async with sandboxed(place, ["sh", "-c", script], grace_seconds=30) as scheduler:
        job = await scheduler.submit("tested", retry_policy=NO_RETRY)
        await eventually(lambda: any(path.read_bytes() for path in place.rglob("logs/**/*") if path.is_file()))

        await scheduler.cancel(job.job_id, interrupt=True)
        run = await eventual_end(scheduler, job.job_id)

        assert (run.failure_kind, [one.name for one in run.artifacts]) == ("cancelled", ["state"])


async def test_a_command_that_ignores_its_signal_is_killed_with_its_sandbox(place: Path) -> None:
    script = "trap '' TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 0.1; done' & while :; do sleep 0.1; done"
    async with sandboxed(place, ["sh", "-c", script], grace_seconds=0.3) as scheduler:
        job = await scheduler.submit("tested", timeout_seconds=0.5, retry_policy=NO_RETRY)

        run = await eventual_end(scheduler, job.job_id)

        assert (run.failure_kind, run.exit_code) == ("timeout", 137)
        assert not processes_of(place)


# What a machine cannot do is refused at the start.


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (1, "sandbox is not a table"),
        ({"netwrok": True}, "sandbox.netwrok is not a setting of a sandbox"),
        ({"network": "no"}, "sandbox.network is neither true nor false"),
        ({"writable": "work"}, "sandbox.writable is not a list of paths"),
        ({"writable": ["gone"]}, "sandbox.writable: names 'gone', which does not exist"),
        ({"devices": ["/dev/none"]}, "sandbox.devices: names '/dev/none', which does not exist"),
        ({"open_files": 0}, "sandbox.open_files is not a whole number above 0"),
        ({"cpus": 0}, "sandbox.cpus is not a number of processors"),
        ({"user": ""}, "sandbox.user is not an account"),
        ({"user": "nobody-here"}, "sandbox.user: names the account 'nobody-here', which this machine does not have"),
        ({"user": "9" * 30}, "sandbox.user: names the account '9999"),
    ],
)
def test_a_mistake_in_a_sandbox_is_named_with_its_place(tmp_path: Path, table: Any, problem: str) -> None:
    with pytest.raises(Invalid) as refused:
        sandbox_of(table, tmp_path)

    assert str(refused.value).startswith(problem)


def test_somebody_who_is_not_root_cannot_name_another_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4321)

    with pytest.raises(Invalid, match="only root can run commands as somebody else"):
        sandbox_of({"user": "daemon"}, tmp_path)


def test_a_missing_program_is_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None if program == "bwrap" else program)

    with pytest.raises(Invalid, match="needs the program bwrap, which is not on PATH; install bubblewrap"):
        check_job_type({"command": ["true"], "sandbox": {}}, tmp_path)


def test_a_machine_that_cannot_make_a_sandbox_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    with pytest.raises(Invalid, match="cannot be made on this machine: bwrap: No permissions"):
        check_job_type({"command": ["true"], "sandbox": {}}, tmp_path)


# Limits of the whole tree. The kernel of a test machine may offer no controller, so these read a directory of ours.


def test_limits_that_need_a_cgroup_are_refused_where_none_can_be_made(place: Path, tmp_path: Path) -> None:
    command = CommandType(command=("true",), sandbox=Sandbox(memory_bytes=1_000_000, processes=5))
    (tmp_path / "cgroup.controllers").write_text("cpu pids\n")

    with pytest.raises(Invalid, match="the server may not limit memory with a cgroup here"):
        check_sandbox(command, Guardians(cgroup=str(tmp_path)))
    with pytest.raises(Invalid, match="the server may not limit memory, pids with a cgroup here"):
        check_sandbox(command, Guardians(cgroup=""))


def test_the_scheduler_makes_room_for_limits_below_its_own_cgroup(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids io\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    (tmp_path / "cgroup.procs").write_text("17\n")

    assert enable_controllers(str(tmp_path), {"memory", "pids"}) == set()

    assert (tmp_path / OWN_PART / "cgroup.procs").read_text() == "17"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_a_run_enters_a_cgroup_with_its_limits_or_does_not_start(tmp_path: Path) -> None:
    found = Sandbox(memory_bytes=1_000_000, cpus=1.5, processes=7).apply(start_of(tmp_path), tmp_path, (), (), ())

    enter_cgroup(f"{tmp_path}/run", found.cgroup_limits)

    limits = {path.name: path.read_text() for path in (tmp_path / "run").iterdir()}
    assert limits == {
        "memory.max": "1000000", "memory.swap.max": "0", "memory.oom.group": "1", "cpu.max": "150000 100000",
        "pids.max": "7", "cgroup.procs": str(os.getpid()),
    }  # fmt: skip
    with pytest.raises(OSError, match="the limits of the sandbox need a cgroup"):
        enter_cgroup("", found.cgroup_limits)


# Arrangement.


def start_of(directory: Path) -> Any:
    from nextslot.executors.process_tree.process import Start

    return Start(argv=("true",), env={}, cwd=str(directory))


def own_user() -> str | None:
    return "root" if IS_ROOT else None


@asynccontextmanager
async def sandboxed(directory: Path, argv: list[str], **options: Any) -> AsyncIterator[Scheduler]:
    """Runs a scheduler in real time whose job type `tested` is this command in a sandbox."""
    settings = {name: options.pop(name) for name in list(options) if name in Sandbox.__dataclass_fields__}
    table = {name: value for name, value in settings.items() if value is not None}
    scheduler = Scheduler(f"sqlite:///{directory}/nextslot.db", synchronous="NORMAL")
    scheduler.job_types.add_command("tested", argv, directory, sandbox=table, **options)
    async with scheduler, asyncio.timeout(LIMIT_SECONDS):
        yield scheduler


def run_command(directory: Path, argv: list[str], params: Any = None, **options: Any) -> Run:
    async def main() -> Run:
        async with sandboxed(directory, argv, **options) as scheduler:
            job = await scheduler.submit("tested", params or {}, retry_policy=NO_RETRY)
            return await eventual_end(scheduler, job.job_id)

    return asyncio.run(main())


async def eventual_end(scheduler: Scheduler, job_id: str) -> Run:
    while True:
        run = await scheduler.run_of(job_id)
        if run is not None and run.status is not None:
            return run
        await asyncio.sleep(0.02)


def log_of(directory: Path, run: Run) -> str:
    assert run.log_path is not None
    return (directory / run.log_path).read_text()
