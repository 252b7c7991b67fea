"""What queries say, as filters: several values by comma, times with a zone, and the caller's own office."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from nextslot.domain.filters import JobFilter
from nextslot.services.arguments import instant

from .auth import Caller
from .schemas import Body, When

Values = Annotated[str, Field(description="Several by comma", max_length=2_000)]
Limit = Annotated[int, Field(ge=1, le=500)]


class Query(BaseModel):
    """An unknown name is refused, so that a typo does not list everything."""

    model_config = ConfigDict(extra="forbid")


class PageQuery(Query):
    limit: Limit = 50
    cursor: str | None = Field(None, max_length=1000, description="`next_cursor` of the page before")


class JobQuery(Query):
    status: Values | None = Field(None, examples=["QUEUED,RUNNING"])
    job_type: Values | None = None
    office_id: Values | None = None
    role: Values | None = None
    task_id: Values | None = None
    template_id: Values | None = None
    schedule_id: Values | None = None
    group_id: Values | None = None
    retry_of: Values | None = None
    created_after: When | None = None
    created_before: When | None = None
    q: str | None = Field(None, max_length=1000, description="Text in the title or in the id")


class JobPageQuery(JobQuery, PageQuery):
    pass


class JobFilterBody(Body):
    """A filter as in the list of jobs; several values as a list, or by comma."""

    status: str | list[str] | None = None
    job_type: str | list[str] | None = None
    office_id: str | list[str] | None = None
    role: str | list[str] | None = None
    task_id: str | list[str] | None = None
    template_id: str | list[str] | None = None
    schedule_id: str | list[str] | None = None
    group_id: str | list[str] | None = None
    retry_of: str | list[str] | None = None
    created_after: When | None = None
    created_before: When | None = None
    q: str | None = None

    @field_validator(
        *("status", "job_type", "office_id", "role", "task_id"),
        *("template_id", "schedule_id", "group_id", "retry_of"),
        mode="before",
    )
    @classmethod
    def _names_something(cls, value: object) -> object:
        # A program whose list happens to be empty means none of them, and would get all.
        if isinstance(value, (str, list)) and not value:
            raise ValueError("nothing is named here, which would mean every one: leave it out if that is meant")
        return value


def job_filter(said: Mapping[str, Any], caller: Caller) -> JobFilter:
    return JobFilter(**filter_values(said, JobFilter, caller))


def filter_values(said: Mapping[str, Any], kind: Any, caller: Caller) -> dict[str, Any]:
    """Of what was said, what a filter of this kind has; narrowed to the caller's office."""
    known = kind.__dataclass_fields__
    given = {name: value for name, value in said.items() if value is not None and name in known}
    values: dict[str, Any] = {name: _value(name, value) for name, value in given.items()}
    if "office_id" in known:
        values["office_id"] = caller.narrowed(values.get("office_id", ()))
    return values


def _value(name: str, value: object) -> object:
    if isinstance(value, datetime):
        return instant(value, name)
    if isinstance(value, str) and name != "q":
        return split(value)
    return tuple(value) if isinstance(value, list) else value


def split(values: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (values or "").split(",") if part.strip())
