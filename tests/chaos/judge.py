"""What must hold in the end: compares what clients were answered, what the jobs left outside, and what is stored."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2

from tests.chaos.load import History
from tests.chaos.nodes import RUNNING, UNITS

ENDED = {"COMPLETED", "FAILED", "SKIPPED", "CANCELLED"}


def stored_jobs(url: str, key: str | None) -> list[dict[str, Any]]:
    """Returns every job, as the API shows it."""
    found: list[dict[str, Any]] = []
    headers = {"authorization": f"Bearer {key}"} if key else {}
    cursor = None
    while True:
        query: dict[str, Any] = {"limit": 500, **({"cursor": cursor} if cursor else {})}
        page = httpx2.get(f"{url}/api/jobs", params=query, headers=headers, timeout=60).raise_for_status().json()
        found += page["items"]
        if (cursor := page["next_cursor"]) is None:
            return found


class Witnesses:
    """The lines that jobs left outside."""

    def __init__(self, directory: Path) -> None:
        self.began: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        for line in _lines(directory / "lines"):
            word, job_id, _ = line.split(" ", 2)
            (self.began if word == "began" else self.ended)[job_id] += 1
        self.overlaps = _lines(directory / "overlaps")


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def violations(history: History, jobs: Sequence[dict[str, Any]], seen: Witnesses, has_one_clock: bool) -> Iterator[str]:
    yield from history.broken
    by_id = {job["job_id"]: job for job in jobs}
    for key, job_id in history.acknowledged.items():
        if job_id not in by_id:
            yield f"acknowledged job {job_id} of {key} is lost"
    for job_id in seen.began.keys() - by_id.keys():
        yield f"job {job_id} ran and is not stored"
    yield from _doubled(jobs, seen)
    yield from _chains(history, jobs)
    yield from (f"overlap: {line}" for line in seen.overlaps)
    for job_id in history.cancelled:
        if by_id[job_id]["status"] != "CANCELLED" or seen.began[job_id]:
            yield f"job {job_id} was cancelled before it began, and is {by_id[job_id]['status']}"
    if has_one_clock:
        yield from _crowded("jobs", jobs, RUNNING)
        yield from _crowded("cards", [job for job in jobs if job["job_type"] == "outside"], UNITS)


def _doubled(jobs: Sequence[dict[str, Any]], seen: Witnesses) -> Iterator[str]:
    for job_id, times in (seen.began + seen.ended).items():
        if seen.began[job_id] != 1 or seen.ended[job_id] > 1:
            yield f"job {job_id} began {seen.began[job_id]} times and ended {seen.ended[job_id]} times of {times} lines"
    for job in jobs:
        if job["status"] == "COMPLETED" and not (seen.began[job["job_id"]] and seen.ended[job["job_id"]]):
            yield f"job {job['job_id']} is COMPLETED and did not run"
        if job["status"] not in ENDED:
            yield f"job {job['job_id']} is {job['status']} in the end"


def _chains(history: History, jobs: Sequence[dict[str, Any]]) -> Iterator[str]:
    chains: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for job in jobs:
        chains[job["params"]["key"]].append(job)
    stopped = history.cancelled | history.interrupted
    for key, chain in chains.items():
        statuses = Counter(job["status"] for job in chain)
        first = [job for job in chain if job["retry_of"] is None]
        if key not in history.asked:
            yield f"chain {key} was never asked for"
        if len(first) != 1:
            yield f"key {key} made {len(first)} jobs"
        if statuses["COMPLETED"] > 1 or len({job["retry_of"] for job in chain}) != len(chain):
            yield f"chain {key} has {dict(statuses)}"
        if not statuses["COMPLETED"] and not any(job["job_id"] in stopped for job in chain) and not _is_given_up(chain):
            yield f"chain {key} never completed: {dict(statuses)}"


def _is_given_up(chain: list[dict[str, Any]]) -> bool:
    """Returns whether a chain may end without success: it was cancelled, or its handler was alone in two processes that
    died.
    """
    last = [job for job in chain if job["job_id"] not in {other["retry_of"] for other in chain}]
    is_cancelled = any(job["cancel_requested_at"] or job["status"] == "CANCELLED" for job in chain)
    return is_cancelled or (last[0]["job_type"] == "inside" and last[0]["permanently_failed"])


def _crowded(what: str, jobs: Sequence[dict[str, Any]], limit: int) -> Iterator[str]:
    """Finds limits that were exceeded, by the stored times: an end makes room for a start at the same instant."""
    ran = [job for job in jobs if job["started_at"]]
    steps = [(job["started_at"], 1) for job in ran] + [(job["finished_at"] or "9", -1) for job in ran]
    running = 0
    for at, step in sorted(steps):
        running += step
        if running > limit:
            yield f"{running} {what} run at {at}, and the limit is {limit}"
            return
