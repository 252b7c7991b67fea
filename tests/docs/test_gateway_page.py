"""docs/gateway.md: its configurations load, and its two minutes work on a real server."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nextslot.config import load
from nextslot.scheduler_from_config import compose
from tests.extensions.gateway.fake_upstream import fake_upstream

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/gateway.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("configuration", blocks("toml"))
def test_each_configuration_of_the_page_loads_and_switches_the_gateway_on(tmp_path: Path, configuration: str) -> None:
    (tmp_path / "nextslot.toml").write_text(configuration)

    assert "gateway" in compose(load(tmp_path, environment={})).attached


@pytest.mark.real_time
async def test_the_two_minutes_in_front_of_ollama_work(tmp_path: Path) -> None:
    """The address of the page is that of a real server, and `OLLAMA_BASE_URL` that of a fake Ollama."""
    (tmp_path / "nextslot.toml").write_text(blocks("toml")[0])
    async with fake_upstream() as upstream, asyncio.timeout(200):
        environment = {**os.environ, "OLLAMA_BASE_URL": upstream.base_url}
        command = [sys.executable, "-m", "nextslot.cli.main", "serve", "--data", str(tmp_path), "--port", "0", "--json"]
        server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)
        assert server.stdout is not None
        url = json.loads(await server.stdout.readline())["url"]
        environment["NEXTSLOT_URL"] = url
        curl, *_ = blocks("sh")
        [client] = blocks("py")
        printed = []
        try:
            for program, text in (["bash", "-e"], curl), ([sys.executable, "-"], client):
                if shutil.which("curl") is None and "bash" in program:
                    continue
                wanted = text.replace("http://127.0.0.1:8000", url).replace("smollm2:135m", "plain")
                printed.append(await output_of(program, wanted, environment))
            job = blocks("sh")[-1].replace("smollm2:135m", "plain")
            job = job.replace("nextslot ", f"{sys.executable} -m nextslot.cli.main ", 1)
            printed.append(await output_of(["bash", "-e"], job, environment))
        finally:
            server.terminate()
            await server.communicate()

    assert all("says" in one for one in printed), printed


async def output_of(program: list[str], text: str, environment: dict[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        *program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    said, _ = await process.communicate(text.encode())
    assert process.returncode == 0, said
    return said.decode()


def test_the_keys_of_the_page_are_made_before_any_server_runs(tmp_path: Path) -> None:
    (tmp_path / "nextslot.toml").write_text(blocks("toml")[1])
    for line in blocks("sh")[1].strip().splitlines():
        command = [sys.executable, "-m", "nextslot.cli.main", *line.split()[1:], "--data", str(tmp_path)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
