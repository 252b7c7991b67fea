"""Files to import that are nearly right: all of it or nothing, and a sentence in the second case."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from nextslot.config.loading import load
from nextslot.errors import NextslotError
from nextslot.offline_commands import export_to, import_from
from tests import everything
from tests.fuzz.grammars import HOSTILE, fuzzed

EXAMPLES = fuzzed(60).max_examples

pytestmark = pytest.mark.sqlite_only("tests/store/test_move.py imports into both")


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Exports a database with one of everything to a file."""
    directory = tmp_path_factory.mktemp("source")
    everything.make(directory)
    export_to(load(directory, environment={}), directory / "all.jsonl")
    return (directory / "all.jsonl").read_bytes()


def slipped(export: bytes, chance: random.Random) -> bytes:
    """Draws a changed file: with another byte, cut, with a line too many, too few or in the wrong place, or another
    value in a row.
    """
    lines = export.splitlines(keepends=True)
    at = chance.randrange(len(lines))
    kind = chance.randrange(6)
    if kind == 0:
        place = chance.randrange(len(export))
        return export[:place] + bytes([chance.randrange(256)]) + export[place + 1 :]
    if kind == 1:
        return export[: chance.randrange(len(export))]
    if kind == 2:
        return b"".join([*lines[:at], lines[at], *lines[at:]])
    if kind == 3:
        return b"".join([*lines[:at], *lines[at + 1 :]])
    if kind == 4:
        chance.shuffle(lines)
        return b"".join(lines)
    return b"".join([*lines[:at], changed(lines[at], chance), *lines[at + 1 :]])


def changed(line: bytes, chance: random.Random) -> bytes:
    row: Any = json.loads(line)
    values: list[Any] = [None, -1, 2**70, 0.5, [], {}, *HOSTILE]
    if isinstance(row, list) and row:
        row[chance.randrange(len(row))] = chance.choice(values)
    elif isinstance(row, dict) and row:
        row[chance.choice(list(row))] = chance.choice(values)
    return json.dumps(row).encode() + b"\n"


def test_an_import_with_a_slip_is_refused_in_words_and_leaves_nothing(export: bytes, tmp_path: Path) -> None:
    refused = 0
    for number in range(EXAMPLES):
        data = tmp_path / str(number)
        data.mkdir()
        file = data / "slipped.jsonl"
        file.write_bytes(slipped(export, random.Random(number)))
        if file.read_bytes() == export:
            continue
        try:
            import_from(load(data, environment={}), file)
        except NextslotError as error:
            refused += 1
            sentence = str(error)
        else:
            pytest.fail(f"slip {number} was imported")
        assert len(sentence) > 15
        assert not (data / "nextslot.db").exists(), f"slip {number} left a database: {sentence}"
    assert refused > EXAMPLES // 2
