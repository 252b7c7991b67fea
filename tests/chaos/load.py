"""Clients of the servers: they submit with keys and ask again, cancel, read, follow; some send what is refused."""

import contextlib
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx2

MOST_WAITING = 150
REFUSED = range(400, 500)


class History:
    """What clients asked for and were answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By the key of the chain: the job that was acknowledged first. Asked again, it has to be the same.
        self.acknowledged: dict[str, str] = {}
        self.asked: set[str] = set()
        self.cancelled: set[str] = set()
        self.interrupted: set[str] = set()
        self.answers: Counter[str] = Counter()
        self.refused = 0
        self.events = 0
        self.broken: list[str] = []

    def ask(self, key: str) -> None:
        with self._lock:
            self.asked.add(key)

    def acknowledge(self, key: str, job_id: str) -> None:
        with self._lock:
            if self.acknowledged.setdefault(key, job_id) != job_id:
                self.broken.append(f"key {key} made {self.acknowledged[key]} and {job_id}")

    def answer(self, answer: httpx2.Response) -> None:
        with self._lock:
            self.answers[f"{answer.status_code}"] += 1

    def breaks(self, what: str) -> None:
        with self._lock:
            self.broken.append(what)


class Load:
    """Clients in threads, from `start` to `stop`."""

    def __init__(
        self, urls: Sequence[str], key: str | None, directory: str, seed: int, ended: Callable[[], int]
    ) -> None:
        self.history = History()
        self._urls, self._directory, self._ended = urls, directory, ended
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._over = threading.Event()
        works = [self._submit] * 3 + [self._batch, self._cancel, self._be_impolite, self._hang_up, self._look]
        self._threads = [
            threading.Thread(target=self._run, args=(work, f"{work.__name__[1:]}{number}", seed), daemon=True)
            for number, work in enumerate(works)
        ]
        self._threads.append(threading.Thread(target=self._follow, args=(random.Random(seed),), daemon=True))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(90)

    def _run(self, work: Callable[[random.Random, str], None], name: str, seed: int) -> None:
        chance, number = random.Random(f"{seed}-{name}"), 0
        while not self._over.is_set():
            number += 1
            try:
                work(chance, f"{name}-{number}")
            except httpx2.HTTPError:
                pass
            except Exception as error:
                self.history.breaks(f"a client failed: {error!r}")
            self._over.wait(chance.uniform(0, 0.25))

    def _call(self, chance: random.Random, method: str, path: str, **more: Any) -> httpx2.Response:
        headers = {**self._headers, **more.pop("headers", {})}
        answer = httpx2.request(method, chance.choice(self._urls) + path, headers=headers, timeout=20, **more)
        self.history.answer(answer)
        if answer.status_code >= 500 and answer.status_code != 503:
            self.history.breaks(f"{method} {path} was answered {answer.status_code} {answer.text[:300]}")
        return answer

    def _until_answered(self, chance: random.Random, key: str, path: str, body: Any) -> Any:
        """Sends the request with the same key, to any node, until it is answered or the test ends."""
        self.history.ask(key)
        while not self._over.is_set():
            with contextlib.suppress(httpx2.HTTPError):
                answer = self._call(chance, "POST", path, json=body, headers={"idempotency-key": key})
                if answer.status_code in (200, 201):
                    return answer.json()
                if answer.status_code < 500:
                    self.history.breaks(f"{key} was answered {answer.status_code} {answer.text[:300]}")
                    return None
            self._over.wait(chance.uniform(0.05, 0.5))
        return None

    def _wanted(self, chance: random.Random, key: str) -> dict[str, Any]:
        seconds = round(chance.choice((0, 0.02, 0.2, 1.5)) * chance.random(), 3)
        params = {"directory": self._directory, "key": key, "seconds": seconds}
        return {"job_type": chance.choice(("outside", "inside")), "params": params}

    def _wait_for_room(self) -> None:
        while len(self.history.acknowledged) - self._ended() > MOST_WAITING and not self._over.wait(0.5):
            pass

    def _submit(self, chance: random.Random, key: str) -> None:
        self._wait_for_room()
        if (made := self._until_answered(chance, key, "/api/jobs", self._wanted(chance, key))) is not None:
            self.history.acknowledge(key, made["job_id"])

    def _batch(self, chance: random.Random, key: str) -> None:
        """Submits three jobs, one after the other."""
        self._wait_for_room()
        keys = [f"{key}.{place}" for place in range(3)]
        jobs = [{**self._wanted(chance, one), "key": one} for one in keys]
        for job, before in zip(jobs[1:], keys, strict=False):
            job["depends_on"] = [before]
        for one in keys:
            self.history.ask(one)
        if (made := self._until_answered(chance, key, "/api/jobs/batch", {"jobs": jobs})) is not None:
            for one, job in zip(keys, made["items"], strict=True):
                self.history.acknowledge(one, job["job_id"])
        self._over.wait(1)

    def _cancel(self, chance: random.Random, key: str) -> None:
        """Submits one, and cancels it soon."""
        made = self._until_answered(chance, key, "/api/jobs", self._wanted(chance, key))
        if made is None:
            return
        self.history.acknowledge(key, made["job_id"])
        self._over.wait(chance.uniform(0, 1))
        answer = self._call(chance, "POST", f"/api/jobs/{made['job_id']}/cancel", json={"interrupt": True})
        if answer.status_code == 200:
            self.history.cancelled.add(made["job_id"])
        elif answer.status_code == 202:
            self.history.interrupted.add(made["job_id"])
        elif answer.status_code not in (409, 503):
            self.history.breaks(f"a cancel was answered {answer.status_code} {answer.text[:300]}")

    def _be_impolite(self, chance: random.Random, key: str) -> None:
        """Sends what is refused, some of it after it has touched the transaction that it shares with others."""
        job = {"job_type": "inside", "params": {"directory": self._directory, "key": "nobody", "seconds": 0}}
        cycle = [{**job, "key": one, "depends_on": [other]} for one, other in ("ab", "ba")]
        half = [job, {**job, "depends_on": ["nobody"]}]
        refused: list[tuple[str, str, dict[str, Any]]] = [
            ("POST", "/api/jobs/batch", {"json": {"jobs": cycle}}),
            ("POST", "/api/jobs/batch", {"json": {"jobs": half}}),
            ("POST", "/api/jobs", {"json": {"job_type": "nothing"}}),
            ("POST", "/api/jobs", {"json": {"job_type": "outside", "params": {"seconds": []}}}),
            ("POST", "/api/jobs", {"content": b'{"job_type": "inside", ' + b"[" * 5000}),
            ("POST", "/api/jobs", {"content": b"\xff\xfe", "headers": {"content-type": "application/json"}}),
            ("GET", "/api/jobs?cursor=%00%ff", {}),
            ("GET", "/api/jobs?limit=-1", {}),
            ("DELETE", "/api/nothing", {}),
            ("POST", "/api/jobs/nothing/cancel", {"json": {}}),
        ]
        method, path, more = chance.choice(refused)
        answer = self._call(chance, method, path, **more)
        self.history.refused += 1
        if answer.status_code != 503 and answer.status_code not in REFUSED:
            self.history.breaks(f"{method} {path} should be refused: {answer.status_code} {answer.text[:300]}")

    def _hang_up(self, chance: random.Random, key: str) -> None:
        """Sends a part of a request, and goes."""
        parts = urlsplit(chance.choice(self._urls))
        text = b'POST /api/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: 90\r\n\r\n{"job_type": "inside"'
        with (
            contextlib.suppress(OSError),
            socket.create_connection((parts.hostname or "", parts.port or 80), 5) as line,
        ):
            line.sendall(text[: chance.randrange(1, len(text))])
            self._over.wait(chance.uniform(0, 0.2))

    def _look(self, chance: random.Random, key: str) -> None:
        job_id = chance.choice([*self.history.acknowledged.values()] or ["none"])
        paths = ("/api/jobs?limit=20", "/api/status", f"/api/jobs/{job_id}", f"/api/jobs/{job_id}/why", "/metrics")
        self._call(chance, "GET", chance.choice(paths))

    def _follow(self, chance: random.Random) -> None:
        """Follows the events over all crashes: each number once, none left out."""
        last = 0
        while not self._over.is_set():
            headers = {**self._headers, "accept": "text/event-stream", "last-event-id": str(last)}
            with contextlib.suppress(httpx2.HTTPError):
                url = f"{chance.choice(self._urls)}/api/events"
                with httpx2.stream("GET", url, headers=headers, timeout=20) as answer:
                    for number in _numbers(answer) if answer.status_code == 200 else ():
                        if number != last + 1:
                            self.history.breaks(f"event {number} came after {last}")
                        last = number
                        self.history.events += 1
                        if self._over.is_set():
                            break
            self._over.wait(0.5)


def _numbers(answer: httpx2.Response) -> Iterator[int]:
    """Returns the numbers of the events of a stream. Its own messages (`end`, `error`) are no events."""
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        name, _, value = line.partition(": ")
        if line:
            fields[name] = value
            continue
        if "data" in fields and fields.get("event") not in ("end", "error"):
            yield int(fields["id"])
        fields = {}


def wait_until(is_so: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.5)
    return True
