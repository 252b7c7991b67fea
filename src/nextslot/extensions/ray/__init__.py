"""Ray as an engine: `[engines.NAME] kind = "ray"`. Uses Ray's jobs API over HTTP; Ray is not imported."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nextslot.extension_api import Extension

if TYPE_CHECKING:
    from nextslot.executors.engines.contract import EngineKind


class Ray(Extension):
    name = "ray"

    def engine_kinds(self) -> Mapping[str, "EngineKind"]:
        from .ray_engine import KIND

        return {"ray": KIND}


extension = Ray()
