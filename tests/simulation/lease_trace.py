"""Follows the steps that simulated nodes have taken through the model of leases: each must be a step of the model.

Time is counted in microseconds here. The model has one job; so each chain is followed separately, with the steps of all
nodes. A chain may end several times by its retries: then its end is forgotten, and the model continues.
"""

from collections.abc import Iterator, Sequence

from nextslot.domain.lease_times import LeaseTimes
from nextslot.testing.simulation.shared_database import Observed
from tests.simulation import lease_model
from tests.simulation.lease_model import LOST, NodeState, State, Times

_CODE = LeaseTimes()
TIMES = Times(work=round(_CODE.work_seconds * 1_000_000), lease=round(_CODE.lease_seconds * 1_000_000))
OF_RUNS = ("claim", "finish", "recover")


def problems(observed: Sequence[Observed], names: Sequence[str]) -> Iterator[str]:
    chains = dict.fromkeys(one.what for one in observed if one.name in OF_RUNS)
    for chain in chains or {"": None}:
        problem = _followed([one for one in observed if one.name not in OF_RUNS or one.what == chain], names)
        if problem is not None:
            yield f"{chain}: {problem}"


def _followed(observed: Sequence[Observed], names: Sequence[str]) -> str | None:
    state, at = State(tuple(NodeState() for _ in names)), observed[0].at
    for one in observed:
        state, at = lease_model.later(state, TIMES, one.at - at), one.at
        found = _after(state, one, names.index(one.node))
        if found is None:
            return f"{one} is no step from {state}"
        state = found
        if (problem := lease_model.problem(state)) is not None:
            return f"{problem} after {one}"
    return None


def _after(state: State, step: Observed, number: int) -> State | None:
    node = state.nodes[number]
    if step.name in ("crash", "quit"):
        # A node that is fenced by a transaction, or that stops, gives up its lease by itself.
        alive = node._replace(registered=None, requested=None, answer=None)
        return _with(state, number, alive) if not node.is_member else _taken(state, "crash", number)
    if step.name == "leave" and not node.is_member:
        return _with(state, number, node._replace(status=LOST))
    if step.name == "recover":
        # The event names the node that has recovered; the chain's owner is the one that was lost, or that node itself.
        if state.owner is None:
            return None
        owner = state.nodes[state.owner]
        if state.owner == number and not owner.is_member:
            return _with(state, number, owner._replace(runs=lease_model.NOTHING))._replace(owner=None)
        number = state.owner
    if step.name == "lose" and node.status == LOST:
        return state  # One step of the model loses all of them.
    if step.name == "request" and node.requested is not None:
        state = _taken(state, "give up", number) or state
    if step.name in ("request", "renew", "renewed", "fenced") and not state.nodes[number].is_member:
        return state  # An answer that comes after the node has left.
    if step.name == "renewed" and state.nodes[number].answer is None:
        return state  # It was given up, and answers nobody.
    if step.name == "finish" and state.owner == number and node.runs == lease_model.NOTHING:
        # Its time was up by the model; the code stores how it stopped.
        return state._replace(owner=None)
    found = _taken(state, step.name, number)
    return None if found is None else found._replace(is_done=False)


def _taken(state: State, name: str, number: int) -> State | None:
    for step in lease_model.steps(state, TIMES):
        if step.name == name and step.node in (None, number):
            return step.state
    return None


def _with(state: State, number: int, node: NodeState) -> State:
    return state._replace(nodes=(*state.nodes[:number], node, *state.nodes[number + 1 :]))
