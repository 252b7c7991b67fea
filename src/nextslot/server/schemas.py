"""The answers and bodies that several routes share, for validation and for the OpenAPI document.

`to_dict` and `domain/json_form.py` make the answers; a test compares them with these classes.
"""

import re
from collections.abc import Mapping
from copy import copy
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    create_model,
)

from nextslot import domain
from nextslot.domain import request_checks
from nextslot.domain.bounds import must_be
from nextslot.engine.submit.intake import MAX_BATCH

from .derived_schemas import asks, shows

T = TypeVar("T")

Time = Annotated[
    str,
    Field(
        pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$",
        examples=["2026-11-15T06:30:00.000000Z"],
        description="RFC 3339, UTC, microseconds",
    ),
]


def _written(value: object) -> object:
    # Without this check pydantic would read a number in a query as seconds since 1970.
    if not isinstance(value, str) or not re.match(r"\d{4}-\d\d-\d\d[Tt ]", value):
        raise ValueError(must_be(value, "a time such as 2026-11-15T06:30:00Z"))
    return value


# A time in a request: text with a time zone.
When = Annotated[
    AwareDatetime,
    Field(strict=False),
    BeforeValidator(_written),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2026-11-15T06:30:00Z"]}),
]
Id = Annotated[str, Field(examples=["0193f6a2-7b1c-7c3e-8d52-6f0a9e1b2c3d"])]
# For routes whose answers have expected times.
ForecastWait = Annotated[
    float, Field(ge=0, le=30, description="How long to wait for a forecast; 0: answer with the existing one")
]
# How many items of a long list are processed in one turn of the event loop: a few milliseconds of work.
SOME = 500


class ResponseModel(BaseModel):
    """Exactly these fields. Only the OpenAPI document and tests use it, so it is compiled when one of them does."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class Body(BaseModel):
    """An unknown field is refused, so that a typo is not silently ignored; no type is guessed."""

    # Compiled by the first request that needs it: compiling all of them is a tenth of the start.
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)

    def given(self) -> dict[str, Any]:
        """Returns only the fields that the caller gave, as plain values."""
        return {name: _plain(getattr(self, name)) for name in self.model_fields_set}


def _plain(value: object) -> object:
    if isinstance(value, list) and value and isinstance(value[0], Body):
        return [one.given() for one in value]
    return value.given() if isinstance(value, Body) else value


def partial(body: type[Body]) -> type[Body]:
    """Makes a body with the same fields, all optional, for a PATCH."""
    fields: dict[str, Any] = {}
    for name, field in body.model_fields.items():
        optional = copy(field)
        optional.default = optional.default_factory = optional.json_schema_extra = None
        # `given` returns only the given fields, so the default does not matter.
        fields[name] = (field.annotation, optional)
    return create_model(f"Partial{body.__name__}", __base__=Body, **fields)


def without(body: type[Body], *names: str) -> type[Body]:
    """Makes a copy of a body without the fields that the path or the query contains."""
    fields = body.model_fields.items()
    kept: dict[str, Any] = {name: (field.annotation, field) for name, field in fields if name not in names}
    return create_model(f"{body.__name__}Without", __base__=Body, **kept)


class FieldProblem(ResponseModel):
    field: str = Field(description="The field, such as `jobs.3.params`; empty if the whole request is wrong")
    problem: str


class Problem(BaseModel):
    """RFC 9457. More data may follow where it helps, such as `cycle` or `ahead`."""

    type: str = Field(examples=["urn:nextslot:problem:not_found"])
    title: str
    status: int
    detail: str = Field(description="A sentence for people")
    code: str = Field(description="A word for programs", examples=["not_found"])
    errors: list[FieldProblem] | None = None


class Page(ResponseModel, Generic[T]):
    items: list[T]
    next_cursor: str | None = Field(description="The `cursor` of the next page; null: this is the last")


@shows(domain.RetryPolicy, {})
class RetryPolicy(ResponseModel):
    pass


@shows(domain.Artifact, {})
class Artifact(ResponseModel):
    pass


# The types of fields in answers, by their type in the domain.
IN_ANSWERS: Mapping[Any, Any] = {"time": Time, domain.RetryPolicy: RetryPolicy, domain.Artifact: Artifact}


@shows(domain.Job, IN_ANSWERS)
class Job(ResponseModel):
    attempt: int = Field(description="The place of the job in its chain, from 1")


@shows(domain.Run, IN_ANSWERS)
class Run(ResponseModel):
    pass


class Progress(ResponseModel):
    fraction: float | None
    text: str


class RunDetail(Run):
    progress: Progress | None = Field(description="The progress of a running job, if it reports any")


@shows(domain.Signal, IN_ANSWERS)
class Signal(ResponseModel):
    pass


@shows(domain.Checkpoint, IN_ANSWERS)
class Checkpoint(ResponseModel):
    pass


class JobDetail(Job):
    run: Run | None
    checkpoint: Checkpoint | None = Field(description="The last checkpoint of the chain, which the next attempt gets")
    chain: list[Job] = Field(description="The whole chain from its root, this job included")


@shows(domain.Group, IN_ANSWERS)
class Group(ResponseModel):
    pass


@shows(domain.Direct, IN_ANSWERS)
class Direct(ResponseModel):
    pass


@shows(domain.Reservation, IN_ANSWERS)
class Reservation(ResponseModel):
    pass


@shows(domain.Event, IN_ANSWERS)
class Event(ResponseModel):
    pass


class WebhookBody(Body):
    url: Annotated[str, Field(max_length=request_checks.MAX_TEXT * 10, examples=["https://example.org/hook"])]
    events: list[str] | None = Field(None, description="Default: job.run.completed, job.run.failed, job.run.skipped")
    format: Literal["slack", "discord", "ntfy"] | None = Field(None, description="Default: signed JSON for programs")


@asks(domain.RetryPolicy, {"retry_on": list[str]}, dict.fromkeys(domain.RetryPolicy.__dataclass_fields__))
class RetryPolicyBody(Body):
    """Any part may be given; the rest is the type's, or the office's."""


IN_BODIES: Mapping[Any, Any] = {
    "time": When,
    "params": dict[str, Any],
    "depends_on": list[str],
    "resources": dict[str, int] | list[str],
    "retry_policy": RetryPolicyBody,
    "webhook": WebhookBody,
}


@asks(
    domain.NewJob,
    IN_BODIES,
    {"priority": 0, "params": {}, "depends_on": []},
    without=("key", "schedule_id", "created_by"),
)
class JobBody(Body):
    office_id: str = "default"


@asks(domain.NewJob, IN_BODIES, {}, without=set(domain.NewJob.__dataclass_fields__) - {"key"})
class KeyedJobBody(JobBody):
    pass


def _later(value: object, validate: ValidatorFunctionWrapHandler) -> object:
    return value if isinstance(value, list) and SOME < len(value) <= MAX_BATCH else validate(value)


# A long list is not validated here: `jobs.read_in_parts` validates it.
IN_PARTS = WrapValidator(_later)
KeyedJobs = Annotated[list[KeyedJobBody], Field(min_length=1, max_length=MAX_BATCH), IN_PARTS]
