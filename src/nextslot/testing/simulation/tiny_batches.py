"""Makes the engine work in pages of one to three rows, so that pages have successors.

In a real scheduler a page has hundreds of rows, and a history of the simulation would never meet its end. `world` draws
the sizes by the number of the history, for three histories in four.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from unittest import mock

from nextslot.domain import catch_up, webhook_delivery
from nextslot.engine import retention
from nextslot.engine.cluster import recovery
from nextslot.engine.direct import direct_requests
from nextslot.engine.dispatch import aging_steps, dispatch_round
from nextslot.engine.events import event_feed
from nextslot.engine.execution import timeouts
from nextslot.engine.finish import job_finisher
from nextslot.engine.schedules import schedule_trigger
from nextslot.engine.submit import idempotency, queue_order
from nextslot.engine.webhooks import delivery_worker
from nextslot.services import bulk
from nextslot.store.sqlite import sqlite_store
from nextslot.store.tables import keyset_pagination

# Each constant with its possible sizes.
_PAGES = (1, 2, 3)
_CONSTANTS = (
    (recovery, "BATCH", _PAGES),
    (timeouts, "BATCH", _PAGES),
    (schedule_trigger, "BATCH", _PAGES),
    (schedule_trigger, "MOST_JOBS", (1, 2, 7)),
    (catch_up, "MOST_CAUGHT_UP", (2, 5, 100)),
    (catch_up, "MOST_ROWS", (1, 3, 1000)),
    (retention, "UNITS", _PAGES),
    (retention, "ROWS", _PAGES),
    (bulk, "STEP", _PAGES),
    (delivery_worker, "PAGE", _PAGES),
    (delivery_worker, "RESULTS", _PAGES),
    (delivery_worker, "SHARED", (1, 2, 1000)),
    (event_feed, "PAGE", _PAGES),
    (event_feed, "KEPT", (3, 6, 5_000)),
    (event_feed, "FEW", (0, 1, 20)),
    (job_finisher, "SLICE", (1, 2, 100)),
    # Few free positions between two jobs, so that moves must respace others.
    (queue_order, "GAP", (1, 2, 4, 1 << 20)),
    # A caller that waits for minutes sees its reservation renewed.
    (direct_requests, "RESERVATION_SECONDS", (20.0, 600.0)),
    (direct_requests, "RENEWED_BEFORE_SECONDS", (10.0,)),
    (direct_requests, "MOST_WAITING", (1, 3, 100)),
    (webhook_delivery, "BREAKER_FAILURES", (2, 3, 5)),
    (dispatch_round, "MOST_HEADS", _PAGES),
    (idempotency, "FORGOTTEN_AT_ONCE", _PAGES),
    (sqlite_store, "ROWS_AT_ONCE", (2, 3, 50)),
    (keyset_pagination, "BUDGET", (3, 10, 10_000)),
    (aging_steps, "BATCH", _PAGES),
)


@contextmanager
def tiny_batches(seed: int) -> Iterator[None]:
    """Changes the sizes inside this context, depending on the number of the history. One history in four keeps the
    usual ones.
    """
    chance = Random(f"batches {seed}")
    with ExitStack() as stack:
        if seed % 4 != 2:
            for module, name, sizes in _CONSTANTS:
                stack.enter_context(mock.patch.object(module, name, chance.choice(sizes)))
        yield
