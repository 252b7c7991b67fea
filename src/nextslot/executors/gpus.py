"""GPUs of this machine, as NVIDIA's management library (NVML) reports them: their ids, and the processes on them.

Needs the extra `gpu`. `GpuWatch` notices processes of other programs on a card, so that no run gets that card
meanwhile.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nextslot.domain.devices import Devices
from nextslot.errors import Invalid, NextslotError
from nextslot.system.clock import Clock

from .process_tree.run_marks import Marks
from .threads import Threads

log = logging.getLogger(__name__)

# How often `GpuWatch` reads the processes on the cards. NVML does not report when a process begins or ends.
SECONDS_BETWEEN = 10.0
_NOT_INSTALLED = 'GPUs are found by NVML, which needs the extra: pip install "nextslot[gpu]"; or name them: ["0", "1"]'


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card: its number and id, and by process id the bytes of its memory that the process uses, if known."""

    index: str
    uuid: str
    processes: Mapping[int, int | None]


def find_gpus() -> list[Gpu]:
    """Reads the cards of this machine. Raises `Invalid` if there is no NVML, no driver or no card."""
    try:
        import pynvml  # type: ignore[import-untyped]  # An extra, and it has no types.
    except ImportError as error:
        raise Invalid(_NOT_INSTALLED) from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise Invalid(f'NVML cannot be used on this machine ({error}); name the GPUs instead: ["0", "1"]') from error
    try:
        found = [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        raise Invalid(f'NVML cannot read the GPUs of this machine ({error}); name them: ["0", "1"]') from error
    finally:
        pynvml.nvmlShutdown()
    if not found:
        raise Invalid("NVML finds no GPU on this machine; remove the resource, or name its devices")
    return found


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid = nvml.nvmlDeviceGetUUID(handle)
    running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    text = uuid.decode() if isinstance(uuid, bytes) else str(uuid)
    return Gpu(str(index), text, {one.pid: one.usedGpuMemory for one in running})


class GpuWatch:
    """Reads which processes compute on the named GPUs of this node, as long as the scheduler runs."""

    def __init__(
        self,
        names: Devices,
        clock: Clock,
        threads: Threads,
        runs: Callable[[], Collection[str]],
        find: Callable[[], Sequence[Gpu]] = find_gpus,
    ) -> None:
        """Takes `runs`, which returns the ids of the runs of this process: their processes do not count as others'."""
        self._names = {(resource, name) for resource, named in names.items() for name in named}
        self._clock = clock
        self._threads = threads
        self._runs = runs
        self._find = find
        self._task: asyncio.Task[None] | None = None

    async def start(self, changed: Callable[[Mapping[tuple[str, str], str]], Awaitable[None]]) -> None:
        """Reads the cards now and then at intervals. Calls `changed` with the cards that other programs use."""
        found = await self._threads.run(self._try_to_read)
        if isinstance(found, Exception):
            log.info("processes of others on named devices are not noticed: %s", found)
            return
        await changed(found)
        self._task = asyncio.get_running_loop().create_task(self._follow(changed), name="nextslot-gpus")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _follow(self, changed: Callable[[Mapping[tuple[str, str], str]], Awaitable[None]]) -> None:
        while True:
            await self._clock.sleep(SECONDS_BETWEEN)
            found = await self._threads.run(self._try_to_read)
            if isinstance(found, Exception):
                log.warning("the processes on the GPUs could not be read: %s", found)
                continue
            try:
                await changed(found)
            except NextslotError as error:  # The store does not answer: the next reading tries again.
                log.warning("the processes on the GPUs could not be compared with what runs: %s", error)

    def _try_to_read(self) -> dict[tuple[str, str], str] | Exception:
        try:
            return self.read()
        except Exception as error:  # A driver that is being reloaded may raise anything: the scheduler goes on.
            return error

    def read(self) -> dict[tuple[str, str], str]:
        """Returns the named devices on which other programs compute, each with a description of their processes."""
        marks, own = Marks(self._runs()), os.getpid()
        found = {}
        for gpu in self._find():
            others = {pid: used for pid, used in gpu.processes.items() if pid != own and marks.run_of(pid) is None}
            if others:
                words = ", ".join(_in_words(pid, used) for pid, used in sorted(others.items()))
                names = {gpu.index, gpu.uuid}
                found.update({one: words for one in self._names if one[1] in names})
        return found


def _in_words(pid: int, used: int | None) -> str:
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        name = "a process"
    memory = "" if used is None else f", {used / 2**30:.1f} GiB"
    return f"{name} (process {pid}{memory})"
