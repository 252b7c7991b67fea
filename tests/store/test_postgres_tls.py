"""PostgreSQL by TLS, with a real server and a real certificate: `sslmode=verify-full` talks to no other server."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from nextslot import Scheduler
from nextslot.errors import Away, StoreError
from tests import postgres
from tests.server.test_tls import certificate

pytestmark = [
    pytest.mark.sqlite_only("it starts a PostgreSQL of its own, once"),
    pytest.mark.skipif(shutil.which("openssl") is None and "CI" not in os.environ, reason="makes certificates"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[postgres.Server, int, Path]]:
    """Runs a server on 127.0.0.1 that accepts only TLS. Yields its port and its certificate."""
    directory = tmp_path_factory.mktemp("tls")
    cert, key = certificate(directory, "database")
    running = postgres.Server()
    try:
        port = running.speak_tls(cert, key)
        yield running, port, cert
    finally:
        running.remove()


def address(port: int, mode: str, authority: Path, host: str = "127.0.0.1") -> str:
    return f"postgresql://postgres@{host}:{port}/postgres?sslmode={mode}&sslrootcert={quote(str(authority), safe='')}"


async def test_a_scheduler_works_over_tls_with_a_server_whose_certificate_it_has_checked(
    server: tuple[postgres.Server, int, Path], tmp_path: Path
) -> None:
    running, port, cert = server
    async with Scheduler(address(port, "verify-full", cert), data=tmp_path) as scheduler:
        scheduler.job_types.add("nothing", lambda run: None)
        job = await scheduler.submit("nothing")

        assert (await scheduler.wait(job.job_id)).status == "COMPLETED"
        with psycopg.connect(running.url()) as local:
            ways = local.execute(
                "select ssl from pg_stat_ssl join pg_stat_activity using (pid) where client_addr is not null"
            ).fetchall()
        assert ways
        assert set(ways) == {(True,)}


@pytest.mark.parametrize("case", ["another authority", "another name", "no TLS"])
async def test_a_server_that_cannot_be_checked_is_refused(
    server: tuple[postgres.Server, int, Path], tmp_path: Path, case: str
) -> None:
    _, port, cert = server
    other, _ = certificate(tmp_path, "somebody")
    url = {
        "another authority": address(port, "verify-full", other),
        "another name": address(port, "verify-full", cert, host="localhost"),
        "no TLS": address(port, "disable", cert),
    }[case]

    with pytest.raises((Away, StoreError), match=r"certificate|encryption|pg_hba"):
        await Scheduler(url, data=tmp_path).start()
