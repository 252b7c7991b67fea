"""Creates a scheduler from a configuration; `configuration_reload` applies a changed one while it runs."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from nextslot.config import engine_tables
from nextslot.config.loading import Configuration
from nextslot.config.settings import Settings
from nextslot.domain.devices import Units
from nextslot.domain.lease_times import LeaseTimes
from nextslot.domain.limits import Limits
from nextslot.engine.retention import Keep
from nextslot.engine.webhooks.webhook_outbox import WebhookSettings
from nextslot.executors.gpus import find_gpus
from nextslot.executors.job_types import JobType
from nextslot.extension_api import used_by_server
from nextslot.services.runtime_settings import ReloadableSettings
from nextslot.system.clock import Clock
from nextslot.system.disk_space import DiskLimits
from nextslot.telemetry.meters import ProcessMeters

from .scheduler import Scheduler, default_node
from .scheduler.declarations import BY_CONFIGURATION, Declarations
from .scheduler.startup_and_shutdown import offline_closing, using
from .telemetry import tracing


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
        node_address=settings.node.address,
        node_running=settings.node.running,
        node_resources=_node_resources(settings.node.resources),
        device_variables=settings.node.device_variables,
        lease=LeaseTimes(unresponsive_seconds=settings.node.unresponsive_seconds),
        files=settings.files.store,
        files_wait_seconds=settings.files.wait_seconds,
        shutdown_grace_seconds=settings.server.shutdown_grace_seconds,
        synchronous=settings.store.synchronous,
        disk=DiskLimits(settings.store.disk_warn_bytes, settings.store.disk_refuse_bytes),
        webhooks=_webhooks(settings),
    )
    scheduler.job_types.guardians.private_files += tuple(configuration.private_files)
    engine_tables.add_engines(
        scheduler.job_types.engines, settings.engines, configuration.data, settings.extensions.disabled
    )
    scheduler.job_types.add_offered()
    scheduler.settings.use(reloadable_settings(settings))
    use_in_memory(scheduler, configuration, job_types_of(scheduler, configuration))
    return scheduler


@asynccontextmanager
async def opened_offline(configuration: Configuration) -> AsyncIterator[Scheduler]:
    """Opens the database for an offline command of an extension, with all extensions attached. Nothing is recovered or
    dispatched, and no message is sent; the next start does all that."""
    from . import offline_commands  # A server does not need them.

    scheduler = compose(configuration)
    advice = "stop it first: this command needs the database for itself"
    async with offline_commands.opened(configuration, advice, offline_closing(scheduler)) as access:
        with using(scheduler, access.store):
            yield scheduler


def _node_resources(resources: Mapping[str, int | list[str] | str]) -> dict[str, Units]:
    """Finds the GPUs of this machine where the configuration leaves that to NVML."""
    return {
        name: [gpu.uuid for gpu in find_gpus()] if isinstance(units, str) else units
        for name, units in resources.items()
    }


def reloadable_settings(settings: Settings) -> ReloadableSettings:
    limits = settings.limits
    return ReloadableSettings(
        limits=Limits(
            running=limits.running,
            job_types=limits.job_types,
            resources={**limits.resources, **engine_tables.slots(settings.engines)},
            affinity_waits={name: wait for name, wait in limits.affinity_wait_seconds.items() if wait},
            limit_keys=limits.keys,
            rates={name: table.rates() for name, table in limits.rates.items()},
        ),
        offices={office_id: office.named() for office_id, office in settings.offices.items()},
        starvation_after_seconds=limits.starvation_after_seconds,
        stall_alarm_seconds=limits.stall_alarm_seconds,
        max_params_bytes=limits.max_params_bytes,
        direct_waiting=limits.direct_waiting,
        webhooks=_webhooks(settings),
    )


def _webhooks(settings: Settings) -> WebhookSettings:
    """Returns the webhook settings. By default, private addresses are allowed only while all callers are local: the
    server is on loopback, serves no other host name, and has no key (spec 12.9, spec 12.12)."""
    given = settings.webhooks
    return WebhookSettings(
        secret=None if given.secret is None else given.secret.get_secret_value(),
        allow_private=settings.allow_private(has_keys=False),
        is_private_until_keyed=given.allow_private is None,
        timeout_seconds=given.timeout_seconds,
        concurrency=given.concurrency,
        public_url=given.public_url,
    )


def job_types_of(scheduler: Scheduler, configuration: Configuration) -> dict[str, JobType]:
    return scheduler.job_types.prepared(configuration.settings.job_types, configuration.data)


def use_in_memory(
    scheduler: Scheduler, configuration: Configuration, types: Mapping[str, JobType]
) -> Mapping[str, JobType]:
    """Applies the settings that live in memory only. Returns the previous job types."""
    settings = configuration.settings
    scheduler.shutdown_grace_seconds = settings.server.shutdown_grace_seconds
    scheduler.retention.keep = Keep(**settings.retention.model_dump())
    for one in scheduler.extensions:
        tables = {name: getattr(settings, name) for name in one.settings()}
        scheduler.attached[one.name].configure(tables, configuration.data)
    scheduler.declared_in_configuration = _declarations(settings)
    return scheduler.job_types.configure(types)


def _declarations(settings: Settings) -> Declarations:
    made = Declarations(BY_CONFIGURATION)
    for name, table in settings.templates.items():
        made.template(name, **table)
    for name, table in settings.schedules.items():
        made.schedule(name, **table)
    return made


def _tracer(settings: Settings, node: str) -> tracing.Tracer:
    return tracing.tracer(settings.telemetry.otel_endpoint, os.environ, node, version("nextslot"))
