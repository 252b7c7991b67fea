"""A real server with the gateway in front of an upstream, on a real socket."""

import gc
import warnings
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nextslot import Scheduler, extension_api
from nextslot.domain.limits import Limits, Rate, RateUnit
from nextslot.extensions.gateway.gateway_service import GatewayService
from nextslot.extensions.gateway.settings import GatewaySettings, UpstreamSettings
from nextslot.server.app import Options
from nextslot.server.fair_shares import FairShares, ShareLimits
from nextslot.services.runtime_settings import ReloadableSettings
from tests import databases
from tests.server.support import Server, served

HELLO = [{"role": "user", "content": "Hello"}]


@asynccontextmanager
async def gateway(
    tmp_path: Path,
    base_url: str | None,
    slots: int = 1,
    rates: Mapping[str, Mapping[RateUnit, Rate]] | None = None,
    affinity_wait_seconds: float = 0,
    limit_keys: Mapping[str, int] | None = None,
    **settings: Any,
) -> AsyncIterator[Server]:
    """Serves with one upstream, `fake`, at this address; None: with the usual upstreams."""
    upstreams = {} if base_url is None else {"fake": UpstreamSettings(base_url=base_url, token_env=None)}
    given = {"upstreams": upstreams, **settings}
    waits = {"fake": affinity_wait_seconds} if affinity_wait_seconds else {}
    limits = Limits(resources={"fake": slots}, rates=rates or {}, affinity_waits=waits, limit_keys=limit_keys or {})
    scheduler = Scheduler(
        databases.url(tmp_path), data=tmp_path, extensions=[*extension_api.used_by_server(), "gateway"], limits=limits
    )
    scheduler.settings.use(
        ReloadableSettings(limits=limits, offices={"default": {"max_concurrent_jobs": 0}}, direct_waiting=1000)
    )
    scheduler.extension(GatewayService).configure({"gateway": GatewaySettings(**given)}, tmp_path)
    options = Options(shares=FairShares(ShareLimits(streams_of_lane=500, refused_seconds=0.1)))
    try:
        async with served(Server(scheduler, options)) as server:
            yield server
    finally:
        # A connection of an HTTP client is left to the garbage collector: collected here, it fails no later test.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


def chat(model: str, text: str = "Hello", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


async def directs(server: Server) -> list[Any]:
    """Returns all direct executions, the newest first."""
    return list((await server.scheduler.lists.direct(limit=500)).items)
