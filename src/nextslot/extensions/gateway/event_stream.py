"""Reads server-sent events from pieces of bytes. Yields complete events only: a broken one never reaches a client."""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

# Some servers begin with it; the standard says to ignore it.
BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r")


class TooLong(Exception):
    """An event that exceeds the allowed size before it ends."""


async def events(pieces: AsyncGenerator[bytes, None], most_bytes: int) -> AsyncGenerator[list[bytes], None]:
    """Yields the lines of each event. If a stream ends without a blank line, drops the rest.

    Searches each byte for the end of its line once, because an event may have megabytes, such as those of an image.
    """
    lines: list[bytes] = []
    line, size = bytearray(), 0
    is_first, has_cr = True, False
    async with aclosing(pieces):
        async for piece in pieces:
            # A CR at the end may be half of a CRLF, so it waits for the next piece.
            text = b"\r" + piece if has_cr else piece
            has_cr = text.endswith(b"\r")
            begun, *more = _LINE_END.split(text[:-1] if has_cr else text)
            line += begun
            for part in more:
                whole = bytes(line).removeprefix(BOM if is_first else b"")
                line, is_first = bytearray(part), False
                size += len(whole)
                if whole:
                    lines.append(whole)
                elif lines:
                    yield lines
                    lines, size = [], 0
            if size + len(line) > most_bytes:
                raise TooLong
    if has_cr and not line and lines:
        yield lines


def data_of(lines: list[bytes]) -> bytes | None:
    """Returns the data of an event; None if it has none, such as a comment."""
    found = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
    return b"\n".join(found) if found else None
