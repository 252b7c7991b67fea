"""Whether what failed may be tried once more: only tests that depend on how busy the machine is. Called by ./test."""

import json
import sys
from pathlib import Path

FOLDERS = ("cli", "client", "console", "crash", "docs", "executors", "extensions", "nodes", "server", "store")
REAL = (*(f"tests/{folder}/" for folder in FOLDERS), "tests/engine/test_12_endpoints.py")
# More than these at once are no accident.
MOST = 10


def main() -> int:
    failed = sorted(json.loads(Path(".pytest_cache/v/cache/lastfailed").read_text()))
    for test in failed:
        print(f"failed: {test}")
    return 0 if len(failed) <= MOST and all(test.startswith(REAL) for test in failed) else 1


if __name__ == "__main__":
    sys.exit(main())
