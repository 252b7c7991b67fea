"""What an attached extension works with: the services and the verbs of one scheduler. Made by `Services`.

The other names are here for annotations, and for works over a transaction.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nextslot.engine.dispatch.dispatch_round import Started
from nextslot.engine.dispatch.dispatcher import Dispatcher
from nextslot.engine.dispatch.resource_outages import Outages, Probe
from nextslot.engine.finish.job_finisher import Cancelled, JobFinisher
from nextslot.engine.finish.retries import RetryController
from nextslot.engine.submit.idempotency import Once, Replayed
from nextslot.engine.submit.intake import Accepted, Intake
from nextslot.engine.submit.past_work import PastWork
from nextslot.engine.submit.queue_order import QueueManager
from nextslot.engine.webhooks.webhook_outbox import FormattedMessage, MessageFormat, WebhookService
from nextslot.executors.job_type_catalog import Catalog
from nextslot.executors.run_files import RunFiles
from nextslot.services.bulk import BulkService
from nextslot.services.offices import OfficeService
from nextslot.services.unit_of_work import UnitOfWork
from nextslot.store.contract import Row, Tx
from nextslot.store.dialects import extension_statements
from nextslot.system.clock import Clock

from . import Attached

__all__ = [
    "Accepted", "Cancelled", "FormattedMessage", "Host", "MessageFormat", "Once", "Replayed", "Row", "Started",
    "Statements", "Tx",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A scheduler as its extensions see it, for one caller.

    `work` reads and writes for that caller: it takes a function of a transaction. What follows it are verbs for such
    functions.
    """

    clock: Clock
    work: UnitOfWork
    job_types: Catalog
    # `host.probe(resource, ask)`: how to find out whether a resource that did not answer does so again.
    probe: Callable[[str, Probe], None]
    # `outages.answers_again(tx, resource, now)`: ends the hold of a resource that did not answer.
    outages: Outages
    # Another extension of the same scheduler by its name, if it is there; asked after the start, not in `attach`.
    find: Callable[[str], Attached | None]
    intake: Intake
    # Lets a job of `intake` start at a past time; see `past_work.py`.
    past: PastWork
    queue: QueueManager
    dispatcher: Dispatcher
    retries: RetryController
    finisher: JobFinisher
    webhooks: WebhookService
    offices: OfficeService
    bulk: BulkService
    # Where the logs and artifacts of runs are.
    files: RunFiles


class Statements:
    """The SQL of an extension: a file of blocks `-- name: purpose`, in which `{runs.columns}` includes one of ours.

    It reads the core's tables. No extension has tables of its own yet; those would be called `ext_NAME_…`.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def rows(self, tx: Tx, statement: str, /, **values: object) -> list[Row]:
        return tx.select(extension_statements(self._file)[statement], values)
