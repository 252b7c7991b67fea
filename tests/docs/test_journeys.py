"""Pages that lead through a whole task: every block is pasted into a shell, in the order of the page."""

import json
import re
import subprocess
from pathlib import Path

from .test_offices import Terminal

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


def test_an_office_from_nothing_to_live_events(tmp_path: Path) -> None:
    prepare, serve, office, graph, log, order, cancel, figures = blocks("journey-office.md")
    terminal = Terminal(tmp_path)
    terminal.paste(prepare)
    with subprocess.Popen(["bash", "-c", f"exec {serve.strip()} --port 0 --json"], **terminal.options) as server:
        try:
            assert server.stdout is not None
            terminal.url = json.loads(server.stdout.readline())["url"]

            settings = terminal.paste(office)
            with subprocess.Popen(["nextslot", "office", "events", "web", "-f"], **terminal.live()) as live:
                ended = terminal.paste(graph)
                told = terminal.paste(log)
                explained = terminal.paste(order)
                cancelled = terminal.paste(cancel)
                shown = terminal.paste(figures)
                live.terminate()
                assert live.stdout is not None
                followed = live.stdout.read()
        finally:
            server.kill()

    assert re.search(r"maxConcurrentJobs\s+2", settings), settings
    assert ended.count(" done ") == 4, ended
    assert "QA works on: Test both" in told
    assert "has priority -5" in explained
    assert "role" in explained, explained
    assert "2 cancelled, 1 asked to stop" in cancelled
    assert re.search(r"done\s+4", shown), shown
    assert "job_completed" in shown
    assert "job_completed" in followed


def test_a_page_that_is_pasted_is_named_in_the_readme() -> None:
    readme = (DOCS.parent / "README.md").read_text()

    assert all(f"docs/{page.name}" in readme for page in DOCS.glob("journey-*.md"))
