"""Heartbeat: decides from beat to beat whether the guardian of a command is continued, or killed.

`process.Process` sends a ping at each beat, and asks here what to do. Pure: it gets the time, and the state of the
process that should have answered.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from .process_guardian import STOPPED

BEAT_SECONDS = 5.0
# Once the command was told to stop: a shutdown waits for its end, but not for long.
HURRIED_SECONDS = 1.0
# A guardian that neither runs, nor waits for the disk, nor is stopped, and yet does not answer.
SILENCE_SECONDS = 30.0


class Watched(NamedTuple):
    """The process that should have answered: the guardian, or the fork server where there is no guardian (any more)."""

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
    """Of one command. `last` is when it was last asked, in monotonic seconds."""

    last: float
    interval: float = BEAT_SECONDS
    _is_answered: bool = True
    _silent_seconds: float = 0.0
    _continued: set[tuple[int, int]] = field(default_factory=set)

    def answered(self) -> None:
        self._is_answered = True

    def hurry(self, now: float) -> bool:
        """Begins a shorter beat, which leaves out what came before; returns whether beats were longer until now."""
        if self.interval <= HURRIED_SECONDS:
            return False
        self.interval, self.last, self._is_answered = HURRIED_SECONDS, now, False
        return True

    def beat(self, now: float) -> bool:
        """Ends a beat and begins the next; returns whether the guardian owes the answer to the one that ends."""
        elapsed, self.last = now - self.last, now
        was_answered, self._is_answered = self._is_answered, False
        if was_answered:
            self._silent_seconds = 0.0
            return False
        # A beat of another length says something of our own loop, or of the machine, and nothing of the guardian: the
        # loop was blocked, we were stopped ourselves, or time is virtual.
        return self.interval / 2 <= elapsed <= 2 * self.interval

    def judge(self, one: Watched) -> Verdict:
        """Continues a process that was stopped, the first time; kills it the second time, whatever it answered between.

        One that is about to run, or waits for the disk, is slow since the machine is. The fork server may be silent: it
        answers when everything that a killed guardian left has ended, and some of that may not be ours to kill.
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
