"""Parses `--filter name=value` of commands that act on many jobs; the names are those of the API's list."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import typer

if TYPE_CHECKING:
    from nextslot.client.options import JobFilter

NAMES = (
    "status", "job_type", "office_id", "role", "task_id", "template_id", "schedule_id", "group_id",
    "retry_of", "created_after", "created_before", "q",
)  # fmt: skip
ALIASES = {"type": "job_type", "office": "office_id", "task": "task_id", "group": "group_id", "text": "q"}


def parsed(arguments: Sequence[str]) -> "JobFilter":
    found: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        name = ALIASES.get(name, name)
        if not equals or not value or name not in NAMES:
            raise typer.BadParameter(
                f"{argument!r} is not a filter: write name=value (or name=a,b); names: {', '.join(NAMES)}"
            )
        found[name] = value.upper() if name == "status" else value
    return cast("JobFilter", found)
