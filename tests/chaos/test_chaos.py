"""`scripts/chaos.py` for some seconds on each database: `NEXTSLOT_CHAOS_SECONDS=45 ./test tests/chaos`."""

import importlib.util
import os
import tempfile
from pathlib import Path
from types import ModuleType

import pytest

SECONDS = float(os.environ.get("NEXTSLOT_CHAOS_SECONDS", "0"))


def chaos() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts" / "chaos.py"
    found = importlib.util.spec_from_file_location("chaos", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.timeout(600)
@pytest.mark.skipif(not SECONDS, reason="takes many minutes on a busy machine: NEXTSLOT_CHAOS_SECONDS=45")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_nothing_is_lost_or_doubled_while_everything_fails(store: str) -> None:
    program = chaos()
    if lacking := program.missing(store):
        if os.environ.get("CI") == "true":
            pytest.fail(f"this machine lacks {', '.join(lacking)}")
        pytest.skip(f"this machine lacks {', '.join(lacking)}")
    # Below the directory of pytest PostgreSQL, which runs as another user, could read nothing.
    with tempfile.TemporaryDirectory(prefix="nextslot-chaos-") as directory:
        Path(directory).chmod(0o755)

        report, broken = program.run(store, SECONDS, 1, Path(directory))

        assert broken == [], report
