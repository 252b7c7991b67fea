"""How a coroutine test is run, and on which databases: each of which it calls by a directory (`tests/databases.py`)."""

import asyncio
import inspect
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nextslot import testing
from tests import databases

TESTS = Path(__file__).parent

# Folders whose coroutine tests wait for real processes, sockets and threads. Everywhere else time is virtual; the marks
# `real_time` and `virtual_time` are for what differs from its folder.
REAL_TIME = {"cli", "client", "console", "crash", "executors", "extensions", "nodes", "server", "store"}

# Folders whose tests are about what a scheduler does, whatever it is stored in. On the second database they run the
# same lines, whose coverage is measured on the first only: that is costly. What differs is in `store`, whose own tests
# are measured on both.
BOTH = {"api", "cli", "client", "engine", "simulation"}
# Files elsewhere whose tests hold for any store.
BOTH_FILES = {"test_admin.py", "test_event_feed.py", "test_reload.py", "test_store.py"}
# In the folders of what is around the engine, a test that asks for no directory stores nothing.
AROUND = {"api", "cli", "client"}
DIRECTORIES = {"tmp_path", "tmp_path_factory"}

# A shell starts what runs in its background with Ctrl-C ignored, and what a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine function, on an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = pyfuncitem._fixtureinfo.argnames
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted})
    (asyncio.run if _is_in_real_time(pyfuncitem) else testing.run)(test)
    return True


def _is_in_real_time(test: pytest.Function) -> bool:
    for mark in test.iter_markers():
        if mark.name in ("real_time", "virtual_time"):
            return mark.name == "real_time"
    return folder(test.path) in REAL_TIME


def folder(file: Path) -> str:
    """The folder of `tests` that a file is in, or below."""
    return file.relative_to(TESTS).parts[0]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    file = Path(str(metafunc.module.__file__))
    if file.parent.name not in BOTH and file.name not in BOTH_FILES:
        return
    marked = metafunc.definition.get_closest_marker("sqlite_only") is not None
    stores_nothing = file.parent.name in AROUND and not DIRECTORIES & set(metafunc.fixturenames)
    if not stores_nothing:
        kinds = databases.KINDS[:1] if marked else databases.kinds()
        measured = kinds[:1] if file.parent.name in BOTH else kinds
        chosen = [pytest.param(kind, marks=() if kind in measured else pytest.mark.no_cover) for kind in kinds]
        metafunc.parametrize("database_of_the_module", chosen, indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def database_of_the_module(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kind of database; what a module's own fixtures made there is dropped after its last test on it.

    Such a fixture asks for this one: so it is made again for the other database.
    """
    kind: str = getattr(request, "param", "sqlite")
    databases.use(kind)
    yield kind
    databases.use("sqlite")
    databases.forget()


@pytest.fixture(autouse=True)
def on_database(database_of_the_module: str) -> Iterator[str]:
    """The kind of database that this test uses; what it made there is dropped at its end."""
    databases.use(database_of_the_module)
    before = databases.borrowed()
    yield database_of_the_module
    databases.use(database_of_the_module)
    databases.forget(before)
