"""What the tests of both stores begin with."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nextslot.store.open_store import write_export
from tests import databases, everything, postgres
from tests.store import moving
from tests.store.bench import NewBench, opened_bench


@pytest.fixture(params=[True, False], ids=["threaded", "one thread"])
def new_bench(request: pytest.FixtureRequest, tmp_path: Path) -> NewBench:
    is_threaded: bool = request.param
    return lambda: opened_bench(tmp_path, threaded=is_threaded)


# Moves.


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Makes a SQLite file with some of everything, as a crash leaves it."""
    directory = tmp_path_factory.mktemp("source")
    everything.make(directory)
    return f"sqlite:///{directory}/nextslot.db"


@pytest.fixture(scope="module")
def exported(source: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("exported") / "all.ndjson"
    write_export(source, target, moving.quietly)
    return target


@pytest.fixture
def fresh() -> Iterator[str]:
    """Makes a PostgreSQL database without any table."""
    name = f"nextslot_move_{os.getpid()}"
    yield postgres.create(name, "template0")
    postgres.drop(name)


@pytest.fixture(params=databases.kinds())
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Makes an empty place for a database, on each of the two."""
    if request.param == "postgres":
        address: str = request.getfixturevalue("fresh")
        return address
    return moving.file(tmp_path / "target.db")
