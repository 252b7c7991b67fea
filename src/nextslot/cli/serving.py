"""`nextslot serve`: creates the scheduler, the application and the process. Only that command imports this module."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from urllib.parse import parse_qsl, urlsplit

from nextslot.config import Configuration
from nextslot.config.loading import without_password
from nextslot.configuration_reload import ConfiguredScheduler
from nextslot.domain.addresses import is_loopback
from nextslot.errors import Invalid, NextslotError, StoreError
from nextslot.server.app import Options
from nextslot.server.connections import ConnectionLimits, Connections
from nextslot.server.fair_shares import FairShares, ShareLimits
from nextslot.server.request_body import Bodies, BodyLimits
from nextslot.server.request_guard import Admission
from nextslot.server.routes.service import Reload
from nextslot.server.serve import Process
from nextslot.server.tls import Certificate
from nextslot.store import open_store
from nextslot.telemetry import logs

log = logging.getLogger(__name__)


async def serve(configuration: Configuration, ready: Callable[[str], None]) -> bool:
    """Serves until a signal stops the server. Returns whether the outcomes of all runs have been stored."""
    settings = configuration.settings
    _refuse_old_switch(os.environ)
    logs.install(settings.logs.format, settings.logs.level, configuration.secrets())
    for sentence in configuration.warnings():
        log.warning("%s", sentence)
    is_shared = open_store.is_shared(configuration.store_url)
    if is_shared and is_unprotected(configuration.store_url, os.environ):
        log.warning(
            "the connection to PostgreSQL may go over the network without TLS; add ?sslmode=verify-full to its address"
        )
    if not is_shared:
        await _check_keys(configuration)
    configured = ConfiguredScheduler(configuration)
    reloads: set[asyncio.Task[None]] = set()

    def reload() -> None:
        task = asyncio.create_task(_reload(configured), name="nextslot-reload")
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    options = options_of(configuration, configured.reload)
    prepare = partial(_prepare, configuration) if is_shared else None
    server = settings.server
    process = Process(configured.scheduler, options, server.host, server.port, reload, prepare, server.health_port)
    try:
        return await process.run(ready)
    except OSError as error:
        where = f"{settings.server.host}:{settings.server.port}"
        raise Invalid(
            f"cannot listen on {where}: {error.strerror}; use another --port, or --port 0 for a free one"
        ) from error
    finally:
        # Closing waits until the last traces are sent.
        await asyncio.to_thread(configured.scheduler.tracer.close)


def options_of(configuration: Configuration, reload: Reload | None = None) -> Options:
    server = configuration.settings.server
    certificate = None
    if server.tls_certificate is not None:
        key = None if server.tls_key is None else configuration.data / server.tls_key
        certificate = Certificate(configuration.data / server.tls_certificate, key)
    return Options(
        certificate=certificate,
        admission=Admission(
            allowed_hosts=(*server.allowed_hosts, *_host_of(configuration.settings.node.address)),
            allowed_origins=tuple(server.allowed_origins),
            is_loopback=is_loopback(server.host),
        ),
        bodies=Bodies(BodyLimits(body=server.max_body_bytes, batch=server.max_batch_bytes)),
        connections=Connections(
            ConnectionLimits(
                most=server.max_connections,
                most_of_peer=server.max_connections_per_peer,
                head_seconds=server.head_timeout_seconds,
                idle_seconds=server.idle_timeout_seconds,
            )
        ),
        shares=FairShares(
            ShareLimits(
                per_second=server.max_requests_per_second,
                streams=server.max_streams,
                streams_of_lane=server.max_streams_per_caller,
            )
        ),
        root_path=server.root_path,
        has_docs=server.docs,
        reload=reload,
    )


def _host_of(address: str | None) -> list[str]:
    """Returns the configured host name by which other nodes reach this one, if there is one."""
    host = None if address is None else urlsplit(address).hostname
    return [] if host is None else [host]


def is_unprotected(url: str, environment: Mapping[str, str]) -> bool:
    """Returns whether the address of a PostgreSQL server on another machine lets that server decide about TLS."""
    found = urlsplit(url)
    asked = dict(parse_qsl(found.query))
    host = asked.get("host") or found.hostname or environment.get("PGHOST", "")
    is_local = not host or host.startswith("/") or is_loopback(host)
    mode = asked.get("sslmode") or environment.get("PGSSLMODE", "prefer")
    return not is_local and mode not in ("require", "verify-ca", "verify-full")


def _refuse_old_switch(environment: Mapping[str, str]) -> None:
    """Raises Invalid if the old service's variable is set: its user would believe that the server requires keys."""
    if environment.get("API_AUTH_ENABLED", "").strip().lower() == "true":
        raise Invalid(
            "API_AUTH_ENABLED is a switch of the old service and guards nothing here: unset it, "
            "and make a key with `nextslot key add NAME --scope admin`"
        )


async def _prepare(configuration: Configuration) -> None:
    """Checks the API keys before each attempt to start on a database server. Raises Away if it does not answer."""
    await asyncio.to_thread(open_store.reach, configuration.store_url)
    try:
        await _check_keys(configuration)
    except StoreError:
        # Raises Away if the database server has gone again, so that the start is repeated.
        await asyncio.to_thread(open_store.reach, configuration.store_url)
        raise


async def _check_keys(configuration: Configuration) -> None:
    """Raises unless a server that other machines can reach has an API key."""
    host = configuration.settings.server.host
    if is_loopback(host):
        return
    # Imported here because it imports everything that uses a database without a scheduler.
    from nextslot import offline_commands

    if await offline_commands.is_guarded(configuration):
        return
    # The suggested command must use the same database, so it repeats an address given on this command line.
    given = configuration.overrides.get("store.url")
    database = f" --database {without_password(given)}" if given else ""
    raise Invalid(
        f"there is no API key, which listening on {host} requires; create one: "
        f"nextslot key add NAME --scope admin --data {configuration.data}{database}"
    )


async def _reload(configured: ConfiguredScheduler) -> None:
    """Reloads the configuration after SIGHUP, and logs the changes; an invalid file changes nothing."""
    try:
        done = await configured.reload()
    except NextslotError as error:
        log.error("reload failed, and nothing has changed: %s", error)
        return
    if not done.applied and not done.needs_restart:
        log.info("reload: no setting has changed")
    for change in done.applied:
        log.info("reload: %s is %s now", change.name, change.after)
    for change in done.needs_restart:
        log.warning("reload: %s needs a restart", change.name)
