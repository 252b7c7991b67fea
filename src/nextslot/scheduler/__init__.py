"""A scheduler in this process: `runtime` connects the parts of the engine, `services` has the methods for each caller,
`startup_and_shutdown` starts and stops the scheduler, and `scheduler` is the Python API."""

from .runtime import default_node
from .scheduler import Scheduler
from .services import Services
from .waiters import Ended

__all__ = ["Ended", "Scheduler", "Services", "default_node"]
