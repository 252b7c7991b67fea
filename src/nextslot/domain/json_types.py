"""Json: what a column of JSON holds, whatever row it is in."""

from typing import Any

# What JSON text becomes: nothing more can be said of a user's parameters and results.
Json = Any
