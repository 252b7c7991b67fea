"""Readers of events and files over HTTP, in simulated histories: streams that break and go on, logs and artifacts.

A reader has a key of one office or of all. It must get each event of its office once and in order, also across crashes
and hang-ups, and nothing after its key has ended. A log and an artifact are what their run has written, to the byte.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from nextslot.executors.run_context import RunContext
from nextslot.scheduler import Scheduler
from nextslot.testing.simulation import check_reads
from nextslot.testing.simulation.broken import Broken
from nextslot.testing.simulation.followers import PAUSES, Followers
from nextslot.testing.simulation.world import SimulatedScheduler

LAW = "a stream has every event that its key may see, once and in order"
MOST_READERS = 3
# A stream looks every 15 seconds whether its key is still there; a disk that does not answer takes most of a minute.
ENDS_WITHIN = 110.0
# When the clients have stopped, a reader looks so often, and for so long; the rest of a history lasts three days.
LOOKS_EVERY, LOOKS_FOR = 6 * 3600.0, 60.0
SECOND = 1_000_000
ARTIFACT = "out/result.txt"

Listen = Callable[[bytes], Awaitable[None]]
# Asks for a stream with a key and the last event that was seen; hands on what comes, and returns the status.
Open = Callable[[str, int, Listen], Awaitable[int]]


class Reader:
    """Reads the events of one key, sometimes slowly, and goes on after each end with the last number that it saw."""

    def __init__(self, text: str, office_id: str | None, after: int, seed: int) -> None:
        self.text, self.office_id, self.first, self.last = text, office_id, after, after
        # By number: the type and the office of each event.
        self.got: dict[int, tuple[str, str | None]] = {}
        self.is_over, self.is_hurried, self.broken = False, False, list[Broken]()
        self._chance, self._rest = Random(seed), b""

    async def read(self, ask: Open, ended_at: Callable[[str], float | None]) -> None:
        """Reads until the key does not open any more. `ended_at` says since when the clients know that it does not."""

        async def listen(chunk: bytes) -> None:
            *frames, self._rest = (self._rest + chunk).split(b"\n\n")
            for frame in frames:
                self._take(frame.decode(), ended_at(self.text))
            if not self.is_hurried:
                await asyncio.sleep(self._chance.choice(PAUSES))

        while not self.is_over:
            self._rest, status = b"", 0
            seconds = LOOKS_FOR if self.is_hurried else self._chance.choice((5.0, 900.0, 1e9))
            try:
                async with asyncio.timeout(seconds):
                    status = await ask(self.text, self.last, listen)
            except TimeoutError:
                pass  # It has hung up by itself.
            if status == 401:
                self._end(ended_at(self.text))
            elif status not in (0, 200, 503):
                self._breaks(f"was answered {status}")
            await asyncio.sleep(LOOKS_EVERY if self.is_hurried else 1.0)

    def _take(self, frame: str, ended_at: float | None) -> None:
        fields = dict(line.split(": ", 1) for line in frame.splitlines() if not line.startswith(":"))
        if not fields:
            return
        content = json.loads(fields["data"])
        if fields["event"] == "error":
            if content["code"] == "unauthorized":
                self._end(ended_at)
            return
        seq = int(fields["id"])
        if fields["event"] == "end":
            self.last = max(self.last, seq)
            return
        if seq <= self.last or seq != content["seq"] or fields["event"] != content["type"]:
            self._breaks(f"got {frame} after {self.last}")
        if self.office_id is not None and content["office_id"] != self.office_id:
            self._breaks(f"got an event of another office: {content}")
        if ended_at is not None and asyncio.get_running_loop().time() - ended_at > ENDS_WITHIN:
            self._breaks(f"got {seq} though its key had ended")
        self.last = seq
        self.got[seq] = (content["type"], content["office_id"])

    def _end(self, ended_at: float | None) -> None:
        self.is_over = True
        if ended_at is None:
            self._breaks("was told that its key has ended, and it opens")

    def _breaks(self, how: str) -> None:
        self.broken.append(Broken(LAW, f"the reader of {self.office_id or 'all'} {how}"))


class HttpFollowers(Followers):
    """The followers of a history, with some that read over HTTP."""

    def __init__(
        self, has_purged: Callable[[], bool], ask: Open, ended_at: Callable[[str], float | None], now: Callable[[], int]
    ) -> None:
        super().__init__(has_purged)
        self._ask, self._ended_at, self._now = ask, ended_at, now
        self.readers: list[Reader] = []
        self._reading: list[asyncio.Task[None]] = []

    def begin(self, scheduler: Scheduler) -> None:
        super().begin(scheduler)
        for one in self.readers:
            self._read(one)

    def end(self) -> None:
        super().end()
        for task in self._reading:
            task.cancel()
        self._reading.clear()

    def add_reader(self, text: str, office_id: str | None, after: int, seed: int) -> None:
        if len(self.readers) < MOST_READERS and self._scheduler is not None:
            self.readers.append(Reader(text, office_id, after, seed))
            self._read(self.readers[-1])

    def hurry(self) -> None:
        super().hurry()
        for task in self._reading:
            task.cancel()
        self._reading.clear()
        for one in self.readers:
            one.is_hurried = True
            self._read(one)

    @property
    def broken(self) -> list[Broken]:
        failed = [task.exception() for task in self._reading if task.done() and not task.cancelled()]
        errors = [Broken(LAW, f"a stream failed: {error!r}") for error in failed if error is not None]
        return [*super().broken, *errors, *(broken for one in self.readers for broken in one.broken)]

    def behind(self, last: int) -> list[Broken]:
        return [*super().behind(last), *(Broken(LAW, how) for one in self.readers for how in self._lacks(one))]

    def _lacks(self, one: Reader) -> list[str]:
        """Compares what a reader got with what is stored, up to its last look."""
        assert isinstance(self._scheduler, SimulatedScheduler)
        assert self._scheduler.faulty_store is not None
        stored = self._scheduler.faulty_store.inspect(lambda tx: check_reads.events(tx, one.first))
        until = self._now() - int((LOOKS_EVERY + LOOKS_FOR) * SECOND)
        fitting = {event.seq for event in stored if one.office_id in (None, event.office_id)}
        due = {event.seq for event in stored if event.timestamp < until} & fitting
        other = [event.seq for event in stored if one.got.get(event.seq, found := told(event)) != found]
        missing = sorted(due - one.got.keys()) if not one.is_over else []
        how = [f"the reader of {one.office_id} lacks {missing[:3]} of {len(due)} events"] if missing else []
        return how + [f"the reader of {one.office_id} got another event {seq}" for seq in other[:1]]

    def _read(self, one: Reader) -> None:
        if not one.is_over:
            self._reading.append(asyncio.ensure_future(one.read(self._ask, self._ended_at)))


def told(event: check_reads.Told) -> tuple[str, str | None]:
    return event.type, event.office_id


class Written(NamedTuple):
    """What a run has written so far, and in which data directory."""

    directory: Path
    text: str
    is_all: bool = False


class Writings:
    """What the runs of the type `writer` have written to their logs and artifacts."""

    def __init__(self) -> None:
        self.by_run: dict[str, Written] = {}

    def register(self, scheduler: Any) -> None:
        directory = scheduler._path.parent

        async def write(run: RunContext, seconds: float = 0.0, lines: int = 1) -> None:
            # A power cut leaves its files behind with its directory; a stop in order keeps them.
            self.by_run[run.run_id] = Written(directory, "")
            for number in range(lines):
                line = f"{run.office_id} {run.run_id} line {number} é\n"
                run.write(line.encode())
                self.by_run[run.run_id] = Written(directory, self.by_run[run.run_id].text + line)
                await asyncio.sleep(seconds)
            (run.artifacts / ARTIFACT).parent.mkdir(parents=True, exist_ok=True)
            (run.artifacts / ARTIFACT).write_text(self.by_run[run.run_id].text)
            self.by_run[run.run_id] = self.by_run[run.run_id]._replace(is_all=True)

        scheduler.job_types.register("writer", write)

    def problem(self, run_id: str, raw: bytes, directory: Path) -> str | None:
        """Compares a log, or an artifact, with what the run has written before it was asked for."""
        written = self.by_run.get(run_id)
        if written is None or written.directory != directory:
            return None if raw == b"" else f"the run {run_id} wrote nothing here, and its log is {raw[:100]!r}"
        return None if raw == written.text.encode() else f"{raw[:200]!r} is not {written.text[:200]!r}"
