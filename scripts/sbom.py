"""Writes the software bill of materials (CycloneDX) to dist/sbom.cdx.json; called by `./check`.

    python scripts/sbom.py [--write]

uv lists what a user installs, with its checksums; this adds the licence of each package, and the vendored files of the
console and the API's documentation. It fails if a licence is unknown or not allowed, if a vendored file differs from
its checksum, or if docs/licences.md is out of date; `--write` brings that page up to date.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/licences.md"
TARGET = ROOT / "dist/sbom.cdx.json"
VENDORED = ("src/nextslot/console/vendor", "src/nextslot/server/static/docs/vendor")
# Licences that allow use in any product. A package with another one needs a decision by a person.
ALLOWED = {
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "LGPL-3.0-only",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "PSF-2.0",
    "any-OSI",
}
# The texts that older packages have instead of a licence's name.
KNOWN_AS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
HEADER = """# Licences

This page lists the licence of every package that nextslot installs, with all its extras, and of the files of others \
that come with it. `./check` makes a software bill of materials of the same (CycloneDX, `dist/sbom.cdx.json`) with \
versions and checksums, and fails when a licence is not one of those that allow use in any product. nextslot itself is \
MIT.

| package | licence |
|---|---|
"""


def main() -> int:
    problems: list[str] = []
    bill = exported()
    for component in bill["components"]:
        licence = licence_of(component["name"])
        if licence is None or not words(licence) <= ALLOWED:
            problems.append(f"{component['name']}: the licence {licence!r} is unknown or not allowed; decide about it")
        component["licenses"] = [{"expression": licence or "NOASSERTION"}]
    for folder in VENDORED:
        for component, problem in vendored(ROOT / folder):
            bill["components"].append(component)
            problems += problem
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(json.dumps(bill, indent=1) + "\n")
    page = HEADER + "".join(f"| {one['name']} | {one['licenses'][0]['expression']} |\n" for one in bill["components"])
    if "--write" in sys.argv:
        PAGE.write_text(page)
    elif page != PAGE.read_text():
        problems.append("docs/licences.md is out of date; run scripts/sbom.py --write")
    print("\n".join(problems) or f"{len(bill['components'])} components are in {TARGET.relative_to(ROOT)}")
    return int(bool(problems))


def exported() -> Any:
    """Asks uv for the packages of a user's installation with all extras."""
    uv = os.environ.get("UV", "uv")
    arguments = [uv, "export", "--frozen", "--all-extras", "--no-dev", "--no-emit-project", "--quiet"]
    done = subprocess.run(
        [*arguments, "--format", "cyclonedx1.5", "--preview-features", "sbom-export"],
        cwd=ROOT, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    bill = json.loads(done.stdout)
    bill["components"] = sorted(bill["components"], key=lambda one: one["name"])
    return bill


def licence_of(package: str) -> str | None:
    """Reads the licence from the installed package. Returns None if it names none that we know."""
    try:
        found = metadata(package)
    except PackageNotFoundError:
        return PLATFORMS.get(package)
    texts: list[str] = [text for field in ("License-Expression", "License") for text in found.get_all(field) or ()]
    texts += [line.rpartition(" :: ")[2] for line in found.get_all("Classifier") or () if "License ::" in line]
    for text in texts:
        if words(KNOWN_AS.get(text, text)) <= ALLOWED:
            return KNOWN_AS.get(text, text)
    return None


# Packages that only other systems install.
PLATFORMS = {"colorama": "BSD-3-Clause", "httpx2-jsfetch": "BSD-3-Clause", "pywin32": "PSF-2.0", "tzdata": "Apache-2.0"}


def words(expression: str) -> set[str]:
    return set(expression.replace("(", " ").replace(")", " ").split()) - {"AND", "OR"}


def vendored(folder: Path) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yields each vendored file with its checksum file; the README there names versions and licences."""
    licences = {
        line.split("`")[1]: next(
            one for one in ("Apache-2.0 AND MIT", "Apache-2.0", "MIT") if words(one) <= named(line)
        )
        for line in (folder / "README.md").read_text().splitlines()
        if line.startswith("- `")
    }
    for line in (folder / "SHA256SUMS").read_text().splitlines():
        checksum, name = line.split()
        if (folder / name).suffix not in (".js", ".css"):
            continue
        actual = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        component = {
            "type": "file",
            "bom-ref": f"vendored-{name}",
            "name": name,
            "licenses": [{"expression": licences.get(name, "NOASSERTION")}],
            "hashes": [{"alg": "SHA-256", "content": actual}],
        }
        problems = [] if actual == checksum else [f"{folder / name} differs from its checksum"]
        yield component, problems + ([] if name in licences else [f"{folder}/README.md names no licence of {name}"])


def named(line: str) -> set[str]:
    return {word.strip(",.;()") for word in line.split()} | {"AND"}


if __name__ == "__main__":
    sys.exit(main())
