"""Who must run alone, and where: work that was inside a scheduler's process that died is a suspect until a run of it
survives. Asked by `Dispatcher` and by `engine.why`.

A suspect starts only where nothing else runs inside the process, and nothing else starts there while it runs: if that
process dies too, it was the suspect. Whatever has a process of its own is in nobody's way.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nextslot.system.instant import Instant


class Insider(NamedTuple):
    """A job or a direct caller whose work runs inside the process of a node."""

    id: str
    node_id: str
    is_suspect: bool
    since: Instant


@dataclass(frozen=True, slots=True)
class Company:
    """What runs inside the processes of all nodes, and for how long that is waited for.

    Work that has run for longer than `longest_wait_seconds` is not company any more: it has not taken its process down
    so far, it may never end, and it may wait for something that is held back because of it.
    """

    insiders: Sequence[Insider]
    now: Instant
    longest_wait_seconds: float

    def on(self, node_id: str) -> list[Insider]:
        since = self.now.after(-self.longest_wait_seconds)
        return [one for one in self.insiders if one.node_id == node_id and one.since > since]

    def suspect_on(self, node_id: str) -> Insider | None:
        return next((one for one in self.on(node_id) if one.is_suspect), None)

    def changes_at(self, node_id: str) -> Instant | None:
        """Returns when the first work on a node is waited for no longer, unless it ends before."""
        ends = [one.since.after(self.longest_wait_seconds) for one in self.on(node_id)]
        return min(ends, default=None)

    def is_emptiest(self, node_id: str, others: Iterable[str]) -> bool:
        """Says whether this node will be empty first, as far as numbers tell: one node keeps its process free for a
        suspect, and all others go on."""
        mine = len(self.on(node_id)), node_id
        return all(mine <= (len(self.on(other)), other) for other in others)
