"""Spec 12 with a real process, killed again and again while it delivers: everything arrives, under its own id."""

import asyncio
import random
import sys
from pathlib import Path

import apsw

from tests.engine.receivers import Receiver, answers

ROOT = Path(__file__).parents[2]
JOBS = 400
KILLS = 4


def test_DEC_009_every_delivery_arrives_at_least_once_through_kills_and_its_id_tells_a_second_one(
    tmp_path: Path,
) -> None:
    ids = asyncio.run(arrivals_through_kills(tmp_path))

    connection = apsw.Connection(str(tmp_path / "nextslot.db"))
    stored = connection.execute("select delivery_id, status, job_id from deliveries").fetchall()
    assert len(stored) == len({job_id for _, _, job_id in stored}) == JOBS
    assert {status for _, status, _ in stored} == {"DELIVERED"}
    assert set(ids) == {delivery_id for delivery_id, _, _ in stored}
    # Some were on their way when a kill came and came again: else this would prove nothing.
    assert JOBS < len(ids) < 2 * JOBS


async def arrivals_through_kills(directory: Path) -> list[str]:
    """Returns the `webhook-id` of every message that the receiver accepted, in the order of arrival."""
    chance = random.Random(12)
    async with Receiver(answers()) as receiver:
        for life in range(KILLS + 1):
            command = [
                sys.executable,
                "-m",
                "tests.crash.sender",
                str(directory),
                str(JOBS),
                str(receiver.port),
                str(life),
            ]
            process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
            if life < KILLS:
                await arrived(receiver, (life + 1) * JOBS // (KILLS + 2) + chance.randrange(20), process)
                process.kill()
                await process.wait()
            else:
                assert await asyncio.wait_for(process.wait(), 60) == 0
        return [request.headers["webhook-id"] for request in receiver.requests]


async def arrived(receiver: Receiver, count: int, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(60):
        while len(receiver.requests) < count:
            assert process.returncode is None, "the process ended before it was killed"
            await asyncio.sleep(0.001)
