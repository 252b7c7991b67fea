"""The tutorial does what it says: a shell runs its commands, pasted one after the other."""

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

    ran = subprocess.run(
        ["bash", "-euc", "trap 'kill -9 $server 2> /dev/null || true' EXIT\n" + "".join(blocks)], cwd=tmp_path, env=environment,
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stderr + (tmp_path / "server.log").read_text()
    assert ran.stdout.count("step 6") >= 1
    assert re.search(r"FAILED.*crash", ran.stdout), ran.stdout
    assert ran.stdout.rstrip().count("COMPLETED") >= 2, ran.stdout
