"""Readers: the threads that run a store's reads, with a measurement of each read.

Both stores use this class; each store chooses the connection and handles its errors.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from nextslot.store.contract import Work
from nextslot.store.group_commit import is_failure
from nextslot.telemetry.meters import Meters

T = TypeVar("T")


class Readers:
    def __init__(self, read: Callable[[Work[Any]], Any], count: int, threaded: bool, meters: Meters) -> None:
        self._read = read
        self._threaded = threaded
        self._meters = meters
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="nextslot-reader")

    async def read(self, work: Work[T], *, is_inline: bool = False) -> T:
        began, is_failed = self._meters.seconds(), False
        try:
            if is_inline or not self._threaded:
                return self._read(work)  # type: ignore[no-any-return]
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, work)
        except Exception as error:
            is_failed = is_failure(error)
            raise
        finally:
            self._meters.read(self._meters.seconds() - began, is_failed)

    def close(self) -> None:
        self._threads.shutdown()
