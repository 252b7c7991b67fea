"""A real Slurm on loopback: munged, slurmctld and slurmd as processes of a test session, without systemd."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

CONFIGURATION = """
ClusterName=nextslot
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort={controller}
SlurmdPort={node}
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
DefMemPerCPU=100
ReturnToService=2
MinJobAge=60
KillWait=2
AccountingStorageType=accounting_storage/none
GresTypes=gpu
JobAcctGatherType=jobacct_gather/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={node} CPUs=8 RealMemory=4000 Gres=gpu:4 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=gpu Nodes=ALL MaxTime=INFINITE State=UP
PartitionName=shut Nodes=ALL MaxTime=INFINITE State=DOWN
"""


class SlurmCluster:
    """The daemons of one cluster; each can be killed and started again."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.config = place / "slurm.conf"
        for name in ("state", "spool"):
            (place / name).mkdir(parents=True)
        key = place / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        host, ports = socket.gethostname().partition(".")[0], [_free_port(), _free_port()]
        text = CONFIGURATION.format(host=host, place=place, controller=ports[0], node=ports[1])
        self.config.write_text(text)
        # Any device files will do: the machine of the tests has no card.
        cards = [f"NodeName=n1 Name=gpu File=/dev/{name}\n" for name in ("full", "null", "random", "zero")]
        (place / "gres.conf").write_text("".join(cards))
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        names = ("key-file=munge.key", "socket=munge.socket", "pid-file=munge.pid", "seed-file=munge.seed")
        files = [f"--{name.partition('=')[0]}={self.place}/{name.partition('=')[2]}" for name in names]
        self._run("munged", "--force", "--foreground", *files)
        _until((self.place / "munge.socket").exists)
        self.start_controller()
        self.start_node()

    def start_node(self) -> None:
        self.start_busy_node()
        _until(lambda: b"idle" in self.ask("sinfo", "--noheader", "--partition=debug", "--format=%T"))

    def start_busy_node(self) -> None:
        """Starts the daemon of the node, and does not wait until the node is idle: runs of before may go on there."""
        self._run("slurmd", "-D", "-N", "n1", "-f", str(self.config))

    def start_controller(self) -> None:
        self._run("slurmctld", "-D", "-f", str(self.config))

    def resume(self) -> None:
        """Does what an operator does after a crash: Slurm drains a node whose job it has forgotten."""
        self.ask("scontrol", "update", "nodename=n1", "state=resume")

    def kill(self, name: str) -> None:
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def ask(self, *argv: str) -> bytes:
        done = subprocess.run(argv, capture_output=True, env={**os.environ, "SLURM_CONF": str(self.config)}, timeout=30)
        return done.stdout

    def stop(self) -> None:
        self.ask("scancel", "--user=root")
        for name in ("slurmd", "slurmctld", "munged"):
            if name in self._daemons:
                self._daemons[name].send_signal(signal.SIGTERM)
        for daemon in self._daemons.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(5)
            daemon.kill()

    def _run(self, name: str, *arguments: str) -> None:
        with (self.place / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen([name, *arguments], stdout=out, stderr=out, stdin=subprocess.DEVNULL)


@contextlib.contextmanager
def cluster(place: Path) -> Iterator[SlurmCluster]:
    """A running cluster. Without Slurm, or not as root, the test is skipped; in CI it fails."""
    missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if shutil.which(name) is None]
    problem = f"{', '.join(missing)} not installed" if missing else "not root" if os.getuid() != 0 else None
    if problem is not None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"no Slurm: {problem}")
    found = SlurmCluster(place)
    try:
        found.start()
        yield found
    finally:
        found.stop()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _until(is_so: object) -> None:
    end = time.monotonic() + 60
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < end, "Slurm did not start"
        time.sleep(0.1)
