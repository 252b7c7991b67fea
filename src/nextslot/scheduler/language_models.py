"""Language models: the job types `story` and `research`, and what a new story is compared with."""

from typing import TYPE_CHECKING

from ..engine.outages import Outages
from ..faces.access import Access
from ..handlers.catalog import Catalog
from ..handlers.similarity import Known
from ..store import runs

if TYPE_CHECKING:
    from ..handlers.llm import LanguageModels

# Of more stories than this a new one is compared with the newest.
MOST_STORIES = 10_000


def use_language_models(models: "LanguageModels | None", job_types: Catalog, outages: Outages, access: Access) -> None:
    # Imported here because a scheduler without language models needs no HTTP client in its memory.
    from ..handlers import llm

    async def earlier_stories() -> list[Known]:
        found = await access.read(lambda tx: runs.story_results(tx, MOST_STORIES))
        return [
            Known(story["fingerprint"], story["sketch"], story["story_id"])
            for result in found
            for story in result.get("stories", ())
        ]

    models = models or llm.LanguageModels()
    job_types.add_language_models(models, earlier_stories)
    outages.set_probe("ollama", models.answers)
