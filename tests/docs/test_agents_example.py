"""examples/agents runs as its README says, where no network is: a quota that is used up, a checkpoint, an approval."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/agents"
# Nothing but the loopback device: what runs here reaches no other machine. Its process ends with its standard input.
NAMESPACE = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", "ip link set lo up && echo ready && cat"]
OUTSIDE = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"


@contextmanager
def without_network() -> Iterator[list[str]]:
    """Yields the words that run a command in a network namespace of its own."""
    with subprocess.Popen(NAMESPACE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stderr is not None
        assert holder.stdin is not None
        if holder.stdout.readline() != b"ready\n":
            problem = holder.stderr.read().decode()
            assert os.environ.get("CI") != "true", problem
            pytest.skip(f"no network namespace can be made here: {problem}")
        yield ["nsenter", "--target", str(holder.pid), "--user", "--net", "--preserve-credentials"]
        holder.stdin.close()


@pytest.mark.local_llm
@pytest.mark.timeout(900)
@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="needs the extra local-llm")
def test_agents_meet_a_quota_go_on_ask_and_deploy_without_a_network(tmp_path: Path) -> None:
    begin, submit, approve = re.findall(r"```sh\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)
    (tmp_path / "examples").symlink_to(EXAMPLE.parent)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    copy, serve = begin.splitlines()
    with without_network() as inside:

        def paste(text: str, timeout: float = 300) -> str:
            done = subprocess.run(
                [*inside, "bash", "-euc", text],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        with pytest.raises(AssertionError, match="Network is unreachable"):
            paste(f'python3 -c "{OUTSIDE}"')
        paste(copy)
        command = [*inside, "bash", "-c", f"exec {serve} --json"]
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE) as server:
            try:
                assert server.stdout is not None
                assert json.loads(server.stdout.readline())["url"]
                said = paste(f"{submit}\necho $deploy")
                deploy = said.split()[-1]
                asked = _until(lambda: paste("nextslot ls --awaiting"), "May version 7 go live?")
                before = json.loads(paste("nextslot ls --awaiting --json"))["items"]
                log = paste(f"deploy={deploy}\n{approve}")
                runs = json.loads(paste("nextslot ls --json --filter status=COMPLETED,FAILED"))["items"]
                runs = [json.loads(paste(f"nextslot show {one['job_id']} --json")) for one in runs]
            finally:
                server.kill()

    assert "waits for 'release'" in asked
    assert [one["status"] for one in before] == ["WAITING"]
    assert "deployed version 7, approved by" in log
    by_chain: dict[str, list[tuple[str | None, str]]] = {}
    for job in sorted(runs, key=lambda one: str(one["created_at"])):
        found = by_chain.setdefault(job["chain"][0]["job_id"], [])
        found.append((job["run"]["failure_kind"], job["run"]["session_id"]))
    kinds = [[kind for kind, _ in one] for one in by_chain.values()]
    assert any("quota" in one for one in kinds)
    assert by_chain[deploy][-2][0] == "parked"
    assert all(one[-1] is None for one in kinds)
    # Whatever ended an attempt, each job is one session from its beginning to its end.
    assert all(len({name for _, name in one}) == 1 for one in by_chain.values())
    assert len(by_chain) == 3
    # A session that went on did no step again: each wrote each of its files in one attempt.
    logs = [path.read_text() for path in sorted(tmp_path.rglob("logs/**/*.log"))]
    went_on = [text for text in logs if "goes on after [" in text]
    assert any("goes on after ['" in text for text in went_on), went_on
    assert {path.name.split("-")[0] for path in (tmp_path / "team/shop").glob("*.md")} == {"fe", "be", "qa"}


def _until(read: Callable[[], str], text: str) -> str:
    deadline = time.monotonic() + 400
    while text not in (said := read()):
        assert time.monotonic() < deadline, said
        time.sleep(0.5)
    return said
