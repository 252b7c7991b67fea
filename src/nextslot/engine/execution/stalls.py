"""Stalls: notices that a run has reported nothing for its stall timeout; the executor then stops the run."""

from nextslot.executors.run_context import RunContext
from nextslot.system.clock import Clock

# A shorter wait may end before any time has passed by the clock, and would be repeated at once.
SHORTEST_WAIT = 0.001


async def wait_for_stall(run: RunContext, seconds: float, clock: Clock) -> None:
    """Returns once the run has written no output and reported no progress for so many seconds."""
    while (left := seconds - (clock.monotonic() - run.last_active)) > 0:
        await clock.sleep(max(left, SHORTEST_WAIT))
