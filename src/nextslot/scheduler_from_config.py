"""Creates a scheduler from a configuration, and reloads the configuration while it runs. The server calls it."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from ipaddress import ip_address
from typing import Any

from nextslot import extension_api
from nextslot.config.loading import Configuration
from nextslot.config.settings import Settings
from nextslot.domain.limits import Limits
from nextslot.engine.retention import Keep
from nextslot.engine.webhooks.webhook_outbox import WebhookSettings
from nextslot.executors.job_types import JobType
from nextslot.extension_api import used_by_server
from nextslot.services.settings_reload import ReloadableSettings
from nextslot.store.membership import LeaseTimes
from nextslot.system.clock import Clock
from nextslot.system.disk_space import DiskLimits
from nextslot.telemetry.meters import ProcessMeters

from .domain import PYTHON, RequestContext
from .scheduler import Scheduler, default_node
from .telemetry import logs, tracing

# Settings that need a restart; `reload` applies all others to the running process.
RESTART = (
    "server.host",
    "server.port",
    "server.health_port",
    "server.allowed_hosts",
    "server.allowed_origins",
    "server.root_path",
    "server.docs",
    "server.max_body_bytes",
    "store.",
    "node.",
    "logs.format",
    "telemetry.",
    "extensions.",
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
        changes nothing.
        """
        async with self._one_at_a_time:
            new = self.configuration.read_again()
            done = await reload(self.scheduler, self.configuration, new, self._started, context)
            self.configuration = new
            return done


def compose(configuration: Configuration, clock: Clock | None = None, **options: Any) -> Scheduler:
    """Creates a scheduler as configured, without starting it. Further options are those of `Scheduler`, for tests."""
    settings = configuration.settings
    node = settings.node.name or default_node(configuration.store_url)
    watched = {"meters": ProcessMeters(), "tracer": _tracer(settings, node)}
    scheduler = Scheduler(
        configuration.store_url,
        **{"data": configuration.data, "clock": clock, **watched, **options},
        extensions=used_by_server(settings.extensions.disabled, settings.model_fields_set),
        node=node,
        node_running=settings.node.running,
        node_resources=settings.node.resources,
        lease=LeaseTimes(unresponsive_seconds=settings.node.unresponsive_seconds),
        shutdown_grace_seconds=settings.server.shutdown_grace_seconds,
        synchronous=settings.store.synchronous,
        disk=DiskLimits(settings.store.disk_warn_bytes, settings.store.disk_refuse_bytes),
        webhooks=_webhooks(settings),
    )
    scheduler.job_types.add_offered()
    scheduler.settings.use(reloadable_settings(settings))
    _use(scheduler, configuration, _job_types(scheduler, configuration))
    return scheduler


async def reload(
    scheduler: Scheduler,
    old: Configuration,
    new: Configuration,
    started: Configuration | None = None,
    context: RequestContext = PYTHON,
) -> Reloaded:
    """Applies the settings that can change in a running process, and reports those that need a restart.

    `load` has checked `new` as a whole, so an invalid file never gets here. The stored part is one transaction; if the
    store refuses it, nothing has changed. `started` is the configuration that the process was started with, if it is
    older than `old`: it still holds for settings that need a restart.
    """
    live = [change for change in changed(old, new) if not change.needs_restart]
    waiting = [change for change in changed(started or old, new) if change.needs_restart]
    types = _job_types(scheduler, new)
    # Before the transaction, whose end starts jobs: dispatch must know the new types, and no longer the removed ones.
    before = _use(scheduler, new, types)
    try:
        await scheduler.for_caller(context).settings.apply(
            reloadable_settings(new.settings),
            {one.name: one.before for one in live},
            {one.name: one.after for one in live},
        )
    except BaseException:
        _use(scheduler, old, before)
        raise
    logs.adjust(new.settings.logs.level, new.secrets())
    return Reloaded((*live, *waiting))


def reloadable_settings(settings: Settings) -> ReloadableSettings:
    limits = settings.limits
    return ReloadableSettings(
        limits=Limits(running=limits.running, job_types=limits.job_types, resources=limits.resources),
        offices={office_id: office.named() for office_id, office in settings.offices.items()},
        starvation_after_seconds=limits.starvation_after_seconds,
        max_params_bytes=limits.max_params_bytes,
        direct_waiting=limits.direct_waiting,
        webhooks=_webhooks(settings),
    )


def _webhooks(settings: Settings) -> WebhookSettings:
    """Returns the webhook settings. By default, local addresses are allowed only if the server itself is local (spec
    12.9).
    """
    given = settings.webhooks
    return WebhookSettings(
        secret=None if given.secret is None else given.secret.get_secret_value(),
        allow_private=is_loopback(settings.server.host) if given.allow_private is None else given.allow_private,
        timeout_seconds=given.timeout_seconds,
        concurrency=given.concurrency,
    )


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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


def _job_types(scheduler: Scheduler, configuration: Configuration) -> dict[str, JobType]:
    return scheduler.job_types.prepared(configuration.settings.job_types, configuration.data)


def _use(scheduler: Scheduler, configuration: Configuration, types: Mapping[str, JobType]) -> Mapping[str, JobType]:
    """Applies the settings that live in memory only. Returns the previous job types."""
    settings = configuration.settings
    scheduler.shutdown_grace_seconds = settings.server.shutdown_grace_seconds
    scheduler.retention.keep = Keep(**settings.retention.model_dump())
    for one in scheduler.extensions:
        tables = {name: getattr(settings, name) for name in one.settings()}
        scheduler.attached[one.name].configure(tables, configuration.data)
    return scheduler.job_types.configure(types)


def _tracer(settings: Settings, node: str) -> tracing.Tracer:
    return tracing.tracer(settings.telemetry.otel_endpoint, os.environ, node, version("nextslot"))
