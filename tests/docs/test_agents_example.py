"""examples/agents runs as its README says: agents on the embedded model, a quota that is used up, and an approval."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nextslot import Client

EXAMPLE = Path(__file__).parents[2] / "examples/agents"


@pytest.mark.local_llm
@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="needs the extra local-llm")
def test_agents_meet_a_quota_and_deploy_after_an_approval(tmp_path: Path) -> None:
    begin, submit, approve = re.findall(r"```sh\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)
    (tmp_path / "examples").symlink_to(EXAMPLE.parent)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def paste(text: str) -> str:
        done = subprocess.run(
            ["bash", "-euc", text],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    copy, serve = begin.splitlines()
    paste(copy)
    with subprocess.Popen(
        ["bash", "-c", f"exec {serve} --port 0 --json"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE
    ) as server:
        try:
            assert server.stdout is not None
            url = environment["NEXTSLOT_URL"] = json.loads(server.stdout.readline())["url"]
            said = paste(f"{submit}\necho $deploy")
            deploy = said.split()[-1]
            with Client(url) as client:
                asked = _until_asked(client, deploy)
                before = client.job(deploy).status
                log = paste(f"deploy={deploy}\n{approve}")
                kinds = [run.failure_kind for run in client.runs()]
        finally:
            server.kill()

    assert "May version 7 go live?" in asked
    assert before == "WAITING"
    assert "deployed version 7" in log
    assert "quota" in kinds
    # FE, BE and QA have each written something.
    assert len({file.parent for file in tmp_path.rglob("1.md") if file.read_text().strip()}) >= 3


def _until_asked(client: Client, job_id: str) -> str:
    """Returns the reason why a job waits, once it waits for the signal alone."""
    deadline, reason = time.monotonic() + 240, ""
    while time.monotonic() < deadline:
        reasons = client.why(job_id, 0).reasons
        reason = reasons[0].text
        if all("signal" in one.code for one in reasons):
            return reason
        time.sleep(0.5)
    raise AssertionError(reason)
