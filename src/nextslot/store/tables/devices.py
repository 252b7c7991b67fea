"""The devices that running work holds, one function per statement."""

from nextslot.domain.devices import Devices
from nextslot.store.contract import Tx


def held(tx: Tx, node_id: str) -> dict[tuple[str, str], str]:
    """Returns the worker that holds each device in use on a node, by resource and device."""
    rows = tx.rows("devices.held", node_id=node_id)
    return {(resource, device): worker_id for resource, device, worker_id in rows}


def hold(tx: Tx, node_id: str, worker_id: str, devices: Devices) -> None:
    rows = [(node_id, resource, device, worker_id) for resource, names in devices.items() for device in names]
    tx.execute_batch("devices.hold", ("node_id", "resource", "device", "worker_id"), rows)


def release(tx: Tx, worker_id: str) -> None:
    tx.execute("devices.release", worker_id=worker_id)


def release_left(tx: Tx) -> None:
    """Releases the devices of workers that run nothing."""
    tx.execute("devices.release_left")
