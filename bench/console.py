"""Measures the console's size, and the time until it shows content: `uv run python bench/console.py [--jobs 1000000]`.

Starts a real server on a new database with that many jobs, and Chromium with an empty cache. The size is what went over
the wire until the view was complete.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

ROOT = Path(__file__).parents[1]
# Replaces this folder on the path: its `http.py` would hide the library's `http`.
sys.path[0] = str(ROOT)

from nextslot import NewJob, Scheduler  # noqa: E402
from nextslot.server.app import Options  # noqa: E402
from nextslot.server.serve import Process  # noqa: E402
from tests.browser import open_browser  # noqa: E402

BATCH = 50_000
# A view, and the selector of an element that it must show.
VIEWS = {
    "overview": ".card",
    "now": ".queue li",
    "jobs": "tbody tr",
    "jobs?q={newest}&status=QUEUED": "tbody tr",
    "jobs/{job}": ".steps",
    "jobs/{talkative}": "pre.log .row",
    "schedules": ".section",
    "groups": ".section",
    "offices": ".section",
    "offices/default": ".stats",
    "webhooks": ".section",
    "system": ".stats",
    "submit": "form",
}
# The lines of the log of one job.
LINES = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description="The console's weight and speed.")
    parser.add_argument("--jobs", type=int, default=1000, help="in the queue; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--url", help="of a server that runs already, with so many jobs")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        _found(options.url) if options.url else _serving(Path(folder), options.jobs) as (url, ids),
        open_browser() as browser,
    ):
        print(f"{options.jobs:,} jobs; median of {options.rounds} rounds, nothing cached")
        print(f"{'view':30} {'requests':>8} {'kB':>6} {'first content':>14} {'complete':>9}")
        for named, sign in VIEWS.items():
            if not ids and named.startswith("jobs/"):
                continue
            view = named.format(newest=f"{options.jobs - 1:07}", **ids)
            rounds = [_visit(browser, f"{url}/console/#/{view}", sign) for _ in range(options.rounds)]
            requests, weight, first, complete = (statistics.median(column) for column in zip(*rounds, strict=True))
            print(f"{view:30} {requests:8.0f} {weight / 1000:6.0f} {first:11.0f} ms {complete:6.0f} ms")


def _visit(browser: Browser, url: str, sign: str) -> tuple[int, float, float, float]:
    context = browser.new_context()
    page = context.new_page()
    sizes: list[int] = []
    session = context.new_cdp_session(page)
    session.send("Network.enable")
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    began = time.perf_counter()
    page.goto(url, wait_until="commit")
    page.locator(sign).first.wait_for()
    complete = (time.perf_counter() - began) * 1000
    paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    first: float = page.evaluate(paint)
    context.close()
    return len(sizes), sum(sizes), first, complete


@contextmanager
def _found(url: str) -> Iterator[tuple[str, dict[str, str]]]:
    yield url, {}


@contextmanager
def _serving(folder: Path, jobs: int) -> Iterator[tuple[str, dict[str, str]]]:
    ready = threading.Event()
    found: dict[str, Any] = {}

    async def echo(run: Any, number: int = 0) -> int:
        return number

    async def talk(run: Any) -> None:
        run.log.info("\n".join(f"line {number} of the log of a job" for number in range(LINES)))

    async def serve() -> None:
        scheduler = Scheduler(f"sqlite:///{folder}/nextslot.db", synchronous="NORMAL", extensions=["offices"])
        scheduler.job_types.add("echo", echo)
        scheduler.job_types.add("talk", talk)
        process = Process(scheduler, Options(), "127.0.0.1", 0)
        listening = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(process.run(listening.set_result))
        found.update(url=await listening, loop=asyncio.get_running_loop(), stop=process.stop)
        talkative = await scheduler.submit("talk", title="talkative")
        await scheduler.wait(talkative.job_id)
        await scheduler.pause(office_id="default")
        for start in range(0, jobs, BATCH):
            made = await scheduler.submit_many([_job(number) for number in range(start, min(jobs, start + BATCH))])
            found["ids"] = {"job": made[-1].job_id, "talkative": talkative.job_id}
        ready.set()
        await task

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait()
    try:
        yield found["url"], found["ids"]
    finally:
        found["loop"].call_soon_threadsafe(found["stop"])
        thread.join()


def _job(number: int) -> NewJob:
    return NewJob(job_type="echo", params={"number": number}, title=f"job {number:07}")


if __name__ == "__main__":
    main()
