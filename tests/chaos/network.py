"""Machines of their own, as network namespaces, and the lines from each to the database, which stall and break."""

import asyncio
import contextlib
import itertools
import os
import subprocess
import threading
from collections.abc import Coroutine
from typing import Any

_numbers = itertools.count(1)


class Machine:
    """A network namespace with one cable to this one. `near` and `far` are the addresses of the cable's ends."""

    def __init__(self) -> None:
        number = next(_numbers)
        self.name = f"nextslot-{os.getpid()}-{number}"
        self._cable = f"ns{os.getpid() % 100_000}x{number}"
        network = f"10.{200 + number}.{os.getpid() % 250}"
        self.near, self.far = f"{network}.1", f"{network}.2"
        _ip("netns", "add", self.name)
        try:
            _ip("link", "add", self._cable, "type", "veth", "peer", "name", "far", "netns", self.name)
            _ip("addr", "add", f"{self.near}/24", "dev", self._cable)
            _ip("link", "set", self._cable, "up")
            for words in (f"addr add {self.far}/24 dev far", "link set far up", "link set lo up"):
                _ip("-n", self.name, *words.split())
        except BaseException:
            self.remove()
            raise

    @property
    def inside(self) -> list[str]:
        """Returns the beginning of a command line that runs on this machine."""
        return ["ip", "netns", "exec", self.name]

    def connect(self, is_connected: bool) -> None:
        _ip("-n", self.name, "link", "set", "far", "up" if is_connected else "down")

    def remove(self) -> None:
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Loop:
    """An event loop in a thread, for all lines."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


class Line:
    """A TCP proxy to a socket file. It can stall in both directions, swallow only the answers, or break."""

    def __init__(self, loop: Loop, address: str, port: int, target: str) -> None:
        self._loop, self._target = loop, target
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_cut = False
        self._there, self._back = asyncio.Event(), asyncio.Event()
        self._there.set()
        self._back.set()
        self._server: asyncio.Server = loop.run(self._listen(address, port))

    def stall(self, *, only_answers: bool = False) -> None:
        self._loop.run(self._stall(only_answers))

    def cut(self) -> None:
        """Breaks all connections, and refuses new ones."""
        self._loop.run(self._cut())

    def heal(self) -> None:
        self._loop.run(self._heal())

    def close(self) -> None:
        self._loop.run(self._close())

    async def _listen(self, address: str, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._accept, address, port)

    async def _stall(self, only_answers: bool) -> None:
        self._back.clear()
        if not only_answers:
            self._there.clear()

    async def _cut(self) -> None:
        self._is_cut = True
        for writer in list(self._writers):
            writer.transport.abort()

    async def _heal(self) -> None:
        self._is_cut = False
        self._there.set()
        self._back.set()

    async def _close(self) -> None:
        self._server.close()
        await self._cut()
        await self._heal()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        for way in (
            self._pump(reader, far_writer, self._there, writer),
            self._pump(far_reader, writer, self._back, far_writer),
        ):
            task = asyncio.create_task(way)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_open: asyncio.Event, other: Any
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await is_open.wait()
                writer.write(data)
                await writer.drain()
        for end in (writer, other):
            end.transport.abort()
            self._writers.discard(end)
