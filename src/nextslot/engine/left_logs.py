"""Left logs: the logs that a crash left in pieces become one file each. A start does it after recovery."""

from ..handlers.files import RunFiles
from ..handlers.threads import Threads
from ..store import retention
from ..store.store import Store


async def join_left_logs(store: Store, files: RunFiles, threads: Threads) -> None:
    """Joins the logs of runs that have ended. A run that goes on belongs to a node that shares this directory."""
    left = await threads.run(files.logs_in_pieces)
    if left:
        known = await store.read(lambda tx: retention.known_runs(tx, left))
        await threads.run(lambda: files.join_logs(run_id for run_id in left if known.get(run_id)))
