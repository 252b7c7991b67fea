"""The demo, as a newcomer runs it: a real process on a real file, killed with SIGKILL and started again."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import apsw
import pytest


def test_the_demo_shows_every_feature_it_names_and_ends_by_itself(tmp_path: Path) -> None:
    ran = demo(tmp_path, "--once", "--no-story")

    assert ran.returncode == 0, ran.stderr
    assert complaints(ran.stderr) == []
    for line in (
        "preview, direct waits for a slot, 0 callers ahead of it",
        "preview, direct started: after the running jobs, before the queued ones",
        "frame 1 queued",
        "frame 6 moved: to the front",
        "poster cancelled: no poster after all",
        "soundtrack failed: error: the orchestra is not in tune",
        "soundtrack, retry completed",
        "frame 3 50%: tracing light",
        "encode ready: its dependencies are done",
        "pack the logs completed",
        "group publish finished: COMPLETED",
    ):
        assert line in told(ran), line
    assert order_of_starts(ran, but=("soundtrack, retry", "preview, direct")) == [
        "frame 1", "soundtrack", "frame 6", "frame 2", "frame 3", "frame 4", "frame 5", "encode",
        "pack the logs", "upload", "announce"]  # fmt: skip
    assert [line for line in told(ran) if line.startswith("story ")] == []
    starts = order_of_starts(ran)
    assert starts.index("frame 1") < starts.index("preview, direct") < starts.index("frame 2"), "DEC-004"
    assert f"sqlite3 {tmp_path}/demo/nextslot.db" in ran.stdout
    assert (tmp_path / "demo/logs").is_dir()
    assert [path.read_text() for path in tmp_path.glob("demo/artifacts/*/*/film.txt")] == ["a film of 6 frames\n"]
    with tarfile.open(tmp_path / "demo/logs.tar.gz") as packed:
        assert any(name.endswith(".log") for name in packed.getnames())


@pytest.mark.local_llm
@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="needs the extra local-llm")
def test_the_demo_generates_a_real_story_and_shows_how_it_begins_and_where_it_is(tmp_path: Path) -> None:
    ran = demo(tmp_path, "--once", environment={"OLLAMA_BASE_URL": "http://127.0.0.1:9"})

    assert (ran.returncode, complaints(ran.stderr)) == (0, [])
    assert "A story is written by smollm2:135m." in ran.stdout
    assert "story completed" in told(ran)
    title, *begin, where = re.search(r"\n    (# .*?)\n\n", ran.stdout, re.DOTALL)[1].splitlines()  # type: ignore[index]
    story = Path(where.strip().removeprefix("… in ")).read_text()
    assert title in story.splitlines()
    # Wrapped lines may break after a hyphen of the model's: only what is not white space is compared.
    assert "".join("".join(begin).split()) in "".join(story.split())
    assert len(begin) > 0


def test_an_ollama_that_answers_writes_the_story_with_its_smallest_model(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), SmallOllama) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ran = demo(tmp_path, "--once", environment={"OLLAMA_BASE_URL": f"http://127.0.0.1:{server.server_port}"})
        server.shutdown()

    assert "A story is written by ollama:small:1b." in ran.stdout
    assert "    # The lamp\n    It burned all night.\n" in ran.stdout


def test_DEC_008_the_demo_is_killed_in_the_middle_and_the_next_run_finishes_the_film(tmp_path: Path) -> None:
    killed = demo(tmp_path, "--crash", "--no-story")
    again = demo(tmp_path, "--once", "--no-story")

    assert killed.returncode == -signal.SIGKILL
    assert again.returncode == 0, again.stderr
    assert "The last run left" in again.stdout
    assert "frame 1 queued" not in told(again)
    assert any("failed: crash: Scheduler crash recovery" in line for line in told(again))
    assert any(line.startswith("scheduler recovered:") for line in told(again))
    assert titles_by_end(tmp_path) == {
        **{f"frame {number}": "COMPLETED" for number in range(1, 7)},
        **dict.fromkeys(("soundtrack", "encode", "pack the logs", "upload", "announce"), "COMPLETED"),
        "poster": "CANCELLED",
    }


def test_CON_003_ctrl_c_ends_an_endless_demo_after_what_runs(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(tmp_path, "--keep", "--no-story"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    while "started" not in process.stdout.readline():
        pass

    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=120)

    assert (process.returncode, complaints(errors)) == (0, [])
    assert "Stopping: running jobs finish first" in rest
    with apsw.Connection(str(tmp_path / "demo/nextslot.db")) as connection:
        assert connection.execute("select count(*) from jobs where stage = 'RUNNING' and finished_at is null").get == 0
        assert connection.execute("select count(*) from jobs where stage = 'QUEUED'").get > 0


def test_a_second_demo_on_the_same_files_is_refused_with_a_sentence(tmp_path: Path) -> None:
    first = subprocess.Popen(command(tmp_path, "--keep", "--no-story"), stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    while "started" not in first.stdout.readline():
        pass

    second = demo(tmp_path, "--once", "--no-story")
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=20)

    assert second.returncode == 1
    assert f"is in use by process {first.pid}" in second.stderr
    assert "Traceback" not in second.stderr


def command(directory: Path, *arguments: str) -> list[str]:
    python = [sys.executable, "-W", "error", "-u", "-m", "nextslot.cli.main", "demo"]
    return [*python, "--port", "0", "--data", str(directory / "demo"), *arguments]


def demo(
    directory: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(directory, *arguments),
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class SmallOllama(BaseHTTPRequestHandler):
    """As much of Ollama as the demo asks for."""

    def do_GET(self) -> None:
        sizes = {"large:70b": 70, "small:1b": 1, "embed-text": 0}
        self._answer({"models": [{"name": name, "size": size} for name, size in sizes.items()]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["model"] == "small:1b"
        self._answer({"message": {"content": "# The lamp\n\nIt burned all night."}, "done": True})

    def _answer(self, body: object) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode() + b"\n")

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing on the terminal of the tests."""


def complaints(errors: str) -> list[str]:
    """Returns the errors that the demo printed, except reports that a busy machine stopped its event loop."""
    return [line for line in errors.splitlines() if not line.startswith("the event loop ")]


def told(ran: "subprocess.CompletedProcess[str]") -> list[str]:
    """Returns the lines of the narration, without times and with single spaces."""
    lines = re.findall(r"^ *\d+\.\d\d s   (.*)$", ran.stdout, re.MULTILINE)
    return [" ".join(line.split()) for line in lines]


def order_of_starts(ran: "subprocess.CompletedProcess[str]", but: tuple[str, ...] = ()) -> list[str]:
    starts = [line.partition(" started: ")[0] for line in told(ran) if " started: " in line]
    return [name for name in starts if name not in but]


def titles_by_end(directory: Path) -> dict[str, str]:
    """Returns how each chain ended, by its last job."""
    with apsw.Connection(str(directory / "demo/nextslot.db")) as connection:
        rows: list[Any] = connection.execute(
            "select title, coalesce(outcome, stage) from jobs order by job_id"
        ).fetchall()
    return dict(rows)
