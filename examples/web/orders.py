"""An order and its job in one transaction of PostgreSQL: both are there, or neither.

The orders are in the database of the scheduler, whose owner has allowed it once:
grant execute on function nextslot_enqueue to shop;
"""

import psycopg
import sqlalchemy
from sqlalchemy.orm import Session

from nextslot import enqueue

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
