"""Laws about the source itself."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import nextslot.engine

ENGINE = sorted(Path(nextslot.engine.__file__ or "").parent.glob("*.py"))
FORBIDDEN_MODULES = {
    "time", "datetime", "random", "secrets", "uuid", "uuid_utils", "threading", "concurrent", "_thread",
}  # fmt: skip
FORBIDDEN_CALLS = {
    "asyncio.sleep", "asyncio.to_thread", "sleep", "call_later", "call_at", "run_in_executor", "datetime.now", "uuid4",
}  # fmt: skip


@pytest.mark.parametrize("file", ENGINE, ids=lambda file: file.stem)
def test_the_engine_is_given_time_chance_and_threads_and_takes_none(file: Path) -> None:
    assert list(offences(ast.parse(file.read_text()))) == []


def test_the_law_finds_who_breaks_it() -> None:
    source = """
import time, random as r
from uuid import uuid4
from asyncio import sleep
import asyncio
async def f(loop):
    await asyncio.sleep(1)
    await sleep(1)
    loop.call_later(1, f)
    self._clock.sleep(1)
"""

    assert list(offences(ast.parse(source))) == [
        "2: time", "2: random", "3: uuid", "7: asyncio.sleep", "8: sleep", "9: loop.call_later"
    ]  # fmt: skip


def offences(tree: ast.Module) -> Iterator[str]:
    """Yields imports of injected services, and calls that wait, read a clock or start a thread, in the order of
    lines.
    """
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom, ast.Call))]
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            # `self._clock.sleep` is the injected one; anything else of these names is not.
            if FORBIDDEN_CALLS & {name, name.rsplit(".", 1)[-1]} and "clock" not in name:
                yield f"{node.lineno}: {name}"
        else:
            modules = imported(node)
            yield from (f"{node.lineno}: {module}" for module in modules if module in FORBIDDEN_MODULES)


def imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Yields the top-level modules that an import statement names, except our own package."""
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[0] for alias in node.names]
    return [] if node.level else [(node.module or "").split(".")[0]]
