"""Makes the pictures of docs/images from the real console: `uv run python scripts/screenshots.py`.

The last hours happen on virtual time, in seconds; then a real server opens on the same database, and Chromium looks at
it. Needs Chromium, and the packages of the tests; installs a font with Hangul, where it may.
"""

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from nextslot import NewJob, Scheduler, testing  # noqa: E402
from nextslot.domain import FailureKind, Outcome  # noqa: E402
from nextslot.executors.run_context import RunContext  # noqa: E402
from nextslot.extensions.offices.office_service import OfficeJobService  # noqa: E402
from nextslot.server.app import Options  # noqa: E402
from nextslot.server.serve import Process  # noqa: E402
from nextslot.system.clock import SystemClock  # noqa: E402
from tests.browser import open_browser  # noqa: E402

HOURS = 5
SCENES = ("harbour", "bridge", "market", "tower", "garden", "station")
SIZES = {"light": (1280, 800), "dark": (1280, 800), "phone": (390, 844), "korean": (1280, 800)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Pictures of the console.")
    parser.add_argument("--to", type=Path, default=ROOT / "docs/images", help="default: %(default)s")
    parser.add_argument("--only", action="append", help="the name of a picture; may be given again")
    parser.add_argument("--all", action="store_true", help="every view in light, dark and on a phone, whole pages")
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    _have_hangul()
    with tempfile.TemporaryDirectory() as folder:
        testing.run(_live_through_the_past(Path(folder)))
        with _serving(Path(folder)) as (url, ids), open_browser() as browser:
            for mode in SIZES:
                views = _every_view(ids) if options.all else _chosen(ids, mode)
                wanted = {name: view for name, view in views.items() if name in (options.only or views)}
                _take(browser, mode, url, wanted, options)


def _have_hangul() -> None:
    """Installs a font with Hangul if this is a Debian that has none: without it Korean is a row of boxes."""
    listed = subprocess.run(["fc-list", ":lang=ko"], capture_output=True, text=True, check=False).stdout
    if listed.strip():
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        sys.exit("there is no font with Hangul: apt-get install fonts-nanum")
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "fonts-nanum"], check=True)


def _chosen(ids: dict[str, str], mode: str) -> dict[str, str]:
    """Returns the views to photograph, by the name of the picture."""
    if mode == "phone":
        return {"now-phone": "now", "overview-phone": "overview"}
    if mode == "dark":
        return {"now-dark": "now"}
    if mode == "korean":
        return {"overview-korean": "overview"}
    return {
        "overview": "overview",
        "now-light": "now",
        "jobs": "jobs?q=status%3Afailed+since%3A12h",
        "failures": "failures",
        "type": "types/compose",
        "palette": f"jobs/{ids['held']}?palette",
        "office": "offices/studio",
        "job": f"jobs/{ids['running']}",
        "log": f"jobs/{ids['talkative']}#L1235",
        "why": f"jobs/{ids['held']}",
        "schedule": f"schedules/{ids['schedule']}",
        "graph": f"groups/{ids['group']}",
    }


def _every_view(ids: dict[str, str]) -> dict[str, str]:
    views = {
        name: name
        for name in (
            "overview",
            "now",
            "jobs",
            "failures",
            "types",
            "schedules",
            "groups",
            "offices",
            "webhooks",
            "system",
            "submit",
        )
    }
    return {
        **views,
        "job": f"jobs/{ids['running']}",
        "failed": f"jobs/{ids['failed']}",
        "log": f"jobs/{ids['talkative']}#L1235",
        "why": f"jobs/{ids['held']}",
        "schedule": f"schedules/{ids['schedule']}",
        "graph": f"groups/{ids['group']}",
        "office": "offices/studio",
        "type": "types/compose",
        "palette": f"jobs/{ids['held']}?palette",
        "direct": "direct",
        "form": "submit?type=render",
    }


def _take(browser: Browser, mode: str, url: str, views: dict[str, str], options: argparse.Namespace) -> None:
    width, height = SIZES[mode]
    scheme: Any = "dark" if mode == "dark" else "light"
    locale = "ko-KR" if mode == "korean" else "en-US"
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height}, locale=locale)
    page = context.new_page()
    for name, view in views.items():
        page.goto(f"{url}/console/#/{view}")
        _wait_until_it_is_drawn(page)
        if name == "palette":
            page.keyboard.press("Control+k")
            page.locator("dialog input[role=combobox]").fill("re")
            page.wait_for_timeout(1000)
        file = options.to / (f"{name}-{mode}.png" if options.all else f"{name}.png")
        page.screenshot(path=file, full_page=options.all)
        print(f"{file.name}: {file.stat().st_size // 1000} kB")
        page.keyboard.press("Escape")
    context.close()


def _wait_until_it_is_drawn(page: Page) -> None:
    page.wait_for_selector("main h1")
    page.wait_for_selector(".line.live")
    if page.locator("svg.graph").count():
        page.wait_for_selector("svg.graph[data-ready=true]")
    if page.locator("pre.log [data-line='1235']").count():
        page.get_by_placeholder("Find in the log").fill("orders/")
        page.locator("pre.log").scroll_into_view_if_needed()
    # The console reads the progress every two seconds.
    page.wait_for_timeout(2500)


async def _live_through_the_past(folder: Path) -> None:
    beginning = SystemClock().now().after(-HOURS * 3600)
    scheduler = testing.scheduler(folder, clock=testing.VirtualClock(beginning), extensions=["offices"])
    _register(scheduler, is_past=True)
    async with scheduler:
        await scheduler.extension(OfficeJobService).change_config("default", {"maxConcurrentJobs": 3})
        await scheduler.offices.create("studio")
        template = await scheduler.templates.create(name="index the archive", job_type="index", params={"full": False})
        await scheduler.schedules.create(
            template_id=template.template_id, name="archive", cron_expression="*/20 * * * *", overlap="skip"
        )
        for number in range(HOURS * 4):
            await _work_of_a_quarter(scheduler, number)
            await asyncio.sleep(900)


async def _work_of_a_quarter(scheduler: Scheduler, number: int) -> None:
    scene = SCENES[number % len(SCENES)]
    for frame in range(3):
        await scheduler.submit("render", {"scene": scene, "frame": frame}, title=f"Render {scene} {frame + 1}")
    await scheduler.submit("compose", {"scene": scene, "attempts": 2 if number % 3 == 0 else 1}, title=f"Score {scene}")
    if number % 5 == 4:
        await scheduler.submit("publish", {"where": "nowhere"}, title=f"Publish {scene}")


def _register(scheduler: Scheduler, is_past: bool) -> None:
    @scheduler.job_type("render", resources={"gpu": 1})
    async def render(
        run: RunContext, scene: str, frame: int, samples: int = 256, denoise: bool = True
    ) -> dict[str, int]:
        for sample in range(0, 100, 2):
            run.progress(sample / 100, "loading the scene" if sample < 10 else f"tracing light, {sample} of 100 passes")
            run.log.info("%s frame %d: pass %d of 100", scene, frame, sample)
            # The progress slows down, as that of such work does.
            await asyncio.sleep((0.05 if sample < 60 else 20) if not is_past else 4 + frame)
        (run.artifacts / f"{scene}-{frame}.txt").write_text("a picture\n")
        return {"samples": samples}

    @scheduler.job_type("compose", retry_policy={"max_attempts": 2, "base_delay_seconds": 60})
    async def compose(run: RunContext, scene: str, attempts: int = 1) -> None:
        run.log.info("the orchestra plays for %s", scene)
        await asyncio.sleep(150)
        if run.attempt < attempts:
            run.fail("the orchestra is not in tune")

    @scheduler.job_type("publish", retry_policy={"max_attempts": 0})
    async def publish(run: RunContext, where: str) -> None:
        await asyncio.sleep(40)
        run.fail(f"there is no {where}")

    @scheduler.job_type("ingest", retry_policy={"max_attempts": 1, "base_delay_seconds": 0})
    async def ingest(run: RunContext, rows: int = 2000) -> Outcome | None:
        for row in range(rows):
            if row == 1234 and run.attempt == 1:
                run.log.error(
                    "no answer from \x1b[1;31mhttp://orders/%d\x1b[0m: ECONNRESET\n  at connect\n  at read", row
                )
                # Not an exception: its traceback in the log has the paths of this machine.
                return Outcome.failed(FailureKind.ERROR, "ECONNRESET after 1,234 rows")
            if row % 60 == 7:
                run.log.warning("the disk is \x1b[33m%d %% full\x1b[0m", 60 + row % 40)
            else:
                run.log.info("\x1b[36mfetched\x1b[0m %d rows of orders, batch \x1b[32m%d\x1b[0m", 40 + row % 23, row)
        return None

    @scheduler.job_type("index")
    async def index(run: RunContext, full: bool = False) -> None:
        await asyncio.sleep(180)


@contextmanager
def _serving(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Runs a real server in a thread, with work in every status."""
    started = threading.Event()
    found: dict[str, Any] = {}

    async def serve() -> None:
        scheduler = Scheduler(f"sqlite:///{folder}/nextslot.db", data=folder, extensions=["offices"])
        _register(scheduler, is_past=False)
        process = Process(scheduler, Options(), "127.0.0.1", 0)
        ready = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(process.run(ready.set_result))
        found.update(url=await ready, ids=await _furnish(scheduler), stop=process.stop, loop=asyncio.get_running_loop())
        started.set()
        await task

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    started.wait(60)
    try:
        yield found["url"], found["ids"]
    finally:
        # Stopped twice: the running work would take minutes to finish.
        found["loop"].call_soon_threadsafe(found["stop"])
        found["loop"].call_soon_threadsafe(found["stop"])
        thread.join(60)


async def _furnish(scheduler: Scheduler) -> dict[str, str]:
    running = await scheduler.submit("render", {"scene": "harbour", "frame": 7}, title="Render harbour 8")
    await scheduler.submit("compose", {"scene": "harbour"}, title="Score the trailer")
    held = await scheduler.submit("render", {"scene": "harbour", "frame": 8}, title="Render harbour 9")
    await scheduler.submit("render", {"scene": "bridge", "frame": 1}, title="Render bridge 2")
    group, _ = await scheduler.submit_group(_film(), "parallel", name="film")
    webhook, _ = await scheduler.webhooks.create("http://127.0.0.1:9/hook")
    await scheduler.webhooks.test(webhook.webhook_id)
    await _office_work(scheduler)
    await scheduler.offices.create("imports", retry_policy={"max_attempts": 1, "retry_on": ["error"]})
    talkative = await scheduler.submit("ingest", title="Ingest orders", office_id="imports")
    await scheduler.wait(talkative.job_id)
    failed = await _newest_failed(scheduler)
    schedules = await scheduler.schedules.page()
    return {
        "running": running.job_id,
        "held": held.job_id,
        "group": group.group_id,
        "failed": failed,
        "talkative": talkative.job_id,
        "schedule": schedules.items[0].schedule_id,
    }


def _film() -> list[NewJob]:
    """Returns the jobs of a film: frames, a cut of each scene, a score beside them, and the final film."""
    jobs: list[NewJob] = []
    for scene in SCENES[:4]:
        frames = [f"{scene} {frame}" for frame in range(3)]
        jobs += [
            NewJob(job_type="render", params={"scene": scene, "frame": place}, key=key, title=f"Render {key}")
            for place, key in enumerate(frames)
        ]
        jobs.append(NewJob(job_type="index", key=f"cut {scene}", title=f"Cut {scene}", depends_on=tuple(frames)))
        jobs.append(NewJob(job_type="compose", params={"scene": scene}, key=f"score {scene}", title=f"Score {scene}"))
    parts = tuple(f"{what} {scene}" for scene in SCENES[:4] for what in ("cut", "score"))
    jobs.append(NewJob(job_type="index", key="mix", title="Mix", depends_on=parts))
    jobs.append(NewJob(job_type="publish", params={"where": "cinema"}, title="Publish", depends_on=("mix",)))
    return jobs


async def _office_work(scheduler: Scheduler) -> None:
    jobs: list[dict[str, Any]] = [
        {"key": "design", "description": "Design the page", "role": "FE", "job_type": "index"},
        {"key": "store", "description": "Store the answers", "role": "BE", "job_type": "index"},
        {"description": "Try it out", "role": "QA", "job_type": "index", "depends_on": ["design", "store"]},
    ]
    await scheduler.extension(OfficeJobService).submit("studio", jobs, "survey")


async def _newest_failed(scheduler: Scheduler) -> str:
    from nextslot.domain.filters import JobFilter

    found = await scheduler.lists.jobs(JobFilter(status=("FAILED",)), limit=1)
    return found.items[0].job.job_id


if __name__ == "__main__":
    main()
