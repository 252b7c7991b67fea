"""Defects on purpose: each breaks one promise of the engine, so that the laws can be seen to catch it.

Where the database itself would refuse, its rule is dropped first. Windows are widened to a few milliseconds so that a
kill finds them; what is wrong is that they exist.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest import mock

import apsw

from nextslot.domain.limits import Limits
from nextslot.engine.effects import Claim, Interpreter
from nextslot.engine.execution.runner import Runner
from nextslot.store.sqlite.sqlite_store import migrate
from nextslot.store.tables import (
    events,
    jobs,
    lanes,
    runs,
)
from tests.crash.worker import Life

WINDOW = 0.01


class Later(NamedTuple):
    """What a planted defect leaves to another transaction."""

    values: tuple[Any, ...]


def run_in_a_second_transaction(life: Life) -> None:
    """Plants: the job becomes RUNNING first; its run and its handler follow later."""
    drop_rules(life, "job_runs_with_run", "run_born_running")
    scheduler, launch = life.scheduler, Runner.launch
    tasks = []

    async def insert_run(runner: Runner, claim: Claim) -> None:
        await asyncio.sleep(WINDOW)
        await scheduler._access.store.write(lambda tx: runs.repair(tx, claim.run_id, claim.job_id))
        launch(runner, claim)

    def launch_late(runner: Runner, claim: Claim) -> None:
        tasks.append(asyncio.ensure_future(insert_run(runner, claim)))

    plant(Runner, "launch", launch_late)
    plant(runs, "begin", lambda *_: None)


def handler_before_the_commit(life: Life) -> None:
    """Plants: the handler begins while the transaction of the claim is still open."""
    begin = runs.begin

    def begin_both(tx: Any, run_id: str, job_id: str, *more: Any) -> None:
        life.witness.began(job_id, run_id)
        time.sleep(WINDOW)
        begin(tx, run_id, job_id, *more)

    plant(runs, "begin", begin_both)


def acknowledged_before_the_commit(life: Life) -> None:
    """Plants: `submit` returns while its transaction is still open."""
    accept = life.scheduler._runtime.intake.accept

    def accept_and_tell(*arguments: Any) -> Any:
        accepted = accept(*arguments)
        life.witness.acknowledged([one.job.job_id for one in accepted])
        time.sleep(WINDOW)
        return accepted

    plant(life.scheduler._runtime.intake, "accept", accept_and_tell)


def interrupted_jobs_queued_again(life: Life) -> None:
    """Plants: recovery puts running jobs back into the queue, as if they had never begun."""
    drop_rules(life, "job_moves", "job_ends_once", "run_kept")
    connection = apsw.Connection(str(life.path))
    with connection:
        connection.execute("delete from runs where status is null")
        connection.execute(
            "update jobs set stage = 'QUEUED', started_at = null, worker_id = null"
            " where stage = 'RUNNING' and finished_at is null"
        )
        connection.execute("update limits set used = 0")
        connection.execute("update lanes set ready = (select count(*) from jobs where stage = 'QUEUED')")
    connection.close()


def interrupted_jobs_not_retried(life: Life) -> None:
    plant(life.scheduler._runtime.retries, "retry", lambda *_: None)


def counters_in_a_second_transaction(life: Life) -> None:
    plant(lanes, "use", in_a_second_transaction(life, lanes.use))


def events_in_a_second_transaction(life: Life) -> None:
    plant(events, "append", in_a_second_transaction(life, events.append))


def no_limit(life: Life) -> None:
    plant(Limits, "room", lambda *_: 7)


def last_come_first_served(life: Life) -> None:
    plant(jobs, "heads", lambda tx, lane_id, limit, heads=jobs.heads: heads(tx, lane_id, limit)[::-1])


DEFECTS: dict[str, Callable[[Life], None]] = {
    defect.__name__: defect
    for defect in (
        run_in_a_second_transaction,
        handler_before_the_commit,
        acknowledged_before_the_commit,
        interrupted_jobs_queued_again,
        interrupted_jobs_not_retried,
        counters_in_a_second_transaction,
        events_in_a_second_transaction,
        no_limit,
        last_come_first_served,
    )
}


def plant(place: Any, name: str, defect: Any) -> None:
    mock.patch.object(place, name, defect).start()


def in_a_second_transaction(life: Life, statement: Callable[..., object]) -> Callable[..., None]:
    """Runs the same statement a while after the commit of its transaction."""
    tasks: list[asyncio.Future[None]] = []

    async def run_it(*values: Any) -> None:
        await asyncio.sleep(WINDOW)
        await life.scheduler._access.store.write(lambda tx: statement(tx, *values))
        await life.scheduler.process()

    def later(tx: Any, *values: Any) -> None:
        tx.cause(Later(values))

    carry_out = Interpreter.carry_out

    def carry_out_later(self: Interpreter, effects: Sequence[Any]) -> None:
        carry_out(self, effects)
        tasks.extend(asyncio.ensure_future(run_it(*one.values)) for one in effects if isinstance(one, Later))

    plant(Interpreter, "carry_out", carry_out_later)
    return later


def drop_rules(life: Life, *names: str) -> None:
    connection = apsw.Connection(str(life.path))
    migrate(connection)
    for name in names:
        connection.execute(f"drop trigger if exists {name}")
    connection.close()
