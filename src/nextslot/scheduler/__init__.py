"""A scheduler in this process: `machinery` wires it, `life` starts and stops it, `scheduler` is its Python API."""

from .runtime import default_node
from .scheduler import Scheduler
from .waiters import Ended

__all__ = ["Ended", "Scheduler", "default_node"]
