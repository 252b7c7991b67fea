"""A server with one of everything, and in every field that takes text, text that would like to be more than that."""

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from nextslot import NewJob, Scheduler, extension_api, testing
from nextslot.errors import Draining
from nextslot.executors.run_context import RunContext
from nextslot.system.clock import SystemClock
from tests.server.support import ServerThread

# A tag, a script, both quotes, templates of several kinds, a letter that turns the text around, and no end.
HOSTILE = '<img src=x onerror="hacked=1"><script>hacked=1</script>\'"{{7*7}}${7*7}</pre></textarea>\u202e' + "long" * 60


async def talk(run: RunContext, text: str = "", lines: int = 1) -> dict[str, str]:
    """Says what it was given, in its log, its progress, an artifact and its result."""
    run.progress(0.5, text or "half")
    for number in range(lines):
        run.log.info("line %d %s", number, text)
    (run.artifacts / "<b>said<b>.txt").write_text(text)
    return {"said": text}


def live_through_yesterday(folder: Path) -> None:
    """Makes history on virtual time: a schedule that fired and was then disabled until now."""

    async def main() -> None:
        clock = testing.VirtualClock(SystemClock().now().after(-5 * 3600))
        scheduler = testing.scheduler(folder, clock=clock, extensions=extension_api.used_by_server())
        scheduler.job_types.add("echo", talk)
        async with scheduler:
            template = await scheduler.templates.create(name=HOSTILE, job_type="echo", description=HOSTILE)
            schedule = await scheduler.schedules.create(
                template_id=template.template_id, name=HOSTILE, cron_expression="*/30 * * * *"
            )
            await asyncio.sleep(2 * 3600)
            await scheduler.schedules.change(schedule.schedule_id, enabled=False)

    run_in_thread(main())


def run_in_thread(work: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine on virtual time in a thread, because this thread has the browser's event loop."""
    thread = threading.Thread(target=lambda: testing.run(work))
    thread.start()
    thread.join()


async def furnish(server: ServerThread) -> dict[str, str]:
    """Makes the content of the console. Returns the ids."""
    scheduler = server.server.scheduler
    scheduler.job_types.add("talk", talk)
    done = await scheduler.submit("talk", {"text": HOSTILE}, title=HOSTILE, unique_key=HOSTILE)
    await scheduler.wait(done.job_id)
    failed = await scheduler.submit("fail", {"message": HOSTILE}, title=HOSTILE, role=HOSTILE, task_id=HOSTILE)
    await scheduler.wait(failed.job_id)
    cancelled = await scheduler.submit("gate", title=HOSTILE, scheduled_for=SystemClock().now().after(9999))
    await scheduler.cancel(cancelled.job_id, HOSTILE)
    await scheduler.submit("gate", title=HOSTILE)
    queued = await scheduler.submit("echo", {"text": HOSTILE}, title=HOSTILE)
    await scheduler.submit("echo", title=HOSTILE, await_signal={"name": "release", "question": HOSTILE})
    group, _ = await scheduler.submit_group(_graph(), "parallel", name=HOSTILE)
    await scheduler.offices.create("studio", name=HOSTILE)
    webhook, _ = await scheduler.webhooks.create("http://127.0.0.1:9/%3Cscript%3E?q={{7*7}}")
    await scheduler.webhooks.test(webhook.webhook_id)
    schedule = (await scheduler.schedules.page()).items[0]
    direct = asyncio.create_task(_call(scheduler))
    async for event in scheduler.events():
        if event.type == "reservation_made":
            break
    server.calls = direct  # type: ignore[attr-defined]
    return {
        "done": done.job_id,
        "failed": failed.job_id,
        "cancelled": cancelled.job_id,
        "queued": queued.job_id,
        "group": group.group_id,
        "schedule": schedule.schedule_id,
        "direct": (await scheduler.lists.direct()).items[0].direct_id,
    }


def _graph() -> list[NewJob]:
    return [
        NewJob(job_type="echo", key="a", title=HOSTILE),
        NewJob(job_type="echo", title=HOSTILE, depends_on=("a",)),
    ]


async def _call(scheduler: Scheduler) -> None:
    """Waits behind the closed gate until the server stops."""
    with suppress(Draining):
        await scheduler.run_direct("echo", {"text": HOSTILE}, created_by=HOSTILE, wait_timeout_seconds=3600)
