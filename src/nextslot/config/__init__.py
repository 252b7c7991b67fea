"""The configuration of a server: `settings` declares it, `loading` reads it, `scheduler_from_config` makes a scheduler
of it.
"""

from .loading import Configuration, Effective, load
from .settings import Settings

__all__ = ["Configuration", "Effective", "Settings", "load"]
