"""The entry of the command line: the tree of commands, and the error messages for people."""

import os
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from nextslot.errors import NextslotError, NotFound
from nextslot.extension_api import find_all

from .commands import (
    database,
    engines,
    failures,
    groups,
    jobs,
    keys,
    nodes,
    queue,
    quotas,
    schedules,
    service,
    stats,
    templates,
    top,
    webhooks,
)
from .session import before_the_command

# The sections of the help and their commands; other commands of extensions come last.
SECTIONS = {
    "Jobs": ("submit", "run", "wait", "ls", "show", "why", "log", "cat", "cancel", "retry", "rerun", "move", "change",
             "signal", "approve", "reject", "job"),
    "Watch": ("top", "status", "stats", "failures", "events", "audit", "types"),
    "What comes when": ("queue", "schedule", "template", "group"),
    "Settings": ("office", "webhook", "key", "quota", "node", "engine", "config"),
    "The server and its data": ("serve", "doctor", "backup", "restore", "export", "import", "migrate", "purge"),
    "This program": ("version", "completion"),
}  # fmt: skip
EXAMPLES = """Examples:
  nextslot serve                                   start a server in this directory
  nextslot submit thumbnail path=a.png --wait      submit a job, wait for it
  nextslot ls --filter status=failed               which jobs have failed?
  nextslot why 4fe1                                why does it not run?
  nextslot submit report --at +2h                  not before two hours from now
  nextslot cancel --filter type=thumbnail          cancel many"""


class Sections(TyperGroup):
    """Shows the commands in sections, and examples at the end."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        left = {name: self.commands[name] for name in self.list_commands(ctx)}
        parts = {title: [(name, left.pop(name)) for name in names if name in left] for title, names in SECTIONS.items()}
        for title, commands in (*parts.items(), ("More", list(left.items()))):
            with formatter.section(title):
                formatter.write_dl([(name, one.get_short_help_str(60)) for name, one in commands])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        formatter.write(f"\n{EXAMPLES}\n")


app = typer.Typer(
    name="nextslot",
    cls=Sections,
    help="A durable job scheduler: submit, watch and manage jobs on a running server, or start one.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback()(before_the_command)
PARTS = (
    service, jobs, top, stats, failures, queue, schedules, templates, groups, webhooks, keys, quotas, nodes, engines,
    database,
)  # fmt: skip
for part in PARTS:
    part.register(app)
for extension in find_all():
    extension.add_commands(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command. Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted."""
    _have_streams()
    try:
        app(arguments, prog_name="nextslot")
    except NextslotError as error:
        fail(sentence(error))
    except BrokenPipeError:
        # The reader of the output, such as `head`, has closed it.
        sys.stderr.close()
        raise SystemExit(1) from None
    except OSError as error:
        # The command cannot use a given file or directory.
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _have_streams() -> None:
    """Opens /dev/null in place of closed streams (`>&-`, some daemons), for which Python has None."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def sentence(error: NextslotError) -> str:
    """Returns the error message: the problem, and its remedy."""
    from nextslot.client.problems import NoAnswer, OutcomeUnknown

    if isinstance(error, OutcomeUnknown):
        again = f"submit it again with --idempotency-key {error.idempotency_key}, which makes no second job"
        look = "check with `nextslot ls` or `nextslot events` before you ask again"
        return f"{error.problem}; {again if error.path == '/api/jobs' else look}"
    if isinstance(error, NoAnswer):
        return error.sentence("give its address with --url")
    if error.status == 401:
        return f"{str(error).partition('; ')[0]}; give one with --key, or in NEXTSLOT_API_KEY"
    if isinstance(error, NotFound) and str(error).startswith("there is no job "):
        return f"{error}; `nextslot ls` lists jobs"
    return str(error)


def fail(text: str) -> None:
    sys.stderr.write(f"nextslot: {text}\n")
    raise SystemExit(1)


if __name__ == "__main__":
    main()
