"""Catalog: the job types of a scheduler, and every way to add a function or a command as a job type."""

import importlib
import tomllib
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Unpack

from nextslot.errors import Invalid, Problem

from .command import register_command
from .command_config import command_type, function_options
from .isolated_handler import IsolatedHandler, is_importable
from .job_types import JobType, JobTypes, NewJobTypeOptions
from .process_tree.fork_server import Guardians
from .signatures import Handler, signature_of

# A package declares its job types in pyproject.toml: [project.entry-points."nextslot.job_types"] with lines
# `NAME = "module:function"`.
ENTRY_POINTS = "nextslot.job_types"


class Catalog(JobTypes):
    """Holds the job types, and owns the guardians of their commands."""

    def __init__(self) -> None:
        super().__init__()
        self.guardians = Guardians()
        # The names from the configuration: reloading the configuration may replace these types.
        self._configured: frozenset[str] = frozenset()

    def add(
        self, name: str, handler: Handler | str, *, isolate: bool = False, **options: Unpack[NewJobTypeOptions]
    ) -> JobType:
        """Adds a function, or the function that `module:function` names. With `isolate`, it runs in a separate
        process."""
        function = load_handler(handler) if isinstance(handler, str) else handler
        if not isolate:
            return self.register(name, function, **options)
        isolated = IsolatedHandler(function, self.guardians)
        return self.register(name, isolated, signature=signature_of(function), **options)

    def isolated(self, name: str) -> Handler | None:
        handler = self.of_claim(name).handler
        return IsolatedHandler(handler, self.guardians) if is_importable(handler) else None

    def add_offered(self) -> list[JobType]:
        """Adds the job types that installed packages offer as entry points (`nextslot.job_types`), unless the name is
        taken."""
        return [self.add(one.name, one.value) for one in entry_points(group=ENTRY_POINTS) if one.name not in self]

    def add_command(
        self, name: str, command: Sequence[str], base_dir: Path | str | None = None, **options: Any
    ) -> JobType:
        """Adds a command: an argv in which `{name}` stands for a parameter. The options are those of a
        `[job_types.NAME]` table."""
        table = {"command": list(command), **options}
        return register_command(self, name, command_type(table, Path(base_dir or Path.cwd())), self.guardians)

    def load(self, path: Path | str) -> list[JobType]:
        """Adds the `[job_types.NAME]` tables of a configuration file, all or none."""
        path = Path(path)
        try:
            tables = tomllib.loads(path.read_text()).get("job_types", {})
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise Invalid(f"{path} cannot be read: {error}; check the path and its TOML", field="job_types") from error
        types = self.prepared(tables, path.parent.absolute())
        self.replace((), types)
        return list(types.values())

    def prepared(self, tables: Mapping[str, Mapping[str, Any]], base_dir: Path) -> dict[str, JobType]:
        """Checks the `[job_types.NAME]` tables of a configuration, all or none, and returns them as types for
        `configure`."""
        draft = Catalog()
        draft.guardians, draft.engines = self.guardians, self.engines
        taken = set(self.names()) - self._configured
        problems: list[Problem] = []
        for name, table in tables.items():
            try:
                if name in taken:
                    raise Invalid("another job type has this name already; choose another name")
                draft.add_table(name, table, base_dir)
            except Invalid as error:
                problems += [
                    Problem(".".join(filter(None, ["job_types", name, p.field])), p.problem) for p in error.problems
                ]
        if problems:
            raise Invalid(problems)
        return {name: draft.get(name) for name in tables}

    def configure(self, types: Mapping[str, JobType]) -> Mapping[str, JobType]:
        """Replaces the types of the previous configuration with these, and returns the previous ones."""
        before = {name: self.get(name) for name in self._configured}
        self.replace(self._configured, types)
        self._configured = frozenset(types)
        return before

    def add_table(self, name: str, table: Mapping[str, Any], base_dir: Path) -> JobType:
        """Adds a `[job_types.NAME]` table: a command, or the function that `handler` names."""
        if isinstance(table, Mapping) and "handler" in table:
            return self.add(name, **function_options(table, base_dir))
        return register_command(self, name, command_type(table, base_dir), self.guardians)


def check_job_type(table: Mapping[str, Any], base_dir: Path) -> None:
    """Raises Invalid if a `[job_types.NAME]` table cannot become a job type."""
    if isinstance(table, Mapping) and "handler" in table:
        Catalog().add_table("checked", table, base_dir)
        return
    sandbox = command_type(table, base_dir).sandbox
    if sandbox is not None:  # Only the server can tell whether it may create cgroups.
        sandbox.try_out()


def load_handler(name: str) -> Handler:
    """Imports and returns the function that `module:function` names."""
    module_name, colon, function = name.partition(":")
    if not colon or not module_name or not function:
        raise Invalid(f"{name!r} names no function; write module:function", field="handler")
    try:
        found = importlib.import_module(module_name)
    except ImportError as error:
        raise Invalid(
            f"{module_name!r} cannot be imported: {error}; install it, put it into the data directory of a server, "
            "or correct the name",
            field="handler",
        ) from error
    for part in function.split("."):
        if not hasattr(found, part):
            raise Invalid(f"{module_name!r} has no function {function!r}; correct the name", field="handler")
        found = getattr(found, part)
    handler: Any = getattr(found, "function", found)  # A handle of a job type has the attribute `function`.
    if not callable(handler):
        raise Invalid(f"{name!r} is not callable; name a function", field="handler")
    return handler  # type: ignore[no-any-return]
