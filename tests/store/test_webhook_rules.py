"""What the database itself refuses of webhooks and deliveries: every rule of their schema, attacked with plain SQL."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from nextslot import Scheduler, testing
from nextslot.engine.webhooks.delivery_worker import EndpointResponse
from nextslot.store import dialects
from nextslot.testing import Mailbox
from tests.support import new_scheduler

SCHEMA = next(schema for number, _, schema in dialects.migrations() if number == 4)

# Those of this schema, each of which is attacked here.
RULES = {
    "webhook_inserted_once", "webhook_identity", "webhook_secret_inserted_once", "delivery_born_pending",
    "delivery_fixed", "delivery_ends_once", "delivery_kept", "attempt_inserted_once", "attempt_fixed", "attempt_kept",
}  # fmt: skip

REPLACED = "a subscription cannot be replaced"
IDENTITY = "what a subscription is never changes"
SECRET_ONCE = "the secret of the server is generated once"
BORN = "a delivery begins PENDING, and cannot be replaced"
FIXED = "what is delivered never changes"
ENDS_ONCE = "a delivery that has ended is sent again from the beginning, or stays as it ended"
KEPT = "a delivery is never deleted outside maintenance"
ATTEMPTS = "attempts are only added"
CHECK = "CHECK constraint failed"

COLUMNS = (
    "delivery_id, url, origin, event, seq, office_id, job_id, webhook_id, signers, is_own, body, headers, status, "
    "tries, next_attempt_at, reason, created_at, finished_at"
)


def copied(verb: str, **changes: str) -> str:
    """Returns a statement that inserts a delivery like the waiting one, with some other values."""
    values = [changes.get(name, name) for name in COLUMNS.split(", ")]
    return f"{verb} into deliveries ({COLUMNS}) select {', '.join(values)} from deliveries where status = 'PENDING'"


ATTACKS = [
    (REPLACED, "insert or replace into webhooks select * from webhooks"),
    (IDENTITY, "update webhooks set webhook_id = 'other'"),
    (IDENTITY, "update webhooks set created_at = 1"),
    (IDENTITY, "update webhooks set created_by = 'somebody'"),
    (CHECK, "update webhooks set is_enabled = 0"),
    (CHECK, "update webhooks set disabled_reason = 'why'"),
    (CHECK, "update webhooks set old_secret = 'x'"),
    (SECRET_ONCE, "insert or replace into webhook_secrets values ('server', 'mine')"),
    (CHECK, "insert into webhook_secrets values ('another', 'mine')"),
    (BORN, copied("insert", delivery_id="'new'", status="'DELIVERED'", next_attempt_at="null", finished_at="1")),
    (BORN, copied("insert", delivery_id="'new'", tries="3")),
    (BORN, copied("insert or replace", tries="0")),
    *[
        (FIXED, f"update deliveries set {change}")
        for change in (
            *("delivery_id = 'x' || delivery_id", "url = 'http://evil.example/'", "origin = 'x'", "event = 'x'"),
            *("seq = seq + 1", "office_id = null", "job_id = null", "webhook_id = 'x'", "signers = '[]'"),
            *("is_own = 1 - is_own", "body = '{}'", "headers = '{}'", "created_at = 1"),
        )
    ],
    (CHECK, "update deliveries set next_attempt_at = null where status = 'PENDING'"),
    (CHECK, "update deliveries set status = 'FAILED' where status = 'PENDING'"),
    (CHECK, "update deliveries set status = 'LOST' where status = 'PENDING'"),
    (CHECK, "update deliveries set reason = null where status = 'FAILED'"),
    (ENDS_ONCE, "update deliveries set status = 'DELIVERED' where status = 'FAILED'"),
    (ENDS_ONCE, "update deliveries set status = 'FAILED', reason = 'x' where status = 'DELIVERED'"),
    (ENDS_ONCE, "update deliveries set status = 'PENDING', next_attempt_at = 1, finished_at = null where tries = 1"),
    (KEPT, "delete from deliveries"),
    (ATTEMPTS, "insert or replace into delivery_attempts select * from delivery_attempts"),
    (ATTEMPTS, "update delivery_attempts set status_code = 200"),
    (ATTEMPTS, "delete from delivery_attempts"),
    (CHECK, "insert into delivery_attempts select delivery_id, 9, 1, 1.0, null, null, null, null from deliveries"),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a file with a subscription, and a delivery of each status."""
    directory = tmp_path_factory.mktemp("written")

    async def body() -> None:
        box = Mailbox()
        box.answers = {"http://a.example/": EndpointResponse(410), "http://b.example/": EndpointResponse(500)}
        async with new_scheduler(directory, sender=box) as scheduler:
            await scheduler.webhooks.create("http://c.example/")
            for url in box.answers:
                await told(scheduler, url)

    testing.run(body())
    return directory / "nextslot.db"


async def told(scheduler: Scheduler, url: str) -> None:
    await scheduler.wait((await scheduler.submit("skip", webhook={"url": url})).job_id)
    await asyncio.sleep(1)


@pytest.fixture
def db(written: Path, tmp_path: Path) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(str(tmp_path / "nextslot.db"))
    connection.backup("main", apsw.Connection(str(written)), "main").step(-1)
    yield connection
    connection.close()


@pytest.mark.parametrize(("message", "sql"), ATTACKS, ids=[sql[:60] for _, sql in ATTACKS])
def test_it_is_refused_and_nothing_is_changed(db: apsw.Connection, message: str, sql: str) -> None:
    before = contents(db)

    with pytest.raises(apsw.ConstraintError, match=re.escape(message)):
        db.execute(sql).fetchall()

    assert contents(db) == before


def test_what_is_attacked_is_there(db: apsw.Connection) -> None:
    statuses = {status for (status,) in db.execute("select status from deliveries")}

    assert statuses == {"PENDING", "DELIVERED", "FAILED"}


def test_every_rule_of_webhooks_is_attacked_here() -> None:
    messages = set(re.findall(r"refuse '([^']+)'", SCHEMA))

    assert messages == {message for message, _ in ATTACKS} - {CHECK}
    assert set(re.findall(r"^rule (\w+)", SCHEMA, re.MULTILINE)) == RULES


def contents(connection: apsw.Connection) -> list[Any]:
    tables = ("webhooks", "webhook_secrets", "deliveries", "delivery_attempts")
    return [connection.execute(f"select * from {table}").fetchall() for table in tables]
