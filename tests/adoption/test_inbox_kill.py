"""Requests of other programs become jobs once, although the server is killed while it takes them in."""

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from nextslot import enqueue, offline_commands
from nextslot.config.loading import load
from tests import databases

CONFIGURATION = """
[job_types.pack]
handler = "orders:pack"
retry_policy = { max_attempts = 100, base_delay_seconds = 0.01 }
[offices.default]
max_concurrent_jobs = 4
[extensions]
disabled = ["stories"]
"""
KILLS = 4


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[str]:
    databases.use("postgres")
    yield databases.url(tmp_path)
    databases.spoil(tmp_path)
    databases.use("sqlite")


def test_a_server_that_is_killed_while_it_takes_requests_in_loses_and_doubles_none(
    postgres: str, tmp_path: Path
) -> None:
    (tmp_path / "nextslot.toml").write_text(CONFIGURATION)
    (tmp_path / "orders.py").write_text("def pack(order: int) -> int:\n    return order\n")
    shop, chance, interrupted = Shop(postgres), random.Random(24), 0
    with server(tmp_path):
        shop.open()

    with shop.selling():
        for _ in range(KILLS):
            with server(tmp_path):
                taken = shop.count("jobs")
                until(lambda taken=taken: shop.count("jobs") > taken)  # type: ignore[misc]
                time.sleep(chance.uniform(0, 0.3))
            interrupted += shop.count("inbox") > 0
    with server(tmp_path):
        until(lambda: shop.count("inbox") == 0 and shop.count("jobs where outcome is null") == 0)

    assert interrupted, "no kill has found requests that were not taken in: this proves nothing"
    with psycopg.connect(postgres) as connection:
        sold = connection.execute("select job_id, number from orders order by 1").fetchall()
        first = "select job_id, (params::jsonb->>'order')::bigint from jobs where retry_of is null order by 1"
        assert connection.execute(first).fetchall() == sold
        done = "select chain_id from jobs where outcome = 'COMPLETED' order by 1"
        assert [one for (one,) in connection.execute(done)] == [job_id for job_id, _ in sold]
    assert offline_commands.doctor(load(tmp_path, environment=databases.variables(tmp_path))).findings == ()


class Shop:
    """Programs that store an order and the request for its job in one transaction; they roll one in four back."""

    def __init__(self, url: str) -> None:
        self._url = url

    def open(self) -> None:
        with psycopg.connect(self._url) as connection:
            connection.execute("create table orders (number bigint not null, job_id text not null)")

    @contextmanager
    def selling(self) -> Iterator[None]:
        over = threading.Event()
        programs = [threading.Thread(target=self._sell, args=(number, over)) for number in range(2)]
        for one in programs:
            one.start()
        try:
            yield
        finally:
            over.set()
            for one in programs:
                one.join()

    def _sell(self, first: int, over: threading.Event) -> None:
        with psycopg.connect(self._url) as connection:
            for number in range(first, 100_000, 2):
                # A slow server has work for minutes else.
                while over.wait(0.02) or self.count("inbox") > 100:
                    if over.is_set():
                        return
                job_id = enqueue(connection, "pack", {"order": number})
                connection.execute("insert into orders values (%s, %s)", (number, job_id))
                if number % 4 == 3:
                    connection.rollback()
                else:
                    connection.commit()

    def count(self, rows: str) -> int:
        with psycopg.connect(self._url) as connection:
            found = connection.execute(f"select count(*) from {rows}").fetchone()
        assert found is not None
        return int(found[0])


@contextmanager
def server(data: Path) -> Iterator[None]:
    """Runs a server, which is ready, and kills it at the end of the block."""
    command = [sys.executable, "-m", "nextslot.cli.main", "serve", "--data", str(data), "--port", "0"]
    environment = {**os.environ, **databases.variables(data)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        assert any("listens on" in line for line in process.stdout), "the server has ended"
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.02)
