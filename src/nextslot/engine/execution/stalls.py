"""Stalls: notices that a run has reported nothing for its stall timeout; the executor then stops the run."""

from nextslot.executors.run_context import RunContext
from nextslot.system.clock import Clock

# A shorter wait may end before any time has passed by the clock, and would be repeated at once.
SHORTEST_WAIT = 0.001
# Whoever wakes up so many seconds late was held up, and so was the run: it could not report.
HELD_UP = 1.0


async def wait_for_stall(run: RunContext, seconds: float, clock: Clock) -> None:
    """Returns once the run has written no output and reported no progress for so many seconds.

    After a time in which this process did not get to run (a suspended machine, a blocked event loop), the count begins
    anew.
    """
    held_until = run.last_active
    while (left := seconds - (clock.monotonic() - max(held_until, run.last_active))) > 0:
        wait, began = max(left, SHORTEST_WAIT), clock.monotonic()
        await clock.sleep(wait)
        if clock.monotonic() - began - wait > HELD_UP:
            held_until = clock.monotonic()
