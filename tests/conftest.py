"""How a coroutine test is run, and on which databases: each of which it calls by a directory (`tests/databases.py`)."""

import asyncio
import inspect
import os
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from nextslot import testing
from nextslot.store.sqlite.sqlite_store import SqliteStore
from tests import databases
from tests.support import IS_ALL

TESTS = Path(__file__).parent

# Folders whose coroutine tests wait for real processes, sockets and threads. Everywhere else time is virtual; the marks
# `real_time` and `virtual_time` are for what differs from its folder.
REAL_TIME = {
    "chaos",
    "cli",
    "client",
    "console",
    "crash",
    "engines",
    "executors",
    "extensions",
    "fuzz",
    "nodes",
    "server",
    "store",
}

# Folders whose tests are about what a scheduler does, whatever it is stored in, and files elsewhere that are.
BOTH = {"cli", "client", "engine", "server", "simulation"}
BOTH_FILES = {
    *("test_admin.py", "test_event_feed.py", "test_reload.py", "test_store.py"),
    *("test_14_office_routes.py", "test_14_offices.py", "test_generate.py", "test_legacy.py", "test_old_webhooks.py"),
    "test_adopt.py",
}
# On the second database the others run the same lines, whose coverage is measured on the first only: that is costly.
MEASURED_ON_BOTH = {"config", "store"}
# Of these folders only one test in so many, chosen by its name, runs on PostgreSQL too; and all tests of the files in
# NOT_SAMPLED, which are about what the databases do differently: groups, effects, wake-ups, recovery. `./test --all`
# takes more of them, and the engine's other tests with the store's threads. NEXTSLOT_TEST_ONE_IN=1: all.
SAMPLED = {"cli", "client", "engine", "extensions", "server"}
ONE_IN = {"engine": 3, "else": 6} if IS_ALL else {"engine": 8, "else": 8}
NOT_SAMPLED = {
    "test_15_recovery.py", "test_context.py", "test_effects.py", "test_refusals.py", "test_schema_sequences.py",
    "test_adopt.py", "test_wakeups.py",
}  # fmt: skip
# In these, a test that asks for no directory stores nothing.
DIRECTORIES = {"tmp_path", "tmp_path_factory"}

# A shell starts what runs in its background with Ctrl-C ignored, and what a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("nextslot", deadline=None)
hypothesis.settings.load_profile("nextslot")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine function, on an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = pyfuncitem._fixtureinfo.argnames
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted})
    (asyncio.run if _is_in_real_time(pyfuncitem) else testing.run)(test)
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Keeps coverage, which starts again after each test that it does not measure, from wrapping `os._exit` each time:
    after some hundred of them a call would go deeper than Python allows.
    """
    leave = os._exit
    try:
        return (yield)
    finally:
        os._exit = leave


def _is_in_real_time(test: pytest.Function) -> bool:
    for mark in test.iter_markers():
        if mark.name in ("real_time", "virtual_time"):
            return mark.name == "real_time"
    return folder(test.path) in REAL_TIME


def folder(file: Path) -> str:
    """Returns the folder directly below `tests` that contains a file."""
    return file.relative_to(TESTS).parts[0]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    file = Path(str(metafunc.module.__file__))
    if folder(file) not in BOTH and file.name not in BOTH_FILES:
        return
    if folder(file) in SAMPLED and not DIRECTORIES & set(metafunc.fixturenames):
        return
    kinds = _kinds(file, metafunc.definition)
    measured = kinds if folder(file) in MEASURED_ON_BOTH else kinds[:1]
    chosen = [pytest.param(kind, marks=() if kind in measured else pytest.mark.no_cover) for kind in kinds]
    metafunc.parametrize("database_of_the_module", chosen, indirect=True, scope="module")


def _kinds(file: Path, test: pytest.Function) -> list[str]:
    """Returns the databases on which a test runs, and whether it also runs with the store's threads."""
    kinds = databases.kinds()
    if test.get_closest_marker("sqlite_only") is not None:
        return list(databases.KINDS[:1])
    is_sampled = folder(file) in SAMPLED and file.name not in NOT_SAMPLED
    one_in = int(os.environ.get("NEXTSLOT_TEST_ONE_IN", 0)) or ONE_IN.get(folder(file), ONE_IN["else"])
    is_chosen = not is_sampled or zlib.crc32(f"{file.name}::{test.originalname}".encode()) % one_in == 0
    if len(kinds) > 1 and not is_chosen:
        kinds = kinds[:1]
    is_for_threads = folder(file) == "engine" or file.name == "test_14_offices.py"
    has_no_other = not is_sampled or one_in == 1 or "postgres" not in kinds
    if (
        IS_ALL
        and is_for_threads
        and has_no_other
        and "sqlite" in kinds
        and test.get_closest_marker("one_thread") is None
    ):
        kinds = [*kinds, databases.THREADS]
    return kinds


@pytest.fixture(scope="module", autouse=True)
def database_of_the_module(request: pytest.FixtureRequest) -> Iterator[str]:
    """Chooses the kind of database for a module's own fixtures, and drops what they made after the module's last test
    on it. Such a fixture uses this one, so that it is made again for the other database.
    """
    kind: str = getattr(request, "param", "sqlite")
    databases.use(kind)
    yield kind
    databases.use("sqlite")
    databases.forget()


@pytest.fixture(autouse=True)
def on_database(database_of_the_module: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Chooses the kind of database for a test, and drops what the test made there at its end."""
    databases.use(database_of_the_module)
    if databases.is_threaded():
        monkeypatch.setattr(SqliteStore, "is_inline", lambda store, rows: not store._threaded)
    before = databases.borrowed()
    yield databases.kind()
    databases.use(database_of_the_module)
    databases.forget(before)
