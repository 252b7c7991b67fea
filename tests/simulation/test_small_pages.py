"""What the engine does page by page it does for the last page too: here a page has one row."""

import asyncio
from pathlib import Path

import pytest

from nextslot import testing
from nextslot.engine.dispatch.limits_and_slots import Workers
from nextslot.engine.schedules import schedule_trigger
from tests.support import running_scheduler

HOUR = 3600


async def test_a_clock_that_is_set_back_plans_every_schedule_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_trigger, "BATCH", 1)
    clock = testing.VirtualClock()
    async with running_scheduler(tmp_path, clock=clock) as scheduler:
        await asyncio.sleep(HOUR + 600)
        template = await scheduler.templates.create(name="t", job_type="work")
        made = [
            await scheduler.schedules.create(
                template_id=template.template_id, name=f"s{number}", cron_expression="0 * * * *"
            )
            for number in range(3)
        ]

        clock.jump(-HOUR / 2)
        await scheduler.submit("work")
        planned = [(await scheduler.schedules.get(one.schedule_id)).next_trigger_at for one in made]

        eight_o_clock = testing.BEGINNING.after(HOUR)
        assert planned == [eight_o_clock] * 3


def test_a_slot_of_a_node_whose_name_begins_alike_is_none_of_this_node() -> None:
    workers = Workers("n")

    assert [workers._slot(f"{node}/slot-1") for node in ("n", "n2", "nn", "")] == [1, None, None, None]
