"""A real browser: Debian's Chromium, driven by Playwright. Missing, it skips on a laptop and fails where CI=true."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright


@contextmanager
def open_browser() -> Iterator[Browser]:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("there is no Chromium: apt-get install chromium")
        pytest.skip("there is no Chromium")
    # As root Chromium runs only without its sandbox; the pages are ours.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
