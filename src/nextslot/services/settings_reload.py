"""Tuning: what the configuration says of limits and offices, put to use before the start and while everything runs.

Called by `composition`: when a server is composed, and when its configuration is read again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from nextslot.domain import Json, Office
from nextslot.domain.limits import ConcurrencyPolicy, Limits
from nextslot.domain.request_checks import MAX_PARAMS_BYTES
from nextslot.engine.direct.direct_requests import MOST_WAITING, DirectExecutionHandler
from nextslot.engine.dispatch.dispatcher import Dispatcher
from nextslot.engine.dispatch.starvation import STARVATION_AFTER_SECONDS
from nextslot.engine.effects import SendersRenewed, SettingsChanged
from nextslot.engine.settings.office_settings import OfficeSettings
from nextslot.engine.submit.intake import Intake
from nextslot.engine.webhooks.webhook_outbox import WebhookService, WebhookSettings
from nextslot.store.contract import Tx
from nextslot.store.group_commit import GROUP_ROWS

from .unit_of_work import UnitOfWork


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadableSettings:
    """What of a configuration can change while the scheduler runs, as far as the engine is concerned."""

    limits: ConcurrencyPolicy = field(default_factory=Limits)
    offices: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    starvation_after_seconds: float = STARVATION_AFTER_SECONDS
    max_params_bytes: int = MAX_PARAMS_BYTES
    direct_waiting: int = MOST_WAITING
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)


@dataclass(frozen=True, slots=True)
class ReloadableParts:
    """The parts of the engine that have something to set."""

    offices: OfficeSettings
    dispatcher: Dispatcher
    intake: Intake
    direct: DirectExecutionHandler
    webhooks: WebhookService

    def use(self, settings: ReloadableSettings) -> None:
        """From now on, in memory; what is stored of it is stored by the start, or by `Tuning.apply`."""
        self.offices.use(settings.limits, settings.offices)
        self.dispatcher.starvation_after_seconds = settings.starvation_after_seconds
        self.intake.max_params_bytes = settings.max_params_bytes
        self.direct.most_waiting = settings.direct_waiting


class SettingsReload:
    def __init__(self, access: UnitOfWork, parts: ReloadableParts) -> None:
        self._access = access
        self._parts = parts
        self.use = parts.use

    async def apply(
        self, settings: ReloadableSettings, before: Mapping[str, Json], after: Mapping[str, Json]
    ) -> list[Office]:
        """Stores it in one transaction, which also starts what may start now; answers with the offices it changed.

        `before` and `after` are for the audit log. A lower limit stops nothing that runs.
        """

        def work(tx: Tx) -> list[Office]:
            changed = self._parts.offices.configure(tx, settings.limits, settings.offices, self._access.clock.now())
            self._access.audit.changed(tx, before, after)
            tx.cause(SettingsChanged(settings))
            if settings.webhooks != self._parts.webhooks.settings:
                tx.cause(SendersRenewed())
            self._parts.webhooks.configure(tx, settings.webhooks)
            return changed

        # Too large for company: a work beside it would size a limit that it meets for the first time by the old rules.
        return await self._access.write(work, rows=GROUP_ROWS + 1)
