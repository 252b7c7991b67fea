"""Loads handlers by name (`module:function`), and finds the handlers that installed packages offer as entry points."""

import importlib
from collections.abc import Iterator
from importlib.metadata import entry_points

from nextslot.errors import Invalid

from .job_types import Handler

# A package declares them in its pyproject.toml: [project.entry-points."nextslot.job_types"] with lines `NAME =
# "module:function"`.
ENTRY_POINTS = "nextslot.job_types"


def load_handler(name: str) -> Handler:
    """Imports and returns the function that `module:function` names."""
    module_name, colon, function = name.partition(":")
    if not colon or not module_name or not function:
        raise Invalid(f"{name!r} names no function; write module:function", field="handler")
    try:
        found = importlib.import_module(module_name)
    except ImportError as error:
        raise Invalid(
            f"{module_name!r} cannot be imported: {error}; install it or correct the name", field="handler"
        ) from error
    for part in function.split("."):
        if not hasattr(found, part):
            raise Invalid(f"{module_name!r} has no function {function!r}; correct the name", field="handler")
        found = getattr(found, part)
    if not callable(found):
        raise Invalid(f"{name!r} is not callable; name a function", field="handler")
    return found


def offered_handlers() -> Iterator[tuple[str, Handler]]:
    """Yields the name and the handler of every job type that installed packages offer."""
    for offer in entry_points(group=ENTRY_POINTS):
        yield offer.name, load_handler(offer.value)
