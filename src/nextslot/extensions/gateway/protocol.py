"""OpenAI's protocol: the required fields of requests, and the JSON of upstreams, which check all other fields."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from nextslot.domain.bounds import quoted

from .error_form import ProtocolError

Body = Mapping[str, Any]
MOST_OF_A_NAME = 200
DONE = b"data: [DONE]\n\n"

CHAT = "chat/completions"
COMPLETIONS = "completions"
EMBEDDINGS = "embeddings"
ENDPOINTS = (CHAT, COMPLETIONS, EMBEDDINGS)


def checked(endpoint: str, body: object) -> Body:
    """Returns the body of a request, or raises a ProtocolError that names the first field that is wrong."""
    if not isinstance(body, Mapping):
        raise ProtocolError(400, f"the body is {quoted(body)}; it must be a JSON object", "invalid_type")
    model = body.get("model")
    if model is None:
        raise _missing("model", "name the model; GET /v1/models lists those there are")
    if not isinstance(model, str) or not 0 < len(model) <= MOST_OF_A_NAME:
        raise _wrong("model", model, f"a text of 1 to {MOST_OF_A_NAME} characters")
    _REQUIRED[endpoint](body)
    for name, (is_right, words) in _OPTIONAL.items():
        if body.get(name) is not None and not is_right(body[name]):
            raise _wrong(name, body[name], words)
    return body


def read_json(data: bytes) -> Any:
    """Reads what an upstream sends. Accepts what its clients would accept though it is not strict JSON: half of a
    surrogate pair, as if an emoji is split between two chunks, and NaN. Raises ValueError for anything else.
    """
    try:
        return orjson.loads(data)
    except ValueError:
        try:
            return json.loads(data.decode())
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error


def write_json(value: object) -> bytes:
    """Writes what `read_json` has read."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value).encode()


def has_usage_in_stream(body: Body) -> bool:
    """Returns whether the client of a stream wants the numbers of tokens."""
    return bool((body.get("stream_options") or {}).get("include_usage"))


def estimated_tokens(body: Body) -> int:
    """Returns about how many tokens a request has: one for four characters of its texts, images not counted."""
    return sum(map(_characters, (body.get("messages"), body.get("prompt"), body.get("input")))) // 4


def _characters(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return sum(map(_characters, value))
    return _characters(value.get("content")) + _characters(value.get("text")) if isinstance(value, dict) else 0


def _check_chat(body: Body) -> None:
    messages = body.get("messages")
    if messages is None:
        raise _missing("messages", 'send a list such as [{"role": "user", "content": "Hello"}]')
    if not isinstance(messages, list):
        raise _wrong("messages", messages, "a list of messages")
    if not messages:
        raise ProtocolError(400, "messages is empty; send at least one message", "empty_array", "messages")
    for number, one in enumerate(messages):
        if not isinstance(one, dict):
            raise _wrong(f"messages.{number}", one, "an object with role and content")
        if not isinstance(one.get("role"), str):
            raise _wrong(f"messages.{number}.role", one.get("role"), "a text such as user, system or assistant")
        if not isinstance(one.get("content"), (str, list, type(None))):
            raise _wrong(f"messages.{number}.content", one["content"], "a text, or a list of parts")


def _check_completion(body: Body) -> None:
    _check_input(body, "prompt")


def _check_embedding(body: Body) -> None:
    _check_input(body, "input")
    if body.get("stream"):
        raise ProtocolError(400, "embeddings are not streamed; leave out stream", "invalid_value", "stream")


def _check_input(body: Body, name: str) -> None:
    given = body.get(name)
    if given is None:
        raise _missing(name, "send a text, or a list of texts")
    if not isinstance(given, (str, list)):
        raise _wrong(name, given, "a text or a list")
    if not given and name == "input":
        raise ProtocolError(400, "input is empty; send at least one text", "empty_array", "input")


_REQUIRED: Mapping[str, Callable[[Body], None]] = {
    CHAT: _check_chat,
    COMPLETIONS: _check_completion,
    EMBEDDINGS: _check_embedding,
}


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_objects(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


def _is_stop(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value))


_WHOLE, _NUMBER = (_is_whole, "a whole number"), (_is_number, "a number")
_FLAG = (lambda value: isinstance(value, bool), "true or false")
_OBJECT = (lambda value: isinstance(value, dict), "an object")
_OPTIONAL: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "stream": _FLAG,
    "stream_options": _OBJECT,
    "max_tokens": _WHOLE,
    "max_completion_tokens": _WHOLE,
    "n": _WHOLE,
    "seed": _WHOLE,
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "tools": (_is_objects, "a list of objects"),
    "response_format": _OBJECT,
    "stop": (_is_stop, "a text or a list of texts"),
}


def _missing(name: str, remedy: str) -> ProtocolError:
    return ProtocolError(400, f"{name} is missing; {remedy}", "missing_required_parameter", name)


def _wrong(name: str, value: object, words: str) -> ProtocolError:
    return ProtocolError(400, f"{name} is {quoted(value)}; it must be {words}", "invalid_type", name)
