"""Mutation testing: checks for each small change of the code whether a test notices it. Each mutant runs in its own
process.

    uv run python scripts/mutate.py map                          # once: which tests reach which lines (minutes)
    uv run python scripts/mutate.py map tests/domain               # again for these, and the rest stays as it was
    uv run python scripts/mutate.py run lifecycle.py policy      # every mutant of these
    uv run python scripts/mutate.py run engine --sample 300      # of so many, drawn by --seed

A mutant is run by tests that reach its line, quick and particular ones first, until one fails. What survives is shown.
Nothing is written into the source tree, and nothing is imported twice: all tests are collected once, and each mutant is
a fork of that process in which one function has got other code. So only what is inside of functions is changed.
"""

import argparse
import functools
import gc
import importlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import types
import xml.etree.ElementTree
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from mutants import NOTHING, Mutant, changed, mutants  # type: ignore[import-not-found, unused-ignore]

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "nextslot"
TESTS = (
    "tests/domain",
    "tests/engine",
    "tests/config",
    "tests/extensions/legacy/test_legacy.py",
    "tests/extensions/offices/test_14_office_routes.py",
    "tests/server/test_metrics.py",
)
WORK = Path(os.environ.get("NEXTSLOT_MUTATE", "/tmp/nextslot-mutate"))
# How many tests, and how many seconds of tests, a mutant must survive to count as survived.
MOST_TESTS, MOST_SECONDS = 200, 30.0
MOST_SECONDS_OF_FIRST = 60.0
# How much longer than its tests a mutant may take before it counts as endless.
PATIENCE_SECONDS = 10.0
SURVIVED, KILLED = 0, 1

Reach = Mapping[str, Mapping[int, Sequence[str]]]


class Case(NamedTuple):
    """A mutant, its place, and the tests that should notice it."""

    file: Path
    mutant: Mutant
    tests: Sequence[str]

    def __str__(self) -> str:
        return f"{self.file.relative_to(PACKAGE)}:{self.mutant.line}: {self.mutant.change}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    mapping = commands.add_parser("map")
    mapping.add_argument("tests", nargs="*", help="files or folders of tests (all that are of use)")
    run = commands.add_parser("run")
    run.add_argument("parts", nargs="+", help="files or folders of src/nextslot")
    run.add_argument("--sample", type=int, help="how many of all (all)")
    run.add_argument("--seed", type=int, default=1)
    run.add_argument("--only", nargs="+", help="lines, as FILE:LINE")
    run.add_argument("--first", nargs="+", default=[], help="test files that are about it: all of each is run first")
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ["NEXTSLOT_TEST_DATABASE"] = "sqlite"
    if options.command == "map":
        return make_map(options.tests)
    found = list(cases(options.parts, options.sample, options.seed, options.only))
    tests = sorted({test.partition("::")[0] for case in found for test in case.tests} | set(options.first))
    quietly = ["-o", "addopts=--import-mode=importlib", "-p", "no:terminal", "-p", "no:cacheprovider"]
    return int(pytest.main([*quietly, *tests], plugins=[Judge(found, options.first)]))


# Which tests reach which line.


def make_map(some: Sequence[str]) -> int:
    WORK.mkdir(parents=True, exist_ok=True)
    earlier = list(WORK.glob("times-*.xml")) if some else []
    times = WORK / f"times-{len(earlier)}.xml"
    settings = WORK / "settings.ini"
    settings.write_text(f"[run]\nsource_pkgs = nextslot.domain, nextslot.engine\ndata_file = {WORK / 'coverage'}\n")
    pytest = [sys.executable, "-m", "pytest", *(some or TESTS), "-p", "no:cacheprovider", f"--junitxml={times}"]
    coverage = ["--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report="]
    return subprocess.call([*pytest, *coverage, *(["--cov-append"] if some else [])])


def read_map() -> tuple[Reach, Mapping[str, float]]:
    """Reads the tests of each line of each file, and how long each test takes."""
    from coverage import CoverageData

    data = CoverageData(str(WORK / "coverage"))
    data.read()
    reach = {
        file: {
            line: sorted({name.split("|")[0] for name in names if name})
            for line, names in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }
    seconds = {}
    for times in sorted(WORK.glob("times-*.xml")):
        for case in xml.etree.ElementTree.parse(times).iter("testcase"):
            path, name = case.get("classname", "").replace(".", "/"), case.get("name", "")
            seconds[f"{path}.py::{name}"] = float(case.get("time", "0"))
    return reach, seconds


def cases(parts: Sequence[str], sample: int | None, seed: int, only: Sequence[str] | None) -> Iterator[Case]:
    reach, seconds = read_map()
    breadth = Counter(test for lines in reach.values() for tests in lines.values() for test in tests)
    found = []
    for part in parts:
        path = PACKAGE / part
        for file in [path] if path.is_file() else sorted(path.glob("*.py")):
            found += [(file, mutant) for mutant in mutants(file.read_text())]
    if only is not None:
        found = [one for one in found if f"{one[0].relative_to(PACKAGE)}:{one[1].line}" in only]
    chosen = found if sample is None else random.Random(seed).sample(found, min(sample, len(found)))
    depths = {
        file: Counter(test for tests in reach.get(str(file), {}).values() for test in tests)
        for file in {file for file, _ in chosen}
    }
    for file, mutant in chosen:
        tests = reach.get(str(file), {}).get(mutant.line, [])
        yield Case(file, mutant, _first(tests, seconds, breadth, depths[file]))


def _first(
    tests: Sequence[str], seconds: Mapping[str, float], breadth: Mapping[str, int], depth: Mapping[str, int]
) -> list[str]:
    """Returns the tests to run first: quick unit tests that reach little else or much of this file; then others while
    there is time.
    """

    def few_by(particular: Callable[[str], int]) -> list[str]:
        def how_soon(test: str) -> tuple[bool, bool, int]:
            return not test.startswith("tests/domain"), seconds.get(test, 0.1) > 1, particular(test)

        return sorted(tests, key=how_soon)[: MOST_TESTS // 4]

    others = list(tests)
    random.Random(len(others)).shuffle(others)
    first: list[str] = []
    left = MOST_SECONDS
    for test in dict.fromkeys([*few_by(lambda test: -depth[test]), *few_by(lambda test: breadth[test]), *others]):
        if len(first) < MOST_TESTS and seconds.get(test, 0.1) <= left:
            first.append(test)
            left -= seconds.get(test, 0.1)
    return first


# Running the mutants.


class Judge:
    """A plugin of pytest that runs mutants instead of tests."""

    def __init__(self, found: Sequence[Case], first: Sequence[str] = ()) -> None:
        self._cases = found
        self._first = first
        self._seconds = MOST_SECONDS + PATIENCE_SECONDS + MOST_SECONDS_OF_FIRST * bool(first)
        self._is_child = False
        self._items: dict[str, pytest.Item] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        first = [test for test in self._items if test.partition("::")[0] in self._first]
        self._cases = [case._replace(tests=list(dict.fromkeys([*first, *case.tests]))) for case in self._cases]
        self._code = Code({case.file for case in self._cases})
        gc.freeze()  # Otherwise the garbage collector of each fork would traverse, and so copy, all of it.
        self._refuse_what_fails_anyway()
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for number, case in enumerate(self._cases, start=1):
            end = self._judge(case) if case.tests else "not reached"
            counts[str(case.file.relative_to(PACKAGE))][end] += 1
            if end not in ("killed", "endless"):
                print(f"{end}: {case}", flush=True)
            if number % 100 == 0:
                print(f"({number} of {len(self._cases)})", flush=True)
        session.testsfailed = _tell(counts)
        return True

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._is_child and report.failed:
            os._exit(KILLED)

    def _refuse_what_fails_anyway(self) -> None:
        """Refuses tests that fail without a mutant: with them, every mutant would count as noticed."""
        for file in sorted({case.file for case in self._cases if case.tests}):
            tests = sorted({test for case in self._cases if case.file == file for test in case.tests})
            some = random.Random(0).sample(tests, min(len(tests), 10))
            # Tried twice, because a test with real sockets or processes may fail once on a busy machine.
            if all(self._judge(Case(file, NOTHING, some)) != "SURVIVED" for _ in range(2)):
                print(f"{file}: its tests fail without any mutant: {some}", flush=True)
                pytest.exit(f"{file}: its tests fail without any mutant", returncode=3)

    def _judge(self, case: Case) -> str:
        child = os.fork()
        if child == 0:
            self._be(case)
        end = time.monotonic() + 3 * self._seconds
        while time.monotonic() < end:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                if os.WIFSIGNALED(status):
                    return "endless"
                return "SURVIVED" if os.WEXITSTATUS(status) == SURVIVED else "killed"
            time.sleep(0.005)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "endless"

    def _be(self, case: Case) -> None:
        self._is_child = True
        limit = int(self._seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        try:
            self._code.change(case.file, case.mutant)
            items = [self._items[test] for test in case.tests if test in self._items]
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            os._exit(SURVIVED)
        finally:
            os._exit(KILLED)


def _tell(counts: Mapping[str, Counter[str]]) -> int:
    """Prints how many mutants were noticed. Returns how many were not."""
    for file, ends in sorted(counts.items()):
        print(f"{file}: {ends.total()} mutants, {json.dumps(ends)}")
    total = sum(map(Counter.total, counts.values()))
    noticed = sum(ends["killed"] + ends["endless"] for ends in counts.values())
    print(f"{noticed} of {total} noticed")
    return total - noticed


# Replacing the code of a function.


class Code:
    """Holds the functions of our modules, and the caches that they have filled."""

    def __init__(self, files: Iterable[Path]) -> None:
        for file in files:  # Some modules are imported only when they are first needed.
            importlib.import_module(".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts))
        self._functions: dict[tuple[str, str, int], list[types.FunctionType]] = defaultdict(list)
        self._memories = []
        for thing in gc.get_objects():
            if isinstance(thing, types.FunctionType) and thing.__code__.co_filename.startswith(str(PACKAGE)):
                code = thing.__code__
                self._functions[code.co_filename, code.co_qualname, code.co_firstlineno].append(thing)
            elif isinstance(thing, functools._lru_cache_wrapper):
                self._memories.append(thing)

    def change(self, file: Path, mutant: Mutant) -> None:
        """Gives the changed function its new code. References to the function stay valid, because the function object
        is the same.
        """
        source = file.read_text()
        before = dict(_functions(compile(source, str(file), "exec")))
        after = dict(_functions(compile(changed(source, mutant), str(file), "exec")))
        for (name, line), code in after.items():
            if code != before[name, line]:
                for function in self._functions[str(file), name, line]:
                    function.__code__ = code
        for memory in self._memories:
            memory.cache_clear()


def _functions(code: types.CodeType) -> Iterator[tuple[tuple[str, int], types.CodeType]]:
    """Yields the functions of a module or a class. Nested functions count as part of the function that contains
    them.
    """
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            if inner.co_flags & 0x2:  # The code has locals of its own, so it is a function and not the body of a class.
                yield (inner.co_qualname, inner.co_firstlineno), inner
            else:
                yield from _functions(inner)


if __name__ == "__main__":
    sys.exit(main())
