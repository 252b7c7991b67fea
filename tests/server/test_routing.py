"""Requests go past the framework's layers, and are answered as the declaration of their route says."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Annotated, Any

import httpx2
import pytest
from fastapi import Header, Query, Request, Response
from starlette.routing import Match

from nextslot import Scheduler, extension_api
from nextslot.domain import Scope
from nextslot.server.app import Options, application
from nextslot.server.responses import answer
from nextslot.server.route_rules import needs
from nextslot.server.routing import METHODS, Router, router

from .support import ServerThread

APP = application(Scheduler("sqlite:///never-opened.db", extensions=extension_api.used_by_server()), Options())
PATHS = sorted({re.sub(r"\{\w+(:path)?\}", "x", route.path) for route in APP.routes})  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", [*PATHS, "/api/jobs/x/nothing", "/nothing", "/api/nothing/x", "/", "/api//jobs"])
@pytest.mark.parametrize("method", METHODS)
def test_a_request_takes_the_first_route_that_the_framework_would_take(method: str, path: str) -> None:
    scope: Any = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
    fitting = [(one, one.matches(dict(scope))) for one in APP.routes]
    expected = next(((one, found) for one, (match, found) in fitting if match is Match.FULL), None)

    Router(APP)._handler(scope)

    assert scope.get("route") is (None if expected is None else expected[0])
    assert scope.get("path_params") == (None if expected is None else expected[1]["path_params"])


def test_an_endpoint_that_wants_what_no_request_brings_is_refused_by_name() -> None:
    made = router("Planted")

    async def with_header(request: Request, name: Annotated[str, Header()]) -> Response:
        return answer({})

    async def with_list(request: Request, names: Annotated[list[str], Query()]) -> Response:
        return answer({})

    for endpoint in (with_header, with_list):
        made.get("/api/planted")(needs(Scope.READ)(endpoint))
        with pytest.raises(TypeError, match=endpoint.__name__):
            _ = made.routes[-1].handler  # type: ignore[attr-defined]


def test_a_start_lets_the_framework_analyse_no_route() -> None:
    code = """
        import sys
        from nextslot import Scheduler, extension_api
        from nextslot.server.app import Options, application, routes_of
        scheduler = Scheduler("sqlite:///never-opened.db", extensions=extension_api.used_by_server())
        routes = list(routes_of(application(scheduler, Options())))
        assert len(routes) > 100, len(routes)
        sys.exit(" ".join(route.path for route in routes if "described" in vars(route)))
    """

    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False, capture_output=True, text=True)

    assert done.stderr.strip() == ""


def test_jobs_of_a_long_batch_that_look_alike_are_told_apart_by_the_types_of_their_values(tmp_path: Path) -> None:
    jobs: list[dict[str, Any]] = [{"job_type": "echo", "params": {"text": str(n)}, "priority": 1} for n in range(600)]
    with ServerThread(tmp_path) as server:
        made = httpx2.post(f"{server.url}/api/jobs/batch", json={"jobs": jobs}, timeout=60).json()["items"]
        jobs[550]["priority"] = True
        jobs[560]["params"] = []
        refused = httpx2.post(f"{server.url}/api/jobs/batch", json={"jobs": jobs}, timeout=60)

        shown = [httpx2.get(f"{server.url}/api/jobs/{made[at]['job_id']}", timeout=60).json() for at in (0, 1, 599)]

    assert [one["params"] for one in made] == [{"text": str(n)} for n in range(600)]
    assert len({one["job_id"] for one in made}) == len({one["position"] for one in made}) == 600
    assert [(one["params"], one["position"]) for one in shown] == [
        (made[at]["params"], made[at]["position"]) for at in (0, 1, 599)
    ]
    assert refused.status_code == 422
    assert [one["field"] for one in refused.json()["errors"]] == ["jobs.550.priority", "jobs.560.params"]
