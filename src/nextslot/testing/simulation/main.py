"""`nextslot-sim`: simulates many histories on all cores, and shows a failing one as short as possible.

nextslot-sim --seeds 100000 --length 6 # short histories of the seeds 0 to 99,999
nextslot-sim --from 4711 --seeds 1     # repeats one of them
nextslot-sim --actions 'submit:1:0 crash:2:5'    # repeats a history that was shown
nextslot-sim --nodes --seeds 100       # three nodes that share a database
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from .plan import (
    LENGTH,
    Action,
    make,
    shrink,
)
from .world import History, simulate

# How many seeds a worker process simulates per task.
CHUNK = 10
# Without a terminal, progress is printed once per this many seeds.
PRINT_EVERY = 5000


@dataclass(frozen=True)
class Failure:
    """A history that broke a law, and the shortest history found that breaks the same law."""

    seed: int
    length: int
    law: str
    actions: Sequence[Action]
    lines: Sequence[str]
    has_nodes: bool = False

    def __str__(self) -> str:
        plan = " ".join(str(action) for action in self.actions)
        length = "" if self.length == LENGTH else f" --length {self.length}"
        command = "nextslot-sim --nodes" if self.has_nodes else "nextslot-sim"
        return "\n".join(
            [
                f"seed {self.seed}: {self.law}",
                f"again:    {command} --from {self.seed} --seeds 1{length}",
                f"shortest: {command} --from {self.seed} --actions '{plan}'",
                *(f"    {line}" for line in self.lines),
            ]
        )


@dataclass
class Figures:
    """The totals of many histories."""

    seeds: int = 0
    hours: float = 0.0
    lives: int = 0
    faults: int = 0
    commits: int = 0
    jobs: int = 0
    failures: list[Failure] = field(default_factory=list)

    def add(self, history: History) -> None:
        self.seeds += 1
        self.hours += history.seconds / 3600
        self.lives += history.lives
        self.faults += history.faults
        self.commits += history.commits
        self.jobs += history.jobs

    def merge(self, other: "Figures") -> None:
        for name in ("seeds", "hours", "lives", "faults", "commits", "jobs"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.failures += other.failures

    def __str__(self) -> str:
        return (
            f"{self.seeds:,} seeds, {self.hours:,.0f} simulated hours, {self.lives:,} lives, {self.faults:,} faults, "
            f"{self.commits:,} commits, {self.jobs:,} jobs: {len(self.failures)} failed"
        )


class Kind(NamedTuple):
    """A kind of simulation: how its plan is made, and how it runs."""

    make: Callable[[int, int], list[Action]]
    simulate: Callable[[int, Sequence[Action]], History]
    has_nodes: bool = False


ALONE = Kind(make, simulate)


def with_nodes() -> Kind:
    # Imported here because it needs PostgreSQL's driver, which is optional.
    from . import nodes

    return Kind(nodes.make, nodes.simulate, has_nodes=True)


def run(seeds: Iterable[int], length: int = LENGTH, tries: int = 150, has_nodes: bool = False) -> Figures:
    """Simulates each seed's history in this process. Shortens each failure within `tries` attempts."""
    figures, kind = Figures(), with_nodes() if has_nodes else ALONE
    for seed in seeds:
        history = kind.simulate(seed, kind.make(seed, length))
        figures.add(history)
        if history.broken:
            figures.failures.append(explain(seed, length, history, tries, kind))
    return figures


def explain(seed: int, length: int, history: History, tries: int, kind: Kind = ALONE) -> Failure:
    """Finds the shortest history that breaks the same law."""
    law = history.broken[0].law

    def fails(candidate: list[Action]) -> bool:
        return any(one.law == law for one in kind.simulate(seed, candidate).broken)

    shortest = shrink(kind.make(seed, length), fails, tries)
    again = kind.simulate(seed, shortest)
    shown = again if again.broken else history
    return Failure(seed, length, str(shown.broken[0]), shortest, shown.lines, kind.has_nodes)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    logging.disable(logging.CRITICAL)  # The simulation causes these faults itself, and their log lines would be many.
    try:
        return _main(options)
    finally:
        logging.disable(logging.NOTSET)


def _main(options: argparse.Namespace) -> int:
    if options.actions is not None:
        kind = with_nodes() if options.nodes else ALONE
        return _replay(kind, options.first, [Action.parse(text) for text in options.actions.split()])
    began = time.monotonic()
    figures, line = Figures(), "\r" if sys.stdout.isatty() else ""
    seeds = range(options.first, options.first + options.seeds)
    for done in _spread(seeds, options.processes, options.length, options.nodes):
        figures.merge(done)
        for failure in done.failures:
            _print(f"{line}{failure}")
        if line:
            sys.stdout.write(f"{line}{figures}")
            sys.stdout.flush()
        elif figures.seeds % PRINT_EVERY == 0:
            _print(f"{figures} so far, in {time.monotonic() - began:,.0f} s")
    _print(f"{line}{figures}, in {time.monotonic() - began:,.0f} s")
    return 1 if figures.failures else 0


def _spread(seeds: range, processes: int, length: int, has_nodes: bool) -> Iterator[Figures]:
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    if processes == 1 or len(chunks) == 1:
        yield from (run(chunk, length, has_nodes=has_nodes) for chunk in chunks)
        return
    with ProcessPoolExecutor(processes, initializer=partial(logging.disable, logging.CRITICAL)) as pool:
        yield from pool.map(partial(run, length=length, has_nodes=has_nodes), chunks)


def _replay(kind: Kind, seed: int, actions: Sequence[Action]) -> int:
    history = kind.simulate(seed, actions)
    for line in history.lines:
        _print(line)
    for broken in history.broken:
        _print(str(broken))
    return 1 if history.broken else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nextslot-sim", description="Simulates schedulers on failing disks, and checks every law."
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many histories (100)")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--length", type=int, default=LENGTH, help=f"how many actions each has ({LENGTH})")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="how many processes (default: one for each core)"
    )
    parser.add_argument("--nodes", action="store_true", help="three nodes that share a database, instead of one")
    parser.add_argument("--actions", help="simulate this history instead, as it was shown")
    return parser


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
