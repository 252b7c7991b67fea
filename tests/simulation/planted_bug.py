"""A bug to be planted into the text of the package: `planted_source` and the modules `planted_*` list them."""

from typing import NamedTuple

SIMULATION = "simulation"
NODES = "nodes"
HTTP = "http"


class Bug(NamedTuple):
    """Text of a file of the package, what replaces it, and what finds that: the simulation, or a test."""

    name: str
    file: str
    old: str
    new: str
    found_by: str = SIMULATION
