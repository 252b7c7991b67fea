"""Sequences of requests, each with what the ones before have made: no answer is a 5xx, on either database.

A sample of what `scripts/fuzz_http.py` does before a release, with 200 examples of each operation.
"""

import os
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.config import SchemathesisConfig
from schemathesis.generation.stateful.state_machine import APIStateMachine

from nextslot import Scheduler
from nextslot.server.app import describe
from tests.support import IS_ALL

from .support import ServerThread

EXAMPLES = int(os.environ.get("NEXTSLOT_EXAMPLES", "20" if IS_ALL else "6"))
STEPS = 8
schema = schemathesis.openapi.from_dict(
    describe(Scheduler("sqlite:///never-opened.db")), config=SchemathesisConfig.from_dict({})
)
# What ends the key or the node that the others need.
NEEDED = ("/api/keys/{key_id}", "/api/nodes/{node_id}")


def test_no_sequence_of_requests_meets_an_error_of_the_server(
    tmp_path_factory: pytest.TempPathFactory, database_of_the_module: str
) -> None:
    asked: list[tuple[str, int]] = []
    with ServerThread(tmp_path_factory.mktemp("sequences")) as server:
        server.server.gate.opened.set()
        _, key = server.run(server.server.scheduler.keys.create("schemathesis", ["admin"]))
        machine: type[APIStateMachine] = schema.as_state_machine()

        class Sequences(machine):  # type: ignore[misc,valid-type]
            def before_call(self, case: schemathesis.Case) -> None:
                if case.path.startswith(NEEDED):
                    case.path_parameters = dict.fromkeys(case.path_parameters, "none")
                if case.path.startswith("/api/direct/") and isinstance(case.body, dict):
                    case.body = {**case.body, "wait_timeout_seconds": 0.05}

            def get_call_kwargs(self, case: schemathesis.Case) -> dict[str, Any]:
                return {"base_url": server.url, "headers": {"X-API-Key": key}, "timeout": 30}

            def validate_response(self, response: Any, case: schemathesis.Case, **more: Any) -> None:
                asked.append((case.path, response.status_code))
                # A direct caller whose wait is over gets 503.
                assert response.status_code < 500 or (response.status_code, "slot_busy" in response.text) == (503, True)

        Sequences.run(
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
        )

    assert any(status < 300 for _, status in asked)
