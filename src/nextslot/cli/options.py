"""Options and arguments that several commands share, each with its help text."""

from pathlib import Path
from typing import Annotated

import typer

from . import completing

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

# Options of commands that use a server.
Url = Annotated[
    str | None,
    typer.Option("--url", envvar="NEXTSLOT_URL", help="The server's address.", show_default="http://127.0.0.1:8000"),
]
Key = Annotated[str | None, typer.Option("--key", envvar="NEXTSLOT_API_KEY", help="The API key.", show_envvar=True)]

# Options of commands that use a data directory.
Data = Annotated[Path, typer.Option(metavar="DIR", help="The data directory: database, logs, artifacts.")]
File = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Default: nextslot.toml in the data directory.")
]
Database = Annotated[
    str | None, typer.Option(metavar="URL", help="sqlite:///… or postgresql://…; default: as configured.")
]

# Options of lists.
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=500, help="The most to show.")]
Cursor = Annotated[str | None, typer.Option(help="The next page: the cursor that the last one printed.")]
Count = Annotated[int, typer.Option("--count", "-n", min=1, max=500, help="How many to show.")]

# Options and arguments about jobs.
_TYPE = typer.Argument(metavar="TYPE", help="The job type.", show_default=False, autocompletion=completing.job_types)
Type = Annotated[str, _TYPE]
OptionalType = Annotated[str | None, _TYPE]
Webhook = Annotated[str | None, typer.Option(metavar="URL", help="Send a message there when a run ends.")]
WebhookFormat = Annotated[str | None, typer.Option(help="The form of the message: slack, discord or ntfy.")]
Retries = Annotated[int | None, typer.Option(min=0, help="At most so many automatic retries; 0 is none.")]
RetryOn = Annotated[list[str] | None, typer.Option(metavar="KIND", help="Retry this failure kind; repeatable.")]
Params = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Parameters: key=value, key:=json, key=@file, @file.json."),
]
JobId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The job's id, or the beginning or end of it.",
        show_default=False,
        autocompletion=completing.job_ids,
    ),
]
Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID", help="The jobs' ids, or beginnings or ends of them.", autocompletion=completing.job_ids
    ),
]
Priority = Annotated[int | None, typer.Option(help="Higher runs first; default 0.")]
Title = Annotated[str | None, typer.Option(help="A title for people.")]
NotBefore = Annotated[
    str | None, typer.Option("--at", metavar="TIME", help="Start no earlier than this time: RFC 3339, or +2h.")
]
Office = Annotated[str | None, typer.Option("--office", help="The office.", autocompletion=completing.offices)]
OneOffice = Annotated[str, typer.Option("--office", help="The office.", autocompletion=completing.offices)]
Filter = Annotated[
    list[str] | None,
    typer.Option("--filter", metavar="NAME=VALUE", help="Select jobs by a filter.", autocompletion=completing.filters),
]
Everything = Annotated[bool, typer.Option("--all", help="Select every job.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Reason = Annotated[str | None, typer.Option(help="The reason.")]
Interrupt = Annotated[bool | None, typer.Option("--interrupt/--finish", help="Stop running work, or let it finish.")]
Cron = Annotated[str, typer.Argument(help="Such as '0 6 * * mon-fri', or @daily.", show_default=False)]
Timezone = Annotated[str | None, typer.Option(help="Such as Europe/Berlin; default UTC.")]
