"""A console in a real browser against a real server, and what its tests do again and again."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, Locator, Page, expect

# The machine may be busy; what is there is seen at once, so this costs nothing.
PATIENCE_MS = 30_000
expect.set_options(timeout=PATIENCE_MS)


@dataclass
class Console:
    """A page of the console; at its end nothing may have been said in the browser's own console."""

    page: Page
    url: str
    # Answers that a test expects to be refusals, by what is in their address.
    expected_refusals: tuple[str, ...] = ()
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._heard)
        self.page.on("dialog", self._surprised)

    def _heard(self, message: Any) -> None:
        place = str((message.location or {}).get("url", ""))
        if message.type == "error" and not any(one in place for one in self.expected_refusals):
            self.complaints.append(f"{message.text} ({place})")

    def _surprised(self, dialog: Any) -> None:
        self.complaints.append(f"a dialog opened: {dialog.message}")
        dialog.dismiss()

    def open(self, view: str = "now", is_live: bool = True) -> "Console":
        self.page.goto(f"{self.url}/console/#/{view}")
        if is_live:
            self.page.locator("main h1").first.wait_for()
            self.page.locator(".line.live").wait_for()
        return self

    def loaded(self) -> "Console":
        """Waits until the view shows its content."""
        expect(self.page.locator("main .empty", has_text="Loading")).to_have_count(0)
        if self.page.locator("svg.graph").count():
            self.page.locator("svg.graph[data-ready=true]").wait_for()
        return self

    def find(self, selector: str, **options: Any) -> Locator:
        return self.page.locator(selector, **options)

    def section(self, title: str) -> Locator:
        return self.page.locator("section.section", has=self.page.get_by_role("heading", name=title))

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def dialog(self) -> Locator:
        return self.page.locator("dialog[open]")

    def says(self, text: str) -> None:
        """Waits for a message that appears and disappears after some seconds."""
        expect(self.page.locator(".toast", has_text=text).first).to_be_visible()

    def queue(self) -> list[str]:
        return self.page.locator(".queue li .what a").all_inner_texts()

    def has_queue(self, *titles: str) -> None:
        expect(self.page.locator(".queue li .what a")).to_have_text(list(titles))

    def has_stored_queue(self, *titles: str) -> None:
        """Waits until the console says that the new order is stored: it shows the order before that."""
        self.has_queue(*titles)
        self.page.locator(".queue[aria-busy=false]").wait_for()


@contextmanager
def opened(browser: Browser, url: str, refusals: tuple[str, ...] = (), **options: Any) -> Iterator[Console]:
    context = browser.new_context(**options)
    console = Console(context.new_page(), url, refusals)
    try:
        yield console
        assert console.complaints == [], console.complaints
    finally:
        context.close()


def queue_order(server: Any) -> list[str]:
    """Returns the order of the queue as the scheduler has it."""
    return [job.title for job in server.run(server.server.scheduler.queue())]


class Line:
    """A line to a server that can be cut, and mended."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._is_cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            for one in self._open:
                _close(one)
            self._open.clear()

    def mend(self) -> None:
        with self._lock:
            self._is_cut = False

    def close(self) -> None:
        self.cut()
        _close(self._listener)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_cut:
                    _close(near)
                    continue
                far = socket.create_connection(("127.0.0.1", self._target))
                self._open += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=_carry, args=(source, target), daemon=True).start()


def _carry(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    _close(source)
    _close(target)


def _close(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
