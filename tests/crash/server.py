"""A real `nextslot serve` that is killed, and clients who load it over HTTP until it is, and after."""

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2

ROOT = Path(__file__).parents[2]
NEXTSLOT = Path(sys.executable).with_name("nextslot")
LIMIT = 3
CONFIGURATION = f"""
[job_types.tiny]
handler = "tests.crash.server_jobs:tiny"
retry_policy = {{ max_attempts = 100 }}
[offices.default]
max_concurrent_jobs = {LIMIT}
[extensions]
disabled = ["stories"]
"""
# A bound for what hangs; a machine that is busy with other things takes its time.
PATIENCE = 300.0


class Server:
    """One life of the process."""

    def __init__(
        self, data: Path, program: Sequence[str] = (str(NEXTSLOT),), environment: Mapping[str, str] | None = None
    ) -> None:
        command = [*program, "serve", "--port", "0", "--data", str(data)]
        self.process = subprocess.Popen(
            command,
            cwd=data,
            env={**_environment(data), **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.url: str | None = None

    def wait_until_ready(self) -> str:
        url = self.wait_until_ready_or_dead()
        assert url is not None, "the server ended"
        return url

    def wait_until_ready_or_dead(self) -> str | None:
        assert self.process.stdout is not None
        end = time.monotonic() + PATIENCE
        while self.url is None:
            assert time.monotonic() < end, "the server does not come up"
            if select.select([self.process.stdout], [], [], 0.1)[0]:
                line = self.process.stdout.readline()
                if not line:
                    return None
                at = max(line.find("http://"), line.find("https://"))
                self.url = line[at:].split()[0].rstrip("/") if at >= 0 else None
        return self.url

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def living(data: Path, program: Sequence[str] = (str(NEXTSLOT),)) -> Iterator[Server]:
    server = Server(data, program)
    try:
        yield server
    finally:
        server.kill()


def prepare(data: Path, more: str = "") -> Path:
    data.mkdir(parents=True, exist_ok=True)
    (data / "nextslot.toml").write_text(CONFIGURATION + more)
    for name in ("executions", "acknowledged"):
        (data / name).touch()
    return data


class Load:
    """Clients who submit one job after the other, each with a key, and ask again when nobody answers."""

    def __init__(self, data: Path, clients: int = 3, job_type: str = "tiny") -> None:
        self._job_type = job_type
        self._file = os.open(data / "acknowledged", os.O_WRONLY | os.O_APPEND)
        self._numbers = [0] * clients
        # By key: what was answered first. Asked again, it has to be the same.
        self.made: dict[str, str] = {}
        self.broken: list[str] = []
        self.refused = 0

    @contextmanager
    def on(self, url: str) -> Iterator[None]:
        over = threading.Event()
        clients = [
            threading.Thread(target=self._submit, args=(url, client, over)) for client in range(len(self._numbers))
        ]
        clients.append(threading.Thread(target=self._be_impolite, args=(url, over)))
        for client in clients:
            client.start()
        try:
            yield
        finally:
            over.set()
            for client in clients:
                client.join()

    def wait_for(self, answers: int) -> None:
        """Waits until this many more jobs are acknowledged, at any speed of the machine."""
        wanted, end = len(self.made) + answers, time.monotonic() + PATIENCE
        while len(self.made) < wanted:
            assert time.monotonic() < end, f"the server does not answer: {self.broken[-1:]}"
            time.sleep(0.001)

    def _submit(self, url: str, client: int, over: threading.Event) -> None:
        with httpx2.Client(base_url=url, timeout=60) as http:
            while not over.is_set():
                key = f"{client}-{self._numbers[client]}"
                try:
                    answer = http.post("/api/jobs", json={"job_type": self._job_type}, headers={"Idempotency-Key": key})
                except httpx2.TransportError:
                    return  # It was killed; the same key is asked for again in its next life.
                self._heard(client, key, answer)

    def _be_impolite(self, url: str, over: threading.Event) -> None:
        """Sends what is refused after it has touched the transaction that it shares with the others."""
        cycle = [{"job_type": self._job_type, "key": one, "depends_on": [other]} for one, other in ("ab", "ba")]
        with httpx2.Client(base_url=url, timeout=60) as http:
            while not over.is_set():
                try:
                    answer = http.post("/api/jobs/batch", json={"jobs": cycle})
                except httpx2.TransportError:
                    return
                if answer.status_code not in (422, 503):
                    self.broken.append(f"a cycle was answered {answer.status_code} {answer.text[:200]}")
                self.refused += 1

    def _heard(self, client: int, key: str, answer: httpx2.Response) -> None:
        if answer.status_code == 503 and answer.json()["code"] == "draining":
            time.sleep(0.01)
            return  # The server was told to stop and says so: send the request again.
        if answer.status_code not in (200, 201):
            self.broken.append(f"{key}: {answer.status_code} {answer.text[:200]}")
            return
        job_id = answer.json()["job_id"]
        if self.made.setdefault(key, job_id) != job_id:
            self.broken.append(f"{key} made {self.made[key]} and {job_id}")
        os.write(self._file, f"{job_id}\n".encode())
        self._numbers[client] += 1


def run(data: Path, *arguments: str, program: Sequence[str] = (str(NEXTSLOT),)) -> subprocess.CompletedProcess[str]:
    """Runs an offline command on a data directory."""
    command = [*program, *arguments, "--data", str(data)]
    return subprocess.run(
        command, cwd=data, env=_environment(data), capture_output=True, text=True, timeout=120, check=False
    )


def _environment(data: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "CRASH_WITNESS": str(data)}
