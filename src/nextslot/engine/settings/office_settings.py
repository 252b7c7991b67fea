"""OfficeSettings: creates and changes offices while jobs run. A lower limit stops no running job."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

from nextslot.domain import (
    DEFAULT_OFFICE,
    ROLE_SETTINGS,
    CancelMode,
    Json,
    Office,
    OnDependencyFailure,
    bounds,
    default_office,
    request_checks,
    webhook_delivery,
)
from nextslot.domain.limits import ConcurrencyPolicy, is_local, office_key, office_of
from nextslot.engine.dispatch.limits_and_slots import Lanes
from nextslot.engine.execution.timeouts import Timer
from nextslot.engine.webhooks.webhook_outbox import WebhookService
from nextslot.errors import Conflict, Invalid, NotFound, Problem
from nextslot.store.contract import Tx
from nextslot.store.tables import lanes, offices
from nextslot.system.instant import Instant

from .office_quotas import OfficeQuotas

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_NOT_AN_ID = "is not an office id; use up to 100 letters, digits, '.', '_' and '-', and begin with a letter or digit"
_SETTINGS = {field.name for field in fields(Office)} - {"office_id", "is_paused", "created_at"}


class OfficeSettings:
    def __init__(self, lanes_: Lanes, quotas: OfficeQuotas, webhooks: WebhookService, timer: Timer) -> None:
        self._lanes = lanes_
        self._timer = timer
        self._quotas = quotas
        self._webhooks = webhooks
        # The office settings that the configuration file contains: they can be changed only there.
        self._fixed: Mapping[str, Mapping[str, Json]] = {}

    def use(self, policy: ConcurrencyPolicy, fixed: Mapping[str, Mapping[str, Json]]) -> None:
        """Uses the configuration that `configure` has stored."""
        self._lanes.policy = policy
        self._fixed = fixed

    def set_by_file(self, office_id: str) -> list[str]:
        """Returns the names of an office's settings that only the configuration file can change."""
        return sorted(self._fixed.get(office_id, {}))

    def create(self, tx: Tx, office_id: str, settings: Mapping[str, Json], now: Instant) -> Office:
        if not isinstance(office_id, str) or not _ID.fullmatch(office_id):
            raise Invalid(_NOT_AN_ID, field="office_id")
        office = _changed(_new(office_id, now), settings)
        self._check_webhook(office)
        if not offices.insert(tx, office):
            raise Conflict(f"the office {office_id!r} exists already: change it, or choose another id")
        self._begin_aging(tx, None, office)
        return office

    def change(self, tx: Tx, office_id: str, settings: Mapping[str, Json]) -> Office:
        office = offices.get(tx, office_id)
        if office is None:
            raise NotFound("office", office_id)
        changed = _changed(office, settings)
        if changed.status != "active" and office_id == DEFAULT_OFFICE:
            raise Conflict("the office 'default' always exists: it can be paused, not archived")
        _refuse_fixed(office, changed, self._fixed.get(office_id, {}))
        if changed.webhook != office.webhook:
            self._check_webhook(changed)
        if changed.max_concurrent_jobs != office.max_concurrent_jobs:
            self._quotas.check_concurrency(office_id, changed.max_concurrent_jobs)
        offices.update(tx, changed)
        self._begin_aging(tx, office, changed)
        self._resize(tx, changed)
        return changed

    def install(self, tx: Tx, office: Office) -> None:
        """Stores the default office, and the offices and limits of the configuration."""
        offices.insert(tx, office)
        self.configure(tx, self._lanes.policy, self._fixed, office.created_at)

    def configure(
        self, tx: Tx, policy: ConcurrencyPolicy, fixed: Mapping[str, Mapping[str, Json]], now: Instant
    ) -> list[Office]:
        """Creates and changes the offices of the configuration, resizes all limits, and dispatches every queue.

        Returns the offices that are new or changed. A lower limit stops no running job.
        """
        named = {office_id: self._configured(tx, office_id, settings, now) for office_id, settings in fixed.items()}
        everywhere = default_office(now)  # A limit that is not local is shared by all offices.
        for key, _, _ in lanes.all_limits(tx):
            office = named.get(office_of(key), (everywhere, False))[0]
            if not is_local(key) or key.startswith("key:") or office_of(key) in named:
                lanes.resize(tx, key, policy.capacity(key, office))
        self._lanes.counters(tx).include_all_offices()
        return [office for office, is_other in named.values() if is_other]

    def _configured(self, tx: Tx, office_id: str, settings: Mapping[str, Json], now: Instant) -> tuple[Office, bool]:
        before = offices.get(tx, office_id)
        after = _changed(before or _new(office_id, now), settings)
        if before is None:
            offices.insert(tx, after)
        elif after != before:
            offices.update(tx, after)
        self._begin_aging(tx, before, after)
        return after, after != before

    def _begin_aging(self, tx: Tx, before: Office | None, after: Office) -> None:
        """Lets the timer apply a new aging period to the queued jobs, some in each transaction."""
        period = after.priority_aging_seconds
        if period is not None and (before is None or period != before.priority_aging_seconds):
            offices.begin_aging(tx, after.office_id)
            self._timer.note(tx, Instant(0))

    def _check_webhook(self, office: Office) -> None:
        """Raises Invalid if a caller sets an office's webhook to an address that is not allowed."""
        if office.webhook is not None:
            self._webhooks.refuse_wrong("webhook", office.webhook, webhook_delivery.EVENTS)

    def _resize(self, tx: Tx, office: Office) -> None:
        role_prefix = f"role:{office.office_id}/"
        for limit in lanes.all_limits(tx):
            if limit.limit_key == office_key(office.office_id) or limit.limit_key.startswith(role_prefix):
                lanes.resize(tx, limit.limit_key, self._lanes.policy.capacity(limit.limit_key, office))
        self._lanes.counters(tx).office(office.office_id)


def settings_problems(office_id: str, settings: Mapping[str, Json]) -> list[Problem]:
    """Returns the problems of settings in a configuration file, whose office may not exist yet."""
    if not _ID.fullmatch(office_id):
        return [Problem("", _NOT_AN_ID)]
    try:
        _changed(_new(office_id, Instant(0)), settings)
    except Invalid as error:
        return error.problems
    return []


def _new(office_id: str, now: Instant) -> Office:
    if office_id == DEFAULT_OFFICE:
        return default_office(now)
    return Office(office_id=office_id, name=office_id, created_at=now)


def _refuse_fixed(before: Office, after: Office, fixed: Mapping[str, Json]) -> None:
    """Raises Conflict if a change differs from what the configuration file sets."""
    for name, value in fixed.items():
        old, new = getattr(before, name), getattr(after, name)
        if name == "retry_policy":  # The file may set only some of the fields.
            old, new = ({part: getattr(policy, part) for part in value} for policy in (old, new))
        if old != new:
            raise Conflict(
                f"{name!r} of the office {before.office_id!r} is set in the configuration file: change it there, "
                "then reload"
            )


def _changed(office: Office, settings: Mapping[str, Json]) -> Office:
    unknown = sorted(settings.keys() - _SETTINGS)
    if unknown:
        raise Invalid(f"is not a setting of an office; use one of {', '.join(sorted(_SETTINGS))}", field=unknown[0])
    values = dict(settings)
    if "retry_policy" in values:
        values["retry_policy"] = request_checks.retry_policy(values["retry_policy"], office.retry_policy)
    for name, kind in (("cancel_mode", CancelMode), ("on_dependency_failure", OnDependencyFailure)):
        if name in values:
            if values[name] not in list(kind):
                raise Invalid(f"is {values[name]!r}; use one of {', '.join(kind)}", field=name)
            values[name] = kind(values[name])
    changed: Office = replace(office, **values)
    if problems := list(_problems(changed)):
        raise Invalid(problems)
    return changed


def _problems(office: Office) -> Iterator[Problem]:
    yield from request_checks.text_problems("name", office.name)
    if office.status not in ("active", "archived"):
        yield Problem("status", f"is {office.status!r}; use 'active' or 'archived'")
    counts = {"max_concurrent_jobs": office.max_concurrent_jobs}
    roles = office.role_limits
    if not isinstance(roles, dict) or any(list(request_checks.text_problems("role", role)) for role in roles):
        yield Problem(
            "role_limits",
            f"is not an object of role names, of 1 to {request_checks.MAX_TEXT} characters, and limits; "
            'give for example {"writer": 2}',
        )
    else:
        counts |= {f"role_limits.{role}": limit for role, limit in roles.items()}
    for name, count in counts.items():
        if (problem := bounds.LIMIT.problem(count)) is not None:
            yield Problem(name, problem)
    timeout = office.timeout_seconds
    if timeout is not None and (problem := bounds.SECONDS.problem(timeout)) is not None:
        yield Problem("timeout_seconds", problem)
    aging = office.priority_aging_seconds
    if aging is not None and (problem := bounds.AGING.problem(aging)) is not None:
        yield Problem("priority_aging_seconds", f"{problem}, or null: jobs do not age")
    yield from _role_problems(office.roles)
    if office.webhook is not None:
        yield from webhook_delivery.problems("webhook", office.webhook, webhook_delivery.EVENTS)


def _role_problems(roles: object) -> Iterator[Problem]:
    if not isinstance(roles, Mapping):
        yield Problem("roles", "is not an object; give the settings of each role by its name")
        return
    for role, settings in roles.items():
        yield from (Problem("roles", one.problem) for one in request_checks.text_problems("role", role))
        for name, value in settings.items():
            if name not in ROLE_SETTINGS:
                yield Problem(f"roles.{role}", f"has no setting {name!r}; use one of {', '.join(ROLE_SETTINGS)}")
            elif name == "timeout_seconds" and (problem := bounds.SECONDS.problem(value)) is not None:
                yield Problem(f"roles.{role}.timeout_seconds", problem)
