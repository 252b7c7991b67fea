"""What is repeated and what is not: the operations alone, over a transport that plays the server."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextslot import Instant, JobStatus
from nextslot.client import (
    NoAnswer,
    OutcomeUnknown,
    Rejected,
    streams,
)
from nextslot.client.binding import finish, finish_each
from nextslot.client.request_retries import RequestRetries, asked
from nextslot.client.requests import Lost, OpenReply, Reply, Request, create, get, post
from nextslot.client.streams import Message, Messages
from nextslot.client.transports import Address, Transport
from nextslot.errors import (
    AlreadyFinished,
    Draining,
    Invalid,
    NextslotError,
    SlotBusy,
    Unavailable,
)

OK = Reply(200, {}, b'{"answer": 1}')
LOST = Lost("Connection refused")
BROKEN = Lost("Server disconnected", may_have_arrived=True)
RETRIES_POLICY = RequestRetries("http://there", retries=3)


def refusal(status: int, code: str, retry_after: int | None = None) -> Reply:
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    return Reply(status, headers, json.dumps({"code": code, "detail": "no", "status": status}).encode())


class Sent(Transport):
    """Plays the server: gives these replies one after the other, and keeps what was sent and how long was paused."""

    is_blocking = True

    def __init__(self, *replies: Reply | Lost, pieces: Sequence[bytes | Lost | None] = ()) -> None:
        super().__init__(Address("http://there", None), self._noted)
        self.replies = list(replies)
        self.pieces = list(pieces)
        self.requests: list[Request] = []
        self.pauses: list[float] = []
        self.notes: list[str] = []

    def ask(self, request: Request) -> Any:
        return finish(asked(self, RETRIES_POLICY, request, Reply.json))

    async def send(self, request: Request) -> Reply | Lost:
        self.requests.append(request)
        return self.replies.pop(0)

    @contextlib.asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[OpenReply | Reply | Lost]:
        self.requests.append(request)
        yield self.replies.pop(0) if self.replies else OpenReply(self._piece)

    async def _piece(self) -> bytes | Lost | None:
        return self.pieces.pop(0)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def _noted(self, note: str) -> None:
        self.notes.append(note)


def test_a_read_is_repeated_after_a_lost_answer_with_growing_pauses() -> None:
    server = Sent(LOST, LOST, LOST, OK)

    answer = server.ask(get("/api/jobs"))

    assert answer == {"answer": 1}
    assert server.pauses == [0.25, 0.5, 1.0]


def test_repetitions_are_bounded() -> None:
    server = Sent(*[LOST] * 4)

    with pytest.raises(NoAnswer, match=r"no server answers at http://there \(Connection refused\)"):
        server.ask(get("/api/jobs"))

    assert len(server.requests) == 4


def test_a_creation_is_repeated_under_one_idempotency_key() -> None:
    server = Sent(LOST, refusal(503, "draining", 1), OK)

    server.ask(create("/api/jobs", {"job_type": "x"}))

    keys = {request.headers["Idempotency-Key"] for request in server.requests}
    assert len(server.requests) == 3
    assert len(keys) == 1


@pytest.mark.parametrize("last", [LOST, BROKEN, refusal(503, "draining", 3600)], ids=["refused", "broken", "503"])
def test_a_creation_that_may_have_arrived_ends_with_an_unknown_outcome_and_its_key(last: Reply | Lost) -> None:
    server = Sent(BROKEN, *[LOST] * 2, last)

    with pytest.raises(OutcomeUnknown, match=r"http://there may have carried .*send it again with .*'mine'") as raised:
        server.ask(create("/api/jobs", {"job_type": "x"}, "mine"))

    assert raised.value.idempotency_key == "mine"


def test_a_request_that_cannot_have_arrived_or_changes_nothing_has_no_unknown_outcome() -> None:
    for request, replies in (
        (create("/api/jobs", {}), [LOST] * 4),
        (create("/api/jobs", {}), [BROKEN, refusal(422, "invalid")]),
        (get("/api/jobs"), [BROKEN] * 4),
    ):
        with pytest.raises(NextslotError) as raised:
            Sent(*replies).ask(request)
        assert not isinstance(raised.value, OutcomeUnknown)


def test_a_change_without_a_key_that_may_have_arrived_says_to_check_first() -> None:
    with pytest.raises(OutcomeUnknown, match=r"check whether it did before you send the request again"):
        Sent(BROKEN).ask(Request(method="POST", path="/api/jobs/x/cancel", body={}))


def test_two_creations_have_two_keys_and_one_of_ones_own_is_kept() -> None:
    first, second, own = (create("/api/jobs", {}).headers, create("/api/jobs", {}).headers, create("/x", {}, "mine"))

    assert first != second
    assert own.headers == {"Idempotency-Key": "mine"}


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT", "DELETE"])
@pytest.mark.parametrize("reply", [LOST, refusal(503, "unavailable", 1)], ids=["lost", "503"])
def test_a_change_without_a_key_is_never_repeated(method: str, reply: Reply | Lost) -> None:
    server = Sent(reply)

    with pytest.raises(Unavailable):
        server.ask(Request(method=method, path="/api/jobs/x", body={}))

    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (refusal(409, "already_finished"), AlreadyFinished),
        (refusal(500, "error", 1), Rejected),
        (refusal(503, "unavailable"), Unavailable),
        (refusal(503, "unavailable", 3600), Unavailable),
    ],
    ids=["conflict", "broken", "no Retry-After", "too long"],
)
def test_what_time_does_not_mend_is_not_repeated(reply: Reply, kind: type[NextslotError]) -> None:
    server = Sent(reply)

    with pytest.raises(kind):
        server.ask(get("/api/jobs"))

    assert server.pauses == []


def test_retry_after_is_waited_for() -> None:
    server = Sent(refusal(503, "draining", 5), OK)

    server.ask(get("/api/jobs"))

    assert server.pauses == [5.0]


def test_a_direct_request_that_found_the_slot_busy_is_not_sent_again() -> None:
    server = Sent(refusal(503, "slot_busy", 1))

    with pytest.raises(SlotBusy):
        server.ask(post("/api/direct/x"))


def test_times_words_and_several_values_are_written_as_the_api_reads_them() -> None:
    when = datetime(2026, 11, 15, 6, 30, tzinfo=UTC)

    query = get(
        "/x", {"a": when, "b": Instant.of(when), "c": ["x", JobStatus.FAILED], "d": True, "e": None, "f": 5}
    ).query
    body = post(
        "/x", {"a": when, "b": Instant.of(when), "c": (JobStatus.FAILED,), "d": True, "e": MappingProxyType({})}
    ).content

    assert query == {
        "a": "2026-11-15T06:30:00+00:00", "b": "2026-11-15T06:30:00.000000Z", "c": "x,FAILED", "d": "true", "f": "5"
    }  # fmt: skip
    assert body is not None
    assert json.loads(body) == {
        "a": "2026-11-15T06:30:00+00:00", "b": "2026-11-15T06:30:00.000000Z", "c": ["FAILED"], "d": True, "e": {}
    }  # fmt: skip


def test_what_has_no_form_in_json_is_an_error_of_the_caller() -> None:
    with pytest.raises(Invalid, match="cannot be written as JSON: Type is not JSON serializable: object"):
        post("/x", {"a": object()}).content  # noqa: B018


def test_the_note_of_an_answer_is_handed_over_and_a_refusal_has_none() -> None:
    server = Sent(Reply(201, {"x-note": "no model answers"}, b"{}"), Reply(404, {"x-note": "no"}, b"{}"))

    server.ask(create("/api/jobs", {}))
    with pytest.raises(NextslotError):
        server.ask(get("/api/jobs/x"))

    assert server.notes == ["no model answers"]


def test_a_stream_is_taken_up_again_after_the_last_message_that_came() -> None:
    server = Sent(pieces=[b"id: 1\ndata: 1\n\nid: 2\ndata: 2\n\n", Lost("reset"), b"id: 3\ndata: 3\n\n", None])

    request = streams.stream_of(get("/api/events"))
    followed = streams.followed(server, RETRIES_POLICY, request, Message.json, streams.by_last_event_id)
    items = list(itertools.islice(finish_each(followed), 3))

    assert items == [1, 2, 3]
    assert [request.headers.get("Last-Event-ID") for request in server.requests] == [None, "2"]


def test_a_stream_that_never_opens_is_an_error() -> None:
    server = Sent(*[LOST] * 4)
    request = streams.stream_of(get("/api/events"))

    with pytest.raises(NoAnswer):
        list(finish_each(streams.followed(server, RETRIES_POLICY, request, Message.json, streams.by_last_event_id)))


def test_work_on_the_line_is_asked_for_once_and_a_broken_line_is_told() -> None:
    server = Sent(pieces=[b'event: started\ndata: {"a": 1}\n\n', Lost("reset")])

    with pytest.raises(Unavailable, match="broke before the result came"):
        list(finish_each(streams.heard_once(server, RETRIES_POLICY, post("/api/direct/x"), Message.json)))

    assert len(server.requests) == 1


def test_who_is_sent_away_from_the_line_gets_the_error_of_the_stream() -> None:
    problem = json.dumps({"code": "draining", "detail": "stopping", "status": 503})
    server = Sent(pieces=[f"event: error\ndata: {problem}\n\n".encode()])

    with pytest.raises(Draining, match="stopping"):
        list(finish_each(streams.heard_once(server, RETRIES_POLICY, post("/api/direct/x"), Message.json)))


def test_a_coroutine_that_suspends_is_refused_by_the_blocking_client() -> None:
    with pytest.raises(RuntimeError, match="has suspended"):
        finish(asyncio.sleep(0))


@given(st.lists(st.integers(0, 200), max_size=8), st.sampled_from(["\n", "\r\n"]))
def test_messages_are_the_same_however_their_bytes_are_cut(cuts: list[int], end: str) -> None:
    text = ": open\n\nid: 1\nevent: a\ndata: é\n\n: still here\n\ndata: {\ndata: }\n\nid: 2\ndata: ü\n\n"
    whole = text.replace("\n", end).encode()
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]

    messages = Messages()
    found = [message for a, b in itertools.pairwise(edges) for message in messages.of(whole[a:b])]

    assert found == [Message("a", "é", "1"), Message("message", "{\n}", None), Message("message", "ü", "2")]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [lambda x: x, lambda x: [x], lambda x: (1, {"deep": MappingProxyType({"er": x})})])
def test_a_number_that_json_does_not_know_is_refused_and_not_sent_as_null(
    number: float, place: Callable[[Any], Any]
) -> None:
    with pytest.raises(Invalid, match="NaN"):
        _ = Request(method="POST", path="/", body={"params": {"x": place(number)}}).content


def test_what_is_meant_as_null_is_sent_as_null() -> None:
    body = {"params": {"none": None, "text": "null", "number": 1.5}}

    assert json.loads(Request(method="POST", path="/", body=body).content or b"") == body
