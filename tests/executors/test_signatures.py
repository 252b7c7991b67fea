"""Annotations are true: they make the schema, are checked at submission, and the handler gets what they say."""

import sys
import typing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from nextslot import RunContext
from nextslot.errors import Invalid
from nextslot.executors.job_type_catalog import Catalog
from nextslot.executors.job_types import JobTypes
from nextslot.executors.run_context import returned
from nextslot.executors.signatures import signature_of
from tests.executors import typed_handlers
from tests.support import new_scheduler

PACK = {"order": {"item": "tea", "count": 2}, "box": {"width": 3}, "due": "2026-11-18T08:00:00Z", "size": "large"}
PACKED = {
    "item": "tea",
    "area": 3,
    "year": 2026,
    "size": "large",
    "at": "2026-11-18T08:00:00Z",
    "box": {"width": 3, "height": 1},
}


@pytest.mark.parametrize("isolate", [False, True])
async def test_a_handler_gets_objects_of_its_annotations_also_in_another_process(tmp_path: Path, isolate: bool) -> None:
    async with new_scheduler(tmp_path) as scheduler:
        scheduler.job_types.add("pack", typed_handlers.pack, isolate=isolate)
        job = await scheduler.submit("pack", PACK)
        ended = await scheduler.wait(job.job_id)

    assert (ended.error, ended.result) == (None, PACKED)
    assert job.params == PACK


@pytest.mark.parametrize("isolate", [False, True])
async def test_a_handler_without_run_gets_its_parameters_only(tmp_path: Path, isolate: bool) -> None:
    async with new_scheduler(tmp_path) as scheduler:
        scheduler.job_types.add("total", typed_handlers.total, isolate=isolate)
        ended = await scheduler.wait((await scheduler.submit("total", {"count": 3})).job_id)

    assert (ended.error, ended.result) == (None, {"item": "6", "count": 3})


def test_annotations_give_a_schema() -> None:
    schema = signature_of(typed_handlers.pack).schema

    assert schema["required"] == ["order", "box", "due"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["due"] == {"type": "string", "format": "date-time"}
    assert schema["properties"]["copies"] == {"type": "integer"}
    assert schema["$defs"]["Size"]["enum"] == ["small", "large"]
    assert schema["$defs"]["Order"]["properties"]["count"] == {"type": "integer", "exclusiveMinimum": 0}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"order": {"item": "tea", "count": 0}}, "params.order.count is 0; it must be greater than 0"),
        ({"order": {"item": "tea"}}, 'params.order: "count" is missing'),
        ({"order": {"item": 1, "count": 1}}, "params.order.item is 1; it must be a valid string"),
        ({"due": "tomorrow"}, "params.due is text; it must be a valid datetime"),
        ({"size": "huge"}, "params.size is text; it must be 'small' or 'large'"),
        ({"copies": "2"}, "params.copies is text; it must be a valid integer"),
        ({"coppies": 2}, 'params: "coppies" is not known; the parameters are order, box, due, size, copies'),
    ],
)
def test_a_parameter_that_does_not_fit_is_refused_with_a_sentence(changed: dict[str, Any], sentence: str) -> None:
    job_type = JobTypes().register("pack", typed_handlers.pack)

    (problem,) = job_type.problems({**PACK, **changed})

    assert str(problem).startswith(sentence)


@pytest.mark.parametrize("isolate", [False, True])
async def test_a_constraint_may_be_written_as_the_default(tmp_path: Path, isolate: bool) -> None:
    async with new_scheduler(tmp_path) as scheduler:
        scheduler.job_types.add("fields", typed_handlers.fields, isolate=isolate)
        ended = await scheduler.wait((await scheduler.submit("fields", {"count": 3})).job_id)
        with pytest.raises(Invalid, match=r"params.count is 0; it must be greater than 0"):
            await scheduler.submit("fields", {"count": 0})
        with pytest.raises(Invalid, match="count"):
            await scheduler.submit("fields", {})

    assert (ended.error, ended.result) == (None, [3, 2, []])


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Pydantic reads it from Python 3.12 on")
def test_a_typed_dict_that_pydantic_cannot_read_is_refused_with_the_remedy() -> None:
    class Extra(typing.TypedDict):
        note: str

    def handler(extra: Extra) -> None: ...

    handler.__annotations__["extra"] = Extra
    with pytest.raises(
        Invalid, match=r"of 'extra' cannot be made from JSON; take TypedDict from typing_extensions, or"
    ):
        signature_of(handler)


def test_only_run_and_its_underscored_names_get_the_run() -> None:
    def quietly(_quiet: bool = True) -> None: ...

    signature = signature_of(quietly)

    assert (signature.takes_run, list(signature.schema["properties"])) == (False, ["_quiet"])


def test_a_template_may_leave_parameters_out_but_not_give_wrong_ones() -> None:
    job_type = JobTypes().register("pack", typed_handlers.pack)

    assert job_type.problems_so_far({"size": "large"}) == []
    assert [str(one) for one in job_type.problems_so_far({"size": "huge"})] == [
        "params.size is text; it must be 'small' or 'large'"
    ]


def test_an_isolated_handler_of_the_configuration_is_checked_too(tmp_path: Path) -> None:
    table = {"handler": "tests.executors.typed_handlers:total", "isolate": True}

    job_type = Catalog().prepared({"total": table}, tmp_path)["total"]

    assert job_type.problems({"count": 1}) == []
    assert [str(one) for one in job_type.problems({"count": -1})] == ["params.count is -1; it must be greater than 0"]
    assert job_type.problems({"cuont": 1}) != []


async def test_parameters_that_no_longer_fit_fail_the_run_as_invalid(tmp_path: Path) -> None:
    async with new_scheduler(tmp_path) as scheduler:
        scheduler.job_types.add("total", typed_handlers.total)
        await scheduler.pause()
        job = await scheduler.submit("total", {"count": 3})

        async def total(count: datetime) -> None: ...

        scheduler.job_types.configure({"total": JobTypes().register("total", total)})
        await scheduler.resume()
        ended = await scheduler.wait(job.job_id)

    assert ended.run is not None
    assert (ended.status, ended.run.failure_kind) == ("FAILED", "invalid")
    assert ended.error == "params.count is 3; it must be a valid datetime"


def test_an_annotation_that_JSON_cannot_become_is_refused_when_it_is_registered() -> None:
    class Connection: ...

    def send(run: Any, connection: Connection) -> None: ...

    with pytest.raises(Invalid, match="Connection of 'connection' cannot be made from JSON; use a Pydantic model"):
        JobTypes().register("send", send)


def test_an_annotation_that_cannot_be_read_is_refused_with_a_remedy() -> None:
    def send(run: Any, connection: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(Invalid, match="'Nowhere' is not defined; import the name"):
        JobTypes().register("send", send)


@pytest.mark.parametrize("value", [object(), {"a": object()}, float("nan"), [lambda: None]])
def test_a_result_that_has_no_JSON_form_fails_the_run(value: Any, tmp_path: Path) -> None:
    class Quiet(RunContext):
        def __init__(self) -> None:
            from nextslot.executors.run_files import RunFiles

            super().__init__("r", "j", "default", "t", {}, 1, RunFiles(tmp_path))

    assert returned(Quiet(), value).failure_kind == "invalid"
