"""Runs the conformance suite of engines on a real Ray, and then kills Ray and all around its jobs in a loop.

    uv run python scripts/ray_conformance.py [VERSION]

The head and the worker have a network namespace of their own. Installs Ray in an environment of its own
(`.cache/ray-VERSION`, 300 MB), needs root, `unshare` and `ip`, and takes a quarter of an hour and 2 GB of memory.
Everything runs in a process namespace too, with which every process ends. Before a release.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.engines.ray_cluster import DASHBOARD, HEAD, WORKER, RayCluster  # noqa: E402

VERSION = "2.60.0"
SUITE_SECONDS = 3600
SUITES = (["tests/engines/test_conformance.py", "-k", "ray"], ["tests/engines/real_ray.py", "-s"])


def main() -> None:
    if os.environ.get("NEXTSLOT_IN_NAMESPACE") is None:
        os.nice(10)
        ray = installed(sys.argv[1] if len(sys.argv) > 1 else VERSION)
        words = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, __file__, ray]
        sys.exit(subprocess.run(words, env={**os.environ, "NEXTSLOT_IN_NAMESPACE": "1"}, check=False).returncode)
    child = os.fork()
    if child:
        sys.exit(reap_until(child))
    with tempfile.TemporaryDirectory(prefix="ray-") as place:  # Ray's sockets need a short path.
        sys.exit(conformance(sys.argv[1], Path(place)))


def reap_until(child: int) -> int:
    """Reaps all orphans, as the first process of a machine must: a dead process that nobody reaps looks alive to the
    tests. Returns the exit code of this child once it has ended."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


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
    RayCluster(ray, place).start()
    say(f"head and worker started in {time.monotonic() - began:.0f} s: {processes()}")
    environment = {
        **os.environ,
        "NEXTSLOT_TEST_PATIENCE": "240",
        "NEXTSLOT_TEST_RAY": DASHBOARD,
        "NEXTSLOT_TEST_RAY_PLACE": str(place),
        "NEXTSLOT_TEST_RAY_PROGRAM": ray,
        "NEXTSLOT_TEST_ALL": "1",
    }
    return max(suite(words, environment) for words in SUITES)


def suite(words: list[str], environment: dict[str, str]) -> int:
    options = ["-p", "no:cacheprovider", "-o", "faulthandler_timeout=0", "--tb=short", "--durations=3"]
    began = time.monotonic()
    argv = [sys.executable, "-m", "pytest", *options, *words]
    code = subprocess.run(argv, cwd=ROOT, env=environment, timeout=SUITE_SECONDS, check=False).returncode
    say(f"{words[0]} took {time.monotonic() - began:.0f} s and ended with {code}; afterwards: {processes()}")
    return code


def processes() -> str:
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
