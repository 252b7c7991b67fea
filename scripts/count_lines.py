"""Counts the lines of Python of the core, the extensions, the testing package and the tests; called by `./check`.

Fails if the core is larger than the bound: remove as many lines as you add, or raise the bound with a reason.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE_BOUND = 57_950


def main() -> int:
    source = ROOT / "src/nextslot"
    parts = {
        "extensions": lines(source / "extensions"),
        "testing": lines(source / "testing"),
        "tests": lines(ROOT / "tests"),
    }
    core = lines(source) - parts["extensions"] - parts["testing"]
    print(
        f"lines of Python: core {core:,} (at most {CORE_BOUND:,}), " + ", ".join(f"{k} {n:,}" for k, n in parts.items())
    )
    if core > CORE_BOUND:
        print(f"the core is {core - CORE_BOUND:,} lines too large: remove some, or move them into an extension")
    return int(core > CORE_BOUND)


def lines(directory: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in directory.rglob("*.py"))


if __name__ == "__main__":
    sys.exit(main())
