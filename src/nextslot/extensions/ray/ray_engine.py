"""RayEngine: submits, finds, observes and stops jobs with Ray's jobs API (`/api/jobs/`).

The submission id of a job is made of the run's id, so Ray itself refuses a second submission of a run. Each request has
a limited time and each answer a limited size. Ray's states are hints: it may forget all jobs with a crash of its head,
call a job failed whose processes live, and keep a job waiting that it has promised to stop.
"""

import json
import os
import shlex
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx2

from nextslot.errors import Problem
from nextslot.executors.engines.contract import (
    Cause,
    EngineKind,
    Key,
    Refused,
    Seen,
    Sight,
    Submission,
    Unreachable,
)

PREFIX = "nextslot-"
DEFAULT_ADDRESS = "http://127.0.0.1:8265"
CONNECT_SECONDS, ANSWER_SECONDS, MOST_ANSWER_BYTES = 5.0, 30.0, 64 * 1024 * 1024
# The list has the jobs of all users since the start of the cluster, so a few runs are requested one by one.
MOST_SINGLE = 20
# Ended jobs wait so long for their deletion: Ray refuses it until it has seen the end, and a job that is deleted in the
# second after that comes back as a failed one.
FORGET_SECONDS, MOST_FORGOTTEN = 10.0, 1000
# Ray's head gives up a job that has waited for resources for 15 minutes. For nextslot it has waited on no engine then.
NOT_STARTED = "failed to start within"
# Ray's stop sends TERM to every process of a job, and after this many seconds KILL: time for the wrapper to write the
# end. Ray's own default is 3 seconds.
STOP_VARIABLE, STOP_MARGIN = "RAY_JOB_STOP_WAIT_TIME_S", 15.0
ADDRESS, TOKEN, CPUS, RESOURCES, RUNTIME = "address", "token_env", "cpus", "resources", "runtime_env"
# The field of a submission for each option that is a number.
NUMBERS = {CPUS: "entrypoint_num_cpus", "gpus": "entrypoint_num_gpus", "memory": "entrypoint_memory"}
OPTIONS = (*NUMBERS, RESOURCES, RUNTIME, ADDRESS, TOKEN)
OWN_RESOURCES = {"CPU": CPUS, "GPU": "gpus", "memory": "memory"}
SIGHTS = {
    "PENDING": Sight.QUEUED,
    "RUNNING": Sight.RUNNING,
    "SUCCEEDED": Sight.ENDED,
    "FAILED": Sight.ENDED,
    "STOPPED": Sight.ENDED,
}
CAUSES = {"STOPPED": Cause.CANCELLED}


class RayEngine:
    """A handle is the submission id of a job."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._base = str(options.get(ADDRESS, DEFAULT_ADDRESS)).rstrip("/")
        self._token = options.get(TOKEN)
        self._forgotten: deque[tuple[float, str]] = deque(maxlen=MOST_FORGOTTEN)
        # Each request has a connection of its own: a kept one would hang after a crash of the head.
        self._client = httpx2.Client(
            timeout=httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(max_keepalive_connections=0),
            trust_env=False,
        )

    def submit(self, submission: Submission) -> str:
        handle = f"{PREFIX}{submission.run_id}"
        code, said = self._send("POST", "", _request(handle, submission))
        if code == 500 and "already exists" in said and (job := self._job(handle)) is not None:
            if _seen(job).sight is not Sight.ABSENT:
                return handle
            self._send("DELETE", handle)
            code, said = self._send("POST", "", _request(handle, submission))
        if code == 200:
            return handle
        # The head passes an error of the machine that starts the job on as 500, with the error's own code in the text.
        if code in (400, 413, 422) or "status code 400" in said:
            raise Refused(_last_line(said))
        raise self._no_answer(code, said)

    def find(self, run_id: str) -> list[str]:
        job = self._job(f"{PREFIX}{run_id}")
        return [] if job is None or _seen(job).sight is Sight.ENDED else [f"{PREFIX}{run_id}"]

    def observe(self, keys: Sequence[Key]) -> Mapping[str, Seen]:
        if not keys:
            self._job(f"{PREFIX}is-there")
        if len(keys) <= MOST_SINGLE:
            return {key.run_id: _seen(self._job(key.handle)) for key in keys}
        jobs = {one.get("submission_id"): one for one in self._list()}
        return {key.run_id: _seen(jobs.get(key.handle)) for key in keys}

    def logs(self, key: Key, offset: int) -> bytes:
        """Returns what Ray has written about a job: the cause, if it could not be started, and the driver's log."""
        job = self._job(key.handle)
        if job is None:
            return b""
        code, said = self._send("GET", f"{key.handle}/logs")
        found = _json(said) if code == 200 else None
        log = found.get("logs") if isinstance(found, dict) else ""
        return f"{_last_line(str(job.get('message') or ''))}\n{log or ''}".encode()[offset:]

    def stop(self, key: Key, grace_seconds: float) -> None:
        """Requests a stop. Ray answers so for a waiting job too, and starts it later: the run's claim then ends it."""
        code, said = self._send("POST", f"{key.handle}/stop")
        if code != 200 and not _is_absent(code, said):
            raise self._no_answer(code, said)

    def forget(self, key: Key) -> None:
        """Deletes jobs that were forgotten a while ago; the last ones of a server stay in Ray's list."""
        now = time.monotonic()
        self._forgotten.append((now + FORGET_SECONDS, key.handle))
        for due_at, handle in [self._forgotten.popleft() for _ in range(min(len(self._forgotten), MOST_SINGLE))]:
            if due_at > now:
                self._forgotten.append((due_at, handle))
                continue
            try:
                job = self._job(handle)
                is_gone = job is None or (_seen(job).sight is Sight.ENDED and self._send("DELETE", handle)[0] == 200)
            except Unreachable:
                is_gone = False
            if not is_gone:
                self._forgotten.append((now + FORGET_SECONDS, handle))

    def _job(self, handle: str) -> Mapping[str, Any] | None:
        code, said = self._send("GET", handle)
        if _is_absent(code, said):
            return None
        found = _json(said) if code == 200 else None
        if not isinstance(found, dict) or found.get("submission_id") != handle:
            raise self._no_answer(code, said)
        return found

    def _list(self) -> list[Mapping[str, Any]]:
        code, said = self._send("GET", "")
        found = _json(said) if code == 200 else None
        if not isinstance(found, list):
            raise self._no_answer(code, said)
        return [one for one in found if isinstance(one, dict)]

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, str]:
        """Returns the status code and the text of an answer. Follows no redirect, and uses no proxy."""
        over_at = time.monotonic() + ANSWER_SECONDS
        url = f"{self._base}/api/jobs/{path}"
        try:
            with self._client.stream(method, url, json=body, headers=self._headers()) as response:
                found = bytearray()
                for part in response.iter_bytes():
                    found += part
                    if len(found) > MOST_ANSWER_BYTES:
                        raise Unreachable(f"Ray's answer has more than {MOST_ANSWER_BYTES:,} bytes")
                    if time.monotonic() > over_at:
                        raise Unreachable(f"Ray did not answer within {ANSWER_SECONDS:g} seconds")
                return response.status_code, found.decode("utf-8", "replace")
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise Unreachable(f"Ray at {self._base} does not answer: {str(error) or type(error).__name__}") from error

    def _headers(self) -> dict[str, str]:
        if self._token is None:
            return {}
        token = os.environ.get(self._token)
        if not token:
            raise Unreachable(f"the variable {self._token}, which must have Ray's token, is not set for the server")
        return {"Authorization": f"Bearer {token}"}

    def _no_answer(self, code: int, said: str) -> Unreachable:
        if code in (401, 403):
            return Unreachable(f"Ray at {self._base} refuses the token ({code}); name its variable with token_env")
        return Unreachable(f"Ray at {self._base} answered {code}: {_last_line(said) or 'nothing'}")


def _request(handle: str, submission: Submission) -> dict[str, Any]:
    options = submission.options
    runtime = dict(options.get(RUNTIME, {}))
    runtime["env_vars"] = {STOP_VARIABLE: str(round(submission.grace_seconds + STOP_MARGIN))}
    made: dict[str, Any] = {
        "entrypoint": f"exec {shlex.join(submission.argv)}",
        "submission_id": handle,
        "runtime_env": runtime,
        # Ray runs a job that requests no CPU on the head node, and any number of such jobs at once.
        NUMBERS[CPUS]: 1,
    }
    for name, field in NUMBERS.items():
        if name in options:
            made[field] = options[name]
    if options.get(RESOURCES):
        made["entrypoint_resources"] = dict(options[RESOURCES])
    return made


def _is_absent(code: int, said: str) -> bool:
    """Returns whether Ray says that there is no such job. Another 404 is the answer of something that is not Ray."""
    return code == 404 and "does not exist" in said


def _seen(job: Mapping[str, Any] | None) -> Seen:
    if job is None:
        return Seen(Sight.ABSENT)
    status = str(job.get("status"))
    if status == "FAILED" and NOT_STARTED in str(job.get("message")):
        return Seen(Sight.ABSENT)
    # A state that this release does not know: what counts are the wrapper's records.
    sight = SIGHTS.get(status, Sight.RUNNING)
    words = "" if sight is Sight.RUNNING else f"Ray: {status}, {_last_line(str(job.get('message') or ''))}"
    return Seen(sight, words, CAUSES.get(status))


def _json(said: str) -> Any:  # What Ray answers, checked by each caller.
    try:
        return json.loads(said)
    except ValueError:
        return None


def _last_line(said: str) -> str:
    """Returns the line of a traceback that says what is wrong."""
    lines = [line.strip() for line in said.replace("\\n", "\n").splitlines()]
    return next((line for line in reversed(lines) if line and line not in ("'", '"', ".")), "")[:1000]


def _check(options: Mapping[str, Any]) -> Iterator[Problem]:
    for name, value in options.items():
        if name not in OPTIONS:
            yield Problem(name, f"is not an option of Ray here; there are: {', '.join(OPTIONS)}")
        elif name in NUMBERS:
            yield from _number_problems(name, value, whole=name == "memory", is_zero_allowed=name != "memory")
        elif name == RESOURCES:
            yield from _resource_problems(value)
        elif name == RUNTIME:
            yield from _runtime_problems(value)
        elif not isinstance(value, str) or not value:
            yield Problem(name, f"is not a text; write for example {_example(name)!r}")
        elif name == ADDRESS and not value.startswith(("http://", "https://")):
            yield Problem(name, f"is not an address of Ray's dashboard; write for example {DEFAULT_ADDRESS!r}")


def _example(name: str) -> str:
    return DEFAULT_ADDRESS if name == ADDRESS else "RAY_AUTH_TOKEN"


def _number_problems(name: str, value: Any, *, whole: bool, is_zero_allowed: bool) -> Iterator[Problem]:
    is_number = type(value) is int or (type(value) is float and not whole and value == value and value != float("inf"))
    if not is_number or value < 0 or (value == 0 and not is_zero_allowed):
        kind = (
            "a whole number of bytes above 0; write for example 1000000000" if whole else "a number of them from 0 on"
        )
        yield Problem(name, f"is not {kind}")


def _resource_problems(value: Any) -> Iterator[Problem]:
    if not isinstance(value, Mapping):
        yield Problem(RESOURCES, "is not a table of numbers; write for example { accelerator = 1 }")
        return
    for name, units in value.items():
        if name in OWN_RESOURCES:
            yield Problem(f"{RESOURCES}.{name}", f"has an option of its own; write {OWN_RESOURCES[name]} = …")
        else:
            yield from _number_problems(f"{RESOURCES}.{name}", units, whole=False, is_zero_allowed=True)


def _runtime_problems(value: Any) -> Iterator[Problem]:
    if not isinstance(value, Mapping):
        yield Problem(RUNTIME, 'is not a table; write for example { pip = ["numpy"] }')
    elif "env_vars" in value:
        # Ray shows them to everybody who can read its jobs.
        yield Problem(f"{RUNTIME}.env_vars", "is not passed on; write them into env of the job type")


KIND = EngineKind(
    make=lambda name, options: RayEngine(options),
    check=_check,
    engine_only=(ADDRESS, TOKEN),
    variables=("RAY_", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_"),
    poll_seconds=2.0,
)
