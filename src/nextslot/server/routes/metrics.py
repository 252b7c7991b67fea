"""The route of the metrics. The Prometheus library is imported by the first scrape: many servers have none."""

from typing import TYPE_CHECKING

from fastapi import Request, Response

from nextslot.domain import Scope
from nextslot.server.auth import whole
from nextslot.server.routing import needs, router

if TYPE_CHECKING:
    from nextslot.server.metrics import Exposition

metrics = router("Service")

FORMS = ("text/plain", "application/openmetrics-text")


@metrics.get("/metrics", response_class=Response, responses={200: {"content": {form: {} for form in FORMS}}})
@needs(Scope.READ, whole)
async def show_metrics(request: Request) -> Response:
    """Queues, runs, limits, deliveries, the store and the requests, for Prometheus."""
    from prometheus_client.exposition import choose_encoder

    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(await _exposition(request).scrape()), headers={"Content-Type": media_type})


def _exposition(request: Request) -> "Exposition":
    """Returns the metrics of this application; the first scrape makes them."""
    from nextslot.server.metrics import Exposition

    state = request.app.state
    if state.exposition is None:
        state.exposition = Exposition(request.app, state.scheduler, state.options.http)
    made: Exposition = state.exposition
    return made
