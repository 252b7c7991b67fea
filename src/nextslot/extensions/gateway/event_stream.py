"""Reads server-sent events from pieces of bytes. Yields complete events only: a broken one never reaches a client."""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

_LINE_END = re.compile(rb"\r\n|\n|\r")


class TooLong(Exception):
    """An event that exceeds the allowed size before it ends."""


async def events(pieces: AsyncGenerator[bytes, None], most_bytes: int) -> AsyncGenerator[list[bytes], None]:
    """Yields the lines of each event. If a stream ends without a blank line, drops the rest."""
    lines: list[bytes] = []
    rest, size = b"", 0
    async with aclosing(pieces):
        async for piece in pieces:
            # A CR at the end may be half of a CRLF, so it waits for the next piece.
            *whole, rest = _split(rest + piece)
            for line in whole:
                size += len(line)
                if line:
                    lines.append(line)
                elif lines:
                    yield lines
                    lines, size = [], 0
            if size + len(rest) > most_bytes:
                raise TooLong
    if rest.rstrip(b"\r") == b"" and rest and lines:
        yield lines


def _split(text: bytes) -> list[bytes]:
    if text.endswith(b"\r"):
        *whole, rest = _LINE_END.split(text[:-1])
        return [*whole, rest + b"\r"]
    return _LINE_END.split(text)


def data_of(lines: list[bytes]) -> bytes | None:
    """Returns the data of an event; None if it has none, such as a comment."""
    found = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
    return b"\n".join(found) if found else None
