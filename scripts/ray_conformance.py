"""Runs the conformance suite of engines on a real Ray: a head and a worker in a network namespace of their own.

    uv run python scripts/ray_conformance.py [VERSION]

Installs Ray in an environment of its own (`.cache/ray-VERSION`, 300 MB), needs root, `unshare` and `ip`, and takes some
minutes and 2 GB of memory. Everything runs in a process namespace too, with which every process ends. Before a release.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION = "2.60.0"
# Ray finds no way to a machine with loopback only, unless it has other addresses too.
HEAD, WORKER, PORT = "10.99.0.1", "10.99.0.2", 6379
DASHBOARD = "http://127.0.0.1:8265"
START_SECONDS, SUITE_SECONDS = 180, 1800
SUITE = ("tests/engines/test_conformance.py", "-k", "ray")


def main() -> None:
    if os.environ.get("NEXTSLOT_IN_NAMESPACE") is None:
        os.nice(10)
        ray = installed(sys.argv[1] if len(sys.argv) > 1 else VERSION)
        words = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, __file__, ray]
        sys.exit(subprocess.run(words, env={**os.environ, "NEXTSLOT_IN_NAMESPACE": "1"}, check=False).returncode)
    with tempfile.TemporaryDirectory(prefix="ray-") as place:  # Ray's sockets need a short path.
        sys.exit(conformance(sys.argv[1], Path(place)))


def installed(version: str) -> str:
    """Installs Ray outside of the repository's lock, unless it is there. Returns the path of its command."""
    uv = os.environ.get("UV") or shutil.which("uv") or str(ROOT / ".cache/uv/uv")
    place = ROOT / f".cache/ray-{version}"
    if not (place / "bin/ray").exists():
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, place], check=True)
        python = place / "bin/python"
        subprocess.run([uv, "pip", "install", "--quiet", "--python", python, f"ray[default]=={version}"], check=True)
    return str(place / "bin/ray")


def conformance(ray: str, place: Path) -> int:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in (HEAD, WORKER):
        subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    began = time.monotonic()
    size = ["--num-cpus=4", "--num-gpus=0", "--object-store-memory=80000000", "--disable-usage-stats"]
    head = [
        "--head",
        f"--node-ip-address={HEAD}",
        f"--port={PORT}",
        "--dashboard-host=127.0.0.1",
        f"--temp-dir={place}",
    ]
    start(ray, [*head, *size])
    wait_until(answers, "Ray's head does not answer")
    # Without a head, this command waits a quarter of an hour: `start` bounds it.
    start(ray, [f"--address={HEAD}:{PORT}", f"--node-ip-address={WORKER}", *size])
    say(f"head and worker started in {time.monotonic() - began:.0f} s: {cluster()}")
    suite = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "faulthandler_timeout=0",
        "--durations=3",
        *SUITE,
    ]
    environment = {**os.environ, "NEXTSLOT_TEST_RAY": DASHBOARD, "NEXTSLOT_TEST_PATIENCE": "240"}
    began = time.monotonic()
    code = subprocess.run(suite, cwd=ROOT, env=environment, timeout=SUITE_SECONDS, check=False).returncode
    say(f"the suite took {time.monotonic() - began:.0f} s and ended with {code}; afterwards: {cluster()}")
    return code


def start(ray: str, arguments: list[str]) -> None:
    """Starts a head or a worker. On a busy machine Ray gives up on its own parts: run the script again later."""
    subprocess.run([ray, "start", *arguments], stdout=subprocess.DEVNULL, timeout=START_SECONDS, check=True)


def answers() -> bool:
    try:
        with urllib.request.urlopen(f"{DASHBOARD}/api/jobs/", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def wait_until(is_so: Callable[[], bool], problem: str) -> None:
    end = time.monotonic() + START_SECONDS
    while not is_so():
        if time.monotonic() > end:
            sys.exit(problem)
        time.sleep(0.5)


def cluster() -> str:
    """Returns how many processes there are in this namespace besides this one, and their memory."""
    pages, count = 0, 0
    for one in Path("/proc").iterdir():
        if one.name.isdigit() and int(one.name) not in (1, os.getpid()):
            try:
                pages += int((one / "statm").read_text().split()[1])
            except OSError:
                continue
            count += 1
    return f"{count} processes, {pages * os.sysconf('SC_PAGE_SIZE') / 1e9:.1f} GB"


def say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
