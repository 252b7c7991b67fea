"""Engines: the configured engines by name, and the link from a job type to the engine that it names."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nextslot.domain.placements import PlacementSpec
from nextslot.errors import Invalid, Problem

from .contract import Engine, EngineKind

# Where a job type has the options of its engine.
ENGINE_OPTIONS = "engine_options"

# Returns what the engine must run, from the parameters, the timeout and the stall timeout of a run.
MakeSpec = Callable[[Mapping[str, Any], float | None, float | None], PlacementSpec]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """A table `[engines.NAME]`."""

    name: str
    kind: str
    directory: Path
    slots: int = 10
    # What its runs share there, by name, such as `gpu`; each is a resource `ENGINE:NAME` with so many units.
    units: Mapping[str, int] = field(default_factory=dict)
    python: str = "python3"
    poll_seconds: float = 1.0
    lease_seconds: float = 900.0
    start_timeout_seconds: float | None = 86_400.0
    variables: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placing:
    """How nextslot hands jobs of a type to an engine."""

    engine: str
    spec: MakeSpec
    # The variables of the command with their secrets, which are stored in no database.
    environment: Callable[[], Mapping[str, str]]


class Engines:
    """The engines that this node can use."""

    def __init__(self) -> None:
        self.settings: dict[str, EngineSettings] = {}
        self._made: dict[str, Engine] = {}

    def add(self, settings: EngineSettings, engine: Engine) -> None:
        self.settings[settings.name] = settings
        self._made[settings.name] = engine

    def get(self, name: str) -> Engine | None:
        return self._made.get(name)

    def settings_of(self, name: str) -> EngineSettings:
        found = self.settings.get(name)
        if found is None:
            there = ", ".join(sorted(self.settings)) or "none"
            raise Invalid(f"there is no engine {name!r}; add [engines.{name}], or use one of: {there}", field="engine")
        return found


def unit_of(engine: str, unit: str) -> str:
    """Returns the resource that a unit of an engine is."""
    return f"{engine}:{unit}"


def option_problems(kind: EngineKind, options: Any, place: str) -> Iterator[Problem]:
    """Yields problems of the options of an engine, or of the engine options of a job type."""
    if not isinstance(options, Mapping):
        yield Problem(place, "is not a table of options; write { name = value }")
        return
    for name in kind.engine_only if place == ENGINE_OPTIONS else ():
        if name in options:
            yield Problem(
                f"{place}.{name}", "is an option of the engine itself; write it into its table [engines.NAME]"
            )
    for one in kind.check(options):
        yield Problem(f"{place}.{one.field}", one.problem)
