"""What the end of a chain does to the jobs that wait for it."""

from enum import StrEnum

from . import ChainEnd, OnDependencyFailure


class Dependents(StrEnum):
    """What the end of a chain does to a job that waits for it."""

    RELEASE = "release"
    CANCEL = "cancel"
    WAIT = "wait"


def dependent_after(end: ChainEnd, on_dependency_failure: OnDependencyFailure) -> Dependents:
    if end is ChainEnd.SUCCEEDED:
        return Dependents.RELEASE
    return Dependents.CANCEL if on_dependency_failure is OnDependencyFailure.CANCEL else Dependents.WAIT
