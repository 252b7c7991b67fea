"""Log lines: one JSON object each, or text on a terminal; with the ids of what they are about, and without secrets.

The server calls `install` once; anybody may say what the lines below are about with `bound`. Our modules and uvicorn's
log through the standard library; structlog gives the lines their form, and is imported only where that is wanted.
"""

import logging
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar
from datetime import UTC, datetime
from typing import IO, Any

MASK = "********"
# The message once more: with uvicorn's colours, and as another handler of the same line left it.
_REPEATED = frozenset({"color_message", "message", "asctime"})
# Ours and the web server's; what other libraries find worth telling is of interest from a warning on.
_OURS = ("nextslot", "uvicorn", "uvicorn.error", "uvicorn.access")
_SECRETS = re.compile(r"\b(nsk_|whsec_)[A-Za-z0-9+/=_-]{8,}|(?<=://)([^\s/:@]*):[^\s/@]+(?=@)")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

_bound: ContextVar[Mapping[str, str]] = ContextVar("bound")

Event = MutableMapping[str, Any]


@contextmanager
def bound(**ids: str | None) -> Iterator[None]:
    """Lines that are logged below here, also by what is awaited, say what they are about: job, run, request."""
    token = _bound.set({**_bound.get({}), **{name: value for name, value in ids.items() if value is not None}})
    try:
        yield
    finally:
        _bound.reset(token)


def bound_in(context: Context) -> Mapping[str, str]:
    """What the lines of a task or a callback are about, by its context."""
    return context.get(_bound, {})


def install(
    format: str = "auto", level: str = "info", secrets: Sequence[str] = (), stream: IO[str] | None = None
) -> "LogOutput":
    """All lines of this process go through one output from now on, in place of an earlier one of ours."""
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
    """Another level, and other secrets, while everything runs; where nothing is installed there is nothing to do."""
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
        self.setFormatter(_formatter(self, is_text, has_colours=is_text and stream.isatty()))


def _formatter(output: LogOutput, is_text: bool, has_colours: bool) -> logging.Formatter:
    # Imported here so that who uses nextslot as a library, with lines of their own, needs no structlog.
    import structlog

    def mask(logger: Any, method: str, event: Event) -> Event:
        return {name: _clean(name, value, output.secrets, is_text) for name, value in event.items()}

    renderer = structlog.dev.ConsoleRenderer(colors=has_colours) if is_text else _json
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.ExtraAdder()],
        processors=[_facts, structlog.processors.format_exc_info, mask, renderer],
        keep_exc_info=False,
    )


def _facts(logger: Any, method: str, event: Event) -> Event:
    """When, how bad, from whom, and about what."""
    record: logging.LogRecord = event.pop("_record")
    event.pop("_from_structlog", None)
    when = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    facts = {"timestamp": when, "level": record.levelname.lower(), "logger": record.name, "event": event.pop("event")}
    more = {name: value for name, value in event.items() if name not in _REPEATED}
    return {**facts, **_bound.get({}), **more}


def _json(logger: Any, method: str, event: Event) -> str:
    import orjson

    return orjson.dumps(event, default=str).decode()


def _clean(name: str, value: Any, secrets: Sequence[str], is_text: bool) -> Any:
    if isinstance(value, Mapping):
        return {key: _clean(str(key), inner, secrets, is_text) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(name, inner, secrets, is_text) for inner in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = masked(value if isinstance(value, str) else str(value), secrets)
    # A line is one line: what somebody else wrote cannot look like another one of ours. JSON sees to that by itself.
    return _CONTROLS.sub(_visible, text) if is_text and name != "exception" else text


def masked(text: str, secrets: Sequence[str] = ()) -> str:
    """Without what must not be seen: these texts, keys, webhook secrets, and passwords in addresses."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return _SECRETS.sub(_mask, text)


def _mask(found: re.Match[str]) -> str:
    return f"{found[1]}{MASK}" if found[1] else f"{found[2]}:{MASK}"


def _visible(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
