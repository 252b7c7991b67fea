"""What each view weighs with an empty cache, until all its data is shown."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.server.support import ServerThread

from .first_content import VIEWS, visit
from .world import furnish, live_through_yesterday

MOST_BYTES = 150_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    folder = tmp_path_factory.mktemp("weight")
    live_through_yesterday(folder)
    with ServerThread(folder) as running:
        ids = running.run(furnish(running))
        for _ in range(3):
            failed = running.run(running.server.scheduler.submit("fail", {"message": "again"}, office_id="studio"))
            running.run(running.server.scheduler.wait(failed.job_id))
        ids |= {"rare": "img", "common": "script", "type": "echo", "office": "studio"}
        running.ids = ids  # type: ignore[attr-defined]
        yield running


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_weighs_at_most_150_kB_until_all_its_data_is_shown(
    view: str, browser: Browser, server: ServerThread
) -> None:
    address = view.format(**server.ids)  # type: ignore[attr-defined]

    found = visit(browser, f"{server.url}/console/#/{address}", VIEWS[view])

    assert 20_000 < found.bytes < MOST_BYTES
    assert found.requests > 5
