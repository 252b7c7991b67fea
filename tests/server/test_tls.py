"""The server speaks TLS with a real certificate, and takes a new one on SIGHUP without dropping connections."""

import asyncio
import contextlib
import os
import shutil
import signal
import ssl
import subprocess
from pathlib import Path

import httpx2
import pytest

from nextslot.cli.serving import is_unprotected
from nextslot.client import Client
from nextslot.client.problems import NoAnswer
from nextslot.errors import Invalid
from nextslot.server.app import Options
from nextslot.server.tls import Certificate
from tests.crash.server import Server as ServerProcess

from .support import ServerThread, serving

pytestmark = [
    pytest.mark.sqlite_only("a connection is encrypted before anything is looked up"),
    pytest.mark.skipif(shutil.which("openssl") is None and "CI" not in os.environ, reason="makes certificates"),
]


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """Makes a certificate that signs itself, for 127.0.0.1."""
    cert, key = directory / f"{name}.pem", directory / f"{name}-key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-out", cert, "-keyout", key],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


def test_a_client_that_knows_the_authority_is_served_and_another_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificate(tmp_path, "first")
    with ServerThread(tmp_path, Options(certificate=Certificate(cert, key)), client_ca=cert) as server:
        with Client(server.url, ca=str(cert)) as client:
            job = client.submit("echo", {"text": "hello"})
            assert client.wait(job.job_id).result == "hello"
        monkeypatch.setenv("NEXTSLOT_CA", str(cert))
        with Client(server.url) as client:
            assert client.job(job.job_id).job_id == job.job_id
        monkeypatch.delenv("NEXTSLOT_CA")
        with Client(server.url) as client, pytest.raises(NoAnswer, match=r"is not trusted .*PEM file in NEXTSLOT_CA"):
            client.job(job.job_id)
        with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx2.get(f"{server.url}/health")
        with pytest.raises(httpx2.HTTPError):
            httpx2.get(server.url.replace("https", "http") + "/health")
        assert httpx2.get(f"{server.url}/health", verify=trusting(cert)).json() == {"status": "ok"}


async def test_a_new_certificate_is_for_new_connections_and_open_ones_go_on(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "old")
    used = Certificate(cert, key)
    async with serving(tmp_path, Options(certificate=used), client_ca=cert) as server:
        port = server.client.base_url.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(cert))
        writer.write(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"

        new_cert, new_key = certificate(tmp_path, "new")
        new_key.replace(key)
        server.process.reload()  # The new key does not fit the old certificate: nothing changes.
        assert await subject(port) == "old"
        shutil.copy(new_cert, cert)
        server.process.reload()

        assert await subject(port) == "new"
        await server.scheduler.submit("echo")
        async with asyncio.timeout(30):
            while b"job_queued" not in await reader.readline():
                pass
        await ended(writer)


def test_a_server_process_reads_its_certificate_again_on_sighup(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "old")
    (tmp_path / "nextslot.toml").write_text(f'[server]\ntls_certificate = "{cert.name}"\ntls_key = "{key.name}"\n')
    server = ServerProcess(tmp_path)
    try:
        url = server.wait_until_ready()
        assert url.startswith("https://")
        port = int(url.rpartition(":")[2])
        assert asyncio.run(subject(port)) == "old"
        new_cert, new_key = certificate(tmp_path, "new")
        new_key.replace(key)
        new_cert.replace(cert)
        os.kill(server.process.pid, signal.SIGHUP)

        async def is_new() -> None:
            async with asyncio.timeout(30):
                while await subject(port) != "new":  # noqa: ASYNC110 - the server's time
                    await asyncio.sleep(0.05)

        asyncio.run(is_new())
    finally:
        server.kill()


def test_a_certificate_that_cannot_be_used_is_refused_with_a_sentence(tmp_path: Path) -> None:
    cert, _ = certificate(tmp_path, "one")
    _, other_key = certificate(tmp_path, "other")

    for wrong in ((tmp_path / "none.pem", None), (cert, None), (cert, other_key)):
        with pytest.raises(Invalid, match=r"cannot be used: .*; name PEM files that belong together"):
            Certificate(*wrong)


@pytest.mark.parametrize(
    ("url", "environment", "is_so"),
    [
        ("postgresql://u@db.example/n", {}, True),
        ("postgresql://u@db.example/n?sslmode=prefer", {}, True),
        ("postgresql://u@db.example/n?sslmode=verify-full", {}, False),
        ("postgresql://u@db.example/n", {"PGSSLMODE": "require"}, False),
        ("postgresql:///n", {"PGHOST": "db.example"}, True),
        ("postgresql:///n?host=/run/postgresql", {}, False),
        ("postgresql://127.0.0.1/n", {}, False),
    ],
)
def test_which_connections_to_postgresql_are_warned_about(url: str, environment: dict[str, str], is_so: bool) -> None:
    assert is_unprotected(url, environment) is is_so


def trusting(cert: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=cert)


async def subject(port: int | None) -> str:
    """Returns the name in the certificate that a new connection gets."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    await ended(writer)
    return "new" if b"new" in found else "old"


async def ended(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
