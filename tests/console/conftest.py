"""One browser for a file of tests, and a fresh page for each test.

Not one for the whole session: while Playwright's synchronous side is open, no other test could run an event loop here.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser import open_browser
from tests.server.support import ServerThread

from .support import Console, opened


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as found:
        yield found


@pytest.fixture
def console(browser: Browser, server: ServerThread) -> Iterator[Console]:
    """Opens the console of the server that the test's module uses."""
    with opened(browser, server.url) as page:
        yield page
