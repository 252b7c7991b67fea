"""Tuning: what the configuration says of limits and offices, put to use before the start and while everything runs.

Called by `composition`: when a server is composed, and when its configuration is read again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..engine.audit import AuditLog
from ..engine.direct import MOST_WAITING, DirectExecutionHandler
from ..engine.dispatcher import STARVATION_AFTER_SECONDS, Dispatcher
from ..engine.effects import SendersRenewed, SettingsChanged
from ..engine.intake import Intake
from ..engine.offices import OfficeSettings
from ..engine.webhooks import WebhookService, WebhookSettings
from ..model import Json, Office
from ..policy.limits import ConcurrencyPolicy, Limits
from ..policy.requests import MAX_PARAMS_BYTES
from ..store.commits import GROUP_ROWS
from ..store.store import Tx
from .access import Access


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What of a configuration can change while the scheduler runs, as far as the engine is concerned."""

    limits: ConcurrencyPolicy = field(default_factory=Limits)
    offices: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    starvation_after_seconds: float = STARVATION_AFTER_SECONDS
    max_params_bytes: int = MAX_PARAMS_BYTES
    direct_waiting: int = MOST_WAITING
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)


@dataclass(frozen=True, slots=True)
class Tunable:
    """The parts of the engine that have something to set."""

    offices: OfficeSettings
    dispatcher: Dispatcher
    intake: Intake
    direct: DirectExecutionHandler
    webhooks: WebhookService

    def use(self, tuned: Tuned) -> None:
        """From now on, in memory; what is stored of it is stored by the start, or by `Tuning.apply`."""
        self.offices.use(tuned.limits, tuned.offices)
        self.dispatcher.starvation_after_seconds = tuned.starvation_after_seconds
        self.intake.max_params_bytes = tuned.max_params_bytes
        self.direct.most_waiting = tuned.direct_waiting


class Tuning:
    def __init__(self, access: Access, audit: AuditLog, parts: Tunable) -> None:
        self._access = access
        self._audit = audit
        self._parts = parts
        self.use = parts.use

    async def apply(self, tuned: Tuned, before: Mapping[str, Json], after: Mapping[str, Json]) -> list[Office]:
        """Stores it in one transaction, which also starts what may start now; answers with the offices it changed.

        `before` and `after` are for the audit log. A lower limit stops nothing that runs.
        """

        def work(tx: Tx) -> list[Office]:
            changed = self._parts.offices.configure(tx, tuned.limits, tuned.offices, self._access.clock.now())
            self._audit.changed(tx, before, after)
            tx.cause(SettingsChanged(tuned))
            if tuned.webhooks != self._parts.webhooks.settings:
                tx.cause(SendersRenewed())
            self._parts.webhooks.configure(tx, tuned.webhooks)
            return changed

        # Too large for company: a work beside it would size a limit that it meets for the first time by the old rules.
        return await self._access.write(work, rows=GROUP_ROWS + 1)
