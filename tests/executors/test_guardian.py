"""Commands that attack their guardian, with real processes: the reported end is true, and no process is left."""

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nextslot.executors.process_tree.cgroups import group_of, own_cgroup, path_of
from nextslot.executors.process_tree.fork_server import Guardians
from nextslot.executors.process_tree.guardian import now
from nextslot.executors.process_tree.kill_tree import processes
from nextslot.executors.process_tree.process import SERVER_WAS_STOPPED, WAS_KILLED, WAS_STOPPED, End, Process, Start
from nextslot.executors.process_tree.run_marks import cgroup_of, tag_of
from nextslot.executors.process_tree.survivors import end_survivors, find_survivors
from tests.support import eventually, processes_of

PYTHON = sys.executable
BEAT = 0.2
Main = Callable[[Guardians], Awaitable[None]]

# A process that tries to escape: it left the session and the group, its parents have ended, its environment is cleared
# and its files are closed, except for the one by which the test sees that it lives.
DAEMON = "env -i setsid sh -c '(sleep 61 </dev/null >/dev/null 2>&1 &) &' & wait $!"
# Stops the guardian again whenever another process has continued it.
STOPPER = "(trap '' TERM; while kill -STOP $PPID; do sleep 0.01; done) &"


@pytest.fixture(params=["cgroup", "no cgroup"])
def cgroup(request: pytest.FixtureRequest) -> str:
    """Returns the cgroup in which guardians create others; "" means none."""
    found = own_cgroup()
    if request.param == "cgroup" and found is None:
        pytest.skip("no cgroup (version 2) can be made here")
    return found or "" if request.param == "cgroup" else ""


@pytest.fixture
def witness(tmp_path: Path) -> Iterator["Witness"]:
    one = Witness(tmp_path / "witness")
    yield one
    one.close()


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    asyncio.run(eventually(lambda: not processes_of(tmp_path), seconds=5))


# The guardian is stopped.


async def test_a_guardian_that_was_stopped_is_continued_and_its_command_ends_in_its_own_way(tmp_path: Path) -> None:
    async with running_guardians() as guardians:
        process, _ = await started(guardians, tmp_path, "kill -STOP $PPID; sleep 0.3; exit 4")

        assert await process.ended() == End(exit_code=4)


@pytest.mark.parametrize("told", ["nothing", "stop", "kill"])
async def test_a_guardian_that_is_stopped_again_is_killed_with_its_whole_tree(
    tmp_path: Path, witness: "Witness", cgroup: str, told: str
) -> None:
    async with running_guardians(cgroup) as guardians:
        process, output = await started(guardians, tmp_path, f"{DAEMON}; {STOPPER} setsid sleep 61 & echo ready; wait")
        await eventually(lambda: b"ready" in output)
        if told == "stop":
            process.stop(30)
        if told == "kill":
            process.kill()

        end = await process.ended()

        # Continued for a moment, it may obey before it is stopped again.
        assert end.lost == WAS_STOPPED or (told != "nothing" and end.signal is not None)
        assert witness.is_alone


async def test_a_guardian_that_was_stopped_before_it_could_say_anything_is_noticed_too(tmp_path: Path) -> None:
    async with running_guardians() as guardians:
        with stopping(await forking(guardians, tmp_path)):
            process, _ = await started(guardians, tmp_path, "touch begun; exit 4")

            end = await process.ended()

        # Continued for a moment, it may fork a guardian after all.
        assert (end.lost, end.exit_code) in ((SERVER_WAS_STOPPED, 0), (None, 4))
        assert (end.exit_code == 4) == (tmp_path / "begun").exists()
        other, _ = await started(guardians, tmp_path, "exit 7")
        assert (await other.ended()).exit_code == 7


async def test_a_fork_server_that_was_stopped_is_continued_for_the_next_command(tmp_path: Path) -> None:
    async with running_guardians() as guardians:
        os.kill(await forking(guardians, tmp_path), signal.SIGSTOP)

        process, _ = await started(guardians, tmp_path, "exit 8")

        assert await process.ended() == End(exit_code=8)


async def test_a_loop_that_was_blocked_kills_no_guardian(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    async with running_guardians() as guardians:
        process, output = await started(guardians, tmp_path, "echo ready; read line < go; exit 5")
        await eventually(lambda: b"ready" in output)

        for _ in range(3):  # Longer than many beats; and a guardian that was stopped as long, as all of us may be.
            os.kill(guardian_of(process), signal.SIGSTOP)
            time.sleep(4 * BEAT)  # noqa: ASYNC251 the loop is to be blocked
            os.kill(guardian_of(process), signal.SIGCONT)
            await asyncio.sleep(2 * BEAT)
        (tmp_path / "go").write_text("\n")

        assert await process.ended() == End(exit_code=5)


# The guardian is killed, or blocked.


async def test_a_command_that_kills_its_guardian_is_over_only_when_nothing_of_it_is_left(
    tmp_path: Path, witness: "Witness", cgroup: str
) -> None:
    async with running_guardians(cgroup) as guardians:
        process, _ = await started(guardians, tmp_path, f"{DAEMON}; setsid sleep 61 & kill -KILL $PPID; sleep 61")

        end = await process.ended()

        assert (end.lost, witness.is_alone) == (WAS_KILLED, True)


async def test_a_command_that_stops_the_fork_server_and_kills_its_guardian_is_ended(
    tmp_path: Path, witness: "Witness"
) -> None:
    async with running_guardians() as guardians:
        process, output = await started(guardians, tmp_path, f"{DAEMON}; echo ready; sleep 61")
        await eventually(lambda: b"ready" in output)

        os.kill(server_of(process), signal.SIGSTOP)
        os.kill(guardian_of(process), signal.SIGKILL)

        assert ((await process.ended()).lost, witness.is_alone) == (WAS_KILLED, True)


async def test_a_guardian_whose_answers_nobody_reads_still_keeps_its_lease(tmp_path: Path, witness: "Witness") -> None:
    async with running_guardians() as guardians:
        process, output = await started(guardians, tmp_path, f"{DAEMON}; echo ready; sleep 61")
        await eventually(lambda: b"ready" in output)
        process._loop.remove_reader(process._control)
        for _ in range(20_000):  # More than its socket holds; those that ours does not take are dropped.
            process._send_line("ping")

        def is_ended() -> bool:
            process.renew(now())
            return witness.is_alone

        await eventually(is_ended)
        process._loop.add_reader(process._control, process._receive)
        assert (await process.ended()).signal == "SIGKILL"


async def test_a_guardian_whose_socket_was_full_hears_of_the_stop_later(tmp_path: Path) -> None:
    async with running_guardians() as guardians:
        process, output = await started(guardians, tmp_path, "echo ready; exec sleep 61")
        await eventually(lambda: b"ready" in output)
        os.kill(guardian_of(process), signal.SIGSTOP)
        while process._send_line("ping"):
            pass

        process.stop(30)

        assert (await process.ended()).signal == "SIGTERM"


# Trees that grow while they are killed.


@pytest.mark.parametrize("how", ["kill", "guardian killed", "guardian stopped", "all killed"])
async def test_fifty_processes_that_keep_forking_are_ended_whole(
    tmp_path: Path, witness: "Witness", cgroup: str, how: str
) -> None:
    # Without a cgroup and a guardian there are only scans of /proc, each of which takes some hundredths of a second.
    pause = 0.01 if cgroup or how != "all killed" else 0.5
    bomb = f"""
import os, time
end = time.monotonic() + 25
for _ in range(49):
    if os.fork() == 0:
        break
else:
    print("ready", flush=True)
while time.monotonic() < end:
    time.sleep({pause})
    if os.fork():
        os._exit(0)
    os.setsid()
"""

    async with running_guardians(cgroup) as guardians:
        process, output = await started(guardians, tmp_path, bomb, PYTHON, "-ISc")
        await eventually(lambda: b"ready" in output)
        await eventually(lambda: process.guardian is not None)
        assert process.guardian is not None
        keeper, server = process.guardian[0], processes()[process.guardian[0]][0]
        if how == "kill":
            process.kill()
        with contextlib.ExitStack() as stack:
            if how == "guardian stopped":
                stack.enter_context(stopping(keeper))
            if how == "all killed":
                os.kill(server, signal.SIGKILL)
            if how in ("guardian killed", "all killed"):
                os.kill(keeper, signal.SIGKILL)
            await process.ended()
        if how == "all killed":
            await asyncio.to_thread(end_survivors, [run_id(tmp_path)])

        assert witness.is_alone


# Scheduler, fork server and guardians are dead.


async def test_what_cleared_its_environment_is_found_when_all_of_ours_were_killed(
    tmp_path: Path, witness: "Witness", cgroup: str
) -> None:
    async with running_guardians(cgroup) as guardians:
        process, output = await started(guardians, tmp_path, f"{DAEMON}; echo ready; sleep 61")
        await eventually(lambda: b"ready" in output)
        kill_ours(process)
        await process.ended()
        assert not witness.is_alone

        end_survivors([run_id(tmp_path)])

        assert witness.is_alone


async def test_what_changed_its_limits_is_found_by_its_cgroup(tmp_path: Path, witness: "Witness") -> None:
    if own_cgroup() is None:
        pytest.skip("no cgroup (version 2) can be made here")
    leaving = """
import os, resource
if os.fork() == 0:
    resource.setrlimit(resource.RLIMIT_RTTIME, (-1, -1))
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execve("/bin/sh", ["sh", "-c", "echo ready; exec sleep 61"], {})
os.wait()
"""

    async with running_guardians() as guardians:
        process, output = await started(guardians, tmp_path, f"{leaving}\nimport time; time.sleep(61)", PYTHON, "-ISc")
        await eventually(lambda: b"ready" in output)
        kill_ours(process)
        await process.ended()

        end_survivors([run_id(tmp_path)])

        assert witness.is_alone


async def test_a_guardian_that_was_stopped_ends_its_tree_when_its_scheduler_is_gone(
    tmp_path: Path, witness: "Witness"
) -> None:
    async with running_guardians() as guardians:
        process, output = await started(guardians, tmp_path, f"{DAEMON}; {STOPPER} echo ready; sleep 61")
        await eventually(lambda: b"ready" in output)
        os.kill(server_of(process), signal.SIGSTOP)
        process._next_beat.cancel()  # No process guards it, as if the scheduler had been killed.
        process._control.shutdown(2)
        guardians.close()
        os.kill(process._server[0], signal.SIGCONT)  # Which the kernel does at our death.

        await eventually(lambda: witness.is_alone)


def test_a_tag_is_a_limit_that_limits_nothing_and_no_other_process_has_it(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_RTTIME)

    async def main() -> None:
        async with running_guardians() as guardians:
            process, output = await started(
                guardians, tmp_path, "grep 'realtime timeout' /proc/self/limits; echo ready"
            )
            await process.ended()

            assert int(output.split()[3]) == tag_of(run_id(tmp_path)) > 10**18

    asyncio.run(main())

    assert resource.getrlimit(resource.RLIMIT_RTTIME) == before
    assert tag_of("a") != tag_of("b")
    assert find_survivors([]) == []
    asyncio.run(eventually(lambda: not find_survivors([run_id(tmp_path)])))  # Its guardian had it too.


# Cgroups.


async def test_a_command_has_a_cgroup_of_its_own_which_is_removed_after_it(tmp_path: Path) -> None:
    parent = own_cgroup()
    if parent is None:
        pytest.skip("no cgroup (version 2) can be made here")
    path = Path(parent, cgroup_of(run_id(tmp_path)))

    async with running_guardians() as guardians:
        process, _ = await started(guardians, tmp_path, "grep ^0:: /proc/self/cgroup; sleep 61")
        await eventually(lambda: process.pid is not None)
        assert process.pid is not None
        assert path_of(group_of(process.pid) or "") == str(path)

        process.kill()
        await process.ended()

        await eventually(lambda: not path.exists())


async def test_a_cgroup_is_entered_before_the_command_starts_and_killed_when_its_guardian_was(tmp_path: Path) -> None:
    fake = tmp_path / "fake"
    fake.mkdir()
    path = fake / cgroup_of(run_id(tmp_path))

    async with running_guardians(str(fake)) as guardians:
        process, output = await started(guardians, tmp_path, "cat fake/*/cgroup.procs; echo; echo ready; sleep 61")
        await eventually(lambda: b"ready" in output)
        keeper = guardian_of(process)
        assert (int(output.split()[0]), (path / "cgroup.kill").exists()) == (keeper, False)

        os.kill(keeper, signal.SIGKILL)
        await process.ended()

        assert (path / "cgroup.kill").read_text() == "1"


async def test_a_command_runs_without_a_cgroup_where_none_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    async with running_guardians(str(tmp_path / "file")) as guardians:
        process, _ = await started(guardians, tmp_path, "exit 3")

        assert (await process.ended()).exit_code == 3


@pytest.mark.parametrize(
    ("root", "point", "group", "path"),
    [
        ("/", "/sys/fs/cgroup", "/", "/sys/fs/cgroup"),
        ("/", "/sys/fs/cgroup", "/system.slice/a.service", "/sys/fs/cgroup/system.slice/a.service"),
        ("/docker/x", "/sys/fs/cgroup", "/docker/x/y", "/sys/fs/cgroup/y"),
        ("/docker/x", "/sys/fs/cgroup", "/docker/xy", None),
        ("/docker/x", "/sys/fs/cgroup", "/../z", None),
    ],
)
def test_a_cgroup_is_found_below_what_is_mounted(
    tmp_path: Path, root: str, point: str, group: str, path: str | None
) -> None:
    for name in ("self", "1"):
        (tmp_path / name).mkdir()
    (tmp_path / "1/cgroup").write_text(f"4:memory:/elsewhere\n0::{group}\n")
    (tmp_path / "self/mountinfo").write_text(
        f"30 1 0:26 / /sys rw - sysfs sysfs rw\n42 32 0:28 {root} {point} rw,relatime - cgroup2 cgroup2 rw\n"
    )

    assert path_of(group_of(1, tmp_path) or "", tmp_path) == path
    assert group_of(2, tmp_path) is None


# Arrangement.


class Witness:
    """A pipe that every process of a command inherits. Its end proves that no process is left; a scan may miss one."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    @property
    def is_alone(self) -> bool:
        try:
            return os.read(self._fd, 1) == b""
        except BlockingIOError:
            return False

    def close(self) -> None:
        os.close(self._fd)


@asynccontextmanager
async def running_guardians(cgroup: str | None = None) -> AsyncIterator[Guardians]:
    guardians = Guardians(BEAT, cgroup)
    try:
        async with asyncio.timeout(60):
            yield guardians
    finally:
        guardians.close()


def run_id(directory: Path) -> str:
    return f"test {directory}"


async def started(guardians: Guardians, directory: Path, script: str, *program: str) -> tuple[Process, bytearray]:
    """Starts a script of the shell or of another program. Every process of it holds the witness, if there is one."""
    output = bytearray()
    env = {"PATH": os.environ["PATH"], "NEXTSLOT_RUN_ID": run_id(directory), "NEXTSLOT_ARTIFACTS": str(directory)}
    argv = (*(program or ("sh", "-c")), script)
    if (directory / "witness").exists():
        argv = ("sh", "-c", 'exec 9>witness; exec "$@"', "sh", *argv)
    return await guardians.start(Start(argv=argv, env=env, cwd=str(directory)), output.extend), output


async def forking(guardians: Guardians, directory: Path) -> int:
    """Returns the fork server, after its first command."""
    process, _ = await started(guardians, directory, "exit 0")
    await process.ended()
    return process._server[0]


def guardian_of(process: Process) -> int:
    assert process.guardian is not None
    return process.guardian[0]


def server_of(process: Process) -> int:
    return processes()[guardian_of(process)][0]


def kill_ours(process: Process) -> None:
    """Kills scheduler, fork server and guardian at once, so that none of them can react."""
    ours = (server_of(process), guardian_of(process))
    for pid in ours:
        os.kill(pid, signal.SIGSTOP)
    for pid in reversed(ours):
        os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def stopping(pid: int) -> Iterator[None]:
    """Stops a process again whenever another process has continued it."""
    os.kill(pid, signal.SIGSTOP)
    stopper = subprocess.Popen(["sh", "-c", f"while kill -STOP {pid} 2>/dev/null; do :; done"])
    try:
        yield
    finally:
        stopper.kill()
        stopper.wait()
