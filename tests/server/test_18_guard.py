"""Spec 18: somebody else's web page cannot drive a scheduler on localhost, by its address or a borrowed name."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from nextslot.domain.addresses import is_loopback
from nextslot.server.request_guard import Admission, host_name

from ..browser import open_browser
from .support import ServerThread

pytestmark = pytest.mark.sqlite_only("who is let in is decided before anything is looked up")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("guard")) as running:
        yield running


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil", ""])
def test_a_rebound_host_is_refused_for_reads_too(server: ServerThread, host: str) -> None:
    read = httpx2.get(f"{server.url}/api/jobs", headers={"Host": host})
    written = httpx2.post(f"{server.url}/api/jobs", json={"job_type": "echo"}, headers={"Host": host})

    assert (read.status_code, read.json()["code"]) == (403, "forbidden_host")
    assert written.status_code == 403
    assert "allowed_hosts" in read.json()["detail"]


def test_a_request_with_two_hosts_is_refused(server: ServerThread) -> None:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), 30) as connection:
        connection.sendall(b"GET /api/jobs HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")

        answer = connection.recv(1000)

    assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:8000", "[::1]", "[::1]:8000", "LOCALHOST"])
def test_local_names_are_served_on_any_port(server: ServerThread, host: str) -> None:
    assert httpx2.get(f"{server.url}/api/jobs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost.evil"])
@pytest.mark.parametrize(("method", "path"), [("POST", "/api/jobs"), ("PUT", "/api/queue/order"), ("DELETE", "/x")])
def test_an_unsafe_request_of_another_origin_is_refused(
    server: ServerThread, origin: str, method: str, path: str
) -> None:
    answer = httpx2.request(method, server.url + path, json={"job_type": "echo"}, headers={"Origin": origin})

    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden_origin")


def test_our_own_origin_is_taken(server: ServerThread) -> None:
    answer = httpx2.post(f"{server.url}/api/queue/resume", json={}, headers={"Origin": server.url})

    assert answer.status_code == 200


def test_a_cross_site_request_without_an_origin_is_refused(server: ServerThread) -> None:
    answer = httpx2.post(f"{server.url}/api/queue/pause", headers={"Sec-Fetch-Site": "cross-site"})

    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden_origin")


def test_a_server_beyond_this_machine_answers_to_addresses_and_to_the_names_it_is_given() -> None:
    public = Admission(is_loopback=False, allowed_hosts=("jobs.example.org",))

    assert [public.serves(host) for host in ("10.0.0.7:8000", "[2001:db8::1]:8000", "jobs.example.org")] == [True] * 3
    assert not public.serves("evil.example")
    assert Admission(is_loopback=False, allowed_hosts=("*",)).serves("whatever")
    assert not Admission().serves("10.0.0.7")


def test_what_loopback_is() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "localhost", "::1"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "example.org"))
    assert [host_name(host) for host in ("A:1", "[::1]:2", "[::1]", "b")] == ["a", "[::1]", "[::1]", "b"]


PAGE = """<!doctype html><form id=f method=post enctype="text/plain" action="{url}/api/queue/pause" target=frame>
<input name='{{"a":"' value='"}}'></form><iframe name=frame></iframe>
<script>
const tries = [
  ["/api/queue/pause", {{method: "POST", mode: "no-cors"}}],
  ["/api/queue/pause", {{method: "POST", mode: "no-cors", body: "{{}}", headers: {{"content-type": "text/plain"}}}}],
  ["/api/jobs", {{method: "POST", body: '{{"job_type": "echo"}}', headers: {{"content-type": "application/json"}}}}],
  ["/api/jobs/batch", {{method: "POST", mode: "no-cors", body: '{{"jobs": [{{"job_type": "echo"}}]}}'}}],
  ["/api/status", {{}}],
];
Promise.allSettled(tries.map(([path, how]) => fetch("{url}" + path, how).then(async (answer) => await answer.text())))
  .then((results) => {{
    window.seen = results.filter((one) => one.status === "fulfilled").map((one) => one.value).join("");
    document.getElementById("f").submit();
    setTimeout(() => {{ window.done = true; }}, 300);
  }});
</script>"""


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_a_page_of_another_origin_in_a_real_browser_changes_nothing_and_reads_nothing(
    server: ServerThread, tmp_path: Path, name: str
) -> None:
    target = server.url.replace("127.0.0.1", name)
    with hostile_site(PAGE.format(url=target)) as site, open_browser() as browser:
        page = browser.new_page()
        page.goto(site)
        page.wait_for_function("window.done === true")

        assert page.evaluate("window.seen") == ""

    status = httpx2.get(f"{server.url}/api/status").json()
    assert status["paused"]["scheduler"] is False
    assert httpx2.get(f"{server.url}/api/jobs").json()["items"] == []


class hostile_site:  # noqa: N801 - used like a function
    """Serves one page, from a port and so from an origin of its own."""

    def __init__(self, page: str) -> None:
        class Site(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/html")
                self.end_headers()
                self.wfile.write(page.encode())

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Site)

    def __enter__(self) -> str:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}/"

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
