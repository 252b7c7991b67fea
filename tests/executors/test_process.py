"""Spec 5, process ownership, with real processes: a guardian owns the whole tree, and no process of it is ever left."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nextslot.executors.process_tree.fork_server import Guardians
from nextslot.executors.process_tree.guardian import now
from nextslot.executors.process_tree.kill_tree import LEFTOVER_GRACE, descendants, processes
from nextslot.executors.process_tree.process import WAS_KILLED, End, Process, Start
from nextslot.executors.process_tree.survivors import end_survivors, find_survivors
from tests.support import eventually, processes_of

PYTHON = sys.executable


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    asyncio.run(eventually(lambda: not processes_of(tmp_path), seconds=5))


# A stop request: TERM, a grace time, KILL.


def test_a_command_that_obeys_TERM_ends_in_its_own_way(tmp_path: Path) -> None:
    end, output, seconds = stopped(tmp_path, "trap 'echo bye; exit 5' TERM; sleep 60 & echo ready; wait", grace=30)

    assert (end.exit_code, "bye" in output) == (5, True)
    assert seconds < 10


def test_a_command_that_ignores_TERM_is_killed_after_the_grace_time(tmp_path: Path) -> None:
    end, _, seconds = stopped(tmp_path, "trap '' TERM; echo ready; while :; do sleep 0.05; done", grace=0.5)

    assert (end.signal, end.exit_code) == ("SIGKILL", 137)
    assert seconds >= 0.5


def test_a_child_has_the_whole_grace_time_and_is_told_once_also_when_its_parent_has_gone(tmp_path: Path) -> None:
    child = 'trap "echo told" TERM; echo ready; while :; do sleep 0.05; done'

    end, output, seconds = stopped(tmp_path, f"trap 'exec sleep 0.3' TERM; sh -c '{child}' & wait", grace=3)

    assert (end.exit_code, output.count("told")) == (0, 1)
    assert seconds >= 3 > LEFTOVER_GRACE


@pytest.mark.parametrize(
    "leaves",
    [
        "sh -c 'sleep 61 & sleep 61 & wait' & sleep 61 &",  # Grandchildren.
        "setsid sleep 61 &",  # Out of the session.
        "setsid sh -c 'setsid sleep 61 & sleep 61' &",
        "(setsid sh -c '(sleep 61 &) & exit' &)",  # Forked twice, its parents gone.
        "(trap '' TERM; setsid sh -c 'while :; do sleep 0.1; done') &",
        "sleep 61 >/dev/null 2>&1 </dev/null &",
    ],
)
def test_the_whole_tree_is_ended_also_what_left_the_group_or_the_session(tmp_path: Path, leaves: str) -> None:
    end, _, _ = stopped(tmp_path, f"{leaves}\necho ready; wait; sleep 60", grace=0.3)

    assert end.signal in ("SIGTERM", "SIGKILL")
    assert processes_of(tmp_path) == []


def test_a_child_that_cleared_its_environment_is_ended_too(tmp_path: Path) -> None:
    script = "(setsid env -i sleep 61 & echo $!); echo ready; sleep 60"

    _, output, _ = stopped(tmp_path, script, grace=0.3)

    assert not Path(f"/proc/{int(output.split()[0])}").exists()


def test_a_stopped_process_is_ended(tmp_path: Path) -> None:
    end, _, seconds = stopped(tmp_path, "sh -c 'kill -STOP $$' & sleep 0.1; echo ready; kill -STOP $$", grace=30)

    assert end.signal == "SIGTERM"
    assert seconds < 10


async def test_kill_has_no_grace(tmp_path: Path) -> None:
    async with running_guardians() as guardians:
        process, output = await started(guardians, tmp_path, "trap '' TERM; setsid sleep 61 & echo ready; sleep 60")
        await eventually(lambda: b"ready" in output)

        process.kill()

        assert (await process.ended()).signal == "SIGKILL"
        assert processes_of(tmp_path) == []


@pytest.mark.parametrize("leave_the_session", [False, True])
async def test_a_process_that_forks_on_and_on_does_not_outrun_the_end(tmp_path: Path, leave_the_session: bool) -> None:
    runner = f"""
import os, time
end = time.monotonic() + 20
os.fork() or os.fork()
print("ready", flush=True)
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    {"os.setsid()" if leave_the_session else "pass"}
"""

    async with running_guardians() as guardians:
        process, output = await started(guardians, tmp_path, runner, PYTHON, "-ISc")
        await eventually(lambda: b"ready" in output)
        began = time.monotonic()

        process.kill()

        await process.ended()
        assert time.monotonic() - began < 10
        assert processes_of(tmp_path) == []


async def test_told_before_it_has_begun_it_does_not_begin(tmp_path: Path) -> None:
    async with running_guardians() as guardians:
        before, _ = await started(guardians, tmp_path, "read line; sleep 0.3")
        await eventually(lambda: before.pid)
        server = processes()[guardian_of(before)][0]
        os.kill(server, signal.SIGSTOP)
        told = [(await started(guardians, tmp_path, "touch begun; sleep 60"))[0] for _ in range(2)]

        told[0].kill()
        told[1].stop(grace_seconds=30)
        os.kill(server, signal.SIGCONT)

        assert [(await process.ended()).signal for process in told] == ["SIGKILL", "SIGKILL"]
        await before.ended()

    assert not (tmp_path / "begun").exists()


# Ends by itself.


async def test_what_a_command_leaves_running_is_ended_before_its_end_is_told(tmp_path: Path) -> None:
    async with running_guardians() as guardians:
        script = "setsid sh -c 'trap \"echo told; exit\" TERM; echo up; sleep 61 & wait' & sleep 0.3; exit 3"
        process, output = await started(guardians, tmp_path, script)

        end = await process.ended()

        assert (end.exit_code, processes_of(tmp_path)) == (3, [])
        assert bytes(output) == b"up\ntold\n"


async def test_leftovers_that_ignore_TERM_are_killed_after_a_short_time(tmp_path: Path) -> None:
    async with running_guardians() as guardians:
        process, _ = await started(
            guardians, tmp_path, "(trap '' TERM; while :; do sleep 0.1; done) & sleep 0.3; exit 0"
        )
        began = time.monotonic() + 0.3

        end = await process.ended()

        assert (end.exit_code, processes_of(tmp_path)) == (0, [])
        assert LEFTOVER_GRACE * 0.9 < time.monotonic() - began < LEFTOVER_GRACE + 5


def test_a_command_ended_by_a_signal_says_which(tmp_path: Path) -> None:
    assert ended(tmp_path, "kill -SEGV $$") == (End(exit_code=139, signal="SIGSEGV"), b"")


def test_a_command_that_closes_its_output_early_is_waited_for(tmp_path: Path) -> None:
    assert ended(tmp_path, "echo last; exec >&- 2>&-; sleep 0.3; exit 4") == (End(exit_code=4), b"last\n")


async def test_zombies_are_reaped_while_the_command_runs(tmp_path: Path) -> None:
    orphans = "import os, time\nfor _ in range(20):\n    os.fork() or os._exit(0)\nprint('left', flush=True)"

    async with running_guardians() as guardians:
        process, output = await started(
            guardians, tmp_path, 'd=$1; "$0" -ISc "$d"; echo ready; sleep 60', "sh", "-c", PYTHON, orphans
        )
        await eventually(lambda: b"ready" in output)

        assert process.pid is not None
        parent = processes()[process.pid][0]
        await eventually(lambda: descendants(parent) and len(descendants(parent)) <= 2)
        process.kill()
        await process.ended()


# Environment and open files.


def test_a_command_gets_its_input_environment_and_directory_and_nothing_else_of_ours(tmp_path: Path) -> None:
    leaked = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    try:
        end, output = ended(tmp_path, "cat; echo; pwd; exec ls /proc/self/fd /proc/self/environ -m", stdin=b"[1]")
        _, given = ended(tmp_path, "exec cat /proc/self/environ")
    finally:
        os.close(leaked)

    assert output.decode().splitlines() == [
        "[1]",
        str(tmp_path),
        "/proc/self/environ",
        "",
        "/proc/self/fd:",
        "0, 1, 2, 3",
    ]
    assert end == End()
    variables = dict(pair.split("=", 1) for pair in given.decode().split("\0") if pair)
    assert {**variables, **environment(tmp_path)} == variables
    assert variables.keys() - environment(tmp_path).keys() <= {"PWD", "OLDPWD", "SHLVL", "_"}  # The shell's own.


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 300_000, 3_000_000])
def test_input_of_any_size_arrives_and_need_not_be_read(tmp_path: Path, size: int) -> None:
    data = b"x" * size

    assert ended(tmp_path, "wc -c", stdin=data)[1].strip() == str(size).encode()
    assert ended(tmp_path, "exec true", stdin=data) == (End(), b"")


def test_signals_that_we_ignore_are_not_ignored_by_the_command(tmp_path: Path) -> None:
    _, output = ended(tmp_path, "grep -E '^Sig(Ign|Blk)' /proc/self/status")

    assert output.split()[:3] == [b"SigBlk:", b"0" * 16, b"SigIgn:"]
    internal = 1 << 31 | 1 << 32  # Two that belong to the C library, which manages them itself.
    assert int(output.split()[3], 16) & ~internal == 0


@pytest.mark.parametrize(
    ("argv", "cwd", "refused"),
    [
        (("no-such-program",), None, ("program", 2)),
        (("./text",), None, ("program", 13)),
        (("./script",), None, ("program", 8)),
        (("true",), "nowhere", ("cwd", 2)),
    ],
)
async def test_what_cannot_be_started_says_why(
    tmp_path: Path, argv: tuple[str, ...], cwd: str | None, refused: tuple[str, int]
) -> None:
    for name, mode in (("text", 0o644), ("script", 0o755)):
        (tmp_path / name).write_text("echo without an interpreter named")
        (tmp_path / name).chmod(mode)

    async with running_guardians() as guardians:
        start = Start(argv=argv, env=environment(tmp_path), cwd=cwd or str(tmp_path))
        process = await guardians.start(start, lambda _: None)

        assert (await process.ended()).refused == refused


# When one of ours is killed.


async def test_when_a_guardian_is_killed_its_whole_tree_dies_with_it(tmp_path: Path) -> None:
    async with running_guardians() as guardians:
        process, output = await started(guardians, tmp_path, "setsid sleep 61 & (sleep 61 &) ; echo ready; sleep 60")
        await eventually(lambda: b"ready" in output)

        os.kill(guardian_of(process), signal.SIGKILL)

        assert (await process.ended()).lost == WAS_KILLED
        await eventually(lambda: not processes_of(tmp_path), seconds=5)


async def test_when_the_fork_server_is_killed_its_guardians_go_on_and_another_takes_over(tmp_path: Path) -> None:
    async with running_guardians() as guardians:
        process, output = await started(guardians, tmp_path, "setsid sleep 61 & echo ready; sleep 0.5; exit 6")
        await eventually(lambda: b"ready" in output)
        server = processes()[guardian_of(process)][0]
        os.kill(server, signal.SIGKILL)
        await eventually(lambda: _is_gone(server))

        other, _ = await started(guardians, tmp_path, "exit 7")

        assert (await other.ended()).exit_code == 7
        assert (await process.ended()).exit_code == 6
        assert processes_of(tmp_path) == []


async def test_a_lease_that_is_not_renewed_ends_the_tree_without_being_told(tmp_path: Path) -> None:
    async with running_guardians() as guardians:
        process, output = await started(guardians, tmp_path, "setsid sleep 61 & echo ready; sleep 60")
        await eventually(lambda: b"ready" in output)
        process.renew(now() + 0.2)
        process.renew(now() + 0.8)
        began = time.monotonic()

        end = await process.ended()

        assert end.signal == "SIGKILL"
        assert 0.7 < time.monotonic() - began < 5


async def test_many_commands_at_once_end_each_in_its_own_way(tmp_path: Path) -> None:
    async with running_guardians() as guardians:
        processes = [(await started(guardians, tmp_path, f"exit {code}"))[0] for code in range(60)]

        ends = [await process.ended() for process in processes]

        assert [end.exit_code for end in ends] == list(range(60))


# Survivors of an earlier scheduler process.


def test_survivors_are_found_by_their_run_id_and_no_other_process_is_touched(tmp_path: Path) -> None:
    mine, other, none = (survivor(tmp_path, run_id) for run_id in ("run-a", "run-ab", None))
    try:
        assert [one.pid for one in find_survivors(["run-a", "run-x"])] == [mine.pid]

        gone = end_survivors(["run-a", "run-x"])

        assert [(one.pid, one.run_id) for one in gone] == [(mine.pid, "run-a")]
        assert mine.wait(timeout=5) == -signal.SIGKILL
        assert (other.poll(), none.poll()) == (None, None)
        assert end_survivors(["run-a"]) == end_survivors([]) == []
    finally:
        for process in (mine, other, none):
            process.kill()
            process.wait()


# Arrangement.


@asynccontextmanager
async def running_guardians() -> AsyncIterator[Guardians]:
    guardians = Guardians()
    try:
        async with asyncio.timeout(30):
            yield guardians
    finally:
        guardians.close()


def environment(directory: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "NEXTSLOT_RUN_ID": f"test {directory}", "NEXTSLOT_ARTIFACTS": str(directory)}


async def started(
    guardians: Guardians, directory: Path, script: str, *program: str, stdin: bytes = b""
) -> tuple[Process, bytearray]:
    """Starts a script of the shell or of another program."""
    output = bytearray()
    first, *more = program or ("sh", "-c")
    argv = (first, more[0], script, *more[1:])
    start = Start(argv=argv, env=environment(directory), cwd=str(directory), stdin=stdin)
    return await guardians.start(start, output.extend), output


def ended(directory: Path, script: str, stdin: bytes = b"") -> tuple[End, bytes]:
    found: list[tuple[End, bytes]] = []

    async def main() -> None:
        async with running_guardians() as guardians:
            process, output = await started(guardians, directory, script, stdin=stdin)
            found.append((await process.ended(), bytes(output)))

    asyncio.run(main())
    return found[0]


def stopped(directory: Path, script: str, grace: float) -> tuple[End, str, float]:
    """Runs a script until it is ready, then stops it. Returns its end, its output and the seconds of the stop."""
    found: list[tuple[End, str, float]] = []

    async def main() -> None:
        async with running_guardians() as guardians:
            process, output = await started(guardians, directory, script)
            await eventually(lambda: b"ready" in output)
            began = time.monotonic()
            process.stop(grace)
            end = await process.ended()
            found.append((end, output.decode(), time.monotonic() - began))

    asyncio.run(main())
    return found[0]


def guardian_of(process: Process) -> int:
    assert process.pid is not None
    return processes()[process.pid][0]


def _is_gone(pid: int) -> bool:
    """Returns whether a process has ended. A zombie counts as ended."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def survivor(directory: Path, run_id: str | None) -> "subprocess.Popen[bytes]":
    env = {**environment(directory), "NEXTSLOT_RUN_ID": run_id}
    return subprocess.Popen(["sleep", "61"], env={name: value for name, value in env.items() if value is not None})
