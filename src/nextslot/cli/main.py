"""The entry: the tree of commands, and what a person reads when one of them fails."""

import os
import sys
from collections.abc import Sequence

import typer

from nextslot.errors import NextslotError, NotFound
from nextslot.extension import find_all

from .commands import (
    database,
    groups,
    jobs,
    keys,
    nodes,
    queue,
    schedules,
    service,
    templates,
    top,
    webhooks,
)
from .session import before_the_command

app = typer.Typer(
    name="nextslot",
    help="A durable job scheduler: submit, watch and steer jobs on a running server, or start one.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.callback()(before_the_command)
for part in (service, jobs, top, queue, schedules, templates, groups, webhooks, keys, nodes, database):
    part.register(app)
for extension in find_all():
    extension.add_commands(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit codes: 0 it worked, 1 it did not, 2 it was not understood, 130 it was interrupted."""
    _have_streams()
    try:
        app(arguments, prog_name="nextslot")
    except NextslotError as error:
        fail(sentence(error))
    except BrokenPipeError:
        # Whoever read our output has seen enough, such as `head`.
        sys.stderr.close()
        raise SystemExit(1) from None
    except OSError as error:
        # A file or directory that was named, and cannot be used as it is.
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _have_streams() -> None:
    """Python has none where the caller closed them (`>&-`, some daemons); then nobody reads what is written."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def sentence(error: NextslotError) -> str:
    """What happened, and what to do next."""
    from nextslot.client.problems import NoAnswer

    if isinstance(error, NoAnswer):
        return (
            f"no server answers at {error.url} ({error.reason}); "
            "start one with `nextslot serve`, or say where it is with --url"
        )
    if error.status == 401:
        return f"{str(error).partition(': ')[0]}; give one with --key, or in NEXTSLOT_API_KEY"
    if isinstance(error, NotFound) and str(error).startswith("there is no job "):
        return f"{error}; `nextslot ls` lists jobs"
    return str(error)


def fail(text: str) -> None:
    sys.stderr.write(f"nextslot: {text}\n")
    raise SystemExit(1)


if __name__ == "__main__":
    main()
