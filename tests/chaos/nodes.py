"""A `nextslot serve` that is killed, stopped, restarted, and whose disk and clock are wrong at times."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx2

from tests.crash.faulty_machine import FaultyMachine

ROOT = Path(__file__).parents[2]
NEXTSLOT = Path(sys.executable).with_name("nextslot")
WITNESS = Path(__file__).with_name("witness.sh")
VARIABLES = {**os.environ, "PYTHONPATH": str(ROOT)}
UNITS, RUNNING = 2, 8
PERSISTENT = '{ max_attempts = 1000, backoff = "linear", base_delay_seconds = 0.1, max_delay_seconds = 0.5 }'
CONFIGURATION = f"""
[server]
allowed_hosts = ["*"]
shutdown_grace_seconds = 2
[limits]
running = {RUNNING}
resources = {{ card = {UNITS} }}
[job_types.outside]
command = ["sh", "{WITNESS}", "{{directory}}", "{{key}}", "{{seconds}}", "{UNITS}"]
resources = {{ card = 1 }}
grace_seconds = 1
retry_policy = {PERSISTENT}
[job_types.inside]
handler = "tests.chaos.jobs:inside"
retry_policy = {PERSISTENT}
[offices.default]
max_concurrent_jobs = 0
[store]
disk_warn_bytes = 0
disk_refuse_bytes = 0
[extensions]
disabled = ["stories"]
"""


class Node:
    """A server, life after life."""

    def __init__(
        self,
        name: str,
        directory: Path,
        host: str,
        port: int,
        *,
        database: str | None = None,
        inside: Sequence[str] = (),
    ) -> None:
        self.name, self.data, self.url = name, directory / name, f"http://{host}:{port}"
        self.log = directory / f"{name}.log"
        self.data.mkdir(mode=0o755)
        (self.data / "nextslot.toml").write_text(CONFIGURATION)
        self.machine = FaultyMachine(self.data, directory / f"{name}.machine")
        self._command = [*inside, str(NEXTSLOT), "serve", "--data", str(self.data)]
        self._command += ["--host", host, "--port", str(port)]
        if database is not None:
            self._command += ["--database", database, "--node", name]
        self._process: subprocess.Popen[bytes] | None = None
        self.lives = 0
        # Exit codes of lives that nobody ended.
        self.own_ends: list[int] = []

    def start(self) -> None:
        self.lives += 1
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self.data, env={**VARIABLES, **self.machine.environment()}, stdout=log, stderr=log
            )

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
            self._process = None

    def end(self) -> None:
        """Ends it in good order; kills it if it does not end."""
        if self._process is None:
            return
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def revive(self) -> None:
        """Starts it again if it has ended, as a service manager does."""
        if self._process is not None and self._process.poll() is not None:
            self.own_ends.append(self._process.returncode)
            self._process = None
        if self._process is None:
            self.start()

    def is_ready(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/ready", timeout=5).status_code == 200
        except httpx2.HTTPError:
            return False
