"""What the tests of both stores begin with."""

from pathlib import Path

import pytest

from tests.store.bench import Main, Run, run_with_a_store


@pytest.fixture(params=[True, False], ids=["threaded", "one thread"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    is_threaded: bool = request.param

    def run(main: Main) -> None:
        run_with_a_store(tmp_path, main, threaded=is_threaded)

    return run
