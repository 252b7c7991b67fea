"""The command line as a person or a script meets it: words in; out, error and exit code back."""

import contextlib
import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from nextslot.cli.main import main
from tests import databases


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def word(self) -> str:
        """Returns the single word that a command printed, as a script would use it."""
        assert self.code == 0, self.err
        return self.out.strip()

    @property
    def rows(self) -> list[list[str]]:
        """Returns the cells of a table, without its head."""
        assert self.code == 0, self.err
        return [line.split() for line in self.out.splitlines()[1:]]


class Terminal:
    """Runs the real entry in this process: a process of its own for each would take most of the tests' time."""

    def __call__(self, *words: str, typed: str = "") -> Said:
        out, err = io.StringIO(), io.StringIO()
        code: Any = 0
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.object(sys, "stdin", io.StringIO(typed)),
            mock.patch.dict(os.environ, database_of(words)),
        ):
            try:
                main(words)
            except SystemExit as left:
                code = left.code
        return Said(code or 0, out.getvalue(), err.getvalue())


def database_of(words: Sequence[str]) -> dict[str, str]:
    """Chooses the database of a command: the test's own for a data directory, unless the command names another."""
    if "--data" not in words or "--database" in words:
        return {}
    return databases.variables(Path(words[words.index("--data") + 1]))
