"""Commands about nodes, the machines that share a database: list, drain, remove."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nextslot.cli import output
from nextslot.cli.session import Session, add_group

if TYPE_CHECKING:
    from nextslot.client import Node

HEADINGS = ("NODE", "STATUS", "LEADER", "RUNNING", "RESOURCES", "SEEN", "HOST")


def register(app: typer.Typer) -> None:
    add_group(app, "node", "Nodes, the machines that share the database.", ls, drain, rm)


def ls(session: Session) -> None:
    """List the nodes by name."""
    found = session.client.nodes.list()
    everything = {"items": [one.json for one in found]}
    session.list(everything, HEADINGS, [_row(one) for one in found], "no nodes yet")


Name = Annotated[str, typer.Argument(metavar="NODE", help="The node's name.", show_default=False)]


def drain(
    session: Session,
    node: Name,
    undo: Annotated[bool, typer.Option("--undo", help="Let the node start jobs again.")] = False,
) -> None:
    """Let a node start no more jobs and finish what it runs.

    This lasts until --undo, or until the node is started again.
    """
    done = session.client.nodes.drain(node, undo)
    left = "nothing runs there" if done.running == 0 else f"{done.running} still running there"
    session.show(
        done.json, lambda: output.say(f"{done.node_id} starts jobs again" if undo else f"{done.node_id}: {left}")
    )


def rm(session: Session, node: Name) -> None:
    """Remove a node that will not come back, with its resources."""
    session.client.nodes.forget(node)
    session.say({"node_id": node}, f"{node} removed")


def _row(node: "Node") -> list[Any]:
    has = " ".join(f"{name}={units}" for name, units in node.resources.items()) or "-"
    running = f"{node.running} of {node.max_running}" if node.max_running else f"{node.running}"
    return [
        node.node_id,
        output.coloured(node.status),
        "yes" if node.is_leader else "",
        running,
        has,
        node.ended_at or node.last_seen_at,
        node.host,
    ]
