"""Language models: the job types `story` and `research`, and what a new story is compared with."""

from typing import TYPE_CHECKING

from nextslot.engine.dispatch.resource_outages import Outages
from nextslot.executors.job_type_catalog import Catalog
from nextslot.services.unit_of_work import UnitOfWork
from nextslot.store.tables import runs

from .similarity import KnownText

if TYPE_CHECKING:
    from .language_models import LanguageModels

# Of more stories than this a new one is compared with the newest.
MOST_STORIES = 10_000


def use_language_models(
    models: "LanguageModels | None", job_types: Catalog, outages: Outages, access: UnitOfWork
) -> None:
    # Imported here because a scheduler without language models needs no HTTP client in its memory.
    from . import language_models

    async def earlier_stories() -> list[KnownText]:
        found = await access.read(lambda tx: runs.story_results(tx, MOST_STORIES))
        return [
            KnownText(story["fingerprint"], story["sketch"], story["story_id"])
            for result in found
            for story in result.get("stories", ())
        ]

    models = models or language_models.LanguageModels()
    job_types.add_language_models(models, earlier_stories)
    outages.set_probe("ollama", models.answers)
