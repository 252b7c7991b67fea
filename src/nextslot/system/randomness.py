"""Chance and identity as a service: production draws them, simulation replays them from a seed."""

import random
import secrets
from typing import Protocol

import uuid_utils


class Chance(Protocol):
    def new_id(self) -> str:
        """A UUIDv7: ordered by time."""

    def fraction(self) -> float:
        """At least 0, less than 1."""

    def secret(self) -> str:
        """256 bits that nobody can guess, in letters, digits, `-` and `_`."""


class SystemChance:
    def new_id(self) -> str:
        return str(uuid_utils.uuid7())

    def fraction(self) -> float:
        return random.random()

    def secret(self) -> str:
        return secrets.token_urlsafe(32)
