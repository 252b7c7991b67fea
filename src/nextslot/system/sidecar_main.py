"""The sidecar of a node: a program of its own, `python -I sidecar_main.py PULSE LISTENER`, that `sidecar.py` starts.

It answers for a node whose interpreter cannot: it renews the lease when the node is late with that, and answers health
probes. It shares nothing with the node but the pulse (a page of memory, see `sidecar.Pulse`), a listening socket, and a
pipe, on which the node says in lines of JSON what lease it has; the end of the pipe, or of the node, is its own end.

It never prolongs anything that the database has not: the deadline that it writes is counted from before the renewal
was asked for. A node whose event loop has not answered for `unresponsive` seconds is renewed no longer.
"""

import contextlib
import importlib
import json
import mmap
import os
import select
import signal
import socket
import socketserver
import struct
import sys
import threading
import time
from typing import Any

BEAT, UNTIL, READY = 0, 8, 16
# A loop that has not answered for this long is not ready for anything.
BLOCKED_SECONDS = 5.0
REQUEST_SECONDS = 2.0
MOST_REQUEST = 8192

RENEW = """
update nodes set renewed_at = {now}, lease_until = {now} + %s where node_id = %s and life = %s and status = 'live'
returning renewed_at
""".replace("{now}", "(extract(epoch from clock_timestamp()) * 1000000)::bigint")


def main() -> None:
    pulse, listener = mmap.mmap(int(sys.argv[1]), mmap.PAGESIZE), int(sys.argv[2])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # What a terminal or a service manager says is for the node.
    keeper = LeaseKeeper(pulse)
    threading.Thread(target=keeper.keep, daemon=True).start()
    if listener >= 0:
        threading.Thread(target=Probes(pulse, socket.socket(fileno=listener)).serve_forever, daemon=True).start()
    listen(keeper)
    os._exit(0)


def listen(keeper: "LeaseKeeper") -> None:
    """Takes in what the node says, until its end."""
    poll, words = select.poll(), b""
    poll.register(0, select.POLLIN)
    with contextlib.suppress(OSError):  # A kernel before 5.3: then the pipe's end alone tells that the node is gone.
        poll.register(os.pidfd_open(os.getppid()), select.POLLIN)
    while True:
        if any(fd != 0 for fd, _ in poll.poll()):
            return
        data = os.read(0, 65536)
        if not data:
            return
        *lines, words = (words + data).split(b"\n")
        for line in lines:
            keeper.change(json.loads(line)["lease"])


class LeaseKeeper:
    """Renews the lease while the node is late with it."""

    def __init__(self, pulse: mmap.mmap) -> None:
        self._pulse = pulse
        self._lease: dict[str, Any] | None = None
        self._is_new = threading.Event()
        self._connection: Any = None
        self._driver: Any = None

    def change(self, lease: dict[str, Any] | None) -> None:
        """Takes another lease in place of the last one; from the thread that listens."""
        if lease is not None:
            # Now, and not when every second counts; and not at all for a node without a lease.
            self._driver = importlib.import_module("psycopg")
        self._lease = lease
        self._is_new.set()

    def keep(self) -> None:
        while True:
            lease = self._lease
            self._is_new.wait(None if lease is None else lease["renew"] / 2)
            self._is_new.clear()
            lease = self._lease
            if lease is not None and self._is_needed(lease):
                self._renew(lease)
            else:
                self._disconnect()

    def _is_needed(self, lease: dict[str, Any]) -> bool:
        """Whether the node is late, and has a loop that answered lately enough."""
        at = now()
        is_late = read(self._pulse, UNTIL) - at < lease["work"] - 2 * lease["renew"]
        return is_late and bool(at - read(self._pulse, BEAT) < lease["unresponsive"])

    def _renew(self, lease: dict[str, Any]) -> None:
        began = now()
        try:
            if self._connection is None:
                self._connection = self._driver.connect(lease["conninfo"], autocommit=True)
            values = (round(lease["lease"] * 1_000_000), lease["node_id"], lease["life"])
            found = self._connection.execute(RENEW, values).fetchone()
        except (self._driver.Error, OSError):  # The node says so, as soon as it can say anything.
            self._disconnect()
            return
        if found is None:  # Lost, or another life: the node finds out by itself.
            self._lease = None if self._lease is lease else self._lease
        elif self._lease is lease:
            write(self._pulse, UNTIL, max(read(self._pulse, UNTIL), began + lease["work"]))

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class Probes(socketserver.ThreadingMixIn, socketserver.BaseServer):
    """Answers GET /health and GET /ready from the pulse alone."""

    daemon_threads = True

    def __init__(self, pulse: mmap.mmap, listener: socket.socket) -> None:
        super().__init__(listener.getsockname(), socketserver.BaseRequestHandler)
        self._pulse = pulse
        self.socket = listener

    def fileno(self) -> int:
        return self.socket.fileno()

    def get_request(self) -> tuple[socket.socket, Any]:
        return self.socket.accept()

    def finish_request(self, request: Any, client_address: Any) -> None:
        with contextlib.suppress(OSError):
            request.settimeout(REQUEST_SECONDS)
            asked = b""
            while b"\r\n\r\n" not in asked and len(asked) < MOST_REQUEST:
                data = request.recv(MOST_REQUEST)
                if not data:
                    return
                asked += data
            request.sendall(self._answer(asked.split(b" ")[1:2]))
            request.shutdown(socket.SHUT_WR)

    def shutdown_request(self, request: Any) -> None:
        request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A probe that breaks off is nobody's business."""

    def _answer(self, path: list[bytes]) -> bytes:
        silent = max(0.0, now() - read(self._pulse, BEAT))
        body: dict[str, object] = {"status": "ok", "loop_answered_ms_ago": round(1000 * silent)}
        status = "200 OK"
        if path == [b"/ready"]:
            is_ready = read(self._pulse, READY) == 1.0 and silent < BLOCKED_SECONDS
            body["status"] = "ready" if is_ready else "blocked" if silent >= BLOCKED_SECONDS else "starting or stopping"
            status = "200 OK" if is_ready else "503 Service Unavailable"
        elif path != [b"/health"]:
            body, status = {"status": "there are /health and /ready here"}, "404 Not Found"
        text = json.dumps(body).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n"
        return head.encode() + b"Connection: close\r\n\r\n" + text


def now() -> float:
    """The clock of the pulse and of the guardians: it goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def read(pulse: mmap.mmap, place: int) -> float:
    value: float = struct.unpack_from("d", pulse, place)[0]
    return value


def write(pulse: mmap.mmap, place: int, value: float) -> None:
    struct.pack_into("d", pulse, place, value)


if __name__ == "__main__":
    main()
