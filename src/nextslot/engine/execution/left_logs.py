"""Joins the logs that a crash left in pieces, into one file each. The start calls it after recovery."""

from nextslot.executors.run_files import RunFiles
from nextslot.executors.threads import Threads
from nextslot.store.contract import Store
from nextslot.store.tables import old_history


async def join_left_logs(store: Store, files: RunFiles, threads: Threads) -> None:
    """Joins the logs of ended runs. A run that has not ended belongs to another node with the same directory."""
    left = await threads.run(files.logs_in_pieces)
    if left:
        known = await store.read(lambda tx: old_history.known_runs(tx, left))
        await threads.run(lambda: files.join_logs(run_id for run_id in left if known.get(run_id)))
