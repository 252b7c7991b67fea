"""Runs a command of `nextslot adopt` and kills its own process with SIGKILL: at the n-th old id that it stores, before
the commit, or after the n-th commit."""

import os
import signal
import sys
from typing import Any

from nextslot.cli.main import main
from nextslot.extensions.adopt.adopt_service import AdoptService

where, number, *arguments = sys.argv[1:]
left = int(number)


def count() -> None:
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)


store_alias, stored = AdoptService._alias, AdoptService._stored


def inside(self: AdoptService, *given: Any) -> None:
    store_alias(self, *given)
    count()


async def after(self: AdoptService, *given: Any) -> bool:
    is_new = await stored(self, *given)
    count()
    return is_new


if where == "inside":
    AdoptService._alias = inside  # type: ignore[method-assign,assignment]  # It has any arguments.
else:
    AdoptService._stored = after  # type: ignore[method-assign,assignment]  # As above.
main(arguments)
