"""The client and the API know each other: no verb asks for what is not there, no operation is without a verb."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from nextslot import Client, Scheduler, extension_api
from nextslot.client.binding import Subject, stream_verb, verb
from nextslot.client.requests import Request
from nextslot.client.transports import BlockingTransport
from nextslot.extensions.offices.client import Offices
from nextslot.extensions.stories.client import Library
from nextslot.server.app import describe

# What a program has no use for: pages for people, and figures for a monitoring system.
NO_VERB = {("GET", "/health"), ("GET", "/metrics")}
SAMPLES = {
    "jobs": [{"job_type": "x"}], "job_ids": ["x"], "scopes": ["read"], "params": {}, "events": ["x"],
    "limit": 5, "count": 5, "tail": 5, "after": 5, "priority": 1,
}  # fmt: skip


def requests() -> dict[str, Request]:
    """Records the first request of every method."""
    client = Client("http://there")
    subjects: list[tuple[str, Any]] = [("", client)]
    subjects += [(f"{name}.", found) for name, found in vars(client).items() if isinstance(found, Subject)]
    subjects += [(f"extension({kind.__name__}).", client.extension(kind)) for kind in (Offices, Library)]
    found = {}
    for prefix, subject in subjects:
        for name, member in inspect.getmembers(type(subject)):
            if isinstance(member, (verb, stream_verb)):
                found[prefix + name] = _first_request(getattr(subject, name), _arguments(member.make))
    return found


class Sent(Exception):
    """A request that would have been sent."""


def _first_request(call: Any, arguments: dict[str, Any]) -> Request:
    def send(_: BlockingTransport, request: Request) -> None:
        raise Sent(request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockingTransport, "send", send)
        patch.setattr(BlockingTransport, "open", send)
        with pytest.raises(Sent) as sent:
            next(call(**arguments))
    request: Request = sent.value.args[0]
    return request


def _arguments(make: Any) -> dict[str, Any]:
    parameters = list(inspect.signature(make).parameters.values())[1:]
    needed = [one for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    return {one.name: SAMPLES.get(one.name, "x") for one in needed}


@pytest.fixture(scope="module")
def operations() -> dict[tuple[str, str], Any]:
    document = describe(Scheduler("sqlite:///never-opened.db", extensions=extension_api.used_by_server()))
    return {
        (method.upper(), path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def operation_of(request: Request, operations: dict[tuple[str, str], Any]) -> tuple[str, str] | None:
    """Returns the operation of the document that matches a request, preferring the one with the fewest parameters, as
    the server does.
    """
    fitting = [
        (method, path)
        for method, path in operations
        if method == request.method and re.fullmatch(re.sub(r"\{[^}]+\}", "[^/]+", path), request.path)
    ]
    return min(fitting, key=lambda one: one[1].count("{"), default=None)


@pytest.mark.parametrize("request_", [pytest.param(asked, id=name) for name, asked in requests().items()])
def test_what_a_verb_asks_for_is_there(request_: Request, operations: dict[tuple[str, str], Any]) -> None:
    known = operation_of(request_, operations)

    assert known is not None, request_.path
    parameters = {one["name"] for one in operations[known].get("parameters", ())}
    assert set(request_.query) <= parameters


def test_a_repeatable_creation_is_one_whose_key_the_server_honours(operations: dict[tuple[str, str], Any]) -> None:
    keyed = {
        operation_of(request, operations) for request in requests().values() if "Idempotency-Key" in request.headers
    }

    honoured = {
        key
        for key, operation in operations.items()
        if any(one["name"] == "Idempotency-Key" for one in operation.get("parameters", ()))
    }
    assert keyed <= honoured
    ours = {(method, path) for method, path in honoured if path.startswith("/api/")}
    # Their answers hold a secret that is shown once: a repetition would not.
    assert ours - keyed == {("POST", "/api/keys"), ("POST", "/api/webhooks")}


def test_every_operation_has_a_verb(operations: dict[tuple[str, str], Any]) -> None:
    asked = {operation_of(request, operations) for request in requests().values()}

    wanted = {key for key in operations if key[1].startswith(("/api/", "/ready", "/health", "/metrics"))}
    assert wanted - asked - NO_VERB == set()


def test_every_verb_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs/client.md").read_text().split("\n## All verbs\n")[1]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", page, re.MULTILINE)

    listed: set[str] = set()
    for subject, verbs in rows:
        prefix = f"{subject.strip('`')}." if subject.startswith("`") else ""
        listed |= {prefix + name for name in re.findall(r"`(\w+)`", verbs)}
    assert listed == set(requests())
