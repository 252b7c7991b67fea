"""Handlers that no scheduler should have inside its process, and one that it may."""

import asyncio
import ctypes
import os
import time
from typing import Any


async def doze(run: Any, seconds: float) -> None:
    """Blocks the event loop."""
    time.sleep(seconds)  # noqa: ASYNC251 that is what it is for


async def hold(run: Any, seconds: int) -> None:
    """Blocks the whole interpreter: a function of C that keeps its lock."""
    ctypes.PyDLL(None).sleep(seconds)


async def leave(run: Any) -> None:
    """Takes the scheduler with it."""
    os._exit(9)


async def wait(run: Any, seconds: float) -> None:
    await asyncio.sleep(seconds)
