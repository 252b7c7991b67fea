"""A real Ray, a head and a worker as processes of this machine, for `scripts/ray_conformance.py`."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

# Ray finds no way to a machine with loopback only, unless it has other addresses too.
HEAD, WORKER, PORT = "10.99.0.1", "10.99.0.2", 6379
DASHBOARD = "http://127.0.0.1:8265"
START_SECONDS, TRIES = 900, 5
# Two jobs of one CPU fit on the head, and more on the worker.
HEAD_CPUS, WORKER_CPUS = 2, 4


class RayCluster:
    """The commands that start and kill the parts of one cluster; what runs is known to the machine alone."""

    def __init__(self, ray: str, place: Path) -> None:
        """Takes the program `ray`, and a directory whose path is short, because Ray's sockets are in it."""
        self._ray = ray
        self._place = place

    def start(self) -> None:
        place = ["--dashboard-host=127.0.0.1", f"--temp-dir={self._place}"]
        head = ["--head", f"--node-ip-address={HEAD}", f"--port={PORT}", *place]
        self._start(HEAD_CPUS, head, self.kill_everything)
        end = time.monotonic() + START_SECONDS
        while not _answers():
            assert time.monotonic() < end, "Ray's head does not answer"
            time.sleep(0.5)
        self.start_worker()

    def start_worker(self) -> None:
        # Without a head, this command waits a quarter of an hour: `_start` bounds it.
        self._start(WORKER_CPUS, [f"--address={HEAD}:{PORT}", f"--node-ip-address={WORKER}"], self.kill_worker)

    def kill_worker(self) -> bool:
        """Kills the daemon of the worker's machine; all else of Ray there ends with it. Returns False if none ran."""
        return _kill(lambda words: words[0].endswith("/raylet") and f"--node_ip_address={WORKER}" in words)

    def kill_everything(self) -> bool:
        """Kills every process of Ray, and none of a job's own tree."""
        names = ("ray::", "ray-dashboard-", str(Path(self._ray).resolve().parents[1]))
        return _kill(lambda words: words[0].startswith(names))

    def _start(self, cpus: int, arguments: list[str], clean_up: Callable[[], object]) -> None:
        """Starts a head or a worker; again if Ray gives up on its own parts, as it does on a busy machine."""
        size = [f"--num-cpus={cpus}", "--num-gpus=0", "--object-store-memory=80000000", "--disable-usage-stats"]
        argv = [self._ray, "start", *arguments, *size]
        environment = {
            **os.environ,
            "RAY_DASHBOARD_STARTUP_TIMEOUT_S": str(START_SECONDS),
            # A daemon whose own parts take longer, as on a busy machine, ends as after a defect of Ray.
            "RAY_agent_register_timeout_ms": str(1000 * START_SECONDS),
        }
        for number in range(1, TRIES + 1):
            try:
                done = subprocess.run(argv, capture_output=True, env=environment, timeout=START_SECONDS, text=True)
                said = done.stderr.strip().rpartition("\n")[2]
                if done.returncode == 0:
                    return
            except subprocess.TimeoutExpired:
                said = f"no answer within {START_SECONDS} seconds"
            sys.stdout.write(f"Ray did not start, try {number} of {TRIES}: {said}\n")
            clean_up()
        raise RuntimeError(f"Ray did not start in {TRIES} tries")


def _answers() -> bool:
    try:
        with urllib.request.urlopen(f"{DASHBOARD}/api/jobs/", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _kill(is_wanted: Callable[[list[str]], bool]) -> bool:
    found = False
    for one in Path("/proc").iterdir():
        with suppress(OSError):
            if one.name.isdigit() and (words := (one / "cmdline").read_text().split("\0")) != [""] and is_wanted(words):
                os.kill(int(one.name), signal.SIGKILL)
                found = True
    return found
