"""Randomness and ids as a service: production draws them, simulation repeats them from a seed."""

import random
import secrets
from typing import Protocol

import uuid_utils


class Chance(Protocol):
    def new_id(self) -> str:
        """Returns a UUIDv7, which is ordered by time."""

    def fraction(self) -> float:
        """Returns a number from 0 up to, but not including, 1."""

    def secret(self) -> str:
        """Returns 256 random bits in letters, digits, `-` and `_`."""


class SystemChance:
    def new_id(self) -> str:
        return str(uuid_utils.uuid7())

    def fraction(self) -> float:
        return random.random()

    def secret(self) -> str:
        return secrets.token_urlsafe(32)
