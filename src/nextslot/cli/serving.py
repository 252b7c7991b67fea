"""`nextslot serve`: settings, scheduler, application and process put together. Imported only by that command."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from functools import partial

from nextslot import offline_commands
from nextslot.config import Configuration
from nextslot.config.loading import without_password
from nextslot.errors import Invalid, NextslotError, StoreError
from nextslot.scheduler_from_config import ConfiguredScheduler, is_loopback
from nextslot.server.app import Options, create_app
from nextslot.server.request_guard import Admission
from nextslot.server.routes.service import Reload
from nextslot.server.serve import Process
from nextslot.telemetry import logs

log = logging.getLogger(__name__)


async def serve(configuration: Configuration, ready: Callable[[str], None]) -> bool:
    """Until it is told to stop. Whether everything that ran has been stored."""
    settings = configuration.settings
    _refuse_old_switch(os.environ)
    logs.install(settings.logs.format, settings.logs.level, configuration.secrets())
    is_shared = offline_commands.is_shared(configuration)
    if not is_shared:
        await _check_keys(configuration)
    configured = ConfiguredScheduler(configuration)
    reloads: set[asyncio.Task[None]] = set()

    def reload() -> None:
        task = asyncio.create_task(_reload(configured), name="nextslot-reload")
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    app = create_app(configured.scheduler, options_of(configuration, configured.reload))
    prepare = partial(_prepare, configuration) if is_shared else None
    server = settings.server
    process = Process(configured.scheduler, app, server.host, server.port, reload, prepare, server.health_port)
    try:
        return await process.run(ready)
    except OSError as error:
        where = f"{settings.server.host}:{settings.server.port}"
        raise Invalid(f"cannot listen on {where}: {error.strerror}; --port 0 takes a free port") from error
    finally:
        # It waits for whoever the last traces are sent to.
        await asyncio.to_thread(configured.scheduler.tracer.close)


def options_of(configuration: Configuration, reload: Reload | None = None) -> Options:
    server = configuration.settings.server
    return Options(
        admission=Admission(
            allowed_hosts=tuple(server.allowed_hosts),
            allowed_origins=tuple(server.allowed_origins),
            is_loopback=is_loopback(server.host),
            max_body_bytes=server.max_body_bytes,
        ),
        root_path=server.root_path,
        has_docs=server.docs,
        reload=reload,
    )


def _refuse_old_switch(environment: Mapping[str, str]) -> None:
    """Whoever sets this variable of the old service takes the server for guarded, and it would not be."""
    if environment.get("API_AUTH_ENABLED", "").strip().lower() == "true":
        raise Invalid(
            "API_AUTH_ENABLED is a switch of the old service and guards nothing here: unset it, "
            "and make a key with `nextslot key add NAME --scope admin`"
        )


async def _prepare(configuration: Configuration) -> None:
    """Before each attempt to start on a database that is a server: raises Away while that does not answer."""
    await asyncio.to_thread(offline_commands.reach, configuration)
    try:
        await _check_keys(configuration)
    except StoreError:
        await asyncio.to_thread(offline_commands.reach, configuration)  # Away again: this is tried once more, too.
        raise


async def _check_keys(configuration: Configuration) -> None:
    """A server that others can reach needs a key before it listens."""
    host = configuration.settings.server.host
    if is_loopback(host) or await offline_commands.is_guarded(configuration):
        return
    # The same database: what only this command line has named, the other one must name too.
    said = configuration.overrides.get("store.url")
    database = f" --database {without_password(said)}" if said else ""
    raise Invalid(
        f"listening on {host} needs an API key first: "
        f"nextslot key add NAME --scope admin --data {configuration.data}{database}"
    )


async def _reload(configured: ConfiguredScheduler) -> None:
    """SIGHUP. What it changed is in the log; a bad file changes nothing and says why."""
    try:
        done = await configured.reload()
    except NextslotError as error:
        log.error("reload: nothing has changed: %s", error)
        return
    if not done.applied and not done.needs_restart:
        log.info("reload: everything is as it was")
    for change in done.applied:
        log.info("reload: %s is %s now", change.name, change.after)
    for change in done.needs_restart:
        log.warning("reload: %s needs a restart", change.name)
