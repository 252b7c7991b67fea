"""Handlers that tests run in a process of their own."""

import asyncio
import os
import signal
import time
from typing import Any

from nextslot import Fail, Skip


def double(run: Any, n: int) -> dict[str, int]:
    run.progress(0.5, "half way")
    run.log.info("doubling %d", n)
    print("printed")  # noqa: T201 - what a handler prints is in its log
    (run.artifacts / "note.txt").write_text("kept")
    return {"n": 2 * n, "pid": os.getpid(), "attempt": run.attempt}


async def double_later(run: Any, n: int) -> int:
    await asyncio.sleep(0.01)
    return 2 * n


def refuse(run: Any) -> None:
    raise Fail("not mine", "permission")


def nothing_to_do(run: Any) -> None:
    raise Skip("nothing to do")


def broken(run: Any) -> None:
    raise ValueError("boom")


def crash(run: Any) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def stubborn(run: Any) -> None:
    while True:
        time.sleep(0.1)


def polite(run: Any) -> str:
    while not run.wait(0.05):
        pass
    return "stopped"


async def patient(run: Any) -> None:
    await asyncio.sleep(1000)


def stopping(run: Any) -> None:
    guardian = os.getppid()
    while True:
        os.kill(guardian, signal.SIGSTOP)
        time.sleep(0.01)


def killing(run: Any) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def which_devices(run: Any) -> list[Any]:
    return [run.devices["gpu"], os.environ["CUDA_VISIBLE_DEVICES"]]
