"""A scheduler in this process: `runtime` wires the engine, `services` has the methods for each caller,
`startup_and_shutdown` starts and stops it, `scheduler` is the Python API."""

from .runtime import default_node
from .scheduler import Scheduler
from .services import Services
from .waiters import Ended

__all__ = ["Ended", "Scheduler", "Services", "default_node"]
