"""The configuration of a server: declared in `settings`, read by `loading`; `composition` makes a scheduler of it."""

from .loading import Configuration, Effective, load
from .settings import Settings

__all__ = ["Configuration", "Effective", "Settings", "load"]
