"""docs/engines.md: its five commands, pasted as they are, run a job on a real Slurm."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

from tests.engines.slurm_cluster import SlurmCluster

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/engines.md").read_text()
# The user's own program: it leaves what Slurm gave it, and stays until the directory of its data has a file.
TRAIN = """
import os, pathlib, sys, time
data = pathlib.Path(sys.argv[1])
print("trained with", data.name, "in", os.environ["SLURM_JOB_PARTITION"], "on", os.environ["SLURM_GPUS_ON_NODE"])
sys.stdout.flush()
while not any(data.iterdir()):
    time.sleep(0.05)
"""
# What a person does between the fourth and the fifth command.
WAIT = "until curl --silent --fail --output /dev/null $NEXTSLOT_URL/health; do sleep 0.1; done\n"
# Two more jobs, which both must be on the engine at once.
MORE = """
nextslot submit train data=SHARED/later > /dev/null
nextslot submit train data=SHARED/later > /dev/null
until nextslot engine ls --json | tee engines.json | grep -q '"running": 2'; do sleep 0.1; done
touch SHARED/later/go
"""


def commands() -> str:
    [block] = re.findall(r"^```sh\n(pip install 'nextslot\[server\]'\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(block)


def pasted(tmp_path: Path) -> str:
    """Returns the commands of the page, with directories of this test. nextslot is installed already."""
    first, *rest = commands().splitlines(keepends=True)
    assert first == "pip install 'nextslot[server]'\n"
    *before, last = rest
    text = "".join([*before, WAIT, last, MORE])
    return text.replace("/var/tmp/nextslot", str(tmp_path / "local")).replace("/shared", str(tmp_path / "shared"))


def test_the_five_commands_of_the_page_run_a_job_on_slurm(tmp_path: Path, slurm: SlurmCluster) -> None:
    shared = tmp_path / "shared"
    for name in ("set-1", "later"):
        (shared / name).mkdir(parents=True)
    (shared / "set-1" / "go").touch()
    (shared / "train.py").write_text(TRAIN)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SLURM_CONF": str(slurm.config),
        "NEXTSLOT_SERVER__PORT": str(port),
        "NEXTSLOT_URL": f"http://127.0.0.1:{port}",
    }
    text = pasted(tmp_path).replace("SHARED", str(shared))
    script = f"set -e\ntrap 'kill $!; wait' EXIT\n{text}"

    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=100)

    assert done.returncode == 0, done.stdout + done.stderr
    logs = [one.read_text() for one in (tmp_path / "local").rglob("*.log")]
    assert "trained with set-1 in gpu on 1\n" in logs, (logs, done.stdout)
    [there] = json.loads((tmp_path / "local" / "engines.json").read_text())["items"]
    assert (there["name"], there["kind"], there["slots"], there["running"]) == ("cluster", "slurm", 50, 2)
    # The database is not on the shared storage, and the files of the runs are.
    assert not list(shared.rglob("*.db"))
    assert (tmp_path / "local" / "nextslot.db").exists()
