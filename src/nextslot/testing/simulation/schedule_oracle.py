"""Checks in each commit which occurrences of a schedule fired and which were skipped, by independent rules (spec 10).

`oracles.Watch` calls it with the events of a commit, and with the schedules as they were stored before that commit.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

from nextslot.domain import catch_up

from .broken import Broken
from .check_reads import CronPlan, Told

SECOND = 1_000_000
LAW = "catch-up chooses the occurrences that its schedule asks for"


class _Account(NamedTuple):
    """What one commit stores for one schedule: the instants that fired, and (reason, first, last, count) of the skipped
    ones.
    """

    now: int
    fired: list[int]
    skipped: list[tuple[str, int, int, int]]


def misfired(new: Iterable[Told], cron_settings: Mapping[str, CronPlan], busy: set[str]) -> Iterator[Broken]:
    """Finds wrong outcomes of occurrences. `cron_settings` and `busy` are from before the commit, because a change of a
    schedule applies to later occurrences only.
    """
    for schedule_id, account in _accounts(new).items():
        plan = cron_settings.get(schedule_id)
        if plan is None:
            continue
        for problem in _problems(plan, account, schedule_id in busy):
            yield Broken(LAW, f"{schedule_id} ({plan.catch_up}, {plan.overlap}) at {account.now}: {problem}")


def _accounts(new: Iterable[Told]) -> dict[str, _Account]:
    found: dict[str, _Account] = {}
    for event in new:
        if event.type in ("schedule_fired", "schedule_skipped"):
            details = json.loads(event.details)
            account = found.setdefault(details["schedule_id"], _Account(event.timestamp, [], []))
            first = _instant(details["instant"])
            if event.type == "schedule_fired":
                account.fired.append(first)
            else:
                last = first if details["until"] is None else _instant(details["until"])
                account.skipped.append((details["reason"], first, last, details["count"]))
    return found


def _problems(plan: CronPlan, account: _Account, was_busy: bool) -> Iterator[str]:
    on_time = account.now - int(catch_up.GRACE_SECONDS * SECOND)
    window = min(account.now - int(plan.window_seconds * SECOND), on_time)
    if plan.is_deleted or not plan.enabled:
        if account.fired:
            yield f"it is disabled or deleted, and {account.fired[0]} fired"
        return
    yield from _problems_of_overlap(plan, account, was_busy)
    by_reason = {reason: (first, last, count) for reason, first, last, count in account.skipped}
    late = [at for at in account.fired if at < on_time]
    if any(at < window for at in late):
        yield f"{late[0]} fired, which is older than its window"
    if "outside_window" in by_reason and by_reason["outside_window"][1] >= window:
        yield "an occurrence inside its window was skipped as too old"
    chosen = [*account.fired, *(last for reason, _, last, _ in account.skipped if reason in ("overlap", "refused"))]
    if plan.catch_up == "none" and (late or by_reason.get("missed", (0, 0, 0))[1] >= on_time):
        yield "what was missed fired, or what was on time did not"
    if plan.catch_up != "none" and "missed" in by_reason:
        yield "an occurrence was skipped as missed"
    if "coalesced" in by_reason:
        first, last, _ = by_reason["coalesced"]
        if any(at <= last for at in account.fired):
            yield "an older occurrence fired in place of a newer one"
        most = 1 if plan.catch_up == "latest" else catch_up.MOST_CAUGHT_UP
        if plan.catch_up == "none" or (plan.overlap == "allow" and len(chosen) != most):
            yield f"{len(chosen)} fired beside those that were left out from {first} on"
    if plan.catch_up == "latest" and len(account.fired) > 1 and late:
        yield f"{len(account.fired)} fired, and one should"


def _problems_of_overlap(plan: CronPlan, account: _Account, was_busy: bool) -> Iterator[str]:
    has_overlap = any(reason == "overlap" for reason, *_ in account.skipped)
    if plan.overlap == "allow" and has_overlap:
        yield "it allows overlap, and an occurrence was skipped for it"
    if plan.overlap == "skip" and len(account.fired) > 1:
        yield f"{len(account.fired)} fired at once, and it allows no overlap"
    if plan.overlap == "skip" and not account.fired and has_overlap and not was_busy:
        yield "an occurrence was skipped for a job that is not there"


def _instant(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000_000)
