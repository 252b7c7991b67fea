"""Every test of the engine runs on both databases, each of which it calls by a directory (`tests/databases.py`)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import databases

# Folders whose tests are about what the engine does, whatever it is stored in.
BOTH = {"engine", "simulation"}
# Files elsewhere whose tests hold for any store.
BOTH_FILES = {"test_store.py"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "on_database" not in metafunc.fixturenames:
        return
    file = Path(str(metafunc.module.__file__))
    marked = metafunc.definition.get_closest_marker("sqlite_only") is not None
    if (file.parent.name in BOTH or file.name in BOTH_FILES) and not marked:
        metafunc.parametrize("on_database", databases.kinds(), indirect=True)


@pytest.fixture(autouse=True)
def on_database(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kind of database that this test uses; what it made there is dropped at its end."""
    kind: str = getattr(request, "param", "sqlite")
    databases.use(kind)
    yield kind
    databases.forget()
