"""An S3 server for tests: moto, in a thread of this process, on loopback."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from moto.server import ThreadedMotoServer


class S3:
    """A server with one bucket. `environment` is what a client of it needs."""

    def __init__(self, port: int = 0) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # It would log each request.
        self._server.start()
        _, self.port = self._server.get_host_and_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.url = "s3://files/of/runs"
        self.environment = {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_REGION": "us-east-1",
        }
        self.make_bucket()

    def make_bucket(self) -> None:
        httpx2.put(f"{self.address}/files").raise_for_status()

    def stop(self) -> None:
        self._server.stop()


@contextmanager
def s3() -> Iterator[S3]:
    server = S3()
    try:
        yield server
    finally:
        server.stop()
