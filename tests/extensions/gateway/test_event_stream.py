"""Events are read as they are, however their bytes arrive."""

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextslot.extensions.gateway.event_stream import TooLong, data_of, events

LINES = st.lists(
    st.sampled_from(["data: {}", 'data: {"a": "🦉"}', "data:x", ": note", "event: y", "id: 1"]), min_size=1
)


async def in_pieces(data: bytes, cuts: list[int]) -> AsyncGenerator[bytes, None]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for begin, end in itertools.pairwise(places):
        yield data[begin:end]


async def read(data: bytes, cuts: list[int]) -> list[list[bytes]]:
    return [lines async for lines in events(in_pieces(data, cuts), 10_000)]


@given(
    st.lists(LINES, max_size=5), st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(0, 10_000), max_size=30)
)
def test_events_do_not_depend_on_where_the_bytes_are_cut(wanted: list[list[str]], end: str, cuts: list[int]) -> None:
    data = "".join(end.join(lines) + 2 * end for lines in wanted).encode()

    found = asyncio.run(read(data, cuts))

    assert found == [[line.encode() for line in lines] for lines in wanted]


async def test_what_is_cut_off_is_no_event() -> None:
    assert await read(b"data: 1\n\ndata: 2", []) == [[b"data: 1"]]
    assert await read(b"data: 1\n\ndata: 2\n", []) == [[b"data: 1"]]
    assert await read(b"\n\n\n", []) == []


async def test_an_event_without_an_end_is_refused() -> None:
    with pytest.raises(TooLong):
        await read(b"data: " + b"x" * 20_000, [])
    with pytest.raises(TooLong):
        await read(b"data: x\n" * 5_000, [])


async def test_a_large_event_is_searched_once_however_many_pieces_it_has() -> None:
    event = b"data: " + b"x" * 4_000_000
    took = {}

    for size in (1_000, 100_000):
        began = time.process_time()
        pieces = in_pieces(event + b"\n\n", list(range(0, len(event), size)))
        found = [lines async for lines in events(pieces, 5_000_000)]
        took[size] = time.process_time() - began
        assert found == [[event]]

    # Searched again with each piece, 4,000 pieces took 100 times as long as 40, some ten seconds.
    assert took[1_000] < 20 * took[100_000] + 1


async def test_a_byte_order_mark_at_the_beginning_is_ignored() -> None:
    assert await read(b"\xef\xbb\xbfdata: 1\n\n\xef\xbb\xbfdata: 2\n\n", [1, 2]) == [
        [b"data: 1"],
        [b"\xef\xbb\xbfdata: 2"],
    ]


def test_data_is_joined_by_line_and_comments_have_none() -> None:
    assert data_of([b"data: a", b"event: b", b"data:c"]) == b"a\nc"
    assert data_of([b": a"]) is None
