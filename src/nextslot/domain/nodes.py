"""Nodes: the machines that share the database."""

from collections.abc import Mapping
from typing import Annotated, Generic, Literal

from .declared_values import At, Says, Value


class Node(Value, Generic[At]):
    """A machine that shares the database: `live`, `draining`, `left` in good order, or `lost`."""

    node_id: str
    status: Literal["live", "draining", "left", "lost"]
    is_leader: Annotated[bool, Says("It does for all what one must do: cron, timers, webhooks, retention")]
    running: Annotated[int, Says("Jobs and direct executions")]
    max_running: Annotated[int, Says("0: no limit of its own")]
    resources: Annotated[Mapping[str, int], Says("Units that this machine has")]
    job_types: Annotated[tuple[str, ...], Says("What it can run")]
    host: str
    pid: int
    version: str
    life: Annotated[int, Says("How often it has joined")]
    joined_at: At
    last_seen_at: Annotated[At, Says("When it last renewed its lease")]
    lease_until: Annotated[At | None, Says("When it is taken for lost; null where it cannot be")]
    ended_at: Annotated[At | None, Says("When it left, or was lost")]

    @property
    def is_live(self) -> bool:
        return self.ended_at is None
