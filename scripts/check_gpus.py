"""Checks named devices on real NVIDIA cards: which card a run sees, who else computes there, what a kill leaves.

    uv run --extra gpu python scripts/check_gpus.py

Needs a card and its driver, and takes about a minute. A machine without a network gets the packages with the tree:

    uv export --quiet --extra gpu --no-dev --no-emit-project > /tmp/requirements.txt
    uv pip install --target .cache/gpu --python-version 3.12 --no-deps --requirements /tmp/requirements.txt .
    PYTHONPATH=$PWD/src:$PWD/.cache/gpu python3.12 scripts/check_gpus.py          there

CUDA is used by its driver alone (`libcuda.so.1`). Ends with 0 if everything held, and prints what it measured.
"""

import asyncio
import ctypes
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NoReturn

from nextslot import Job, Limits, Scheduler
from nextslot.errors import Invalid
from nextslot.executors.gpus import find_gpus

MEMORY = 256 << 20
# How long a step may take. The cards are read every 10 seconds, and a driver needs some time for its first context.
PATIENCE = 60.0
LONG = 600


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["hold"]:
        hold(float(words[1]), Path(words[2]))
    with tempfile.TemporaryDirectory(prefix="nextslot-gpus-") as made:
        place = Path(words[1]) if words[:1] == ["serve"] else Path(made)
        if words[:1] == ["serve"]:
            asyncio.run(serve(place))
        try:
            names = [gpu.uuid for gpu in find_gpus()]
        except Invalid as error:
            sys.exit(f"there is nothing to check: {error}")
        say(f"{len(names)} cards: {', '.join(names)}; drivers: {smi('driver_version')}; {smi('name')}")
        asyncio.run(check(place, names))


async def check(place: Path, names: list[str]) -> None:
    await each_run_sees_its_own_card(place, names)
    await a_card_of_somebody_else_is_not_given(place, names)
    await a_kill_leaves_nothing_on_a_card(place, names)
    say("all of it held")


async def each_run_sees_its_own_card(place: Path, names: list[str]) -> None:
    async with scheduler(place, names) as here:
        jobs = [await here.submit("compute", {"seconds": 2}) for _ in range(2 * len(names) + 1)]
        seen = [await seen_by(here, place, job) for job in jobs]
    given = [devices for devices, _ in seen]
    expect(all(devices == found for devices, found in seen), f"each run saw the card that is stored with it: {seen}")
    expect({one for devices in given for one in devices} == set(names), f"every card was given: {given}")
    expect(not overlaps(place), f"no card was given twice at once: {overlaps(place)}")
    say(f"{len(jobs)} runs, each on one card of its own")


async def seen_by(here: Scheduler, place: Path, job: Job) -> tuple[list[str], list[str]]:
    """Returns the cards that a run holds, and those that CUDA has shown it."""
    ended = await here.wait(job, PATIENCE)
    expect(ended.run is not None and ended.run.status == "COMPLETED", f"the run ended well: {ended.run}")
    assert ended.run is not None
    return list((ended.run.devices or {})["gpu"]), (place / str(ended.run.log_path)).read_text().split()


async def a_card_of_somebody_else_is_not_given(place: Path, names: list[str]) -> None:
    other = start("hold", str(LONG), str(place), CUDA_VISIBLE_DEVICES=names[0])
    try:
        await until(lambda: is_used(names[0]), "NVML shows the other process on the card")
        async with scheduler(place, names) as here:
            # The other cards have work for longer than the check takes.
            jobs = [await here.submit("compute", {"seconds": 40}) for _ in names[1:]]
            waiting = await here.submit("compute", {"seconds": 2})
            await asyncio.sleep(1)
            reasons = [one.text for one in (await here.forecast.why(waiting.job_id)).reasons]
            expect(any(names[0] in text and "process" in text for text in reasons), f"`why` names both: {reasons}")
            began = time.monotonic()
            other.kill()
            other.wait()
            await here.wait(waiting, PATIENCE)
            seconds = time.monotonic() - began
            say(f"why: {reasons[0]}; the run ended {seconds:.1f} s after the other process, with 2 s of work")
            for job in jobs:
                await here.wait(job, PATIENCE)
    finally:
        other.kill()
        other.wait()
    expect(not overlaps(place), f"no run began beside the other process: {overlaps(place)}")


async def a_kill_leaves_nothing_on_a_card(place: Path, names: list[str]) -> None:
    server = start("serve", str(place))
    assert server.stdout is not None
    job_id = server.stdout.readline().strip()
    await until(lambda: any(map(is_used, names)), "the run computes on a card")
    began = time.monotonic()
    server.kill()
    server.wait()
    await until(lambda: not any(map(is_used, names)), "the card is empty after the kill of the scheduler")
    empty = time.monotonic() - began
    async with scheduler(place, names) as here:
        ended = await here.wait(job_id, PATIENCE)
    expect(ended.run is not None and ended.run.status == "COMPLETED", f"the retry got a card: {ended.run}")
    expect(not overlaps(place), f"the retry did not begin beside its first run: {overlaps(place)}")
    say(f"after kill -9 the cards were empty within {empty:.1f} s, and the retry computed on one")


async def serve(place: Path) -> NoReturn:
    """The scheduler that is killed: it has one job, whose first attempt takes long."""
    async with scheduler(place, [gpu.uuid for gpu in find_gpus()]) as here:
        say((await here.submit("compute", {"seconds": LONG}, retry_policy={"base_delay_seconds": 0.1})).job_id)
        await asyncio.Event().wait()
    raise AssertionError


@asynccontextmanager
async def scheduler(place: Path, names: list[str]) -> AsyncIterator[Scheduler]:
    cards = len(names)
    url, limits = f"sqlite:///{place}/nextslot.db", Limits(resources={"gpu": cards})
    made = Scheduler(url, data=place, limits=limits, node_resources={"gpu": names}, concurrency=2 * cards)
    command = [sys.executable, __file__, "hold", "{seconds}", str(place)]
    paths = ["PYTHONPATH", "LD_LIBRARY_PATH"]
    made.job_types.add_command("compute", command, resources={"gpu": 1}, pass_env=paths, grace_seconds=1)
    async with made:
        await made.offices.change("default", max_concurrent_jobs=0)
        yield made


# What computes.


def hold(seconds: float, place: Path) -> NoReturn:
    """Takes memory of every visible card for a while; prints their ids, and notes who else has them."""
    cuda, found, locks = ctypes.CDLL("libcuda.so.1"), [], []
    call(cuda.cuInit(0))
    count = ctypes.c_int()
    call(cuda.cuDeviceGetCount(ctypes.byref(count)))
    for index in range(count.value):
        device, context, raw, memory = ctypes.c_int(), ctypes.c_void_p(), (ctypes.c_ubyte * 16)(), ctypes.c_uint64()
        call(cuda.cuDeviceGet(ctypes.byref(device), index))
        call(cuda.cuDeviceGetUuid(ctypes.byref(raw), device))
        found.append(f"GPU-{uuid.UUID(bytes=bytes(raw))}")
        locks.append(place / f"{found[-1]}.lock")
        note_user(locks[-1])
        call(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        call(cuda.cuCtxSetCurrent(context))
        call(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(MEMORY)))
    say(" ".join(found))
    time.sleep(seconds if os.environ.get("NEXTSLOT_ATTEMPT", "1") == "1" else 1)
    for lock in locks:
        lock.unlink()
    sys.exit(0)


def call(code: int) -> None:
    if code != 0:
        sys.exit(f"CUDA's driver answered with the error {code}")


def note_user(lock: Path) -> None:
    """Writes the process that has a card; a process that lives and has it already is an overlap."""
    with suppress(FileNotFoundError, ProcessLookupError):
        before = int(lock.read_text())
        os.kill(before, 0)
        with (lock.parent / "overlaps").open("a") as file:
            file.write(f"{lock.stem}: {before} and {os.getpid()}\n")
    lock.write_text(str(os.getpid()))


def overlaps(place: Path) -> str:
    with suppress(FileNotFoundError):
        return (place / "overlaps").read_text()
    return ""


# What the checks use.


def start(*words: str, **variables: str) -> "subprocess.Popen[str]":
    argv = [sys.executable, __file__, *words]
    return subprocess.Popen(argv, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True)


def is_used(name: str) -> bool:
    return any(gpu.uuid == name and gpu.processes for gpu in find_gpus())


async def until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        expect(time.monotonic() < end, f"{what}, within {PATIENCE:g} s")
        await asyncio.sleep(0.1)


def expect(is_so: bool, what: str) -> None:
    if not is_so:
        sys.exit(f"this did not hold: {what}")


def smi(field: str) -> str:
    try:
        argv = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
        return " ".join(subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True).stdout.split())
    except (OSError, subprocess.SubprocessError):
        return f"no {field}, because nvidia-smi does not work"


def say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
