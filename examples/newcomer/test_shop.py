"""Tests of the shop on virtual time: `pytest` finds the fixture `virtual_time`, which comes with the package."""

from datetime import date, datetime
from zoneinfo import ZoneInfo

import pytest
from shop import Invoice, Order, charge, scheduler, ship

from nextslot.testing import VirtualTime


@pytest.fixture(autouse=True)
def shop(virtual_time: VirtualTime) -> None:
    virtual_time.freeze(datetime(2026, 11, 16, 6, 59, tzinfo=ZoneInfo("Europe/Berlin")))  # a Monday
    virtual_time.use(scheduler)


def test_a_charge_that_failed_is_tried_again(virtual_time: VirtualTime) -> None:
    job = virtual_time.run(charge.submit(order=Order(item="tea", count=3)))

    assert virtual_time.run_all() == {job.job_id: "COMPLETED"}
    assert len(virtual_time.run(scheduler.chain(job))) == 2


def test_nothing_is_sent_before_it_is_paid(virtual_time: VirtualTime) -> None:
    order = Order(item="tea", count=1)
    charged = virtual_time.run(charge.submit(order=order))
    shipped = virtual_time.run(ship.with_options(depends_on=[charged]).submit(order=order))

    assert shipped.status == "WAITING"
    virtual_time.run_all()
    assert virtual_time.run(scheduler.job(shipped)).status == "COMPLETED"


def test_the_report_comes_at_seven_on_weekdays(virtual_time: VirtualTime) -> None:
    virtual_time.pass_time(days=7)

    jobs = virtual_time.run(scheduler.lists.jobs()).items
    assert [one.job.job_type for one in jobs] == ["report"] * 5


def test_a_function_is_called_without_a_scheduler() -> None:
    assert ship(Order(item="tea", count=2)) == "2 × tea sent"
    assert Invoice(day=date(2026, 11, 18), total=5.0).total == 5.0
