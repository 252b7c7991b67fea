"""Membership: how a node of several keeps its lease and receives notifications through its store.

`engine.cluster` implements `Member`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from nextslot.domain.lease_times import LeaseTimes

# A topic that only the lease sends: look for nodes whose lease has expired.
LOST = "lost"
# The topics by which nodes notify each other after a commit.
TOPICS = ("work", "stop", "timer", "deliveries", "callers", "settings", "nodes", "events")


class Member(Protocol):
    """The holder of a lease. All methods but `renewed` are called on the scheduler's event loop."""

    def renewed(self, until: float) -> None:
        """Allows work until this instant of CLOCK_BOOTTIME. Called on the lease's own thread."""

    def notified(self, topics: frozenset[str]) -> None:
        """Handles notifications: another node has changed these topics, or it is time to check whether one has."""

    def leads(self, is_leader: bool) -> None:
        """Makes this node the leader, which does the work that only one node may do, or ends its leadership."""

    def lapsed(self) -> None:
        """Stops all runs because the lease could not be renewed, before other nodes treat them as lost."""

    def fenced(self) -> None:
        """Joins again as a new node, because the others have treated this node, with its runs, as lost."""


@dataclass(frozen=True, slots=True)
class Membership:
    """A node's membership: its id, its incarnation (`life`), and the member that receives notifications."""

    node_id: str
    life: int
    member: Member
    times: LeaseTimes
    # Seconds since before the node was registered: the time that its first lease allows for work counts from there.
    age: float
    # Receives the database's clock in microseconds, and the monotonic times before and after it was read.
    adjust: Callable[[int, float, float], None]
