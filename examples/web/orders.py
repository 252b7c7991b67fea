"""An order and its job in one transaction of PostgreSQL: both are there, or neither.

The orders are in the database of the scheduler, whose owner has allowed it once:
grant execute on function nextslot_enqueue to shop;
"""

import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from nextslot import enqueue, enqueue_async

TABLE = "create table if not exists orders (number bigint primary key, job_id text not null)"


def order(connection: psycopg.Connection, number: int) -> str:
    """With psycopg: the caller commits, or rolls back."""
    job_id = enqueue(connection, "pack", {"order": number})
    connection.execute("insert into orders values (%s, %s)", (number, job_id))
    return job_id


def order_by_sqlalchemy(session: Session, number: int) -> str:
    """With SQLAlchemy: the caller's `with session.begin():` commits, or rolls back."""
    job_id = enqueue(session, "pack", {"order": number})
    session.execute(
        sqlalchemy.text("insert into orders values (:number, :job_id)"), {"number": number, "job_id": job_id}
    )
    return job_id


async def order_async(connection: psycopg.AsyncConnection, number: int) -> str:
    """With psycopg on an event loop: the caller commits, or rolls back."""
    job_id = await enqueue_async(connection, "pack", {"order": number})
    await connection.execute("insert into orders values (%s, %s)", (number, job_id))
    return job_id


async def order_by_async_session(session: AsyncSession, number: int) -> str:
    """With SQLAlchemy on an event loop: the caller's `async with session.begin():` commits, or rolls back."""
    job_id = await enqueue_async(session, "pack", {"order": number})
    await session.execute(
        sqlalchemy.text("insert into orders values (:number, :job_id)"), {"number": number, "job_id": job_id}
    )
    return job_id
