"""The OpenAPI document is true: whatever is sent, the answer is one that it declares, and never a 500."""

import os
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.config import SchemathesisConfig

from nextslot import Scheduler
from nextslot.server.app import describe
from tests.support import IS_ALL

from .support import ServerThread

# With `./test --all` thousands of cases over all operations; NEXTSLOT_EXAMPLES makes longer runs.
EXAMPLES = int(os.environ.get("NEXTSLOT_EXAMPLES", "30" if IS_ALL else "8"))

# All checks are on. What a schema cannot say (which ids and job types there are) is a 422, and a slot that does not
# come free in time is a 503.
CONFIG = SchemathesisConfig.from_dict(
    {
        "checks": {
            "positive_data_acceptance": {
                "expected-statuses": ["2xx", "401", "403", "404", "409", "422", "503"],
            },
            "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", "503"]},
        }
    }
)
pytestmark = pytest.mark.sqlite_only("thousands of requests, which take minutes; the tests beside ask both databases")
schema = schemathesis.openapi.from_dict(describe(Scheduler("sqlite:///never-opened.db")), config=CONFIG)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("server")) as running:
        running.server.gate.opened.set()
        _, running.key = running.run(running.server.scheduler.keys.create("schemathesis", ["admin"]))
        yield running


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_meets_an_answer_that_is_not_in_the_document(case: schemathesis.Case, server: ServerThread) -> None:
    # A direct caller may wait for minutes: of this the test is not about.
    if case.path.startswith("/api/direct/") and isinstance(case.body, dict):
        case.body = {**case.body, "wait_timeout_seconds": 0.05}

    case.call_and_validate(base_url=server.url, headers={"X-API-Key": server.key}, timeout=30)
