"""Log lines: one JSON object each, or text on a terminal; with the ids of their subject, and without secrets.

The server calls `install` once. Any code can add ids to the lines logged below it with `bound`. Our modules and uvicorn
log through the standard library; structlog formats lines for a terminal, and is imported only for one.
"""

import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar
from datetime import UTC, datetime
from typing import IO, Any

MASK = "********"
# Fields that every record has, and fields that repeat the message: uvicorn's version with colours, and those added by
# other handlers.
_STANDARD = frozenset({*vars(logging.makeLogRecord({})), "color_message", "message", "asctime"})
# Loggers of nextslot and of the web server. Other libraries are logged from the level warning on.
_OURS = ("nextslot", "uvicorn", "uvicorn.error", "uvicorn.access")
_SECRETS = re.compile(r"\b(nsk_|whsec_)[A-Za-z0-9+/=_-]{8,}|(?<=://)([^\s/:@]*):[^\s/@]+(?=@)")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

_bound: ContextVar[Mapping[str, str]] = ContextVar("bound")


@contextmanager
def bound(**ids: str | None) -> Iterator[None]:
    """Adds ids (job, run, request) to all lines that are logged inside this context, also by awaited code."""
    token = _bound.set({**_bound.get({}), **{name: value for name, value in ids.items() if value is not None}})
    try:
        yield
    finally:
        _bound.reset(token)


def bound_in(context: Context) -> Mapping[str, str]:
    """Returns the ids that a task or a callback has bound, from its context."""
    return context.get(_bound, {})


def install(
    format: str = "auto", level: str = "info", secrets: Sequence[str] = (), stream: IO[str] | None = None
) -> "LogOutput":
    """Sends all log lines of this process to one new output, which replaces an earlier output of nextslot."""
    output = LogOutput(format, secrets, sys.stderr if stream is None else stream)
    root = logging.getLogger()
    for other in [one for one in root.handlers if isinstance(one, LogOutput)]:
        root.removeHandler(other)
    root.addHandler(output)
    for name in _OURS:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    adjust(level, secrets)
    return output


def adjust(level: str, secrets: Sequence[str]) -> None:
    """Changes the level and the secrets of an installed output; does nothing if none is installed."""
    for output in logging.getLogger().handlers:
        if isinstance(output, LogOutput):
            output.secrets = tuple(secrets)
            for name in _OURS:
                logging.getLogger(name).setLevel(level.upper())


class LogOutput(logging.StreamHandler[IO[str]]):
    def __init__(self, format: str, secrets: Sequence[str], stream: IO[str]) -> None:
        super().__init__(stream)
        self.secrets = tuple(secrets)
        is_text = format == "text" or (format == "auto" and stream.isatty())
        self.setFormatter(_Lines(self, is_text, has_colours=is_text and stream.isatty()))


class _Lines(logging.Formatter):
    """Formats each record as one line, masked."""

    def __init__(self, output: LogOutput, is_text: bool, has_colours: bool) -> None:
        super().__init__()
        self._output = output
        self._is_text = is_text
        self._render = _json if not is_text else _console(has_colours)

    def format(self, record: logging.LogRecord) -> str:
        said = _facts(record)
        if record.exc_info and record.exc_info[0] is not None:
            said["exception"] = self.formatException(record.exc_info)
        secrets, is_text = self._output.secrets, self._is_text
        return self._render({name: _clean(name, value, secrets, is_text) for name, value in said.items()})


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    """Returns the time, the level, the logger, the message, the bound ids, and what the caller added."""
    return {
        "timestamp": datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": record.getMessage(),
        **_bound.get({}),
        **{name: value for name, value in vars(record).items() if name not in _STANDARD},
        **({"stack_info": record.stack_info} if record.stack_info else {}),
    }


def _console(has_colours: bool) -> Callable[[dict[str, Any]], str]:
    # Imported here, because a library or a server without a terminal does not need it: its import took a tenth of the
    # time of all imports of a server.
    import structlog

    renderer = structlog.dev.ConsoleRenderer(colors=has_colours)
    return lambda said: renderer(None, "", said)


def _json(said: dict[str, Any]) -> str:
    import orjson

    return orjson.dumps(said, default=str).decode()


def _clean(name: str, value: Any, secrets: Sequence[str], is_text: bool) -> Any:
    if isinstance(value, Mapping):
        return {key: _clean(str(key), inner, secrets, is_text) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(name, inner, secrets, is_text) for inner in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = masked(value if isinstance(value, str) else str(value), secrets)
    # Keep the line on one line: foreign text must not look like another log line. JSON escapes it anyway.
    return _CONTROLS.sub(_visible, text) if is_text and name != "exception" else text


def masked(text: str, secrets: Sequence[str] = ()) -> str:
    """Returns the text with secrets masked: the given ones, API keys, webhook secrets, and passwords in addresses."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return _SECRETS.sub(_mask, text)


def _mask(found: re.Match[str]) -> str:
    return f"{found[1]}{MASK}" if found[1] else f"{found[2]}:{MASK}"


def _visible(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
