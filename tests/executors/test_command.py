"""Spec 5: commands as job types, run for real by a scheduler."""

import asyncio
import json
import os
import resource
import sys
import time
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nextslot import Run, Scheduler
from nextslot.errors import Invalid, Unavailable
from nextslot.executors import command
from nextslot.executors.command import CommandType, register_command
from nextslot.executors.command_config import command_type
from nextslot.executors.job_type_catalog import Catalog
from nextslot.executors.job_types import JobTypes
from nextslot.executors.process_tree.fork_server import Guardians
from nextslot.executors.process_tree.process import WAS_KILLED, WAS_STOPPED
from tests.support import database, eventually, processes_of

NO_RETRY = {"max_attempts": 0}
# Only ends a test that hangs: a gigabyte of output takes minutes on a busy machine.
LIMIT_SECONDS = 300
ARGUMENTS = [sys.executable, "-ISc", "import json, sys; print(json.dumps(sys.argv[1:]))"]


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    asyncio.run(eventually(lambda: not processes_of(tmp_path), seconds=5))


# Parameters.


def test_a_placeholder_is_exactly_one_argument_unchanged_whatever_it_contains(tmp_path: Path) -> None:
    values = ["; rm -rf /", "$(touch x)", "`id`", "a\nb\r\n", "it's \"so\"", "--", "-rf", "--help", "", " ", "*", "~",
              "{other}", "%s", "\\", "\x01\x7f", "한글 äöü 🙂", "| tee x && y > z < w", "a\tb", "!!", "#"]  # fmt: skip
    params = {f"v{number}": value for number, value in enumerate(values)}
    sent = [*ARGUMENTS, "--", *("{" + name + "}" for name in params)]

    run = run_command(tmp_path, sent, params)

    assert json.loads(log_of(tmp_path, run)) == ["--", *values]
    assert not (tmp_path / "x").exists()


def test_other_values_are_JSON_and_other_braces_are_literal() -> None:
    argv = ("program", "{a}", "{b}", "{c}", "{d}", "{e}", "--x={a}", "{}", "{a b}", "{{a}}", '{"a":1}', "{0}")
    params = {"a": 0.5, "b": True, "c": None, "d": {"k": ["ä", 1]}, "e": 10**15}

    found = CommandType(command=argv).argv(params)

    assert found == ("program", "0.5", "true", "null", '{"k":["ä",1]}', "1000000000000000", *argv[6:])


def test_all_parameters_are_on_stdin_as_JSON_also_those_with_our_own_names(tmp_path: Path) -> None:
    params = {"run": 1, "self": [None, {"x": "ü\n"}], "params": "p", "path": "a"}

    run = run_command(tmp_path, ["cat"], params)

    assert json.loads(log_of(tmp_path, run)) == params


def test_a_command_need_not_read_its_parameters(tmp_path: Path) -> None:
    assert run_command(tmp_path, ["true"], {"big": "x" * 200 * 1024}).status == "COMPLETED"


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({}, "params: \"path\" is missing"),
        ({"path": "a\0b"},
         "params.path contains a NUL character, which a command's argument cannot contain; remove it"),
        ({"path": "x" * 131_072},
         "params.path is longer than 131,071 bytes, the longest argument the kernel accepts; pass a file"),
    ],
)  # fmt: skip
async def test_what_cannot_be_an_argument_is_refused_at_creation(tmp_path: Path, params: Any, problem: str) -> None:
    async with command_scheduler(tmp_path, ["echo", "{path}"]) as scheduler:
        with pytest.raises(Invalid) as refused:
            await scheduler.submit("tested", params)

        assert str(refused.value) == problem
        assert await scheduler.queue() == []


def test_the_longest_argument_that_is_accepted_can_be_run(tmp_path: Path) -> None:
    run = run_command(tmp_path, ["printf", "%s", "{path}"], {"path": "x" * 131_071})

    assert len(log_of(tmp_path, run)) == 131_071


async def test_a_declared_schema_is_checked_and_every_placeholder_is_required(tmp_path: Path) -> None:
    schema = {"properties": {"size": {"type": "integer"}, "path": {}}, "additionalProperties": False}
    async with command_scheduler(tmp_path, ["thumb", "{size}", "{path}"], params_schema=schema) as scheduler:
        with pytest.raises(Invalid) as refused:
            await scheduler.submit("tested", {"size": "big", "more": 1})

        assert len(refused.value.problems) == 3


# Environment.


def test_a_command_is_told_who_it_is_and_inherits_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SECRET_TOKEN", "WANTED_TOKEN", "LC_TIME", "NEXTSLOT_WEBHOOKS__SECRET"):
        monkeypatch.setenv(name, "C")

    run = run_command(tmp_path, ["env", "-0"], env={"GREETING": "a=b\nc"}, pass_env=["WANTED_TOKEN"])

    variables = dict(pair.split("=", 1) for pair in log_of(tmp_path, run).split("\0") if pair)
    assert variables.pop("GREETING") == "a=b\nc"
    assert variables.pop("NEXTSLOT_RUN_ID") == run.run_id
    assert variables.pop("NEXTSLOT_JOB_ID") == run.job_id
    assert variables.pop("NEXTSLOT_ATTEMPT") == "1"
    assert variables.pop("NEXTSLOT_CHECKPOINT_FD") == "3"
    assert Path(variables.pop("NEXTSLOT_ARTIFACTS")).is_relative_to(tmp_path)
    assert {"PATH", "LC_TIME", "WANTED_TOKEN"} <= variables.keys()
    # Whatever begins with LC_ is inherited; Python itself sets LC_CTYPE where there is no locale.
    others = {name for name in variables if not name.startswith("LC_")}
    assert others <= {*command.INHERITED, "WANTED_TOKEN"}


def test_files_in_the_artifacts_directory_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = 'cd /; mkdir "$NEXTSLOT_ARTIFACTS/sub"; echo hi > "$NEXTSLOT_ARTIFACTS/sub/a.txt"'

    run = run_command(Path(), ["sh", "-c", script])

    assert [(one.name, one.size) for one in run.artifacts] == [("sub/a.txt", 3)]
    assert (tmp_path / run.artifacts[0].path).read_text() == "hi\n"


def test_a_command_that_leaves_no_files_leaves_no_directory(tmp_path: Path) -> None:
    run = run_command(tmp_path, ["true"])

    assert (run.artifacts, run.log_path) == ((), None)
    assert not list(tmp_path.glob("artifacts/*/*"))


def test_the_working_directory_is_the_one_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()

    assert log_of(tmp_path, run_command(tmp_path, ["pwd"])) == f"{tmp_path}\n"
    assert log_of(tmp_path, run_command(tmp_path, ["pwd"], cwd="below")) == f"{tmp_path}/below\n"


# Exit codes.


@pytest.mark.parametrize(
    ("script", "status", "kind", "words", "code"),
    [
        ("echo fine", "COMPLETED", None, None, 0),
        ("echo no; echo nothing new; echo; echo ' '; exit 75", "SKIPPED", None, "nothing new", 75),
        ("exit 75", "SKIPPED", None, "exit code 75", 75),
        ("echo first; echo 'no such file' >&2; exit 1", "FAILED", "error", "exit code 1: no such file", 1),
        ("exit 2", "FAILED", "error", "exit code 2", 2),
        ("printf 'cut off'; exit 3", "FAILED", "permission", "exit code 3: cut off", 3),
        ("exit 4", "COMPLETED", None, None, 4),
        ("echo old; exit 5", "SKIPPED", None, "old", 5),
        ("echo dying; kill -SEGV $$", "FAILED", "error", "ended by SIGSEGV: dying", 139),
        ("kill -KILL $$", "FAILED", "unavailable", "ended by SIGKILL", 137),
        ("printf '1%%\\r99%%\\rfull\\n'; exit 1", "FAILED", "error", "exit code 1: full", 1),
        ("printf 'bad \\377\\000 end'; exit 1", "FAILED", "error", "exit code 1: bad �� end", 1),
        ("echo real; echo '::progress 1 done'; exit 1", "FAILED", "error", "exit code 1: real", 1),
    ],
)
def test_exit_codes_mean_what_the_table_says(
    tmp_path: Path, script: str, status: str, kind: str | None, words: str | None, code: int
) -> None:
    codes = {"3": "permission", "4": "completed", 5: "skipped", "137": "unavailable"}

    run = run_command(tmp_path, ["sh", "-c", script], exit_codes=codes)

    assert (run.status, run.failure_kind, run.error or run.reason, run.exit_code) == (status, kind, words, code)
    assert run.result is None
    assert run.session_id


@pytest.mark.parametrize(
    ("argv", "cwd", "kind", "words"),
    [
        (["no-such-program"], "", "invalid",
         "'no-such-program' was not found: the program or its interpreter is missing; check its name and PATH"),
        (["./not-executable"], "", "permission",
         "'./not-executable' cannot be used: Permission denied; check its permissions"),
        (["true"], "nowhere", "invalid",
         "directory '{}/nowhere' cannot be used: No such file or directory; correct its path"),
        (["true"], "not-executable", "invalid",
         "directory '{}/not-executable' cannot be used: Not a directory; correct its path"),
    ],
)  # fmt: skip
def test_a_command_that_cannot_be_started_fails_and_says_why(
    tmp_path: Path, argv: list[str], cwd: str, kind: str, words: str
) -> None:
    (tmp_path / "not-executable").write_text("x")

    run = run_command(tmp_path, argv, cwd=cwd)

    assert (run.status, run.failure_kind) == ("FAILED", kind)
    assert (run.error or "").removeprefix("the working ") == words.format(tmp_path)
    assert (run.exit_code, run.session_id) == (None, None)


@pytest.mark.parametrize("told", ["timeout", "cancelled", "interrupted"])
async def test_told_to_stop_the_kind_is_what_we_told_it_and_nothing_is_left(tmp_path: Path, told: str) -> None:
    script = "trap 'exit 9' TERM; setsid sleep 61 & (sleep 61 &) ; sleep 61 & wait"
    async with command_scheduler(tmp_path, ["sh", "-c", script]) as scheduler:
        job = await scheduler.submit("tested", timeout_seconds=1.5 if told == "timeout" else None)
        await eventually(lambda: len(processes_of(tmp_path)) >= 3)
        if told == "cancelled":
            await scheduler.cancel(job.job_id, interrupt=True)
        if told == "interrupted":
            await scheduler.stop(grace_seconds=0)
            await scheduler.start()
        run = await eventual_end(scheduler, job.job_id)

        assert (run.status, run.failure_kind, run.exit_code) == ("FAILED", told, 9)
        assert not any(run.run_id in environment(pid) for pid in processes_of(tmp_path))
        await scheduler.stop(grace_seconds=0)


@pytest.mark.parametrize(
    ("script", "status", "error"),
    [
        ("for i in 1 2 3 4 5 6; do printf .; sleep 0.2; done", "COMPLETED", None),
        ("sleep 60", "FAILED", "no output and no progress for 0.8 seconds"),
    ],
)
def test_a_command_that_writes_is_not_stalled(tmp_path: Path, script: str, status: str, error: str | None) -> None:
    run = run_command(tmp_path, ["sh", "-c", script], stall_timeout_seconds=0.8)

    assert (run.status, run.error) == (status, error)


async def test_what_ignores_its_signal_is_killed_after_its_grace_time(tmp_path: Path) -> None:
    async with command_scheduler(
        tmp_path, ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"], grace_seconds=0.3
    ) as scheduler:
        job = await scheduler.submit("tested", timeout_seconds=0.5, retry_policy=NO_RETRY)

        run = await eventual_end(scheduler, job.job_id)

        assert (run.failure_kind, run.error, run.exit_code) == ("timeout", "timed out after 0.5 seconds", 137)


@pytest.mark.parametrize("told", [None, "timeout", "cancelled", "interrupted"])
async def test_a_command_that_keeps_its_guardian_stopped_ends_and_its_slot_is_free_again(
    tmp_path: Path, told: str | None
) -> None:
    script = """
        case $(cat) in *last*) exit 0;; esac
        (trap '' TERM; while kill -STOP $PPID; do sleep 0.01; done) & touch ready; setsid env -i sleep 61 & wait
    """
    async with command_scheduler(tmp_path, ["sh", "-c", script], grace_seconds=1) as scheduler:
        job = await scheduler.submit("tested", timeout_seconds=1 if told == "timeout" else None, retry_policy=NO_RETRY)
        await eventually(lambda: (tmp_path / "ready").exists())
        if told == "cancelled":
            await scheduler.cancel(job.job_id, interrupt=True)
        if told == "interrupted":
            assert await scheduler.stop(grace_seconds=0)
            await scheduler.start()

        run = await eventual_end(scheduler, job.job_id)

        assert (run.status, run.failure_kind) == ("FAILED", told or "error")
        if told is None:
            assert run.error == WAS_STOPPED
        assert processes_of(tmp_path) == []
        (tmp_path / "ready").unlink()
        again = await scheduler.submit("tested", {"last": True}, retry_policy=NO_RETRY)
        assert (await eventual_end(scheduler, again.job_id)).status == "COMPLETED"


def test_a_run_is_not_over_while_something_of_it_cannot_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def cannot(run_ids: list[str]) -> None:
        """Fails twice, as for a process that waits for a dead disk."""
        asked.append(run_ids)
        if len(asked) < 3:
            raise Unavailable("these processes cannot be ended: 1")

    monkeypatch.setattr(command, "end_survivors", cannot)

    run = run_command(tmp_path, ["sh", "-c", "kill -KILL $PPID"])

    assert (run.error, asked) == (WAS_KILLED, [[run.run_id]] * 3)


async def test_a_run_whose_guardian_its_command_killed_is_retried(tmp_path: Path) -> None:
    async with command_scheduler(
        tmp_path, ["sh", "-c", "[ $NEXTSLOT_ATTEMPT = 2 ] || kill -KILL $PPID; sleep 0.1"]
    ) as scheduler:
        job = await scheduler.submit("tested", retry_policy={"max_attempts": 1, "base_delay_seconds": 0})

        first = await eventual_end(scheduler, job.job_id)
        ended = await scheduler.wait(job.job_id)

        assert (first.failure_kind, first.error, first.exit_code) == ("error", WAS_KILLED, None)
        assert ended.status == "COMPLETED"


async def test_a_shutdown_that_cannot_wait_any_longer_kills_and_still_records_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nextslot.scheduler.startup_and_shutdown.STOP_GRACE_SECONDS", 0.3)

    async with command_scheduler(
        tmp_path, ["sh", "-c", "trap '' TERM; sleep 61 & wait; sleep 61"], grace_seconds=30
    ) as scheduler:
        await scheduler.submit("tested")
        await eventually(lambda: len(processes_of(tmp_path)) >= 2)

        await scheduler.stop(grace_seconds=0)

        assert processes_of(tmp_path) == []

    ended = database(tmp_path).execute("select status, failure_kind, exit_code from runs").fetchall()
    assert ended == [("FAILED", "interrupted", 137)]


async def test_a_scheduler_that_is_abandoned_kills_without_grace(tmp_path: Path) -> None:
    async with command_scheduler(tmp_path, ["sh", "-c", "trap '' TERM; sleep 61 & wait; sleep 61"]) as scheduler:
        from nextslot import testing

        await scheduler.submit("tested")
        await eventually(lambda: len(processes_of(tmp_path)) >= 2)

        await testing.crash(scheduler)

        await eventually(lambda: not processes_of(tmp_path), seconds=5)


# Output.


async def test_output_of_both_kinds_is_in_the_log_in_order_as_it_comes(tmp_path: Path) -> None:
    script = "echo 1; echo 2 >&2; printf 3; while ! [ -e go ]; do sleep 0.02; done; echo 4"
    async with command_scheduler(tmp_path, ["sh", "-c", script]) as scheduler:
        job = await scheduler.submit("tested")
        await eventually(lambda: [log.read_bytes() for log in tmp_path.glob("logs/*/*.log")] == [b"1\n2\n3"])
        (tmp_path / "go").touch()

        run = await eventual_end(scheduler, job.job_id)

        assert log_of(tmp_path, run) == "1\n2\n34\n"


def test_binary_output_is_kept_byte_by_byte(tmp_path: Path) -> None:
    script = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 1000)"

    run = run_command(tmp_path, [sys.executable, "-ISc", script])

    assert run.log_path is not None
    assert (tmp_path / run.log_path).read_bytes() == bytes(range(256)) * 1000


async def test_progress_lines_are_followed(tmp_path: Path) -> None:
    lines = (
        "::progress 0.1\\n::progress 0.4 reading ü",
        "x ::progress 0.9\\n::progress .5\\n::progress x y",
        "::progress 7 over",
    )
    wait = "while ! [ -e {} ]; do sleep 0.02; done; "
    steps = "".join(wait.format(step) + f"printf '{line}\\n'; " for step, line in zip("abc", lines, strict=True))
    async with command_scheduler(tmp_path, ["sh", "-c", steps + wait.format("d")]) as scheduler:
        job = await scheduler.submit("tested")
        seen: list[Any] = []
        run_id = await started_run(scheduler, job.job_id)
        for step in ("a", "b", "c"):
            (tmp_path / step).touch()
            await eventually(lambda: scheduler.progress(run_id) not in [(None, ""), *seen])
            seen.append(scheduler.progress(run_id))
        (tmp_path / "d").touch()
        await eventual_end(scheduler, job.job_id)

        assert seen == [(0.4, "reading ü"), (0.5, ""), (1.0, "over")]


@pytest.mark.parametrize("script", ["yes | head -c 1G", "head -c 1G /dev/zero", "yes '::progress 0.5 x' | head -c 20M"])
def test_a_gigabyte_of_output_is_capped_in_bounded_time_and_memory(tmp_path: Path, script: str) -> None:
    began, peak = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    run = run_command(tmp_path, ["sh", "-c", script], log_cap_bytes=1_000_000)

    assert (run.status, run.log_path is not None) == ("COMPLETED", True)
    content = (tmp_path / str(run.log_path)).read_bytes()
    assert 920_000 < len(content) < 1_000_100
    assert b"bytes cut here" in content
    assert time.process_time() - began < 30  # The time of this process's CPU: a busy machine does not count.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 50_000  # KiB


# Configuration.


def test_job_types_come_from_the_tables_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "thumb.schema.json").write_text('{"properties": {"size": {"type": "integer"}, "path": {}}}')
    tables = tomllib.loads("""
        [thumbnail]
        command = ["python", "thumb.py", "--size", "{size}", "--", "{path}"]
        resources = { gpu = 1 }
        timeout_seconds = 600
        stall_timeout_seconds = 1.5
        params_schema = "thumb.schema.json"
        exit_codes = { 3 = "permission" }

        [plain]
        command = ["true"]
    """)
    job_types = Catalog()

    job_types.configure(job_types.prepared(tables, tmp_path))

    assert job_types.names() == ["plain", "thumbnail"]
    thumbnail = job_types.get("thumbnail")
    assert (thumbnail.resources, thumbnail.timeout_seconds, thumbnail.stall_timeout_seconds) == ({"gpu": 1}, 600, 1.5)
    assert thumbnail.is_async
    assert not thumbnail.problems({"size": 1, "path": "a", "more": 1})
    assert [str(one) for one in thumbnail.problems({"size": 1})] == ['params: "path" is missing']


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("x = 1", "job_types.thumb is not a table"),
        ("{}", "job_types.thumb.command is missing"),
        ("{ command = 'ls' }", "job_types.thumb.command is not a list of texts"),
        ("{ command = [] }", "job_types.thumb.command has no program"),
        ("{ command = ['{program}'] }", "job_types.thumb.command: takes the program from a parameter"),
        ("{ command = ['a', \"\\u0000\"] }", "job_types.thumb.command contains NUL or invalid Unicode"),
        ("{ command = ['a'], comand = 1 }", "job_types.thumb.comand is not a setting of a command"),
        ("{ command = ['a'], timeout_seconds = 0 }", "job_types.thumb.timeout_seconds is not a number"),
        ("{ command = ['a'], grace_seconds = -1 }", "job_types.thumb.grace_seconds is not a number"),
        ("{ command = ['a'], log_cap_bytes = 0 }", "job_types.thumb.log_cap_bytes is not a whole number"),
        ("{ command = ['a'], resources = 1 }", "job_types.thumb.resources is 1; it must be a list of names"),
        ("{ command = ['a'], cwd = 1 }", "job_types.thumb.cwd is not a path"),
        ("{ command = ['a'], env = { A = 1 } }", "job_types.thumb.env has a name or a value that is not a text"),
        ("{ command = ['a'], env = { NEXTSLOT_X = 'a' } }", "job_types.thumb.env.NEXTSLOT_X: begins with"),
        ("{ command = ['a'], pass_env = 'A' }", "job_types.thumb.pass_env is not a list of variable names"),
        ("{ command = ['a'], exit_codes = { 300 = 'error' } }", "job_types.thumb.exit_codes.300 is not an"),
        ("{ command = ['a'], exit_codes = { 3 = 'cancelled' } }", "job_types.thumb.exit_codes.3 has an unknown"),
        ("{ command = ['a'], params_schema = 'no.json' }", "job_types.thumb.params_schema: "),
        ("{ command = ['a'], params_schema = { type = 'nothing' } }", "job_types.thumb.params_schema: this is not a"),
        ("{ command = ['a'], retry_policy = { max_attempts = -1 } }", "job_types.thumb.retry_policy.max_attempts is "),
        (
            "{ command = ['a', '{path}', '{sise}'], params_schema = { properties = { path = {} } } }",
            "job_types.thumb.command: {sise} is not a parameter in params_schema; declare 'sise' there",
        ),
    ],
)  # fmt: skip
def test_a_mistake_in_the_configuration_is_named_with_its_place(tmp_path: Path, table: str, problem: str) -> None:
    tables = {"good": {"command": ["true"]}, "thumb": tomllib.loads(f"x = {table}" if table[0] == "{" else table)["x"]}
    job_types = Catalog()

    with pytest.raises(Invalid) as refused:
        job_types.prepared(tables, tmp_path)

    assert str(refused.value).startswith(problem)
    assert job_types.names() == []


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"properties": {"path": {}}}]},
        {"$ref": "#/$defs/it", "$defs": {"it": {"properties": {"path": {}}}}},
        {"patternProperties": {"^p": {}}},
    ],
)
def test_a_schema_may_know_a_placeholder_by_its_parts(tmp_path: Path, schema: Any) -> None:
    assert command_type({"command": ["a", "{path}"], "params_schema": schema}, tmp_path).placeholders == ["path"]


def test_elsewhere_than_on_linux_a_command_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")

    with pytest.raises(Invalid, match="commands run on Linux only"):
        register_command(JobTypes(), "a", CommandType(command=("true",)), Guardians())


# Arrangement.


@asynccontextmanager
async def command_scheduler(directory: Path, argv: list[str], **options: Any) -> AsyncIterator[Scheduler]:
    """Runs a scheduler in real time that has the command as its type `tested`."""
    guardians = Guardians()
    scheduler = Scheduler(f"sqlite:///{directory}/nextslot.db", synchronous="NORMAL")
    one = command_type({"command": argv, **options}, directory)
    register_command(scheduler.job_types, "tested", one, guardians)
    try:
        async with scheduler, asyncio.timeout(LIMIT_SECONDS):
            yield scheduler
    finally:
        guardians.close()


def run_command(directory: Path, argv: list[str], params: Any = None, **options: Any) -> Run:
    """Runs one job of this command to its end."""
    found: list[Run] = []

    async def main() -> None:
        async with command_scheduler(directory, argv, **options) as scheduler:
            job = await scheduler.submit("tested", params or {}, retry_policy=NO_RETRY)
            found.append(await eventual_end(scheduler, job.job_id))

    asyncio.run(main())
    return found[0]


async def eventual_end(scheduler: Scheduler, job_id: str) -> Run:
    """Waits for the end of this job's run, whatever follows."""
    while True:
        run = await scheduler.run_of(job_id)
        if run is not None and run.status is not None:
            return run
        await asyncio.sleep(0.02)


async def started_run(scheduler: Scheduler, job_id: str) -> str:
    """Returns the run of a submitted job. There is a free slot, so `submit` has dispatched the job."""
    run = await scheduler.run_of(job_id)
    assert run is not None
    return run.run_id


def log_of(directory: Path, run: Run) -> str:
    assert run.log_path is not None
    return (directory / run.log_path).read_bytes().decode()


def environment(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text()
    except OSError:
        return os.devnull


# A quota that is used up.


async def test_a_command_says_by_its_output_until_when_a_quota_is_used_up(tmp_path: Path) -> None:
    argv = ["sh", "-c", "echo 'usage limit reached, try again in 1h 5m'; echo bye; exit 1"]
    said = "limit reached, try again in (?P<retry_after>.+)"
    options = {"quota_pattern": said, "quota_resource": "assistant", "resources": {"assistant": 1}}
    async with command_scheduler(tmp_path, argv, **options) as scheduler:
        direct = await scheduler.run_direct("tested")

        (one,) = (await scheduler.lists.status()).held
        assert one.resource == "assistant"
        assert one.quota_until is not None
        assert 3890 < (one.quota_until - one.since) / 1e6 <= 3901
        assert (direct.failure_kind, direct.exit_code) == ("quota", 1)
        assert direct.error == "usage limit reached, try again in 1h 5m"


def test_a_quota_pattern_is_checked_when_the_command_is_configured(tmp_path: Path) -> None:
    with pytest.raises(Invalid) as refused:
        command_type({"command": ["true"], "quota_pattern": "(a+)+", "quota_resource": ""}, tmp_path)

    assert [problem.field for problem in refused.value.problems] == ["quota_pattern", "quota_resource"]
