"""Three typed jobs, a schedule, a chain, a retry and a direct request. `python shop.py` runs it."""

import asyncio
from dataclasses import dataclass
from datetime import date
from typing import Annotated

from pydantic import BaseModel, Field

from nextslot import RunContext, Scheduler

scheduler = Scheduler("sqlite:///shop.db", concurrency=2)


class Order(BaseModel):
    item: str
    count: Annotated[int, Field(gt=0)]


@dataclass
class Invoice:
    day: date
    total: float


@scheduler.job_type(retry_policy={"max_attempts": 2, "base_delay_seconds": 0.1})
async def charge(run: RunContext, order: Order, price: float = 2.5) -> Invoice:
    if run.attempt == 1:  # The bank does not answer the first time.
        raise ConnectionError("the bank did not answer")
    return Invoice(day=date(2026, 11, 18), total=order.count * price)


@scheduler.job_type()
def ship(order: Order) -> str:
    return f"{order.count} × {order.item} sent"


@scheduler.cron("0 7 * * mon-fri", timezone="Europe/Berlin")
async def report(day: date | None = None) -> str:
    return f"report of {day or 'today'}"


async def main() -> None:
    async with scheduler:
        order = Order(item="tea", count=2)
        charged = await charge.submit(order=order)
        shipped = await ship.with_options(depends_on=[charged]).submit(order=order)
        print((await scheduler.wait(shipped, timeout=60)).result)
        print((await scheduler.wait(charged)).result)
        print(await report.run_direct(day=date(2026, 11, 18)))
        async for one in scheduler.schedules.list():
            print(one.name, one.cron_expression, one.timezone)


if __name__ == "__main__":
    asyncio.run(main())
