"""Measures how many lines a second a run can log: in the head of its log, and after it, where old pieces are dropped.

    uv run python -m bench.logs [--lines 200000] [--rounds 3]

`logger` is `run.log.info`, formatting included; `output` is what a command writes, in blocks of 64 KiB, given in lines
too. Lines have 100 bytes and the cap is the default, so the head takes the first 52,000 of them.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from nextslot.executors.run_context import RunContext
from nextslot.executors.run_files import RunFiles

LINE = b"x" * 99 + b"\n"
HEAD_LINES = 50_000
BLOCK_LINES = 655


def by_logger(run: RunContext, lines: int) -> None:
    # With the time and the level in front, a line has 100 bytes.
    text = "x" * 70
    for _ in range(lines):
        run.log.info(text)


def by_output(run: RunContext, lines: int) -> None:
    block = LINE * BLOCK_LINES
    for _ in range(lines // BLOCK_LINES):
        run.write(block)


def rates(write: Callable[[RunContext, int], None], lines: int) -> tuple[float, float, float]:
    """Returns the lines logged per second in the head and after it, and the milliseconds that closing the log takes."""
    with TemporaryDirectory(prefix="nextslot-bench-") as folder:
        run = RunContext("run-0123456789", "job", "default", "noop", {}, 1, RunFiles(Path(folder)))
        began = time.perf_counter()
        write(run, HEAD_LINES)
        full = time.perf_counter()
        write(run, lines)
        ended = time.perf_counter()
        run.close()
        return HEAD_LINES / (full - began), lines / (ended - full), (time.perf_counter() - ended) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{'lines a second':16} {'in the head':>14} {'behind it':>14} {'end, ms':>9}")
    for name, write in (("logger", by_logger), ("output", by_output)):
        found = [rates(write, options.lines) for _ in range(options.rounds)]
        head, behind, end = (statistics.median(values) for values in zip(*found, strict=True))
        print(f"{name:16} {head:14,.0f} {behind:14,.0f} {end:9.1f}")


if __name__ == "__main__":
    main()
