"""Measures the start of a server, from exec to `/ready`, beside the import of bare FastAPI and uvicorn, in turns.

    uv run python -m bench.start [--rounds 5] [--beside DIRECTORY] [--save FILE]

Figures are seconds of processor time of the process, since a busy machine changes them less than the wall clock. Every
module is compiled already, by a first round that is not counted, as it is on a machine where the server has run before.
`--beside` names the `src` of another version of nextslot.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from bench.http import CONFIGURATION, free_port, started

BARE = "import fastapi, uvicorn"


def bare_seconds() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", BARE], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ready_seconds(source: str | None) -> float:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "nextslot.toml").write_text(CONFIGURATION)
        command = [str(Path(sys.executable).with_name("nextslot")), "serve", "--data", folder, "--port", str(port)]
        with started("server", command, port, source) as server:
            while not is_ready(port):
                time.sleep(0.02)
            return server.cpu_seconds()


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=10) as reply:
            return bool(reply.status == 200)
    except urllib.error.HTTPError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beside", help="the `src` of another version")
    parser.add_argument("--save", type=Path, help="write the figures of all rounds to this file")
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {"bare": [], **({"before": []} if arguments.beside else {}), "ours": []}
    with tempfile.TemporaryDirectory() as compiled:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = compiled
        for _ in range(arguments.rounds + 1):
            found["bare"].append(bare_seconds())
            if arguments.beside:
                found["before"].append(ready_seconds(arguments.beside))
            found["ours"].append(ready_seconds(None))
    for seconds in found.values():
        del seconds[0]
    for name, seconds in found.items():
        times = statistics.median(seconds) / statistics.median(found["bare"])
        print(f"{name:<8} {statistics.median(seconds):.2f} s of processor, {times:.2f} times bare")
    if arguments.save:
        arguments.save.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
