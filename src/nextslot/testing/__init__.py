"""Helpers for tests of programs that use nextslot: virtual time, seeded ids, a mailbox for webhooks."""

from .driver import VirtualTime
from .virtual_time import (
    BEGINNING,
    Mailbox,
    Message,
    NothingLeftToWaitFor,
    SeededChance,
    VirtualClock,
    VirtualLoop,
    crash,
    run,
    scheduler,
    settled,
)

__all__ = [
    "BEGINNING", "Mailbox", "Message", "NothingLeftToWaitFor", "SeededChance", "VirtualClock", "VirtualLoop",
    "VirtualTime", "crash", "run", "scheduler", "settled",
]  # fmt: skip
