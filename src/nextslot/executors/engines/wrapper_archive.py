"""Makes the one file that is shipped with a placed run: a Python archive of the wrapper and its imports."""

import hashlib
import io
import zipfile
from functools import cache
from pathlib import Path

from . import records

_SOURCE = Path(__file__).parents[2]
_FILES = (
    "executors/engines/records.py",
    "executors/engines/wrapper_main.py",
    "executors/process_tree/cgroups.py",
    "executors/process_tree/guardian.py",
    "executors/process_tree/kill_tree.py",
)
_PACKAGES = ("", "executors/", "executors/engines/", "executors/process_tree/")
_MAIN = "from nextslot.executors.engines.wrapper_main import main\n\nmain()\n"
# A fixed time makes the same archive on every machine, so that runs of one release share a file.
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


@cache
def archive() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        texts = {f"nextslot/{package}__init__.py": "" for package in _PACKAGES}
        texts |= {f"nextslot/{name}": (_SOURCE / name).read_text(encoding="utf-8") for name in _FILES}
        for name, text in {**texts, "__main__.py": _MAIN}.items():
            file.writestr(zipfile.ZipInfo(name, _LONG_AGO), text, zipfile.ZIP_DEFLATED)
    return made.getvalue()


def ship(directory: Path) -> Path:
    """Writes the wrapper of this release into an engine's directory, unless it exists. Returns its path."""
    content = archive()
    path = directory / f"wrapper-{hashlib.sha256(content).hexdigest()[:16]}.pyz"
    if not path.exists():
        records.replace(str(directory), path.name, content)
    return path
