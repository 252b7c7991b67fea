"""Slurm as an engine: `[engines.NAME] kind = "slurm"`. Uses Slurm's own commands."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nextslot.extension_api import Extension

if TYPE_CHECKING:
    from nextslot.executors.engines.contract import EngineKind


class Slurm(Extension):
    name = "slurm"

    def engine_kinds(self) -> Mapping[str, "EngineKind"]:
        from .slurm_engine import KIND

        return {"slurm": KIND}


extension = Slurm()
