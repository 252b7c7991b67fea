"""Measures deliveries per second: jobs end, and their webhooks go to ten real receivers, one of which may be dead.

    uv run python -m bench.deliveries [DELIVERIES] [--dead]

The receivers run in a process of their own; every message is signed, sent over HTTP and recorded with its attempt.
"""

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import apsw

from nextslot import (
    NewJob,
    RunContext,
    Scheduler,
    Skip,
)

RECEIVERS = 10
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


class Receiver:
    """Answers every request with 200 or, if it is dead, not at all."""

    def __init__(self, is_dead: bool) -> None:
        self._is_dead = is_dead

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                if not self._is_dead:
                    writer.write(OK)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


async def receive(pipe: Connection, has_dead: bool) -> None:
    servers = [
        await asyncio.start_server(Receiver(has_dead and number == 0).serve, "127.0.0.1", 0)
        for number in range(RECEIVERS)
    ]
    pipe.send([server.sockets[0].getsockname()[1] for server in servers])
    await asyncio.Event().wait()


def receivers(pipe: Connection, has_dead: bool) -> None:
    asyncio.run(receive(pipe, has_dead))


async def deliver(directory: Path, ports: list[int], count: int, has_dead: bool) -> None:
    scheduler = Scheduler(f"sqlite:///{directory}/nextslot.db")

    @scheduler.job_type("tiny")
    async def tiny(run: RunContext) -> None:
        raise Skip("nothing to do")

    async with scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=100)
        urls = [f"http://127.0.0.1:{port}/hook" for port in ports]
        wanted = [NewJob(job_type="tiny", webhook={"url": urls[n % RECEIVERS]}) for n in range(count)]
        expected = sum(n % RECEIVERS > 0 or not has_dead for n in range(count))
        began, cpu = time.perf_counter(), time.process_time()
        await scheduler.submit_many(wanted)
        await until_delivered(directory, expected)
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        dead = " while one receiver in ten was dead" if has_dead else ""
        print(f"{expected:,} deliveries, with the jobs that they tell of, in {took:.1f} s{dead}")
        print(f"{expected / took:,.0f} deliveries/s; {cpu / expected * 1000:.2f} ms of processor time each")


async def until_delivered(directory: Path, count: int) -> None:
    connection = apsw.Connection(f"{directory}/nextslot.db", flags=apsw.SQLITE_OPEN_READONLY)
    while connection.execute("select count(*) from deliveries where status = 'DELIVERED'").get < count:  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    connection.close()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("deliveries", nargs="?", type=int, default=10_000)
    arguments.add_argument("--dead", action="store_true", help="one of the ten receivers never answers")
    given = arguments.parse_args()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=receivers, args=(theirs, given.dead), daemon=True)
    process.start()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(deliver(Path(directory), ours.recv(), given.deliveries, given.dead))
    process.terminate()


if __name__ == "__main__":
    main()
