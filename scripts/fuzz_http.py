"""Sends a real server valid and invalid requests, made from its OpenAPI document, also in sequences: no answer may be a
5xx.

    uv run python scripts/fuzz_http.py [--examples 200] [--database sqlite,postgres] [--seconds 0]

Run it before a release. Schemathesis makes this number of examples of each operation, then sequences of operations,
each of which uses the results of the ones before. CI runs a sample (tests/server/test_schema.py). The script leaves out
operations that end the key or the node that the others need, and those that need a language model.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import httpx2

from tests import postgres
from tests.crash.server import Server

CONFIGURATION = """
[job_types.echo]
command = ["echo", "{text}"]
"""
# A direct caller gets 503 `slot_busy` when it has waited for too long.
CHECKS = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx"]

[[operations]]
include-path-regex = "^/api/direct/"
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "503"]
"""
LEFT_OUT = (
    "/api/keys/{key_id}", "/api/keys/{key_id}/rotate", "/api/nodes/{node_id}/drain", "/api/nodes/{node_id}",
    "/story/generate", "/research/run",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--database", default="sqlite,postgres")
    parser.add_argument("--seconds", type=int, default=0, help="at most so long on each database; 0: to the end")
    given = parser.parse_args()
    return max(_fuzz(kind, given.examples, given.seconds) for kind in given.database.split(","))


def _fuzz(kind: str, examples: int, seconds: int) -> int:
    print(f"{kind}: {examples} examples of each operation", flush=True)
    with tempfile.TemporaryDirectory() as place, _address(kind) as variables:
        directory = Path(place)
        (directory / "nextslot.toml").write_text(CONFIGURATION)
        (directory / "schemathesis.toml").write_text(CHECKS)
        server = Server(directory, environment=variables)
        try:
            url = server.wait_until_ready()
            document = httpx2.get(f"{url}/openapi.json", timeout=30).raise_for_status()
            (directory / "openapi.json").write_bytes(document.content)
            made = httpx2.post(f"{url}/api/keys", json={"name": "fuzz", "scopes": ["admin"]}, timeout=30)
            command: list[str | Path] = [
                Path(sys.executable).with_name("schemathesis"), "--config-file", directory / "schemathesis.toml", "run",
                directory / "openapi.json", "--url", url, "--header", f"X-API-Key: {made.json()['key']}",
                "--checks", "not_a_server_error", "--phases", "examples,coverage,fuzzing,stateful",
                "--max-examples", str(examples), "--request-timeout", "60", "--continue-on-failure",
                "--warnings", "off",
                *(["--max-time", str(seconds)] if seconds else []),
                *(part for path in LEFT_OUT for part in ("--exclude-path", path)),
            ]  # fmt: skip
            found = subprocess.run(command, check=False, cwd=directory).returncode
            if server.process.poll() is not None:
                print(f"{kind}: the server has ended", flush=True)
                return 1
            return found
        finally:
            server.kill()


@contextlib.contextmanager
def _address(kind: str) -> Iterator[dict[str, str]]:
    if kind == "sqlite":
        yield {}
        return
    database = postgres.Server()
    try:
        yield {"NEXTSLOT_STORE__URL": database.url()}
    finally:
        database.remove()


if __name__ == "__main__":
    os.environ.setdefault("NO_COLOR", "1")
    sys.exit(main())
