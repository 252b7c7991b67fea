"""Nodes: the machines that share the database."""

from collections.abc import Mapping
from typing import Annotated, Generic, Literal

from .declared_values import At, Says, Value


class Node(Value, Generic[At]):
    """A machine that shares the database: `live`, `draining`, `left` in good order, or `lost`."""

    node_id: str
    status: Literal["live", "draining", "left", "lost"]
    is_leader: Annotated[bool, Says("Whether the node does the work for all nodes: cron, timers, webhooks, retention")]
    running: Annotated[int, Says("How many jobs and direct executions run")]
    max_running: Annotated[int, Says("The most that may run on the node; 0: no limit")]
    resources: Annotated[Mapping[str, int], Says("Units that this machine has")]
    job_types: Annotated[tuple[str, ...], Says("The job types that the node can run")]
    host: str
    pid: int
    version: str
    life: Annotated[int, Says("How often the node has joined")]
    joined_at: At
    last_seen_at: Annotated[At, Says("When the node last renewed its lease")]
    lease_until: Annotated[At | None, Says("When the others treat the node as lost; null without leases")]
    ended_at: Annotated[At | None, Says("When the node left or was lost")]

    @property
    def is_live(self) -> bool:
        return self.ended_at is None
