"""Catalog: the job types of a scheduler, and every way to add one: a function, or a command."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nextslot.errors import Invalid, Problem
from nextslot.system.clock import Clock, SystemClock

from .command import register_command
from .command_config import command_type, function_options
from .handler_loading import load_handler, offered_handlers
from .isolated import IsolatedHandler
from .job_types import (
    Handler,
    JobType,
    JobTypes,
    signature_schema,
)
from .process import Guardians


class Catalog(JobTypes):
    """Owns the guardians that the commands of handlers run under."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.guardians = Guardians()
        # The names that came with a configuration: when it is read again, others may take their place.
        self._configured: frozenset[str] = frozenset()

    def add(self, name: str, handler: Handler | str, *, isolate: bool = False, **options: Any) -> JobType:
        """A function, or `module:function`; with `isolate`, it runs in a process of its own that can be ended."""
        function = load_handler(handler) if isinstance(handler, str) else handler
        if isolate:
            options.setdefault("params_schema", signature_schema(function))
            function = IsolatedHandler(function, self.guardians)
        return self.register(name, function, **options)

    def add_offered(self) -> list[JobType]:
        """Those that installed packages offer as entry points (`nextslot.job_types`), unless the name is taken."""
        return [self.add(name, handler) for name, handler in offered_handlers() if name not in self]

    def add_command(
        self, name: str, command: Sequence[str], base_dir: Path | str | None = None, **options: Any
    ) -> JobType:
        """A program: an argv in which `{name}` stands for a parameter. Options as in a `[job_types.NAME]` table."""
        table = {"command": list(command), **options}
        return register_command(self, name, command_type(table, Path(base_dir or Path.cwd())), self.guardians)

    def load(self, path: Path | str) -> list[JobType]:
        """The `[job_types.NAME]` tables of a configuration file, all or none."""
        path = Path(path)
        try:
            tables = tomllib.loads(path.read_text()).get("job_types", {})
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise Invalid(f"{path} cannot be read: {error}", field="job_types") from error
        types = self.prepared(tables, path.parent.absolute())
        self.replace((), types)
        return list(types.values())

    def prepared(self, tables: Mapping[str, Mapping[str, Any]], base_dir: Path) -> dict[str, JobType]:
        """The `[job_types.NAME]` tables of a configuration as types, all or none; `configure` puts them to use."""
        draft = Catalog(self._clock)
        draft.guardians = self.guardians
        taken = set(self.names()) - self._configured
        problems: list[Problem] = []
        for name, table in tables.items():
            try:
                if name in taken:
                    raise Invalid("there is a job type of this name already")
                draft.add_table(name, table, base_dir)
            except Invalid as error:
                problems += [
                    Problem(".".join(filter(None, ["job_types", name, p.field])), p.problem) for p in error.problems
                ]
        if problems:
            raise Invalid(problems)
        return {name: draft.get(name) for name in tables}

    def configure(self, types: Mapping[str, JobType]) -> Mapping[str, JobType]:
        """These in place of what the last configuration gave, which is returned."""
        before = {name: self.get(name) for name in self._configured}
        self.replace(self._configured, types)
        self._configured = frozenset(types)
        return before

    def add_table(self, name: str, table: Mapping[str, Any], base_dir: Path) -> JobType:
        """A `[job_types.NAME]` table: a command, or a function that `handler` names."""
        if isinstance(table, Mapping) and "handler" in table:
            return self.add(name, **function_options(table, base_dir))
        return register_command(self, name, command_type(table, base_dir), self.guardians)

    def renew(self, deadline: float) -> None:
        """Commands are killed at this instant of CLOCK_BOOTTIME, unless it is put off again."""
        self.guardians.renew(deadline)

    def go_by(self, pulse: int | None) -> None:
        """Commands that start from now on read their deadline from this file too, when it seems to have passed."""
        self.guardians.pulse = pulse

    async def close(self) -> None:
        """End what the handlers ran with; it is started again when it is needed again."""
        self.guardians.close()


def check_job_type(table: Mapping[str, Any], base_dir: Path) -> None:
    """Refuses a `[job_types.NAME]` table that could not become a type."""
    Catalog(SystemClock()).add_table("checked", table, base_dir)
