"""What comes back: errors of the same tree as in-process, and values that bear with other releases."""

import inspect
import json
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import pytest

from nextslot import Scheduler, client, errors, extension_api
from nextslot.client import values
from nextslot.client.problems import Rejected, error_of
from nextslot.errors import NextslotError, Problem
from nextslot.extensions.offices import client as office_values
from nextslot.server.app import describe
from nextslot.server.problems import of_error

RAISED: list[NextslotError] = [
    errors.Invalid([Problem("params.size", "too small"), Problem("title", "too long")]),
    errors.UnknownJobType("x", ["a", "b"]),
    errors.DependencyCycle(["a", "b"]),
    errors.IdempotencyMismatch("other content"),
    errors.NotFound("job", "x"),
    errors.Conflict("paused"),
    errors.IllegalTransition("no"),
    errors.AlreadyDispatched("no"),
    errors.AlreadyFinished("no"),
    errors.Unavailable("later"),
    errors.SlotBusy(3, "three are ahead"),
    errors.Draining("stopping"),
    errors.DiskLow("full"),
    errors.CommitUnknown("perhaps"),
]


@pytest.mark.parametrize("raised", RAISED, ids=lambda error: error.code)
def test_an_error_is_the_same_over_http_as_in_process(raised: NextslotError) -> None:
    answer = of_error(raised)

    error = error_of(answer.status_code, json.loads(bytes(answer.body)))

    assert type(error) is type(raised)
    assert (str(error), error.code, error.data()) == (str(raised), raised.code, raised.data())
    assert error.status == answer.status_code


def test_a_code_that_is_not_known_keeps_its_word_its_sentence_and_its_data() -> None:
    error = error_of(418, {"code": "teapot", "detail": "short and stout", "status": 418, "title": "t", "handle": 1})

    assert isinstance(error, Rejected)
    assert (error.code, str(error), error.status, error.data()) == ("teapot", "short and stout", 418, {"handle": 1})


@pytest.mark.parametrize("body", [None, [], "<html>", {"detail": "of another service"}])
def test_an_answer_that_is_no_problem_document_is_an_error_too(body: Any) -> None:
    error = error_of(502, body)

    assert (error.code, error.status) == ("http_502", 502)
    assert "502" in str(error)


def test_what_a_newer_server_sends_besides_does_not_break_and_is_in_json() -> None:
    sent = {"seq": 1, "type": "new_thing", "timestamp": "2026-11-15T06:30:00.000000Z", "colour": "blue"}

    event = values.Event.read(sent)

    assert event.timestamp == datetime(2026, 11, 15, 6, 30, tzinfo=UTC)
    assert event.json["colour"] == "blue"


def test_what_an_older_server_does_not_send_is_none() -> None:
    status: Any = values.Status.read({"version": "0.0.1"})

    assert (status.version, status.last_event, status.offices) == ("0.0.1", None, ())


def test_values_are_frozen_and_compare_by_their_fields() -> None:
    one, other = values.Reason.read({"code": "a"}), values.Reason.read({"code": "a", "x": 2})

    assert one == other
    with pytest.raises(AttributeError):
        one.code = "b"  # type: ignore[misc]


# How the API's document calls what the client calls otherwise, or has in one value.
DOCUMENTED = {
    "RunDetail": "Run", "DirectDetail": "Direct", "KeyAnswer": "Key", "NewKey": "Key", "Entry": "AuditEntry",
    "Subscription": "Webhook", "SubscriptionWithSecret": "Webhook", "OfficeAnswer": "Office", "Stats": "OfficeStats",
    "Config": "OfficeConfig",
}  # fmt: skip


def documented() -> dict[str, set[str]]:
    schemas = describe(Scheduler("sqlite:///never-opened.db", extensions=extension_api.used_by_server()))["components"][
        "schemas"
    ]
    return {name.rpartition("__")[2]: set(schema.get("properties", ())) for name, schema in schemas.items()}


def test_every_field_of_an_answer_is_a_field_of_the_value() -> None:
    classes = [*inspect.getmembers(values, inspect.isclass), *inspect.getmembers(office_values, inspect.isclass)]
    kinds = {name: kind for name, kind in classes if issubclass(kind, values.ClientValue)}

    compared = {}
    for name, properties in documented().items():
        kind = kinds.get(DOCUMENTED.get(name, name))
        if kind is not None:
            compared[name] = properties - {field.name for field in fields(kind)}

    # The ids of what was done in bulk are many: they are in `json`.
    bulk = {"cancelled_ids", "stopping_ids", "finishing_ids", "retried_ids", "job_ids", "job_id"}
    assert {name: missing - bulk for name, missing in compared.items() if missing - bulk} == {}
    assert {"Job", "JobDetail", "RunDetail", "Queue", "Schedule", "Delivery", "OfficeJob"} <= set(compared)


def test_what_the_package_says_it_offers_is_there() -> None:
    assert all(hasattr(client, name) for name in client.__all__)
