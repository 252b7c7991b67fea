"""Installs the wheel in new environments, with the lowest and the highest versions that it allows, and uses it there.

    uv run python scripts/check_versions.py [lowest|highest …]

With each Python from 3.11 to 3.13 that this machine has, it installs the package without extras and runs the newcomer's
project, adds the extra `cli` and reads the help, then adds `server` and lets the command submit a job to a server, and
at last imports what the other extras bring; `local-llm` has tests of its own. The lowest versions are tried with the
oldest of these Pythons, the highest with all. It needs `uv`, which `scripts/bootstrap.sh` finds, and a package index.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What `--resolution` of uv calls them: the lowest versions of our own dependencies, with the highest of theirs.
RESOLUTIONS = {"lowest": "lowest-direct", "highest": "highest"}
PYTHONS = ("3.11", "3.12", "3.13")
# The extras that a server may have besides, with a module of each that needs what the extra brings.
OTHERS = {
    "mcp": "nextslot.extensions.mcp.tools",
    "otel": "opentelemetry.exporter.otlp.proto.http, opentelemetry.sdk.trace",
    "gpu": "pynvml",
    "objects": "obstore",
}
CONFIGURATION = '[job_types.hello]\ncommand = ["echo", "hello"]\n'


def main(wanted: Sequence[str]) -> None:
    uv = os.environ.get("UV") or shutil.which("uv") or str(ROOT / ".cache/uv/uv")
    with tempfile.TemporaryDirectory(prefix="nextslot-versions-") as made:
        place = Path(made)
        run(uv, "build", "--quiet", "--wheel", "--out-dir", place, ROOT)
        (wheel,) = place.glob("*.whl")
        pythons = found_pythons()
        for name in wanted or RESOLUTIONS:
            for python in pythons if name == "highest" else pythons[:1]:
                check(uv, name, python, wheel, place / f"{name}-{python}")


def found_pythons() -> list[str]:
    """Returns the versions of Python that this machine has, the oldest first; at least the one that runs this."""
    found = {version for version in PYTHONS if interpreter(version)}
    return sorted(
        found | {f"{sys.version_info.major}.{sys.version_info.minor}"}, key=lambda one: int(one.split(".")[1])
    )


def interpreter(version: str) -> str | None:
    """Returns the path of an interpreter that really is of this version: a version manager's shim may refuse to run."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    candidates = [
        shutil.which(f"python{version}"),
        *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")),
    ]
    for path in filter(None, candidates):
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


def check(uv: str, name: str, version: str, wheel: Path, place: Path) -> None:
    place.mkdir()
    environment = place / "venv"
    run(uv, "venv", "--quiet", "--python", interpreter(version), environment)
    python, command = environment / "bin/python", environment / "bin/nextslot"
    pins = place / "pins.txt"
    extras = [word for extra in ("server", "postgres", *OTHERS) for word in ("--extra", extra)]
    resolution = ("--resolution", RESOLUTIONS[name])
    run(uv, "pip", "compile", "--quiet", *resolution, "--python", python, *extras, "-o", pins, ROOT / "pyproject.toml")

    def install(extras: str) -> None:
        run(uv, "pip", "install", "--quiet", "-c", pins, "--python", python, f"{wheel}{extras}")

    install("")
    run(python, "-W", "error::DeprecationWarning:nextslot", ROOT / "examples/newcomer/shop.py", cwd=place)
    refused(command, "ls", needs="cli")
    install("[cli]")
    run(command, "--help")
    refused(command, "serve", "--data", place, needs="server")
    install("[server,postgres]")
    serve(command, place)
    for extra, modules in OTHERS.items():
        install(f"[{extra}]")
        run(python, "-c", f"import {modules}")
    serve(command, place)
    versions = ", ".join(run(uv, "pip", "freeze", "--python", python).split())
    print(f"{name}, Python {version}: the project, the command and a server work with {versions}")


def refused(*words: object, needs: str) -> None:
    """Runs a command whose extra is missing: it must fail with a sentence that names the extra."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    if done.returncode != 1 or f"pip install 'nextslot[{needs}]'" not in done.stderr or "Traceback" in done.stderr:
        raise SystemExit(f"{' '.join(map(str, words))} did not name the extra {needs}:\n{done.stderr}")


def serve(command: Path, place: Path) -> None:
    """Starts a server in this directory, and lets the command submit a job to it."""
    (place / "nextslot.toml").write_text(CONFIGURATION)
    with (place / "server.log").open("w") as log:
        server = subprocess.Popen(
            [command, "serve", "--port", "0", "--json"], cwd=place, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        first = server.stdout.readline() if server.stdout else ""
        if not first:
            raise SystemExit(f"the server did not start:\n{(place / 'server.log').read_text()}")
        address = {"NEXTSLOT_URL": json.loads(first)["url"]}
        run(command, "submit", "hello", "--wait", environment=address)
        run(command, "ls", "--json", environment=address)
    finally:
        server.terminate()
        server.communicate(timeout=30)


def run(*words: object, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
    called = list(map(str, words))
    done = subprocess.run(
        called, cwd=cwd, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(called)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:])
