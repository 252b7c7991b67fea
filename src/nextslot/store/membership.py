"""Membership: how a node stays one of several, as its store sees to it. `engine.cluster` is the member."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

# Heard from the lease alone: it is time to look for nodes whose lease is over.
LOST = "lost"
# What nodes tell each other that they should look at again, after a commit.
TOPICS = ("work", "stop", "timer", "deliveries", "callers", "settings", "nodes", "events")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """How often a lease is renewed, when a node that could not ends its own work, and when others take it for lost;
    and for how long a node is kept alive whose event loop does not answer."""

    renew_seconds: float = 5.0
    work_seconds: float = 20.0
    lease_seconds: float = 30.0
    unresponsive_seconds: float = 300.0


class Member(Protocol):
    """Who holds a lease. All but `renewed` is called on the event loop of the scheduler."""

    def renewed(self, until: float) -> None:
        """Work may go on until this instant of CLOCK_BOOTTIME. Called on the lease's own thread."""

    def heard(self, topics: frozenset[str]) -> None:
        """Another node has changed something, or it is time to look whether one has."""

    def leads(self, is_leader: bool) -> None:
        """It is this node now, or no longer, that does for all what one must do."""

    def lapsed(self) -> None:
        """The lease could not be renewed: what runs must end before others believe that it has."""

    def fenced(self) -> None:
        """This node was taken for lost: what it ran is lost, and it has to join anew."""


@dataclass(frozen=True, slots=True)
class Membership:
    """A node's place: who it is, in which life, and who hears of it."""

    node_id: str
    life: int
    member: Member
    times: LeaseTimes
    # Hears the time of the database's clock, in microseconds, and between which monotonic times it was read.
    adjust: Callable[[int, float, float], None]
