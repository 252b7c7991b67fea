"""A broken law with an explanation, which every checker of the simulation returns."""

from typing import NamedTuple


class Broken(NamedTuple):
    law: str
    how: str

    def __str__(self) -> str:
        return f"{self.law}: {self.how}"
