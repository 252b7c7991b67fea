"""Devices: units of a node's resource that have names, such as the GPUs of a machine.

A run that takes units of such a resource gets particular ones. `Workers` assigns them in the transaction that starts
the run; the executor hands their names to the work.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Units = int | Sequence[str]
# By resource, the names of the devices that a run holds.
Devices = Mapping[str, tuple[str, ...]]

NO_DEVICES: Devices = {}
NO_VARIABLES: Mapping[str, str] = {}
# The variable by which the programs of a resource learn the names of their devices.
VARIABLES: Mapping[str, str] = {"gpu": "CUDA_VISIBLE_DEVICES"}
# All devices of a run as JSON, whatever the resource.
ALL = "NEXTSLOT_DEVICES"

_CUDA = "CUDA_VISIBLE_DEVICES"
# Without this variable CUDA numbers the fastest card first, unlike `nvidia-smi`.
_CUDA_ORDER = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,99}")


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """The named devices of a node, in the order in which they are assigned, and the variables of their resources."""

    names: Devices = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=lambda: VARIABLES)

    def environment(self, devices: Devices) -> dict[str, str]:
        """Returns what the environment of a run says about its devices."""
        if not devices:
            return {}
        found = {ALL: json.dumps({resource: list(names) for resource, names in devices.items()})}
        for resource, names in devices.items():
            if (variable := self.variables.get(resource)) is not None:
                found[variable] = ",".join(names)
        if _CUDA in found:
            found.setdefault(*_CUDA_ORDER)
        return found


def counted(resources: Mapping[str, Units]) -> dict[str, int]:
    """Returns how many units of each resource there are."""
    return {name: units if isinstance(units, int) else len(units) for name, units in resources.items()}


def named(resources: Mapping[str, Units]) -> dict[str, tuple[str, ...]]:
    """Returns the resources whose units have names."""
    return {name: tuple(units) for name, units in resources.items() if not isinstance(units, int)}


def names_problem(names: Iterable[object]) -> str | None:
    """Returns what is wrong with the names of the devices of one resource."""
    found = list(names)
    if not found:
        return "is an empty list; name at least one device, or write a number of units"
    for name in found:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            return (
                f"has the name {name!r}; a device is named by a text of 1 to 100 letters, digits and '_.:/-', "
                'such as "0"'
            )
    twice = next((name for name in found if found.count(name) > 1), None)
    return None if twice is None else f"names the device {twice!r} twice; name each device once"
