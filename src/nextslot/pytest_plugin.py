"""The plugin for pytest, which finds it by itself: the fixture `virtual_time`.

It imports nothing of the engine before a test asks for it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from nextslot.testing import VirtualTime


@pytest.fixture
def virtual_time(tmp_path: Path) -> "Iterator[VirtualTime]":
    """Drives schedulers on virtual time: `use`, `run`, `run_all`, `pass_time` and `freeze`."""
    from nextslot.testing import VirtualTime

    made = VirtualTime(tmp_path)
    try:
        yield made
    finally:
        made.close()
