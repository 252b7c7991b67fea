"""Settings of the engine that a configuration sets before the start and changes while the scheduler runs.

`scheduler_from_config` calls it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from nextslot.domain import Json, Office
from nextslot.domain.bounds import MAX_PARAMS_BYTES
from nextslot.domain.limits import ConcurrencyPolicy, Limits
from nextslot.engine.direct.direct_requests import MOST_WAITING, DirectExecutionHandler
from nextslot.engine.dispatch.dispatcher import Dispatcher
from nextslot.engine.dispatch.starvation import STARVATION_AFTER_SECONDS
from nextslot.engine.effects import SendersRenewed, SettingsChanged
from nextslot.engine.execution.executor import STALL_ALARM_SECONDS, Executor
from nextslot.engine.settings.office_settings import OfficeSettings
from nextslot.engine.submit.intake import Intake
from nextslot.engine.webhooks.webhook_outbox import WebhookService, WebhookSettings
from nextslot.store.contract import Tx, Work
from nextslot.store.group_commit import GROUP_ROWS

from .unit_of_work import UnitOfWork


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadableSettings:
    """The settings of the engine that can change while the scheduler runs."""

    limits: ConcurrencyPolicy = field(default_factory=Limits)
    offices: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    starvation_after_seconds: float = STARVATION_AFTER_SECONDS
    stall_alarm_seconds: float = STALL_ALARM_SECONDS
    max_params_bytes: int = MAX_PARAMS_BYTES
    direct_waiting: int = MOST_WAITING
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)


@dataclass(frozen=True, slots=True)
class SettingsService:
    access: UnitOfWork
    offices: OfficeSettings
    dispatcher: Dispatcher
    intake: Intake
    direct: DirectExecutionHandler
    webhooks: WebhookService
    executor: Executor

    def use(self, settings: ReloadableSettings) -> None:
        """Changes the engine's settings in memory: before the start, and after the commit of `apply`."""
        self.offices.use(settings.limits, settings.offices)
        self.dispatcher.starvation_after_seconds = settings.starvation_after_seconds
        self.executor.stall_alarm_seconds = settings.stall_alarm_seconds
        self.intake.max_params_bytes = settings.max_params_bytes
        self.direct.most_waiting = settings.direct_waiting

    async def apply(
        self,
        settings: ReloadableSettings,
        before: Mapping[str, Json],
        after: Mapping[str, Json],
        declared: Work[None] = lambda tx: None,
    ) -> list[Office]:
        """Stores the settings, and then what `declared` stores, in one transaction, which also starts the jobs that the
        settings allow. Returns the changed offices.

        `before` and `after` are for the audit log. A lower limit stops no running job.
        """

        def work(tx: Tx) -> list[Office]:
            changed = self.offices.configure(tx, settings.limits, settings.offices, self.access.clock.now())
            declared(tx)
            self.access.audit.changed(tx, before, after)
            tx.cause(SettingsChanged(settings))
            if settings.webhooks != self.webhooks.settings:
                tx.cause(SendersRenewed())
            self.webhooks.configure(tx, settings.webhooks)
            return changed

        # Large enough to be committed alone: another work in the group could create a limit by the old settings.
        return await self.access.write(work, rows=GROUP_ROWS + 1)
