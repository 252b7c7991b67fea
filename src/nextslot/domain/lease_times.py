"""How often a node renews its lease, and when the others treat it as lost."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """The times of a lease: how often a node renews it, when a node that could not renew it stops its own work, when
    other nodes treat it as lost, and how long the sidecar keeps a node alive whose event loop does not answer."""

    renew_seconds: float = 5.0
    work_seconds: float = 20.0
    lease_seconds: float = 30.0
    unresponsive_seconds: float = 300.0
