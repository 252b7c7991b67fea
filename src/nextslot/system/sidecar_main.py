"""The sidecar of a node: a separate program, `python -I sidecar_main.py HEARTBEAT LISTENER`, that `sidecar.py` starts.

It acts for a node whose interpreter is blocked: it renews the lease when the node is late, and answers health probes.
It shares only three things with the node: the heartbeat (a page of memory, see `sidecar.SharedHeartbeat`), a listening
socket, and a pipe, on which the node sends its lease as lines of JSON. It ends when the pipe or the node ends.

It never extends a deadline beyond what the database has granted: the deadline that it writes is counted from before the
renewal was requested. It stops renewing if the event loop has not answered for `unresponsive` seconds.
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
# How long the event loop may be silent before the node counts as not ready.
BLOCKED_SECONDS = 5.0
REQUEST_SECONDS = 2.0
MOST_REQUEST = 8192

RENEW = """
update nodes set renewed_at = {now}, lease_until = {now} + %s where node_id = %s and life = %s and status = 'live'
returning renewed_at
""".replace("{now}", "(extract(epoch from clock_timestamp()) * 1000000)::bigint")


def main() -> None:
    heartbeat, listener = mmap.mmap(int(sys.argv[1]), mmap.PAGESIZE), int(sys.argv[2])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Signals of a terminal or a service manager are for the node to handle.
    lease_keeper = LeaseKeeper(heartbeat)
    threading.Thread(target=lease_keeper.keep, daemon=True).start()
    if listener >= 0:
        threading.Thread(target=Probes(heartbeat, socket.socket(fileno=listener)).serve_forever, daemon=True).start()
    listen(lease_keeper)
    os._exit(0)


def listen(lease_keeper: "LeaseKeeper") -> None:
    """Receives leases from the node until the node ends."""
    poll, words = select.poll(), b""
    poll.register(0, select.POLLIN)
    # Kernels before 5.3 lack pidfd_open: then only the end of the pipe shows that the node has ended.
    with contextlib.suppress(OSError):
        poll.register(os.pidfd_open(os.getppid()), select.POLLIN)
    while True:
        if any(fd != 0 for fd, _ in poll.poll()):
            return
        data = os.read(0, 65536)
        if not data:
            return
        *lines, words = (words + data).split(b"\n")
        for line in lines:
            lease_keeper.change(json.loads(line)["lease"])


class LeaseKeeper:
    """Renews the lease while the node is late."""

    def __init__(self, heartbeat: mmap.mmap) -> None:
        self._heartbeat = heartbeat
        self._lease: dict[str, Any] | None = None
        self._is_new = threading.Event()
        self._connection: Any = None
        self._driver: Any = None

    def change(self, lease: dict[str, Any] | None) -> None:
        """Replaces the lease; called on the thread that receives."""
        if lease is not None:
            # Import the driver now, not when time is short; and not at all for a node without a lease.
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
        """Returns whether the node is late, although its event loop answered recently enough."""
        at = now()
        is_late = read(self._heartbeat, UNTIL) - at < lease["work"] - 2 * lease["renew"]
        return is_late and bool(at - read(self._heartbeat, BEAT) < lease["unresponsive"])

    def _renew(self, lease: dict[str, Any]) -> None:
        began = now()
        try:
            if self._connection is None:
                self._connection = self._driver.connect(lease["conninfo"], autocommit=True)
            values = (round(lease["lease"] * 1_000_000), lease["node_id"], lease["life"])
            found = self._connection.execute(RENEW, values).fetchone()
        except (self._driver.Error, OSError):  # The node itself logs the problem as soon as it can.
            self._disconnect()
            return
        if found is None:  # The node was declared lost or has joined again: it will notice by itself.
            self._lease = None if self._lease is lease else self._lease
        elif self._lease is lease:
            write(self._heartbeat, UNTIL, max(read(self._heartbeat, UNTIL), began + lease["work"]))

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class Probes(socketserver.ThreadingMixIn, socketserver.BaseServer):
    """Answers GET /health and GET /ready from the heartbeat alone."""

    daemon_threads = True

    def __init__(self, heartbeat: mmap.mmap, listener: socket.socket) -> None:
        super().__init__(listener.getsockname(), socketserver.BaseRequestHandler)
        self._heartbeat = heartbeat
        self.socket = listener

    def fileno(self) -> int:
        return self.socket.fileno()

    def get_request(self) -> tuple[socket.socket, Any]:
        return self.socket.accept()

    def finish_request(self, request: Any, client_address: Any) -> None:
        with contextlib.suppress(OSError):
            request.settimeout(REQUEST_SECONDS)
            received = b""
            while b"\r\n\r\n" not in received and len(received) < MOST_REQUEST:
                data = request.recv(MOST_REQUEST)
                if not data:
                    return
                received += data
            request.sendall(self._answer(received.split(b" ")[1:2]))
            request.shutdown(socket.SHUT_WR)

    def shutdown_request(self, request: Any) -> None:
        request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores a probe that disconnects early."""

    def _answer(self, path: list[bytes]) -> bytes:
        silent = max(0.0, now() - read(self._heartbeat, BEAT))
        body: dict[str, object] = {"status": "ok", "loop_answered_ms_ago": round(1000 * silent)}
        status = "200 OK"
        if path == [b"/ready"]:
            is_ready = read(self._heartbeat, READY) == 1.0 and silent < BLOCKED_SECONDS
            body["status"] = "ready" if is_ready else "blocked" if silent >= BLOCKED_SECONDS else "starting or stopping"
            status = "200 OK" if is_ready else "503 Service Unavailable"
        elif path != [b"/health"]:
            body, status = {"status": "unknown path: use /health or /ready"}, "404 Not Found"
        text = json.dumps(body).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n"
        return head.encode() + b"Connection: close\r\n\r\n" + text


def now() -> float:
    """Returns the time of CLOCK_BOOTTIME, as heartbeat and guardians do: it advances while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def read(heartbeat: mmap.mmap, place: int) -> float:
    value: float = struct.unpack_from("d", heartbeat, place)[0]
    return value


def write(heartbeat: mmap.mmap, place: int, value: float) -> None:
    struct.pack_into("d", heartbeat, place, value)


if __name__ == "__main__":
    main()
