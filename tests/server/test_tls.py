"""The server speaks TLS with a real certificate, and takes a new one on SIGHUP without dropping connections."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
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
from nextslot.server.connections import ConnectionLimits, Connections
from nextslot.server.tls import Certificate
from tests.crash.server import Server as ServerProcess

from .support import Server, ServerThread, serving

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


def _hello() -> bytes:
    """Returns the first message of a TLS handshake."""
    sent = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="127.0.0.1").do_handshake()
    return sent.read()


@pytest.mark.parametrize("sent", [b"\x16", _hello()[:-1], _hello()], ids=["one byte", "half a message", "one message"])
async def test_hundreds_of_half_handshakes_keep_nobody_out(tmp_path: Path, sent: bytes) -> None:
    cert, key = certificate(tmp_path, "one")
    connections = Connections(ConnectionLimits(most=200, head_seconds=600))
    options = Options(connections=connections, certificate=Certificate(cert, key))
    async with serving(tmp_path, options, client_ca=cert) as server:
        with contextlib.ExitStack() as held:
            for _ in range(600):
                line = held.enter_context(socket.create_connection(("127.0.0.1", server.client.base_url.port)))
                line.sendall(sent)
            async with asyncio.timeout(30):
                while connections.evicted < 300:  # noqa: ASYNC110 - the server's time
                    await asyncio.sleep(0.01)
            answers = [await stranger(server, cert) for _ in range(5)]

        assert answers == [201] * 5
    assert connections.open == 0


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /api/status HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /api/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"this is no HTTP\r\n\r\n",
    ],
    ids=["half a head", "idle", "answered", "refused"],
)
async def test_callers_who_never_end_tls_hold_no_place(tmp_path: Path, sent: bytes) -> None:
    cert, key = certificate(tmp_path, "one")
    connections = Connections(ConnectionLimits(most=40, head_seconds=600, idle_seconds=600))
    options = Options(connections=connections, certificate=Certificate(cert, key))
    async with serving(tmp_path, options, client_ca=cert) as server:
        silent = [asyncio.create_task(_never_ends(server, cert, sent)) for _ in range(120)]
        async with asyncio.timeout(30):
            while connections.evicted < 60:  # noqa: ASYNC110 - the server's time
                await asyncio.sleep(0.01)
        answers = [await stranger(server, cert) for _ in range(5)]
        for one in silent:
            one.cancel()
        await asyncio.gather(*silent, return_exceptions=True)

        assert answers == [201] * 5
    assert connections.open == 0


async def _never_ends(server: Server, cert: Path, sent: bytes) -> None:
    """Sends something over TLS on a connection that it then neither reads nor closes."""
    loop, context = asyncio.get_running_loop(), trusting(cert)
    with socket.socket() as line:
        line.setblocking(False)
        await loop.sock_connect(line, ("127.0.0.1", server.client.base_url.port))
        read, written = ssl.MemoryBIO(), ssl.MemoryBIO()
        secure = context.wrap_bio(read, written, server_hostname="127.0.0.1")
        while True:
            try:
                secure.do_handshake()
                break
            except ssl.SSLWantReadError:
                await loop.sock_sendall(line, written.read())
                read.write(await loop.sock_recv(line, 65536))
        secure.write(sent)
        await loop.sock_sendall(line, written.read())
        await asyncio.Event().wait()


async def stranger(server: Server, cert: Path) -> int:
    """Returns the status of a request on a connection of its own."""
    async with httpx2.AsyncClient(base_url=server.client.base_url, timeout=30, verify=trusting(cert)) as client:
        return (await client.post("/api/jobs", json={"job_type": "echo"})).status_code


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
