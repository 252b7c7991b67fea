"""The interface of extensions, and how one is found by its name. docs/extensions.md describes it.

`scheduler`, `server`, `cli` and `config` find extensions here and import none. This module imports nothing of the
engine at run time, because the command line reads the declarations of all extensions before each command.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Self

from nextslot.errors import Invalid

if TYPE_CHECKING:
    from nextslot.executors.engines.contract import EngineKind

    from .host import Host

GROUP = "nextslot.extensions"
# The ones that come with nextslot: a directory for each.
_BUILT_IN = Path(__file__).parent.parent / "extensions"

# A place in a configuration, and what is wrong there.
SettingProblem = tuple[tuple[str, ...], str]


class Extension:
    """What an extension declares. Each method imports what it needs itself, so that a declaration costs nothing."""

    name: str
    # Whether `nextslot serve` uses it unless the configuration disables it; others are used when they are configured.
    is_on_by_default: bool = False
    # The beginnings of its routes: while the extension is off, the 404 of a request there names the extension.
    paths: Sequence[str] = ()
    # The beginnings of those settings that a running server cannot change.
    restart_settings: Sequence[str] = ()

    def settings(self) -> Mapping[str, tuple[Any, Any]]:
        """Returns its tables of a configuration: by name, the type and the default as pydantic takes them."""
        return {}

    def setting_problems(self, values: Mapping[str, Any], data: Path) -> Iterator[SettingProblem]:
        """Finds what is wrong with its tables beyond the types of the fields; `values` is the whole configuration."""
        yield from ()

    def engine_kinds(self) -> Mapping[str, "EngineKind"]:
        """Returns the kinds of engines that it offers to tables `[engines.NAME]`, by the word that `kind` names."""
        return {}

    def attach(self, host: "Host") -> "Attached":
        """Makes its part of a scheduler: adds job types, takes services."""
        return Attached(host)

    # `Any` in these two: only nextslot.server may know the web framework, and only nextslot.cli the terminal.

    def routers(self) -> Sequence[Any]:
        """Returns its routers, made with `nextslot.server.routing.router`: each route says the scope that it needs."""
        return ()

    def add_commands(self, app: Any) -> None:
        """Adds its commands to the command line, with `nextslot.cli.session.command` and `group`."""


class Attached:
    """An extension in one scheduler, from `attach` on. `scheduler.extension(ITS_CLASS)` returns it.

    `host` has the services of one caller. A method that reads or writes goes through `self.host` each time, so that
    what it stores names the caller for whom it was called.
    """

    def __init__(self, host: "Host") -> None:
        self.host = host

    def for_caller(self, host: "Host") -> Self:
        """Returns this part for another caller; both share everything but `host`."""
        other = copy.copy(self)
        other.host = host
        return other

    def configure(self, tables: Mapping[str, Any], data: Path) -> None:
        """Uses these settings from now on; called before the start and after each reload of the configuration."""

    async def start(self) -> None:
        """Starts; called after recovery, before the scheduler starts the first job."""

    async def stop(self) -> None:
        """Stops; called when everything that ran has ended. The scheduler may be started again."""

    def wrap(self, app: Any, root_path: str) -> Any:
        """Returns an ASGI application around the server's."""
        return app

    def counters(self) -> Iterable["Counters"]:
        """Returns what it counts, for `/metrics`."""
        return ()


# A metric: its name, what it counts, the names of its labels, and the counts by the values of the labels.
Counters = tuple[str, str, tuple[str, ...], Mapping[tuple[str, ...], float]]


@cache
def _sources() -> Mapping[str, Callable[[], Any]]:
    """Returns a function that imports each extension, by name: built-in ones and those of installed packages."""
    found: dict[str, Callable[[], Any]] = {}
    for point in entry_points(group=GROUP):
        found[point.name] = point.load
    for module in iter_modules([str(_BUILT_IN)]):
        found[module.name] = partial(_built_in, module.name)
    return dict(sorted(found.items()))


def _built_in(name: str) -> Any:
    return import_module(f"nextslot.extensions.{name}").extension


def names() -> list[str]:
    return list(_sources())


@cache
def find(name: str) -> Extension:
    source = _sources().get(name)
    if source is None:
        raise Invalid(f"there is no extension {name!r}; there are: {', '.join(names()) or 'none'}", field="extensions")
    found = source()
    if not isinstance(found, Extension) or found.name != name:
        raise Invalid(
            f"{name!r} is not an extension: its entry point must name an `Extension` of that name", "extensions"
        )
    return found


def find_all() -> list[Extension]:
    return [find(name) for name in names()]


def used_by_server(disabled: Sequence[str] = (), configured: Iterable[str] = ()) -> list[Extension]:
    """Chooses the extensions of a server: on by default or with a table in the configuration, and not disabled."""
    tables = frozenset(configured)
    return [
        one
        for one in find_all()
        if one.name not in disabled and (one.is_on_by_default or not tables.isdisjoint(one.settings()))
    ]
