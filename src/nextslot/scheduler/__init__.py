"""A scheduler in this process: `machinery` wires it, `life` starts and stops it, `services` has its verbs for each
caller, `scheduler` is its Python API."""

from .runtime import default_node
from .scheduler import Scheduler
from .services import Services
from .waiters import Ended

__all__ = ["Ended", "Scheduler", "Services", "default_node"]
