"""Effects: values that say what must follow a commit, and the interpreter that carries them out.

A unit of work changes nothing outside its transaction; it adds the effects of its commit with `tx.cause`. After each
commit, the store calls `Interpreter` twice: first on the committing thread, before the next transaction begins, for
updates of the engine's memory; then on the event loop, in the order of the commits, for actions. A unit of work that is
rolled back has no effect. `scheduler/runtime.py` lists which component carries out which effect.
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
    """The kind of work in a claim: decides which row stores the outcome, and names the id in logs and metrics."""

    JOB = "job"
    DIRECT = "direct"


class Claim(NamedTuple):
    """A job or direct execution that has just started, with what the executor needs to run it and to end it."""

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
    # Reads that the store may send together with the transaction that stores the outcome.
    reads_at_end: tuple[Read, ...] = ()
    title: str | None = None
    role: str | None = None
    task_id: str | None = None
    session_id: str | None = None
    # Whether a separate process runs this claim although its job type does not require one.
    is_isolated: bool = False
    # The first job of the chain if that job waited for others: their results and artifacts are the inputs of this run.
    waited: str | None = None
    # By resource, the named devices that only this run uses, and the environment variables that name the devices.
    devices: Devices = NO_DEVICES
    environment: Mapping[str, str] = NO_VARIABLES
    # The first job of the chain if this job is a later attempt, or waited for a signal: the run then gets the last
    # checkpoint of the chain, and the answers to the chain's waits.
    continues: str | None = None

    @property
    def times(self) -> tuple[float | None, float | None]:
        """Returns after how many seconds the run times out, and after how many without output or progress."""
        return self.timeout_seconds, self.stall_timeout_seconds


# Updates change the engine's memory, on the thread that committed.


class SlotsChanged(NamedTuple):
    """The slots of a node that this transaction has taken and freed, and how the used units of its resources change."""

    node: str
    taken: set[int]
    freed: set[int]
    units: Counter[str]


class LanesLearned(NamedTuple):
    """The lanes that this transaction has read or created, for the cache; a lane never changes."""

    by_id: dict[int, Lane]
    by_limits: dict[tuple[str, str | None, str, str], int]


class LanesDeleted(NamedTuple):
    """This transaction has deleted lanes, so the cache of lanes is emptied."""


class MinuteBegun(NamedTuple):
    """This transaction has stored the queue depth at the beginning of this minute and of the minutes before."""

    minute: int


class SubscribersChanged(NamedTuple):
    """All receivers of webhooks, after this transaction."""

    listeners: "Listeners"


class WebhooksConfigured(NamedTuple):
    settings: "WebhookSettings"
    server_secret: str


class SettingsChanged(NamedTuple):
    """The reloaded settings that this transaction has stored."""

    settings: Any  # A class of `services/runtime_settings.py`, which the engine does not import.


class ClockCounted(NamedTuple):
    """The clock offset on which the stored due times of this node are based."""

    offset: int
    is_shared: bool


class KeysMade(NamedTuple):
    """This transaction has stored an API key: from now on, every caller needs one."""


class QuotasChanged(NamedTuple):
    """This transaction has changed the quotas that admins grant to offices."""

    granted: Mapping[str, Quotas]


class KeysEnded(NamedTuple):
    """The server refuses this key, or one of its secrets, from now on."""


class NodeJoined(NamedTuple):
    life: int


class RequestsLinked(NamedTuple):
    """The tracing spans of the requests that created these jobs."""

    links: Mapping[str, Any]


class DueBy(NamedTuple):
    """The earliest stored instant at which something is due; None if nothing is."""

    at: Instant | None


# Actions run on the event loop, once the commit is durable.


class WakeBy(NamedTuple):
    """This transaction has stored something that is due at this instant, so the timer must wake by then."""

    at: Instant


class Launch(NamedTuple):
    claim: Claim


class Place(NamedTuple):
    """Hands a run to its engine, or follows it there. The token is None if another process has started the run."""

    claim: Claim
    placed: Placement
    token: str | None


class Stop(NamedTuple):
    """Stops a run or a direct execution."""

    run_id: str
    kind: FailureKind


class LookAgain(NamedTuple):
    """Starts another dispatch round: after many starts, or for offices about which another node decided meanwhile."""


class RunEnded(NamedTuple):
    """This transaction has stored the outcome of a run. `seconds` is the duration of a completed run."""

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
    """The timer has done all due jobs and timeouts, so that due deliveries can be sent."""


class DeliverySettled(NamedTuple):
    status: DeliveryStatus


class SendersRenewed(NamedTuple):
    """This transaction has changed the settings for sending webhooks."""


class DirectStarted(NamedTuple):
    run_id: str


class DirectMoved(NamedTuple):
    """The ids of the waiting direct callers of an office, in their order."""

    waiting: Sequence[str]


class DirectEnded(NamedTuple):
    """A direct execution has ended. `ahead` is the number of callers before it, if its wait timed out."""

    ended: Direct
    ahead: int = 0


class ClockStepped(NamedTuple):
    """The wall clock has stepped by so many microseconds; this transaction has moved the stored due times as far."""

    shift: int


# A handler takes the fields of the effect, in their order.
Handler = Callable[..., None]


class Interpreter:
    """Carries out each effect by the handler that one of two tables names. `WakeBy` is in both tables."""

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
            continue  # The other table has its handler.
        try:
            handler(*effect)
        except Exception:  # An effect that fails must not prevent the others, nor fail the caller.
            log.exception("the effect %s of a committed transaction failed", type(effect).__name__)
