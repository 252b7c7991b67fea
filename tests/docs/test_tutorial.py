"""The tutorial does what it says: a shell runs its commands, pasted one after the other."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

from tests import databases

PAGE = Path(__file__).parents[2] / "docs/tutorial.md"


def test_a_shell_runs_every_command_of_the_tutorial(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = {
        **os.environ,
        **databases.variables(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "NEXTSLOT_SERVER__PORT": port,
        "NEXTSLOT_URL": f"http://127.0.0.1:{port}",
    }

    script = "trap 'kill -9 $server 2> /dev/null || true' EXIT\n" + "".join(blocks)
    ran = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, env=environment,
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stderr + (tmp_path / "server.log").read_text()
    assert ran.stdout.count("step 6") >= 1
    assert fields_of(tmp_path / "server.log") <= documented()
    assert "Scheduler crash recovery (crash)" in ran.stdout
    assert re.findall(r" count +(FAILED|COMPLETED) ", ran.stdout) == ["FAILED", "COMPLETED"], ran.stdout


def fields_of(log: Path) -> set[str]:
    """Returns the names of all fields in the lines of a log."""
    found = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    assert {"timestamp", "level", "logger", "event"} <= set.intersection(*map(set, found))
    return {name for line in found for name in line}


def documented() -> set[str]:
    section = (PAGE.parent / "operations.md").read_text().split("\n## Log fields\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
