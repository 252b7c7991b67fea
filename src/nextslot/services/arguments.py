"""Turns the arguments of the Python API into values of the domain, or refuses them."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from nextslot.client import keyword_arguments
from nextslot.client.keyword_arguments import Time
from nextslot.domain import NewJob, id_of
from nextslot.domain.bounds import IN_PARAMS, meant, must_be
from nextslot.engine.direct.direct_requests import NewDirect
from nextslot.errors import Invalid, NotFound, Problem
from nextslot.system.instant import Instant

T = TypeVar("T")

_JOB_FIELDS = frozenset(NewJob.__dataclass_fields__)


def new_job(**fields: Any) -> NewJob:
    """Makes a request from keyword arguments. Times may be datetimes, and dependencies may be jobs."""
    if not fields.keys() <= _JOB_FIELDS:
        wrong = min(fields.keys() - _JOB_FIELDS, key=str)
        raise Invalid("is not a field of a job" + meant(wrong, _JOB_FIELDS, IN_PARAMS), field=str(wrong))
    for name in ("scheduled_for", "expires_at"):
        if name in fields:
            fields[name] = instant(fields[name], name)
    return _with_ids(NewJob(**fields))


def new_jobs(wanted: "Sequence[NewJob | keyword_arguments.NewJob]") -> list[NewJob]:
    """Makes requests from values or dicts. Converts datetimes to instants, and jobs in `depends_on` to ids."""
    if isinstance(wanted, (str, Mapping)) or not isinstance(wanted, Sequence):
        raise Invalid(must_be(wanted, "a list of jobs"), field="jobs")
    return [_one_of_many(new, number) for number, new in enumerate(wanted)]


def _one_of_many(new: Any, number: int) -> NewJob:
    if isinstance(new, NewJob):
        if new.scheduled_for is not None or new.expires_at is not None:
            at, until = instant(new.scheduled_for, "scheduled_for"), instant(new.expires_at, "expires_at")
            new = replace(new, scheduled_for=at, expires_at=until)
        return _with_ids(new)
    if not isinstance(new, Mapping):
        raise Invalid(must_be(new, "a NewJob, or a dict of its fields"), field=f"jobs.{number}")
    try:
        return new_job(**new)
    except Invalid as error:
        raise Invalid([Problem(f"jobs.{number}.{one.field}", one.problem) for one in error.problems]) from error


def _with_ids(new: NewJob) -> NewJob:
    """Returns the request with ids in place of the jobs in `depends_on`."""
    given = new.depends_on
    if isinstance(given, str) or not isinstance(given, Iterable) or all(type(one) is str for one in given):
        return new  # What is no list of ids is refused with all other problems.
    return replace(new, depends_on=[id_of(one, "depends_on") for one in given])


def mappings(given: Iterable[Mapping[str, Any]], field: str) -> list[Mapping[str, Any]]:
    """Returns the argument as a list of parameter sets, or refuses it."""
    found = list(given) if isinstance(given, Iterable) and not isinstance(given, (str, Mapping)) else None
    if found is None or not all(isinstance(one, Mapping) for one in found):
        raise Invalid(must_be(given, "a list of dicts, each with the parameters of one job"), field=field)
    return found


def new_direct(**fields: Any) -> NewDirect:
    """Makes a direct request from keyword arguments."""
    unknown = sorted(fields.keys() - NewDirect.__dataclass_fields__.keys())
    if unknown:
        known = ", ".join(sorted(NewDirect.__dataclass_fields__))
        raise Invalid(f"is not a field of a direct request; its fields are {known}", field=unknown[0])
    return NewDirect(**fields)


def instant(value: Time | None, field: str) -> Instant | None:
    """Turns a datetime, or its text, into an instant."""
    if value is None or isinstance(value, Instant):
        return value
    if isinstance(value, str):
        with suppress(ValueError):
            value = datetime.fromisoformat(value)
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise Invalid("is not a time with a time zone; give datetime.now(UTC), or its text", field=field)
    return Instant.of(value)


def choice(kind: type[T], value: object, field: str) -> T:
    """Returns the member of an enumeration with this value, or refuses the value."""
    try:
        return kind(value)  # type: ignore[call-arg]
    except ValueError:
        known = ", ".join(kind)  # type: ignore[arg-type]
        raise Invalid(f"is {value!r}; it must be one of {known}", field=field) from None


def scope(office_id: str | None, job_type: str | None, resource: str | None) -> tuple[str, str]:
    """Returns what to pause or resume: the kind of thing, and its name."""
    named = [
        (kind, name)
        for kind, name in (("office", office_id), ("type", job_type), ("resource", resource))
        if name is not None
    ]
    if len(named) > 1:
        raise Invalid(
            "more than one of office_id, job_type and resource is given; give one, or none for the whole scheduler"
        )
    return named[0] if named else ("scheduler", "")


def found(value: T | None, kind: str, name: str) -> T:
    """Returns a value that was read, or raises NotFound if it is None."""
    if value is None:
        raise NotFound(kind, name)
    return value
