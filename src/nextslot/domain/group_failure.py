"""Decides what a group does when a member ends, and its status (INV-006, DEC-012)."""

from enum import StrEnum

from . import (
    ChainEnd,
    Group,
    GroupStatus,
    OnFailure,
)


class Action(StrEnum):
    """What happens to the members that have not started."""

    GO_ON = "go_on"
    CANCEL_REST = "cancel_rest"
    SKIP_REST = "skip_rest"


def after_member(end: ChainEnd, on_failure: OnFailure) -> Action:
    if end is ChainEnd.SUCCEEDED or on_failure is OnFailure.CONTINUE:
        return Action.GO_ON
    return Action.CANCEL_REST if on_failure is OnFailure.STOP else Action.SKIP_REST


def status_of(group: Group) -> GroupStatus:
    """Returns the status of a group; it is final only when all members have ended (INV-006)."""
    if group.ended < group.members:
        return GroupStatus.QUEUED if group.started_at is None else GroupStatus.RUNNING
    if group.succeeded == group.members:
        return GroupStatus.COMPLETED
    return GroupStatus.CANCELLED if group.cancelled == group.members else GroupStatus.PARTIAL
