"""Nodes: the machines that share a database, one function per statement."""

from typing import NamedTuple

from nextslot.domain import Node
from nextslot.store.contract import Row, Tx
from nextslot.system.instant import Instant

from . import column_codec


class NodeInfo(NamedTuple):
    """What a node publishes about itself when it joins."""

    node_id: str
    host: str
    pid: int
    version: str
    max_running: int
    resources: dict[str, int]
    job_types: list[str]
    # Where other nodes reach its HTTP server; None: nowhere.
    address: str | None = None


def register(tx: Tx, card: NodeInfo, lease_seconds: float | None, now: Instant) -> int:
    """Stores a new incarnation of a node. Returns its number (`life`)."""
    row = tx.row(
        "nodes.register",
        node_id=card.node_id,
        host=card.host,
        pid=card.pid,
        version=card.version,
        max_running=card.max_running,
        resources=column_codec.canonical(card.resources),
        job_types=column_codec.dumps(card.job_types),
        address=card.address,
        lease_us=None if lease_seconds is None else round(lease_seconds * 1_000_000),
        now=now,
    )
    assert row is not None
    life: int = row[0]
    return life


def replace(tx: Tx, node_id: str, now: Instant) -> None:
    """Marks all other nodes as gone, with their resources, where there can be only one node."""
    tx.execute("nodes.replace", node_id=node_id, nothing=column_codec.canonical({}), now=now)


def leave(tx: Tx, node_id: str, life: int, now: Instant) -> bool:
    return tx.execute("nodes.leave", node_id=node_id, life=life, now=now) == 1


def lose(tx: Tx, now: Instant) -> list[str]:
    """Marks the nodes as lost whose lease has ended by the database's clock."""
    return [node_id for (node_id,) in tx.rows("nodes.lose", now=now)]


def lapsed(tx: Tx) -> bool:
    """Returns whether any node's lease has ended. A database without a clock of its own has no leases."""
    return tx.row("nodes.lapsed", now=0) is not None


def time(tx: Tx, now: Instant) -> Instant:
    """Returns the time of the clock that leases use: the server's, or the given time if there is no server."""
    row = tx.row("nodes.time", now=now)
    assert row is not None
    return Instant(row[0])


def time_until_lost(tx: Tx, node_id: str, now: Instant) -> tuple[str, float] | None:
    """Returns the machine on which the last incarnation of a node may still work, and for how many seconds at most."""
    row = tx.row("nodes.patience", node_id=node_id, now=now)
    return None if row is None else (row[0], (row[1] or 0) / 1_000_000)


def address_of(tx: Tx, node_id: str) -> tuple[str | None, str] | None:
    """Returns where a live node answers, and its machine; None if it is not alive."""
    row = tx.row("nodes.address", node_id=node_id)
    return None if row is None else (row[0], row[1])


def share_secret(tx: Tx, secret: str) -> None:
    """Stores the secret of all nodes, unless there is one."""
    tx.execute("nodes.share_secret", secret=secret)


def files_secret(tx: Tx) -> str | None:
    row = tx.row("nodes.files_secret")
    return None if row is None else row[0]


def forget(tx: Tx, node_id: str) -> None:
    """Marks a node that is gone as forgotten, without resources."""
    tx.execute("nodes.forget", node_id=node_id, nothing=column_codec.canonical({}))


def all_of_them(tx: Tx) -> list[Node]:
    return [_of_row(row) for row in tx.rows("nodes.all")]


def get(tx: Tx, node_id: str) -> Node | None:
    row = tx.row("nodes.get", node_id=node_id)
    return None if row is None else _of_row(row)


def drain(tx: Tx, node_id: str, is_draining: bool) -> bool:
    """Sets whether a node is draining. Returns whether that changed anything."""
    return tx.execute("nodes.drain", node_id=node_id, is_draining=int(is_draining)) == 1


def offer(tx: Tx, node_id: str, life: int, job_types: list[str]) -> bool:
    """Stores the job types that a node can run now. Returns whether they changed."""
    return tx.execute("nodes.job_types", node_id=node_id, life=life, job_types=column_codec.dumps(job_types)) == 1


def touch(tx: Tx, node_id: str, now: Instant) -> None:
    """Stores that a node was seen. `/ready` writes this row to find out whether the database stores anything."""
    tx.execute("nodes.touch", node_id=node_id, now=now)


def lead(tx: Tx, node_id: str) -> None:
    tx.execute("nodes.lead", node_id=node_id)


def settings_changed(tx: Tx) -> None:
    """Makes every node read again what it keeps in memory of the settings."""
    tx.execute("nodes.settings_changed")
    tx.announce("settings")


def without_office(tx: Tx) -> list[str]:
    """Returns nodes that are gone and whose jobs or callers have not ended yet."""
    return [node_id for (node_id,) in tx.rows("nodes.homeless")]


def to_stop(tx: Tx, node_id: str) -> list[str]:
    """Returns the runs of a node that must stop because somebody cancelled them."""
    return [run_id for (run_id,) in tx.rows("nodes.to_stop", node_id=node_id)]


def _of_row(row: Row) -> Node:
    (node_id, life, status, is_draining, host, pid, version, max_running, resources, job_types, joined_at, renewed_at,
     lease_until, ended_at, running, leads) = row  # fmt: skip
    return Node(
        node_id=node_id,
        life=life,
        status="draining" if status == "live" and is_draining else status,
        is_leader=bool(leads) and status == "live",
        running=running,
        host=host,
        pid=pid,
        version=version,
        max_running=max_running,
        resources=column_codec.loads(resources),
        job_types=tuple(column_codec.loads(job_types)),
        joined_at=Instant(joined_at),
        last_seen_at=Instant(renewed_at),
        lease_until=column_codec.instant(lease_until),
        ended_at=column_codec.instant(ended_at),
    )
