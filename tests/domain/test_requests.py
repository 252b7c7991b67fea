"""What a request may say: every problem with it is named; and what a handler's signature says of its parameters."""

import enum
import json
import typing
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nextslot.domain import (
    RETRYABLE,
    URGENT,
    Backoff,
    FailureKind,
    NewJob,
    RetryPolicy,
    request_checks,
)
from nextslot.domain.bounds import MAX_DEPTH
from nextslot.domain.request_checks import (
    MAX_INSTANT,
    json_problems,
    problems,
    retry_policy,
)
from nextslot.errors import Invalid
from nextslot.executors.job_types import JobTypes, resource_units
from nextslot.executors.signatures import signature_of
from nextslot.store.tables import column_codec
from nextslot.system.instant import Instant

NOW = Instant(1_000_000_000)


class Pair(NamedTuple):
    a: int
    b: int


class Colour(enum.StrEnum):
    RED = "red"


class Fraction(float):
    """As NumPy's are."""


# Parameters.


# A busy machine is slow at making them up, which says nothing of what is tested.
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(2**63), 2**63 - 1)
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(st.characters(exclude_categories=["Cs"])),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
            max_leaves=20,
        ),
    )
)
def test_whatever_JSON_can_say_is_taken_and_comes_back_as_it_was(params: dict[str, Any]) -> None:
    assert list(json_problems("params", params)) == []
    assert column_codec.loads(column_codec.dumps(params)) == params
    assert json.loads(column_codec.dumps(params)) == params


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        (float("-inf"), "finite"),
        (2**63, "64 bits"),
        (-(2**63) - 1, "64 bits"),
        ("half a pair: \ud800", "Unicode"),
        (b"bytes", "is not JSON: bytes"),
        ({1, 2}, "is not JSON: set"),
        (object(), "is not JSON: object"),
        (1 + 2j, "is not JSON: complex"),
        (Fraction(1), "is not JSON: Fraction"),
        (Pair(1, 2), "is not JSON: Pair"),
        ({1: "a"}, "key"),
        ({"\udfff": "a"}, "key"),
        ({Colour.RED: "a"}, "key"),
    ],
)
def test_what_JSON_cannot_say_is_refused_where_it_stands(value: object, problem: str) -> None:
    params: dict[str, Any] = {"fine": 1, "list": [0, {"inner": value}]}

    found = list(json_problems("params", params))

    assert [(one.field, problem in one.problem) for one in found] == [("params.list.1.inner", True)]
    assert problems(NewJob(job_type="work", params=params), NOW) == found


@given(st.text() | st.floats() | st.integers() | st.binary() | st.just(Pair(1, 2)) | st.just(Colour.RED))
def test_what_is_taken_can_always_be_stored(value: object) -> None:
    if not list(json_problems("params", {"value": value})):
        column_codec.dumps({"value": value})


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.recursive(
        st.one_of(
            st.none(), st.booleans(), st.floats(), st.binary(max_size=2), st.just(Fraction(1)), st.just(Colour.RED),
            st.integers(-(2**63) - 1, 2**63), st.text(st.characters(), max_size=3),
        ),
        lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(st.text(st.characters()), inner),
        max_leaves=8,
    )
)  # fmt: skip
def test_the_quick_look_at_parameters_lets_nothing_through_that_the_long_one_names(value: object) -> None:
    params = {"value": value, "deep": [[value]]}

    found = problems(NewJob(job_type="work", params=params), NOW)

    assert found == list(json_problems("params", params))


def test_the_quick_look_finds_what_is_wrong_where_there_is_nothing_else_to_see() -> None:
    wrong: list[Any] = [{"\ud800": 1}, {1: 1}, {"a": 2**63}, {"a": -(2**63) - 1}, nested(MAX_DEPTH + 1)]
    for params in wrong:
        assert len(problems(NewJob(job_type="work", params=params), NOW)) == 1, params


def test_numbers_at_the_edge_of_64_bits_are_taken() -> None:
    assert list(json_problems("params", {"least": -(2**63), "most": 2**63 - 1, "tiny": 5e-324, "true": True})) == []


def test_a_NUL_in_a_parameter_is_JSON_like_any_other_character() -> None:
    assert list(json_problems("params", {"nul\0": "\0"})) == []


@pytest.mark.parametrize("value", [None, [], "{}", 1, b"{}", [("a", 1)]])
def test_parameters_are_an_object(value: Any) -> None:
    assert [one.field for one in json_problems("params", value)] == ["params"]


def test_depth_is_bounded_and_the_bound_itself_is_allowed() -> None:
    assert list(json_problems("params", nested(MAX_DEPTH))) == []
    assert ["levels deep" in one.problem for one in json_problems("params", nested(MAX_DEPTH + 1))] == [True]
    assert ["levels deep" in one.problem for one in json_problems("params", nested(100_000))] == [True]


def test_a_list_is_one_level_as_an_object_is() -> None:
    def lists(levels: int) -> Any:
        return [lists(levels - 1)] if levels else 1

    assert list(json_problems("params", {"deep": lists(MAX_DEPTH - 2)})) == []
    too_deep = {"deep": lists(MAX_DEPTH - 1)}
    assert ["levels deep" in one.problem for one in json_problems("params", too_deep)] == [True]
    assert ["levels deep" in one.problem for one in problems(NewJob(job_type="work", params=too_deep), NOW)] == [True]


def test_parameters_that_contain_themselves_are_refused_and_not_followed_for_ever() -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless

    assert ["levels deep" in one.problem for one in json_problems("params", endless)] == [True]


# The other fields.


def test_a_plain_request_has_no_problem() -> None:
    assert problems(NewJob(job_type="work"), NOW) == []


TEXT = ["", "x" * 1001, "a\0b", "\ud800", 5, ["list"]]
WRONG: dict[str, list[Any]] = {
    **dict.fromkeys(("role", "task_id", "unique_key", "created_by", "key", "template_id", "schedule_id"), TEXT),
    "title": ["", "x" * 65_537, "a\0b", "\ud800", 5, ["list"]],
    "office_id": [*TEXT, None],
    "job_type": [*TEXT, None],
    "priority": [1_000_001, -1_000_000, 1.0, "1", True, 10**30],
    "timeout_seconds": [0, -1, float("nan"), float("inf"), "5", True, 1e12],
    "stall_timeout_seconds": [0, -0.5, "5"],
    "depends_on": ["an-id", [1], None, 5, {"a"}, ["\ud800"], ["x"] * 10_001, [["a"]], ["a", 1], ["a", "\ud800"]],
    "on_dependency_failure": ["stop", 1, ["wait"]],
    "scheduled_for": [5, "2026-01-01", Instant(-1), Instant(10**30), 1.5],
    "expires_at": [5, "tomorrow", Instant(10**30), NOW, Instant(NOW - 1)],
    "resources": [
        *("gpu", 5, {"gpu": 0}, {"gpu": -1}, {"gpu": 1.0}, {"gpu": True}, {"gpu": 10**7}),
        *({"": 1}, ["x" * 201], [5], [["a"]], {"\ud800": 1}),
    ],
    "retry_policy": ["often", 3, ["max_attempts"]],
    "webhook": ["http://example.com", 5],
    "params": [None, [], "text"],
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_field_is_named_and_only_that(field: str) -> None:
    for value in WRONG[field]:
        fields: dict[str, Any] = {"job_type": "work", field: value}

        assert [problem.field.split(".")[0] for problem in problems(NewJob(**fields), NOW)] == [field], value


@pytest.mark.parametrize(
    "fields",
    [
        {"priority": 999_999},
        {"priority": -999_999},
        {"priority": URGENT},
        {"urgent": True},
        {"urgent": True, "priority": 0},
        {"title": "x"},
        {"title": "x" * 1000},
        {"title": "한국어 🎉"},
        {"timeout_seconds": 0.001},
        {"depends_on": ("a", "b")},
        {"depends_on": ["x"] * 10_000},
        {"on_dependency_failure": "cancel"},
        {"scheduled_for": Instant(0), "expires_at": NOW.after(1)},
        {"scheduled_for": MAX_INSTANT},
        {"resources": ["gpu", "ollama"]},
        {"resources": {"gpu": 4}},
        {"resources": ["g", "x" * 200]},
        {"retry_policy": {"max_attempts": 0}},
        {"retry_policy": {"retry_on": sorted(RETRYABLE)}},
        {"retry_policy": RetryPolicy(max_delay_seconds=5)},
        {"webhook": {"url": "http://example.com"}},
    ],
)
def test_the_edges_of_what_is_allowed_are_allowed(fields: dict[str, Any]) -> None:
    assert problems(NewJob(job_type="work", **fields), NOW) == []


def test_every_problem_of_a_request_is_named_at_once() -> None:
    new = NewJob(
        job_type="work",
        priority=10**9,
        title="",
        timeout_seconds=-1,
        resources={"gpu": 0},
        retry_policy={"max_attempts": -1, "patience": 3},
        scheduled_for=5,  # type: ignore[arg-type]
        params={"a": float("nan"), "b": [2**64]},
    )

    assert {problem.field for problem in problems(new, NOW)} == {
        "priority",
        "title",
        "timeout_seconds",
        "resources.gpu",
        "retry_policy.max_attempts",
        "retry_policy.patience",
        "scheduled_for",
        "params.a",
        "params.b.0",
    }


def test_a_job_that_could_never_start_is_refused() -> None:
    late = NewJob(job_type="work", scheduled_for=NOW.after(10), expires_at=NOW.after(10))

    assert [problem.field for problem in problems(late, NOW)] == ["expires_at"]


def test_an_urgent_job_has_no_other_priority() -> None:
    assert [problem.field for problem in problems(NewJob(job_type="work", urgent=True, priority=3), NOW)] == ["urgent"]


# Retry policies.


def test_a_part_of_a_retry_policy_is_put_over_the_default() -> None:
    default = RetryPolicy(max_attempts=2, base_delay_seconds=60)

    policy = retry_policy({"backoff": "linear", "retry_on": ["timeout"]}, default)

    assert policy == RetryPolicy(
        max_attempts=2, base_delay_seconds=60, backoff=Backoff.LINEAR, retry_on=(FailureKind.TIMEOUT,)
    )
    assert isinstance(policy.backoff, Backoff)
    assert retry_policy(None, default) is default
    assert retry_policy(policy, default) is policy


@pytest.mark.parametrize(
    "given_",
    [
        {"max_attempts": 1001},
        {"max_attempts": 1.5},
        {"backoff": "random"},
        {"base_delay_seconds": -1},
        {"base_delay_seconds": None},
        {"max_delay_seconds": float("nan")},
        {"jitter": 1.1},
        {"retry_on": ["cancelled"]},
        {"retry_on": "error"},
        {"unknown": 1},
        RetryPolicy(max_attempts=-1),
        RetryPolicy(jitter=7),
    ],
)
def test_a_retry_policy_that_makes_no_sense_is_refused(given_: Any) -> None:
    with pytest.raises(Invalid) as refused:
        retry_policy(given_, RetryPolicy())

    assert len(refused.value.problems) == 1
    assert refused.value.problems[0].field.startswith("retry_policy.")


def test_a_list_of_resources_means_one_unit_each() -> None:
    assert resource_units(["gpu", "ollama"]) == {"gpu": 1, "ollama": 1}
    assert resource_units({"gpu": 2}) == {"gpu": 2}
    assert resource_units(None) == {}


# Schemas from signatures.


def test_a_handlers_parameters_are_named_typed_and_required_by_its_signature() -> None:
    def handler(run: Any, name: str, count: int, ratio: float = 1, *, is_fast: bool = False) -> None: ...

    assert signature_of(handler).schema == {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "count": {"type": "integer"},
            "ratio": {"type": "number"},
            "is_fast": {"type": "boolean"},
        },
        "required": ["name", "count"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("hint", "fits", "does_not"),
    [
        (str, "a", 1),
        (int, 1, 1.5),
        (int, 1, True),
        (float, 1, "1"),
        (float, 1.5, None),
        (bool, False, 0),
        (int | None, None, "x"),
        (typing.Optional[str], None, 3),  # noqa: UP045
        (Literal["a", "b"], "b", "c"),
        (list[int], [1, 2], [1, "b"]),
        (list, [1, "b"], {}),
        (dict[str, int], {"a": 1}, {"a": "b"}),
        (dict, {"a": "b"}, []),
        (list[str | None], ["a", None], [1]),
        (tuple[int, str], [1, "a"], [1, 2]),
    ],
)
def test_an_annotation_says_which_values_fit(hint: Any, fits: object, does_not: object) -> None:
    def handler(run: Any, value: Any) -> None: ...

    handler.__annotations__["value"] = hint
    job_type = JobTypes().register("typed", handler)

    assert job_type.problems({"value": fits}) == []
    assert [problem.field for problem in job_type.problems({"value": does_not})] != []


@pytest.mark.parametrize("hint", [Any, object])
def test_an_annotation_that_says_nothing_allows_everything(hint: Any) -> None:
    def handler(run: Any, value: Any) -> None: ...

    handler.__annotations__["value"] = hint

    assert JobTypes().register("typed", handler).problems({"value": [1, {"a": None}]}) == []


def test_keyword_arguments_allow_other_parameters_and_nothing_else_does() -> None:
    def open_(run: Any, **others: Any) -> None: ...
    def closed(run: Any) -> None: ...

    types = JobTypes()

    assert types.register("open", open_).problems({"any": 1}) == []
    assert "any" in str(types.register("closed", closed).problems({"any": 1})[0])


def test_an_object_with_a_call_method_is_a_handler_too() -> None:
    class Handler:
        def __call__(self, run: Any, count: int) -> None: ...

    assert signature_of(Handler()).schema["properties"] == {"count": {"type": "integer"}}


def only_named(*, run: Any) -> None: ...
def only_keywords(**run: Any) -> None: ...
def positional(run: Any, value: Any, /) -> None: ...
def several(run: Any, *values: Any) -> None: ...


@pytest.mark.parametrize("handler", [only_named, only_keywords, positional, several])
def test_a_function_that_cannot_be_called_as_a_handler_is_refused(handler: Callable[..., Any]) -> None:
    with pytest.raises(Invalid, match="handler"):
        JobTypes().register("wrong", handler)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("", {}),
        ("x" * 201, {}),
        ("known", {}),
        ("new", {"params_schema": {"type": "no such type"}}),
        ("new", {"resources": {"gpu": 0}}),
    ],
)
def test_a_job_type_that_makes_no_sense_is_refused(name: str, options: dict[str, Any]) -> None:
    def handler(run: Any) -> None: ...

    types = JobTypes()
    types.register("known", handler)

    with pytest.raises(Invalid):
        types.register(name, handler, **options)

    assert types.names() == ["known"]


def nested(levels: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(levels - 1):
        value = {"a": value}
    return typing.cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def test_text_is_bounded_and_must_be_storable() -> None:
    assert request_checks.is_storable("text")
    assert not request_checks.is_storable("nul\0")
    assert not request_checks.is_storable("\udc00")


# Requests that are alike.


@pytest.mark.parametrize("name", [field.name for field in fields(NewJob) if field.name != "params"])
def test_two_requests_that_differ_in_anything_but_parameters_are_not_of_one_form(name: str) -> None:
    one = NewJob(job_type="work", params={"x": 1})
    other = replace(one, params={"x": 2})

    assert request_checks.form(one) == request_checks.form(other)
    assert request_checks.form(one) != request_checks.form(replace(other, **{name: ["something else"]}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "equal"),
    [
        ("priority", 1, True), ("priority", 1, 1.0), ("urgent", False, 0), ("timeout_seconds", 1, True),
        ("stall_timeout_seconds", 1, True), ("resources", {"disk": 1}, {"disk": True}),
        ("retry_policy", {"max_attempts": 1}, {"max_attempts": True}), ("depends_on", ["a"], ["a"]),
    ],
)  # fmt: skip
def test_what_is_equal_and_yet_may_be_wrong_is_not_of_one_form(name: str, value: object, equal: object) -> None:
    right, maybe = (NewJob(job_type="work", **{name: given}) for given in (value, equal))  # type: ignore[arg-type]

    assert request_checks.form(right) != request_checks.form(maybe)
