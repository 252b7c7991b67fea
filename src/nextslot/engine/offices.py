"""Offices: rows of settings, made and changed while everything runs; a lower limit stops no running job."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

from ..clock import Instant
from ..errors import Conflict, Invalid, NotFound, Problem
from ..model import CancelMode, Json, Office, OnDependencyFailure
from ..policy import requests
from ..policy.limits import ConcurrencyPolicy, is_local, office_key
from ..store import lanes, offices
from ..store.store import Tx
from .lanes import Lanes

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_SETTINGS = {field.name for field in fields(Office)} - {"office_id", "is_paused", "created_at"}


class OfficeSettings:
    def __init__(self, policy: ConcurrencyPolicy, lanes_: Lanes) -> None:
        self._policy = policy
        self._lanes = lanes_

    def create(self, tx: Tx, office_id: str, settings: Mapping[str, Json], now: Instant) -> Office:
        if not isinstance(office_id, str) or not _ID.fullmatch(office_id):
            raise Invalid("letters, digits, '.', '_' and '-', up to 100", field="office_id")
        office = _changed(Office(office_id=office_id, name=office_id, created_at=now), settings)
        if not offices.insert(tx, office):
            raise Conflict(f"the office {office_id!r} exists already")
        return office

    def change(self, tx: Tx, office_id: str, settings: Mapping[str, Json]) -> Office:
        office = offices.get(tx, office_id)
        if office is None:
            raise NotFound("office", office_id)
        office = _changed(office, settings)
        offices.update(tx, office)
        self._resize(tx, office)
        return office

    def install(self, tx: Tx, office: Office) -> None:
        """An office that always exists, and the limits of the configuration as they are now."""
        offices.insert(tx, office)
        for limit in lanes.all_limits(tx):
            if not is_local(limit.limit_key):
                lanes.resize(tx, limit.limit_key, self._policy.capacity(limit.limit_key, office))

    def _resize(self, tx: Tx, office: Office) -> None:
        role_prefix = f"role:{office.office_id}/"
        for limit in lanes.all_limits(tx):
            if limit.limit_key == office_key(office.office_id) or limit.limit_key.startswith(role_prefix):
                lanes.resize(tx, limit.limit_key, self._policy.capacity(limit.limit_key, office))
        self._lanes.slate(tx).office(office.office_id)


def _changed(office: Office, settings: Mapping[str, Json]) -> Office:
    unknown = sorted(settings.keys() - _SETTINGS)
    if unknown:
        raise Invalid(f"an office has no such setting; it has {', '.join(sorted(_SETTINGS))}", field=unknown[0])
    values = dict(settings)
    if "retry_policy" in values:
        values["retry_policy"] = requests.retry_policy(values["retry_policy"], office.retry_policy)
    for name, kind in (("cancel_mode", CancelMode), ("on_dependency_failure", OnDependencyFailure)):
        if name in values:
            if values[name] not in list(kind):
                raise Invalid("one of " + ", ".join(kind), field=name)
            values[name] = kind(values[name])
    changed: Office = replace(office, **values)
    _check(changed)
    return changed


def _check(office: Office) -> None:
    problems = list(_problems(office))
    if problems:
        raise Invalid(problems)


def _problems(office: Office) -> Iterator[Problem]:
    yield from requests.text_problems("name", office.name)
    if office.status not in ("active", "archived"):
        yield Problem("status", "'active' or 'archived'")
    counts = {"max_concurrent_jobs": office.max_concurrent_jobs}
    roles = office.role_limits
    if not isinstance(roles, dict) or any(list(requests.text_problems("role", role)) for role in roles):
        yield Problem("role_limits", f"an object: roles, of 1 to {requests.MAX_TEXT} characters, and how many of each")
    else:
        counts |= {f"role_limits.{role}": limit for role, limit in roles.items()}
    for name, count in counts.items():
        if type(count) is not int or not 0 <= count <= 1_000_000:
            yield Problem(name, "a whole number from 0 (no limit) to 1,000,000")
    if office.timeout_seconds is not None and not requests.is_number(office.timeout_seconds, above=0):
        yield Problem("timeout_seconds", "a number of seconds above 0, or none")
    if office.webhook is not None:
        yield from requests.json_problems("webhook", office.webhook)
