"""Handlers whose annotations JSON does not have itself, at the top of a module: another process imports them."""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Annotated, Any

from pydantic import BaseModel, Field

from nextslot import RunContext


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Order(BaseModel):
    item: str
    count: Annotated[int, Field(gt=0)]


@dataclass
class Box:
    width: int
    height: int = 1


def pack(
    run: RunContext, order: Order, box: Box, due: datetime, size: Size = Size.SMALL, copies: int = 1
) -> dict[str, object]:
    """Fails unless each parameter is what its annotation says."""
    assert isinstance(order, Order)
    assert isinstance(box, Box)
    assert isinstance(due, datetime)
    assert isinstance(size, Size)
    return {"item": order.item, "area": box.width * box.height, "year": due.year, "size": size, "at": due, "box": box}


async def total(count: Annotated[int, Field(gt=0)], price: float = 2.0) -> Order:
    """Takes no run."""
    return Order(item=f"{price * count:g}", count=count)


def fields(
    count: int = Field(gt=0),
    copies: int = Field(2, lt=9),
    pages: list[int] = Field(default_factory=list),  # noqa: B008
) -> Any:
    """Has its constraints where FastAPI has them."""
    return [count, copies, pages]
