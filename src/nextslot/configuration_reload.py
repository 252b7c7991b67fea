"""Reloads the configuration of a running scheduler, for SIGHUP and `POST /api/config/reload`."""

import asyncio
from dataclasses import dataclass
from typing import Any

from nextslot import extension_api
from nextslot.config.loading import Configuration

from .domain import PYTHON, RequestContext
from .scheduler import Scheduler
from .scheduler.scheduler import report_surprises
from .scheduler_from_config import compose, job_types_of, reloadable_settings, use_in_memory
from .telemetry import logs

# Settings that need a restart; `reload` applies all others to the running process.
RESTART = (
    "server.host",
    "server.port",
    "server.health_port",
    "server.allowed_hosts",
    "server.allowed_origins",
    "server.root_path",
    "server.docs",
    "server.tls_",
    "server.max_",
    "server.head_timeout_seconds",
    "server.idle_timeout_seconds",
    "store.",
    "node.",
    "files.",
    "logs.format",
    "telemetry.",
    "extensions.",
    "engines.",
    *(name for one in extension_api.find_all() for name in one.restart_settings),
)


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that has changed. An absent value is None, and secrets are masked."""

    name: str
    before: Any
    after: Any
    needs_restart: bool


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The changes found by a reload: those it applied, and those that need a restart."""

    changes: tuple[Change, ...]

    @property
    def applied(self) -> list[Change]:
        return [change for change in self.changes if not change.needs_restart]

    @property
    def needs_restart(self) -> list[Change]:
        return [change for change in self.changes if change.needs_restart]


class ConfiguredScheduler:
    """A scheduler and its current configuration. Concurrent reloads wait for each other."""

    def __init__(self, configuration: Configuration, **options: Any) -> None:
        self.scheduler = compose(configuration, **options)
        self.configuration = configuration
        self._started = configuration
        self._one_at_a_time = asyncio.Lock()

    async def reload(self, context: RequestContext = PYTHON) -> Reloaded:
        """Reloads the configuration, for SIGHUP and `POST /api/config/reload`. An invalid file raises `Invalid` and
        changes nothing."""
        async with self._one_at_a_time:
            new = self.configuration.read_again()
            done = await reload(self.scheduler, self.configuration, new, self._started, context)
            self.configuration = new
            return done


async def reload(
    scheduler: Scheduler,
    old: Configuration,
    new: Configuration,
    started: Configuration | None = None,
    context: RequestContext = PYTHON,
) -> Reloaded:
    """Applies the settings that can change in a running process, and reports those that need a restart.

    `load` has checked `new` as a whole, so an invalid file never gets here. The stored part, declared templates and
    schedules included, is one transaction; if the store refuses it, nothing has changed. `started` is the configuration
    that the process was started with, if it is older than `old`: it still holds for settings that need a restart.
    """
    live = [change for change in changed(old, new) if not change.needs_restart]
    waiting = [change for change in changed(started or old, new) if change.needs_restart]
    types = job_types_of(scheduler, new)
    # Before the transaction, whose end starts jobs: dispatch must know the new types, and no longer the removed ones.
    before = use_in_memory(scheduler, new, types)
    services = scheduler.for_caller(context)
    try:
        await services.settings.apply(
            reloadable_settings(new.settings),
            {one.name: one.before for one in live},
            {one.name: one.after for one in live},
            lambda tx: scheduler.declared_in_configuration.store(tx, services),
        )
    except BaseException:
        use_in_memory(scheduler, old, before)
        raise
    logs.adjust(new.settings.logs.level, new.secrets())
    await report_surprises(scheduler)
    return Reloaded((*live, *waiting))


def changed(old: Configuration, new: Configuration) -> list[Change]:
    """Returns the settings that differ. A changed secret is listed, but not shown."""
    before, after = _values(old), _values(new)
    shown_before, shown_after = _shown(old), _shown(new)
    return [
        Change(name, shown_before.get(name), shown_after.get(name), name.startswith(RESTART))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _values(configuration: Configuration) -> dict[str, Any]:
    return {".".join(path): value for path, value in configuration.leaves() if value not in ({}, [])}


def _shown(configuration: Configuration) -> dict[str, Any]:
    return {one.name: one.value for one in configuration.effective()}
