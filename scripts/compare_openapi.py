"""Compares the OpenAPI document of this checkout with that of another one, and prints what differs.

    uv run python scripts/compare_openapi.py ../before/src

The order of properties means nothing in it, so it is left out of the comparison. Exits with 1 if they differ.
"""

import difflib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_WRITE = """
import json, tempfile
from nextslot import Scheduler
from nextslot.server.app import describe
with tempfile.TemporaryDirectory() as directory:
    print(json.dumps(describe(Scheduler(f"sqlite:///{directory}/nextslot.db"))))
"""


def main() -> int:
    before, now = (lines(document(source)) for source in (Path(sys.argv[1]), ROOT / "src"))
    found = list(difflib.unified_diff(before, now, "before", "now", lineterm=""))
    print("\n".join(found) or "the same")
    return 1 if found else 0


def document(source: Path) -> Any:
    made = subprocess.run(
        [sys.executable, "-c", _WRITE], env={"PYTHONPATH": str(source)}, stdout=subprocess.PIPE, check=True, text=True
    )
    return json.loads(made.stdout)


def lines(value: Any) -> list[str]:
    return json.dumps(_ordered(value), indent=1, sort_keys=True, ensure_ascii=False).splitlines()


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: sorted(inner) if key == "required" and isinstance(inner, list) else _ordered(inner)
            for key, inner in value.items()
        }
    return [_ordered(one) for one in value] if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main())
