"""The configuration of a server: `settings` declares it, `loading` reads it, and `scheduler_from_config` creates a
scheduler from it."""

from .loading import Configuration, Effective, load
from .settings import Settings

__all__ = ["Configuration", "Effective", "Settings", "load"]
