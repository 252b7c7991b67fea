"""Effects: what a committed transaction causes, as values, and the interpreter that carries them out.

A work changes nothing outside its transaction: it names what its commit causes with `tx.cause`. The store hands the
effects of each commit to `Interpreter`, first on the committing thread, before the next transaction begins (updates of
what the engine keeps in memory), then on the event loop, in the order of the commits (actions). A work that is rolled
back leaves no effect anywhere. `scheduler/runtime.py` says which component carries out which effect.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nextslot.domain import (
    DeliveryStatus,
    Direct,
    FailureKind,
    Json,
    Lane,
)
from nextslot.store.contract import Effect
from nextslot.system.instant import Instant
from nextslot.telemetry.meters import EventCounts

if TYPE_CHECKING:
    from nextslot.engine.webhooks.webhook_outbox import Listeners, WebhookSettings

log = logging.getLogger(__name__)


class Claim(NamedTuple):
    """A job or direct execution that has just been started: what the executor needs to run it and to end it."""

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
    is_direct: bool = False
    title: str | None = None
    role: str | None = None
    task_id: str | None = None
    session_id: str | None = None


# Updates: what the engine keeps in memory follows the commit, on the thread that committed.


class SlotsChanged(NamedTuple):
    """Slots of a node that runs took and gave back, and the units of its machine that they use more or less of."""

    node: str
    taken: set[int]
    freed: set[int]
    units: Counter[str]


class LanesLearned(NamedTuple):
    """What never changes of lanes that this transaction read or made."""

    by_id: dict[int, Lane]
    by_limits: dict[tuple[str, str | None, str, str], int]


class TurnTaken(NamedTuple):
    """The largest turn between offices that has been given out."""

    turn: int


class SubscribersChanged(NamedTuple):
    """Everybody who wants webhooks, as stored by this transaction."""

    listeners: "Listeners"


class WebhooksConfigured(NamedTuple):
    settings: "WebhookSettings"
    server_secret: str


class SettingsChanged(NamedTuple):
    """The settings of a configuration that was read again, as stored by this transaction."""

    settings: Any  # `services.settings_reload.ReloadableSettings`, which stands above the engine.


class ClockCounted(NamedTuple):
    """The clock offset that this node's stored due times are counted by."""

    offset: int
    is_shared: bool


class KeysMade(NamedTuple):
    """There is a key: from now on every caller needs one."""


class NodeJoined(NamedTuple):
    life: int


class RequestsLinked(NamedTuple):
    """The spans of the requests that made these jobs, as the tracer knows them."""

    links: Mapping[str, Any]


class DueBy(NamedTuple):
    """The earliest stored instant that something waits for; None if there is none."""

    at: Instant | None


# Actions: what happens on the event loop, once the commit is durable.


class WakeBy(NamedTuple):
    """Something that this transaction stored is due then."""

    at: Instant


class Launch(NamedTuple):
    claim: Claim


class Stop(NamedTuple):
    """A run, or direct execution, is to end before it is done."""

    run_id: str
    kind: FailureKind


class RunEnded(NamedTuple):
    """The outcome of a run is stored; `seconds` is how long a completed one took."""

    job_type: str
    seconds: float | None
    ended_at: float


class ChainEnded(NamedTuple):
    chain_id: str


class EventsAppended(NamedTuple):
    counts: EventCounts


class Deliver(NamedTuple):
    """There is something to send to these endpoints."""

    origins: frozenset[str]
    now: Instant


class DeliveriesDue(NamedTuple):
    """Everything that was due is done: what is due to be sent again is next."""


class DeliverySettled(NamedTuple):
    status: DeliveryStatus


class SendersRenewed(NamedTuple):
    """Webhooks are sent by other settings from now on."""


class DirectStarted(NamedTuple):
    direct_id: str


class DirectMoved(NamedTuple):
    """The direct callers who wait in an office, in their order."""

    waiting: Sequence[str]


class DirectEnded(NamedTuple):
    """How many callers were ahead matters to one whose wait ran out."""

    ended: Direct
    ahead: int = 0


class ClockStepped(NamedTuple):
    """The wall clock has stepped by so many microseconds, and stored due times were moved by as much."""

    shift: int


Update = (
    SlotsChanged
    | LanesLearned
    | TurnTaken
    | SubscribersChanged
    | WebhooksConfigured
    | SettingsChanged
    | ClockCounted
    | KeysMade
    | NodeJoined
    | RequestsLinked
    | DueBy
    | WakeBy
)
Action = (
    WakeBy
    | Launch
    | Stop
    | RunEnded
    | ChainEnded
    | EventsAppended
    | Deliver
    | DeliveriesDue
    | DeliverySettled
    | SendersRenewed
    | DirectStarted
    | DirectMoved
    | DirectEnded
    | ClockStepped
)

# Takes the fields of the effect, in their order.
Handler = Callable[..., None]


class Interpreter:
    """Carries out effects: each kind by the handler that its table names. `WakeBy` is in both."""

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
            continue  # Of the other table.
        try:
            handler(*effect)
        except Exception:  # The other effects, and the callers, must not suffer from one that fails.
            log.exception("the effect %s of a committed transaction failed", type(effect).__name__)
