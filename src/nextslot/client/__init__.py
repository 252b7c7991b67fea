"""`Client` and `AsyncClient`: the verbs of the scheduler over HTTP, for programs and for the command line."""

from .problems import NoAnswer, OutcomeUnknown, Rejected
from .transports import AsyncClient, Client
from .values import (
    Checkpoint,
    Direct,
    Ended,
    Engine,
    Event,
    Failure,
    Failures,
    Group,
    GroupDetail,
    Job,
    JobDetail,
    JobType,
    Node,
    Occurrence,
    Page,
    Queue,
    Run,
    Schedule,
    Series,
    SeriesPoint,
    Signal,
    Template,
    Update,
    Why,
)

__all__ = [
    "AsyncClient", "Checkpoint", "Client", "Direct", "Ended", "Engine", "Event", "Failure", "Failures", "Group",
    "GroupDetail", "Job", "JobDetail", "JobType", "NoAnswer", "Node", "Occurrence", "OutcomeUnknown", "Page", "Queue",
    "Rejected", "Run", "Schedule", "Series", "SeriesPoint", "Signal", "Template", "Update", "Why",
]  # fmt: skip
