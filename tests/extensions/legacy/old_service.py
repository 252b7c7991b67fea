"""What tests of the old endpoints share: a server whose stories and cards come from a scripted Ollama."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from nextslot.extensions.stories.language_models import LanguageModels, LlmConfig
from nextslot.extensions.stories.story_service import StoryService
from nextslot.server.app import Options
from tests.extensions.stories import ollama_server as ollama
from tests.extensions.stories.test_research import CARD, TOPIC
from tests.extensions.stories.test_story import CLOCK, LIGHTHOUSE
from tests.server.support import Server, serving

T = TypeVar("T")

STORY = ollama.tells(f"# The Second Light\n\n{LIGHTHOUSE}")
OTHER = ollama.tells(f"# The Clock\n\n{CLOCK}")
RESEARCH = ollama.tells(json.dumps(CARD))
NOTHING = ollama.tells("")

__all__ = [
    "CARD",
    "CLOCK",
    "LIGHTHOUSE",
    "NOTHING",
    "OTHER",
    "RESEARCH",
    "STORY",
    "TOPIC",
    "old_service",
    "seen",
    "until",
]


@asynccontextmanager
async def old_service(
    tmp_path: Path, *script: ollama.Reply, retries: int = 0, options: Options | None = None
) -> AsyncIterator[tuple[Server, ollama.ScriptedOllama]]:
    """Runs the old endpoints. Retries follow at once, so that a chain ends while the test waits."""
    async with ollama.scripted(*script) as model, serving(tmp_path, options) as server:
        server.scheduler.extension(StoryService).use(LanguageModels(LlmConfig(model.base_url)))
        policy = {"max_attempts": retries, "base_delay_seconds": 0.01}
        await server.scheduler.offices.change("default", retry_policy=policy)
        try:
            yield server, model
        finally:
            # What still waits for a model that says nothing is not waited for.
            server.scheduler.shutdown_grace_seconds = 0


async def seen(read: Callable[[], Awaitable[T]], is_so: Callable[[T], object]) -> T:
    """Reads until a condition is true, in real time, for things that use sockets."""
    end = time.monotonic() + 15
    while not is_so(found := await read()):
        assert time.monotonic() < end, found
        await asyncio.sleep(0.02)
    return found


async def until(server: Server, job_id: str) -> dict[str, Any]:
    """Returns the old job once its chain has ended."""
    await server.scheduler.wait(job_id)
    answer: dict[str, Any] = (await server.client.get(f"/jobs/{job_id}")).json()
    return answer
