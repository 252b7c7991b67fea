"""The views of the console, each with signs that are there only when its data is shown, and a visit that waits for it.

`test_weight.py` visits the views of a small database, `bench/console.py` those of a large one.
"""

import json
import time
from collections.abc import Sequence
from typing import NamedTuple

from playwright.sync_api import Browser

# By the address: the selector of an element for each part of the view. An element counts once it is drawn and has text
# or a shape. A heading or a frame is no sign: those are there before the data.
VIEWS: dict[str, tuple[str, ...]] = {
    "overview": (".verdict.is-ill li", ".pillar", ".card b", ".columns .rows time"),
    "now": (".queue li .what a",),
    "jobs": ("tbody tr[data-job]",),
    "jobs?status=FAILED&sort=-finished_at": ("tbody tr[data-job]",),
    "jobs?sort=-duration": ("tbody tr[data-job]",),
    "jobs?q={rare}": ("tbody tr[data-job]",),
    "jobs?q={common}": ("tbody tr[data-job]",),
    "jobs/{done}": (".steps li time",),
    "jobs/{failed}": (".steps li time",),
    "jobs/{queued}": (".steps li time",),
    "failures": (".failures > li .counts strong", ".failures .sparkline rect"),
    "types": ("main .rows li a",),
    "types/{type}": (".pillar", "tbody tr[data-job]"),
    "schedules": ("tbody tr time",),
    "schedules/{schedule}": ("tbody tr time",),
    "groups": ("tbody tr time", "tbody tr .status"),
    "groups/{group}": ("svg.graph[data-ready=true] .node",),
    "offices": ("tbody tr td.number:nth-child(4)",),
    "offices/{office}": (".stats b",),
    "webhooks": ("tbody tr[data-webhook]",),
    "system": (".stats b", "main table tbody tr td"),
    "submit": ("#field-what",),
    "direct": ("tbody tr .status",),
}

_WATCH = """
(() => {
  const signs = %s;
  const seen = (window.__seen = {});
  const isThere = (sign) =>
    [...document.querySelectorAll(sign)].some(
      (one) => one.getClientRects().length > 0 && (one instanceof SVGElement || one.textContent.trim() || one.value),
    );
  const look = () => {
    for (const sign of signs) if (!(sign in seen) && isThere(sign)) seen[sign] = performance.now();
    if (Object.keys(seen).length < signs.length) setTimeout(look, 5);
  };
  addEventListener("DOMContentLoaded", look);
})();
"""


class Visit(NamedTuple):
    """What a visit with an empty cache cost until all signs of the view were there; times from the navigation on."""

    requests: int
    bytes: int
    # When the first part of the view showed its data, and when the last one did.
    content_ms: float
    complete_ms: float


def visit(browser: Browser, url: str, signs: Sequence[str], timeout_seconds: float = 60) -> Visit:
    """Opens a view in a new browser context. Raises if a sign does not come in time."""
    context = browser.new_context()
    try:
        page = context.new_page()
        page.add_init_script(_WATCH % json.dumps(list(signs)))
        sizes: list[int] = []
        session = context.new_cdp_session(page)
        session.send("Network.enable")
        session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
        page.goto(url, wait_until="commit")
        end = time.monotonic() + timeout_seconds
        while True:
            seen: dict[str, float] = page.evaluate("window.__seen || {}")
            if len(seen) == len(signs):
                return Visit(len(sizes), sum(sizes), min(seen.values()), max(seen.values()))
            if time.monotonic() > end:
                missing = [sign for sign in signs if sign not in seen]
                raise TimeoutError(f"{url} does not show {', '.join(missing)} after {timeout_seconds} s")
            page.wait_for_timeout(10)
    finally:
        context.close()
