"""Lists the tests that failed in a parallel run, and decides whether they are few enough to run again alone. Called by
./test.
"""

import json
import sys
from pathlib import Path

# If more tests than this fail at once, a busy machine is not the cause.
MOST = 30


def main() -> int:
    failed = sorted(json.loads(Path(".pytest_cache/v/cache/lastfailed").read_text()))
    for test in failed:
        print(f"failed: {test}")
    return 0 if len(failed) <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
