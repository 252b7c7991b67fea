"""What every command shares: the server's address, the choice of JSON output, and the registration of commands."""

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import output

if TYPE_CHECKING:
    from nextslot.client import Client

# A person is waiting: repeat a failed request once, then show what to do.
RETRIES = 1

Url = Annotated[
    str | None,
    typer.Option("--url", envvar="NEXTSLOT_URL", help="The server's address.", show_default="http://127.0.0.1:8000"),
]
Key = Annotated[str | None, typer.Option("--key", envvar="NEXTSLOT_API_KEY", help="The API key.", show_envvar=True)]
_CONTEXT = (typer.Context, inspect.Parameter.empty)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


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
        """Prints what the server remarks about a submission: once, though a command may submit many jobs."""
        if note not in self._notes:
            self._notes.add(note)
            output.remark(f"nextslot: {output.clean(note)}")

    def show(self, json: Any, table: Callable[[], None]) -> None:
        """Prints the API's own JSON with --json, else calls `table`."""
        if self.is_json:
            output.print_json(json)
        else:
            table()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def command(app: typer.Typer, name: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a command that talks to a server: a function of a Session and the command's own arguments."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*, context: typer.Context, url: str | None, key: str | None, json: bool, **arguments: Any) -> None:
            session = Session(_option(context, "url", url), _option(context, "key", key), json)
            try:
                function(session, **arguments)
            finally:
                session.close()

        _sign(run, function, {"context": _CONTEXT, "url": (Url, None), "key": (Key, None), "json": (AsJson, False)})
        app.command(name)(run)
        return function

    return register


def before_the_command(
    url: Annotated[str | None, typer.Option("--url", help="The server's address, as after the command.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="The API key, as after the command.")] = None,
) -> None:
    """Accepts --url and --key before the command too, as an alias may have them."""


def _option(context: typer.Context, name: str, value: str | None) -> str | None:
    """Returns an option's value: from after the command, else from before it, else from the environment."""
    before: str | None = context.find_root().params.get(name)
    source = context.get_parameter_source(name)
    is_after = source is not None and source.name == "COMMANDLINE"
    return value if is_after or before is None else before


def local(app: typer.Typer, name: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a command that needs no server: a function of `is_json` and the command's own arguments."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*, context: typer.Context, json: bool, **arguments: Any) -> None:
            if any(context.find_root().params.get(name) is not None for name in ("url", "key")):
                raise typer.BadParameter("this command does not use a server; remove --url and --key")
            function(json, **arguments)

        _sign(run, function, {"context": _CONTEXT, "json": (AsJson, False)})
        app.command(name)(run)
        return function

    return register


def _sign(run: Any, function: Callable[..., None], more: dict[str, tuple[Any, Any]]) -> None:
    """Gives `run` the parameters of `function` without the first, plus these, for typer to read."""
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter(name, kind, default=value, annotation=hint) for name, (hint, value) in more.items()]
    parameters = [one.replace(kind=kind) for one in own] + added
    run.__signature__ = inspect.Signature(parameters)
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    del run.__wrapped__


def group(name: str, help: str) -> typer.Typer:
    return typer.Typer(name=name, help=help, no_args_is_help=True, rich_markup_mode=None)
