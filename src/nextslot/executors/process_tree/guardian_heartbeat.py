"""Decides at each heartbeat whether the scheduler continues (SIGCONT) or kills the guardian of a command.

`process.Process` sends a ping at each beat and asks this module what to do. The module has no side effects: the caller
passes the time, and the state of the process that should have answered.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from .kill_tree import STOPPED

BEAT_SECONDS = 5.0
# The interval after a stop request: a shutdown waits for the command, but not for long.
HURRIED_SECONDS = 1.0
# How long a guardian may fail to answer although it is neither running, nor waiting for the disk, nor stopped.
SILENCE_SECONDS = 30.0


class Watched(NamedTuple):
    """The process that should have answered the ping: the guardian or, if the guardian does not exist, the fork
    server."""

    pid: int
    start_time: int
    state: str
    is_server: bool = False


class Verdict(Enum):
    WAIT = "wait"
    CONTINUE = "continue"
    KILL = "kill"


@dataclass(slots=True)
class Heartbeat:
    """The heartbeat of one command. `last` is when the last ping was sent, in monotonic seconds."""

    last: float
    interval: float = BEAT_SECONDS
    _is_answered: bool = True
    _silent_seconds: float = 0.0
    _continued: set[tuple[int, int]] = field(default_factory=set)

    def answered(self) -> None:
        self._is_answered = True

    def hurry(self, now: float) -> bool:
        """Begins a shorter beat, without judging the current one. Returns whether the interval was longer before."""
        if self.interval <= HURRIED_SECONDS:
            return False
        self.interval, self.last, self._is_answered = HURRIED_SECONDS, now, False
        return True

    def beat(self, now: float) -> bool:
        """Ends a beat and begins the next. Returns whether the guardian failed to answer the ping of the beat that
        ends.
        """
        elapsed, self.last = now - self.last, now
        was_answered, self._is_answered = self._is_answered, False
        if was_answered:
            self._silent_seconds = 0.0
            return False
        # A beat of an unexpected length says nothing about the guardian: the scheduler's event loop was blocked, its
        # process was stopped, or time is virtual.
        return self.interval / 2 <= elapsed <= 2 * self.interval

    def judge(self, one: Watched) -> Verdict:
        """Decides what to do with a process that did not answer.

        A stopped process is continued the first time and killed the second time, even if it answered in between. A
        process that is runnable or waits for the disk is slow because the machine is slow: wait for it. The fork server
        may stay silent: it answers only when everything that a killed guardian left has ended, and this user may not be
        allowed to kill some of these processes.
        """
        if one.state in STOPPED:
            if (one.pid, one.start_time) in self._continued:
                return Verdict.KILL
            self._continued.add((one.pid, one.start_time))
            return Verdict.CONTINUE
        if one.state == "S" and not one.is_server:
            self._silent_seconds += self.interval
            if self._silent_seconds >= SILENCE_SECONDS:
                return Verdict.KILL
        return Verdict.WAIT
