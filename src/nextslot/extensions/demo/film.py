"""A film of six frames on one gpu: its job types, and the jobs that make it."""

import asyncio
import sys
from pathlib import Path

from nextslot.domain import NewJob, OnDependencyFailure
from nextslot.executors.run_context import RunContext
from nextslot.extension_api import Attached
from nextslot.extension_api.host import Host

FRAMES = 6


class Film(Attached):
    def __init__(self, host: Host) -> None:
        super().__init__(host)
        host.job_types.add("render", render, resources={"gpu": 1})
        host.job_types.add("compose", compose)
        host.job_types.add("encode", encode)
        host.job_types.add("send", send)
        # A command: each parameter in its argv becomes exactly one argument. No shell is involved.
        pack = [sys.executable, "-m", "tarfile", "--verbose", "--create", "{to}", "{what}"]
        host.job_types.add_command("pack", pack)


async def render(run: RunContext, frame: int) -> dict[str, int]:
    for percent in (0, 50):
        run.progress(percent / 100, "tracing light" if percent else "loading the scene")
        await asyncio.sleep(0.3)
    (run.artifacts / f"frame-{frame}.txt").write_text(f"frame {frame}\n")
    return {"frame": frame}


def compose(run: RunContext) -> None:
    """Runs in a thread, since it is not async. Its first attempt fails."""
    run.log.info("attempt %d", run.attempt)
    run.wait(0.5)
    if run.attempt == 1:
        run.fail("the orchestra is not in tune")


async def encode(run: RunContext, frames: int) -> None:
    run.progress(0.1, f"reading {frames} frames")
    await asyncio.sleep(0.8)
    (run.artifacts / "film.txt").write_text(f"a film of {frames} frames\n")


async def send(run: RunContext, what: str) -> None:
    run.log.info("%s", what)
    await asyncio.sleep(0.4)


def film_jobs(data: Path, model: str | None) -> list[NewJob]:
    """Returns the jobs of one film, which depend on each other by their keys; with a model, a story too."""
    frames = [
        NewJob(job_type="render", title=f"frame {number}", params={"frame": number}, key=f"frame {number}")
        for number in range(1, FRAMES + 1)
    ]
    soundtrack = NewJob(
        job_type="compose", title="soundtrack", key="soundtrack", retry_policy={"base_delay_seconds": 1.5}
    )
    poster = NewJob(job_type="render", title="poster", params={"frame": 0})
    encode = NewJob(
        job_type="encode",
        title="encode",
        key="encode",
        params={"frames": FRAMES},
        depends_on=[new.key or "" for new in (*frames, soundtrack)],
        on_dependency_failure=OnDependencyFailure.CANCEL,
    )
    pack = NewJob(
        job_type="pack",
        title="pack the logs",
        params={"to": f"{data}/logs.tar.gz", "what": f"{data}/logs"},
        depends_on=["encode"],
        on_dependency_failure=OnDependencyFailure.CANCEL,
    )
    return [*frames, soundtrack, poster, encode, pack, *([] if model is None else [_story(model)])]


def _story(model: str) -> NewJob:
    return NewJob(
        job_type="story",
        title="story",
        params={"topic": "a lighthouse and its keeper's first film", "target_length": 400, "model": model},
        timeout_seconds=60,
        retry_policy={"max_attempts": 1, "base_delay_seconds": 1},
    )


def publishing_jobs(after: str) -> list[NewJob]:
    """Returns the members of the group `publish`; the first waits for the job `after`."""
    return [
        NewJob(
            job_type="send",
            title=title,
            params={"what": title},
            depends_on=[after] if title == "upload" else [],
            on_dependency_failure=OnDependencyFailure.CANCEL,
        )
        for title in ("upload", "announce")
    ]
