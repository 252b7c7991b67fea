"""Offices: rows of settings, made and changed while everything runs; a lower limit stops no running job."""

import re
from collections.abc import Mapping
from dataclasses import fields, replace

from ..clock import Instant
from ..errors import Conflict, Invalid, NotFound
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
        if not _ID.fullmatch(office_id):
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
    if not isinstance(office.name, str) or not 0 < len(office.name) <= requests.MAX_TEXT:
        raise Invalid(f"1 to {requests.MAX_TEXT} characters", field="name")
    if office.status not in ("active", "archived"):
        raise Invalid("'active' or 'archived'", field="status")
    counts = {"max_concurrent_jobs": office.max_concurrent_jobs}
    counts |= {f"role_limits.{role}": limit for role, limit in office.role_limits.items()}
    for name, count in counts.items():
        if type(count) is not int or not 0 <= count <= 1_000_000:
            raise Invalid("a whole number from 0 (no limit) to 1,000,000", field=name)
    if office.timeout_seconds is not None and not requests.is_number(office.timeout_seconds, above=0):
        raise Invalid("a number of seconds above 0, or none", field="timeout_seconds")
