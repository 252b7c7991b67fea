"""One real server a module."""

from collections.abc import Iterator

import pytest

from tests.serving import Served, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, database_of_the_module: str) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served")) as server:
        yield server
