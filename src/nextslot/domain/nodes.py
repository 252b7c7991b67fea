"""Nodes: the machines that share the database."""

from collections.abc import Mapping
from dataclasses import dataclass

from nextslot.system.instant import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine that shares the database: `live`, `draining`, `left` in good order, or `lost`."""

    node_id: str
    life: int
    status: str
    is_leader: bool
    running: int
    host: str
    pid: int
    version: str
    # How many it runs at once; 0: no limit of its own.
    max_running: int
    resources: Mapping[str, int]
    job_types: tuple[str, ...]
    joined_at: Instant
    renewed_at: Instant
    lease_until: Instant | None
    ended_at: Instant | None

    @property
    def is_live(self) -> bool:
        return self.ended_at is None
