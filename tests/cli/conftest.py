"""One real server a module, and the command line at it."""

from collections.abc import Iterator

import pytest

from tests.cli.terminal import Terminal
from tests.serving import Served, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, database_of_the_module: str) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture
def nextslot(served: Served, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("NEXTSLOT_URL", served.url)
    monkeypatch.delenv("NEXTSLOT_API_KEY", raising=False)
    return Terminal()
