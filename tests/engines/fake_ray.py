"""Ray's jobs API as a small HTTP server that starts real processes, and lies as the real one does.

Written from the answers of Ray 2.60. `scripts/ray_conformance.py` runs the same tests on the real one.
"""

import json
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

START_SECONDS = 0.2
EXISTS = """Traceback (most recent call last):
  File "job_head.py", line 419, in submit_job
RuntimeError: Request failed with status code 400: Traceback (most recent call last):
ValueError: Job with submission_id {id} already exists. Please use a different submission_id.
"""
NOT_ENDED = "RuntimeError: Attempted to delete job '{id}', but it is in a non-terminal state {status}."
NO_NUMBER = "Traceback (most recent call last):\nTypeError: entrypoint_num_cpus must be a number, got <class 'str'>\n"
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


@dataclass
class RayJob:
    body: dict[str, Any]
    status: str = "PENDING"
    message: str = "Job has not started yet."
    process: "subprocess.Popen[bytes] | None" = None
    questions: int = 0
    log: str = ""
    is_stopping: bool = False


@dataclass
class FakeRay:
    """Loses every second answer to a submission; says of a running job at times that it waits, or that it has failed;
    answers some questions with an error; promises to stop a waiting job, and starts it later.
    """

    place: Path
    cpus: float = 64
    token: str | None = None
    is_lying: bool = True
    # Whether it accepts connections and does not answer them.
    is_silent: bool = False
    # Whether another server is at its address.
    is_another: bool = False
    jobs: dict[str, RayJob] = field(default_factory=dict)
    submissions: int = 0
    problems: list[str] = field(default_factory=list)
    _processes: "list[subprocess.Popen[bytes]]" = field(default_factory=list)
    _lock: Any = field(default_factory=threading.RLock)

    def __enter__(self) -> "FakeRay":
        fake = self

        class Handler(_Handler):
            ray = fake

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.is_silent = False
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def forget_all(self) -> None:
        """Does what a crash of Ray's head does: no job is known any more, and what was started goes on."""
        with self._lock:
            self.jobs.clear()

    def submit(self, body: dict[str, Any]) -> tuple[int, str]:
        handle = body["submission_id"]
        if not isinstance(body.get("entrypoint_num_cpus"), (int, float)):
            self.problems.append(f"{handle} has no CPUs")
            return 400, NO_NUMBER
        with self._lock:
            if handle in self.jobs:
                return 500, EXISTS.format(id=handle)
            self.jobs[handle] = job = RayJob(body)
            self.submissions += 1
            is_lost = self.is_lying and self.submissions % 2 == 1
        threading.Thread(target=self._run, args=(job,), daemon=True).start()
        return (0, "") if is_lost else (200, json.dumps({"job_id": handle, "submission_id": handle}))

    def show(self, handle: str) -> tuple[int, str]:
        with self._lock:
            job = self.jobs.get(handle)
            if job is None:
                return 404, f"Job {handle} does not exist"
            job.questions += 1
            lie = job.questions % 6 if self.is_lying and job.status == "RUNNING" else 0
            if lie == 5:
                return 500, "Traceback (most recent call last):\nray.exceptions.RpcError: the GCS is not there\n"
            return 200, json.dumps(self._shown(handle, job, {3: "PENDING", 4: "FAILED"}.get(lie, job.status)))

    def list(self) -> tuple[int, str]:
        with self._lock:
            return 200, json.dumps([self._shown(handle, job, job.status) for handle, job in self.jobs.items()])

    def stop(self, handle: str) -> tuple[int, str]:
        with self._lock:
            job = self.jobs.get(handle)
            if job is None:
                return 404, f"Job {handle} does not exist"
            is_running = job.status == "RUNNING"
            is_stopped = is_running or job.status == "PENDING"
            job.is_stopping = is_running
        if is_running:
            threading.Thread(target=self._stop, args=(job,), daemon=True).start()
        return 200, json.dumps({"stopped": is_stopped})

    def delete(self, handle: str) -> tuple[int, str]:
        with self._lock:
            job = self.jobs.get(handle)
            if job is None:
                return 404, f"Job {handle} does not exist"
            if job.status not in ENDED:
                return 500, NOT_ENDED.format(id=handle, status=job.status)
            del self.jobs[handle]
            return 200, json.dumps({"deleted": True})

    def _shown(self, handle: str, job: RayJob, status: str) -> dict[str, Any]:
        return {
            "type": "SUBMISSION",
            "submission_id": handle,
            "status": status,
            "entrypoint": job.body["entrypoint"],
            "message": job.message,
        }

    def _run(self, job: RayJob) -> None:
        time.sleep(START_SECONDS)
        while job.body["entrypoint_num_cpus"] > self.cpus:
            time.sleep(0.02)
        more = (job.body.get("runtime_env") or {}).get("env_vars", {})
        path = self.place / f"{job.body['submission_id']}.ray.log"
        with path.open("ab") as log:
            job.process = subprocess.Popen(
                job.body["entrypoint"],
                shell=True,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **more, "RAY_ADDRESS": "127.0.0.1:6379"},
            )
        self._processes.append(job.process)
        job.status, job.message = "RUNNING", "Job is currently running."
        code = job.process.wait()
        job.log = path.read_text()
        job.message = f"Job entrypoint command exited with {code}"
        job.status = "STOPPED" if job.is_stopping else "FAILED" if code else "SUCCEEDED"

    def _stop(self, job: RayJob) -> None:
        """Ends the process group, and leaves what has a group of its own."""
        process = job.process
        assert process is not None
        seconds = float(((job.body.get("runtime_env") or {}).get("env_vars") or {}).get("RAY_JOB_STOP_WAIT_TIME_S", 3))
        for number, wait in ((signal.SIGTERM, seconds), (signal.SIGKILL, 0)):
            if process.poll() is None:
                os.killpg(process.pid, number)
            end = time.monotonic() + wait
            while process.poll() is None and time.monotonic() < end:
                time.sleep(0.02)

    def kill_node(self, handle: str) -> None:
        """Does what the death of a machine's daemon does: its watcher kills the process group of the job."""
        process = self.jobs[handle].process
        assert process is not None
        os.killpg(process.pid, signal.SIGKILL)


class _Handler(BaseHTTPRequestHandler):
    ray: ClassVar[FakeRay]

    def do_GET(self) -> None:
        handle = self._handle()
        if handle.endswith("/logs"):
            job = self.ray.jobs.get(handle.removesuffix("/logs"))
            self._answer(404, f"Job {handle} does not exist") if job is None else self._answer(
                200, json.dumps({"logs": job.log})
            )
        else:
            self._answer(*(self.ray.show(handle) if handle else self.ray.list()))

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        handle = self._handle()
        if handle:
            self._answer(*self.ray.stop(handle.removesuffix("/stop")))
        else:
            self._answer(*self.ray.submit(json.loads(content)))

    def do_DELETE(self) -> None:
        self._answer(*self.ray.delete(self._handle()))

    def _handle(self) -> str:
        return self.path.removeprefix("/api/jobs/")

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        while self.ray.is_silent:
            time.sleep(0.02)
        if self.ray.is_another:
            self._answer(404, "Not Found")
            return False
        if self.ray.token is not None and self.headers.get("Authorization") != f"Bearer {self.ray.token}":
            self._answer(401, "Unauthorized: Missing authentication token")
            return False
        return True

    def _answer(self, code: int, said: str) -> None:
        if code:
            content = said.encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Writes nothing."""
