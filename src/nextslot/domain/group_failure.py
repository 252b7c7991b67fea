"""Decides what a group does when a member ends, and its status (INV-006, DEC-012).

The policy can be replaced (OQ-002). The scheduler calls it in the transaction that ends a member, so what it decides is
stored with the end of the member.
"""

from enum import StrEnum
from typing import Protocol

from . import ChainEnd, Group, GroupStatus, OnFailure


class Action(StrEnum):
    """What to do with the members of a group that have not started."""

    GO_ON = "go_on"
    CANCEL_REST = "cancel_rest"
    SKIP_REST = "skip_rest"


class GroupFailurePolicy(Protocol):
    def after_member(self, group: Group, end: ChainEnd) -> Action:
        """Returns what happens to the members that have not started, after the chain of a member has ended.

        `group` counts this member. The same arguments must give the same answer, since a transaction may run twice.
        """


class ByOnFailure:
    """The default policy: `on_failure` of the group decides."""

    def after_member(self, group: Group, end: ChainEnd) -> Action:
        if end is ChainEnd.SUCCEEDED or group.on_failure is OnFailure.CONTINUE:
            return Action.GO_ON
        return Action.CANCEL_REST if group.on_failure is OnFailure.STOP else Action.SKIP_REST


def status_of(group: Group) -> GroupStatus:
    """Returns the status of a group; it is final only when all members have ended (INV-006)."""
    if group.ended < group.members:
        return GroupStatus.QUEUED if group.started_at is None else GroupStatus.RUNNING
    if group.succeeded == group.members:
        return GroupStatus.COMPLETED
    return GroupStatus.CANCELLED if group.cancelled == group.members else GroupStatus.PARTIAL
