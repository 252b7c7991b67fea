"""A scheduler in this process: `machinery` wires it, `life` starts and stops it, `scheduler` is its Python API."""

from .machinery import default_node
from .scheduler import Scheduler
from .waiting import Ended

__all__ = ["Ended", "Scheduler", "default_node"]
