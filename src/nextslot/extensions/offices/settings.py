"""The tables `[roles.ROLE]` of a configuration."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from nextslot.config.settings import Section
from nextslot.domain.bounds import Seconds, number, whole
from nextslot.errors import Invalid
from nextslot.extension_api import SettingProblem

from .role_sessions import RoleCommand


class RoleTable(Section):
    """How the office jobs of a role are run: by a session command, which gets the job on stdin."""

    command: list[str] | None = Field(
        default=None, description="The argv of its session command; a role without one runs no sessions."
    )
    timeout_seconds: Seconds | None = Field(default=None, description="The timeout of its jobs that set none.")
    stall_timeout_seconds: Seconds | None = Field(
        default=None, description="How long a session may produce no output before it is stopped."
    )
    grace_seconds: Annotated[float, number(" of seconds", most=3600)] = Field(
        default=10, description="How long a session may take to end when it is asked to stop."
    )
    log_cap_bytes: Annotated[int, whole(1)] | None = Field(
        default=None, description="How many bytes of its output are stored; none: 10 MiB."
    )
    cwd: str = Field(default="", description="Its working directory.")
    env: dict[str, str] = Field(default={}, description="Environment variables to set.")
    pass_env: list[str] = Field(default=[], description="Environment variables to inherit from the server.")
    exit_codes: dict[str, str] = Field(
        default={}, description="The meaning of exit codes: `completed`, `skipped` or a failure kind."
    )
    patterns: dict[str, str] = Field(
        default={}, description="Regular expressions for the output, each with the failure kind that a match means."
    )
    quota_pattern: str | None = Field(
        default=None,
        description="A regular expression for the output that says [when a used-up quota is renewed]"
        "(commands.md#settings).",
    )
    quota_resource: str | None = Field(default=None, description="The resource whose quota that is.")
    resume_args: list[str] = Field(
        default=[],
        description="What is added to the command to go on with the session `{session_id}`; none: every attempt begins "
        "a new one.",
    )
    resume_on: list[str] = Field(
        default=["crash", "interrupted", "parked", "quota"],
        description="The failure kinds after which the same session goes on.",
    )
    session_id_pattern: str | None = Field(
        default=None, description="A regular expression that finds the session's id in its output; none: it has ours."
    )
    sandbox: dict[str, Any] | None = Field(
        default=None, description="What its sessions may see, write, reach and use; see [sandboxes](sandbox.md)."
    )
    default_patterns: bool = Field(
        default=True, description="Whether to recognise merge conflicts and missing permissions as well."
    )

    def options(self) -> dict[str, Any]:
        """Returns the table in the form that the session handler takes."""
        return {name: getattr(self, name) for name in self.model_fields_set}


def role_problems(values: Mapping[str, Any], data: Path) -> Iterator[SettingProblem]:
    """Finds what is wrong with the command of each role; a table whose form is wrong has its own problem."""
    roles = values.get("roles")
    for name, table in roles.items() if isinstance(roles, Mapping) else ():
        try:
            role = RoleTable.model_validate(table)
            if role.command is not None:
                RoleCommand.of(role.options(), data)
        except ValidationError:
            continue
        except Invalid as error:
            for one in error.problems:
                yield ("roles", name, *filter(None, one.field.split("."))), one.problem
