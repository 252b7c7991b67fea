"""Decides about webhooks: which events there are, who receives one, and what follows an attempt.

`engine/webhooks` and the checks of requests call it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import urlsplit

from nextslot.errors import Problem
from nextslot.system.instant import Instant

from . import Attempt, DeliveryStatus, Json, RunStatus, Webhook, addresses
from .bounds import must_be, quoted
from .webhooks import CHAT_FORMATS, HIDDEN

RUN_EVENTS = ("job.run.completed", "job.run.failed", "job.run.skipped")
JOB_EVENTS = (*RUN_EVENTS, "job.failed_permanently", "job.cancelled", "job.stalled", "job.awaiting_signal")
EVENTS = (*JOB_EVENTS, "group.finished", "schedule.skipped")
GROUP_EVENTS = ("group.finished",)
DIRECT_EVENTS = ("direct.completed", "direct.failed", "direct.skipped")
# The default events of an office's webhook; spec 14.8 requires permanent failures.
OFFICE_EVENTS = (*RUN_EVENTS, "job.failed_permanently")
TEST_EVENT = "webhook.test"
# The prefix of events such as `chain.completed`, which only extensions' formats send, under their own names.
CHAIN_PREFIX = "chain."

# How long to wait after each failed attempt before the next one.
RETRY_DELAYS = (5.0, 15.0, 45.0)
LONGEST_RETRY_AFTER = 3600.0
# An endpoint counts as dead after this many attempts in a row without any response, until it responds again.
BREAKER_FAILURES = 5

NO_FORMATS: Mapping[str, Sequence[str]] = {}
SERVER = "server"


class Target(NamedTuple):
    """A delivery to be made: its URL, whose secrets sign it, whether it goes to the job's own webhook, whether it uses
    the words of the office API, and the chat format, if any."""

    url: str
    signers: tuple[str, ...]
    is_own: bool
    in_office_words: bool = False
    chat: str | None = None


@dataclass(frozen=True, slots=True)
class Next:
    """What follows an attempt: the status of the delivery, and when it is tried again."""

    status: DeliveryStatus
    at: Instant | None = None
    reason: str | None = None


# Checks of requests.


def problems(
    field: str,
    webhook: object,
    allowed: Sequence[str] = JOB_EVENTS,
    allow_private: bool = True,
    formats: Mapping[str, Sequence[str]] = NO_FORMATS,
) -> Iterator[Problem]:
    """Finds what is wrong with `{"url": …, "events": […]}`; `formats` has the words of each other `format`."""
    if not isinstance(webhook, dict):
        yield Problem(field, must_be(webhook, 'a JSON object: {"url": …, "events": […]}'))
        return
    for name in webhook:
        if name not in ("url", "events", "format"):
            yield Problem(field, f"has no part {name!r}; its parts are url, events and format")
    words = formats.get(str(webhook.get("format")))
    if words is None:
        yield from chat_problems(f"{field}.", webhook)
    yield from url_problems(f"{field}.url", webhook.get("url"), allow_private)
    if webhook.get("events") is not None:
        yield from event_problems(f"{field}.events", webhook["events"], allowed if words is None else words)


def chat_problems(prefix: str, webhook: Mapping[str, Json]) -> Iterator[Problem]:
    format_, url = webhook.get("format"), str(webhook.get("url"))
    if format_ not in (None, *CHAT_FORMATS):
        yield Problem(f"{prefix}format", f"is {quoted(format_)}; it must be one of {', '.join(CHAT_FORMATS)}")
    if format_ == "ntfy" and not urlsplit(url).path.strip("/"):
        yield Problem(f"{prefix}url", "has no topic; it must end with one, such as https://ntfy.sh/my-topic")
    if chat_of(webhook) is not None and url.endswith(HIDDEN):
        yield Problem(f"{prefix}url", "is shown without its secret part; give the whole URL")


def url_problems(field: str, url: object, allow_private: bool) -> Iterator[Problem]:
    problem = addresses.url_problem(url, allow_private)
    if problem is not None:
        yield Problem(field, problem)


def event_problems(field: str, events: object, allowed: Sequence[str]) -> Iterator[Problem]:
    if not isinstance(events, (list, tuple)) or not events:
        yield Problem(field, "is not a list of events; it must be a list of at least one")
    elif wrong := [event for event in events if not isinstance(event, str) or event not in allowed]:
        yield Problem(field, f"has {wrong[0]!r}, which is not an event that can be sent here; use {', '.join(allowed)}")


# Who receives an event.


def run_events(status: RunStatus, is_cancelled: bool, is_last: bool) -> tuple[str, ...]:
    """Returns the events of the end of a run; `chain.*` too if no retry follows."""
    events = [f"job.run.{status.lower()}"]
    if is_cancelled:
        events.append("job.cancelled")
    elif is_last:
        events.append(f"{CHAIN_PREFIX}{status.lower()}")
    return tuple(events)


def chain_end(events: Iterable[str]) -> RunStatus | None:
    """Returns how the chain ended, if one of these events is about its end."""
    found = (event.removeprefix(CHAIN_PREFIX) for event in events if event.startswith(CHAIN_PREFIX))
    return next((RunStatus(status.upper()) for status in found), None)


def targets(
    event: str,
    own: Mapping[str, Json] | None,
    office: Mapping[str, Json] | None,
    subscriptions: Iterable[Webhook],
    own_default: Sequence[str] = RUN_EVENTS,
    in_office_words: bool = False,
) -> list[Target]:
    """Returns one target for each URL. If several subscriptions have the same URL, the secret of each signs the
    message.

    `in_office_words`: whether the office's own webhook uses the words of the office API, and so gets a message of its
    own.
    """
    found: dict[str, Target] = {}
    apart: list[Target] = []
    if own is not None and event in _wanted(own, own_default):
        _place(Target(own["url"], (SERVER,), True, chat=chat_of(own)), found, apart)
    if office is not None and event in _wanted(office, OFFICE_EVENTS):
        chat = chat_of(office)
        _place(Target(office["url"], (SERVER,), False, in_office_words and chat is None, chat), found, apart)
    for one in subscriptions:
        if event in one.events and one.format is not None:
            apart.append(Target(one.url, (one.webhook_id,), False, chat=one.format))
        elif event in one.events:
            known = found.get(one.url) or Target(one.url, (), False)
            found[one.url] = known._replace(signers=(*known.signers, one.webhook_id))
    return [*found.values(), *apart]


def chat_of(webhook: Mapping[str, Json]) -> str | None:
    """Returns the chat whose format the messages of a webhook have; None for JSON."""
    format_: str | None = webhook.get("format")
    return format_ if format_ in CHAT_FORMATS else None


def _place(target: Target, found: dict[str, Target], apart: list[Target]) -> None:
    """Adds a target. Targets with different formats get separate messages, even at the same URL."""
    if target.in_office_words or target.chat is not None:
        apart.append(target)
    else:
        found.setdefault(target.url, target)


def _wanted(webhook: Mapping[str, Json], default: Sequence[str]) -> Sequence[str]:
    # The extension with this format is disabled, so nothing knows its words: send the usual events.
    if webhook.get("events") is None or (webhook.get("format") is not None and chat_of(webhook) is None):
        return default
    wanted: Sequence[str] = webhook["events"]
    return wanted


# What follows an attempt.


def after(attempt: Attempt, tries: int, now: Instant) -> Next:
    """Decides what follows an attempt. `tries` counts the attempts of this round, this one included."""
    code = attempt.status_code
    if code is not None and 200 <= code < 300:
        return Next(DeliveryStatus.DELIVERED)
    reason = attempt.error or f"it answered {code}"
    if code == 410 or tries > len(RETRY_DELAYS):
        return Next(DeliveryStatus.FAILED, reason=reason)
    delay = RETRY_DELAYS[tries - 1]
    if attempt.retry_after_seconds is not None:
        delay = max(delay, attempt.retry_after_seconds)
    return Next(DeliveryStatus.PENDING, now.after(delay), reason)


def retry_after(status_code: int, header: str | None, now: Instant) -> float | None:
    """Returns how many seconds a 429 or 503 asks the sender to wait, at most an hour. The header has seconds or a
    date."""
    if status_code not in (429, 503) or header is None:
        return None
    text = header.strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return min(float(text), LONGEST_RETRY_AFTER)
    try:
        until = Instant.of(parsedate_to_datetime(text))
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max((until - now) / 1_000_000, 0.0), LONGEST_RETRY_AFTER)


# Signatures: https://www.standardwebhooks.com
