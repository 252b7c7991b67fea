"""The embedded model's server: a process of its own that answers one request at a time on loopback.

It speaks Ollama's protocol, and that of OpenAI at `/v1` for the gateway.

Run by `embedded.py` as a plain file, with the weights as its argument. It imports nothing of nextslot, so that it stays
small, and it ends as soon as its standard input does: when the scheduler says so, and also when that was killed.
"""

import json
import os
import secrets
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MODEL = "smollm2:135m"
NAMES = frozenset({"smollm2", "smollm2:135m", "smollm2:latest", "smollm2:135m-instruct-q4_1"})
# 4,096 tokens hold the longest story; 8,192, all that the model can do, would cost 90 MB more.
CONTEXT_TOKENS = 4096
MOST_TOKENS = 3072
MAX_BODY_BYTES = 1024 * 1024

# Ollama's name of an option → llama.cpp's.
OPTIONS = {
    "num_predict": "max_tokens",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "seed": "seed",
    "repeat_penalty": "repeat_penalty",
}


class Refused(Exception):
    """A request that is answered with an error, in Ollama's form."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Model:
    """The weights in memory; generates one answer at a time."""

    def __init__(self, weights: str) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = weights
        params.n_ctx = CONTEXT_TOKENS
        params.n_parallel = 1
        params.cache_ram_mib = 0
        params.verbosity = 0
        params.warmup = False
        params.ui = False
        params.endpoint_slots = False
        # The library also listens on a port of its own, which nothing uses: with a secret key nobody can use it.
        params.api_keys = [secrets.token_hex(32)]
        # Two threads on two busy cores wait for each other: 57 tokens/s, where one makes 79.
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        self._server = xllamacpp.Server(params)
        self._turn = threading.Lock()

    def chat(self, wanted: dict[str, Any], is_gone: Callable[[], bool], say: Callable[[str], None]) -> dict[str, Any]:
        """Generates an answer, piece by piece, until it ends or its caller hangs up; returns how it ended."""
        ended: dict[str, Any] = {"reason": "stop", "tokens": 0}

        def take(chunk: dict[str, Any]) -> None:
            choice = chunk["choices"][0]
            content = choice["delta"].get("content")
            ended["reason"] = choice.get("finish_reason") or ended["reason"]
            ended["tokens"] = chunk.get("timings", {}).get("predicted_n", 0)
            if content:
                say(content)

        self.stream(wanted, is_gone, take)
        return ended

    def stream(
        self,
        wanted: dict[str, Any],
        is_gone: Callable[[], bool],
        take: Callable[[dict[str, Any]], None],
        is_chat: bool = True,
    ) -> None:
        """Generates an answer, and passes on each chunk in OpenAI's form, until the answer ends or its caller hangs
        up.
        """
        while not self._turn.acquire(timeout=0.1):
            if is_gone():
                raise ConnectionAbortedError
        try:
            self._stream(wanted, is_gone, take, is_chat)
        finally:
            self._turn.release()

    def _stream(
        self,
        wanted: dict[str, Any],
        is_gone: Callable[[], bool],
        take: Callable[[dict[str, Any]], None],
        is_chat: bool,
    ) -> None:
        failed: list[BaseException] = []

        def check_and_take(chunk: dict[str, Any]) -> bool:
            """Gets each token; True stops the generation. Its exception is kept, because the library would lose it."""
            try:
                if is_gone():
                    raise ConnectionAbortedError
                if "error" in chunk:
                    raise Refused(400, str(chunk["error"].get("message")))
                take(chunk)
            except Exception as error:
                failed.append(error)
                return True
            return False

        handle = self._server.handle_chat_completions if is_chat else self._server.handle_completions
        try:
            handle({**wanted, "stream": True}, check_and_take)
        except Exception as error:  # The library refuses requests, such as one with an image, by errors of many types.
            raise Refused(400, f"the embedded model cannot answer this request: {str(error)[:300]}") from error
        if failed:
            raise failed[0]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60  # For a client that neither reads nor hangs up.
    server: "ModelServer"

    def do_GET(self) -> None:
        if self._is_from_a_page():
            return
        if self.path == "/":
            self._answer(200, b"Ollama is running", "text/plain")
        elif self.path == "/api/version":
            self._answer_json(200, {"version": "0.0.0-nextslot"})
        elif self.path == "/api/tags":
            self._answer_json(200, {"models": [self.server.description]})
        elif self.path == "/v1/models":
            model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "embedded"}
            self._answer_json(200, {"object": "list", "data": [model]})
        else:
            self._answer_json(404, {"error": "there is no such path here"})

    def do_POST(self) -> None:
        if self._is_from_a_page():
            return
        try:
            body = self._body()  # First of all: what is left of it would be taken for the next request.
            if self.path in ("/v1/chat/completions", "/v1/completions"):
                self._complete(body, is_chat=self.path == "/v1/chat/completions")
            elif self.path == "/v1/embeddings":
                raise Refused(400, "the embedded model makes no embeddings: use a model for embeddings")
            elif self.path in ("/api/generate", "/api/chat"):
                self._generate(body, is_chat=self.path == "/api/chat")
            else:
                raise Refused(404, "there is no such path here")
        except Refused as error:
            said = {"message": str(error), "type": "invalid_request_error", "param": None, "code": None}
            self._answer_json(error.status, {"error": said if self.path.startswith("/v1/") else str(error)})
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _complete(self, body: dict[str, Any], is_chat: bool) -> None:
        """Answers in OpenAI's form, which is the library's own."""
        model = _model_of(body)
        tokens = body.get("max_completion_tokens") or body.get("max_tokens") or MOST_TOKENS
        most = tokens if _is_number(tokens) and 0 < tokens < MOST_TOKENS else MOST_TOKENS
        left_out = ("model", "stream", "max_completion_tokens")
        wanted = {**{name: value for name, value in body.items() if name not in left_out}, "max_tokens": most}
        if isinstance(wanted.get("prompt"), list) and not all(_is_number(one) for one in wanted["prompt"]):
            if len(wanted["prompt"]) != 1:
                raise Refused(400, "the embedded model completes one prompt: send a request for each")
            [wanted["prompt"]] = wanted["prompt"]
        if body.get("stream") is True:
            events = _EventStream(self, model)
            try:
                self.server.model.stream(wanted, self._is_gone, events.send, is_chat)
            except Refused as error:
                if not events.has_begun:
                    raise
                events.write({"error": {"message": str(error), "type": "server_error", "param": None, "code": None}})
            events.end()
            return
        whole = _WholeAnswer(is_chat)
        self.server.model.stream(
            {**wanted, "stream_options": {"include_usage": True}}, self._is_gone, whole.take, is_chat
        )
        self._answer_json(200, {**whole.answer, "model": model})

    def _generate(self, body: dict[str, Any], is_chat: bool) -> None:
        model = _model_of(body)
        messages = _messages(body, is_chat)
        answer = _ModelAnswer(self, model, is_chat, is_stream=body.get("stream") is not False)
        ended: dict[str, Any] = {"reason": "load", "tokens": 0}
        if messages:
            wanted = {"messages": messages, **_sampling(body)}
            try:
                ended = self.server.model.chat(wanted, self._is_gone, answer.say)
            except Refused as error:
                if not answer.has_begun:
                    raise
                answer.fail(str(error))
                return
        answer.end(ended)

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            self.close_connection = True
            if length.isdecimal():  # Closing on unread bytes would take the answer with it.
                self.rfile.read(min(int(length), 8 * MAX_BODY_BYTES))
            raise Refused(413, f"a request has a Content-Length of at most {MAX_BODY_BYTES:,} bytes")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError) as error:
            raise Refused(400, "the request is not JSON") from error
        if not isinstance(body, dict):
            raise Refused(400, "the request is not a JSON object")
        return body

    def _is_from_a_page(self) -> bool:
        """Refuses a request that a web page in a browser may have sent; returns whether it was one."""
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host in ("127.0.0.1", "localhost") and "Origin" not in self.headers:
            return False
        self.close_connection = True
        self._answer_json(403, {"error": "this server is for programs on this machine"})
        return True

    def _is_gone(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)

    def _answer_json(self, status: int, body: dict[str, Any]) -> None:
        self._answer(status, json.dumps(body).encode(), "application/json")

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:  # Else a client sends its next request on the connection, and gets no answer.
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""


class _ModelAnswer:
    """An answer in Ollama's form: JSON lines as they come, or one object in the end."""

    def __init__(self, handler: Handler, model: str, is_chat: bool, is_stream: bool) -> None:
        self._handler = handler
        self._model = model
        self._is_chat = is_chat
        self._is_stream = is_stream
        self.has_begun = False
        self._text: list[str] = []
        self._began = time.monotonic_ns()

    def say(self, content: str) -> None:
        if self._is_stream:
            self._send({**self._part(content), "done": False})
        else:
            self._text.append(content)

    def end(self, ended: dict[str, Any]) -> None:
        taken = time.monotonic_ns() - self._began
        last = {
            **self._part("".join(self._text)),
            "done": True,
            "done_reason": ended["reason"],
            "total_duration": taken,
            "eval_count": ended["tokens"],
            "eval_duration": taken,
        }
        if self._is_stream:
            self._send(last)
            self._handler.wfile.write(b"0\r\n\r\n")
        else:
            self._handler._answer_json(200, last)

    def fail(self, message: str) -> None:
        """Sends an error as a line: in the middle of a stream there is no status any more."""
        self._send({"error": message})
        self._handler.wfile.write(b"0\r\n\r\n")

    def _part(self, content: str) -> dict[str, Any]:
        said = {"message": {"role": "assistant", "content": content}} if self._is_chat else {"response": content}
        return {"model": self._model, "created_at": datetime.now(UTC).isoformat(), **said}

    def _send(self, part: dict[str, Any]) -> None:
        """Sends the headers with the first token, so that an earlier refusal can have its own status."""
        if not self.has_begun:
            self.has_begun = True
            self._handler.send_response(200)
            self._handler.send_header("Content-Type", "application/x-ndjson")
            self._handler.send_header("Transfer-Encoding", "chunked")
            self._handler.end_headers()
        line = json.dumps(part).encode() + b"\n"
        self._handler.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))


class _EventStream:
    """An answer in OpenAI's form: chunks as server-sent events."""

    def __init__(self, handler: Handler, model: str) -> None:
        self._handler = handler
        self._model = model
        self.has_begun = False

    def send(self, chunk: dict[str, Any]) -> None:
        # The library calls the model by the path of its file.
        self.write({**chunk, "model": self._model})

    def write(self, event: dict[str, Any]) -> None:
        self._send(b"data: " + json.dumps(event).encode() + b"\n\n")

    def end(self) -> None:
        self._send(b"data: [DONE]\n\n")
        self._handler.wfile.write(b"0\r\n\r\n")

    def _send(self, data: bytes) -> None:
        """Sends the headers with the first chunk, so that an earlier refusal can have its own status."""
        if not self.has_begun:
            self.has_begun = True
            self._handler.send_response(200)
            self._handler.send_header("Content-Type", "text/event-stream")
            self._handler.send_header("Transfer-Encoding", "chunked")
            self._handler.end_headers()
        self._handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


class _WholeAnswer:
    """Joins chunks to one answer. Made of chunks, because a generation is stopped between two of them."""

    def __init__(self, is_chat: bool) -> None:
        self._is_chat = is_chat
        self._text: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._ended: str | None = None
        self._last: dict[str, Any] = {}

    def take(self, chunk: dict[str, Any]) -> None:
        self._last = {**self._last, **chunk}
        for choice in chunk["choices"]:
            said = choice.get("delta", {}) if self._is_chat else {"content": choice.get("text")}
            self._text.append(said.get("content") or "")
            for part in said.get("tool_calls") or ():
                self._add_call(part)
            self._ended = choice.get("finish_reason") or self._ended

    def _add_call(self, part: dict[str, Any]) -> None:
        call = self._calls.setdefault(part["index"], {"function": {"name": "", "arguments": ""}})
        call |= {name: part[name] for name in ("id", "type") if name in part}
        for name, text in part.get("function", {}).items():
            call["function"][name] += text

    @property
    def answer(self) -> dict[str, Any]:
        text = "".join(self._text)
        choice: dict[str, Any] = {"index": 0, "finish_reason": self._ended, "logprobs": None}
        if self._is_chat:
            calls = {"tool_calls": list(self._calls.values())} if self._calls else {}
            choice["message"] = {"role": "assistant", "content": text or None if calls else text, **calls}
        else:
            choice["text"] = text
        kind = "chat.completion" if self._is_chat else "text_completion"
        about = {name: self._last.get(name) for name in ("id", "created", "usage")}
        return {**about, "object": kind, "choices": [choice]}


class ModelServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, weights: str) -> None:
        self.model = Model(weights)
        file = Path(weights)
        self.description = {
            "name": MODEL,
            "model": MODEL,
            "modified_at": datetime.fromtimestamp(file.stat().st_mtime, UTC).isoformat(),
            "size": file.stat().st_size,
            "details": {"format": "gguf", "family": "llama", "parameter_size": "135M", "quantization_level": "Q4_1"},
        }
        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints errors to standard error, unless the client has hung up."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _model_of(body: dict[str, Any]) -> str:
    model = body.get("model")
    if not isinstance(model, str) or model.lower() not in NAMES:
        raise Refused(404, f"model {model!r} not found: the embedded model is {MODEL}")
    return model


def _messages(body: dict[str, Any], is_chat: bool) -> list[dict[str, str]]:
    if is_chat:
        given = body.get("messages") or []
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            raise Refused(400, "messages is a list of objects with role and content")
        pairs = [(one.get("role"), one.get("content")) for one in given]
    else:
        pairs = [("system", body.get("system") or ""), ("user", body.get("prompt") or "")]
        pairs = [(role, content) for role, content in pairs if content]
    messages = [{"role": str(role), "content": str(content)} for role, content in pairs]
    if any(not isinstance(content, str) for _, content in pairs):
        raise Refused(400, "a message's content is text")
    if any(one["role"] not in ("system", "user", "assistant") for one in messages):
        raise Refused(400, "a message's role is system, user or assistant")
    return messages


def _sampling(body: dict[str, Any]) -> dict[str, Any]:
    given = body.get("options") or {}
    if not isinstance(given, dict):
        raise Refused(400, "options is an object")
    numbers = {OPTIONS[name]: value for name, value in given.items() if name in OPTIONS and _is_number(value)}
    tokens = numbers.get("max_tokens", -1)
    numbers["max_tokens"] = tokens if 0 < tokens < MOST_TOKENS else MOST_TOKENS
    return {**numbers, **_stop(given.get("stop")), **_format(body.get("format"))}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _stop(stop: Any) -> dict[str, Any]:
    words = [stop] if isinstance(stop, str) else stop
    return {"stop": [str(word) for word in words]} if isinstance(words, list) and words else {}


def _format(format: Any) -> dict[str, Any]:
    if format == "json":
        return {"response_format": {"type": "json_object"}}
    if isinstance(format, dict):
        return {"response_format": {"type": "json_schema", "json_schema": {"schema": format}}}
    return {}


def _end_with_the_scheduler() -> None:
    """Ends this process when the scheduler has gone: when standard input closes, or the parent changes."""
    parent = os.getppid()
    while not select.select([0], [], [], 1.0)[0] or os.read(0, 4096):
        # Something else may hold the pipe open; another parent process shows the same.
        if os.getppid() != parent:
            break
    os._exit(0)


def main(weights: str) -> None:
    threading.Thread(target=_end_with_the_scheduler, name="lifeline", daemon=True).start()
    # Output of the library goes to standard error: the pipe is only for the line that reports the address.
    pipe = os.dup(1)
    os.dup2(2, 1)
    server = ModelServer(weights)
    announcement = json.dumps({"base_url": f"http://127.0.0.1:{server.server_address[1]}"})
    os.write(pipe, announcement.encode() + b"\n")
    os.close(pipe)
    server.serve_forever(poll_interval=3600)


if __name__ == "__main__":
    main(sys.argv[1])
