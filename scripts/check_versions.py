"""Installs the wheel in new environments, with the lowest and the highest versions that it allows, and uses it there.

    uv run python scripts/check_versions.py [lowest|highest …]

In each it runs the newcomer's project, then a server, to which the installed command submits a job. It needs `uv`,
which `scripts/bootstrap.sh` finds, and a package index.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What `--resolution` of uv calls them: the lowest versions of our own dependencies, with the highest of theirs.
RESOLUTIONS = {"lowest": "lowest-direct", "highest": "highest"}
CONFIGURATION = '[job_types.hello]\ncommand = ["echo", "hello"]\n'


def main(wanted: Sequence[str]) -> None:
    uv = os.environ.get("UV") or shutil.which("uv") or str(ROOT / ".cache/uv/uv")
    with tempfile.TemporaryDirectory(prefix="nextslot-versions-") as made:
        place = Path(made)
        run(uv, "build", "--quiet", "--wheel", "--out-dir", place, ROOT)
        (wheel,) = place.glob("*.whl")
        for name in wanted or RESOLUTIONS:
            check(uv, name, wheel, place / name)


def check(uv: str, name: str, wheel: Path, place: Path) -> None:
    place.mkdir()
    environment = place / "venv"
    run(uv, "venv", "--quiet", "--python", sys.executable, environment)
    python = environment / "bin/python"
    pins = place / "pins.txt"
    run(uv, "pip", "compile", "--quiet", "--resolution", RESOLUTIONS[name], "--python", python, "--extra", "postgres",
        "-o", pins, ROOT / "pyproject.toml")  # fmt: skip
    run(uv, "pip", "install", "--quiet", "-c", pins, "--python", python, f"{wheel}[postgres]")
    print(f"{name}: " + ", ".join(run(uv, "pip", "freeze", "--python", python).split()))
    run(python, "-W", "error::DeprecationWarning:nextslot", ROOT / "examples/newcomer/shop.py", cwd=place)
    serve(environment / "bin/nextslot", place)
    print(f"{name}: the project and a server work")


def serve(command: Path, place: Path) -> None:
    (place / "nextslot.toml").write_text(CONFIGURATION)
    log = place / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen([command, "serve", "--port", "0"], cwd=place, stdout=output, stderr=output)
    try:
        address = listening(log, server)
        run(command, "submit", "hello", "--wait", environment={"NEXTSLOT_URL": address})
        run(command, "ls", "--json", environment={"NEXTSLOT_URL": address})
    finally:
        server.terminate()
        server.wait(30)


def listening(log: Path, server: "subprocess.Popen[bytes]") -> str:
    """Returns the address that a server has printed."""
    end = time.monotonic() + 60
    while time.monotonic() < end and server.poll() is None:
        for word in log.read_text().split():
            if word.startswith("http://127.0.0.1:"):
                return word.rstrip("/,.;").removesuffix("/console")
        time.sleep(0.1)
    raise SystemExit(f"the server did not start:\n{log.read_text()}")


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
