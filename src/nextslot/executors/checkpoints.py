"""Checkpoints of handlers and commands: checks each one and passes it to the scheduler, which stores it.

A command writes one line of JSON for each checkpoint to the descriptor `NEXTSLOT_CHECKPOINT_FD`. It may read one line
from the descriptor as the answer: `ok` once the checkpoint is durable, otherwise `error` and a sentence.
"""

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import orjson

from nextslot.domain import Json
from nextslot.domain.bounds import MAX_CHECKPOINT_BYTES
from nextslot.domain.request_checks import json_problems
from nextslot.errors import Invalid, NextslotError

# The descriptor of the channel in a command; its variable, and that of the file with the last checkpoint.
CHANNEL_FD = 3
FD_VARIABLE, FILE_VARIABLE = "NEXTSLOT_CHECKPOINT_FD", "NEXTSLOT_CHECKPOINT"
_TOO_LONG = f"a line is longer than {MAX_CHECKPOINT_BYTES:,} bytes; write larger data to an artifact and its name here"


class Kept:
    """The answer to a checkpoint that is durable already; a handler may await it."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


KEPT = Kept()


def checked(value: Json) -> str:
    """Returns a checkpoint as JSON text; raises Invalid if the value is not JSON or is too large."""
    problem = next(json_problems("checkpoint", {"": value}), None)
    if problem is not None:
        raise Invalid(f"cannot be stored as JSON: {problem.problem}", field="checkpoint")
    text = orjson.dumps(value)
    if len(text) > MAX_CHECKPOINT_BYTES:
        raise Invalid(
            f"has {len(text):,} bytes of JSON; at most {MAX_CHECKPOINT_BYTES:,} are stored: "
            "write larger data to an artifact and its name here",
            field="checkpoint",
        )
    return text.decode()


class CheckpointLines:
    """Reads the lines of a command's channel, and answers each. Drops an incomplete last line."""

    def __init__(self, keep: Callable[[str], "asyncio.Future[None]"]) -> None:
        self._keep = keep
        self._unfinished = b""
        # A function that sends an answer to the command; set when a command that reads answers has started.
        self.answer: Callable[[bytes], None] = lambda line: None

    def write(self, data: bytes) -> None:
        *lines, rest = (self._unfinished + data).split(b"\n")
        self._unfinished = rest[: MAX_CHECKPOINT_BYTES + 1]  # Enough of a line that is too long to refuse it.
        for line in lines:
            self._take(line)

    def _take(self, line: bytes) -> None:
        if len(line) > MAX_CHECKPOINT_BYTES:
            self._refuse(_TOO_LONG)
        elif line.strip():
            try:
                self._keep(checked(orjson.loads(line))).add_done_callback(self._kept)
            except orjson.JSONDecodeError as error:
                self._refuse(f"a line is not JSON: {error}")
            except Invalid as error:
                self._refuse(str(error))

    def _kept(self, kept: "asyncio.Future[None]") -> None:
        error = asyncio.CancelledError() if kept.cancelled() else kept.exception()
        if error is None:
            self.answer(b"ok\n")
        else:
            self._refuse(str(error) if isinstance(error, NextslotError) else type(error).__name__)

    def _refuse(self, why: str) -> None:
        self.answer(b"error " + " ".join(why.split()).encode("utf-8", "replace") + b"\n")
