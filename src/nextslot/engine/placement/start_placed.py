"""Stores a placement in the transaction that starts its run. Dispatch calls it for job types that name an engine."""

import logging

from nextslot.domain.placements import Placement, PlacementState
from nextslot.engine.effects import Claim, Launch, Place
from nextslot.engine.engine_context import EngineContext
from nextslot.executors.engines.engines import Placing
from nextslot.executors.engines.run_directory import hash_of
from nextslot.store.contract import Tx
from nextslot.store.tables import placements
from nextslot.system.instant import Instant

log = logging.getLogger(__name__)


def start_placed(tx: Tx, engine: EngineContext, claim: Claim, placing: Placing, now: Instant) -> None:
    """Stores what the engine must run; after the commit, this node hands the run over."""
    try:
        spec = placing.spec(claim.params, *claim.times)
    except Exception as error:  # Parameters that have become invalid must not stop the dispatch of other jobs.
        log.warning("run %s cannot be handed to its engine: %s", claim.run_id, error)
        tx.cause(Launch(claim))  # The handler ends the run, and says why it cannot run.
        return
    token = engine.chance.secret()
    placements.begin(tx, claim.run_id, claim.job_id, spec, hash_of(token), now)
    placed = Placement(
        run_id=claim.run_id,
        spec=spec,
        state=PlacementState.SUBMITTING,
        handle=None,
        token_hash=hash_of(token),
        placed_at=now,
    )
    tx.cause(Place(claim, placed, token))
