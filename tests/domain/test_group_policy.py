"""INV-006 and DEC-012: what a group's status is, and what a member's end does to the others."""

from dataclasses import replace
from itertools import product

import pytest

from nextslot.domain import (
    ChainEnd,
    Group,
    GroupMode,
    GroupStatus,
    OnFailure,
)
from nextslot.domain.group_failure import Action, ByOnFailure, status_of
from nextslot.system.instant import Instant


@pytest.mark.parametrize(
    ("end", "on_failure", "action"),
    [
        (ChainEnd.SUCCEEDED, OnFailure.STOP, Action.GO_ON),
        (ChainEnd.SUCCEEDED, OnFailure.CONTINUE, Action.GO_ON),
        (ChainEnd.SUCCEEDED, OnFailure.SKIP, Action.GO_ON),
        (ChainEnd.FAILED, OnFailure.STOP, Action.CANCEL_REST),
        (ChainEnd.FAILED, OnFailure.CONTINUE, Action.GO_ON),
        (ChainEnd.FAILED, OnFailure.SKIP, Action.SKIP_REST),
        (ChainEnd.CANCELLED, OnFailure.STOP, Action.CANCEL_REST),
        (ChainEnd.CANCELLED, OnFailure.CONTINUE, Action.GO_ON),
        (ChainEnd.CANCELLED, OnFailure.SKIP, Action.SKIP_REST),
    ],
)
def test_DEC_012_what_becomes_of_the_rest(end: ChainEnd, on_failure: OnFailure, action: Action) -> None:
    group = replace(a_group(2, 1, 0, 0, True), on_failure=on_failure)

    assert ByOnFailure().after_member(group, end) is action


def test_INV_006_every_count_of_a_group_has_its_status() -> None:
    for members, ended, succeeded, cancelled in product(range(1, 4), range(4), range(4), range(4)):
        if ended <= members and succeeded + cancelled <= ended:
            for is_started in (False, True):
                group = a_group(members, ended, succeeded, cancelled, is_started)
                assert status_of(group) is expected(members, ended, succeeded, cancelled, is_started), group


def expected(members: int, ended: int, succeeded: int, cancelled: int, is_started: bool) -> GroupStatus:
    if ended != members:
        return GroupStatus.RUNNING if is_started else GroupStatus.QUEUED
    if succeeded == members:
        return GroupStatus.COMPLETED
    if cancelled == members:
        return GroupStatus.CANCELLED
    return GroupStatus.PARTIAL


def a_group(members: int, ended: int, succeeded: int, cancelled: int, is_started: bool) -> Group:
    return Group(
        group_id="g",
        office_id="default",
        mode=GroupMode.PARALLEL,
        on_failure=OnFailure.STOP,
        status=GroupStatus.QUEUED,
        created_at=Instant(1),
        started_at=Instant(2) if is_started else None,
        members=members,
        ended=ended,
        succeeded=succeeded,
        cancelled=cancelled,
    )
