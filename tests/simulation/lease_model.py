"""Leases and fencing as a small model, whose states are searched one and all.

Two nodes, one job; `lease_trace` follows the steps of three simulated nodes through it. Times are counted in ticks and
relative to now, so there are finitely many states. Between any two steps of a node, any number of ticks and steps of
the other node may pass: a node can be stopped anywhere.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

LIVE, LOST = "live", "lost"
# What a node executes: nothing, the run that is stored as running, or one that was taken away from it.
NOTHING, CURRENT, STALE = "nothing", "current", "stale"


class Times(NamedTuple):
    """In ticks of ten seconds, by default: how long a renewal allows work, and when others take the node for lost."""

    work: int = 2
    lease: int = 3
    # Whether the time of work counts from before the request, and from before the registration.
    counts_from_request: bool = True
    counts_from_registration: bool = True
    # Whether an outcome is stored only while its node is a member and the run is its own.
    is_fenced: bool = True


class NodeState(NamedTuple):
    # The row in the database: its status, and the ticks until its lease has ended (below zero: it has).
    status: str = LOST
    lease_left: int = -1
    # The node itself: whether it is a member, the ticks until its work must have ended, and what it executes.
    is_member: bool = False
    work_left: int = 0
    runs: str = NOTHING
    # Ticks since the node has registered, without having begun its lease; None if it does not register now.
    registered: int | None = None
    # Ticks since a renewal was requested, whether the database has answered, and what.
    requested: int | None = None
    answer: bool | None = None


class State(NamedTuple):
    nodes: tuple[NodeState, ...] = (NodeState(), NodeState())
    # The node that is stored as running the job.
    owner: int | None = None
    is_done: bool = False
    is_stored_twice: bool = False


class Step(NamedTuple):
    name: str
    node: int | None
    state: State


def steps(state: State, times: Times) -> Iterator[Step]:
    """Yields everything that can happen next."""
    yield Step("tick", None, _tick(state, times))
    if any(_is_over(node) for node in state.nodes):
        lost = tuple(node._replace(status=LOST) if _is_over(node) else node for node in state.nodes)
        yield Step("lose", None, state._replace(nodes=lost))
    for one, node in enumerate(state.nodes):
        if not node.is_member and node.registered is None and node.runs == NOTHING:
            # A node first recovers what its last life has left.
            owner = None if state.owner == one else state.owner
            changed = node._replace(status=LIVE, lease_left=times.lease, registered=0, requested=None, answer=None)
            yield Step("register", one, _with(state, one, changed)._replace(owner=owner))
        if node.registered is not None:
            work = max(times.work - (node.registered if times.counts_from_registration else 0), 0)
            yield Step("join", one, _with(state, one, node._replace(is_member=True, work_left=work, registered=None)))
        if node.is_member:
            yield from _steps_of_member(state, one, node, times)
        if node.status == LOST and state.owner == one:
            runs = STALE if node.runs == CURRENT else node.runs
            yield Step("recover", one, _with(state, one, node._replace(runs=runs))._replace(owner=None))


def _steps_of_member(state: State, one: int, node: NodeState, times: Times) -> Iterator[Step]:
    if node.requested is not None:
        # The answer does not come in time: the node asks again. What it asked for may have happened.
        yield Step("give up", one, _with(state, one, node._replace(requested=None, answer=None)))
    if node.runs == NOTHING and state.owner != one:
        left = node._replace(status=LOST, is_member=False, work_left=0, requested=None, answer=None)
        yield Step("leave", one, _with(state, one, left))
    if node.requested is None:
        yield Step("request", one, _with(state, one, node._replace(requested=0)))
    elif node.answer is None:
        is_renewed = node.status == LIVE
        changed = node._replace(answer=is_renewed, lease_left=times.lease if is_renewed else node.lease_left)
        yield Step("renew", one, _with(state, one, changed))
    else:
        since = node.requested if times.counts_from_request else 0
        until = max(node.work_left, times.work - since, 0)
        changed = node._replace(requested=None, answer=None)
        if node.answer:
            yield Step("renewed", one, _with(state, one, changed._replace(work_left=until)))
        else:
            yield Step("fenced", one, _with(state, one, changed._replace(is_member=False, work_left=0, runs=NOTHING)))
    is_admitted = node.status == LIVE or not times.is_fenced
    if state.owner is None and not state.is_done and is_admitted and node.runs == NOTHING:
        runs = CURRENT if node.work_left > 0 else NOTHING  # The guardian ends work without time at once.
        yield Step("claim", one, _with(state, one, node._replace(runs=runs))._replace(owner=one))
    if node.runs != NOTHING:
        is_stored = is_admitted and (node.runs == CURRENT or not times.is_fenced)
        after = _with(state, one, node._replace(runs=NOTHING))
        if is_stored:
            after = after._replace(owner=None, is_done=True, is_stored_twice=state.is_done)
        yield Step("finish", one, after)
    yield Step("crash", one, _with(state, one, node._replace(is_member=False, work_left=0, runs=NOTHING)))


def _is_over(node: NodeState) -> bool:
    return node.status == LIVE and node.lease_left < 0


def _tick(state: State, times: Times) -> State:
    return later(state, times, 1)


def later(state: State, times: Times, ticks: int) -> State:
    return state._replace(nodes=tuple(_older(node, times, ticks) for node in state.nodes))


def _older(node: NodeState, times: Times, ticks: int) -> NodeState:
    left = max(node.work_left - ticks, 0)
    longest = times.work  # More makes no difference: no time for work is left then.
    return node._replace(
        lease_left=max(node.lease_left - ticks, -1),
        work_left=left,
        runs=node.runs if left > 0 else NOTHING,
        registered=None if node.registered is None else min(node.registered + ticks, longest),
        requested=None if node.requested is None else min(node.requested + ticks, longest),
    )


def _with(state: State, one: int, node: NodeState) -> State:
    return state._replace(nodes=(*state.nodes[:one], node, *state.nodes[one + 1 :]))


def problem(state: State) -> str | None:
    """Says which promise a state breaks."""
    if sum(node.runs != NOTHING for node in state.nodes) > 1:
        return "the job runs on two nodes at once"
    return stored_twice(state)


def stored_twice(state: State) -> str | None:
    return "two outcomes are stored" if state.is_stored_twice else None


class Search(NamedTuple):
    states: int
    names: frozenset[str]
    # The steps to the first state that breaks a promise, with what it breaks; None if there is none.
    path: list[str] | None


def search(times: Times, problem: Callable[[State], str | None] = problem) -> Search:
    """Visits every reachable state, the nearest first."""
    first = State()
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    waiting, names = deque([first]), set()
    while waiting:
        state = waiting.popleft()
        for step in steps(state, times):
            names.add(step.name)
            if step.state not in came_from:
                came_from[step.state] = (state, step.name if step.node is None else f"{step.name} {step.node}")
                if (broken := problem(step.state)) is not None:
                    return Search(len(came_from), frozenset(names), [*_path(came_from, step.state), broken])
                waiting.append(step.state)
    return Search(len(came_from), frozenset(names), None)


def _path(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    path: list[str] = []
    while (before := came_from[state]) is not None:
        state = before[0]
        path.append(before[1])
    return path[::-1]
