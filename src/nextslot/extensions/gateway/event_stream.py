"""Reads server-sent events from pieces of bytes: only whole events, so that a broken one never reaches a client."""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

_LINE_END = re.compile(rb"\r\n|\n|\r")


class TooLong(Exception):
    """An event without an end."""


async def events(pieces: AsyncGenerator[bytes, None], most_bytes: int) -> AsyncGenerator[list[bytes], None]:
    """Yields the lines of each event. The rest of a stream that ends without a blank line is no event."""
    lines: list[bytes] = []
    rest, size = b"", 0
    async with aclosing(pieces):
        async for piece in pieces:
            # A CR at the end may be half of a CRLF: it waits for what follows.
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
