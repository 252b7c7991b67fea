"""A command from the scheduler's side: reads its output, requests its guardian to stop it, and notices a lost guardian.

`fork_server.Guardians.start` makes one `Process` for each command. `fork_server_main` documents the protocol.
"""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from .guardian_heartbeat import BEAT_SECONDS, Heartbeat, Verdict, Watched
from .kill_tree import ENDED, STOPPED, status
from .survivors import send_signal

log = logging.getLogger(__name__)

CHUNK = 64 * 1024

WAS_KILLED = "the command's guardian was killed, and so was the command"
WAS_STOPPED = (
    "the command's guardian was stopped (SIGSTOP) again after the scheduler had continued it; "
    "the scheduler killed the guardian and every process of the command"
)
WAS_SILENT = (
    "the command's guardian did not answer the scheduler any more; "
    "the scheduler killed the guardian and every process of the command"
)
SERVER_WAS_STOPPED = (
    "the process that makes the guardians was stopped (SIGSTOP) again after the scheduler had continued it; "
    "the scheduler killed that process and every process of the command"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A command to start: exactly these arguments and this environment; nothing is inherited.

    `is_wrapped`: the program is a sandbox, which waits for the command and hands its exit code on, so it gets no TERM.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None = None
    stdin: bytes = b""
    is_wrapped: bool = False
    cgroup_limits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a command ended once no process of its tree was left, or why it could not be started.

    `lost` says why the guardian could not report the end. If the fork server was killed too, processes may be left.
    """

    exit_code: int = 0
    signal: str | None = None
    refused: tuple[str, int] | None = None
    broken: str | None = None
    lost: str | None = None


class Channel(Protocol):
    """The receiver of what a command writes to its channel; `answer` is set to the function that sends answers, which
    drops those for which there is no room."""

    answer: Callable[[bytes], None]

    def write(self, data: bytes) -> None: ...


class Process:
    """A command under its guardian, which must answer a ping at each beat.

    A guardian that does not answer is continued (SIGCONT), then killed. The fork server kills the processes that a
    killed guardian leaves, then closes the socket: that ends this Process.
    """

    def __init__(
        self,
        control: socket.socket,
        output: int,
        on_output: Callable[[bytes], None],
        server: tuple[int, int],
        beat_seconds: float = BEAT_SECONDS,
    ) -> None:
        self.pid: int | None = None
        self.start_time: int | None = None
        self._server = server
        self.guardian: tuple[int, int] | None = None
        self._loop = asyncio.get_running_loop()
        self._control = control
        self._output: int | None = output
        self._on_output = on_output
        self._channel: socket.socket | None = None
        self._on_channel: Channel | None = None
        self._buffer = b""
        self._unsent: list[str] = []
        self._refused: tuple[str, int] | None = None
        self._broken: str | None = None
        self._lost = WAS_KILLED
        self._end: asyncio.Future[End] = self._loop.create_future()
        self._loop.add_reader(control, self._receive)
        self._loop.add_reader(output, self._read)
        self._heartbeat = Heartbeat(time.monotonic(), beat_seconds)
        self._next_beat = self._loop.call_later(beat_seconds, self._beat)

    def connect(self, channel: socket.socket, on_channel: Channel) -> None:
        """Reads the command's channel from now on."""
        self._channel, self._on_channel = channel, on_channel
        on_channel.answer = self._answer
        self._loop.add_reader(channel, self._read_channel)

    async def ended(self) -> End:
        """Waits for the end. A caller whose wait is cancelled may wait again."""
        return await asyncio.shield(self._end)

    def when_ended(self, call: Callable[[], None]) -> None:
        self._end.add_done_callback(lambda _: call())

    def stop(self, grace_seconds: float) -> None:
        """Sends TERM to the whole tree, and after the grace period KILL to the processes that are left."""
        self._send_reliably(f"stop {grace_seconds}")

    def kill(self) -> None:
        self._send_reliably("kill")

    def renew(self, deadline: float) -> None:
        """Lets the guardian kill the tree at this instant of CLOCK_BOOTTIME, unless a later call postpones it."""
        self._send_line(f"lease {deadline}")

    def _send_reliably(self, words: str) -> None:
        """Sends a message that must not be lost: if the socket's buffer is full, a later beat sends it."""
        self._unsent.append(words)
        self._send_unsent()
        if not self._end.done() and self._heartbeat.hurry(time.monotonic()):
            self._next_beat.cancel()
            self._ping()

    def _send_unsent(self) -> None:
        while self._unsent and self._send_line(self._unsent[0]):
            del self._unsent[0]

    def _send_line(self, words: str) -> bool:
        """Returns whether the socket's buffer had room for the message."""
        try:
            self._control.send(words.encode() + b"\n")
        except BlockingIOError:
            return False
        except OSError:  # The guardian has ended, or is about to report its end.
            pass
        return True

    def _receive(self) -> None:
        try:
            words = self._control.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            words = b""
        if not words:
            self._close(End(lost=self._lost if self._broken is None else None, broken=self._broken))
            return
        self._heartbeat.answered()
        *lines, self._buffer = (self._buffer + words).split(b"\n")
        for line in lines:
            verb, _, rest = line.decode(errors="replace").partition(" ")
            self._handle(verb, rest)

    def _handle(self, verb: str, rest: str) -> None:
        if verb == "guardian":
            pid, start = map(int, rest.split())
            self.guardian = pid, start
        elif verb == "started":
            self.pid, self.start_time = map(int, rest.split())
        elif verb == "refused":
            stage, number = rest.split()
            self._refused = stage, int(number)
        elif verb == "broken":
            self._broken = rest
        elif verb == "ended":
            self._close(_end_of(int(rest), self._refused))

    def _ping(self) -> None:
        self._send_unsent()
        self._send_line("ping")
        self._next_beat = self._loop.call_later(self._heartbeat.interval, self._beat)

    def _beat(self) -> None:
        """Judges whether the guardian answered in time. Answers count: the event loop calls readers before timers."""
        if self._heartbeat.beat(time.monotonic()) and (watched := self._watched()) is not None:
            verdict = self._heartbeat.judge(watched)
            if verdict is Verdict.CONTINUE:
                log.warning("process %d was stopped: the scheduler continues it", watched.pid)
                send_signal(watched.pid, watched.start_time, signal.SIGCONT)
            elif verdict is Verdict.KILL:
                self._lost = _lost(watched)
                log.error("process %d: %s", watched.pid, self._lost)
                send_signal(watched.pid, watched.start_time, signal.SIGKILL)
        self._ping()

    def _watched(self) -> Watched | None:
        """Returns the process that should have answered: the live guardian, else the fork server, which creates the
        guardian or ends its tree.
        """
        for one in (self.guardian, self._server):
            found = None if one is None else status(one[0])
            if one is not None and found is not None and found[1] == one[1] and found[2] not in ENDED:
                return Watched(*one, found[2], is_server=one == self._server)
        return None

    def _read(self) -> bool:
        """Reads a chunk of output. Returns whether there may be more."""
        if self._output is None:
            return False
        try:
            data = os.read(self._output, CHUNK)
        except BlockingIOError:
            return False
        if data:
            self._on_output(data)
            return True
        self._close_output()  # The command closed its output but may still run for long.
        return False

    def _read_channel(self) -> bool:
        """Reads a chunk of the channel. Returns whether there may be more."""
        if self._channel is None or self._on_channel is None:
            return False
        try:
            data = self._channel.recv(CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            self._on_channel.write(data)
            return True
        self._close_channel()
        return False

    def _answer(self, line: bytes) -> None:
        """Sends an answer to the command. If the command does not read, answers without room in the buffer are lost."""
        if self._channel is not None:
            with suppress(OSError):
                self._channel.send(line)

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._loop.remove_reader(self._channel)
            self._channel.close()
            self._channel = None

    def _close_output(self) -> None:
        if self._output is not None:
            self._loop.remove_reader(self._output)
            os.close(self._output)
            self._output = None

    def _close(self, end: End) -> None:
        # Read only what is in the pipe now: a process outside the tree may keep the other end open.
        for _ in range(64):
            if not self._read():
                break
        self._close_output()
        for _ in range(64):
            if not self._read_channel():
                break
        self._close_channel()
        self._next_beat.cancel()
        self._loop.remove_reader(self._control)
        self._control.close()
        if not self._end.done():
            self._end.set_result(end)


def _lost(watched: Watched) -> str:
    if watched.is_server:
        return SERVER_WAS_STOPPED
    return WAS_STOPPED if watched.state in STOPPED else WAS_SILENT


def _end_of(status: int, refused: tuple[str, int] | None) -> End:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return End(exit_code=code, refused=refused)
    try:
        name = signal.Signals(-code).name
    except ValueError:  # A real-time signal has no name.
        name = f"signal {-code}"
    return End(exit_code=128 - code, signal=name, refused=refused)
