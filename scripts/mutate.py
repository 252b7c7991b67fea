"""Mutation testing: would a test notice, if this line were wrong? One mutant after the other, each in a process.

    uv run python scripts/mutate.py map                          # once: which tests reach which lines (minutes)
    uv run python scripts/mutate.py run lifecycle.py policy      # every mutant of these
    uv run python scripts/mutate.py run engine --sample 300      # of so many, drawn by --seed

A mutant is run by tests that reach its line, quick and particular ones first, until one fails. What survives is shown.
Nothing is written into the source tree: the changed module is compiled in memory, in a fork of a process that has
imported everything but nextslot already.
"""

import argparse
import contextlib
import importlib
import importlib.machinery
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mutants import Mutant, mutants

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "nextslot"
TESTS = ("tests/pure", "tests/engine", "tests/api")
WORK = Path(os.environ.get("NEXTSLOT_MUTATE", "/tmp/nextslot-mutate"))
# How many tests, and how many seconds of them, a mutant has to survive.
MOST_TESTS, MOST_SECONDS = 80, 20.0
# What a mutant may take more than its tests do, before it is taken for one that never ends.
PATIENCE_SECONDS = 10.0
# pytest's own: all have passed. Everything else has noticed something.
PASSED = 0

Reach = Mapping[str, Mapping[int, Sequence[str]]]


class Case(NamedTuple):
    """A mutant, where it is, and the tests that ought to notice."""

    file: Path
    mutant: Mutant
    tests: Sequence[str]

    def __str__(self) -> str:
        return f"{self.file.relative_to(PACKAGE)}:{self.mutant.line}: {self.mutant.change}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("map")
    run = commands.add_parser("run")
    run.add_argument("parts", nargs="+", help="files or folders of src/nextslot")
    run.add_argument("--sample", type=int, help="how many of all (all)")
    run.add_argument("--seed", type=int, default=1)
    run.add_argument("--only", help="a line, as FILE:LINE")
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ["NEXTSLOT_TEST_DATABASE"] = "sqlite"
    if options.command == "map":
        return make_map()
    return run_all(list(cases(options.parts, options.sample, options.seed, options.only)))


# Which tests reach a line.


def make_map() -> int:
    WORK.mkdir(parents=True, exist_ok=True)
    settings = WORK / "coverage.ini"
    settings.write_text(
        f"[run]\nsource_pkgs = nextslot.lifecycle, nextslot.policy, nextslot.engine\ndata_file = {WORK / 'coverage'}\n"
    )
    pytest = [sys.executable, "-m", "pytest", *TESTS, "-p", "no:cacheprovider", f"--junitxml={WORK / 'times.xml'}"]
    return subprocess.call([*pytest, "--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report="])


def read_map() -> tuple[Reach, Mapping[str, float]]:
    """The tests of each line of each file, and how long each test takes."""
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
    for case in xml.etree.ElementTree.parse(WORK / "times.xml").iter("testcase"):
        path, name = case.get("classname", "").replace(".", "/"), case.get("name", "")
        seconds[f"{path}.py::{name}"] = float(case.get("time", "0"))
    return reach, seconds


def cases(parts: Sequence[str], sample: int | None, seed: int, only: str | None) -> Iterator[Case]:
    reach, seconds = read_map()
    breadth = Counter(test for lines in reach.values() for tests in lines.values() for test in tests)
    found = []
    for part in parts:
        path = PACKAGE / part
        for file in [path] if path.is_file() else sorted(path.glob("*.py")):
            found += [(file, mutant) for mutant in mutants(file.read_text())]
    if only is not None:
        found = [one for one in found if only == f"{one[0].relative_to(PACKAGE)}:{one[1].line}"]
    chosen = found if sample is None else random.Random(seed).sample(found, min(sample, len(found)))
    for file, mutant in chosen:
        tests = reach.get(str(file), {}).get(mutant.line, [])
        yield Case(file, mutant, _first(tests, seconds, breadth))


def _first(tests: Sequence[str], seconds: Mapping[str, float], breadth: Mapping[str, int]) -> list[str]:
    """Pure ones, then those that reach little else, as far as there is time."""
    first, left = [], MOST_SECONDS
    for test in sorted(tests, key=lambda test: (not test.startswith("tests/pure"), breadth[test])):
        if len(first) < MOST_TESTS and seconds.get(test, 0.1) <= left:
            first.append(test)
            left -= seconds.get(test, 0.1)
    return first


# Running them.


def run_all(found: Sequence[Case]) -> int:
    import_the_rest()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for number, case in enumerate(found, start=1):
        end = judge(case) if case.tests else "not reached"
        counts[str(case.file.relative_to(PACKAGE))][end] += 1
        if end not in ("killed", "endless"):
            print(f"{end}: {case}", flush=True)
        if number % 100 == 0:
            print(f"({number} of {len(found)})", flush=True)
    for file, ends in sorted(counts.items()):
        print(f"{file}: {sum(ends.values())} mutants, {json.dumps(ends)}")
    total = sum(map(Counter.total, counts.values()))
    noticed = sum(ends["killed"] + ends["endless"] for ends in counts.values())
    print(f"{noticed} of {total} noticed")
    return 0 if noticed == total else 1


def import_the_rest() -> None:
    """What tests need and is not ours, once for all of the forks."""
    program = (
        "import sys, pytest; pytest.main(['--collect-only', '-q', *sys.argv[1:]]);"
        "print('\\n' + ' '.join(name for name in sys.modules if not name.startswith(('nextslot', 'tests', '_pytest'))))"
    )
    listed = subprocess.run([sys.executable, "-c", program, *TESTS], capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines()[-1].split():
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def judge(case: Case) -> str:
    child = os.fork()
    if child == 0:
        _be(case)
    end = time.monotonic() + 6 * (MOST_SECONDS + PATIENCE_SECONDS)
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            if os.WIFSIGNALED(status):
                return "endless" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else "killed"
            return "SURVIVED" if os.WEXITSTATUS(status) == PASSED else "killed"
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "endless"


def _be(case: Case) -> None:
    """In a process of its own: nextslot is imported with this change, and tested."""
    import pytest

    name = ".".join(["nextslot", *case.file.relative_to(PACKAGE).with_suffix("").parts])
    original = importlib.machinery.SourceFileLoader.get_code

    def get_code(loader: importlib.machinery.SourceFileLoader, module: str) -> types.CodeType | None:
        return compile(case.mutant.tree, str(case.file), "exec") if module == name else original(loader, module)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]
    limit = int(MOST_SECONDS + PATIENCE_SECONDS)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    with contextlib.suppress(SystemExit):
        os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *case.tests])))
    os._exit(3)


if __name__ == "__main__":
    sys.exit(main())
