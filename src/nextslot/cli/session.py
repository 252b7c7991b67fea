"""The session of a command: its server or data directory, its JSON output, and its registration with typer."""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import urlsplit

import typer

from . import output
from .options import AsJson, Data, Database, File, Key, Url

if TYPE_CHECKING:
    from nextslot.client import Client
    from nextslot.config import Configuration
    from nextslot.extension_api import Attached

Function = Callable[..., None]
T = TypeVar("T")
A = TypeVar("A", bound="Attached")

# A person is waiting: the client repeats a failed request once, then the command shows the remedy.
RETRIES = 1


class Session:
    """The context of one command that talks to a server."""

    def __init__(self, url: str | None, key: str | None, is_json: bool) -> None:
        self.url = url
        self.key = key
        self.is_json = is_json
        self._client: Client | None = None
        self._notes: set[str] = set()

    @property
    def client(self) -> "Client":
        if self._client is None:
            # Imported here so that `--help` stays fast.
            from nextslot.client import Client

            self._client = Client(self.url, key=self.key, retries=RETRIES, on_note=self._show_note)
        return self._client

    def _show_note(self, note: str) -> None:
        """Prints a remark of the server about a submission once, even if a command submits many jobs."""
        if note not in self._notes:
            self._notes.add(note)
            output.remark(f"nextslot: {output.clean(note)}")

    def show(self, json: Any, table: Callable[[], None]) -> None:
        """Prints the API's own JSON with --json; otherwise calls `table`."""
        if self.is_json:
            output.print_json(json)
        else:
            table()

    def say(self, json: Any, text: str) -> None:
        """Prints the API's own JSON with --json; otherwise prints a text."""
        self.show(json, lambda: output.say(text))

    def list(self, json: Any, headings: tuple[str, ...], rows: "list[list[Any]]", empty: str) -> None:
        """Prints a table, and how to get the next page if there is one."""
        cursor = json.get("next_cursor")
        self.show(json, lambda: output.table(headings, rows, empty, cursor))

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def command(
    app: typer.Typer, name: str | None = None, *, takes_negative: bool = False
) -> Callable[[Function], Function]:
    """Registers a command that uses a server: a function of a Session and the command's own arguments. With
    `takes_negative`, -5 is an argument, not an option."""

    def run(
        function: Function, context: typer.Context, url: str | None, key: str | None, json: bool, **own: Any
    ) -> None:
        session = Session(_option(context, "url", url), _option(context, "key", key), json)
        try:
            function(session, **own)
        finally:
            session.close()

    context = {"ignore_unknown_options": True} if takes_negative else {}
    return _registered(app, name, run, 1, {"url": (Url, None), "key": (Key, None)}, context)


def local(app: typer.Typer, name: str | None = None) -> Callable[[Function], Function]:
    """Registers a command that needs no server: a function of `is_json` and the command's own arguments."""

    def run(function: Function, context: typer.Context, json: bool, **own: Any) -> None:
        _refuse_server(context)
        function(json, **own)

    return _registered(app, name, run, 1, {})


def offline(app: typer.Typer, name: str | None = None) -> Callable[[Function], Function]:
    """Registers a command on a data directory: a function of `is_json`, a Configuration and its own arguments."""

    def run(
        function: Function,
        context: typer.Context,
        json: bool,
        data: Path,
        config: Path | None,
        database: str | None,
        **own: Any,
    ) -> None:
        _refuse_server(context)
        function(json, configuration(data, config, store__url=database), **own)

    more = {"data": (Data, Path()), "config": (File, None), "database": (Database, None)}
    return _registered(app, name, run, 2, more)


def configuration(data: Path, config: Path | None, **overrides: Any) -> "Configuration":
    from nextslot.config import load

    if "@" in (url := overrides.get("store__url") or "") and urlsplit(url).password:
        output.remark(
            "warning: every user of this machine can see the password in --database, in the list of processes; "
            "put the address into NEXTSLOT_STORE__URL, or into [store] url of a file that only you can read"
        )
    return load(data, config, overrides={name.replace("__", "."): value for name, value in overrides.items()})


def run_offline(wanted: "Configuration", kind: type[A], work: Callable[[A], Awaitable[T]]) -> T:
    """Runs the work of an extension, whose `Attached` has the class `kind`, on a database that no server uses."""
    from nextslot.scheduler_from_config import opened_offline

    async def body() -> T:
        async with opened_offline(wanted) as scheduler:
            return await work(scheduler.extension(kind))

    wanted.data.mkdir(parents=True, exist_ok=True)
    return asyncio.run(body())


def run_without_database(wanted: "Configuration", kind: type[A], work: Callable[[A], T]) -> T:
    """Runs the work of an extension that only checks what would be accepted. Opens and creates no database."""
    from nextslot.scheduler_from_config import compose

    return work(compose(wanted).extension(kind))


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(metadata.version("nextslot"))
        raise typer.Exit


def before_the_command(
    url: Annotated[str | None, typer.Option("--url", help="The server's address, as after the command.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="The API key, as after the command.")] = None,
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Accepts --url and --key before the command too, for aliases that contain them."""


def group(name: str, help: str) -> typer.Typer:
    return typer.Typer(name=name, help=help, no_args_is_help=True, rich_markup_mode=None)


def add_group(app: typer.Typer, name: str, help: str, *functions: Function) -> typer.Typer:
    """Adds a group of commands that use a server."""
    made = group(name, help)
    for function in functions:
        command(made)(function)
    app.add_typer(made)
    return made


def with_parameters_of(other: Function) -> Callable[[Function], Function]:
    """Gives a command the arguments and options of another function, as keyword arguments."""

    def give(function: Function) -> Function:
        function.__signature__ = inspect.signature(other, eval_str=True)  # type: ignore[attr-defined]
        return function

    return give


def _option(context: typer.Context, name: str, value: str | None) -> str | None:
    """Returns the value of an option: given after the command, else before the command, else in the environment."""
    before: str | None = context.find_root().params.get(name)
    source = context.get_parameter_source(name)
    is_after = source is not None and source.name == "COMMANDLINE"
    return value if is_after or before is None else before


def _refuse_server(context: typer.Context) -> None:
    if any(context.find_root().params.get(name) is not None for name in ("url", "key")):
        raise typer.BadParameter("this command does not use a server; remove --url and --key")


def _registered(
    app: typer.Typer,
    name: str | None,
    run: Function,
    given: int,
    more: dict[str, tuple[Any, Any]],
    context: dict[str, Any] | None = None,
) -> Callable[[Function], Function]:
    """Registers `run` as a command of typer. Its options are the parameters of a function, except the first `given`
    ones, and `more`."""

    def register(function: Function) -> Function:
        @functools.wraps(function)
        def call(**arguments: Any) -> None:
            run(function, **arguments)

        kind, none = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
        added = {"context": (typer.Context, none), **more, "json": (AsJson, False)}
        # A command imports the class Configuration only when it runs.
        signature = inspect.signature(function, eval_str=True, locals={"Configuration": object})
        own = list(signature.parameters.values())[given:]
        parameters = [one.replace(kind=kind) for one in own]
        parameters += [inspect.Parameter(n, kind, default=value, annotation=hint) for n, (hint, value) in added.items()]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in parameters}
        del call.__wrapped__  # Otherwise, typer would read the parameters of the function.
        app.command(name, context_settings=context)(call)
        return function

    return register
