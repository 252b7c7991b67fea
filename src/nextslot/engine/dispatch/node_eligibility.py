"""Node eligibility: says why no live node can run a job. `forecast/why.py` adds this to its answer."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nextslot.domain import (
    Json,
    Lane,
    Node,
    Reason,
)

# The largest number of nodes that the sentence names, and that the data contains.
MOST_SAID = 5
MOST_NAMED = 20
# Problems that end without an operator, when running work ends.
PASSING = {"full", "units_in_use"}


@dataclass(frozen=True, slots=True)
class Obstacle:
    """The reason why one node cannot run a job: a word, the rest of a sentence, and numbers."""

    node_id: str
    word: str
    text: str
    numbers: Mapping[str, Json]

    def data(self) -> dict[str, Json]:
        return {"node_id": self.node_id, "problem": self.word, **self.numbers}


class Usage:
    """The units of each resource that are in use on each node."""

    def __init__(self, running: Iterable[tuple[str, Mapping[str, int]]]) -> None:
        self._units: dict[str, Counter[str]] = {}
        for node_id, resources in running:
            self._units.setdefault(node_id, Counter()).update(resources)

    def of(self, node_id: str, resource: str) -> int:
        return self._units.get(node_id, Counter())[resource]


def has_handler(nodes: Sequence[Node], job_type: str) -> bool:
    return any(node.is_live and job_type in node.job_types for node in nodes)


def no_node(nodes: Sequence[Node], lane: Lane, usage: Usage, is_placed: bool = False) -> Reason | None:
    """Returns why no live node can run a job of the lane now; None if a node can, or if none has a handler."""
    live = [node for node in nodes if node.is_live]
    if not has_handler(live, lane.job_type):
        return None
    # If any node, even one that is away, lists a resource, then nodes that do not list it have no units of it.
    counted = {resource for node in nodes for resource in node.resources}
    found = [_obstacle(node, lane, counted, usage, is_placed) for node in live]
    obstacles = [one for one in found if one is not None]
    if len(obstacles) < len(found):
        return None
    named = "; ".join(f"node {one.node_id!r} {one.text}" for one in obstacles[:MOST_SAID])
    more = f"; and {len(obstacles) - MOST_SAID:,} more" if len(obstacles) > MOST_SAID else ""
    is_possible = any(one.word in PASSING for one in obstacles)
    return Reason(
        code="no_node",
        text=f"{'No live node can take it now' if is_possible else 'No live node can take it'}: {named}{more}.",
        data={"nodes": [one.data() for one in obstacles[:MOST_NAMED]], "is_possible": is_possible},
    )


def _obstacle(node: Node, lane: Lane, counted: set[str], usage: Usage, is_placed: bool) -> Obstacle | None:
    """Returns a lasting problem before a passing one, because a node with both cannot run the job later either. A run
    that goes to an engine needs no slot of a node."""
    if lane.job_type not in node.job_types:
        return Obstacle(node.node_id, "no_handler", f"has no handler for the job type {lane.job_type!r}", {})
    if node.status == "draining":
        return Obstacle(node.node_id, "draining", "is being drained", {})
    needs = {resource: units for resource, units in lane.resources.items() if resource in counted}
    for resource, units in needs.items():
        if node.resources.get(resource, 0) < units:
            return _too_few(node, resource, units)
    if node.max_running and node.running >= node.max_running and not is_placed:
        numbers: dict[str, Json] = {"running": node.running, "max_running": node.max_running}
        return Obstacle(node.node_id, "full", f"runs {node.running} of {node.max_running} at once", numbers)
    for resource, units in needs.items():
        free = node.resources[resource] - usage.of(node.node_id, resource)
        if free < units:
            return _in_use(node, resource, units, max(free, 0))
    return None


def _too_few(node: Node, resource: str, units: int) -> Obstacle:
    has = node.resources.get(resource, 0)
    text = f"has {has} of the resource {resource!r}, and it needs {units}" if has else f"has no resource {resource!r}"
    return Obstacle(node.node_id, "too_few_units", text, {"resource": resource, "has": has, "needs": units})


def _in_use(node: Node, resource: str, units: int, free: int) -> Obstacle:
    has = node.resources[resource]
    wants = f", and it needs {units}" if units > 1 else ""
    text = f"has {free} of {has} units of the resource {resource!r} free{wants}"
    numbers: dict[str, Json] = {"resource": resource, "has": has, "free": free, "needs": units}
    return Obstacle(node.node_id, "units_in_use", text, numbers)
