"""Effects: what a committed transaction causes, as values, and the interpreter that carries them out.

A work changes nothing outside its transaction; it adds the effects of its commit with `tx.cause`. After each commit the
store calls `Interpreter` twice: on the committing thread, before the next transaction begins (updates of the engine's
memory), and on the event loop, in the order of the commits (actions). A work that is rolled back has no effect.
`scheduler/runtime.py` lists which component carries out which effect.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from nextslot.domain import DeliveryStatus, Direct, FailureKind, Json, Lane, Quotas
from nextslot.domain.devices import NO_DEVICES, NO_VARIABLES, Devices
from nextslot.domain.placements import Placement
from nextslot.store.contract import Effect, Read
from nextslot.system.instant import Instant
from nextslot.telemetry.meters import EventCounts

if TYPE_CHECKING:
    from nextslot.engine.webhooks.webhook_outbox import Listeners, WebhookSettings

log = logging.getLogger(__name__)


class WorkKind(StrEnum):
    """What a claim runs: decides which row stores the outcome, and names the id in logs, metrics and traces."""

    JOB = "job"
    DIRECT = "direct"


class Claim(NamedTuple):
    """A job or direct execution that has just been started: what the executor needs to run it and to end it."""

    kind: WorkKind
    run_id: str
    job_id: str
    office_id: str
    lane_id: int
    job_type: str
    params: Json
    attempt: int
    worker_id: str
    timeout_seconds: float | None
    stall_timeout_seconds: float | None = None
    # Reads that the store may send ahead of the transaction that stores the outcome.
    reads_at_end: tuple[Read, ...] = ()
    title: str | None = None
    role: str | None = None
    task_id: str | None = None
    session_id: str | None = None
    # Runs in a separate process, although its type does not ask for one.
    is_isolated: bool = False
    # The first job of its chain if that waited for others, whose results and artifacts are the inputs of this run.
    waited: str | None = None
    # By resource, the named devices that this run alone uses, and what its environment says about them.
    devices: Devices = NO_DEVICES
    environment: Mapping[str, str] = NO_VARIABLES
    # The first job of its chain if this is a later attempt, or one that waited for a signal: it gets the chain's last
    # checkpoint, and the answers to its waits.
    continues: str | None = None

    @property
    def times(self) -> tuple[float | None, float | None]:
        """Returns how long the run may take, and how long it may be silent."""
        return self.timeout_seconds, self.stall_timeout_seconds


# Updates change the engine's memory, on the thread that committed.


class SlotsChanged(NamedTuple):
    """The slots of a node that runs have taken and freed, and the change in the units of its resources in use."""

    node: str
    taken: set[int]
    freed: set[int]
    units: Counter[str]


class LanesLearned(NamedTuple):
    """The lanes that this transaction has read or created; a lane never changes."""

    by_id: dict[int, Lane]
    by_limits: dict[tuple[str, str | None, str, str], int]


class LanesDeleted(NamedTuple):
    """This transaction has deleted lanes: what is known of lanes is read again."""


class MinuteBegun(NamedTuple):
    """The minute whose beginning this transaction has stored: the depth of the queue, and the minutes before."""

    minute: int


class SubscribersChanged(NamedTuple):
    """All receivers of webhooks, as this transaction has stored them."""

    listeners: "Listeners"


class WebhooksConfigured(NamedTuple):
    settings: "WebhookSettings"
    server_secret: str


class SettingsChanged(NamedTuple):
    """The settings of a configuration that was reloaded, as this transaction has stored them."""

    settings: Any  # Of `services/runtime_settings.py`, which the engine does not import.


class ClockCounted(NamedTuple):
    """The clock offset on which this node's stored due times are based."""

    offset: int
    is_shared: bool


class KeysMade(NamedTuple):
    """A key exists: every caller needs one from now on."""


class QuotasChanged(NamedTuple):
    """What admins grant to offices has changed."""

    granted: Mapping[str, Quotas]


class KeysEnded(NamedTuple):
    """The server refuses a key, or one of its texts, from now on."""


class NodeJoined(NamedTuple):
    life: int


class RequestsLinked(NamedTuple):
    """The spans of the requests that created these jobs, for the tracer."""

    links: Mapping[str, Any]


class DueBy(NamedTuple):
    """The earliest stored instant at which something is due, if there is one."""

    at: Instant | None


# Actions run on the event loop, once the commit is durable.


class WakeBy(NamedTuple):
    """This transaction has stored something that is due at this instant."""

    at: Instant


class Launch(NamedTuple):
    claim: Claim


class Place(NamedTuple):
    """A run is handed to its engine, or followed there. The token is None if another process has started it."""

    claim: Claim
    placed: Placement
    token: str | None


class Stop(NamedTuple):
    """Stops a run or a direct execution."""

    run_id: str
    kind: FailureKind


class LookAgain(NamedTuple):
    """Jobs of an office may start here about which another node decided at the same time."""


class RunEnded(NamedTuple):
    """The outcome of a run is stored. `seconds` is the duration of a completed run."""

    job_type: str
    seconds: float | None
    ended_at: float
    params: Mapping[str, Json]


class ChainEnded(NamedTuple):
    chain_id: str


class EventsAppended(NamedTuple):
    counts: EventCounts


class Deliver(NamedTuple):
    """Deliveries to these endpoints are due."""

    origins: frozenset[str]
    now: Instant


class DeliveriesDue(NamedTuple):
    """All due jobs and timeouts are done, so the deliveries that are due can be sent."""


class DeliverySettled(NamedTuple):
    status: DeliveryStatus


class SendersRenewed(NamedTuple):
    """The settings for sending webhooks have changed."""


class DirectStarted(NamedTuple):
    run_id: str


class DirectMoved(NamedTuple):
    """The ids of the direct callers who wait in an office, in their order."""

    waiting: Sequence[str]


class DirectEnded(NamedTuple):
    """A direct execution has ended. `ahead` is the number of callers before it, if its wait timed out."""

    ended: Direct
    ahead: int = 0


class ClockStepped(NamedTuple):
    """The wall clock has stepped by so many microseconds, and stored due times were moved by the same amount."""

    shift: int


# Takes the fields of the effect, in their order.
Handler = Callable[..., None]


class Interpreter:
    """Carries out each effect by the handler that its table names. `WakeBy` is in both tables."""

    def __init__(self, updates: Mapping[type, Handler], actions: Mapping[type, Handler]) -> None:
        self._updates = updates
        self._actions = actions

    def apply(self, effects: Sequence[Effect]) -> None:
        _carry_out(self._updates, effects)

    def carry_out(self, effects: Sequence[Effect]) -> None:
        _carry_out(self._actions, effects)


def _carry_out(handlers: Mapping[type, Handler], effects: Iterable[Any]) -> None:
    for effect in effects:
        handler = handlers.get(type(effect))
        if handler is None:
            continue  # The other table has it.
        try:
            handler(*effect)
        except Exception:  # One effect that fails must not stop the others, nor fail the caller.
            log.exception("the effect %s of a committed transaction failed", type(effect).__name__)
