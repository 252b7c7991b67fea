"""Makes the database that later releases must still open: tests/store/data/nextslot-VERSION.db.gz, and its export.

    uv run python scripts/make_upgrade_fixture.py

To be run for the last time when a version is released: from then on its files are kept as they are, because no later
release can make them again. `tests/store/test_upgrade.py` opens them.
"""

import gzip
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import apsw

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from nextslot.store.open_store import write_export  # noqa: E402
from tests import everything  # noqa: E402

DATA = ROOT / "tests/store/data"


def main() -> None:
    DATA.mkdir(exist_ok=True)
    name = f"nextslot-{version('nextslot')}"
    with tempfile.TemporaryDirectory() as directory:
        everything.make(Path(directory))
        made, whole = Path(directory, "nextslot.db"), Path(directory, "whole.db")
        write_export(f"sqlite:///{made}", DATA / f"{name}.ndjson.gz", lambda *_: None)
        # Leave one file without a log beside it.
        apsw.Connection(str(made)).execute("vacuum into ?", (str(whole),))
        (DATA / f"{name}.db.gz").write_bytes(gzip.compress(whole.read_bytes(), mtime=0))
    for file in sorted(DATA.glob(f"{name}.*")):
        file.chmod(0o644)  # Others may read this export: it contains no secret that anybody uses.
        print(f"{file.relative_to(ROOT)}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
