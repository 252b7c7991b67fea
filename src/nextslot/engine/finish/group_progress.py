"""GroupProgress: counts ended members, passes the turn, and stops a group on a failure (INV-006, DEC-012).

`domain/group_failure.py` decides what a failed member does to the others.
"""

import logging
from dataclasses import dataclass, replace

from nextslot.domain import (
    ChainEnd,
    Group,
    GroupMode,
    Job,
)
from nextslot.domain.group_failure import Action, ByOnFailure, GroupFailurePolicy, status_of
from nextslot.engine.engine_context import EngineContext
from nextslot.store.contract import ALL, Tx
from nextslot.store.tables import groups, jobs
from nextslot.system.instant import Instant

ON_FAILURE = ByOnFailure()

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RemainingMembers:
    """The decision about the members that have not started."""

    action: Action
    job_ids: list[str]


class GroupProgress:
    def __init__(self, engine: EngineContext, policy: GroupFailurePolicy = ON_FAILURE) -> None:
        self._policy = policy
        self._engine = engine
        self._events = engine.events
        self._webhooks = engine.webhooks

    def member_ended(
        self, tx: Tx, group_id: str, sequence: int, end: ChainEnd, by_request: bool, now: Instant
    ) -> RemainingMembers:
        """Counts a member whose chain has ended, and passes the turn on. Returns what happens to the rest."""
        group = groups.get(tx, group_id)
        assert group is not None
        group = self._count(tx, group, end, by_request, 1, now)
        if group.cancel_request is not None:
            return RemainingMembers(Action.GO_ON, [])  # The cancel ends the rest, so no member gets the turn.
        action = self._decided(group, end)
        if action is not Action.GO_ON:
            return RemainingMembers(action, [job.job_id for job in jobs.unstarted_members(tx, group_id, ALL)])
        if group.mode is GroupMode.SEQUENTIAL:
            self._pass_turn(tx, group_id, sequence, now)
        return RemainingMembers(action, [])

    def _decided(self, group: Group, end: ChainEnd) -> Action:
        """Asks the policy. If a user's policy raises, `on_failure` decides: without an answer, no member could end."""
        try:
            return Action(self._policy.after_member(group, end))
        except Exception:  # A user's policy may raise anything.
            log.exception("the failure policy of groups failed; on_failure decides about group %s", group.group_id)
            return ON_FAILURE.after_member(group, end)

    def member_reopened(self, tx: Tx, group_id: str, end: ChainEnd, by_request: bool, now: Instant) -> None:
        """Counts a member as open again, because it is retried by hand; its group is open again too."""
        group = groups.get(tx, group_id)
        assert group is not None
        self._count(tx, group, end, by_request, -1, now)

    def _count(self, tx: Tx, group: Group, end: ChainEnd, by_request: bool, step: int, now: Instant) -> Group:
        group = replace(
            group,
            ended=group.ended + step,
            succeeded=group.succeeded + step * (end is ChainEnd.SUCCEEDED),
            cancelled=group.cancelled + step * (end is ChainEnd.CANCELLED and by_request),
        )
        status = status_of(group)
        is_over = group.ended == group.members
        group = replace(group, status=status, finished_at=now if is_over else None)
        groups.count(tx, group)
        if is_over:
            self._events.note(
                tx, "group_finished", now, group.office_id, details={"group_id": group.group_id, "status": status}
            )
            self._webhooks.group_finished(tx, group, now)
        return group

    def _pass_turn(self, tx: Tx, group_id: str, sequence: int, now: Instant) -> None:
        """Gives the turn to the next open member. A member that ended before its turn has none to pass on."""
        ended = self._member(tx, group_id, sequence)
        following = self._member(tx, group_id, sequence + 1) if ended and ended.is_turn else None
        while following is not None and following.has_ended and not following.is_turn:
            sequence += 1
            following = self._member(tx, group_id, sequence + 1)
        if following is not None:
            self._give_turn(tx, following.job_id, now)

    def _member(self, tx: Tx, group_id: str, sequence: int) -> Job | None:
        job_id = jobs.member_at(tx, group_id, sequence)
        return jobs.get(tx, job_id) if job_id else None

    def _give_turn(self, tx: Tx, job_id: str, now: Instant) -> None:
        freed = jobs.give_turn(tx, job_id)
        if freed is not None:
            self._engine.note_freed(tx, freed, now)
