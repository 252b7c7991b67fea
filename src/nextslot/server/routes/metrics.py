"""The route of the metrics. The Prometheus library is imported by the first scrape: many servers have none."""

import asyncio
import gzip

from fastapi import Request, Response

from nextslot.domain import Scope
from nextslot.server.auth import whole
from nextslot.server.route_rules import needs
from nextslot.server.routing import router

metrics = router("Service")

FORMS = ("text/plain", "application/openmetrics-text")


@metrics.get("/metrics", response_class=Response, responses={200: {"content": {form: {} for form in FORMS}}})
@needs(Scope.READ, whole)
async def show_metrics(request: Request) -> Response:
    """Queues, runs, limits, deliveries, the store and the requests, for Prometheus."""
    from prometheus_client.exposition import choose_encoder

    from nextslot.server.metrics import Exposition

    state = request.app.state
    if state.exposition is None:
        state.exposition = Exposition(request.app, state.scheduler, state.options.http)
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    body = encode(await state.exposition.scrape())
    headers = {"Content-Type": media_type, "Vary": "Accept, Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):  # Prometheus and the console; they are a tenth then.
        body, headers["Content-Encoding"] = await asyncio.to_thread(gzip.compress, body, 1), "gzip"
    return Response(body, headers=headers)
