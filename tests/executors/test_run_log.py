"""Spec 5: a run's log is on disk as it is written, within its cap; a reader learns of every cut."""

import os
import random
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nextslot.executors import run_log
from nextslot.executors.run_files import RunFiles
from nextslot.executors.run_log import LogPart, LogPaths, RunLog

CAP = 40_000
_opened: list[RunLog] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Closes the logs that a test left open."""
    yield
    while _opened:
        with suppress(OSError):
            os.close(_opened.pop()._file)


def test_the_newest_line_is_on_disk_once_it_is_written(tmp_path: Path) -> None:
    paths, log = new_log(tmp_path)

    for number in range(5000):
        log.write(b"line %d\n" % number)

        assert run_log.tail(paths, 1, 1000).text == b"line %d\n" % number


@pytest.mark.parametrize("seed", range(8))
def test_a_log_takes_no_more_than_its_cap_at_any_moment(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    cap = chance.choice([10, 999, 5000, CAP, 300_000])
    paths, log = new_log(tmp_path, cap)
    written = b""

    for data in some_writes(chance, 3 * cap):
        log.write(data)
        written += data

        assert on_disk(tmp_path) <= cap
    assert_is_capped(whole(paths), written, cap)


def test_while_pieces_are_joined_one_of_them_may_be_there_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0

    def measured(self: Path, missing_ok: bool = False) -> None:
        nonlocal most
        most = max(most, on_disk(tmp_path))
        unlink(self, missing_ok)

    unlink = Path.unlink
    paths, log = new_log(tmp_path)
    log.write(text_of(3 * CAP))
    before = on_disk(tmp_path)
    monkeypatch.setattr(Path, "unlink", measured)
    log.close()

    assert before < most <= CAP + CAP // 2 // run_log.FEWEST_PIECES + 200
    assert not paths.pieces.exists()


@pytest.mark.parametrize("size", [0, 1, CAP // 2, CAP // 2 + 1, CAP - 5000])
def test_a_log_that_fits_is_kept_as_it_is(tmp_path: Path, size: int) -> None:
    paths, log = new_log(tmp_path)
    text = text_of(size)
    log.write(text)
    during = whole(paths)
    log.close()

    assert (during, whole(paths), paths.log.read_bytes()) == (text, text, text)
    assert on_disk(tmp_path) == size
    assert not paths.cut.exists()


def test_a_log_that_has_ended_is_one_file_that_says_what_is_missing(tmp_path: Path) -> None:
    paths, log = new_log(tmp_path)
    text = text_of(3 * CAP)
    log.write(text)
    during = whole(paths)
    log.close()

    assert paths.log.read_bytes() == during == whole(paths)
    assert_is_capped(during, text, CAP)
    # Cut between lines.
    assert re.search(rb"line \d+\n\n\xe2\x80\xa6 [0-9,]+ bytes cut here \xe2\x80\xa6\nline \d+\n", during)


@pytest.mark.parametrize("seed", range(8))
def test_a_follower_gets_each_byte_or_hears_how_many_were_cut(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    paths, log = new_log(tmp_path)
    followers = [Follower(chance.randrange(CAP)) for _ in range(6)]
    written = b""

    for data in some_writes(chance, 4 * CAP):
        log.write(data)
        written += data
        for one in followers[: chance.randrange(7)]:
            one.take(run_log.read(paths, one.position, chance.choice([1, 100, 100_000])), written)
    log.close()

    for one in followers:
        while (part := run_log.read(paths, one.position, 5000)).text:
            one.take(part, written)
        assert one.position == max(len(written), one.begin)
        assert one.seen + one.cut == max(0, len(written) - one.begin)
    assert any(one.cut for one in followers), "no follower was behind the cut: this proves nothing"


def test_a_reader_may_read_while_the_log_is_written_and_joined(tmp_path: Path) -> None:
    """Real threads: a piece may vanish between any two steps of the reader."""
    paths, log = new_log(tmp_path)
    written = text_of(60 * CAP)
    has_ended = threading.Event()

    def write() -> None:
        for at in range(0, len(written), 700):
            log.write(written[at : at + 700])
        log.close()
        has_ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    follower, newest = Follower(0), 0
    while True:
        is_last = has_ended.is_set()
        follower.take(part := run_log.read(paths, follower.position, 3000), written)
        last = run_log.tail(paths, 3, 1000)
        assert newest <= last.next
        assert written[: last.next].endswith(last.text)
        newest = last.next
        if is_last and not part.text:
            break
    writer.join()

    assert follower.seen + follower.cut == len(written)
    assert follower.position == len(written)


@pytest.mark.parametrize("lines", [0, 1, 5, 200, 2400, 100_000])
@pytest.mark.parametrize("is_closed", [True, False])
def test_the_tail_is_the_end_of_the_whole_and_says_where_it_begins(tmp_path: Path, lines: int, is_closed: bool) -> None:
    paths, log = new_log(tmp_path)
    log.write(text_of(3 * CAP) + b"an unfinished line")
    if is_closed:
        log.close()
    everything = whole(paths)

    found = run_log.tail(paths, lines, 1000)

    assert found.text == b"".join(everything.splitlines(keepends=True)[-lines:] if lines else [])
    assert run_log.read(paths, found.start, 10**9).text.endswith(found.text)
    assert len(run_log.read(paths, found.start, 10**9).text) <= len(found.text) + 1
    assert found.next == found.size == 3 * CAP + len("an unfinished line")
    assert found.line == everything[: len(everything) - len(found.text)].count(b"\n") + 1


def test_a_join_that_is_killed_at_any_point_is_finished_by_the_next(tmp_path: Path, monkeypatch: Any) -> None:
    text = text_of(3 * CAP)
    kills = steps = 0
    for step in range(100):
        paths, log = new_log(tmp_path / str(step))
        log.write(text)
        expected = whole(paths)
        with monkeypatch.context() as patched:
            killed = Killed(patched, step)
            try:
                log.close()
            except Kill:
                kills += 1
        assert whole(paths) == expected
        assert run_log.read(paths, len(text) - 900, 5000).text == text[-900:]

        run_log.join(paths)

        assert (paths.log.read_bytes(), whole(paths)) == (expected, expected)
        assert not paths.pieces.exists()
        steps = killed.steps
        if steps <= step:
            break
    # Writing down the cut, and a copy and a removal for each piece.
    assert kills == steps >= 5


def test_of_pieces_with_a_gap_the_newest_are_kept_and_the_gap_is_told(tmp_path: Path) -> None:
    """As a power cut may leave them, since nothing is synced."""
    paths, log = new_log(tmp_path)
    text = text_of(3 * CAP)
    log.write(text)
    pieces = sorted(paths.pieces.iterdir())
    with pieces[-3].open("r+b") as file:
        file.truncate(10)

    run_log.join(paths)

    kept = len(text) - int(pieces[-2].name)
    assert_is_capped(paths.log.read_bytes(), text, CAP, least=CAP // 2 + kept - 100)
    assert whole(paths) == paths.log.read_bytes()


def test_a_long_line_is_cut_where_the_room_ends(tmp_path: Path) -> None:
    paths, log = new_log(tmp_path)
    line = b"x" * (3 * CAP)
    log.write(line)
    log.close()

    assert_is_capped(paths.log.read_bytes(), line, CAP)


def test_a_log_of_an_execution_that_was_purged_is_not_gone_on_with(tmp_path: Path) -> None:
    """A direct execution may get the id of one whose row was purged before its files."""
    paths, log = new_log(tmp_path)
    log.write(text_of(3 * CAP))
    log.close()
    _, again = new_log(tmp_path)
    again.write(b"new\n")

    assert whole(paths) == b"new\n"


def test_files_of_a_log_are_their_owner_s_alone(tmp_path: Path) -> None:
    paths, log = new_log(tmp_path)
    log.write(text_of(3 * CAP))
    during = [path.stat().st_mode & 0o077 for path in (paths.log, *paths.pieces.iterdir())]
    log.close()

    assert {*during, paths.log.stat().st_mode & 0o077, paths.cut.stat().st_mode & 0o077} == {0}


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_log_is_removed_in_all_its_parts(tmp_path: Path, is_closed: bool) -> None:
    files = RunFiles(tmp_path, log_cap=CAP)
    log = files.open_log("run-1")
    _opened.append(log)
    log.write(text_of(3 * CAP))
    if is_closed:
        log.close()
    files.remove_all(["run-1"])

    assert on_disk(tmp_path) == 0
    assert files.logs_in_pieces() == []


# Arrangement.


class Kill(Exception):
    """Simulates the end of the process: no later line runs."""


class Killed:
    """Counts the disk operations of a join, and kills it at one of them; a copy stays half done."""

    def __init__(self, patched: pytest.MonkeyPatch, at: int) -> None:
        self.steps = 0
        self._at = at
        copy, unlink, replace = shutil.copyfileobj, Path.unlink, Path.replace

        def half_copy(source: Any, target: Any) -> None:
            if self._is_next():
                target.write(source.read(1500))
                raise Kill
            copy(source, target)

        def no_unlink(path: Path, missing_ok: bool = False) -> None:
            self._step()
            unlink(path, missing_ok)

        def no_replace(path: Path, target: Path) -> Path:
            self._step()
            return replace(path, target)

        patched.setattr(shutil, "copyfileobj", half_copy)
        patched.setattr(Path, "unlink", no_unlink)
        patched.setattr(Path, "replace", no_replace)

    def _step(self) -> None:
        if self._is_next():
            raise Kill

    def _is_next(self) -> bool:
        self.steps += 1
        return self.steps == self._at + 1


class Follower:
    """Reads parts one after the other, and compares each with what was written."""

    def __init__(self, begin: int) -> None:
        self.begin = self.position = begin
        self.seen = self.cut = 0

    def take(self, part: LogPart, written: bytes) -> None:
        assert part.start == self.position
        text = part.text
        if part.cut:
            said = run_log.marker(part.cut)
            before, _, after = text.partition(said)
            assert written[self.position :].startswith(before)
            text = before + after
            assert written[: part.next].endswith(after)
        else:
            assert written[self.position : part.next] == text
        assert part.next - part.start == len(text) + part.cut
        self.position, self.seen, self.cut = part.next, self.seen + len(text), self.cut + part.cut


def new_log(folder: Path, cap: int = CAP) -> tuple[LogPaths, RunLog]:
    paths = LogPaths(folder / "logs" / "ab" / "run.log", folder / "logs" / "pieces" / "run")
    _opened.append(RunLog(paths, cap))
    return paths, _opened[-1]


def text_of(size: int) -> bytes:
    """Returns different lines."""
    lines = (b"line %d\n" % number for number in range(size))
    text = bytearray()
    while len(text) < size:
        text += next(lines)
    return bytes(text[:size])


def some_writes(chance: random.Random, size: int) -> list[bytes]:
    """Returns writes of at least this size in total: single lines, blocks, and bytes without a newline."""
    text, writes = text_of(2 * size), []
    while size > 0:
        count = chance.choice([1, 9, 80, 500, 5000, 30_000])
        writes.append(text[:count] if chance.random() < 0.8 else bytes([chance.randrange(97, 122)]) * count)
        text, size = text[count:], size - count
    return writes


def whole(paths: LogPaths) -> bytes:
    """Returns all that a reader gets, part after part."""
    parts, position = [], 0
    while (part := run_log.read(paths, position, 777)).text:
        parts.append(part.text)
        position = part.next
    return b"".join(parts)


def assert_is_capped(shown: bytes, written: bytes, cap: int, least: int | None = None) -> None:
    """Checks that the log has the beginning and the end of the writes, and the right number between them."""
    found = re.search(rb"\n\xe2\x80\xa6 ([0-9,]+) bytes cut here \xe2\x80\xa6\n", shown)
    assert found is not None
    missing = int(found[1].replace(b",", b""))
    head, tail = shown[: found.start()], shown[found.end() :]
    assert written.startswith(head)
    assert written.endswith(tail)
    assert len(head) + missing + len(tail) == len(written)
    # Small caps have larger pieces, and files end with a line.
    assert (cap // 4 - 1 if least is None else least) <= len(head) + len(tail) <= cap


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
