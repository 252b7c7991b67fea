"""At a real terminal: colours, a bar while waiting, and the live view, which ends with q."""

import contextlib
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator

from nextslot import Client
from tests.serving import Served, open_gate


class Screen:
    """A program on a terminal of its own: what it has drawn so far, and keys for it."""

    def __init__(self, process: "subprocess.Popen[bytes]", master: int) -> None:
        self.process = process
        self._master = master
        self.drawn = ""

    def wait_for(self, text: str) -> str:
        while text not in self.drawn:
            piece = self._read()
            assert piece, self.drawn
            self.drawn += piece
        return self.drawn

    def all(self) -> str:
        while piece := self._read():
            self.drawn += piece
        return self.drawn

    def press(self, key: str) -> None:
        os.write(self._master, key.encode())

    def _read(self) -> str:
        try:
            return os.read(self._master, 65536).decode(errors="replace")
        except OSError:  # It has ended, and nobody holds the other side.
            return ""


@contextlib.contextmanager
def screen(*words: str, **environment: str) -> Iterator[Screen]:
    master, slave = pty.openpty()
    known = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    command = [sys.executable, "-m", "nextslot.cli.main", *words]
    settings = {**known, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40", **environment}
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=settings) as process:
        os.close(slave)
        try:
            yield Screen(process, master)
        finally:
            process.kill()
            os.close(master)


def test_colours_on_a_terminal_unless_they_are_not_wanted(served: Served) -> None:
    with Client(served.url) as client:
        client.wait(client.submit("skip").job_id)

    with screen("ls", "--url", served.url) as coloured, screen("ls", "--url", served.url, NO_COLOR="1") as plain:
        with_colours, without = coloured.all(), plain.all()

    assert "\x1b[35mSKIPPED" in with_colours
    assert "\x1b[35m" not in without
    assert "SKIPPED" in without


def test_waiting_shows_how_far_the_work_is(served: Served) -> None:
    with screen("submit", "gated", "gate=bar", "--wait", "--url", served.url) as waiting:
        waiting.wait_for("halfway")
        threading.Thread(target=open_gate, args=(served, "bar")).start()
        waiting.wait_for("COMPLETED")

        assert waiting.process.wait(60) == 0


def test_top_follows_what_happens_and_ends_with_q(served: Served) -> None:
    with Client(served.url) as client, screen("top", "--url", served.url) as top:
        top.wait_for("office default")
        job = client.submit("gated", {"gate": "live"}, title="seen live")
        top.wait_for(job.job_id[-8:])
        client.cancel(job.job_id, interrupt=True)
        top.press("q")
        top.all()

        assert top.process.wait(60) == 0


def test_a_terminal_shows_no_fingerprints(served: Served) -> None:
    words = ("echo", "text=seen", "fingerprint=only-for-programs", "--url", served.url)
    with screen("submit", *words, "--wait") as queued, screen("run", *words) as direct:
        shown = [queued.all(), direct.all()]

    assert [("seen" in one, "only-for-programs" in one) for one in shown] == [(True, False)] * 2
