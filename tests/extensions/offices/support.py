"""What tests of the office API share: the helpers of the engine's tests, on schedulers that have this extension."""

from functools import partial

from nextslot import Scheduler
from nextslot.extensions.offices.office_service import OfficeJobService
from tests import support

new_scheduler = partial(support.new_scheduler, extensions=["offices"])
running_scheduler = partial(support.running_scheduler, extensions=["offices"])
counted_scheduler = partial(support.counted_scheduler, extensions=["offices"])


def office_jobs(scheduler: Scheduler) -> OfficeJobService:
    return scheduler.extension(OfficeJobService)
